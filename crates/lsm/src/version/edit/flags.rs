//! Flush flags of a passive store in manifest edits.

use super::{Edit, Input, field, varint};
use basalt_fs::Result;
use basalt_kv::flush_flag::{FlushFlag, TSN_LIMIT};
use basalt_kv::key::SEQ_LIMIT;
use basalt_kv::limits::MAX_FAMILY;

/// Encodes what an edit says of a passive store: each flag with its families, of which numbers
/// behind the first one are differences.
pub(super) fn encode(edit: &Edit, o: &mut Vec<u8>) {
    for (flag, families) in &edit.flush_flags {
        field(o, 26, |b| {
            varint(b, flag.tsn);
            varint(b, flag.first_seq);
            varint(b, flag.items());
            varint(b, families.len() as u64);
            let mut before = 0;
            for id in families {
                varint(b, u64::from(id - before));
                before = *id;
            }
        });
    }
    if let Some(n) = edit.passive_from {
        field(o, 27, |b| varint(b, n));
    }
}

/// Decodes tag 26 or 27.
///
/// Errors: `Corruption`.
pub(super) fn decode(edit: &mut Edit, tag: u64, f: &mut Input<'_>) -> Result<()> {
    match tag {
        26 => edit.flush_flags.push(decode_flag(f)?),
        _ => edit.passive_from = Some(f.varint()?),
    }
    Ok(())
}

/// Decodes a flag with its families.
///
/// Errors: `Corruption`.
fn decode_flag(f: &mut Input<'_>) -> Result<(FlushFlag, Vec<u32>)> {
    let (tsn, first_seq, items) = (f.varint()?, f.varint()?, f.varint()?);
    let bad = || Input::bad(&format!("the flush flag of transaction {tsn} is malformed"));
    if tsn >= TSN_LIMIT || first_seq == 0 || first_seq > SEQ_LIMIT || items > SEQ_LIMIT {
        return Err(bad());
    }
    let flag = FlushFlag::of(tsn, first_seq, items);
    let count = f.varint()?;
    let mut families = Vec::new();
    let mut before = 0u32;
    for i in 0..count {
        let more = f.u32()?;
        let id = before.checked_add(more).filter(|id| *id <= MAX_FAMILY);
        before = id.filter(|_| i == 0 || more > 0).ok_or_else(bad)?;
        families.push(before);
    }
    match families.is_empty() {
        true => Err(bad()),
        false => Ok((flag, families)),
    }
}

/// Refuses numbers that no store reaches.
pub(super) fn check_bounds(flags: &[(FlushFlag, Vec<u32>)]) -> Result<()> {
    match flags.iter().find(|(flag, _)| flag.last_seq >= SEQ_LIMIT) {
        None => Ok(()),
        Some((flag, _)) => Err(Input::bad(&format!(
            "a flush flag has sequence number {}",
            flag.last_seq
        ))),
    }
}
