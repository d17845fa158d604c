//! Pages as they are written and read, and damage.

use super::*;
use basalt_stream::ExtentId;

fn key(i: u32) -> Vec<u8> {
    format!("user/{i:06}").into_bytes()
}

fn made(count: u32, compression: Compression) -> (PageId, Bytes) {
    made_of(PageKind::Leaf, count, compression, 4096)
}

/// Makes a page of a kind with the even keys up to `2 * count`.
fn made_of(
    kind: PageKind,
    count: u32,
    compression: Compression,
    block_bytes: usize,
) -> (PageId, Bytes) {
    let mut builder = PageBuilder::new(kind, 0);
    for i in 0..count {
        builder.add(&key(i * 2), 1, format!("value {i}").as_bytes());
    }
    stored(&mut builder, compression, block_bytes)
}

/// Returns the page of a builder as it is stored, and its id.
pub(crate) fn stored(
    builder: &mut PageBuilder,
    compression: Compression,
    block_bytes: usize,
) -> (PageId, Bytes) {
    let layout = PageLayout {
        compression,
        block_bytes,
    };
    let mut out = Vec::new();
    builder.finish(PageId::NONE, layout, &mut out);
    let id = PageId {
        extent: ExtentId(7),
        offset: 4096,
        len: out.len() as u32,
    };
    bind(id.address(), &mut out);
    (id, out.into())
}

#[test]
fn pages_are_read_as_written() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        for count in [0, 1, 2, 300] {
            let (id, bytes) = made(count, compression);
            let page = Page::open(id, &bytes).unwrap();
            assert_eq!(page.count(), count as usize);
            for i in 0..count {
                assert_eq!(page.find(&key(i * 2)), Ok(i as usize));
                assert_eq!(page.find(&key(i * 2 + 1)), Err(i as usize + 1));
                assert_eq!(page.key(i as usize), key(i * 2));
                assert_eq!(page.value(i as usize), format!("value {i}").as_bytes());
            }
            assert_eq!(page.find(b"a"), Err(0));
            assert_eq!(page.find(b"z"), Err(count as usize));
        }
    }
    let packed = made(300, Compression::Zstd).1.len();
    assert!(packed < made(300, Compression::None).1.len() / 2);
}

/// A lookup finds the same in one block as in the whole page.
#[test]
fn blocks_have_the_entries_of_their_page() {
    for kind in [PageKind::Leaf, PageKind::Delta] {
        for (count, block_bytes) in [(0, 64), (1, 64), (300, 64), (300, 1000), (300, 1 << 20)] {
            if kind == PageKind::Delta && count == 0 {
                continue;
            }
            let (id, bytes) = made_of(kind, count, Compression::Lz4, block_bytes);
            let page = Page::open(id, &bytes).unwrap();
            let end = head_end(&bytes).unwrap();
            let head = PageHead::open(id, &bytes.slice(..end)).unwrap();
            let again = PageHead::of_cached(head.to_cached());
            assert_eq!(again.blocks, head.blocks);
            assert_eq!((head.count(), head.meta().kind), (count as usize, kind));
            match (count, block_bytes) {
                (300, 64) => assert!(head.blocks > 50, "{} blocks", head.blocks),
                (300, 1000) => assert!((5..10).contains(&head.blocks)),
                _ => assert_eq!(head.blocks, 1),
            }
            let blocks: Vec<Page> = (0..head.blocks)
                .map(|i| {
                    let stored = bytes.slice(head.block(i).stored);
                    let block = head.open_block(i, &stored).unwrap();
                    Page::of_cached(block.to_cached())
                })
                .collect();
            for i in 0..page.count() {
                let number = head.block_of_entry(i);
                let first = head.block(number).entries.start;
                assert_eq!(blocks[number].key(i - first), page.key(i));
                assert_eq!(blocks[number].value(i - first), page.value(i));
            }
            // Keys of the page, keys between them, and keys of no prefix.
            let asked = (0..2 * count + 2).map(key);
            for asked in asked.chain([
                b"".to_vec(),
                b"a".to_vec(),
                b"user/".to_vec(),
                b"z".to_vec(),
            ]) {
                let number = head.block_of(&asked);
                let first = head.block(number).entries.start;
                let found = blocks[number].find(&asked);
                let found = found.map(|i| first + i).map_err(|i| first + i);
                assert_eq!(found, page.find(&asked), "{asked:?}");
                assert!(found.is_err() || head.may_have(&asked));
            }
        }
    }
}

/// A filter knows all of its keys, and about one of a hundred others.
#[test]
fn the_filter_of_a_delta_page_refuses_other_keys() {
    let (id, bytes) = made_of(PageKind::Delta, 4000, Compression::Lz4, 4096);
    let head = PageHead::open(id, &bytes).unwrap();
    assert!((0..4000).all(|i| head.may_have(&key(i * 2))));
    let wrong = (0..4000).filter(|i| head.may_have(&key(i * 2 + 1))).count();
    assert!((10..100).contains(&wrong), "{wrong} of 4000");
    let (id, bytes) = made_of(PageKind::Leaf, 100, Compression::Lz4, 4096);
    assert!(PageHead::open(id, &bytes).unwrap().may_have(&key(1)));
}

/// A block with keys that belong to another one is refused, although its checksum is right.
#[test]
fn a_block_keeps_to_its_separators() {
    let (id, bytes) = made_of(PageKind::Leaf, 40, Compression::None, 64);
    let head = PageHead::open(id, &bytes).unwrap();
    let blocks: Vec<BlockRecord> = (0..head.blocks).map(|i| head.block(i)).collect();
    let pairs = blocks.windows(2);
    let number = pairs
        .clone()
        .position(|pair| pair[0].stored.len() == pair[1].stored.len());
    let number = number.expect("two neighbours have the same length");
    let (first, second) = (head.block(number), head.block(number + 1));
    let mut hostile = bytes.to_vec();
    hostile.copy_within(second.stored.clone(), first.stored.start);
    reseal(id, &mut hostile);
    let hostile = Bytes::from(hostile);
    let head = PageHead::open(id, &hostile).unwrap();
    let e = head
        .open_block(number, &hostile.slice(first.stored))
        .unwrap_err();
    assert!(e.contains("has keys of the next one"), "{e}");
    Page::open(id, &hostile).unwrap_err();
}

/// Regression test: the head of a page counted entries in a block of no bytes, and a scan that read
/// the page ahead panicked.
#[test]
fn a_block_of_no_bytes_has_no_entries() {
    let (id, bytes) = made_of(PageKind::Leaf, 40, Compression::None, 64);
    let begin = head_end(&bytes).unwrap();
    let mut hostile = bytes.to_vec();
    let record = PAGE_HEADER + COUNTS;
    hostile[record..record + 4].copy_from_slice(&(begin as u32).to_le_bytes());
    reseal(id, &mut hostile);
    let e = PageHead::open(id, &hostile.into()).unwrap_err();
    assert!(
        e.contains("block 0 of the page has entries and no bytes"),
        "{e}"
    );
    PageHead::open(id, &bytes).unwrap();
    let (id, empty) = made(0, Compression::None);
    PageHead::open(id, &empty).unwrap();
}

/// Regression test: a delta page without entries ended the maintenance of its tree with a panic.
#[test]
fn a_delta_page_has_entries() {
    let (id, bytes) = made_of(PageKind::Delta, 0, Compression::None, 64);
    let e = PageHead::open(id, &bytes).unwrap_err();
    assert!(e.contains("a delta page without entries"), "{e}");
    assert_eq!(Page::open(id, &bytes).err(), Some(e));
}

#[test]
fn a_page_is_bound_to_its_place() {
    let (id, bytes) = made(10, Compression::None);
    let elsewhere = [
        PageId {
            extent: ExtentId(8),
            ..id
        },
        PageId { offset: 8192, ..id },
    ];
    for wrong in elsewhere {
        let e = Page::open(wrong, &bytes).unwrap_err();
        assert!(e.contains("header is wrong"), "{e}");
    }
}

/// Every flipped bit and every cut is found. The module `fuzzing` has hostile pages with right
/// checksums.
#[test]
fn damage_is_found() {
    let made = |compression, block_bytes| {
        [PageKind::Leaf, PageKind::Delta].map(|kind| made_of(kind, 20, compression, block_bytes))
    };
    let pages = [Compression::None, Compression::Lz4]
        .into_iter()
        .flat_map(|compression| [64, 4096].map(|block_bytes| made(compression, block_bytes)));
    for (id, bytes) in pages.flatten() {
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            Page::open(id, &damaged.into()).unwrap_err();
        }
        for len in 0..bytes.len() {
            Page::open(id, &bytes.slice(..len)).unwrap_err();
        }
    }
}

/// An id whose end is above the largest offset is refused, in an index page and in the system log.
#[test]
fn ids_that_no_page_has_are_refused() {
    let wrong = PageId {
        extent: ExtentId(7),
        offset: u32::MAX,
        len: 1,
    };
    assert_eq!(PageId::from_bytes(&wrong.to_bytes()), None);
    let mut encoded = Vec::new();
    wrong.encode(&mut encoded);
    assert_eq!(PageId::decode(&encoded, &mut 0), None);
    let mut builder = PageBuilder::new(PageKind::Index, 1);
    builder.add(b"a", 0, &wrong.to_bytes());
    let mut out = Vec::new();
    let layout = PageLayout {
        compression: Compression::None,
        block_bytes: 4096,
    };
    builder.finish(PageId::NONE, layout, &mut out);
    let id = PageId {
        extent: ExtentId(7),
        offset: 4096,
        len: out.len() as u32,
    };
    bind(id.address(), &mut out);
    let e = Page::open(id, &out.into()).unwrap_err();
    assert!(e.contains("has no page id"), "{e}");
}
