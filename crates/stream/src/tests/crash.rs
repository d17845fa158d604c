//! A power cut at every change of the disk, over random histories of several streams.

use super::*;
use basalt_env::sync::Mutex;
use basalt_sim::{CrashPolicy, SimSnapshot};

/// Power cuts that are tried at `BASALT_SCALE=1`.
const LEAST_STATES: u64 = 9_000;
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
    streams: Vec<Model>,
    /// The directory of a stream that is being made, and the streams that it is made of.
    making: Option<(PathBuf, Vec<usize>)>,
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
            let made = Stream::concatenate(&of, &dir, options()).unwrap();
            world.making = None;
            world.streams.push(made_of(world, &dir, &sources));
            open.push(made);
        }
        _ => {
            open[i] = Stream::open(env, &world.streams[i].dir, options()).unwrap();
        }
    }
    note(world);
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

#[test]
fn a_power_cut_at_every_change_keeps_the_promises() {
    let (mut states, mut made, mut erased) = (0u64, 0, 0);
    for seed in basalt_sim::campaign::cases(0..6 * basalt_sim::campaign::scale()) {
        let _repeat = basalt_sim::repeat!(
            a_power_cut_at_every_change_keeps_the_promises,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        let fs = disk(seed);
        let env = Env::for_tests(fs.clone(), seed);
        let points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
        let shared: Arc<Mutex<World>> = Arc::default();
        let (p, w) = (points.clone(), shared.clone());
        let mut world = World::default();
        for name in ["deep/er/s0", "s1"] {
            world.streams.push(Model {
                dir: name.into(),
                ..Model::default()
            });
        }
        let mut open: Vec<Stream> = (world.streams.iter())
            .map(|model| Stream::create(&env, &model.dir, options()).unwrap())
            .collect();
        *shared.lock() = world.clone();
        fs.on_mutation(move |snapshot| {
            p.lock().push(CrashPoint {
                snapshot,
                world: w.lock().clone(),
            });
        });
        let note = |world: &World| *shared.lock() = world.clone();
        for _ in 0..STEPS {
            step(&env, &random, &mut open, &mut world, &note);
        }
        fs.on_mutation(|_| {});
        made += world.streams.len() - 2;
        erased += world
            .streams
            .iter()
            .map(|model| model.erased.len())
            .sum::<usize>();
        for (n, point) in points.lock().iter().enumerate() {
            for (i, &policy) in CrashPolicy::ALL.iter().enumerate() {
                let say = format!(
                    "crash seed={seed} at {:?} policy={policy:?}",
                    point.snapshot
                );
                let crashed = point.snapshot.crash(policy, seed * 1000 + states);
                check(&crashed, &point.world, true, &say);
                states += 1;
                if i == 0 {
                    let say = format!("kill seed={seed} at {:?}", point.snapshot);
                    check(&point.snapshot.kill(), &point.world, false, &say);
                    states += 1;
                    if n % 4 == 0 {
                        check_cut_after_open(&point.snapshot.kill(), &point.world, states, &say);
                        states += CrashPolicy::ALL.len() as u64;
                    }
                }
            }
        }
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
