//! Entries as the memory tier passes them to the tree: [`SortedEntries`], and what becomes of them
//! when pages are written again: [`EntryFilter`] and [`DropObserver`].

use basalt_fs::{Bytes, Error, Result};
use basalt_kv::key::Kind;
use basalt_kv::{MAX_KEY_LEN, MAX_VALUE_LEN};

/// Entries in rising order of their keys, one for each key.
pub trait SortedEntries {
    /// Moves to the next entry, at first to the first one. Returns false at the end.
    ///
    /// Errors end the user checkpoint that takes the entries; nothing is changed then.
    fn advance(&mut self) -> Result<bool>;
    /// Returns the key of the current entry.
    fn key(&self) -> &[u8];
    /// Returns the kind of the current entry: a value, or [`Kind::Delete`]. The tree does not look
    /// into other kinds.
    fn kind(&self) -> Kind;
    /// Returns the value of the current entry, empty for a deletion.
    fn value(&self) -> &[u8];
}

/// A change of a key: its new value, or `None` to delete it.
pub type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// Changes of a program, checked as they are taken.
pub(crate) struct CheckedChanges<'a, I> {
    changes: I,
    current: Change<'a>,
    count: usize,
}

impl<'a, I: Iterator<Item = Change<'a>>> CheckedChanges<'a, I> {
    pub fn new(changes: I) -> CheckedChanges<'a, I> {
        CheckedChanges {
            changes,
            current: (&[], None),
            count: 0,
        }
    }
}

impl<'a, I: Iterator<Item = Change<'a>>> SortedEntries for CheckedChanges<'a, I> {
    fn advance(&mut self) -> Result<bool> {
        let Some((key, value)) = self.changes.next() else {
            return Ok(false);
        };
        let what = if self.count > 0 && self.current.0 >= key {
            Some(format!(
                "keys are not in rising order: entry {}",
                self.count
            ))
        } else if key.len() > MAX_KEY_LEN {
            let len = key.len();
            Some(format!(
                "key of {len} bytes, at most {MAX_KEY_LEN} are allowed"
            ))
        } else {
            let len = value.map_or(0, <[u8]>::len);
            let fits = len <= MAX_VALUE_LEN;
            (!fits).then(|| format!("value of {len} bytes, at most {MAX_VALUE_LEN} are allowed"))
        };
        self.current = (key, value);
        self.count += 1;
        what.map_or(Ok(true), |what| Err(Error::invalid(what)))
    }

    fn key(&self) -> &[u8] {
        self.current.0
    }

    fn kind(&self) -> Kind {
        match self.current.1 {
            Some(_) => Kind::Put,
            None => Kind::Delete,
        }
    }

    fn value(&self) -> &[u8] {
        self.current.1.unwrap_or_default()
    }
}

/// What becomes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryDecision {
    /// The entry stays.
    Keep,
    /// The entry goes. No older entry of its key shows up.
    Remove,
    /// The entry gets another kind and value.
    Change(Kind, Vec<u8>),
}

/// Decides about entries whenever a base page is written with all that the tree has of its keys.
/// A garbage collection that moves a page as it is does not ask about its entries.
pub trait EntryFilter: Send + Sync {
    /// Returns what becomes of an entry. If the filter has removed an entry once, it must also
    /// remove it at any later time: after a failure or a crash, the tree asks about the same entry
    /// again.
    fn decide(&self, key: &[u8], kind: Kind, value: &[u8]) -> EntryDecision;
}

/// An entry that the newest content of a tree no longer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedEntry {
    /// Key of the entry.
    pub key: Vec<u8>,
    /// Kind of the entry.
    pub kind: Kind,
    /// Value of the entry.
    pub value: Bytes,
}

/// Is told which entries leave the pages of the newest content: entries that a newer one of their
/// key hides, and entries that the filter removes or changes. Old snapshots may still show them.
///
/// The tree reports each entry at most once, and only if no recovery can bring the entry back: the
/// system transaction that dropped the entry is durable, and so is each user checkpoint up to it
/// ([`crate::PageTree::confirm`]). Entries whose report a crash or a close prevents are reported
/// never. The same holds for entries of user checkpoints that are rolled back.
/// An entry that the filter changes is reported with the value that it had before.
pub trait DropObserver: Send + Sync {
    /// Returns true if entries of this kind are to be reported. A deletion is never reported.
    fn observes(&self, kind: Kind) -> bool;
    /// Takes entries that were dropped. The tree holds no lock of its tables during the call, but
    /// its maintenance may wait for the call.
    fn note_dropped(&self, dropped: Vec<DroppedEntry>);
}

/// Returns true for the kind of a deletion.
pub(crate) fn is_delete(kind: u8) -> bool {
    kind == Kind::Delete as u8
}
