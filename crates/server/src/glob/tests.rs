//! Patterns against the matcher of earlier versions, and the number of steps of a match.

use super::*;
use basalt::env::Random;

#[test]
fn patterns_match_as_in_redis() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("*", "anything", true),
        ("", "", true),
        ("", "a", false),
        ("h?llo", "hello", true),
        ("h?llo", "hllo", false),
        ("h*llo", "heeeello", true),
        ("h[ae]llo", "hallo", true),
        ("h[ae]llo", "hillo", false),
        ("h[^e]llo", "hello", false),
        ("h[^e]llo", "hbllo", true),
        ("h[a-b]llo", "hbllo", true),
        ("h[b-a]llo", "hallo", true),
        ("h\\*llo", "h*llo", true),
        ("h\\*llo", "hello", false),
        ("[\\]]", "]", true),
        ("*a*b*c*", "xxaxxbxxc", true),
        ("*a*b*c*", "xxaxxcxxb", false),
        ("user:*:name", "user:42:name", true),
        ("user:*:name", "user:42:mail", false),
        ("a\\", "a\\", true),
        // Redis reads a pattern only while the text has a byte left. The exception is the single
        // star, which KEYS and SCAN do not match at all.
        ("**", "", false),
        ("***", "", false),
        ("**", "a", true),
        ("a**", "a", true),
        ("**a", "a", true),
    ] {
        assert_eq!(
            matches(pattern.as_bytes(), text.as_bytes(), false),
            expected,
            "{pattern:?} on {text:?}"
        );
    }
    assert!(matches(b"MAX*", b"maxmemory", true));
    // With this pattern, naive matchers take exponential time.
    let text = vec![b'a'; 20_000];
    assert!(!matches(b"*a*a*a*a*a*a*a*a*a*a*a*a*b", &text, false));
    assert_eq!(literal_prefix(b"user:\\*x?*"), b"user:*x");
    assert_eq!(literal_prefix(b"*"), b"");
}

/// The matcher of earlier versions, which reads a class anew for every byte of the text.
fn matches_slowly(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty() || pattern == b"*";
    }
    let (mut p, mut t) = (0, 0);
    // After a failed literal, the match continues behind the last star, one byte further in the
    // text.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            while p < pattern.len() && pattern[p] == b'*' {
                p += 1;
            }
            if p == pattern.len() {
                return true;
            }
            star = Some((p, t));
            continue;
        }
        if t < text.len() {
            if let Some(next) = one(pattern, p, text[t], ignore_case) {
                p = next;
                t += 1;
                continue;
            }
        } else if p == pattern.len() {
            return true;
        }
        match star {
            Some((after_star, from)) if from < text.len() => {
                star = Some((after_star, from + 1));
                p = after_star;
                t = from + 1;
            }
            _ => return false,
        }
    }
}

/// Matches one byte against the pattern element at `p`. Returns the position behind the element, or
/// `None`.
fn one(pattern: &[u8], p: usize, byte: u8, ignore_case: bool) -> Option<usize> {
    let fold = |b: u8| {
        if ignore_case {
            b.to_ascii_lowercase()
        } else {
            b
        }
    };
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => {
            let mut at = p + 1;
            let negated = pattern.get(at) == Some(&b'^');
            if negated {
                at += 1;
            }
            let mut found = false;
            loop {
                match pattern.get(at) {
                    // An unclosed class ends with the pattern, as in Redis.
                    None => break,
                    Some(b']') => {
                        at += 1;
                        break;
                    }
                    Some(b'\\') if at + 1 < pattern.len() => {
                        at += 1;
                        found |= fold(pattern[at]) == fold(byte);
                        at += 1;
                    }
                    Some(&from) if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() => {
                        let (mut from, mut to) = (fold(from), fold(pattern[at + 2]));
                        if from > to {
                            std::mem::swap(&mut from, &mut to);
                        }
                        found |= (from..=to).contains(&fold(byte));
                        at += 3;
                    }
                    Some(&b) => {
                        found |= fold(b) == fold(byte);
                        at += 1;
                    }
                }
            }
            (found != negated).then_some(at)
        }
        b'\\' if p + 1 < pattern.len() => (fold(pattern[p + 1]) == fold(byte)).then_some(p + 2),
        b => (fold(b) == fold(byte)).then_some(p + 1),
    }
}

fn from(random: &Random, letters: &[u8], most: u64) -> Vec<u8> {
    let len = random.below(most + 1);
    let letter = |_| letters[random.below(letters.len() as u64) as usize];
    (0..len).map(letter).collect()
}

#[test]
fn random_patterns_match_as_they_did_before_they_were_compiled() {
    let random = Random::from_seed(0x910b);
    let mut matched = 0;
    for _ in 0..60_000 {
        let pattern = from(&random, b"aabB-[]^\\?**", 10);
        let text = from(&random, b"aabB-]", 12);
        for ignore_case in [false, true] {
            let expected = matches_slowly(&pattern, &text, ignore_case);
            assert_eq!(
                matches(&pattern, &text, ignore_case),
                expected,
                "{:?} on {:?}",
                String::from_utf8_lossy(&pattern),
                String::from_utf8_lossy(&text)
            );
            matched += u32::from(expected);
        }
    }
    assert!(matched > 3_000, "{matched}");
}

/// Segments that begin at, end at and cross words of 64 elements, with texts that nearly match.
#[test]
fn long_segments_match_as_they_did_before_they_were_compiled() {
    let random = Random::from_seed(0x910c);
    let mut matched = 0;
    for _ in 0..3_000 {
        let text = from(&random, b"aaaaaaab", 400);
        let mut pattern = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let len = (1 + random.below(180) as usize).min(text.len() - at);
            match random.below(3) {
                0 => pattern.push(b'*'),
                1 => pattern.extend_from_slice(&text[at..at + len]),
                _ => pattern.extend(text[at..at + len].iter().flat_map(|b| [b'[', *b, b']'])),
            }
            at += len;
        }
        if random.one_in(3) && !pattern.is_empty() {
            let place = random.below(pattern.len() as u64) as usize;
            pattern[place] = b"ab*?"[random.below(4) as usize];
        }
        let expected = matches_slowly(&pattern, &text, false);
        assert_eq!(
            matches(&pattern, &text, false),
            expected,
            "{pattern:?} on {text:?}"
        );
        matched += u32::from(expected);
    }
    assert!((1_000..2_900).contains(&matched), "{matched}");
}

/// Regression test: `SCAN MATCH` with a class of 60,000 bytes read the class again for every byte
/// of a key, and one key held the server for 40 seconds. Redis's own matcher took exponential time
/// for many stars (CVE-2022-36021) and recursed for each (CVE-2024-31228).
#[test]
fn a_match_of_any_pattern_takes_few_steps() {
    const LONGEST: usize = 65_530;
    let text = vec![b'a'; LONGEST];
    let n = LONGEST as u64;
    let steps_of = |pattern: &[u8]| {
        let mut steps = 0;
        let pattern = Pattern::new(pattern, false, LONGEST);
        let matched = pattern.matches_counting(&text, &mut steps);
        (matched, steps)
    };
    let class = [b"[", &vec![b'x'; 60_000][..], b"]"].concat();
    for pattern in [
        [b"*", &class[..], b"b"].concat(),
        [b"*", &class[..], b"*"].concat(),
        b"*a".repeat(200_000),
        [&b"*a".repeat(30_000)[..], b"b*"].concat(),
        b"*".repeat(1_000_000),
        [&b"*?".repeat(30_000)[..], b"[^a]"].concat(),
        b"?".repeat(10_000_000),
        b"[".repeat(10_000_000),
    ] {
        let (_, steps) = steps_of(&pattern);
        let begin = String::from_utf8_lossy(&pattern[..8]).into_owned();
        assert!(steps <= 2 * n, "{steps} steps for {begin}...");
    }
    // The worst case is a segment of half the text's length that fails only at its end.
    for segment in [100, 10_000, LONGEST / 2, LONGEST - 2] {
        let pattern = [b"*", &vec![b'a'; segment][..], b"b*"].concat();
        let (matched, steps) = steps_of(&pattern);
        assert!(!matched);
        assert!(steps <= 2 * n + n * n / 256, "{steps} steps for {segment}");
    }
    // A pattern that cannot match any text is not kept.
    let long = Pattern::new(&b"?".repeat(1_000_000), false, 1_000);
    assert_eq!(long.elements.len(), 1_000);
    assert!(!long.matches(&[b'a'; 1_000]));
}
