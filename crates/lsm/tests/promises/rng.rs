//! Random numbers by seed, and the campaign's scale.
//!
//! The generator is written anew here, so that the proof shares none with the code that it tests.

/// A small generator (xorshift64*, seeded through a multiply-mix).
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn of(parts: &[u64]) -> Rng {
        let mut state = 0x51_7c_c1_b7_27_22_0a_95u64;
        for &p in parts {
            state = mix(state ^ mix(p.wrapping_add(0x2545_f491_4f6c_dd1d)));
        }
        Rng(state | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        mix(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    /// Returns a number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a number from `from` up to and without `to`.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

/// Mixes 64 bits strongly (the finaliser of MurmurHash3).
pub fn mix(mut z: u64) -> u64 {
    z ^= z >> 33;
    z = z.wrapping_mul(0xff51_afd7_ed55_8ccd);
    z ^= z >> 33;
    z = z.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    z ^ (z >> 33)
}

pub use basalt_sim::campaign::scale;
/// Returns the numbers of an environment variable, separated by commas.
pub fn numbers_of(variable: &str) -> Option<Vec<u64>> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.split(',')
            .map(|n| n.trim().parse().expect("numbers separated by commas"))
            .collect(),
    )
}

/// Runs jobs `0..n` on two threads and returns their results in order. A panic in one ends the test
/// after all have run. If the campaign is to run one case (`BASALT_CASE`), only that job runs.
pub fn on_two_threads<T: Send + 'static>(
    n: u64,
    job: impl Fn(u64) -> T + Send + Sync + 'static,
) -> Vec<T> {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};
    let job = Arc::new(job);
    let cases = basalt_sim::campaign::cases(0..n);
    let n = cases.end;
    let next = Arc::new(AtomicU64::new(cases.start));
    let done = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..2)
        .map(|i| {
            let (job, next, done) = (job.clone(), next.clone(), done.clone());
            basalt_env::thread::spawn(&format!("campaign-{i}"), move || {
                loop {
                    let i = next.fetch_add(1, SeqCst);
                    if i >= n {
                        return;
                    }
                    let result = job(i);
                    done.lock()
                        .expect("no job panics in here")
                        .push((i, result));
                }
            })
            .expect("a thread")
        })
        .collect();
    let failed = threads
        .into_iter()
        .map(|t| t.join())
        .filter(Result::is_err)
        .count();
    assert_eq!(
        failed, 0,
        "a job of the campaign failed; its own message is above"
    );
    let mut results = std::mem::take(&mut *done.lock().expect("all threads ended"));
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, r)| r).collect()
}
