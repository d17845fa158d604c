//! The decoders of this crate as targets of mutators, compiled for tests and under `--cfg fuzzing`
//! only. `docs/testing/fuzzing.md` lists the promise that each target checks.

use crate::layout::{self, CollectionHeader};
use crate::resp::request::{Limits, RequestParser};
use crate::stream::StreamId;
use crate::stream::element::{self, Element};
use crate::stream::group::Groups;
use crate::stream::record::{
    StreamState, decode_record, decode_state, encode_record, encode_state,
};
use crate::{glob, number};
use basalt::Bytes;
use basalt::env::Random;
use basalt_sim::mutate::{Target, Verdict};
use bytes::BytesMut;

/// Every target of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "resp_requests",
        run: resp_requests,
        seeds: || {
            let seeds: [&[u8]; 7] = [
                b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n*1\r\n$4\r\nPING\r\n",
                b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
                b"set a \"b \\x00 c\" 'd\\''\r\nget a\n  \r\nping\r\n",
                b"*0\r\n*-1\r\n\r\n*1\r\n$0\r\n\r\n",
                b"*1048576\r\n$1048576\r\nabc",
                b"*2\r\n$4\r\nECHO\r\n$6\r\n\r\n$1\r\n\r\n",
                b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\n\x00\xff\n\r\n$2\r\nNX\r\n",
            ];
            seeds.iter().map(|s| s.to_vec()).collect()
        },
        words: &[b"\r\n", b"*", b"$", b"-1", b"1048577", b"\"", b"'", b"\\x"],
    },
    Target {
        name: "redis_layout",
        run: redis_layout,
        seeds: || {
            let header = CollectionHeader {
                data_type: layout::DataType::Zset,
                encoding: 0,
                incarnation: 7,
                expire_at_ms: 1_700_000_000_000,
                len: 3,
            };
            vec![
                layout::encode_key(3, 9, b"user:1").to_vec(),
                header.encode().to_vec(),
                layout::encode_layout().to_vec(),
                layout::layout_key(),
                layout::generation_key(1),
                vec![0, 0, 0, 0],
            ]
        },
        words: &[&[0xff, 0xff]],
    },
    Target {
        name: "redis_streams",
        run: redis_streams,
        seeds: || {
            let id = StreamId::new(1_700_000_000_000, 2);
            let state = StreamState {
                last_id: id,
                max_deleted_id: StreamId::new(5, 0),
                entries_added: 9,
                first_lsn: 3,
                next_lsn: 10,
            };
            let words: [&[u8]; 4] = [b"field", b"value", b"", b"x"];
            vec![
                encode_record(id, 3, 9, words.into_iter()).to_vec(),
                encode_state(7, None, 7, &state).to_vec(),
                encode_state(7, Some(1_800_000_000_000), 5, &state).to_vec(),
                b"1700000000000-2".to_vec(),
                b"5".to_vec(),
            ]
        },
        words: &[b"-", b"0", &[0xff; 4], &[0xff; 8]],
    },
    Target {
        name: "redis_stream_elements",
        run: redis_stream_elements,
        seeds: || {
            let id = StreamId::new(1_700_000_000_000, 2);
            let elements = [
                Element::Tombstone { lsn: 5 },
                Element::Group {
                    group: 1,
                    last_id: id,
                    entries_read: None,
                    name: Bytes::from_static(b"group"),
                },
                Element::Consumer {
                    group: 1,
                    consumer: 3,
                    seen_ms: 1_700_000_000_000,
                    name: Bytes::from_static(b"alice"),
                },
                Element::Pending {
                    group: 1,
                    consumer: 3,
                    id,
                    lsn: 9,
                    delivered_ms: 1_700_000_000_000,
                    deliveries: 1,
                },
            ];
            let mut all = Vec::new();
            let mut seeds = Vec::new();
            for element in &elements {
                let (key, value) = element::encode(&element::prefix(2, 7), element);
                let mut one = vec![key.len() as u8];
                one.extend_from_slice(&key);
                one.push(value.len() as u8);
                one.extend_from_slice(&value);
                all.extend_from_slice(&one);
                seeds.push(one);
            }
            seeds.push(all);
            seeds
        },
        words: &[&[0; 8], &[0, 0, 0, 0, 0, 0, 0, 1], &[0xff; 8], &[15], &[23]],
    },
    Target {
        name: "redis_words",
        run: redis_words,
        seeds: || {
            let seeds: [&[u8]; 5] = [
                b"-9223372036854775808",
                b"3.25e2",
                b"user:*[a-c]?\0user:1b2",
                b"*a*b*c*\0aaaabbbbcccc",
                b"[^x]\\*\\\0y*\\",
            ];
            seeds.iter().map(|s| s.to_vec()).collect()
        },
        words: &[b"\0", b"*", b"[", b"]", b"-", b"^", b"\\", b"e308", b"inf"],
    },
];

/// Runs the target of this name. Panics if it does not exist, or if its promise does not hold.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|t| t.name == name);
    (target.expect("a target of this name").run)(input);
}

type Parsed = (Vec<Vec<Vec<u8>>>, Option<String>);

/// Returns the requests and the error of an input that arrives in pieces.
fn parse(input: &[u8], mut piece: impl FnMut() -> usize) -> Parsed {
    let mut parser = RequestParser::new(Limits {
        bulk_bytes: 1 << 20,
        request_bytes: 2 << 20,
    });
    let (mut buf, mut out, mut at) = (BytesMut::new(), Vec::new(), 0);
    loop {
        loop {
            match parser.next(&mut buf) {
                Ok(Some(r)) => {
                    assert!(r.len() > 0 && r.bytes() <= input.len());
                    out.push(r.args().map(<[u8]>::to_vec).collect());
                }
                Ok(None) => break,
                Err(e) => return (out, Some(e.to_string())),
            }
        }
        assert!(
            buf.capacity() <= 2 * input.len() + 64,
            "memory that never arrived"
        );
        if at == input.len() {
            return (out, None);
        }
        let n = piece().clamp(1, input.len() - at);
        buf.extend_from_slice(&input[at..at + n]);
        at += n;
    }
}

/// Checks any bytes from a client. For every split, the requests and the error are the same, the
/// error is one line of text, and memory is at most a constant times the bytes that arrived.
fn resp_requests(input: &[u8]) -> Verdict {
    let whole = parse(input, || usize::MAX);
    let seed = input
        .iter()
        .fold(1u64, |h, b| h.wrapping_mul(31) ^ u64::from(*b));
    let random = Random::from_seed(seed);
    let largest = 1 + random.below(input.len() as u64 + 1);
    for split in [
        parse(input, || 1),
        parse(input, || 1 + random.below(largest) as usize),
    ] {
        assert_eq!(split, whole, "splitting changed the meaning");
    }
    let arrived: usize = whole.0.iter().flatten().map(Vec::len).sum();
    assert!(arrived <= input.len());
    if let Some(e) = &whole.1 {
        assert!(!e.contains(['\r', '\n']), "an error of two lines: {e:?}");
    }
    Verdict::of(whole.1.is_none())
}

/// Checks any bytes as keys and values of the store: an encoding of what is decoded gives the same
/// bytes.
fn redis_layout(bytes: &[u8]) -> Verdict {
    let mut accepted = false;
    if let Some((database, generation, key)) = layout::decode_key(bytes) {
        assert_eq!(layout::encode_key(database, generation, key), bytes);
        assert_ne!(database, layout::CATALOG);
        accepted = true;
    }
    if let Ok((header, rest)) = CollectionHeader::decode(bytes) {
        assert_eq!([&header.encode()[..], rest].concat(), bytes);
        accepted = true;
    }
    if let Ok(kind) = layout::value_type(bytes) {
        assert_eq!(kind as u8, bytes[0]);
    }
    if layout::check_layout(bytes).is_ok() {
        assert_eq!(bytes, layout::encode_layout());
    }
    if let Ok(generation) = layout::decode_generation(bytes) {
        assert_eq!(generation.to_le_bytes(), bytes);
    }
    if let Some(b) = bytes.first_chunk::<8>() {
        let score = f64::from_le_bytes(*b);
        if !score.is_nan() {
            let encoded = layout::encode_score(score);
            assert_eq!(layout::decode_score(encoded), score);
        }
        let _ = layout::decode_score(*b);
    }
    if bytes.iter().any(|b| *b != 0xff) {
        let end = layout::prefix_end(bytes);
        assert!(end[..] > *bytes && !end.starts_with(bytes));
    }
    Verdict::of(accepted)
}

/// Checks any bytes as a stream's entry, as a stream's fields in its key, or as the text of an id:
/// an encoding of what is decoded gives the same bytes.
fn redis_streams(bytes: &[u8]) -> Verdict {
    let mut accepted = false;
    if let Ok(record) = decode_record(&bytes.to_vec().into()) {
        let mut words = Vec::new();
        record.for_each_word(|word| words.push(word.to_vec()));
        let words = words.iter().map(|word| &word[..]);
        let again = encode_record(record.id, record.first_lsn, record.entries_added, words);
        assert_eq!(again, bytes);
        accepted = true;
    }
    if let Ok((header, state)) = decode_state(bytes) {
        let expire_at_ms = (header.expire_at_ms != 0).then_some(header.expire_at_ms);
        let again = encode_state(header.incarnation, expire_at_ms, header.len, &state);
        assert_eq!(again, bytes);
        accepted = true;
    }
    if let Some(id) = StreamId::parse(bytes, 7) {
        assert_eq!(StreamId::parse(id.to_string().as_bytes(), 0), Some(id));
        if let Some(next) = id.next() {
            assert!(next > id && next.previous() == Some(id));
        }
        accepted = true;
    }
    Verdict::of(accepted)
}

/// Checks any bytes as elements of a stream, each key and value after its length: an encoding of
/// what is decoded gives the same bytes, and elements in any order load or are refused. Loaded
/// groups have all consumers and pending entries that they refer to.
fn redis_stream_elements(mut bytes: &[u8]) -> Verdict {
    let mut take = || {
        let (len, rest) = bytes.split_first()?;
        let (part, rest) = rest.split_at_checked(usize::from(*len))?;
        bytes = rest;
        Some(part)
    };
    let (mut groups, mut accepted) = (Groups::default(), false);
    while let Some((key, value)) = take().and_then(|key| Some((key, take()?))) {
        let Ok(element) = element::decode(key, value) else {
            continue;
        };
        let prefix = key.first_chunk().expect("a decoded key has its prefix");
        let again = element::encode(prefix, &element);
        assert_eq!((&again.0[..], &again.1[..]), (key, value));
        accepted |= groups.load(element).is_ok();
    }
    for (_, group) in groups.iter() {
        for (id, pending) in group.pending() {
            let consumer = group.consumer(pending.consumer);
            assert!(consumer.pending.contains(id), "{id} is not its consumer's");
        }
        let of_consumers: usize = group.consumers().map(|c| c.pending.len()).sum();
        assert_eq!(of_consumers, group.pending().len());
    }
    Verdict::of(accepted)
}

/// Checks any bytes as a number, or as a pattern and a text. A number has exactly one text, and a
/// matching text begins with the pattern's literal prefix.
fn redis_words(input: &[u8]) -> Verdict {
    let mut accepted = false;
    if let Some(n) = number::parse_i64(input) {
        let mut text = Vec::new();
        number::push_i64(&mut text, n);
        assert_eq!(text, input);
        accepted = true;
    }
    if let Some(n) = number::parse_f64(input) {
        assert!(!n.is_nan());
        if n.is_finite() && n.abs() >= 1e-16 {
            let again = number::parse_f64(number::format_f64(n).as_bytes());
            // At most 17 digits are printed behind the point.
            assert!((again.unwrap_or(f64::NAN) - n).abs() <= 1e-17 + n.abs() * 1e-15);
        }
        accepted = true;
    }
    let mut parts = input.splitn(2, |b| *b == 0);
    let (pattern, text) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let prefix = glob::literal_prefix(pattern);
    if glob::matches(pattern, text, false) {
        assert!(text.starts_with(&prefix), "a match without its prefix");
        // Without classes, which can be negated, ignoring case only adds matches.
        assert!(pattern.contains(&b'[') || glob::matches(pattern, text, true));
        accepted = true;
    }
    Verdict::of(accepted)
}

#[cfg(test)]
mod tests;
