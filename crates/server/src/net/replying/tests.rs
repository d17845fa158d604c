//! Tests of the module `replying`.

use super::*;

/// Returns the slot of the client to disconnect. Slots are indexes of `holders`, which has bytes
/// and whether the client asked to stay.
fn goes(bound: u64, holders: &[(u64, bool)]) -> Option<usize> {
    let holders = holders.iter().enumerate();
    pick_client_to_close(
        holders.map(|(slot, &(bytes, stays))| ClientShare { slot, bytes, stays }),
        bound,
    )
}

#[test]
fn the_client_with_most_memory_is_closed() {
    assert_eq!(goes(640, &[]), None);
    assert_eq!(goes(640, &[(10, false), (631, false)]), Some(1));
    // Together they hold at most half, so another client is chosen: the largest, although it is
    // smaller than these.
    let staying = [(160, true), (160, true)];
    assert_eq!(
        goes(640, &[staying[0], staying[1], (150, false), (151, false)]),
        Some(3)
    );
    // Together they hold more than half, so they are treated as any other.
    assert_eq!(
        goes(640, &[(161, true), (160, true), (300, false)]),
        Some(2)
    );
    assert_eq!(
        goes(640, &[(201, true), (200, true), (199, false)]),
        Some(0)
    );
    assert_eq!(goes(640, &[(700, true), (0, false)]), Some(0));
    // The other clients are small one by one, in any number.
    let mut many = vec![(9, false); 60];
    many.push((200, true));
    assert_eq!(goes(640, &many), Some(60));
    many[7].0 = 10;
    assert_eq!(goes(640, &many), Some(7));
    // No client is large, and one is chosen nevertheless.
    assert_eq!(goes(5, &[(2, false), (4, true)]), Some(1));
    assert!(goes(64 * 9, &vec![(9, false); 65]).is_some());
}
