//! The model test: random histories, every answer compared; and the same history under many
//! options.

use crate::history::{Op, Shape, history, options};
use crate::rng::{numbers_of, on_two_threads, scale};
use crate::runner::{Collected, Conditional, Runner, sim_disk};
use basalt_sim::{campaign, repeat};

/// Counts of a history.
#[derive(Default)]
struct Counts {
    /// Number of operands written.
    appended: u64,
    /// Number of times that prepared tables were added.
    ingested: u64,
    conditional: Conditional,
    collected: Collected,
}

/// Returns a digest of the answers, and the counts of the history.
fn run(ops: &[Op], seed: u64, options_seed: u64) -> (u64, Counts) {
    let disk = sim_disk(seed, if seed % 5 == 4 { 4096 } else { 512 }, 1 << 40);
    let mut runner = Runner::new(disk, seed, options_seed, false);
    for op in ops {
        runner.run(op);
    }
    runner.finish();
    let counts = Counts {
        appended: runner.appended,
        ingested: runner.ingested,
        conditional: runner.conditional,
        collected: runner.collected,
    };
    (runner.answers, counts)
}

fn run_seed(seed: u64) -> Counts {
    let _repeat = repeat!(
        random_histories_answer_as_the_reference_does,
        "BASALT_HISTORY={seed}"
    );
    run(&history(seed, Shape::MODEL), seed, seed).1
}

/// Removes operations as long as the failure stays, and prints the remaining ones.
fn shrink(mut ops: Vec<Op>, seed: u64) {
    let fails = |ops: &[Op]| {
        let ops = ops.to_vec();
        std::panic::catch_unwind(move || run(&ops, seed, seed)).is_err()
    };
    if !fails(&ops) {
        return;
    }
    std::panic::set_hook(Box::new(|_| ()));
    let mut part = ops.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + part).min(ops.len()));
            if fails(&fewer) {
                ops = fewer;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    let _ = std::panic::take_hook();
    eprintln!("{} operations are left:", ops.len());
    ops.iter().for_each(|op| eprintln!("  {op:?}"));
    run(&ops, seed, seed);
}

#[test]
fn random_histories_answer_as_the_reference_does() {
    if let Some(seeds) = numbers_of("BASALT_HISTORY") {
        for seed in seeds {
            if std::env::var("BASALT_SHRINK").is_ok() {
                shrink(history(seed, Shape::MODEL), seed);
            }
            run_seed(seed);
        }
        return;
    }
    let n = 150 * scale();
    let runs = on_two_threads(n, run_seed);
    let done = runs.len();
    let mut all = Counts::default();
    for run in &runs {
        all.appended += run.appended;
        all.ingested += run.ingested;
        all.conditional.add(run.conditional);
        all.collected.add(run.collected);
    }
    let Counts {
        appended,
        ingested,
        conditional,
        collected,
    } = all;
    basalt_sim::campaign!(
        "histories={done} operations={} operands={appended} ingestions={ingested} {conditional:?} collections={} names_forgotten={} relocated={}",
        done * Shape::MODEL.ops,
        collected.collections,
        collected.forgotten,
        collected.relocated
    );
    assert_eq!(done as u64, n);
    assert!(appended > 40 * n, "only {appended} operands");
    assert!(ingested > 4 * n, "only {ingested} ingestions");
    assert!(
        conditional.accepted > 5 * n && conditional.refused > 5 * n,
        "only {conditional:?}"
    );
    assert!(
        collected.collections > 10 * n && collected.forgotten > 10 * n,
        "only {collected:?}"
    );
}

#[test]
fn the_same_history_answers_the_same_under_any_options() {
    let shape = Shape {
        ops: 250,
        keys: 50,
        coarse_time: true,
        no_tickets: true,
    };
    let n = 4 * scale();
    let executions = on_two_threads(n, move |seed| {
        let mut ops = history(1000 + seed, shape);
        // This test may vary the options.
        for op in &mut ops {
            if let Op::Reopen { options, .. } = op {
                *options = 0;
            }
        }
        let mut first = None;
        for options_seed in 0..20 {
            let _repeat = repeat!(
                the_same_history_answers_the_same_under_any_options,
                "BASALT_CASE={seed}"
            );
            options(options_seed)
                .validate()
                .expect("drawn inside the limits");
            let (answers, ..) = run(&ops, 1000 + seed, 5000 + options_seed);
            assert_eq!(
                *first.get_or_insert(answers),
                answers,
                "options {options_seed} give another answer"
            );
        }
        20 * ops.len()
    });
    basalt_sim::campaign!(
        "metamorphic_operations={}",
        executions.iter().sum::<usize>()
    );
}

#[test]
fn a_seed_gives_the_same_disk_twice() {
    for seed in campaign::cases(0..2) {
        let _repeat = repeat!(a_seed_gives_the_same_disk_twice, "BASALT_CASE={seed}");
        let bytes = || {
            let disk = sim_disk(seed, 512, 1 << 40);
            let mut runner = Runner::new(disk.clone(), seed, seed, false);
            for op in &history(seed, Shape::MODEL) {
                runner.run(op);
            }
            runner.finish();
            (disk.digest(), runner.answers)
        };
        assert_eq!(bytes(), bytes());
    }
}
