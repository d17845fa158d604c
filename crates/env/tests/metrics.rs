//! Promises of the metrics: error bounds of histograms, and the text that other programs parse.

mod support;

use basalt_env::{Histogram, MetricSample, MetricValue, Metrics, Random};
use basalt_sim::campaign::scale;

/// Returns values of all magnitudes.
fn any_magnitude(random: &Random) -> u64 {
    random.next_u64() >> random.below(64)
}

#[test]
fn quantiles_are_within_two_percent_of_exact_over_all_of_u64() {
    for seed in basalt_sim::campaign::cases(0..20 * scale()) {
        let _repeat = basalt_sim::repeat!(
            quantiles_are_within_two_percent_of_exact_over_all_of_u64,
            "BASALT_CASE={seed}"
        );
        let random = Random::from_seed(seed);
        let histogram = Histogram::new();
        let n = 1 + random.below(5000);
        let narrow = random.one_in(2);
        let mut values: Vec<u64> = (0..n)
            .map(|_| {
                if narrow {
                    1000 + random.below(100_000)
                } else {
                    any_magnitude(&random)
                }
            })
            .collect();
        for v in &values {
            histogram.record(*v);
        }
        values.sort_unstable();
        for q in [0.0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0] {
            let rank = ((q * n as f64).ceil() as usize).max(1);
            let exact = values[rank - 1] as f64;
            let got = histogram.quantile(q) as f64;
            assert!(
                (got - exact).abs() <= exact * 0.0157 + 0.5,
                "seed {seed}, q {q}: {got} for {exact}"
            );
        }
        assert_eq!(histogram.count(), n);
        assert_eq!(histogram.max(), values[values.len() - 1]);
        assert_eq!(histogram.min(), values[0]);
        let sum = values.iter().fold(0u64, |a, b| a.wrapping_add(*b));
        assert_eq!(histogram.sum(), sum);
        assert_eq!(histogram.summary().p99, histogram.quantile(0.99));
    }
}

#[test]
fn small_values_are_exact_and_the_ends_are_covered() {
    let empty = Histogram::new();
    assert_eq!(
        (
            empty.count(),
            empty.max(),
            empty.min(),
            empty.quantile(0.5),
            empty.sum()
        ),
        (0, 0, 0, 0, 0)
    );
    for v in (0..64).chain([u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1]) {
        let one = Histogram::new();
        one.record(v);
        for q in [0.0, 0.5, 1.0, f64::NAN, -1.0, 2.0] {
            assert_eq!(one.quantile(q), v);
        }
        assert_eq!((one.min(), one.max()), (v, v));
    }
}

#[test]
fn merging_equals_recording_everything_into_one() {
    let random = Random::from_seed(3);
    let (a, b, all) = (Histogram::new(), Histogram::new(), Histogram::new());
    for n in 0..2000 {
        let v = any_magnitude(&random);
        if n % 3 == 0 { &a } else { &b }.record(v);
        all.record(v);
    }
    a.merge(&b);
    a.merge(&Histogram::new());
    assert_eq!(a.summary(), all.summary());
}

#[test]
fn recording_from_many_threads_loses_nothing() {
    let histogram = Histogram::new();
    let each = 20_000 * scale();
    basalt_env::thread::scope(|scope| {
        for seed in 0..4 {
            let histogram = histogram.clone();
            scope.spawn(move || {
                let random = Random::from_seed(seed);
                for _ in 0..each {
                    histogram.record(random.below(1 << 20));
                }
            });
        }
    });
    assert_eq!(histogram.count(), 4 * each);
}

#[test]
fn the_metrics_text_is_valid_prometheus_text() {
    let metrics = Metrics::new();
    let odd = "back\\slash \"quote\" new\nline";
    metrics
        .counter("wal_bytes", &[("store", "b")], "Bytes of log.")
        .add(7);
    metrics
        .counter("wal_bytes", &[("store", odd)], "ignored: the first stays")
        .add(1);
    // The same labels in another order name the same series.
    metrics
        .gauge(
            "files",
            &[("store", "a"), ("level", "0")],
            "Files\\level\n.",
        )
        .set(-3);
    metrics
        .gauge("files", &[("level", "0"), ("store", "a")], "")
        .add(1);
    let h = metrics.histogram("put_us", &[], "Time of a put.");
    for v in 1..=20 {
        h.record(v);
    }
    metrics.histogram("scan_us", &[("store", "a")], "Time of a scan.");
    let _elsewhere = metrics.source(|out| {
        let (seen, odd) = (MetricValue::Counter(9), MetricValue::Gauge(-9));
        out.push(MetricSample::new("seen", &[], "Read elsewhere.", seen));
        let labels = [("a.b", "c")];
        out.push(MetricSample::new("odd-name", &labels, "Made legal.", odd));
    });
    let text = r#"# HELP basalt_files Files\\level\n.
# TYPE basalt_files gauge
basalt_files{level="0",store="a"} -2
# HELP basalt_odd_name Made legal.
# TYPE basalt_odd_name gauge
basalt_odd_name{a_b="c"} -9
# HELP basalt_put_us Time of a put.
# TYPE basalt_put_us summary
basalt_put_us{quantile="0.5"} 10
basalt_put_us{quantile="0.9"} 18
basalt_put_us{quantile="0.99"} 20
basalt_put_us{quantile="0.999"} 20
basalt_put_us_sum 210
basalt_put_us_count 20
# HELP basalt_scan_us Time of a scan.
# TYPE basalt_scan_us summary
basalt_scan_us{store="a",quantile="0.5"} NaN
basalt_scan_us{store="a",quantile="0.9"} NaN
basalt_scan_us{store="a",quantile="0.99"} NaN
basalt_scan_us{store="a",quantile="0.999"} NaN
basalt_scan_us_sum{store="a"} 0
basalt_scan_us_count{store="a"} 0
# HELP basalt_seen Read elsewhere.
# TYPE basalt_seen counter
basalt_seen 9
# HELP basalt_wal_bytes Bytes of log.
# TYPE basalt_wal_bytes counter
basalt_wal_bytes{store="b"} 7
basalt_wal_bytes{store="back\\slash \"quote\" new\nline"} 1
"#;
    assert_eq!(metrics.prometheus(), text);
}

#[test]
fn metrics_are_removed_on_close_and_handles_stay_valid() {
    let metrics = Metrics::new();
    let a = metrics.counter("puts", &[("store", "a")], "Puts.");
    let b = metrics.counter("puts", &[("store", "b")], "Puts.");
    metrics.gauge("levels", &[("store", "a"), ("family", "b")], "Levels.");
    metrics.remove_labelled(("store", "a"));
    a.add(5);
    b.add(6);
    let samples = metrics.snapshot();
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].name, "puts");
    assert_eq!(samples[0].labels, [("store".to_string(), "b".to_string())]);
    assert_eq!(samples[0].value, MetricValue::Counter(6));
    // After a reopen, the counter starts at zero.
    assert_eq!(metrics.counter("puts", &[("store", "a")], "Puts.").get(), 0);
}

#[test]
#[should_panic(expected = "metric puts is already registered as another kind")]
fn a_metric_name_has_one_kind() {
    let metrics = Metrics::new();
    metrics.counter("puts", &[], "");
    metrics.gauge("puts", &[], "");
}

#[test]
fn a_metric_source_is_read_until_it_is_dropped() {
    use basalt_env::{MetricSample, MetricValue};
    let metrics = Metrics::new();
    metrics
        .gauge("level_bytes", &[("level", "1")], "Bytes.")
        .set(5);
    metrics.counter("zeal", &[], "Last.").add(1);
    let again = metrics.clone();
    let sources: Vec<_> = (0..2)
        .map(|_| {
            let inside = again.clone();
            metrics.source(move |out| {
                // The registry is not locked while it calls a reader, so the reader may use it.
                inside.counter("asked", &[], "Times.").add(1);
                let labels = [("level", "0"), ("family", "f")];
                let value = MetricValue::Gauge(7);
                out.push(MetricSample::new("level_bytes", &labels, "Bytes.", value));
            })
        })
        .collect();
    let text = metrics.prometheus();
    assert!(
        text.contains(
            "# TYPE basalt_level_bytes gauge\nbasalt_level_bytes{family=\"f\",level=\"0\"} 14\nbasalt_level_bytes{level=\"1\"} 5\n# HELP basalt_zeal"
        ),
        "{text}"
    );
    drop(sources);
    assert!(!metrics.prometheus().contains("family"));
    assert_eq!(metrics.counter("asked", &[], "").get(), 2);
}

/// Each of 1,000 stores that closed took 3 ms once, mostly to walk through the metrics of all
/// others.
#[test]
fn remove_labelled_removes_only_series_with_the_label() {
    let metrics = Metrics::new();
    let stores: Vec<String> = (0..50).map(|n| format!("s{n}")).collect();
    let of = |store: &str, cause: &str| {
        metrics.counter("stalls", &[("store", store), ("cause", cause)], "Stalls.")
    };
    for s in &stores {
        of(s, "space").add(1);
        of(s, "debt").add(1);
        metrics.counter("puts", &[("store", s)], "Puts.").add(1);
    }
    metrics.counter(
        "puts",
        &[("store", "space")],
        "A store with the name of a cause.",
    );
    // Removals by a label that stores share, twice, and by a label that no series has.
    metrics.remove_labelled(("cause", "debt"));
    metrics.remove_labelled(("cause", "debt"));
    metrics.remove_labelled(("store", "unknown"));
    assert_eq!(metrics.snapshot().len(), 101);
    of("s7", "debt").add(5);
    for s in &stores[..49] {
        metrics.remove_labelled(("store", s));
    }
    let left: Vec<_> = metrics
        .snapshot()
        .into_iter()
        .map(|m| (m.name, m.labels))
        .collect();
    let label = |k: &str, v: &str| (k.to_string(), v.to_string());
    assert_eq!(
        left,
        [
            ("puts".to_string(), vec![label("store", "s49")]),
            ("puts".to_string(), vec![label("store", "space")]),
            (
                "stalls".to_string(),
                vec![label("cause", "space"), label("store", "s49")]
            ),
        ]
    );
}
