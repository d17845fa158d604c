//! Clients that break the protocol: each gets an error or is disconnected, and the server serves
//! on.

use crate::client::{Client, server, server_with};
use basalt::env::Random;
use basalt_postgres::PostgresOptions;
use std::net::{Shutdown, TcpStream};

#[test]
fn lengths_out_of_range_end_the_connection() {
    let server = server_with(PostgresOptions {
        max_message_bytes: 100_000,
        ..PostgresOptions::default()
    });
    // Packets of a startup.
    for length in [0_u32, 4, 7, 10_001, u32::MAX] {
        let mut client = Client::connect(&server);
        client.send_bytes(&length.to_be_bytes());
        assert!(client.answer().starts_with("E FATAL 08P01"), "{length}");
        assert_eq!(client.answer(), "end");
    }
    for length in [0_u32, 3, 100_001, 0x7fff_ffff, u32::MAX] {
        let mut client = Client::session(&server);
        let mut bytes = vec![b'Q'];
        bytes.extend_from_slice(&length.to_be_bytes());
        client.send_bytes(&bytes);
        assert!(client.answer().starts_with("E FATAL 08P01"), "{length}");
        assert_eq!(client.answer(), "end");
    }
    Client::session(&server).terminate();
}

#[test]
fn truncated_bodies_are_errors_of_the_statement() {
    let server = server();
    let mut client = Client::session(&server);
    for kind in *b"PBDEC" {
        client.send_bytes(&[kind, 0, 0, 0, 5, 1]);
        let answers = client.sync();
        assert!(answers[0].starts_with("E ERROR 08P01"), "{answers:?}");
        assert_eq!(answers[1], "Z I");
    }
    client.send_bytes(b"Q\0\0\0\x06ab");
    let answers = client.answers();
    assert!(answers[0].starts_with("E ERROR 08P01"), "{answers:?}");
    client.send_bytes(b"Q\0\0\0\x06\xff\0");
    let answers = client.answers();
    assert!(answers[0].starts_with("E ERROR 22021"), "{answers:?}");
    client.send_bytes(b"F\0\0\0\x04");
    let answers = client.answers();
    assert!(answers[0].starts_with("E ERROR 0A000"), "{answers:?}");
    client.terminate();
}

#[test]
fn messages_in_the_wrong_order_are_harmless() {
    let server = server();
    let mut client = Client::session(&server);
    // Data of a COPY that does not run.
    client.send_bytes(b"d\0\0\0\x05xc\0\0\0\x04f\0\0\0\x05\0");
    assert_eq!(
        client.query("CREATE TABLE t (id integer)"),
        ["C CREATE TABLE", "Z I"]
    );
    assert_eq!(client.sync(), ["Z I"]);
    client.send_bytes(b"p\0\0\0\x05x");
    assert!(client.answer().starts_with("E FATAL 08P01"));
    let mut client = Client::session(&server);
    client.send_bytes(&[0, 0, 0, 0, 4]);
    assert!(client.answer().starts_with("E FATAL 08P01"));
}

#[test]
fn a_client_that_leaves_inside_of_a_message_is_forgotten() {
    let server = server();
    let mut client = Client::session(&server);
    client.query("CREATE TABLE t (id integer)");
    client.query("COPY t FROM STDIN");
    drop(client);
    let mut client = Client::session(&server);
    client.send_bytes(b"Q\0\0\x01\0SELECT");
    drop(client);
    while server.stats().connections > 0 {
        basalt::env::Clock::system().sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn random_messages_do_not_stop_the_server() {
    let random = Random::from_seed(23);
    let server = server();
    for _ in 0..200 {
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        let mut client = Client::over(stream.try_clone().unwrap());
        client.send_startup(&[("user", "anna")]);
        client.answers();
        let mut bytes = Vec::new();
        for _ in 0..random.below(20) {
            let body: Vec<u8> = (0..random.below(30))
                .map(|_| [0, 1, b'p', b'S', 255, random.next_u64() as u8][random.below(6) as usize])
                .collect();
            bytes.push(b"PBDECSHdcfQ"[random.below(11) as usize]);
            let len = body.len() as u32 + 4 + u32::from(random.below(20) == 0);
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(&body);
        }
        client.send_bytes(&bytes);
        stream.shutdown(Shutdown::Write).unwrap();
        while client.answer() != "end" {}
    }
    Client::session(&server).terminate();
}
