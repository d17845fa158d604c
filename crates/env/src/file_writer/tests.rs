//! A file written on the caller's thread and one written behind are the same, and an error ends
//! both.

use super::*;
use crate::Random;
use basalt_fs::FileSystem;
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};

fn environment(fs: Arc<dyn FileSystem>) -> Env {
    Env::builder(fs).threads(1).memory_bytes(64 << 20).build()
}

/// Puts pieces of all lengths. Returns the bytes that were put, or the error that ended the file.
fn fill(writer: &mut FileWriter, r: &Random, bytes: usize) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < bytes {
        let len = [3, 700, 70_000, 1 << 20, 3 << 20][r.below(5) as usize];
        let piece: Vec<u8> = (0..len)
            .map(|i: usize| (i as u64 ^ r.below(4)) as u8)
            .collect();
        match r.one_in(2) {
            true => writer.put(&piece)?,
            false => writer.put_vectored(&piece)?,
        }
        all.extend(piece);
        assert_eq!(writer.position(), all.len() as u64);
    }
    Ok(all)
}

#[test]
fn write_behind_writes_the_same_bytes_as_the_calling_thread() {
    for seed in 0..6 {
        let mut files = Vec::new();
        for behind in [false, true] {
            let fs = SimFs::new(SimOptions::default());
            let env = environment(fs.clone());
            let path = Path::new("file");
            let free = env.ledger().free();
            let mut writer = FileWriter::new(&env, fs.create(path).unwrap(), path, IoPriority::Low);
            if behind {
                writer.write_behind();
            }
            let all = fill(&mut writer, &Random::from_seed(seed), 9 << 20).unwrap();
            assert_eq!(matches!(writer.out, Output::WriteBehind(_)), behind);
            let ended = writer.finish().unwrap();
            assert!(fs.read_all(path).unwrap() == all);
            assert_eq!(env.ledger().free(), free);
            files.push((ended, all));
        }
        assert!(files[0] == files[1]);
    }
}

#[test]
fn a_small_file_is_written_without_a_thread() {
    let fs = SimFs::new(SimOptions::default());
    let env = environment(fs.clone());
    let path = Path::new("file");
    let mut writer = FileWriter::new(&env, fs.create(path).unwrap(), path, IoPriority::Low);
    writer.write_behind();
    writer.put(&[7; 1000]).unwrap();
    assert!(matches!(writer.out, Output::Deferred(_)));
    assert_eq!(writer.finish().unwrap().0, 1000);
    assert_eq!(fs.read_all(path).unwrap(), [7; 1000]);
}

#[test]
fn an_error_of_the_background_write_fails_the_file() {
    for nth in 1..8 {
        for drop_early in [false, true] {
            let faulty = FaultFs::new(SimFs::new(SimOptions::default()), nth);
            let env = environment(faulty.clone());
            let path = Path::new("file");
            let mut writer =
                FileWriter::new(&env, faulty.create(path).unwrap(), path, IoPriority::Low);
            writer.write_behind();
            faulty.inject(Fault {
                op: Some(OpKind::Append),
                path: String::new(),
                when: When::Nth(nth),
                kind: FaultKind::Enospc,
            });
            let filled = fill(&mut writer, &Random::from_seed(nth), 7 << 20);
            if drop_early {
                continue;
            }
            let known = filled.err();
            if let Some(e) = &known {
                assert_eq!(writer.check().unwrap_err().kind(), e.kind());
                assert_eq!(writer.put(b"more").unwrap_err().kind(), e.kind());
            }
            let e = writer.finish().unwrap_err();
            assert_eq!(e.kind(), basalt_fs::ErrorKind::NoSpace, "{e}");
        }
    }
}

#[test]
fn a_panic_of_the_background_write_is_reported() {
    let fs = SimFs::new(SimOptions::default());
    let env = environment(fs.clone());
    let path = Path::new("file");
    let file = fs.create(path).unwrap();
    let mut writer = FileWriter::new(&env, file.clone(), path, IoPriority::Low);
    writer.write_behind();
    // Another writer appends to the file.
    file.append(&[IoSlice::new(b"x")], Intent::Sync).unwrap();
    let filled = fill(&mut writer, &Random::from_seed(1), 9 << 20);
    let e = filled.err().unwrap_or_else(|| writer.finish().unwrap_err());
    assert_eq!(e.kind(), basalt_fs::ErrorKind::Poisoned, "{e}");
}
