//! Damage: golden stores, closed and with live logs. Every byte is flipped, and every sector is
//! zeroed, exchanged and replaced by its earlier contents. Every file is cut at every sector and
//! exchanged with every other of its kind. The store gives right answers or a typed error that
//! names the file, never wrong bytes, and `verify_store` finds all that opening finds.
//!
//! Then disks that lie: there the promise shrinks to no wrong bytes, a consistent earlier state, or
//! an error.

use crate::history::{End, FAMILIES, IN_PAGES, Op, Shape, history, options};
use crate::model::Model;
use crate::model::digest;
use crate::rng::{Rng, numbers_of, on_two_threads, scale};
use crate::runner::{DIR, Runner, environment, read_all, sim_disk};
use basalt_fs::FileSystem;
use basalt_lsm::{Db, Error, ErrorKind};
use basalt_sim::{CrashPolicy, Lie, LieKind, SimFs, When, campaign, repeat};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const SECTOR: usize = 512;

/// A store at rest, and its expected contents.
struct Golden {
    disk: Arc<SimFs>,
    files: Vec<(PathBuf, Vec<u8>)>,
    /// Earlier contents of names, if they differ from the present ones.
    earlier: Vec<(PathBuf, Vec<u8>)>,
    model: Model,
    wall_ms: u64,
    closed: bool,
}

fn files_of(disk: &SimFs) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::from(DIR)];
    while let Some(dir) = dirs.pop() {
        for entry in disk.list(&dir).expect("it is there") {
            let path = dir.join(entry.name);
            match entry.is_dir {
                true => dirs.push(path),
                false => files.push((path.clone(), disk.read_all(&path).expect("it is there"))),
            }
        }
    }
    files.sort();
    files
}

/// Returns true if a golden store has a family in pages.
fn has_pages(seed: u64) -> bool {
    seed % 4 >= 2
}

fn golden(seed: u64) -> Golden {
    let closed = seed.is_multiple_of(2);
    let has_pages = has_pages(seed);
    let disk = sim_disk(seed, 512, 1 << 40);
    let mut r = Runner::new(disk.clone(), seed, seed, false);
    let mut earlier: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    if !closed {
        let families = (1..4).filter(|f| has_pages || FAMILIES[*f] != IN_PAGES);
        families.for_each(|f| r.run(&Op::CreateFamily(f)));
    }
    for (i, op) in history(
        20_000 + seed,
        Shape {
            ops: 45,
            keys: 24,
            coarse_time: true,
            no_tickets: false,
        },
    )
    .iter()
    .enumerate()
    {
        // A tail that looks torn may be cut while a family created after it stays: that is no
        // prefix, and no damage that a check can see. So the stores with open tails get their
        // families first.
        if !closed && matches!(op, Op::CreateFamily(_) | Op::DropFamily(_)) {
            continue;
        }
        if !has_pages && matches!(op, Op::CreateFamily(f) if FAMILIES[*f] == IN_PAGES) {
            continue;
        }
        r.run(op);
        if i % 8 == 0 {
            earlier.extend(files_of(&disk));
        }
    }
    let wall_ms = r.env.clock().wall_ms();
    let disk = if closed {
        r.end(End::Close);
        disk
    } else {
        r.wait_for_tickets();
        let left = disk.crash(CrashPolicy::EverythingUnsynced, seed);
        r.drop_process();
        left
    };
    let files = files_of(&disk);
    let earlier = earlier
        .into_iter()
        .filter(|(p, bytes)| files.iter().all(|(q, now)| p != q || bytes != now))
        .collect();
    Golden {
        disk,
        files,
        earlier,
        model: r.model.clone(),
        wall_ms,
        closed,
    }
}

/// Returns true for the kinds of error that damage may give.
fn is_damage(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Corruption | ErrorKind::Unsupported | ErrorKind::NotFound
    )
}

impl Golden {
    /// Opens, scans and verifies a damaged image. Returns true if the damage was found, false if it
    /// changes nothing.
    fn check(&self, what: &str, damage: impl FnOnce(&SimFs), may_be_earlier: bool) -> bool {
        let disk = self.disk.kill();
        damage(&disk);
        let fs: Arc<dyn FileSystem> = disk.clone();
        let (env, _) = environment(&fs, 99, self.wall_ms);
        // Verification comes first: it changes nothing.
        let before = disk.digest();
        let report = Db::verify_store(&env, DIR, &options(0), &mut |_, _| ());
        assert_eq!(
            disk.digest(),
            before,
            "{what}: verification changed the store"
        );
        let sound = match &report {
            Ok(r) => r.damage.is_empty(),
            Err(e) => {
                assert!(is_damage(e), "{what}: {e}");
                false
            }
        };
        let shown = Db::open(&env, DIR, options(0)).and_then(|db| {
            let all = read_all(&db);
            let now = env.clock().wall_ms();
            db.abandon();
            Ok((digest(&all?), now))
        });
        match shown {
            Ok((shown, now)) => {
                let n = self.model.len();
                let right = self.model.mark(n).digest(now) == shown
                    || (may_be_earlier && (0..n).any(|i| self.model.mark(i).digest(now) == shown));
                assert!(right, "{what}: a wrong answer (verification: {report:?})");
                !sound
            }
            Err(e) => {
                assert!(is_damage(&e), "{what}: {e}");
                assert!(e.path().is_some(), "{what}: the error names no file: {e}");
                assert!(
                    !sound,
                    "{what}: verification found nothing, opening says {e}"
                );
                true
            }
        }
    }

    fn sweep(&self, seed: u64) -> (u64, u64) {
        let mut c = Rng::of(&[seed, 31]);
        let (mut images, mut found) = (0, 0);
        // One image alone is checked if the line of a failure names it: all before it are counted
        // and not made.
        let only = campaign::case().and_then(|c| c.get(1).copied());
        let mut count = |what: &str, damage: &dyn Fn(&SimFs), may_be_earlier: bool| {
            let _repeat = repeat!(
                damage_is_found_or_changes_no_answer,
                "BASALT_CASE={seed},{images}"
            );
            if only.is_none_or(|n| n == images) {
                found += u64::from(self.check(what, damage, may_be_earlier));
            }
            images += 1;
        };
        for (path, bytes) in &self.files {
            let name = path.display();
            let is = |end: &str| path.to_string_lossy().contains(end);
            // A tail that no synced position covers looks torn when it is damaged.
            let open_end = !self.closed && (is(".log") || is("MANIFEST"));
            // Other stores have tables, logs and blob files for the sweep.
            let is_other = is(".tbl") || is(".log") || is(".blob") || is(".index");
            if is("LOCK") || (has_pages(seed) && is_other) {
                continue;
            }
            // Files of pages are large, and mostly have more of the same.
            let skips = match is("/pages/") {
                true => (bytes.len() as u64 / 100).max(1),
                false => 1,
            };
            for at in 0..bytes.len() as u64 {
                if c.below(skips) > 0 {
                    continue;
                }
                let bits = if is("CURRENT") || at < 64 {
                    0..8
                } else {
                    let b = c.below(8) as u8;
                    b..b + 1
                };
                for bit in bits {
                    let what = format!("golden {seed}: bit {bit} of byte {at} of {name}");
                    count(
                        &what,
                        &|d| d.flip_bit(path, at, bit).expect("inside"),
                        open_end,
                    );
                }
            }
            let sectors = (0..bytes.len()).step_by(SECTOR);
            for at in sectors.filter(|at| *at < 8 * SECTOR || skips == 1) {
                let end = (at + SECTOR).min(bytes.len());
                let what = format!("golden {seed}: {name} cut to {at}");
                count(
                    &what,
                    &|d| d.truncate(path, at as u64).expect("a cut"),
                    open_end,
                );
                let what = format!("golden {seed}: zeros at {at} of {name}");
                let zeros = vec![0; end - at];
                count(
                    &what,
                    &|d| d.overwrite(path, at as u64, &zeros).expect("inside"),
                    open_end,
                );
                let (_, other) = c.pick(&self.files);
                let from = c.below(other.len().max(1) as u64) as usize / SECTOR * SECTOR;
                let foreign: Vec<u8> = other.iter().skip(from).take(end - at).copied().collect();
                let what = format!("golden {seed}: a foreign sector at {at} of {name}");
                count(
                    &what,
                    &|d| d.overwrite(path, at as u64, &foreign).expect("inside"),
                    open_end,
                );
                // A lost write: the sector has the contents that the name had at an earlier time.
                for (_, old) in self
                    .earlier
                    .iter()
                    .filter(|(p, old)| p == path && old.len() > at)
                {
                    let stale = &old[at..old.len().min(end)];
                    let what = format!("golden {seed}: a stale sector at {at} of {name}");
                    count(
                        &what,
                        &|d| d.overwrite(path, at as u64, stale).expect("inside"),
                        open_end,
                    );
                }
            }
            let kind = path.extension();
            for (other, _) in self
                .files
                .iter()
                .filter(|(p, _)| p > path && p.extension() == kind)
            {
                if c.below(skips) > 0 {
                    continue;
                }
                let what = format!("golden {seed}: {name} and {} exchanged", other.display());
                count(
                    &what,
                    &|d| d.swap_files(path, other).expect("both are there"),
                    open_end,
                );
            }
            let what = format!("golden {seed}: {name} missing");
            count(&what, &|d| d.remove(path).expect("it is there"), open_end);
        }
        // Whole files get their earlier contents: an earlier CURRENT and manifest lead to an
        // earlier state, if all of it exists.
        for (path, old) in &self.earlier {
            let what = format!("golden {seed}: an old {} put back", path.display());
            count(&what, &|d| d.write_file(path, old).expect("a place"), true);
        }
        let what = format!("golden {seed}: everything old put back");
        let all_back = |d: &SimFs| {
            for (path, old) in &self.earlier {
                d.write_file(path, old).expect("a place");
            }
        };
        count(&what, &all_back, true);
        (images, found)
    }
}

#[test]
fn damage_is_found_or_changes_no_answer() {
    let n = 4 * scale();
    let counts = on_two_threads(n, |seed| {
        let _repeat = repeat!(damage_is_found_or_changes_no_answer, "BASALT_CASE={seed}");
        golden(seed).sweep(seed)
    });
    let images: u64 = counts.iter().map(|c| c.0).sum();
    let found: u64 = counts.iter().map(|c| c.1).sum();
    basalt_sim::campaign!("damaged_images={images} found={found}");
    if campaign::case().is_some() {
        return;
    }
    assert!(images > scale().floor(30_000), "only {images} images");
    assert!(found > images / 5, "the sweep must hit what matters");
}

#[test]
fn a_lying_disk_gives_an_earlier_state_or_an_error() {
    const KINDS: [LieKind; 4] = [
        LieKind::DroppedSync,
        LieKind::MisdirectedSector,
        LieKind::StaleSector,
        LieKind::BitFlip,
    ];
    let n = 600 * scale();
    let lie = |i: u64| {
        let _repeat = repeat!(
            a_lying_disk_gives_an_earlier_state_or_an_error,
            "BASALT_LIE={i}"
        );
        let kind = KINDS[(i % 4) as usize];
        let seed = i / 4;
        let mut c = Rng::of(&[i, 41]);
        let disk = sim_disk(seed, 512, 1 << 40);
        // Families come first: one created after a write that the disk lost stays, which is no
        // prefix and no visible damage.
        let mut r = Runner::new(disk.clone(), seed, seed, true);
        (1..4).for_each(|f| r.run(&Op::CreateFamily(f)));
        let begun = r.progress.durable.load(SeqCst);
        assert_eq!(begun, 3);
        disk.lie(Lie {
            kind,
            path: c
                .pick(&["", ".log", ".tbl", "MANIFEST", "store"])
                .to_string(),
            when: When::Nth(c.within(1, 40)),
        });
        r.allow_damage();
        let shape = Shape {
            ops: 60,
            keys: 24,
            coarse_time: true,
            no_tickets: false,
        };
        for op in history(30_000 + seed, shape) {
            if !matches!(
                op,
                Op::Reopen { .. } | Op::CreateFamily(_) | Op::DropFamily(_)
            ) {
                r.run(&op);
            }
        }
        if r.db.is_some() {
            r.wait_for_tickets();
        }
        let lies_done = disk.lie_count();
        let wall = r.env.clock().wall_ms();
        if c.percent(30) {
            r.end(End::Close);
        }
        let left = disk.crash(c.pick(CrashPolicy::ALL), i);
        r.drop_process();
        let fs: Arc<dyn FileSystem> = left;
        let (env, _) = environment(&fs, i, wall);
        let shown = Db::open(&env, DIR, options(0)).and_then(|db| {
            let all = read_all(&db);
            let now = env.clock().wall_ms();
            db.abandon();
            Ok((digest(&all?), now))
        });
        match shown {
            Err(e) => {
                assert!(is_damage(&e), "{kind:?}: {e}");
                (lies_done, 1, 0)
            }
            Ok((shown, now)) => {
                let mut with = r.model.clone();
                r.maybe.iter().for_each(|m| {
                    if crate::runner::fits(&with, m) {
                        with.commit(m.clone())
                    }
                });
                let found = (0..=with.len())
                    .rev()
                    .find(|&n| with.mark(n).digest(now) == shown);
                let found = found.unwrap_or_else(|| panic!("{kind:?}: a state that never was"));
                let lost = (found as u64) < r.progress.durable.load(SeqCst);
                (lies_done, 0, u64::from(lost))
            }
        }
    };
    if let Some(numbers) = numbers_of("BASALT_LIE") {
        lie(numbers[0]);
        return;
    }
    let outcomes = on_two_threads(n, lie);
    let sum = |f: fn(&(u64, u64, u64)) -> u64| outcomes.iter().map(f).sum::<u64>();
    let (lies_done, errors, earlier) = (sum(|o| o.0), sum(|o| o.1), sum(|o| o.2));
    basalt_sim::campaign!("lies={lies_done} runs={n} errors={errors} earlier_states={earlier}");
    assert!(lies_done > n / 4 && errors > 0);
}
