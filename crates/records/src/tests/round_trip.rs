//! Payloads that are written are read back, with few device writes and little memory.

use super::*;

#[test]
fn written_records_read_back() {
    for seed in basalt_sim::campaign::cases(0..12 * scale()) {
        let _repeat = basalt_sim::repeat!(written_records_read_back, "BASALT_CASE={seed}");
        let ((sector, unit), recycled) = (units(seed), seed % 4 < 2);
        let say = format!("wal round trip seed={seed}");
        let r = Random::from_seed(seed);
        let (fs, path) = (disk(sector, seed), Path::new("1.log"));
        let file = fresh_log(&fs, path, unit, 256 << 10, recycled);
        let mut w = RecordWriter::create(file, path, &file_header(unit, 5, 1)).unwrap();
        let mut all: Vec<Vec<u8>> = Vec::new();
        for _ in 0..40 {
            let group: Vec<Vec<u8>> = match r.below(12) {
                0 => vec![bytes_of(&r, r.below(3 << 20))],
                1 => (0..4)
                    .map(|_| bytes_of(&r, (64 << 10) - 50 + r.below(100)))
                    .collect(),
                2 => (0..50).map(|_| bytes_of(&r, 1 + r.below(60_000))).collect(),
                3 => vec![
                    bytes_of(&r, 3),
                    bytes_of(&r, 90_000),
                    bytes_of(&r, 5),
                    bytes_of(&r, 0),
                ],
                _ => small_group(&r, 5000),
            };
            let sync = r.one_in(2);
            let writes = fs.stats().writes;
            append(&mut w, all.len() as u64 + 1, &group, sync).unwrap();
            if group.iter().map(Vec::len).sum::<usize>() < 900_000 {
                // Zeros up to the file's own unit are one more write.
                let most = if sector < unit { 2 } else { 1 };
                let made = fs.stats().writes - writes;
                assert!(
                    (1..=most).contains(&made),
                    "{say}: {made} writes for a group"
                );
            }
            all.extend(group);
            if sync {
                assert!(
                    w.synced() == w.end() && w.position().is_multiple_of(unit as u64),
                    "{say}"
                );
            } else if r.one_in(4) {
                w.sync().unwrap();
                assert_eq!(w.synced(), w.end(), "{say}");
            }
            assert!(w.end() <= w.position() && w.memory() <= 1 << 20, "{say}");
        }
        let (got, tail) = read_all(&*fs, path, &expect(5, w.synced())).expect(&say);
        assert!(got == all, "{say}: {} of {} records", got.len(), all.len());
        let end = w.end();
        assert_eq!(tail, Some(Tail { end, torn: false }), "{say}");
    }
}

/// The cost of whole blocks is the same figure whether or not the file has them.
#[test]
fn padding_costs_are_computed_for_both_write_units() {
    let costs = [512, 4096].map(|unit| {
        let (fs, path) = (disk(512, 1), Path::new("1.log"));
        let file = fresh_log(&fs, path, unit, 1 << 20, false);
        let mut w = RecordWriter::create(file, path, &file_header(unit, 5, 1)).unwrap();
        for n in 0..20 {
            let len = if n % 4 == 0 { 16_000 } else { 100 };
            append(&mut w, n + 1, &[vec![1; len]], true).unwrap();
        }
        w.in_blocks()
    });
    // Of four groups three have 512 bytes, or 4,096. The large one has 16,384 in both.
    assert_eq!(costs.map(|(_, more)| more), [15 * 3584; 2]);
    let (in_units, in_blocks) = (costs[0].0, costs[1].0);
    assert!(in_units.abs_diff(in_blocks) <= 4096, "{costs:?}");
}

#[test]
fn large_records_are_not_staged_and_idle_writers_free_memory() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let file = fresh_log(&fs, path, 512, 1 << 20, false);
    let mut w = RecordWriter::create(file, path, &file_header(512, 5, 1)).unwrap();
    assert_eq!(w.memory(), 0);
    for sync in [true, false] {
        append(&mut w, 1, &[vec![1; 3 << 20]], sync).unwrap();
        assert!(w.memory() <= 8192, "{} bytes staged", w.memory());
    }
    // Records in the page cache need no padding, so smaller records count as large there.
    append(&mut w, 1, &vec![vec![1; 8000]; 20], false).unwrap();
    assert!(w.memory() <= 8192, "{} bytes staged", w.memory());
    append(&mut w, 1, &vec![vec![1; 60_000]; 30], true).unwrap();
    assert_eq!(w.memory(), 1 << 20);
    for _ in 0..40 {
        append(&mut w, 1, &[vec![1; 100]], false).unwrap();
    }
    assert!(w.memory() <= 8192, "{} bytes kept", w.memory());
}
