//! The parser against a plain model. For every encoding, split and damage, it returns the requests
//! that were sent, or Redis's error, and its memory is bounded by the bytes that arrived.

use super::*;
use basalt::env::Random;
use basalt_sim::campaign;

const LIMITS: Limits = Limits {
    bulk_bytes: 1 << 20,
    request_bytes: 2 << 20,
};

/// Feeds `input` in pieces. Returns the requests, and the error at the end if there is one.
fn feed(
    input: &[u8],
    mut piece: impl FnMut() -> usize,
) -> (Vec<Vec<Vec<u8>>>, Result<(), ProtocolError>) {
    let mut parser = RequestParser::new(LIMITS);
    let mut buf = BytesMut::new();
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        loop {
            match parser.next(&mut buf) {
                Ok(Some(r)) => {
                    assert!(r.len() > 0);
                    out.push(r.args().map(<[u8]>::to_vec).collect());
                }
                Ok(None) => break,
                Err(e) => return (out, Err(e)),
            }
        }
        assert!(
            parser.arguments.capacity() <= 64 + 2 * buf.len(),
            "{} argument places for {} buffered bytes",
            parser.arguments.capacity(),
            buf.len()
        );
        if at == input.len() {
            return (out, Ok(()));
        }
        let n = piece().clamp(1, input.len() - at);
        buf.extend_from_slice(&input[at..at + n]);
        at += n;
    }
}

fn one_error(input: &[u8]) -> String {
    for step in [1, 3, usize::MAX] {
        let (_, end) = feed(input, || step);
        let text = end.expect_err("an error").to_string();
        if step == usize::MAX {
            return text;
        }
    }
    unreachable!()
}

#[test]
fn requests_survive_any_splitting() {
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let random = Random::from_seed(seed);
    for _ in 0..300 * campaign::scale() {
        let mut sent = Vec::new();
        let mut input = Vec::new();
        for _ in 0..1 + random.below(8) {
            let request: Vec<Vec<u8>> = (0..1 + random.below(5))
                .map(|_| {
                    let len = match random.below(4) {
                        0 => 0,
                        1 => random.below(5_000),
                        _ => random.below(12),
                    };
                    (0..len).map(|_| random.next_u64() as u8).collect()
                })
                .collect();
            match random.below(8) {
                0 => input.extend_from_slice(b"\r\n"),
                1 => input.extend_from_slice(b"*0\r\n"),
                2 => input.extend_from_slice(b"*-1\r\n"),
                _ => {}
            }
            if random.one_in(5) {
                // This is the same as an inline request, with every byte escaped.
                for a in &request {
                    input.push(b'"');
                    for b in a.iter().take(100) {
                        input.extend_from_slice(format!("\\x{b:02x}").as_bytes());
                    }
                    input.extend_from_slice(b"\" ");
                }
                input.extend_from_slice(if random.one_in(2) { b"\r\n" } else { b"\n" });
                sent.push(
                    request
                        .iter()
                        .map(|a| a[..a.len().min(100)].to_vec())
                        .collect(),
                );
            } else {
                input.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
                for a in &request {
                    input.extend_from_slice(format!("${}\r\n", a.len()).as_bytes());
                    input.extend_from_slice(a);
                    input.extend_from_slice(b"\r\n");
                }
                sent.push(request);
            }
        }
        let largest = 1 + random.below(2_000);
        let (got, end) = feed(&input, || 1 + random.below(largest) as usize);
        assert_eq!(end, Ok(()));
        assert!(got == sent, "requests differ");
    }
}

#[test]
fn protocol_errors_are_those_of_redis() {
    for (input, text) in [
        ("*a\r\n", "invalid multibulk length"),
        ("*\r\n", "invalid multibulk length"),
        ("*01\r\n", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\nfoo\r\n", "expected '$', got 'f'"),
        ("*1\r\n\r\n", "expected '$', got '\\x0d'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$x\r\n", "invalid bulk length"),
        ("*1\r\n$1048577\r\n", "invalid bulk length"),
        ("*1\r\n$3\r\nfooxx", "expected CRLF after bulk string"),
        ("*1\r\n$3\r\nfoo\rx", "expected CRLF after bulk string"),
        ("*1\r\n$3\r\nfoox\n", "expected CRLF after bulk string"),
        ("*1\n$3\r\n", "expected CRLF after length"),
        ("set a \"b\r\n", "unbalanced quotes in request"),
        ("set a \"b\"c\r\n", "unbalanced quotes in request"),
        ("set 'a\r\n", "unbalanced quotes in request"),
    ] {
        assert_eq!(one_error(input.as_bytes()), text, "{input:?}");
    }
    let long = "a".repeat(MAX_INLINE + 1);
    assert_eq!(one_error(long.as_bytes()), "too big inline request");
    assert_eq!(
        one_error(format!("*{long}").as_bytes()),
        "too big mbulk count string"
    );
    assert_eq!(
        one_error(format!("*1\r\n${long}").as_bytes()),
        "too big bulk count string"
    );
    let mut large = b"*4\r\n".to_vec();
    for _ in 0..3 {
        large.extend_from_slice(b"$1000000\r\n");
        large.extend_from_slice(&vec![0; 1_000_000]);
        large.extend_from_slice(b"\r\n");
    }
    assert_eq!(one_error(&large), "request too large");
}

#[test]
fn inline_commands_are_split_as_in_redis() {
    for (line, words) in [
        ("PING", vec!["PING"]),
        ("  set  a\tb  ", vec!["set", "a", "b"]),
        (r#"set "a b" 'c d'"#, vec!["set", "a b", "c d"]),
        (r#"echo "\x41\n\q\xzz""#, vec!["echo", "A\nqxzz"]),
        (r"echo '\'\n'", vec!["echo", r"'\n"]),
        (r#"echo """#, vec!["echo", ""]),
        ("   ", vec![]),
    ] {
        let (got, end) = feed(format!("{line}\r\n").as_bytes(), || 1);
        assert_eq!(end, Ok(()));
        let expected: Vec<Vec<Vec<u8>>> = if words.is_empty() {
            vec![]
        } else {
            vec![words.iter().map(|w| w.as_bytes().to_vec()).collect()]
        };
        assert_eq!(got, expected, "{line:?}");
    }
}

#[test]
fn a_declared_length_is_not_believed() {
    // A million arguments are announced and none is sent. Then a large string is announced, and
    // little of it is sent.
    let mut parser = RequestParser::new(LIMITS);
    let mut buf = BytesMut::from(&b"*1048576\r\n$1000000\r\nabc"[..]);
    assert!(parser.next(&mut buf).unwrap().is_none());
    assert!(parser.arguments.capacity() < 64);
    assert_eq!(parser.wanted(buf.len()), 1_000_000 + 2 - 3);
}

/// A returned frame shares the buffer's memory, without a copy.
#[test]
fn frames_share_the_buffer() {
    let mut parser = RequestParser::new(LIMITS);
    let mut buf = BytesMut::from(&b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"[..]);
    let place = buf.as_ptr();
    let r = parser.next(&mut buf).unwrap().unwrap();
    assert_eq!(r.arg_bytes(1).as_ptr(), place.wrapping_add(17));
    assert_eq!(r.arg(1), b"key");
}

#[test]
fn damaged_input_gives_requests_or_an_error() {
    let seed = 0x5eed_0002;
    println!("seed {seed:#x}");
    let random = Random::from_seed(seed);
    let corpus: [&[u8]; 6] = [
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n",
        b"set a \"b \\x00 c\" 'd'\r\nget a\n",
        b"*0\r\n*-1\r\n\r\n*1\r\n$0\r\n\r\n",
        b"*1048576\r\n$1048576\r\n",
        b"*2\r\n$4\r\nECHO\r\n$6\r\n\r\n$1\r\n\r\n",
    ];
    let (mut whole, mut refused) = (0u64, 0u64);
    let scale = campaign::scale();
    for _ in 0..60_000 * scale {
        let mut input = Vec::new();
        for _ in 0..1 + random.below(3) {
            input.extend_from_slice(corpus[random.below(corpus.len() as u64) as usize]);
        }
        for _ in 0..random.below(4) {
            let at = random.below(input.len() as u64) as usize;
            match random.below(5) {
                0 => input[at] = random.next_u64() as u8,
                1 => input.truncate(at + 1),
                2 => input.insert(at, b"\r\n$*-0123456789\"'\\"[random.below(18) as usize]),
                3 => {
                    input.remove(at);
                    if input.is_empty() {
                        input.push(b'*');
                    }
                }
                _ => input[at] ^= 1 << random.below(8),
            }
        }
        let largest = 1 + random.below(input.len() as u64);
        let split = feed(&input, || 1 + random.below(largest) as usize);
        let at_once = feed(&input, || usize::MAX);
        assert_eq!(split, at_once, "splitting changed the meaning of {input:?}");
        match split.1 {
            Ok(()) => whole += 1,
            Err(_) => refused += 1,
        }
    }
    println!("whole={whole} refused={refused}");
    assert!(
        whole.min(refused) > scale.floor(1_000),
        "the mutator is too tame or too wild"
    );
}

/// Regression test: a value of a few bytes that was kept until its commit also kept the buffer of
/// half a gigabyte that came before it.
#[test]
fn a_kept_argument_pins_no_large_buffer() {
    let mut parser = RequestParser::new(LIMITS);
    let large = vec![b'x'; 100_000];
    let mut buf = BytesMut::new();
    buf.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n$100000\r\n");
    buf.extend_from_slice(&large);
    buf.extend_from_slice(b"\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n");
    let before = buf.as_ptr() as usize;
    let echo = parser.next(&mut buf).unwrap().unwrap();
    assert_eq!(echo.arg_kept(1).as_ptr(), echo.arg(1).as_ptr());
    let set = parser.next(&mut buf).unwrap().unwrap();
    let at = set.arg(2).as_ptr() as usize;
    assert!(!(before..before + 110_000).contains(&at));
    assert_ne!(set.arg_kept(2).as_ptr(), set.arg(2).as_ptr());
    assert_eq!(&set.arg_kept(2)[..], b"v");
}

/// Regression test: of a waiting request only the bytes were counted. The table of its arguments
/// takes more: a million empty arguments are 6 MB on the wire and 8 MB in the table, which no
/// budget counted.
#[test]
fn request_memory_includes_the_argument_table() {
    let input = [&b"*1000\r\n"[..], &b"$0\r\n\r\n".repeat(1000)].concat();
    let mut buf = BytesMut::from(&input[..]);
    let request = RequestParser::new(LIMITS).next(&mut buf).unwrap().unwrap();
    assert_eq!(request.len(), 1000);
    let table = 1000 * size_of::<Range<u32>>();
    let counted = request.memory();
    assert!(
        (input.len() + table..=input.len() + 2 * table).contains(&counted),
        "{counted}"
    );
}
