//! Random numbers that a seed repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A shared source of random numbers (SplitMix64). Cloning is cheap. The numbers are not for
/// secrets.
#[derive(Clone)]
pub struct Random(Arc<RandomState>);

/// The state that all clones of a [`Random`] share.
struct RandomState {
    state: AtomicU64,
    /// True if no seed was given. 128-bit ids then bypass the generator.
    from_system: bool,
}

impl Random {
    /// Returns a source that gives the same numbers for the same seed and order of calls.
    pub fn from_seed(seed: u64) -> Random {
        Random(Arc::new(RandomState {
            state: AtomicU64::new(seed),
            from_system: false,
        }))
    }
    /// Returns a source with a seed from the operating system.
    pub fn from_system() -> Random {
        let mut seed = [0u8; 8];
        basalt_fs::fill_random(&mut seed);
        Random(Arc::new(RandomState {
            state: AtomicU64::new(u64::from_le_bytes(seed)),
            from_system: true,
        }))
    }
    /// Returns the next 64 bits.
    pub fn next_u64(&self) -> u64 {
        let mut z = self
            .0
            .state
            .fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Returns the next 128 bits, for file and store ids. With a system seed, they come from the
    /// operating system directly, so that the ids of different processes never meet: 64 bits of
    /// generator state would repeat after some four billion processes, by the birthday bound.
    pub fn next_u128(&self) -> u128 {
        if self.0.from_system {
            let mut id = [0u8; 16];
            basalt_fs::fill_random(&mut id);
            return u128::from_le_bytes(id);
        }
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }
    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&self, n: u64) -> u64 {
        if n == 0 {
            0
        } else {
            ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
        }
    }
    /// Returns true once in `n` times.
    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests;
