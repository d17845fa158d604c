//! Binds the prose of `docs/format/table.md` to the code: its hexdump is that of a table built
//! here, byte for byte. After a deliberate change run with `BASALT_REWRITE_GOLDEN=1`, and read the
//! difference before it is committed.

use super::super::format::{BLOCK_TRAILER_LEN, BlockHandle, FOOTER_LEN, HEADER_LEN};
use super::*;
use basalt_sim::hexdump::Dump;

const DOCUMENT: &str = include_str!("../../../../docs/format/table.md");
const BEGIN: &str = "<!-- golden: begin -->\n```text\n";
const END: &str = "```\n<!-- golden: end -->";

/// Lines of the fields of a table.
trait Fields {
    fn byte(&mut self, what: &str) -> usize;
    fn varint(&mut self, what: &str) -> u64;
    fn trailer(&mut self);
    fn index(&mut self, h: &BlockHandle);
}

impl Fields for Dump<'_> {
    /// Reads a varint below 128.
    fn byte(&mut self, what: &str) -> usize {
        let n = usize::from(self.bytes[self.at]);
        assert!(n < 0x80);
        self.line(1, &format!("{what} {n}"));
        n
    }
    fn varint(&mut self, what: &str) -> u64 {
        let mut end = self.at;
        let n = basalt_kv::encoding::get_varint(self.bytes, &mut end, 63).expect("varint");
        self.line(end - self.at, &format!("{what} {n}"));
        n
    }
    fn trailer(&mut self) {
        self.line(1, "compression: none");
        self.line(BLOCK_TRAILER_LEN - 1, "checksum");
    }
    fn index(&mut self, h: &BlockHandle) {
        let start = self.at;
        let n = usize::from(self.bytes[start + h.stored as usize - 4]);
        for _ in 0..n {
            let len = self.byte("separator: length");
            self.line(len, "separator");
            self.varint("block: offset");
            self.varint("block: stored length");
            self.varint("block: length decompressed (0: stored as it is)");
        }
        for i in 0..n {
            self.line(4, &format!("offset of index entry {i}"));
        }
        self.line(4, &format!("index entries: {n}"));
        self.trailer();
    }
}

/// The place in the document that shows what prefixes change in a table.
const PREFIXES_BEGIN: &str = "<!-- golden, with prefixes: begin -->\n```text\n";
const PREFIXES_END: &str = "```\n<!-- golden, with prefixes: end -->";

/// Returns the parts of a dump with these titles.
fn parts(dump: &str, titles: &[&str]) -> String {
    let wanted = |part: &&str| titles.contains(&part.lines().next().unwrap_or(""));
    let parts = dump.split("# ").filter(wanted);
    parts.map(|part| format!("# {part}")).collect()
}

fn golden(prefix_extractor: Option<Prefixes>) -> String {
    let (fs, env) = sim_env(0);
    let entries: Entries = vec![
        (
            internal_key(b"apple", pack_trailer(3, Kind::Put)),
            b"red".to_vec(),
        ),
        (
            internal_key(b"apple", pack_trailer(1, Kind::Delete)),
            vec![],
        ),
        (
            internal_key(b"apricot", pack_trailer(2, Kind::PutTtl)),
            [&1_700_000_000_000u64.to_le_bytes()[..], b"soft"].concat(),
        ),
        (
            internal_key(b"banana", pack_trailer(4, Kind::Put)),
            b"yellow".to_vec(),
        ),
    ];
    let path = Path::new("t");
    let options = TableOptions {
        block_bytes: 80,
        prefix_extractor,
        ..options(Cmp::Bytewise)
    };
    let id = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
    let meta = build(&env, path, id, &options, &entries);
    let bytes = fs.read_all(path).expect("read");
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    let mut d = Dump {
        bytes: &bytes[..meta.size as usize],
        at: 0,
        out: String::new(),
    };
    d.title("header");
    d.line(8, "magic");
    d.line(4, "format version");
    d.line(4, "block bytes");
    d.line(16, "file id");
    d.line(4, "compatible features");
    d.line(4, "read-compatible features");
    d.line(4, "incompatible features");
    d.line(2, "filter bits a key");
    d.line(1, "compression asked for");
    d.line(9, "reserved");
    d.line(8, "checksum");
    assert_eq!(d.at, HEADER_LEN);

    let ph = t.partition_handle(0).expect("handle");
    let partition = t.partition(0, &ph, false).expect("partition");
    for j in 0..partition.len() {
        let h = t.data_handle(&partition, ph.offset, j).expect("handle");
        d.title(&format!("data block {j}"));
        let payload = h.offset as usize..h.offset as usize + h.stored as usize;
        let tail = payload.end - 8;
        let restarts = usize::from(d.bytes[tail]);
        let buckets = usize::from(d.bytes[tail + 4]);
        let entries_end = tail - restarts * 4 - buckets;
        while d.at < entries_end {
            d.byte("entry: bytes shared with the key before");
            let unshared = d.byte("bytes not shared");
            let value = d.byte("value length");
            let key = String::from_utf8_lossy(&d.bytes[d.at..d.at + unshared]).into_owned();
            d.line(unshared, &format!("user key ..{key:?}"));
            d.line(8, "trailer: kind, sequence number");
            d.line(value, "value");
        }
        for i in 0..restarts {
            d.line(4, &format!("restart point {i}"));
        }
        d.line(buckets, "hash index");
        d.line(4, "restart points");
        d.line(2, "buckets");
        d.line(1, "restart interval");
        d.line(1, "flags");
        assert_eq!(d.at, payload.end);
        d.trailer();
    }
    d.title("filter, one page");
    let page = t.filter_page(0);
    d.line(page.stored as usize, "lines of 64 bytes");
    d.trailer();
    d.title("index partition");
    assert_eq!(d.at as u64, ph.offset);
    d.index(&ph);
    d.title("top-level index");
    assert_eq!(d.at as u64, t.footer.top.offset);
    d.index(&t.footer.top);
    d.title("properties");
    assert_eq!(d.at as u64, t.footer.properties.offset);
    let end = d.at + t.footer.properties.stored as usize;
    while d.at < end {
        d.byte("tag");
        let len = d.byte("length");
        d.line(len, "");
    }
    d.trailer();
    d.title("footer");
    assert_eq!(d.at, d.bytes.len() - FOOTER_LEN);
    for (len, what) in [
        (8, "top-level index: offset"),
        (8, "top-level index: length"),
        (8, "properties: offset"),
        (8, "properties: length"),
        (8, "filter: offset"),
        (8, "filter: lines"),
        (4, "filter: probes"),
        (4, "format version"),
        (8, "end of data blocks"),
        (8, "first index partition"),
        (8, "length of the file"),
        (16, "file id"),
        (16, "reserved"),
        (8, "checksum"),
        (8, "magic"),
    ] {
        d.line(len, what);
    }
    assert_eq!(d.at, d.bytes.len());
    d.out
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "rewrites a page of the documentation, on demand"
)]
fn the_builder_writes_the_bytes_in_the_document() {
    let (head, rest) = DOCUMENT.split_once(BEGIN).expect("begin of the hexdump");
    let (dump, tail) = rest.split_once(END).expect("end of the hexdump");
    let golden = golden(None);
    let (between, rest) = tail.split_once(PREFIXES_BEGIN).expect("the second dump");
    let (prefixes_dump, after) = rest
        .split_once(PREFIXES_END)
        .expect("the second dump's end");
    let with_prefixes = parts(
        &self::golden(Some(Prefixes::Fixed(2))),
        &["filter, one page", "properties"],
    );
    if std::env::var_os("BASALT_REWRITE_GOLDEN").is_some() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/table.md");
        let first = format!("{head}{BEGIN}{golden}{END}{between}");
        let second = format!("{PREFIXES_BEGIN}{with_prefixes}{PREFIXES_END}{after}");
        std::fs::write(page, first + &second).expect("write");
        return;
    }
    assert!(
        prefixes_dump == with_prefixes,
        "the format of prefixes changed:\n{with_prefixes}"
    );
    assert!(
        dump == golden,
        "the format changed; if it was meant to, raise the version and run with BASALT_REWRITE_GOLDEN=1:\n{golden}"
    );
}

/// Bytes of earlier builds stay readable: the test decodes the table from the document, not from
/// the builder.
#[test]
fn the_table_in_the_document_opens_and_verifies() {
    let dump = DOCUMENT.split_once(BEGIN).expect("begin").1;
    let dump = dump.split_once(END).expect("end").0;
    let bytes = basalt_sim::hexdump::bytes(dump);
    let (fs, env) = sim_env(0);
    let path = Path::new("t");
    fs.write_file(path, &bytes).expect("write");
    let file = || env.fs().open(path).expect("open");
    let meta = TableReader::inspect(&env, file(), path, Cmp::Bytewise).expect("inspect");
    assert_eq!(
        (meta.entries, meta.deletes, meta.min_seq, meta.max_seq),
        (4, 1, 1, 4)
    );
    assert_eq!(meta.soonest_expiry_ms, 1_700_000_000_000);
    let t = open(&env, path, &meta, &Cmp::Bytewise);
    t.verify(&meta).expect("verify");
    let found = t.get(b"banana", 9, true).expect("get").expect("found");
    assert_eq!(&found.value[..], b"yellow");
}

/// A build refuses newer features with a message that names them, and skips what is meant to be
/// skipped.
#[test]
fn unknown_versions_features_and_properties_are_refused_or_skipped() {
    use super::super::format::{BlockKind, Header, block_checksum};
    use super::super::properties::Properties;
    let path = Path::new("t");
    let header = Header {
        file_id: 9,
        block_bytes: 4096,
        filter_bits: 10,
        compression: 0,
    };
    let with = |at: usize, n: u32| {
        let mut h = header.encode();
        h[at..at + 4].copy_from_slice(&n.to_le_bytes());
        let sum = block_checksum(BlockKind::Header, 0, 9, 0, &h[..56]);
        h[56..].copy_from_slice(&sum.to_le_bytes());
        Header::decode(path, &h).map_err(|e| e.kind())
    };
    assert_eq!(with(8, 2), Err(ErrorKind::Unsupported));
    assert_eq!(with(40, 1), Err(ErrorKind::Unsupported));
    assert_eq!(with(32, 1), Ok(header));
    assert_eq!(with(36, 1), Ok(header));

    let meta = TableMeta {
        file_id: 0,
        size: 0,
        digest: 0,
        entries: 1,
        deletes: 0,
        smallest: internal_key(b"k", pack_trailer(1, Kind::Put)),
        largest: internal_key(b"k", pack_trailer(1, Kind::Put)),
        min_seq: 1,
        max_seq: 1,
        raw_key_bytes: 1,
        raw_value_bytes: 0,
        soonest_expiry_ms: u64::MAX,
        range_deletes: 0,
        references: Default::default(),
        shift: 0,
    };
    let properties = Properties {
        comparator: "c".into(),
        family: Some(TableFamily {
            id: 7,
            name: "seven".into(),
        }),
        prefix_extractor: None,
        meta,
        data_blocks: 1,
        own_seqs: 0,
        ranges: Vec::new(),
        flush_flag: None,
    };
    let plain = properties.encode();
    assert_eq!(
        Properties::decode(path, 0, &plain).expect("plain"),
        properties
    );
    // The flush flag of a passive store has an even tag, too.
    let flagged = Properties {
        flush_flag: Some(FlushFlag::of(900, 2000, 3)),
        ..properties.clone()
    };
    let encoded = flagged.encode();
    let decoded = Properties::decode(path, 0, &encoded).expect("flagged");
    assert_eq!(decoded, flagged);
    for damage in [encoded.len() - 1, encoded.len() - 9, encoded.len() - 17] {
        let mut bytes = encoded.clone();
        bytes[damage] = 0xff;
        let e = Properties::decode(path, 0, &bytes).expect_err("no store reaches the number");
        assert!(e.to_string().contains("flush flag"), "{e}");
    }
    // The extractor whose prefixes are in the filter has an even tag: a build that does not know it
    // reads on, by whole keys.
    let prefixed = Properties {
        prefix_extractor: Some("test.words".into()),
        ..properties.clone()
    };
    let encoded = prefixed.encode();
    assert_eq!(encoded, [&plain[..], &[30, 10], b"test.words"].concat());
    assert_eq!(
        Properties::decode(path, 0, &encoded).expect("with prefixes"),
        prefixed
    );
    for name in [&[30u8, 0][..], &[30, 1, 0xff]] {
        let e = Properties::decode(path, 0, &[&plain[..], name].concat());
        assert_eq!(e.expect_err("no name").kind(), ErrorKind::Corruption);
    }
    // References with sequence numbers of their own have an odd tag: a build that does not know it
    // cannot read them.
    let own = Properties {
        own_seqs: 3,
        ..properties.clone()
    };
    let encoded = own.encode();
    assert_eq!(
        encoded,
        [&plain[..], &[23, 8], &3u64.to_le_bytes()].concat()
    );
    assert_eq!(Properties::decode(path, 0, &encoded).expect("own"), own);
    let none = [&plain[..], &[23, 8], &0u64.to_le_bytes()].concat();
    let e = Properties::decode(path, 0, &none).expect_err("none of its own");
    assert_eq!(e.kind(), ErrorKind::Corruption);
    let ignorable = [&plain[..], &[24, 1, 0]].concat();
    assert_eq!(
        Properties::decode(path, 0, &ignorable).expect("even tags are skipped"),
        properties
    );
    let mandatory = [&plain[..], &[25, 1, 0]].concat();
    assert_eq!(
        Properties::decode(path, 0, &mandatory)
            .expect_err("odd tags are not")
            .kind(),
        ErrorKind::Unsupported
    );
    // Bad: an id without a name, a name without an id, an empty name, an id of no family.
    let bare = Properties {
        family: None,
        ..properties
    }
    .encode();
    let id = [&[20u8, 8], &7u64.to_le_bytes()[..]].concat();
    let wild = [&[20u8, 8], &u64::MAX.to_le_bytes()[..]].concat();
    let name = [22u8, 1, b'n'];
    let sound = [&bare[..], &id, &name].concat();
    assert!(Properties::decode(path, 0, &sound).is_ok());
    for more in [
        id.clone(),
        name.to_vec(),
        [&id[..], &[22, 0]].concat(),
        [&wild[..], &name].concat(),
    ] {
        let e = Properties::decode(path, 0, &[&bare[..], &more].concat());
        assert_eq!(e.expect_err("no family").kind(), ErrorKind::Corruption);
    }
}
