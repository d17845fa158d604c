//! The choice of the next key: uniform, zipfian, or the latest first.

use crate::data::Data;
use basalt::env::Random;
use clap::ValueEnum;

/// A distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Choose each key with equal probability
    Uniform,
    /// Choose few keys most of the time (exponent 0.99), spread over the whole range of keys
    Zipfian,
    /// Choose few keys most of the time, the newest ones
    Latest,
    /// Choose one key after the other in a random order, again and again: each overwrite hits the
    /// oldest entry, as in a queue (puts alone)
    Cyclic,
}

/// The exponent that YCSB uses.
const EXPONENT: f64 = 0.99;

/// Returns a random number in [0, 1).
pub fn unit(random: &Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the number of a key: one of `data`'s keys, or of `inserted` keys that were put after
/// them.
pub fn pick(how: Distribution, random: &Random, data: &Data, inserted: u64) -> u64 {
    let total = data.keys() + inserted;
    let (zipf, oldest_first) = match how {
        // A put takes the number of its turn. Other operations do not use this distribution.
        Distribution::Uniform | Distribution::Cyclic => {
            return data.in_order_of_age(random.below(total), false);
        }
        Distribution::Zipfian => (Zipf::new(data.keys()), false),
        Distribution::Latest => (Zipf::new(total), true),
    };
    let rank = zipf.rank(random);
    if oldest_first {
        data.in_order_of_age(total - 1 - rank, true)
    } else {
        data.shuffled(rank)
    }
}

/// Ranks from 0, where the probability of rank r is proportional to 1 / (r + 1)^0.99.
/// Rejection-inversion (Hörmann and Derflinger, 1996) is exact for any number of ranks, without a
/// table of their sums.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    ranks: u64,
    at_one: f64,
    at_end: f64,
    shortcut: f64,
}

impl Zipf {
    /// Makes a distribution over `ranks` ranks, at least 1.
    pub fn new(ranks: u64) -> Zipf {
        let ranks = ranks.max(1);
        Zipf {
            ranks,
            at_one: integral(1.5) - 1.0,
            at_end: integral(ranks as f64 + 0.5),
            shortcut: 2.0 - inverse(integral(2.5) - density(2.0)),
        }
    }

    /// Returns a random rank.
    pub fn rank(&self, random: &Random) -> u64 {
        loop {
            let u = self.at_end + unit(random) * (self.at_one - self.at_end);
            let x = inverse(u);
            let k = x.round().clamp(1.0, self.ranks as f64);
            if k - x <= self.shortcut || u >= integral(k + 0.5) - density(k) {
                return k as u64 - 1;
            }
        }
    }
}

fn density(x: f64) -> f64 {
    (-EXPONENT * x.ln()).exp()
}

/// Returns the integral of the density, which is 0 at 1.
fn integral(x: f64) -> f64 {
    let log = x.ln();
    let t = (1.0 - EXPONENT) * log;
    let slope = if t.abs() > 1e-8 {
        t.exp_m1() / t
    } else {
        1.0 + t / 2.0
    };
    slope * log
}

fn inverse(y: f64) -> f64 {
    let t = (y * (1.0 - EXPONENT)).max(-1.0);
    let slope = if t.abs() > 1e-8 {
        t.ln_1p() / t
    } else {
        1.0 - t / 2.0
    };
    (slope * y).exp()
}

#[cfg(test)]
mod tests;
