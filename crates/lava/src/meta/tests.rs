//! Tests of the cost of metadata operations.

use super::*;
use crate::metadata_record::{InodeKind, JournalRecord};
use crate::steps::steps;

/// Regression test: a mount climbed from each directory to the root. With 20,000 nested directories
/// that took 200 million steps.
#[test]
fn deep_directories_are_visited_once_each() {
    const DEPTH: u32 = 2_000;
    let mut meta = Meta::new(1 << 20);
    for ino in 1..=DEPTH {
        let name = "d".to_string();
        let (kind, dir) = (InodeKind::Dir, ino - 1);
        let made = meta.apply(&JournalRecord::Create {
            ino,
            kind,
            dir,
            name,
        });
        made.unwrap();
    }
    let before = steps();
    assert_eq!(meta.unreachable(), []);
    assert!(steps() - before <= u64::from(2 * DEPTH));
}

/// Regression test: the listing of a directory walked over all names of the image.
#[test]
fn listing_a_directory_costs_its_own_entries() {
    const FILES: u32 = 5_000;
    let mut meta = Meta::new(1 << 20);
    let mut make = |ino, kind, dir, name: String| {
        let made = meta.apply(&JournalRecord::Create {
            ino,
            kind,
            dir,
            name,
        });
        made.unwrap();
    };
    make(1, InodeKind::Dir, 0, "few".into());
    make(2, InodeKind::Dir, 0, "none".into());
    for ino in 3..FILES {
        let dir = if ino % 1000 == 999 { 1 } else { 0 };
        make(ino, InodeKind::File, dir, format!("{ino}"));
    }
    let list = |dir| {
        let before = steps();
        let mut inos: Vec<Ino> = meta.children(dir).map(|(_, ino)| ino).collect();
        inos.sort_unstable();
        (inos, steps() - before)
    };
    let (few, cost) = list(1);
    assert_eq!(few, [999, 1999, 2999, 3999, 4999]);
    assert!(cost <= 6, "{cost} steps for 5 names");
    let (none, cost) = list(2);
    assert!(none.is_empty() && cost <= 1, "{cost} steps for no name");
    assert_eq!(list(0).0.len(), FILES as usize - 3 - 5 + 2);
}

/// Damage can make directories that contain each other. They are unreachable, and are found in a
/// linear number of steps.
#[test]
fn directory_cycles_are_unreachable() {
    const ROUND: u32 = 1_000;
    let mut meta = Meta::new(1 << 20);
    for ino in 1..=ROUND {
        let kind = InodeKind::Dir;
        let made = meta.restore(&JournalRecord::Inode { ino, kind, len: 0 });
        made.unwrap();
    }
    for ino in 1..=ROUND {
        let (dir, name) = (ino % ROUND + 1, format!("{ino}"));
        meta.restore(&JournalRecord::Link { dir, name, ino })
            .unwrap();
    }
    let before = steps();
    let all: Vec<Ino> = (1..=ROUND).collect();
    assert_eq!(meta.unreachable(), all);
    assert!(steps() - before <= u64::from(3 * ROUND));
}
