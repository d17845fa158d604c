//! Sessions on several threads: transfers with retries beside changes of the catalog.

use crate::database::{DIR, Sql, disk, options, storage_log};
use basalt::env::{Env, thread};
use basalt_sim::campaign::scale;
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::rng::Rng;
use basalt_sim::{CrashPolicy, FaultFs, OpKind, SimFs, When, campaign};
use basalt_sql::{DatabaseOptions, SqlError, SqlResult, StorageLog, TransactionStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const ACCOUNTS: u64 = 12;
const SUM: &str = "1200";

/// Counts of what threads did.
#[derive(Debug, Default)]
struct Counts {
    commits: AtomicU64,
    conflicts: AtomicU64,
    changes: AtomicU64,
    refused: AtomicU64,
}

fn env(fs: Arc<dyn basalt::fs::FileSystem>, seed: u64) -> Env {
    Env::builder(fs).threads(2).seed(seed).build()
}

fn begin(env: &Env, options: &DatabaseOptions) -> Sql {
    let mut sql = Sql::open(env, DIR, options).expect("a sound disk");
    sql.run(
        "CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL, note TEXT);
         CREATE TABLE transfers (id SERIAL PRIMARY KEY,
            source INT REFERENCES accounts, n INT);
         CREATE TABLE groups (id INT PRIMARY KEY);
         CREATE TABLE members (g INT REFERENCES groups ON DELETE CASCADE, m INT UNIQUE)",
    );
    for id in 0..ACCOUNTS {
        sql.run(&format!("INSERT INTO accounts VALUES ({id}, 100)"));
    }
    sql
}

/// Runs a transaction until it does not conflict. Other errors of statements are no failures.
fn retried(sql: &mut Sql, script: &[String], counts: &Counts) {
    loop {
        match script.iter().try_for_each(|s| sql.try_run(s).map(|_| ())) {
            Ok(()) => {
                counts.commits.fetch_add(1, SeqCst);
                return;
            }
            Err(e) => {
                if sql.session.status() != TransactionStatus::Idle {
                    sql.run("ROLLBACK");
                }
                if !is_conflict(&e) {
                    assert_eq!(&e.state().0[..2], "23", "{e}");
                    counts.refused.fetch_add(1, SeqCst);
                    return;
                }
                counts.conflicts.fetch_add(1, SeqCst);
            }
        }
    }
}

/// Says whether a transaction may succeed when it is run again. A statement that was prepared
/// before a change of its table is one of them.
fn is_conflict(e: &SqlError) -> bool {
    e.is_retryable() || e.state().0 == "0A000"
}

fn transfer(rng: &mut Rng) -> Vec<String> {
    let (a, b, n) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS), 1 + rng.below(30));
    let mut script = vec!["BEGIN".to_owned()];
    if rng.percent(30) {
        script.push(format!(
            "SELECT balance FROM accounts WHERE id IN ({a}, {b}) FOR UPDATE"
        ));
    }
    script.push(format!(
        "UPDATE accounts SET balance = balance - {n} WHERE id = {a}"
    ));
    script.push(format!(
        "UPDATE accounts SET balance = balance + {n} WHERE id = {b}"
    ));
    script.push(format!(
        "INSERT INTO transfers (source, n) VALUES ({a}, {n})"
    ));
    script.push("COMMIT".to_owned());
    script
}

/// Parents that come and go, while other threads add children.
fn family(rng: &mut Rng) -> Vec<String> {
    let (g, m) = (rng.below(4), rng.below(40));
    vec![match rng.below(5) {
        0 => format!("DELETE FROM groups WHERE id = {g}"),
        1 => format!("INSERT INTO groups VALUES ({g}) ON CONFLICT DO NOTHING"),
        2 => format!("UPDATE members SET m = {m} WHERE g = {g} AND m < {m}"),
        _ => format!("INSERT INTO members VALUES ({g}, {m})"),
    }]
}

fn change(rng: &mut Rng) -> String {
    let n = rng.below(2);
    match rng.below(10) {
        0 | 1 => format!("CREATE INDEX accounts_{n} ON accounts (balance, id)"),
        2 | 3 => format!("DROP INDEX accounts_{n}"),
        4 => format!("ALTER TABLE accounts ADD COLUMN x{n} INT DEFAULT {n}"),
        5 => format!("ALTER TABLE accounts DROP COLUMN x{n}"),
        6 => format!("CREATE TABLE beside{n} (a SERIAL PRIMARY KEY, b INT UNIQUE)"),
        7 => format!("DROP TABLE beside{n}"),
        8 => format!("CREATE UNIQUE INDEX transfers_{n} ON transfers (id, n)"),
        _ => "TRUNCATE members".to_owned(),
    }
}

/// Runs threads over a database. `while_running` runs beside them.
fn run_threads(sql: &Sql, seed: u64, counts: &Counts, while_running: impl FnOnce()) {
    let database = &sql.database;
    let done = AtomicBool::new(false);
    let working = AtomicU64::new(0);
    thread::scope(|scope| {
        for worker in 0..4 {
            working.fetch_add(1, SeqCst);
            let working = &working;
            scope.spawn(move || {
                let mut rng = Rng::of(&[seed, worker]);
                let mut sql = Sql::of(database).expect("it is open");
                for _ in 0..40 * scale() {
                    let script = match worker {
                        0 => family(&mut rng),
                        _ if rng.percent(20) => family(&mut rng),
                        _ => transfer(&mut rng),
                    };
                    retried(&mut sql, &script, counts);
                }
                working.fetch_sub(1, SeqCst);
            });
        }
        let (done, working) = (&done, &working);
        scope.spawn(move || {
            let mut rng = Rng::of(&[seed, 99]);
            let mut sql = Sql::of(database).expect("it is open");
            while working.load(SeqCst) > 0 {
                match sql.try_run(&change(&mut rng)) {
                    Ok(_) => counts.changes.fetch_add(1, SeqCst),
                    Err(e) => {
                        assert!(
                            e.state().0.starts_with("42") || e.state().0 == "54011",
                            "{e}"
                        );
                        counts.refused.fetch_add(1, SeqCst)
                    }
                };
                check_sum(&mut sql).unwrap_or_else(|e| panic!("{e}"));
                sql.check();
            }
            done.store(true, SeqCst);
        });
        while_running();
    });
    assert!(done.load(SeqCst));
}

/// Checks that no transfer has made or lost money.
fn check_sum(sql: &mut Sql) -> SqlResult<()> {
    for _ in 0..1000 {
        match sql.try_run("SELECT sum(balance) FROM accounts") {
            Ok(rows) => {
                assert_eq!(rows, [SUM]);
                return Ok(());
            }
            Err(e) if is_conflict(&e) => {}
            Err(e) => return Err(e),
        }
    }
    panic!("a query conflicts again and again");
}

/// Checks that accounts have what the transfers have taken from them or given to them.
fn check_all(sql: &mut Sql) {
    check_sum(sql).unwrap_or_else(|e| panic!("{e}"));
    let ids = sql.run("SELECT count(*) - count(DISTINCT id) FROM transfers");
    assert_eq!(ids, ["0"]);
    sql.check();
}

#[test]
fn transfers_beside_changes_of_the_catalog_keep_the_sum() {
    let counts = Counts::default();
    for seed in 0..3 {
        // 0 and 1 are passive; 2 has a log of its own.
        let options = options(seed, storage_log(seed + seed / 2));
        let fs = disk(seed);
        let env = env(fs.clone(), seed);
        let mut sql = begin(&env, &options);
        let mut rng = Rng::of(&[seed, 98]);
        let mut crashed: Vec<Arc<SimFs>> = Vec::new();
        run_threads(&sql, seed, &counts, || {
            for _ in 0..4 {
                env.clock().sleep(Duration::from_millis(20));
                crashed.push(fs.crash(rng.pick(CrashPolicy::ALL), rng.next_u64()));
            }
        });
        check_all(&mut sql);
        sql.database.close().expect("a sound disk");
        let mut sql = Sql::open(&env, DIR, &options).expect("it was closed");
        check_all(&mut sql);
        sql.abandon();
        for fs in crashed {
            // Files get random numbers: those of another process are others.
            let env = Env::for_tests(fs, rng.next_u64());
            let mut sql = Sql::open(&env, DIR, &options).expect("a sound disk");
            check_all(&mut sql);
            sql.abandon();
        }
    }
    campaign!("threads: {counts:?}");
    assert!(
        counts.commits.load(SeqCst) >= scale().floor(200),
        "{counts:?}"
    );
    assert!(counts.changes.load(SeqCst) >= 10, "{counts:?}");
    assert!(counts.conflicts.load(SeqCst) >= 5, "{counts:?}");
}

#[test]
fn commits_of_several_threads_share_syncs_of_the_binlog() {
    let faulty = FaultFs::new(disk(1), 1);
    let env = env(faulty.clone(), 1);
    let options = options(2, StorageLog::None);
    let mut sql = begin(&env, &options);
    for n in 0..6 {
        sql.run(&format!("CREATE TABLE own{n} (a INT PRIMARY KEY)"));
    }
    // A device takes long to sync, and commits gather meanwhile.
    let slow = faulty.inject(Fault {
        op: Some(OpKind::SyncData),
        path: "logs".to_owned(),
        when: When::From(1),
        kind: FaultKind::Latency(Duration::from_micros(1000)),
    });
    for a in 0..20 {
        sql.run(&format!("INSERT INTO groups VALUES ({a})"));
    }
    let alone = faulty.seen(slow);
    assert_eq!(alone, 20, "a commit is one sync");
    let before = sql.database.last_transaction();
    let database = &sql.database;
    thread::scope(|scope| {
        for n in 0..6 {
            scope.spawn(move || {
                let mut sql = Sql::of(database).expect("it is open");
                for a in 0..60 {
                    sql.run(&format!("INSERT INTO own{n} VALUES ({a})"));
                }
            });
        }
    });
    let syncs = faulty.seen(slow) - alone;
    let commits = sql.database.last_transaction() - before;
    campaign!("group commit: {commits} commits, {syncs} syncs");
    assert_eq!(commits, 360);
    assert!(
        syncs > 0 && syncs * 3 < commits * 2,
        "{commits} commits, {syncs} syncs"
    );
    sql.check();
}
