//! A power cut at every change of the disk.

use super::*;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use basalt_sim::{CrashPolicy, SimSnapshot};

/// Power cuts that are tried at `BASALT_SCALE=1`.
const LEAST_STATES: u64 = 30_000;
/// Pages, and files of moved records, that the stores have after all steps together.
const LEAST_STRUCTURE: u64 = 60;

/// Returns what the logs have if the first `appends` batches are on the disk, and the first `done`
/// steps have removed what they remove.
fn content_after(steps: &[Step], appends: usize, done: usize) -> Content {
    let mut model = Model::new();
    let mut batches = 0;
    for step in &steps[..done] {
        if matches!(step, Step::Append(..)) {
            if model.refusal(step).is_some() {
                continue;
            }
            batches += 1;
            if batches > appends {
                continue;
            }
        }
        model.apply(step);
    }
    model.logs
}

struct CrashPoint {
    snapshot: SimSnapshot,
    done: usize,
}

/// Checks a store after a crash inside of step `done`.
fn check(fs: &Arc<SimFs>, steps: &[Step], done: usize, lost: bool, say: &str) {
    let store = match Store::open(fs) {
        Ok(store) => store,
        Err(e) => panic!("{say}: {e}"),
    };
    let found = store.content().unwrap_or_else(|e| panic!("{say}: {e}"));
    // Batches up to here were synced. Refused ones are left out of the count.
    let (mut batches, mut durable) = (0, 0);
    let mut model = Model::new();
    for (i, step) in steps[..(done + 1).min(steps.len())].iter().enumerate() {
        let refused = model.refusal(step).is_some();
        if !refused {
            model.apply(step);
        }
        let append = matches!(step, Step::Append(..));
        batches += usize::from(append && !refused);
        let syncs = match step {
            Step::Append(_, sync) => *sync && !refused,
            Step::Sync | Step::Reopen | Step::Remove(..) => true,
            Step::Trim(..) | Step::Replace(_) => false,
        };
        if i < done && (syncs || !lost) {
            durable = batches;
        }
    }
    let fits = |appends: usize| {
        [done, (done + 1).min(steps.len())]
            .into_iter()
            .any(|done| content_after(steps, appends, done) == found)
    };
    assert!(
        (durable..=batches).rev().any(fits),
        "{say}: the logs have {:?}; with all of {batches} batches, of which {durable} were durable, they had {:?}",
        summary(&found),
        summary(&content_after(steps, batches, done))
    );
    store
        .engine
        .close()
        .unwrap_or_else(|e| panic!("{say}: {e}"));
    // What the recovery wrote is right, too.
    let again = Store::open(fs).unwrap_or_else(|e| panic!("{say}, opened again: {e}"));
    let content = again
        .content()
        .unwrap_or_else(|e| panic!("{say}, opened again: {e}"));
    assert_eq!(content, found, "{say}, opened again");
}

fn summary(content: &Content) -> Vec<Vec<(u64, usize)>> {
    let of = |log: &BTreeMap<u64, Vec<u8>>| log.iter().map(|(lsn, d)| (*lsn, d.len())).collect();
    content.iter().map(of).collect()
}

#[test]
fn a_power_cut_at_every_change_keeps_the_promises() {
    let (mut states, mut seen) = (0, Structure::default());
    for seed in basalt_sim::campaign::cases(0..16 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_at_every_change_keeps_the_promises,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        let steps = history(&random, 40);
        let fs = disk(seed);
        let mut store = Store::open(&fs).unwrap();
        // Files that were left end later than the appends behind them are acknowledged.
        store.job_pause = 1 + seed as usize % 4;
        let points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let (p, d) = (points.clone(), done.clone());
        fs.on_mutation(move |snapshot| {
            p.lock().push(CrashPoint {
                snapshot,
                done: d.load(SeqCst),
            });
        });
        for step in &steps {
            let _ = store.run(step);
            done.fetch_add(1, SeqCst);
            store.note_structure(&mut seen);
        }
        fs.on_mutation(|_| {});
        store.engine.cut_power();
        for point in points.lock().iter() {
            for (i, &policy) in CrashPolicy::ALL.iter().enumerate() {
                let cut = seed * 1000 + states;
                let say = format!(
                    "log crash seed={seed} at {:?} policy={policy:?}",
                    point.snapshot
                );
                check(
                    &point.snapshot.crash(policy, cut),
                    &steps,
                    point.done,
                    true,
                    &say,
                );
                states += 1;
                if i == 0 {
                    let say = format!("log kill seed={seed} at {:?}", point.snapshot);
                    check(&point.snapshot.kill(), &steps, point.done, false, &say);
                    states += 1;
                }
            }
        }
    }
    basalt_sim::campaign!("log_crash_states={states}");
    println!("{seen:?}");
    let floor = |n: u64| basalt_sim::campaign::scale().floor(n);
    let is_enough =
        states >= floor(LEAST_STATES) && seen.pages.min(seen.moved) >= floor(LEAST_STRUCTURE);
    assert!(
        basalt_sim::campaign::case().is_some() || is_enough,
        "only {states} states, {seen:?}"
    );
}
