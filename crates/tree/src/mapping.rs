//! The page mapping table (ArkDB, section 4.1): which base page and which delta pages a page id
//! stands for, at each system timestamp that a reader may ask for.
//!
//! An index page names a child by its *key*: the id of the base page that the child had when the
//! index page was written. The table has a chain for a key only if the child has changed since. So
//! the table shrinks when index pages are written again.
//!
//! The paper's chains have two dimensions: the current delta pages, and what older readers see of
//! them. Here, a chain is a list of versions, each with all its pages, and a version goes when no
//! reader needs it.

mod codec;

use crate::page_id::PageId;
use basalt_env::sync::{RwLock, named};
pub(crate) use codec::{get_bytes, put_bytes};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// A system timestamp: the number of a system transaction.
pub(crate) type SysTime = u64;

/// Most rewrites that a delta page follows to the leaves that replaced the one that it was written
/// for. More are a circle in a damaged table.
const MOST_REWRITES: usize = 100;

/// Number of locks of the table.
const SHARDS: usize = 16;

/// A delta page of a chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Delta {
    pub id: PageId,
    /// The part of the page that counts, if the leaf that it was written for was rewritten
    /// meanwhile; `None` for all of it.
    pub part: Option<Box<Part>>,
}

/// A range of keys of a delta page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// A key of the leaf that has the delta page: the smallest one, or the smallest one of the
    /// part.
    pub low: Arc<[u8]>,
    /// True if keys below `low` do not count.
    pub has_low: bool,
    /// Keys from here on do not count.
    pub high: Option<Arc<[u8]>>,
}

impl Delta {
    pub fn whole(id: PageId) -> Delta {
        Delta { id, part: None }
    }

    /// Returns true if the delta counts for a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.low().is_none_or(|low| low <= key) && self.high().is_none_or(|high| key < high)
    }

    /// Returns the smallest key that counts.
    pub fn low(&self) -> Option<&[u8]> {
        let part = self.part.as_ref().filter(|part| part.has_low);
        part.map(|part| &*part.low)
    }

    /// Returns the first key that does not count any more.
    pub fn high(&self) -> Option<&[u8]> {
        self.part.as_ref()?.high.as_deref()
    }

    /// Returns what is left of the delta page for the `i`-th page of those that replaced its leaf;
    /// `None` if nothing is.
    fn part_of(&self, with: &Rewrite, i: usize) -> Option<Delta> {
        let mut low = with[i].0.clone();
        let mut high = with.get(i + 1).map(|(low, _)| low.clone());
        let mut has_low = i > 0;
        if let Some(before) = &self.part {
            if before.has_low {
                low = low.max(before.low.clone());
                has_low = true;
            }
            high = high.into_iter().chain(before.high.clone()).min();
        }
        let is_empty = has_low && high.as_ref().is_some_and(|high| low >= *high);
        let part = Some(Box::new(Part { low, has_low, high }));
        (!is_empty).then_some(Delta { id: self.id, part })
    }
}

/// A delta page on its way to the chains of the pages that have its keys now.
struct RoutedDelta {
    delta: Delta,
    to_index: bool,
    /// How many more rewrites it follows.
    rewrites_left: usize,
}

/// The pages of a leaf or of an index page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pages {
    pub base: PageId,
    /// The oldest one comes first.
    pub deltas: SmallVec<[Delta; 1]>,
    /// True if there are delta pages and they belong to an index page. Their changes are newer than
    /// all pages of the leaves below it.
    pub has_index_deltas: bool,
}

/// The pages that replaced a page: the smallest key of each, but for the first, and its id.
pub(crate) type Rewrite = Arc<[(Arc<[u8]>, PageId)]>;

/// A chain at some time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Live(Pages),
    /// The page was written again as other pages, and no index page names it any more. Delta pages
    /// that a concurrent transaction wrote for it belong to those.
    Rewritten(Rewrite),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Version {
    since: SysTime,
    state: State,
}

/// The versions of a key, the oldest one first. Before the first one, the key stands for itself.
type Chain = SmallVec<[Version; 1]>;

/// A change of the table, as a system transaction commits it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Adds a delta page: of an index page, if `to_index`, and of a leaf otherwise.
    Append {
        key: PageId,
        delta: PageId,
        to_index: bool,
    },
    /// Replaces delta pages behind the `kept` oldest ones by one or none (partial consolidation).
    Consolidate {
        key: PageId,
        kept: u32,
        replaced: u32,
        with: Option<PageId>,
    },
    /// Replaces the base page and the oldest delta pages by a base page. The key stays.
    Overwrite {
        key: PageId,
        replaced: u32,
        base: PageId,
    },
    /// Replaces the base page and the oldest delta pages by base pages that index pages name. The
    /// first one also takes what is below its smallest key.
    Rewrite {
        key: PageId,
        replaced: u32,
        with: Vec<(Vec<u8>, PageId)>,
    },
}

/// The pages that a change made garbage, and the delta pages that it added to further chains.
#[derive(Default, Debug)]
pub(crate) struct Effects {
    /// Base pages that are no longer needed at the new time.
    pub dead_bases: Vec<PageId>,
    /// Delta pages that left a chain.
    pub dead_deltas: Vec<PageId>,
    /// Those of them that were never shared, so that no chain has them any more. Their space can be
    /// released.
    pub unused_deltas: Vec<PageId>,
    /// Delta pages that joined another chain.
    pub shared_deltas: Vec<PageId>,
    /// Keys with versions that older readers need.
    pub old: Vec<PageId>,
}

/// The sums over all chains of the table.
#[derive(Default, Debug)]
pub(crate) struct ChainSums {
    /// Bytes of memory, about.
    pub memory: u64,
    /// Bytes of memory without the versions that only older readers need, about.
    pub newest_memory: u64,
    /// Leaves that have delta pages.
    pub leaves: u64,
    /// Index pages that have delta pages, and the bytes of those.
    pub index_pages: u64,
    pub index_delta_bytes: u64,
    pub delta_pages: u64,
    pub longest: u64,
    /// Leaves and index pages that are due for a compaction, and the bytes of their delta pages.
    pub due_leaves: u64,
    pub due_bytes: u64,
    /// Bytes by which delta pages are larger than the base page of their leaf. Of each leaf, the
    /// largest delta page counts.
    pub beyond_base: u64,
}

type Shard = HashMap<PageId, Chain, BuildHasherDefault<PageIdHasher>>;

/// A hash of page ids. Numbers of extents are random, so no client chooses what it gets.
#[derive(Default)]
struct PageIdHasher(u64);

impl Hasher for PageIdHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0xD6E8_FEB8_6659_FD93)
            .rotate_left(29);
    }
}

/// The table.
pub(crate) struct MappingTable {
    shards: Vec<RwLock<Shard>>,
}

impl MappingTable {
    pub fn new() -> MappingTable {
        MappingTable {
            shards: (0..SHARDS)
                .map(|_| named("MappingTable::shard", RwLock::default()))
                .collect(),
        }
    }

    fn shard(&self, key: PageId) -> &RwLock<Shard> {
        let mixed = (key.extent.0 ^ u64::from(key.offset)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(mixed >> 60) as usize % SHARDS]
    }

    /// Returns the state of a key at a time. A key that the table does not have stands for itself.
    pub fn get(&self, key: PageId, at: SysTime) -> State {
        let shard = self.shard(key).read();
        let chain = shard.get(&key);
        let version = chain.and_then(|chain| chain.iter().rev().find(|v| v.since <= at));
        version.map_or_else(|| unmapped(key), |version| version.state.clone())
    }

    /// Returns the base page of a key at a time; `None` if the page was rewritten.
    pub fn base_of(&self, key: PageId, at: SysTime) -> Option<PageId> {
        let shard = self.shard(key).read();
        let chain = shard.get(&key);
        let version = chain.and_then(|chain| chain.iter().rev().find(|v| v.since <= at));
        match version.map(|version| &version.state) {
            None => Some(key),
            Some(State::Live(pages)) => Some(pages.base),
            Some(State::Rewritten(_)) => None,
        }
    }

    /// Calls `look` with the base page of a key at a time, and its delta pages if it is an index
    /// page that has some. Returns `None` if the page was rewritten.
    pub fn with_index_page<T>(
        &self,
        key: PageId,
        at: SysTime,
        look: impl FnOnce(PageId, &[Delta]) -> T,
    ) -> Option<T> {
        let shard = self.shard(key).read();
        let chain = shard.get(&key);
        let version = chain.and_then(|chain| chain.iter().rev().find(|v| v.since <= at));
        match version.map(|version| &version.state) {
            None => Some(look(key, &[])),
            Some(State::Live(pages)) if pages.has_index_deltas => {
                Some(look(pages.base, &pages.deltas))
            }
            Some(State::Live(pages)) => Some(look(pages.base, &[])),
            Some(State::Rewritten(_)) => None,
        }
    }

    /// Returns true if an index page has delta pages, at any time that a reader may ask for.
    pub fn any_index_deltas(&self) -> bool {
        let is_index =
            |v: &Version| matches!(&v.state, State::Live(pages) if pages.has_index_deltas);
        let has = |shard: &RwLock<Shard>| shard.read().values().flatten().any(is_index);
        self.shards.iter().any(has)
    }

    /// Returns true if the table has a key whose page lives.
    pub fn has_live_page(&self, key: PageId) -> bool {
        let shard = self.shard(key).read();
        let newest = shard.get(&key).and_then(|chain| chain.last());
        newest.is_some_and(|version| matches!(version.state, State::Live(_)))
    }

    /// Shrinks the maps from which most keys were removed.
    pub fn shrink(&self) {
        for shard in &self.shards {
            let has_much = |shard: &Shard| shard.capacity() > 4 * shard.len() + 8;
            if has_much(&shard.read()) {
                let mut shard = shard.write();
                let room = 2 * shard.len();
                shard.shrink_to(room);
            }
        }
    }

    /// Returns the number of keys that the table has.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Returns the keys that are due for a compaction now.
    pub fn due(&self, max_deltas: usize) -> Vec<PageId> {
        let mut due = Vec::new();
        for shard in &self.shards {
            for (key, chain) in shard.read().iter() {
                if let Some(State::Live(pages)) = chain.last().map(|v| &v.state)
                    && pages.is_due(max_deltas)
                {
                    due.push((pages.base, *key));
                }
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(_, key)| key).collect()
    }

    /// Returns the leaves that have delta pages and did not change since a time, with the bytes of
    /// their pages, those with most delta pages first.
    pub fn fragmented_before(&self, time: SysTime) -> Vec<(PageId, u64)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            for (key, chain) in shard.read().iter() {
                if let Some(version) = chain.last().filter(|version| version.since < time)
                    && let State::Live(pages) = &version.state
                    && !pages.deltas.is_empty()
                    && !pages.has_index_deltas
                {
                    let deltas = pages.deltas.iter().map(|d| u64::from(d.id.len));
                    let bytes = u64::from(pages.base.len) + deltas.sum::<u64>();
                    found.push((pages.deltas.len(), *key, bytes));
                }
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        let leaves = found.into_iter();
        leaves.map(|(_, key, bytes)| (key, bytes)).collect()
    }

    /// Returns the bytes of delta pages of the leaves and index pages that are due.
    pub fn due_delta_bytes(&self, max_deltas: usize) -> u64 {
        let mut bytes = 0;
        for shard in &self.shards {
            for chain in shard.read().values() {
                if let Some(State::Live(pages)) = chain.last().map(|v| &v.state)
                    && pages.is_due(max_deltas)
                {
                    bytes += pages
                        .deltas
                        .iter()
                        .map(|d| u64::from(d.id.len))
                        .sum::<u64>();
                }
            }
        }
        bytes
    }

    /// Returns sums over all chains, with separate sums for the chains that are due. Looks at each
    /// key of the table.
    pub fn sums(&self, max_deltas: usize) -> ChainSums {
        let mut sums = ChainSums::default();
        for shard in &self.shards {
            let shard = shard.read();
            // A hash map has one more byte for each place.
            let room = (shard.capacity() * (size_of::<(PageId, Chain)>() + 1)) as u64;
            sums.memory += room;
            let mut live = 0;
            for chain in shard.values() {
                let versions = chain_memory(chain);
                sums.memory += versions;
                if let Some(State::Live(pages)) = chain.last().map(|v| &v.state) {
                    sums.add(pages, max_deltas);
                    sums.newest_memory += versions / chain.len() as u64;
                    live += 1;
                }
            }
            sums.newest_memory += room * live / shard.len().max(1) as u64;
        }
        sums
    }

    /// Calls `each` with all keys and their states now.
    pub fn for_each(&self, mut each: impl FnMut(PageId, &State)) {
        for shard in &self.shards {
            for (key, chain) in shard.read().iter() {
                if let Some(version) = chain.last() {
                    each(*key, &version.state);
                }
            }
        }
    }

    /// Puts a state into an empty table, as a system checkpoint has it.
    pub fn load(&self, key: PageId, since: SysTime, state: State) {
        let version = Version { since, state };
        self.shard(key)
            .write()
            .insert(key, [version].into_iter().collect());
    }

    /// Returns a sentence if changes of one transaction do not fit the table. Changes nothing.
    pub fn check(&self, changes: &[Change]) -> Result<(), String> {
        let mut rewritten: BTreeSet<PageId> = BTreeSet::new();
        for change in changes {
            let (key, kept, replaced) = match change {
                Change::Append { .. } => continue,
                Change::Consolidate {
                    key,
                    kept,
                    replaced,
                    ..
                } => (key, *kept, replaced),
                Change::Overwrite { key, replaced, .. } => (key, 0, replaced),
                Change::Rewrite {
                    key,
                    replaced,
                    with,
                } => {
                    if with.is_empty() {
                        return Err(format!("page {key} is rewritten to nothing"));
                    }
                    (key, 0, replaced)
                }
            };
            let mut pages = self.live(*key)?;
            take(&mut pages, kept, *replaced, &mut Effects::default())?;
            if rewritten.contains(key) {
                return Err(format!("page {key} was rewritten before"));
            }
            if matches!(change, Change::Rewrite { .. }) {
                rewritten.insert(*key);
            }
        }
        Ok(())
    }

    /// Applies a change at a time that no earlier change has. Callers apply one change at a time,
    /// and let readers ask for the time afterwards. A delta page that was written for a page that a
    /// transaction has rewritten meanwhile goes to the pages that replaced it (section 4.1.3).
    ///
    /// Errors: a sentence, for a change that does not fit the table.
    pub fn apply(
        &self,
        time: SysTime,
        change: &Change,
        effects: &mut Effects,
    ) -> Result<(), String> {
        match change {
            Change::Append {
                key,
                delta,
                to_index,
            } => {
                let delta = RoutedDelta {
                    delta: Delta::whole(*delta),
                    to_index: *to_index,
                    rewrites_left: MOST_REWRITES,
                };
                self.append(time, *key, delta, effects)
            }
            Change::Consolidate {
                key,
                kept,
                replaced,
                with,
            } => {
                let mut pages = self.live(*key)?;
                take(&mut pages, *kept, *replaced, effects)?;
                if let Some(delta) = with {
                    (pages.deltas).insert(*kept as usize, Delta::whole(*delta));
                }
                self.set(time, *key, State::Live(pages), effects);
                Ok(())
            }
            Change::Overwrite {
                key,
                replaced,
                base,
            } => {
                let mut pages = self.live(*key)?;
                take(&mut pages, 0, *replaced, effects)?;
                if pages.base != *base {
                    effects.dead_bases.push(pages.base);
                }
                pages.base = *base;
                self.set(time, *key, State::Live(pages), effects);
                Ok(())
            }
            Change::Rewrite {
                key,
                replaced,
                with,
            } => {
                let mut pages = self.live(*key)?;
                take(&mut pages, 0, *replaced, effects)?;
                if !with.iter().any(|(_, id)| *id == pages.base) {
                    effects.dead_bases.push(pages.base);
                }
                let with: Rewrite = with.iter().map(|(low, id)| (low[..].into(), *id)).collect();
                if with.is_empty() {
                    return Err(format!("page {key} is rewritten to nothing"));
                }
                if with.iter().any(|(_, id)| id == key) {
                    return Err(format!("page {key} is rewritten to itself"));
                }
                self.set(time, *key, State::Rewritten(with.clone()), effects);
                for delta in pages.deltas {
                    // It leaves this chain, and joins one or more others.
                    effects.dead_deltas.push(delta.id);
                    let delta = RoutedDelta {
                        delta,
                        to_index: pages.has_index_deltas,
                        rewrites_left: MOST_REWRITES,
                    };
                    self.redistribute(time, &with, delta, true, effects)?;
                }
                Ok(())
            }
        }
    }

    fn live(&self, key: PageId) -> Result<Pages, String> {
        match self.get(key, SysTime::MAX) {
            State::Live(pages) => Ok(pages),
            State::Rewritten(_) => Err(format!("page {key} was rewritten before")),
        }
    }

    fn append(
        &self,
        time: SysTime,
        key: PageId,
        added: RoutedDelta,
        effects: &mut Effects,
    ) -> Result<(), String> {
        match self.get(key, SysTime::MAX) {
            State::Live(mut pages) => {
                if !pages.deltas.is_empty() && pages.has_index_deltas != added.to_index {
                    return Err(format!(
                        "page {key} would have delta pages of a leaf and of an index page"
                    ));
                }
                pages.deltas.push(added.delta);
                pages.has_index_deltas = added.to_index;
                self.set(time, key, State::Live(pages), effects);
                Ok(())
            }
            State::Rewritten(with) => {
                let left = added.rewrites_left.checked_sub(1).ok_or_else(|| {
                    format!("page {key} and the pages that replaced it replace each other")
                })?;
                let added = RoutedDelta {
                    rewrites_left: left,
                    ..added
                };
                self.redistribute(time, &with, added, false, effects)
            }
        }
    }

    /// Adds a delta page to the chains of the pages that replaced the one it was written for. The
    /// usage counts a delta page once for each chain. If `joins` is false, the page is counted for
    /// the first of these chains already. If it is true, the page is counted for none of them.
    fn redistribute(
        &self,
        time: SysTime,
        with: &Rewrite,
        added: RoutedDelta,
        joins: bool,
        effects: &mut Effects,
    ) -> Result<(), String> {
        let mut counted = !joins;
        for (i, (_, id)) in with.iter().enumerate() {
            let Some(delta) = added.delta.part_of(with, i) else {
                continue;
            };
            if counted {
                counted = false;
            } else {
                effects.shared_deltas.push(delta.id);
            }
            let part = RoutedDelta { delta, ..added };
            self.append(time, *id, part, effects)?;
        }
        Ok(())
    }

    fn set(&self, time: SysTime, key: PageId, mut state: State, effects: &mut Effects) {
        if let State::Live(pages) = &mut state {
            pages.has_index_deltas &= !pages.deltas.is_empty();
        }
        let mut shard = self.shard(key).write();
        let chain = shard.entry(key).or_default();
        match chain.last_mut() {
            Some(last) if last.since == time => last.state = state,
            _ => chain.push(Version { since: time, state }),
        }
        effects.old.push(key);
    }

    /// Drops all versions behind a time. No reader may have a later one. Returns the keys that are
    /// to be pruned again.
    pub fn roll_back(&self, to: SysTime) -> Vec<PageId> {
        let mut old = Vec::new();
        for shard in &self.shards {
            shard.write().retain(|key, chain| {
                chain.retain(|version| version.since <= to);
                let is_live = |v: &Version| matches!(v.state, State::Live(_));
                if chain.len() > 1 || !chain.iter().all(is_live) {
                    old.push(*key);
                }
                !chain.is_empty()
            });
        }
        old
    }

    /// Drops the versions of a key that no reader needs. `readers` are the times of all readers, in
    /// rising order; the last one is that of the newest transaction. Returns false if an older
    /// reader still needs a version; the caller must prune the chain again later.
    pub fn prune(&self, key: PageId, readers: &[SysTime]) -> bool {
        let mut shard = self.shard(key).write();
        let Some(chain) = shard.get_mut(&key) else {
            return true;
        };
        let ends: SmallVec<[SysTime; 4]> = chain.iter().skip(1).map(|v| v.since).collect();
        let mut i = 0;
        chain.retain(|version| {
            let end = ends.get(i).copied().unwrap_or(SysTime::MAX);
            i += 1;
            let next = readers.partition_point(|at| *at < version.since);
            end == SysTime::MAX || readers.get(next).is_some_and(|at| *at < end)
        });
        let oldest = readers.first().copied().unwrap_or(SysTime::MAX);
        let [only] = &chain[..] else {
            return false;
        };
        if only.since > oldest {
            return false;
        }
        if only.state == unmapped(key) || matches!(only.state, State::Rewritten(_)) {
            shard.remove(&key);
        } else {
            chain.shrink_to_fit();
            if let Some(Version {
                state: State::Live(pages),
                ..
            }) = chain.first_mut()
            {
                pages.deltas.shrink_to_fit();
            }
        }
        true
    }
}

impl Pages {
    /// Returns true if the pages have enough delta pages to make a compaction due.
    ///
    /// The number that is enough follows from the extent of the base page. It is up to a quarter
    /// less or more than `max_deltas`. Flushes of keys all over the tree give a delta page to each
    /// leaf. With one number for all, they would all be due at once, which makes waves of
    /// compactions, and of space until these end. Pages of one extent were written together and
    /// are due together, so that most extents end without a collection.
    pub fn is_due(&self, max_deltas: usize) -> bool {
        let count = self.deltas.len();
        let spread = max_deltas / 4;
        if count + spread < max_deltas || spread == 0 {
            return count >= max_deltas;
        }
        let mixed = self.base.extent.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        count >= max_deltas - spread + mixed as usize % (2 * spread + 1)
    }
}

impl ChainSums {
    fn add(&mut self, pages: &Pages, max_deltas: usize) {
        let count = pages.deltas.len();
        if count == 0 {
            return;
        }
        self.delta_pages += count as u64;
        self.longest = self.longest.max(count as u64);
        let lens = pages.deltas.iter().map(|delta| delta.id.len);
        let largest = lens.clone().max().unwrap_or(0);
        match pages.has_index_deltas {
            true => {
                self.index_pages += 1;
                self.index_delta_bytes += lens.clone().map(u64::from).sum::<u64>();
            }
            false => {
                self.leaves += 1;
                self.beyond_base += u64::from(largest.saturating_sub(pages.base.len));
            }
        }
        if pages.is_due(max_deltas) {
            self.due_leaves += 1;
            self.due_bytes += lens.map(u64::from).sum::<u64>();
        }
    }
}

/// Returns the bytes of memory that a chain has beside its place in the map.
fn chain_memory(chain: &Chain) -> u64 {
    let mut bytes = match chain.spilled() {
        true => chain.capacity() * size_of::<Version>(),
        false => 0,
    };
    for version in chain {
        match &version.state {
            State::Live(pages) => {
                if pages.deltas.spilled() {
                    bytes += pages.deltas.capacity() * size_of::<Delta>();
                }
                let parts = (pages.deltas.iter()).filter_map(|delta| delta.part.as_deref());
                let ends = |part: &Part| {
                    let high = part.high.as_ref().map_or(0, |high| high.len());
                    size_of::<Part>() + part.low.len() + high
                };
                bytes += parts.map(ends).sum::<usize>();
            }
            State::Rewritten(with) => {
                let lows = with.iter().map(|(low, _)| low.len());
                bytes += size_of_val(&with[..]) + lows.sum::<usize>();
            }
        }
    }
    bytes as u64
}

/// Returns the state of a key that the table does not have.
fn unmapped(key: PageId) -> State {
    State::Live(Pages {
        base: key,
        deltas: SmallVec::new(),
        has_index_deltas: false,
    })
}

/// Takes delta pages behind the `kept` oldest ones out of a chain.
fn take(pages: &mut Pages, kept: u32, count: u32, effects: &mut Effects) -> Result<(), String> {
    let (kept, count) = (kept as usize, count as usize);
    if kept.saturating_add(count) > pages.deltas.len() {
        return Err(format!(
            "a change keeps {kept} delta pages of page {} and replaces {count}, and it has {}",
            pages.base,
            pages.deltas.len()
        ));
    }
    for delta in pages.deltas.drain(kept..kept + count) {
        effects.dead_deltas.push(delta.id);
        // Chains that share a page have parts of it.
        if delta.part.is_none() {
            effects.unused_deltas.push(delta.id);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
