//! Tests of the environment as a whole.

mod support;

use basalt_env::{CacheKey, CachePriority, Env};
use basalt_fs::Bytes;
use std::sync::Arc;
use support::NoFiles;

#[test]
fn the_test_environment_is_stepped_and_seeded() {
    let make = || Env::for_tests(Arc::new(NoFiles), 42);
    let (a, b) = (make(), make());
    assert!(a.jobs().is_stepped());
    assert_eq!(a.random().next_u128(), b.random().next_u128());
    assert_eq!(a.ledger().usage().budget, 16 << 20);
    assert_eq!(a.cache().stats().capacity, 1 << 20);
    let manual_clock = a.clock().as_manual().expect("a manual clock");
    manual_clock.advance(std::time::Duration::from_secs(5));
    assert_eq!(a.clock().wall_ms(), b.clock().wall_ms() + 5000);
    assert!(a.clock().as_manual().is_some());
}

/// Budgets as large as numbers are end in no overflow, neither here nor in the users of the ledger.
#[test]
fn the_largest_budgets_are_cut() {
    let env = Env::builder(Arc::new(NoFiles))
        .stepped()
        .memory_bytes(u64::MAX)
        .cache_bytes(u64::MAX)
        .build();
    assert_eq!(env.ledger().usage().budget, 1 << 62);
    assert_eq!(env.cache().stats().capacity, 3 << 60);
    let _promise = env.relief().promise(1 << 20);
    env.relief().look_ahead();
    assert!(env.relief().ask(1), "promised bytes are outstanding");
}

/// Regression test: the sources of an environment's own metrics kept its cache for ever.
#[test]
fn a_dropped_environment_frees_its_cache() {
    struct Counted {
        _alive: Arc<()>,
    }
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            b"a block"
        }
    }
    let alive = Arc::new(());
    let env = Env::for_tests(Arc::new(NoFiles), 1);
    let key = CacheKey { file: 7, offset: 0 };
    let block = Bytes::from_owner(Counted {
        _alive: alive.clone(),
    });
    drop(env.cache().insert(key, block, 4096, CachePriority::High));
    assert_eq!(Arc::strong_count(&alive), 2, "the block is in the cache");
    let kept = env.metrics().snapshot();
    drop(env);
    assert!(kept.iter().any(|s| s.name == "cache_inserts"));
    assert_eq!(
        Arc::strong_count(&alive),
        1,
        "the cache outlives its environment"
    );
}
