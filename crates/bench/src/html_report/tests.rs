//! Tests of the module `html_report`.

use super::*;
use serde_json::json;

fn saved() -> Value {
    let row = |engine: &str, pair: u64, rate: f64| {
        json!({"workload": "overwrite", "threads": 2, "engine": engine, "pair": pair, "ops_per_s": rate,
               "write_amp": 3.5, "windows": [rate, rate * 0.9], "latency_us": [[0.5, 3.0], [0.99, 40.0], [1.0, 900.0]]})
    };
    json!({
        "machine": {"cpu": "<fast>"}, "config": {"keys": 5},
        "results": [row("basalt 1", 0, 200.0), row("rocksdb 2", 0, 100.0), row("basalt 1", 1, 220.0)],
        "ratios": [{"workload": "overwrite", "threads": 2, "engine": "basalt 1", "against": "rocksdb 2",
                    "figure": "ops_per_s", "ratio": 2.0, "low": 1.8, "high": 2.2, "pairs": 5}],
        "targets": [{"name": "t", "figure": 1.0, "target": 1.3, "at_most": false, "reached": false}],
    })
}

#[test]
fn a_page_needs_no_other_file_and_shows_all_saved_results() {
    let page = page(&[("a<b.json".into(), saved())]);
    for part in [
        "name=\"viewport\"",
        "a&lt;b.json",
        "&lt;fast&gt;",
        "overwrite, 2 threads",
        "Operations in each second",
        "Latency",
        "Write amplification",
        "Ratios of basalt 1 to rocksdb 2",
        "missed",
        "210",
    ] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    // The page loads nothing and runs nothing, and every element is closed.
    for part in ["http", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(part), "{part} is in the page");
    }
    for tag in ["svg", "table", "div", "details", "tr", "p"] {
        let open =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn a_page_is_made_from_a_single_run() {
    let single = json!({"machine": {}, "config": {}, "results": [
        {"workload": "read", "threads": 1, "engine": "basalt 1", "ops_per_s": 5.0, "write_amp": null}]});
    let page = page(&[("x".into(), single)]);
    assert!(page.contains("read, 1 thread<") && page.contains("Operations a second"));
    assert!(!page.contains("in each second") && !page.contains("NaN"));
}
