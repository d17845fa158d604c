//! The split of a large plan into ranges of user keys that several threads merge in parallel.
//!
//! Cuts lie on user keys, so all versions of a key fall into one range. Candidates are the first
//! keys of input tables and, under the bytewise order, keys interpolated inside large tables. The
//! indexes of the tables give the bytes before each candidate.

use crate::compaction::pick::Plan;
use crate::version::TableFile;
use basalt_kv::key::{Cmp, internal_key};
use std::cmp::Ordering;
use std::sync::Arc;

/// User keys from the first (inclusive) to the second (exclusive); `None` is unbounded.
pub type SplitRange = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Least input bytes of a range, in multiples of the family's `table_bytes`.
const MIN_TABLES: u64 = 2;
/// Parts into which keys are interpolated inside one table.
const PROBES: u32 = 16;

/// Returns at most `max` ranges of about equal work, in ascending order, which together hold every
/// key once. Returns one range, `(None, None)`, if the plan is too small to be worth splitting.
/// `table_bytes` is the family's setting. Reads the indexes of the tables; if an index cannot be
/// read the split is less even.
pub fn subranges(cmp: &Cmp, plan: &Plan, table_bytes: u64, max: usize) -> Vec<SplitRange> {
    let total = plan.input_bytes();
    let worth = total / table_bytes.saturating_mul(MIN_TABLES).max(1);
    let parts = (max as u64).min(worth);
    if plan.trivial_move || parts < 2 {
        return vec![(None, None)];
    }
    let tables: Vec<&Arc<TableFile>> = plan.input_tables().collect();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for t in &tables {
        keys.push(t.smallest_user().to_vec());
        if matches!(cmp, Cmp::Bytewise) && t.meta.size.saturating_mul(parts) > total {
            keys.extend(between(t.smallest_user(), t.largest_user()));
        }
    }
    keys.sort_by(|a, b| cmp.user(a, b));
    keys.dedup_by(|a, b| cmp.user(a, b) == Ordering::Equal);
    // A cut at the very first key would leave an empty range.
    keys.remove(0);
    let weighted: Vec<(u64, Vec<u8>)> = keys
        .into_iter()
        .map(|k| (tables.iter().map(|t| bytes_before(cmp, t, &k)).sum(), k))
        .collect();
    let mut out = Vec::new();
    let mut from: Option<Vec<u8>> = None;
    let mut cut_at = 0;
    for part in 1..parts {
        let goal = total / parts * part;
        let Some((weight, key)) = weighted
            .iter()
            .filter(|(w, _)| *w > cut_at)
            .min_by_key(|(w, _)| w.abs_diff(goal))
        else {
            break;
        };
        // A cut that is nearer to the next goal, or to the end, is left for that goal.
        if weight.abs_diff(goal) > total / parts / 2 || *weight >= total {
            continue;
        }
        out.push((from.replace(key.clone()), Some(key.clone())));
        cut_at = *weight;
    }
    out.push((from, None));
    out
}

/// Returns about how many bytes of the table lie before the user key.
fn bytes_before(cmp: &Cmp, t: &Arc<TableFile>, key: &[u8]) -> u64 {
    if t.ends_before(key) {
        t.meta.size
    } else if cmp.user(t.smallest_user(), key) != Ordering::Less {
        0
    } else {
        t.reader()
            .and_then(|r| r.approximate_offset(&internal_key(key, u64::MAX), false))
            .map_or(t.meta.size / 2, |offset| offset.min(t.meta.size))
    }
}

/// Returns keys at even distances between two keys, by the 8 bytes behind their common prefix.
fn between(a: &[u8], b: &[u8]) -> Vec<Vec<u8>> {
    let common = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let number = |k: &[u8]| {
        let mut bytes = [0u8; 8];
        let rest = &k[common..];
        let n = rest.len().min(8);
        bytes[..n].copy_from_slice(&rest[..n]);
        u64::from_be_bytes(bytes)
    };
    let (low, high) = (number(a), number(b));
    let step = high.saturating_sub(low) / u64::from(PROBES);
    if step == 0 {
        return Vec::new();
    }
    (1..u64::from(PROBES))
        .map(|i| {
            let mut k = a[..common].to_vec();
            k.extend_from_slice(&(low + step * i).to_be_bytes());
            k
        })
        .collect()
}
