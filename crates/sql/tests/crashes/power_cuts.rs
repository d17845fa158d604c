//! Random histories with power cuts.

use crate::database::{DIR, Sql, assert_same, disk, options, storage_log};
use crate::history::{History, Model};
use basalt::Tsn;
use basalt::env::Env;
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{CrashPolicy, SimSnapshot, campaign, repeat};
use basalt_sql::catalog::Object;
use basalt_sql::{BinlogKind, BinlogReader, DatabaseOptions, StorageLog};
use std::time::Duration;

/// Counts of what the campaign really did.
#[derive(Debug, Default)]
struct Tally {
    states: u64,
    /// States of a store with a log of its own.
    own: u64,
    /// States that lost transactions that had been committed unsynced.
    lost: u64,
    /// States whose binlog had been trimmed.
    trimmed: u64,
    /// Power cuts inside of recoveries.
    nested: u64,
    /// States in which the building of an index was under way.
    unfinished: u64,
    statements: u64,
    refused: u64,
    uneven: u64,
    early_flushes: u64,
    reserved: u64,
}

/// A moment of the disk.
struct Moment {
    disk: SimSnapshot,
    /// The last transaction that a power cut must not lose.
    durable: Tsn,
    /// The last transaction that may be in the binlog.
    end: Tsn,
}

/// Runs a history. Returns the moments of its disk.
fn run(
    seed: u64,
    options: &DatabaseOptions,
    steps: u64,
    tally: &mut Tally,
) -> (Vec<Moment>, Model) {
    let disk = disk(seed);
    disk.record_snapshots(1);
    let env = Env::for_tests(disk.clone(), seed);
    let mut history = History::begin(seed, env, options.clone()).expect("a sound disk");
    let mut moments = Vec::new();
    for _ in 0..steps {
        let durable = history.durable;
        history.step();
        let end = history.sql.database.last_transaction();
        let snapshots = disk.take_snapshots().into_iter();
        moments.extend(snapshots.map(|disk| Moment { disk, durable, end }));
    }
    history.sql.check();
    let stats = history.sql.database.store().db().stats();
    tally.early_flushes += history.early_flushes;
    tally.early_flushes += stats.passive.map_or(0, |p| p.early_flushes);
    tally.statements += history.done;
    tally.refused += history.refused;
    tally.uneven += history.uneven;
    let model = history.model.clone();
    history.sql.abandon();
    (moments, model)
}

/// Recovers from a power cut at a moment, with further cuts inside of the recovery, and compares.
fn recover(
    options: &DatabaseOptions,
    rng: &mut Rng,
    moment: &Moment,
    model: &Model,
    tally: &mut Tally,
) {
    let mut snapshot = moment.disk.clone();
    for depth in 0.. {
        let policy = rng.pick(CrashPolicy::ALL);
        let disk = snapshot.crash(policy, rng.next_u64());
        let env = Env::for_tests(disk.clone(), rng.next_u64());
        let again = depth < 3 && rng.percent(25);
        if again {
            disk.record_snapshots(1);
        }
        let mut sql = Sql::open(&env, DIR, options)
            .unwrap_or_else(|e| panic!("the recovery after {policy:?} fails: {e}"));
        if again {
            if rng.coin() {
                sql.database.store().db().flush().expect("a sound disk");
            }
            let mut snapshots = disk.take_snapshots();
            sql.abandon();
            if !snapshots.is_empty() {
                let at = rng.below(snapshots.len() as u64) as usize;
                snapshot = snapshots.swap_remove(at);
            }
            tally.nested += 1;
            continue;
        }
        compare(&mut sql, moment, model, policy, tally);
        go_on(&env, options, sql, rng, tally);
        return;
    }
}

fn compare(sql: &mut Sql, moment: &Moment, model: &Model, policy: CrashPolicy, tally: &mut Tally) {
    let last = sql.database.last_transaction();
    assert!(
        last >= moment.durable,
        "{policy:?} lost transaction {}: the last one is {last}",
        moment.durable
    );
    assert!(
        last <= moment.end,
        "transaction {last} never was, after {policy:?}"
    );
    let found = sql.content();
    let what = format!(
        "as of {last} of {}..{}, after {policy:?}",
        moment.durable, moment.end
    );
    assert_same(&found, &model.at(last), &what);
    sql.check();
    tally.states += 1;
    tally.lost += u64::from(last < moment.end);
    let mut binlog = sql.database.binlog(None).expect("it is open");
    tally.trimmed += u64::from(binlog.first() > 1);
    let mut ended = None;
    while let Some(record) = binlog.next(Duration::ZERO).expect("a sound disk") {
        ended = Some(record.kind);
    }
    let removed = matches!(ended, Some(BinlogKind::Ddl { statement }) if statement.is_empty());
    tally.unfinished += u64::from(removed);
}

/// Goes on after a recovery: sequences give new values, tables take rows, and a clean close leaves
/// nothing to replay.
fn go_on(env: &Env, options: &DatabaseOptions, mut sql: Sql, rng: &mut Rng, tally: &mut Tally) {
    let catalog = sql.database.catalog();
    for object in catalog.objects() {
        let Object::Table(table) = object else {
            continue;
        };
        let name = &table.name;
        if table.columns.iter().any(|column| column.sequence.is_some()) {
            let most = sql.run(&format!("SELECT coalesce(max(id), 0) FROM {name}"));
            let a = if name == "orders" { "n" } else { "a" };
            let inserted = format!(
                "INSERT INTO {name} ({a}) VALUES ({}) RETURNING id",
                rng.next_u64() >> 40
            );
            let id = sql.run(&inserted);
            let number = |text: &String| text.parse::<i64>().expect("a number");
            assert!(
                number(&id[0]) > number(&most[0]),
                "{name} gives {id:?} after {most:?}"
            );
            tally.reserved += 1;
        }
    }
    if catalog.table("accounts").is_some() && catalog.table("cold").is_some() {
        sql.run("INSERT INTO accounts VALUES (500, 'new') ON CONFLICT DO NOTHING");
        sql.run("DELETE FROM accounts WHERE id = 3; DELETE FROM events WHERE at < 25");
        sql.run("CREATE INDEX after_cut ON accounts (balance); DROP INDEX orders_item CASCADE");
    }
    sql.run("CREATE TABLE after_cut_t (a INT); INSERT INTO after_cut_t VALUES (1)");
    sql.check();
    let (content, last) = (sql.content(), sql.database.last_transaction());
    sql.database.close().expect("a sound disk");
    let tables = options.storage_log;
    if tables == StorageLog::None {
        // A passive store that needs a replay cannot be opened for reading.
        let binlog = BinlogReader::open(env, DIR).expect("it was closed");
        assert_eq!(binlog.last(), last);
    } else {
        tally.own += 1;
    }
    let mut sql = Sql::open(env, DIR, options).expect("it was closed");
    assert_eq!(sql.database.last_transaction(), last);
    assert_same(&sql.content(), &content, "after a clean close");
    sql.abandon();
}

#[test]
fn power_cuts_lose_no_synced_commit() {
    let mut tally = Tally::default();
    for seed in cases(0..12 * scale()) {
        let _repeat = repeat!(power_cuts_lose_no_synced_commit, "BASALT_CASE={seed}");
        let options = options(seed, storage_log(seed));
        let (moments, model) = run(seed, &options, 220, &mut tally);
        let mut rng = Rng::of(&[seed, 42]);
        for _ in 0..55 {
            let at = rng.below(moments.len() as u64) as usize;
            recover(&options, &mut rng, &moments[at], &model, &mut tally);
        }
    }
    campaign!("power cuts of databases: {tally:?}");
    if case().is_none() {
        let floors = [
            ("states", tally.states, 600),
            ("states with a log of the store", tally.own, 100),
            ("lost ends of binlogs", tally.lost, 100),
            ("trimmed binlogs", tally.trimmed, 100),
            ("cuts inside of recoveries", tally.nested, 100),
            ("unfinished indexes", tally.unfinished, 3),
            ("uneven families", tally.uneven, 300),
            ("early flushes", tally.early_flushes, 3),
            ("refused statements", tally.refused, 50),
            ("values of sequences", tally.reserved, 600),
        ];
        for (what, count, floor) in floors {
            assert!(count >= scale().floor(floor), "{what}: {count} of {floor}");
        }
    }
}
