//! A soak over many logs: skewed appends, a log that is never trimmed, a log that is trimmed out of
//! order, logs that are made and deleted, reopens. Memory and space are judged at every sample from
//! what an operator sees: the metrics and the memory ledger.

use basalt_env::{Env, MetricSample, MetricValue, Random};
use basalt_log::{Log, LogEngine, LogEngineOptions, LogOptions, WriteOptions};
use basalt_sim::{SimFs, SimOptions, campaign, repeat};
use std::sync::Arc;

const DIR: &str = "logs";
const UNSYNCED: &WriteOptions = &WriteOptions::UNSYNCED;
const LOGS: u64 = 100;
/// Records that a log keeps when it is trimmed.
const BEHIND: u64 = 100;
/// Records above [`BEHIND`] at which a log is trimmed.
const STEP: u64 = 16;
const FILE_BYTES: u64 = 256 << 10;
/// Appends between two samples.
const SAMPLE: u64 = 500;

/// Bounds on what a sample may show.
mod bound {
    /// Bytes of memory of a log without records: its state, its names, and an empty index.
    pub const OF_LOG: u64 = 900;
    /// Bytes of memory of a record.
    pub const OF_RECORD: u64 = 8;
    /// Bytes of memory of the reverse indexes of the files being written and being ended.
    pub const OF_REVERSE: u64 = 3 * 4096 * 16;
    /// Bytes of ended files for each hundred live ones in them, apart from [`young`].
    pub const SPACE_PERCENT: u64 = 125;

    /// Returns the bytes of files that no collection looks at yet: those written since the last
    /// checkpoint, up to 32 times its bytes, and a file of each role. A checkpoint has about half
    /// the bytes that the index takes in memory.
    pub fn young(index_bytes: u64) -> u64 {
        16 * index_bytes + 3 * super::FILE_BYTES
    }
}

fn environment(fs: &Arc<SimFs>, seed: u64) -> Env {
    Env::for_tests(fs.clone(), seed)
}

fn open(env: &Env) -> LogEngine {
    let options = LogEngineOptions::default().file_bytes(FILE_BYTES);
    LogEngine::open(env, DIR, options).unwrap()
}

/// A log of the soak, and the LSN behind its last record.
struct SoakedLog {
    log: Log,
    next: u64,
}

/// What the logs of the soak are used for.
const STUCK: u64 = 0;
const OUT_OF_ORDER: u64 = 1;

fn name(i: u64) -> String {
    format!("soak/{i}")
}

struct Soak {
    fs: Arc<SimFs>,
    env: Env,
    engine: LogEngine,
    logs: Vec<SoakedLog>,
    random: Random,
}

/// The worst of all samples.
#[derive(Debug, Default)]
struct Worst {
    samples: u64,
    space_percent: u64,
    files: u64,
    memory_per_record: f64,
    index_per_live_mb: u64,
}

/// Returns the value of a metric.
fn value(samples: &[MetricSample], name: &str, label: Option<(&str, &str)>) -> u64 {
    let is_it = |s: &&MetricSample| {
        let of_label = |(key, value)| s.labels.iter().any(|(k, v)| k == key && v == value);
        s.name == name && label.is_none_or(of_label)
    };
    match samples.iter().find(is_it).map(|s| &s.value) {
        Some(MetricValue::Counter(n)) => *n,
        Some(MetricValue::Gauge(n)) => u64::try_from(*n).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

impl Soak {
    fn begin(seed: u64) -> Soak {
        let fs = SimFs::new(SimOptions {
            seed,
            ..SimOptions::default()
        });
        let env = environment(&fs, seed);
        let engine = open(&env);
        let log = |i| engine.create(&name(i), LogOptions::default()).unwrap();
        let logs = (0..LOGS).map(|i| SoakedLog {
            log: log(i),
            next: 1,
        });
        Soak {
            logs: logs.collect(),
            fs,
            env,
            engine,
            random: Random::from_seed(seed),
        }
    }

    /// Appends a record to a log, a few logs getting most of them, and trims the log.
    fn append(&mut self) {
        let r = &self.random;
        let i = match r.below(20) {
            0 => STUCK,
            1 => OUT_OF_ORDER,
            _ => LOGS - 1 - r.below(1 + r.below(1 + r.below(LOGS))),
        };
        let len = 256 + r.below(3840);
        let SoakedLog { log, next } = &mut self.logs[i as usize];
        // Some LSNs are left out, and some come late.
        let lsn = match r.below(20) {
            0 => *next + 3,
            1 if *next > 5 && log.read(*next - 3).unwrap().is_none() => *next - 3,
            _ => *next,
        };
        if log.trimmed().is_some_and(|trimmed| lsn <= trimmed) {
            return;
        }
        log.append(lsn, &vec![i as u8; len as usize], UNSYNCED)
            .unwrap();
        *next = (*next).max(lsn + 1);
        match i {
            STUCK => {}
            OUT_OF_ORDER => {
                // The odd blocks of eight go early, and the even ones late.
                if let Some(block) = (lsn / 8).checked_sub(if lsn / 8 % 2 == 1 { 4 } else { 32 }) {
                    log.remove(block * 8..=block * 8 + 7).unwrap();
                }
            }
            _ if log.count() > BEHIND + STEP => {
                log.trim(*next - BEHIND, UNSYNCED).unwrap();
            }
            _ => {}
        }
    }

    /// Deletes a log and makes another one with its name, or opens the store again.
    fn change(&mut self) {
        if self.random.one_in(4) {
            self.engine.close().unwrap();
            self.logs.clear();
            self.env = environment(&self.fs, self.fs.op_count());
            self.engine = open(&self.env);
            let logs = (0..LOGS).map(|i| {
                let log = self.engine.log(&name(i)).unwrap();
                let last = log.last().max(log.trimmed());
                let next = last.map_or(1, |last| last + 1);
                SoakedLog { log, next }
            });
            self.logs = logs.collect();
        } else {
            let i = 2 + self.random.below(LOGS - 2);
            self.engine.delete(&name(i)).unwrap();
            let log = self.engine.create(&name(i), LogOptions::default());
            let log = log.unwrap();
            self.logs[i as usize] = SoakedLog { log, next: 1 };
        }
    }

    fn run_jobs(&self) {
        while self.env.jobs().step() {}
    }

    /// Judges the metrics of one moment.
    fn sample(&self, worst: &mut Worst) {
        let samples = self.env.metrics().snapshot();
        let of_store = |name| value(&samples, name, Some(("store", DIR)));
        let records = of_store("log_records");
        let index = of_store("log_index_bytes");
        let ledger = value(&samples, "memory_used_bytes", Some(("kind", "index")));
        assert_eq!(of_store("logs"), LOGS);
        let allowed = LOGS * bound::OF_LOG + records * bound::OF_RECORD;
        assert!(
            index <= allowed,
            "{index} bytes of index for {records} records; {allowed} are allowed"
        );
        // What the ledger has beside the logs is what the reverse indexes may take.
        assert!(ledger >= index, "ledger {ledger}, indexes {index}");
        assert!(
            ledger <= index + bound::OF_REVERSE,
            "ledger {ledger}, indexes {index}"
        );
        let (ended, live) = (
            of_store("log_ended_bytes"),
            of_store("log_ended_live_bytes"),
        );
        let young = bound::young(index);
        let space = live * bound::SPACE_PERCENT / 100 + young;
        assert!(ended <= space, "{ended} bytes of files, {live} live");
        // Files that take no more records must end, or no collection would ever look at them.
        let files = of_store("log_data_files");
        let allowed = 2 * space / FILE_BYTES + 4;
        assert!(files <= allowed, "{files} files, {allowed} are allowed");
        worst.files = worst.files.max(files);

        worst.samples += 1;
        if records >= LOGS * BEHIND / 2 {
            let a_record = index as f64 / records as f64;
            worst.memory_per_record = worst.memory_per_record.max(a_record);
            let a_mb = of_store("log_index_bytes_per_live_mb");
            worst.index_per_live_mb = worst.index_per_live_mb.max(a_mb);
        }
        worst.space_percent = worst.space_percent.max(ended * 100 / live.max(1));
    }
}

#[test]
fn memory_a_record_and_space_stay_within_bounds() {
    let mut worst = Worst::default();
    for seed in campaign::cases(0..2 * campaign::scale()) {
        let _repeat = repeat!(
            memory_a_record_and_space_stay_within_bounds,
            "BASALT_CASE={seed}"
        );
        let mut soak = Soak::begin(seed);
        for n in 1..=30_000u64 {
            soak.append();
            if n % 25 == 0 {
                soak.run_jobs();
            }
            if n % 3000 == 0 {
                soak.change();
            }
            if n % SAMPLE == 0 {
                soak.run_jobs();
                soak.sample(&mut worst);
            }
        }
        let Soak {
            env, engine, logs, ..
        } = soak;
        engine.close().unwrap();
        drop((engine, logs));
        let samples = env.metrics().snapshot();
        let left = value(&samples, "memory_used_bytes", Some(("kind", "index")));
        assert_eq!(left, 0, "seed {seed}");
    }
    basalt_sim::campaign!("log soak: {worst:?}");
    if campaign::case().is_none() {
        assert!(worst.samples >= 100, "{worst:?}");
        assert!(worst.memory_per_record > 0.0, "{worst:?}");
    }
}
