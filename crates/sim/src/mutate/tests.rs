//! Unit tests of `mutate`.

use super::*;
use std::panic::catch_unwind;

const SOUND: &[u8] = b"length=0005 and five bytes";

/// A planted bug: this decoder believes the length.
fn canary(bytes: &[u8]) -> Verdict {
    let Some(digits) = bytes
        .strip_prefix(b"length=")
        .and_then(|rest| rest.get(..4))
    else {
        return Verdict::Refused;
    };
    match std::str::from_utf8(digits)
        .ok()
        .and_then(|d| d.parse::<usize>().ok())
    {
        Some(n) => Verdict::of(!bytes[11..][..n].is_empty()),
        None => Verdict::Refused,
    }
}

#[test]
fn a_planted_bug_is_found_and_its_case_number_repeats_it() {
    let target = Target {
        name: "canary",
        run: canary,
        seeds: || vec![SOUND.to_vec()],
        words: &[b"9"],
    };
    let seeds = (target.seeds)();
    let found: Vec<u64> = (0..20_000)
        .filter(|n| catch_unwind(|| (target.run)(&mutant(&target, &seeds, *n))).is_err())
        .collect();
    assert!(found.len() > 20, "only {} mutants found it", found.len());
    assert!(catch_unwind(|| campaign(&target, found[0])).is_ok());
    assert!(catch_unwind(|| campaign(&target, found[0] + 1)).is_err());
}

#[test]
fn mutants_differ_from_their_seed_and_from_each_other() {
    let target = Target {
        name: "spread",
        run: |_| Verdict::Accepted,
        seeds: || vec![SOUND.to_vec(), vec![0; 2000]],
        words: &[],
    };
    let seeds = (target.seeds)();
    let all: std::collections::BTreeSet<Vec<u8>> =
        (0..5000).map(|n| mutant(&target, &seeds, n)).collect();
    assert!(all.len() > 4000, "{} different mutants", all.len());
    assert!(all.iter().all(|m| m.len() <= 2000 + 4 * 2000));
    assert_eq!(campaign(&target, 10).executions(), 12);
}
