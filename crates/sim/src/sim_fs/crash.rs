//! The state of a simulated disk after a power cut. It is always a state that the contract allows,
//! and the seeds together reach all states that matter.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::disk::{Change, Disk, FileNode, Ino, Names, Node, PendingWrite, ROOT, apply_effect};
use crate::content::{CHUNK, Content};
use crate::rng::Rng;

/// The changes that survive a power cut, of those that no sync covered. Synced state survives under
/// all policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CrashPolicy {
    /// No change.
    NothingUnsynced,
    /// All changes, as after the death of the process alone, except that the length of a log is a
    /// hint.
    EverythingUnsynced,
    /// The changes before a moment that the seed chooses. The moment may lie inside an append.
    Prefix,
    /// The changes after such a moment, without the earlier ones.
    Suffix,
    /// Each sector, length and name by itself, by seed.
    AnySubset,
    /// All changes, except some sectors of each file's last append.
    Torn,
    /// Names and lengths, but no bytes: the space reads as zeros, garbage or an earlier life.
    LengthWithoutData,
    /// Names and bytes, but no lengths.
    DataWithoutLength,
    /// Names, but neither bytes nor lengths.
    NamesWithoutContent,
    /// Bytes and lengths, but no names.
    ContentWithoutNames,
}

impl CrashPolicy {
    /// Every policy.
    pub const ALL: &'static [CrashPolicy] = &[
        CrashPolicy::NothingUnsynced,
        CrashPolicy::EverythingUnsynced,
        CrashPolicy::Prefix,
        CrashPolicy::Suffix,
        CrashPolicy::AnySubset,
        CrashPolicy::Torn,
        CrashPolicy::LengthWithoutData,
        CrashPolicy::DataWithoutLength,
        CrashPolicy::NamesWithoutContent,
        CrashPolicy::ContentWithoutNames,
    ];
}

/// The choices of one power cut that concern the whole disk.
struct Cut {
    policy: CrashPolicy,
    /// Sequence number of the change at the moment of the cut, for `Prefix` and `Suffix`.
    seq: u64,
    /// Percentage of the changes that survive, for `AnySubset`.
    percent: u64,
}

impl Disk {
    /// Returns the disk after a power cut now. `self` does not change.
    pub(super) fn after_power_cut(&self, policy: CrashPolicy, seed: u64) -> Disk {
        let mut rng = Rng::of(&[self.seed, seed, policy as u64]);
        let cut = Cut {
            policy,
            seq: match policy {
                CrashPolicy::Prefix | CrashPolicy::Suffix => self.some_pending_seq(&mut rng),
                _ => 0,
            },
            percent: rng.pick(&[15, 50, 50, 85]),
        };
        let names = self.surviving_names(&cut, &mut rng);
        let mut nodes = BTreeMap::new();
        nodes.insert(ROOT, Arc::clone(self.node(ROOT)));
        for &ino in names.values() {
            if nodes.contains_key(&ino) {
                continue;
            }
            let node = match &**self.node(ino) {
                Node::File(f) if !f.is_durable() => {
                    let mut rng = Rng::of(&[rng.next_u64(), ino]);
                    let left = self.surviving_file(f, &cut, &mut rng);
                    Arc::new(Node::File(Box::new(left)))
                }
                _ => Arc::clone(self.node(ino)),
            };
            nodes.insert(ino, node);
        }
        Disk::with_durable_nodes(self, rng.next_u64(), names, nodes)
    }

    fn some_pending_seq(&self, rng: &mut Rng) -> u64 {
        let mut seqs: Vec<u64> = self.pending.iter().map(|op| op.seq).collect();
        for ino in self.live_and_pending() {
            if let Node::File(f) = &**self.node(ino) {
                seqs.extend(f.pending.iter().map(|p| p.seq));
            }
        }
        if seqs.is_empty() { 0 } else { rng.pick(&seqs) }
    }

    fn live_and_pending(&self) -> std::collections::BTreeSet<Ino> {
        let mut inos: std::collections::BTreeSet<Ino> = self.live.values().copied().collect();
        inos.extend(self.durable.values());
        for op in self.pending.iter() {
            inos.extend(op.effects.iter().filter_map(|e| e.target));
        }
        inos
    }

    fn surviving_names(&self, cut: &Cut, rng: &mut Rng) -> Names {
        let mut names = Names::clone(&self.durable);
        for op in self.pending.iter() {
            let survives = match cut.policy {
                CrashPolicy::NothingUnsynced | CrashPolicy::ContentWithoutNames => false,
                CrashPolicy::EverythingUnsynced
                | CrashPolicy::Torn
                | CrashPolicy::LengthWithoutData
                | CrashPolicy::DataWithoutLength
                | CrashPolicy::NamesWithoutContent => true,
                CrashPolicy::Prefix => op.seq <= cut.seq,
                CrashPolicy::Suffix => op.seq >= cut.seq,
                CrashPolicy::AnySubset => rng.percent(cut.percent),
            };
            if survives {
                for e in &op.effects {
                    apply_effect(&mut names, e);
                }
            }
        }
        // The entries of a directory that is gone are gone with it.
        let mut kept = Names::new();
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            let from = (dir, Arc::from(""));
            for (key, &ino) in names.range(from..).take_while(|((d, _), _)| *d == dir) {
                if self.is_dir(ino) {
                    dirs.push(ino);
                }
                kept.insert(key.clone(), ino);
            }
        }
        kept
    }

    fn surviving_file(&self, f: &FileNode, cut: &Cut, rng: &mut Rng) -> FileNode {
        let unit = self.unit;
        let alloc = self.surviving_alloc(f, cut, rng);
        let mut content = f.durable.clone();
        self.fill_unwritten(
            &mut content,
            f.durable_alloc.next_multiple_of(unit)..alloc,
            rng,
        );
        let mut holes = (*f.holes).clone();
        let last = f.pending.last().map(|p| p.seq);
        for p in &f.pending {
            match &p.change {
                Change::Write(data) => {
                    let sectors = data.len() as u64 / unit;
                    let keep = surviving_sectors(cut, p, sectors, last == Some(p.seq), rng);
                    for i in 0..sectors {
                        if keep(i, rng) {
                            let from = (i * unit) as usize;
                            content.write(p.at + i * unit, &data[from..from + unit as usize]);
                        }
                    }
                }
                Change::Punch(len) => {
                    let chunks = p.at / CHUNK..(p.at + len) / CHUNK;
                    if surviving_sectors(cut, p, 1, false, rng)(0, rng) {
                        content.punch(chunks);
                    } else {
                        holes.retain(|h| !chunks.contains(h));
                    }
                }
            }
        }
        let len = self.surviving_len(f, alloc, cut, rng);
        let alloc = alloc.max(len);
        content.cut(alloc.next_multiple_of(unit));
        holes.retain(|h| *h < alloc.div_ceil(CHUNK));
        FileNode {
            is_log: f.is_log,
            life: f.life,
            live: content.clone(),
            durable: content,
            pending: Vec::new(),
            len,
            alloc,
            durable_alloc: alloc,
            synced_end: len,
            exact_len: len,
            len_vague: false,
            given_up: Vec::new(),
            holes: Arc::new(holes),
            digest: OnceLock::new(),
        }
    }

    /// Returns the space that the file has after the cut. The least is the durably written space,
    /// and the most is all its space, up to the end of the last block.
    fn surviving_alloc(&self, f: &FileNode, cut: &Cut, rng: &mut Rng) -> u64 {
        let all = f.alloc.max(f.len);
        let block = all.next_multiple_of(CHUNK);
        match cut.policy {
            CrashPolicy::NothingUnsynced | CrashPolicy::NamesWithoutContent => f.durable_alloc,
            CrashPolicy::EverythingUnsynced => all,
            CrashPolicy::LengthWithoutData
            | CrashPolicy::DataWithoutLength
            | CrashPolicy::Torn
            | CrashPolicy::ContentWithoutNames => rng.pick(&[all, block]),
            CrashPolicy::Prefix | CrashPolicy::Suffix | CrashPolicy::AnySubset => {
                let between = f.durable_alloc + rng.below(all - f.durable_alloc + 1);
                rng.pick(&[f.durable_alloc, all, block, between])
            }
        }
    }

    fn surviving_len(&self, f: &FileNode, alloc: u64, cut: &Cut, rng: &mut Rng) -> u64 {
        if !f.len_vague {
            return f.exact_len;
        }
        let synced = f.synced_end.max(f.exact_len);
        match cut.policy {
            CrashPolicy::NothingUnsynced => rng.pick(&[synced, synced, f.exact_len]),
            CrashPolicy::DataWithoutLength | CrashPolicy::NamesWithoutContent => f.exact_len,
            CrashPolicy::EverythingUnsynced
            | CrashPolicy::LengthWithoutData
            | CrashPolicy::Torn
            | CrashPolicy::ContentWithoutNames => {
                if f.is_log {
                    rng.pick(&[f.len, alloc])
                } else {
                    f.len
                }
            }
            CrashPolicy::Prefix => f
                .pending
                .iter()
                .take_while(|p| p.seq <= cut.seq)
                .last()
                .map_or(synced, |p| p.len_after)
                .max(f.exact_len),
            CrashPolicy::Suffix | CrashPolicy::AnySubset => {
                let top = alloc.max(f.len).max(f.exact_len);
                let some = f.exact_len + rng.below(top - f.exact_len + 1);
                let boundary = match f.pending.len() as u64 {
                    0 => synced,
                    n => f.pending[rng.below(n) as usize].len_after,
                };
                let boundary = boundary.max(f.exact_len);
                rng.pick(&[f.exact_len, synced, f.len, boundary, some, top])
            }
        }
    }

    /// Fills space that was never durably written with bytes that a device may hold there.
    fn fill_unwritten(&self, content: &mut Content, range: std::ops::Range<u64>, rng: &mut Rng) {
        let mode = rng.below(4);
        let mut sector = vec![0; self.unit as usize];
        let mut at = range.start;
        while at < range.end {
            let kind = if mode == 3 { rng.below(3) } else { mode };
            match kind {
                0 => sector.fill(0),
                1 => rng.fill(&mut sector),
                _ => match self.earlier_lives.len() as u64 {
                    0 => rng.fill(&mut sector),
                    n => self.earlier_lives[rng.below(n) as usize].read(at, &mut sector),
                },
            }
            content.write(at, &sector);
            at += self.unit;
        }
    }
}

/// Returns, for each sector of one pending write, whether it survives.
fn surviving_sectors<'a>(
    cut: &'a Cut,
    p: &PendingWrite,
    sectors: u64,
    last: bool,
    rng: &mut Rng,
) -> impl Fn(u64, &mut Rng) -> bool + use<'a> {
    let seq = p.seq;
    // For the change at the moment of the cut, this is the sector of the cut. For a torn change,
    // this is a sector that is certainly missing.
    let edge = rng.below(sectors + 1);
    let lost = rng.below(sectors);
    move |i, rng| match cut.policy {
        CrashPolicy::NothingUnsynced
        | CrashPolicy::LengthWithoutData
        | CrashPolicy::NamesWithoutContent => false,
        CrashPolicy::EverythingUnsynced
        | CrashPolicy::DataWithoutLength
        | CrashPolicy::ContentWithoutNames => true,
        CrashPolicy::Torn => !last || (i != lost && rng.coin()),
        CrashPolicy::Prefix => seq < cut.seq || (seq == cut.seq && i < edge),
        CrashPolicy::Suffix => seq > cut.seq || (seq == cut.seq && i >= edge),
        CrashPolicy::AnySubset => rng.percent(cut.percent),
    }
}
