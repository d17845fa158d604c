//! The versions of a key that pages have as one entry.
//!
//! Pages have one entry for each key. Mostly it is a value or a tombstone. An entry of kind
//! [`Kind::Merge`] is a list: operands, and what is below them. Operands stay in a list if the
//! value below them may expire, because they outlive it, or if the merge operator refuses them,
//! because each reader is to get the error.

use basalt_fs::{Bytes, Error, ErrorKind, Result};
use basalt_kv::MAX_VALUE_LEN;
use basalt_kv::encoding::{get_varint64, put_varint};
use basalt_kv::entry::{FoundEntry, expiry_of};
use basalt_kv::key::{Kind, readable_key};
use basalt_kv::merge::{Chain, Merging};
use smallvec::{SmallVec, smallvec};

/// The versions of a key, the newest first.
pub(crate) type Versions = SmallVec<[(Kind, Bytes); 1]>;

/// Returns versions as one value: of each, its kind, its length and its bytes.
fn encode_versions(versions: &[(Kind, Bytes)]) -> Bytes {
    let mut out = Vec::new();
    for (kind, value) in versions {
        out.push(*kind as u8);
        put_varint(&mut out, value.len() as u64);
        out.extend_from_slice(value);
    }
    Bytes::from(out)
}

/// Returns the versions of a value that [`encode_versions`] made.
///
/// Errors: `Corruption` if it is another one.
fn decode_versions(value: &Bytes) -> Result<Versions> {
    let mut versions = Versions::new();
    let mut at = 0;
    while at < value.len() {
        let decoded = (|| {
            let kind = Kind::from_u8(value[at])?;
            at += 1;
            let len = usize::try_from(get_varint64(value, &mut at)?).ok()?;
            let end = at.checked_add(len).filter(|end| *end <= value.len())?;
            let bytes = value.slice(at..end);
            at = end;
            Some((kind, bytes))
        })();
        versions.push(decoded.ok_or_else(malformed)?);
    }
    match versions.is_empty() {
        true => Err(malformed()),
        false => Ok(versions),
    }
}

fn malformed() -> Error {
    let what = "a list of operands in a page does not decode";
    Error::new(ErrorKind::Corruption, what)
}

/// Returns the versions of an entry.
pub(crate) fn versions_of((kind, value): (Kind, Bytes)) -> Result<Versions> {
    match is_list(kind) {
        true => decode_versions(&value),
        false => Ok(smallvec![(kind, value)]),
    }
}

/// Returns true if an entry of this kind is a list of versions.
pub(crate) fn is_list(kind: Kind) -> bool {
    kind == Kind::Merge
}

/// Returns the newest version of an entry, as a reader finds it.
pub(crate) fn found_entry(entry: (Kind, Bytes)) -> Result<FoundEntry> {
    let mut versions = versions_of(entry)?;
    let seq = versions.len() as u64 - 1;
    let (kind, value) = versions.swap_remove(0);
    Ok(FoundEntry { seq, kind, value })
}

/// Returns versions as one entry, at wall time `now_ms`: merged as far as no reader can see it.
/// Nothing older is below them.
pub(crate) fn entry_of(
    mut versions: Versions,
    merging: &Merging,
    key: &[u8],
    now_ms: u64,
) -> Result<(Kind, Bytes)> {
    if let Some((Kind::PutTtl, value)) = versions.last()
        && expiry_of(value)? <= now_ms
    {
        versions.pop();
        if versions.is_empty() {
            return Ok((Kind::Delete, Bytes::new()));
        }
    }
    if let [(kind, value)] = &versions[..]
        && *kind != Kind::Merge
    {
        return Ok((*kind, value.clone()));
    }
    let has_expiry = versions
        .last()
        .is_some_and(|(kind, _)| *kind == Kind::PutTtl);
    if !has_expiry {
        let mut chain = Chain::default();
        for (kind, value) in &versions {
            chain.take(*kind, || value.clone(), now_ms)?;
        }
        if let Ok((value, _)) = chain.merge(merging, key) {
            return Ok((Kind::Put, value));
        }
    } else if versions.len() > 2 {
        let operands = &versions[..versions.len() - 1];
        let operands: Vec<&[u8]> = operands.iter().rev().map(|(_, value)| &value[..]).collect();
        if let Some(one) = merging.partial(key, &operands) {
            versions.drain(..versions.len() - 1);
            versions.insert(0, (Kind::Merge, Bytes::from(one)));
        }
    }
    let list = encode_versions(&versions);
    match list.len() <= MAX_VALUE_LEN {
        true => Ok((Kind::Merge, list)),
        false => Err(Error::invalid(format!(
            "the operands of key {} and the value below them have {} bytes, at most {MAX_VALUE_LEN} are allowed; delete the key",
            readable_key(key),
            list.len()
        ))),
    }
}
