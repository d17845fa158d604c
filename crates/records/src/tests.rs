//! Tests of files of records over a simulated disk, and what they share: disks, logs and groups of
//! records by seed.

mod damage;
mod file_header;
mod image;
mod power_cut;
mod round_trip;
mod separated;
mod write_errors;

use super::*;
use basalt_env::Random;
use basalt_fs::{File, FileSystem, LogOptions, Result};
use basalt_sim::campaign::scale;
use basalt_sim::{SimFs, SimOptions};
use std::path::Path;
use std::sync::Arc;

const STORE: u128 = 0x5707_e000_0000_0000_0000_0000_0000_0001;

fn disk(unit: usize, seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        write_unit: unit,
        capacity: 1 << 30,
        seed,
    })
}

fn file_header(unit: usize, file_id: u128, number: u64) -> FileHeader {
    FileHeader {
        kind: FileKind::Log,
        file_id,
        store_id: STORE,
        number,
        write_unit: unit as u32,
        compatible: 0,
        incompatible: 0,
        previous: None,
    }
}

fn record_of(payload: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::with_capacity(RECORD_HEADER + payload.len());
    buf.resize(RECORD_HEADER, 0);
    buf.extend_from_slice(payload);
    buf
}

/// Appends payloads as one group. The n-th one gets the sequence number `first` + n.
fn append(w: &mut RecordWriter, first: u64, payloads: &[Vec<u8>], sync: bool) -> Result<()> {
    let mut bufs: Vec<AlignedBuf> = payloads.iter().map(|p| record_of(p)).collect();
    let mut records: Vec<Outgoing<'_>> = bufs
        .iter_mut()
        .enumerate()
        .map(|(i, buf)| Outgoing {
            payload_crc: crc32c::crc32c(&buf[RECORD_HEADER..]),
            separated: &[],
            offset: 0,
            buf,
            kind: RecordKind::Batch,
            first_seq: first + i as u64,
            count: payloads[i].len() as u32,
        })
        .collect();
    let done = w.append(&mut records, sync);
    for (buf, p) in bufs.iter().zip(payloads) {
        assert_eq!(
            buf[RECORD_HEADER..],
            p[..],
            "the writer leaves payloads as they are"
        );
    }
    done
}

fn bytes_of(r: &Random, len: u64) -> Vec<u8> {
    let mut v = Vec::with_capacity(len as usize + 8);
    while (v.len() as u64) < len {
        v.extend_from_slice(&r.next_u64().to_le_bytes());
    }
    v.truncate(len as usize);
    v
}

fn small_group(r: &Random, largest: u64) -> Vec<Vec<u8>> {
    (0..1 + r.below(4))
        .map(|_| {
            let len = if r.one_in(3) {
                r.below(largest)
            } else {
                r.below(120)
            };
            bytes_of(r, 1 + len)
        })
        .collect()
}

fn expect(file_id: u128, proven_synced: u64) -> Expect {
    Expect {
        kind: FileKind::Log,
        file_id: Some(file_id),
        store_id: Some(STORE),
        number: None,
        proven_synced,
    }
}

/// Returns the payloads up to the tail, numbered from 1 by `first_seq`, and the tail.
fn read_all(fs: &dyn FileSystem, path: &Path, e: &Expect) -> Result<(Vec<Vec<u8>>, Option<Tail>)> {
    let Some(mut reader) = RecordReader::open_expecting(fs.open(path)?, path, e)? else {
        return Ok((Vec::new(), None));
    };
    let mut out = Vec::new();
    while let Some(record) = reader.next(e.proven_synced)? {
        assert_eq!(
            record.first_seq,
            out.len() as u64 + 1,
            "records come in order"
        );
        assert_eq!(record.count as usize, record.payload.len());
        out.push(record.payload.to_vec());
    }
    let tail = reader.tail();
    assert!(
        reader.next(e.proven_synced)?.is_none(),
        "the tail stays the tail"
    );
    Ok((out, Some(tail)))
}

/// Returns a log in space full of an earlier life's records, which have the same numbers as the new
/// ones will have.
fn recycled_log(fs: &SimFs, path: &Path, unit: usize, capacity: u64) -> Arc<dyn File> {
    let old = Path::new("old");
    let file = fs
        .create_log(
            old,
            LogOptions {
                capacity,
                reuse: None,
            },
        )
        .unwrap();
    let mut w = RecordWriter::create(file, old, &file_header(unit, 77, 1)).unwrap();
    let (r, mut n) = (Random::from_seed(capacity), 1);
    while w.end() + 2000 < capacity {
        append(&mut w, n, &[bytes_of(&r, 1 + r.below(300))], n % 7 == 0).unwrap();
        n += 1;
    }
    w.sync().unwrap();
    drop(w);
    fs.sync_metadata(Path::new("")).unwrap();
    let reuse = Some(old);
    fs.create_log(path, LogOptions { capacity, reuse }).unwrap()
}

/// Returns the disk's sector and the file's unit, which is the same or larger.
fn units(seed: u64) -> (usize, usize) {
    [(512, 512), (4096, 4096), (512, 4096)][seed as usize % 3]
}

fn fresh_log(fs: &SimFs, path: &Path, unit: usize, capacity: u64, recycled: bool) -> Arc<dyn File> {
    let file = if recycled {
        recycled_log(fs, path, unit, capacity)
    } else {
        let reuse = None;
        fs.create_log(path, LogOptions { capacity, reuse }).unwrap()
    };
    fs.sync_metadata(Path::new("")).unwrap();
    file
}

/// Writes a small log of synced and unsynced groups. Returns the end of the last synced record, all
/// payloads, and the number of acknowledged ones.
fn small_log(fs: &SimFs, path: &Path, unit: usize) -> (u64, Vec<Vec<u8>>, usize) {
    let r = Random::from_seed(3);
    let file = fresh_log(fs, path, unit, 16 << 10, true);
    let mut w = RecordWriter::create(file, path, &file_header(unit, 5, 1)).unwrap();
    let (mut all, mut acked) = (Vec::new(), 0);
    for sync in [true, false, false, true, false, true, false, false] {
        let group = vec![bytes_of(&r, 60), bytes_of(&r, 1 + r.below(300))];
        append(&mut w, all.len() as u64 + 1, &group, sync).unwrap();
        all.extend(group);
        if sync {
            acked = all.len();
        }
    }
    (w.synced(), all, acked)
}
