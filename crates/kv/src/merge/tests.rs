//! Operators, and folding in groups: the results have the effect of the operands.

use super::fold::Fold;
use super::*;
use basalt_env::Random;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

fn merging(operator: impl MergeOperator + 'static) -> Merging {
    Merging::new("family".into(), Some(Arc::new(operator)))
}

#[test]
fn built_in_operators_merge_in_any_portions() {
    let eight = |n: i64| n.to_le_bytes().to_vec();
    let numbers = vec![
        eight(5),
        eight(-7),
        eight(i64::MAX),
        eight(i64::MIN),
        eight(2),
    ];
    let texts: Vec<Vec<u8>> = [&b"b"[..], b"", b"ab", b"b\0", b"\xff"]
        .iter()
        .map(|t| t.to_vec())
        .collect();
    type Case<'a> = (Arc<dyn MergeOperator>, &'a Vec<Vec<u8>>, Vec<u8>);
    let cases: Vec<Case<'_>> = vec![
        (Arc::new(AddU64), &numbers, eight(-1)),
        (Arc::new(AddI64), &numbers, eight(-1)),
        (Arc::new(Max), &texts, b"\xff".to_vec()),
        (Arc::new(Min), &texts, b"".to_vec()),
        (
            Arc::new(Append::new(",")),
            &texts,
            b"b,,ab,b\0,\xff".to_vec(),
        ),
        (Arc::new(Append::new("")), &texts, b"babb\0\xff".to_vec()),
    ];
    for (operator, all, expected) in cases {
        let name = operator.name().to_owned();
        let again = built_in(&name).expect("found by its name");
        assert_eq!(again.name(), name);
        let slices: Vec<&[u8]> = all.iter().map(|o| &o[..]).collect();
        for operator in [operator, again] {
            let whole = operator.full_merge(b"k", None, &slices).unwrap();
            assert_eq!(whole, expected, "{name}");
            for base in 0..slices.len() {
                // The first one is a value, or there is none. Any run of the others is merged
                // before.
                let existing = (base > 0).then(|| operator.full_merge(b"k", None, &slices[..base]));
                let existing = existing.transpose().unwrap();
                for from in base..slices.len() {
                    for to in from + 2..=slices.len() {
                        let one = operator.partial_merge(b"k", &slices[from..to]).unwrap();
                        let mut fewer = slices[base..from].to_vec();
                        fewer.push(&one);
                        fewer.extend(&slices[to..]);
                        let got = operator.full_merge(b"k", existing.as_deref(), &fewer);
                        assert_eq!(got.unwrap(), whole, "{name} {base} {from} {to}");
                    }
                }
            }
        }
    }
    for unknown in [
        "",
        "basalt.add",
        "basalt.append:2",
        "basalt.append:zz",
        "basalt.append:2C",
        "basalt.append:+1",
    ] {
        assert!(built_in(unknown).is_none(), "{unknown}");
    }
}

#[test]
fn integer_sums_wrap_and_wrong_lengths_are_refused() {
    let max = u64::MAX.to_le_bytes();
    let two = 2u64.to_le_bytes();
    let sum = AddU64.full_merge(b"", Some(&max), &[&two]).unwrap();
    assert_eq!(sum, 1u64.to_le_bytes());
    for operator in [&AddU64 as &dyn MergeOperator, &AddI64] {
        operator.check_operand(&two).unwrap();
        for bad in [&b""[..], b"1234567", b"123456789"] {
            assert!(operator.check_operand(bad).is_err());
            assert!(operator.full_merge(b"", Some(bad), &[&two]).is_err());
            assert!(operator.full_merge(b"", None, &[&two, bad]).is_err());
            assert_eq!(operator.partial_merge(b"", &[&two, bad]), None);
        }
    }
}

/// Returns what a reader of the key sees after a fold.
fn outcome(fold: &mut Fold<'_>, operands: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
    let mut out = Vec::new();
    for (seq, operand) in operands.iter().enumerate().rev() {
        let mut write = |_: &[u8], seq, o: &[u8]| {
            out.push((seq, o.to_vec()));
            Ok(())
        };
        fold.push(b"k", seq as u64, operand, &mut write).unwrap();
    }
    let mut write = |_: &[u8], seq, o: &[u8]| {
        out.push((seq, o.to_vec()));
        Ok(())
    };
    fold.release(&mut write).unwrap();
    assert!(!fold.is_open());
    out
}

#[test]
fn operands_are_folded_in_groups_and_keep_their_order() {
    let m = merging(Append::new(","));
    let r = Random::from_seed(1);
    for n in [1u64, 2, 3, 1023, 1024, 1025, 2047, 2049, 5000] {
        let operands: Vec<Vec<u8>> = (0..n)
            .map(|i| format!("{i}{}", "x".repeat(r.below(9) as usize)).into_bytes())
            .collect();
        let mut fold = Fold::new(&m);
        let out = outcome(&mut fold, &operands);
        let whole = (n - 1, operands.join(&b","[..]));
        assert_eq!(out, [whole]);
        assert_eq!(fold.merged, n - 1);
        // The same fold again, now over a value.
        for (seq, operand) in operands.iter().enumerate().rev() {
            fold.push(b"k", seq as u64, operand, &mut |_, _, _| unreachable!())
                .unwrap();
        }
        let (seq, value) = fold.over(Some(b"v")).unwrap();
        assert_eq!(seq, n - 1);
        assert_eq!(value, [b"v,", &operands.join(&b","[..])[..]].concat());
        assert!(!fold.is_open());
    }
}

/// Returns the operands as a fold writes them if it merged none.
fn as_they_are(operands: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
    let numbered = operands.iter().enumerate().rev();
    numbered.map(|(seq, o)| (seq as u64, o.clone())).collect()
}

/// Counts the bytes that it takes. If told so, it merges no operands beforehand.
struct Counting(Arc<AtomicU64>, bool);
impl MergeOperator for Counting {
    fn name(&self) -> &str {
        "test.counting"
    }
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, MergeRefusal> {
        Append::new("").full_merge(key, existing, operands)
    }
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        let bytes: usize = operands.iter().map(|o| o.len()).sum();
        self.0.fetch_add(bytes as u64, SeqCst);
        self.1
            .then(|| Append::new("").partial_merge(key, operands))
            .flatten()
    }
}

#[test]
fn each_byte_is_merged_a_fixed_number_of_times() {
    let seen = Arc::new(AtomicU64::new(0));
    let m = merging(Counting(seen.clone(), true));
    let operands = vec![vec![7; 100]; 50_000];
    assert_eq!(outcome(&mut Fold::new(&m), &operands).len(), 1);
    let bytes = seen.load(SeqCst);
    assert!(bytes <= 2 * 5_000_000, "{bytes} bytes merged");
}

#[test]
fn operands_that_cannot_be_merged_are_kept() {
    let seen = Arc::new(AtomicU64::new(0));
    let is_refused = merging(Counting(seen.clone(), false));
    let operands: Vec<Vec<u8>> = (0..3000u64).map(|i| i.to_le_bytes().to_vec()).collect();
    let same: Vec<(u64, Vec<u8>)> = as_they_are(&operands);
    assert_eq!(outcome(&mut Fold::new(&is_refused), &operands), same);
    // The operator is asked once, not for every group.
    assert_eq!(seen.load(SeqCst), 1024 * 8);
    assert_eq!(outcome(&mut Fold::new(&Merging::none()), &operands), same);
    // These operands are larger than the memory limit. They are written on the way, and none is
    // merged over the value below.
    let large = vec![vec![1; 8 << 20]; 10];
    let is_refused = merging(Counting(seen, false));
    let mut fold = Fold::new(&is_refused);
    let mut written = 0;
    for (seq, operand) in large.iter().enumerate().rev() {
        let mut write = |_: &[u8], _, _: &[u8]| {
            written += 1;
            Ok(())
        };
        fold.push(b"k", seq as u64, operand, &mut write).unwrap();
        assert!(fold.is_open());
    }
    assert_eq!(written, 10);
    assert!(fold.over(None).is_none());
    fold.release(&mut |_, _, _| unreachable!()).unwrap();
    assert!(!fold.is_open());
}

/// This operator refuses operands with an R, and panics at a P.
pub struct RefusingOperator;
impl MergeOperator for RefusingOperator {
    fn name(&self) -> &str {
        "test.touchy"
    }
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, MergeRefusal> {
        let all = existing.into_iter().chain(operands.iter().copied());
        for part in all {
            if part.contains(&b'R') {
                return Err(MergeRefusal::new("an R"));
            }
            assert!(!part.contains(&b'P'), "a P");
        }
        Append::new(",").full_merge(key, existing, operands)
    }
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        for part in operands {
            if part.contains(&b'R') {
                return None;
            }
            assert!(!part.contains(&b'P'), "a P");
        }
        Append::new(",").partial_merge(key, operands)
    }
}

#[test]
fn a_failed_merge_is_reported_and_keeps_the_operands() {
    let m = merging(RefusingOperator).with_limit(9);
    for (bad, says) in [
        ("R", "refused by merge operator \"test.touchy\": an R"),
        ("P", "made merge operator \"test.touchy\" panic: a P"),
        (
            "12345678",
            "into a value of 10 bytes, at most 9 are allowed",
        ),
    ] {
        let e = m
            .full(b"key", None, &[b"a", bad.as_bytes()])
            .expect_err("not merged");
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert_eq!(e.reach(), Reach::Operation);
        let text = e.to_string();
        for part in [says, "family \"family\"", "a key of 3 bytes", "(2)"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        let operands = vec![b"a".to_vec(), bad.as_bytes().to_vec()];
        let mut fold = Fold::new(&m);
        let same: Vec<(u64, Vec<u8>)> = as_they_are(&operands);
        assert_eq!(outcome(&mut fold, &operands), same);
        for (seq, operand) in operands.iter().enumerate().rev() {
            fold.push(b"k", seq as u64, operand, &mut |_, _, _| unreachable!())
                .unwrap();
        }
        assert!(fold.over(None).is_none());
        assert!(fold.is_open());
        assert_eq!(fold.refused, 1);
    }
}
