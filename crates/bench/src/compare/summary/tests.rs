//! Tests of the module `summary`.

use super::*;

fn comparison() -> Comparison {
    let row = |engine: &str, pair: u64, rate: f64| {
        json!({"workload": "overwrite", "threads": 2, "engine": engine, "pair": pair, "ops_per_s": rate,
               "write_amp": 5.0, "configuration": {"a": 1}})
    };
    Comparison {
        machine: json!({}),
        config: json!({}),
        rows: vec![
            row("basalt 1", 0, 200.0),
            row("rocksdb 2", 0, 100.0),
            row("rocksdb 2", 1, 300.0),
            row("basalt 1", 1, 600.0),
        ],
    }
}

#[test]
fn ratios_are_taken_within_pairs() {
    let c = comparison();
    let json = c.json();
    let ratios = json["ratios"].as_array().unwrap();
    let rate = ratios.iter().find(|r| r["figure"] == "ops_per_s").unwrap();
    assert_eq!(
        (rate["ratio"].as_f64(), rate["pairs"].as_u64()),
        (Some(2.0), Some(2))
    );
    assert_eq!(
        (rate["low"].as_f64(), rate["high"].as_f64()),
        (Some(2.0), Some(2.0))
    );
    assert_eq!(
        (&rate["engine"], &rate["against"]),
        (&json!("basalt 1"), &json!("rocksdb 2"))
    );
    assert_eq!(json["summary"][0]["median"]["ops_per_s"], 400.0);
    assert_eq!(json["summary"][0]["spread"]["ops_per_s"]["high"], 600.0);
    assert_eq!(json["engines"].as_array().unwrap().len(), 2);
    assert!(json["results"][0].get("configuration").is_none());
}

#[test]
fn the_targets_of_a_workload_are_judged() {
    let json = comparison().json();
    let targets = json["targets"].as_array().unwrap();
    let find = |part: &str| {
        let is = |t: &&Value| t["name"].as_str().is_some_and(|n| n.contains(part));
        targets.iter().find(is).unwrap().clone()
    };
    assert_eq!(find("ops_per_s")["reached"], true);
    // 1.0 where at most 0.8 is the target.
    assert_eq!(find("write_amp")["reached"], false);
    let table = comparison().table();
    for part in [
        "overwrite x2",
        "400",
        "200..600",
        "2.00 [2.00, 2.00] over 2 pairs",
        "MISSED",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
}

/// If several configurations of RocksDB run, the best one counts, metric by metric.
#[test]
fn large_values_are_compared_with_the_best_rocksdb_configuration() {
    let row = |engine: &str, rate: f64, p99: f64| json!({"workload": "durable-put", "threads": 1, "engine": engine, "pair": 0, "ops_per_s": rate, "p99_us": p99});
    let mut c = Comparison {
        machine: json!({}),
        config: json!({"value_size": 16_000}),
        rows: vec![
            row("basalt 1", 600.0, 5.0),
            row("rocksdb 2", 300.0, 6.0),
            row("rocksdb 2 blob", 500.0, 10.0),
        ],
    };
    let of = |c: &Comparison, part: &str| {
        let json = c.json();
        let targets = json["targets"].as_array().unwrap().clone();
        let is = |t: &Value| t["name"].as_str().is_some_and(|n| n.contains(part));
        let mut found: Vec<Value> = targets.into_iter().filter(is).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };
    let rate = of(&c, "ops_per_s");
    assert_eq!(
        (&rate["figure"], &rate["target"]),
        (&json!(1.2), &json!(1.5))
    );
    let p99 = of(&c, "p99_us");
    assert_eq!(
        (&p99["figure"], &p99["reached"]),
        (&json!(0.833), &json!(false))
    );
    c.rows.swap(1, 2);
    assert_eq!(of(&c, "ops_per_s"), rate, "the order does not matter");
    assert_eq!(of(&c, "p99_us"), p99);
}

/// The targets of logs name their peers. The peer that is nearest to missing one counts.
#[test]
fn targets_of_logs_are_judged_beside_the_peers_that_they_name() {
    let row = |workload: &str, engine: &str, figures: Value| {
        let mut row = json!({"workload": workload, "threads": 1, "engine": engine, "pair": 0});
        crate::compare::run::merge(&mut row, figures);
        row
    };
    let c = Comparison {
        machine: json!({}),
        config: json!({}),
        rows: vec![
            row(
                "one-writer",
                "basalt 1",
                json!({"mean_us": 60, "device_ratio": 0.95}),
            ),
            row("one-writer", "rocksdb 2", json!({"mean_us": 100})),
            row("one-writer", "raft-engine 3", json!({"mean_us": 80})),
            row("one-writer-unsynced", "basalt 1", json!({"ops_per_s": 500})),
            row(
                "one-writer-unsynced",
                "rocksdb 2",
                json!({"ops_per_s": 100}),
            ),
            row(
                "one-writer-unsynced",
                "raft-engine 3",
                json!({"ops_per_s": 300}),
            ),
            row("stuck-log", "basalt 1", json!({"space_amp_max": 1.31})),
            row("many-logs", "rocksdb 2", json!({"write_amp": 1.0})),
        ],
    };
    let json = c.json();
    let found: Vec<(&str, f64, bool)> = (json["targets"].as_array().unwrap().iter())
        .map(|t| {
            let name = t["name"].as_str().unwrap();
            (name, t["figure"].as_f64().unwrap(), t["reached"] == true)
        })
        .collect();
    let expected = [
        ("one-writer x1: ratio of mean_us to rocksdb 2", 0.6, false),
        (
            "one-writer x1: ratio of mean_us to raft-engine 3",
            0.75,
            true,
        ),
        ("one-writer x1: device_ratio", 0.95, true),
        (
            "one-writer-unsynced x1: ratio of ops_per_s to raft-engine 3",
            1.667,
            false,
        ),
        ("stuck-log x1: space_amp_max", 1.31, false),
    ];
    assert_eq!(found, expected);
}
