//! Tests of the module `page_values`.

use super::*;

fn dropped(key: &[u8], value: &'static [u8]) -> DroppedEntry {
    DroppedEntry {
        key: key.to_vec(),
        kind: Kind::BlobRef,
        value: Bytes::from_static(value),
    }
}

/// The list of dropped references was in no budget. It grows until their records are marked.
#[test]
fn the_ledger_counts_dropped_references_until_their_records_are_marked() {
    let ledger = MemoryLedger::new(1 << 20);
    let waiting = DroppedReferences::new(&ledger);
    assert!(waiting.is_empty());
    assert_eq!(ledger.usage().total(), 0);
    let of_entry = size_of::<DroppedEntry>() as u64;
    waiting.note_dropped(vec![dropped(b"a", b"12"), dropped(b"bcd", b"4567")]);
    assert_eq!(ledger.usage().buffer, 2 * of_entry + 10);
    let taken = waiting.take();
    assert!(waiting.is_empty());
    assert_eq!(taken.entries().len(), 2);
    assert_eq!(ledger.usage().buffer, 2 * of_entry + 10);
    waiting.note_dropped(vec![dropped(b"e", b"8")]);
    waiting.give_back(taken);
    assert_eq!(ledger.usage().buffer, 3 * of_entry + 12);
    let taken = waiting.take();
    assert_eq!(taken.entries().len(), 3);
    drop(taken);
    assert_eq!(ledger.usage().total(), 0);
}
