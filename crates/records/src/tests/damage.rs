//! Damage ends in an error or in a cut tail, never in a wrong record.

use super::image::Image;
use super::*;
use crate::verify::{Padding, check_spare};
use basalt_fs::ErrorKind;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::{FaultFs, OpKind, When};

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
            // Without proof from outside, the damage that later records prove is still reported,
            // and the records that are read are right.
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

/// One bit read wrongly in the last record looked like a torn tail. Recovery cut a record that was
/// whole on the disk.
#[test]
fn one_wrong_read_of_the_tail_cuts_no_record() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let (synced, all, _) = small_log(&fs, path, 512);
    let mut read = 0;
    for seed in basalt_sim::campaign::cases(0..3000) {
        let _repeat = basalt_sim::repeat!(
            one_wrong_read_of_the_tail_cuts_no_record,
            "BASALT_CASE={seed}"
        );
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
            // The wrong bit lies in bytes that later records prove to have been synced.
            Err(e) => assert!(e.is_corruption() && e.path() == Some(path), "{e}"),
        }
    }
    assert!(
        basalt_sim::campaign::case().is_some() || read > 2000,
        "only {read} were read"
    );
}

/// `basalt check` of a log of 3,000 small records took 0.3 seconds: the padding behind each record
/// was read from the device on its own.
#[test]
fn checking_the_padding_takes_no_read_for_each_record() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let (synced, all, _) = small_log(&fs, path, 512);
    let counting = FaultFs::new(fs, 1);
    let file = counting.open(path).unwrap();
    let before = counting.calls(OpKind::Read);
    let faults = check_spare(&*file, path, FileKind::Log, 5, synced, Padding::All).unwrap();
    assert!(faults.is_empty(), "{faults:?}");
    let reads = counting.calls(OpKind::Read) - before;
    assert!(
        all.len() > 10 && reads < 6,
        "{reads} reads for {} records of one window",
        all.len()
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
            // The bytes between records may have any value.
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
fn mutated_logs_never_yield_wrong_records() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let (_, all, _) = small_log(&fs, path, 512);
    let good = fs.read_all(path).unwrap();
    let (mut whole, mut cut, mut reported) = (0u64, 0u64, 0u64);
    for seed in basalt_sim::campaign::cases(0..200_000 * scale()) {
        let _repeat =
            basalt_sim::repeat!(mutated_logs_never_yield_wrong_records, "BASALT_CASE={seed}");
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
            // Lengths and positions get values that may break decoders.
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

/// A log of many small records is read once, and not once for each record.
#[test]
fn a_scan_reads_the_file_once() {
    let (fs, path) = (disk(512, 1), Path::new("1.log"));
    let file = fresh_log(&fs, path, 512, 256 << 10, false);
    let mut w = RecordWriter::create(file, path, &file_header(512, 5, 1)).unwrap();
    let group: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n; 700]).collect();
    for n in 0..40 {
        append(&mut w, 1 + n * 100, &group, false).unwrap();
    }
    w.sync().unwrap();
    let file = fs.open(path).unwrap();
    let (space, before) = (file.allocated().max(file.len()), fs.stats().bytes_read);
    let found = crate::salvage::scan(&*file, path, 5, u64::MAX)
        .unwrap()
        .found;
    assert_eq!(found.len(), 4000);
    let read = fs.stats().bytes_read - before;
    assert!(read <= space + space / 4, "{read} bytes read of {space}");
}
