//! Unit tests of `blob_table`.

use super::*;
use basalt_blob::BlobMeta;
use basalt_blob::garbage::Garbage;
use basalt_env::Random;
use std::sync::Arc;

fn file(r: &Random) -> CatalogBlob {
    let mut families = BTreeMap::new();
    for id in 0..1 + r.below(3) as u32 {
        let records = 1 + r.below(4);
        let bytes = records * 10 + r.below(1000);
        families.insert(id, FamilyShare { records, bytes });
    }
    let records = families.values().map(|s| s.records).sum();
    let bytes: u64 = families.values().map(|s| s.bytes).sum();
    CatalogBlob {
        location: crate::version::FileLocation::Local,
        meta: Arc::new(BlobMeta {
            file_id: 1,
            data_end: bytes,
            index: None,
            size: bytes + r.below(10),
            digest: 0,
            records,
            families,
            min_seq: 0,
            max_seq: 0,
        }),
        garbage: Arc::new(Garbage::none(records as u32)),
        made_ms: None,
    }
}

#[test]
fn blob_totals_equal_a_recount_after_every_change() {
    let r = Random::from_seed(11);
    let mut table = BlobTable::default();
    let mut longest_left = 0;
    for round in 0..4000 {
        let number = r.below(60);
        match r.below(if round < 3000 { 3 } else { 6 }) {
            0 => {
                table.insert(number, file(&r));
            }
            1 => {
                table.change(&number, |blob| {
                    let n = r.below(blob.meta.records) as u32;
                    let _ = Arc::make_mut(&mut blob.garbage).mark(n, 0, 1, 0);
                });
            }
            _ => {
                let before = longest(&table);
                table.remove(&number);
                longest_left += usize::from(longest(&table) < before);
            }
        }
        assert_eq!(
            *table.totals(),
            BlobTotals::of(table.values()),
            "round {round}"
        );
        let all = table.values().filter_map(|b| b.meta.families.get(&0));
        let all = all.map(|s| s.bytes as f64 / s.records as f64);
        assert_eq!(longest(&table), all.fold(0.0, f64::max), "round {round}");
    }
    assert!(
        longest_left > 10,
        "the longest mean left {longest_left} times"
    );
    table.clear();
    assert_eq!(*table.totals(), BlobTotals::default());
}

fn longest(table: &BlobTable) -> f64 {
    let family = table.totals().families.get(&0);
    family.map_or(0.0, FamilyBlobs::longest_mean)
}
