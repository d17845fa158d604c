//! The real `basalt-bench compare` on tiny stores, and the page of its saved results. No test here
//! depends on speed.
#![expect(
    clippy::disallowed_methods,
    reason = "tests make and look at directories of the host by hand"
)]

mod scratch;

use scratch::Scratch;
use serde_json::Value;

/// The fields that scripts rely on.
const FIELDS: [&str; 34] = [
    "workload",
    "engine",
    "threads",
    "pair",
    "ops",
    "ops_per_s",
    "window_deviation",
    "windows",
    "p50_us",
    "p99_us",
    "p999_us",
    "p9999_us",
    "max_us",
    "latency_us",
    "user_bytes",
    "put_bytes",
    "device_write_bytes",
    "device_read_bytes",
    "block_device_write_bytes",
    "block_device_read_bytes",
    "write_amp",
    "space_amp",
    "device_reads_per_op",
    "cpu_seconds",
    "peak_rss_bytes",
    "stall_seconds",
    "debt_bytes_start",
    "debt_bytes_end",
    "debt_bytes_settled",
    "settle_seconds",
    "seconds_settled",
    "space_amp_samples",
    "space_amp_max",
    "beside",
];

/// The stores are small, but everything is flushed, compacted, and read from tables.
const TINY: [&str; 12] = [
    "--write-buffer",
    "64K",
    "--cache",
    "128K",
    "--memory",
    "32M",
    "--warm",
    "0",
    "--seconds",
    "30",
    "--batch",
    "10",
];

const ALL: [&str; 23] = [
    "load",
    "load-sorted",
    "fill-random",
    "overwrite",
    "ingest",
    "durable-put",
    "durable-put-while-reading",
    "read-random",
    "read-absent",
    "multi-get",
    "seek-10",
    "seek-1000",
    "long-scan",
    "read-while-writing",
    "scan-10-while-writing",
    "scan-1000-while-writing",
    "ycsb-a",
    "ycsb-b",
    "ycsb-c",
    "ycsb-d",
    "ycsb-e",
    "ycsb-f",
    "state",
];

fn compare(s: &Scratch, workloads: &[&str], more: &[&str]) -> Value {
    s.json(&[&["compare"], workloads, &TINY, more].concat())
}

#[test]
fn every_workload_checks_what_it_reads_and_reports_every_field() {
    let s = Scratch::new("all");
    let more = [
        "--no-device",
        "--pairs",
        "1",
        "--keys",
        "1500",
        "--ops",
        "300",
    ];
    let report = compare(&s, &ALL, &more);
    assert_eq!(report["config"]["block_size"], 4096);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), ALL.len());
    for (row, workload) in results.iter().zip(ALL) {
        for field in FIELDS {
            assert!(row.get(field).is_some(), "{workload} lacks {field}: {row}");
        }
        assert_eq!(row["workload"], workload);
        let ops = match workload {
            "load" | "load-sorted" | "fill-random" => 1500,
            // The workload has 300 gets of 10 keys.
            "multi-get" => 3000,
            _ => 300,
        };
        assert_eq!(row["ops"], ops, "{workload}");
        let value = if workload == "durable-put" { 1024 } else { 100 };
        let puts = row["puts"].as_u64().unwrap();
        match workload {
            "load" | "load-sorted" | "fill-random" | "overwrite" | "ingest" | "durable-put" => {
                assert_eq!(puts, ops);
                assert_eq!(row["put_bytes"], ops * (16 + value));
                // All bytes were written before the store was closed.
                let written = row["engine_write_bytes"].as_u64().unwrap();
                assert!(written >= ops * (16 + value), "{row}");
                assert!(row["device_reads_per_op"].is_null());
            }
            "read-random" | "read-absent" | "multi-get" | "ycsb-c" | "seek-10" | "seek-1000"
            | "long-scan" => {
                assert_eq!(row["put_bytes"], 0);
                assert!(row["write_amp"].is_null());
                assert!(row["device_reads_per_op"].is_f64(), "{row}");
            }
            _ => assert!(puts > 0 || row["beside"]["puts"].is_u64(), "{row}"),
        }
        let found = row["found"].as_u64().unwrap();
        match workload {
            "read-random" => assert_eq!(found, 300),
            "read-absent" => assert_eq!((found, &row["gets"]), (0, &300.into())),
            "seek-10" => assert!(row["entries"].as_u64().unwrap() > 300 * 9),
            _ => {}
        }
    }
    assert_eq!(
        std::fs::read_dir(&s.0).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

/// A comparison of large values: random keys, values in blob files, and garbage collection during
/// the writes.
#[test]
fn large_values_of_random_keys_are_checked() {
    let s = Scratch::new("large");
    let more = [
        "--no-device",
        "--pairs",
        "1",
        "--keys",
        "200",
        "--ops",
        "400",
        "--key-size",
        "36",
        "--value-size",
        "16000",
        "--random-keys",
        "--max-space-amp",
        "1.3",
    ];
    let workloads = [
        "fill-random",
        "overwrite",
        "durable-put",
        "durable-put-while-reading",
        "read-random",
        "read-absent",
        "seek-10",
        "scan-1000-while-writing",
        "ycsb-d",
    ];
    let report = compare(&s, &workloads, &more);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), workloads.len());
    assert_eq!(report["config"]["random_keys"], true);
    let engine = &report["engines"][0]["configuration"];
    assert_eq!(
        (&engine["min_blob_size"], &engine["max_space_amp"]),
        (&4096.into(), &1.3.into())
    );
    let beside = &results[3]["beside"];
    assert!(beside["gets"].as_u64().unwrap() > 0, "{beside}");
    assert_eq!(results[3]["puts"], 400);
    // A store without separation rewrites its values in compactions, which shows that the flag has
    // an effect.
    let without = [&more[..], &["--min-blob-size", "0"]].concat();
    let report = compare(&s, &["fill-random"], &without);
    assert!(report["engines"][0]["configuration"]["min_blob_size"].is_null());
}

/// The engine `tree` runs the same workloads beside `basalt`, and keeps no table.
#[test]
fn a_tree_is_compared_with_levels() {
    let s = Scratch::new("tree");
    let more = [
        "--no-device",
        "--pairs",
        "1",
        "--keys",
        "1500",
        "--ops",
        "300",
        "--engines",
        "basalt,tree",
        "--block-size",
        "8K",
    ];
    let workloads = ["load-sorted", "overwrite", "read-random", "seek-10"];
    let report = compare(&s, &workloads, &more);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * workloads.len());
    let engines = report["engines"].as_array().unwrap();
    let of = |name: &str| {
        let mut all = engines.iter();
        let found = all.find(|e| e["name"].as_str().is_some_and(|n| n.starts_with(name)));
        &found.unwrap_or_else(|| panic!("{name} is not in {engines:?}"))["configuration"]
    };
    assert_eq!(of("basalt")["block_bytes"], 8192);
    assert!(of("basalt")["pages"].is_null());
    assert_eq!(of("tree")["pages"]["page_bytes"], 8192);
    assert_eq!(of("tree")["min_blob_size"], 4096);
}

/// The figures of families in pages.
const PAGE_FIELDS: [&str; 12] = [
    "mapping_bytes",
    "mapped_pages",
    "system_log_bytes",
    "system_log_bytes_written",
    "system_log_per_user_byte",
    "system_checkpoints",
    "page_bytes_written",
    "page_write_amp",
    "page_space_amp",
    "extent_bytes",
    "delta_pages",
    "mean_delta_pages",
];

#[test]
fn rows_of_a_tree_have_the_figures_of_its_pages() {
    let s = Scratch::new("pages");
    let more = [
        "--no-device",
        "--pairs",
        "1",
        "--keys",
        "3000",
        "--engines",
        "tree,basalt",
        "--block-size",
        "4K",
        "--checkpoint-bytes",
        "8K",
    ];
    let report = compare(&s, &["ingest"], &more);
    let row = &report["results"][0];
    for field in PAGE_FIELDS {
        assert!(row[field].is_number(), "{field}: {row}");
        assert!(report["results"][1].get(field).is_none(), "{field}");
    }
    for field in ["mapping_bytes", "mapped_pages", "system_checkpoints"] {
        assert!(row[field].as_u64().unwrap() > 0, "{field}: {row}");
    }
    for field in ["system_log_per_user_byte", "page_write_amp", "write_amp"] {
        assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
    }
    assert!(row["space_amp"].as_f64().unwrap() >= 1.0, "{row}");
    // A run that ends within its first windows has no deviation.
    for row in report["results"].as_array().unwrap() {
        let deviation = row["window_deviation"].as_f64();
        let percent = row["window_deviation_percent"].as_f64();
        assert_eq!(deviation.is_some(), percent.is_some(), "{row}");
    }
    let tree = &report["engines"][0]["configuration"]["pages"];
    assert_eq!(tree["checkpoint_bytes"], 8192);
    let args = [&["compare", "ingest"], &TINY[..], &more[..]].concat();
    let (code, out, err) = s.run(&args);
    assert_eq!(code, 0, "{err}");
    for heading in ["mapping MiB", "mapped pages", "system log B/B"] {
        assert!(out.contains(heading), "{heading}: {out}");
    }
}

/// The fields of `restart`.
const RESTART_FIELDS: [&str; 9] = [
    "restart_seconds",
    "open_seconds",
    "load_seconds",
    "put_bytes",
    "disk_bytes",
    "device_read_bytes",
    "cpu_seconds",
    "peak_rss_bytes",
    "verified_keys",
];

/// Runs `restart` on `engines` with this write buffer, and returns the report. Each engine must
/// find every key.
fn restart(s: &Scratch, engines: &str, write_buffer: &str, more: &[&str]) -> Value {
    let flags = [
        "compare",
        "restart",
        "--pairs",
        "1",
        "--keys",
        "5000",
        "--cache",
        "128K",
        "--memory",
        "256M",
        "--engines",
        engines,
        "--write-buffer",
        write_buffer,
    ];
    let report = s.json(&[&flags[..], more].concat());
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), engines.split(',').count());
    for row in results {
        for field in RESTART_FIELDS {
            assert!(row[field].is_number(), "{field}: {row}");
        }
        assert_eq!(row["verified_keys"], 5000, "{row}");
        // The last key is put twice.
        assert_eq!(row["put_bytes"], 5001 * 1000, "{row}");
        assert!(row["disk_bytes"].as_u64().unwrap() > 5_000_000, "{row}");
        assert!(row["restart_seconds"].as_f64() >= row["open_seconds"].as_f64());
    }
    assert_eq!(
        std::fs::read_dir(&s.0).unwrap().count(),
        0,
        "nothing is left behind"
    );
    report
}

/// A process that was killed leaves every acknowledged key to the next one, with flushes before the
/// crash and without.
#[test]
fn a_restart_finds_every_acknowledged_key() {
    let s = Scratch::new("restart");
    let report = restart(&s, "tree,basalt", "64K", &["--batch", "10"]);
    let row = &report["results"][0];
    assert!(row["system_log_bytes_at_crash"].as_u64().unwrap() > 0);
    let checkpoints = row["system_checkpoints_before_crash"].as_u64().unwrap();
    let report = restart(&s, "tree,basalt,basalt-lava", "64M", &["--threads", "2"]);
    for row in report["results"].as_array().unwrap() {
        let replayed = row["replay_bytes"].as_u64().unwrap();
        assert!(replayed > 5_000_000, "all keys are in memtables: {row}");
    }
    let row = &report["results"][0];
    assert_eq!(row["system_checkpoints_before_crash"], checkpoints, "{row}");
    restart(&s, "basalt", "64K", &["--sync", "on", "--batch", "1000"]);
    let (code, _, err) = s.run(&["compare", "restart", "--no-log"]);
    assert_eq!(code, 2);
    assert!(err.contains("--no-log writes none"), "{err}");
}

#[test]
fn a_directory_is_loaded_and_exported_completely() {
    let s = Scratch::new("folder");
    for n in 0..60usize {
        let dir = s.0.join(format!("in/{}/deep {}", n % 3, n % 2));
        std::fs::create_dir_all(&dir).unwrap();
        let content = vec![n as u8; n * n * 37];
        std::fs::write(dir.join(format!("file{n}")), &content).unwrap();
    }
    std::fs::write(s.0.join("in/0-beside"), b"sorts before what is in 0").unwrap();
    let folder = s.0.join("in");
    let folder = folder.to_str().unwrap();
    let more = ["--no-device", "--pairs", "2", "--folder", folder];
    let report = compare(&s, &["folder-load", "folder-export"], &more);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for row in &results[..2] {
        assert_eq!((&row["ops"], &row["puts"]), (&61.into(), &61.into()));
        assert!(row["space_amp"].as_f64().unwrap() >= 1.0, "{row}");
        assert!(row["seconds_settled"].as_f64() >= row["seconds"].as_f64());
    }
    for row in &results[2..] {
        assert_eq!((&row["ops"], &row["entries"]), (&1.into(), &61.into()));
    }
    assert_eq!(
        std::fs::read_dir(&s.0).unwrap().count(),
        1,
        "nothing is left behind"
    );
    for (args, says) in [
        (&["compare", "folder-load"][..], "--folder"),
        (&["compare", "folder-load", "--folder", "none"], "none"),
    ] {
        let (code, _, err) = s.run(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
}

#[test]
fn every_workload_that_chooses_keys_takes_every_distribution() {
    let s = Scratch::new("distributions");
    let workloads = [
        "read-random",
        "seek-10",
        "scan-10-while-writing",
        "ycsb-a",
        "ycsb-d",
        "ycsb-e",
    ];
    for how in ["uniform", "zipfian", "latest"] {
        let more = [
            "--pairs",
            "1",
            "--keys",
            "2000",
            "--ops",
            "300",
            "--distribution",
            how,
        ];
        let report = compare(&s, &workloads, &more);
        assert_eq!(report["config"]["distribution"], how);
        let results = report["results"].as_array().unwrap();
        assert_eq!(results.len(), workloads.len());
    }
    let puts = ["overwrite", "durable-put"];
    let more = ["--keys", "2000", "--ops", "300", "--distribution", "cyclic"];
    let report = compare(&s, &puts, &more);
    assert_eq!(report["config"]["distribution"], "cyclic");
}

#[test]
fn paired_runs_give_a_summary_and_a_page() {
    let s = Scratch::new("pairs");
    let more = [
        "--pairs",
        "3",
        "--keys",
        "2000",
        "--ops",
        "400",
        "--threads",
        "1,2",
        "--steady",
        "--value-sizes",
        "pareto:80",
        "--block-device",
        "--distribution",
        "zipfian",
    ];
    let report = compare(&s, &["read-random", "overwrite"], &more);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * 2 * 3);
    let pairs: Vec<u64> = results[..3]
        .iter()
        .map(|r| r["pair"].as_u64().unwrap())
        .collect();
    assert_eq!(pairs, [0, 1, 2]);
    assert!(results[0]["device_ratio"].as_f64().unwrap() > 0.0);
    assert!(results[0]["configuration"].is_null());
    let summary = report["summary"].as_array().unwrap();
    assert_eq!(summary.len(), 4);
    let rates = &summary[0]["spread"]["ops_per_s"];
    let median = summary[0]["median"]["ops_per_s"].as_f64().unwrap();
    assert!(rates["low"].as_f64().unwrap() <= median && median <= rates["high"].as_f64().unwrap());
    let engines = report["engines"].as_array().unwrap();
    assert_eq!(engines[0]["configuration"]["filter_bits_per_key"], 10);
    // One engine alone has no ratio to itself.
    assert_eq!(report["ratios"].as_array().unwrap().len(), 0);

    std::fs::write(s.0.join("saved.json"), report.to_string()).unwrap();
    let single = s.json(&["fill", "--no-device", "--keys", "100"]);
    std::fs::write(s.0.join("single.json"), single.to_string()).unwrap();
    let (code, out, err) = s.run(&["report", "saved.json", "single.json", "-o", "page.html"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("page.html"));
    let page = std::fs::read_to_string(s.0.join("page.html")).unwrap();
    for part in [
        "saved.json",
        "single.json",
        "overwrite, 2 threads",
        "fill, 1 thread",
        "<svg",
    ] {
        assert!(page.contains(part), "{part} is not in the page");
    }
}

#[test]
fn a_comparison_that_is_not_possible_is_refused_with_its_reason() {
    let s = Scratch::new("wrong");
    std::fs::write(s.0.join("x.json"), "{}").unwrap();
    let cases: [(&[&str], &str); 8] = [
        (
            &["compare", "overwrite", "ycsb-a", "--distribution", "cyclic"],
            "ycsb-a does more",
        ),
        (&["compare", "fill"], "fill"),
        (
            &[
                "compare",
                "read-random",
                "read-absent",
                "--distribution",
                "latest",
            ],
            "read-absent has no choice",
        ),
        (
            &["compare", "overwrite", "--engines", "basalt,basalt"],
            "twice",
        ),
        (
            &["compare", "overwrite", "--rocksdb-option", "fast"],
            "NAME=VALUE",
        ),
        (
            &["compare", "overwrite", "--value-sizes", "folder:none"],
            "none",
        ),
        (&["report", "x.json"], "no results"),
        (&["report", "y.json"], "y.json"),
    ];
    for (args, says) in cases {
        let (code, _, err) = s.run(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
    for (peer, feature, is_built) in [
        ("rocksdb", "peer-rocksdb", cfg!(feature = "peer-rocksdb")),
        (
            "rocksdb-blob",
            "peer-rocksdb",
            cfg!(feature = "peer-rocksdb"),
        ),
        (
            "rocksdb-blob-forced",
            "peer-rocksdb",
            cfg!(feature = "peer-rocksdb"),
        ),
        (
            "rocksdb-blob-direct",
            "peer-rocksdb",
            cfg!(feature = "peer-rocksdb"),
        ),
        ("mace", "peer-mace", cfg!(feature = "peer-mace")),
        ("bf-tree", "peer-bf-tree", cfg!(feature = "peer-bf-tree")),
    ] {
        if is_built {
            continue;
        }
        let engines = format!("basalt,{peer}");
        let (code, _, err) = s.run(&["compare", "overwrite", "--engines", &engines]);
        assert_eq!(code, 2);
        assert!(
            err.contains(&format!("--features {feature}`")) && err.contains("docs/benchmarks.md"),
            "{err}"
        );
    }
    assert_eq!(
        std::fs::read_dir(&s.0).unwrap().count(),
        1,
        "nothing is left behind"
    );
}

/// Only in builds with the peer. Each configuration of BlobDB takes its options, keeps its values
/// in blob files and returns them.
#[cfg(feature = "peer-rocksdb")]
#[test]
fn blobdb_runs_in_each_form() {
    let s = Scratch::new("blobdb");
    let more = [
        "--no-device",
        "--pairs",
        "1",
        "--keys",
        "300",
        "--ops",
        "600",
        "--key-size",
        "36",
        "--value-size",
        "16000",
        "--random-keys",
        "--engines",
        "basalt,rocksdb-blob,rocksdb-blob-forced,rocksdb-blob-direct",
    ];
    let workloads = [
        "fill-random",
        "overwrite",
        "read-random",
        "seek-10",
        "durable-put",
    ];
    let report = compare(&s, &workloads, &more);
    assert_eq!(
        report["results"].as_array().unwrap().len(),
        4 * workloads.len()
    );
    for (n, form, option) in [
        (1, "blob", "enable_blob_files=true"),
        (
            2,
            "blob-forced",
            "blob_garbage_collection_force_threshold=0.2",
        ),
        (3, "blob-direct", "enable_blob_direct_write=true"),
    ] {
        let engine = &report["engines"][n];
        assert!(engine["name"].as_str().unwrap().ends_with(form), "{engine}");
        let options = engine["configuration"]["options_file"].as_str().unwrap();
        assert!(options.contains(option), "{form}: {options}");
    }
}

/// Only in builds with the peers: `cargo test -p basalt-bench --features peer-rocksdb,peer-fjall`.
#[cfg(all(feature = "peer-rocksdb", feature = "peer-fjall"))]
#[test]
fn peers_run_every_workload_and_get_ratios() {
    let s = Scratch::new("peers");
    let more = [
        "--no-device",
        "--pairs",
        "1",
        "--keys",
        "1500",
        "--ops",
        "300",
        "--engines",
        "basalt,rocksdb,fjall",
        "--rocksdb-option",
        "max_open_files=500",
    ];
    let report = compare(&s, &ALL, &more);
    assert_eq!(report["results"].as_array().unwrap().len(), 3 * ALL.len());
    let rocksdb = &report["engines"][1];
    let options = rocksdb["configuration"]["options_file"].as_str().unwrap();
    assert!(options.contains("max_open_files=500") && options.contains("recycle_log_file_num=4"));
    assert!(rocksdb["name"].as_str().unwrap().starts_with("rocksdb 1"));
    assert!(
        report["engines"][2]["name"]
            .as_str()
            .unwrap()
            .starts_with("fjall 3.")
    );
    for peer in ["rocksdb", "fjall"] {
        let is = |r: &&Value| {
            r["against"].as_str().is_some_and(|a| a.starts_with(peer)) && r["figure"] == "ops_per_s"
        };
        let ratios = report["ratios"].as_array().unwrap();
        assert_eq!(ratios.iter().filter(is).count(), ALL.len(), "{peer}");
    }
}

/// Only in builds with the peer.
#[cfg(feature = "peer-rocksdb")]
#[test]
fn a_restart_of_rocksdb_finds_every_acknowledged_key() {
    let s = Scratch::new("restart-rocksdb");
    let report = restart(&s, "tree,rocksdb", "64M", &[]);
    let replayed = report["results"][1]["replay_bytes"].as_u64().unwrap();
    assert!(
        replayed > 5_000_000,
        "all keys are in memtables: {replayed}"
    );
}

/// Only in builds with the peers: `cargo test -p basalt-bench --features peer-mace,peer-redb`.
#[cfg(feature = "peer-mace")]
#[test]
fn mace_runs_every_workload() {
    let s = Scratch::new("mace");
    let more = ["--no-device", "--pairs", "1", "--keys", "1500"];
    let more = [&more[..], &["--ops", "300", "--engines", "tree,mace"]].concat();
    let report = compare(&s, &ALL, &more);
    assert_eq!(report["results"].as_array().unwrap().len(), 2 * ALL.len());
    let name = report["engines"][1]["name"].as_str().unwrap();
    assert!(name.starts_with("mace 0.2."), "{name}");
    restart(&s, "tree,mace", "8M", &[]);
    restart(&s, "mace", "8M", &["--sync", "on"]);
}

/// Only in builds with the peer.
#[cfg(feature = "peer-bf-tree")]
#[test]
fn bf_tree_runs_every_workload_that_a_crash_may_undo() {
    let s = Scratch::new("bf-tree");
    let durable = ["durable-put", "durable-put-while-reading"];
    let workloads: Vec<&str> = ALL.into_iter().filter(|w| !durable.contains(w)).collect();
    let more = ["--no-device", "--pairs", "1", "--keys", "1500"];
    let more = [&more[..], &["--ops", "300", "--engines", "tree,bf-tree"]].concat();
    let report = compare(&s, &workloads, &more);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * workloads.len());
    let name = report["engines"][1]["name"].as_str().unwrap();
    assert!(name.starts_with("bf-tree 0.5."), "{name}");
    for (workload, flag) in [
        ("durable-put", "off"),
        ("restart", "off"),
        ("bulk-sorted", "off"),
        ("overwrite", "on"),
    ] {
        let args = ["compare", workload, "--engines", "bf-tree", "--sync", flag];
        let (code, _, err) = s.run(&args);
        assert_eq!(code, 2, "{args:?}");
        assert!(err.contains("bf-tree loses its puts"), "{args:?}: {err}");
    }
}

/// Only in builds with the peers.
#[cfg(all(feature = "peer-redb", feature = "peer-lmdb", feature = "peer-fjall"))]
#[test]
fn a_restart_of_peers_finds_every_acknowledged_key() {
    let s = Scratch::new("restart-peers");
    restart(&s, "redb,lmdb,fjall", "64K", &[]);
}

/// Only in builds with the peers: `cargo test -p basalt-bench --features peer-redb,peer-lmdb`.
#[cfg(all(feature = "peer-redb", feature = "peer-lmdb"))]
#[test]
fn trees_of_others_run_every_workload() {
    let s = Scratch::new("trees");
    let engines = "tree,redb,lmdb";
    let more = [
        "--no-device",
        "--pairs",
        "1",
        "--keys",
        "1500",
        "--ops",
        "300",
    ];
    let more = [&more[..], &["--engines", engines]].concat();
    let report = compare(&s, &ALL, &more);
    assert_eq!(report["results"].as_array().unwrap().len(), 3 * ALL.len());
    for (n, peer) in [(1, "redb 4."), (2, "lmdb of heed 0.")] {
        let name = report["engines"][n]["name"].as_str().unwrap();
        assert!(name.starts_with(peer), "{name}");
    }
}
