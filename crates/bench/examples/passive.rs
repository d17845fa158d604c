//! A database with its own log over five families as LinkBench has them: with the storage log on,
//! passive, and passive with a flush of all families every so many transactions. Prints, for each
//! mode and in rounds one after the other, transactions a second, bytes that the storage engine
//! wrote for each byte of the database's log, and how long a recovery takes after the process died.
//!
//! ```sh
//! cargo run --release -p basalt-bench --example passive -- /tmp/passive 200000 3
//! ```
//! The arguments are a directory that does not exist, transactions, and rounds.

use basalt::env::{Clock, EnvBuilder, Random};
use basalt::fs::{HostFs, HostOptions};
use basalt::log::{LogOptions, WriteOptions as LogWriteOptions};
use basalt::{
    Bytes, Db, Env, Family, FamilyOptions, LogMode, Options, PassiveOptions, Replay, Result, Store,
    StoreOptions, WriteBatch, WriteOptions,
};
use std::path::Path;
use std::time::Duration;

/// The families, and how many bytes a value has.
const FAMILIES: [(&str, usize); 5] = [
    ("system", 40),
    ("link_pk", 90),
    ("link_sk", 60),
    ("count", 24),
    ("node", 400),
];

/// How the database and its storage recover.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// Both logs are synced at each commit.
    LogSynced,
    /// The storage log is not synced.
    LogUnsynced,
    Passive,
    /// Passive, with a flush of all families every so many transactions.
    ActiveFlush(u64),
}

impl Mode {
    fn name(self) -> String {
        match self {
            Mode::LogSynced => "storage log synced".into(),
            Mode::LogUnsynced => "storage log unsynced".into(),
            Mode::Passive => "passive".into(),
            Mode::ActiveFlush(n) => format!("flush every {n}"),
        }
    }

    fn is_passive(self) -> bool {
        matches!(self, Mode::Passive | Mode::ActiveFlush(_))
    }

    fn options(self) -> StoreOptions {
        let passive = LogMode::Passive(PassiveOptions::default());
        let log = if self.is_passive() {
            passive
        } else {
            LogMode::Own
        };
        StoreOptions::default().tables(Options::default().log(log))
    }
}

/// One row of a transaction: family, key, bytes of the value.
type Row = (u8, u64, u16);

/// Returns the rows of transaction `n`: mostly a link with its index entry and its count, sometimes
/// a node, rarely a row of the system.
fn rows(n: u64) -> Vec<Row> {
    let random = Random::from_seed(n);
    let key = random.below(4_000_000);
    let mut rows = vec![
        (1, key, 90),
        (2, key.rotate_left(17), 60),
        (3, key / 16, 24),
    ];
    if random.below(4) == 0 {
        rows.push((4, random.below(1_000_000), 400));
    }
    if random.below(5_000) == 0 {
        rows.push((0, random.below(100), 40));
    }
    rows
}

/// A record of the database's log: rows with their values, as a binlog in row format.
fn record(rows: &[Row]) -> Vec<u8> {
    let mut out = Vec::new();
    for (family, key, len) in rows {
        out.push(*family);
        out.extend(key.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(std::iter::repeat_n(*key as u8, usize::from(*len)));
    }
    out
}

fn batch(record: &[u8], families: &[Family]) -> Result<WriteBatch> {
    let mut batch = WriteBatch::new();
    let mut rest = record;
    while let Some((family, more)) = rest.split_first() {
        let (key, more) = more.split_at(8);
        let (len, more) = more.split_at(2);
        let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
        let (value, more) = more.split_at(len);
        batch.put(&families[usize::from(*family)], key, value)?;
        rest = more;
    }
    Ok(batch)
}

fn families(name_of: impl Fn(&str) -> Option<Family>) -> Option<Vec<Family>> {
    FAMILIES.iter().map(|(name, _)| name_of(name)).collect()
}

fn open(env: &Env, mode: Mode) -> Result<(Store, basalt::log::Log)> {
    if mode.is_passive() {
        let mut known: Option<Vec<Family>> = None;
        let mut replay = |run: &mut Replay, tsn: u64, record: Bytes| -> Result<()> {
            if known.is_none() {
                known = families(|name| run.family(name));
            }
            let families = known
                .as_ref()
                .expect("they were made before the first transaction");
            run.replay(tsn, batch(&record, families)?).map(|_| ())
        };
        return Store::open_passive(env, "store", mode.options(), "binlog", &mut replay);
    }
    let store = Store::open(env, "store", mode.options())?;
    let log = store
        .logs()?
        .open_or_create("binlog", LogOptions::default())?;
    Ok((store, log))
}

struct Outcome {
    rate: f64,
    /// Bytes that the storage engine wrote for each byte of the database's log.
    storage: f64,
    recovery: Duration,
}

fn engine_bytes(db: &Db) -> u64 {
    let stats = db.stats();
    stats.wal_bytes_written + stats.flush_bytes_written + stats.compaction_bytes_written
}

fn run(dir: &Path, mode: Mode, transactions: u64) -> Result<Outcome> {
    let clock = Clock::system();
    let env =
        || -> Result<Env> { Ok(EnvBuilder::new(HostFs::new(HostOptions::new(dir))?).build()) };
    let environment = env()?;
    let (store, log) = open(&environment, mode)?;
    let db = store.db().clone();
    for (name, _) in FAMILIES {
        db.create_family(name, FamilyOptions::default())?;
    }
    let families = families(|name| db.family(name)).expect("just made");
    let begun = clock.now();
    for tsn in 1..=transactions {
        let record = record(&rows(tsn));
        log.append(tsn, &record, &LogWriteOptions::SYNC)?;
        let batch = batch(&record, &families)?;
        match mode {
            Mode::LogSynced => db.write(batch, &WriteOptions::SYNC)?,
            Mode::LogUnsynced => db.write(batch, &WriteOptions::UNSYNCED)?,
            Mode::Passive | Mode::ActiveFlush(_) => db.write_at(tsn, batch)?,
        };
        if let Mode::ActiveFlush(every) = mode
            && tsn.is_multiple_of(every)
        {
            db.flush()?;
        }
    }
    let took = clock.now() - begun;
    let storage = engine_bytes(&db) as f64 / log.bytes() as f64;
    // The process dies: what is in memory is gone.
    db.abandon();
    drop((store, log, environment));
    let environment = env()?;
    let begun = clock.now();
    let (store, _) = open(&environment, mode)?;
    let recovery = clock.now() - begun;
    store.close()?;
    Ok(Outcome {
        rate: transactions as f64 / took.as_secs_f64(),
        storage,
        recovery,
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program that owns its directory"
)]
fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: u64| {
        args.get(i)
            .map_or(default, |n| n.parse().expect("a number"))
    };
    let dir = args
        .get(1)
        .map_or("passive-bench", String::as_str)
        .to_string();
    let (transactions, rounds) = (number(2, 100_000), number(3, 3));
    let modes = [
        Mode::LogSynced,
        Mode::LogUnsynced,
        Mode::Passive,
        Mode::ActiveFlush(2000),
    ];
    println!("| round | mode | transactions/s | storage bytes a log byte | recovery ms |");
    println!("|---|---|---|---|---|");
    for round in 1..=rounds {
        for mode in modes {
            std::fs::create_dir_all(&dir).expect("a directory can be made");
            let o = run(Path::new(&dir), mode, transactions)?;
            std::fs::remove_dir_all(&dir).expect("it was just made");
            println!(
                "| {round} | {} | {:.0} | {:.2} | {:.1} |",
                mode.name(),
                o.rate,
                o.storage,
                o.recovery.as_secs_f64() * 1000.0
            );
        }
    }
    Ok(())
}
