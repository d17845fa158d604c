//! Range tombstones in tables: written and read back, damaged, salvaged, and bound to the hexdump
//! in `docs/format/table.md`.

use super::*;
use crate::salvage::{KnownTable, salvage};
use basalt_fs::ErrorKind;
use basalt_kv::key::user_key;
use basalt_kv::ranges::{Fragments, RangeTombstone};
use std::fmt::Write;

const DOCUMENT: &str = include_str!("../../../../docs/format/table.md");
const BEGIN: &str = "<!-- golden ranges: begin -->\n```text\n";
const END: &str = "```\n<!-- golden ranges: end -->";

fn some_ranges(r: &Random, cmp: &Cmp, n: u64) -> Fragments {
    let pieces: Vec<(Vec<u8>, Vec<u8>, u64)> = (0..n)
        .map(|_| (random_key(r, 0), random_key(r, 0), 1 + r.below(1000)))
        .collect();
    let pieces = pieces.iter().map(|(from, to, seq)| RangeTombstone {
        from,
        to,
        seq: *seq,
    });
    Fragments::build(cmp, pieces, None)
}

fn write(env: &Env, path: &Path, cmp: &Cmp, entries: &Entries, ranges: &Fragments) -> TableMeta {
    let file = env.fs().create(path).expect("create");
    let options = TableOptions {
        block_bytes: 256,
        ..options(cmp.clone())
    };
    let mut b = TableBuilder::new(env, file, path, 77, options, IoPriority::High);
    for (k, v) in entries {
        b.add(k, v).expect("add");
    }
    for i in 0..ranges.len() {
        let (from, to) = ranges.range(i);
        b.delete_range(from, to, ranges.seqs_of(i));
    }
    b.finish().expect("finish")
}

#[test]
fn range_tombstones_read_back_and_decide_lookups() {
    for seed in 0..60 * scale() {
        let r = Random::from_seed(seed);
        let (_, env) = sim_env(1 << 20);
        let (cmp, path) = (Cmp::Bytewise, Path::new("t"));
        let n = if r.one_in(5) { 0 } else { 1 + r.below(200) };
        let entries = match n {
            0 => Entries::new(),
            n => random_entries(&r, &cmp, n, 0, 100),
        };
        let many = any_of(&r, &[1, 10, 4000]);
        let ranges = some_ranges(&r, &cmp, 1 + r.below(many));
        if ranges.is_empty() {
            continue;
        }
        let meta = write(&env, path, &cmp, &entries, &ranges);
        assert_eq!(meta.range_deletes, ranges.pieces() as u64);
        let t = open(&env, path, &meta, &cmp);
        t.verify(&meta).expect("verify");
        assert!(t.ranges().iter().eq(ranges.iter()), "seed {seed}");
        assert_eq!(
            TableReader::inspect(&env, env.fs().open(path).expect("open"), path, cmp.clone())
                .expect("inspect"),
            meta
        );
        // The table's range holds every entry and every key that its range tombstones delete.
        let last = ranges.range(ranges.len() - 1).1;
        assert!(user_key(&meta.smallest) <= ranges.range(0).0);
        assert!(user_key(&meta.largest) >= last);
        if meta.end_is_open() {
            assert_eq!(user_key(&meta.largest), last);
        }
        let mut keys: Vec<Vec<u8>> = entries.iter().map(|(k, _)| user_key(k).to_vec()).collect();
        keys.extend((0..30).map(|_| random_key(&r, 0)));
        for seq in [0, r.below(1000), MAX_SEQ] {
            let asked: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
            let many = look_up_batch(&t, &asked, seq, true);
            for (key, many) in keys.iter().zip(many) {
                let entry = model_get(&entries, &cmp, key, seq);
                let entry = entry.map(|(k, _)| trailer_seq(split_internal_key(k).1));
                let deleted = ranges.newest(&cmp, key, seq);
                let one = t.get(key, seq, true).expect("get");
                assert_eq!(one.as_ref().map(|f| f.seq), entry.max(deleted));
                if deleted > entry {
                    assert_eq!(one.as_ref().map(|f| f.kind), Some(Kind::Delete));
                }
                assert_eq!(many.map(|f| (f.seq, f.kind)), one.map(|f| (f.seq, f.kind)));
            }
        }
        let mut it = t.iter(ReadPattern::Cached);
        it.seek_to_first().expect("seek");
        let mut seen = 0;
        while it.valid() {
            seen += 1;
            it.next().expect("next");
        }
        assert_eq!(seen, entries.len(), "a cursor shows entries only");
    }
}

/// Whichever byte of the tombstones is wrong, the table does not open: a lost tombstone would show
/// deleted entries.
#[test]
fn a_damaged_range_tombstone_is_an_error() {
    let r = Random::from_seed(4);
    let (fs, env) = sim_env(0);
    let (cmp, path) = (Cmp::Bytewise, Path::new("t"));
    let entries = random_entries(&r, &cmp, 30, 0, 50);
    let ranges = some_ranges(&r, &cmp, 30);
    let meta = write(&env, path, &cmp, &entries, &ranges);
    let sound = fs.read_all(path).expect("read");
    let at = sound
        .windows(4)
        .position(|w| w == b"rng\x01")
        .expect("mark");
    let len = u32::from_le_bytes(sound[at + 4..at + 8].try_into().expect("4")) as usize;
    for i in at..at + len + 9 {
        let mut bytes = sound.clone();
        bytes[i] ^= 1 << r.below(8);
        fs.write_file(path, &bytes).expect("write");
        let opened = TableReader::open(
            &env,
            env.fs().open(path).expect("open"),
            path,
            meta.file_id,
            meta.size,
            cmp.clone(),
        );
        let e = opened.err().expect("damage is noticed when it is opened");
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert!(e.to_string().contains("range tombstones"), "{e}");
        // Salvage keeps the entries, and reports that there were tombstones.
        let file = env.fs().open(path).expect("open");
        let mut seen = 0;
        let walked = salvage(&*file, path, &KnownTable::default(), &cmp, &mut |_, _| {
            seen += 1;
            Ok(())
        })
        .expect("salvage");
        assert_eq!((seen, walked.ranges_lost), (entries.len(), Some(true)));
    }
    // The blocks of tombstones are found by their mark even if everything behind them is lost.
    let mut bytes = sound.clone();
    bytes[at + len + 9..].fill(0xee);
    fs.write_file(path, &bytes).expect("write");
    let file = env.fs().open(path).expect("open");
    let walked = salvage(&*file, path, &KnownTable::default(), &cmp, &mut |_, _| {
        Ok(())
    });
    let walked = walked.expect("salvage");
    assert!(walked.ranges.iter().eq(ranges.iter()));
    assert_eq!(walked.ranges_lost, None);
}

#[test]
fn a_range_tombstone_is_not_counted_as_an_entry() {
    let (_, env) = sim_env(0);
    let path = Path::new("t");
    let file = env.fs().create(path).expect("create");
    let o = options(Cmp::Bytewise);
    let mut b = TableBuilder::new(&env, file, path, 1, o, IoPriority::High);
    let k = internal_key(b"k", pack_trailer(2, Kind::RangeDelete));
    let e = b.add(&k, b"m").expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

fn golden() -> String {
    let (fs, env) = sim_env(0);
    let path = Path::new("t");
    let pieces = [(&b"a"[..], &b"m"[..], 7), (b"g", b"t", 9)];
    let pieces = pieces.map(|(from, to, seq)| RangeTombstone { from, to, seq });
    let ranges = Fragments::build(&Cmp::Bytewise, pieces.into_iter(), None);
    let meta = write(&env, path, &Cmp::Bytewise, &Entries::new(), &ranges);
    let bytes = fs.read_all(path).expect("read");
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    let h = t.properties.ranges[0];
    let mut out = String::new();
    let (start, mut at) = (h.offset as usize, h.offset as usize);
    let mut line = |len: usize, what: &str| {
        let mut hex = String::new();
        for b in &bytes[at..at + len] {
            let _ = write!(hex, "{b:02x} ");
        }
        let _ = writeln!(out, "{at:04x}  {hex:<27} {what}");
        at += len;
    };
    line(4, "mark");
    line(4, "length of the payload");
    for (from, to, seqs) in [("a", "g", "7"), ("g", "m", "9, 7"), ("m", "t", "9")] {
        line(2, &format!("from: length 1, {from:?}"));
        line(2, &format!("to: length 1, {to:?}"));
        let n = seqs.split(", ").count();
        line(1, &format!("sequence numbers: {n}"));
        line(n, seqs);
    }
    line(1, "compression: none");
    line(8, "checksum as kind 8");
    assert_eq!(at, start + h.disk_len());
    out
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "rewrites a page of the documentation, on demand"
)]
fn the_builder_writes_the_range_tombstones_in_the_document() {
    let (head, rest) = DOCUMENT.split_once(BEGIN).expect("begin of the hexdump");
    let (dump, tail) = rest.split_once(END).expect("end of the hexdump");
    let golden = golden();
    if std::env::var_os("BASALT_REWRITE_GOLDEN").is_some() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/table.md");
        std::fs::write(page, format!("{head}{BEGIN}{golden}{END}{tail}")).expect("write");
        return;
    }
    assert!(
        dump == golden,
        "the format of range tombstones changed; if it was meant to, run with BASALT_REWRITE_GOLDEN=1:\n{golden}"
    );
    // Bytes of earlier builds stay readable: the test decodes the bytes of the document.
    let bytes: Vec<u8> = dump
        .lines()
        .flat_map(|l| l[6..33].split_whitespace())
        .map(|b| u8::from_str_radix(b, 16).expect("hex"))
        .collect();
    let mut read = Fragments::default();
    let payload = &bytes[..bytes.len() - 9];
    crate::ranges::read_block(&Cmp::Bytewise, payload, &mut read).expect("read");
    let want = [
        (b"a", b"g", 7),
        (b"g", b"m", 9),
        (b"g", b"m", 7),
        (b"m", b"t", 9),
    ];
    let want = want.map(|(from, to, seq)| RangeTombstone { from, to, seq });
    assert!(read.iter().eq(want));
}
