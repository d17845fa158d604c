//! INFO: state for operators and their tools, in Redis's sections and one of the engine.

use super::client::REDIS_VERSION;
use super::{CommandResult, Context, Count, Executor, Outcome};
use crate::layout::KEYS_FAMILY;
use crate::resp::request::Request;
use basalt::{PageTreeStats, Stats};
use std::fmt::Write as _;

type Section = (&'static str, fn(&mut Executor, &mut String));

const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", cpu),
    ("Errorstats", errors),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
    ("Basalt", engine),
];

pub(crate) fn info(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let wanted: Vec<String> = (1..r.len()).map(|i| super::word(r, i)).collect();
    let all = wanted.is_empty()
        || wanted
            .iter()
            .any(|w| matches!(w.as_str(), "ALL" | "EVERYTHING" | "DEFAULT"));
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if all || wanted.contains(&name.to_ascii_uppercase()) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {name}\r\n");
            write(c.exec, &mut text);
        }
    }
    c.reply.verbatim(&text);
    Ok(Outcome::Replied)
}

macro_rules! line {
    ($out:expr, $($part:tt)*) => {{
        let _ = write!($out, $($part)*);
        $out.push_str("\r\n");
    }};
}

fn server(e: &mut Executor, out: &mut String) {
    let uptime = e.env.clock().now().saturating_sub(e.started).as_secs();
    line!(out, "redis_version:{REDIS_VERSION}");
    line!(out, "redis_mode:standalone");
    line!(out, "basalt_version:{}", env!("CARGO_PKG_VERSION"));
    let families = e.keys.store().stats().families;
    let of_keys = families.iter().find(|f| f.name == KEYS_FAMILY);
    let engine = match of_keys.is_some_and(|f| f.pages.is_some()) {
        true => "tree",
        false => "lsm",
    };
    line!(out, "basalt_engine:{engine}");
    line!(
        out,
        "os:{} {}",
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    line!(out, "arch_bits:{}", usize::BITS);
    line!(out, "multiplexing_api:epoll");
    line!(out, "process_id:{}", std::process::id());
    line!(out, "tcp_port:{}", e.listening.port());
    line!(out, "server_time_usec:{}", e.env.clock().wall_ms() * 1000);
    line!(out, "uptime_in_seconds:{uptime}");
    line!(out, "uptime_in_days:{}", uptime / 86_400);
    line!(out, "config_file:");
}

fn clients(e: &mut Executor, out: &mut String) {
    let largest =
        |f: fn(&super::Session) -> usize| e.sessions.iter().flatten().map(f).max().unwrap_or(0);
    line!(out, "connected_clients:{}", e.connected());
    line!(out, "maxclients:{}", e.options.max_clients);
    line!(
        out,
        "client_recent_max_input_buffer:{}",
        largest(|s| s.input_bytes)
    );
    line!(
        out,
        "client_recent_max_output_buffer:{}",
        largest(|s| s.reply_bytes)
    );
    let blocked = e.sessions.iter().flatten().filter(|s| s.blocked).count();
    line!(out, "blocked_clients:{blocked}");
}

fn memory(e: &mut Executor, out: &mut String) {
    let used = e.env.ledger().usage();
    line!(out, "used_memory:{}", used.total());
    line!(
        out,
        "used_memory_human:{:.2}M",
        used.total() as f64 / f64::from(1 << 20)
    );
    if let Some(rss) = proc_number("/proc/self/statm", 1) {
        line!(out, "used_memory_rss:{}", rss * 4096);
    }
    line!(out, "maxmemory:0");
    line!(out, "maxmemory_policy:noeviction");
    line!(out, "mem_clients_normal:{}", e.client_bytes);
    line!(out, "mem_clients_peak:{}", e.client_bytes_peak);
    line!(out, "mem_clients_gone:{}", e.gone_client_bytes);
    line!(out, "mem_pending_writes:{}", e.keys.pending_bytes());
    line!(
        out,
        "mem_pending_writes_peak:{}",
        e.keys.pending_bytes_peak()
    );
    let (loaded, stream_bytes, _) = e.keys.stream_stats();
    line!(out, "mem_streams:{stream_bytes}");
    line!(out, "streams_loaded:{loaded}");
    let (_, dropped) = e.keys.stream_budget();
    line!(out, "stream_windows_dropped:{dropped}");
    let (pinned, _) = e.keys.stream_pins();
    line!(out, "streams_pinned:{pinned}");
    let live = e.keys.live_stream_stats();
    line!(out, "mem_stream_keys:{}", live.bytes);
    line!(out, "mem_memtables:{}", used.memtable);
    line!(out, "mem_block_cache:{}", used.cache);
    line!(out, "mem_pinned:{}", used.pinned);
    line!(out, "mem_buffers:{}", used.buffer);
    line!(out, "mem_budget:{}", used.budget);
}

fn persistence(e: &mut Executor, out: &mut String) {
    let stats = e.keys.store().stats();
    line!(out, "loading:0");
    line!(out, "rdb_bgsave_in_progress:0");
    line!(out, "rdb_last_bgsave_status:ok");
    line!(out, "aof_enabled:1");
    line!(out, "aof_rewrite_in_progress:0");
    line!(
        out,
        "aof_last_write_status:{}",
        if stats.read_only.is_some() {
            "err"
        } else {
            "ok"
        }
    );
    line!(out, "sync_policy:{}", e.sync.name());
    line!(out, "log_bytes:{}", stats.log_bytes);
    line!(out, "log_syncs:{}", stats.log_syncs);
}

fn stats(e: &mut Executor, out: &mut String) {
    let now = e.env.clock().now();
    let (commands, since) = e.sampled;
    let seconds = now.saturating_sub(since).as_secs_f64().max(0.001);
    let rate = e.counters.commands.saturating_sub(commands) as f64 / seconds;
    e.sampled = (e.counters.commands, now);
    let c = &e.counters;
    line!(out, "total_connections_received:{}", c.connections);
    line!(out, "total_commands_processed:{}", c.commands);
    line!(out, "instantaneous_ops_per_sec:{rate:.0}");
    line!(out, "total_net_input_bytes:{}", c.input_bytes);
    line!(out, "total_net_output_bytes:{}", c.output_bytes);
    line!(out, "rejected_connections:{}", c.rejected);
    line!(out, "evicted_clients:{}", c.evicted_clients);
    line!(out, "timed_out_clients:{}", c.idle_clients);
    line!(out, "keyspace_hits:{}", c.hits);
    line!(out, "keyspace_misses:{}", c.misses);
    line!(out, "total_error_replies:{}", c.errors);
    line!(out, "epochs:{}", c.epochs);
    line!(out, "epochs_in_flight:{}", e.keys.in_flight());
    line!(out, "epochs_failed:{}", c.epoch_failures);
    line!(out, "scan_cursors_forgotten:{}", c.cursors_forgotten);
    line!(out, "fetched_requests:{}", c.fetches);
    line!(out, "stream_entries_added:{}", e.keys.stream_stats().2);
    let (_, waiting) = e.keys.stream_pins();
    line!(out, "stream_requests_waiting:{waiting}");
    let live = e.keys.live_stream_stats();
    line!(out, "streams:{}", live.streams);
    line!(out, "streams_dropped:{}", live.dropped);
    line!(out, "streams_removed:{}", live.removed);
    line!(out, "streams_undecodable:{}", live.undecodable);
    line!(out, "turn_names_peak:{}", c.turn_names_peak);
    line!(out, "turn_store_reads_peak:{}", c.turn_reads_peak);
}

fn replication(_: &mut Executor, out: &mut String) {
    line!(out, "role:master");
    line!(out, "connected_slaves:0");
}

fn cpu(_: &mut Executor, out: &mut String) {
    // Fields 14 and 15 of the line, counted behind the command's name in parentheses.
    let Some(text) = proc_text("/proc/self/stat") else {
        return;
    };
    let Some((_, fields)) = text.rsplit_once(") ") else {
        return;
    };
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |n: usize| {
        let field = fields.split(' ').nth(n).and_then(|f| f.parse::<f64>().ok());
        field.unwrap_or(0.0) / ticks
    };
    line!(out, "used_cpu_sys:{:.6}", seconds(12));
    line!(out, "used_cpu_user:{:.6}", seconds(11));
}

fn errors(e: &mut Executor, out: &mut String) {
    for (code, count) in &e.counters.errors_by_code {
        line!(out, "errorstat_{code}:count={count}");
    }
}

fn cluster(_: &mut Executor, out: &mut String) {
    line!(out, "cluster_enabled:0");
}

fn keyspace(e: &mut Executor, out: &mut String) {
    // A count needs a walk over all keys, as DBSIZE does. This is the last count, with its time.
    if let Some(Count { keys, expires, .. }) = e.count
        && keys > 0
    {
        line!(out, "db0:keys={keys},expires={expires},avg_ttl=0");
    }
}

fn engine(e: &mut Executor, out: &mut String) {
    let s = e.keys.store().stats();
    if let Some(count) = e.count {
        let age = e.env.clock().wall_ms().saturating_sub(count.counted_at_ms);
        line!(out, "keys_counted_ms_ago:{age}");
    }
    let reason = (s.read_only.as_ref()).map_or_else(String::new, |reason| reason.to_string());
    line!(out, "read_only:{}", reason.replace(['\r', '\n'], " "));
    line!(out, "user_bytes_written:{}", s.user_bytes_written);
    line!(out, "wal_bytes_written:{}", s.wal_bytes_written);
    line!(out, "flush_bytes_written:{}", s.flush_bytes_written);
    line!(out, "ingested_bytes:{}", s.ingested_bytes);
    line!(out, "compaction_bytes_read:{}", s.compaction_bytes_read);
    line!(
        out,
        "compaction_bytes_written:{}",
        s.compaction_bytes_written
    );
    line!(out, "compaction_debt:{}", s.compaction_debt);
    line!(out, "commit_groups:{}", s.commit_groups);
    line!(out, "commits:{}", s.commits);
    line!(out, "conflicts:{}", s.conflicts);
    line!(out, "log_syncs:{}", s.log_syncs);
    line!(out, "idle_releases:{}", s.idle_releases);
    line!(out, "memtable_bytes:{}", s.memtable_bytes);
    line!(out, "sealed_memtables:{}", s.sealed_memtables);
    line!(out, "background_threads:{}", e.env.jobs().parallelism());
    line!(
        out,
        "background_io_limit_bytes_per_s:{}",
        e.env.io_limit().rate()
    );
    line!(out, "background_io_bytes:{}", e.env.io_limit().passed());
    line!(out, "cache_budget:{}", e.env.cache().stats().capacity);
    line!(
        out,
        "write_buffer_bytes:{}",
        e.options.engine.write_buffer_bytes
    );
    line!(out, "open_table_files:{}", e.env.open_files().count());
    line!(out, "open_table_files_limit:{}", e.env.open_files().limit());
    line!(out, "snapshots:{}", s.snapshots);
    line!(out, "table_files:{}", s.table_files);
    blobs(e, &s, out);
    logical_logs(e, out);
    for (cause, amp) in s.write_amp_by_cause().into_iter().flatten() {
        line!(out, "write_amp_{cause}:{amp:.2}");
    }
    line!(out, "blob_collections:{}", s.blobs.collections);
    line!(
        out,
        "blob_collection_error:{}",
        s.blobs.error.as_deref().unwrap_or("")
    );
    line!(
        out,
        "blob_collection_bytes_read:{}",
        s.blobs.collected_bytes_read
    );
    line!(
        out,
        "blob_collection_bytes_written:{}",
        s.blobs.collected_bytes_written
    );
    line!(out, "blob_relocated_bytes:{}", s.blobs.relocated_bytes);
    for stall in &s.stalls {
        line!(out, "stall_us_{}:{}", stall.cause, stall.us);
        line!(out, "stalls_{}:{}", stall.cause, stall.count);
    }
    for budget in s.budgets.iter().chain(&e.budgets(e.connected())) {
        line!(
            out,
            "budget_{}:used={},limit={}",
            budget.name,
            budget.used,
            budget.limit
        );
    }
    line!(
        out,
        "background_io_wait_us:high={},low={}",
        s.io_wait_us[0],
        s.io_wait_us[1]
    );
    line!(out, "compactions_running:{}", s.compactions);
    levels(&s, out);
}

/// Adds the content and the cost of blob files.
fn blobs(e: &Executor, s: &Stats, out: &mut String) {
    line!(out, "blob_files:{}", s.blobs.files);
    line!(out, "blob_bytes:{}", s.blobs.bytes);
    line!(out, "blob_live_bytes:{}", s.blobs.live_bytes);
    line!(out, "blob_garbage_bytes:{}", s.blobs.garbage_bytes());
    line!(out, "blob_names:{}", s.blobs.names);
    line!(out, "blob_space_amp:{:.2}", s.blobs.space_amp());
    line!(out, "blob_max_space_amp:{:.2}", s.blobs.max_space_amp);
    line!(out, "blob_headroom_bytes:{}", s.blobs.headroom_bytes());
    line!(out, "blob_hidden_bytes:{}", s.blobs.hidden_bytes);
    line!(out, "space_debt:{}", s.blobs.space_debt);
    line!(out, "space_pressure:{:.2}", s.blobs.pressure);
    line!(out, "blob_collections_running:{}", s.blobs.collecting);
    line!(
        out,
        "blob_collections_write_amp:{:.2}",
        s.blobs.collections_write_amp()
    );
    if let Some(made) = s.blobs.oldest_made_ms {
        let age = e.env.clock().wall_ms().saturating_sub(made) / 1000;
        line!(out, "blob_oldest_file_age_seconds:{age}");
    }
    for (tenth, share) in s.blobs.by_garbage.iter().enumerate() {
        if share.files > 0 {
            let (from, to) = (tenth * 10, tenth * 10 + 10);
            line!(
                out,
                "blob_files_garbage_{from}_{to}:files={},bytes={},garbage={}",
                share.files,
                share.bytes,
                share.garbage_bytes
            );
        }
    }
    line!(out, "blob_value_hits:{}", s.blob_reads.hits);
    line!(out, "blob_value_reads:{}", s.blob_reads.reads);
    line!(out, "blob_head_reads:{}", s.blob_reads.heads);
    line!(out, "blob_value_bytes_read:{}", s.blob_reads.bytes);
    line!(out, "blob_read_ahead_values:{}", s.blob_reads.ahead);
    line!(out, "blob_read_ahead_unused:{}", s.blob_reads.ahead_unused);
    let compressed = s.blob_compression;
    line!(
        out,
        "blob_value_bytes_before_compression:{}",
        compressed.before
    );
    line!(
        out,
        "blob_value_bytes_after_compression:{}",
        compressed.after
    );
}

/// Adds the content and the cost of the log engine, if the store has one.
fn logical_logs(e: &Executor, out: &mut String) {
    let Some(logs) = e.keys.store().existing_logs() else {
        return;
    };
    let s = logs.stats();
    line!(out, "logical_logs:{}", s.logs);
    line!(out, "logical_log_records:{}", s.records);
    line!(out, "logical_log_live_bytes:{}", s.live_bytes);
    line!(out, "logical_log_ended_bytes:{}", s.ended_bytes);
    line!(out, "logical_log_ended_live_bytes:{}", s.ended_live_bytes);
    line!(out, "logical_log_space_amp:{:.2}", s.space_amp());
    line!(out, "logical_log_data_files:{}", s.data_files);
    line!(out, "logical_log_meta_files:{}", s.meta_files);
    line!(out, "logical_log_index_bytes:{}", s.index_bytes);
    line!(out, "logical_log_index_pages:{}", s.index_pages);
}

/// Adds the pages of a family.
fn pages(family: &str, pages: &PageTreeStats, debt: f64, out: &mut String) {
    line!(
        out,
        "{family}_pages:index_levels={},base_bytes={},delta_bytes={},delta_pages={},leaves_with_deltas={},index_pages_with_deltas={},index_delta_bytes={},longest_chain={},mean_chain={:.2},mapped={},mapping_bytes={},extent_range_bytes={},extents_without_ranges={},due_leaves={},due_delta_bytes={},debt={debt:.2}",
        pages.levels,
        pages.base_bytes,
        pages.delta_bytes,
        pages.delta_pages,
        pages.leaves_with_deltas,
        pages.index_pages_with_deltas,
        pages.index_delta_bytes,
        pages.longest_chain,
        pages.mean_chain(),
        pages.mapped_pages,
        pages.mapping_bytes,
        pages.extent_range_bytes,
        pages.extents_without_ranges,
        pages.due_leaves,
        pages.due_delta_bytes
    );
    line!(
        out,
        "{family}_page_extents:base={},base_bytes={},base_garbage={},delta={},delta_bytes={},delta_garbage={},space_amp={:.2}",
        pages.base_extents,
        pages.base_extent_bytes,
        pages.base_garbage_bytes,
        pages.delta_extents,
        pages.delta_extent_bytes,
        pages.delta_garbage_bytes,
        pages.space_amp()
    );
    line!(
        out,
        "{family}_page_writes:flush={},compaction={},collection={},system_log={},system_checkpoints={},system_log_bytes={},leaves_merged_for_readers={},cold_leaves_merged={}",
        pages.flush_bytes_written,
        pages.compaction_bytes_written,
        pages.collection_bytes_written,
        pages.system_log_bytes_written,
        pages.system_checkpoints,
        pages.system_log_bytes,
        pages.leaves_merged_for_readers,
        pages.cold_leaves_merged
    );
}

/// Adds the pages of each family that has some, and the levels of each family that has tables.
fn levels(s: &Stats, out: &mut String) {
    for family in &s.families {
        if let Some(of_family) = &family.pages {
            let name = family.name.replace('.', "_");
            pages(&name, of_family, family.page_debt, out);
        }
        for (level, l) in family.levels.iter().enumerate() {
            if l.tables > 0 {
                line!(
                    out,
                    "{}_level{level}:tables={},bytes={},entries={},deletes={},range_deletes={},score={:.2},compacting={},entered={},read={},written={},moved={},compactions={},write_amp={:.2}",
                    family.name.replace('.', "_"),
                    l.tables,
                    l.bytes,
                    l.entries,
                    l.deletes,
                    l.range_deletes,
                    l.score,
                    l.compacting,
                    l.bytes_entered,
                    l.bytes_read,
                    l.bytes_written,
                    l.bytes_moved,
                    l.compactions,
                    l.write_amp().unwrap_or(0.0)
                );
            }
        }
    }
}

/// Reads a short file of /proc, or returns `None` if it is missing. The file is no data, so the
/// read does not go through the store's filesystem.
fn proc_text(path: &str) -> Option<String> {
    use rustix::fs::{Mode, OFlags};
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buf = [0u8; 1024];
    let n = rustix::io::read(&file, &mut buf).ok()?;
    Some(String::from_utf8_lossy(&buf[..n]).into_owned())
}

fn proc_number(path: &str, field: usize) -> Option<u64> {
    proc_text(path)?.split_whitespace().nth(field)?.parse().ok()
}
