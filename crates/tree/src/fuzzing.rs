//! The decoders of this crate as targets of mutators: the input of each, and what must hold for any
//! input.
//!
//! The module is compiled only for tests and under coverage-guided fuzzing (`--cfg fuzzing`).
//! `docs/testing/fuzzing.md` lists the targets with the promise that each checks.

use crate::features;
use crate::mapping::{Change, Delta, Effects, MappingTable, Pages, Part, State};
use crate::page::{Page, PageKind};
use crate::page_format::{PageBuilder, PageHead, PageLayout, reseal};
use crate::page_id::PageId;
use crate::system_log::{Root, SystemCheckpoint, SystemTx};
use crate::usage::{StreamKind, UsageTable};
use basalt_fs::Bytes;
use basalt_kv::codec::Compression;
use basalt_sim::mutate::{Target, Verdict};
use basalt_stream::ExtentId;
use std::path::Path;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target {
        name: "tree_page",
        run: page,
        seeds: pages,
        words: &[&[1], &[2], &[3], &[0xff, 0xff, 0xff, 0xff]],
    },
    Target {
        name: "tree_system_transaction",
        run: system_transaction,
        seeds: || vec![transaction().encode(), SystemTx::default().encode()],
        words: &[&[0], &[1], &[3], &[0xff, 0xff, 0xff, 0xff, 0x0f]],
    },
    Target {
        name: "tree_system_checkpoint",
        run: system_checkpoint,
        seeds: || vec![joined(&checkpoint())],
        words: &[&[0], &[1], &[0xff, 0xff, 0xff, 0xff, 0x0f]],
    },
];

/// Runs the target of this name. Panics if it does not exist, or if its promise does not hold.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(input);
}

fn id(offset: u32, len: u32) -> PageId {
    PageId {
        extent: ExtentId(7),
        offset,
        len,
    }
}

/// Pages of each kind, of one block and of several ones.
fn pages() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for (kind, compression, block_bytes) in [
        (PageKind::Leaf, Compression::None, 64),
        (PageKind::Leaf, Compression::Lz4, 4096),
        (PageKind::Delta, Compression::None, 4096),
        (PageKind::Delta, Compression::Zstd, 64),
        (PageKind::Index, Compression::None, 64),
    ] {
        let mut builder = PageBuilder::new(kind, u8::from(kind == PageKind::Index));
        for i in 0..20_u8 {
            let child = id(u32::from(i) * 100, 100).to_bytes();
            let value: &[u8] = match kind {
                PageKind::Index => &child,
                _ => &[i; 20],
            };
            builder.add(format!("key/{i:02}").as_bytes(), i % 3, value);
        }
        let layout = PageLayout {
            compression,
            block_bytes,
        };
        let mut page = Vec::new();
        builder.finish(PageId::NONE, layout, &mut page);
        out.push(page);
    }
    out
}

/// Any bytes as a page, sealed. A page that opens has its keys in order, each block has what the
/// page has at its place, and a lookup in the block of a key finds what one in the page finds.
fn page(bytes: &[u8]) -> Verdict {
    let at = id(4096, bytes.len() as u32);
    let mut bytes = bytes.to_vec();
    reseal(at, &mut bytes);
    let bytes = Bytes::from(bytes);
    let head = PageHead::open(at, &bytes);
    let Ok(page) = Page::open(at, &bytes) else {
        if let Ok(head) = head {
            for i in 0..head.blocks {
                let _ = head.open_block(i, &bytes.slice(head.block(i).stored));
            }
        }
        return Verdict::Refused;
    };
    let head = head.expect("its page opens");
    let blocks = (0..head.blocks).map(|i| {
        let stored = bytes.slice(head.block(i).stored);
        head.open_block(i, &stored).expect("its page opens")
    });
    let blocks: Vec<Page> = blocks.collect();
    for i in 0..page.count() {
        let key = page.key(i);
        assert_eq!(page.find(&key), Ok(i));
        assert!(head.may_have(&key));
        let number = head.block_of(&key);
        assert_eq!(number, head.block_of_entry(i));
        let inside = i - head.block(number).entries.start;
        assert_eq!(blocks[number].find(&key), Ok(inside));
        assert_eq!(blocks[number].value(inside), page.value(i));
    }
    Verdict::Accepted
}

fn transaction() -> SystemTx {
    let low = |key: &[u8]| key.to_vec();
    SystemTx {
        changes: vec![
            Change::Append {
                key: id(0, 100),
                delta: id(900, 50),
                to_index: false,
            },
            Change::Append {
                key: id(0, 150),
                delta: id(950, 50),
                to_index: true,
            },
            Change::Consolidate {
                key: id(100, 100),
                kept: 1,
                replaced: 2,
                with: Some(id(950, 60)),
            },
            Change::Overwrite {
                key: id(200, 100),
                replaced: 1,
                base: id(2000, 90),
            },
            Change::Rewrite {
                key: id(300, 100),
                replaced: 1,
                with: vec![(low(b""), id(3000, 80)), (low(b"m"), id(3080, 80))],
            },
        ],
        above: vec![id(4000, 70)],
        root: Some(Root {
            id: id(4000, 70),
            level: 2,
        }),
        note: Some(vec![1, 2, 3]),
        ..SystemTx::default()
    }
}

fn checkpoint() -> SystemCheckpoint {
    let part = Part {
        low: b"m".as_slice().into(),
        has_low: true,
        high: Some(b"q".as_slice().into()),
    };
    let part = Delta {
        id: id(1050, 50),
        part: Some(Box::new(part)),
    };
    let live = |base: PageId, deltas: Vec<Delta>| {
        State::Live(Pages {
            base,
            deltas: deltas.into(),
            has_index_deltas: base.offset == 100,
        })
    };
    let whole = |offset: u32| Delta::whole(id(offset, 50));
    let chains = vec![
        (
            id(100, 100),
            live(id(100, 100), [600, 650, 700].map(whole).into()),
        ),
        (id(200, 100), live(id(1000, 100), vec![whole(750), part])),
        (id(300, 100), live(id(300, 100), vec![whole(800)])),
        (
            id(500, 100),
            State::Rewritten([(b"".as_slice().into(), id(1200, 100))].into()),
        ),
    ];
    let mut usage = UsageTable::default();
    usage.add(StreamKind::Base, id(100, 300), 4).unwrap();
    usage.add(StreamKind::Base, id(1000, 300), 5).unwrap();
    let other = PageId {
        extent: ExtentId(8),
        ..id(100, 300)
    };
    usage.add(StreamKind::Base, other, 6).unwrap();
    usage.drop_ranges(&[(other.extent, 1000)], 0);
    SystemCheckpoint {
        time: 9,
        root: Root {
            id: id(1100, 100),
            level: 1,
        },
        note: vec![4, 5],
        chains,
        usage,
    }
}

/// Returns the bytes of a checkpoint without those that its records begin with.
fn joined(checkpoint: &SystemCheckpoint) -> Vec<u8> {
    let parts = checkpoint.encode(1);
    let parts = parts.iter().map(|part| {
        let (first, bytes) = SystemCheckpoint::open_part(part).expect("a part has a number");
        assert_eq!(first, 1);
        bytes
    });
    parts.collect::<Vec<_>>().concat()
}

/// Returns the table and the usage that a checkpoint has.
fn loaded(checkpoint: &SystemCheckpoint) -> (MappingTable, UsageTable) {
    let table = MappingTable::new();
    for (key, state) in &checkpoint.chains {
        table.load(*key, checkpoint.time, state.clone());
    }
    (table, checkpoint.usage.clone())
}

/// Any bytes as a record of the log `system`. What is read is written back to the same transaction.
/// One that fits the table is applied to it or refused with a sentence.
fn system_transaction(bytes: &[u8]) -> Verdict {
    let Some(tx) = SystemTx::decode(bytes) else {
        return Verdict::Refused;
    };
    assert_eq!(SystemTx::decode(&tx.encode()), Some(tx.clone()));
    features::check(bytes, Path::new("tree")).expect("its features are known");
    let (table, _) = loaded(&checkpoint());
    if table.check(&tx.changes).is_ok() {
        let mut effects = Effects::default();
        let mut changes = tx.changes.iter();
        let _ = changes.try_for_each(|change| table.apply(10, change, &mut effects));
        table.sums(1);
    }
    Verdict::Accepted
}

/// Any bytes as a system checkpoint. What is read is written back to the same one, and the usage of
/// its extents takes pages and gives them back, or refuses them with a sentence.
fn system_checkpoint(bytes: &[u8]) -> Verdict {
    let Some(checkpoint) = SystemCheckpoint::decode(bytes) else {
        return Verdict::Refused;
    };
    let again = SystemCheckpoint::decode(&joined(&checkpoint));
    assert_eq!(again.as_ref(), Some(&checkpoint));
    features::check(bytes, Path::new("tree")).expect("its features are known");
    let (table, mut usage) = loaded(&checkpoint);
    table.sums(1);
    for kind in [StreamKind::Base, StreamKind::Delta] {
        for page in [id(5000, 100), id(100, 300)] {
            let _ = usage.add(kind, page, 9);
            let _ = usage.remove(kind, page, 10);
            let _ = usage.remove(kind, page, 11);
        }
    }
    Verdict::Accepted
}

#[cfg(test)]
mod tests;
