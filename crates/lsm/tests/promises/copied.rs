//! Checkpoints where tables cannot be linked: they are copied if that is allowed, and a wrong copy
//! is not kept.

use basalt_env::Env;
use basalt_fs::{
    DirEntry, Error, File, FileStat, FileSystem, FsInfo, FsStats, LockGuard, LogOptions,
    ReadCompletions, ReadRequest, Result, Space,
};
use basalt_lsm::db::{CheckpointOptions, CompactOptions};
use basalt_lsm::{Db, ErrorKind, FamilyOptions, Options, ReadOptions, TreeOptions, WriteOptions};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{OpKind, SimFs, SimOptions, When};
use std::path::Path;
use std::sync::Arc;

/// A filesystem whose links fail, as if each second name were on another filesystem.
struct NoLinks(Arc<FaultFs>);

impl FileSystem for NoLinks {
    fn info(&self) -> FsInfo {
        self.0.info()
    }
    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.0.create(path)
    }
    fn create_log(&self, path: &Path, options: LogOptions<'_>) -> Result<Arc<dyn File>> {
        self.0.create_log(path, options)
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
    fn link(&self, _: &Path, to: &Path) -> Result<()> {
        const EXDEV: i32 = 18;
        let cross = std::io::Error::from_raw_os_error(EXDEV);
        Err(Error::io("link", to, cross))
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
    fn lock_shared(&self, path: &Path) -> Result<Option<Box<dyn LockGuard>>> {
        self.0.lock_shared(path)
    }
    fn space(&self, path: &Path) -> Result<Space> {
        self.0.space(path)
    }
    fn stats(&self) -> FsStats {
        self.0.stats()
    }
}

#[test]
fn tables_that_cannot_be_linked_are_copied_and_checked() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = Env::for_tests(Arc::new(NoLinks(faults.clone())), 1);
    let db = Db::open(&env, "db", Options::default()).unwrap();
    let f = db.default_family();
    // The values make a copy of more than one piece.
    let value = |n: u8| vec![n; 9000];
    for n in 0..200u8 {
        db.put(&f, &[n], &value(n), &WriteOptions::UNSYNCED)
            .unwrap();
    }
    db.flush().unwrap();
    db.put(&f, b"l", b"in the log", &WriteOptions::UNSYNCED)
        .unwrap();
    let names = || -> Vec<String> {
        let entries = env.fs().list(Path::new("")).unwrap();
        entries.into_iter().map(|e| e.name).collect()
    };
    let linked = db.checkpoint("copy", &CheckpointOptions::default());
    let refused = linked.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("allow copies"), "{refused}");
    assert_eq!(names(), ["db"], "nothing is left");
    let options = CheckpointOptions::default().copy_tables(true);
    // Wrongly read bytes do not match the manifest's digest of the table, wherever the wrong bit
    // is.
    for nth in [1, 2] {
        faults.inject(Fault {
            op: Some(OpKind::Read),
            path: ".tbl".to_string(),
            when: When::Nth(nth),
            kind: FaultKind::BitFlip,
        });
        let wrong = db.checkpoint("copy", &options).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Corruption, "{wrong}");
        assert!(wrong.to_string().contains("digest"), "{wrong}");
        assert_eq!(names(), ["db"], "nothing is left");
        faults.clear();
    }
    let made = db.checkpoint("copy", &options).unwrap();
    assert_eq!((made.tables, made.linked_bytes), (1, 0));
    assert!(made.copied_bytes > 200 * 9000 && made.log_bytes > 0);
    db.close().unwrap();
    let copy = Db::open_read_only(&env, "copy", Options::default()).unwrap();
    let f = copy.default_family();
    let get = |key: &[u8]| copy.get(&f, key, &ReadOptions::default()).unwrap();
    for n in 0..200u8 {
        let want = if n == b'l' {
            b"in the log".to_vec()
        } else {
            value(n)
        };
        assert_eq!(get(&[n]).as_deref(), Some(&want[..]));
    }
    drop(copy);
}

/// The pages of a family are copied with the garbage between them, of which ranges were released.
#[test]
fn pages_that_cannot_be_linked_are_copied() {
    let faults = FaultFs::new(SimFs::new(SimOptions::default()), 1);
    let env = Env::for_tests(Arc::new(NoLinks(faults.clone())), 1);
    let tree = TreeOptions::default().page_bytes(4096).block_bytes(512);
    let family = FamilyOptions::default().pages(Some(tree.extent_bytes(1 << 20)));
    let options = Options::default().default_family(family);
    let db = Db::open(&env, "db", options.clone()).unwrap();
    let f = db.default_family();
    let value = |n: u32, round: u32| vec![(n * 7 + round) as u8; 900];
    let newest = |n: u32| if n.is_multiple_of(2) { 3 } else { 0 };
    for round in 0..4 {
        for n in (0..3000u32).filter(|n| round == 0 || n.is_multiple_of(2)) {
            db.put(
                &f,
                &n.to_be_bytes(),
                &value(n, round),
                &WriteOptions::UNSYNCED,
            )
            .unwrap();
        }
        db.compact(&f, &CompactOptions::default()).unwrap();
    }
    db.wait_idle().unwrap();
    let released = db.stats().families[0]
        .pages
        .as_ref()
        .unwrap()
        .released_bytes;
    assert!(released > 0, "no space was released");
    db.put(&f, b"l", b"in the log", &WriteOptions::UNSYNCED)
        .unwrap();
    let refused = db.checkpoint("copy", &CheckpointOptions::default());
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("allow copies"), "{refused}");
    let names = |dir: &str| -> Vec<String> {
        let entries = env.fs().list(Path::new(dir)).unwrap();
        entries.into_iter().map(|e| e.name).collect()
    };
    assert_eq!(names(""), ["db"], "nothing is left");
    // A device that fails is not taken for released space.
    let copying = CheckpointOptions::default().copy_tables(true);
    faults.inject(Fault {
        op: Some(OpKind::Read),
        path: ".extent".to_string(),
        when: When::Nth(1),
        kind: FaultKind::Eio,
    });
    let failed = db.checkpoint("copy", &copying).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io, "{failed}");
    assert_eq!(names(""), ["db"], "nothing is left");
    faults.clear();
    // The header of an extent, and then a page, which is wrong in the copy alone.
    for (nth, said) in [(1, "header"), (2, "verifying the copied pages")] {
        faults.inject(Fault {
            op: Some(OpKind::Read),
            path: ".extent".to_string(),
            when: When::Nth(nth),
            kind: FaultKind::BitFlip,
        });
        let wrong = db.checkpoint("copy", &copying).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Corruption, "{wrong}");
        assert!(wrong.to_string().contains(said), "{wrong}");
        assert_eq!(names(""), ["db"], "nothing is left");
        faults.clear();
    }
    let made = db.checkpoint("copy", &copying).unwrap();
    assert_eq!((made.page_families, made.linked_bytes), (1, 0));
    assert!(made.page_files > 3 && made.copied_bytes >= made.page_bytes);
    db.close().unwrap();
    for (_, found) in Db::check_pages(&env, "copy", &options, None).unwrap() {
        assert!(found.damage.is_empty(), "{:?}", found.damage);
    }
    let copy = Db::open(&env, "copy", options).unwrap();
    let f = copy.default_family();
    let get = |key: &[u8]| copy.get(&f, key, &ReadOptions::default()).unwrap();
    for n in 0..3000u32 {
        let want = value(n, newest(n));
        assert_eq!(get(&n.to_be_bytes()).as_deref(), Some(&want[..]), "{n}");
    }
    assert_eq!(get(b"l").as_deref(), Some(&b"in the log"[..]));
    // The copy accepts writes and compactions.
    copy.put(&f, b"l", b"newer", &WriteOptions::SYNC).unwrap();
    copy.compact(&f, &CompactOptions::default()).unwrap();
    copy.close().unwrap();
}
