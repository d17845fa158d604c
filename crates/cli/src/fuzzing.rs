//! The text formats as targets of mutators, compiled for tests and by the fuzz targets. The fuzz
//! targets take this file and the files that it names into a crate of their own.
//! `docs/testing/fuzzing.md` lists the promise that each target checks.

use crate::escape::{escape, unescape};
use crate::text_entry::{Format, Line, Lines};
use basalt_sim::mutate::{Target, Verdict};

/// Every target of the tool.
pub const TARGETS: &[Target] = &[
    Target {
        name: "text_jsonl",
        run: |input| text(Format::Jsonl, input),
        seeds: || {
            vec![
                b"{\"key\":\"a\\u00e4\",\"value_b64\":\"AAE=\",\"expire_at_ms\":12}".to_vec(),
                b"{\"key\":\"a\",\"value\":\"b\"}\n\n{\"key_b64\":\"/w==\",\"value\":\"\"}\r\n"
                    .to_vec(),
            ]
        },
        words: &[
            b"\"",
            b"\\",
            b"\\u0000",
            b"{",
            b"}",
            b",",
            b"\n",
            b"\"key_b64\":",
            b"\\ud800",
            b"=",
            b"1e3",
        ],
    },
    Target {
        name: "text_tsv",
        run: |input| text(Format::Tsv, input),
        seeds: || {
            vec![
                b"key\tvalue\nkey\\t2\tva\\x00lue\t1800000000000\r\n\\\\\t\\n\n".to_vec(),
                "schl\u{fc}ssel\t\u{feff}".as_bytes().to_vec(),
            ]
        },
        words: &[
            b"\t", b"\n", b"\r", b"\\", b"\\x", b"\\xff", b"\\0", b"\xff", b"0",
        ],
    },
];

/// Checks any text. Lines are found for any size of the buffer. A line that is read equals the
/// printed line of the same entry, which has no character that moves a cursor.
fn text(format: Format, input: &[u8]) -> Verdict {
    const MAX: usize = 4096;
    let mut split = Vec::new();
    for buffer in [3, 64 << 10] {
        let mut lines = Lines::new(std::io::BufReader::with_capacity(buffer, input), MAX);
        let (mut seen, mut bytes) = (Vec::new(), 0);
        while let Some(line) = lines.next_line().expect("memory does not fail") {
            let (text, n) = match line {
                Line::Text(text, n) => (Some(text.to_vec()), n),
                Line::TooLong(n) => (None, n),
            };
            bytes += n;
            seen.push(text);
        }
        assert_eq!(bytes, input.len() as u64);
        split.push(seen);
    }
    assert_eq!(split[0], split[1], "the buffer's size changed the lines");
    let mut accepted = false;
    for line in split[1].iter().flatten() {
        let Ok(record) = format.parse(line) else {
            continue;
        };
        accepted = true;
        let mut printed = String::new();
        format.print(
            &record.key,
            Some(&record.value),
            record.expire_at_ms,
            &mut printed,
        );
        let printed = printed.strip_suffix('\n').expect("a line");
        assert!(!printed.contains(['\n', '\r']));
        assert_eq!(format.parse(printed.as_bytes()).as_ref(), Ok(&record));
    }
    let escaped = escape(input);
    assert!(!escaped.chars().any(char::is_control), "{escaped:?}");
    assert_eq!(unescape(escaped.as_bytes()).as_deref(), Ok(input));
    let _ = unescape(input);
    Verdict::of(accepted)
}

// The fuzz crate includes this file by its path, so its tests need theirs.
#[cfg(test)]
#[path = "fuzzing/tests.rs"]
mod tests;
