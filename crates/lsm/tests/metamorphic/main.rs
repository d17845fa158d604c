//! One history, many settings: the same random operations are executed under at least fifty random sets of options, and every
//! answer (values, presence, order, expiry, errors) must be the same under all of them.
//!
//! [`operations`] draws a history from a seed, [`settings`] a set of options, [`execute`] runs one under the other and writes down
//! every answer. No reference says what is right: the first set's transcript is held against the others'. What is wrong under
//! every set alike is for `promises` to find.

#[path = "../promises/chance.rs"]
#[allow(
    dead_code,
    reason = "what several test binaries share, not all of them use"
)]
mod chance;
mod execute;
mod operations;
mod settings;

use chance::{on_two_threads, scale};
use execute::{Transcript, execute};
use operations::{Op, history};
use settings::Settings;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sets of options that each history is executed under.
const SETS: u64 = 50;
/// Operations of a history.
const OPERATIONS: usize = 300;

/// What the first set of options answers; the others are held against it.
fn reference(ops: &[Op], seed: u64) -> Transcript {
    execute(ops, seed, &Settings::of(seed, 0), None)
}

fn compare(ops: &[Op], seed: u64, set: u64, reference: &Transcript) {
    execute(ops, seed, &Settings::of(seed, set), Some(reference));
}

/// Takes operations out as long as the two sets of options still differ, and prints what is left.
fn shrink(mut ops: Vec<Op>, seed: u64, set: u64) {
    let differ = |ops: &[Op]| {
        let both = || compare(ops, seed, set, &reference(ops, seed));
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
fn any_options_answer_the_same() {
    let wanted = basalt_fs::campaign::case();
    if let Some([seed, set]) = wanted.as_deref() {
        let ops = history(*seed, OPERATIONS);
        if std::env::var("BASALT_SHRINK").is_ok() {
            shrink(ops.clone(), *seed, *set);
        }
        return compare(&ops, *seed, *set, &reference(&ops, *seed));
    }
    let histories = 4 * scale();
    let answers = on_two_threads(histories, |seed| {
        let ops = history(seed, OPERATIONS);
        let first = reference(&ops, seed);
        for set in 1..SETS {
            let _repeat = basalt_fs::repeat!(
                any_options_answer_the_same,
                "BASALT_CASE={seed},{set} BASALT_SHRINK=1"
            );
            compare(&ops, seed, set, &first);
        }
        first.answers()
    });
    let (done, answers): (usize, usize) = (answers.len(), answers.iter().sum());
    basalt_fs::campaign!(
        "metamorphic_executions={} metamorphic_answers={}",
        done * SETS as usize,
        answers * SETS as usize
    );
    if wanted.is_none() {
        assert_eq!(done as u64, histories);
        assert!(
            answers > done * OPERATIONS,
            "{answers} answers of {done} histories: too little is asked"
        );
    }
}
