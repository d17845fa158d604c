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
                table.add(StreamKind::Base, page(at, 10), 0);
            }
        }
        let usage = table.get(ExtentId(1)).unwrap();
        let valid: u32 = model.values().sum();
        assert_eq!(usage.valid, u64::from(valid));
        let of_ranges: u32 = usage.ranges.iter().map(|(from, to)| to - from).sum();
        assert_eq!(of_ranges, valid);
        let whole = |at: &u32| usage.ranges.range(..=*at).next_back().unwrap().1 >= &(at + 10);
        assert!(model.keys().all(whole));
    }
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    assert_eq!(UsageTable::decode(&bytes, &mut 0), Some(table.clone()));
    let twice = page(5000, 10);
    assert!(table.remove(StreamKind::Base, twice, 1).is_err());
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
