//! A copy of an open store has exactly the content of its moment, whatever the store does while the
//! copy is written and after it.

use super::*;
use basalt_env::sync::Mutex;
use basalt_sim::{CrashPolicy, SimSnapshot};

const COPY: &str = "copy";
/// Copies that are compared at `BASALT_SCALE=1`.
const LEAST_COPIES: u64 = 150;

/// Opens the copy, compares it with the content of the moment, and appends to it.
fn check_copy(fs: &Arc<SimFs>, content: &Content, say: &str) {
    let env = Env::for_tests(fs.clone(), fs.op_count() + 1);
    let report = LogEngine::check(&env, COPY, &options(), &mut |_, _| ());
    let report = report.unwrap_or_else(|e| panic!("{say}: {e}"));
    assert_eq!(report.damage.len(), 0, "{say}: {:?}", report.damage);
    let engine = LogEngine::open(&env, COPY, options()).unwrap_or_else(|e| panic!("{say}: {e}"));
    for (i, lsns) in content.iter().enumerate() {
        let log = engine.log(&log_name(i)).unwrap();
        let read = log.iter(0).map(Result::unwrap);
        let read: BTreeMap<u64, Vec<u8>> = read.map(|(lsn, data)| (lsn, data.to_vec())).collect();
        assert_eq!(&read, lsns, "{say}: log {i}");
        log.append(1_000_000, b"later", SYNC).unwrap();
    }
    engine.close().unwrap();
}

fn remove_copy(fs: &Arc<SimFs>) {
    let env = Env::for_tests(fs.clone(), 1);
    LogEngine::remove_unfinished_copy(&env, COPY).unwrap();
    assert!(!fs.exists(Path::new(COPY)).unwrap());
}

#[test]
fn a_copy_has_the_content_of_its_moment() {
    let (mut copies, mut linked, mut removed) = (0, 0, 0);
    for seed in basalt_sim::campaign::cases(0..25 * basalt_sim::campaign::scale()) {
        let random = Random::from_seed(seed + 500);
        let steps = history(&random, 160);
        let fs = disk(seed);
        let mut store = Store::open(&fs).unwrap();
        store.job_pause = 1 + random.below(6) as usize;
        let mut model = Model::new();
        let mut copy = None;
        for (i, step) in steps.iter().enumerate() {
            let say = format!("seed {seed}, step {i}");
            match (step, &copy) {
                // A closed store makes no copy.
                (Step::Reopen, Some(_)) => continue,
                _ => {
                    let refused = model.refusal(step);
                    assert_eq!(store.run(step).err().map(|e| e.kind()), refused, "{say}");
                    if refused.is_none() {
                        model.apply(step);
                    }
                }
            }
            if copy.is_none() && random.one_in(8) {
                let files = store.engine.engine().logs.all().len();
                copy = Some((
                    store.engine.begin_copy().unwrap(),
                    model.logs.clone(),
                    files,
                ));
            } else if copy.is_some() && random.one_in(6) {
                let (taken, content, _) = copy.take().unwrap();
                let report = taken.write(COPY, random.one_in(2)).unwrap();
                linked += report.linked_bytes;
                // The store goes on, and takes the space of removed files over.
                for _ in 0..random.below(8) {
                    let log = 0;
                    let last = store.logs[log].last().max(model.trimmed[log]).unwrap_or(10);
                    let step = Step::Append(vec![(log, last + 1, vec![7; 3000])], false);
                    let trim = Step::Trim(log, last.saturating_sub(1));
                    for step in [step, trim] {
                        assert_eq!(model.refusal(&step), None);
                        store.run(&step).unwrap();
                        model.apply(&step);
                    }
                }
                removed += store.engine.engine().logs.counters.removed_files.get();
                check_copy(&fs, &content, &say);
                remove_copy(&fs);
                check_reads(&store, &model, &random);
                copies += 1;
            }
        }
        drop(copy);
        store.engine.close().unwrap();
        let env = Env::for_tests(fs.clone(), 3);
        let report = LogEngine::check(&env, DIR, &options(), &mut |_, _| ()).unwrap();
        assert_eq!(report.damage.len(), 0, "seed {seed}: {:?}", report.damage);
        assert_eq!(
            report.unused_files.len(),
            0,
            "seed {seed}: {:?}",
            report.unused_files
        );
    }
    basalt_sim::campaign!("copies: {copies}, {linked} bytes linked, {removed} files removed");
    assert!(
        basalt_sim::campaign::case().is_some()
            || copies >= basalt_sim::campaign::scale().floor(LEAST_COPIES)
    );
    assert!(linked > 0 && removed > 0);
}

/// A power cut while a copy is written leaves a whole copy or none, and the store as it was.
#[test]
fn a_power_cut_leaves_a_whole_copy_or_none() {
    let (mut whole, mut none) = (0, 0);
    for seed in basalt_sim::campaign::cases(0..6 * basalt_sim::campaign::scale()) {
        let fs = disk(seed);
        let mut store = Store::open(&fs).unwrap();
        let mut model = Model::new();
        for step in history(&Random::from_seed(seed + 900), 60) {
            if model.refusal(&step).is_none() && !matches!(step, Step::Reopen) {
                store.run(&step).unwrap();
                model.apply(&step);
            }
        }
        store.run(&Step::Sync).unwrap();
        let points: Arc<Mutex<Vec<SimSnapshot>>> = Arc::default();
        let to = points.clone();
        fs.on_mutation(move |snapshot| to.lock().push(snapshot));
        let copy = store.engine.begin_copy().unwrap();
        copy.write(COPY, false).unwrap();
        fs.on_mutation(|_| {});
        store.engine.cut_power();
        for (i, point) in points.lock().iter().enumerate() {
            for &policy in CrashPolicy::ALL {
                let say = format!("seed {seed}, change {i}, {policy:?}");
                let fs = point.crash(policy, seed * 1000 + i as u64);
                let opened = Store::open(&fs).unwrap_or_else(|e| panic!("{say}: {e}"));
                assert_eq!(opened.content().unwrap(), model.logs, "{say}");
                if fs.exists(&Path::new(COPY).join("CURRENT")).unwrap() {
                    check_copy(&fs, &model.logs, &say);
                    whole += 1;
                } else {
                    none += 1;
                }
                if fs.exists(Path::new(COPY)).unwrap() {
                    remove_copy(&fs);
                }
            }
        }
    }
    basalt_sim::campaign!("power cuts in copies: {none} without a copy, {whole} with one");
    assert!(whole > 0 && none > 50);
}

#[test]
fn a_copy_is_refused_with_a_reason() {
    let fs = disk(1);
    let mut store = Store::open(&fs).unwrap();
    store
        .run(&Step::Append(vec![(0, 1, vec![1])], true))
        .unwrap();
    fs.create_dir(Path::new(COPY)).unwrap();
    drop(fs.create(&Path::new(COPY).join("notes.txt")).unwrap());
    let error = store
        .engine
        .begin_copy()
        .unwrap()
        .write(COPY, false)
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().contains("copy"), "{error}");
    let env = store.env.clone();
    let error = LogEngine::remove_unfinished_copy(&env, COPY).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    store.engine.close().unwrap();
    let kind = store.engine.begin_copy().err().map(|e| e.kind());
    assert_eq!(kind, Some(ErrorKind::Closed));
    let engine = LogEngine::open_read_only(&env, DIR, options()).unwrap();
    let kind = engine.begin_copy().err().map(|e| e.kind());
    assert_eq!(kind, Some(ErrorKind::ReadOnly));
}
