//! Batches: encoded operations are decoded to the same operations, limits are refused without harm,
//! and no bytes make the decoder misbehave.

use super::*;
use crate::codec::Compression;
use crate::family::Family;
use crate::separated::compressed;
use basalt_env::Random;
use basalt_sim::campaign::scale;

fn bytes_of(r: &Random, len: u64) -> Vec<u8> {
    (0..len).map(|_| r.next_u64() as u8).collect()
}

type Owned = (u32, Kind, Vec<u8>, Vec<u8>);

fn random_batch(r: &Random) -> (WriteBatch, Vec<Owned>) {
    let (mut batch, mut model) = (WriteBatch::new(), Vec::new());
    let least = 1 + r.below(20_000) as usize;
    for _ in 0..r.below(20) {
        let family = [0, 1, 127, 128, 1 << 20, u32::MAX][r.below(6) as usize];
        let len = [0, 1, 16, 127, 128, 300, MAX_KEY_LEN as u64][r.below(7) as usize];
        let key = bytes_of(r, len);
        let len = [0, 1, 100, 127, 128, 20_000][r.below(6) as usize];
        let mut value = bytes_of(r, len);
        let kinds = [
            Kind::Put,
            Kind::Delete,
            Kind::PutTtl,
            Kind::Merge,
            Kind::RangeDelete,
        ];
        let kind = kinds[r.below(5) as usize];
        let expiry = r.next_u64().to_le_bytes();
        let codec = [Compression::None, Compression::Lz4, Compression::Zstd][r.below(3) as usize];
        let of = match r.one_in(2) {
            true => Family::detached(family).separating(least, codec),
            false => Family::detached(family),
        };
        if codec != Compression::None && r.one_in(2) {
            // Some values shrink.
            value.fill(7);
        }
        let before = batch.separated.len();
        let separates = of.min_blob_size().is_some_and(|least| value.len() >= least)
            && matches!(kind, Kind::Put | Kind::PutTtl);
        match kind {
            Kind::Put | Kind::Merge | Kind::RangeDelete => {
                batch.push(&of, kind, &key, &[], &value).unwrap();
            }
            Kind::Delete => {
                batch.push(&of, kind, &key, &[], &[]).unwrap();
                value.clear();
            }
            _ => {
                batch.push(&of, kind, &key, &expiry, &value).unwrap();
                value = [&expiry[..], &value].concat();
            }
        }
        assert_eq!(batch.separated.len() - before, usize::from(separates));
        model.push((family, kind, key, value));
    }
    (batch, model)
}

#[test]
fn batches_round_trip() {
    for seed in basalt_sim::campaign::cases(0..300 * scale()) {
        let _repeat = basalt_sim::repeat!(batches_round_trip, "BASALT_CASE={seed}");
        let r = Random::from_seed(seed);
        let (mut batch, model) = random_batch(&r);
        for round in 0..2 {
            let say = format!("batch round trip seed={seed} round={round}");
            assert_eq!(
                (batch.len(), batch.is_empty()),
                (model.len(), model.is_empty()),
                "{say}"
            );
            if !model.is_empty() {
                let encoded = &batch.buf[RECORD_HEADER..];
                let ops: Vec<Op<'_>> = Ops::new(encoded).collect::<Result<_>>().expect(&say);
                assert_eq!(ops.len(), model.len(), "{say}");
                let mut raw = batch.raw.iter();
                for (op, (family, kind, key, value)) in ops.iter().zip(&model) {
                    let own = compressed::unpack(op.kind, op.codec, op.value, 0);
                    assert_eq!(
                        (op.family, op.kind, op.key, own.as_deref()),
                        (*family, *kind, &key[..], Ok(&value[..])),
                        "{say}"
                    );
                    if op.codec != Compression::None {
                        assert!(op.value.len() < value.len(), "{say}");
                        assert_eq!(raw.next().expect(&say), value, "{say}");
                    }
                    if *kind != Kind::Delete {
                        assert_eq!(
                            &encoded[op.value_at..op.value_at + op.value.len()],
                            op.value,
                            "{say}"
                        );
                    }
                }
                assert!(raw.next().is_none(), "{say}");
                let foreground_load = |op: &Op<'_>, value: &[u8]| value.len() - op.value.len();
                let foreground_load = ops
                    .iter()
                    .zip(&model)
                    .map(|(op, m)| foreground_load(op, &m.3));
                assert_eq!(
                    batch.raw_bytes(),
                    batch.bytes() + foreground_load.sum::<usize>()
                );
            }
            // A cleared batch encodes the same again.
            let (before, separated) = (batch.buf.to_vec(), batch.separated.clone());
            let codecs: Vec<Compression> = match model.is_empty() {
                true => Vec::new(),
                false => (Ops::new(&before[RECORD_HEADER..]))
                    .map(|op| op.expect(&say).codec)
                    .collect(),
            };
            batch.clear();
            assert!(batch.is_empty() && Ops::new(&batch.buf).next().is_none());
            let separated: Vec<u32> = separated.iter().map(|s| s.op).collect();
            for (n, (family, kind, key, value)) in (0..).zip(&model) {
                let family = match separated.contains(&n) {
                    true => Family::detached(*family).separating(0, codecs[n as usize]),
                    false => Family::detached(*family),
                };
                batch.push(&family, *kind, key, &[], value).unwrap();
            }
            assert_eq!(batch.buf[..], before[..], "{say}");
        }
    }
}

/// One random operation on a family that separates and compresses values, or does not.
fn random_op(r: &Random) -> (Family, Kind, Vec<u8>, Vec<u8>, Option<u64>) {
    let codec = [Compression::None, Compression::Lz4, Compression::Zstd][r.below(3) as usize];
    let family = Family::detached(r.below(4) as u32);
    let family = match r.one_in(2) {
        true => family.separating(200, codec),
        false => family,
    };
    let key_len = r.below(20);
    let key = bytes_of(r, key_len);
    let value_len = [0, 3, 199, 200, 3_000][r.below(5) as usize];
    let mut value = bytes_of(r, value_len);
    if r.one_in(2) {
        value.fill(7);
    }
    let kinds = [
        Kind::Put,
        Kind::PutTtl,
        Kind::Delete,
        Kind::Merge,
        Kind::RangeDelete,
    ];
    let kind = kinds[r.below(5) as usize];
    if kind == Kind::Delete {
        value.clear();
    }
    let expiry = (kind == Kind::PutTtl).then(|| r.next_u64());
    (family, kind, key, value, expiry)
}

fn add(batch: &mut WriteBatch, op: &(Family, Kind, Vec<u8>, Vec<u8>, Option<u64>)) {
    let (family, kind, key, value, expiry) = op;
    let prefix = expiry.map_or(Vec::new(), |at| at.to_le_bytes().to_vec());
    batch.push(family, *kind, key, &prefix, value).unwrap();
}

/// All that a batch is, but for its savepoints.
fn whole(batch: &WriteBatch) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        batch.buf.to_vec(),
        batch.len(),
        batch.raw_bytes(),
        batch.families.clone(),
        batch.separated.clone(),
        batch.raw.clone(),
    )
}

/// Operations, savepoints, rollbacks and pops in random order leave the batch that the operations
/// which remain encode to, with all tables beside it, and a walk shows these operations.
#[test]
fn savepoints_leave_the_batch_that_the_remaining_operations_encode_to() {
    let (mut rollbacks, mut refused, mut walked, mut compressed) = (0, 0, 0, 0);
    for seed in basalt_sim::campaign::cases(0..400 * scale()) {
        let _repeat = basalt_sim::repeat!(
            savepoints_leave_the_batch_that_the_remaining_operations_encode_to,
            "BASALT_CASE={seed}"
        );
        let r = Random::from_seed(seed);
        let (mut batch, mut model) = (WriteBatch::new(), Vec::new());
        let mut savepoints: Vec<usize> = Vec::new();
        for _ in 0..r.below(40) {
            match r.below(8) {
                0..=4 => {
                    let op = random_op(&r);
                    add(&mut batch, &op);
                    model.push(op);
                }
                5 => {
                    batch.set_savepoint();
                    savepoints.push(model.len());
                }
                6 => match savepoints.pop() {
                    Some(len) => {
                        batch.rollback_to_savepoint().unwrap();
                        model.truncate(len);
                        rollbacks += 1;
                    }
                    None => {
                        let e = batch.rollback_to_savepoint().unwrap_err();
                        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                        refused += 1;
                    }
                },
                _ => assert_eq!(batch.pop_savepoint().is_ok(), savepoints.pop().is_some()),
            }
        }
        let mut rebuilt = WriteBatch::new();
        model.iter().for_each(|op| add(&mut rebuilt, op));
        if model.is_empty() {
            assert!(batch.is_empty() && batch.payload().is_empty());
        }
        assert_eq!(whole(&batch), whole(&rebuilt), "seed={seed}");
        compressed += batch.raw.len();
        let ops: Vec<BatchOp<'_>> = batch.iter().collect();
        assert_eq!(batch.iter().len(), model.len());
        assert_eq!(ops.len(), model.len(), "seed={seed}");
        for (op, (family, kind, key, value, expiry)) in ops.iter().zip(&model) {
            let expected = BatchOp {
                family: family.id(),
                kind: *kind,
                key,
                value,
                expire_at_ms: *expiry,
            };
            assert_eq!(*op, expected, "seed={seed}");
            walked += 1;
        }
        batch.clear();
        assert!(batch.pop_savepoint().is_err(), "a cleared batch has none");
    }
    println!("savepoints: rollbacks={rollbacks} refused={refused} walked={walked}");
    assert!(rollbacks > 200 && refused > 50 && walked > 1_000 && compressed > 50);
}

/// A batch took an operation that its decoder refuses. The operation reached the log, and the
/// insertion into the memtable panicked.
#[test]
fn an_operation_that_the_decoder_refuses_is_not_added() {
    let kinds = (0..=u8::MAX).filter_map(Kind::from_u8);
    let family = Family::detached(3).separating(100, Compression::None);
    let (mut taken, mut refused) = (0, 0);
    for kind in kinds {
        for len in [0, 7, 8, 200, MAX_KEY_LEN + 1] {
            for prefix in [0, len] {
                let bytes = vec![7; len];
                let (prefix, value) = bytes.split_at(prefix);
                let mut batch = WriteBatch::new();
                match batch.push(&family, kind, b"key", prefix, value) {
                    Ok(()) => {
                        let ops: Result<Vec<_>> = Ops::new(batch.payload()).collect();
                        let ops = ops.unwrap_or_else(|e| panic!("{kind:?}, {len} bytes: {e}"));
                        assert_eq!(ops[0].kind, kind);
                        taken += 1;
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                        assert!(batch.is_empty() && batch.payload().is_empty());
                        refused += 1;
                    }
                }
            }
        }
    }
    assert_eq!((taken, refused), (44, 56));
}

#[test]
fn one_operation_takes_exactly_the_memory_it_needs() {
    for len in [0, 100, 100_000, 1 << 20] {
        let mut batch = WriteBatch::new();
        batch
            .push(&Family::detached(3), Kind::Put, b"key", &[], &vec![1; len])
            .unwrap();
        let exact = AlignedBuf::with_capacity(batch.bytes()).capacity();
        assert_eq!(batch.buf.capacity(), exact);
        // A slot is at most a sixteenth larger than the block in it.
        assert!(exact - batch.bytes() <= batch.bytes() / 16);
        let payload = payload(Bytes::from_owner(batch.buf));
        let op = Ops::new(&payload).next().unwrap().unwrap();
        assert_eq!(op.value.len(), len);
    }
}

#[test]
fn an_operation_beyond_the_limits_leaves_the_batch_unchanged() {
    let mut batch = WriteBatch::new();
    batch
        .push(&Family::detached(0), Kind::Put, b"a", &[], b"1")
        .unwrap();
    let before = batch.buf.to_vec();
    let long = vec![0; MAX_KEY_LEN + 1];
    let huge = vec![0; MAX_VALUE_LEN + 1];
    let e = batch
        .push(&Family::detached(0), Kind::Put, &long, &[], b"")
        .unwrap_err();
    assert!(
        e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("65536"),
        "{e}"
    );
    let e = batch
        .push(&Family::detached(0), Kind::Put, b"b", &[], &huge)
        .unwrap_err();
    assert!(
        e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("1073741824"),
        "{e}"
    );
    assert_eq!((batch.len(), &batch.buf[..]), (1, &before[..]));
    batch
        .push(&Family::detached(0), Kind::Put, &long[1..], &[], b"")
        .unwrap();
    assert_eq!(batch.len(), 2);
}

#[test]
fn varints_are_minimal_and_bounded() {
    for n in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX)] {
        let mut buf = AlignedBuf::new();
        put_varint(&mut buf, n);
        assert_eq!(buf.len(), varint_len(n));
        let mut at = 0;
        assert_eq!(get_varint32(&buf, &mut at).map(u64::from), Some(n));
        assert_eq!(at, buf.len());
        assert_eq!(get_varint32(&buf[..buf.len() - 1], &mut 0), None);
    }
    let mut buf = AlignedBuf::new();
    put_varint(&mut buf, 1 << 32);
    assert_eq!(get_varint32(&buf, &mut 0), None, "more than 32 bits");
    assert_eq!(get_varint32(&[0x80; 100], &mut 0), None, "without end");
}

#[test]
fn any_batch_bytes_decode_or_are_refused() {
    let (mut decoded, mut refused) = (0u64, 0u64);
    for seed in basalt_sim::campaign::cases(0..100_000 * scale()) {
        let _repeat =
            basalt_sim::repeat!(any_batch_bytes_decode_or_are_refused, "BASALT_CASE={seed}");
        let r = Random::from_seed(seed);
        let mut b = if r.one_in(8) {
            let len = r.below(200);
            bytes_of(&r, len)
        } else {
            let mut batch = WriteBatch::new();
            for _ in 0..1 + r.below(4) {
                let (key, value) = (r.next_u64().to_le_bytes(), [7; 40]);
                let kinds = [
                    Kind::Put,
                    Kind::Delete,
                    Kind::PutTtl,
                    Kind::Merge,
                    Kind::RangeDelete,
                ];
                let kind = kinds[r.below(5) as usize];
                let value = if kind == Kind::Delete {
                    &[]
                } else {
                    &value[..8 + r.below(32) as usize]
                };
                batch
                    .push(
                        &Family::detached(r.below(300) as u32),
                        kind,
                        &key[..r.below(9) as usize],
                        &[],
                        value,
                    )
                    .unwrap();
            }
            batch.buf[RECORD_HEADER..].to_vec()
        };
        for _ in 0..r.below(4) {
            if b.is_empty() {
                break;
            }
            let at = r.below(b.len() as u64) as usize;
            match r.below(4) {
                0 => b.truncate(at),
                1 => b[at] = 0xff,
                2 => b[at] = r.next_u64() as u8,
                _ => b[at] ^= 1 << r.below(8),
            }
        }
        let mut seen = 0;
        let mut failed = false;
        for op in Ops::new(&b) {
            assert!(
                !failed,
                "batch mutator seed={seed}: an operation after an error"
            );
            match op {
                Ok(op) => {
                    assert!(op.key.len() <= MAX_KEY_LEN && op.kind.is_supported());
                    assert!(
                        op.kind != Kind::PutTtl || op.value.len() >= 8,
                        "batch mutator seed={seed}"
                    );
                    seen += 1 + op.key.len() + op.value.len();
                }
                Err(e) => {
                    failed = true;
                    assert!(
                        matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported),
                        "batch mutator seed={seed}: {e}"
                    );
                }
            }
        }
        assert!(seen <= b.len(), "batch mutator seed={seed}");
        if failed { refused += 1 } else { decoded += 1 }
    }
    println!("batch mutator: decoded={decoded} refused={refused}");
    assert!(decoded > 10_000 && refused > 10_000);
}
