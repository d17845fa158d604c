//! Tests random garbage collections against a reference that moves each record by itself.

use super::*;
use basalt_env::Random;

/// A record: family, key, and the number that refers to it.
type Record = (u32, Vec<u8>, u64);

struct World {
    random: Random,
    lineage: Lineage,
    /// The number of the file that has each live record.
    live: BTreeMap<Record, u64>,
    next: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            random: Random::from_seed(seed),
            lineage: Lineage::default(),
            live: BTreeMap::new(),
            next: 1,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Writes a new file with keys of some families, of all the keyspace or a part of it.
    fn write(&mut self) {
        let file = self.number();
        let from = self.random.below(200);
        let width = 1 + self.random.below(200);
        for _ in 0..self.random.below(40) {
            let key = from + self.random.below(width);
            let family = self.random.below(3) as u32;
            self.live
                .insert((family, key.to_be_bytes().to_vec(), file), file);
        }
    }

    fn kill(&mut self, share: u64) {
        let random = &self.random;
        self.live.retain(|_, _| !random.one_in(share));
    }

    /// Rewrites some files into others.
    fn collect(&mut self) {
        let files: Vec<u64> = {
            let mut files: Vec<u64> = self.live.values().copied().collect();
            files.sort_unstable();
            files.dedup();
            files
        };
        let picked: Vec<u64> = (files.iter().copied())
            .filter(|_| self.random.one_in(3))
            .take(5)
            .collect();
        if picked.is_empty() {
            return;
        }
        let mut done = ReplacedFiles {
            sources: picked.clone(),
            targets: BTreeMap::new(),
        };
        // Outputs hold families one after the other, in the order of keys. They are cut anywhere
        // between two keys.
        let moved: Vec<Record> = (self.live.iter())
            .filter(|(_, at)| picked.contains(at))
            .map(|(r, _)| r.clone())
            .collect();
        let mut target = self.number();
        let mut last: Option<(u32, Vec<u8>)> = None;
        for r in moved {
            let here = (r.0, r.1.clone());
            if last.as_ref() != Some(&here) && self.random.one_in(8) {
                target = self.number();
            }
            let list = done.targets.entry(r.0).or_default();
            if list.last().is_none_or(|(_, t)| *t != target) {
                list.push((Arc::from(&r.1[..]), target));
            }
            self.live.insert(r, target);
            last = Some(here);
        }
        self.lineage.add_gc(&done, &|_| Cmp::Bytewise);
    }

    fn check(&self) {
        for ((family, key, number), at) in &self.live {
            let found = self.lineage.resolve(*number, *family, key, &Cmp::Bytewise);
            assert_eq!(
                found,
                Some(*at),
                "family {family} key {key:?} number {number}"
            );
        }
    }

    /// Forgets names without references, as compactions do.
    fn prune(&mut self) {
        for name in self.lineage.names() {
            if !self.live.keys().any(|(_, _, number)| *number == name) {
                self.lineage.forget(name);
                assert!(!self.lineage.is_name(name));
            }
        }
    }
}

#[test]
fn a_retired_number_resolves_after_any_number_of_moves() {
    let scale = basalt_sim::campaign::scale();
    let (mut names, mut pieces) = (0, 0);
    for seed in 0..40 * scale {
        let mut world = World::new(seed);
        for _ in 0..60 {
            match world.random.below(5) {
                0 | 1 => world.write(),
                2 => world.kill(4),
                3 => world.collect(),
                _ => world.prune(),
            }
            world.check();
        }
        names += world.lineage.names().len();
        let targets = (world.lineage.names().into_iter())
            .flat_map(|n| world.lineage.targets(n).unwrap().values());
        pieces += targets.map(Vec::len).sum::<usize>();
    }
    basalt_sim::campaign!("names={names} pieces={pieces}");
    assert!(
        names > 100 && pieces > 2 * names,
        "{names} names, {pieces} pieces"
    );
}

#[test]
fn a_retired_number_is_split_at_the_keys_of_its_targets() {
    let key = |k: &str| Arc::<[u8]>::from(k.as_bytes());
    let collected = |sources: &[u64], targets: &[(&str, u64)]| ReplacedFiles {
        sources: sources.to_vec(),
        targets: [(0, targets.iter().map(|(k, t)| (key(k), *t)).collect())].into(),
    };
    let mut lineage = Lineage::default();
    let cmp = |_| Cmp::Bytewise;
    lineage.add_gc(
        &collected(&[1, 2], &[("b", 10), ("m", 11), ("t", 12)]),
        &cmp,
    );
    lineage.add_gc(&collected(&[11, 3], &[("a", 20), ("p", 21)]), &cmp);
    let of = |k: &str| lineage.resolve(1, 0, k.as_bytes(), &Cmp::Bytewise);
    let found = ["a", "b", "l", "m", "o", "p", "s", "t", "z"].map(of);
    assert_eq!(
        found.map(Option::unwrap),
        [10, 10, 10, 20, 20, 21, 21, 12, 12]
    );
    assert_eq!(lineage.resolve(3, 0, b"a", &Cmp::Bytewise), Some(20));
    assert_eq!(
        lineage.resolve(12, 0, b"t", &Cmp::Bytewise),
        Some(12),
        "a file"
    );
    assert_eq!(
        lineage.resolve(1, 9, b"t", &Cmp::Bytewise),
        None,
        "nothing alive"
    );
    assert_eq!(lineage.names(), [1, 2, 3, 11]);
}

#[test]
#[should_panic(expected = "was collected before")]
fn a_file_is_collected_once() {
    let mut lineage = Lineage::default();
    let done = ReplacedFiles {
        sources: vec![1],
        targets: BTreeMap::new(),
    };
    lineage.add_gc(&done, &|_| Cmp::Bytewise);
    lineage.add_gc(&done, &|_| Cmp::Bytewise);
}

#[test]
fn lineage_groups_that_no_collection_writes_are_refused() {
    let key = |k: &str| Arc::<[u8]>::from(k.as_bytes());
    let group = |names: &[u64], targets: Targets| LineageGroup {
        names: names.to_vec(),
        targets: [(0, targets)].into(),
    };
    let sound = vec![(key("a"), 1), (key("b"), 2)];
    let mut lineage = Lineage::default();
    assert!(!lineage.restore(9, group(&[], sound.clone())));
    assert!(!lineage.restore(9, group(&[9, 9], sound.clone())));
    assert!(!lineage.restore(9, group(&[10, 9], sound.clone())));
    assert!(lineage.is_empty());
    assert!(lineage.restore(9, group(&[9, 10], sound.clone())));
    assert!(
        !lineage.restore(8, group(&[8, 10], sound)),
        "10 is of group 9"
    );
    assert_eq!(lineage.resolve(10, 0, b"b", &Cmp::Bytewise), Some(2));
    assert!(lineage.is_in_order(0, &Cmp::Bytewise));
    // This group replaces the former one, so 10 is forgotten.
    assert!(lineage.restore(9, group(&[9], vec![(key("b"), 1), (key("a"), 2)])));
    assert_eq!(lineage.names(), [9]);
    assert!(!lineage.is_in_order(0, &Cmp::Bytewise));
    assert!(lineage.is_in_order(1, &Cmp::Bytewise));
}
