//! Medians, spread, and intervals of ratios.
//!
//! Rates drift together over minutes on a shared machine, so a ratio is taken within each
//! interleaved pair and the interval is that of the pairs' mean log ratio: Student's t, since there
//! are few of them. Ratios multiply, so their logarithms are what averages: twice as fast and half
//! as fast cancel out.

/// The middle of the values, or the mean of the two middle ones; `None` without any.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => None,
        n if n % 2 == 1 => Some(sorted[n / 2]),
        n => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

/// The mean; `None` without any.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The sample's standard deviation (divided by n - 1); `None` for fewer than two.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let n = values.len();
    (n > 1).then(|| {
        (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1) as f64).sqrt()
    })
}

/// Deviation as a part of the mean: how far windows of a run lie apart. `None` for fewer than two
/// or a mean of 0.
pub fn relative_deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    (mean > 0.0).then(|| deviation(values).map(|d| d / mean))?
}

/// The two-sided 95 % quantile of Student's t.
fn t95(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    match freedom {
        0 => f64::INFINITY,
        // Beyond the table: the first term of the expansion around the normal quantile, off by less
        // than 0.002.
        f => TABLE.get(f - 1).copied().unwrap_or(1.96 + 2.372 / f as f64),
    }
}

/// A ratio of two engines over interleaved pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The geometric mean of the pairs' ratios.
    pub ratio: f64,
    /// The 95 % interval; `None` for a single pair.
    pub interval: Option<(f64, f64)>,
    /// How many pairs.
    pub pairs: usize,
}

/// The ratio over pairs. Pairs in which either is not above 0 have no ratio and are left out;
/// `None` when none is left.
pub fn ratio(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(a, b)| *a > 0.0 && *b > 0.0)
        .map(|(a, b)| (a / b).ln())
        .collect();
    let middle = mean(&logs)?;
    let interval = deviation(&logs).map(|d| {
        let half = t95(logs.len() - 1) * d / (logs.len() as f64).sqrt();
        ((middle - half).exp(), (middle + half).exp())
    });
    Some(Ratio {
        ratio: middle.exp(),
        interval,
        pairs: logs.len(),
    })
}

#[cfg(test)]
mod tests;
