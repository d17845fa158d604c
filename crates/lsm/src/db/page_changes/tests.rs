//! The changes of memtables, against a list of all changes.

use super::*;
use basalt_env::Random;
use basalt_fs::Bytes;
use basalt_kv::key::Kind;

#[test]
fn the_newest_change_of_each_key_is_known_until_it_is_forgotten() {
    let rng = Random::from_seed(7);
    let key = |n: u64| format!("key {n:02}").into_bytes();
    let mut changes = PageChanges::unknown(10);
    // Of each set, its last number, and the number of each key's newest change in it.
    let mut sets: Vec<(SeqNo, Vec<Option<SeqNo>>)> = Vec::new();
    let mut seq = 10;
    for set in 1..40 {
        let mem = MemTable::new(Cmp::Bytewise);
        let mut newest = vec![None; 20];
        for _ in 0..=rng.below(12) {
            seq += 1;
            let (a, b) = (rng.below(20), rng.below(20));
            match rng.below(4) {
                0 if a < b => {
                    mem.delete_range(&key(a), &key(b), seq);
                    newest[a as usize..b as usize].fill(Some(seq));
                }
                1 => {
                    mem.insert(&key(a), seq, Kind::Delete, &Bytes::new());
                    newest[a as usize] = Some(seq);
                }
                _ => {
                    mem.insert(&key(a), seq, Kind::Put, &Bytes::from("value"));
                    newest[a as usize] = Some(seq);
                }
            }
        }
        changes.push(seq, FlushedChanges::of(&mem, set).unwrap());
        changes.forget_old(set);
        sets.push((seq, newest));
        let kept = sets.len().saturating_sub(KEPT_FLUSHES as usize);
        let known_from = sets[..kept].last().map_or(10, |(last, _)| *last);
        for n in 0..20 {
            let newest = sets[kept..].iter().rev().find_map(|(_, of)| of[n as usize]);
            let expected = newest.map_or((known_from, false), |seq| (seq, true));
            assert_eq!(changes.newest(&key(n)), expected, "key {n} after set {set}");
        }
    }
}
