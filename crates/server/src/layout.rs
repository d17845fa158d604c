//! Encoding of Redis keys and values in the engine, for every data type, pinned byte by byte to
//! `docs/format/redis-keys.md`. Strings and streams are served today. The other collections'
//! encodings are fixed before the first of them is written, so that no store will have to be
//! converted.
//!
//! # Families
//! `redis.keys` has one entry per Redis key, so that SCAN and DBSIZE never read elements;
//! `redis.elements` has the elements of collections. The family `default` is left to other users of
//! the engine.
//!
//! # Keys
//! - `redis.keys`: database (u16, big-endian), generation (u32, big-endian), the key's own bytes.
//! - Database `0xffff` is the catalog: the layout of the store, and the current generation of each
//!   database.
//! - `redis.elements`: database, generation, incarnation (u64, big-endian), then bytes that depend
//!   on the type.
//!
//! A flush of a database writes its next generation into the catalog: one small write, atomic with
//! the other writes of a batch. Compactions drop the entries of older generations. The deletion of
//! a collection removes its entry in `redis.keys`. Its elements carry the incarnation, a number
//! that is never used again, so nothing leads to them any more.
//!
//! # Values in `redis.keys`
//! One byte: type in the low four bits, reserved flags (0) in the high four. A string's bytes
//! follow as they are. Its expiry is the engine's own (`put_ttl`), so compactions drop it when it
//! has expired. A [`CollectionHeader`] follows for a collection. Its expiry is in the header,
//! because its elements must be found when it expires.

use basalt::{Bytes, Error, ErrorKind, Result};

/// Names of families and logs that begin with this prefix are the server's. Nothing else writes to
/// them.
pub const SERVER_PREFIX: &str = "redis.";
/// The family with one entry per Redis key.
pub const KEYS_FAMILY: &str = "redis.keys";
/// The family with the elements of collections.
pub const ELEMENTS_FAMILY: &str = "redis.elements";
/// The database number that holds the catalog.
pub const CATALOG: u16 = 0xffff;
/// The version of the layout in this module.
pub const LAYOUT_VERSION: u16 = 1;
/// Bytes in front of a Redis key.
pub const KEY_PREFIX_LEN: usize = 6;
/// Longest Redis key in bytes.
pub const MAX_KEY_LEN: usize = basalt::MAX_KEY_LEN - KEY_PREFIX_LEN;
/// The least `min_blob_size` of the Redis families, in bytes. No header of a collection is so long,
/// with the fields of its type. So a separated value is always a string, and walks over keys need
/// not read it.
pub const LEAST_MIN_BLOB_SIZE: usize = 256;
/// Bytes of a [`CollectionHeader`] with its type byte.
pub const COLLECTION_HEADER_LEN: usize = 26;

/// The type of a value. The numbers are persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DataType {
    /// A string of bytes.
    String = 0,
    /// Fields with values.
    Hash = 1,
    /// A sequence of values.
    List = 2,
    /// Distinct members.
    Set = 3,
    /// Members with scores.
    Zset = 4,
    /// Entries with ids.
    Stream = 5,
}

impl DataType {
    /// Returns the type of a number.
    pub fn from_u8(n: u8) -> Option<DataType> {
        Some(match n {
            0 => DataType::String,
            1 => DataType::Hash,
            2 => DataType::List,
            3 => DataType::Set,
            4 => DataType::Zset,
            5 => DataType::Stream,
            _ => return None,
        })
    }
    /// Returns the name in a reply to TYPE.
    pub fn name(self) -> &'static str {
        match self {
            DataType::String => "string",
            DataType::Hash => "hash",
            DataType::List => "list",
            DataType::Set => "set",
            DataType::Zset => "zset",
            DataType::Stream => "stream",
        }
    }
}

/// The first byte of a string's value.
pub const STRING_HEADER: [u8; 1] = [DataType::String as u8];

/// Returns the prefix of every key of a generation of a database.
pub fn key_prefix(database: u16, generation: u32) -> [u8; KEY_PREFIX_LEN] {
    let mut out = [0; KEY_PREFIX_LEN];
    out[..2].copy_from_slice(&database.to_be_bytes());
    out[2..].copy_from_slice(&generation.to_be_bytes());
    out
}

/// Returns the engine key of a Redis key.
pub fn encode_key(database: u16, generation: u32, key: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(KEY_PREFIX_LEN + key.len());
    out.extend_from_slice(&key_prefix(database, generation));
    out.extend_from_slice(key);
    out.into()
}

/// Returns database, generation and Redis key of an engine key, or `None` for keys of the catalog.
pub fn decode_key(key: &[u8]) -> Option<(u16, u32, &[u8])> {
    let (database, rest) = key.split_first_chunk::<2>()?;
    let database = u16::from_be_bytes(*database);
    if database == CATALOG {
        return None;
    }
    let (generation, user_key) = rest.split_first_chunk::<4>()?;
    Some((database, u32::from_be_bytes(*generation), user_key))
}

/// Returns the first engine key behind everything that begins with `prefix`.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    assert!(!end.is_empty(), "a prefix of 0xff bytes has no end");
    end
}

/// Returns the prefix of the catalog's keys.
pub fn catalog_start() -> [u8; 2] {
    CATALOG.to_be_bytes()
}

/// Returns the catalog key of the layout record.
pub fn layout_key() -> Vec<u8> {
    [&CATALOG.to_be_bytes()[..], b"layout"].concat()
}

/// Returns the layout record: version (u16), features that a reader must understand (u64), both
/// little-endian.
pub fn encode_layout() -> [u8; 10] {
    let mut out = [0; 10];
    out[..2].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    out
}

/// Refuses a layout that this version does not understand.
pub fn check_layout(record: &[u8]) -> Result<()> {
    let Ok(record): std::result::Result<[u8; 10], _> = record.try_into() else {
        return Err(damaged("layout record", record.len(), 10));
    };
    let version = u16::from_le_bytes([record[0], record[1]]);
    let features = u64::from_le_bytes(record[2..].try_into().expect("8 bytes"));
    if version != LAYOUT_VERSION || features != 0 {
        return Err(Error::unsupported(format!(
            "this store's Redis data has layout version {version} with features {features:#x}; this build reads version {LAYOUT_VERSION} without features: use the newer version that wrote it"
        )));
    }
    Ok(())
}

/// Returns the catalog key of a database's generation.
pub fn generation_key(database: u16) -> Vec<u8> {
    [
        &CATALOG.to_be_bytes()[..],
        b"generation",
        &database.to_be_bytes()[..],
    ]
    .concat()
}

/// Decodes a generation record: u32, little-endian. A database without a record has generation 0.
pub fn decode_generation(record: &[u8]) -> Result<u32> {
    record
        .try_into()
        .map(u32::from_le_bytes)
        .map_err(|_| damaged("generation record", record.len(), 4))
}

/// Returns the catalog key of the next cursor number.
pub fn cursor_key() -> Vec<u8> {
    [&CATALOG.to_be_bytes()[..], b"cursor"].concat()
}

/// Returns the catalog key of the next incarnation number.
pub fn incarnation_key() -> Vec<u8> {
    [&CATALOG.to_be_bytes()[..], b"incarnation"].concat()
}

/// Decodes an incarnation record: the first number that was never reserved (u64, little-endian), at
/// least 1.
pub fn decode_incarnation(record: &[u8]) -> Result<u64> {
    let bytes = record
        .try_into()
        .map_err(|_| damaged("incarnation record", record.len(), 8))?;
    match u64::from_le_bytes(bytes) {
        0 => Err(Error::new(
            ErrorKind::Corruption,
            "incarnation record of the Redis catalog: 0 is no incarnation",
        )),
        n => Ok(n),
    }
}

/// Returns the expiry of a value in `redis.keys`, in ms since 1970. The expiry of a string is that
/// of the engine, and the expiry of a collection is in its header.
pub fn expiry_of(value: &[u8], engine_expiry: Option<u64>) -> Result<Option<u64>> {
    if value_type(value)? == DataType::String {
        return Ok(engine_expiry);
    }
    let (header, _) = CollectionHeader::decode(value)?;
    Ok((header.expire_at_ms != 0).then_some(header.expire_at_ms))
}

/// Upper bound of cursors, exclusive. Clients may keep them as floating-point numbers.
pub const CURSOR_END: u64 = 1 << 53;

/// Decodes a cursor record: the first number that was never reserved (u64, little-endian), 1 to
/// [`CURSOR_END`].
pub fn decode_cursor(record: &[u8]) -> Result<u64> {
    let bytes = record
        .try_into()
        .map_err(|_| damaged("cursor record", record.len(), 8))?;
    match u64::from_le_bytes(bytes) {
        n @ 1..=CURSOR_END => Ok(n),
        n => Err(Error::new(
            ErrorKind::Corruption,
            format!("cursor record of the Redis catalog: {n} is no cursor"),
        )),
    }
}

fn damaged(what: &str, got: usize, expected: usize) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("{what} of the Redis catalog: expected {expected} bytes, found {got}"),
    )
}

/// Returns the type of a value in `redis.keys`.
pub fn value_type(value: &[u8]) -> Result<DataType> {
    match value.first() {
        None => Err(Error::new(
            ErrorKind::Corruption,
            "Redis value: expected a type byte, found nothing",
        )),
        Some(b) if b & 0xf0 != 0 => Err(Error::unsupported(format!(
            "Redis value with flags {:#x}, which a newer version wrote",
            b >> 4
        ))),
        Some(&b) => DataType::from_u8(b).ok_or_else(|| {
            Error::unsupported(format!(
                "Redis value of type {b}, which a newer version wrote"
            ))
        }),
    }
}

/// The value of a collection in `redis.keys`, without its type byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectionHeader {
    /// Hash, list, set, zset or stream.
    pub data_type: DataType,
    /// Encoding of the elements; 0 is the encoding of this module.
    pub encoding: u8,
    /// The number that the elements carry.
    pub incarnation: u64,
    /// Expiry in ms since 1970; 0 for never.
    pub expire_at_ms: u64,
    /// Number of elements.
    pub len: u64,
}

impl CollectionHeader {
    /// Returns the encoded header. Further fields of a type (a list's ends, a stream's last id)
    /// follow it.
    pub fn encode(&self) -> [u8; COLLECTION_HEADER_LEN] {
        let mut out = [0; COLLECTION_HEADER_LEN];
        out[0] = self.data_type as u8;
        out[1] = self.encoding;
        out[2..10].copy_from_slice(&self.incarnation.to_le_bytes());
        out[10..18].copy_from_slice(&self.expire_at_ms.to_le_bytes());
        out[18..26].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Decodes the header. Returns the bytes behind it, too.
    pub fn decode(value: &[u8]) -> Result<(CollectionHeader, &[u8])> {
        let data_type = value_type(value)?;
        if data_type == DataType::String {
            return Err(Error::invalid("a string has no collection header"));
        }
        let Some((h, rest)) = value.split_first_chunk::<COLLECTION_HEADER_LEN>() else {
            return Err(Error::new(
                ErrorKind::Corruption,
                format!(
                    "header of a Redis {}: expected {COLLECTION_HEADER_LEN} bytes, found {}",
                    data_type.name(),
                    value.len()
                ),
            ));
        };
        let n = |at: usize| u64::from_le_bytes(h[at..at + 8].try_into().expect("8 bytes"));
        Ok((
            CollectionHeader {
                data_type,
                encoding: h[1],
                incarnation: n(2),
                expire_at_ms: n(10),
                len: n(18),
            },
            rest,
        ))
    }
}

/// Returns the prefix of every element of a collection. Its field, member, index or id follows.
pub fn element_prefix(database: u16, generation: u32, incarnation: u64) -> [u8; 14] {
    let mut out = [0; 14];
    out[..6].copy_from_slice(&key_prefix(database, generation));
    out[6..].copy_from_slice(&incarnation.to_be_bytes());
    out
}

/// Encodes a score so that bytes order as numbers do: the sign bit is flipped, and all bits of
/// negative numbers. The score is never NaN; -0 is 0.
pub fn encode_score(score: f64) -> [u8; 8] {
    assert!(!score.is_nan(), "a score is a number");
    let bits = (score + 0.0).to_bits();
    let ordered = if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    };
    ordered.to_be_bytes()
}

/// Decodes the bytes of [`encode_score`].
pub fn decode_score(bytes: [u8; 8]) -> f64 {
    let ordered = u64::from_be_bytes(bytes);
    f64::from_bits(if ordered >> 63 == 1 {
        ordered & !(1 << 63)
    } else {
        !ordered
    })
}

/// Encodes a list index so that bytes order as indexes do. Both ends grow from 0.
pub fn encode_index(index: i64) -> [u8; 8] {
    ((index as u64) ^ 1 << 63).to_be_bytes()
}

const _: () = assert!(COLLECTION_HEADER_LEN == 1 + 1 + 8 + 8 + 8);
const _: () = assert!(KEY_PREFIX_LEN == 2 + 4);

#[cfg(test)]
mod tests;
