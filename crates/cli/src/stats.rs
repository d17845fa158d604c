//! `stats`: the shape and the costs of the tree, as tables for people and as JSON for scripts.

mod pages;

use crate::args;
use crate::failure::{Failure, Outcome};
use crate::output::{print, rows, table};
use crate::progress::{count, human_bytes};
use crate::store::{Access, open_all};
use basalt::env::{CacheStats, LedgerUse};
use basalt::fs::FsStats;
use basalt::log::LogEngineStats;
use basalt::{BlobStats, Db, ReadOnlyReason, Stats};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// All values of the report.
pub struct Report {
    pub dir: String,
    /// The location of the store, in the form for people.
    pub place: String,
    pub filesystem: String,
    pub engine: Stats,
    /// The logical logs; `None` for a store without any.
    pub logs: Option<LogEngineStats>,
    /// The number of leaves of each family in pages, by its name. A family whose index pages cannot
    /// be read is not in it.
    pub leaves: BTreeMap<String, u64>,
    pub cache: CacheStats,
    pub memory: LedgerUse,
    pub fs: FsStats,
}

/// Runs `basalt stats`.
pub fn stats(args: args::Stats) -> Outcome {
    let place = &args.store;
    let store = open_all(place, Access::Read)?;
    let env = store.db().env().clone();
    let leaves = leaves(store.db());
    let engines = store.stats();
    let report = Report {
        dir: place.directory(),
        place: place.to_string(),
        filesystem: env.fs().info().description,
        engine: engines.tables,
        logs: engines.logs,
        leaves,
        cache: env.cache().stats(),
        memory: env.ledger().usage(),
        fs: env.fs().stats(),
    };
    let prometheus = if args.prometheus {
        env.metrics().prometheus()
    } else {
        String::new()
    };
    store.close().map_err(|e| Failure::store(place, e))?;
    print(&if args.prometheus {
        prometheus
    } else if args.json {
        format!("{:#}\n", report.json())
    } else {
        report.tables()
    })?;
    Ok(0)
}

/// Returns the number of leaves of each family in pages.
fn leaves(db: &Db) -> BTreeMap<String, u64> {
    let families = db.families().into_iter();
    let count = |name: &String| {
        let pages = db.inspect_pages(&db.family(name)?).ok()?;
        pages.count_leaves().ok()
    };
    let counted = families.filter_map(|name| count(&name).map(|leaves| (name, leaves)));
    counted.collect()
}

/// Returns a quotient, or `None` if the divisor is 0.
fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| (a as f64 / b as f64 * 100.0).round() / 100.0)
}

impl Report {
    fn device_bytes_written(&self) -> u64 {
        let e = &self.engine;
        e.wal_bytes_written
            + e.flush_bytes_written
            + e.ingested_bytes
            + e.compaction_bytes_written
            + e.blobs.collected_bytes_written
            + e.pages().map(|p| p.bytes_written()).sum::<u64>()
    }

    fn page_bytes(&self) -> u64 {
        self.engine.pages().map(|p| p.extent_bytes()).sum()
    }

    fn table_bytes(&self) -> u64 {
        let levels = self.engine.families.iter().flat_map(|f| &f.levels);
        levels.map(|l| l.bytes).sum()
    }

    /// Returns the bytes on disk for each byte of the lowest levels, which have each key once, of
    /// the largest page of each leaf, and of reachable values in blob files. This is an upper bound
    /// of the cost of old versions, tombstones, garbage and logs.
    fn space_amp(&self) -> Option<f64> {
        let lowest = |f: &basalt::FamilyStats| {
            f.levels
                .iter()
                .rev()
                .find(|l| l.bytes > 0)
                .map_or(0, |l| l.bytes)
        };
        let live: u64 = self.engine.families.iter().map(lowest).sum();
        let (blobs, logs) = (&self.engine.blobs, self.engine.log_bytes);
        let pages: u64 = self.engine.pages().map(|p| p.least_bytes).sum();
        ratio(
            self.table_bytes() + self.page_bytes() + logs + blobs.bytes,
            live + pages + blobs.reachable_bytes(),
        )
    }

    /// Returns the number of sorted runs that a read of an absent key may search, without filters.
    fn sorted_runs(family: &basalt::FamilyStats) -> u64 {
        let below = family
            .levels
            .iter()
            .skip(1)
            .filter(|l| l.tables > 0)
            .count();
        family.levels.first().map_or(0, |l| l.tables) + below as u64
    }

    pub fn json(&self) -> Value {
        let e = &self.engine;
        let stalls: serde_json::Map<String, Value> = e
            .stall_us
            .iter()
            .map(|(cause, us)| ((*cause).to_string(), json!(us)))
            .collect();
        let held: serde_json::Map<String, Value> = e
            .stalls
            .iter()
            .map(|s| (s.cause.to_string(), json!(s.count)))
            .collect();
        let budgets: serde_json::Map<String, Value> = e
            .budgets
            .iter()
            .map(|b| {
                (
                    b.name.to_string(),
                    json!({"used": b.used, "limit": b.limit}),
                )
            })
            .collect();
        let causes = e.write_amp_by_cause().into_iter().flatten();
        let by_cause: serde_json::Map<String, Value> = causes
            .map(|(cause, amp)| (cause.to_string(), json!(rounded(amp))))
            .collect();
        json!({
            "dir": self.dir,
            "filesystem": self.filesystem,
            "families": self.families_json(),
            "table_files": e.table_files,
            "table_bytes": self.table_bytes(),
            "page_bytes": self.page_bytes(),
            "log_bytes": e.log_bytes,
            "blobs": blobs_json(e),
            "logs": self.logs.as_ref().map(logs_json),
            "passive": e.passive.as_ref().map(|p| json!({"persisted_transaction": p.global})),
            "read_only": e.read_only.as_ref().map(ReadOnlyReason::to_string),
            "snapshots": e.snapshots,
            "sealed_memtables": e.sealed_memtables,
            "memtable_bytes": e.memtable_bytes,
            "compaction_debt_bytes": e.compaction_debt,
            "amplification": {
                "space": self.space_amp(),
                "write_since_open": ratio(self.device_bytes_written(), e.user_bytes_written),
                "write_since_open_by_cause": by_cause,
            },
            "since_open": {
                "user_bytes_written": e.user_bytes_written,
                "wal_bytes_written": e.wal_bytes_written,
                "flush_bytes_written": e.flush_bytes_written,
                "ingested_bytes": e.ingested_bytes,
                "ingestions": e.ingestions,
                "compaction_bytes_read": e.compaction_bytes_read,
                "compaction_bytes_written": e.compaction_bytes_written,
                "commits": e.commits,
                "commit_groups": e.commit_groups,
                "conflicts": e.conflicts,
                "log_syncs": e.log_syncs,
                "idle_releases": e.idle_releases,
                "stall_us": stalls,
                "stalls": held,
                "background_io_wait_us": {"high": e.io_wait_us[0], "low": e.io_wait_us[1]},
                "events_lost": e.events_lost,
                "listeners_lost": e.listeners_lost,
                "device_bytes_written": self.fs.bytes_written,
                "device_bytes_prewritten": self.fs.bytes_prewritten,
                "device_bytes_read": self.fs.bytes_read,
                "device_reads": self.fs.reads,
                "device_writes": self.fs.writes,
                "device_syncs": self.fs.syncs,
            },
            "budgets": budgets,
            "cache": {
                "capacity_bytes": self.cache.capacity, "used_bytes": self.cache.used,
                "used_high_priority_bytes": self.cache.used_high, "hits": self.cache.hits, "misses": self.cache.misses,
                "inserts": self.cache.inserts, "evictions": self.cache.evictions,
            },
            "memory": {
                "budget_bytes": self.memory.budget, "total_bytes": self.memory.total(),
                "memtable_bytes": self.memory.memtable, "cache_bytes": self.memory.cache,
                "pinned_bytes": self.memory.pinned, "buffer_bytes": self.memory.buffer,
                "client_bytes": self.memory.client, "index_bytes": self.memory.index,
            },
        })
    }

    fn families_json(&self) -> Vec<Value> {
        let one = |f: &basalt::FamilyStats| {
            let leaves = self.leaves.get(&f.name).copied();
            let pages = (f.pages.as_ref()).map(|of_family| pages::json(f, of_family, leaves));
            json!({
                "name": f.name, "sorted_runs": Report::sorted_runs(f), "levels": levels_json(f),
                "pages": pages,
            })
        };
        self.engine.families.iter().map(one).collect()
    }

    pub fn tables(&self) -> String {
        let e = &self.engine;
        let mut out = format!("{} ({})\n", self.place, self.filesystem);
        if let Some(why) = &e.blobs.error {
            let _ = writeln!(
                out,
                "Garbage collection of blob files fails (it is retried, writes go on): {why}"
            );
        }
        // Every store is read-only under this command, so that reason is not printed.
        match &e.read_only {
            None | Some(ReadOnlyReason::OpenedForReading) => {}
            Some(why) => {
                let _ = writeln!(out, "WRITES FAIL: {why}");
            }
        }
        for f in &e.families {
            out.push_str(&match &f.pages {
                Some(of_family) => pages::section(f, of_family, self.leaves.get(&f.name).copied()),
                None => levels(f),
            });
        }
        let number = |r: Option<f64>| r.map_or_else(|| "-".to_string(), |r| format!("{r:.2}"));
        out.push_str(&section(
            "amplification",
            &[
                ("space, at most", number(self.space_amp())),
                (
                    "write, since open",
                    number(ratio(self.device_bytes_written(), e.user_bytes_written)),
                ),
                ("write, by cause", by_cause(e)),
                ("compaction debt", human_bytes(e.compaction_debt)),
            ],
        ));
        out.push_str(&section(
            "disk",
            &[
                (
                    "tables",
                    format!(
                        "{} in {} tables",
                        human_bytes(self.table_bytes()),
                        e.table_files
                    ),
                ),
                ("pages", human_bytes(self.page_bytes())),
                ("logs, recycled space included", human_bytes(e.log_bytes)),
            ],
        ));
        out.push_str(&blob_files(e));
        out.push_str(&self.logs.as_ref().map_or(String::new(), logs));
        out.push_str(&e.passive.as_ref().map_or(String::new(), passive));
        out.push_str(&self.since_open());
        out.push_str(&self.cache_and_memory());
        out.push_str(&garbage_by_file(&e.blobs));
        out.push_str(&budgets(e));
        out
    }

    fn since_open(&self) -> String {
        let e = &self.engine;
        section(
            "since open",
            &[
                ("user bytes written", human_bytes(e.user_bytes_written)),
                ("log written", human_bytes(e.wal_bytes_written)),
                ("flushes wrote", human_bytes(e.flush_bytes_written)),
                (
                    "prepared tables added / times",
                    format!("{} / {}", human_bytes(e.ingested_bytes), e.ingestions),
                ),
                (
                    "compactions read / wrote",
                    format!(
                        "{} / {}",
                        human_bytes(e.compaction_bytes_read),
                        human_bytes(e.compaction_bytes_written)
                    ),
                ),
                (
                    "commits / groups / syncs",
                    format!("{} / {} / {}", e.commits, e.commit_groups, e.log_syncs),
                ),
                ("conflicts of preconditions", e.conflicts.to_string()),
                (
                    "device read",
                    format!(
                        "{} in {} reads",
                        human_bytes(self.fs.bytes_read),
                        self.fs.reads
                    ),
                ),
            ],
        )
    }

    fn cache_and_memory(&self) -> String {
        let lookups = self.cache.hits + self.cache.misses;
        let cache = section(
            "cache",
            &[
                (
                    "used",
                    format!(
                        "{} of {}",
                        human_bytes(self.cache.used),
                        human_bytes(self.cache.capacity)
                    ),
                ),
                ("index and filter part", human_bytes(self.cache.used_high)),
                ("hits", format!("{} of {lookups}", self.cache.hits)),
            ],
        );
        let memory = section(
            "memory",
            &[
                (
                    "all",
                    format!(
                        "{} of {}",
                        human_bytes(self.memory.total()),
                        human_bytes(self.memory.budget)
                    ),
                ),
                (
                    "memtables",
                    format!(
                        "{}, {} sealed",
                        human_bytes(self.memory.memtable),
                        self.engine.sealed_memtables
                    ),
                ),
                ("buffers", human_bytes(self.memory.buffer)),
                (
                    "held by readers",
                    format!(
                        "{}, {} snapshots",
                        human_bytes(self.memory.pinned),
                        self.engine.snapshots
                    ),
                ),
            ],
        );
        cache + &memory
    }
}

/// Returns what a passive store has of its owner's log.
fn passive(p: &basalt::PassiveStats) -> String {
    let rows = [("all families have transactions up to", p.global.to_string())];
    section("passive store, whose owner has the log", &rows)
}

/// Returns the levels of a family, with the bytes written into each since the store was opened.
fn levels(f: &basalt::FamilyStats) -> String {
    let head = format!(
        "\nfamily {}, {}\n",
        f.name,
        count(Report::sorted_runs(f), "sorted run", "sorted runs")
    );
    let mut rows = vec![
        [
            "level",
            "tables",
            "size",
            "target",
            "score",
            "entries",
            "deletes",
            "range deletes",
        ]
        .map(String::from),
    ];
    let mut sum = basalt::LevelStats::default();
    for (n, l) in f.levels.iter().enumerate() {
        sum.tables += l.tables;
        sum.bytes += l.bytes;
        sum.entries += l.entries;
        sum.deletes += l.deletes;
        sum.range_deletes += l.range_deletes;
        if l.tables > 0 || n == 0 {
            let target = if n == 0 {
                "-".into()
            } else {
                human_bytes(l.target_bytes)
            };
            rows.push([
                format!("L{n}"),
                l.tables.to_string(),
                human_bytes(l.bytes),
                target,
                format!("{:.2}", l.score),
                l.entries.to_string(),
                l.deletes.to_string(),
                l.range_deletes.to_string(),
            ]);
        }
    }
    rows.push([
        "all".into(),
        sum.tables.to_string(),
        human_bytes(sum.bytes),
        String::new(),
        String::new(),
        sum.entries.to_string(),
        sum.deletes.to_string(),
        sum.range_deletes.to_string(),
    ]);
    head + &table(&rows) + &level_io(f)
}

/// Returns a title, and a line for each name and value.
fn section(title: &str, lines: &[(&str, String)]) -> String {
    format!("\n{title}\n{}", rows(lines))
}

fn blob_files(e: &Stats) -> String {
    section(
        "blob files",
        &[
            (
                "files",
                format!("{}, {}", e.blobs.files, human_bytes(e.blobs.bytes)),
            ),
            (
                "live / garbage",
                format!(
                    "{} in {} / {}",
                    human_bytes(e.blobs.live_bytes),
                    count(e.blobs.live_records, "value", "values"),
                    human_bytes(e.blobs.garbage_bytes())
                ),
            ),
            (
                "space amplification",
                format!(
                    "{:.2}, at most {:.2}",
                    e.blobs.space_amp(),
                    e.blobs.max_space_amp
                ),
            ),
            ("room below the bound", room(&e.blobs)),
            ("overwritten, not merged yet", hidden(&e.blobs)),
            ("cost of the bound, last minute", bound_costs(&e.blobs)),
            ("names of collected files", e.blobs.names.to_string()),
            (
                "garbage collection read/wrote",
                format!(
                    "{} / {}",
                    human_bytes(e.blobs.collected_bytes_read),
                    human_bytes(e.blobs.collected_bytes_written)
                ),
            ),
            (
                "values relocated into key order",
                human_bytes(e.blobs.relocated_bytes),
            ),
            (
                "compressed from / to",
                format!(
                    "{} / {}",
                    human_bytes(e.blob_compression.before),
                    human_bytes(e.blob_compression.after)
                ),
            ),
        ],
    )
}

/// Returns the budgets, and how long writers and background I/O waited.
fn budgets(e: &Stats) -> String {
    let mut out = String::from("\nbudgets\n");
    for b in &e.budgets {
        let people = |n: u64| match b.name.contains("bytes") {
            true => human_bytes(n),
            false => n.to_string(),
        };
        let limit = match b.limit {
            0 => "no limit".to_string(),
            n => format!("of {}", people(n)),
        };
        let _ = writeln!(out, "  {:<30} {} {limit}", b.name, people(b.used));
    }
    let seconds = |us: u64| us as f64 / 1e6;
    let _ = writeln!(
        out,
        "  {:<30} {:.3} s of flushes, {:.3} s of the rest",
        "waited for the I/O limit",
        seconds(e.io_wait_us[0]),
        seconds(e.io_wait_us[1])
    );
    let _ = writeln!(out, "\nwriters slowed or held, since open");
    for s in &e.stalls {
        let times = count(s.count, "time", "times");
        let _ = writeln!(out, "  {:<30} {times}, {:.3} s", s.cause, seconds(s.us));
    }
    out
}

fn logs_json(logs: &LogEngineStats) -> Value {
    json!({
        "logs": logs.logs, "records": logs.records, "live_bytes": logs.live_bytes,
        "data_files": logs.data_files, "meta_files": logs.meta_files,
        "space_amp": rounded(logs.space_amp()), "index_bytes": logs.index_bytes,
        "index_pages": logs.index_pages,
    })
}

/// Returns the section of logical logs.
fn logs(logs: &LogEngineStats) -> String {
    section(
        "logical logs",
        &[
            (
                "logs / records",
                format!("{} / {}", logs.logs, logs.records),
            ),
            (
                "records",
                format!(
                    "{} in {}",
                    human_bytes(logs.live_bytes),
                    count(logs.data_files, "file", "files")
                ),
            ),
            (
                "space for each live byte",
                format!("{:.2}", logs.space_amp()),
            ),
            (
                "indexes",
                format!(
                    "{} in memory, {} pages",
                    human_bytes(logs.index_bytes),
                    logs.index_pages
                ),
            ),
        ],
    )
}

fn levels_json(f: &basalt::FamilyStats) -> Vec<Value> {
    let levels = f.levels.iter().enumerate().map(|(n, l)| {
        json!({
            "level": n, "tables": l.tables, "bytes": l.bytes, "target_bytes": l.target_bytes,
            "entries": l.entries, "deletes": l.deletes, "range_deletes": l.range_deletes, "score": rounded(l.score),
            "compacting": l.compacting,
            "since_open": {
                "bytes_entered": l.bytes_entered, "bytes_read": l.bytes_read,
                "bytes_written": l.bytes_written, "bytes_moved": l.bytes_moved,
                "compactions": l.compactions, "write_amp": l.write_amp().map(rounded),
            },
        })
    });
    levels.collect()
}

fn blobs_json(e: &Stats) -> Value {
    let by_garbage: Vec<Value> = (e.blobs.by_garbage.iter().enumerate())
        .map(|(tenth, s)| {
            json!({
                "from_percent": tenth * 10, "files": s.files, "bytes": s.bytes, "garbage_bytes": s.garbage_bytes,
            })
        })
        .collect();
    json!({
        "files": e.blobs.files, "bytes": e.blobs.bytes, "live_records": e.blobs.live_records,
        "live_bytes": e.blobs.live_bytes, "garbage_bytes": e.blobs.garbage_bytes(), "names": e.blobs.names,
        "space_amp": rounded(e.blobs.space_amp()), "max_space_amp": rounded(e.blobs.max_space_amp),
        "hidden_bytes": e.blobs.hidden_bytes,
        "hidden_is_guessed": e.blobs.hidden_is_guessed, "space_debt": e.blobs.space_debt, "space_slack": e.blobs.space_slack,
        "pressure": rounded(e.blobs.pressure), "collecting": e.blobs.collecting,
        "names_made": e.blobs.names_made, "names_forgotten": e.blobs.names_forgotten,
        "recent": {
            "seconds": rounded(e.blobs.recent_seconds), "bytes_written": e.blobs.recent_bytes_written,
            "bytes_added": e.blobs.recent_bytes_added,
            "collection_bytes_read": e.blobs.recent_collection_bytes_read,
            "collection_bytes_written": e.blobs.recent_collection_bytes_written,
            "collections_write_amp": rounded(e.blobs.collections_write_amp()),
        },
        "headroom_bytes": e.blobs.headroom_bytes(), "oldest_made_ms": e.blobs.oldest_made_ms,
        "by_garbage": by_garbage,
        "since_open": {
            "collections": e.blobs.collections, "bytes_read": e.blobs.collected_bytes_read,
            "bytes_written": e.blobs.collected_bytes_written,
            "relocated_bytes": e.blobs.relocated_bytes,
        },
        "reads": {
            "hits": e.blob_reads.hits, "reads": e.blob_reads.reads, "bytes": e.blob_reads.bytes,
            "ahead": e.blob_reads.ahead, "ahead_unused": e.blob_reads.ahead_unused,
        },
        "compression_since_open": {
            "bytes_before": e.blob_compression.before, "bytes_after": e.blob_compression.after,
        },
        "error": e.blobs.error,
    })
}

/// Returns write amplification by cause.
fn by_cause(e: &Stats) -> String {
    match e.write_amp_by_cause() {
        None => "-".into(),
        Some(causes) => {
            let causes = causes.iter();
            let causes: Vec<String> = causes
                .map(|(cause, amp)| format!("{cause} {amp:.2}"))
                .collect();
            causes.join(", ")
        }
    }
}

/// Returns the cost of the bound on space.
fn bound_costs(blobs: &BlobStats) -> String {
    format!(
        "{:.2} bytes written to blob files for each byte of new values, writers slowed by {:.0} %",
        blobs.collections_write_amp(),
        blobs.pressure * 100.0
    )
}

/// Returns the estimate of overwritten values. A store that was just opened has no measurement.
fn hidden(blobs: &BlobStats) -> String {
    let bytes = human_bytes(blobs.hidden_bytes);
    match blobs.hidden_is_guessed {
        true => format!("perhaps {bytes}, estimated from overlapping keys"),
        false => format!("about {bytes}"),
    }
}

/// Returns the distance of blob files from their bound.
fn room(blobs: &BlobStats) -> String {
    match blobs.headroom_bytes() {
        n if n < 0 => format!("none, {} beyond it", human_bytes(n.unsigned_abs())),
        n => human_bytes(n as u64),
    }
}

/// Returns blob files by their part of garbage, with a bar for their bytes, or nothing without
/// files.
pub fn garbage_by_file(blobs: &BlobStats) -> String {
    const BAR: u64 = 30;
    let most = blobs.by_garbage.iter().map(|s| s.bytes).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let mut out = String::from("\ngarbage in blob files\n");
    for (tenth, s) in blobs.by_garbage.iter().enumerate() {
        let bar = "#".repeat((s.bytes * BAR).div_ceil(most) as usize);
        let files = count(s.files, "file", "files");
        let range = format!("{:>2} to {:>3} %", tenth * 10, tenth * 10 + 10);
        let size = if s.files == 0 {
            String::new()
        } else {
            human_bytes(s.bytes)
        };
        let line = format!("  {range} {files:>10} {size:>12}  {bar}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn rounded(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// Returns the bytes written into each level since the store was opened, or nothing if there were
/// none.
fn level_io(f: &basalt::FamilyStats) -> String {
    let heads = [
        "level",
        "entered",
        "read",
        "written",
        "moved",
        "merges",
        "write amp",
    ];
    let mut rows = vec![heads.map(String::from)];
    for (n, l) in f.levels.iter().enumerate() {
        if l.bytes_written + l.bytes_moved > 0 {
            rows.push([
                format!("L{n}"),
                human_bytes(l.bytes_entered),
                human_bytes(l.bytes_read),
                human_bytes(l.bytes_written),
                human_bytes(l.bytes_moved),
                l.compactions.to_string(),
                l.write_amp()
                    .map_or_else(|| "-".to_string(), |w| format!("{w:.2}")),
            ]);
        }
    }
    match rows.len() {
        1 => String::new(),
        _ => format!("  since open, into each level\n{}", table(&rows)),
    }
}

#[cfg(test)]
mod tests;
