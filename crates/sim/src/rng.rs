//! Random numbers from a seed, for the simulated disk and device, the fault injector, the byte
//! mutator and the conformance suite. The generator draws the same numbers as `basalt_env::Random`.

/// A SplitMix64 generator: small, fast, and good enough to choose what a power cut leaves. It is
/// not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Returns a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns a generator for one purpose, independent of other generators. The same parts give
    /// the same numbers.
    pub fn of(parts: &[u64]) -> Rng {
        let mut c = Rng(0x6a09_e667_f3bc_c908);
        for &p in parts {
            c.0 ^= p;
            c.0 = c.next_u64();
        }
        c
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns true `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns true in one of two draws.
    pub fn coin(&mut self) -> bool {
        self.next_u64() & 1 == 1
    }

    /// Returns one of the items. There must be at least one.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Fills a buffer with noise.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }
}
