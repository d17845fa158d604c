//! Threads on an engine in memory with bugs, under a clock that the test alone moves.

use super::*;
use basalt::env::ManualClock;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The bug of the engine.
#[derive(Clone, Copy, PartialEq)]
enum EngineBug {
    None,
    /// The engine returns values of another key.
    Foreign,
    /// The engine finds no key.
    Lost,
    /// Scans skip an entry.
    Gap,
}

struct InMemory {
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    bug: EngineBug,
}

impl Engine for InMemory {
    fn name(&self) -> String {
        "memory".into()
    }
    fn configuration(&self) -> Value {
        Value::Null
    }
    fn put(&self, key: &[u8], value: &[u8], _: Log) -> Result<(), Stop> {
        self.map.lock().unwrap().insert(key.into(), value.into());
        Ok(())
    }
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)], _: Log) -> Result<(), Stop> {
        self.map.lock().unwrap().extend(entries.iter().cloned());
        Ok(())
    }
    fn delete(&self, key: &[u8], _: Log) -> Result<(), Stop> {
        self.map.lock().unwrap().remove(key);
        Ok(())
    }
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<bool, Stop> {
        let map = self.map.lock().unwrap();
        let found = match self.bug {
            EngineBug::Foreign => map.range(key.to_vec()..).nth(1).map(|e| e.1),
            EngineBug::Lost => None,
            _ => map.get(key),
        };
        if let Some(value) = found {
            show(value);
        }
        Ok(found.is_some())
    }
    fn scan(
        &self,
        key: &[u8],
        limit: u64,
        show: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, Stop> {
        let map = self.map.lock().unwrap();
        let gap = usize::from(self.bug == EngineBug::Gap);
        let mut seen = 0;
        for (key, value) in map.range(key.to_vec()..).skip(gap).take(limit as usize) {
            show(key, value);
            seen += 1;
        }
        Ok(seen)
    }
    fn flush(&self) -> Result<(), Stop> {
        Ok(())
    }
}

struct Bench {
    clock: Clock,
    engine: Arc<dyn Engine>,
    memory: Arc<InMemory>,
    data: Data,
}

impl Bench {
    fn new(bug: EngineBug) -> Bench {
        let memory = Arc::new(InMemory {
            map: Mutex::default(),
            bug,
        });
        Bench {
            clock: Clock::manual(ManualClock::new(0)),
            engine: memory.clone(),
            memory,
            data: Data::new(7, 100, 16, 84, 0.5),
        }
    }

    fn run(&self, groups: &[Group], time: Option<Duration>) -> Result<Vec<Driven>, Stop> {
        let driver = Driver {
            clock: &self.clock,
            engine: &self.engine,
            data: &self.data,
            seed: 1,
            added: &Arc::default(),
            progress: &Progress::silent(),
        };
        driver.run(groups, time)
    }

    fn fill(&self) {
        let group = group(2, 100, |w, n| w.put(w.data.shuffled(n), Log::Unsynced));
        let driven = self.run(&[group], None).ok().unwrap().remove(0);
        assert_eq!((driven.measured.ops, driven.tally.puts), (100, 100));
        assert_eq!(driven.tally.write_bytes, 100 * 100);
        assert_eq!(self.memory.map.lock().unwrap().len(), 100);
    }
}

fn group(
    threads: usize,
    ops: u64,
    op: impl Fn(&mut Worker, u64) -> Result<(), Stop> + Send + Sync + 'static,
) -> Group {
    Group {
        threads,
        ops,
        write_rate: 0,
        op: Arc::new(op),
    }
}

#[test]
fn the_run_ends_when_the_leading_threads_are_done() {
    let bench = Bench::new(EngineBug::None);
    bench.fill();
    let read = group(3, 1000, |w, n| w.get(n % 100, Presence::Certain));
    let write = group(1, u64::MAX, |w, n| w.put(n % 100, Log::Unsynced));
    let driven = bench.run(&[read, write], None).ok().unwrap();
    assert_eq!(driven[0].measured.ops, 1000);
    assert_eq!((driven[0].tally.gets, driven[0].tally.found), (1000, 1000));
    assert_eq!(driven[0].windows.iter().sum::<u64>(), 1000);
    assert_eq!(driven[0].measured.latency.count(), 1000);
    assert_eq!(driven[1].measured.ops, driven[1].tally.puts);
}

#[test]
fn threads_run_at_the_rate_limit() {
    let bench = Bench::new(EngineBug::None);
    // Each put has 100 bytes, the limit is 1000 bytes a second, and puts take no time: ten a
    // second.
    let mut write = group(1, u64::MAX, |w, n| w.put(n % 100, Log::Unsynced));
    write.write_rate = 1000;
    let driven = bench
        .run(&[write], Some(Duration::from_secs(20)))
        .ok()
        .unwrap();
    assert_eq!(driven[0].measured.ops, 200);
    assert_eq!(driven[0].whole_windows(), vec![10.0; 20]);
}

#[test]
fn every_wrong_answer_of_an_engine_is_reported() {
    let certain = Presence::Certain;
    for bug in [EngineBug::Foreign, EngineBug::Lost, EngineBug::Gap] {
        let bench = Bench::new(bug);
        bench.fill();
        let reads = [
            group(2, 500, move |w, n| w.get(n % 99, certain)),
            group(2, 500, move |w, n| w.multi_get(&[n % 99, 3])),
            group(2, 500, move |w, n| w.scan(n % 99, 200, certain)),
        ];
        for (i, read) in reads.into_iter().enumerate() {
            let ended = bench.run(&[read], None);
            let message = ended.err().map(|stop| stop.sentence);
            // Scans do not check values, and gets do not check order.
            let is_reported = (bug == EngineBug::Gap) == (i == 2);
            assert_eq!(message.is_some(), is_reported, "{message:?}");
            assert!(message.is_none_or(|t| t.contains("bug")));
        }
    }
    // A key exists that was never put.
    let bench = Bench::new(EngineBug::None);
    bench.fill();
    let put = group(1, 1, |w, _| w.put(150, Log::Unsynced));
    assert!(bench.run(&[put], None).is_ok());
    let read = group(1, 1, move |w, _| w.get(150, certain));
    assert!(bench.run(&[read], None).is_err());
}

#[test]
fn a_failure_of_one_thread_stops_all() {
    let bench = Bench::new(EngineBug::None);
    // Without the stop these threads would run for ever: neither time nor operations end them.
    let lead = group(2, u64::MAX, |_, n| match n {
        50 => Err(Stop::new("the fiftieth")),
        _ => Ok(()),
    });
    let beside = group(1, u64::MAX, |_, _| Ok(()));
    let failed = bench.run(&[lead, beside], None).err().unwrap();
    assert_eq!(failed.sentence, "the fiftieth");
}

#[test]
fn inserted_keys_are_all_different() {
    let bench = Bench::new(EngineBug::None);
    bench.fill();
    let add = group(3, 80, |w, _| w.insert(Log::Unsynced));
    assert!(bench.run(&[add], None).is_ok());
    assert_eq!(bench.memory.map.lock().unwrap().len(), 180);
}
