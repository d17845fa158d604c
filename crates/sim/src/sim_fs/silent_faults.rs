//! A disk that lies: it returns success for a sync that did nothing, writes a sector elsewhere or
//! not at all, or loses a bit. It does so only if a test asks for it. The contract allows none of
//! this. The table of faults in `docs/testing/simulated-disk.md` says what an engine still owes on
//! such a disk.

use std::ops::Range;

use super::disk::{Disk, Ino, Node};
use crate::When;
use crate::rng::Rng;

/// The false behaviour of the disk while it returns `Ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LieKind {
    /// A sync of a file or a directory does nothing.
    DroppedSync,
    /// One sector of an append goes to another place of the same file or of another one. Its own
    /// place keeps the former bytes.
    MisdirectedSector,
    /// One sector of an append is not written. Its place keeps the former bytes.
    StaleSector,
    /// One bit of an append's bytes is stored wrong.
    BitFlip,
    /// No lie, but a failure that kernels hide later. A sync of a file fails with `Io` and poisons
    /// the handle. Some of the unsynced sectors are durable, and the others never will be. Yet
    /// reads still see them, and a later sync through another handle returns `Ok`.
    FailedSync,
}

/// A rule for lies.
#[derive(Debug, Clone)]
pub struct Lie {
    /// The kind of lie.
    pub kind: LieKind,
    /// A part of the path of the file or, for a directory sync, of the directory. An empty text
    /// matches all.
    pub path: String,
    /// The matching calls that the fault strikes.
    pub when: When,
}

struct Rule {
    lie: Lie,
    seen: u64,
    rng: Rng,
}

#[derive(Default)]
pub(super) struct Lies {
    rules: Vec<Rule>,
    /// Number of lies that struck so far.
    pub struck_count: u64,
}

impl Lies {
    pub(super) fn add(&mut self, lie: Lie, seed: u64) {
        let rng = Rng::of(&[seed, self.rules.len() as u64, 13]);
        self.rules.push(Rule { lie, seen: 0, rng });
    }

    pub(super) fn drops_sync(&mut self, path: &str) -> bool {
        self.strikes_sync(LieKind::DroppedSync, path).is_some()
    }

    /// Returns the seed for the effect of a failing sync, if the sync must fail.
    pub(super) fn fails_sync(&mut self, path: &str) -> Option<u64> {
        self.strikes_sync(LieKind::FailedSync, path)
    }

    fn strikes_sync(&mut self, kind: LieKind, path: &str) -> Option<u64> {
        let mut struck = None;
        for r in &mut self.rules {
            if r.lie.kind == kind && path.contains(&r.lie.path) {
                r.seen += 1;
                if r.lie.when.strikes(r.seen, &mut r.rng) {
                    struck = Some(r.rng.next_u64());
                }
            }
        }
        self.struck_count += u64::from(struck.is_some());
        struck
    }

    /// Changes the sectors `data`, on their way to `at` of file `ino`, as the rules say. `body` is
    /// the range of the appended bytes in `data`.
    pub(super) fn spoil_append(
        &mut self,
        path: &str,
        disk: &mut Disk,
        ino: Ino,
        at: u64,
        data: &mut [u8],
        body: Range<usize>,
    ) {
        let unit = disk.unit as usize;
        for r in &mut self.rules {
            let about_syncs = matches!(r.lie.kind, LieKind::DroppedSync | LieKind::FailedSync);
            if about_syncs || !path.contains(&r.lie.path) {
                continue;
            }
            r.seen += 1;
            if !r.lie.when.strikes(r.seen, &mut r.rng) {
                continue;
            }
            self.struck_count += 1;
            if r.lie.kind == LieKind::BitFlip {
                let byte = body.start + r.rng.below(body.len() as u64) as usize;
                data[byte] ^= 1 << r.rng.below(8);
                continue;
            }
            let sector = r.rng.below((data.len() / unit) as u64) as usize * unit;
            let place = at + sector as u64;
            let old = disk.file(ino).live.to_vec(place, unit);
            if r.lie.kind == LieKind::MisdirectedSector {
                misdirect(disk, ino, place, &data[sector..sector + unit], &mut r.rng);
            }
            data[sector..sector + unit].copy_from_slice(&old);
        }
    }
}

fn misdirect(disk: &mut Disk, ino: Ino, place: u64, sector: &[u8], rng: &mut Rng) {
    let files: Vec<Ino> = disk
        .live
        .values()
        .copied()
        .filter(|&i| matches!(&**disk.node(i), Node::File(f) if f.alloc > 0))
        .collect();
    let victim = if files.is_empty() || rng.coin() {
        ino
    } else {
        rng.pick(&files)
    };
    let sectors = disk.file(victim).alloc.div_ceil(disk.unit);
    let to = rng.below(sectors) * disk.unit;
    if (victim, to) != (ino, place) && sectors > 0 {
        let f = disk.file_mut(victim);
        f.live.write(to, sector);
        f.durable.write(to, sector);
    }
}
