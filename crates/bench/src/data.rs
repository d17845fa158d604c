//! Keys and values. Each follows from its number and the seed, so that nothing is stored and every
//! read can be checked.
//!
//! Numbers below `keys()` are the keys of a filled store. The next `keys()` numbers are keys that
//! are never put; they lie between the keys of the store. The numbers after those
//! ([`Data::inserted`]) are keys that a workload adds; they lie in between as well.

use crate::sizes::Sizes;
use basalt::env::Random;

/// Makes keys and values.
#[derive(Clone)]
pub struct Data {
    seed: u64,
    keys: u64,
    key_size: usize,
    sizes: Sizes,
    /// Text that values are cut from.
    pool: std::sync::Arc<[u8]>,
    step: u64,
    /// True if keys are spread over all bytes.
    random_keys: bool,
}

/// Rounds of added keys that random keys leave space for.
const ROUNDS: u64 = 1024;
/// Bytes of the number at the head of each value.
const STAMP: usize = 8;

impl Data {
    /// Makes the data of `keys` keys. `compressible` is the part of a value that compression can
    /// remove, 0 to 1.
    pub fn new(
        seed: u64,
        keys: u64,
        key_size: usize,
        value_size: usize,
        compressible: f64,
    ) -> Data {
        let random = Random::from_seed(seed ^ 0x706f_6f6c);
        let mut pool = Vec::with_capacity(1 << 20);
        // The pool has pieces of 100 bytes. A piece begins with random bytes, as many as must
        // remain, and continues with their repetition.
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
            sizes: Sizes::fixed(value_size),
            pool: pool.into(),
            step: coprime_near(keys, seed),
            random_keys: false,
        }
    }

    /// Returns data whose keys are spread over all bytes and end in random bytes. The order of the
    /// keys stays.
    pub fn with_random_keys(mut self, random: bool) -> Data {
        self.random_keys = random;
        self
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Returns data whose values have other lengths.
    pub fn with_sizes(mut self, sizes: Sizes) -> Data {
        self.sizes = sizes;
        self
    }

    /// Returns the bytes of the longest value.
    pub fn value_size(&self) -> usize {
        self.sizes.longest()
    }

    /// Returns the bytes of the value of key number `n`.
    pub fn value_len(&self, n: u64) -> usize {
        self.sizes.at(mix(n ^ self.seed))
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the bytes of the keys and values of a filled store.
    pub fn live_bytes(&self) -> u64 {
        let values = match self.sizes.only() {
            Some(len) => self.keys * len as u64,
            None => (0..self.keys).map(|n| self.value_len(n) as u64).sum(),
        };
        self.keys * self.key_size as u64 + values
    }

    /// Returns the number of the i-th key that a workload adds to a filled store.
    pub fn inserted(&self, i: u64) -> u64 {
        2 * self.keys + i
    }

    /// Returns true for a key of a filled store.
    pub fn is_filled(&self, n: u64) -> bool {
        n < self.keys
    }

    /// Returns the i-th key by age, with added keys last. If `shuffled` is true, the keys of the
    /// filled store are in the order of a random fill, else in key order.
    pub fn in_order_of_age(&self, i: u64, shuffled: bool) -> u64 {
        match i.checked_sub(self.keys) {
            Some(added) => self.inserted(added),
            None if shuffled => self.shuffled(i),
            None => i,
        }
    }

    /// Returns the n-th number of a random order of all keys.
    pub fn shuffled(&self, n: u64) -> u64 {
        let at = u128::from(n % self.keys) * u128::from(self.step) + u128::from(self.seed);
        (at % u128::from(self.keys)) as u64
    }

    /// Writes key number `n` to `out`. The keys of a filled store sort by their numbers. Between
    /// two of them lie one key that is never put and one that may be added.
    pub fn key(&self, n: u64, out: &mut Vec<u8>) {
        let place = match n / self.keys {
            0 => n * 4,
            1 => (n - self.keys) * 4 + 1,
            // Added keys come in random order. When every gap has one, the next round follows
            // behind the last key.
            round => (self.shuffled(n % self.keys) + (round - 2) * self.keys) * 4 + 2,
        };
        out.clear();
        if !self.random_keys {
            out.extend_from_slice(&place.to_be_bytes());
            out.resize(self.key_size, b'0');
            return;
        }
        // This leaves space for the added keys of many rounds. Keys of still later rounds lie close
        // together at the end.
        let span = (u64::MAX / (4 * ROUNDS * self.keys.max(1))).max(1);
        let mut bits = mix(place ^ self.seed);
        let spread = match place.checked_mul(span) {
            Some(at) => at + bits % span,
            None => u64::MAX - 4 * ROUNDS * self.keys + place % (4 * ROUNDS * self.keys),
        };
        out.extend_from_slice(&spread.to_be_bytes());
        while out.len() < self.key_size {
            bits = mix(bits.wrapping_add(0x9e37_79b9_7f4a_7c15));
            let part = (self.key_size - out.len()).min(8);
            out.extend_from_slice(&bits.to_le_bytes()[..part]);
        }
    }

    /// Writes a value of key number `n` to `out`. `version` makes it differ from the other values
    /// of the key.
    pub fn value(&self, n: u64, version: u64, out: &mut Vec<u8>) {
        let len = self.value_len(n);
        out.clear();
        out.extend_from_slice(&n.to_be_bytes()[..STAMP.min(len)]);
        let mut at = (mix(n ^ mix(version ^ self.seed)) % self.pool.len() as u64) as usize;
        while out.len() < len {
            let part = (len - out.len()).min(self.pool.len() - at);
            out.extend_from_slice(&self.pool[at..at + part]);
            at = 0;
        }
    }

    /// Returns true if `value` is the value of key number `n` with this version.
    pub fn is_value(&self, n: u64, version: u64, value: &[u8]) -> bool {
        if !self.is_value_of(n, value) {
            return false;
        }
        let mut rest = &value[STAMP.min(value.len())..];
        let mut at = (mix(n ^ mix(version ^ self.seed)) % self.pool.len() as u64) as usize;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(self.pool.len() - at));
            if *part != self.pool[at..at + part.len()] {
                return false;
            }
            rest = behind;
            at = 0;
        }
        true
    }

    /// Returns true if `value` can be a value of key number `n`.
    pub fn is_value_of(&self, n: u64, value: &[u8]) -> bool {
        let len = self.value_len(n);
        let stamp = STAMP.min(len);
        value.len() == len && value[..stamp] == n.to_be_bytes()[..stamp]
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a number near `n` that shares no divisor with it. So its multiples visit every remainder
/// once.
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
mod tests;
