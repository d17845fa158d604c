//! Redis's glob patterns: `*`, `?`, `[a-c]`, `[^a]` and `\` escapes, over bytes. Runs in time proportional to pattern
//! times text in the worst case: a `*` that failed is never tried again for an earlier `*`.

/// True when the whole `text` matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when a literal fails: after the last star, one byte further in the text.
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

/// Matches one byte against the pattern element at `p`; where the pattern goes on, or `None`.
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

/// The bytes that every match must begin with: lets a scan read only that part of the keyspace.
pub fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(&b) = pattern.get(at) {
        match b {
            b'*' | b'?' | b'[' => break,
            b'\\' if at + 1 < pattern.len() => {
                out.push(pattern[at + 1]);
                at += 2;
            }
            _ => {
                out.push(b);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes(), false),
                expected,
                "{pattern:?} on {text:?}"
            );
        }
        assert!(matches(b"MAX*", b"maxmemory", true));
        // A pattern that makes naive matchers take exponential time.
        let text = vec![b'a'; 20_000];
        assert!(!matches(b"*a*a*a*a*a*a*a*a*a*a*a*a*b", &text, false));
        assert_eq!(literal_prefix(b"user:\\*x?*"), b"user:*x");
        assert_eq!(literal_prefix(b"*"), b"");
    }
}
