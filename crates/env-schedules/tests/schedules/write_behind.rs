//! A file that is written behind its caller: a thread of the file's own appends pieces while the
//! caller makes the next ones. The caller finishes the file, or drops it at any moment, and the
//! device may fail. No thread waits for ever, and a finished file has all bytes.

use crate::{assert_taken, case};
use basalt_env_schedules::file_writer::{FileWriter, PIECE};
use basalt_env_schedules::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env_schedules::{EnvBuilder, IoPriority};
use basalt_fs::{ErrorKind, FileSystem};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When, campaign, repeat};
use std::path::Path;

fn model(totals: &Counts) {
    let disk = SimFs::new(SimOptions::default());
    let faulty = FaultFs::new(disk.clone(), 1);
    let env = EnvBuilder::new(faulty.clone()).threads(1).build();
    let path = Path::new("file");
    let file = faulty.create(path).expect("makes a file");
    let mut writer = FileWriter::new(&env, file, path, IoPriority::Low);
    writer.write_behind();
    let fails = percent(25);
    if fails {
        faulty.inject(Fault {
            op: Some(OpKind::Append),
            path: String::new(),
            when: When::Nth(1 + below(3)),
            kind: FaultKind::Enospc,
        });
    }
    let (pieces, tail) = (1 + below(4), 1000 * below(2) as usize);
    let put = (0..pieces).try_for_each(|n| writer.put(&vec![n as u8; PIECE]));
    let put = put.and_then(|()| writer.put(&vec![pieces as u8; tail]));
    if percent(40) {
        // The waiting piece is not written.
        drop(writer);
        count(totals, 2, 1);
    } else {
        let finished = put.and_then(|()| writer.finish());
        match finished {
            Ok((bytes, _)) => {
                let all = disk.read_all(path).expect("reads");
                assert_eq!(all.len(), pieces as usize * PIECE + tail);
                assert_eq!(bytes, all.len() as u64);
                let right = |(n, piece): (usize, &[u8])| piece.iter().all(|b| *b == n as u8);
                assert!(all.chunks(PIECE).enumerate().all(right), "another piece");
            }
            Err(e) => {
                assert!(fails && e.kind() == ErrorKind::NoSpace, "{e}");
                count(totals, 1, 1);
            }
        }
    }
    count(totals, 0, shuttle::current::context_switches() as u64);
}

#[test]
fn a_file_is_written_behind_in_every_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..4 * campaign::scale()) {
        let _repeat = repeat!(
            a_file_is_written_behind_in_every_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [steps, failed, dropped] = std::array::from_fn(|i| counted(&totals, i));
    campaign!("write_behind_schedules={schedules} steps={steps} failed={failed} dropped={dropped}");
    if campaign::case().is_none() {
        assert!(failed > schedules / 50, "few files fail: {failed}");
        assert!(dropped > schedules / 4, "few files are dropped: {dropped}");
        assert_taken(&["write_behind::WriteBehindState", "file_writer::Appender"]);
    }
}
