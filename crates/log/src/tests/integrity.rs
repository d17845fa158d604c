//! Check, verification and repair: of sound stores, and of every kind of damage.

use super::*;
use crate::index::EntryPlace;
use crate::{LogLoss, LogRepairReport, LogUnprovenEnd, LogVerifyReport, pages};
use basalt_fs::FileSystem;
use std::collections::BTreeSet;
use std::path::PathBuf;

pub(super) fn check(fs: &Arc<SimFs>) -> Result<LogVerifyReport> {
    LogEngine::check(&env(fs), DIR, &options(), &mut |_, _| ())
}

pub(super) fn repair(fs: &Arc<SimFs>) -> Result<LogRepairReport> {
    LogEngine::repair(&env(fs), DIR, &options(), &mut |_, _| ())
}

/// A store that was made, and what it has.
pub(super) struct MadeStore {
    pub content: Content,
    /// Name of the file and offset of each record, by log and LSN.
    places: BTreeMap<(usize, u64), (String, u64)>,
    /// Log and LSN of the last record. If only its own bytes are damaged, it looks like a torn
    /// tail.
    last: (usize, u64),
}

/// Makes a store with pages, moved records and a trimmed log. An open store is left as the death of
/// the process would leave it.
pub(super) fn store(fs: &Arc<SimFs>, close: bool) -> MadeStore {
    let random = Random::from_seed(3);
    let mut store = Store::open(fs).unwrap();
    for step in history(&random, 60) {
        // The names of recovered logs have the numbers of the first logs.
        if !matches!(step, Step::Replace(_)) {
            let _ = store.run(&step);
        }
    }
    // A log that stays beside one that is trimmed: garbage collections move its records.
    let (stays, goes) = (store.logs[0].clone(), store.logs[1].clone());
    let mut from = [stays.last().unwrap_or(0), goes.last().unwrap_or(0)];
    for n in 0..90u64 {
        from = from.map(|lsn| lsn + 1);
        stays.append(from[0], &[n as u8; 40], UNSYNCED).unwrap();
        goes.append(from[1], &[n as u8; 700], UNSYNCED).unwrap();
        if n % 20 == 19 {
            goes.trim(from[1] - 3, SYNC).unwrap();
        }
        while store.env.jobs().step() {}
    }
    store.engine.sync().unwrap();
    // The header of the second one proves that everything before it is synced.
    stays.append(from[0] + 1, b"first", SYNC).unwrap();
    stays.append(from[0] + 2, b"second", SYNC).unwrap();
    let mut structure = Structure::default();
    store.note_structure(&mut structure);
    assert!(structure.pages > 0 && structure.moved > 0, "{structure:?}");
    let content = store.content().unwrap();
    let places = places(&store, &content);
    match close {
        true => store.engine.close().unwrap(),
        false => store.engine.cut_power(),
    }
    let last = (0, from[0] + 2);
    MadeStore {
        content,
        places,
        last,
    }
}

fn places(store: &Store, content: &Content) -> BTreeMap<(usize, u64), (String, u64)> {
    let mut places = BTreeMap::new();
    for (i, records) in content.iter().enumerate() {
        for lsn in records.keys() {
            let log = store.logs[i].state();
            let place = log.lock().index.find(*lsn).unwrap();
            let at = match place {
                EntryPlace::Known(at) => at,
                EntryPlace::OnPage(page) => {
                    let logs = &store.engine.engine().logs;
                    let page = pages::load(&store.env, logs, log.number, page).unwrap();
                    page.unwrap().get(*lsn).unwrap()
                }
            };
            let file = store.engine.engine().logs.get(at.file).unwrap();
            let name = file.path.file_name().unwrap().to_string_lossy();
            places.insert((i, *lsn), (name.into_owned(), at.offset));
        }
    }
    places
}

pub(super) fn files(fs: &Arc<SimFs>) -> Vec<PathBuf> {
    let names = fs.list(Path::new(DIR)).unwrap().into_iter();
    let names = names.filter(|e| !e.is_dir && e.name != "LOCK");
    names.map(|e| Path::new(DIR).join(e.name)).collect()
}

fn bytes(fs: &Arc<SimFs>) -> Vec<(PathBuf, Vec<u8>)> {
    let read = |path: PathBuf| {
        let bytes = fs.read_all(&path).unwrap();
        (path, bytes)
    };
    files(fs).into_iter().map(read).collect()
}

pub(super) fn content(fs: &Arc<SimFs>) -> Content {
    let store = Store::open(fs).unwrap();
    let mut content = store.content().unwrap();
    // A log whose creation is lost has another name after a repair.
    for (i, records) in content.iter_mut().enumerate() {
        if let Ok(log) = store.engine.log(&recovered_name(i)) {
            let all = log.iter(0).map(|item| item.unwrap());
            records.extend(all.map(|(lsn, data)| (lsn, data.to_vec())));
        }
    }
    content
}

fn recovered_name(i: usize) -> String {
    format!("recovered-{}", i + 1)
}

/// Returns true if a report names the place of a record: as lost bytes, or behind an end that
/// nothing proves.
fn names_place(report: &LogRepairReport, file: &str, offset: u64) -> bool {
    let is_lost = |loss: &LogLoss| {
        // Nothing says how long a missing file was.
        let inside = loss.bytes.contains(&offset) || loss.bytes.is_empty();
        let unsure = loss.lsns.is_none() || loss.reason.contains("are read from the damaged bytes");
        unsure && loss.file == file && inside
    };
    let is_unproven = |end: &LogUnprovenEnd| end.file == file && end.bytes.contains(&offset);
    report.losses.iter().any(is_lost) || report.unproven_ends.iter().any(is_unproven)
}

/// Asserts that a repaired store has all records but those that the report names as lost, by their
/// LSNs or their places, and none that was not there, unless the report says so. `files` are the
/// files of the damaged store. Returns whether all losses had their LSNs.
fn compare(
    before: &MadeStore,
    after: &Content,
    report: &LogRepairReport,
    files: &[PathBuf],
    say: &str,
) -> bool {
    let mut lost = BTreeSet::new();
    let no_manifest = |note: &String| note.starts_with("no manifest is readable");
    let no_manifest = report.notes.iter().any(no_manifest);
    let mut exact = report.unproven_ends.is_empty();
    for loss in &report.losses {
        match (&loss.log, &loss.lsns) {
            (Some(name), Some(lsns)) => {
                let i = (0..LOGS).find(|i| *name == log_name(*i) || *name == recovered_name(*i));
                let Some(i) = i else {
                    let unsure = loss.reason.contains("are read from the damaged bytes");
                    assert!(unsure, "{say}: no log is named {name}: {report:?}");
                    exact = false;
                    continue;
                };
                lost.extend(lsns.clone().map(|lsn| (i, lsn)));
            }
            _ => exact = false,
        }
    }
    let may_reappear = !report.reappearing.is_empty();
    for (i, (had, has)) in before.content.iter().zip(after).enumerate() {
        for (lsn, data) in had {
            let (file, offset) = &before.places[&(i, *lsn)];
            // Without a manifest, nothing names a file that is missing.
            let unknown = no_manifest && !files.contains(&Path::new(DIR).join(file));
            match has.get(lsn) {
                Some(found) => assert_eq!(found, data, "{say}: LSN {lsn} of log {i}: {report:?}"),
                None if lost.contains(&(i, *lsn)) => {}
                None if unknown => exact = false,
                // Only younger records could prove that the last ones were synced.
                None if i == before.last.0
                    && *lsn + 1 >= before.last.1
                    && has.range(lsn..).next().is_none() =>
                {
                    exact = false;
                }
                None => assert!(
                    names_place(report, file, *offset),
                    "{say}: LSN {lsn} of log {i}, in {file} at {offset}, is gone: {report:?}"
                ),
            }
        }
        let back: Vec<_> = has.keys().filter(|lsn| !had.contains_key(lsn)).collect();
        assert!(
            back.is_empty() || may_reappear,
            "{say}: LSNs {back:?} of log {i} are back: {report:?}"
        );
    }
    exact
}

/// Asserts that only the last records of the logs are gone.
fn assert_is_cut(before: &Content, after: &Content, say: &str) {
    for (had, has) in before.iter().zip(after) {
        let kept = had.iter().filter(|(lsn, _)| has.contains_key(lsn));
        assert!(kept.eq(has.iter()), "{say}: wrong records");
        assert!(
            had.len() - has.len() <= 1,
            "{say}: several records are gone"
        );
    }
}

/// What a campaign over damaged stores has seen.
#[derive(Debug, Default)]
struct Seen {
    harmless: u64,
    /// Damage that looks like a torn tail.
    cut: u64,
    repaired: u64,
    /// Repairs that lost nothing.
    whole: u64,
    /// Repairs with an end of a file that nothing proves.
    unproven: u64,
    /// Repairs whose losses all had log and LSN.
    exact: u64,
    reappearing: u64,
    /// Findings of checks that named a log and an LSN.
    named: u64,
}

impl Seen {
    /// Checks and repairs a damaged store.
    fn judge(&mut self, damaged: &Arc<SimFs>, before: &MadeStore, say: &str) {
        let there = files(damaged);
        let untouched = bytes(damaged);
        let found = check(damaged).unwrap_or_else(|e| panic!("{say}: {e}"));
        assert_eq!(bytes(damaged), untouched, "{say}: the check changed a file");
        if found.damage.is_empty() {
            let report = repair(damaged).unwrap();
            assert!(report.sound, "{say}: {report:?}");
            assert_eq!(found.unproven_ends, [], "{say}: {found:?}");
            assert_eq!(report.unproven_ends, [], "{say}: {report:?}");
            let after = content(damaged);
            let mut without_last = before.content.clone();
            without_last[before.last.0].remove(&before.last.1);
            if after == without_last {
                self.cut += 1;
                return;
            }
            if !found.torn_tails.is_empty() && after != before.content {
                // Nothing proves that the last record of a file was synced.
                assert_is_cut(&before.content, &after, say);
                self.cut += 1;
                return;
            }
            assert_eq!(after, before.content, "{say}: no damage was found");
            self.harmless += 1;
            return;
        }
        let unsupported = |e: &basalt_fs::Error| e.kind() == ErrorKind::Unsupported;
        if found.damage.iter().any(unsupported) {
            assert_eq!(repair(damaged).unwrap_err().kind(), ErrorKind::Unsupported);
            return;
        }
        self.named += u64::from(found.losses.iter().any(|loss| loss.lsns.is_some()));
        let report = repair(damaged).unwrap_or_else(|e| panic!("{say}: {e}; {found:?}"));
        assert_eq!(report.losses, found.losses, "{say}");
        let kept = (report.logs, report.records_kept);
        assert_eq!((found.logs, found.records), kept, "{say}");
        assert!(!report.sound, "{say}: {found:?}");
        let again = check(damaged).unwrap();
        assert!(
            again.damage.is_empty(),
            "{say}: after repair: {again:?} {report:?}"
        );
        let untouched = bytes(damaged);
        assert!(repair(damaged).unwrap().sound, "{say}");
        assert_eq!(
            bytes(damaged),
            untouched,
            "{say}: a second repair changed a file"
        );
        for (path, damaged_bytes) in report.set_aside.iter().map(|name| {
            let path = Path::new(DIR).join(name);
            let bytes = damaged.read_all(&path);
            (path, bytes)
        }) {
            assert!(damaged_bytes.is_ok(), "{say}: {path:?} is gone");
        }
        assert_eq!(found.unproven_ends, report.unproven_ends, "{say}");
        let exact = compare(before, &content(damaged), &report, &there, say);
        self.repaired += 1;
        self.whole += u64::from(report.lost.is_empty());
        self.unproven += u64::from(!report.unproven_ends.is_empty());
        self.exact += u64::from(exact && !report.lost.is_empty());
        self.reappearing += u64::from(!report.reappearing.is_empty());
        // A repaired store takes appends, and is opened again.
        let store = Store::open(damaged).unwrap();
        let log = &store.logs[0];
        let lsn = log.last().max(log.trimmed()).unwrap_or(0) + 1;
        store.logs[0]
            .append(lsn, b"after the repair", SYNC)
            .unwrap();
        store.engine.close().unwrap();
        assert_eq!(content(damaged)[0][&lsn], b"after the repair");
    }
}

#[test]
fn every_flipped_byte_is_found_or_harmless_and_repaired() {
    let scale = basalt_sim::campaign::scale();
    for close in [true, false] {
        let fs = disk(1);
        let before = store(&fs, close);
        let mut seen = Seen::default();
        let snapshot = fs.snapshot();
        for path in files(&fs) {
            let len = fs.read_all(&path).unwrap().len() as u64;
            let step = 1 + len / (60 * scale);
            let begin = (len / 2) % step;
            for at in (begin..len).step_by(step as usize) {
                let damaged = snapshot.kill();
                damaged.flip_bit(&path, at, (at % 8) as u8).unwrap();
                let say = format!("closed {close}: byte {at} of {}", path.display());
                seen.judge(&damaged, &before, &say);
            }
        }
        basalt_sim::campaign!("log flips, closed {close}: {seen:?}");
        let floor = |n| scale.floor(n);
        assert!(seen.repaired >= floor(200), "{seen:?}");
        assert!(
            seen.named >= floor(60) && seen.exact >= floor(60),
            "{seen:?}"
        );
        assert!(seen.whole >= floor(100), "{seen:?}");
    }
}

#[test]
fn missing_and_truncated_files_are_found_and_repaired() {
    for close in [true, false] {
        let fs = disk(1);
        let before = store(&fs, close);
        let mut seen = Seen::default();
        let snapshot = fs.snapshot();
        for path in files(&fs) {
            let say = format!("closed {close}: {}", path.display());
            let damaged = snapshot.kill();
            damaged.remove(&path).unwrap();
            seen.judge(&damaged, &before, &format!("{say} is missing"));
            let whole = fs.read_all(&path).unwrap();
            for part in [0, 1, 2, 3] {
                let damaged = snapshot.kill();
                let len = whole.len() * part / 4;
                damaged.remove(&path).unwrap();
                let file = damaged.create(&path).unwrap();
                let half = std::io::IoSlice::new(&whole[..len]);
                file.append(&[half], basalt_fs::Intent::Sync).unwrap();
                file.sync_all().unwrap();
                seen.judge(&damaged, &before, &format!("{say} has {len} bytes"));
            }
        }
        basalt_sim::campaign!("log files missing or cut, closed {close}: {seen:?}");
        // One file of a closed store never has the only trace of a removal.
        assert!(
            seen.repaired > 20 && close == (seen.reappearing == 0),
            "{seen:?}"
        );
    }
}

/// Two damaged files at a time, the metadata among them.
#[test]
fn several_damaged_files_at_once_are_repaired() {
    let random = Random::from_seed(5);
    let fs = disk(1);
    let before = store(&fs, false);
    let mut seen = Seen::default();
    let snapshot = fs.snapshot();
    let all = files(&fs);
    for case in 0..240 * basalt_sim::campaign::scale() {
        let damaged = snapshot.kill();
        let mut say = format!("case {case}:");
        for _ in 0..2 + random.below(3) {
            let path = &all[random.below(all.len() as u64) as usize];
            let Ok(now) = damaged.read_all(path) else {
                continue;
            };
            let at = random.below(now.len().max(1) as u64);
            say += &format!(" {at} of {}", path.display());
            if random.one_in(5) || now.is_empty() {
                damaged.remove(path).unwrap();
            } else {
                damaged.flip_bit(path, at, (at % 8) as u8).unwrap();
            }
        }
        seen.judge(&damaged, &before, &say);
    }
    basalt_sim::campaign!("log stores with several damaged files: {seen:?}");
    let floor = |n| basalt_sim::campaign::scale().floor(n);
    assert!(
        seen.repaired >= floor(100) && seen.whole >= floor(40),
        "{seen:?}"
    );
}

/// The last records of a file without a known end were damaged together with the checkpoint that
/// had them. A repair took them for a torn tail, and its report said that nothing was lost.
#[test]
fn a_repair_names_the_tail_whose_proof_is_damaged() {
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, options().file_bytes(1 << 20)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=5 {
        log.append(lsn, &[lsn as u8; 50], SYNC).unwrap();
    }
    engine.engine().checkpoint().unwrap();
    let place = log.location(5).unwrap();
    let name = format!("{:06}.data", place.file);
    engine.engine().cut_power();
    drop((log, engine));
    let path = |end: &str| {
        let is_it = |path: &PathBuf| path.to_string_lossy().ends_with(end);
        files(&fs).into_iter().find(is_it).unwrap()
    };
    let (data, checkpoint) = (path(&name), path(".checkpoint"));
    let snapshot = fs.snapshot();
    // A byte of the record's data, and one of its header: nothing of it is found then.
    for at in [place.offset + 30, place.offset - 30] {
        for is_missing in [false, true] {
            let damaged = snapshot.kill();
            damaged.flip_bit(&data, at, 3).unwrap();
            match is_missing {
                true => damaged.remove(&checkpoint).unwrap(),
                // The headers of its first two records, the second of which has the log.
                false => {
                    let flip = |at| damaged.flip_bit(&checkpoint, at, 3).unwrap();
                    [530, 580].into_iter().for_each(flip);
                }
            }
            let found = check(&damaged).unwrap();
            let report = repair(&damaged).unwrap();
            assert_eq!(found.unproven_ends, report.unproven_ends);
            assert_eq!(report.records_kept, 4, "{report:?}");
            let [end] = &report.unproven_ends[..] else {
                panic!("one end is not proven: {report:?}");
            };
            assert_eq!(end.file, name);
            assert!(end.bytes.contains(&place.offset), "{end:?} {place:?}");
            assert!(end.reason.contains("the checkpoint"), "{end}");
            // The repaired store has a checkpoint and a manifest.
            assert_eq!(check(&damaged).unwrap().unproven_ends, []);
            assert_eq!(repair(&damaged).unwrap().unproven_ends, []);
        }
    }
    // With the checkpoint, the record itself is known to be lost.
    let damaged = snapshot.kill();
    damaged.flip_bit(&data, place.offset + 30, 3).unwrap();
    let report = repair(&damaged).unwrap();
    assert_eq!(report.losses[0].lsns, Some(5..=5), "{report:?}");
    assert_eq!(report.unproven_ends, []);
    // A torn tail alone is no loss: nothing else is damaged.
    let engine = open(&fs).unwrap();
    let log = engine.log("a").unwrap();
    log.append(6, &[6; 50], SYNC).unwrap();
    let place = log.location(6).unwrap();
    let torn = path(&format!("{:06}.data", place.file));
    engine.engine().cut_power();
    drop((log, engine));
    fs.flip_bit(&torn, place.offset + 30, 3).unwrap();
    let found = check(&fs).unwrap();
    assert_eq!(found.torn_tails.len(), 1, "{found:?}");
    assert_eq!(found.unproven_ends, []);
    assert!(repair(&fs).unwrap().sound);
}

#[test]
fn a_sound_store_is_called_sound_and_nothing_is_changed() {
    for close in [true, false] {
        let fs = disk(1);
        let before = store(&fs, close);
        let untouched = bytes(&fs);
        let mut shown = Vec::new();
        let report = LogEngine::check(&env(&fs), DIR, &options(), &mut |done, total| {
            shown.push((done, total));
        })
        .unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
        let before = before.content;
        let records: usize = before.iter().map(BTreeMap::len).sum();
        assert_eq!((report.logs, report.records), (3, records as u64));
        assert_eq!(report.unproven_ends, []);
        assert!(report.pages > 0 && report.live_bytes > 0, "{report:?}");
        assert!(shown.iter().all(|(done, total)| done <= total), "{shown:?}");
        assert!(shown.is_sorted() || shown.len() > 3);
        assert!(repair(&fs).unwrap().sound);
        assert_eq!(bytes(&fs), untouched);
        // Readers share the store, keep writers out, and change nothing.
        let readers =
            [(); 2].map(|()| LogEngine::open_read_only(&env(&fs), DIR, options()).unwrap());
        for reader in &readers {
            let log = reader.log(&log_name(0)).unwrap();
            assert_eq!(log.count(), before[0].len() as u64);
            let e = log.append(1 << 40, b"", SYNC).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ReadOnly, "{e}");
            let e = log.trim(5, SYNC).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ReadOnly, "{e}");
        }
        assert_eq!(open(&fs).err().unwrap().kind(), ErrorKind::Busy);
        readers.iter().for_each(|reader| reader.close().unwrap());
        assert_eq!(bytes(&fs), untouched);
        assert_eq!(content(&fs), before);
    }
}

#[test]
fn no_store_is_an_error_and_leaves_no_file() {
    let fs = disk(1);
    for found in [
        check(&fs).err(),
        repair(&fs).err(),
        LogEngine::open_read_only(&env(&fs), DIR, options()).err(),
    ] {
        assert_eq!(found.unwrap().kind(), ErrorKind::NotFound);
    }
    assert!(!fs.exists(Path::new(DIR)).unwrap());
    fs.create_dir(Path::new(DIR)).unwrap();
    assert_eq!(check(&fs).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(repair(&fs).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(files(&fs).is_empty());
}

/// A verification of an open store finds damage that came after the open, in records and in pages,
/// though the pages are in the block cache.
#[test]
fn an_open_store_is_verified_in_the_background() {
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, options().file_bytes(1 << 20)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=200 {
        log.append(lsn, &[lsn as u8; 100], UNSYNCED).unwrap();
    }
    engine.sync().unwrap();
    let env = &engine.engine().env;
    while env.jobs().step() {}
    assert!(engine.stats().index_pages > 0);
    assert_eq!(log.iter(0).filter(|item| item.is_ok()).count(), 200);
    let calls: Arc<basalt_env::sync::Mutex<Vec<(u64, u64)>>> = Arc::default();
    let verify = |engine: &LogEngine| {
        let calls = calls.clone();
        engine.verify(move |done, total| calls.lock().push((done, total)))
    };
    let running = verify(&engine);
    while env.jobs().step() {}
    assert!(running.is_done());
    let report = running.wait().unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
    assert_eq!((report.logs, report.records), (1, 200));
    assert_eq!(calls.lock().last(), Some(&(log.bytes(), log.bytes())));

    let location = log.location(199).unwrap();
    let path = format!("{DIR}/{:06}.data", location.file);
    fs.flip_bit(Path::new(&path), location.offset + 50, 3)
        .unwrap();
    let report = verify(&engine).wait().unwrap();
    assert_eq!((report.damage.len(), report.records), (1, 199));
    let text = report.damage[0].to_string();
    assert!(
        text.contains("LSN 199 of log \"a\"") && text.contains(&path),
        "{text}"
    );

    let Some(EntryPlace::OnPage(page)) = log.state().lock().index.find(1) else {
        panic!("the first records are on a page");
    };
    let path = format!("{DIR}/{:06}.meta", page.file);
    fs.flip_bit(Path::new(&path), page.offset + 60, 3).unwrap();
    let report = verify(&engine).wait().unwrap();
    let text = report.damage[0].to_string();
    assert!(text.contains("page of the index of log \"a\""), "{text}");
    assert!(text.contains(&path), "{text}");

    let cancelled = verify(&engine);
    cancelled.cancel();
    assert_eq!(cancelled.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    let closed = verify(&engine);
    engine.close().unwrap();
    assert_eq!(closed.wait().unwrap_err().kind(), ErrorKind::Closed);
}

/// A trim that the metalog has holds after a repair without checkpoint and manifest. So do
/// deletions and removals.
#[test]
fn a_repair_brings_nothing_back_that_the_metalog_says_is_gone() {
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, options().file_bytes(1 << 20)).unwrap();
    let a = engine.create("a", LogOptions::default()).unwrap();
    let b = engine.create("b", LogOptions::default()).unwrap();
    for lsn in 1..=30 {
        a.append(lsn, &[1; 50], SYNC).unwrap();
        b.append(lsn, &[2; 50], SYNC).unwrap();
    }
    a.trim(10, SYNC).unwrap();
    a.remove(15..=16).unwrap();
    a.truncate_suffix(26).unwrap();
    a.append(27, b"again", SYNC).unwrap();
    engine.delete("b").unwrap();
    engine.engine().cut_power();
    drop((a, b, engine));
    for path in files(&fs) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove(&path).unwrap();
        }
    }
    let report = repair(&fs).unwrap();
    assert_eq!(report.lost, [""; 0], "{report:?}");
    assert_eq!(report.reappearing, [""; 0], "{report:?}");
    let engine = open(&fs).unwrap();
    assert_eq!(engine.list(), ["a"]);
    let a = engine.log("a").unwrap();
    let lsns: Vec<u64> = a.iter(0).map(|item| item.unwrap().0).collect();
    let kept: Vec<u64> = (11..=14).chain(17..=25).chain([27]).collect();
    assert_eq!(lsns, kept);
    assert_eq!(a.trimmed(), Some(10));
    assert_eq!(a.read(27).unwrap().as_deref(), Some(&b"again"[..]));
    let e = a.append(10, b"", SYNC).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

/// A collection has moved records after the newest checkpoint, and has removed their files. A
/// repair finds the copies, with the checkpoint and without it. Without the names, too, it says
/// that removed records may show again.
#[test]
fn a_repair_finds_records_that_were_moved_since_the_checkpoint() {
    // On this disk, the undefined bytes behind the last operation are zeros, as a repair expects.
    let fs = disk(3);
    let engine = open(&fs).unwrap();
    let kept = engine.create("kept", LogOptions::default()).unwrap();
    let gone = engine.create("gone", LogOptions::default()).unwrap();
    for lsn in 1..=60 {
        kept.append(lsn, &[lsn as u8; 50], UNSYNCED).unwrap();
        gone.append(lsn, &[0; 700], UNSYNCED).unwrap();
    }
    // Jobs end the files that are full.
    while engine.engine().env.jobs().step() {}
    engine.engine().checkpoint().unwrap();
    gone.trim(55, SYNC).unwrap();
    kept.remove(20..=22).unwrap();
    engine.engine().collect_garbage().unwrap();
    engine.engine().sync_all().unwrap();
    let moved = |role| {
        let all = engine.engine().logs.all();
        all.iter().filter(|f| f.role == role).count()
    };
    assert!(moved(Role::Moved) > 0 && kept.location(1).is_none_or(|at| at.file > 2));
    engine.engine().cut_power();
    drop((kept, gone, engine));
    let snapshot = fs.snapshot();
    for without in [&[][..], &["checkpoint"], &["checkpoint", "names"]] {
        let damaged = snapshot.kill();
        damaged.remove(&Path::new(DIR).join("CURRENT")).unwrap();
        for path in files(&damaged) {
            let extension = path.extension().and_then(|e| e.to_str());
            if extension.is_some_and(|e| without.contains(&e)) {
                damaged.remove(&path).unwrap();
            }
        }
        let report = repair(&damaged).unwrap();
        assert_eq!(report.lost, [""; 0], "{report:?}");
        let engine = open(&damaged).unwrap();
        let lsns = |name: &str| -> Vec<u64> {
            let log = engine.log(name).unwrap();
            log.iter(0).map(|item| item.unwrap().0).collect()
        };
        let left: Vec<u64> = (1..=19).chain(23..=60).collect();
        assert_eq!(lsns("kept"), left, "{report:?}");
        assert_eq!(lsns("gone"), [56, 57, 58, 59, 60], "{report:?}");
        // Without both files, removals before what is left may be missing.
        assert_eq!(
            report.reappearing.is_empty(),
            without.len() < 2,
            "{report:?}"
        );
    }
}

/// An open finds an ended file that was cut, as it finds one that is missing: no record is appended
/// to a store that is known to be damaged. The check and the repair name a stretch of records that
/// cannot be read as one loss, and the repair says which LSNs would be given out again.
#[test]
fn an_ended_file_that_was_cut_is_found_by_an_open() {
    let fs = disk(1);
    let engine = open(&fs).unwrap();
    let logs = ["a", "b"].map(|name| engine.create(name, LogOptions::default()).unwrap());
    for n in 1..=40u64 {
        // The LSNs of one log have gaps.
        for (log, step) in logs.iter().zip([1, 10]) {
            log.append(n * step, &[n as u8; 100], UNSYNCED).unwrap();
        }
        while engine.engine().env.jobs().step() {}
    }
    engine.engine().checkpoint().unwrap();
    let file = logs[0].location(40).unwrap().file;
    engine.close().unwrap();
    drop((logs, engine));
    let path = PathBuf::from(format!("{DIR}/{file:06}.data"));
    let cut = fs.snapshot().kill();
    cut.truncate(&path, 600).unwrap();
    let e = open(&cut).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.to_string().contains("the file has 600 bytes"), "{e}");
    assert_eq!(e.path(), Some(&*path));
    let e = LogEngine::open_read_only(&env(&cut), DIR, options()).err();
    assert_eq!(e.unwrap().kind(), ErrorKind::Corruption);
    let found = check(&cut).unwrap();
    assert_eq!(found.losses.len(), 2, "{found:?}");
    let report = repair(&cut).unwrap();
    assert_eq!(report.losses, found.losses);
    let after = open(&cut).unwrap();
    for ((name, step), loss) in [("a", 1), ("b", 10)].into_iter().zip(&report.losses) {
        let left = after.log(name).unwrap().last().unwrap();
        assert_eq!(loss.log.as_deref(), Some(name));
        assert_eq!(loss.lsns, Some(left + step..=40 * step), "{loss}");
        assert_eq!(loss.records, 40 - left / step);
        let says = format!(
            "log {name:?} ends at LSN {left} now, and records up to LSN {} are",
            40 * step
        );
        assert!(
            report.notes.iter().any(|note| note.starts_with(&says)),
            "{report:?}"
        );
    }
}

/// So does an open whose file of new records is shorter than the checkpoint says.
#[test]
fn an_unended_file_that_was_cut_is_found_by_an_open() {
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, options().file_bytes(1 << 20)).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    for lsn in 1..=20u64 {
        log.append(lsn, &[lsn as u8; 100], UNSYNCED).unwrap();
    }
    engine.engine().checkpoint().unwrap();
    let at = log.location(20).unwrap();
    engine.engine().cut_power();
    drop((log, engine));
    let path = PathBuf::from(format!("{DIR}/{:06}.data", at.file));
    let cut = fs.snapshot().kill();
    cut.truncate(&path, at.offset - 300).unwrap();
    for _ in 0..2 {
        let e = open(&cut).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert_eq!(e.path(), Some(&*path));
    }
    let found = check(&cut).unwrap();
    let report = repair(&cut).unwrap();
    let [named, of_file] = &report.losses[..] else {
        panic!("two losses: {report:?}");
    };
    assert_eq!(found.losses, report.losses);
    assert_eq!(report.notes.len(), 1, "it is no torn tail: {report:?}");
    assert_eq!(named.lsns, Some(18..=20), "{report:?}");
    // Records that no index has may have been behind the cut.
    assert!(of_file.reason.contains("was cut here"), "{report:?}");
    assert_eq!(content_of(&cut, "a"), (1..=17).collect::<Vec<u64>>());
}

pub(super) fn content_of(fs: &Arc<SimFs>, log: &str) -> Vec<u64> {
    let log = open(fs).unwrap().log(log).unwrap();
    log.iter(0).map(|item| item.unwrap().0).collect()
}

/// A damaged batch whose records were appended again, or removed, lost none of them. Its place is
/// reported, because the damaged bytes may say a wrong LSN.
#[test]
fn damaged_bytes_claim_no_record_that_was_replaced_or_removed() {
    for again in [true, false] {
        let fs = disk(1);
        let engine = LogEngine::open(&env(&fs), DIR, options().file_bytes(1 << 20)).unwrap();
        let log = engine.create("a", LogOptions::default()).unwrap();
        for lsn in 1..=4u64 {
            log.append(lsn, &[lsn as u8; 100], SYNC).unwrap();
        }
        let mut batch = LogBatch::new();
        for lsn in 5..=8u64 {
            batch.append(&log, lsn, &[lsn as u8; 100]).unwrap();
        }
        engine.write(batch, SYNC).unwrap();
        let at = log.location(6).unwrap();
        log.truncate_suffix(5).unwrap();
        if again {
            log.append(5, &[55; 100], SYNC).unwrap();
            log.append(6, &[66; 100], SYNC).unwrap();
        }
        let other = engine.create("b", LogOptions::default()).unwrap();
        other.append(1, b"proves what was synced", SYNC).unwrap();
        engine.engine().cut_power();
        drop((log, other, engine));
        let path = PathBuf::from(format!("{DIR}/{:06}.data", at.file));
        fs.flip_bit(&path, at.offset + 50, 3).unwrap();
        let found = check(&fs).unwrap();
        let report = repair(&fs).unwrap();
        assert_eq!(found.losses, report.losses);
        let [loss] = &report.losses[..] else {
            panic!("one place: {report:?}");
        };
        assert_eq!(loss.lsns, None);
        assert!(loss.bytes.contains(&at.offset), "{loss}");
        assert!(loss.reason.contains("LSN 6 of log \"a\""), "{loss}");
        assert!(
            !report.notes.iter().any(|note| note.contains("are lost")),
            "{report:?}"
        );
        let left = if again { 6 } else { 4 };
        assert_eq!(content_of(&fs, "a"), (1..=left).collect::<Vec<u64>>());
    }
}
