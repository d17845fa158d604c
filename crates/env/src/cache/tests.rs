//! Unit tests of `cache`.

use super::*;

/// The ids of two files fold to the same half of the hash. So their blocks at one offset have
/// one hash, one shard and one place in the index. A lookup that compared only the hash and the
/// offset returned the block of the other file.
#[test]
fn cache_keys_with_the_same_hash_differ_by_file() {
    let cache = BlockCache::new(1 << 20, MemoryLedger::new(1 << 30));
    let offset = 8192;
    let [one, two] =
        [0x1234, (0x1234 ^ 1u128.rotate_left(29)) | 1 << 64].map(|file| CacheKey { file, offset });
    assert_ne!(one, two);
    assert_eq!(one.hash(), two.hash(), "ids for another hash function");
    let put = |key, byte| {
        cache.insert(key, Bytes::from(vec![byte; 100]), 100, CachePriority::High);
    };
    put(one, 1);
    assert_eq!(cache.get(two), None);
    assert!(!cache.contains(two) && !cache.pin(two));
    let loaded = cache.get_or_load(two, CachePriority::High, || Ok(vec![2; 100].into()));
    assert_eq!(loaded.unwrap(), vec![2; 100]);
    // Both blocks are present, and each is replaced and removed alone.
    let found = |key| cache.get(key).map(|block| block[0]);
    assert_eq!((found(one), found(two)), (Some(1), Some(2)));
    put(two, 3);
    assert_eq!((found(one), found(two)), (Some(1), Some(3)));
    cache.remove(one);
    assert_eq!((found(one), found(two)), (None, Some(3)));
}

/// A block that has room evicts no other one, and a full shard has no room.
#[test]
fn a_block_that_has_room_evicts_nothing() {
    let cache = BlockCache::new(64 << 10, MemoryLedger::new(1 << 30));
    let key = |n: u64| CacheKey {
        file: 1,
        offset: n * 4096,
    };
    let mut inserted = 0;
    while cache.has_room(key(inserted), 4096) {
        let block = Bytes::from(vec![0; 4096]);
        cache.insert(key(inserted), block, 4096, CachePriority::Normal);
        inserted += 1;
        assert!(inserted < 100, "the cache is never full");
    }
    assert!(inserted > 8, "{inserted}");
    assert_eq!(cache.stats().evictions, 0);
    let block = Bytes::from(vec![0; 4096]);
    cache.insert(key(inserted), block, 4096, CachePriority::Normal);
    assert!(cache.stats().evictions > 0);
}
