//! Chance that a seed repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A shared source of random numbers (SplitMix64), cheap to clone. Not for secrets.
#[derive(Clone)]
pub struct Random(Arc<AtomicU64>);

impl Random {
    /// The same seed gives the same numbers in the same order of calls.
    pub fn from_seed(seed: u64) -> Random {
        Random(Arc::new(AtomicU64::new(seed)))
    }
    /// Seeded by the operating system.
    pub fn from_system() -> Random {
        let mut seed = [0u8; 8];
        basalt_fs::fill_random(&mut seed);
        Random::from_seed(u64::from_le_bytes(seed))
    }
    /// The next 64 bits.
    pub fn next_u64(&self) -> u64 {
        let mut z = self
            .0
            .fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// The next 128 bits, for file and store ids. From a system seed they are drawn from the
    /// operating system directly, so that ids of different processes never meet.
    pub fn next_u128(&self) -> u128 {
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }
    /// A number below `n` (0 when `n` is 0).
    pub fn below(&self, n: u64) -> u64 {
        if n == 0 {
            0
        } else {
            ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
        }
    }
    /// True once in `n` times.
    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}
