//! Tests of the module `pick`.

use super::*;

#[test]
fn ranks_follow_the_zipf_distribution() {
    let (ranks, draws) = (1000u64, 400_000);
    let zipf = Zipf::new(ranks);
    let random = Random::from_seed(9);
    let mut seen = vec![0u64; ranks as usize];
    for _ in 0..draws {
        seen[zipf.rank(&random) as usize] += 1;
    }
    let sum: f64 = (1..=ranks).map(|k| (k as f64).powf(-EXPONENT)).sum();
    for k in [1usize, 2, 3, 10, 100] {
        let expected = draws as f64 * (k as f64).powf(-EXPONENT) / sum;
        let found = seen[k - 1] as f64;
        // The tolerance is five standard deviations of a count.
        assert!(
            (found - expected).abs() < 5.0 * expected.sqrt(),
            "rank {k}: {found} of {expected}"
        );
    }
    assert!((0..100).all(|_| Zipf::new(1).rank(&random) == 0));
}

#[test]
fn each_distribution_stays_in_range_and_has_its_shape() {
    let data = Data::new(7, 500, 16, 10, 0.5);
    let random = Random::from_seed(1);
    let newest = data.inserted(49);
    let mut hits = 0;
    let mut uniform = std::collections::BTreeSet::new();
    for _ in 0..5000 {
        uniform.insert(pick(Distribution::Uniform, &random, &data, 50));
        let hot = pick(Distribution::Zipfian, &random, &data, 50);
        assert!(hot < 500);
        let late = pick(Distribution::Latest, &random, &data, 50);
        assert!(late < 500 || (data.inserted(0)..=newest).contains(&late));
        hits += u32::from(late == newest);
    }
    assert_eq!(
        uniform.len(),
        550,
        "every key comes, inserted ones included"
    );
    assert!(hits > 300, "the newest key is the hottest: {hits} of 5000");
    // Without inserts, the newest key is the last one of a random fill.
    let last = data.shuffled(499);
    let n = (0..1000)
        .filter(|_| pick(Distribution::Latest, &random, &data, 0) == last)
        .count();
    assert!(n > 50, "{n}");
}
