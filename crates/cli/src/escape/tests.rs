//! Tests of the module `escape`.

use super::*;

#[test]
fn every_byte_string_is_escaped_to_one_safe_line_and_back() {
    let random = basalt::env::Random::from_seed(1);
    for case in 0..5000u64 {
        let len = random.below(40) as usize;
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                if case % 2 == 0 {
                    random.next_u64() as u8
                } else {
                    b"\\xnt\n\t\x1b\xc2\x9b\xe2\x80\xaeA0"[random.below(14) as usize]
                }
            })
            .collect();
        let text = escape(&bytes);
        assert!(!text.chars().any(is_unsafe), "{text:?}");
        assert_eq!(unescape(text.as_bytes()).unwrap(), bytes, "{text:?}");
    }
}

#[test]
fn printable_text_stays_readable() {
    assert_eq!(escape("Grüße, 世界 \"x\"".as_bytes()), "Grüße, 世界 \"x\"");
    assert_eq!(escape(b"\x1b[2J\xff\\"), "\\x1b[2J\\xff\\\\");
    assert_eq!(escape("\u{202e}".as_bytes()), "\\xe2\\x80\\xae");
}

#[test]
fn invalid_escapes_are_refused_by_name() {
    for (text, says) in [
        ("\\q", "\\q is unknown"),
        ("abc\\", "at the end"),
        ("\\x1", "cut off"),
        ("\\xzz", "\\xzz is not"),
    ] {
        let e = unescape(text.as_bytes()).unwrap_err();
        assert!(e.contains(says), "{text}: {e}");
    }
}

#[test]
fn words_for_a_shell_are_quoted_where_it_is_needed() {
    for (word, quoted) in [
        ("i.lava:logs", "i.lava:logs"),
        ("", "''"),
        ("a b", "'a b'"),
        ("it's $x", "'it'\\''s $x'"),
        ("it's\t\x1b", "$'it\\'s\\t\\x1b'"),
    ] {
        assert_eq!(for_shell(word.as_bytes()), quoted);
    }
}
