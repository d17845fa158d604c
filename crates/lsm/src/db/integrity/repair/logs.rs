//! Logs of a damaged store: every batch that verifies goes into new level-0 tables.

use super::Repair;
use crate::db::flush::write_table;
use crate::db::integrity::manifest_salvage::log_header;
use crate::db::integrity::report::Loss;
use crate::db::integrity::walk::{LogScan, is_missing};
use crate::db::memtable_set::MemtableSet;
use crate::db::open::{bind_families, check_record};
use crate::db::store_files::StoreFile;
use crate::db::write_path::apply::{self, insert};
use crate::db::write_path::log_space::log_path;
use crate::version::catalog::LiveLog;
use crate::version::edit::MAX_FAMILY;
use basalt_fs::{ErrorKind, Result};
use basalt_kv::batch::Ops;
use basalt_kv::key::SEQ_LIMIT;
use basalt_records::StoredRecord;
use basalt_records::salvage::{self, BAD_PAYLOAD, NO_RECORD, Part};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a replay.
struct Replay {
    memtable_set: Arc<MemtableSet>,
    last_seq: u64,
    /// Indexes of losses whose last sequence number the next record will show.
    open: Vec<usize>,
    /// The name and end of the log before, if it ended where no manifest edit says. A gap in the
    /// sequence numbers is then a loss behind this offset.
    unrecorded_end: Option<(String, u64)>,
    /// True if an earlier log lost its unsynced end.
    cut: bool,
}

impl Repair<'_> {
    /// Replays every live log.
    pub(super) fn replay_logs(&mut self) -> Result<()> {
        let logs = self.live_logs()?;
        let mut replay = Replay {
            memtable_set: self.memtable_set()?,
            last_seq: 0,
            open: Vec::new(),
            unrecorded_end: None,
            cut: false,
        };
        for (number, log) in logs {
            self.replay_log(number, log, &mut replay)?;
        }
        let c = &mut self.learned.catalog;
        c.last_seq = c.last_seq.max(replay.last_seq);
        c.logs.clear();
        Ok(())
    }

    /// Returns the logs of the catalog, and those that a lost edit may have added.
    fn live_logs(&mut self) -> Result<BTreeMap<u64, LiveLog>> {
        let mut logs = self.learned.catalog.logs.clone();
        if self.learned.sure {
            return Ok(logs);
        }
        let flushed_below = self.newest_indexed_log()?;
        for name in self.names.clone() {
            let Some(StoreFile::Log(n)) = StoreFile::parse(&name) else {
                continue;
            };
            let flushed = self.learned.retired.contains(&n) || self.blobs.is_known_log(n);
            if flushed || logs.contains_key(&n) {
                continue;
            }
            if n < flushed_below {
                self.report.notes.push(format!(
                    "{name} is not replayed: the flush of log {flushed_below} had begun, so the entries of older logs are in tables"
                ));
                continue;
            }
            match log_header(self.env, self.dir, n)? {
                Some(h) if h.store_id == self.learned.catalog.store_id => {
                    self.report.notes.push(format!(
                        "{name} is replayed although no readable edit says that it is still needed; if its content had been moved into tables and compacted, keys deleted since may show again"
                    ));
                    logs.insert(n, LiveLog::open(h.file_id));
                }
                Some(_) => self.set_aside(&name, "it belongs to another store"),
                None => {
                    let len = self.env.fs().stat(&self.dir.join(&name))?.allocated;
                    self.lose(Loss {
                        older_may_reappear: true,
                        ..Loss::of_file(
                            &name,
                            0..len,
                            "its header is unreadable and no readable edit knows its id, so no record in it can be verified",
                        )
                    });
                    self.set_aside(&name, "its header is unreadable");
                }
            }
        }
        Ok(logs)
    }

    /// Returns the highest number of a log that has an index, 0 without one. Flushes go in order,
    /// and a flush begins an index only when the edits of all earlier flushes are durable: older
    /// logs are in tables. The flush of this log itself may not have been finished.
    fn newest_indexed_log(&self) -> Result<u64> {
        let mut newest = 0;
        for name in &self.names {
            if let Some(StoreFile::Log(n)) = StoreFile::parse(name)
                && n > newest
                && let Some(h) = log_header(self.env, self.dir, n)?
                && h.store_id == self.learned.catalog.store_id
                && self.indexed.contains_key(&h.file_id)
            {
                newest = n;
            }
        }
        Ok(newest)
    }

    fn memtable_set(&self) -> Result<Arc<MemtableSet>> {
        let families = bind_families(&self.learned.catalog, self.options)?;
        Ok(MemtableSet::new(
            self.env,
            0,
            families
                .values()
                .map(|f| (f.id, f.options.comparator.clone())),
        ))
    }

    fn replay_log(&mut self, number: u64, log: LiveLog, replay: &mut Replay) -> Result<()> {
        let path = log_path(self.dir, number);
        let name = format!("{number:06}.log");
        let file = match self.env.fs().open(&path) {
            Ok(f) => f,
            Err(e) if e.is_not_found() => {
                self.lose_log(
                    replay,
                    &name,
                    0..log.end.unwrap_or(0),
                    None,
                    &is_missing("log"),
                );
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let header = log_header(self.env, self.dir, number)?;
        let sound_header = header.as_ref().is_some_and(|h| {
            h.file_id == log.file_id && h.store_id == self.learned.catalog.store_id
        });
        // A log was synced before its index was begun.
        let indexed = self.indexed.get(&log.file_id).copied();
        let scan = LogScan::new(&*file, &path, &log, indexed.unwrap_or(0))?;
        let first_loss = self.report.losses.len();
        let unit = header
            .as_ref()
            .map_or(self.env.fs().info().write_unit as u64, |h| {
                u64::from(h.write_unit)
            });
        if replay.cut && sound_header && scan.synced <= unit {
            // An earlier log lost its unsynced end, as in a power cut, and nothing in this one was
            // synced: recovery cuts both.
            self.replaced.push(name);
            return Ok(());
        }
        // The position behind the last record. The first record follows the header.
        let mut at = unit;
        let mut damaged = !sound_header;
        for part in scan.parts(unit) {
            let (f, why) = match part {
                Part::Hole(bytes) => {
                    damaged = true;
                    self.lose_log(replay, &name, bytes, None, NO_RECORD);
                    continue;
                }
                Part::Broken(f) => (f, Err(BAD_PAYLOAD.to_string())),
                Part::Whole(f) => {
                    let record = salvage::read(&*file, &path, f)?;
                    (f, self.apply(&record, replay)?)
                }
            };
            at = f.end;
            self.close_losses(replay, f.first_seq);
            let last = f.first_seq.saturating_add(u64::from(f.count)).max(1) - 1;
            if let Err(why) = why {
                damaged = true;
                let seqs = Some((f.first_seq, Some(last)));
                self.lose_log(replay, &name, f.offset..f.end, seqs, &why);
            }
            if f.first_seq > replay.last_seq && last < SEQ_LIMIT {
                replay.last_seq = last;
            }
        }
        self.write_out(replay)?;
        if indexed.is_some() {
            self.one_loss_of_flushed_log(replay, &name, first_loss);
        }
        if damaged {
            let why = if sound_header {
                "records in it are damaged"
            } else {
                "its header is damaged"
            };
            self.set_aside(&name, why);
        } else {
            self.replaced.push(name.clone());
        }
        let whole = log.left.is_some_and(|left| at >= left);
        if log.left.is_some() && log.end.is_none() && !whole && !damaged {
            replay.cut = true;
        }
        if at > unit && log.end.is_none() && !whole {
            replay.unrecorded_end.get_or_insert((name, at));
        }
        Ok(())
    }

    fn lose_log(
        &mut self,
        replay: &mut Replay,
        name: &str,
        bytes: std::ops::Range<u64>,
        seqs: Option<(u64, Option<u64>)>,
        why: &str,
    ) {
        if seqs.is_none() {
            replay.open.push(self.report.losses.len());
        }
        self.lose(Loss {
            seqs: seqs.or(Some((replay.last_seq + 1, None))),
            older_may_reappear: true,
            ..Loss::of_file(name, bytes, why)
        });
    }

    /// Joins the losses of log `name`, from index `first` on, to one. A finished flush gave back
    /// the space of most of the log's records, in as many places as the log has blocks.
    fn one_loss_of_flushed_log(&mut self, replay: &mut Replay, name: &str, first: usize) {
        let (own, others): (Vec<_>, Vec<_>) =
            (self.report.losses.drain(first..)).partition(|l| l.file == name);
        // The others are losses of an earlier log, which the first record of this log showed.
        self.report.losses.extend(others);
        let mut all = own.into_iter();
        let Some(mut loss) = all.next() else {
            return;
        };
        let mut parts = 1;
        for next in all {
            parts += 1;
            loss.bytes.end = next.bytes.end;
            loss.older_may_reappear |= next.older_may_reappear;
            loss.entries = loss.entries.zip(next.entries).map(|(a, b)| a + b);
            loss.seqs = match (loss.seqs, next.seqs) {
                (Some((from, _)), Some((_, to))) => Some((from, to)),
                (one, other) => one.or(other),
            };
        }
        if parts > 1 {
            loss.reason = format!("no record verifies in {parts} ranges of these bytes");
        }
        loss.reason.push_str(
            "; the log has an index: if its flush was finished, all of this is in tables, and nothing is lost",
        );
        let open = replay.open.len();
        replay.open.retain(|i| *i < first);
        if replay.open.len() < open {
            replay.open.push(self.report.losses.len());
        }
        self.report.losses.push(loss);
    }

    /// Ends the open losses before a record with this first sequence number.
    fn close_losses(&mut self, replay: &mut Replay, first: u64) {
        let missing = first > replay.last_seq + 1;
        let unrecorded_end = replay.unrecorded_end.take();
        if missing
            && replay.open.is_empty()
            && let Some((name, at)) = unrecorded_end
        {
            replay.open.push(self.report.losses.len());
            self.lose(Loss {
                seqs: Some((replay.last_seq + 1, None)),
                older_may_reappear: true,
                ..Loss::of_file(
                    &name,
                    at..at,
                    "the manifest does not record its end, and a later log continues with higher sequence numbers",
                )
            });
        }
        for i in replay.open.drain(..) {
            let loss = &mut self.report.losses[i];
            if missing {
                loss.seqs = Some((replay.last_seq + 1, Some(first - 1)));
                loss.reason
                    .push_str("; the batches behind the hole are kept");
            } else {
                // The numbers go on without a gap: bytes are damaged, and no operation was in them.
                loss.seqs = None;
                loss.entries = Some(0);
                loss.older_may_reappear = false;
            }
        }
    }

    /// Checks a record and puts it into the memtables. The inner error says why it cannot be
    /// replayed.
    fn apply(
        &mut self,
        record: &StoredRecord,
        replay: &mut Replay,
    ) -> Result<std::result::Result<(), String>> {
        // Without a whole manifest, repair keeps all tables, including those of ingestions.
        let known = (self.learned.sure).then_some(self.learned.catalog.last_seq);
        let checked = check_record(record, replay.last_seq, MAX_FAMILY, known)
            .and_then(|()| apply::check(&record.payload));
        match checked {
            Err(e) if e.kind() == ErrorKind::Corruption => return Ok(Err(e.to_string())),
            checked => checked?,
        }
        for op in Ops::new(&record.payload) {
            let id = op?.family;
            self.other_families |= id != 0;
            let learned = &self.learned;
            let known = learned.catalog.families.contains_key(&id)
                || learned.dropped_families.contains(&id)
                || (learned.sure && id < learned.catalog.next_family);
            if !known {
                let name = self.learned.family(id, self.options).name.clone();
                let cmp = self.options.family(&name).comparator.clone();
                replay.memtable_set = replay.memtable_set.with_family(id, cmp);
            }
        }
        let last = record.first_seq + u64::from(record.count.max(1)) - 1;
        // The trees of these families already have the batch.
        let have_it = self.trees.iter().filter(|(_, tree)| last <= tree.flushed);
        let have_it: Vec<u32> = have_it.map(|(id, _)| *id).collect();
        match have_it.is_empty() {
            true => insert(&replay.memtable_set, &record.payload, record.first_seq)?,
            false => {
                let mut others = replay.memtable_set.clone();
                for id in have_it {
                    others = others.without_family(id);
                }
                insert(&others, &record.payload, record.first_seq)?;
            }
        }
        replay.memtable_set.note_seq(last);
        replay.memtable_set.book_memory();
        Ok(Ok(()))
    }

    /// Writes the memtables of one log to tables, as a flush of the log does. A log holds the
    /// batches of one memtable set. So operands are merged to the same entries, under the same
    /// sequence numbers, as in a table that an earlier flush may have left.
    fn write_out(&mut self, replay: &mut Replay) -> Result<()> {
        let families = bind_families(&self.learned.catalog, self.options)?;
        let full = std::mem::replace(&mut replay.memtable_set, self.memtable_set()?);
        for (id, mem) in full.mems.iter().filter(|(_, m)| !m.is_empty()) {
            if self.trees.contains_key(id) {
                let seq = full.last_seq();
                self.write_memtable_to_pages(&families[id], mem, seq)?;
                let f = self.learned.catalog.families.get_mut(id);
                f.expect("it has a tree").pages = Some(seq);
                continue;
            }
            let number = self.new_number();
            // A later merge separates large values again.
            let table = write_table(
                &self.tables,
                number,
                &families[id],
                mem,
                &[],
                (false, None),
                None,
            )?;
            self.replayed.insert(number);
            self.new_table(table);
        }
        Ok(())
    }
}
