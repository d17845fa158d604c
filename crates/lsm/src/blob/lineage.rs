//! Lineage: what the number of a blob file means after collections have rewritten it.
//!
//! References in the tree keep the number of the file that their value was written to. A collection moves what is alive of some files, its
//! sources, into others, its targets, each with a range of keys; from then on a source's number is a *name* that stands for the targets. When
//! a target is collected in turn, the names that stood for it stand for what came of it: a name is resolved in one step, however often what it
//! stands for was moved. A name that no table refers to any more is forgotten.
//!
//! Promise: the file that a name resolves to is the one that has the record, if the record was alive at each collection.

use crate::key::Cmp;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The targets of a family in the order of keys: each has the keys from its first one up to the next target's. The first one has all that
/// come before, too.
pub type Targets = Vec<(Arc<[u8]>, u64)>;

/// What a collection did: where what is alive of each family in its sources is now. Families of which nothing is alive are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// Numbers of the files that it rewrote.
    pub sources: Vec<u64>,
    /// By family.
    pub targets: BTreeMap<u32, Targets>,
}

/// All names and what they stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    names: HashMap<u64, Arc<BTreeMap<u32, Targets>>>,
}

impl Lineage {
    /// The file that has a key's records which refer to `number`. `None` when nothing of the family was alive where it stands.
    pub fn resolve(&self, number: u64, family: u32, key: &[u8], cmp: &Cmp) -> Option<u64> {
        let Some(families) = self.names.get(&number) else {
            return Some(number);
        };
        covering(families.get(&family)?, key, cmp)
    }

    /// True when the number is a name, and no file's.
    pub fn is_name(&self, number: u64) -> bool {
        self.names.contains_key(&number)
    }

    /// Names, ascending.
    pub fn names(&self) -> Vec<u64> {
        let mut names: Vec<u64> = self.names.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// What a name stands for, by family.
    pub fn targets(&self, name: u64) -> Option<&BTreeMap<u32, Targets>> {
        self.names.get(&name).map(|t| &**t)
    }

    /// Takes a collection in. `cmp` gives the order of a family. Panics when a source is a name already, and when targets are not in order.
    /// Outputs are cut between user keys, never between versions of one.
    pub fn collect(&mut self, done: &Collected, cmp: &dyn Fn(u32) -> Cmp) {
        for source in &done.sources {
            assert!(
                !self.names.contains_key(source),
                "blob file {source} was collected before"
            );
        }
        for (family, targets) in &done.targets {
            assert!(in_order(targets, &cmp(*family)), "targets out of order");
        }
        for families in self.names.values_mut() {
            let concerned = families
                .values()
                .flatten()
                .any(|(_, target)| done.sources.contains(target));
            if concerned {
                *families = Arc::new(replaced(families, done, cmp));
            }
        }
        let targets = Arc::new(done.targets.clone());
        for source in &done.sources {
            self.names.insert(*source, targets.clone());
        }
    }

    /// Forgets a name: no table has it. Nothing when it is none.
    pub fn forget(&mut self, name: u64) {
        self.names.remove(&name);
    }

    /// Puts a name in as it was remembered. False, and nothing is changed, for targets that no collection leaves.
    #[must_use = "what is not taken in is damage"]
    pub fn restore(
        &mut self,
        name: u64,
        targets: BTreeMap<u32, Targets>,
        cmp: &dyn Fn(u32) -> Cmp,
    ) -> bool {
        let sound = targets.iter().all(|(f, t)| in_order(t, &cmp(*f)));
        if sound {
            self.names.insert(name, Arc::new(targets));
        }
        sound
    }
}

/// True for some targets with ascending first keys.
fn in_order(targets: &Targets, cmp: &Cmp) -> bool {
    let ascending = |pair: &[(Arc<[u8]>, u64)]| cmp.user(&pair[0].0, &pair[1].0) == Ordering::Less;
    !targets.is_empty() && targets.windows(2).all(ascending)
}

/// The target that has the key.
fn covering(targets: &Targets, key: &[u8], cmp: &Cmp) -> Option<u64> {
    let after = targets.partition_point(|(first, _)| cmp.user(first, key) != Ordering::Greater);
    Some(targets.get(after.saturating_sub(1))?.1)
}

/// What a name stood for, with the collection's targets in place of its sources.
fn replaced(
    families: &BTreeMap<u32, Targets>,
    done: &Collected,
    cmp: &dyn Fn(u32) -> Cmp,
) -> BTreeMap<u32, Targets> {
    let mut out = BTreeMap::new();
    for (family, targets) in families {
        let order = cmp(*family);
        let into = done.targets.get(family);
        let mut new: Targets = Vec::with_capacity(targets.len());
        for (i, (first, target)) in targets.iter().enumerate() {
            if !done.sources.contains(target) {
                push(&mut new, first, *target);
                continue;
            }
            // Nothing of the family was alive in the sources: whatever the neighbours have is as good.
            let Some(into) = into else {
                continue;
            };
            let at_first = covering(into, first, &order).expect("some targets");
            push(&mut new, first, at_first);
            let end = targets.get(i + 1).map(|(next, _)| next);
            for (from, target) in into {
                let inside = order.user(from, first) == Ordering::Greater
                    && end.is_none_or(|end| order.user(from, end) == Ordering::Less);
                if inside {
                    push(&mut new, from, *target);
                }
            }
        }
        if !new.is_empty() {
            out.insert(*family, new);
        }
    }
    out
}

/// Adds a target, unless the one before it is the same.
fn push(targets: &mut Targets, first: &Arc<[u8]>, target: u64) {
    if targets.last().is_none_or(|(_, last)| *last != target) {
        targets.push((first.clone(), target));
    }
}

#[cfg(test)]
mod tests;
