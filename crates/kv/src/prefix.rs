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

/// How a family cuts prefixes from its keys: by a built-in extractor, or by a user's.
#[derive(Clone)]
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
mod tests {
    use super::*;

    struct FirstWord;
    impl PrefixExtractor for FirstWord {
        fn name(&self) -> &str {
            "test.first-word"
        }
        fn prefix_len(&self, key: &[u8]) -> Option<usize> {
            key.iter().position(|b| *b == b' ')
        }
    }

    fn all() -> Vec<Prefixes> {
        vec![
            Prefixes::Fixed(1),
            Prefixes::Fixed(2),
            Prefixes::Capped(1),
            Prefixes::Capped(2),
            Prefixes::Delimited(b':'),
            Prefixes::Delimited(0xff),
            Prefixes::Custom(Arc::new(FirstWord)),
        ]
    }

    /// Returns every key of up to three bytes out of these, in order.
    fn keys() -> Vec<Vec<u8>> {
        let bytes = [0, b' ', b':', b';', 0xfe, 0xff];
        let mut all = vec![vec![]];
        let mut from = 0;
        for _ in 0..3 {
            let to = all.len();
            for i in from..to {
                for b in bytes {
                    let mut longer = all[i].clone();
                    longer.push(b);
                    all.push(longer);
                }
            }
            from = to;
        }
        all.sort();
        all
    }

    /// The law that narrowing relies on holds for the built-in extractors.
    #[test]
    fn keys_of_one_prefix_are_adjacent() {
        let keys = keys();
        for p in all() {
            for (i, a) in keys.iter().enumerate() {
                let Some(prefix) = p.of(a) else { continue };
                assert!(a.starts_with(prefix));
                let same = |k: &Vec<u8>| p.of(k) == Some(prefix);
                let behind = keys[i..].iter().position(|k| !same(k));
                let behind = i + behind.unwrap_or(keys.len() - i);
                assert!(!keys[behind..].iter().any(same), "{p:?} {prefix:?}");
            }
        }
    }

    /// In another engine, upper bounds that are a prefix's successor once hid keys shorter than the
    /// prefix from an iterator.
    #[test]
    fn bounds_span_one_prefix_only_when_all_keys_between_have_it() {
        let keys = keys();
        let mut spans = 0;
        for p in all() {
            for (i, first) in keys.iter().enumerate() {
                for end in &keys[i..] {
                    if !p.spans_one(first, end) {
                        continue;
                    }
                    spans += 1;
                    let prefix = p.of(first).expect("it has one");
                    let between = keys[i..].iter().take_while(|k| *k < end);
                    for k in between {
                        assert_eq!(p.of(k), Some(prefix), "{p:?} {first:?} {end:?} {k:?}");
                    }
                }
            }
        }
        assert!(spans > 1000, "{spans}");
        assert!(Prefixes::Fixed(2).spans_one(b"abc", b"ac"));
        assert!(!Prefixes::Fixed(2).spans_one(b"abc", b"ac\0"));
        assert!(Prefixes::Fixed(1).spans_one(b"\xff\xff", b"\xff\xff\xff"));
        assert!(Prefixes::Delimited(b':').spans_one(b"a:x", b"a;"));
    }

    #[test]
    fn a_range_is_outside_only_if_it_has_no_key_of_the_prefix() {
        let keys = keys();
        for p in all() {
            let narrowing = Narrowing::new(p.clone(), true);
            for member in keys.iter().step_by(3) {
                let Some(narrow) = narrowing.to(member) else {
                    continue;
                };
                for from in (0..keys.len()).step_by(7) {
                    for to in (from..keys.len()).step_by(11) {
                        if narrow.is_outside(&keys[from], &keys[to]) {
                            let inside = keys[from..=to].iter().find(|k| narrow.has(k));
                            assert_eq!(inside, None, "{p:?} {member:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn each_prefix_extractor_has_its_own_checked_name() {
        for p in all() {
            let again = Prefixes::built_in(&p.name());
            match p {
                Prefixes::Custom(_) => assert!(again.is_none()),
                _ => assert_eq!(again.expect("built in").name(), p.name()),
            }
            assert_eq!(p.check(), Ok(()));
        }
        for wrong in [
            "basalt.fixed:0",
            "basalt.fixed:+3",
            "basalt.fixed:03",
            "basalt.capped:65537",
            "basalt.delimited:256",
            "basalt.other:1",
            "fixed:1",
            "basalt.fixed",
        ] {
            assert!(Prefixes::built_in(wrong).is_none(), "{wrong}");
        }
        struct Named(&'static str);
        impl PrefixExtractor for Named {
            fn name(&self) -> &str {
                self.0
            }
            fn prefix_len(&self, _: &[u8]) -> Option<usize> {
                Some(usize::MAX)
            }
        }
        for wrong in ["", "basalt.mine"] {
            assert!(Prefixes::Custom(Arc::new(Named(wrong))).check().is_err());
        }
        assert!(Prefixes::Fixed(0).check().is_err());
        // A length beyond the key is no prefix.
        assert_eq!(Prefixes::Custom(Arc::new(Named("n"))).of(b"key"), None);
    }
}
