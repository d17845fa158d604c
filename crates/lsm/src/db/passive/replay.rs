//! The replay of the owner's log into a passive store that is being opened (PASV 5.4, 5.5).
//!
//! The store numbers items as they were numbered before. Numbers are consecutive, and the flag of
//! the family that is persisted least says where to begin. A family drops the items that it has:
//! those up to its own flag. So operands are never applied twice. Each flag also says which numbers
//! its transaction had, so the replay notices a log that is not the one it was.

use super::apply_at::LoggedTransaction;
use crate::db::Iter;
use crate::db::ingest::{Prepared, TableWriter};
use crate::db::log_position::{Logged, PassivePosition};
use crate::db::open;
use crate::db::persistence::{PersistencePoints, pinned_limit};
use crate::db::store::Db;
use crate::options::{FamilyOptions, Options, ReadOptions};
use crate::version::{EngineKind, FlushFlag, Tsn};
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, Reach, Result};
use basalt_kv::batch::{Ops, WriteBatch};
use basalt_kv::family::{Family, FamilyConfig};
use basalt_kv::limits::MAX_FAMILY;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Most transactions that a replay collects before it applies them.
const MAX_PENDING_TRANSACTIONS: usize = 4096;
/// Most bytes of their batches.
const MAX_PENDING_BYTES: usize = 1 << 20;

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
    /// The flag of each family when the store was opened.
    flags: BTreeMap<u32, FlushFlag>,
    /// The same flags, by transaction.
    by_tsn: BTreeMap<Tsn, FlushFlag>,
    /// The last transaction that was taken.
    last: FlushFlag,
    /// Transactions that are taken and not applied yet.
    pending: Vec<LoggedTransaction>,
    pending_bytes: usize,
}

/// How many items of a transaction a replay took, and how many it left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Items that families lack. The replay inserts them into memtables with this transaction or
    /// with later ones. An ingestion counts as one.
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
        let flags = engine.tree.catalog().flags();
        let least = flags.values().min_by_key(|flag| flag.tsn);
        Ok(Replay {
            last: *least.expect("every store has a family"),
            db: Db::of(engine),
            begun: false,
            since: Duration::ZERO,
            points,
            by_tsn: flags.values().map(|flag| (flag.tsn, *flag)).collect(),
            flags,
            pending: Vec::new(),
            pending_bytes: 0,
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
        self.last.tsn + 1
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

    /// Returns a cursor over what is persisted of a family: its entries as of its own point. Other
    /// families may be as of other transactions. An owner that keeps its catalog in a family reads
    /// the catalog so before it replays its log.
    ///
    /// Errors: `InvalidArgument` after the first transaction was replayed, and for a family that
    /// was not there when the store was opened; else those of [`Db::iter`].
    pub fn iter_persisted(&self, family: &Family) -> Result<Iter> {
        let flag = self.flags.get(&family.id()).filter(|_| !self.begun);
        let flag = flag.ok_or_else(|| {
            Error::invalid(format!(
                "what is persisted of family {:?} is read before the replay begins",
                family.name()
            ))
        })?;
        let snapshot = self.db.engine().snapshot_at(flag.last_seq);
        self.db
            .iter(family, &ReadOptions::default().snapshot(Some(snapshot)))
    }

    /// Records that the store has another engine, as [`Db::add_engine`] does.
    pub fn add_engine(&self, kind: EngineKind) -> Result<()> {
        self.db.add_engine(kind)
    }

    /// Returns the other engines of the store, as [`Db::engines`] does.
    pub fn engines(&self) -> Vec<EngineKind> {
        self.db.engines()
    }

    /// Creates a family, as [`Db::create_family`] does.
    pub fn create_family(&mut self, name: &str, options: FamilyOptions) -> Result<Family> {
        self.apply_pending()?;
        self.db.create_family(name, options)
    }

    /// Drops a family, as [`Db::drop_family`] does.
    pub fn drop_family(&mut self, family: &Family) -> Result<()> {
        self.apply_pending()?;
        self.flags.remove(&family.id());
        self.db.drop_family(family)
    }

    /// Replays a transaction: each item goes to its family, unless the family has it. Transactions
    /// come in the order of the log, without gaps. Those up to the global persistence point are
    /// skipped, if the replay begins with them. The batch has the items that the transaction had
    /// when it was first applied, in the same order.
    ///
    /// Transactions are collected, and families are filled with many of them at once, in parallel
    /// if there are threads.
    ///
    /// Errors:
    ///
    /// - `InvalidArgument` for a transaction that is not the next one; the message says which is.
    /// - `Corruption` if the transaction has another number of items than it had when a family
    ///   persisted it: this is another log, or it is not translated as it was. The store is then
    ///   closed, without what is in memory.
    /// - Those of [`Db::write`], of this transaction or of those before it. This transaction is
    ///   then not taken.
    pub fn replay(&mut self, at: impl Into<Logged>, batch: WriteBatch) -> Result<Replayed> {
        let mut transaction = LoggedTransaction::new(at.into(), batch);
        let (tsn, items) = (transaction.at.tsn, transaction.items);
        if !self.begun && tsn <= self.points.global && tsn > 0 {
            return Ok(Replayed {
                applied: 0,
                dropped: items,
            });
        }
        PassivePosition::check_follows(tsn, self.last.tsn)?;
        let store = self.db.engine().ctx.jobs.number();
        if transaction.batch.families().iter().any(|f| f.0 != store) {
            return Err(Error::invalid(
                "the batch has operations on a family of another store",
            ));
        }
        let now = FlushFlag::of(tsn, self.last.last_seq + 1, items);
        if let Some(before) = self.by_tsn.get(&tsn)
            && *before != now
        {
            // What was replayed of that log must not be persisted.
            self.db.clone().abandon();
            return Err(another_log(before, &now));
        }
        if self.is_full() {
            self.apply_pending()?;
        }
        self.begin();
        let has = |id: u32| self.flags.get(&id).is_some_and(|flag| flag.tsn >= tsn);
        let ids = transaction.batch.families();
        let dropped = match ids.iter().filter(|(_, id)| has(*id)).count() {
            0 => 0,
            n if n == ids.len() => items,
            _ => {
                let ops = Ops::new(transaction.batch.payload());
                ops.filter(|op| op.as_ref().is_ok_and(|op| has(op.family)))
                    .count() as u64
            }
        };
        if dropped == items {
            let bytes = transaction.log_bytes();
            transaction.at = transaction.at.bytes(bytes);
            transaction.batch = WriteBatch::new();
        }
        self.pending_bytes += transaction.batch.bytes();
        self.pending.push(transaction);
        self.last = now;
        Ok(Replayed {
            applied: items - dropped,
            dropped,
        })
    }

    /// Returns true if the collected transactions are to be applied.
    fn is_full(&self) -> bool {
        let buffer = self.db.engine().ctx.options.write_buffer_bytes as usize;
        self.pending_bytes >= MAX_PENDING_BYTES.min(buffer / 8)
            || self.pending.len() >= MAX_PENDING_TRANSACTIONS
    }

    /// Applies the collected transactions. After an error they stay collected.
    fn apply_pending(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let engine = self.db.engine().clone();
        let mut writer = engine.writes.lock();
        engine.apply_group(&mut writer, &mut self.pending)?;
        self.pending_bytes = 0;
        Ok(())
    }

    /// Replays a transaction that added prepared tables to families. `prepare` is called if
    /// at least one of the families lacks its tables, and prepares the tables by
    /// [`Replay::prepare`].
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
        let next = self.next_tsn();
        if at.tsn != next {
            return Err(Error::invalid(format!(
                "transaction {} adds tables to family {:?}, and the next transaction is {next}",
                at.tsn,
                family.name()
            )));
        }
        self.apply_pending()?;
        let prepared = prepare(self)?;
        self.begin();
        self.db.ingest_at(at, &prepared)?;
        self.last = FlushFlag::of(at.tsn, self.last.last_seq + 1, 1);
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
    /// Errors: `InvalidArgument` if `last` was not replayed: open the store again and replay the
    /// rest. `Corruption` if a family has a transaction beyond the end of the log: the log has lost
    /// transactions that the store has, so the store cannot be completed. The store is then closed,
    /// without what is in memory.
    pub fn finish(mut self, last: Tsn) -> Result<Db> {
        self.apply_pending()?;
        let engine = self.db.engine().clone();
        let mut writer = engine.writes.lock();
        engine.ctx.check_open()?;
        let position = writer.passive.as_mut().expect("the store is passive");
        let applied = position.last().tsn;
        let ahead = position.ahead().iter().max_by_key(|(_, flag)| flag.tsn);
        let ahead = ahead.map(|(id, flag)| (*id, flag.tsn));
        let persisted = ahead
            .filter(|(_, tsn)| *tsn > last)
            .map(|(id, tsn)| (Some(id), tsn))
            .or((applied > last).then_some((None, applied)));
        if let Some((id, tsn)) = persisted {
            drop(writer);
            self.db.clone().abandon();
            let view = engine.tree.view();
            let family = id.and_then(|id| view.families.get(&id));
            let what = family.map_or("the store".to_string(), |f| format!("family {:?}", f.name));
            return Err(Error::new(
                ErrorKind::Corruption,
                format!("{what} is persisted up to transaction {tsn}, and the owner's log ends with transaction {last}: the log has lost transactions; give the store `PassiveOptions::owner_log`, make each transaction durable before it is applied, or set `PassiveOptions::atomic_flush` as before if the owner applies the rest to the open store"),
            )
            .with_reach(Reach::Store));
        }
        if applied < last {
            return Err(Error::invalid(format!(
                "the owner's log ends with transaction {last}, and the replay ended with {applied}: open the store again and replay from transaction {} on",
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
