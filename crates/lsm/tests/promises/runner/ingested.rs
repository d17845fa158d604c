//! Writes past the log: tables that are prepared while other operations run, and added in one step.

use super::Runner;
use crate::history::{Item, What};
use crate::model::{Change, Commit, Key};
use basalt_lsm::db::Prepared;
use basalt_lsm::{Db, Result};
use std::collections::{BTreeMap, BTreeSet};

impl Runner {
    /// Prepares tables of the items, as far as tables can have them, lets the batches in that were
    /// submitted before, and adds the tables.
    pub(super) fn ingest(&mut self, items: &[Item]) {
        let mut seen = BTreeSet::new();
        let mut kept: Vec<Item> = Vec::new();
        for item in items {
            let what = match item.what {
                What::Append(len) => What::Put(len),
                What::DeleteRange(_) => What::Delete,
                ref other => other.clone(),
            };
            if seen.insert((item.family, item.key)) {
                kept.push(Item {
                    what,
                    ..item.clone()
                });
            }
        }
        let (_, commit) = self.fill(&kept);
        let db = self.db.clone().expect("open");
        let prepared = self.prepare(&db, &commit);
        let Some(sets) = self.allow("prepare", prepared) else {
            return;
        };
        self.wait_for_tickets();
        if commit.is_empty() {
            return;
        }
        let handed_in = self.model.len() + 1;
        (self.progress.handed_in).fetch_max(handed_in as u64, super::SeqCst);
        let added = db.ingest(&sets);
        if let Ok(seq) = &added {
            self.ingested += 1;
            self.changes.note_ingestion(&commit, *seq);
        }
        self.book(commit, true, added.map(|_| ()), "ingest");
    }

    fn prepare(&self, db: &Db, commit: &Commit) -> Result<Vec<Prepared>> {
        let mut families: BTreeMap<&str, BTreeMap<&Key, &Change>> = BTreeMap::new();
        for change in commit {
            let (Change::Put(family, key, _) | Change::Delete(family, key)) = change else {
                unreachable!("nothing else is prepared");
            };
            families.entry(family).or_default().insert(key, change);
        }
        let mut sets = Vec::new();
        for (name, changes) in families {
            // The changes are sometimes added in two parts.
            let cut = self.nonce as usize % (2 * changes.len());
            let mut writer = db.prepare(&self.families[name])?;
            for (n, (key, change)) in changes.into_iter().enumerate() {
                if n == cut {
                    sets.push(writer.finish()?);
                    writer = db.prepare(&self.families[name])?;
                }
                match change {
                    Change::Put(_, _, entry) => match entry.expire {
                        None => writer.add(key, &entry.value)?,
                        Some(at) => writer.add_ttl(key, &entry.value, at)?,
                    },
                    _ => writer.delete(key)?,
                }
            }
            sets.push(writer.finish()?);
        }
        sets.reverse();
        Ok(sets)
    }
}
