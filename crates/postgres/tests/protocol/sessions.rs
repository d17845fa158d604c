//! The begin and the end of sessions: parameters, passwords, TLS, limits, cancel and shutdown.

use crate::client::{Client, server, server_with};
use basalt::env::thread::scope;
use basalt_postgres::{Passwords, PostgresOptions, PostgresServer, TlsIdentity};
use ring::{digest, hmac, pbkdf2};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// A query that does not end.
const ENDLESS: &str =
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c";

#[test]
fn a_session_begins_with_its_parameters() {
    let server = server();
    let parameters = [
        ("user", "anna"),
        ("database", "any"),
        ("application_name", "tests"),
    ];
    let (client, answers) = Client::start(&server, &parameters);
    assert_eq!(answers[0], "R ok");
    for expected in [
        "S server_encoding=UTF8",
        "S client_encoding=UTF8",
        "S integer_datetimes=on",
        "S standard_conforming_strings=on",
        "S application_name=tests",
        "S DateStyle=ISO, MDY",
        "S TimeZone=UTC",
        "K",
    ] {
        assert!(
            answers.iter().any(|a| a == expected),
            "{expected} in {answers:?}"
        );
    }
    // Drivers choose their catalog queries by the number in front.
    let has_version = answers
        .iter()
        .any(|a| a.starts_with("S server_version=15.0"));
    assert!(has_version, "{answers:?}");
    assert_eq!(answers.last().unwrap(), "Z I");
    assert_eq!(server.stats().connections, 1);
    client.terminate();
}

#[test]
fn startup_parameters_are_checked() {
    let server = server();
    let ends = |parameters: &[(&str, &str)], expected: &str| {
        let (_, answers) = Client::start(&server, parameters);
        let error = &answers[answers.len() - 2];
        assert!(error.starts_with(expected), "{answers:?}");
        assert_eq!(answers.last().unwrap(), "end");
    };
    ends(&[("database", "d")], "E FATAL 28000");
    ends(&[("user", "a"), ("replication", "true")], "E FATAL 0A000");
    ends(
        &[("user", "a"), ("client_encoding", "LATIN1")],
        "E FATAL 0A000",
    );
    ends(&[("user", "a"), ("unknown_setting", "1")], "E FATAL 42704");
    ends(&[("user", "a"), ("options", "-x")], "E FATAL 42601");
    let parameters = [
        ("user", "a"),
        ("options", "-c application_name=x\\ y --datestyle=ISO"),
    ];
    let (_, answers) = Client::start(&server, &parameters);
    assert!(
        answers.iter().any(|a| a == "S application_name=x y"),
        "{answers:?}"
    );
    // The zone of the client's machine does not keep it out.
    let (_, answers) = Client::start(&server, &[("user", "a"), ("TimeZone", "Europe/Berlin")]);
    assert!(answers.iter().any(|a| a == "S TimeZone=UTC"), "{answers:?}");
    // A later minor version and options that the server does not know are negotiated.
    let mut client = Client::connect(&server);
    client.send_bytes(b"\0\0\0\x1f\0\x03\0\x02user\0anna\0_pq_.what\0x\0\0");
    assert_eq!(client.answers()[0], "v");
}

/// Authenticates with SCRAM. Returns the answers behind the proof.
fn scram(
    client: &mut Client,
    mechanism: &str,
    header: &str,
    binding: &[u8],
    password: &str,
) -> Vec<String> {
    let base64 = |bytes: &[u8]| {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for chunk in bytes.chunks(3) {
            let group = chunk.iter().fold(0_u32, |n, b| (n << 8) | u32::from(*b))
                << (8 * (3 - chunk.len()));
            for i in 0..4 {
                let digit = DIGITS[(group >> (18 - 6 * i) & 63) as usize] as char;
                out.push(if i <= chunk.len() { digit } else { '=' });
            }
        }
        out
    };
    let message = |data: Vec<u8>| {
        let mut out = vec![b'p'];
        out.extend_from_slice(&(data.len() as u32 + 4).to_be_bytes());
        out.extend_from_slice(&data);
        out
    };
    let bare = "n=,r=clientnonce";
    let first = format!("{header}{bare}");
    let mut data = format!("{mechanism}\0").into_bytes();
    data.extend_from_slice(&(first.len() as u32).to_be_bytes());
    data.extend_from_slice(first.as_bytes());
    client.send_bytes(&message(data));
    let answer = client.answer();
    let Some(server_first) = answer.strip_prefix("R continue ") else {
        return vec![answer];
    };
    let field = |name: &str| {
        server_first
            .split(',')
            .find_map(|f| f.strip_prefix(name))
            .unwrap()
    };
    let salt: Vec<u8> = {
        let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bits = field("s=")
            .bytes()
            .filter(|b| *b != b'=')
            .map(|b| digits.find(b as char).unwrap() as u8);
        let bits: Vec<u8> = bits
            .flat_map(|d| (0..6).map(move |i| d >> (5 - i) & 1))
            .collect();
        bits.chunks_exact(8)
            .map(|byte| byte.iter().fold(0, |n, bit| (n << 1) | bit))
            .collect()
    };
    let mut salted = [0; 32];
    let iterations = NonZeroU32::new(field("i=").parse().unwrap()).unwrap();
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA256,
        iterations,
        &salt,
        password.as_bytes(),
        &mut salted,
    );
    let sign = |key: &[u8], data: &[u8]| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), data)
            .as_ref()
            .to_vec()
    };
    let client_key = sign(&salted, b"Client Key");
    let stored = digest::digest(&digest::SHA256, &client_key);
    let channel = base64(&[header.as_bytes(), binding].concat());
    let without_proof = format!("c={channel},r={}", field("r="));
    let signed = format!("{bare},{server_first},{without_proof}");
    let signature = sign(stored.as_ref(), signed.as_bytes());
    let proof: Vec<u8> = client_key
        .iter()
        .zip(signature)
        .map(|(a, b)| a ^ b)
        .collect();
    let last = format!("{without_proof},p={}", base64(&proof));
    client.send_bytes(&message(last.into_bytes()));
    let answers = client.answers();
    if let Some(verifier) = answers[0].strip_prefix("R final v=") {
        let server_key = sign(&salted, b"Server Key");
        assert_eq!(verifier, base64(&sign(&server_key, signed.as_bytes())));
    }
    answers
}

fn with_users() -> PostgresOptions {
    PostgresOptions {
        passwords: Passwords::Users(vec![
            ("anna".into(), "secret".into()),
            ("bert".into(), "other".into()),
        ]),
        ..PostgresOptions::default()
    }
}

#[test]
fn passwords_are_checked() {
    let server = server_with(with_users());
    let login = |user: &str, password: &str| {
        let mut client = Client::connect(&server);
        client.send_startup(&[("user", user)]);
        assert_eq!(client.answer(), "R sasl SCRAM-SHA-256");
        scram(&mut client, "SCRAM-SHA-256", "n,,", b"", password)
    };
    let answers = login("anna", "secret");
    assert!(answers[0].starts_with("R final"), "{answers:?}");
    assert_eq!(answers[1], "R ok");
    assert_eq!(answers.last().unwrap(), "Z I");
    for (user, password) in [("anna", "other"), ("bert", "secret"), ("carl", "secret")] {
        let answers = login(user, password);
        assert!(answers[0].starts_with("E FATAL 28P01"), "{answers:?}");
        assert_eq!(answers[1], "end");
    }
    assert_eq!(server.stats().authentication_failures_total, 3);
    // Messages before the authentication are refused.
    let mut client = Client::connect(&server);
    client.send_startup(&[("user", "anna")]);
    client.answer();
    let answers = client.query("SELECT 1");
    assert!(answers[0].starts_with("E FATAL 08P01"), "{answers:?}");
    let mut client = Client::connect(&server);
    client.send_startup(&[("user", "anna")]);
    client.answer();
    let answers = scram(&mut client, "PLAIN", "n,,", b"", "secret");
    assert!(answers[0].starts_with("E FATAL 08P01"), "{answers:?}");
}

fn identity() -> TlsIdentity {
    TlsIdentity {
        certificate_pem: include_bytes!("tls/certificate.pem").to_vec(),
        key_pem: include_bytes!("tls/key.pem").to_vec(),
    }
}

fn tls_stream(stream: TcpStream) -> impl Read + Write + Send + 'static {
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(&identity().certificate_pem).unwrap();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    rustls::StreamOwned::new(session, stream)
}

/// The packet that asks for TLS.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

fn tls_client(server: &PostgresServer) -> Client {
    let mut stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.write_all(&TLS_REQUEST).unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"S");
    Client::over(tls_stream(stream))
}

#[test]
fn tls_with_and_without_channel_binding() {
    let server = server_with(PostgresOptions {
        tls: Some(identity()),
        require_tls: true,
        ..with_users()
    });
    let certificate = CertificateDer::from_pem_slice(&identity().certificate_pem).unwrap();
    let hash = digest::digest(&digest::SHA256, &certificate);
    let plus = (
        "SCRAM-SHA-256-PLUS",
        "p=tls-server-end-point,,",
        hash.as_ref(),
    );
    for (mechanism, header, binding) in [plus, ("SCRAM-SHA-256", "n,,", b"".as_slice())] {
        let mut client = tls_client(&server);
        client.send_startup(&[("user", "anna")]);
        assert_eq!(client.answer(), "R sasl SCRAM-SHA-256-PLUS,SCRAM-SHA-256");
        let answers = scram(&mut client, mechanism, header, binding, "secret");
        assert_eq!(answers.last().unwrap(), "Z I", "{answers:?}");
        client.query("CREATE TABLE IF NOT EXISTS t (id integer)");
        assert_eq!(client.query("INSERT INTO t VALUES (1)")[0], "C INSERT 0 1");
    }
    // Another certificate, or a client that was made to think that there is no binding.
    for (mechanism, header, binding) in [
        (
            "SCRAM-SHA-256-PLUS",
            "p=tls-server-end-point,,",
            b"other".as_slice(),
        ),
        ("SCRAM-SHA-256", "y,,", b"".as_slice()),
    ] {
        let mut client = tls_client(&server);
        client.send_startup(&[("user", "anna")]);
        client.answer();
        let answers = scram(&mut client, mechanism, header, binding, "secret");
        assert!(answers[0].starts_with("E FATAL 08P01"), "{answers:?}");
    }
    let (_, answers) = Client::start(&server, &[("user", "anna")]);
    assert!(answers[0].starts_with("E FATAL 28000"), "{answers:?}");
}

#[test]
fn bytes_before_the_handshake_are_refused() {
    let server = server_with(PostgresOptions {
        tls: Some(identity()),
        ..PostgresOptions::default()
    });
    // An attacker puts a query in plain text before the client's handshake.
    let mut client = Client::connect(&server);
    let mut bytes = TLS_REQUEST.to_vec();
    bytes.extend_from_slice(b"Q\0\0\0\x06x\0");
    client.send_bytes(&bytes);
    let mut answer = [0];
    client.stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"S");
    assert!(client.answer().starts_with("E FATAL 08P01"));
    assert_eq!(client.answer(), "end");
}

#[test]
fn a_server_without_a_certificate_declines_tls() {
    let server = server();
    let mut client = Client::connect(&server);
    client.send_bytes(&TLS_REQUEST);
    let mut answer = [0];
    client.stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"N");
    client.send_startup(&[("user", "anna")]);
    assert_eq!(client.answers().last().unwrap(), "Z I");
}

#[test]
fn options_that_would_expose_the_data_are_refused() {
    let everywhere = PostgresOptions {
        listen: SocketAddr::from(([0, 0, 0, 0], 5432)),
        ..PostgresOptions::default()
    };
    let error = everywhere.validate().unwrap_err();
    assert!(
        error.to_string().contains("there is no password"),
        "{error}"
    );
    let unprotected = PostgresOptions {
        unprotected: true,
        ..everywhere.clone()
    };
    unprotected.validate().unwrap();
    let with_password = PostgresOptions {
        passwords: Passwords::Shared("secret".into()),
        ..everywhere.clone()
    };
    with_password.validate().unwrap();
    for passwords in [
        Passwords::Shared(String::new()),
        Passwords::Shared("größer".into()),
        Passwords::Users(vec![]),
    ] {
        let options = PostgresOptions {
            passwords,
            ..PostgresOptions::default()
        };
        options.validate().unwrap_err();
    }
    let without_certificate = PostgresOptions {
        require_tls: true,
        ..PostgresOptions::default()
    };
    without_certificate.validate().unwrap_err();
}

#[test]
fn sessions_beyond_the_limit_are_refused() {
    let server = server_with(PostgresOptions {
        max_connections: 2,
        ..PostgresOptions::default()
    });
    let first = Client::session(&server);
    let _second = Client::session(&server);
    let (_, answers) = Client::start(&server, &[("user", "anna")]);
    let error = &answers[answers.len() - 2];
    assert!(error.starts_with("E FATAL 53300"), "{answers:?}");
    assert_eq!(server.stats().rejected_total, 1);
    first.terminate();
    // The slot is free when the thread of the first session has ended.
    while server.stats().connections == 2 {
        basalt::env::Clock::system().sleep(Duration::from_millis(1));
    }
    Client::session(&server);
}

#[test]
fn a_cancel_request_interrupts_the_statement() {
    let server = server();
    let mut client = Client::session(&server);
    let (process, secret) = client.key.clone();
    let request = |secret: &[u8]| {
        let mut packet = vec![0, 0, 0, 16, 4, 210, 22, 46];
        packet.extend_from_slice(&process.to_be_bytes());
        packet.extend_from_slice(secret);
        let mut canceller = Client::connect(&server);
        canceller.send_bytes(&packet);
        assert_eq!(canceller.answer(), "end");
    };
    // A wrong secret does nothing.
    request(&[!secret[0], secret[1], secret[2], secret[3]]);
    assert_eq!(server.stats().cancels_total, 0);
    let answers = scope(|threads| {
        let running = threads.spawn(|| client.query(ENDLESS));
        // A request that comes before the statement begins does nothing either.
        while !running.is_finished() {
            request(&secret);
            basalt::env::Clock::system().sleep(Duration::from_millis(5));
        }
        running.join().unwrap()
    });
    assert!(
        answers.iter().any(|a| a.starts_with("E ERROR 57014")),
        "{answers:?}"
    );
    assert_eq!(answers.last().unwrap(), "Z I");
    client.query("CREATE TABLE t (id integer)");
    client.terminate();
}

#[test]
fn stopping_ends_idle_and_busy_sessions() {
    let server = server();
    let mut idle = Client::session(&server);
    let mut busy = Client::session(&server);
    let mut transaction = Client::session(&server);
    transaction.query("BEGIN");
    busy.put(pgwire::messages::simplequery::Query::new(ENDLESS.into()))
        .send();
    let queries = 2;
    while server.stats().queries_total < queries {
        basalt::env::Clock::system().sleep(Duration::from_millis(1));
    }
    server.stop();
    for client in [&mut idle, &mut busy, &mut transaction] {
        let answers = client.answers();
        let error = &answers[answers.len() - 2];
        assert!(error.starts_with("E FATAL 57P01"), "{answers:?}");
    }
}

#[test]
fn idle_sessions_are_ended() {
    let server = server_with(PostgresOptions {
        idle_timeout: Duration::from_millis(50),
        ..PostgresOptions::default()
    });
    let mut client = Client::session(&server);
    assert!(client.answer().starts_with("E FATAL 57P05"));
    assert_eq!(client.answer(), "end");
}

#[test]
fn an_address_in_use_is_named() {
    let server = server();
    let env =
        basalt::Env::builder(basalt_sim::SimFs::new(basalt_sim::SimOptions::default())).build();
    let database =
        basalt_sql::Database::open(&env, "d", basalt_sql::DatabaseOptions::default()).unwrap();
    let options = PostgresOptions {
        listen: server.local_addr(),
        ..PostgresOptions::default()
    };
    let error = PostgresServer::start(database, &env, options)
        .err()
        .unwrap();
    assert!(error.to_string().contains("in use"), "{error}");
}
