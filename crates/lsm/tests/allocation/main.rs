//! The engine's allocations: a put copies a value once, and a cached read copies none. An engine at
//! rest costs kilobytes, no thread and hardly any preallocated space.

mod counting;

use basalt_env::Env;
use basalt_fs::{
    Bytes, DirEntry, File, FileStat, FileSystem, FsInfo, FsStats, Intent, LockGuard, LogOptions,
    ReadCompletions, ReadRequest, Result, Space,
};
use basalt_lsm::{Db, Options, ReadOptions, WriteOptions};
use basalt_sim::SimFs;
use counting::{asked, live};
use std::any::Any;
use std::io::IoSlice;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// A filesystem that discards its logs, so that only the engine's own memory is counted. The other
/// files are simulated.
struct DiscardLogsFs(Arc<SimFs>);

struct DiscardedLog {
    end: AtomicU64,
    capacity: u64,
}

impl File for DiscardedLog {
    fn append(&self, bufs: &[IoSlice<'_>], _: Intent) -> Result<u64> {
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        Ok(self.end.fetch_add(len as u64, SeqCst))
    }
    fn align_to_unit(&self) -> Result<u64> {
        let end = self.end.load(SeqCst).next_multiple_of(512);
        self.end.store(end, SeqCst);
        Ok(end)
    }
    fn sync_data(&self) -> Result<()> {
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    fn read(&self, _: u64, len: usize) -> Result<Bytes> {
        Ok(vec![0; len].into())
    }
    fn len(&self) -> u64 {
        self.end.load(SeqCst)
    }
    fn allocated(&self) -> u64 {
        self.len().max(self.capacity)
    }
    fn extend_log(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn release_range(&self, _: Range<u64>) -> Result<()> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FileSystem for DiscardLogsFs {
    fn info(&self) -> FsInfo {
        self.0.info()
    }
    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.0.create(path)
    }
    fn create_log(&self, _: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        Ok(Arc::new(DiscardedLog {
            end: AtomicU64::new(0),
            capacity: options.capacity,
        }))
    }
    fn open(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.0.open(path)
    }
    fn stat(&self, path: &Path) -> Result<FileStat> {
        self.0.stat(path)
    }
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.0.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.0.create_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.0.remove(path)
    }
    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.link(from, to)
    }
    fn sync_metadata(&self, dir: &Path) -> Result<()> {
        self.0.sync_metadata(dir)
    }
    fn submit_reads(&self, reads: Vec<ReadRequest>) -> Box<dyn ReadCompletions> {
        self.0.submit_reads(reads)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.0.lock(path)
    }
    fn space(&self, path: &Path) -> Result<Space> {
        self.0.space(path)
    }
    fn stats(&self) -> FsStats {
        self.0.stats()
    }
}

fn stepped(fs: Arc<dyn FileSystem>) -> Env {
    Env::builder(fs)
        .stepped()
        .memory_bytes(256 << 20)
        .cache_bytes(64 << 20)
        .seed(1)
        .build()
}

#[expect(
    clippy::disallowed_methods,
    reason = "what the kernel says of this process is no file of a store"
)]
fn threads_of_this_process() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|s| {
            let line = s.lines().find(|l| l.starts_with("Threads:"))?.to_string();
            line.split_whitespace().nth(1)?.parse().ok()
        })
        .unwrap_or(0)
}

/// All checks are one test, because the allocations of tests that run beside each other cannot be
/// told apart.
#[test]
fn allocations_of_the_engine_are_bounded() {
    a_put_copies_a_value_once();
    a_cached_read_copies_nothing();
    a_step_of_a_cursor_copies_nothing(100);
    a_step_of_a_cursor_copies_nothing(1000);
    a_hundred_idle_engines();
}

fn a_put_copies_a_value_once() {
    let env = stepped(Arc::new(DiscardLogsFs(SimFs::new(Default::default()))));
    let db = Db::open(&env, "store", Options::default()).expect("open");
    let family = db.default_family();
    for size in [64 << 10, 1 << 20, 16 << 20] {
        let value = vec![7u8; size];
        for (n, options) in [WriteOptions::UNSYNCED, WriteOptions::SYNC]
            .iter()
            .enumerate()
        {
            // The first write of a store makes its log, and the arena grows now and then: this
            // write warms both up.
            db.put(&family, b"warm", b"up", options).expect("written");
            let before = asked();
            db.put(&family, format!("key{n}").as_bytes(), &value, options)
                .expect("written");
            let bytes = asked() - before;
            basalt_sim::campaign!("put_value_bytes={size} allocated={bytes}");
            assert!(
                bytes as f64 <= size as f64 * 1.1,
                "{bytes} bytes for a value of {size}"
            );
            let before = asked();
            let got = db.get(
                &family,
                format!("key{n}").as_bytes(),
                &ReadOptions::default(),
            );
            assert_eq!(got.expect("read").map(|v| v.len()), Some(size));
            assert!(asked() - before < 4096, "a read of the memtable copies");
        }
    }
    db.abandon();
}

fn a_cached_read_copies_nothing() {
    let env = stepped(SimFs::new(Default::default()));
    let db = Db::open(&env, "store", Options::default()).expect("open");
    let family = db.default_family();
    let big = vec![9u8; 1 << 20];
    db.put(&family, b"big", &big, &WriteOptions::UNSYNCED)
        .expect("written");
    for n in 0..100u32 {
        db.put(
            &family,
            &n.to_le_bytes(),
            &[1; 1000],
            &WriteOptions::UNSYNCED,
        )
        .expect("written");
    }
    db.flush().expect("flushed");
    let read = |key: &[u8]| db.get(&family, key, &ReadOptions::default()).expect("read");
    for key in [&b"big"[..], &5u32.to_le_bytes()] {
        read(key);
        read(key);
        let before = asked();
        let value = read(key).expect("it is there");
        let bytes = asked() - before;
        basalt_sim::campaign!("cached_get_value_bytes={} allocated={bytes}", value.len());
        assert!(
            bytes < 600,
            "a cached read of {} bytes allocates {bytes}",
            value.len()
        );
    }
    db.abandon();
}

/// Steps a cursor over a table and a memtable, with values that the memtable holds itself and such
/// as stay in their batch.
fn a_step_of_a_cursor_copies_nothing(value_len: usize) {
    const KEYS: u32 = 2000;
    let env = stepped(SimFs::new(Default::default()));
    let db = Db::open(&env, "store", Options::default()).expect("open");
    let family = db.default_family();
    let put = |n: u32| {
        db.put(
            &family,
            &n.to_be_bytes(),
            &vec![n as u8; value_len],
            &WriteOptions::UNSYNCED,
        )
        .expect("written")
    };
    for in_table in [true, false] {
        // Every tenth key is in the memtable, the others are in a table.
        (0..KEYS)
            .filter(|n| (n % 10 != 0) == in_table)
            .for_each(|n| {
                put(n);
            });
        if in_table {
            db.flush().expect("flushed");
        }
    }
    let mut it = db.iter(&family, &ReadOptions::default()).expect("iter");
    for warm in [true, false] {
        it.seek_to_first().expect("seek");
        let (mut steps, mut pinned_in_memtable, before) = (0u32, 0, asked());
        let mut bytes = 0;
        while it.valid() {
            assert_eq!(it.key(), steps.to_be_bytes());
            assert_eq!(it.value().len(), value_len);
            bytes = asked() - before - pinned_in_memtable;
            let begun = asked();
            let pinned = it.pinned_value();
            assert_eq!(
                pinned.as_ptr(),
                it.value().as_ptr(),
                "a pinned value is no copy"
            );
            drop(pinned);
            let cost = asked() - begun;
            if steps % 10 == 0 {
                assert!(cost <= 128, "{cost} bytes to pin a value in a memtable");
                pinned_in_memtable += cost;
            } else {
                assert_eq!(cost, 0, "pinning a value in a block");
            }
            steps += 1;
            it.next().expect("next");
        }
        assert_eq!(steps, KEYS);
        if !warm {
            basalt_sim::campaign!("cursor_steps={steps} value_len={value_len} allocated={bytes}");
            assert_eq!(bytes, 0, "steps up allocate nothing");
        }
    }
    // A step down pins a value: in a memtable that takes a small allocation, whatever the value's
    // length.
    it.seek_to_last().expect("seek");
    let before = asked();
    let mut steps = 0u32;
    while it.valid() {
        steps += 1;
        assert_eq!(it.value().len(), value_len);
        it.prev().expect("prev");
    }
    let bytes = asked() - before;
    basalt_sim::campaign!("cursor_steps_back={steps} value_len={value_len} allocated={bytes}");
    assert_eq!(steps, KEYS);
    assert!(
        bytes <= u64::from(KEYS / 10) * 128,
        "{bytes} bytes for steps back"
    );
    drop(it);
    db.abandon();
}

fn a_hundred_idle_engines() {
    let disk = SimFs::new(Default::default());
    let env = Env::builder(disk.clone()).seed(1).build();
    // Objects that the environment makes once do not count for an engine.
    let first = Db::open(&env, "first", Options::default()).expect("open");
    let (threads, heap) = (threads_of_this_process(), live());
    let engines: Vec<Db> = (0..100)
        .map(|n| Db::open(&env, format!("store{n}"), Options::default()).expect("open"))
        .collect();
    let per_engine = (live() - heap) / 100;
    let on_disk: u64 = (0..100)
        .flat_map(|n| {
            let dir = format!("store{n}");
            let names = disk.list(Path::new(&dir)).expect("it is there");
            names.into_iter().map(move |e| format!("{dir}/{}", e.name))
        })
        .map(|p| disk.stat(Path::new(&p)).expect("it is there").allocated)
        .sum();
    basalt_sim::campaign!(
        "idle_engine_heap_bytes={per_engine} disk_bytes={}",
        on_disk / 100
    );
    assert_eq!(
        threads_of_this_process(),
        threads,
        "an idle engine starts no thread"
    );
    // The count includes the simulated disk's own memory.
    assert!(
        per_engine < 100 << 10,
        "{per_engine} bytes of heap an idle engine"
    );
    assert!(
        on_disk / 100 <= 16 << 10,
        "{on_disk} bytes on disk for 100 idle engines"
    );
    engines
        .into_iter()
        .for_each(|db| db.close().expect("closed"));
    first.close().expect("closed");
}
