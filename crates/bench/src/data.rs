//! Keys and values: any of them can be made from its number and the seed, so nothing is remembered and every read
//! can be checked.

use basalt::env::Random;

/// Makes keys and values.
#[derive(Clone)]
pub struct Data {
    seed: u64,
    keys: u64,
    key_size: usize,
    value_size: usize,
    /// Text that values are cut from.
    pool: std::sync::Arc<[u8]>,
    step: u64,
}

/// Bytes of the number at the head of each value.
const STAMP: usize = 8;

impl Data {
    /// For `keys` keys. `compressible` is the part of a value that compression can take away.
    pub fn new(
        seed: u64,
        keys: u64,
        key_size: usize,
        value_size: usize,
        compressible: f64,
    ) -> Data {
        let random = Random::from_seed(seed ^ 0x706f_6f6c);
        let mut pool = Vec::with_capacity(1 << 20);
        // Pieces of a hundred bytes, each begun with as many random ones as are not to go away and continued
        // with their repetition.
        let fresh = (((1.0 - compressible) * 100.0).round() as usize).clamp(1, 100);
        while pool.len() < 1 << 20 {
            let start = pool.len();
            for _ in 0..fresh {
                pool.push(random.next_u64() as u8);
            }
            for i in 0..100 - fresh {
                pool.push(pool[start + i % fresh]);
            }
        }
        Data {
            seed,
            keys,
            key_size: key_size.max(STAMP),
            value_size,
            pool: pool.into(),
            step: coprime_near(keys, seed),
        }
    }

    /// How many keys there are.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Bytes of a value.
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bytes of one entry.
    pub fn entry_bytes(&self) -> u64 {
        (self.key_size + self.value_size) as u64
    }

    /// The n-th number of a random order of all keys.
    pub fn shuffled(&self, n: u64) -> u64 {
        let at = u128::from(n % self.keys) * u128::from(self.step) + u128::from(self.seed);
        (at % u128::from(self.keys)) as u64
    }

    /// Key number `n`; numbers from `keys()` on make keys that were never put. Keys sort by their numbers.
    pub fn key(&self, n: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&n.to_be_bytes());
        out.resize(self.key_size, b'0');
    }

    /// A value for key number `n`; `version` makes it differ from the others of the key.
    pub fn value(&self, n: u64, version: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&n.to_be_bytes()[..STAMP.min(self.value_size)]);
        let mut at = (mix(n ^ mix(version ^ self.seed)) % self.pool.len() as u64) as usize;
        while out.len() < self.value_size {
            let part = (self.value_size - out.len()).min(self.pool.len() - at);
            out.extend_from_slice(&self.pool[at..at + part]);
            at = 0;
        }
    }

    /// True when `value` can be a value of key number `n`.
    pub fn is_value_of(&self, n: u64, value: &[u8]) -> bool {
        let stamp = STAMP.min(self.value_size);
        value.len() == self.value_size && value[..stamp] == n.to_be_bytes()[..stamp]
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number that shares no divisor with `n`, so that its multiples visit every remainder once.
fn coprime_near(n: u64, seed: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut step = (mix(seed) % n.max(1)) | 1;
    while gcd(step, n) != 1 {
        step += 2;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_visited_once() {
        for keys in [1, 2, 3, 10, 97, 1000, 4096] {
            let d = Data::new(7, keys, 16, 10, 0.5);
            let mut seen: Vec<u64> = (0..keys).map(|n| d.shuffled(n)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..keys).collect::<Vec<_>>());
        }
    }

    #[test]
    fn values_have_their_size_and_are_recognised() {
        for size in [0, 3, 8, 9, 128, 3 << 20] {
            let d = Data::new(7, 100, 16, size, 0.5);
            let (mut a, mut b) = (Vec::new(), Vec::new());
            d.value(5, 1, &mut a);
            d.value(5, 1, &mut b);
            assert_eq!((a.len(), &a), (size, &b));
            assert!(d.is_value_of(5, &a));
            if size >= 8 {
                assert!(!d.is_value_of(6, &a));
                assert!(!d.is_value_of(5, &a[1..]));
            }
        }
        let d = Data::new(7, 100, 24, 9, 0.0);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        d.key(255, &mut a);
        d.key(256, &mut b);
        assert!(a < b && a.len() == 24);
    }
}
