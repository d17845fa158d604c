//! Which tables to merge next.
//!
//! Level sizes are dynamic, as RocksDB's `level_compaction_dynamic_level_bytes`: the largest level's real size sets the
//! targets upwards, each a `level_multiplier` smaller, until one is not above `FLAT` times `base_level_bytes`; that is the base level,
//! which level 0 merges into, and the levels between stay empty. The bottom then holds nine tenths of the data, and space
//! amplification by overwritten versions stays near 1.1. The base level is never below a level that holds data, so newer
//! versions never pass older ones.
//!
//! Choices, in order of precedence:
//! 1. The level with the highest score of at least 1. Level 0: tables over the trigger, or bytes over `base_level_bytes`.
//!    Others: bytes over target. Any: bytes of blob files that its entries hide, see [`super::hidden_garbage`]. Tables that a running
//!    compaction has do not count.
//! 2. Level 0 that readers have paid for, when nobody writes: decision 0017.
//! 3. Tables whose values have expired for long enough, soonest expiry first.
//! 4. Tables that are tombstones for the most part, those over ranges counted as many: pushed down, or rewritten in place at the bottom.
//! 5. Tables of the bottom with references to values that scans have paid for, see [`super::scattered`].
//!
//! Inside a level the table with the least overlap below for its size goes first. The older a table, the less its overlap
//! counts, so that none waits for ever.

use super::hidden_garbage::HiddenGarbageModel;
use super::relocation_pick::RelocationSet;
use crate::compaction::output::GRANDPARENT_FACTOR;
use crate::options::FamilyOptions;
use crate::version::{FamilyVersion, LEVELS, TableFile};
use basalt_env::sync::atomic::Ordering as Atomic;
use basalt_kv::key::{Cmp, SeqNo};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// A plan takes at most so many times `table_bytes` from its starting level, unless one table and what must go with it
/// is more.
const MAX_INPUT_FACTOR: u64 = 25;

/// Tables with expired values are rewritten at most at this rate in bytes a second: a table's turn comes when its soonest
/// expiry is as long ago as rewriting all such tables would take.
const EXPIRY_BYTES_PER_S: u64 = 16 << 20;

/// What a range tombstone counts for among entries: its table is pushed down, to where the data is that it hides.
pub(super) const ENTRIES_A_RANGE: u64 = 1000;

/// An expiry is never acted on sooner than this many ms after it.
const EXPIRY_LAG_MS: u64 = 60_000;

/// A read of the device takes about as long as merging so many bytes.
const BYTES_A_READ: u64 = 64 << 10;

/// How long nobody must have written before level 0 is merged for readers, and bytes that a merge moves in a millisecond more of that.
const STILL: Duration = Duration::from_secs(1);
const MERGED_A_MS: u64 = 512 << 10;

/// Level 0 merges into a level of up to so many times `base_level_bytes` before there is another level between. A merge then rewrites
/// more of it; a level between would be written, merged down at that same ratio, and hold older versions meanwhile.
const FLAT: u64 = 8;

const LAST: usize = LEVELS - 1;

/// What a choice is made from.
#[derive(Clone, Copy)]
pub struct PickContext<'a> {
    /// The family's id.
    pub family: u32,
    /// Its tables.
    pub version: &'a FamilyVersion,
    /// Its settings.
    pub options: &'a FamilyOptions,
    /// Wall time in ms since 1970.
    pub now_ms: u64,
    /// The oldest live snapshot; `MAX_SEQ` when there is none.
    pub oldest_snapshot: SeqNo,
    /// What running compactions write to, of any family.
    pub running: &'a [Reach],
    /// Where tables that are being added will be.
    pub entering: &'a [Reach],
    /// Memtables are written out so fast one after the other that level 0 will soon have more tables to merge with the same rewrite.
    pub urgent: bool,
    /// For how long nobody has written, as far as that is known, while readers went to the device often.
    pub still_for: Duration,
    /// What entries of the family hide in blob files.
    pub hidden_garbage: HiddenGarbageModel,
    /// Files whose values had better be moved along.
    pub relocation_set: RelocationSet<'a>,
}

/// Where a plan's outputs may lie: one table of them may span a gap between two inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    family: u32,
    level: usize,
    from: Vec<u8>,
    to: Vec<u8>,
    /// `to` itself is not in it.
    open: bool,
}

/// Why a compaction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Level 0 has too many tables.
    L0Tables,
    /// Level 0 has too many bytes.
    L0Bytes,
    /// A level is over its target.
    LevelBytes,
    /// A level's entries hide much of blob files.
    HiddenGarbage,
    /// Readers look into level 0 in vain.
    Reads,
    /// Values have expired.
    Expired,
    /// A table is tombstones for the most part.
    Tombstones,
    /// Scans read values one by one.
    RelocationCandidates,
    /// Somebody asked.
    Manual,
}

impl Reason {
    /// The reason in a few words, for messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::L0Tables => "level 0 tables",
            Reason::L0Bytes => "level 0 bytes",
            Reason::LevelBytes => "level bytes",
            Reason::HiddenGarbage => "hidden garbage",
            Reason::Reads => "reads of level 0",
            Reason::Expired => "expired values",
            Reason::Tombstones => "tombstones",
            Reason::RelocationCandidates => "scattered values",
            Reason::Manual => "manual",
        }
    }
}

/// One compaction.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The family's id.
    pub family: u32,
    /// The starting level.
    pub level: usize,
    /// Where the outputs go; equal to `level` when tables are rewritten in place. In level 0 that makes one table of several.
    pub output_level: usize,
    /// Input tables by level: the starting level's, then the output level's when there are any.
    pub inputs: Vec<(usize, Vec<Arc<TableFile>>)>,
    /// Nothing needs rewriting: the manifest moves the tables to the output level.
    pub trivial_move: bool,
    /// No older data can exist for the inputs' range of keys, in a deeper level or elsewhere.
    pub bottommost: bool,
    /// Tables of the level below the output level that overlap.
    pub grandparents: Vec<Arc<TableFile>>,
    /// Overlapping tables of every level below the output level that has some.
    pub deeper: Vec<Vec<Arc<TableFile>>>,
    /// Blob files whose values go with their references.
    pub gathered: BTreeSet<u64>,
    /// Why.
    pub reason: Reason,
    /// The starting level's score; 0 when the score is not the reason.
    pub score: f64,
}

impl Plan {
    /// All input tables.
    pub fn input_tables(&self) -> impl Iterator<Item = &Arc<TableFile>> {
        self.inputs.iter().flat_map(|(_, tables)| tables)
    }
    /// The part of the output level that this plan needs for itself while it runs.
    pub fn reach(&self, cmp: &Cmp) -> Reach {
        let all: Vec<_> = self.input_tables().cloned().collect();
        let hull = KeySpan::of(cmp, &all).expect("a plan has inputs");
        Reach {
            family: self.family,
            level: self.output_level,
            from: hull.from.to_vec(),
            to: hull.to.to_vec(),
            open: hull.open,
        }
    }
    /// Bytes of all input tables.
    pub fn input_bytes(&self) -> u64 {
        self.input_tables().map(|t| t.meta.size).sum()
    }
    /// Estimated bytes of the outputs if each tombstone removes one value. The outputs are larger if
    /// tombstones meet no values.
    fn bytes_left(&self) -> u64 {
        let (mut values, mut deletes) = (0u64, 0u64);
        for t in self.input_tables() {
            let ranges = t.meta.range_deletes.saturating_mul(ENTRIES_A_RANGE);
            deletes = deletes.saturating_add(t.meta.deletes.saturating_add(ranges));
            values += t.meta.entries.saturating_sub(t.meta.deletes);
        }
        let left = values.saturating_sub(deletes) as f64 / values.max(1) as f64;
        (self.input_bytes() as f64 * left) as u64
    }
}

/// A plan's tables, marked as taken until this is dropped. Make and drop it under the engine's lock; drop it after the new
/// version is installed.
#[must_use]
pub struct Claim(Vec<Arc<TableFile>>);

impl Claim {
    /// Takes a plan's tables; `None`, and nothing taken, when another compaction has one of them.
    pub fn take(plan: &Plan) -> Option<Claim> {
        let mut claim = Claim(Vec::new());
        for t in plan.input_tables() {
            if t.compacting.swap(true, Atomic::SeqCst) {
                return None;
            }
            claim.0.push(t.clone());
        }
        Some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for t in &self.0 {
            t.compacting.store(false, Atomic::SeqCst);
        }
    }
}

/// The sizes levels aim at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Targets {
    /// Where level 0 merges into.
    pub base_level: usize,
    /// Bytes by level; 0 for level 0 and for levels above the base, which stay empty.
    pub bytes: [u64; LEVELS],
}

/// The sizes levels aim at, from the tree's present shape.
pub fn level_targets(version: &FamilyVersion, options: &FamilyOptions) -> Targets {
    let sizes: Vec<u64> = (0..LEVELS).map(|l| version.level_bytes(l)).collect();
    let multiplier = u64::from(options.level_multiplier);
    let mut bytes = [0; LEVELS];
    let Some(first) = (1..LEVELS).find(|&l| sizes[l] > 0) else {
        bytes[LAST] = options.base_level_bytes;
        return Targets {
            base_level: LAST,
            bytes,
        };
    };
    let largest = sizes[1..].iter().copied().max().unwrap_or(0);
    // What the first level with data should hold for the largest level's size to be right at the bottom.
    let mut size = largest;
    for _ in first..LAST {
        size /= multiplier;
    }
    let mut base_level = first;
    let flat = options.base_level_bytes.saturating_mul(FLAT);
    while base_level > 1 && size > flat {
        base_level -= 1;
        size /= multiplier;
    }
    let mut target = size.clamp(1, flat);
    for slot in &mut bytes[base_level..] {
        // No level aims below the base size: with little data the tree would be an hourglass and merge for nothing.
        *slot = target.max(options.base_level_bytes);
        target = target.saturating_mul(multiplier);
    }
    Targets { base_level, bytes }
}

pub(super) fn idle(t: &TableFile) -> bool {
    !t.compacting.load(Atomic::SeqCst)
}

fn bytes_of<'a>(tables: impl IntoIterator<Item = &'a Arc<TableFile>>) -> u64 {
    tables.into_iter().map(|t| t.meta.size).sum()
}

/// How many tables of level 0 start a compaction. Each rewrites the base level, so under a hurried writer it waits for as many as
/// hold as much as that level, up to two thirds of what slows writers: the same rewrite then takes more with it.
pub fn l0_trigger(version: &FamilyVersion, options: &FamilyOptions, urgent: bool) -> usize {
    let usual = options.l0_compaction_trigger;
    let tables = version.levels[0].len() as u64;
    if !urgent || tables == 0 {
        return usual;
    }
    let base = version.level_bytes(level_targets(version, options).base_level);
    let average = (version.level_bytes(0) / tables).max(1);
    let wanted = base.div_ceil(average) as usize;
    wanted.min(options.l0_slowdown / 3 * 2).max(usual)
}

/// Levels with their scores, highest first; a level is due at 1. The last level has none.
pub fn scores(version: &FamilyVersion, options: &FamilyOptions) -> Vec<(usize, f64)> {
    scores_when(version, options, false, &HiddenGarbageModel::default())
        .into_iter()
        .map(|s| (s.0, s.1))
        .collect()
}

/// Levels with their scores, highest first, and whether what they hide is the reason.
fn scores_when(
    version: &FamilyVersion,
    options: &FamilyOptions,
    urgent: bool,
    hidden_garbage: &HiddenGarbageModel,
) -> Vec<(usize, f64, bool)> {
    let targets = level_targets(version, options);
    let hidden = hidden_garbage.scores(version, |level| match level {
        0 => targets.base_level,
        level => level + 1,
    });
    let trigger = l0_trigger(version, options, urgent) as f64;
    let l0_bytes = options.base_level_bytes as f64 * trigger / options.l0_compaction_trigger as f64;
    let mut out = Vec::with_capacity(LEVELS);
    for (level, hides) in hidden.into_iter().enumerate().take(LAST) {
        let tables = version.levels[level].iter().filter(|t| idle(t));
        let bytes = bytes_of(tables.clone()) as f64;
        let score = if level == 0 {
            let by_count = tables.count() as f64 / trigger;
            by_count.max(bytes / l0_bytes)
        } else if targets.bytes[level] == 0 {
            0.0
        } else {
            bytes / targets.bytes[level] as f64
        };
        out.push((level, score.max(hides), hides > score));
    }
    out.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    out
}

/// Bytes that compactions should move before every level is inside its target: level 0 merging into the base, and each
/// level's surplus, with what is carried down from above, merging with its share of the next.
pub fn compaction_debt(version: &FamilyVersion, options: &FamilyOptions) -> u64 {
    let targets = level_targets(version, options);
    let l0 = version.level_bytes(0);
    let due =
        version.levels[0].len() >= options.l0_compaction_trigger || l0 >= options.base_level_bytes;
    let mut debt = 0u64;
    let mut carried = 0u64;
    if due {
        debt = l0 + version.level_bytes(targets.base_level);
        carried = l0;
    }
    for level in targets.base_level..LAST {
        let here = version.level_bytes(level) + std::mem::take(&mut carried);
        let surplus = here.saturating_sub(targets.bytes[level]);
        if surplus > 0 {
            let next = version.level_bytes(level + 1) as f64;
            let with_it = surplus as f64 * (1.0 + next / here as f64);
            debt = debt.saturating_add(with_it as u64);
            carried = surplus;
        }
    }
    debt
}

/// The user keys from the first to the last of some tables; the last is not among them when a range tombstone ends there.
#[derive(Clone, Copy)]
struct KeySpan<'a> {
    from: &'a [u8],
    to: &'a [u8],
    open: bool,
}

impl<'a> KeySpan<'a> {
    fn of(cmp: &Cmp, tables: &'a [Arc<TableFile>]) -> Option<KeySpan<'a>> {
        let mut tables = tables.iter();
        let first = tables.next()?;
        let start = KeySpan {
            from: first.smallest_user(),
            to: first.largest_user(),
            open: first.end_is_open(),
        };
        Some(tables.fold(start, |mut hull, t| {
            if cmp.user(t.smallest_user(), hull.from) == Ordering::Less {
                hull.from = t.smallest_user();
            }
            match cmp.user(t.largest_user(), hull.to) {
                Ordering::Greater => (hull.to, hull.open) = (t.largest_user(), t.end_is_open()),
                Ordering::Equal => hull.open &= t.end_is_open(),
                Ordering::Less => {}
            }
            hull
        }))
    }

    fn ends_before(&self, cmp: &Cmp, key: &[u8]) -> bool {
        match cmp.user(self.to, key) {
            Ordering::Less => true,
            Ordering::Equal => self.open,
            Ordering::Greater => false,
        }
    }

    /// The tables of a level that have a key in it.
    fn tables(&self, version: &FamilyVersion, level: usize) -> Vec<Arc<TableFile>> {
        let inside = |t: &&Arc<TableFile>| {
            !t.ends_before(self.from) && !self.ends_before(&version.cmp, t.smallest_user())
        };
        version.levels[level]
            .iter()
            .filter(inside)
            .cloned()
            .collect()
    }
}

impl Reach {
    /// Of a table that enters a level and has keys from `from` to `to`, both among them.
    pub(crate) fn of_keys(family: u32, level: usize, from: &[u8], to: &[u8]) -> Reach {
        Reach {
            family,
            level,
            from: from.to_vec(),
            to: to.to_vec(),
            open: false,
        }
    }

    /// True when a table of each may have keys between those of the other's.
    pub(crate) fn meets(&self, cmp: &Cmp, other: &Reach) -> bool {
        let hull = KeySpan {
            from: &other.from,
            to: &other.to,
            open: other.open,
        };
        (self.family, self.level) == (other.family, other.level) && self.crosses(cmp, &hull)
    }

    /// True when a plan over this hull into the same level may write where this one does.
    fn crosses(&self, cmp: &Cmp, hull: &KeySpan<'_>) -> bool {
        let own = KeySpan {
            from: &self.from,
            to: &self.to,
            open: self.open,
        };
        !own.ends_before(cmp, hull.from) && !hull.ends_before(cmp, own.from)
    }
}

/// All tables of a level inside the hull of `seed`, again and again until the hull stays: no user key is cut, and
/// nothing of the level is left out between the tables.
fn closure(
    version: &FamilyVersion,
    level: usize,
    seed: Vec<Arc<TableFile>>,
) -> Vec<Arc<TableFile>> {
    let mut tables = seed;
    loop {
        let Some(hull) = KeySpan::of(&version.cmp, &tables) else {
            return tables;
        };
        let wider = hull.tables(version, level);
        if wider.len() <= tables.len() {
            return wider;
        }
        tables = wider;
    }
}

fn same(a: &[Arc<TableFile>], b: &[Arc<TableFile>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.number == y.number)
}

impl PickContext<'_> {
    fn max_input_bytes(&self) -> u64 {
        self.options.table_bytes.saturating_mul(MAX_INPUT_FACTOR)
    }

    /// The plan for tables of one level, which are a closure (level 0: an older part of one). `None` when another compaction
    /// has a table that it needs, or writes where it would.
    fn plan(
        &self,
        level: usize,
        output_level: usize,
        mut start: Vec<Arc<TableFile>>,
        reason: Reason,
        score: f64,
    ) -> Option<Plan> {
        let v = self.version;
        if start.is_empty() || !start.iter().all(|t| idle(t)) {
            return None;
        }
        let mut merged = Vec::new();
        if output_level != level {
            let below = |start: &[Arc<TableFile>]| {
                let hull = KeySpan::of(&v.cmp, start).expect("not empty");
                closure(v, output_level, hull.tables(v, output_level))
            };
            merged = below(&start);
            if level > 0 && !merged.is_empty() {
                // More of the starting level, where it costs nothing below.
                let mut both = start.clone();
                both.extend(merged.iter().cloned());
                let hull = KeySpan::of(&v.cmp, &both).expect("not empty");
                let wider = closure(v, level, hull.tables(v, level));
                if wider.len() > start.len()
                    && wider.iter().all(|t| idle(t))
                    && bytes_of(&wider) + bytes_of(&merged) <= self.max_input_bytes()
                    && same(&below(&wider), &merged)
                {
                    start = wider;
                }
            }
            if !merged.iter().all(|t| idle(t)) {
                return None;
            }
        }
        let mut all = start.clone();
        all.extend(merged.iter().cloned());
        let hull = KeySpan::of(&v.cmp, &all).expect("not empty");
        // The inputs are free, but what a running compaction will write need not lie inside its inputs, nor what this one does:
        // keys may come down into a gap between them.
        let crossed = self.running.iter().chain(self.entering).any(|r| {
            (r.family, r.level) == (self.family, output_level) && r.crosses(&v.cmp, &hull)
        });
        if crossed {
            return None;
        }
        let lower = |l: usize| hull.tables(v, l);
        let deeper: Vec<_> = (output_level + 1..LEVELS)
            .map(lower)
            .filter(|l| !l.is_empty())
            .collect();
        let grandparents = match output_level {
            LAST => Vec::new(),
            l => lower(l + 1),
        };
        let bottommost = deeper.is_empty();
        let trivial_move = output_level != level
            && merged.is_empty()
            && (level > 0 || start.len() == 1)
            && bytes_of(&grandparents)
                <= self.options.table_bytes.saturating_mul(GRANDPARENT_FACTOR)
            && !start.iter().any(|t| self.needs_rewrite(t, bottommost));
        let mut inputs = vec![(level, start)];
        if !merged.is_empty() {
            inputs.push((output_level, merged));
        }
        // No other merge is to wait for values.
        let gathers = matches!(reason, Reason::RelocationCandidates | Reason::Manual);
        let gathered = match gathers && bottommost && !trivial_move {
            true => (self.relocation_set).gathered(inputs.iter().flat_map(|(_, tables)| tables)),
            false => BTreeSet::new(),
        };
        Some(Plan {
            family: self.family,
            level,
            output_level,
            inputs,
            trivial_move,
            bottommost,
            grandparents,
            deeper,
            gathered,
            reason,
            score,
        })
    }

    /// True when a table should not just change its level: at the bottom it would keep the upper levels' compression, or
    /// tombstones that a merge drops for good; and expired values are dropped only by a merge. A changed number of filter
    /// bits is no reason: it costs reads of this table a little, and ends when the table is merged next.
    fn needs_rewrite(&self, t: &TableFile, bottommost: bool) -> bool {
        let compression = self
            .options
            .bottom_compression
            .is_some_and(|c| c != self.options.compression);
        t.meta.soonest_expiry_ms <= self.now_ms
            || (bottommost && (compression || t.meta.range_deletes > 0 || mostly_tombstones(t)))
    }

    /// True when the outputs of a plan probably fit what a full disk has left.
    fn fits(&self, plan: &Plan) -> bool {
        let Some(full) = self.hidden_garbage.full else {
            return true;
        };
        let expected = match full.surely {
            true => plan.input_bytes(),
            false => plan.bytes_left(),
        };
        plan.trivial_move || expected <= full.room
    }

    /// Plans a merge of the newest tables of level 0 into one table of level 0, as many as probably fit.
    /// For a full disk where a merge of all of level 0 does not fit. Tombstones in these tables then free
    /// values in the others. Level 0 always has fewer tables afterwards, so deletes can continue.
    fn plan_newest(&self, reason: Reason, score: f64) -> Option<Plan> {
        let tables = &self.version.levels[0];
        if !tables.iter().all(|t| idle(t)) {
            return None;
        }
        (2..=tables.len()).rev().find_map(|n| {
            let (newest, older) = tables.split_at(n);
            let first = newest.iter().map(|t| t.meta.min_seq).min()?;
            if older.iter().any(|t| t.meta.max_seq >= first) {
                return None;
            }
            let mut plan = self.plan(0, 0, newest.to_vec(), reason, score)?;
            // What is older lies beside the output.
            plan.deeper.extend(older.iter().map(|t| vec![t.clone()]));
            plan.bottommost = plan.deeper.is_empty();
            self.fits(&plan).then_some(plan)
        })
    }

    /// Level 0 into the base level: the oldest table and all that overlap it directly or through others. When that is too
    /// much, only the oldest of them, which may go before newer ones. On a full disk it is all of them if the outputs probably fit.
    fn plan_l0(&self, reason: Reason, score: f64) -> Option<Plan> {
        let tables = &self.version.levels[0];
        if !tables.iter().all(|t| idle(t)) {
            return None;
        }
        let base = level_targets(self.version, self.options).base_level;
        let oldest = tables.last()?.clone();
        let mut start = closure(self.version, 0, vec![oldest]);
        if self.hidden_garbage.full.is_some()
            && let Some(plan) = self.plan(0, base, start.clone(), reason, score)
            && self.fits(&plan)
        {
            // The newest tables have the tombstones that make the merge small.
            return Some(plan);
        }
        let mut bytes = 0;
        let fits = start
            .iter()
            .rev()
            .take_while(|t| {
                bytes += t.meta.size;
                bytes <= self.max_input_bytes()
            })
            .count()
            .max(1);
        start.drain(..start.len() - fits);
        self.plan(0, base, start, reason, score)
    }

    /// Idle tables of a level, best first.
    fn candidates(&self, level: usize) -> Vec<Arc<TableFile>> {
        let v = self.version;
        let (here, below) = (&v.levels[level], &v.levels[level + 1]);
        let newest = v
            .levels
            .iter()
            .flatten()
            .map(|t| t.number)
            .max()
            .unwrap_or(0);
        let mut at = 0;
        let mut ranked: Vec<(f64, &Arc<TableFile>)> = Vec::with_capacity(here.len());
        for t in here {
            while at < below.len() && below[at].ends_before(t.smallest_user()) {
                at += 1;
            }
            let overlap =
                bytes_of((below[at..].iter()).take_while(|b| !t.ends_before(b.smallest_user())));
            if !idle(t) {
                continue;
            }
            // Tombstones free space below: a table of them counts as up to five times its size.
            // One over a range frees the more.
            let deletes = t.meta.deletes as f64 / t.meta.entries.max(1) as f64;
            let deletes = if t.meta.range_deletes > 0 {
                1.0
            } else {
                deletes
            };
            let weight = t.meta.size.max(1) as f64 * (1.0 + 4.0 * deletes);
            // Every table made since adds to the age; after one turn of the level's tables it halves the overlap.
            let age = (newest - t.number) as f64 / here.len() as f64;
            ranked.push((overlap as f64 / weight / (1.0 + age), t));
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.number.cmp(&b.1.number)));
        ranked.into_iter().map(|(_, t)| t.clone()).collect()
    }

    /// One table on its way down: merged into the next level where something is, rewritten in place otherwise.
    fn plan_table(&self, level: usize, t: &Arc<TableFile>, reason: Reason) -> Option<Plan> {
        if level == 0 {
            return self.plan_l0(reason, 0.0);
        }
        let something_below =
            (level + 1..LEVELS).any(|l| self.version.levels[l].iter().any(|b| b.meets(t)));
        let output_level = if something_below { level + 1 } else { level };
        let start = closure(self.version, level, vec![t.clone()]);
        self.plan(level, output_level, start, reason, 0.0)
    }

    fn plan_expired(&self) -> Option<Plan> {
        let with_expiry = || {
            self.version.levels.iter().enumerate().flat_map(|(l, ts)| {
                ts.iter()
                    .filter(|t| t.meta.soonest_expiry_ms != u64::MAX)
                    .map(move |t| (l, t))
            })
        };
        let bytes = bytes_of(with_expiry().map(|(_, t)| t));
        let lag = EXPIRY_LAG_MS.max(bytes.saturating_mul(1000) / EXPIRY_BYTES_PER_S);
        let mut due: Vec<_> = with_expiry()
            .filter(|(_, t)| t.meta.soonest_expiry_ms.saturating_add(lag) <= self.now_ms)
            .collect();
        due.sort_by_key(|(_, t)| (t.meta.soonest_expiry_ms, t.number));
        due.into_iter()
            .find_map(|(l, t)| self.plan_table(l, t, Reason::Expired))
    }

    fn plan_tombstones(&self) -> Option<Plan> {
        for level in 1..LEVELS {
            for t in &self.version.levels[level] {
                if !idle(t) || !mostly_tombstones(t) {
                    continue;
                }
                let Some(plan) = self.plan_table(level, t, Reason::Tombstones) else {
                    continue;
                };
                // In place it helps only when no snapshot keeps the tombstones; else it would be done again and again.
                if plan.output_level != level || t.meta.max_seq <= self.oldest_snapshot {
                    return Some(plan);
                }
            }
        }
        None
    }
}

impl PickContext<'_> {
    /// Tables of the deepest level, in place, whose values are to be moved along.
    fn plan_relocation(&self) -> Option<Plan> {
        let v = self.version;
        let level = (1..LEVELS).rev().find(|&l| !v.levels[l].is_empty())?;
        let concerned = || {
            v.levels[level]
                .iter()
                .filter(|t| self.relocation_set.concerns(t))
        };
        let mut start = closure(v, level, vec![concerned().find(|t| idle(t))?.clone()]);
        for t in concerned() {
            let mut wider = start.clone();
            wider.push(t.clone());
            let wider = closure(v, level, wider);
            if bytes_of(&wider) > self.max_input_bytes() || !wider.iter().all(|t| idle(t)) {
                break;
            }
            start = wider;
        }
        let plan = self.plan(level, level, start, Reason::RelocationCandidates, 0.0)?;
        (!plan.gathered.is_empty()).then_some(plan)
    }
}

/// What merging level 0 rewrites, when it has cost readers as much.
pub fn paid_by_reads(version: &FamilyVersion, options: &FamilyOptions) -> Option<u64> {
    let l0 = &version.levels[0];
    if !options.l0_compaction_for_reads || l0.is_empty() {
        return None;
    }
    let extra_reads: u64 = l0.iter().map(|t| t.extra_reads()).sum();
    let paid = extra_reads.saturating_mul(BYTES_A_READ);
    if paid < version.level_bytes(0) {
        return None;
    }
    let base = level_targets(version, options).base_level;
    let cost = version.level_bytes(0) + version.level_bytes(base);
    (paid >= cost).then_some(cost)
}

impl PickContext<'_> {
    /// Level 0, when its tables have cost readers as much as merging them costs. The longer that takes, the longer nobody must
    /// have written: the next burst would wait for it.
    fn plan_read_triggered(&self) -> Option<Plan> {
        if self.still_for < STILL {
            return None;
        }
        let cost = paid_by_reads(self.version, self.options)?;
        let takes = Duration::from_millis(cost / MERGED_A_MS);
        if self.still_for < STILL + takes {
            return None;
        }
        self.plan_l0(Reason::Reads, 0.0)
    }
}

/// At least a third of the entries; one over a range counts as many, as it hides many.
fn mostly_tombstones(t: &TableFile) -> bool {
    let ranges = t.meta.range_deletes.saturating_mul(ENTRIES_A_RANGE);
    let deletes = t.meta.deletes.saturating_add(ranges);
    deletes > 0 && deletes.saturating_mul(3) >= t.meta.entries
}

/// Returns the most useful compaction that can start now, if one is due. On a full disk, compactions
/// whose outputs probably fit go first.
pub fn pick(ctx: &PickContext<'_>) -> Option<Plan> {
    let mut too_large = None;
    for (level, score, hidden) in
        scores_when(ctx.version, ctx.options, ctx.urgent, &ctx.hidden_garbage)
    {
        if score < 1.0 {
            break;
        }
        let plan = if level == 0 {
            let tables = ctx.version.levels[0].len();
            let reason = if hidden {
                Reason::HiddenGarbage
            } else if tables >= ctx.options.l0_compaction_trigger {
                Reason::L0Tables
            } else {
                Reason::L0Bytes
            };
            let plan = ctx.plan_l0(reason, score);
            match plan.as_ref().is_none_or(|plan| ctx.fits(plan)) {
                true => plan,
                false => ctx.plan_newest(reason, score).or(plan),
            }
        } else {
            let reason = match hidden {
                true => Reason::HiddenGarbage,
                false => Reason::LevelBytes,
            };
            let candidates = ctx.candidates(level).into_iter();
            let mut plans = candidates.filter_map(|t| {
                let start = closure(ctx.version, level, vec![t]);
                ctx.plan(level, level + 1, start, reason, score)
            });
            let first = plans.next();
            match first.as_ref().is_none_or(|plan| ctx.fits(plan)) {
                true => first,
                false => plans.find(|plan| ctx.fits(plan)).or(first),
            }
        };
        match plan {
            Some(plan) if ctx.fits(&plan) => return Some(plan),
            plan => too_large = too_large.or(plan),
        }
    }
    let fits = |plan: &Plan| ctx.fits(plan);
    (ctx.plan_read_triggered().filter(fits))
        .or_else(|| ctx.plan_expired().filter(fits))
        .or_else(|| ctx.plan_tombstones().filter(fits))
        .or_else(|| ctx.plan_relocation().filter(fits))
        .or(too_large)
}

/// What a manual compaction does next in a level.
#[derive(Debug, Clone)]
pub enum RangePlan {
    /// Nothing is left to do there.
    Done,
    /// A running compaction has the tables: try again when one has ended.
    Busy,
    /// Do this, then ask again.
    Plan(Box<Plan>),
}

/// The next step of compacting the user keys from `from` to `to` (both inclusive, `None` unbounded) out of `level`: ask for each
/// level from 0 down, each until it is `Done`. Only data written up to `upto_seq` is moved down, so that it ends while
/// writers go on. The deepest level that holds anything is rewritten in place, tables numbered from `rewritten_before` on
/// (the next file number when the manual compaction began) left out.
pub fn plan_range(
    ctx: &PickContext<'_>,
    level: usize,
    from: Option<&[u8]>,
    to: Option<&[u8]>,
    upto_seq: SeqNo,
    rewritten_before: u64,
) -> RangePlan {
    let v = ctx.version;
    let deepest = (1..LEVELS).rev().find(|&l| !v.levels[l].is_empty());
    let in_place = level > 0 && deepest.is_none_or(|d| level >= d);
    let wanted: Vec<_> = v
        .overlapping(level, from, to)
        .into_iter()
        .filter(|t| t.meta.min_seq <= upto_seq && (!in_place || t.number < rewritten_before))
        .collect();
    let Some(first) = wanted.first() else {
        return RangePlan::Done;
    };
    let plan = if level == 0 {
        ctx.plan_l0(Reason::Manual, 0.0)
    } else {
        // As many neighbours as fit; what lies between them comes along.
        let mut start = closure(v, level, vec![first.clone()]);
        for t in &wanted[1..] {
            let mut wider = start.clone();
            wider.push(t.clone());
            let wider = closure(v, level, wider);
            if bytes_of(&wider) > ctx.max_input_bytes() {
                break;
            }
            start = wider;
        }
        let output_level = if in_place { level } else { level + 1 };
        ctx.plan(level, output_level, start, Reason::Manual, 0.0)
    };
    match plan {
        Some(plan) => RangePlan::Plan(Box::new(plan)),
        None => RangePlan::Busy,
    }
}
