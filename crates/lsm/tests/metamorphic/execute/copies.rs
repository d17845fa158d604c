//! Checkpoints, stores that are only read, and manual compactions: operations that show a store
//! elsewhere, or move it without changing it.

use super::{DIR, Execution, brief, lives, outcome, shown};
use crate::operations::{FAMILIES, ReadTarget, key_bytes};
use crate::operators::affine;
use basalt_lsm::db::{CompactControl, CompactOptions, CompactProgress};
use basalt_lsm::{Db, ReadOptions, WriteOptions};
use std::sync::{Arc, Mutex};

/// Distinct keys that are read.
const KEYS: u64 = 74;

/// Returns the name of a checkpoint's directory.
pub(super) fn name(n: u64) -> String {
    format!("copy{n}")
}

impl Execution<'_> {
    /// Returns everything that a store shows now, one entry a line.
    pub(super) fn content(&self, db: &Db) -> Vec<String> {
        let read = ReadOptions::default().fill_cache(self.settings.fill_cache);
        let mut lines = Vec::new();
        for name in db.families() {
            let family = db.family(&name).expect("it has just been named");
            let mut iter = db.iter(&family, &read).expect("it is there");
            let mut moved = iter.seek_to_first();
            loop {
                match moved.and_then(|()| Self::row(&mut iter, false)) {
                    Ok(Some(row)) => lines.push(format!("{name}: {row}")),
                    Ok(None) => {
                        lines.push(format!("{name}: the end"));
                        break;
                    }
                    // Keys behind one that the operator refuses are read each by itself.
                    Err(e) => {
                        lines.push(format!("{name}: {:?}", e.kind()));
                        for key in (0..KEYS).map(key_bytes) {
                            let text = match db.get(&family, &key, &read) {
                                Err(e) => format!("{:?}", e.kind()),
                                Ok(Some(v)) if lives(&v) => brief(&v),
                                Ok(_) => continue,
                            };
                            lines.push(format!("{name}: {} = {text}", shown(&key)));
                        }
                        break;
                    }
                }
                moved = iter.next();
            }
        }
        lines
    }

    /// Checks that a checkpoint shows the store's contents.
    pub(super) fn checkpoint(&mut self) {
        let target = name(self.copies);
        let made = self.db().checkpoint(&target, &self.settings.checkpoint);
        // Before the comparison, which would name no more than the kind of the error.
        let report = made.expect("nothing is in its way");
        self.say("checkpoint: ok".to_string());
        self.copies += 1;
        self.did("checkpoints", 1);
        self.did("checkpoints_with_logs", u64::from(report.log_bytes > 0));
        self.did("checkpoints_with_tables", u64::from(report.tables > 0));
        let here = self.content(self.db());
        let options = self.settings.options_of_known(self.lives + 1);
        let copy = Db::open_read_only(&self.env, &target, options).expect("it is whole");
        let there = self.content(&copy);
        copy.close().expect("nothing to do");
        assert_eq!(there, here, "{target} is not what it was made of");
        for line in there {
            self.say(line);
        }
    }

    /// Checks that an earlier checkpoint shows the store as it was then, and can be written to.
    pub(super) fn open_copy(&mut self, copy: u64, write: bool) {
        if self.copies == 0 {
            return;
        }
        let (target, options) = (name(copy % self.copies), self.options());
        let copy = match write {
            true => Db::open(&self.env, &target, options),
            false => Db::open_read_only(&self.env, &target, options),
        };
        let copy = copy.expect("it is whole");
        for line in self.content(&copy) {
            self.say(line);
        }
        let f = copy.default_family();
        self.nonce += 1;
        let operand = affine(3, self.nonce, 0);
        let wrote = copy.merge(&f, &key_bytes(5), &operand, &WriteOptions::default());
        self.say(format!("into the copy: {}", outcome(&wrote)));
        self.did(
            match write {
                true => "copies_written_to",
                false => "copies_read_later",
            },
            1,
        );
        copy.close().expect("closing the copy");
    }

    /// Opens the closed store twice for reading; no thread writes meanwhile.
    pub(super) fn read_only(&mut self, way: u64, fresh: bool) {
        self.end(way);
        self.live_on(fresh);
        let open = |life| {
            let options = self.settings.options_of_known(life);
            Db::open_read_only(&self.env, DIR, options).expect("it is there")
        };
        let (one, other) = (open(self.lives), open(self.lives + 1));
        let (content, same) = (self.content(&one), self.content(&other));
        assert_eq!(content, same, "two that read the same store");
        for line in content {
            self.say(line);
        }
        let f = one.default_family();
        let refused = [
            outcome(&one.put(&f, b"k", b"v", &WriteOptions::default())),
            outcome(&one.flush()),
            outcome(&one.compact_range(&f, None, None)),
            outcome(&one.checkpoint("nowhere", &self.settings.checkpoint)),
            outcome(&Db::open(&self.env, DIR, self.options())),
        ];
        self.say(format!("reading: {refused:?}"));
        one.close().expect("nothing to do");
        drop(other);
        self.did("read_only_openings", 1);
        self.open();
    }

    /// Checks that a manual compaction changes nothing that readers see, whole or in a range,
    /// cancelled or not.
    pub(super) fn compact(&mut self, look: &ReadTarget, cancelled: bool) {
        let Some(family) = self.families.get(FAMILIES[look.family]).cloned() else {
            return;
        };
        let before = self.content(self.db());
        let control = CompactControl::default();
        if cancelled {
            control.cancel();
        }
        let seen: Arc<Mutex<CompactProgress>> = Arc::default();
        let options = CompactOptions::default()
            .from(look.from.map(key_bytes))
            .to(look.to.map(key_bytes))
            .bottommost(self.settings.bottommost)
            .exclusive(self.settings.exclusive)
            .relocate_values(self.settings.relocate_values)
            .control(control.clone())
            .progress(Some(Arc::new(move |p: CompactProgress| {
                let mut last = seen.lock().expect("no callback panics");
                assert!(p.done_bytes <= p.total_bytes, "{p:?}");
                assert!(p.done_bytes >= last.done_bytes, "{last:?} {p:?}");
                assert!(p.level >= last.level, "{last:?} {p:?}");
                *last = p;
            })));
        let done = self.db().compact(&family, &options);
        self.say(format!("compact: {}", outcome(&done)));
        assert_eq!(self.content(self.db()), before, "a compaction is seen");
        let what = match (look.from, look.to) {
            _ if cancelled => "compactions_cancelled",
            _ if control.progress().done_bytes == 0 => return,
            (None, None) => "compactions_of_everything",
            _ => "compactions_of_a_range",
        };
        self.did(what, 1);
    }
}
