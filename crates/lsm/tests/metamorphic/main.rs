//! One history, many settings: the same random operations are executed under at least fifty random
//! sets of options. Every answer (values, presence, order, expiry, errors) must be the same under
//! all of them.
//!
//! [`operations`] draws a history from a seed, [`settings`] a set of options. [`execute`] runs one
//! under the other and records every answer. No reference says what is right: the first set's
//! transcript is compared with the others'. A bug that shows alike under every set is for
//! `promises` to find, except for checks of an execution against itself: a checkpoint shows the
//! store's contents, two readers of one store show the same, a compaction changes nothing, operands
//! outlive the value below them. [`operators`] has the operators and extractors that a user gives a
//! family.

mod execute;
mod operations;
mod operators;
#[path = "../promises/rng.rs"]
#[allow(
    dead_code,
    reason = "what several test binaries share, not all of them use"
)]
mod rng;
mod settings;

use execute::{EffectCounts, Transcript, execute};
use operations::{Op, history};
use rng::{on_two_threads, scale};
use settings::Settings;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

#[global_allocator]
static ALLOCATOR: basalt_sim::TestAllocator = basalt_sim::TestAllocator;

/// Sets of options that each history is executed under: the defaults, and fifty random ones.
const SETS: u64 = 51;
/// Operations of a history.
const OPERATIONS: usize = 300;

/// Least number of times that the effect of each operation must really have happened, in all
/// executions at scale 1.
const FLOORS: [(&str, u64); 30] = [
    ("executions", 4 * (SETS - 1)),
    ("operands", 12_000),
    ("full_merges", 20_000),
    ("partial_merges", 400),
    ("operands_outlived_their_value", 200),
    ("keys_in_deleted_ranges", 6_000),
    ("walks_by_prefix", 500),
    ("walks_by_the_bounds_of_a_prefix", 600),
    ("rows_of_one_prefix", 3_000),
    ("rows_of_one_beginning", 4_500),
    ("refreshed_iterators", 180),
    ("rows_of_tailing_cursors", 800),
    ("tailing_cursors_went_on_at_the_end", 200),
    ("calls_of_multi_gets_in_parts", 2_500),
    ("checkpoints", 190),
    ("checkpoints_with_logs", 60),
    ("checkpoints_with_tables", 160),
    ("copies_read_later", 70),
    ("copies_written_to", 45),
    ("read_only_openings", 120),
    ("compactions_of_everything", 20),
    ("compactions_of_a_range", 50),
    ("compactions_cancelled", 60),
    ("collections", 1000),
    ("names_made", 1200),
    ("names_forgotten", 1000),
    ("ingestions", 1000),
    ("conditional_writes_accepted", 1000),
    ("conditional_writes_refused", 1000),
    ("writes_refused_for_a_deleted_key", 400),
];

/// Returns the answers under the first set of options, with which the others are compared.
fn reference(ops: &[Op], seed: u64) -> Transcript {
    execute(ops, seed, &Settings::of(seed, 0), None)
}

fn compare(ops: &[Op], seed: u64, set: u64, reference: &Transcript) -> EffectCounts {
    execute(ops, seed, &Settings::of(seed, set), Some(reference)).did
}

/// Removes operations as long as the two sets of options still differ, and prints the remaining
/// ones.
fn shrink(mut ops: Vec<Op>, seed: u64, set: u64) {
    let differ = |ops: &[Op]| {
        let both = || drop(compare(ops, seed, set, &reference(ops, seed)));
        catch_unwind(AssertUnwindSafe(both)).is_err()
    };
    let mut part = ops.len() / 2;
    while part > 0 && differ(&ops) {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + part).min(ops.len()));
            if differ(&fewer) {
                ops = fewer;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    eprintln!("{} operations are left:", ops.len());
    ops.iter().for_each(|op| eprintln!("  {op:?}"));
    compare(&ops, seed, set, &reference(&ops, seed));
}

#[test]
fn any_options_give_the_same_answers() {
    let wanted = basalt_sim::campaign::case();
    if let Some([seed, set]) = wanted.as_deref() {
        let ops = history(*seed, OPERATIONS);
        if std::env::var("BASALT_SHRINK").is_ok() {
            shrink(ops.clone(), *seed, *set);
        }
        compare(&ops, *seed, *set, &reference(&ops, *seed));
        return;
    }
    // Fewer histories do not have every kind of operation.
    let histories = (4 * scale()).max(4);
    let results = on_two_threads(histories, |seed| {
        let ops = history(seed, OPERATIONS);
        let first = reference(&ops, seed);
        let mut did = EffectCounts::new();
        for set in 1..SETS {
            let _repeat = basalt_sim::repeat!(
                any_options_give_the_same_answers,
                "BASALT_CASE={seed},{set} BASALT_SHRINK=1"
            );
            add(&mut did, compare(&ops, seed, set, &first));
        }
        (first.answers(), did)
    });
    let done = results.len();
    let mut did = EffectCounts::new();
    let mut answers = 0;
    for (said, counts) in results {
        answers += said;
        add(&mut did, counts);
    }
    did.insert("full_merges", operators::FULL.load(Relaxed));
    did.insert("partial_merges", operators::PARTIAL.load(Relaxed));
    basalt_sim::campaign!(
        "metamorphic_executions={} metamorphic_answers={} {did:?}",
        done * SETS as usize,
        answers * SETS as usize
    );
    if wanted.is_none() {
        assert_eq!(done as u64, histories);
        assert!(
            answers > done * OPERATIONS,
            "{answers} answers of {done} histories: too little is asked"
        );
        for (what, least) in FLOORS {
            let n = did.get(what).copied().unwrap_or(0);
            assert!(
                n >= scale().floor(least),
                "{what}: {n} in all executions, at least {} are wanted",
                scale().floor(least)
            );
        }
    }
}

fn add(sum: &mut EffectCounts, more: EffectCounts) {
    for (what, n) in more {
        *sum.entry(what).or_default() += n;
    }
}

#[test]
fn every_metamorphic_test_passes_on_lava() {
    basalt_sim::all_tests_on_lava("every_metamorphic_test_passes_on_lava", &[]);
}
