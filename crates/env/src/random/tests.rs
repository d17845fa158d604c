//! Unit tests of `random`.

use super::*;

#[test]
fn seeded_ids_repeat_and_system_ids_differ() {
    let (a, b) = (Random::from_seed(7), Random::from_seed(7));
    assert_eq!(a.next_u128(), b.next_u128());
    assert_eq!(a.below(1000), b.below(1000));
    let system = Random::from_system();
    let copy = Random(Arc::new(RandomState {
        state: AtomicU64::new(system.0.state.load(Relaxed)),
        from_system: true,
    }));
    // The ids differ although the generator state is the same, because they do not come from
    // it.
    assert_ne!(system.next_u128(), copy.next_u128());
    assert_eq!(system.next_u64(), copy.next_u64());
}

#[test]
fn random_numbers_stay_below_their_bound() {
    let r = Random::from_seed(1);
    assert_eq!(r.below(0), 0);
    assert!((0..1000).all(|_| r.below(3) < 3));
    assert!((0..100).all(|_| r.one_in(1)));
}
