//! Defects that the campaigns have found, each as its shortest history.

use crate::database::{DIR, Sql, disk, options};
use basalt::env::Env;
use basalt_sim::{CrashPolicy, SimFs};
use basalt_sql::{DatabaseOptions, StorageLog};
use std::sync::Arc;

const SYNCED: StorageLog = StorageLog::Own { synced: true };
const UNSYNCED: StorageLog = StorageLog::Own { synced: false };

fn begin(options: &DatabaseOptions) -> (Arc<SimFs>, Sql) {
    let disk = disk(1);
    let env = Env::for_tests(disk.clone(), 1);
    let sql = Sql::open(&env, DIR, options).expect("a sound disk");
    (disk, sql)
}

fn open(disk: &Arc<SimFs>, options: &DatabaseOptions) -> Sql {
    let env = Env::for_tests(disk.clone(), 2);
    Sql::open(&env, DIR, options).expect("a sound disk")
}

/// A store with a synced log of its own kept a transaction whose record in the binlog was not
/// synced. Its number was then given to another transaction, and a restore had neither.
#[test]
fn a_store_that_is_ahead_of_the_binlog_gives_no_number_again() {
    let options = options(0, SYNCED);
    let (disk, mut sql) = begin(&options);
    sql.run("CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (1)");
    sql.run("SET synchronous_commit = off; INSERT INTO t VALUES (2)");
    let last = sql.database.last_transaction();
    let cut = disk.crash(CrashPolicy::NothingUnsynced, 1);
    sql.abandon();
    let mut sql = open(&cut, &options);
    assert_eq!(sql.run("SELECT a FROM t ORDER BY a"), ["1", "2"]);
    assert_eq!(sql.database.last_transaction(), last);
    // Readers of the binlog learn that it has a gap.
    let from_gap = sql.database.binlog(Some(last));
    assert_eq!(from_gap.err().map(|e| e.state().0), Some("55000"));
    sql.run("INSERT INTO t VALUES (3)");
    assert_eq!(sql.database.last_transaction(), last + 1);
    sql.check();
}

/// The replay into a store with a log of its own failed for rows of a table that was dropped later.
#[test]
fn a_replay_leaves_out_rows_of_a_table_that_is_gone() {
    let options = options(0, UNSYNCED);
    let (disk, mut sql) = begin(&options);
    sql.run("CREATE TABLE t (a INT PRIMARY KEY, b INT UNIQUE); CREATE TABLE u (a INT)");
    sql.run("CHECKPOINT; INSERT INTO t VALUES (1, 1); DROP TABLE t; INSERT INTO u VALUES (7)");
    let cut = disk.crash(CrashPolicy::NothingUnsynced, 1);
    sql.abandon();
    let mut sql = open(&cut, &options);
    assert_eq!(sql.run("SELECT a FROM u"), ["7"]);
    sql.check();
}

/// The process died after the store had the change of the catalog, and before it had dropped the
/// family. No replay came to the change again, and the family stayed.
#[test]
fn a_family_is_dropped_after_a_crash_at_any_call() {
    for storage_log in [StorageLog::None, SYNCED, UNSYNCED] {
        let options = options(0, storage_log);
        let (disk, mut sql) = begin(&options);
        sql.run("CREATE TABLE t (a INT PRIMARY KEY, b INT UNIQUE); INSERT INTO t VALUES (1, 1)");
        disk.record_snapshots(1);
        sql.run("CREATE INDEX i ON t (b, a); TRUNCATE t; DROP TABLE t; CHECKPOINT");
        let snapshots = disk.take_snapshots();
        sql.abandon();
        for (at, snapshot) in snapshots.iter().enumerate() {
            let sql = open(&snapshot.crash(CrashPolicy::Prefix, at as u64), &options);
            sql.check();
            sql.abandon();
        }
    }
}
