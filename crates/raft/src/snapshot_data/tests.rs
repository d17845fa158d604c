//! The bytes of snapshots, wrong bytes, and a snapshot as a file.

use super::*;
use basalt::{Env, Options, WriteOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

fn pinned(keys: u32) -> Arc<PinnedData> {
    let fs = basalt_sim::SimFs::new(basalt_sim::SimOptions::default());
    let db = Db::open(&Env::for_tests(fs, 1), "state", Options::default()).unwrap();
    let family = db.default_family();
    for i in 0..keys {
        let value = vec![i as u8; 3 * i as usize];
        db.put(&family, &i.to_be_bytes(), &value, &WriteOptions::UNSYNCED)
            .unwrap();
    }
    let snapshot = db.snapshot();
    // Younger than the snapshot.
    db.put(&family, b"later", b"", &WriteOptions::UNSYNCED)
        .unwrap();
    Arc::new(PinnedData {
        db,
        family,
        snapshot,
    })
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn the_data_of_a_moment_comes_back() {
    for keys in [0, 1, 100] {
        let bytes = pinned(keys).encode().unwrap();
        let entries = decode(&bytes).unwrap();
        assert_eq!(entries.len(), keys as usize);
        for (i, (key, value)) in entries.iter().enumerate() {
            assert_eq!(*key, (i as u32).to_be_bytes());
            assert_eq!(*value, vec![i as u8; 3 * i]);
        }
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_an_error() {
    let good = pinned(5).encode().unwrap();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            assert!(decode(&bytes).unwrap_err().is_corruption());
        }
        assert!(decode(&good[..at]).unwrap_err().is_corruption());
    }
}

/// The checksum is right, so the decoder itself must find what is wrong.
#[test]
fn wrong_data_under_a_right_checksum_is_an_error() {
    let good = pinned(3).encode().unwrap();
    let body = &good[..good.len() - 4];
    for at in 0..body.len() {
        let sealed = |mut bytes: Vec<u8>| {
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            bytes
        };
        decode(&sealed(body[..at].to_vec())).unwrap_err();
        for byte in [0, 1, 127, 255] {
            let mut bytes = body.to_vec();
            bytes[at] = byte;
            // A changed key or value is no error. There must be no panic.
            let _ = decode(&sealed(bytes));
        }
    }
}

#[test]
fn a_snapshot_is_read_written_and_seeked_as_a_file() {
    let data = pinned(50);
    let expected = data.encode().unwrap();
    run(async {
        let mut sent = StateSnapshot::pinned(&data);
        let mut received = StateSnapshot::empty();
        let mut part = vec![0; 100];
        loop {
            let n = sent.read(&mut part).await.unwrap();
            if n == 0 {
                break;
            }
            received.write_all(&part[..n]).await.unwrap();
        }
        // A part that comes twice replaces itself.
        received.seek(SeekFrom::Start(10)).await.unwrap();
        received.write_all(&expected[10..30]).await.unwrap();
        let len = received.seek(SeekFrom::End(0)).await.unwrap();
        assert_eq!(len, expected.len() as u64);
        received.seek(SeekFrom::Current(-4)).await.unwrap();
        let mut end = Vec::new();
        received.read_to_end(&mut end).await.unwrap();
        assert_eq!(end, expected[expected.len() - 4..]);
        received.seek(SeekFrom::End(-1 << 40)).await.unwrap_err();
        received.seek(SeekFrom::Start(1 << 60)).await.unwrap();
        assert_eq!(received.read(&mut part).await.unwrap(), 0);
        received.write_all(b"far").await.unwrap_err();
        assert_eq!(received.into_bytes().await.unwrap(), expected);
        let unread = StateSnapshot::pinned(&data);
        assert_eq!(unread.into_bytes().await.unwrap(), expected);
    });
}
