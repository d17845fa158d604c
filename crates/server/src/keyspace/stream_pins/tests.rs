//! Tests of pins: when they end, and which requests may have them.

use super::*;

fn admit(pins: &mut StreamPins, clients: impl Iterator<Item = u64>, writes: bool) -> Vec<u64> {
    clients.filter(|c| pins.admit(*c, writes)).collect()
}

#[test]
fn a_stream_is_pinned_until_its_last_pin_ends() {
    let mut pins = StreamPins::default();
    assert!(pins.admit(1, false) && pins.admit(2, true));
    assert!(pins.pin(1, b"a") && pins.pin(1, b"b"));
    assert!(!pins.pin(1, b"a"), "it has this pin");
    let of_one = pins.memory(1);
    assert!(!pins.pin(2, b"a"), "it is not the only one");
    assert_eq!((of_one, pins.len()), (2 * pins.memory(2), 2));
    assert_eq!(pins.end(1), [Bytes::from_static(b"b")]);
    assert!(pins.is_pinned(b"a") && !pins.is_pinned(b"b"));
    assert!(pins.is_pinning(2) && !pins.is_pinning(1));
    assert_eq!(pins.end(1), Vec::<Bytes>::new());
    assert_eq!(pins.end(2), [Bytes::from_static(b"a")]);
    assert_eq!((pins.len(), pins.memory(2)), (0, 0));
}

/// Requests get their turn in the order of their arrival, also if a later one asks again first.
/// Some places are for reads only.
#[test]
fn requests_wait_for_their_turn() {
    let mut pins = StreamPins::default();
    assert_eq!(admit(&mut pins, 0..20, true).len(), PINNING_WRITES);
    assert_eq!(admit(&mut pins, 20..40, false), [20, 21, 22, 23]);
    assert_eq!(pins.waiting(), 24);
    assert_eq!(admit(&mut pins, [39, 19, 24].into_iter(), false), []);
    // A request that ends while it waits gets no turn.
    pins.end(12);
    pins.end(24);
    for (ended, next) in [(0, 13), (20, 25), (1, 14), (25, 26)] {
        pins.end(ended);
        assert_eq!(pins.take_admitted(), [next]);
        assert!(pins.is_pinning(next) && pins.admit(next, true));
    }
    // A later request does not take the place of one that waits.
    pins.end(26);
    assert!(!pins.admit(99, false));
    assert_eq!(pins.take_admitted(), [27]);
    for client in 0..100 {
        pins.end(client);
    }
    assert_eq!((pins.waiting(), pins.len()), (0, 0));
    assert_eq!(admit(&mut pins, 100..120, true).len(), PINNING_WRITES);
}
