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
