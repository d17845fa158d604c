//! Redis's glob patterns: `*`, `?`, `[a-c]`, `[^a]` and `\` escapes, over bytes.
//!
//! A pattern is compiled once into *elements*. Each element matches one byte and is a set of 256
//! bits, so that a class of any length costs one lookup for each byte of a text. Stars divide the
//! elements into *segments*. The first segment stands at the beginning of the text and the last one
//! at its end, unless a star is there. The others are searched for from left to right. The first
//! match of a segment is final, so nothing is tried again for an earlier star. The search advances
//! all positions at once, 64 elements a step (the Shift-And algorithm of Baeza-Yates and Gonnet).
//!
//! Promise: a text of `n` bytes takes at most `2 n + n * n / 256` steps with any pattern: 17
//! million for the longest key. Compiling takes time in proportion to the pattern, and memory in
//! proportion to the longest text. There is no recursion.

use std::ops::Range;

/// A set of bytes.
type Set = [u64; 4];

/// A compiled pattern.
pub struct Pattern {
    ignore_case: bool,
    /// One set for each byte that a match must have.
    elements: Vec<Set>,
    /// The elements between stars; none is empty.
    segments: Vec<Range<usize>>,
    /// True if the pattern has a star, true if it has one before the first segment, and true if it
    /// has one behind the last.
    has_star: bool,
    starts_with_star: bool,
    ends_with_star: bool,
    /// True if the pattern has more elements than the longest text has bytes.
    is_too_long: bool,
    /// True if the empty text matches. In Redis, only the empty pattern and a single star match it.
    matches_empty: bool,
    /// For each byte, the elements that match it, as one bit each in `words` words. Empty unless a
    /// segment has to be searched for.
    masks: Vec<u64>,
    words: usize,
}

fn has(set: &Set, byte: u8) -> bool {
    set[usize::from(byte >> 6)] & 1 << (byte & 63) != 0
}

fn add_range(set: &mut Set, from: u8, to: u8) {
    for (i, word) in set.iter_mut().enumerate() {
        let first = i * 64;
        let low = usize::from(from).max(first);
        let high = usize::from(to).min(first + 63);
        if low <= high {
            *word |= (u64::MAX >> (63 - (high - low))) << (low - first);
        }
    }
}

impl Pattern {
    /// Compiles a pattern for texts of at most `longest` bytes. It matches no longer text.
    pub fn new(pattern: &[u8], ignore_case: bool, longest: usize) -> Pattern {
        let mut compiled = Pattern {
            ignore_case,
            elements: Vec::new(),
            segments: Vec::new(),
            has_star: false,
            starts_with_star: pattern.first() == Some(&b'*'),
            ends_with_star: false,
            is_too_long: false,
            // Redis stops at the first element after the end of the text, so `**` does not match
            // the empty text. KEYS and SCAN match a single star without a comparison.
            matches_empty: matches!(pattern, b"" | b"*"),
            masks: Vec::new(),
            words: 0,
        };
        let mut at = 0;
        let mut begun = 0;
        while at < pattern.len() {
            let is_star = pattern[at] == b'*';
            compiled.ends_with_star = is_star;
            if is_star {
                compiled.has_star = true;
                compiled.end_segment(&mut begun);
                at += 1;
                continue;
            }
            if compiled.elements.len() == longest {
                compiled.is_too_long = true;
                return compiled;
            }
            let (set, next) = element(pattern, at, ignore_case);
            compiled.elements.push(set);
            at = next;
        }
        compiled.end_segment(&mut begun);
        compiled.prepare_search();
        compiled
    }

    fn end_segment(&mut self, begun: &mut usize) {
        let end = self.elements.len();
        if *begun < end {
            self.segments.push(*begun..end);
        }
        *begun = end;
    }

    /// Makes the masks if a segment stands between two stars.
    fn prepare_search(&mut self) {
        let anchored = usize::from(!self.starts_with_star) + usize::from(!self.ends_with_star);
        if !self.has_star || self.segments.len() <= anchored {
            return;
        }
        self.words = self.elements.len().div_ceil(64);
        self.masks = vec![0; 256 * self.words];
        for (i, set) in self.elements.iter().enumerate() {
            for (quarter, bits) in set.iter().enumerate() {
                let mut bits = *bits;
                while bits != 0 {
                    let byte = quarter * 64 + bits.trailing_zeros() as usize;
                    self.masks[byte * self.words + i / 64] |= 1 << (i % 64);
                    bits &= bits - 1;
                }
            }
        }
    }

    /// Returns true if the whole `text` matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.matches_counting(text, &mut 0)
    }

    /// Returns true if the whole `text` matches, and adds to `steps` how many sets and words were
    /// read.
    pub fn matches_counting(&self, text: &[u8], steps: &mut u64) -> bool {
        *steps += 1;
        if text.is_empty() {
            return self.matches_empty;
        }
        if self.is_too_long || text.len() < self.elements.len() {
            return false;
        }
        if !self.has_star && text.len() > self.elements.len() {
            return false;
        }
        let mut segments = &self.segments[..];
        let mut text = text;
        if !self.starts_with_star
            && let Some((first, others)) = segments.split_first()
        {
            let (start, rest) = text.split_at(first.len());
            if !self.stands_at(first, start, steps) {
                return false;
            }
            (segments, text) = (others, rest);
        }
        if !self.ends_with_star
            && let Some((last, others)) = segments.split_last()
        {
            // The bytes of earlier elements are removed from the text, and each element has a byte.
            let (rest, end) = text.split_at(text.len() - last.len());
            if !self.stands_at(last, end, steps) {
                return false;
            }
            (segments, text) = (others, rest);
        }
        let mut state = Vec::new();
        for segment in segments {
            match self.find(segment, text, &mut state, steps) {
                Some(end) => text = &text[end..],
                None => return false,
            }
        }
        true
    }

    fn fold(&self, byte: u8) -> u8 {
        match self.ignore_case {
            true => byte.to_ascii_lowercase(),
            false => byte,
        }
    }

    /// Returns whether a segment matches a text of its length.
    fn stands_at(&self, segment: &Range<usize>, text: &[u8], steps: &mut u64) -> bool {
        let mut sets = self.elements[segment.clone()].iter().zip(text);
        sets.all(|(set, b)| {
            *steps += 1;
            has(set, self.fold(*b))
        })
    }

    /// Returns the end of the first match of a segment in `text`.
    fn find(
        &self,
        segment: &Range<usize>,
        text: &[u8],
        state: &mut Vec<u64>,
        steps: &mut u64,
    ) -> Option<usize> {
        let (start, len) = (segment.start, segment.len());
        let first_word = start / 64;
        let last = segment.end - 1;
        state.clear();
        state.resize(last / 64 + 1 - first_word, 0);
        for (i, byte) in text.iter().enumerate() {
            let mask = usize::from(self.fold(*byte)) * self.words;
            // Two kinds of elements are skipped: those that a match from the beginning of the text
            // cannot have reached yet, and those from which it cannot reach the end of the segment
            // any more.
            let left = text.len() - i;
            let low = (start + len.saturating_sub(left)) / 64;
            let high = (start + i.min(len - 1)) / 64;
            let mut carry = match low > first_word {
                true => state[low - 1 - first_word] >> 63,
                false => 0,
            };
            for word in low..=high {
                let old = state[word - first_word];
                let mut next = old << 1 | carry;
                carry = old >> 63;
                if word == first_word {
                    next |= 1 << (start % 64);
                }
                state[word - first_word] = next & self.masks[mask + word];
                *steps += 1;
            }
            if state[last / 64 - first_word] & 1 << (last % 64) != 0 {
                return Some(i + 1);
            }
        }
        None
    }
}

/// Returns the element at `at`, which is not a star, and the position behind it.
fn element(pattern: &[u8], at: usize, ignore_case: bool) -> (Set, usize) {
    let fold = |b: u8| match ignore_case {
        true => b.to_ascii_lowercase(),
        false => b,
    };
    let mut set = [0; 4];
    match pattern[at] {
        b'?' => ([u64::MAX; 4], at + 1),
        b'[' => {
            let mut at = at + 1;
            let is_negated = pattern.get(at) == Some(&b'^');
            if is_negated {
                at += 1;
            }
            loop {
                match pattern.get(at) {
                    // An unclosed class ends with the pattern, as in Redis.
                    None => break,
                    Some(b']') => {
                        at += 1;
                        break;
                    }
                    Some(b'\\') if at + 1 < pattern.len() => {
                        let b = fold(pattern[at + 1]);
                        add_range(&mut set, b, b);
                        at += 2;
                    }
                    Some(&from) if pattern.get(at + 1) == Some(&b'-') && at + 2 < pattern.len() => {
                        let (from, to) = (fold(from), fold(pattern[at + 2]));
                        add_range(&mut set, from.min(to), from.max(to));
                        at += 3;
                    }
                    Some(&b) => {
                        add_range(&mut set, fold(b), fold(b));
                        at += 1;
                    }
                }
            }
            if is_negated {
                set = set.map(|word| !word);
            }
            (set, at)
        }
        b => {
            let (b, next) = match b {
                b'\\' if at + 1 < pattern.len() => (pattern[at + 1], at + 2),
                b => (b, at + 1),
            };
            add_range(&mut set, fold(b), fold(b));
            (set, next)
        }
    }
}

/// Returns true if the whole `text` matches `pattern`. For many texts, compile a [`Pattern`] once.
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    Pattern::new(pattern, ignore_case, text.len()).matches(text)
}

/// Returns the bytes that every match must begin with. So a scan reads only that part of the
/// keyspace.
pub fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(&b) = pattern.get(at) {
        match b {
            b'*' | b'?' | b'[' => break,
            b'\\' if at + 1 < pattern.len() => {
                out.push(pattern[at + 1]);
                at += 2;
            }
            _ => {
                out.push(b);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
