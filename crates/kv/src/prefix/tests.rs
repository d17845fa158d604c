//! Unit tests of `prefix`.

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
