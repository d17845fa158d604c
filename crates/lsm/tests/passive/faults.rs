//! Calls of the filesystem that fail under a passive store. Its owner tries again, or gives up and
//! opens the store anew.

use crate::campaign::{History, disk, options_of};
use crate::database::{self, read_all};
use crate::owner::{Log, content};
use basalt_env::Env;
use basalt_sim::campaign::{case, cases, scale};
use basalt_sim::fault::{Fault, FaultKind};
use basalt_sim::rng::Rng;
use basalt_sim::{CrashPolicy, FaultFs, OpKind, When, campaign, repeat};
use std::collections::BTreeSet;

/// Counts of what the campaign really did.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    /// Runs in which the fault struck.
    struck: u64,
    /// Runs that their owner gave up.
    given_up: u64,
    /// Pairs of call and error.
    pairs: BTreeSet<(OpKind, FaultKind)>,
}

/// The kinds that fail a call. A wrong bit in what is read is damage of the device, which the
/// promises of the engine are about.
const KINDS: [FaultKind; 4] = [
    FaultKind::Eio,
    FaultKind::Enospc,
    FaultKind::ShortWrite,
    FaultKind::FailedSync,
];

fn run(seed: u64, tally: &mut Tally) {
    let mut rng = Rng::of(&[seed, 28]);
    let disk = disk(seed);
    let faulty = FaultFs::with_sleep(disk.clone(), seed, Box::new(|_| ()));
    let log = Log::new(&disk, &[], 1, 0);
    let env = Env::for_tests(faulty.clone(), seed);
    let mut history = History::begin_in(seed, env, log.clone());
    let kind = rng.pick(&KINDS);
    let at = faulty.total_calls() + rng.below(700);
    let sticks = rng.percent(30);
    let rule = faulty.inject(Fault {
        op: None,
        path: String::new(),
        when: if sticks {
            When::From(at)
        } else {
            When::Nth(at)
        },
        kind,
    });
    let mut given_up = false;
    for step in 0..250 {
        if !history.try_step() {
            given_up = true;
            break;
        }
        if sticks && step % 40 == 39 && faulty.seen(rule) > at {
            // The device works again.
            faulty.clear();
        }
    }
    let records = log.records();
    if !given_up {
        faulty.clear();
        let found = read_all(&history.db).expect("the device works again");
        assert_eq!(
            found,
            content(&records, records.len() as u64),
            "beside faults"
        );
    }
    history.db.abandon();
    let state = log.state();
    let end = state.durable + rng.below(state.end - state.durable + 1);
    let (policy, cut) = (rng.pick(CrashPolicy::ALL), rng.next_u64());
    let disk = disk.crash(policy, cut);
    let log = Log::new(&disk, &records, state.begin, end);
    let env = Env::for_tests(disk, rng.next_u64());
    let (db, _) =
        database::open(&env, options_of(&log, seed), &log, |from| from).unwrap_or_else(|e| {
            panic!("the recovery after {kind:?} at {at} and {policy:?} fails: {e}")
        });
    let found = read_all(&db).expect("a recovered store can be read");
    assert_eq!(
        found,
        content(&records, end),
        "after {kind:?} at {at} and {policy:?}"
    );
    db.close().expect("a sound disk");
    tally.runs += 1;
    let fired = faulty.fired();
    tally.struck += u64::from(!fired.is_empty());
    tally.given_up += u64::from(given_up);
    tally.pairs.extend(fired.into_keys());
}

#[test]
fn failing_calls_lose_nothing_that_the_owners_log_has() {
    let mut tally = Tally::default();
    for seed in cases(0..400 * scale()) {
        let _repeat = repeat!(
            failing_calls_lose_nothing_that_the_owners_log_has,
            "BASALT_CASE={seed}"
        );
        run(seed, &mut tally);
    }
    let Tally {
        runs,
        struck,
        given_up,
        ..
    } = tally;
    let pairs = tally.pairs.len();
    campaign!("passive faults: {runs} runs, {struck} struck, {given_up} given up, {pairs} pairs");
    if case().is_none() {
        assert!(struck >= scale().floor(300), "{tally:?}");
        assert!(given_up >= scale().floor(5), "{tally:?}");
        assert!(pairs >= 12, "{tally:?}");
    }
}
