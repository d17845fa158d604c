//! The log over a simulated disk: what was written comes back, a power cut leaves a prefix with
//! everything that was acknowledged, and damage is never taken for a power cut where anything
//! proves otherwise.

mod separated;

use super::header::{self, COPIES, HEADER_LEN};
use super::record::{Head, Life};
use super::*;
use basalt_env::Random;
use basalt_fs::{Error, ErrorKind, File, FileSystem, LogOptions, Result};
use basalt_sim::campaign::scale;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{CrashPolicy, FaultFs, OpKind, SimFs, SimOptions, SimSnapshot, When};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const STORE: u128 = 0x5707_e000_0000_0000_0000_0000_0000_0001;

fn disk(unit: usize, seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        write_unit: unit,
        capacity: 1 << 30,
        seed,
    })
}

fn file_header(unit: usize, file_id: u128, number: u64) -> FileHeader {
    FileHeader {
        kind: FileKind::Log,
        file_id,
        store_id: STORE,
        number,
        write_unit: unit as u32,
        compatible: 0,
        incompatible: 0,
        previous: None,
    }
}

fn record_of(payload: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + payload.len());
    buf.resize(RECORD_HEADER, 0);
    buf.extend_from_slice(payload);
    buf
}

/// Appends payloads as one group; the n-th gets `first_seq` = first + n.
fn append(w: &mut RecordWriter, first: u64, payloads: &[Vec<u8>], sync: bool) -> Result<()> {
    let mut bufs: Vec<AlignedBuf> = payloads.iter().map(|p| record_of(p)).collect();
    let mut records: Vec<Outgoing<'_>> = bufs
        .iter_mut()
        .enumerate()
        .map(|(i, buf)| Outgoing {
            payload_crc: crc32c::crc32c(&buf[RECORD_HEADER..]),
            separated: &[],
            offset: 0,
            buf,
            kind: RecordKind::Batch,
            first_seq: first + i as u64,
            count: payloads[i].len() as u32,
        })
        .collect();
    let done = w.append(&mut records, sync);
    for (buf, p) in bufs.iter().zip(payloads) {
        assert_eq!(
            buf[RECORD_HEADER..],
            p[..],
            "the writer leaves payloads as they are"
        );
    }
    done
}

fn bytes_of(r: &Random, len: u64) -> Vec<u8> {
    let mut v = Vec::with_capacity(len as usize + 8);
    while (v.len() as u64) < len {
        v.extend_from_slice(&r.next_u64().to_le_bytes());
    }
    v.truncate(len as usize);
    v
}

fn small_group(r: &Random, largest: u64) -> Vec<Vec<u8>> {
    (0..1 + r.below(4))
        .map(|_| {
            let len = if r.one_in(3) {
                r.below(largest)
            } else {
                r.below(120)
            };
            bytes_of(r, 1 + len)
        })
        .collect()
}

fn expect(file_id: u128, proven_synced: u64) -> Expect {
    Expect {
        kind: FileKind::Log,
        file_id: Some(file_id),
        store_id: Some(STORE),
        number: None,
        proven_synced,
    }
}

/// Payloads up to the tail, numbered from 1 by `first_seq`; and how it ends.
fn read_all(fs: &dyn FileSystem, path: &Path, e: &Expect) -> Result<(Vec<Vec<u8>>, Option<Tail>)> {
    let Some(mut reader) = RecordReader::open_expecting(fs.open(path)?, path, e)? else {
        return Ok((Vec::new(), None));
    };
    let mut out = Vec::new();
    while let Some(record) = reader.next(e.proven_synced)? {
        assert_eq!(
            record.first_seq,
            out.len() as u64 + 1,
            "records come in order"
        );
        assert_eq!(record.count as usize, record.payload.len());
        out.push(record.payload.to_vec());
    }
    let tail = reader.tail();
    assert!(
        reader.next(e.proven_synced)?.is_none(),
        "the tail stays the tail"
    );
    Ok((out, Some(tail)))
}

/// A log in space full of an earlier life's records, numbered like the new one's will be.
fn recycled_log(fs: &SimFs, path: &Path, unit: usize, capacity: u64) -> Arc<dyn File> {
    let old = Path::new("old");
    let file = fs
        .create_log(
            old,
            LogOptions {
                capacity,
                reuse: None,
            },
        )
        .unwrap();
    let mut w = RecordWriter::create(file, old, &file_header(unit, 77, 1)).unwrap();
    let (r, mut n) = (Random::from_seed(capacity), 1);
    while w.end() + 2000 < capacity {
        append(&mut w, n, &[bytes_of(&r, 1 + r.below(300))], n % 7 == 0).unwrap();
        n += 1;
    }
    w.sync().unwrap();
    drop(w);
    fs.sync_metadata(Path::new("")).unwrap();
    let reuse = Some(old);
    fs.create_log(path, LogOptions { capacity, reuse }).unwrap()
}

/// The disk's sector and the file's unit: the same, or a larger one.
fn units(seed: u64) -> (usize, usize) {
    [(512, 512), (4096, 4096), (512, 4096)][seed as usize % 3]
}

fn fresh_log(fs: &SimFs, path: &Path, unit: usize, capacity: u64, recycled: bool) -> Arc<dyn File> {
    let file = if recycled {
        recycled_log(fs, path, unit, capacity)
    } else {
        let reuse = None;
        fs.create_log(path, LogOptions { capacity, reuse }).unwrap()
    };
    fs.sync_metadata(Path::new("")).unwrap();
    file
}

#[test]
fn what_was_written_comes_back() {
    for seed in basalt_sim::campaign::cases(0..12 * scale()) {
        let _repeat = basalt_sim::repeat!(what_was_written_comes_back, "BASALT_CASE={seed}");
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
                // Zeros up to the file's own unit are one more.
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

/// What whole blocks cost is told alike whether the file has them or not.
#[test]
fn the_price_of_blocks_is_known_in_either_unit() {
    let told = [512, 4096].map(|unit| {
        let (fs, path) = (disk(512, 1), Path::new("1.log"));
        let file = fresh_log(&fs, path, unit, 1 << 20, false);
        let mut w = RecordWriter::create(file, path, &file_header(unit, 5, 1)).unwrap();
        for n in 0..20 {
            let len = if n % 4 == 0 { 16_000 } else { 100 };
            append(&mut w, n + 1, &[vec![1; len]], true).unwrap();
        }
        w.in_blocks()
    });
    // Of four groups three have 512 bytes, or 4,096; the large one has 16,384 in both.
    assert_eq!(told.map(|(_, more)| more), [15 * 3584; 2]);
    let (in_units, in_blocks) = (told[0].0, told[1].0);
    assert!(in_units.abs_diff(in_blocks) <= 4096, "{told:?}");
}

#[test]
fn large_records_are_not_staged_and_idle_writers_hold_little() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let file = fresh_log(&fs, path, 512, 1 << 20, false);
    let mut w = RecordWriter::create(file, path, &file_header(512, 5, 1)).unwrap();
    assert_eq!(w.memory(), 0);
    for sync in [true, false] {
        append(&mut w, 1, &[vec![1; 3 << 20]], sync).unwrap();
        assert!(w.memory() <= 8192, "{} bytes staged", w.memory());
    }
    // Through the page cache they need no padding for it, so that smaller ones are large there.
    append(&mut w, 1, &vec![vec![1; 8000]; 20], false).unwrap();
    assert!(w.memory() <= 8192, "{} bytes staged", w.memory());
    append(&mut w, 1, &vec![vec![1; 60_000]; 30], true).unwrap();
    assert_eq!(w.memory(), 1 << 20);
    for _ in 0..40 {
        append(&mut w, 1, &[vec![1; 100]], false).unwrap();
    }
    assert!(w.memory() <= 8192, "{} bytes kept", w.memory());
}

struct Moment {
    snapshot: SimSnapshot,
    acked: u64,
    synced: u64,
}

/// Writes random groups; after every change of the disk, cuts the power in every way, and checks
/// what is read back.
fn crash_run(seed: u64, groups: u64) -> u64 {
    let ((sector, unit), recycled) = (units(seed), seed % 4 < 2);
    let r = Random::from_seed(seed);
    let (fs, path) = (disk(sector, seed), Path::new("1.log"));
    let file = fresh_log(&fs, path, unit, 64 << 10, recycled);
    let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let (acked, synced) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (m, a, s) = (moments.clone(), acked.clone(), synced.clone());
    fs.on_mutation(move |snapshot| {
        m.lock().push(Moment {
            snapshot,
            acked: a.load(SeqCst),
            synced: s.load(SeqCst),
        });
    });
    let mut w = RecordWriter::create(file, path, &file_header(unit, 5, 1)).unwrap();
    let mut all: Vec<Vec<u8>> = Vec::new();
    for _ in 0..groups {
        // Some are written from their own memory where they are not synced.
        let group = small_group(&r, if r.one_in(2) { 3000 } else { 9000 });
        let sync = r.one_in(2);
        append(&mut w, all.len() as u64 + 1, &group, sync).unwrap();
        all.extend(group);
        if !sync && r.one_in(4) {
            w.sync().unwrap();
        }
        if w.synced() == w.end() {
            acked.store(all.len() as u64, SeqCst);
            synced.store(w.synced(), SeqCst);
        }
    }
    fs.on_mutation(|_| {});
    let mut states = 0;
    for moment in moments.lock().iter() {
        for &policy in CrashPolicy::ALL {
            let cut = seed * 1000 + states;
            let after = moment.snapshot.crash(policy, cut);
            for proven in [0, moment.synced] {
                let say = format!(
                    "wal crash seed={seed} at {:?} policy={policy:?} cut={cut} proven={proven}",
                    moment.snapshot
                );
                let (got, tail) = read_all(&*after, path, &expect(5, proven))
                    .unwrap_or_else(|e| panic!("{say}: {e}"));
                assert!(
                    got.len() as u64 >= moment.acked,
                    "{say}: {} of {} acknowledged",
                    got.len(),
                    moment.acked
                );
                assert!(all.starts_with(&got), "{say}: not a prefix");
                assert!(tail.is_some() || moment.synced == 0, "{say}: no header");
                assert!(tail.is_none_or(|t| t.end >= moment.synced), "{say}");
            }
            states += 1;
        }
    }
    states
}

#[test]
fn a_power_cut_leaves_a_prefix_with_all_that_was_acknowledged() {
    let mut states = 0;
    for seed in basalt_sim::campaign::cases(0..24 * scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_leaves_a_prefix_with_all_that_was_acknowledged,
            "BASALT_CASE={seed}"
        );
        states += crash_run(seed, 12);
    }
    println!("wal crash_states={states}");
    assert!(
        basalt_sim::campaign::case().is_some() || states >= scale().floor(4000),
        "only {states} crash states"
    );
}

#[test]
fn nothing_after_a_torn_tail_is_replayed() {
    // Three unsynced records; the second loses its sectors, the third stays whole and starts at a
    // unit boundary.
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let file = fresh_log(&fs, path, 512, 64 << 10, false);
    let mut w = RecordWriter::create(file, path, &file_header(512, 5, 1)).unwrap();
    append(&mut w, 1, &[vec![1; 100]], true).unwrap();
    let hole = w.position();
    append(&mut w, 2, &[vec![2; 1024 - RECORD_HEADER]], false).unwrap();
    append(&mut w, 3, &[vec![3; 10]], false).unwrap();
    let end = w.synced();
    fs.overwrite(path, hole, &[0; 1024]).unwrap();
    let (got, tail) = read_all(&*fs, path, &expect(5, end)).unwrap();
    assert_eq!(got, [vec![1; 100]]);
    assert_eq!(tail, Some(Tail { end, torn: true }));
    // The same hole, once a record says that it had been synced.
    let mut w2 = w;
    w2.sync().unwrap();
    append(&mut w2, 4, &[vec![4; 10]], false).unwrap();
    let e = read_all(&*fs, path, &expect(5, 0)).unwrap_err();
    assert!(e.is_corruption() && e.offset() == Some(end), "{e}");
    assert!(e.to_string().contains("proves that bytes up to"), "{e}");
}

/// A small log of synced and unsynced groups; where the last synced record ends; all payloads.
fn small_log(fs: &SimFs, path: &Path, unit: usize) -> (u64, Vec<Vec<u8>>, usize) {
    let r = Random::from_seed(3);
    let file = fresh_log(fs, path, unit, 16 << 10, true);
    let mut w = RecordWriter::create(file, path, &file_header(unit, 5, 1)).unwrap();
    let (mut all, mut acked) = (Vec::new(), 0);
    for sync in [true, false, false, true, false, true, false, false] {
        let group = vec![bytes_of(&r, 60), bytes_of(&r, 1 + r.below(300))];
        append(&mut w, all.len() as u64 + 1, &group, sync).unwrap();
        all.extend(group);
        if sync {
            acked = all.len();
        }
    }
    (w.synced(), all, acked)
}

#[test]
fn every_flipped_bit_is_harmless_cut_or_reported() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let (synced, all, acked) = small_log(&fs, path, 512);
    let (mut reported, mut harmless) = (0, 0);
    for at in 0..synced + 1500 {
        for bit in 0..8 {
            fs.flip_bit(path, at, bit).unwrap();
            match read_all(&*fs, path, &expect(5, synced)) {
                Ok((got, _)) => {
                    assert!(
                        all.starts_with(&got) && got.len() >= acked,
                        "bit {bit} of byte {at}: wrong records"
                    );
                    harmless += 1;
                }
                Err(e) => {
                    assert!(
                        e.is_corruption() && at < synced,
                        "bit {bit} of byte {at}: {e}"
                    );
                    assert!(e.path() == Some(path) && e.offset().is_some(), "{e}");
                    reported += 1;
                }
            }
            // Without outside proof, what later records prove is still reported, and what is read
            // is still right.
            match read_all(&*fs, path, &expect(5, 0)) {
                Ok((got, _)) => assert!(all.starts_with(&got)),
                Err(e) => assert!(e.is_corruption() && at < synced, "{e}"),
            }
            fs.flip_bit(path, at, bit).unwrap();
        }
    }
    println!("wal flips: reported={reported} harmless={harmless}");
    assert!(reported > 8 * 500 && harmless > 8 * 1000);
}

/// One bit read wrongly in the last record looked like a torn tail: recovery cut a record that was
/// whole on the disk.
#[test]
fn one_wrong_reading_cuts_no_record() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let (synced, all, _) = small_log(&fs, path, 512);
    let mut read = 0;
    for seed in basalt_sim::campaign::cases(0..3000) {
        let _repeat = basalt_sim::repeat!(one_wrong_reading_cuts_no_record, "BASALT_CASE={seed}");
        let faulty = FaultFs::new(fs.clone(), seed);
        faulty.inject(Fault {
            op: Some(OpKind::Read),
            path: String::new(),
            when: When::Nth(1 + seed % 3),
            kind: FaultKind::BitFlip,
        });
        match read_all(&*faulty, path, &expect(5, [0, synced][seed as usize % 2])) {
            Ok((got, _)) => {
                assert_eq!(got.len(), all.len(), "seed {seed}: records cut");
                assert!(got == all, "seed {seed}: wrong records");
                read += 1;
            }
            // In what later records prove to have been synced.
            Err(e) => assert!(e.is_corruption() && e.path() == Some(path), "{e}"),
        }
    }
    assert!(
        basalt_sim::campaign::case().is_some() || read > 2000,
        "only {read} were read"
    );
}

#[test]
fn damage_in_the_synced_part_is_always_reported() {
    for unit in [512, 4096] {
        let (fs, path) = (disk(unit, 1), Path::new("1.log"));
        let (synced, all, acked) = small_log(&fs, path, unit);
        let good = fs.read_all(path).unwrap();
        let mut extents = Vec::new();
        extents.push(0..512u64);
        let mut reader = RecordReader::open(fs.open(path).unwrap(), path, FileKind::Log, Some(5))
            .unwrap()
            .unwrap();
        while let Some(r) = reader.next(0).unwrap() {
            extents.push(r.offset..r.offset + (RECORD_HEADER + r.payload.len()) as u64);
        }
        extents.truncate(1 + acked);
        let r = Random::from_seed(9);
        for at in (0..synced).step_by(512) {
            let old = &good[at as usize..at as usize + 512];
            let stale = &good[(at as usize + 512) % good.len()..][..512];
            // What lies between records may hold anything.
            let in_use = extents.iter().any(|e| e.start < at + 512 && at < e.end);
            for bytes in [&[0; 512], &bytes_of(&r, 512)[..], stale] {
                fs.overwrite(path, at, bytes).unwrap();
                match read_all(&*fs, path, &expect(5, synced)) {
                    Err(e) => assert!(in_use && e.is_corruption(), "unit {unit} at {at}: {e}"),
                    Ok((got, _)) => assert!(!in_use && got == all, "unit {unit} at {at}: no error"),
                }
                match read_all(&*fs, path, &expect(5, 0)) {
                    Err(e) => assert!(in_use && e.is_corruption(), "unit {unit} at {at}: {e}"),
                    Ok((got, _)) => assert!(all.starts_with(&got), "unit {unit} at {at}"),
                }
                fs.overwrite(path, at, old).unwrap();
            }
        }
    }
}

#[test]
fn a_seeded_mutator_never_makes_wrong_records() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let (_, all, _) = small_log(&fs, path, 512);
    let good = fs.read_all(path).unwrap();
    let (mut whole, mut cut, mut reported) = (0u64, 0u64, 0u64);
    for seed in basalt_sim::campaign::cases(0..200_000 * scale()) {
        let _repeat = basalt_sim::repeat!(
            a_seeded_mutator_never_makes_wrong_records,
            "BASALT_CASE={seed}"
        );
        let r = Random::from_seed(seed);
        let mut b = good.clone();
        for _ in 0..1 + r.below(3) {
            mutate(&r, &mut b);
        }
        let file: Arc<dyn File> = Arc::new(Image(b.into()));
        let proven = if r.one_in(2) { 0 } else { r.below(8000) };
        let fs = ImageFs(file);
        match fs.read(path, &expect(5, proven)) {
            Ok(got) if got.len() == all.len() => whole += 1,
            Ok(got) => {
                assert!(all.starts_with(&got), "wal mutator seed={seed}");
                cut += 1;
            }
            Err(e) => {
                assert!(
                    matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported),
                    "wal mutator seed={seed}: {e}"
                );
                reported += 1;
            }
        }
    }
    println!("wal mutator: whole={whole} cut={cut} reported={reported}");
    assert!(whole > 100 && cut > 100 && reported > 100);
}

fn mutate(r: &Random, b: &mut Vec<u8>) {
    let at = r.below(b.len() as u64) as usize;
    let n = (1 + r.below(64) as usize).min(b.len() - at);
    match r.below(6) {
        0 => b[at] ^= 1 << r.below(8),
        1 => b[at..at + n].fill([0, 0xff][r.below(2) as usize]),
        2 => {
            let from = r.below((b.len() - n) as u64 + 1) as usize;
            b.copy_within(from..from + n, at);
        }
        3 => b.truncate(at.max(1)),
        4 => {
            // Lengths and positions, where they hurt.
            let at = at / 8 * 8;
            if at + 8 <= b.len() {
                b[at..at + 8].copy_from_slice(
                    &[u64::MAX, 1 << 32, 0xffff_ffff, 1][r.below(4) as usize].to_le_bytes(),
                );
            }
        }
        _ => {
            // A stale or misdirected sector.
            let n = 512.min(b.len());
            let sector = || (r.below(b.len() as u64 / 512 + 1) as usize * 512).min(b.len() - n);
            let (from, to) = (sector(), sector());
            b.copy_within(from..from + n, to);
        }
    }
}

/// A file that is some bytes.
struct Image(Bytes);

struct ImageFs(Arc<dyn File>);

impl ImageFs {
    fn read(&self, path: &Path, e: &Expect) -> Result<Vec<Vec<u8>>> {
        let Some(mut reader) = RecordReader::open_expecting(self.0.clone(), path, e)? else {
            return Ok(Vec::new());
        };
        let mut out = Vec::new();
        while let Some(record) = reader.next(e.proven_synced)? {
            out.push(record.payload.to_vec());
        }
        Ok(out)
    }
}

impl File for Image {
    fn append(&self, _: &[std::io::IoSlice<'_>], _: basalt_fs::Intent) -> Result<u64> {
        Err(Error::new(ErrorKind::ReadOnly, "an image"))
    }
    fn align_to_unit(&self) -> Result<u64> {
        Err(Error::new(ErrorKind::ReadOnly, "an image"))
    }
    fn sync_data(&self) -> Result<()> {
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let from = (offset as usize).min(self.0.len());
        Ok(self.0.slice(from..(from + len).min(self.0.len())))
    }
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn allocated(&self) -> u64 {
        self.0.len() as u64
    }
    fn extend_log(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn release_range(&self, _: std::ops::Range<u64>) -> Result<()> {
        Ok(())
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn any_error_poisons_the_writer() {
    for (op, kind) in [
        (OpKind::Append, FaultKind::Eio),
        (OpKind::Append, FaultKind::Enospc),
        (OpKind::Append, FaultKind::ShortWrite),
        (OpKind::SyncData, FaultKind::FailedSync),
    ] {
        let inner = disk(512, 1);
        let fs = FaultFs::new(inner.clone(), 1);
        let path = Path::new("1.log");
        let options = LogOptions {
            capacity: 16 << 10,
            reuse: None,
        };
        let file = fs.create_log(path, options).unwrap();
        let mut w = RecordWriter::create(file, path, &file_header(512, 5, 1)).unwrap();
        append(&mut w, 1, &[vec![1; 100]], true).unwrap();
        let synced = w.synced();
        let rule = fs.inject(Fault {
            op: Some(op),
            path: String::new(),
            when: When::Nth(1),
            kind,
        });
        let e = append(&mut w, 2, &[vec![2; 5000]], true).unwrap_err();
        assert_eq!(fs.seen(rule), 1);
        assert_ne!(
            e.kind(),
            ErrorKind::Poisoned,
            "the first error is the filesystem's own: {e}"
        );
        for _ in 0..2 {
            let e = append(&mut w, 2, &[vec![2; 10]], false).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}");
            assert_eq!(w.sync().unwrap_err().kind(), ErrorKind::Poisoned);
        }
        assert_eq!(w.synced(), synced);
        let (got, _) = read_all(&*inner, path, &expect(5, synced)).unwrap();
        assert_eq!(got[0], vec![1; 100]);
        assert!(got.len() == 1 || got[1..] == [vec![2; 5000]]);
    }
}

/// A file image with one header and hand-made records.
fn image(heads: &[(Head, &[u8])]) -> Vec<u8> {
    let life = Life::new(5);
    let mut b = header::encode(&file_header(512, 5, 1));
    for (head, payload) in heads {
        let at = b.len();
        b.resize(at + RECORD_HEADER, 0);
        life.seal(&mut b[at..], at as u64, head);
        b.extend_from_slice(payload);
        b.resize(b.len().next_multiple_of(8), 0);
    }
    b
}

fn open_image(b: Vec<u8>) -> RecordReader {
    let file: Arc<dyn File> = Arc::new(Image(b.into()));
    RecordReader::open(file, Path::new("image"), FileKind::Log, Some(5))
        .unwrap()
        .expect("a header")
}

const HEAD: Head = Head {
    crc: 0,
    payload_crc: 0,
    len: 0,
    kind: 1,
    flags: 0,
    synced: 0,
    first_seq: 1,
    chain: 0,
    count: 1,
};

#[test]
fn a_length_past_the_space_allocates_nothing_and_is_a_torn_tail() {
    let len = u32::MAX;
    let mut reader = open_image(image(&[(Head { len, ..HEAD }, b"short")]));
    assert!(reader.next(0).unwrap().is_none());
    assert_eq!(
        reader.tail(),
        Tail {
            end: 512,
            torn: true
        }
    );
    assert!(reader.next(513).unwrap_err().is_corruption());
    assert!(
        reader.next(0).unwrap_err().is_corruption(),
        "damage stays damage"
    );
}

#[test]
fn records_of_a_later_version_are_refused_by_name() {
    for head in [Head { kind: 9, ..HEAD }, Head { flags: 4, ..HEAD }] {
        let e = open_image(image(&[(head, b"")])).next(0).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert_eq!(e.offset(), Some(512));
    }
}

#[test]
fn an_empty_space_an_earlier_life_and_a_damaged_header_are_told_apart() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let open = |e: &Expect| RecordReader::open_expecting(fs.open(path).unwrap(), path, e);
    recycled_log(&fs, path, 512, 16 << 10);
    // The earlier life had id 77 and number 1.
    assert!(open(&expect(5, 0)).unwrap().is_none(), "not this life");
    let by_number = |number| Expect {
        number: Some(number),
        file_id: None,
        ..expect(0, 0)
    };
    assert!(open(&by_number(2)).unwrap().is_none());
    assert!(
        open(&expect(5, 512)).is_err_and(|e| e.is_corruption()),
        "known to be synced"
    );
    let other_store = Expect {
        store_id: Some(1),
        ..by_number(1)
    };
    assert!(open(&other_store).unwrap().is_none());

    small_log_over(&fs, path);
    let good = fs.read_all(path).unwrap();
    assert!(open(&expect(5, 0)).unwrap().is_some());
    // One copy decays: the other serves. Both: damage.
    fs.flip_bit(path, 40, 1).unwrap();
    assert_eq!(open(&by_number(1)).unwrap().unwrap().header().file_id, 5);
    fs.flip_bit(path, COPIES[1] as u64 + 20, 1).unwrap();
    assert!(open(&by_number(1)).is_err_and(|e| e.is_corruption()));
    // The whole unit lost or stale: the records of this life prove it.
    for unit in [vec![0; 512], header::encode(&file_header(512, 77, 1))] {
        fs.overwrite(path, 0, &unit).unwrap();
        let e = open(&expect(5, 0)).err().expect("damage");
        assert!(
            e.to_string().contains("proves that the file was synced"),
            "{e}"
        );
    }
    fs.overwrite(path, 0, &good[..512]).unwrap();
    let manifest = Expect {
        kind: FileKind::Manifest,
        ..expect(5, 0)
    };
    assert!(
        open(&manifest).is_err_and(|e| e.is_corruption()),
        "of another kind"
    );
}

fn small_log_over(fs: &SimFs, path: &Path) {
    fs.remove(path).unwrap();
    small_log(fs, path, 512);
}

#[test]
fn headers_round_trip_and_unknown_features_are_refused() {
    let r = Random::from_seed(4);
    let path = Path::new("1.log");
    for i in 0..200 {
        let h = FileHeader {
            kind: [FileKind::Log, FileKind::Manifest][i % 2],
            file_id: r.next_u128(),
            store_id: r.next_u128(),
            number: r.next_u64(),
            write_unit: 512 << r.below(4),
            compatible: r.next_u64() as u32,
            incompatible: 0,
            previous: r.one_in(2).then(|| PreviousLog {
                number: r.next_u64(),
                file_id: r.next_u128(),
                end: r.next_u64(),
            }),
        };
        let slot = header::encode(&h);
        assert_eq!(slot.len(), h.write_unit as usize);
        match header::decode(&slot, path).unwrap() {
            header::Slot::Header(got) => assert_eq!(got, h),
            other => panic!("{other:?}"),
        }
        for cut in [0, 1, 127, 300] {
            let _ = header::decode(&slot[..cut], path);
        }
        assert!(matches!(
            header::decode(&slot[..HEADER_LEN - 1], path).unwrap(),
            header::Slot::Absent
        ));
        let future = FileHeader {
            incompatible: 1 << (i % 32),
            ..h
        };
        if future.incompatible == PACKED_VALUES {
            // Of logs it is known, and of no other file.
            assert!(header::decode(&header::encode(&future), path).is_ok());
            let other = FileHeader {
                kind: FileKind::Manifest,
                ..future.clone()
            };
            let e = header::decode(&header::encode(&other), path).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            continue;
        }
        let e = header::decode(&header::encode(&future), path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
}
