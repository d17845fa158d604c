//! Medians, spread, and intervals of ratios.
//!
//! Rates of a shared machine drift together over minutes. So a ratio is taken within each
//! interleaved pair, and the interval is that of the mean log ratio of the pairs, by Student's t
//! because pairs are few. Ratios multiply, so their logarithms are averaged: twice as fast and half
//! as fast cancel out.

/// Returns the median, which is the mean of the two middle values for an even number. The result is
/// `None` without values.
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

/// Returns the mean, or `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the standard deviation of the sample (divided by n - 1), or `None` for fewer than two
/// values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let n = values.len();
    (n > 1).then(|| {
        (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1) as f64).sqrt()
    })
}

/// Returns the deviation as a part of the mean, which says how far the windows of a run lie apart.
/// The result is `None` for fewer than two values or a mean of 0.
pub fn relative_deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    (mean > 0.0).then(|| deviation(values).map(|d| d / mean))?
}

/// Returns the two-sided 95 % quantile of Student's t.
fn t95(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    match freedom {
        0 => f64::INFINITY,
        // Beyond the table, the first term of the expansion around the normal quantile is used. Its
        // error is below 0.002.
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
    /// Number of pairs.
    pub pairs: usize,
}

/// Returns the ratio over pairs. A pair with a value that is not above 0 has no ratio and is left
/// out. The result is `None` if no pair remains.
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
