//! Tests of the module `text_entry`.

use super::*;

fn random_bytes(random: &basalt::env::Random) -> Vec<u8> {
    let alphabet: &[u8] = b"ab\t\n\r\\\"{}x0\xff\xc3\xa4\0";
    (0..random.below(12))
        .map(|_| alphabet[random.below(alphabet.len() as u64) as usize])
        .collect()
}

#[test]
fn both_formats_carry_any_bytes() {
    let random = basalt::env::Random::from_seed(2);
    for _ in 0..5000 {
        let record = KvRecord {
            key: random_bytes(&random),
            value: random_bytes(&random),
            expire_at_ms: random.one_in(2).then(|| random.next_u64()),
        };
        for format in [Format::Jsonl, Format::Tsv] {
            let mut line = String::new();
            format.print(
                &record.key,
                Some(&record.value),
                record.expire_at_ms,
                &mut line,
            );
            let line = line.strip_suffix('\n').unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(
                format.parse(line.as_bytes()).as_ref(),
                Ok(&record),
                "{line:?}"
            );
        }
    }
}

#[test]
fn a_wrong_line_is_refused_with_its_reason() {
    for (format, line, says) in [
        (Format::Jsonl, "{", "EOF"),
        (Format::Jsonl, "{\"key\":\"a\"}", "neither \"value\""),
        (Format::Jsonl, "{\"key\":\"a\",\"value\":1}", "expected a"),
        (
            Format::Jsonl,
            "{\"key\":\"a\",\"value\":\"\",\"key_b64\":\"\"}",
            "both \"key\"",
        ),
        (
            Format::Jsonl,
            "{\"key\":\"a\",\"value\":\"\",\"exipre\":1}",
            "unknown field `exipre`",
        ),
        (
            Format::Jsonl,
            "{\"key\":\"a\",\"value_b64\":\"?\"}",
            "not base64",
        ),
        (
            Format::Jsonl,
            "{\"key\":\"a\",\"value\":\"\",\"expire_at_ms\":-1}",
            "invalid value",
        ),
        (Format::Tsv, "lonely", "no tab"),
        (Format::Tsv, "a\tb\tc", "third field"),
        (Format::Tsv, "a\tb\t1\t2", "more than three"),
        (Format::Tsv, "a\t\\", "backslash"),
    ] {
        let e = format.parse(line.as_bytes()).unwrap_err();
        assert!(e.contains(says), "{line}: {e}");
    }
}

#[test]
fn hostile_lines_never_panic() {
    let random = basalt::env::Random::from_seed(3);
    let seed = b"{\"key\":\"a\\u00e4\",\"value_b64\":\"AAE=\",\"expire_at_ms\":12}";
    for _ in 0..20_000 {
        let mut line = seed.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(line.len() as u64) as usize;
            match random.below(3) {
                0 => line[at] = random.next_u64() as u8,
                1 => line.truncate(at.max(1)),
                _ => line.insert(at, b"\"\\{}\t,"[random.below(6) as usize]),
            }
        }
        let _ = Format::Jsonl.parse(&line);
        let _ = Format::Tsv.parse(&line);
    }
}

#[test]
fn lines_are_numbered_and_have_a_length_limit() {
    let text = b"one\n\nthree is far too long\nfour";
    for buffer in [1, 2, 3, 64] {
        let mut lines = Lines::new(std::io::BufReader::with_capacity(buffer, &text[..]), 5);
        let mut seen = Vec::new();
        let mut bytes = 0;
        while let Some(line) = lines.next_line().unwrap() {
            match line {
                Line::Text(t, n) => {
                    seen.push(String::from_utf8(t.to_vec()).unwrap());
                    bytes += n;
                }
                Line::TooLong(n) => {
                    seen.push("too long".into());
                    bytes += n;
                }
            }
        }
        assert_eq!(seen, ["one", "", "too long", "four"], "buffer {buffer}");
        assert_eq!(lines.number(), 4);
        assert_eq!(bytes, text.len() as u64);
    }
}
