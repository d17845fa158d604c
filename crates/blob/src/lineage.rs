//! Lineage: what the number of a blob file means after collections have rewritten it.
//!
//! References in the tree keep the number of the file that their value was written to. A collection moves what is alive of some files, its
//! sources, into others, its targets, each with a range of keys; from then on a source's number is a *name* that stands for the targets. When
//! a target is collected in turn, the names that stood for it stand for what came of it: a name is resolved in one step, however often what it
//! stands for was moved. A name that no table refers to any more is forgotten.
//!
//! Promise: the file that a name resolves to is the one that has the record, if the record was alive at each collection.

use basalt_kv::key::Cmp;
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

/// Names that stand for the same, because one collection rewrote their files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Ascending.
    pub names: Vec<u64>,
    /// By family.
    pub targets: BTreeMap<u32, Targets>,
}

/// All names and what they stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The group of each name.
    names: HashMap<u64, u64>,
    /// By the lowest name that the group began with.
    groups: BTreeMap<u64, Arc<Group>>,
}

impl Lineage {
    /// The file that has a key's records which refer to `number`. `None` when nothing of the family was alive where it stands.
    pub fn resolve(&self, number: u64, family: u32, key: &[u8], cmp: &Cmp) -> Option<u64> {
        match self.targets(number) {
            None => Some(number),
            Some(families) => covering(families.get(&family)?, key, cmp),
        }
    }

    /// True when the number is a name, and no file's.
    pub fn is_name(&self, number: u64) -> bool {
        self.names.contains_key(&number)
    }

    /// True when there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Names, ascending.
    pub fn names(&self) -> Vec<u64> {
        let mut names: Vec<u64> = self.names.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// What a name stands for, by family.
    pub fn targets(&self, name: u64) -> Option<&BTreeMap<u32, Targets>> {
        let group = self.names.get(&name)?;
        Some(&self.groups[group].targets)
    }

    /// All groups by their ids.
    pub fn groups(&self) -> &BTreeMap<u64, Arc<Group>> {
        &self.groups
    }

    /// Takes a collection in, and says which groups are new or changed by it. `cmp` gives the order of a family. Panics when a source is a
    /// name already, and when targets are not in order. Outputs are cut between user keys, never between versions of one.
    pub fn collect(&mut self, done: &Collected, cmp: &dyn Fn(u32) -> Cmp) -> Vec<u64> {
        for source in &done.sources {
            assert!(
                !self.names.contains_key(source),
                "blob file {source} was collected before"
            );
        }
        for (family, targets) in &done.targets {
            assert!(in_order(targets, &cmp(*family)), "targets out of order");
        }
        let mut changed = Vec::new();
        for (id, group) in &mut self.groups {
            let concerned = group
                .targets
                .values()
                .flatten()
                .any(|(_, target)| done.sources.contains(target));
            if concerned {
                *group = Arc::new(Group {
                    names: group.names.clone(),
                    targets: replaced(&group.targets, done, cmp),
                });
                changed.push(*id);
            }
        }
        let mut names = done.sources.clone();
        names.sort_unstable();
        if let Some(id) = names.first().copied() {
            let targets = done.targets.clone();
            self.set_group(id, Group { names, targets });
            changed.push(id);
        }
        changed
    }

    /// Forgets a name: no table has it. Nothing when it is none.
    pub fn forget(&mut self, name: u64) {
        let Some(id) = self.names.remove(&name) else {
            return;
        };
        let group = Arc::make_mut(self.groups.get_mut(&id).expect("a name's group"));
        group.names.retain(|n| *n != name);
        if group.names.is_empty() {
            self.groups.remove(&id);
        }
    }

    /// Puts a group in as it was remembered, in place of what it was before. False, and nothing is changed, when one of its names is another
    /// group's, or it has none.
    #[must_use = "what is not taken in is damage"]
    pub fn restore(&mut self, id: u64, group: Group) -> bool {
        let mine = |name| self.names.get(name).is_none_or(|g| *g == id);
        let sound = !group.names.is_empty()
            && group.names.is_sorted_by(|a, b| a < b)
            && group.names.iter().all(mine);
        if sound {
            self.set_group(id, group);
        }
        sound
    }

    fn set_group(&mut self, id: u64, group: Group) {
        if let Some(before) = self.groups.get(&id) {
            for name in &before.names {
                self.names.remove(name);
            }
        }
        for name in &group.names {
            self.names.insert(*name, id);
        }
        self.groups.insert(id, Arc::new(group));
    }

    /// True when the first keys of all targets of a family ascend.
    pub fn is_in_order(&self, family: u32, cmp: &Cmp) -> bool {
        let of_family = |g: &'_ Arc<Group>| g.targets.get(&family).is_none_or(|t| in_order(t, cmp));
        self.groups.values().all(of_family)
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
