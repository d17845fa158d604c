//! Point-in-time restores, to every transaction of a history.

use crate::database::{DIR, Sql, assert_same, disk, options, storage_log};
use crate::history::History;
use basalt::env::Env;
use basalt::{CheckpointOptions, Tsn};
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::{campaign, repeat};
use basalt_sql::{
    Database, DatabaseOptions, RestoreOptions, RestoreReport, RestoreTarget, SqlResult, StorageLog,
};

const COPY: &str = "copy";

/// A closed history with a checkpoint.
struct Closed {
    history: History,
    checkpoint: Tsn,
    last: Tsn,
    /// Times after the checkpoint, with the last transaction at each.
    times: Vec<(u64, Tsn)>,
    /// The time right before the checkpoint's last transaction.
    too_early: u64,
}

fn closed(seed: u64, options: DatabaseOptions, steps: u64) -> Closed {
    let env = Env::for_tests(disk(seed), seed);
    let mut history = History::begin(seed, env, options).expect("a sound disk");
    let mut too_early = 0;
    while history.sql.database.last_transaction() < 20 + seed % 40 {
        let (before, now) = (
            history.sql.database.last_transaction(),
            history.env.clock().wall_ms(),
        );
        history.step();
        if history.sql.database.last_transaction() > before {
            too_early = now - 1;
        }
    }
    let checkpoint = history.sql.database.last_transaction();
    let store = history.sql.database.store();
    let made = store.checkpoint(COPY, &CheckpointOptions::default());
    made.expect("a sound disk");
    let mut times = Vec::new();
    for _ in 0..steps {
        times.push((
            history.env.clock().wall_ms() - 1,
            history.sql.database.last_transaction(),
        ));
        history.step();
    }
    let last = history.sql.database.last_transaction();
    history.sql.database.close().expect("a sound disk");
    Closed {
        history,
        checkpoint,
        last,
        times,
        too_early,
    }
}

impl Closed {
    fn restore(&self, target: RestoreTarget, into: &str) -> SqlResult<RestoreReport> {
        let restore = RestoreOptions {
            checkpoint: COPY.into(),
            binlog: DIR.into(),
            target,
            into: into.into(),
        };
        let options = self.history.options.clone();
        Database::restore(&self.history.env, &restore, options, &mut |_, _| ())
    }

    /// Restores, and compares with the content as of a transaction.
    fn compare(&self, target: RestoreTarget, into: &str, tsn: Tsn) {
        let report = self.restore(target, into);
        let report = report.unwrap_or_else(|e| panic!("the restore to {target:?} fails: {e}"));
        assert_eq!(report.tsn, tsn, "{target:?}");
        assert_eq!(report.checkpoint_tsn, self.checkpoint);
        assert_eq!(report.transactions, tsn - self.checkpoint);
        let mut sql = Sql::open(&self.history.env, into, &self.history.options)
            .expect("it was just restored");
        // The restore removes an index whose building was under way.
        assert!(sql.database.last_transaction() <= tsn + 1);
        let what = format!("restored to {target:?}");
        assert_same(&sql.content(), &self.history.model.at(tsn), &what);
        sql.check();
        sql.run("CREATE TABLE restored (a INT); INSERT INTO restored VALUES (1)");
        sql.abandon();
    }
}

fn of_restore(seed: u64) -> DatabaseOptions {
    options(seed, storage_log(seed)).binlog_retention_bytes(1 << 30)
}

#[test]
fn a_restore_reaches_every_transaction() {
    let mut restores = 0;
    for seed in cases(0..8 * scale()) {
        let _repeat = repeat!(a_restore_reaches_every_transaction, "BASALT_CASE={seed}");
        let closed = closed(seed, of_restore(seed), 40);
        for tsn in closed.checkpoint..=closed.last {
            closed.compare(RestoreTarget::Tsn(tsn), &format!("tsn-{tsn}"), tsn);
            restores += 1;
        }
        for (at, (time, tsn)) in closed.times.iter().enumerate().step_by(8) {
            closed.compare(RestoreTarget::TimeMs(*time), &format!("time-{at}"), *tsn);
            restores += 1;
        }
        closed.compare(RestoreTarget::Latest, "latest", closed.last);
    }
    campaign!("restores: {restores}");
    if case().is_none() {
        assert!(restores >= scale().floor(200), "{restores}");
    }
}

#[test]
fn a_restore_refuses_what_it_cannot_reach() {
    let closed = closed(3, of_restore(0), 30);
    let mut at = 0;
    let mut state = |target| {
        at += 1;
        let refused = closed.restore(target, &format!("refused-{at}"));
        refused.expect_err("it cannot be reached").state().0
    };
    assert_eq!(state(RestoreTarget::Tsn(closed.checkpoint - 1)), "22023");
    assert_eq!(state(RestoreTarget::Tsn(closed.last + 1)), "22023");
    assert_eq!(state(RestoreTarget::TimeMs(closed.too_early)), "22023");
    let exists = closed.restore(RestoreTarget::Latest, DIR);
    assert_eq!(exists.expect_err("it exists").state().0, "22023");
    let untouched = Sql::open(&closed.history.env, DIR, &closed.history.options);
    untouched.expect("it was only read").abandon();
}

#[test]
fn a_restore_refuses_a_binlog_that_was_trimmed_behind_the_checkpoint() {
    let options = options(1, StorageLog::None).binlog_retention_bytes(1);
    let closed = closed(5, options, 200);
    let refused = closed.restore(RestoreTarget::Latest, "refused");
    assert_eq!(refused.expect_err("it was trimmed").state().0, "55000");
}
