//! Messages that are truncated, too long or random end in errors, and take no more memory than they
//! have bytes.

use super::*;
use basalt::env::Random;

fn bind() -> Vec<u8> {
    let mut body = b"portal\0statement\0".to_vec();
    body.extend_from_slice(&[0, 2, 0, 0, 0, 1]);
    body.extend_from_slice(&[0, 2, 255, 255, 255, 255, 0, 0, 0, 3]);
    body.extend_from_slice(b"abc");
    body.extend_from_slice(&[0, 1, 0, 1]);
    body
}

fn decode_all(body: &[u8]) -> [bool; 7] {
    [
        Parse::decode(body).is_ok(),
        Bind::decode(body).is_ok(),
        Target::decode(body).is_ok(),
        Execute::decode(body).is_ok(),
        decode_text(body).is_ok(),
        decode_sasl_initial(body).is_ok(),
        StartupPacket::decode(body).is_ok(),
    ]
}

#[test]
fn a_bind_is_decoded() {
    let body = bind();
    let bind = Bind::decode(&body).unwrap();
    assert_eq!((bind.portal, bind.statement), ("portal", "statement"));
    assert_eq!(bind.values, [None, Some(&b"abc"[..])]);
    assert_eq!((bind.formats.code(0), bind.formats.code(1)), (0, 1));
    // One code is for all columns.
    assert_eq!(
        (bind.result_formats.code(0), bind.result_formats.code(9)),
        (1, 1)
    );
}

#[test]
fn truncated_and_longer_bodies_are_refused() {
    let body = bind();
    for len in 0..body.len() {
        let error = Bind::decode(&body[..len]).unwrap_err();
        assert_eq!(error.state(), SqlState("08P01"));
    }
    let mut longer = body.clone();
    longer.push(0);
    assert!(Bind::decode(&longer).is_err());

    let parse = b"name\0SELECT 1\0\0\x01\0\0\0\x17";
    assert_eq!(Parse::decode(parse).unwrap().types, [23]);
    for len in 0..parse.len() {
        assert!(Parse::decode(&parse[..len]).is_err());
    }
    let startup = b"\0\x03\0\0user\0anna\0database\0d\0\0";
    assert!(StartupPacket::decode(startup).is_ok());
    for len in 0..startup.len() {
        assert!(StartupPacket::decode(&startup[..len]).is_err());
    }
}

#[test]
fn counts_that_the_body_has_not_are_refused() {
    // 65,535 types, values and formats in bodies of some bytes.
    assert!(Parse::decode(b"\0\0\xff\xff").is_err());
    assert!(Bind::decode(b"\0\0\xff\xff").is_err());
    assert!(Bind::decode(b"\0\0\0\0\xff\xff\xff\xff").is_err());
    assert!(Bind::decode(b"\0\0\0\0\0\x01\x7f\xff\xff\xff").is_err());
    assert!(Bind::decode(b"\0\0\0\0\0\x01\x80\0\0\0\0\0").is_err());
    assert!(decode_sasl_initial(b"SCRAM-SHA-256\0\x7f\xff\xff\xffn,,").is_err());
}

#[test]
fn random_bodies_do_not_panic() {
    let random = Random::from_seed(11);
    let valid = bind();
    for _ in 0..300_000 {
        let mut body: Vec<u8> = match random.below(2) {
            0 => valid.clone(),
            _ => (0..random.below(40))
                .map(|_| random.next_u64() as u8 & 3)
                .collect(),
        };
        for _ in 0..random.below(4) {
            if !body.is_empty() {
                let at = random.below(body.len() as u64) as usize;
                body[at] = random.next_u64() as u8;
            }
        }
        body.truncate(random.below(body.len() as u64 + 1) as usize);
        decode_all(&body);
    }
}

#[test]
fn other_versions_of_the_protocol_are_refused() {
    let error = StartupPacket::decode(b"\0\x02\0\0\0").unwrap_err();
    assert_eq!(error.state(), SqlState::FEATURE_NOT_SUPPORTED);
    assert_eq!(
        StartupPacket::decode(&[4, 210, 22, 47]).unwrap(),
        StartupPacket::Tls
    );
    assert_eq!(
        StartupPacket::decode(&[4, 210, 22, 48]).unwrap(),
        StartupPacket::Gss
    );
}
