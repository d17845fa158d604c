//! Writes with preconditions. Whether they are accepted is the same under all options: a changed
//! key refuses the write, and a key that is unchanged and present does not.

use super::{Execution, lives, outcome};
use crate::operations::{Condition, FAMILIES, Item, What, key_bytes};
use basalt_lsm::db::Precondition;
use basalt_lsm::{Db, ErrorKind, Family, SeqNo, WriteBatch, WriteOptions};
use std::collections::BTreeMap;

/// Distinct keys that are written.
const KEYS: u64 = 70;
/// Number of changed keys that are kept in their order.
const RECENT: usize = 64;

/// Flushes whose changes a family in pages knows, less one that the write itself may run.
const KNOWN_FLUSHES: u64 = 3;

/// The changes of keys in one life of the store. The moments between writes are counted, because
/// the sequence numbers depend on the options.
#[derive(Clone, Default)]
pub(super) struct Changes {
    /// The newest sequence number at each moment, and the flushes until then: when the store was
    /// opened, and after each write.
    moments: Vec<(SeqNo, u64)>,
    /// The moment before which families in pages do not know when a key was changed: when the
    /// family was made, or tables were added to it.
    known_from: BTreeMap<usize, usize>,
    /// The first moment that shows each key's last change.
    last: BTreeMap<(usize, Vec<u8>), usize>,
    /// The keys that were changed last, in order.
    recent: Vec<(usize, Vec<u8>)>,
}

impl Changes {
    /// Returns no changes, of a store that was opened with this newest sequence number.
    pub fn since(newest: SeqNo) -> Changes {
        Changes {
            moments: vec![(newest, 0)],
            ..Changes::default()
        }
    }

    /// Notes a change that the next moment shows.
    pub fn note(&mut self, family: usize, key: &[u8], what: &What) {
        let shown = self.moments.len();
        if let What::DeleteRange(other) = what {
            let other = key_bytes(*other);
            let (from, to) = (key.min(&other[..]), key.max(&other[..]));
            let is_inside = |k: &Vec<u8>| from <= &k[..] && &k[..] < to;
            let inside = (0..KEYS).map(key_bytes).filter(is_inside);
            self.last.extend(inside.map(|key| ((family, key), shown)));
        }
        // A range deletes its first key even if it has no other.
        let place = match what {
            What::DeleteRange(other) => (family, key.to_vec().min(key_bytes(*other))),
            _ => (family, key.to_vec()),
        };
        self.last.insert(place.clone(), shown);
        self.recent.push(place);
        if self.recent.len() > 2 * RECENT {
            self.recent.drain(..RECENT);
        }
    }

    /// Notes that a family in pages knows the changes from the next moment on.
    pub fn known_from_next(&mut self, family: usize) {
        self.known_from.insert(family, self.moments.len());
    }

    /// Returns true if a family in pages knows when a key was changed after a moment, if `flushes`
    /// have ended by now.
    fn is_known(&self, family: usize, moment: usize, flushes: u64) -> bool {
        let from = self.known_from.get(&family);
        from.is_none_or(|from| *from <= moment) && flushes <= self.moments[moment].1 + KNOWN_FLUSHES
    }

    /// Forgets the changes of a dropped family.
    pub fn forget(&mut self, name: &str) {
        self.last.retain(|(family, _), _| FAMILIES[*family] != name);
        self.recent.retain(|(family, _)| FAMILIES[*family] != name);
    }
}

/// A precondition as of one moment.
struct UnchangedKey {
    family: Family,
    key: Vec<u8>,
    since: SeqNo,
    /// True if the key was changed since.
    is_changed: bool,
    /// True if readers show the key.
    is_present: bool,
}

/// Lets a family in pages keep its changes: it begins at its first precondition.
pub(super) fn keep_changes(db: &Db, family: &Family) {
    let now = [Precondition::unchanged(family, b"", db.snapshot().seq())];
    let done = db.write_if(WriteBatch::new(), &now, &WriteOptions::default());
    done.expect("nothing was written since");
}

impl Execution<'_> {
    /// Notes that a write has ended.
    pub(super) fn note_moment(&mut self) {
        let newest = self.db().snapshot().seq();
        let flushes = self.db().stats().flushes;
        self.changes.moments.push((newest, flushes));
    }

    fn precondition(&self, condition: &Condition) -> Option<UnchangedKey> {
        let changes = &self.changes;
        let newest = changes.moments.len() - 1;
        let (place, moment) = match condition {
            Condition::Unchanged { family, key, back } => {
                ((*family, key_bytes(*key)), newest.saturating_sub(*back))
            }
            Condition::Outdated(n) => {
                let place = changes.recent.iter().nth_back(*n)?.clone();
                let shown = changes.last[&place];
                (place, shown - 1)
            }
        };
        let family = self.families.get(FAMILIES[place.0])?.clone();
        let is_changed = changes
            .last
            .get(&place)
            .is_some_and(|shown| *shown > moment);
        let read = self.db().get(&family, &place.1, &self.read_options(None));
        let is_present = read.is_ok_and(|v| v.is_some_and(|v| lives(&v)));
        let is_exact = match self.settings.is_in_pages(place.0) {
            true => (self.changes).is_known(place.0, moment, self.db().stats().flushes),
            false => is_present,
        };
        let moment = if is_changed || is_exact {
            moment
        } else {
            newest
        };
        Some(UnchangedKey {
            family,
            key: place.1,
            since: changes.moments[moment].0,
            is_changed,
            is_present,
        })
    }

    /// Writes a batch with preconditions, by a call that waits or by a ticket.
    pub(super) fn write_if(
        &mut self,
        items: &[Item],
        conditions: &[Condition],
        sync: bool,
        submits: bool,
    ) {
        let conditions = conditions.iter().filter_map(|c| self.precondition(c));
        let conditions: Vec<UnchangedKey> = conditions.collect();
        let (bases, changes) = (self.bases.clone(), self.changes.clone());
        let batch = self.fill(items);
        let preconditions: Vec<Precondition<'_>> = (conditions.iter())
            .map(|c| Precondition::unchanged(&c.family, &c.key, c.since))
            .collect();
        let options = WriteOptions::synced(sync);
        let done = match submits {
            true => (self.db().submit_if(batch, &preconditions, &options)).wait(),
            false => self.db().write_if(batch, &preconditions, &options),
        };
        let changed = conditions.iter().filter(|c| c.is_changed);
        let deleted = changed.clone().filter(|c| !c.is_present).count();
        let is_refused = match &done {
            Err(e) if e.kind() == ErrorKind::Conflict => true,
            other => {
                assert!(other.is_ok(), "{other:?}");
                false
            }
        };
        assert_eq!(changed.count() > 0, is_refused, "{done:?}");
        if is_refused {
            (self.bases, self.changes) = (bases, changes);
            self.did("conditional_writes_refused", 1);
            self.did("writes_refused_for_a_deleted_key", u64::from(deleted > 0));
        } else {
            self.note_moment();
            self.did(
                "conditional_writes_accepted",
                u64::from(!conditions.is_empty()),
            );
        }
        self.say(format!("write_if: {}", outcome(&done)));
    }
}
