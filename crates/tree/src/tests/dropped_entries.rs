//! What the observer of dropped entries is told, against what was written and what is left.

use super::{DIR, Step, changes, content, disk, history, options, prepare, run};
use crate::TreeOptions;
use crate::entries::{DropObserver, DroppedEntry, EntryDecision, EntryFilter};
use crate::storage::Storage;
use basalt_env::sync::Mutex;
use basalt_env::{Env, Random};
use basalt_kv::key::Kind;
use basalt_sim::SimFs;
use basalt_sim::campaign::scale;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Counts of entries, by key and value.
type Counts = BTreeMap<(Vec<u8>, Vec<u8>), i64>;

#[derive(Default)]
struct Dropped(Mutex<Counts>);

impl DropObserver for Dropped {
    fn observes(&self, kind: Kind) -> bool {
        kind == Kind::Put
    }

    fn note_dropped(&self, dropped: Vec<DroppedEntry>) {
        for entry in dropped {
            assert_eq!(entry.kind, Kind::Put);
            let counts = &mut *self.0.lock();
            *(counts.entry((entry.key, entry.value.to_vec()))).or_default() += 1;
        }
    }
}

/// Removes about one value in eight.
struct RemoveSome;

impl EntryFilter for RemoveSome {
    fn decide(&self, _: &[u8], _: Kind, value: &[u8]) -> EntryDecision {
        match value.first().is_some_and(|byte| *byte < 32) {
            true => EntryDecision::Remove,
            false => EntryDecision::Keep,
        }
    }
}

fn open_observed(fs: &Arc<SimFs>, dropped: &Arc<Dropped>) -> Storage {
    let env = Env::for_tests(fs.clone(), fs.op_count());
    let options = TreeOptions {
        filter: Some(Arc::new(RemoveSome)),
        drop_observer: Some(dropped.clone()),
        leaf_delta_bytes: Some([0, 150, 1 << 20][fs.op_count() as usize % 3]),
        ..options()
    };
    Storage::open(&env, Path::new(DIR), &options).unwrap()
}

fn add(counts: &mut Counts, with: &super::Changes) {
    for (key, value) in with {
        if let Some(value) = value {
            *counts.entry((key.clone(), value.clone())).or_default() += 1;
        }
    }
}

/// Each value that was written and counts is reported once or is still there, and never both.
/// Nothing is reported while a recovery may go back behind the transaction that dropped it.
#[test]
fn each_entry_is_reported_once_or_is_still_there() {
    let (mut reported, mut held_back) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..16 * scale()) {
        let random = Random::from_seed(seed);
        let (fs, dropped) = (disk(seed), Arc::new(Dropped::default()));
        let mut storage = open_observed(&fs, &dropped);
        let mut written = Counts::new();
        let mut note = 0;
        for round in 0..6 {
            for step in history(&random, 20) {
                note += 1;
                if let Step::Write(with) | Step::WriteBeside(with, _) | Step::CompactBeside(with) =
                    &step
                {
                    add(&mut written, with);
                }
                if matches!(step, Step::Reopen) {
                    storage.close().unwrap();
                    storage = open_observed(&fs, &dropped);
                } else {
                    run(&mut storage, &fs, &step, note).unwrap();
                }
            }
            // Writes in doubt, with maintenance behind them.
            let (counted, before) = (note, dropped.0.lock().clone());
            let mut in_doubt = Counts::new();
            for _ in 0..1 + random.below(4) {
                note += 1;
                let with = changes(&random);
                let prepared = prepare(&storage, &with, note).unwrap();
                storage.commit_unconfirmed(&prepared).unwrap();
                drop(prepared);
                add(&mut in_doubt, &with);
                storage.compact(&|| true).unwrap();
                storage.collect_garbage(&|| true).unwrap();
            }
            let say = format!("seed {seed}, round {round}");
            assert_eq!(*dropped.0.lock(), before, "{say}");
            if random.one_in(2) {
                storage.confirm();
                held_back += u64::from(*dropped.0.lock() != before);
                for (entry, count) in in_doubt {
                    *written.entry(entry).or_default() += count;
                }
            } else {
                let keep = |note: &[u8]| u64::from_le_bytes(note.try_into().unwrap()) <= counted;
                storage.roll_back(&keep).unwrap();
                storage.confirm();
                assert_eq!(*dropped.0.lock(), before, "{say}");
            }
            // Afterwards no page hides an entry.
            storage.rewrite_range(b"", None, &|| true).unwrap();
            let mut left = written.clone();
            for (entry, count) in &*dropped.0.lock() {
                *left.entry(entry.clone()).or_default() -= count;
            }
            left.retain(|_, count| *count != 0);
            let found = content(&storage, &storage.view()).unwrap();
            let found: Counts = found.into_iter().map(|entry| (entry, 1)).collect();
            assert_eq!(left, found, "{say}");
            storage.verify().unwrap();
        }
        reported += dropped.0.lock().values().sum::<i64>();
        storage.close().unwrap();
    }
    println!("dropped entries: reported={reported} held_back={held_back}");
    assert!(reported > 5000 && held_back > 10 || basalt_sim::campaign::case().is_some());
}
