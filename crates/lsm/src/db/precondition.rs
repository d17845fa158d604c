//! Preconditions of a write: what must still hold when the batch is committed.
//!
//! The caller's thread checks preconditions up to the newest visible sequence number, and may read
//! tables for it. The commit leader then looks for newer entries while it holds `writer`, so no
//! other batch and no ingestion comes between the check and the batch. A batch with preconditions
//! is a commit group of its own: every earlier batch is visible to the leader's check.
//!
//! Preconditions are not persisted. A batch reaches the log only after its check has passed, so a
//! recovery replays batches that were committed, in the order in which they were checked.
//!
//! A compaction may drop a tombstone that hides nothing any more, and keep older tombstones of the
//! same key. Then the tree does not say when a key was deleted. So each family keeps a number that
//! no dropped tombstone exceeds ([`FamilyEntry::dropped_tombstones`]). A key whose newest entry in
//! tables is a tombstone, or that has no entry, counts as changed after any lower number. Source:
//! decision 0033.
//!
//! Of keys in pages, the changes of the last flushes are known ([`super::page_changes`]). A key
//! counts as changed after a number from before these.

use super::engine::Engine;
use super::families::FamilyEntry;
use super::view::View;
use super::write_path::checks::Check;
use crate::compaction::Plan;
use crate::version::{FamilyVersion, TableFile};
use basalt_env::sync::spin_loop;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::MAX_KEY_LEN;
use basalt_kv::family::Family;
use basalt_kv::key::{Kind, SeqNo, readable_key};

/// Most preconditions of one batch. The commit leader checks all of them while writers wait, so
/// the limit bounds this wait, and the memory of a batch in the commit queue.
pub const MAX_PRECONDITIONS: usize = 1 << 16;

/// A condition that must still hold for a batch of [`super::Db::write_if`] to be written.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Precondition<'a> {
    /// No entry of `key` is newer than `since`. A value, an operand, a tombstone, a tombstone over
    /// a range that has the key, and a key of an ingested table are entries. The expiry of a value
    /// is no entry, and neither is a change by a compaction filter.
    Unchanged {
        /// The key's family.
        family: &'a Family,
        /// The user key.
        key: &'a [u8],
        /// The sequence number as of which the key was read: of a snapshot that the read used, or
        /// of a write of the key. It must be of this opening of the store. A number from an earlier
        /// opening means nothing after a power cut. Do not use 0 for a key that was absent: after
        /// compactions the check of an absent key fails for every old number.
        since: SeqNo,
    },
}

impl<'a> Precondition<'a> {
    /// Returns the precondition that no entry of `key` is newer than `since`.
    pub fn unchanged(family: &'a Family, key: &'a [u8], since: SeqNo) -> Precondition<'a> {
        Precondition::Unchanged { family, key, since }
    }
}

/// Takes a caller's preconditions for the queue.
///
/// Errors: `InvalidArgument` for more than [`MAX_PRECONDITIONS`], and for a key that no store can
/// have.
fn checks_of(preconditions: &[Precondition<'_>]) -> Result<Box<[Check]>> {
    if preconditions.len() > MAX_PRECONDITIONS {
        return Err(Error::invalid(format!(
            "a batch has {} preconditions, at most {MAX_PRECONDITIONS} are allowed: check fewer keys",
            preconditions.len()
        )));
    }
    let check = |p: &Precondition<'_>| {
        let Precondition::Unchanged { family, key, since } = *p;
        if key.len() > MAX_KEY_LEN {
            return Err(Error::invalid(format!(
                "the key of a precondition has {} bytes, a key has at most {MAX_KEY_LEN}",
                key.len()
            )));
        }
        Ok(Check {
            family: family.clone(),
            key: key.into(),
            since,
            checked: since,
        })
    };
    preconditions.iter().map(check).collect()
}

/// Returns true if a compaction of these tables may drop the last entry of a key.
fn may_drop_tombstones(plan: &Plan, family: &FamilyEntry) -> bool {
    family.options.compaction_filter.is_some()
        || plan.input_tables().any(|t| {
            let m = &t.meta;
            m.deletes > 0 || m.range_deletes > 0 || m.soonest_expiry_ms < u64::MAX
        })
}

/// Returns true if a table may have an entry of the key that is newer than `since`. The function
/// reads nothing from the device.
fn tables_may_have_newer(tables: &FamilyVersion, key: &[u8], since: SeqNo) -> bool {
    let is_newer = |t: &TableFile| t.meta.max_seq > since;
    let mut level0 = tables.levels[0].iter();
    level0.any(|t| is_newer(t) && t.overlaps(Some(key), Some(key)))
        || (1..tables.levels.len())
            .filter_map(|level| tables.find(level, key))
            .any(|t| is_newer(t))
}

impl Engine {
    /// Takes a caller's preconditions for the queue, and checks them up to the newest visible
    /// sequence number. Reads tables if they may have a newer entry. So little is left for the
    /// commit leader, which all writers wait for.
    ///
    /// Errors: `InvalidArgument` for too many preconditions, and for a key that no store can have;
    /// those of [`Engine::check_preconditions`].
    pub(super) fn take_preconditions(
        &self,
        preconditions: &[Precondition<'_>],
    ) -> Result<Box<[Check]>> {
        let mut checks = checks_of(preconditions)?;
        if checks.is_empty() {
            return Ok(checks);
        }
        self.ctx.check_open()?;
        // The number is read before the view, so that the view has all entries up to it. Tables
        // that are being ingested have a number before they are in a view.
        let (view, now) = loop {
            let now = self.tree.visible();
            let view = self.tree.view();
            if self.tree.ingested() <= view.ingested {
                break (view, now);
            }
            spin_loop();
        };
        for check in &mut checks {
            self.check(&view, now, check)?;
            check.checked = now;
        }
        Ok(checks)
    }

    /// Checks the preconditions of a batch. The caller is the commit leader and holds `writer`.
    ///
    /// Errors: `Conflict` for the first one that does not hold, `NotFound` for a dropped family,
    /// `InvalidArgument` for a family of another store or a sequence number that does not exist
    /// yet.
    pub(super) fn check_preconditions(&self, checks: &[Check]) -> Result<()> {
        if checks.is_empty() {
            return Ok(());
        }
        self.ctx.check_open()?;
        let view = self.tree.view();
        let now = self.tree.visible();
        checks.iter().try_for_each(|c| self.check(&view, now, c))
    }

    fn check(&self, view: &View, now: SeqNo, check: &Check) -> Result<()> {
        let Check {
            family,
            key,
            since,
            checked,
        } = check;
        self.check_family(view, family)?;
        if *since > now {
            return Err(Error::invalid(format!(
                "the precondition's sequence number {since} is above the store's newest, {now}; take it from a snapshot or a write of this store"
            )));
        }
        // After the view: a compaction raises the number before it installs its tables.
        let dropped = view.families[&family.id()].dropped_tombstones();
        let in_memory = view.memtables(family.id()).find_map(|m| m.get(key, now));
        let tables = view.version.families.get(&family.id());
        let is_in_memory = in_memory.is_some();
        let pages = view.pages.get(&family.id());
        let found = match in_memory {
            None if pages.is_some() => None,
            None if *checked < dropped
                || tables.is_some_and(|t| tables_may_have_newer(t, key, *checked)) =>
            {
                view.get(family.id(), key, now, true)?
            }
            found => found,
        };
        // Memtables drop no tombstone, so the newest entry in them is the newest of all.
        let may_be_older = !is_in_memory && found.as_ref().is_none_or(|f| f.kind == Kind::Delete);
        let found = found.map(|f| f.seq);
        let conflict = |what: String| {
            // The first conflict ends the checks of a batch.
            self.ctx.counters.conflicts.add(1);
            let message = format!(
                "key {} of family {:?} {what}: nothing was written; read the key again and retry",
                readable_key(key),
                family.name()
            );
            Err(Error::new(ErrorKind::Conflict, message))
        };
        if let Some(pages) = pages {
            pages.pages.keep_changes();
            if !is_in_memory {
                return match pages.changes.newest(key) {
                    (seq, _) if seq <= *checked => Ok(()),
                    (seq, true) => conflict(format!(
                        "was changed with sequence number {seq}, after {since}"
                    )),
                    (seq, false) => conflict(format!(
                        "may have been changed up to sequence number {seq}, after {since}"
                    )),
                };
            }
        }
        match found {
            Some(seq) if seq > *checked => conflict(format!(
                "was changed with sequence number {seq}, after {since}"
            )),
            _ if may_be_older && *checked < dropped => conflict(format!(
                "may have been deleted up to sequence number {dropped}, after {since}"
            )),
            _ => Ok(()),
        }
    }

    /// Raises the number of dropped tombstones before a compaction is installed that may have
    /// dropped some.
    pub(super) fn note_dropped_tombstones(&self, plan: &Plan, family: &FamilyEntry) {
        if may_drop_tombstones(plan, family) {
            let newest = plan.input_tables().map(|t| t.meta.max_seq).max();
            family.note_dropped_tombstones(newest.unwrap_or(0));
        }
    }
}
