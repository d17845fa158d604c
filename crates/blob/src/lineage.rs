//! Lineage: the meaning of a blob file's number after garbage collections have rewritten the file.
//!
//! References in the tree keep the number of the file that their value was written to. A garbage
//! collection moves the live records of some files, its sources, into others, its targets. Each
//! target has a range of keys. From then on a source's number is a *name* that stands for the
//! targets. If garbage collection rewrites a target in turn, the names that stood for it stand for
//! its own targets. A name is so resolved in one step, however often its records were moved. A name
//! that no table refers to any more is forgotten.
//!
//! Promise: the file that a name resolves to has the record, if the record was live at each garbage
//! collection.

use basalt_kv::key::Cmp;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The targets of a family in the order of keys. Each target has the keys from its first one up to
/// the next target's. The first one also has all keys before its own.
pub type Targets = Vec<(Arc<[u8]>, u64)>;

/// The result of a garbage collection: the files that now have the live records of each family in
/// its sources. A family without live records is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedFiles {
    /// Numbers of the files that the garbage collection rewrote.
    pub sources: Vec<u64>,
    /// Targets by family.
    pub targets: BTreeMap<u32, Targets>,
}

/// Names with the same targets, because one garbage collection rewrote their files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineageGroup {
    /// The names, ascending.
    pub names: Vec<u64>,
    /// Targets by family.
    pub targets: BTreeMap<u32, Targets>,
}

/// All names and their targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lineage {
    /// The group of each name.
    names: HashMap<u64, u64>,
    /// Groups by the lowest name that each began with.
    groups: BTreeMap<u64, Arc<LineageGroup>>,
}

impl Lineage {
    /// Returns the file that has the records of a key which refer to `number`. Returns `None` if no
    /// record of the family was live there.
    pub fn resolve(&self, number: u64, family: u32, key: &[u8], cmp: &Cmp) -> Option<u64> {
        match self.targets(number) {
            None => Some(number),
            Some(families) => covering(families.get(&family)?, key, cmp),
        }
    }

    /// Returns true if the number is a name, and not a file's number.
    pub fn is_name(&self, number: u64) -> bool {
        self.names.contains_key(&number)
    }

    /// Returns true if there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns all names, ascending.
    pub fn names(&self) -> Vec<u64> {
        let mut names: Vec<u64> = self.names.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// Returns the targets of a name, by family.
    pub fn targets(&self, name: u64) -> Option<&BTreeMap<u32, Targets>> {
        let group = self.names.get(&name)?;
        Some(&self.groups[group].targets)
    }

    /// Returns all groups by their ids.
    pub fn groups(&self) -> &BTreeMap<u64, Arc<LineageGroup>> {
        &self.groups
    }

    /// Adds a garbage collection, and returns the groups that it makes or changes. `cmp` gives the
    /// comparator of a family. Panics if a source is already a name, or if targets are out of
    /// order. Outputs are cut between user keys, never between versions of one key.
    pub fn add_gc(&mut self, done: &ReplacedFiles, cmp: &dyn Fn(u32) -> Cmp) -> Vec<u64> {
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
                *group = Arc::new(LineageGroup {
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
            self.set_group(id, LineageGroup { names, targets });
            changed.push(id);
        }
        changed
    }

    /// Forgets a name that no table refers to. Does nothing if there is no such name.
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

    /// Inserts a group from the manifest in place of the former one with this id. Returns false and
    /// changes nothing if one of its names belongs to another group, or if it has no names.
    #[must_use = "what is not taken in is damage"]
    pub fn restore(&mut self, id: u64, group: LineageGroup) -> bool {
        let mine = |name| self.names.get(name).is_none_or(|g| *g == id);
        let sound = !group.names.is_empty()
            && group.names.is_sorted_by(|a, b| a < b)
            && group.names.iter().all(mine);
        if sound {
            self.set_group(id, group);
        }
        sound
    }

    fn set_group(&mut self, id: u64, group: LineageGroup) {
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

    /// Returns true if the first keys of all targets of a family ascend.
    pub fn is_in_order(&self, family: u32, cmp: &Cmp) -> bool {
        let of_family =
            |g: &'_ Arc<LineageGroup>| g.targets.get(&family).is_none_or(|t| in_order(t, cmp));
        self.groups.values().all(of_family)
    }
}

/// Returns true for at least one target with ascending first keys.
fn in_order(targets: &Targets, cmp: &Cmp) -> bool {
    let ascending = |pair: &[(Arc<[u8]>, u64)]| cmp.user(&pair[0].0, &pair[1].0) == Ordering::Less;
    !targets.is_empty() && targets.windows(2).all(ascending)
}

/// Returns the target that has the key.
fn covering(targets: &Targets, key: &[u8], cmp: &Cmp) -> Option<u64> {
    let after = targets.partition_point(|(first, _)| cmp.user(first, key) != Ordering::Greater);
    Some(targets.get(after.saturating_sub(1))?.1)
}

/// Returns the targets of a name, with the garbage collection's targets in place of its sources.
fn replaced(
    families: &BTreeMap<u32, Targets>,
    done: &ReplacedFiles,
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
            // No record of the family was live in the sources, so any neighbour's file will do.
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
