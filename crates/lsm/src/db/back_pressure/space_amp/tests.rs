//! Unit tests of `space_amp`.

use super::*;

#[test]
fn slowed_writers_start_all_useful_collections() {
    let fill = |marked, hidden| BlobSpaceUse {
        disk: 1000 + marked,
        live: FamilyShare {
            records: 1,
            bytes: 1000,
        },
        marked,
        hidden,
        ..BlobSpaceUse::default()
    };
    let at_once = |fill: BlobSpaceUse, slowed| allowed_gcs(fill.gc_pressure(1.25, slowed), 4);
    // Garbage takes seven tenths of the room, and data on its way takes the rest.
    assert_eq!(at_once(fill(170, 5), false), 1);
    assert_eq!(at_once(fill(170, 5), true), 4);
    // Collecting files with next to no garbage frees nothing: merges have to expose what is
    // hidden.
    assert_eq!(at_once(fill(60, 110), false), 1);
    assert_eq!(at_once(fill(60, 110), true), 1);
    // Near the bound all garbage collections run, whether or not writers are slowed.
    assert_eq!(at_once(fill(240, 0), false), 4);
}
