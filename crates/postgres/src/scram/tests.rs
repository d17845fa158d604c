//! The exchange of RFC 7677, and the ways in which it fails.

use super::*;

/// The verifier of RFC 7677's example: user `user`, password `pencil`.
fn pencil() -> Verifier {
    let salt: [u8; 16] = base64::decode("W22ZaJ0SNY7soEsUEjb6gQ==")
        .unwrap()
        .try_into()
        .unwrap();
    Verifier::with_salt("pencil", salt)
}

#[test]
fn the_example_of_the_rfc_is_accepted() {
    let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let first = format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
    let verifier = pencil();
    let exchange = Exchange {
        verifier: &verifier,
        signed: format!("n=user,r=rOprNGfwEbeRWgbNEkqO,{first},"),
        nonce: nonce.into(),
        binding: "biws".into(),
    };
    let last = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
    let answer = exchange.finish(last.as_bytes());
    assert_eq!(
        answer.unwrap(),
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    );
}

#[test]
fn malformed_messages_are_refused() {
    let verifier = pencil();
    for message in [
        "",
        "n",
        "n,,",
        "n,,n=,r=",
        "n,a=x,n=,r=abc",
        "p=tls-unique,,n=,r=abc",
        "y",
        ",,,",
        "n,,m=1,r=abc",
        "p=tls-server-end-point,,n=,r=abc",
    ] {
        let begun = Exchange::begin(&verifier, SCRAM, None, message.as_bytes());
        assert!(matches!(begun, Err(Failure::Malformed(_))), "{message}");
    }
    // The client saw no offer of channel binding, and the server made one.
    let begun = Exchange::begin(&verifier, SCRAM, Some(b"hash"), b"y,,n=,r=abc");
    assert!(begun.is_err());
    for message in [
        "",
        "c=biws",
        "c=biws,r=abc,p=",
        "c=biws,r=abc,p=AAAA",
        ",p=",
        "c=eSws,r=abc,p=AAAA",
    ] {
        let (exchange, _) = Exchange::begin(&verifier, SCRAM, None, b"n,,n=,r=abc").unwrap();
        assert!(exchange.finish(message.as_bytes()).is_err(), "{message}");
    }
}

#[test]
fn a_wrong_proof_is_refused() {
    let verifier = pencil();
    let (exchange, first) = Exchange::begin(&verifier, SCRAM, None, b"n,,n=,r=abc").unwrap();
    let nonce = first.split(',').next().unwrap().to_owned();
    let proof = base64::encode(&[7; 32]);
    let last = format!("c=biws,{nonce},p={proof}");
    assert_eq!(exchange.finish(last.as_bytes()), Err(Failure::Refused));
}

#[test]
fn names_without_a_password_keep_their_salt() {
    let secret = random();
    let mock = |user| Verifier::mock(&secret, user).salt;
    assert_eq!(mock("anna"), mock("anna"));
    assert_ne!(mock("anna"), mock("bert"));
}

#[test]
fn base64_survives() {
    for len in 0..70 {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 37 + 11) as u8).collect();
        assert_eq!(base64::decode(&base64::encode(&bytes)), Some(bytes));
    }
    for malformed in ["A", "AA", "AAA", "====", "A===", "AA=A", "AA-A", "ä==="] {
        assert_eq!(base64::decode(malformed), None, "{malformed}");
    }
}
