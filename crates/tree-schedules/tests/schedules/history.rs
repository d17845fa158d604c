//! What threads wrote to a tree, what they saw of it, and which answers were right.
//!
//! Each writer has keys of its own. A round of a writer changes its mark, some of its keys, and all
//! shared keys. So a content shows how many rounds of each writer were committed, and which writer
//! was the last one: every other byte of it follows.

use std::collections::BTreeMap;

/// Number of writers, at most.
pub const WRITERS: usize = 3;
/// Keys of each writer, its mark included.
const OWN_KEYS: u64 = 9;
/// Every so many own keys, there is a shared key.
const SHARED_EVERY: u64 = 3;
/// Keys that no round changes.
const COLD_KEYS: u64 = 4;

pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The changes of all rounds. They follow from a number.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub salt: u64,
    /// True if all own keys had a value before the first round.
    pub is_preloaded: bool,
    /// Most bytes of a value of a small and of a large round.
    pub value_bytes: [u64; 2],
}

/// The keys of the writers alternate, so that all of them change each leaf.
fn own_key(writer: usize, n: u64) -> Vec<u8> {
    format!("key{n:02}/{writer}").into_bytes()
}

fn shared_key(n: u64) -> Vec<u8> {
    format!("key{n:02}/shared").into_bytes()
}

fn shared_keys() -> impl Iterator<Item = Vec<u8>> {
    (0..OWN_KEYS).step_by(SHARED_EVERY as usize).map(shared_key)
}

/// Returns the entries that no round changes, in leaves of their own.
fn cold_entries() -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..COLD_KEYS).map(|n| (format!("old{n}").into_bytes(), vec![b'c'; 100]))
}

/// Returns all keys, and some that no round writes.
pub fn all_keys() -> Vec<Vec<u8>> {
    let own = (0..OWN_KEYS).flat_map(|n| (0..=WRITERS).map(move |writer| own_key(writer, n)));
    let cold = cold_entries().map(|(key, _)| key);
    let mut keys: Vec<Vec<u8>> = own.chain(shared_keys()).chain(cold).collect();
    keys.sort();
    keys
}

/// Returns a number that looks random.
fn mixed(parts: [u64; 4]) -> u64 {
    parts.into_iter().fold(0, |hash, part| {
        let n = (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (n ^ (n >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (n >> 32)
    })
}

impl Script {
    /// Returns what a round of a writer does to one of its own keys: `None` if nothing.
    fn change(&self, writer: usize, round: u64, n: u64) -> Option<Option<Vec<u8>>> {
        let of_round = mixed([self.salt, writer as u64, round, 1 << 32]);
        let of_key = mixed([self.salt, writer as u64, round, n]);
        let value = |bytes: u64| {
            let mut value = vec![writer as u8, round as u8];
            value.resize(2 + (of_key >> 8) as usize % bytes as usize, n as u8);
            value
        };
        if round == 0 {
            return self.is_preloaded.then(|| Some(value(self.value_bytes[0])));
        }
        if n == 0 {
            return Some(Some(value(1)));
        }
        match of_round % 5 {
            // The leaves of a whole range become empty.
            0 => (!of_key.is_multiple_of(8)).then_some(None),
            1 => Some(Some(value(self.value_bytes[1]))),
            _ if of_key % 5 < 2 => {
                Some((!of_key.is_multiple_of(7)).then(|| value(self.value_bytes[0])))
            }
            _ => None,
        }
    }

    /// Returns the changes of a round, which begin with 1.
    pub fn changes(&self, writer: usize, round: u64) -> Changes {
        let own = (0..OWN_KEYS)
            .filter_map(|n| Some((own_key(writer, n), self.change(writer, round, n)?)));
        let shared = shared_keys().map(|key| (key, Some(vec![writer as u8, round as u8])));
        own.chain(shared).collect()
    }

    /// Returns the contents of the user checkpoints before the first round. The last one changes
    /// one leaf, which no round changes.
    pub fn preload(&self) -> Vec<Content> {
        if !self.is_preloaded {
            return Vec::new();
        }
        let whole = self.content(&[0; WRITERS], None);
        let mut first = whole.clone();
        let (key, value) = whole.last_key_value().expect("it has cold entries");
        first.insert(key.clone(), Vec::new());
        vec![first, Content::from([(key.clone(), value.clone())])]
    }

    /// Returns the content after so many rounds of each writer, of which the writer `last` had the
    /// last one.
    pub fn content(&self, rounds: &[u64; WRITERS], last: Option<usize>) -> Content {
        let mut content = Content::new();
        for (writer, round) in rounds.iter().enumerate() {
            for n in 0..OWN_KEYS {
                let newest = (0..=*round).rev().find_map(|r| self.change(writer, r, n));
                if let Some(Some(value)) = newest {
                    content.insert(own_key(writer, n), value);
                }
            }
        }
        if let Some(writer) = last {
            let value = vec![writer as u8, rounds[writer] as u8];
            content.extend(shared_keys().map(|key| (key, value.clone())));
        }
        if self.is_preloaded {
            content.extend(cold_entries());
        }
        content
    }

    /// Returns the rounds that a content has, and the writer of the last one. Fails if no order of
    /// commits gives this content.
    pub fn recognize(&self, content: &Content) -> ([u64; WRITERS], Option<usize>) {
        let round_of = |writer: usize| content.get(&own_key(writer, 0)).map_or(0, |v| v[1]);
        let rounds = std::array::from_fn(|writer| u64::from(round_of(writer)));
        let last = content.get(&shared_key(0)).map(|value| value[0] as usize);
        let expected = self.content(&rounds, last);
        assert!(
            *content == expected,
            "rounds {rounds:?}, the last one of {last:?}: {content:?}\nexpected {expected:?}"
        );
        (rounds, last)
    }
}

/// The moments between which something happened.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub begun: u64,
    /// `None` as long as it has not ended.
    pub ended: Option<u64>,
}

/// A content that was seen.
#[derive(Clone, Copy, Debug)]
struct Sight {
    begun: u64,
    ended: u64,
    rounds: [u64; WRITERS],
    last: Option<usize>,
    /// True if it is what a power cut left. It may have a commit that no reader could see yet.
    survived: bool,
}

/// What the threads have done and seen.
#[derive(Default)]
pub struct History {
    writes: [Vec<Span>; WRITERS],
    sights: Vec<Sight>,
    now: u64,
}

impl History {
    /// Returns the next moment.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Notes that a writer begins its next round. Returns the round.
    pub fn begin_write(&mut self, writer: usize) -> u64 {
        let begun = self.tick();
        self.writes[writer].push(Span { begun, ended: None });
        self.writes[writer].len() as u64
    }

    /// Notes that the last round of a writer was acknowledged.
    pub fn end_write(&mut self, writer: usize) {
        let now = self.tick();
        let span = self.writes[writer].last_mut().expect("it has begun");
        span.ended = Some(now);
    }

    /// Notes what a content, seen between two moments, has. `survived`: after a power cut.
    pub fn saw(&mut self, script: &Script, content: &Content, span: (u64, u64), survived: bool) {
        let (rounds, last) = script.recognize(content);
        self.sights.push(Sight {
            begun: span.0,
            ended: span.1,
            rounds,
            last,
            survived,
        });
    }

    /// Returns the number of rounds that were acknowledged.
    pub fn acknowledged(&self) -> usize {
        let spans = self.writes.iter().flatten();
        spans.filter(|span| span.ended.is_some()).count()
    }

    fn write(&self, writer: usize, round: u64) -> Option<Span> {
        (round > 0).then(|| self.writes[writer][round as usize - 1])
    }

    /// Fails unless one order of all rounds explains everything that was seen.
    pub fn judge(&self) {
        for sight in &self.sights {
            for (writer, spans) in self.writes.iter().enumerate() {
                let is_due = |span: &&Span| span.ended.is_some_and(|ended| ended < sight.begun);
                let due = spans.iter().filter(is_due).count() as u64;
                let begun = spans.iter().filter(|s| s.begun < sight.ended).count() as u64;
                let seen = sight.rounds[writer];
                assert!(
                    (due..=begun).contains(&seen),
                    "writer {writer}: {due} rounds were due and {begun} had begun: {sight:?}"
                );
            }
            self.judge_last(sight);
        }
        let sum = |sight: &Sight| sight.rounds.iter().sum::<u64>();
        let mut in_order: Vec<&Sight> = self.sights.iter().collect();
        in_order.sort_by_key(|sight| sum(sight));
        for pair in in_order.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let grown: Vec<usize> = (0..WRITERS)
                .filter(|w| a.rounds[*w] < b.rounds[*w])
                .collect();
            let is_later = (0..WRITERS).all(|w| a.rounds[w] <= b.rounds[w]);
            // The rounds between the two came last.
            let is_last = match b.last {
                Some(writer) if !grown.is_empty() => grown.contains(&writer),
                last => grown.is_empty() && last == a.last,
            };
            assert!(is_later && is_last, "no order explains {a:?} and {b:?}");
        }
        for earlier in self.sights.iter().filter(|sight| !sight.survived) {
            let mut later = self.sights.iter().filter(|s| earlier.ended < s.begun);
            let back = later.find(|later| sum(later) < sum(earlier));
            assert!(back.is_none(), "{back:?} is behind {earlier:?}");
        }
    }

    /// Fails if the last round of a content was acknowledged before another round of it began.
    fn judge_last(&self, sight: &Sight) {
        let Some(last) = sight.last else {
            assert_eq!(sight.rounds, [0; WRITERS], "{sight:?}");
            return;
        };
        let last = self
            .write(last, sight.rounds[last])
            .expect("it has a round");
        let others = (0..WRITERS).filter_map(|w| self.write(w, sight.rounds[w]));
        let behind = others.filter(|other| last.ended.is_some_and(|end| end < other.begun));
        assert_eq!(behind.count(), 0, "an older round is the last of {sight:?}");
    }
}
