//! Tests of the module `chart`.

use super::*;

#[test]
fn axis_labels_are_short() {
    for (x, text) in [
        (0.0, "0"),
        (0.25, "0.250"),
        (3.456, "3.46"),
        (45.67, "45.7"),
        (9999.0, "9999"),
        (45_670.0, "45.7k"),
        (1.5e9, "1.50G"),
    ] {
        assert_eq!(short(x), text);
    }
    assert!((nines(0.9) - 1.0).abs() < 1e-9 && (nines(0.999) - 3.0).abs() < 1e-9);
    assert_eq!(seconds(10.0).last(), Some(&(10.0, "10 s".to_string())));
    assert_eq!(
        escape("<a b=\"c\">&'"),
        "&lt;a b=&quot;c&quot;&gt;&amp;&#39;"
    );
}

/// All coordinates stay inside of the drawing, also for extreme values.
#[test]
fn all_coordinates_stay_inside_the_chart() {
    let line = |points: Vec<(f64, f64)>| Line {
        class: "c0".into(),
        points,
    };
    let charts = [
        lines("a", &[line(vec![(0.0, 5.0)])], false, &seconds(0.0)),
        lines(
            "b",
            &[line(vec![(1.0, 0.0), (2.0, 3.0), (3.0, 4e6)])],
            true,
            &seconds(3.0),
        ),
        lines(
            "c",
            &[line(vec![(0.0, 0.0), (1.0, 0.0)])],
            false,
            &seconds(1.0),
        ),
        dots(
            "d",
            &[Dot {
                label: "x".into(),
                ratio: 1e9,
                interval: Some((0.0, f64::INFINITY)),
            }],
        ),
        bars(
            "e",
            &[Bar {
                label: "x".into(),
                class: "c0".into(),
                value: 0.0,
                range: Some((0.0, 0.0)),
            }],
        ),
    ];
    for chart in charts {
        assert!(!chart.contains("NaN") && !chart.contains("inf"), "{chart}");
        for path in chart.split(" d=\"").skip(1) {
            let numbers = path
                .split('"')
                .next()
                .unwrap_or("")
                .split(|c: char| "MLHV ".contains(c));
            for n in numbers.filter(|n| !n.is_empty()) {
                let n: f64 = n.parse().unwrap();
                assert!((0.0..=WIDTH).contains(&n), "{n} in {chart}");
            }
        }
    }
    assert_eq!(lines("f", &[], true, &vec![]), "");
}
