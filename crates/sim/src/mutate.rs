//! Wrong bytes by seed: the one mutator that tests every decoder of the project.
//!
//! A decoder's [`Target`] says how the decoder runs on any bytes, what must hold then (the target
//! asserts this itself), and from which sound inputs mutants are made. [`campaign`] runs a number
//! of mutants of it and counts the accepted and the refused ones. On a failure it prints the one
//! line that repeats it. A coverage-guided fuzzer in `fuzz/` drives the same targets. This module
//! is the part of that proof that runs in the ordinary test command and needs nothing installed.
//!
//! A mutant depends only on the target's name and its own number, so the number repeats it
//! anywhere.

pub use crate::campaign::scale;
use crate::rng::Rng;
use basalt_fs::{Bytes, Error, ErrorKind, File, Intent, Result};
use std::sync::Arc;

/// The result of a decoder for one input. Any input must lead to one of the two, and a panic is a
/// failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The decoder read the input, and all assertions of the target held.
    Accepted,
    /// The decoder refused the input with a typed error.
    Refused,
}

impl Verdict {
    /// Returns `Accepted` if the argument is true, and `Refused` otherwise.
    pub fn of(accepted: bool) -> Verdict {
        if accepted {
            Verdict::Accepted
        } else {
            Verdict::Refused
        }
    }
}

/// A decoder that any bytes are fed to.
#[derive(Clone, Copy)]
pub struct Target {
    /// The target's name, the same here, in `fuzz/` and in `docs/testing/fuzzing.md`.
    pub name: &'static str,
    /// Runs the decoder on one input and asserts what must hold.
    pub run: fn(&[u8]) -> Verdict,
    /// Returns sound inputs to begin with: at least one, none of them empty.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Bytes and words with a meaning in the format: magic numbers, limits, punctuation.
    pub words: &'static [&'static [u8]],
}

/// The results of a campaign's mutants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of accepted mutants.
    pub accepted: u64,
    /// Number of refused mutants.
    pub refused: u64,
}

impl Tally {
    /// Returns the number of inputs run.
    pub fn executions(&self) -> u64 {
        self.accepted + self.refused
    }
}

/// Runs the seeds unchanged, then `mutants` mutants of them, and prints the counts.
/// `BASALT_MUTANT=name:number` runs only that mutant of that target and shows it.
pub fn campaign(target: &Target, mutants: u64) -> Tally {
    let seeds = (target.seeds)();
    assert!(
        !seeds.is_empty() && seeds.iter().all(|s| !s.is_empty()),
        "{}: a target needs seeds",
        target.name
    );
    let mut tally = Tally::default();
    if let Ok(wanted) = std::env::var("BASALT_MUTANT") {
        if let Some((name, number)) = wanted.split_once(':')
            && name == target.name
            && let Ok(number) = number.parse()
        {
            let input = mutant(target, &seeds, number);
            crate::campaign!("{wanted}: {} bytes {:02x?}", input.len(), input);
            count(&mut tally, (target.run)(&input));
        }
        return tally;
    }
    for seed in &seeds {
        count(&mut tally, (target.run)(seed));
    }
    for number in 0..mutants {
        let input = mutant(target, &seeds, number);
        let repeat = Repeat(target.name, number);
        count(&mut tally, (target.run)(&input));
        std::mem::forget(repeat);
    }
    crate::campaign!(
        "mutants of {}: executions={} accepted={} refused={}",
        target.name,
        tally.executions(),
        tally.accepted,
        tally.refused
    );
    tally
}

/// Runs every target, `mutants(name)` mutants each, times the scale, and prints the sum. A target
/// tests nothing if fewer than `least` inputs were accepted, or refused, and then the test fails.
/// The test also fails if the sum is below `floor` times the scale.
pub fn campaigns<'t>(
    targets: impl IntoIterator<Item = &'t Target>,
    mutants: impl Fn(&str) -> u64,
    least: u64,
    floor: u64,
) {
    let (mut executions, mut names) = (0, std::collections::BTreeSet::new());
    for target in targets {
        assert!(names.insert(target.name), "two targets {}", target.name);
        let tally = campaign(target, mutants(target.name) * scale());
        executions += tally.executions();
        if tally.executions() > 0 {
            assert!(
                tally.accepted >= least && tally.refused >= least,
                "{}: too tame or too wild: {tally:?}",
                target.name
            );
        }
    }
    crate::campaign!("mutant_executions={executions}");
    assert!(std::env::var("BASALT_MUTANT").is_ok() || executions >= scale().floor(floor));
}

fn count(tally: &mut Tally, verdict: Verdict) {
    match verdict {
        Verdict::Accepted => tally.accepted += 1,
        Verdict::Refused => tally.refused += 1,
    }
}

/// Prints how to repeat a mutant if its run unwinds.
struct Repeat(&'static str, u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        eprintln!(
            "repeat with: BASALT_MUTANT={}:{} cargo test --workspace mutants -- --nocapture",
            self.0, self.1
        );
    }
}

/// Returns the mutant of this number.
fn mutant(target: &Target, seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    // FNV-1a of the name, so that different targets make different choices for one number.
    let name = target.name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut random = Rng::new(name ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let pick = |random: &mut Rng| &seeds[random.below(seeds.len() as u64) as usize];
    let mut bytes = pick(&mut random).clone();
    for _ in 0..1 + random.below(4) {
        let other = pick(&mut random);
        mutate(&mut random, &mut bytes, other, target.words);
    }
    bytes
}

/// Numbers at which lengths, counts and positions go wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    (1 << 56) - 1,
    1 << 56,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes `bytes` once, as a disk, a network or an attacker might: flips, fills, cuts, copies,
/// inserts, splices from `other`, writes an edge number in place (fixed width or varint), or a word
/// of the format.
pub(crate) fn mutate(random: &mut Rng, bytes: &mut Vec<u8>, other: &[u8], words: &[&[u8]]) {
    if bytes.is_empty() {
        bytes.push(random.next_u64() as u8);
        return;
    }
    let len = bytes.len();
    let at = random.below(len as u64) as usize;
    let most = random.below(64) + 1;
    let n = (1 + random.below(most) as usize).min(len - at);
    match random.below(15) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.next_u64() as u8,
        3 => bytes[at] = bytes[at].wrapping_add([1, 0xff][random.below(2) as usize]),
        4 => bytes[at..at + n].fill([0, 0xff, 0x20][random.below(3) as usize]),
        5 => bytes.truncate(at),
        6 => {
            bytes.drain(at..at + n);
        }
        7 => {
            let new: Vec<u8> = (0..n).map(|_| random.next_u64() as u8).collect();
            bytes.splice(at..at, new);
        }
        8 => {
            // Some bytes are duplicated.
            let again = bytes[at..at + n].to_vec();
            bytes.splice(at..at, again);
        }
        9 => {
            let from = random.below((len - n) as u64 + 1) as usize;
            bytes.copy_within(from..from + n, at);
        }
        10 => {
            let edge = EDGES[random.below(EDGES.len() as u64) as usize];
            let width = [1, 2, 4, 8][random.below(4) as usize];
            for (place, b) in bytes[at..].iter_mut().zip(edge.to_le_bytes()).take(width) {
                *place = b;
            }
        }
        11 => {
            // A varint replaces one byte. The bytes behind it are moved or overwritten.
            let mut edge = EDGES[random.below(EDGES.len() as u64) as usize];
            let mut varint = Vec::new();
            while edge >= 0x80 {
                varint.push(edge as u8 | 0x80);
                edge >>= 7;
            }
            varint.push(edge as u8);
            let over = if random.coin() {
                1
            } else {
                varint.len().min(len - at)
            };
            bytes.splice(at..at + over, varint);
        }
        12 if !words.is_empty() => {
            let word = words[random.below(words.len() as u64) as usize];
            let over = if random.coin() {
                0
            } else {
                word.len().min(len - at)
            };
            bytes.splice(at..at + over, word.iter().copied());
        }
        13 if !other.is_empty() => {
            // The front of this input and the back of another one.
            let from = random.below(other.len() as u64) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            // A stale or misdirected sector.
            let sector = 512.min(len);
            let places = (len / sector) as u64;
            let mut place = || random.below(places) as usize * sector;
            let (from, to) = (place(), place());
            bytes.copy_within(from..from + sector, to);
        }
    }
}

/// A read-only file with these bytes.
pub struct Image(pub Bytes);

/// Returns an open file with these bytes.
pub fn file_of(bytes: &[u8]) -> Arc<dyn File> {
    Arc::new(Image(Bytes::copy_from_slice(bytes)))
}

impl File for Image {
    fn append(&self, _: &[std::io::IoSlice<'_>], _: Intent) -> Result<u64> {
        Err(Error::new(ErrorKind::ReadOnly, "an image"))
    }
    fn align_to_unit(&self) -> Result<u64> {
        Err(Error::new(ErrorKind::ReadOnly, "an image"))
    }
    fn sync_data(&self) -> Result<()> {
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let from = offset.min(self.0.len() as u64) as usize;
        Ok(self
            .0
            .slice(from..from.saturating_add(len).min(self.0.len())))
    }
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn allocated(&self) -> u64 {
        self.0.len() as u64
    }
    fn extend_log(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn release_range(&self, _: std::ops::Range<u64>) -> Result<()> {
        Ok(())
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Returns the bytes of the annotated hexdump in a format's page. A line has an offset, up to 16
/// bytes and a remark.
pub fn golden_bytes(document: &str) -> Vec<u8> {
    let dump = document.split_once("<!-- golden").expect("a golden dump").1;
    let dump = dump.split_once("```").expect("its begin").1;
    let dump = dump.split_once("```").expect("its end").0;
    let mut bytes = Vec::new();
    for line in dump.lines() {
        let Some((at, rest)) = line.split_once(' ') else {
            continue;
        };
        let Ok(at) = usize::from_str_radix(at.trim_end_matches(':'), 16) else {
            continue;
        };
        bytes.resize(at.max(bytes.len()), 0);
        for word in rest.trim_start().split(' ').take(16) {
            match u8::from_str_radix(word, 16) {
                Ok(b) if word.len() == 2 => bytes.push(b),
                _ => break,
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
