//! Tests of the module `statistics`.

use super::*;

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{a} is not {b}");
}

#[test]
fn median_mean_and_deviation_of_known_values_are_right() {
    assert_eq!(median(&[]), None);
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    // The values 2 4 4 4 5 5 7 9 of the textbook have mean 5 and sample deviation sqrt(32 / 7).
    let known = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
    near(deviation(&known).unwrap(), (32.0f64 / 7.0).sqrt());
    near(
        relative_deviation(&known).unwrap(),
        (32.0f64 / 7.0).sqrt() / 5.0,
    );
    assert_eq!(deviation(&[1.0]), None);
    assert_eq!(relative_deviation(&[0.0, 0.0]), None);
}

#[test]
fn the_confidence_interval_equals_the_textbook_value() {
    // The log ratios 0.1 0.2 0.3 0.4 0.5 have mean 0.3, deviation 0.158114, and half width 2.776 *
    // 0.158114 / sqrt 5 = 0.196293.
    let pairs: Vec<(f64, f64)> = [0.1, 0.2, 0.3, 0.4, 0.5]
        .iter()
        .map(|l: &f64| (7.0 * l.exp(), 7.0))
        .collect();
    let r = ratio(&pairs).unwrap();
    assert_eq!(r.pairs, 5);
    near(r.ratio, 0.3f64.exp());
    let (low, high) = r.interval.unwrap();
    near(low.ln(), 0.3 - 0.196_293);
    near(high.ln(), 0.3 + 0.196_293);
}

#[test]
fn ratios_are_averaged_geometrically_without_missing_pairs() {
    let r = ratio(&[(2.0, 1.0), (1.0, 2.0), (0.0, 5.0)]).unwrap();
    near(r.ratio, 1.0);
    assert_eq!(r.pairs, 2);
    let one = ratio(&[(3.0, 2.0)]).unwrap();
    assert_eq!((one.ratio, one.interval), (1.5, None));
    assert_eq!(ratio(&[(0.0, 1.0)]), None);
    // Equal pairs give an interval of width 0.
    let same = ratio(&[(3.0, 2.0); 5]).unwrap().interval.unwrap();
    near(same.0, 1.5);
    near(same.1, 1.5);
}

#[test]
fn t_quantiles_approach_the_normal_quantile() {
    near(t95(4), 2.776);
    near(t95(30), 2.042);
    near(t95(60), 2.0);
    assert!((1..200).all(|f| t95(f) > t95(f + 1) && t95(f + 1) > 1.96));
}
