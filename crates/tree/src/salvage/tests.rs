//! Salvage of trees of random histories, intact and damaged, against the model of the history.

use super::*;
use crate::tests::{Content, DIR, apply, disk, history, open, open_with, options, run};
use crate::{PageTree, TreeOptions};
use basalt_env::Random;
use basalt_fs::FileSystem;
use basalt_sim::SimFs;
use basalt_sim::campaign::scale;

/// Runs a history, and closes the tree. Returns what the tree then has.
fn made(seed: u64) -> (Arc<SimFs>, Content) {
    let fs = disk(seed);
    let mut storage = open(&fs).unwrap();
    let mut model = Content::new();
    let random = Random::from_seed(seed);
    let steps = history(&random, 60);
    for (n, step) in steps.iter().enumerate() {
        run(&mut storage, &fs, step, n as u64).unwrap();
        apply(&mut model, step);
    }
    storage.abandon().unwrap();
    (fs, model)
}

/// Salvages the tree. Returns what was saved, and what was lost.
pub(crate) fn salvaged(fs: &Arc<SimFs>) -> (Content, Vec<LostPages>) {
    let env = Env::for_tests(fs.clone(), 1);
    let salvage = PageTree::salvage(&env, DIR, &options(), &|_| true).unwrap();
    let lost = salvage.lost().to_vec();
    PageTree::destroy(&env, "saved").unwrap();
    let to = PageTree::open(&env, "saved", &TreeOptions::default()).unwrap();
    let count = to.write_salvaged(salvage, b"note".to_vec()).unwrap();
    to.verify().unwrap();
    assert_eq!(to.note(), b"note");
    let entries = to.iter(&to.snapshot(), b"").unwrap();
    let saved: Content = entries
        .map(|entry| entry.map(|(key, value)| (key, value.to_vec())).unwrap())
        .collect();
    assert_eq!(count, saved.len() as u64);
    to.close().unwrap();
    (saved, lost)
}

pub(crate) fn remove_logs(fs: &Arc<SimFs>) {
    let logs = Path::new(DIR).join(crate::storage::LOGS);
    for entry in fs.list(&logs).unwrap() {
        fs.remove(&logs.join(entry.name)).unwrap();
    }
}

#[test]
fn an_intact_tree_is_salvaged_whole() {
    for seed in 0..20 * scale() {
        let (fs, model) = made(seed);
        let (saved, lost) = salvaged(&fs);
        assert_eq!(lost, [], "seed {seed}");
        assert!(saved == model, "seed {seed}");
    }
}

/// Of each key that has a value, the newest one must be found. Deleted keys may show again.
#[test]
fn without_logs_the_newest_values_are_found() {
    let mut again = 0;
    for seed in 0..20 * scale() {
        let (fs, model) = made(seed);
        remove_logs(&fs);
        let (saved, lost) = salvaged(&fs);
        assert!(
            lost[0]
                .reason
                .contains("the logs of the tree cannot be read")
        );
        assert!(lost[0].older_may_reappear);
        assert_eq!(lost.len(), 1, "seed {seed}: {lost:?}");
        for (key, value) in &model {
            let found = saved.get(key);
            assert_eq!(found, Some(value), "seed {seed}: {}", key.escape_ascii());
        }
        again += saved.len() - model.len();
    }
    assert!(again > 0, "the histories delete keys");
}

#[test]
fn what_a_damaged_page_had_is_named_and_nothing_else_is_lost() {
    let mut of_index_pages = 0;
    for seed in 0..40 * scale() {
        let (fs, model) = made(seed);
        let random = Random::from_seed(seed);
        let storage = open(&fs).unwrap();
        let (_, usage) = storage.view_with_usage();
        let used: Vec<_> = usage.iter().filter(|(_, of)| of.valid > 0).collect();
        let root = storage.view().root;
        let root_at = u64::from(root.id.offset);
        for n in 0..1 + random.below(3) {
            let (extent, of) = &used[random.below(used.len() as u64) as usize];
            let ranges = of.ranges.iter().flat_map(|ranges| ranges.iter()).next();
            let (kind, extent, begin, end) = match ranges {
                _ if n == 0 && seed % 4 == 0 => {
                    let end = root_at + u64::from(root.id.len);
                    (StreamKind::Base, root.id.extent, root_at, end)
                }
                Some((begin, end)) => (of.kind, *extent, u64::from(begin), u64::from(end)),
                None => {
                    let begin = EXTENT_HEADER as u64;
                    (of.kind, *extent, begin, begin + of.valid)
                }
            };
            let name = format!("{extent}.extent");
            let path = Path::new(DIR).join(directory(kind)).join(name);
            let at = begin + random.below(end - begin);
            fs.flip_bit(&path, at, 1).unwrap();
        }
        let is_sound = storage.verify().is_ok();
        let root_is_lost =
            root.level > 0 && storage.page_uncached(StreamKind::Base, root.id).is_err();
        of_index_pages += u64::from(root_is_lost);
        storage.abandon().unwrap();
        let (saved, lost) = salvaged(&fs);
        assert_eq!(is_sound, lost.is_empty(), "seed {seed}: {lost:?}");
        assert_rest_is_kept(seed, &model, &saved, &lost);
    }
    assert!(of_index_pages > 0, "no root was lost");
}

/// Asserts that each key which no loss names is as in the model.
fn assert_rest_is_kept(seed: u64, model: &Content, saved: &Content, lost: &[LostPages]) {
    for key in model.keys().chain(saved.keys()) {
        let is_lost = lost.iter().any(|lost| {
            // An index page has no entries.
            (!lost.is_index || lost.older_may_reappear)
                && lost.from.as_ref().is_none_or(|from| from <= key)
                && lost.to.as_ref().is_none_or(|to| key < to)
        });
        let (found, expected) = (saved.get(key), model.get(key));
        assert!(
            is_lost || found == expected,
            "seed {seed}: {} of {lost:?}",
            key.escape_ascii()
        );
    }
}

/// The logs say which pages a missing or truncated extent had. All others are kept.
#[test]
fn a_missing_or_truncated_extent_loses_only_its_pages() {
    let (mut cases, mut kept, mut without_loss, mut checked) = (0, 0, 0, 0);
    for seed in 0..40 * scale() {
        cases += 1;
        let (fs, model) = made(5000 + seed);
        let random = Random::from_seed(seed);
        let env = Env::for_tests(fs.clone(), 1);
        let mut files: Vec<PathBuf> = Vec::new();
        for name in [BASE, DELTA] {
            let found = Stream::extent_files(&env, Path::new(DIR).join(name)).unwrap();
            files.extend(found.into_iter().map(|(_, path)| path));
        }
        let file = &files[random.below(files.len() as u64) as usize];
        let len = fs.read_all(file).unwrap().len() as u64;
        let is_removed = random.below(3) == 0;
        match is_removed {
            true => fs.remove(file).unwrap(),
            false => fs.truncate(file, random.below(len)).unwrap(),
        }
        let found = PageTree::check(&env, DIR, &options(), &|_| true).unwrap();
        // A removed extent is reported even if no page is in it, because the tree cannot be opened
        // for writing.
        assert!(!is_removed || !found.damage.is_empty(), "seed {seed}");
        let opens = Storage::open_read_only(&env, Path::new(DIR), &options(), &|_| true);
        opens.unwrap().abandon().unwrap();
        if !found.damage.is_empty() {
            checked += 1;
            let name = file.file_name().unwrap().to_str().unwrap();
            for e in &found.damage {
                assert!(e.to_string().contains(name), "seed {seed}: {e}");
            }
        }
        let (saved, lost) = salvaged(&fs);
        assert_rest_is_kept(seed, &model, &saved, &lost);
        let is_all = |lost: &LostPages| lost.from.is_none() && lost.to.is_none();
        kept += u32::from(!saved.is_empty() && !lost.iter().any(is_all));
        without_loss += u32::from(lost.is_empty());
        assert!(lost.is_empty() || !found.damage.is_empty(), "seed {seed}");
        let opened = open(&fs).map(|tree| tree.abandon());
        assert!(lost.is_empty() || opened.is_err(), "seed {seed}: {lost:?}");
    }
    println!("cases={cases} kept={kept} without_loss={without_loss} checked={checked}");
    assert!(2 * kept > cases && without_loss > 0 && 2 * checked > cases);
}

/// A tree is not opened for writing without an extent that its stream names, so a check must report
/// it even if no page is in it.
#[test]
fn a_missing_extent_without_pages_is_reported() {
    let mut removed = 0;
    for seed in 0..20 * scale() {
        let (fs, mut model) = made(7000 + seed);
        let random = Random::from_seed(seed);
        let mut storage = open(&fs).unwrap();
        for (n, step) in history(&random, 20).iter().enumerate() {
            // A reader that keeps extents from their erasure.
            let view = storage.view();
            run(&mut storage, &fs, step, n as u64).unwrap();
            apply(&mut model, step);
            drop(view);
        }
        storage.abandon().unwrap();
        drop(storage);
        let env = Env::for_tests(fs.clone(), 1);
        let reader = Storage::open_read_only(&env, Path::new(DIR), &options(), &|_| true).unwrap();
        let dead = reader.inspect_extents();
        reader.abandon().unwrap();
        let Some(dead) = dead.iter().find(|of| of.valid_bytes == 0 && of.is_sealed) else {
            continue;
        };
        fs.remove(&Path::new(DIR).join(&dead.file)).unwrap();
        removed += 1;
        let found = PageTree::check(&env, DIR, &options(), &|_| true).unwrap();
        assert_eq!(found.damage.len(), 1, "seed {seed}: {:?}", found.damage);
        let (saved, lost) = salvaged(&fs);
        assert_eq!(lost, [], "seed {seed}");
        assert!(saved == model, "seed {seed}");
    }
    println!("removed={removed}");
    assert!(removed > 0, "no extent was without pages");
}

/// The logs say which pages count. The extents are in the directory.
#[test]
fn a_lost_stream_manifest_loses_no_entries() {
    for seed in 0..20 * scale() {
        let (fs, model) = made(6000 + seed);
        let random = Random::from_seed(seed);
        let env = Env::for_tests(fs.clone(), 1);
        for name in [BASE, DELTA] {
            let dir = Path::new(DIR).join(name);
            let entries = fs.list(&dir).unwrap();
            let mut names: Vec<String> = entries.into_iter().map(|e| e.name).collect();
            names.retain(|name| !name.ends_with(".extent"));
            let manifest = dir.join(&names[random.below(names.len() as u64) as usize]);
            match random.below(2) {
                0 => fs.remove(&manifest).unwrap(),
                _ => fs.truncate(&manifest, 20).unwrap(),
            }
        }
        let found = PageTree::check(&env, DIR, &options(), &|_| true).unwrap();
        assert!(!found.damage.is_empty(), "seed {seed}");
        let e = PageTree::open(&env, DIR, &options()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Corruption, "seed {seed}: {e}");
        let (saved, lost) = salvaged(&fs);
        assert_eq!(lost, [], "seed {seed}");
        assert!(saved == model, "seed {seed}");
    }
}

/// The leaves below a damaged index page are in extents without ranges, beside garbage. The newest
/// values are found, and deleted keys may show again below this index page alone.
#[test]
fn leaves_are_found_in_extents_without_ranges() {
    let (mut of_roots, mut of_others, mut in_doubt) = (0, 0, 0);
    for seed in 0..60 * scale() {
        let (fs, model) = made(3000 + seed);
        let random = Random::from_seed(seed);
        let storage = open_with(&fs, &options().usage_bytes(0)).unwrap();
        storage.limit_usage();
        storage.close().unwrap();
        let view = storage.view();
        if view.root.level == 0 {
            continue;
        }
        let key = format!("k{:05}", random.below(400)).into_bytes();
        let path = storage.path(&view, &key).unwrap();
        let step = &path.steps[random.below(path.steps.len() as u64) as usize];
        let lost = storage.pages_of(&view, step.key).unwrap().base;
        match lost == view.root.id {
            true => of_roots += 1,
            false => of_others += 1,
        }
        let usage = storage.usage.lock().clone();
        let base = storage.base.extents();
        let has_garbage = |of: &ExtentId| base.iter().any(|e| e.id == *of && e.sealed);
        in_doubt += usage
            .iter()
            .filter(|(id, of)| of.ranges.is_none() && has_garbage(id))
            .count();
        drop(storage);
        let name = format!("{}.extent", lost.extent);
        let file = Path::new(DIR).join(BASE).join(name);
        fs.flip_bit(&file, u64::from(lost.offset + lost.len - 1), 1)
            .unwrap();
        let (saved, lost) = salvaged(&fs);
        assert!(!lost.is_empty(), "seed {seed}");
        for key in model.keys().chain(saved.keys()) {
            let may_show_again = lost.iter().any(|lost| {
                lost.older_may_reappear
                    && lost.from.as_ref().is_none_or(|from| from <= key)
                    && lost.to.as_ref().is_none_or(|to| key < to)
            });
            let (found, expected) = (saved.get(key), model.get(key));
            let say = format!("seed {seed}: {} of {lost:?}", key.escape_ascii());
            assert!(
                found == expected || expected.is_none() && may_show_again,
                "{say}"
            );
        }
    }
    println!("index pages in doubt: {of_roots} roots, {of_others} others, {in_doubt} extents");
    assert!(of_roots > 4 && of_others > 4 && in_doubt > 25);
}

#[test]
fn every_byte_of_a_page_or_of_a_catalog_may_be_wrong() {
    for seed in 0..30 * scale() {
        let (fs, _) = made(1000 + seed);
        let random = Random::from_seed(seed);
        for directory in [BASE, DELTA, crate::storage::LOGS] {
            let dir = Path::new(DIR).join(directory);
            let entries = fs.list(&dir).unwrap();
            let files: Vec<_> = entries.iter().filter(|e| !e.is_dir).collect();
            let file = dir.join(&files[random.below(files.len() as u64) as usize].name);
            match random.below(4) {
                0 => fs.remove(&file).unwrap(),
                _ => {
                    let len = fs.stat(&file).unwrap().len;
                    for _ in 0..4 {
                        if len > 0 {
                            fs.flip_bit(&file, random.below(len), 2).unwrap();
                        }
                    }
                }
            }
        }
        // No panic, and what was saved is a sound tree.
        salvaged(&fs);
    }
}
