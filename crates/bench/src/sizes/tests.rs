//! Tests of the module `sizes`.

use super::*;
use basalt::env::Random;

fn mean_of(sizes: &Sizes) -> f64 {
    let random = Random::from_seed(3);
    let n = 200_000;
    (0..n)
        .map(|_| sizes.at(random.next_u64()) as f64)
        .sum::<f64>()
        / n as f64
}

#[test]
fn every_form_is_read_and_others_are_refused() {
    assert_eq!(parse_sizes("fixed"), Ok(SizesAsked::Fixed));
    assert_eq!(
        parse_sizes("uniform:1K-2K"),
        Ok(SizesAsked::Uniform(1024, 2048))
    );
    assert_eq!(parse_sizes("pareto:400"), Ok(SizesAsked::Pareto(400)));
    assert_eq!(
        parse_sizes("folder:/x/y"),
        Ok(SizesAsked::Folder("/x/y".into()))
    );
    for bad in [
        "",
        "fixed:1",
        "uniform:5",
        "uniform:9-1",
        "pareto:",
        "folder:",
        "normal:3",
    ] {
        assert!(parse_sizes(bad).is_err(), "{bad}");
    }
}

#[test]
fn value_sizes_follow_their_distribution() {
    let uniform = Sizes(Kind::Uniform(10, 20));
    let random = Random::from_seed(5);
    let mut seen = [0u32; 21];
    for _ in 0..10_000 {
        seen[uniform.at(random.next_u64())] += 1;
    }
    assert!(seen[..10].iter().all(|&n| n == 0) && seen[10..].iter().all(|&n| n > 500));
    // The mean of the Pareto distribution is the given one, its median is far below, and its tail
    // is cut.
    let pareto = Sizes(Kind::Pareto(400.0));
    let mean = mean_of(&pareto);
    assert!((mean - 400.0).abs() < 8.0, "{mean}");
    let half = pareto.at(u64::MAX / 2) as f64;
    let median = 400.0 * (1.0 - SHAPE) / SHAPE * (2f64.powf(SHAPE) - 1.0);
    assert!((half - median).abs() <= 1.0, "{half} {median}");
    assert!(pareto.at(u64::MAX) <= pareto.longest());
    assert_eq!(mean_of(&Sizes::fixed(7)), 7.0);
    let files = Sizes(Kind::Files(vec![1, 2, 1000].into()));
    assert!((mean_of(&files) - 1003.0 / 3.0).abs() < 5.0);
    assert_eq!((files.longest(), files.only()), (1000, None));
}
