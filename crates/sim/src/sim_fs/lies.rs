//! A disk that lies: says a sync is done that is not, writes a sector elsewhere or not at all, or loses a
//! bit. Off unless a test asks for it; the contract does not allow any of it, and what an engine still owes
//! on such a disk is in the documentation's table of faults and promises.

use std::ops::Range;

use super::disk::{Disk, Ino, Node};
use crate::When;
use crate::rng::Rng;

/// What the disk does while it says `Ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LieKind {
    /// A sync of a file or a directory does nothing.
    DroppedSync,
    /// One sector of an append goes to another place of the same file or of another one; its own place keeps what
    /// it had.
    MisdirectedSector,
    /// One sector of an append is not written: its place keeps what it had.
    StaleSector,
    /// One bit of an append's bytes is stored wrong.
    BitFlip,
    /// Not a lie, but a truth that kernels soften later: a sync of a file fails with `Io` and poisons the handle; of
    /// the unsynced sectors some are durable and the others never will be, although reads still see them and
    /// a later sync through another handle says `Ok`.
    FailedSync,
}

/// A lie to be told.
#[derive(Debug, Clone)]
pub struct Lie {
    /// Which.
    pub kind: LieKind,
    /// About what: a part of the path of the file or, for a directory sync, of the directory; empty for all.
    pub path: String,
    /// Which of the calls it could be told about.
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
    pub told: u64,
}

impl Lies {
    pub(super) fn tell(&mut self, lie: Lie, seed: u64) {
        let rng = Rng::of(&[seed, self.rules.len() as u64, 13]);
        self.rules.push(Rule { lie, seen: 0, rng });
    }

    pub(super) fn drops_sync(&mut self, path: &str) -> bool {
        self.strikes_sync(LieKind::DroppedSync, path).is_some()
    }

    /// The seed of what a failing sync leaves, when it shall fail.
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
        self.told += u64::from(struck.is_some());
        struck
    }

    /// Changes the sectors `data`, on their way to `at` of file `ino`, as the rules want; `body` is where the
    /// appended bytes are in it.
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
            self.told += 1;
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
