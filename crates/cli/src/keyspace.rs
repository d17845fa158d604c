//! The keys of Redis clients, in the encoding of the server (`docs/format/redis-keys.md`).
//!
//! The tool works on strings of database 0 in its current generation.

use basalt::{Db, Family, Options, Result};
use basalt_server::catalog;
pub use basalt_server::layout::STRING_HEADER;
use basalt_server::layout::{self, DataType};

/// The family and the generation that database 0 lives in.
pub struct Keyspace {
    pub family: Family,
    prefix: [u8; layout::KEY_PREFIX_LEN],
}

impl Keyspace {
    /// Opens the keyspace. The result is `None` in a store without Redis keys. Refuses a layout of
    /// a newer version, and a catalog of which a part is lost.
    pub fn find(db: &Db) -> Result<Option<Keyspace>> {
        let Some(family) = db.family(layout::KEYS_FAMILY) else {
            return Ok(None);
        };
        let Some(generation) = catalog::read(db, &family)? else {
            return Ok(None);
        };
        Ok(Some(Keyspace {
            prefix: layout::key_prefix(DATABASE, generation),
            family,
        }))
    }

    /// Opens the keyspace, or makes it with these options.
    pub fn make(db: &Db, options: &Options) -> Result<Keyspace> {
        if let Some(found) = Keyspace::find(db)? {
            return Ok(found);
        }
        let family = match db.family(layout::KEYS_FAMILY) {
            Some(family) => family,
            None => db.create_family(
                layout::KEYS_FAMILY,
                options.family(layout::KEYS_FAMILY).clone(),
            )?,
        };
        catalog::make(db, &family)?;
        Ok(Keyspace::find(db)?.expect("its layout was just written"))
    }

    /// Returns the stored key of a Redis key.
    pub fn stored_key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix[..], key].concat()
    }

    /// Returns the Redis key of a stored key, or `None` if the stored key is not one of this
    /// database.
    pub fn user_key<'a>(&self, stored: &'a [u8]) -> Option<&'a [u8]> {
        stored.strip_prefix(&self.prefix[..])
    }

    /// Returns the offset of a string in a stored value, or the name of the type if it is no
    /// string.
    pub fn string_at(stored: &[u8]) -> Result<std::result::Result<usize, &'static str>> {
        Ok(match layout::value_type(stored)? {
            DataType::String => Ok(STRING_HEADER.len()),
            other => Err(other.name()),
        })
    }
}

/// The database that the tool works on. The server has no other yet.
const DATABASE: u16 = 0;

/// Bytes that the encoding adds to a key. The limit of a user's key is lower by this number.
pub const KEY_OVERHEAD: usize = layout::KEY_PREFIX_LEN;
/// Bytes that the encoding adds to a value. The limit of a user's value is lower by this number.
pub const VALUE_OVERHEAD: usize = STRING_HEADER.len();
