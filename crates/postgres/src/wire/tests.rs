//! Frames: memory that grows with received bytes alone, and messages in any pieces.

use super::*;
use basalt::env::thread::scope;
use std::net::TcpListener;
use std::sync::Arc;

/// Returns a wire and the client's end of it.
fn pair(max_message: usize) -> (Wire, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    (Wire::new(Socket(Arc::new(socket)), max_message), client)
}

#[test]
fn an_announced_length_takes_no_memory() {
    let (mut wire, mut client) = pair(1 << 30);
    client.write_all(b"d\x20\0\0\0").unwrap();
    client.write_all(&[7; 100_000]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(matches!(wire.peek(), Err(End::Closed)));
    assert!(wire.input.len() <= 256 << 10, "{}", wire.input.len());
}

#[test]
fn messages_arrive_in_any_pieces() {
    let (mut wire, mut client) = pair(1 << 20);
    let lengths = [0, 1, 3, 20_000, 5, 16_379, 16_380, 70_000, 0, 2];
    let mut bytes = Vec::new();
    for (i, len) in lengths.iter().enumerate() {
        bytes.push(b'a' + i as u8);
        bytes.extend_from_slice(&(len + 4_u32).to_be_bytes());
        bytes.extend((0..*len).map(|at| (at % 251) as u8));
    }
    scope(|threads| {
        threads.spawn(move || {
            let mut rest = bytes.as_slice();
            let mut size = 1;
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(size.min(rest.len()));
                client.write_all(piece).unwrap();
                rest = others;
                size = size * 2 % 7919 + 1;
            }
        });
        for (i, len) in lengths.iter().enumerate() {
            let frame = wire.peek().unwrap();
            assert_eq!(frame.kind, b'a' + i as u8);
            let body = wire.body(&frame);
            assert_eq!(body.len(), *len as usize);
            assert!(
                body.iter()
                    .enumerate()
                    .all(|(at, b)| *b == (at % 251) as u8)
            );
            wire.consume(&frame);
        }
        assert!(matches!(wire.peek(), Err(End::Closed)));
    });
}

#[test]
fn a_large_buffer_is_given_back() {
    let (mut wire, mut client) = pair(8 << 20);
    scope(|threads| {
        threads.spawn(move || {
            let len = 4_u32 << 20;
            client.write_all(b"d").unwrap();
            client.write_all(&(len + 4).to_be_bytes()).unwrap();
            client.write_all(&vec![1; len as usize]).unwrap();
            client.write_all(b"S\0\0\0\x04").unwrap();
        });
        let frame = wire.peek().unwrap();
        wire.consume(&frame);
        let frame = wire.peek().unwrap();
        wire.consume(&frame);
        assert_eq!(frame.kind, b'S');
        assert!(matches!(wire.peek(), Err(End::Closed)));
    });
    assert_eq!(wire.input.len(), READ_BYTES);
}
