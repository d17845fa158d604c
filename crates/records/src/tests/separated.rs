//! Batches with separated values: they are read back whole, their blob records verify at their
//! places, and no flipped bit gives another value.

use super::*;
use basalt_kv::batch::{Ops, WriteBatch};
use basalt_kv::codec::Compression;
use basalt_kv::family::Family;
use basalt_kv::key::Kind;
use basalt_kv::separated::record;

const ID: u128 = 5;

fn batch(r: &Random, largest: u64) -> WriteBatch {
    let (small, large) = (
        Family::detached(3),
        Family::detached(300).separating(64, Compression::None),
    );
    let mut batch = WriteBatch::new();
    for _ in 0..1 + r.below(5) {
        let key = bytes_of(r, r.below(40));
        let value = bytes_of(r, r.below(largest));
        match r.below(4) {
            0 => batch.put(&small, &key, &value).unwrap(),
            1 => batch.delete(&large, &key).unwrap(),
            2 => batch.put(&large, &key, &value).unwrap(),
            _ => batch
                .put_ttl(&large, &key, &value, r.next_u64() >> 20)
                .unwrap(),
        }
    }
    batch
}

/// Operations of a payload: family, kind, key, value, and whether it is a blob record.
type Owned = (u32, Kind, Vec<u8>, Vec<u8>, bool);

fn operations(payload: &[u8]) -> Vec<Owned> {
    let own = |op: basalt_kv::batch::Op<'_>| {
        let separated = op.record_at.is_some();
        (
            op.family,
            op.kind,
            op.key.to_vec(),
            op.value.to_vec(),
            separated,
        )
    };
    Ops::new(payload).map(|op| own(op.unwrap())).collect()
}

/// Appends batches as one group, and returns their operations.
fn append_batches(
    w: &mut RecordWriter,
    first: u64,
    batches: &mut [WriteBatch],
    sync: bool,
) -> Vec<(u64, Vec<Owned>)> {
    let (mut seq, mut records, mut all) = (first, Vec::new(), Vec::new());
    for b in batches {
        all.push((seq, operations(b.payload())));
        let first = seq;
        seq += b.len() as u64;
        records.push(Outgoing::of_batch(b, first));
    }
    w.append(&mut records, sync).unwrap();
    all
}

/// Returns the operations that are read back, with every blob record verified at its place.
fn read(fs: &dyn FileSystem, path: &Path, proven: u64) -> Result<Vec<(u64, Vec<Owned>)>> {
    let file = fs.open(path)?;
    let Some(mut reader) = RecordReader::open_expecting(file, path, &expect(ID, proven))? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    while let Some(r) = reader.next(proven)? {
        let ops = operations(&r.payload);
        assert_eq!(ops.len(), r.count as usize);
        assert_eq!(r.separated, ops.iter().any(|op| op.4));
        for s in separated(&r.payload).unwrap() {
            let at = r.offset + RECORD_HEADER as u64 + u64::from(s.at);
            let bytes = fs.open(path)?.read(at, r.payload.len() - s.at as usize)?;
            if let Ok(head) = record::check(path, ID, at, &bytes) {
                assert_eq!(head.seq, r.first_seq + u64::from(s.op));
            }
        }
        all.push((r.first_seq, ops));
    }
    Ok(all)
}

#[test]
fn batches_with_separated_values_read_back() {
    let mut values = 0;
    for seed in basalt_sim::campaign::cases(0..12 * scale()) {
        let _repeat = basalt_sim::repeat!(
            batches_with_separated_values_read_back,
            "BASALT_CASE={seed}"
        );
        let unit = [512, 4096][seed as usize % 2];
        let r = Random::from_seed(seed);
        let (fs, path) = (disk(unit, seed), Path::new("1.log"));
        let file = fresh_log(&fs, path, unit, 256 << 10, seed % 4 < 2);
        let mut w = RecordWriter::create(file, path, &file_header(unit, ID, 1)).unwrap();
        let (mut all, mut seq) = (Vec::new(), 1);
        for _ in 0..30 {
            let largest = [200, 5000, 100_000][r.below(3) as usize];
            let mut group: Vec<_> = (0..1 + r.below(4)).map(|_| batch(&r, largest)).collect();
            let written = append_batches(&mut w, seq, &mut group, r.one_in(2));
            seq += written.iter().map(|(_, ops)| ops.len() as u64).sum::<u64>();
            all.extend(written);
        }
        w.sync().unwrap();
        let got = read(&*fs, path, w.synced()).unwrap();
        assert!(got == all, "seed {seed}: {} of {}", got.len(), all.len());
        values += all
            .iter()
            .flat_map(|(_, ops)| ops)
            .filter(|op| op.4)
            .count();
        // Salvage finds the same records without reading one after the other.
        let found = salvage::scan(&*fs.open(path).unwrap(), path, ID, u64::MAX).unwrap();
        let whole = found.found.iter().filter(|f| f.whole).count();
        assert_eq!(whole, all.len(), "seed {seed}");
    }
    assert!(
        basalt_sim::campaign::case().is_some() || values as u64 > scale().floor(500),
        "{values}"
    );
}

#[test]
fn every_flipped_bit_of_a_separated_value_is_cut_or_reported() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let r = Random::from_seed(3);
    let file = fresh_log(&fs, path, 512, 16 << 10, false);
    let mut w = RecordWriter::create(file, path, &file_header(512, ID, 1)).unwrap();
    let mut all = Vec::new();
    let mut seq = 1;
    for sync in [true, false, true] {
        let written = append_batches(&mut w, seq, &mut [batch(&r, 400), batch(&r, 400)], sync);
        seq += written.iter().map(|(_, ops)| ops.len() as u64).sum::<u64>();
        all.extend(written);
    }
    w.sync().unwrap();
    assert!(
        all.iter()
            .flat_map(|(_, ops)| ops)
            .filter(|op| op.4)
            .count()
            > 3
    );
    let (mut reported, mut cut) = (0, 0);
    for at in 512..w.end() {
        for bit in 0..8 {
            fs.flip_bit(path, at, bit).unwrap();
            match read(&*fs, path, 0) {
                Ok(got) => {
                    assert!(
                        all.starts_with(&got),
                        "bit {bit} of byte {at}: wrong records"
                    );
                    cut += usize::from(got.len() < all.len());
                }
                Err(e) => {
                    assert!(e.is_corruption(), "bit {bit} of byte {at}: {e}");
                    reported += 1;
                }
            }
            fs.flip_bit(path, at, bit).unwrap();
        }
    }
    assert!(reported > 1000 && cut > 1000, "{reported} {cut}");
}
