//! Tests of the environment as a whole.

mod support;

use basalt_env::Env;
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
