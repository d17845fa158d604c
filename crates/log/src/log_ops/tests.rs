//! Operations are read as they were written, and other bytes are refused.

use super::*;
use crate::mapping::Location;
use basalt_env::Random;

fn ops() -> Vec<LogOp> {
    let at = |lsn: u64| Location {
        file: 3,
        offset: 40 + lsn * 200,
        len: 160,
    };
    vec![
        LogOp::Create {
            log: 1,
            name: "raft/7".to_string(),
            options: LogOptions {
                duplicates: Duplicates::Replace,
            },
        },
        LogOp::Trim {
            log: 1,
            up_to: u64::MAX - 1,
        },
        LogOp::Remove {
            log: 300,
            range: 5..=u64::MAX - 1,
        },
        LogOp::Page {
            log: 1,
            mapping: Mapping::of((4..200).map(|lsn| (lsn, at(lsn)))),
        },
        LogOp::Delete { log: 1 },
        LogOp::Rename {
            log: 300,
            name: "raft/8".to_string(),
        },
    ]
}

#[test]
fn operations_are_read_as_they_were_written() {
    let mut bytes = Vec::new();
    ops().iter().for_each(|op| op.encode(&mut bytes));
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        found.push(LogOp::decode(&bytes, &mut at).expect("it decodes"));
    }
    assert_eq!(found, ops());
}

#[test]
fn bytes_that_are_no_operation_are_refused() {
    let mut refused = 0;
    for seed in 0..4000 {
        let random = Random::from_seed(seed);
        let mut bytes = Vec::new();
        ops()[seed as usize % ops().len()].encode(&mut bytes);
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = 0xff,
            _ => bytes.truncate(at),
        }
        refused += u32::from(LogOp::decode(&bytes, &mut 0).is_none());
    }
    assert!(refused > 1000, "only {refused} were refused");
}

#[test]
fn a_trim_behind_all_lsns_is_refused() {
    for (up_to, is_one) in [(u64::MAX - 1, true), (u64::MAX, false)] {
        let mut bytes = Vec::new();
        LogOp::Trim { log: 1, up_to }.encode(&mut bytes);
        assert_eq!(LogOp::decode(&bytes, &mut 0).is_some(), is_one);
    }
}
