//! Writes with preconditions. The reference knows when each key changed, by the sequence numbers
//! that the store returned, so it decides which precondition holds. A refused write leaves nothing.

use super::Runner;
use crate::history::{Condition, FAMILIES, IN_PAGES, Item, Since, key_bytes};
use crate::model::{Change, Commit, Key};
use basalt_lsm::db::Precondition;
use basalt_lsm::{ErrorKind, Family, Result, SeqNo, WriteOptions};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

/// The changes of keys in one opening of the store.
#[derive(Default)]
pub(super) struct Changes {
    /// The sequence number of each key's last change, by family and key. Deleted ranges are not
    /// among the changes.
    keys: BTreeMap<(String, Key), SeqNo>,
    /// The family, first key, end and sequence number of each deleted range.
    ranges: Vec<(String, Key, Key, SeqNo)>,
    /// The family, a key and the sequence number of each change, in order.
    all: Vec<(String, Key, SeqNo)>,
    /// The highest visible sequence number.
    newest: SeqNo,
}

impl Changes {
    /// Returns no changes, of a store that was opened with this newest sequence number.
    pub fn since(newest: SeqNo) -> Changes {
        Changes {
            newest,
            ..Changes::default()
        }
    }

    /// Notes a batch. Each change has a sequence number of its own, and `last` is the last one's.
    pub fn note_batch(&mut self, commit: &Commit, last: SeqNo) {
        let count = commit.len() as u64;
        assert!(last >= self.newest + count, "{last} after {}", self.newest);
        for (change, seq) in commit.iter().zip(last + 1 - count..) {
            self.note(change, seq);
        }
        self.newest = last;
    }

    /// Notes an ingestion, whose changes share a sequence number.
    pub fn note_ingestion(&mut self, commit: &Commit, seq: SeqNo) {
        assert!(seq > self.newest, "{seq} after {}", self.newest);
        commit.iter().for_each(|change| self.note(change, seq));
        self.newest = seq;
    }

    fn note(&mut self, change: &Change, seq: SeqNo) {
        let (name, key) = match change {
            Change::Put(name, key, _)
            | Change::Append(name, key, _)
            | Change::Delete(name, key) => {
                self.keys.insert((name.clone(), key.clone()), seq);
                (name, key)
            }
            Change::DeleteRange(name, from, to) => {
                let range = (name.clone(), from.clone(), to.clone(), seq);
                self.ranges.push(range);
                (name, from)
            }
            Change::CreateFamily(_) | Change::DropFamily(_) => unreachable!("in no batch"),
        };
        self.all.push((name.clone(), key.clone(), seq));
    }

    /// Forgets the changes of a dropped family.
    pub fn forget(&mut self, name: &str) {
        self.keys.retain(|(family, _), _| family != name);
        self.ranges.retain(|(family, ..)| family != name);
        self.all.retain(|(family, ..)| family != name);
    }

    /// Returns the sequence number of a key's last change, or 0 without one in this opening.
    fn last_change(&self, name: &str, key: &Key) -> SeqNo {
        let place = (name.to_string(), key.clone());
        let of_key = self.keys.get(&place).copied();
        let ranges = (self.ranges.iter())
            .filter(|(family, from, to, _)| family == name && from <= key && key < to)
            .map(|(.., seq)| *seq);
        ranges.chain(of_key).max().unwrap_or(0)
    }
}

/// A precondition: no change of the key is newer than `since`.
pub(super) struct UnchangedKey {
    family: Family,
    name: String,
    key: Key,
    since: SeqNo,
}

/// The reference's decision on a batch with preconditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    Fails,
    /// A key is unchanged, and the store does not know it: it is absent, and a compaction may have
    /// dropped a tombstone of it; or it is in pages, which do not say when a key was changed.
    Either,
}

impl Runner {
    /// Returns true if the store shows the key.
    fn is_present(&self, name: &str, key: &Key) -> bool {
        let family = self.model.state().get(name);
        let entry = family.and_then(|f| f.table.get(key));
        entry.is_some_and(|e| e.shown(self.now()).is_some())
    }

    /// Returns true if the store knows when the key was changed last.
    fn is_known(&self, name: &str, key: &Key) -> bool {
        name != IN_PAGES && self.is_present(name, key)
    }

    /// Returns the preconditions of an operation, as of now. An unchanged key of which the store
    /// does not know when it was changed gets the newest sequence number. With an older one, the
    /// answer would depend on compactions.
    fn preconditions(&self, conditions: &[Condition]) -> Vec<UnchangedKey> {
        let now = self.db.as_ref().expect("open").snapshot().seq();
        let resolve = |condition: &Condition| {
            let (name, key, since) = match condition {
                Condition::Outdated(n) => {
                    let (name, key, seq) = self.changes.all.iter().nth_back(*n as usize)?;
                    (name.as_str(), key.clone(), seq - 1)
                }
                Condition::Unchanged { family, key, since } => {
                    let (name, key) = (FAMILIES[*family], key_bytes(*key));
                    let changed = self.changes.last_change(name, &key);
                    let since = match since {
                        Since::LastChange if changed > 0 => changed,
                        Since::Now | Since::LastChange => now,
                        Since::Snapshot(n) => {
                            let held = self.snapshots.get(*n as usize);
                            held.map_or(now, |(snapshot, _)| snapshot.seq())
                        }
                    };
                    let exact = changed > since || self.is_known(name, &key);
                    (name, key, if exact { since } else { now })
                }
            };
            Some(UnchangedKey {
                family: self.families.get(name)?.clone(),
                name: name.to_string(),
                key,
                since,
            })
        };
        conditions.iter().filter_map(resolve).collect()
    }

    /// Decides on a batch with preconditions that comes after all commits so far.
    fn verdict(&self, conditions: &[UnchangedKey]) -> Verdict {
        let is_changed = |c: &UnchangedKey| self.changes.last_change(&c.name, &c.key) > c.since;
        let is_exact =
            |c: &UnchangedKey| c.since >= self.changes.newest || self.is_known(&c.name, &c.key);
        match () {
            () if conditions.iter().any(is_changed) => Verdict::Fails,
            () if conditions.iter().all(is_exact) => Verdict::Holds,
            () => Verdict::Either,
        }
    }

    /// Writes a batch with preconditions, by a call that waits or by one that does not. An empty
    /// batch only checks.
    pub(super) fn write_if(
        &mut self,
        items: &[Item],
        conditions: &[Condition],
        sync: bool,
        waits: bool,
    ) {
        let conditions = self.preconditions(conditions);
        let (batch, commit) = self.fill(items);
        if commit.is_empty() && (conditions.is_empty() || !waits) {
            return;
        }
        let db = self.db.clone().expect("open");
        let preconditions: Vec<Precondition<'_>> = (conditions.iter())
            .map(|c| Precondition::unchanged(&c.family, &c.key, c.since))
            .collect();
        let options = WriteOptions::synced(sync);
        if waits {
            let may_exist = !commit.is_empty() && self.verdict(&conditions) != Verdict::Fails;
            let handed_in = self.model.len() + self.sent.len() + usize::from(may_exist);
            (self.progress.handed_in).fetch_max(handed_in as u64, SeqCst);
            let result = db.write_if(batch, &preconditions, &options);
            self.poll();
            self.book_sent(commit, sync, &conditions, result, "write_if");
            return;
        }
        let ticket = db.submit_if(batch, &preconditions, &options);
        drop(preconditions);
        // Jobs are stepped: a batch that was queued has no result yet, unless it was led at once.
        let refused_at_once = ticket.try_result().is_some_and(|r| r.is_err());
        self.sent.push_back(super::Sent {
            ticket,
            commit,
            sync,
            conditions,
            refused_at_once,
        });
        self.poll();
    }

    /// Books a batch with preconditions. The decision on it must be that of the reference.
    pub(super) fn book_conditional(
        &mut self,
        commit: Commit,
        sync: bool,
        conditions: &[UnchangedKey],
        result: Result<SeqNo>,
        what: &str,
    ) {
        let verdict = self.verdict(conditions);
        match result {
            Ok(_) if verdict == Verdict::Fails => {
                panic!("{what}: the write was accepted, and a key was changed")
            }
            Err(e) if e.kind() == ErrorKind::Conflict => {
                assert_ne!(verdict, Verdict::Holds, "{what} was refused: {e}");
                self.conditional.refused += 1;
                self.note_answer(&[b"refused"]);
            }
            Ok(_) if commit.is_empty() => {
                if sync {
                    self.all_durable();
                }
            }
            Ok(last) => {
                self.conditional.accepted += 1;
                self.note_answer(&[b"accepted"]);
                self.changes.note_batch(&commit, last);
                self.book(commit, sync, Ok(()), what);
            }
            // The batch must not exist, not even after an error.
            Err(e) if verdict == Verdict::Fails || commit.is_empty() => {
                self.allow(what, Err::<(), _>(e));
            }
            Err(e) => self.book(commit, sync, Err(e), what),
        }
    }
}
