//! The replay of the owner's log into a passive store that is being opened (PASV 5.4, 5.5).
//!
//! The store numbers items as they were numbered before. Numbers are consecutive, and the flag of
//! the family that is persisted least says where to begin. A family drops the items that it has:
//! those up to its own flag. So operands are never applied twice. Each flag also says which numbers
//! its transaction had, so the replay notices a log that is not the one it was.

use crate::db::ingest::{Prepared, TableWriter};
use crate::db::log_position::Logged;
use crate::db::open;
use crate::db::persistence::{PersistencePoints, pinned_limit};
use crate::db::store::Db;
use crate::options::{FamilyOptions, Options};
use crate::version::{FlushFlag, Tsn};
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Reach, Result};
use basalt_kv::batch::WriteBatch;
use basalt_kv::family::{Family, FamilyConfig};
use basalt_kv::limits::MAX_FAMILY;
use std::path::Path;
use std::time::Duration;

/// A replay that took at least this long says how fast the owner replays its log.
const LONG_REPLAY: Duration = Duration::from_millis(100);

/// A passive store that is being opened. Nothing in it can be read before [`Replay::finish`], when
/// all families are as of the same transaction.
///
/// A replay that is dropped keeps what it has applied, and the next opening goes on from there.
pub struct Replay {
    db: Db,
    /// True once a transaction was replayed.
    begun: bool,
    /// Time of the environment's clock at the first transaction that was replayed.
    since: Duration,
    points: PersistencePoints,
}

/// The part of a transaction that a replay has applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Items that went into memtables.
    pub applied: u64,
    /// Items that their families had already.
    pub dropped: u64,
}

impl Db {
    /// Opens the passive store in directory `path` of the environment's filesystem, with
    /// `log: LogMode::Passive` in the options. The owner then replays its log and calls
    /// [`Replay::finish`], also if nothing is to be replayed. A new store begins before transaction
    /// 1. A store with a log becomes passive, with all its data.
    ///
    /// Errors: those of [`Db::open`], and `InvalidArgument` without `LogMode::Passive`.
    pub fn open_passive(env: &Env, path: impl AsRef<Path>, options: Options) -> Result<Replay> {
        let path = path.as_ref();
        let context = |e: Error| e.context(format!("opening the store in {}", path.display()));
        if options.log.passive().is_none() {
            return Err(context(Error::invalid(
                "a passive store needs `log: LogMode::Passive` in its options",
            )));
        }
        let engine = open::open(env, path, options).map_err(context)?;
        engine.trim_leftover_logs();
        engine.background.schedule();
        let points = engine.persistence_points()?;
        Ok(Replay {
            db: Db::of(engine),
            begun: false,
            since: Duration::ZERO,
            points,
        })
    }
}

impl Replay {
    /// Returns up to where families were persisted when the store was opened. The replay begins at
    /// [`PersistencePoints::replay_from`]. A family needs only what is behind its own point.
    pub fn points(&self) -> &PersistencePoints {
        &self.points
    }

    /// Returns the transaction that comes next.
    pub fn next_tsn(&self) -> Tsn {
        self.last() + 1
    }

    fn last(&self) -> Tsn {
        let writer = self.db.engine().writes.lock();
        writer.passive.as_ref().map_or(0, |p| p.last().tsn)
    }

    /// Returns the handle of the family `default`.
    pub fn default_family(&self) -> Family {
        self.db.default_family()
    }

    /// Returns the handle of the family with this name, if the store has it.
    pub fn family(&self, name: &str) -> Option<Family> {
        self.db.family(name)
    }

    /// Returns the names of all families, in the order of their creation.
    pub fn families(&self) -> Vec<String> {
        self.db.families()
    }

    /// Returns the handle of a family that does not exist. The items of a transaction that were for
    /// a family that the log drops later are put there: they take their sequence numbers, and
    /// nothing else.
    pub fn dropped_family(&self) -> Family {
        let store = self.db.engine().ctx.jobs.number();
        Family::new(FamilyConfig {
            store,
            ..FamilyConfig::detached(MAX_FAMILY)
        })
    }

    /// Creates a family, as [`Db::create_family`] does.
    pub fn create_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        self.db.create_family(name, options)
    }

    /// Drops a family, as [`Db::drop_family`] does.
    pub fn drop_family(&self, family: &Family) -> Result<()> {
        self.db.drop_family(family)
    }

    /// Replays a transaction: each item goes to its family, unless the family has it. Transactions
    /// come in the order of the log, without gaps. Those up to the global persistence point are
    /// skipped, if the replay begins with them. The batch has the items that the transaction had
    /// when it was first applied, in the same order.
    ///
    /// Errors:
    ///
    /// - `InvalidArgument` for a transaction that is not the next one; the message says which is.
    /// - `Corruption` if the transaction has another number of items than it had when a family
    ///   persisted it: this is another log, or it is not translated as it was. The store is not
    ///   changed.
    /// - Those of [`Db::write`].
    pub fn replay(&mut self, at: impl Into<Logged>, batch: WriteBatch) -> Result<Replayed> {
        let at = at.into();
        let engine = self.db.engine().clone();
        let items = batch.len() as u64;
        if !self.begun && at.tsn <= self.points.global && at.tsn > 0 {
            return Ok(Replayed {
                applied: 0,
                dropped: items,
            });
        }
        let mut writer = engine.writes.lock();
        engine.ctx.check_open()?;
        let position = writer.passive.as_mut().expect("the store is passive");
        position.check_next(at.tsn)?;
        let now = FlushFlag::of(at.tsn, position.next_seq(), items);
        let reached: Vec<u32> = (position.ahead().iter())
            .filter(|(_, flag)| flag.tsn == at.tsn)
            .map(|(id, _)| *id)
            .collect();
        for id in &reached {
            let before = position.ahead()[id];
            if before != now {
                return Err(another_log(&before, &now));
            }
        }
        self.begin();
        let dropped = engine.apply_at(&mut writer, at, batch)?;
        let position = writer.passive.as_mut().expect("the store is passive");
        for id in reached {
            if let Some(point) = position.catch_up(id) {
                engine.note_caught_up(id, point.log_end);
            }
        }
        Ok(Replayed {
            applied: items - dropped,
            dropped,
        })
    }

    /// Replays a transaction that added prepared tables to families. `prepare` is called if the
    /// families do not have them, and prepares the tables by [`Replay::prepare`].
    ///
    /// Errors: those of [`Replay::replay`] and [`Db::ingest`], and of `prepare`.
    pub fn ingest(
        &mut self,
        at: impl Into<Logged>,
        families: &[&Family],
        prepare: impl FnOnce(&Replay) -> Result<Vec<Prepared>>,
    ) -> Result<Replayed> {
        let at = at.into();
        let engine = self.db.engine().clone();
        let is_new = |family: &&Family| {
            let catalog = engine.tree.catalog();
            let flag = catalog
                .families
                .get(&family.id())
                .and_then(|f| f.flush_flag);
            flag.is_some_and(|flag| flag.tsn < at.tsn)
        };
        // One edit adds the tables of all families.
        let Some(family) = families.iter().find(|family| is_new(family)) else {
            let mut counted = WriteBatch::new();
            counted.delete(&self.dropped_family(), b"")?;
            let mut replayed = self.replay(at, counted)?;
            (replayed.applied, replayed.dropped) = (0, 1);
            return Ok(replayed);
        };
        let position = engine.writes.lock().passive.as_ref().map(|p| p.last());
        let next = position.expect("the store is passive").tsn + 1;
        if at.tsn != next {
            return Err(Error::invalid(format!(
                "transaction {} adds tables to family {:?}, and the next transaction is {next}",
                at.tsn,
                family.name()
            )));
        }
        let prepared = prepare(self)?;
        self.begin();
        self.db.ingest_at(at, &prepared)?;
        Ok(Replayed {
            applied: 1,
            dropped: 0,
        })
    }

    /// Begins to write tables for [`Replay::ingest`], as [`Db::prepare`] does.
    pub fn prepare(&self, family: &Family) -> Result<TableWriter> {
        self.db.prepare(family)
    }

    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.since = self.db.engine().ctx.env.clock().now();
        }
    }

    /// Declares the replay complete: `last` is the last transaction of the owner's log, 0 if the
    /// log has none. Returns the store, with all families as of this transaction.
    ///
    /// Errors: `InvalidArgument` if `last` was not replayed. `Corruption` if a family has a
    /// transaction beyond the end of the log: the log has lost transactions that the store has, so
    /// the store cannot be completed. The store is then closed.
    pub fn finish(self, last: Tsn) -> Result<Db> {
        let engine = self.db.engine().clone();
        let mut writer = engine.writes.lock();
        engine.ctx.check_open()?;
        let position = writer.passive.as_mut().expect("the store is passive");
        let applied = position.last().tsn;
        let ahead = position.ahead().iter().max_by_key(|(_, flag)| flag.tsn);
        let ahead = ahead.map(|(id, flag)| (*id, flag.tsn));
        let persisted = ahead
            .filter(|(_, tsn)| *tsn > last)
            .or((applied > last).then_some((0, applied)));
        if let Some((id, tsn)) = persisted {
            let families = &engine.tree.view().families;
            let name = families.get(&id).map_or("default", |f| &f.name);
            return Err(Error::new(
                ErrorKind::Corruption,
                format!("family {name:?} is persisted up to transaction {tsn}, and the owner's log ends with transaction {last}: the log has lost transactions; give the store `PassiveOptions::owner_log`, or make each transaction durable before it is applied"),
            )
            .with_reach(Reach::Store));
        }
        if applied < last {
            return Err(Error::invalid(format!(
                "the log ends with transaction {last}, and the replay with {applied}: replay transaction {} next",
                applied + 1
            )));
        }
        let (seq, log_bytes) = (position.last().last_seq, position.log_end());
        engine.tree.publish(seq);
        let took = engine.ctx.env.clock().now().saturating_sub(self.since);
        if self.begun
            && took >= LONG_REPLAY
            && let Some(passive) = engine.ctx.options.log.passive()
            && let Some(persistence) = &engine.persistence
        {
            let rate = (log_bytes as f64 / took.as_secs_f64()) as u64;
            persistence.set_bound(pinned_limit(passive, &engine.ctx.options, rate.max(1)));
        }
        drop(writer);
        Ok(self.db)
    }
}

fn another_log(before: &FlushFlag, now: &FlushFlag) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!(
            "transaction {} had {} items from sequence number {} on when it was persisted, and now has {} from {} on: this is another log, or the transactions are not translated into the same batches",
            now.tsn,
            before.items(),
            before.first_seq,
            now.items(),
            now.first_seq
        ),
    )
    .with_reach(Reach::Store)
}
