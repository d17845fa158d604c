//! Rows do not depend on how the data is cut, round trips give the same rows, and hostile data ends
//! in an error.

use super::*;

/// A generator of numbers for the seeded tests (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let random = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        (random >> 33) as usize % n
    }
}

fn columns(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("c{i}")).collect()
}

type Decoded = (Vec<CopyRow>, Option<(SqlState, String, Option<String>)>);

/// Decodes data in chunks of sizes that `size` returns.
fn decode(format: &CopyFormat, n: usize, data: &[u8], mut size: impl FnMut() -> usize) -> Decoded {
    let mut decoder = CopyDecoder::new(format.clone(), columns(n)).max_row(4096);
    let (mut rows, mut rest) = (Vec::new(), data);
    let mut ended = Ok(());
    while !rest.is_empty() && ended.is_ok() {
        let (chunk, behind) = rest.split_at(size().clamp(1, rest.len()));
        rest = behind;
        ended = decoder.decode(chunk, &mut rows).map(|_| ());
    }
    let ended = ended.and_then(|()| decoder.finish(&mut rows));
    let error = ended.err();
    if error.is_some() {
        assert!(
            decoder.decode(b"1\n", &mut rows).is_err(),
            "it stays failed"
        );
    }
    let error = error.map(|e| {
        let detail = e.detail().map(str::to_string);
        (e.state(), e.message().to_string(), detail)
    });
    (rows, error)
}

/// Decodes data at once.
fn whole(format: &CopyFormat, n: usize, data: &[u8]) -> Decoded {
    decode(format, n, data, || usize::MAX)
}

fn texts(format: &CopyFormat, n: usize, data: &[u8]) -> Vec<Vec<Option<String>>> {
    let (rows, error) = whole(format, n, data);
    assert_eq!(error, None, "{}", String::from_utf8_lossy(data));
    rows.into_iter().map(|row| row.fields).collect()
}

fn row(fields: &[Option<&str>]) -> Vec<Option<String>> {
    fields.iter().map(|f| f.map(str::to_string)).collect()
}

#[test]
fn text_rows_follow_the_rules_of_postgresql() {
    let format = CopyFormat::of_kind(false);
    let got = texts(
        &format,
        3,
        b"1\ta\\tb\\\\\t\\N\n\\N\t\\\\N\t\n\\x41\\102\\q\tx\\\ny\t\\v\\b\\f\\r\n",
    );
    assert_eq!(
        got,
        [
            row(&[Some("1"), Some("a\tb\\"), None]),
            row(&[None, Some("\\N"), Some("")]),
            row(&[Some("ABq"), Some("x\ny"), Some("\u{b}\u{8}\u{c}\r")]),
        ]
    );
    assert_eq!(
        texts(&format, 1, b"\\xg\n\\"),
        [row(&[Some("xg")]), row(&[Some("")])]
    );
    assert_eq!(
        texts(&format, 1, b"\n\n"),
        [row(&[Some("")]), row(&[Some("")])]
    );
}

#[test]
fn csv_rows_follow_the_rules_of_postgresql() {
    let format = CopyFormat::of_kind(true);
    let got = texts(
        &format,
        3,
        b"1,,\"\"\n\"a\"\"b\",\"x\ny\",q\"u,o\"te\n\\N,\\,\"\\.\"\n",
    );
    assert_eq!(
        got,
        [
            row(&[Some("1"), None, Some("")]),
            row(&[Some("a\"b"), Some("x\ny"), Some("qu,ote")]),
            row(&[Some("\\N"), Some("\\"), Some("\\.")]),
        ]
    );
    let escaping = CopyFormat {
        escape: b'\\',
        quote: b'\'',
        delimiter: b';',
        null: "NULL".into(),
        header: true,
        ..CopyFormat::of_kind(true)
    };
    let got = texts(&escaping, 2, b"a;b\n'x\\'y\\\\';NULL\n'NULL';'\\n'\n");
    assert_eq!(
        got,
        [
            row(&[Some("x'y\\"), None]),
            row(&[Some("NULL"), Some("\\n")])
        ]
    );
}

#[test]
fn lines_end_in_any_one_way() {
    for csv in [false, true] {
        let format = CopyFormat::of_kind(csv);
        for end in ["\n", "\r", "\r\n"] {
            let data = format!("1{end}2{end}3");
            let want = [row(&[Some("1")]), row(&[Some("2")]), row(&[Some("3")])];
            assert_eq!(texts(&format, 1, data.as_bytes()), want, "{end:?}");
            let data = format!("1{end}2{end}");
            assert_eq!(texts(&format, 1, data.as_bytes()), want[..2], "{end:?}");
        }
        for (data, what) in [
            (&b"1\n2\r3\n"[..], "carriage return found"),
            (b"1\r2\n", "newline found"),
            (b"1\r\n2\n", "newline found"),
            (b"1\r\n2\r3", "carriage return found"),
            (b"1\r\n2\r", "carriage return found"),
        ] {
            let (_, error) = whole(&format, 1, data);
            let (state, message, _) = error.expect("an error");
            assert_eq!(state, SqlState::BAD_COPY_FORMAT);
            assert!(message.contains(what), "{message}");
        }
    }
}

#[test]
fn the_end_marker_ends_the_data() {
    for csv in [false, true] {
        let format = CopyFormat::of_kind(csv);
        let mut decoder = CopyDecoder::new(format.clone(), columns(1));
        let mut rows = Vec::new();
        let data = b"1\n\\.\nSELECT 1;\n";
        assert_eq!(decoder.decode(data, &mut rows).unwrap(), 5);
        assert!(decoder.is_done());
        assert_eq!(decoder.decode(b"rest", &mut rows).unwrap(), 0);
        decoder.finish(&mut rows).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(texts(&format, 1, b"1\r\n\\.\r\n2").len(), 1);
        assert_eq!(texts(&format, 1, b"1\n\\.").len(), 1);
    }
    let (_, error) = whole(&CopyFormat::of_kind(false), 1, b"1\\.\n");
    assert!(error.unwrap().1.contains("not alone on its line"));
}

#[test]
fn errors_name_the_line() {
    let (text, csv) = (CopyFormat::of_kind(false), CopyFormat::of_kind(true));
    for (format, data, message, line) in [
        (
            &text,
            &b"1\t2\n1\n"[..],
            "missing data for column \"c1\"",
            2,
        ),
        (&text, b"1\t2\n3\t4\n1\t2\t3\n", "extra data after last", 3),
        (&text, b"1\t\xff\n", "invalid byte sequence", 1),
        (&text, b"1\t\\0\n", "0x00", 1),
        (&text, b"a\\\nb\t1\n2\n", "missing data", 3),
        (&csv, b"1,2\n\"a\n\nb\",2\n1\n", "missing data", 5),
        (&csv, b"1,2\n\"a,2\n", "unterminated CSV quoted field", 2),
    ] {
        let (rows, error) = whole(format, 2, data);
        let (state, found, detail) = error.expect("an error");
        assert_eq!(state, SqlState::BAD_COPY_FORMAT);
        assert!(found.contains(message), "{found}");
        let place = format!("line {line}:");
        assert!(detail.as_ref().unwrap().contains(&place), "{detail:?}");
        assert!(rows.iter().all(|row| row.line < line));
    }
    let long = vec![b'x'; 5000];
    let (_, error) = whole(&text, 1, &long);
    assert_eq!(error.unwrap().0, SqlState::PROGRAM_LIMIT_EXCEEDED);
    // A quote that is never closed does not take more memory either.
    let (_, error) = whole(&csv, 1, &[&b"\""[..], &long].concat());
    assert_eq!(error.unwrap().0, SqlState::PROGRAM_LIMIT_EXCEEDED);
}

#[test]
fn impossible_formats_are_refused() {
    let (text, csv) = (CopyFormat::of_kind(false), CopyFormat::of_kind(true));
    text.check().unwrap();
    csv.check().unwrap();
    for format in [
        CopyFormat {
            delimiter: b'n',
            ..text.clone()
        },
        CopyFormat {
            delimiter: b'\n',
            ..text.clone()
        },
        CopyFormat {
            delimiter: 0xe9,
            ..text.clone()
        },
        CopyFormat {
            null: "\t".into(),
            ..text.clone()
        },
        CopyFormat {
            null: "a\n".into(),
            ..text
        },
        CopyFormat {
            quote: b',',
            ..csv.clone()
        },
        CopyFormat {
            null: "\"".into(),
            ..csv.clone()
        },
        CopyFormat {
            escape: b'\n',
            ..csv
        },
    ] {
        let e = format.check().expect_err("refused");
        assert_eq!(e.state(), SqlState::INVALID_PARAMETER_VALUE);
    }
}

/// Pieces of which the data of the seeded tests consists.
const PIECES: &[&str] = &[
    "a", "1", "\\", ".", "\\.", "\"", "'", ",", "\t", "\n", "\r", "\r\n", ";", "N", "\\N", "é",
    "x", "41", "NULL", "",
];

fn some_format(numbers: &mut Numbers) -> CopyFormat {
    let mut format = CopyFormat::of_kind(numbers.below(2) == 0);
    format.header = numbers.below(4) == 0;
    if numbers.below(3) == 0 {
        format.delimiter = b";|\t,"[numbers.below(4)];
    }
    if format.csv && numbers.below(3) == 0 {
        format.escape = b'\\';
        format.quote = b"'\""[numbers.below(2)];
        format.null = "NULL".into();
    }
    format.check().expect("the formats above are possible");
    format
}

#[test]
fn rows_do_not_depend_on_the_chunks() {
    let mut failed = 0;
    for seed in 1..3000 {
        let mut numbers = Numbers(seed);
        let format = some_format(&mut numbers);
        let n = 1 + numbers.below(3);
        let mut data = Vec::new();
        for _ in 0..numbers.below(30) {
            match numbers.below(40) {
                0 => data.push(numbers.below(256) as u8),
                _ => data.extend_from_slice(PIECES[numbers.below(PIECES.len())].as_bytes()),
            }
        }
        let want = whole(&format, n, &data);
        failed += u64::from(want.1.is_some());
        assert_eq!(decode(&format, n, &data, || 1), want, "seed={seed}");
        let got = decode(&format, n, &data, || 1 + numbers.below(7));
        assert_eq!(got, want, "seed={seed}");
    }
    assert!((500..2900).contains(&failed), "{failed} of the cases fail");
}

#[test]
fn encoded_rows_are_decoded_to_the_same_rows() {
    for seed in 1..2000 {
        let mut numbers = Numbers(seed);
        let format = some_format(&mut numbers);
        let n = 1 + numbers.below(4);
        let encoder = CopyEncoder::new(format.clone());
        let names = columns(n);
        let (mut data, mut want) = (Vec::new(), Vec::new());
        encoder.header(names.iter().map(String::as_str), &mut data);
        for _ in 0..numbers.below(6) {
            let mut field = || -> Option<String> {
                let pieces = numbers.below(5).checked_sub(1)?;
                Some(
                    (0..pieces)
                        .map(|_| PIECES[numbers.below(PIECES.len())])
                        .collect(),
                )
            };
            let fields: Vec<Option<String>> = (0..n).map(|_| field()).collect();
            encoder.row(fields.iter().map(Option::as_deref), &mut data);
            want.push(fields);
        }
        let got = texts(&format, n, &data);
        assert_eq!(got, want, "seed={seed}: {}", String::from_utf8_lossy(&data));
    }
}
