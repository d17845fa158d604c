//! The memory of logs and indexes in the ledger.

use super::*;
use crate::engine::Engine;

/// Returns the bytes that the ledger should count: a walk over all logs that have a handle or a
/// name, and over the reverse indexes that are being built.
fn walked(engine: &Engine, handles: &[Log]) -> u64 {
    let mut logs: BTreeMap<u64, _> = BTreeMap::new();
    let of_handles = handles.iter().map(|log| log.state().clone());
    for log in engine.namespace.all().into_iter().chain(of_handles) {
        logs.insert(log.number, log);
    }
    let of_logs = logs
        .values()
        .map(|log| log.fixed_memory() + log.lock().index.walked_memory());
    let writers = [&engine.data, &engine.meta, &engine.moved];
    let of_writers = writers.iter().map(|writer| writer.lock().reverse_memory());
    (of_logs.sum::<usize>() + of_writers.sum::<usize>()) as u64
}

#[test]
fn the_ledger_counts_what_a_walk_over_the_indexes_finds() {
    let (mut pages, mut largest) = (0, 0);
    for seed in 0..30 * basalt_sim::campaign::scale() {
        let random = Random::from_seed(seed);
        let mut store = Store::open(&disk(seed)).unwrap();
        let mut model = Model::new();
        let used = |store: &Store| store.env.ledger().usage().index;
        for step in history(&random, 100) {
            if model.refusal(&step).is_none() {
                store.run(&step).unwrap();
                model.apply(&step);
            } else {
                assert!(store.run(&step).is_err());
            }
            let expected = walked(store.engine.engine(), &store.logs);
            assert_eq!(used(&store), expected, "seed {seed}: {step:?}");
            largest = largest.max(expected);
        }
        let of_log = |log: &Log| log.state().lock().index.pages();
        pages += store.logs.iter().map(of_log).sum::<usize>();

        // A deleted log counts for as long as it has a handle, without its index.
        let before = used(&store);
        store.engine.delete(&log_name(0)).unwrap();
        assert_eq!(used(&store), walked(store.engine.engine(), &store.logs));
        assert!(used(&store) <= before, "seed {seed}");
        let handle = store.logs.remove(0);
        let of_handle = handle.state().fixed_memory();
        assert_eq!(handle.state().lock().index.memory(), 0, "seed {seed}");
        // The deletion leads to jobs, which have memory of their own.
        while store.env.jobs().step() {}
        let with_handle = used(&store);
        drop(handle);
        while store.env.jobs().step() {}
        assert!(
            used(&store) + of_handle as u64 <= with_handle,
            "seed {seed}"
        );
        assert_eq!(used(&store), walked(store.engine.engine(), &store.logs));

        store.engine.close().unwrap();
        let Store {
            env, engine, logs, ..
        } = store;
        drop((engine, logs));
        assert_eq!(env.ledger().usage().index, 0, "seed {seed}");
    }
    println!("log memory: pages={pages} largest={largest}");
    assert!(
        pages as u64 >= basalt_sim::campaign::scale().floor(30),
        "{pages} pages"
    );
    assert!(largest > 2_000, "{largest} bytes");
}

#[test]
fn the_metrics_have_the_memory_of_indexes() {
    let store = Store::open(&disk(3)).unwrap();
    for lsn in 1..=200 {
        store.logs[0].append(lsn, &[7; 500], UNSYNCED).unwrap();
    }
    let stats = store.engine.stats();
    let of_logs = |log: &Log| {
        let state = log.state();
        state.fixed_memory() + state.lock().index.walked_memory()
    };
    let expected: usize = store.logs.iter().map(of_logs).sum();
    assert_eq!(stats.index_bytes, expected as u64);
    let ratio = stats.index_per_live_byte();
    let exact = expected as f64 / store.logs[0].bytes() as f64;
    assert!((ratio - exact).abs() < 1e-9, "{ratio}");
    let samples = store.env.metrics().snapshot();
    let value = |name: &str| {
        let of_name = samples.iter().find(|s| s.name == name);
        match of_name.expect("the metric is there").value {
            basalt_env::MetricValue::Gauge(n) => n as u64,
            _ => panic!("{name} is no gauge"),
        }
    };
    assert_eq!(value("log_index_bytes"), expected as u64);
    assert_eq!(value("log_index_bytes_per_live_mb"), (ratio * 1e6) as u64);
}
