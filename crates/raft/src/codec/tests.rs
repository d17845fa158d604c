//! Persisted values come back, and wrong bytes are errors.

use super::*;
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, Membership};
use std::collections::BTreeSet;

openraft::declare_raft_types!(
    Types:
        D = String,
        R = (),
        SnapshotData = crate::StateSnapshot,
);

fn entry(payload: EntryPayload<Types>) -> Entry<Types> {
    let log_id = LogId::new(CommittedLeaderId::new(3, 1), 300);
    Entry { log_id, payload }
}

#[test]
fn every_payload_comes_back() {
    let voters = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3, 4])];
    for payload in [
        EntryPayload::Blank,
        EntryPayload::Normal("set a to 1".to_string()),
        EntryPayload::Membership(Membership::new(voters.clone(), None)),
    ] {
        let entry = entry(payload);
        let bytes = encode(&entry).unwrap();
        assert_eq!(decode::<Entry<Types>>(&bytes).unwrap(), entry);
    }
}

/// These bytes are on disks: an entry that a later build encodes differently needs a new version.
#[test]
fn the_bytes_of_an_entry_are_pinned() {
    let bytes = encode(&entry(EntryPayload::Normal("ab".to_string()))).unwrap();
    // Version, term, node, index as a varint, kind of the payload, length, the command.
    assert_eq!(bytes, [1, 3, 1, 172, 2, 1, 2, b'a', b'b']);
}

#[test]
fn wrong_bytes_are_an_error() {
    let voters = vec![BTreeSet::from([1, 2, 3])];
    let good = entry(EntryPayload::Membership(Membership::new(voters, None)));
    let good = encode(&good).unwrap();
    for len in 0..good.len() {
        decode::<Entry<Types>>(&good[..len]).unwrap_err();
    }
    let mut longer = good.clone();
    longer.push(0);
    let e = decode::<Entry<Types>>(&longer).unwrap_err();
    assert_eq!(e, "1 bytes follow the value");
    let mut later = good.clone();
    later[0] = 2;
    let e = decode::<Entry<Types>>(&later).unwrap_err();
    assert_eq!(e, "the value has version 2; this build reads 1");
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            // The log engine has found the damage already. Here it must not panic.
            let _ = decode::<Entry<Types>>(&bytes);
        }
    }
}

/// Serde cannot read a field that the type left out, because the format has no field names.
#[test]
fn a_type_that_cannot_be_read_back_is_refused_when_it_is_written() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u64),
    }
    let e = encode(&Untagged::Number(1)).unwrap_err();
    assert!(e.contains("untagged"), "{e}");
}
