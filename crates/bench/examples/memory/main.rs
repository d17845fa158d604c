//! Memory of many stores in one process: what the ledger reserves, what is allocated, and what the
//! process holds.
//!
//! ```sh
//! cargo run --release -p basalt-bench --example memory -- DIR [STORES] [SECONDS] [unbounded]
//! cargo run --release -p basalt-bench --example memory -- DIR logs [SECONDS]
//! ```
//! The directory must be new. Opens the stores on one `Env` with the default budget, reads, writes
//! and deletes values of up to 70 KB for a while by two threads, closes all, and prints a line for
//! each five seconds and each phase. `unbounded` leaves the allocator as it comes. Decision 0031
//! has the figures. `logs` instead does the work of one store with many logs.

mod counting;
mod logs;

use basalt::env::{Random, process_memory::resident};
use basalt::fs::{HostFs, HostOptions};
use basalt::{Db, Env, Options, ReadOptions, Result, WriteOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

fn line(env: Option<&Env>, what: &str) {
    let mb = |n: u64| n as f64 / 1e6;
    let slab = basalt::fs::slab_usage();
    let live = counting::live() + slab.used as u64;
    let rss = resident().unwrap_or(0);
    if let Some(env) = env {
        let u = env.ledger().usage();
        println!(
            "{what:>24}: ledger {:7.1} (mem {:.1} cache {:.1} pin {:.1} buf {:.1} index {:.1}) of {:.1}; live {:7.1}; resident {:7.1}; live-ledger {:7.1}; resident-live {:7.1} MB",
            mb(u.total()),
            mb(u.memtable),
            mb(u.cache),
            mb(u.pinned),
            mb(u.buffer),
            mb(u.index),
            mb(u.budget),
            mb(live),
            mb(rss),
            mb(live) - mb(u.total()),
            mb(rss) - mb(live)
        );
        println!(
            "{:>24}  slab: used {:.1}; dirty {:.1}; between {:.1}; mapped {:.1} MB",
            "",
            mb(slab.used as u64),
            mb(slab.dirty as u64),
            mb(slab.between as u64),
            mb(slab.mapped as u64)
        );
    } else {
        println!(
            "{what:>24}: live {:7.1}; resident {:7.1} MB",
            mb(live),
            mb(rss)
        );
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let Some(dir) = args.get(1).map(PathBuf::from) else {
        eprintln!(
            "usage: memory DIR [STORES] [SECONDS] [unbounded], or memory DIR logs [SECONDS]; DIR is a new directory on the disk to use"
        );
        std::process::exit(2);
    };
    if args.get(2).is_some_and(|what| what == "logs") {
        let seconds = args.get(3).map_or(30, |s| s.parse().expect("a number"));
        basalt::env::process_memory::keep_little();
        return logs::run(&dir, seconds);
    }
    let stores: usize = args.get(2).map_or(300, |s| s.parse().expect("a number"));
    let seconds: u64 = args.get(3).map_or(30, |s| s.parse().expect("a number"));
    let bounded = args.get(4).is_none_or(|s| s != "unbounded");
    if bounded {
        basalt::env::process_memory::keep_little();
    }
    line(None, "begin");
    {
        let fs = HostFs::new(HostOptions::new(&dir))?;
        let env = Env::builder(fs).trims_memory(bounded).build();
        line(Some(&env), "env");
        let begun = env.clock().now();
        let dbs: Vec<Db> = (0..stores)
            .map(|n| Db::open(&env, format!("s{n}"), Options::default()))
            .collect::<Result<_>>()?;
        println!(
            "opening: {:.2} ms a store",
            (env.clock().now() - begun).as_secs_f64() * 1e3 / stores as f64
        );
        println!("{:?}", env.fs().stats());
        line(Some(&env), "opened");
        let stop = AtomicBool::new(false);
        basalt::env::thread::scope(|scope| {
            for t in 0..2u64 {
                let (dbs, stop) = (&dbs, &stop);
                scope.spawn(move || {
                    let r = Random::from_seed(t + 1);
                    let junk: Vec<u8> = (0..70_000).map(|_| r.next_u64() as u8).collect();
                    let mut ops = 0u64;
                    while !stop.load(Relaxed) {
                        let db = &dbs[(r.next_u64() % dbs.len() as u64) as usize];
                        let f = db.default_family();
                        let key = format!("key{:08}", r.next_u64() % 2000);
                        match r.next_u64() % 10 {
                            0..=3 => {
                                let len = (r.next_u64() % 70_000) as usize >> (r.next_u64() % 8);
                                db.put(&f, key.as_bytes(), &junk[..len], &WriteOptions::UNSYNCED)
                                    .expect("put");
                            }
                            4 => {
                                db.delete(&f, key.as_bytes(), &WriteOptions::UNSYNCED)
                                    .expect("delete");
                            }
                            _ => {
                                db.get(&f, key.as_bytes(), &ReadOptions::default())
                                    .expect("get");
                            }
                        }
                        ops += 1;
                    }
                    println!("thread {t}: {ops} ops");
                });
            }
            for s in 0..seconds {
                env.clock().sleep(Duration::from_secs(1));
                if s % 5 == 4 {
                    line(Some(&env), &format!("{} s", s + 1));
                }
            }
            stop.store(true, Relaxed);
        });
        line(Some(&env), "worked");
        counting::report();
        env.clock().sleep(Duration::from_secs(3));
        line(Some(&env), "rested");
        let begun = env.clock().now();
        for db in dbs {
            db.close()?;
        }
        println!(
            "closing: {:.2} ms a store",
            (env.clock().now() - begun).as_secs_f64() * 1e3 / stores as f64
        );
        println!("{:?}", env.fs().stats());
        line(Some(&env), "closed");
        env.clock().sleep(Duration::from_secs(3));
        line(Some(&env), "closed, 3 s");
    }
    line(None, "env gone");
    line(None, "end");
    Ok(())
}
