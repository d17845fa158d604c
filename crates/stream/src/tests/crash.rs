//! A power cut at every change of the disk, over random histories of several streams.

use super::*;
use basalt_env::sync::Mutex;
use basalt_sim::{CrashPolicy, SimSnapshot};

/// Power cuts that are tried at `BASALT_SCALE=1`.
const LEAST_STATES: u64 = 9_000;
/// Power cuts during histories with releases that are tried at `BASALT_SCALE=1`.
const LEAST_RELEASE_STATES: u64 = 4_000;
const STEPS: usize = 30;
const MOST_STREAMS: usize = 4;

/// A stream, as it should be.
#[derive(Clone, Default)]
struct Model {
    dir: PathBuf,
    /// What was appended, and whether a sync has covered it.
    records: Vec<(ExtentAddress, Vec<u8>, bool)>,
    /// Extents that are erased, and those that an erasure under way may have erased.
    erased: BTreeSet<ExtentId>,
    erasing: BTreeSet<ExtentId>,
}

/// All streams, as they should be.
#[derive(Clone, Default)]
struct World {
    extent_bytes: u64,
    streams: Vec<Model>,
    /// The directory of a stream that is being made, and the streams that it is made of.
    making: Option<(PathBuf, Vec<usize>)>,
}

impl World {
    /// Returns streams without content.
    fn new(names: &[&str], extent_bytes: u64) -> World {
        let model = |name: &&str| Model {
            dir: name.into(),
            ..Model::default()
        };
        World {
            extent_bytes,
            streams: names.iter().map(model).collect(),
            making: None,
        }
    }

    fn options(&self) -> StreamOptions {
        options().extent_bytes(self.extent_bytes)
    }
}

impl Model {
    fn sync(&mut self) {
        self.records
            .iter_mut()
            .for_each(|(.., synced)| *synced = true);
    }
}

fn data(random: &Random) -> Vec<u8> {
    let len = 1 + random.below(3000) as usize;
    let first = random.next_u64() as u8;
    (0..len).map(|i| first.wrapping_add(i as u8)).collect()
}

/// Runs one random step. `note` is called with what is about to be done, and with what was done.
fn step(
    env: &Env,
    random: &Random,
    open: &mut Vec<Stream>,
    world: &mut World,
    note: &dyn Fn(&World),
) {
    let i = random.below(open.len() as u64) as usize;
    match random.below(10) {
        0..=4 => {
            let data = data(random);
            // Such bytes survive a kill.
            let at = open[i]
                .append(&[IoSlice::new(&data)], Intent::Lazy)
                .unwrap();
            world.streams[i].records.push((at, data, false));
            if random.below(2) == 0 {
                note(world);
                open[i].sync().unwrap();
                world.streams[i].sync();
            }
        }
        5 => {
            open[i].seal().unwrap();
            world.streams[i].sync();
        }
        6 | 7 => {
            let sealed = open[i].extents().into_iter().filter(|e| e.sealed);
            let ids: BTreeSet<ExtentId> = sealed
                .map(|e| e.id)
                .filter(|_| random.below(3) == 0)
                .collect();
            let all: Vec<ExtentId> = ids.iter().copied().collect();
            world.streams[i].erasing = ids;
            note(world);
            open[i].erase(&all).unwrap();
            let model = &mut world.streams[i];
            model.erased.append(&mut model.erasing);
        }
        8 if open.len() < MOST_STREAMS => {
            let j = random.below(open.len() as u64) as usize;
            // The links cover what their sources seal before.
            let sources = if random.below(2) == 0 {
                vec![i]
            } else {
                vec![i, j]
            };
            for source in &sources {
                open[*source].seal().unwrap();
                world.streams[*source].sync();
            }
            let dir = PathBuf::from(format!("s{}", open.len()));
            world.making = Some((dir.clone(), sources.clone()));
            note(world);
            let of: Vec<&Stream> = sources.iter().map(|source| &open[*source]).collect();
            let made = Stream::concatenate(&of, &dir, world.options()).unwrap();
            world.making = None;
            world.streams.push(made_of(world, &dir, &sources));
            open.push(made);
        }
        _ => {
            open[i] = Stream::open(env, &world.streams[i].dir, world.options()).unwrap();
        }
    }
    note(world);
}

/// Releases a random sealed extent around random records. Returns the bytes that were freed.
fn release(random: &Random, open: &[Stream], world: &mut World, note: &dyn Fn(&World)) -> u64 {
    let i = random.below(open.len() as u64) as usize;
    let mut sealed = open[i].extents();
    sealed.retain(|e| e.sealed);
    if sealed.is_empty() {
        return 0;
    }
    let extent = sealed[random.below(sealed.len() as u64) as usize];
    let (mut kept, mut dropped): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
    for (at, data, _) in &world.streams[i].records {
        let end = at.offset + data.len() as u64;
        match at.extent == extent.id {
            true if random.below(2) == 0 => kept.push(at.offset..end),
            true => dropped.push(*at),
            false => {}
        }
    }
    kept.sort_unstable_by_key(|record| record.start);
    let mut ranges = Vec::new();
    let mut from = EXTENT_HEADER as u64;
    for record in kept {
        ranges.push(from..record.start);
        from = record.end;
    }
    ranges.push(from..extent.len);
    let has = |stream: &Stream| stream.extents().iter().any(|e| e.id == extent.id);
    let is_shared = open.iter().filter(|stream| has(stream)).count() > 1;
    if !is_shared {
        let records = &mut world.streams[i].records;
        records.retain(|(at, ..)| !dropped.contains(at));
        note(world);
    }
    let freed = open[i].release(extent.id, &ranges).unwrap();
    assert!(freed.is_none() || !is_shared, "the extent has two names");
    freed.unwrap_or(0)
}

/// Returns a stream that was made of others. A source that has an extent gives it, even if another
/// one has erased it.
fn made_of(world: &World, dir: &Path, sources: &[usize]) -> Model {
    let mut made = Model {
        dir: dir.to_path_buf(),
        ..Model::default()
    };
    for source in sources.iter().map(|source| &world.streams[*source]) {
        let has = |at: &ExtentAddress| !source.erased.contains(&at.extent);
        for record in source.records.iter().filter(|(at, ..)| has(at)) {
            if !made.records.iter().any(|(at, ..)| *at == record.0) {
                made.records.push(record.clone());
            }
        }
    }
    made
}

/// Compares a stream with what it should be. After a kill, unsynced bytes are there, too.
fn check_stream(env: &Env, model: &Model, lost_power: bool, say: &str) {
    let stream = Stream::open(env, &model.dir, options());
    let stream = stream.unwrap_or_else(|e| panic!("{say}: {}: {e}", model.dir.display()));
    let extents: BTreeMap<ExtentId, _> = stream.extents().iter().map(|e| (e.id, *e)).collect();
    assert!(extents.values().all(|e| e.sealed), "{say}");
    for (at, data, synced) in &model.records {
        let found = stream.read(*at, data.len());
        if model.erased.contains(&at.extent) {
            assert!(
                !extents.contains_key(&at.extent),
                "{say}: an erased extent is back"
            );
            assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound, "{say}");
            continue;
        }
        let may_be_erased = model.erasing.contains(&at.extent);
        match found {
            Ok(found) if *synced || !lost_power => {
                assert_eq!(&found[..], &data[..], "{say}: {at:?}");
            }
            // The user's checksums tell.
            Ok(_) => {}
            Err(e) if may_be_erased => assert_eq!(e.kind(), ErrorKind::NotFound, "{say}"),
            Err(e) => assert!(!synced && lost_power, "{say}: {at:?}: {e}"),
        }
    }
    if !model.erasing.is_empty() {
        let left = model
            .erasing
            .iter()
            .filter(|id| extents.contains_key(id))
            .count();
        assert!(
            left == 0 || left == model.erasing.len(),
            "{say}: a part was erased"
        );
    }
    let files = extent_files(&**env.fs(), &model.dir);
    assert_eq!(files, extents.len(), "{say}: files that no edit names");
    // The stream goes on, and is opened again.
    let at = append(&stream, b"after the crash").unwrap();
    stream.sync().unwrap();
    drop(stream);
    let again = Stream::open(env, &model.dir, options());
    let again = again.unwrap_or_else(|e| panic!("{say}, again: {}: {e}", model.dir.display()));
    assert_eq!(
        again.read(at, 15).unwrap(),
        &b"after the crash"[..],
        "{say}"
    );
    for (id, before) in extents {
        let now = again.extents().into_iter().find(|e| e.id == id);
        assert_eq!(now.map(|e| e.len), Some(before.len), "{say}");
    }
}

/// Opens all streams after a kill, and cuts the power then: what an open has done must not be
/// undone by what was not durable before the kill.
fn check_cut_after_open(fs: &Arc<SimFs>, world: &World, seed: u64, say: &str) {
    let env = Env::for_tests(fs.clone(), fs.op_count());
    for model in &world.streams {
        Stream::open(&env, &model.dir, options()).unwrap();
    }
    for &policy in CrashPolicy::ALL {
        let say = format!("{say}, opened and cut: {policy:?}");
        check(&fs.crash(policy, seed), world, true, &say);
    }
}

fn check(fs: &Arc<SimFs>, world: &World, lost_power: bool, say: &str) {
    let env = Env::for_tests(fs.clone(), fs.op_count());
    for model in &world.streams {
        check_stream(&env, model, lost_power, say);
    }
    if let Some((dir, sources)) = &world.making {
        match Stream::open(&env, dir, options()) {
            Ok(stream) => {
                drop(stream);
                check_stream(&env, &made_of(world, dir, sources), lost_power, say);
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{say}: {e}");
                // The next attempt cleans up.
                let made = Stream::create(&env, dir, options());
                assert_eq!(made.unwrap_or_else(|e| panic!("{say}: {e}")).extents(), []);
            }
        }
    }
}

struct CrashPoint {
    snapshot: SimSnapshot,
    world: World,
}

/// A history of streams on a disk that keeps a crash point for each of its changes.
struct History {
    fs: Arc<SimFs>,
    env: Env,
    world: World,
    open: Vec<Stream>,
    points: Arc<Mutex<Vec<CrashPoint>>>,
    /// The world that the next crash points expect.
    expected: Arc<Mutex<World>>,
}

impl History {
    fn new(seed: u64, world: World) -> History {
        let fs = disk(seed);
        let env = Env::for_tests(fs.clone(), seed);
        let open: Vec<Stream> = (world.streams.iter())
            .map(|model| Stream::create(&env, &model.dir, world.options()).unwrap())
            .collect();
        let points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
        let expected = Arc::new(Mutex::new(world.clone()));
        let (p, w) = (points.clone(), expected.clone());
        fs.on_mutation(move |snapshot| {
            p.lock().push(CrashPoint {
                snapshot,
                world: w.lock().clone(),
            });
        });
        History {
            fs,
            env,
            world,
            open,
            points,
            expected,
        }
    }

    fn step(&mut self, random: &Random) {
        let note = |world: &World| *self.expected.lock() = world.clone();
        step(&self.env, random, &mut self.open, &mut self.world, &note);
    }

    /// Appends some blocks of records to a stream, and seals them.
    fn fill(&mut self, random: &Random) {
        let i = random.below(self.open.len() as u64) as usize;
        for _ in 0..6 {
            let data = data(random).repeat(3);
            let at = append(&self.open[i], &data).unwrap();
            self.world.streams[i].records.push((at, data, false));
        }
        self.open[i].seal().unwrap();
        self.world.streams[i].sync();
        *self.expected.lock() = self.world.clone();
    }

    fn release(&mut self, random: &Random) -> u64 {
        let note = |world: &World| *self.expected.lock() = world.clone();
        release(random, &self.open, &mut self.world, &note)
    }

    /// Ends the history, and checks the disk after a crash at each of its changes.
    fn check(&self, seed: u64, states: &mut u64) {
        self.fs.on_mutation(|_| {});
        for (n, point) in self.points.lock().iter().enumerate() {
            for (i, &policy) in CrashPolicy::ALL.iter().enumerate() {
                let say = format!(
                    "crash seed={seed} at {:?} policy={policy:?}",
                    point.snapshot
                );
                let crashed = point.snapshot.crash(policy, seed * 1000 + *states);
                check(&crashed, &point.world, true, &say);
                *states += 1;
                if i == 0 {
                    let say = format!("kill seed={seed} at {:?}", point.snapshot);
                    check(&point.snapshot.kill(), &point.world, false, &say);
                    *states += 1;
                    if n % 4 == 0 {
                        check_cut_after_open(&point.snapshot.kill(), &point.world, *states, &say);
                        *states += CrashPolicy::ALL.len() as u64;
                    }
                }
            }
        }
    }
}

#[test]
fn a_power_cut_at_every_change_keeps_the_promises() {
    let (mut states, mut made, mut erased) = (0u64, 0, 0);
    for seed in basalt_sim::campaign::cases(0..6 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_at_every_change_keeps_the_promises,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        let mut history = History::new(seed, World::new(&["deep/er/s0", "s1"], 8 << 10));
        for _ in 0..STEPS {
            history.step(&random);
        }
        made += history.world.streams.len() - 2;
        erased += history
            .world
            .streams
            .iter()
            .map(|model| model.erased.len())
            .sum::<usize>();
        history.check(seed, &mut states);
    }
    basalt_sim::campaign!("stream_crash_states={states} made={made} erased={erased}");
    let floor = |n: u64| basalt_sim::campaign::scale().floor(n);
    let is_enough =
        states >= floor(LEAST_STATES) && made as u64 >= floor(6) && erased as u64 >= floor(6);
    assert!(
        basalt_sim::campaign::case().is_some() || is_enough,
        "only {states} states, {made} made, {erased} erased"
    );
}

/// A power cut beside releases takes no byte outside the released ranges.
#[test]
fn a_power_cut_during_releases_keeps_all_other_bytes() {
    let (mut states, mut freed) = (0u64, 0);
    for seed in basalt_sim::campaign::cases(0..3 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_during_releases_keeps_all_other_bytes,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        // Extents have several blocks, which are what a filesystem frees.
        let mut history = History::new(seed, World::new(&["s0", "s1"], 32 << 10));
        for n in 0..STEPS / 2 {
            if n % 4 == 0 {
                history.fill(&random);
            }
            history.step(&random);
            for _ in 0..4 {
                freed += history.release(&random);
            }
        }
        history.check(seed, &mut states);
    }
    basalt_sim::campaign!("stream_release_states={states} freed={freed}");
    let floor = |n: u64| basalt_sim::campaign::scale().floor(n);
    let is_enough = states >= floor(LEAST_RELEASE_STATES) && freed >= floor(60 << 10);
    assert!(
        basalt_sim::campaign::case().is_some() || is_enough,
        "only {states} states, {freed} bytes freed"
    );
}
