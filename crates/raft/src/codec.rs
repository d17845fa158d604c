//! Persisted values: a version, then the value in postcard's format.
//!
//! postcard writes no field names, and small numbers as varints: an entry costs some ten bytes more
//! than its command.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Version of the format, the first byte of each value.
const VERSION: u8 = 1;

/// Returns the encoded value.
///
/// Errors: the message of a type that cannot be encoded. A debug build also decodes the value, so
/// that a type that needs field names fails when it is written, and not after a restart.
pub(crate) fn encode<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<u8>, String> {
    let bytes = postcard::to_extend(value, vec![VERSION])
        .map_err(|e| format!("the value cannot be encoded: {e}"))?;
    if cfg!(debug_assertions) {
        decode::<T>(&bytes).map_err(|e| {
            format!("{e}; its type must not use untagged, flatten or skip_serializing_if of serde")
        })?;
    }
    Ok(bytes)
}

/// Returns the value. The error says what is wrong with the bytes.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => match postcard::take_from_bytes(rest) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(format!("{} bytes follow the value", rest.len())),
            Err(e) => Err(format!("the value cannot be decoded: {e}")),
        },
        Some((version, _)) => Err(format!(
            "the value has version {version}; this build reads {VERSION}"
        )),
        None => Err("the value is empty".to_string()),
    }
}

#[cfg(test)]
mod tests;
