//! Merges against a model.

use super::*;
use crate::mapping::Part;
use crate::page::PageKind;
use crate::page_format::PageBuilder;
use crate::page_format::tests::stored;
use crate::page_id::PageId;
use basalt_env::Random;
use basalt_kv::codec::Compression;
use std::collections::BTreeMap;

type Entries = BTreeMap<Vec<u8>, (u8, Vec<u8>)>;

fn page(entries: &Entries, as_of: u64) -> Page {
    // Only base pages may be empty.
    let kind = match entries.is_empty() {
        true => PageKind::Leaf,
        false => PageKind::Delta,
    };
    let mut builder = PageBuilder::new(kind, 0);
    builder.as_of = as_of;
    for (key, (kind, value)) in entries {
        builder.add(key, *kind, value);
    }
    let (id, bytes) = stored(&mut builder, Compression::None, 64);
    Page::open(id, &bytes).unwrap()
}

/// Draws a key: short ones and long ones, with bytes of zero, and with and without a common prefix.
fn key(random: &Random, prefix: &[u8]) -> Vec<u8> {
    let len = random.below(11) as usize;
    let bytes = (0..len).map(|_| [0, 0, b'a', 255][random.below(4) as usize]);
    prefix.iter().copied().chain(bytes).collect()
}

#[test]
fn a_merge_is_what_a_model_says() {
    let random = Random::from_seed(1);
    let (mut hidden, mut parts, mut short) = (0, 0, 0);
    for _ in 0..2000 {
        let prefix: &[u8] = [&b""[..], b"p", b"a long common prefix"][random.below(3) as usize];
        let count = 1 + random.below(9) as usize;
        let mut pages = Vec::new();
        // The entries of each key, the newest one last.
        let mut model: BTreeMap<Vec<u8>, Vec<(u8, Vec<u8>)>> = BTreeMap::new();
        for age in 0..count {
            let mut entries = Entries::new();
            for n in 0..random.below(20) {
                let value = vec![age as u8; random.below(5) as usize];
                entries.insert(key(&random, prefix), (n as u8, value));
            }
            let bounds = [key(&random, prefix), key(&random, prefix)];
            let has_low = random.below(3) == 0;
            let high = (random.below(3) == 0).then(|| bounds[1].clone());
            let inside = |key: &Vec<u8>| {
                (!has_low || bounds[0] <= *key) && high.as_ref().is_none_or(|high| key < high)
            };
            for (key, entry) in entries.iter().filter(|(key, _)| inside(key)) {
                model.entry(key.clone()).or_default().push(entry.clone());
            }
            parts += u64::from(has_low || high.is_some());
            let part = Part {
                low: bounds[0].as_slice().into(),
                has_low,
                high: high.as_deref().map(Into::into),
            };
            let delta = Delta {
                id: PageId::NONE,
                part: Some(Box::new(part)),
            };
            pages.push((page(&entries, age as u64), delta));
        }
        let sources = pages.iter();
        let sources = sources.map(|(page, delta)| (page.clone(), Some(delta)));
        let mut merge = PageMerge::new(sources);
        assert_eq!(merge.as_of(), count as u64 - 1);
        for (key, mut entries) in model {
            assert!(merge.next());
            let mut found = Vec::new();
            merge.key_into(&mut found);
            assert_eq!(found, key);
            short += u64::from(key.len() < prefix.len() + 8);
            let owned = |(kind, value): (u8, &[u8])| (kind, value.to_vec());
            assert_eq!(Some(owned(merge.entry())), entries.pop());
            entries.reverse();
            assert_eq!(merge.hidden().map(owned).collect::<Vec<_>>(), entries);
            hidden += entries.len();
        }
        assert!(!merge.next());
        assert!(!merge.next());
    }
    assert!(
        hidden > 4_000 && parts > 4_000 && short > 30_000,
        "{hidden} {parts} {short}"
    );
}
