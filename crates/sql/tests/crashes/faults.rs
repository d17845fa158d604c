//! Calls of the filesystem that fail under a database.

use crate::database::{Content, DIR, Sql, assert_same, disk, options, storage_log};
use crate::history::{History, Step};
use basalt::env::Env;
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::rng::Rng;
use basalt_sim::{CrashPolicy, FaultFs, OpKind, When, campaign, repeat};
use basalt_sql::SqlError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Counts of what the campaign really did.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    /// Runs in which the fault struck.
    struck: u64,
    /// Runs in which a statement failed for it.
    failed: u64,
    /// Runs whose database took no further transaction, and was opened anew.
    stopped: u64,
    /// Openings that failed.
    openings: u64,
    /// Failed statements whose transaction was in the binlog, and is there after the opening.
    replayed: u64,
    /// Pairs of call and error.
    pairs: BTreeSet<(OpKind, FaultKind)>,
    states: BTreeMap<&'static str, u64>,
}

const KINDS: [FaultKind; 4] = [
    FaultKind::Eio,
    FaultKind::Enospc,
    FaultKind::ShortWrite,
    FaultKind::FailedSync,
];

/// Checks that an error says what a failing device is: 58030, 53100, or that the store has closed
/// itself.
fn assert_sensible(e: &SqlError, what: &Step) {
    let state = e.state().0;
    assert!(
        matches!(state, "58030" | "53100" | "57P01" | "55P03"),
        "{what:?} fails with {e}"
    );
}

/// What the database may have after its next opening.
struct Expected {
    /// As of the last statement that succeeded.
    before: Content,
    /// What a failed statement would have made.
    after: Option<Content>,
}

fn run(seed: u64, tally: &mut Tally) {
    let mut rng = Rng::of(&[seed, 43]);
    let storage_log = storage_log(seed / 5);
    let options = options(seed, storage_log);
    let disk = disk(seed);
    let faulty = FaultFs::with_sleep(disk.clone(), seed, Box::new(|_| ()));
    let env = Env::for_tests(faulty.clone(), seed);
    let mut history = History::begin(seed, env, options.clone()).expect("a sound disk");
    // The same history on a sound disk.
    let shadow = Env::for_tests(crate::database::disk(seed + 1), seed);
    let mut shadow = History::begin(seed, shadow, options.clone()).expect("a sound disk");
    let kind = rng.pick(&KINDS);
    let sticks = rng.percent(40);
    let mut expected = None;
    for step in 0..90 {
        if step == 12 {
            let at = 1 + rng.below([400, 60][usize::from(kind == FaultKind::FailedSync)]);
            let when = if sticks {
                When::From(at)
            } else {
                When::Nth(at)
            };
            faulty.inject(Fault {
                op: None,
                path: String::new(),
                when,
                kind,
            });
        }
        let before = history.model.last();
        let what = history.next_step();
        if let Step::Reopen = what {
            continue;
        }
        let done = history.carry_out(&what);
        let on_sound = shadow.carry_out(&what);
        on_sound.unwrap_or_else(|e| panic!("{what:?} fails on a sound disk: {e}"));
        history.run_jobs();
        shadow.statements.rng = history.statements.rng.clone();
        if let Err(e) = done {
            assert_sensible(&e, &what);
            *tally.states.entry(e.state().0).or_default() += 1;
            expected = Some(Expected {
                before,
                after: Some(shadow.sql.content()),
            });
            break;
        }
        let (found, wanted) = (history.model.last(), shadow.model.last());
        assert_same(&found, &wanted, &format!("beside faults, after {what:?}"));
    }
    faulty.clear();
    let failed = expected.is_some();
    let mut expected = expected.unwrap_or_else(|| Expected {
        before: history.model.last(),
        after: None,
    });
    let clock = history.env.clock().as_manual().expect("a test's clock");
    clock.advance(Duration::from_secs(10));
    if failed {
        tally.stopped += u64::from(go_on(&mut history, &mut expected, kind));
    }
    tally.runs += 1;
    tally.failed += u64::from(failed);
    tally.struck += u64::from(!faulty.fired().is_empty());
    tally.pairs.extend(faulty.fired().into_keys());
    let (policy, cut) = (rng.pick(CrashPolicy::ALL), rng.next_u64());
    let durable = history.durable;
    let end = history.sql.database.last_transaction();
    history.sql.abandon();
    shadow.sql.abandon();
    let disk = disk.crash(policy, cut);
    tally.openings += fail_openings(&disk.snapshot(), &options, &mut rng);
    let env = Env::for_tests(disk, rng.next_u64());
    let mut sql = Sql::open(&env, DIR, &options)
        .unwrap_or_else(|e| panic!("the opening after {kind:?} and {policy:?} fails: {e}"));
    let last = sql.database.last_transaction();
    assert!(
        last >= durable,
        "{last} of {durable}, after {kind:?} and {policy:?}"
    );
    // A statement that failed behind the first failure may be in the binlog, too.
    let without = |mut content: Content| {
        content.remove("beside");
        content
    };
    let found = without(sql.content());
    expected.before = without(expected.before);
    let may_be_lost = last < end;
    let is_after = expected.after.as_ref() == Some(&found);
    tally.replayed += u64::from(is_after && found != expected.before);
    if !is_after && !may_be_lost {
        assert_same(
            &found,
            &expected.before,
            &format!("after {kind:?} and {policy:?}"),
        );
    } else if !is_after {
        assert_same(
            &found,
            &without(history.model.at(last)),
            &format!("as of {last} of {end}"),
        );
    }
    sql.check();
    sql.run("CREATE TABLE goes_on (a INT); INSERT INTO goes_on VALUES (1)");
    sql.database.close().expect("a sound disk");
}

/// Goes on after a failed statement, on a device that works again. The statement has left nothing
/// that is seen. Returns true if the database takes no further transaction.
fn go_on(history: &mut History, expected: &mut Expected, kind: FaultKind) -> bool {
    if let Ok(found) = history.sql.try_content() {
        let is_after = expected.after.as_ref() == Some(&found);
        if !is_after {
            assert_same(&found, &expected.before, &format!("right after {kind:?}"));
        }
    }
    let mut stopped = false;
    let script = [
        "CREATE TABLE IF NOT EXISTS beside (a INT)",
        "INSERT INTO beside VALUES (1)",
        "INSERT INTO beside VALUES (2)",
    ];
    for statement in script {
        match history.sql.try_run(statement) {
            Ok(_) => {
                let content = history.sql.content();
                history.sql.check();
                let last = history.sql.database.last_transaction();
                history.model.insert(last, content.clone());
                if history.is_synced {
                    history.durable = last;
                }
                *expected = Expected {
                    before: content,
                    after: None,
                };
                stopped = false;
            }
            Err(e) if e.state().0 == "42P01" && stopped => {}
            Err(e) => {
                assert_sensible(&e, &Step::Reopen);
                stopped = true;
            }
        }
    }
    stopped
}

/// Opens copies of a disk while calls fail. Returns how many openings failed.
fn fail_openings(
    disk: &basalt_sim::SimSnapshot,
    options: &basalt_sql::DatabaseOptions,
    rng: &mut Rng,
) -> u64 {
    let mut failed = 0;
    for _ in 0..2 {
        let faulty = FaultFs::with_sleep(disk.kill(), rng.next_u64(), Box::new(|_| ()));
        let (kind, at) = (rng.pick(&KINDS), 1 + rng.below(120));
        let when = When::Nth(at);
        faulty.inject(Fault {
            op: None,
            path: String::new(),
            when,
            kind,
        });
        let env = Env::for_tests(faulty, rng.next_u64());
        match Sql::open(&env, DIR, options) {
            Ok(sql) => sql.abandon(),
            Err(e) => {
                assert_sensible(&e, &Step::Reopen);
                failed += 1;
            }
        }
    }
    failed
}

#[test]
fn failing_calls_leave_nothing_half_done() {
    let mut tally = Tally::default();
    for seed in cases(0..110 * scale()) {
        let _repeat = repeat!(failing_calls_leave_nothing_half_done, "BASALT_CASE={seed}");
        run(seed, &mut tally);
    }
    campaign!("faults of databases: {tally:?}");
    if case().is_none() {
        let floors = [
            ("struck runs", tally.struck, 60),
            ("failed statements", tally.failed, 30),
            ("failed openings", tally.openings, 35),
        ];
        for (what, count, floor) in floors {
            assert!(count >= scale().floor(floor), "{what}: {count} of {floor}");
        }
    }
}
