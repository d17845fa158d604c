//! Keys and values: any of them can be made from its number and the seed, so nothing is remembered
//! and every read can be checked.
//!
//! Numbers below `keys()` are the keys of a filled store. From there on come as many that are never
//! put and lie between those, and behind them ([`Data::inserted`]) those that a workload adds, also
//! in between.

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
    /// Keys are spread over all bytes.
    random_keys: bool,
}

/// Rounds of added keys that random keys leave room for.
const ROUNDS: u64 = 1024;
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
        // Pieces of a hundred bytes, each begun with as many random ones as are not to go away and
        // continued with their repetition.
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

    /// With keys that are spread over all bytes and end in random ones, in the same order.
    pub fn with_random_keys(mut self, random: bool) -> Data {
        self.random_keys = random;
        self
    }

    /// How many keys there are.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// With values of other lengths.
    pub fn with_sizes(mut self, sizes: Sizes) -> Data {
        self.sizes = sizes;
        self
    }

    /// Bytes of the longest value.
    pub fn value_size(&self) -> usize {
        self.sizes.longest()
    }

    /// Bytes of the value of key number `n`.
    pub fn value_len(&self, n: u64) -> usize {
        self.sizes.at(mix(n ^ self.seed))
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Bytes of keys and values of a filled store.
    pub fn live_bytes(&self) -> u64 {
        let values = match self.sizes.only() {
            Some(len) => self.keys * len as u64,
            None => (0..self.keys).map(|n| self.value_len(n) as u64).sum(),
        };
        self.keys * self.key_size as u64 + values
    }

    /// The number of the i-th key that a workload adds to a filled store.
    pub fn inserted(&self, i: u64) -> u64 {
        2 * self.keys + i
    }

    /// True for a key that a filled store has.
    pub fn is_filled(&self, n: u64) -> bool {
        n < self.keys
    }

    /// The i-th key by age, added ones last. A filled store's keys are in the order of a fill in
    /// random order when `shuffled`, else in their own.
    pub fn in_order_of_age(&self, i: u64, shuffled: bool) -> u64 {
        match i.checked_sub(self.keys) {
            Some(added) => self.inserted(added),
            None if shuffled => self.shuffled(i),
            None => i,
        }
    }

    /// The n-th number of a random order of all keys.
    pub fn shuffled(&self, n: u64) -> u64 {
        let at = u128::from(n % self.keys) * u128::from(self.step) + u128::from(self.seed);
        (at % u128::from(self.keys)) as u64
    }

    /// Key number `n`. Keys of a filled store sort by their numbers; between each and the next lie
    /// one that is never put and one that may be added.
    pub fn key(&self, n: u64, out: &mut Vec<u8>) {
        let place = match n / self.keys {
            0 => n * 4,
            1 => (n - self.keys) * 4 + 1,
            // Added ones come in random order; once all gaps have one, the next round follows
            // behind the last key.
            round => (self.shuffled(n % self.keys) + (round - 2) * self.keys) * 4 + 2,
        };
        out.clear();
        if !self.random_keys {
            out.extend_from_slice(&place.to_be_bytes());
            out.resize(self.key_size, b'0');
            return;
        }
        // Room for the added keys of many rounds; what is added in still later ones lies close
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

    /// A value for key number `n`; `version` makes it differ from the others of the key.
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

    /// True when `value` can be a value of key number `n`.
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

    #[test]
    fn absent_and_added_keys_lie_between_the_others() {
        for random in [false, true] {
            lie_between(&Data::new(7, 50, 36, 10, 0.5).with_random_keys(random));
        }
    }

    fn lie_between(d: &Data) {
        let key = |n: u64| {
            let mut out = Vec::new();
            d.key(n, &mut out);
            out
        };
        let filled: Vec<Vec<u8>> = (0..50).map(key).collect();
        assert!(filled.is_sorted());
        let mut all: std::collections::BTreeSet<Vec<u8>> = filled.iter().cloned().collect();
        for n in 0..50 {
            let absent = key(50 + n);
            assert!(absent > filled[n as usize]);
            assert!(filled.get(n as usize + 1).is_none_or(|next| absent < *next));
            all.insert(absent);
        }
        // Added ones, also a second round of them, meet none of the others.
        for i in 0..100 {
            assert!(!d.is_filled(d.inserted(i)));
            all.insert(key(d.inserted(i)));
        }
        assert_eq!(all.len(), 200);
        let first_round = (0..50).map(|i| key(d.inserted(i)));
        assert!(first_round.filter(|k| *k < filled[49]).count() >= 49);
    }

    #[test]
    fn live_bytes_are_the_sum_of_what_is_put() {
        use crate::sizes::SizesAsked;
        let d = Data::new(7, 300, 16, 10, 0.5);
        assert_eq!(d.live_bytes(), 300 * 26);
        let d = d.with_sizes(Sizes::new(&SizesAsked::Pareto(200), 0).unwrap_or(Sizes::fixed(0)));
        let mut value = Vec::new();
        let mut sum = 0;
        for n in 0..300 {
            d.value(n, n * 3, &mut value);
            assert!(d.is_value_of(n, &value) && value.len() <= d.value_size());
            sum += 16 + value.len() as u64;
        }
        assert_eq!(d.live_bytes(), sum);
    }
}
