//! Unit tests of `index`.

use super::*;
use crate::Random;
use std::collections::BTreeMap;

#[test]
fn the_cache_index_equals_a_map_when_hashes_collide() {
    let random = Random::from_seed(11);
    let mut index = Index::default();
    let mut model: BTreeMap<u32, u64> = BTreeMap::new();
    for step in 0..50_000u32 {
        // Few distinct hashes in few neighbourhoods make clusters run into and around each
        // other.
        let hash = random.below(40) | random.below(3) << 10;
        if random.below(5) < 3 && model.len() < 200 {
            index.add(hash, step);
            model.insert(step, hash);
        } else if let Some((&slot, &hash)) = model
            .range(random.below(u64::from(step) + 1) as u32..)
            .next()
        {
            index.remove(hash, slot);
            model.remove(&slot);
        }
        if step % 64 == 0 {
            for (&slot, &hash) in &model {
                assert_eq!(index.find(hash, |s| s == slot), Some(slot));
                assert_eq!(index.find(hash, |s| s == u32::MAX), None);
            }
            assert_eq!(index.taken, model.len());
        }
    }
}
