//! Unit tests of `page_source`.

use super::*;
use crate::page::PageKind;
use crate::page_format::PageBuilder;
use crate::page_format::tests::stored;
use crate::usage::StreamKind;
use basalt_kv::codec::Compression;

/// Returns a page with the keys `k0` to `k9` as a source, of which those from `k3` to `k6` count.
fn part() -> Source {
    let mut builder = PageBuilder::new(PageKind::Delta, 0);
    for n in 0..10 {
        builder.add(format!("k{n}").as_bytes(), 1, b"value");
    }
    let (id, bytes) = stored(&mut builder, Compression::None, 4096);
    let head = PageHead::open(id, &bytes).unwrap();
    let page = Page::open(id, &bytes).unwrap();
    let mut source = Source::of_head((StreamKind::Delta, id), head, None);
    source.blocks = smallvec![SourceBlock::Loaded(page)];
    source.bound(Some(&Part {
        low: b"k3".as_slice().into(),
        has_low: true,
        high: Some(b"k7".as_slice().into()),
    }));
    source
}

/// A border is where its key is, wherever the cursor comes upon it.
#[test]
fn a_border_is_found_from_any_entry_behind_it() {
    for at in 0..=10 {
        for forward in [true, false] {
            let mut source = part();
            source.at = at;
            assert_eq!(source.missing(forward), None);
            for turn in [true, false, true] {
                let mut found = Vec::new();
                while source.missing(turn).is_none()
                    && let Some(next) = source.next(turn)
                {
                    found.push(next);
                    source.step(turn);
                }
                assert!(
                    found.iter().all(|n| (3..7).contains(n)),
                    "from {at}: {found:?}"
                );
            }
            assert_eq!((source.begin, source.end), (3, 7), "from {at}");
        }
    }
}
