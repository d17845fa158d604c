//! Calls beside a close, and handles that are dropped without one.

use super::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A filesystem that calls `at` before it looks at the space of the device.
pub(super) struct Gate {
    pub fs: Arc<SimFs>,
    pub at: Box<dyn Fn() + Send + Sync>,
    /// False for a filesystem without hard links.
    pub links: bool,
}

impl FileSystem for Gate {
    fn info(&self) -> basalt_fs::FsInfo {
        self.fs.info()
    }
    fn create(&self, path: &Path) -> Result<Arc<dyn basalt_fs::File>> {
        self.fs.create(path)
    }
    fn create_log(
        &self,
        path: &Path,
        options: basalt_fs::LogOptions<'_>,
    ) -> Result<Arc<dyn basalt_fs::File>> {
        self.fs.create_log(path, options)
    }
    fn open(&self, path: &Path) -> Result<Arc<dyn basalt_fs::File>> {
        self.fs.open(path)
    }
    fn stat(&self, path: &Path) -> Result<basalt_fs::FileStat> {
        self.fs.stat(path)
    }
    fn list(&self, dir: &Path) -> Result<Vec<basalt_fs::DirEntry>> {
        self.fs.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> Result<()> {
        self.fs.create_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.fs.rename(from, to)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.fs.remove(path)
    }
    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        match self.links {
            true => self.fs.link(from, to),
            false => Err(basalt_fs::Error::unsupported("no links")),
        }
    }
    fn sync_metadata(&self, dir: &Path) -> Result<()> {
        self.fs.sync_metadata(dir)
    }
    fn submit_reads(
        &self,
        reads: Vec<basalt_fs::ReadRequest>,
    ) -> Box<dyn basalt_fs::ReadCompletions> {
        self.fs.submit_reads(reads)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn basalt_fs::LockGuard>> {
        self.fs.lock(path)
    }
    fn stats(&self) -> basalt_fs::FsStats {
        self.fs.stats()
    }
    fn space(&self, path: &Path) -> Result<basalt_fs::Space> {
        (self.at)();
        self.fs.space(path)
    }
}

/// A call that began before a close writes nothing after the close has released the directory. Here
/// `create` has seen that the engine is open, and looks at the reserve. Meanwhile the store is
/// closed, and another engine opens it.
#[test]
fn no_call_writes_after_a_close_has_released_the_directory() {
    let fs = disk(1);
    let engine = LogEngine::open(&env(&fs), DIR, LogEngineOptions::default()).unwrap();
    engine.create("old", LogOptions::default()).unwrap();
    engine.close().unwrap();
    drop(engine);
    let (ready, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let armed = Arc::new(AtomicBool::new(false));
    let (r, g, a) = (ready.clone(), go.clone(), armed.clone());
    let gate = Arc::new(Gate {
        links: true,
        fs: fs.clone(),
        at: Box::new(move || {
            if a.swap(false, SeqCst) {
                r.wait();
                g.wait();
            }
        }),
    });
    let gated = Env::for_tests(gate, 77);
    let engine = LogEngine::open(&gated, DIR, LogEngineOptions::default()).unwrap();
    armed.store(true, SeqCst);
    let late = basalt_env::thread::scope(|scope| {
        let late = scope.spawn(|| engine.create("late", LogOptions::default()).map(drop));
        ready.wait();
        // The close waits for the reserve, which the call holds.
        let close = scope.spawn(|| engine.close());
        go.wait();
        close.join().unwrap().unwrap();
        late.join().unwrap()
    });
    let second = LogEngine::open(&env(&fs), DIR, LogEngineOptions::default()).unwrap();
    assert_eq!(second.log("late").is_ok(), late.is_ok(), "{late:?}");
    let log = second.create("new", LogOptions::default()).unwrap();
    log.append(1, b"y", SYNC).unwrap();
    let late = engine.create("later", LogOptions::default()).map(drop);
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    second.engine().cut_power();
    drop((engine, log, second));
    let reopened = open(&fs.kill()).unwrap();
    assert_eq!(reopened.log("new").unwrap().count(), 1);
}

/// No append is committed after a close has ended all files.
#[test]
fn an_append_behind_a_close_is_not_acknowledged() {
    for round in 0..100u64 {
        let fs = disk(round);
        let engine = LogEngine::open(&env(&fs), DIR, LogEngineOptions::default()).unwrap();
        let log = engine.create("a", LogOptions::default()).unwrap();
        let begun = Barrier::new(4);
        let acknowledged = basalt_env::thread::scope(|scope| {
            let append = |t: u64| {
                let (log, begun) = (&log, &begun);
                scope.spawn(move || {
                    begun.wait();
                    let lsns = (t..).step_by(3);
                    lsns.take_while(|lsn| log.append(*lsn, b"x", SYNC).is_ok())
                        .count()
                })
            };
            let threads = [0, 1, 2].map(append);
            begun.wait();
            (0..round * 20).for_each(|_| std::hint::spin_loop());
            engine.close().unwrap();
            threads.map(|t| t.join().unwrap()).iter().sum::<usize>()
        });
        let files = engine.engine().logs.all();
        assert!(
            files.iter().all(|file| file.end().is_some()),
            "round {round}"
        );
        drop((log, engine));
        let engine = open(&fs.kill()).unwrap();
        assert_eq!(
            engine.log("a").unwrap().count(),
            acknowledged as u64,
            "round {round}"
        );
    }
}

/// The callback of a batch is called although all handles are dropped before its commit.
#[test]
fn a_callback_of_a_dropped_engine_is_called() {
    let fs = disk(1);
    let env = env(&fs);
    let engine = LogEngine::open(&env, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    let mut batch = LogBatch::new();
    batch.append(&log, 1, b"x").unwrap();
    let called = Arc::new(AtomicBool::new(false));
    let c = called.clone();
    let ticket = engine.submit(batch, SYNC).unwrap();
    ticket.on_complete(move |result| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Closed);
        c.store(true, SeqCst);
    });
    drop((log, engine));
    while env.jobs().step() {}
    assert!(called.load(SeqCst));
}

/// Regression test: an append that was on its way when the store was closed queued a checkpoint,
/// which ran after the close, in a directory that another engine had.
#[test]
fn no_job_of_a_closed_engine_changes_the_directory() {
    let fs = disk(1);
    let barriers = || (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let ((reached, goes_on), armed) = (barriers(), Arc::new(AtomicBool::new(false)));
    let (at_gate, through, is_armed) = (reached.clone(), goes_on.clone(), armed.clone());
    let gate = Arc::new(Gate {
        links: true,
        fs: fs.clone(),
        at: Box::new(move || {
            if is_armed.swap(false, SeqCst) {
                at_gate.wait();
                through.wait();
            }
        }),
    });
    let gated = Env::for_tests(gate, 77);
    let engine = LogEngine::open(&gated, DIR, options()).unwrap();
    let log = engine.create("a", LogOptions::default()).unwrap();
    // The next append asks for the space of the device, and stays in the gate.
    assert!(engine.engine().logs.release_reserve());
    armed.store(true, SeqCst);
    let (appended, closed) = basalt_env::thread::scope(|scope| {
        let late = scope.spawn(|| log.append(1, &[1; 3000], SYNC));
        reached.wait();
        let close = scope.spawn(|| engine.close());
        // The close waits for the lock that the append has.
        while engine.engine().check_open().is_ok() {
            std::thread::yield_now();
        }
        goes_on.wait();
        (late.join().unwrap(), close.join().unwrap())
    });
    closed.unwrap();
    let second = open(&fs).unwrap();
    let found = second.open_or_create("a", LogOptions::default()).unwrap();
    assert_eq!(found.count(), u64::from(appended.is_ok()));
    let changes = Arc::new(AtomicU64::new(0));
    let counted = changes.clone();
    fs.on_mutation(move |_| {
        counted.fetch_add(1, SeqCst);
    });
    while gated.jobs().step() {}
    assert_eq!(changes.load(SeqCst), 0, "changes after the close");
    drop(second);
}
