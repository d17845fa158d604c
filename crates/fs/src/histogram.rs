//! A histogram that many threads record into without a lock. It belongs to the lowest crate,
//! because all other crates measure with it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Number of buckets for each power of two. A bucket is at most 1/32 of its values wide, and its
/// middle is at most 1/64 (1.6 %) off.
const SUB: usize = 32;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Number of tiers. Tier 0 holds 0..32 exactly; tier `t` holds `[2^(t+4), 2^(t+5))`; the last one
/// ends at `u64::MAX`.
const TIERS: usize = (64 - SUB_BITS + 1) as usize;

type Tier = [AtomicU64; SUB];

struct Buckets {
    /// The tiers, each allocated by its first value. An idle histogram takes about a kilobyte, a
    /// busy one 256 bytes more for each tier.
    tiers: [OnceLock<Box<Tier>>; TIERS],
    sum: AtomicU64,
    max: AtomicU64,
    min: AtomicU64,
}

fn place(value: u64) -> (usize, usize) {
    if value < SUB as u64 {
        return (0, value as usize);
    }
    let top = 63 - value.leading_zeros();
    let shift = top - SUB_BITS;
    ((shift + 1) as usize, (value >> shift) as usize - SUB)
}

/// Returns the middle of a bucket.
fn value_at(tier: usize, sub: usize) -> u64 {
    if tier == 0 {
        return sub as u64;
    }
    let shift = (tier - 1) as u32;
    let low = ((SUB + sub) as u64) << shift;
    low + ((1u64 << shift) >> 1)
}

/// A histogram of durations or sizes with a relative error of at most 1.6 %. Many threads may
/// record into it at once. It covers all of `u64`, and values below 32 are exact.
#[derive(Clone)]
pub struct Histogram(Arc<Buckets>);

/// The content of a histogram at one moment. The quantiles have the histogram's error; the rest is
/// exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistogramSummary {
    /// Returns the number of values.
    pub count: u64,
    /// Returns the sum of the values, modulo 2^64.
    pub sum: u64,
    /// Smallest value; 0 if there is none.
    pub min: u64,
    /// Largest value; 0 if there is none.
    pub max: u64,
    /// The median.
    pub p50: u64,
    /// The value that 90 % of the values do not exceed.
    pub p90: u64,
    /// The value that 99 % of the values do not exceed.
    pub p99: u64,
    /// The value that 99.9 % of the values do not exceed.
    pub p999: u64,
}

impl Histogram {
    /// Returns an empty histogram that is in no registry.
    pub fn new() -> Histogram {
        Histogram(Arc::new(Buckets {
            tiers: [const { OnceLock::new() }; TIERS],
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
        }))
    }

    fn bucket(&self, tier: usize, sub: usize) -> &AtomicU64 {
        &self.0.tiers[tier].get_or_init(|| Box::new([const { AtomicU64::new(0) }; SUB]))[sub]
    }

    fn note_extremes(&self, min: u64, max: u64) {
        // The plain load first keeps the cache line shared, because the extremes change seldom.
        if max > self.0.max.load(Relaxed) {
            self.0.max.fetch_max(max, Relaxed);
        }
        if min < self.0.min.load(Relaxed) {
            self.0.min.fetch_min(min, Relaxed);
        }
    }

    /// Records one value. Durations are microseconds by convention.
    pub fn record(&self, value: u64) {
        let (tier, sub) = place(value);
        self.note_extremes(value, value);
        self.0.sum.fetch_add(value, Relaxed);
        self.bucket(tier, sub).fetch_add(1, Relaxed);
    }

    /// Returns the middle and the count of each filled bucket, in rising order.
    fn filled(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for (t, tier) in self.0.tiers.iter().enumerate() {
            for (s, bucket) in tier.get().into_iter().flat_map(|t| t.iter()).enumerate() {
                let n = bucket.load(Relaxed);
                if n > 0 {
                    out.push((value_at(t, s), n));
                }
            }
        }
        out
    }

    fn quantile_of(&self, filled: &[(u64, u64)], count: u64, q: f64) -> u64 {
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (value, n) in filled {
            seen += n;
            if seen >= rank {
                // The extremes are known exactly, and the middle of a bucket may lie outside them.
                let (min, max) = (self.0.min.load(Relaxed), self.0.max.load(Relaxed));
                return (*value).max(min).min(max);
            }
        }
        0
    }

    /// Returns the value at quantile `q` in 0..=1, or 0 if there is no value.
    pub fn quantile(&self, q: f64) -> u64 {
        let filled = self.filled();
        let count = filled.iter().map(|(_, n)| n).sum();
        self.quantile_of(&filled, count, q)
    }
    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        let tiers = self.0.tiers.iter().filter_map(|t| t.get());
        tiers.flat_map(|t| t.iter()).map(|b| b.load(Relaxed)).sum()
    }
    /// Returns the sum of the values, modulo 2^64.
    pub fn sum(&self) -> u64 {
        self.0.sum.load(Relaxed)
    }
    /// Returns the largest value.
    pub fn max(&self) -> u64 {
        self.0.max.load(Relaxed)
    }
    /// Returns the smallest value, or 0 if there is none.
    pub fn min(&self) -> u64 {
        match self.0.min.load(Relaxed) {
            u64::MAX if self.max() != u64::MAX => 0,
            min => min,
        }
    }
    /// Adds the values of another histogram.
    pub fn merge(&self, other: &Histogram) {
        for (t, tier) in other.0.tiers.iter().enumerate() {
            for (s, bucket) in tier.get().into_iter().flat_map(|t| t.iter()).enumerate() {
                let n = bucket.load(Relaxed);
                if n > 0 {
                    self.bucket(t, s).fetch_add(n, Relaxed);
                }
            }
        }
        self.0.sum.fetch_add(other.sum(), Relaxed);
        self.note_extremes(other.0.min.load(Relaxed), other.max());
    }
    /// Returns the count, the sum, the extremes and the quantiles, from one pass over the buckets.
    pub fn summary(&self) -> HistogramSummary {
        let filled = self.filled();
        let count = filled.iter().map(|(_, n)| n).sum();
        let at = |q| self.quantile_of(&filled, count, q);
        HistogramSummary {
            count,
            sum: self.sum(),
            min: self.min(),
            max: self.max(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}
