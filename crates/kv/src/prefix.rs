//! Prefixes of keys: how a family cuts them, and how an iterator over one prefix tells its sources
//! to skip the rest.
//!
//! Only families in bytewise order have prefixes, and the keys of one prefix are adjacent in that
//! order. This module relies on that. A table without a key of the prefix, and a key beyond the
//! prefix's keys, end a sorted level for it.
//!
//! There are two ways to a [`Narrow`]. An iterator with `prefix_same_as_start` only shows keys with
//! the prefix of the key it was sought with, by [`Narrowing::forward`] and [`Narrowing::backward`].
//! Any other iterator is narrowed if its bounds leave only one prefix. Only the built-in extractors
//! can prove that ([`Prefixes::spans_one`]). The results are the same, with fewer reads.

use crate::MAX_KEY_LEN;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Distinguishes prefixes from whole keys of the same bytes in one filter. Persisted.
const PREFIX_SEED: u64 = 0x7072_6566_6978;

/// The longest name of an extractor, in bytes.
pub const MAX_NAME: usize = 255;

/// The beginning of the names of built-in extractors.
const BUILT_IN: &str = "basalt.";

/// User code that decides how many first bytes of a key are its prefix.
///
/// If it breaks one of these laws, iterators with `prefix_same_as_start` miss keys:
/// - A name stands for one function for ever. Tables store the name, and a table made under another
///   name is read without the help of its filter.
/// - The keys of one prefix are adjacent: a key between two keys of a prefix has that prefix too.
pub trait PrefixExtractor: Send + Sync {
    /// Returns a name that identifies the function with its parameters: 1 to 255 bytes, and not
    /// beginning with `basalt.`.
    fn name(&self) -> &str;
    /// Returns the bytes of the key's prefix, or `None` for a key that has none. A number above the
    /// key's length counts as none.
    fn prefix_len(&self, key: &[u8]) -> Option<usize>;
}

/// The way in which a family cuts prefixes from its keys: a built-in extractor, or a user's.
#[derive(Clone)]
#[non_exhaustive]
pub enum Prefixes {
    /// The first this many bytes. Shorter keys have no prefix.
    Fixed(usize),
    /// The first this many bytes. A shorter key is its own prefix.
    Capped(usize),
    /// The bytes up to and including the first such byte. Keys without it have no prefix.
    Delimited(u8),
    /// A user's extractor.
    Custom(Arc<dyn PrefixExtractor>),
}

impl fmt::Debug for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Prefixes {
    /// Returns the persisted name.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Prefixes::Fixed(n) => format!("{BUILT_IN}fixed:{n}").into(),
            Prefixes::Capped(n) => format!("{BUILT_IN}capped:{n}").into(),
            Prefixes::Delimited(byte) => format!("{BUILT_IN}delimited:{byte}").into(),
            Prefixes::Custom(p) => p.name().into(),
        }
    }

    /// Returns the built-in extractor of this name, if there is one. So a table can be verified by
    /// its name alone.
    pub fn built_in(name: &str) -> Option<Prefixes> {
        let (kind, n) = name.strip_prefix(BUILT_IN)?.split_once(':')?;
        let found = match kind {
            "fixed" => Prefixes::Fixed(n.parse().ok()?),
            "capped" => Prefixes::Capped(n.parse().ok()?),
            "delimited" => Prefixes::Delimited(n.parse().ok()?),
            _ => return None,
        };
        // An extractor has one name: no signs, no leading zeros.
        (found.name() == name && found.check().is_ok()).then_some(found)
    }

    /// Checks the parameters. The error says in words for the user what is wrong.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Prefixes::Fixed(n) | Prefixes::Capped(n) if !(1..=MAX_KEY_LEN).contains(n) => Err(
                format!("prefix_extractor cuts {n} bytes, allowed are 1 to {MAX_KEY_LEN}"),
            ),
            Prefixes::Custom(p) if !(1..=MAX_NAME).contains(&p.name().len()) => Err(format!(
                "prefix_extractor has a name of {} bytes, allowed are 1 to {MAX_NAME}",
                p.name().len()
            )),
            Prefixes::Custom(p) if p.name().starts_with(BUILT_IN) => Err(format!(
                "prefix_extractor is named {:?}: names beginning with {BUILT_IN:?} are taken by what is built in",
                p.name()
            )),
            _ => Ok(()),
        }
    }

    /// Returns the key's prefix, if it has one.
    pub fn of<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        match self {
            Prefixes::Fixed(n) => key.get(..*n),
            Prefixes::Capped(n) => Some(&key[..key.len().min(*n)]),
            Prefixes::Delimited(byte) => {
                let at = key.iter().position(|b| b == byte)?;
                Some(&key[..=at])
            }
            Prefixes::Custom(p) => p.prefix_len(key).and_then(|n| key.get(..n)),
        }
    }

    /// Returns true if it is certain that every key that begins with `prefix`, a prefix of some
    /// key, has this prefix.
    fn is_whole(&self, prefix: &[u8]) -> bool {
        match self {
            Prefixes::Fixed(_) | Prefixes::Delimited(_) => true,
            // A key as short as that is its own prefix, and its continuations have other prefixes.
            Prefixes::Capped(n) => prefix.len() == *n,
            // A user's code is not relied on for keys that it was not called with.
            Prefixes::Custom(_) => false,
        }
    }

    /// Returns true if it is certain that every key from `first` on and before `end`, in bytewise
    /// order, has the prefix of `first`.
    pub fn spans_one(&self, first: &[u8], end: &[u8]) -> bool {
        let Some(prefix) = self.of(first) else {
            return false;
        };
        if !self.is_whole(prefix) {
            return false;
        }
        // The first key behind all keys with the prefix ends at the prefix's last byte below 0xff,
        // increased by one.
        let Some(at) = prefix.iter().rposition(|b| *b < 0xff) else {
            return true;
        };
        let behind = prefix[..at].iter().copied().chain([prefix[at] + 1]);
        end.iter().copied().cmp(behind).is_le()
    }
}

/// Returns the hash under which a prefix is in filters.
#[inline]
pub fn prefix_hash(prefix: &[u8]) -> u64 {
    xxh3_64_with_seed(prefix, PREFIX_SEED)
}

/// One prefix that an iterator looks for.
#[derive(Debug)]
pub struct Narrow {
    prefixes: Prefixes,
    name: Arc<str>,
    /// A key of the prefix, whether or not it was ever written.
    member: Box<[u8]>,
    len: usize,
    hash: u64,
}

impl Narrow {
    /// Returns the hash of the prefix, if a filter that was made with the extractor of this name
    /// can be asked for it.
    pub fn hash_for(&self, extractor: Option<&str>) -> Option<u64> {
        (extractor == Some(&*self.name)).then_some(self.hash)
    }

    /// Returns true if the key has this prefix.
    #[inline]
    pub fn has(&self, key: &[u8]) -> bool {
        // The comparison comes first: it decides most cases, so a user's code is called less often.
        key.starts_with(&self.member[..self.len])
            && self
                .prefixes
                .of(key)
                .is_some_and(|prefix| prefix.len() == self.len)
    }

    /// Returns true if no key between the two user keys, ends included, can have this prefix.
    pub fn is_outside(&self, smallest: &[u8], largest: &[u8]) -> bool {
        (*self.member < *smallest && !self.has(smallest))
            || (*self.member > *largest && !self.has(largest))
    }
}

/// The narrowing of one iterator: what its sources may skip, and where the iterator ends because of
/// the prefix.
pub struct Narrowing {
    prefixes: Prefixes,
    name: Arc<str>,
    same_as_start: bool,
    /// The only prefix that is shown. It is set only with `same_as_start`.
    only: Option<Arc<Narrow>>,
    /// True if the cursor was sought without a key, and is on no key yet. The prefix will be that
    /// of the first key.
    open: bool,
}

impl Narrowing {
    /// Returns the narrowing of a cursor over keys with these prefixes. With `same_as_start`, the
    /// cursor stays within the prefix that it was sought to.
    pub fn new(prefixes: Prefixes, same_as_start: bool) -> Narrowing {
        Narrowing {
            name: prefixes.name().into(),
            prefixes,
            same_as_start,
            only: None,
            open: false,
        }
    }

    fn to(&self, key: &[u8]) -> Option<Arc<Narrow>> {
        let prefix = self.prefixes.of(key)?;
        Some(Arc::new(Narrow {
            prefixes: self.prefixes.clone(),
            name: self.name.clone(),
            len: prefix.len(),
            hash: prefix_hash(prefix),
            member: key.into(),
        }))
    }

    /// Begins a new seek, with a key or without one.
    pub fn start(&mut self, key: Option<&[u8]>) {
        self.open = key.is_none();
        self.only = match key {
            Some(key) if self.same_as_start => self.to(key),
            _ => None,
        };
    }

    /// Records that the cursor is now on a key.
    pub fn land(&mut self, key: &[u8]) {
        if self.open {
            self.start(Some(key));
        }
    }

    /// Returns false if the key is beyond the keys that may be shown.
    #[inline]
    pub fn allows(&self, key: &[u8]) -> bool {
        self.only.as_ref().is_none_or(|only| only.has(key))
    }

    /// Returns what the sources may be narrowed to before the cursor walks up from `from`,
    /// included, to `upper`, excluded.
    pub fn forward(&self, from: &[u8], upper: Option<&[u8]>) -> Option<Arc<Narrow>> {
        match upper {
            _ if self.only.is_some() => self.only.clone(),
            Some(upper) if self.prefixes.spans_one(from, upper) => self.to(from),
            _ => None,
        }
    }

    /// Returns what the sources may be narrowed to before the cursor walks down from before `end`
    /// to `lower`, included.
    pub fn backward(&self, lower: Option<&[u8]>, end: Option<&[u8]>) -> Option<Arc<Narrow>> {
        if self.only.is_some() {
            return self.only.clone();
        }
        let (lower, end) = (lower?, end?);
        (self.prefixes.spans_one(lower, end)).then(|| self.to(lower))?
    }

    /// Returns the narrowing of [`Narrowing::backward`] for a walk down from `last` itself, which
    /// has the prefix or is the first key behind it.
    pub fn backward_from(&self, lower: Option<&[u8]>, last: &[u8]) -> Option<Arc<Narrow>> {
        let to = self.backward(lower, Some(last))?;
        (self.only.is_some() || to.has(last)).then_some(to)
    }
}

#[cfg(test)]
mod tests;
