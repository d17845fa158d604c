//! The log over a simulated disk: what was written comes back, a power cut leaves a prefix with everything that was
//! acknowledged, and damage is never taken for a power cut where anything proves otherwise.

use super::header::{self, COPIES, HEADER_LEN};
use super::record::{Head, Life};
use super::*;
use basalt_env::Random;
use basalt_fs::fault::{Fault, FaultFs, Rule};
use basalt_fs::sim::{CrashPolicy, SimOptions, SimSnapshot};
use basalt_fs::{Error, ErrorKind, File, FileSystem, LogOptions, OpKind, Result, SimFs, When};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const STORE: u128 = 0x5707_e000_0000_0000_0000_0000_0000_0001;

fn scale() -> u64 {
    std::env::var("BASALT_SCALE")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1)
}

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
    for seed in 0..12 * scale() {
        let (unit, recycled) = ([512, 4096][seed as usize % 2], seed % 4 < 2);
        let say = format!("wal round trip seed={seed}");
        let r = Random::from_seed(seed);
        let (fs, path) = (disk(unit, seed), Path::new("1.log"));
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
                assert_eq!(fs.stats().writes, writes + 1, "{say}: one write a group");
            }
            all.extend(group);
            if sync {
                assert!(
                    w.synced() == w.end() && w.position() % unit as u64 == 0,
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

/// Writes random groups; after every change of the disk, cuts the power in every way, and checks what is read back.
fn crash_run(seed: u64, groups: u64) -> u64 {
    let (unit, recycled) = ([512, 4096][seed as usize % 2], seed % 4 < 2);
    let r = Random::from_seed(seed);
    let (fs, path) = (disk(unit, seed), Path::new("1.log"));
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
        let group = small_group(&r, 3000);
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
    for seed in 0..24 * scale() {
        states += crash_run(seed, 12);
    }
    println!("wal crash_states={states}");
    assert!(states >= 4000 * scale(), "only {states} crash states");
}

#[test]
fn nothing_after_a_torn_tail_is_replayed() {
    // Three unsynced records; the second loses its sectors, the third stays whole and starts at a unit boundary.
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
            // Without outside proof, what later records prove is still reported, and what is read is still right.
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

#[test]
fn damage_in_the_synced_part_is_always_reported() {
    for unit in [512, 4096] {
        let (fs, path) = (disk(unit, 1), Path::new("1.log"));
        let (synced, all, _) = small_log(&fs, path, unit);
        let good = fs.read_all(path).unwrap();
        let r = Random::from_seed(9);
        for sector in 0..synced.div_ceil(512) {
            let at = sector * 512;
            for what in 0..3 {
                let bytes = match what {
                    0 => vec![0; 512],
                    1 => bytes_of(&r, 512),
                    _ => good[(at as usize + 512) % good.len()..][..512].to_vec(),
                };
                // Padding may hold anything.
                let in_padding = good[at as usize..at as usize + 512].iter().all(|&b| b == 0);
                fs.overwrite(path, at, &bytes).unwrap();
                for proven in [synced, 0] {
                    match read_all(&*fs, path, &expect(5, proven)) {
                        Err(e) => assert!(e.is_corruption(), "{e}"),
                        Ok((got, _)) => {
                            assert!(all.starts_with(&got));
                            assert!(
                                got.len() == all.len() && in_padding || proven == 0 || in_padding,
                                "unit {unit} sector {sector} damage {what}: {} of {} records, no error",
                                got.len(),
                                all.len()
                            );
                        }
                    }
                }
                fs.overwrite(path, at, &good[at as usize..at as usize + 512])
                    .unwrap();
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
    for seed in 0..20_000 * scale() {
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
            let s = r.below(b.len() as u64 / 512 + 1) as usize * 512;
            let d = r.below(b.len() as u64 / 512 + 1) as usize * 512;
            let n = 512.min(b.len() - s.max(d).min(b.len()));
            b.copy_within(
                s.min(b.len() - n)..s.min(b.len() - n) + n,
                d.min(b.len() - n),
            );
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
