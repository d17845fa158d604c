//! The real `basalt-bench` on tiny workloads: every workload runs, checks its reads, reports the
//! metrics of the README, and removes its files. No test here depends on speed.
#![expect(
    clippy::disallowed_methods,
    reason = "tests make and look at directories of the host by hand"
)]

mod scratch;

use scratch::Scratch;

/// The fields that scripts rely on.
const FIELDS: [&str; 16] = [
    "workload",
    "engine",
    "threads",
    "ops_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "user_bytes",
    "device_write_bytes",
    "device_read_bytes",
    "block_device_write_bytes",
    "write_amp",
    "space_amp",
    "device_reads_per_op",
    "peak_rss_bytes",
];

#[test]
fn every_workload_reports_every_field() {
    let s = Scratch::new("fields");
    for workload in ["fill", "overwrite", "read", "scan", "mixed", "durable-put"] {
        let report = s.json(&[
            workload,
            "--no-device",
            "--keys",
            "2000",
            "--ops",
            "500",
            // The number of operations ends the run, at any speed of the disk.
            "--seconds",
            "300",
            "--threads",
            "1,2",
            "--write-buffer",
            "64K",
            "--cache",
            "1M",
            "--memory",
            "16M",
        ]);
        assert!(report["machine"]["cores"].as_u64().unwrap() >= 1);
        assert!(
            report["machine"]["kernel"]
                .as_str()
                .unwrap()
                .contains("Linux")
        );
        assert_eq!(report["config"]["workload"], workload);
        assert_eq!(report["config"]["cache_bytes"], 1 << 20);
        let results = report["results"].as_array().unwrap();
        assert_eq!(results.len(), 2, "one for each number of threads");
        for (row, threads) in results.iter().zip([1, 2]) {
            for field in FIELDS {
                assert!(row.get(field).is_some(), "{workload} lacks {field}: {row}");
            }
            assert_eq!(row["workload"], workload);
            assert_eq!(row["threads"], threads);
            let ops = if workload == "fill" { 2000 } else { 500 };
            assert_eq!(row["ops"], ops, "{workload}");
            let per_op = if workload == "durable-put" {
                16 + 1024
            } else {
                16 + 128
            };
            if workload != "scan" {
                assert_eq!(row["user_bytes"], ops * per_op, "{workload}");
            }
            let wrote = row["device_write_bytes"].as_u64().unwrap();
            match workload {
                "read" | "scan" => assert!(row["write_amp"].is_null()),
                "mixed" => assert!(row["write_amp"].is_f64()),
                _ => assert!(
                    wrote >= ops * per_op && row["write_amp"].as_f64().unwrap() >= 1.0,
                    "{row}"
                ),
            }
            assert!(row["device_ratio"].is_null(), "the device was left out");
        }
    }
    assert_eq!(
        std::fs::read_dir(&s.0).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn the_report_has_the_device_baseline() {
    let s = Scratch::new("device");
    let report = s.json(&[
        "durable-put",
        "--keys",
        "1000",
        "--ops",
        "200",
        "--threads",
        "1,16",
    ]);
    let row = &report["results"][0];
    assert!(row["device_ratio"].as_f64().unwrap() > 0.0);
    assert_eq!(row["padded_bytes"].as_u64().unwrap() % 512, 0);
    assert!(row["padded_bytes"].as_u64().unwrap() >= 1040);
    let targets = report["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 2);
    assert!(
        targets
            .iter()
            .all(|t| t["figure"].is_number() && t["reached"].is_boolean())
    );
    let (code, table, _) = s.run(&["device", "--seconds", "1"]);
    assert_eq!(code, 0);
    for part in [
        "synced-overwrite",
        "sequential-write",
        "random-read",
        "ops/s",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    assert_eq!(
        std::fs::read_dir(&s.0).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn foreign_files_in_the_directory_stay_and_wrong_flags_are_named() {
    let s = Scratch::new("flags");
    std::fs::create_dir(s.0.join("bench-data")).unwrap();
    std::fs::write(s.0.join("bench-data/mine"), b"x").unwrap();
    s.json(&["fill", "--no-device", "--keys", "100"]);
    assert_eq!(std::fs::read(s.0.join("bench-data/mine")).unwrap(), b"x");
    s.json(&[
        "fill",
        "--no-device",
        "--keys",
        "100",
        "--dir",
        "kept",
        "--keep",
    ]);
    assert_eq!(std::fs::read_dir(s.0.join("kept")).unwrap().count(), 1);
    for (args, says) in [
        (&["fill", "--key-size", "4"][..], "--key-size is 4"),
        (&["fill", "--threads", "0"], "--threads"),
        (&["fill", "--value-size", "2G"], "--value-size"),
        (&["fill", "--cache", "1G"], "--cache"),
        (&["read", "--cache", "1X"], "1X"),
    ] {
        let (code, _, err) = s.run(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
}
