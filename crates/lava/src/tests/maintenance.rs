//! Tests of what a filesystem uses of its environment: jobs, memory and time.

use super::*;
use super::{fresh, with_jobs};
use crate::write_buffer::BUFFER;
use basalt_env::EnvParts;
use basalt_env::{Clock, EnvBuilder, JobPriority, ManualClock, MemoryKind};
use basalt_fs::{FsMetricValue, Intent};
use basalt_sim::SimDevice;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

fn over(env: &EnvParts) -> Arc<LavaFs> {
    let device = SimDevice::new(256 << 20, 512);
    format::format(&*device, [7; 16], false, Path::new("image")).unwrap();
    let options = LavaOptions {
        env: Some(env.clone()),
        ..with_jobs()
    };
    LavaFs::mount(device, &options).unwrap()
}

fn bulk(f: &Arc<dyn File>, bytes: &[u8]) {
    f.append(&[IoSlice::new(bytes)], Intent::Bulk).unwrap();
}

/// Regression test: buffers were in no ledger, so 64 of them took 32 MiB beside the budget.
#[test]
fn write_buffers_are_in_the_ledger() {
    let env = EnvBuilder::without_fs().stepped().parts();
    let booked = || env.ledger().usage().buffer / BUFFER as u64;
    let fs = over(&env);
    let files: Vec<_> = (0..40)
        .map(|i| fs.create(Path::new(&format!("{i}"))).unwrap())
        .collect();
    for (i, f) in files.iter().enumerate() {
        bulk(f, &[i as u8; 1000]);
        assert_eq!(booked(), i as u64 + 1);
    }
    for (i, f) in files.iter().enumerate() {
        f.sync_all().unwrap();
        assert_eq!(f.read(0, 2000).unwrap(), vec![i as u8; 1000]);
    }
    assert_eq!(fs.shared.buffers.bytes(), 0);
    assert_eq!(booked(), 16, "buffers for the next files are reserved, too");
    drop((files, fs));
    assert_eq!(booked(), 0);
}

/// A buffer that the ledger refuses is not allocated, and no byte of a file is lost by that.
#[test]
fn a_full_ledger_limits_the_write_buffers() {
    let env = EnvBuilder::without_fs()
        .stepped()
        .memory_bytes(8 << 20)
        .cache_bytes(0)
        .parts();
    let full = env.ledger().reserve(MemoryKind::Memtable, 8 << 20);
    let fs = over(&env);
    let files: Vec<_> = (0..20)
        .map(|i| fs.create(Path::new(&format!("{i}"))).unwrap())
        .collect();
    for round in 0..3u8 {
        for f in &files {
            bulk(f, &[round; 300_000]);
        }
        // A memtable flush needs these buffers to give memory back.
        assert!(env.ledger().usage().buffer <= 4 * BUFFER as u64);
    }
    for f in &files {
        f.sync_all().unwrap();
        let bytes = f.read(0, 1_000_000).unwrap();
        let want: Vec<u8> = (0..3u8).flat_map(|round| vec![round; 300_000]).collect();
        assert!(bytes == want);
    }
    drop(full);
    let more: Vec<_> = (0..8)
        .map(|i| fs.create(Path::new(&format!("more {i}"))).unwrap())
        .collect();
    more.iter().for_each(|f| bulk(f, &[1; 1000]));
    assert_eq!(fs.shared.buffers.bytes(), 8 * BUFFER as u64);
}

/// Compactions last for minutes. If a checkpoint waited for them, writers would find a full
/// journal.
#[test]
fn a_checkpoint_job_runs_before_compactions() {
    let env = EnvBuilder::without_fs().stepped().parts();
    let fs = over(&env);
    let compactions = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let compactions = Arc::clone(&compactions);
        let owner = env.jobs().new_owner();
        owner.spawn(JobPriority::Compaction, move || {
            compactions.fetch_add(1, SeqCst);
        });
    }
    let mut names = 0;
    while !fs.is_due() {
        for _ in 0..100 {
            fs.create(Path::new(&format!("{names}"))).unwrap();
            names += 1;
        }
        fs.sync_metadata(Path::new("")).unwrap();
    }
    assert_eq!(fs.usage().checkpoints, 0);
    while fs.usage().checkpoints == 0 {
        assert!(
            env.jobs().step(),
            "no job writes the checkpoint that is due"
        );
        assert_eq!(compactions.load(SeqCst), 0);
    }
    assert!(!fs.is_due());
    drop(fs);
    while env.jobs().step() {}
    assert_eq!(compactions.load(SeqCst), 3);
}

/// The job that syncs is on the only thread of the pool, so no other job can write its buffers.
#[test]
fn a_job_on_the_last_thread_writes_its_buffers_itself() {
    let env = EnvBuilder::without_fs().threads(1).parts();
    let fs = over(&env);
    let owner = env.jobs().new_owner();
    for n in 0..4u8 {
        let fs = Arc::clone(&fs);
        owner.spawn(JobPriority::Flush, move || {
            let f = fs.create(Path::new(&format!("{n}"))).unwrap();
            for _ in 0..30 {
                bulk(&f, &[n; 100_000]);
            }
            f.sync_all().unwrap();
        });
    }
    owner.drain();
    assert_eq!(owner.panicked(), None);
    for n in 0..4u8 {
        let f = fs.open(Path::new(&format!("{n}"))).unwrap();
        assert!(f.read(0, 4_000_000).unwrap() == vec![n; 3_000_000]);
    }
}

/// After the filesystem is dropped, no job of it is left, and the device is free.
#[test]
fn an_unmount_leaves_no_job_queued() {
    let env = EnvBuilder::without_fs().parts();
    for round in 0..20 {
        let device = SimDevice::new(64 << 20, 512);
        format::format(&*device, [7; 16], false, Path::new("image")).unwrap();
        let options = LavaOptions {
            env: Some(env.clone()),
            ..with_jobs()
        };
        let fs = LavaFs::mount(device.clone(), &options).unwrap();
        for i in 0..8 {
            let path = PathBuf::from(format!("{i}"));
            bulk(&fs.create(&path).unwrap(), &vec![round; 1_500_000]);
            fs.remove(&path).unwrap();
            fs.sync_metadata(Path::new("")).unwrap();
        }
        drop(fs);
        assert_eq!(Arc::strong_count(&device), 1);
    }
    assert_eq!(env.jobs().pending(), [0; 6]);
}

/// The environment's clock times syncs.
#[test]
fn syncs_are_timed_by_the_clock_of_the_environment() {
    let manual_clock = ManualClock::ticking(0, Duration::from_millis(70));
    let env = EnvBuilder::without_fs()
        .stepped()
        .clock(Clock::manual(manual_clock))
        .parts();
    let fs = over(&env);
    fs.create(Path::new("a")).unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    let metrics = fs.metrics();
    let syncs = metrics.iter().find(|f| f.name == "lava_sync_us").unwrap();
    let FsMetricValue::Summary(syncs) = syncs.value else {
        panic!("{syncs:?}");
    };
    assert_eq!((syncs.count, syncs.max), (1, 70_000));
}

/// Without an environment there are no background jobs, and two runs make the same writes.
#[test]
fn two_runs_without_an_environment_write_the_same() {
    let run = || {
        let (device, fs) = fresh(512);
        for i in 0..30u8 {
            let f = fs.create(Path::new(&format!("{i}"))).unwrap();
            bulk(&f, &vec![i; 400_000]);
            f.sync_all().unwrap();
            fs.sync_metadata(Path::new("")).unwrap();
        }
        drop(fs);
        (device.writes(), device.stats())
    };
    assert_eq!(run(), run());
}
