//! Usage against a model, and its encoding.

use super::*;

#[test]
fn ranges_join_and_part_as_a_model_says() {
    let random = basalt_env::Random::from_seed(5);
    let page = |offset: u32, len: u32| PageId {
        extent: ExtentId(1),
        offset,
        len,
    };
    let mut table = UsageTable::default();
    let mut model: BTreeMap<u32, u32> = BTreeMap::new();
    for time in 1..5000 {
        let at = random.below(200) as u32 * 10;
        match model.remove(&at) {
            Some(len) => table.remove(StreamKind::Base, page(at, len), time).unwrap(),
            None => {
                model.insert(at, 10);
                table.add(StreamKind::Base, page(at, 10), 0).unwrap();
            }
        }
        let usage = table.get(ExtentId(1)).unwrap();
        let valid: u32 = model.values().sum();
        assert_eq!(usage.valid, u64::from(valid));
        let ranges = usage.ranges.as_ref().unwrap();
        assert_eq!(ranges.total(), u64::from(valid));
        assert!(model.keys().all(|at| ranges.have(*at, at + 10)));
        let pages = model.iter().map(|(at, len)| (*at, at + len)).rev();
        assert_eq!(ByteRanges::of_pages(pages.collect()).as_ref(), Some(ranges));
    }
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    assert_eq!(UsageTable::decode(&bytes, &mut 0), Some(table.clone()));
    let twice = page(5000, 10);
    assert!(table.remove(StreamKind::Base, twice, 1).is_err());
}

/// Regression test: the times of readers were collected, and then two transactions committed. The
/// first one began an extent, and the second one made all of it garbage. The extent was erased,
/// though a reader had begun between the two.
#[test]
fn an_extent_that_became_garbage_after_the_readers_were_counted_is_not_dead() {
    let page = |extent| PageId {
        extent: ExtentId(extent),
        offset: 16,
        len: 10,
    };
    let mut table = UsageTable::default();
    let readers = [3, 5];
    for (extent, born, freed) in [(1, 6, 7), (2, 2, 4), (3, 1, 6), (4, 4, 5), (5, 1, 2)] {
        table.add(StreamKind::Delta, page(extent), born).unwrap();
        table
            .remove(StreamKind::Delta, page(extent), freed)
            .unwrap();
    }
    let is_dead: Vec<bool> = (1..=6)
        .map(|extent| table.is_dead(ExtentId(extent), &readers))
        .collect();
    // A reader at 6, at 3, at 5; none; none; never committed.
    assert_eq!(is_dead, [false, false, false, true, true, true]);
}

/// Regression test: bytes in use of a crafted checkpoint overflowed.
#[test]
fn pages_that_an_extent_cannot_have_are_refused() {
    let page = PageId {
        extent: ExtentId(1),
        offset: 16,
        len: 10,
    };
    let mut table = UsageTable::default();
    table.add(StreamKind::Delta, page, 1).unwrap();
    let e = table.add(StreamKind::Base, page, 2).unwrap_err();
    assert!(e.contains("another stream"), "{e}");
    table.extents.get_mut(&page.extent).unwrap().valid = u64::MAX - 5;
    let before = table.clone();
    let e = table.add(StreamKind::Delta, page, 2).unwrap_err();
    assert!(e.contains("overflow"), "{e}");
    assert_eq!(table, before);
}

/// Ranges of a crafted checkpoint. Regression test: a range that ends before it begins was taken,
/// and the salvage of a tree computed its length.
#[test]
fn ranges_that_are_empty_or_out_of_order_are_refused() {
    let encoded = |ranges: &[(u32, u32)]| {
        let mut bytes = vec![1];
        bytes.extend_from_slice(&7u64.to_le_bytes());
        bytes.push(StreamKind::Base as u8);
        for n in [400, 9, ranges.len() as u64] {
            put_varint(&mut bytes, n);
        }
        for (from, to) in ranges {
            put_varint(&mut bytes, u64::from(*from));
            put_varint(&mut bytes, u64::from(*to));
        }
        UsageTable::decode(&bytes, &mut 0)
    };
    assert!(encoded(&[(100, 200), (300, 600)]).is_some());
    assert!(encoded(&[(200, 100)]).is_none());
    assert!(encoded(&[(200, 200)]).is_none());
    assert!(encoded(&[(300, 600), (100, 200)]).is_none());
    assert!(encoded(&[(100, 400), (300, 600)]).is_none());
}

/// Returns a table of an extent with two pages of 100 bytes, and one of delta pages.
fn two_extents() -> UsageTable {
    let mut table = UsageTable::default();
    let page = |extent: u64, offset: u32| PageId {
        extent: ExtentId(extent),
        offset,
        len: 100,
    };
    table.add(StreamKind::Base, page(1, 100), 3).unwrap();
    table.add(StreamKind::Base, page(1, 300), 4).unwrap();
    table.add(StreamKind::Delta, page(2, 100), 4).unwrap();
    table
}

#[test]
fn ranges_are_dropped_from_extents_that_nothing_is_written_to() {
    let sealed: Vec<SealedExtent> = (1..=2).map(|id| (ExtentId(id), 1000)).collect();
    let mut table = two_extents();
    let bytes = table.range_bytes();
    table.drop_ranges(&sealed, bytes);
    assert_eq!(table, two_extents());
    table.hold(ExtentId(1));
    table.drop_ranges(&sealed, 0);
    assert_eq!(table.range_bytes(), bytes);
    table.release(ExtentId(1));
    table.drop_ranges(&sealed[1..], 0);
    assert_eq!(table, two_extents());
    table.drop_ranges(&sealed, 0);
    assert_eq!(table.range_bytes(), 0);
    assert!(table.get(ExtentId(1)).unwrap().ranges.is_none());
    assert!(table.get(ExtentId(2)).unwrap().ranges.is_some());
    // Each page of the extent counts as there, and its bytes are counted as before.
    let page = PageId {
        extent: ExtentId(1),
        offset: 100,
        len: 100,
    };
    assert!(table.has_base(page));
    table.remove(StreamKind::Base, page, 5).unwrap();
    let wrong = PageId { len: 101, ..page };
    assert!(table.remove(StreamKind::Base, wrong, 5).is_err());
    assert_eq!(table.get(ExtentId(1)).unwrap().valid, 100);
    // Ranges come back only with the right sum.
    let of = |pages: &[(u32, u32)]| ByteRanges::of_pages(pages.to_vec()).unwrap();
    assert!(!table.set_ranges(ExtentId(1), of(&[(300, 450)])));
    assert!(table.set_ranges(ExtentId(1), of(&[(300, 400)])));
    assert!(ByteRanges::of_pages(vec![(100, 200), (150, 250)]).is_none());
    // Of an extent without a valid page, the ranges are known.
    table.drop_ranges(&sealed, 0);
    let last = PageId {
        offset: 300,
        ..page
    };
    table.remove(StreamKind::Base, last, 6).unwrap();
    assert!(table.get(ExtentId(1)).unwrap().ranges.is_some());
}

#[test]
fn the_least_garbage_loses_its_ranges_first() {
    let mut table = UsageTable::default();
    let extents: Vec<SealedExtent> = (1..=9).map(|id| (ExtentId(id), 1000)).collect();
    for (extent, _) in &extents {
        let page = PageId {
            extent: *extent,
            offset: 100,
            len: extent.0 as u32 * 100,
        };
        table.add(StreamKind::Base, page, 1).unwrap();
    }
    let bytes = table.range_bytes();
    table.drop_ranges(&extents, bytes / 3);
    let known = table.iter().filter(|(_, of)| of.ranges.is_some());
    let known: Vec<u64> = known.map(|(id, _)| id.0).collect();
    assert_eq!(known, [1, 2, 3]);
}

/// A checkpoint has extents with ranges, without, and of delta pages. What is cut or crafted is
/// refused.
#[test]
fn an_extent_without_ranges_is_encoded_by_its_size() {
    let mut table = two_extents();
    table.drop_ranges(&[(ExtentId(1), 1000)], 0);
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    let decoded = UsageTable::decode(&bytes, &mut 0).unwrap();
    assert_eq!(decoded.get(ExtentId(1)).unwrap().ranges, None);
    assert_eq!(decoded.get(ExtentId(1)).unwrap().valid, 200);
    assert_eq!(decoded.get(ExtentId(2)).unwrap().kind, StreamKind::Delta);
    for len in 0..bytes.len() {
        assert_eq!(UsageTable::decode(&bytes[..len], &mut 0), None, "{len}");
    }
    let kind = 9;
    assert_eq!(bytes[kind], BASE_WITHOUT_RANGES);
    bytes[kind] = 4;
    assert_eq!(UsageTable::decode(&bytes, &mut 0), None);
    let mut empty = vec![1];
    empty.extend_from_slice(&7u64.to_le_bytes());
    empty.push(BASE_WITHOUT_RANGES);
    empty.extend([0, 9]);
    assert_eq!(UsageTable::decode(&empty, &mut 0), None);
}

/// A page that is not in use changes nothing.
#[test]
fn a_refused_page_leaves_the_table_as_it_was() {
    let mut table = two_extents();
    for (offset, len) in [(250, 50), (100, 150), (50, 60)] {
        let wrong = PageId {
            extent: ExtentId(1),
            offset,
            len,
        };
        assert!(table.remove(StreamKind::Base, wrong, 9).is_err());
        assert!(!table.has_base(wrong));
        assert_eq!(table, two_extents());
    }
}
