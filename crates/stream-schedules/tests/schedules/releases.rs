//! Releases of ranges of a stream's extents beside links of the stream. A link keeps each record
//! that it could read, until the link itself releases it. The stream keeps each record that no
//! call released.

use crate::case;
use basalt_env::sync::explore::{CASE, Counts, below, count, counted, counts, percent};
use basalt_env::sync::yield_now;
use basalt_env::{Clock, Env, EnvBuilder, ManualClock};
use basalt_fs::{ErrorKind, FileSystem, Intent};
use basalt_sim::fault::{Fault, FaultFs, FaultKind};
use basalt_sim::{CrashPolicy, OpKind, SimFs, SimOptions, When, campaign, repeat};
use basalt_stream_schedules::{ExtentAddress, ExtentId, Stream, StreamOptions};
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const RECORDS: usize = 8;
/// Bytes of a record, which has a whole block of the disk inside.
const RECORD_BYTES: usize = 9000;
const DIR: &str = "stream";
const LINKS: [&str; 2] = ["link1", "link2"];

/// Places of the counts of this model.
const FREED: usize = 0;
const REFUSED: usize = 1;
const KEPT: usize = 2;
const GONE: usize = 3;
const RELEASED_IN_LINKS: usize = 4;

fn data(record: usize) -> Vec<u8> {
    (0..RECORD_BYTES)
        .map(|i| (record + 1) as u8 ^ (i / 7) as u8)
        .collect()
}

/// Returns a filesystem above a disk on which releases of ranges take long: other threads go on
/// meanwhile.
fn with_slow_releases(disk: &Arc<SimFs>) -> Arc<FaultFs> {
    let others_go_on = |_| (0..below(400)).for_each(|_| yield_now());
    let slow = FaultFs::with_sleep(disk.clone(), 1, Box::new(others_go_on));
    slow.inject(Fault {
        op: Some(OpKind::ReleaseRange),
        path: String::new(),
        when: When::From(1),
        kind: FaultKind::Latency(Duration::from_millis(1)),
    });
    slow
}

fn environment(fs: Arc<dyn FileSystem>) -> Env {
    let clock = ManualClock::ticking(1_700_000_000_000, Duration::from_micros(20));
    EnvBuilder::new(fs)
        .threads(1)
        .seed(below(u64::MAX))
        .clock(Clock::manual(clock))
        .memory_bytes(16 << 20)
        .build()
}

/// A link, and what it has to keep.
struct Linked {
    stream: Stream,
    dir: &'static str,
    /// Records that the link has read.
    kept: BTreeSet<usize>,
}

struct World {
    disk: Arc<SimFs>,
    stream: Stream,
    options: StreamOptions,
    records: Vec<ExtentAddress>,
    /// Records that a call of the stream released, or will at once. Never held where threads
    /// change places.
    released: Mutex<BTreeSet<usize>>,
    counts: Counts,
}

impl World {
    fn new(counts: &Counts) -> World {
        let disk = SimFs::new(SimOptions::default());
        let options = StreamOptions::default().extent_bytes(32 << 10);
        let env = environment(with_slow_releases(&disk));
        let stream = Stream::create(&env, DIR, options.clone()).expect("creates");
        let append = |record| {
            let bytes = data(record);
            let appended = stream.append(&[IoSlice::new(&bytes)], Intent::Bulk);
            appended.expect("appends")
        };
        let records = (0..RECORDS).map(append).collect();
        stream.seal().expect("seals");
        World {
            disk,
            stream,
            options,
            records,
            released: Mutex::default(),
            counts: counts.clone(),
        }
    }

    /// Returns true if a stream has a record, and false if the record is gone as a whole or in
    /// part.
    fn has(&self, stream: &Stream, record: usize) -> bool {
        match stream.read(self.records[record], RECORD_BYTES) {
            Ok(bytes) => bytes == data(record)[..],
            Err(e) if e.kind() == ErrorKind::NotFound => false,
            Err(e) => panic!("record {record}: {e}"),
        }
    }

    /// Returns some records of one extent, and their ranges of bytes.
    fn some_records(&self) -> (ExtentId, Vec<usize>, Vec<Range<u64>>) {
        let extent = self.records[below(RECORDS as u64) as usize].extent;
        let is_chosen = |record: &usize| self.records[*record].extent == extent && percent(70);
        let chosen: Vec<usize> = (0..RECORDS).filter(is_chosen).collect();
        let range = |record: &usize| {
            let begin = self.records[*record].offset;
            begin..begin + RECORD_BYTES as u64
        };
        let ranges = chosen.iter().map(range).collect();
        (extent, chosen, ranges)
    }

    /// Releases some records of the stream.
    fn release(&self) {
        let (extent, records, ranges) = self.some_records();
        self.released.lock().unwrap().extend(&records);
        match self.stream.release(extent, &ranges) {
            Ok(Some(bytes)) => count(&self.counts, FREED, u64::from(bytes > 0)),
            Ok(None) => count(&self.counts, REFUSED, 1),
            Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
        }
    }

    /// Removes an extent from the stream. Another thread may have removed it.
    fn erase(&self) {
        let extent = self.records[below(RECORDS as u64) as usize].extent;
        let of_extent = (0..RECORDS).filter(|record| self.records[*record].extent == extent);
        self.released.lock().unwrap().extend(of_extent);
        if let Err(e) = self.stream.erase(&[extent]) {
            assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        }
    }

    /// Links the stream, reads the link, and releases some of its records.
    fn link(&self, dir: &'static str) -> Linked {
        let stream = self.stream.link(dir).expect("links");
        let mut linked = Linked {
            kept: (0..RECORDS).filter(|n| self.has(&stream, *n)).collect(),
            stream,
            dir,
        };
        let released = self.released.lock().unwrap().clone();
        for record in (0..RECORDS).filter(|record| !linked.kept.contains(record)) {
            assert!(released.contains(&record), "record {record} was not linked");
        }
        count(&self.counts, KEPT, linked.kept.len() as u64);
        count(&self.counts, GONE, (RECORDS - linked.kept.len()) as u64);
        (0..below(20)).for_each(|_| yield_now());
        self.check(&linked);
        if percent(50) {
            let (extent, records, ranges) = self.some_records();
            match linked.stream.release(extent, &ranges) {
                Ok(Some(bytes)) => {
                    linked.kept.retain(|n| !records.contains(n));
                    count(&self.counts, RELEASED_IN_LINKS, u64::from(bytes > 0));
                }
                Ok(None) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{e}"),
            }
        }
        self.check(&linked);
        linked
    }

    fn check(&self, linked: &Linked) {
        self.check_kept(&linked.stream, linked);
    }

    fn check_kept(&self, stream: &Stream, linked: &Linked) {
        for record in &linked.kept {
            assert!(
                self.has(stream, *record),
                "{} has lost record {record}",
                linked.dir
            );
        }
    }

    /// Checks the links and the stream: as they are, opened again, and after a power cut.
    fn end(&self, links: &[Linked]) {
        let released = self.released.lock().unwrap().clone();
        let policy = CrashPolicy::ALL[below(CrashPolicy::ALL.len() as u64) as usize];
        let crashed = self.disk.crash(policy, below(1 << 20));
        for disk in [&self.disk, &crashed] {
            let env = environment(disk.clone());
            let open = |dir: &str| {
                let opened = Stream::open_read_only(&env, dir, self.options.clone());
                opened.expect("opens")
            };
            links
                .iter()
                .for_each(|linked| self.check_kept(&open(linked.dir), linked));
            let stream = open(DIR);
            for record in (0..RECORDS).filter(|record| !released.contains(record)) {
                assert!(self.has(&stream, record), "record {record} is lost");
            }
        }
        links.iter().for_each(|linked| self.check(linked));
    }
}

fn model(counts: &Counts) {
    let world = Arc::new(World::new(counts));
    let mut threads = Vec::new();
    for _ in 0..2 {
        let world = world.clone();
        threads.push(shuttle::thread::spawn(move || {
            for _ in 0..3 {
                (0..below(12)).for_each(|_| yield_now());
                match percent(85) {
                    true => world.release(),
                    false => world.erase(),
                }
            }
        }));
    }
    let links = Arc::new(Mutex::new(Vec::new()));
    for dir in LINKS {
        let (world, to) = (world.clone(), links.clone());
        threads.push(shuttle::thread::spawn(move || {
            (0..below(30)).for_each(|_| yield_now());
            let linked = world.link(dir);
            to.lock().unwrap().push(linked);
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    world.end(&links.lock().unwrap());
}

#[test]
fn a_link_keeps_what_it_could_read_in_any_schedule() {
    let totals = counts();
    let mut schedules = 0;
    for seed in campaign::cases(0..10 * campaign::scale()) {
        let _repeat = repeat!(
            a_link_keeps_what_it_could_read_in_any_schedule,
            "BASALT_CASE={seed}"
        );
        let totals = totals.clone();
        case(seed, move || model(&totals));
        schedules += CASE as u64;
    }
    let [freed, refused, kept, gone, in_links] = std::array::from_fn(|i| counted(&totals, i));
    basalt_sim::campaign!(
        "stream_release_schedules={schedules} freed={freed} refused={refused} kept={kept} \
         gone={gone} released_in_links={in_links}"
    );
    if campaign::case().is_none() {
        assert!(freed > schedules / 2, "{freed} releases freed space");
        assert!(refused > schedules / 2, "{refused} releases met a link");
        assert!(kept > 4 * schedules, "{kept} records were linked");
        assert!(gone > schedules / 2, "{gone} records were gone before");
        assert!(in_links > 0, "{in_links} releases of links freed space");
    }
}
