//! The reference: the contents of a store after each commit, in plain maps. It shares no code with
//! the engine.
//!
//! Every prefix of the commit order has a *mark*, from which the digest of the visible state at any
//! wall time follows. So a crash state is compared with hundreds of prefixes at the cost of one
//! walk over it.

use crate::rng::mix;
use std::collections::BTreeMap;
use std::sync::Arc;

pub type Key = Vec<u8>;

/// A value and its expiry in ms.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub value: Vec<u8>,
    pub expire: Option<u64>,
    /// The parts appended to a value that has an expiry. They alone remain after it expires.
    /// Entries that a store shows do not have this.
    pub appended: Option<Vec<u8>>,
}

/// The bytes between appended parts.
pub const DELIMITER: &[u8] = b",";

fn append(to: &mut Vec<u8>, part: &[u8]) {
    to.extend_from_slice(DELIMITER);
    to.extend_from_slice(part);
}

impl Entry {
    pub fn new(value: Vec<u8>, expire: Option<u64>) -> Entry {
        Entry {
            value,
            expire,
            appended: None,
        }
    }

    /// Returns the entry that a store shows at `now`.
    pub fn shown(&self, now: u64) -> Option<Entry> {
        if self.expire.is_none_or(|at| at > now) {
            return Some(Entry::new(self.value.clone(), self.expire));
        }
        let rest = self.appended.clone()?;
        Some(Entry::new(rest, None))
    }

    /// Returns an entry with a further part.
    fn with(old: Option<Entry>, part: &[u8]) -> Entry {
        let Some(mut e) = old else {
            return Entry::new(part.to_vec(), None);
        };
        append(&mut e.value, part);
        if e.expire.is_some() {
            match &mut e.appended {
                Some(rest) => append(rest, part),
                None => e.appended = Some(part.to_vec()),
            }
        }
        e
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = String::from_utf8_lossy(&self.value[..self.value.len().min(16)]);
        write!(f, "{head:?}..{}", self.value.len())?;
        self.expire.map_or(Ok(()), |at| write!(f, " until {at}"))
    }
}

pub type Table = BTreeMap<Key, Entry>;

/// One life of a family name: a family created again after a drop is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyState {
    pub life: u64,
    pub table: Arc<Table>,
}

/// All families by name.
pub type State = BTreeMap<String, FamilyState>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(String, Key, Entry),
    Append(String, Key, Vec<u8>),
    Delete(String, Key),
    /// Deletes from the first key (inclusive) to the second (exclusive).
    DeleteRange(String, Key, Key),
    CreateFamily(String),
    DropFamily(String),
}

/// The changes that take effect together.
pub type Commit = Vec<Change>;

/// The state after a prefix of the commits, reduced to the parts that a comparison needs.
#[derive(Clone)]
pub struct Mark {
    /// Digest of the families, and of entries without an expiry.
    lasting: u64,
    /// For each entry with an expiry: the expiry, and the entry's hashes before it and after.
    timed: Arc<Vec<(u64, u64, u64)>>,
}

impl Mark {
    /// Returns the digest of everything that is visible at `now`.
    pub fn digest(&self, now: u64) -> u64 {
        self.timed
            .iter()
            .map(|(at, before, after)| if *at > now { before } else { after })
            .fold(self.lasting, |sum, h| sum.wrapping_add(*h))
    }
}

fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut h = mix(seed ^ bytes.len() as u64);
    for part in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        h = mix(h ^ u64::from_le_bytes(word)).wrapping_add(seed);
    }
    h
}

fn hash_family(name: &str) -> u64 {
    hash_bytes(1, name.as_bytes())
}

fn hash_entry(family: &str, key: &[u8], e: &Entry) -> u64 {
    let h = hash_bytes(hash_family(family), key);
    let h = hash_bytes(h ^ 2, &e.value);
    e.expire.map_or(h, |at| mix(h ^ at.wrapping_mul(3)))
}

/// Returns the digest of a state as a store shows it: everything in it counts.
pub fn digest(state: &BTreeMap<String, Table>) -> u64 {
    let mut sum = 0u64;
    for (name, table) in state {
        sum = sum.wrapping_add(hash_family(name));
        for (k, e) in table {
            sum = sum.wrapping_add(hash_entry(name, k, e));
        }
    }
    sum
}

/// Returns the part of a state that is visible at `now`.
pub fn visible(state: &State, now: u64) -> BTreeMap<String, Table> {
    let live = |t: &Table| {
        t.iter()
            .filter_map(|(k, e)| Some((k.clone(), e.shown(now)?)))
            .collect()
    };
    state
        .iter()
        .map(|(n, f)| (n.clone(), live(&f.table)))
        .collect()
}

/// Describes the difference of two visible states, in its first few lines.
pub fn difference(want: &BTreeMap<String, Table>, have: &BTreeMap<String, Table>) -> String {
    let mut lines = Vec::new();
    for name in want.keys().chain(have.keys()) {
        let (Some(w), Some(h)) = (want.get(name), have.get(name)) else {
            lines.push(format!(
                "family {name}: wanted {}, there {}",
                want.contains_key(name),
                have.contains_key(name)
            ));
            continue;
        };
        for k in w.keys().chain(h.keys()) {
            if w.get(k) != h.get(k) {
                let key = String::from_utf8_lossy(&k[..k.len().min(24)]);
                lines.push(format!(
                    "{name}/{key:?}: wanted {:?}, there {:?}",
                    w.get(k),
                    h.get(k)
                ));
            }
        }
    }
    lines.dedup();
    lines.truncate(8);
    lines.join("\n  ")
}

/// The commit order and the state after it.
#[derive(Clone)]
pub struct Model {
    commits: Vec<Commit>,
    marks: Vec<Mark>,
    state: State,
    lives: u64,
}

impl Model {
    /// Returns an empty store: the family `default` alone.
    pub fn new() -> Model {
        let family = FamilyState {
            life: 0,
            table: Arc::default(),
        };
        Model {
            commits: Vec::new(),
            marks: vec![Mark {
                lasting: hash_family("default"),
                timed: Arc::default(),
            }],
            state: State::from([("default".to_string(), family)]),
            lives: 1,
        }
    }

    /// Returns the number of commits so far.
    pub fn len(&self) -> usize {
        self.commits.len()
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Returns the mark after this many commits.
    pub fn mark(&self, commits: usize) -> &Mark {
        &self.marks[commits]
    }

    pub fn commit(&mut self, commit: Commit) {
        let mut mark = self.marks.last().expect("never empty").clone();
        for change in &commit {
            self.apply(&mut mark, change);
        }
        self.marks.push(mark);
        self.commits.push(commit);
    }

    fn apply(&mut self, mark: &mut Mark, change: &Change) {
        match change {
            // A family may be dropped while the batch is in the queue: its operations are then
            // skipped.
            Change::Put(name, key, entry) => {
                if let Some(f) = self.state.get_mut(name) {
                    let old = Arc::make_mut(&mut f.table).insert(key.clone(), entry.clone());
                    mark.forget(name, key, old.as_ref());
                    mark.note(name, key, entry);
                }
            }
            Change::Append(name, key, part) => {
                if let Some(f) = self.state.get_mut(name) {
                    let table = Arc::make_mut(&mut f.table);
                    let old = table.get(key).cloned();
                    let new = Entry::with(old.clone(), part);
                    table.insert(key.clone(), new.clone());
                    mark.forget(name, key, old.as_ref());
                    mark.note(name, key, &new);
                }
            }
            Change::Delete(name, key) => {
                if let Some(f) = self.state.get_mut(name) {
                    let old = Arc::make_mut(&mut f.table).remove(key);
                    mark.forget(name, key, old.as_ref());
                }
            }
            Change::DeleteRange(name, from, to) => {
                if let Some(f) = self.state.get_mut(name) {
                    let table = Arc::make_mut(&mut f.table);
                    let gone: Vec<Key> = table
                        .range(from.clone()..to.clone())
                        .map(|(k, _)| k.clone())
                        .collect();
                    for key in gone {
                        let old = table.remove(&key);
                        mark.forget(name, &key, old.as_ref());
                    }
                }
            }
            Change::CreateFamily(name) => {
                let family = FamilyState {
                    life: self.lives,
                    table: Arc::default(),
                };
                self.lives += 1;
                let old = self.state.insert(name.clone(), family);
                assert!(old.is_none(), "the model makes a family once");
                mark.lasting = mark.lasting.wrapping_add(hash_family(name));
            }
            Change::DropFamily(name) => {
                let old = self
                    .state
                    .remove(name)
                    .expect("the model drops what is there");
                mark.lasting = mark.lasting.wrapping_sub(hash_family(name));
                for (k, e) in old.table.iter() {
                    mark.forget(name, k, Some(e));
                }
            }
        }
    }

    /// Takes back all but the first commits.
    pub fn cut(&mut self, commits: usize) {
        if commits == self.commits.len() {
            return;
        }
        let kept: Vec<Commit> = self.commits.drain(..).take(commits).collect();
        let lives = self.lives;
        *self = Model::new();
        kept.into_iter().for_each(|c| self.commit(c));
        self.lives = lives.max(self.lives);
    }

    /// Returns the state after this many commits.
    pub fn state_at(&self, commits: usize) -> State {
        let mut m = Model::new();
        self.commits[..commits]
            .iter()
            .for_each(|c| m.commit(c.clone()));
        m.state
    }
}

/// Returns, for an entry that expires at `at`: the expiry, and its hash before and after. 0 is the
/// hash of no entry.
fn hashes(at: u64, family: &str, key: &[u8], e: &Entry) -> (u64, u64, u64) {
    let hash = |now| {
        e.shown(now)
            .map_or(0, |shown| hash_entry(family, key, &shown))
    };
    (at, hash(at.saturating_sub(1)), hash(at))
}

impl Mark {
    fn note(&mut self, family: &str, key: &[u8], e: &Entry) {
        match e.expire {
            Some(at) => Arc::make_mut(&mut self.timed).push(hashes(at, family, key, e)),
            None => self.lasting = self.lasting.wrapping_add(hash_entry(family, key, e)),
        }
    }

    fn forget(&mut self, family: &str, key: &[u8], e: Option<&Entry>) {
        let Some(e) = e else { return };
        match e.expire {
            Some(at) => {
                let timed = Arc::make_mut(&mut self.timed);
                let noted = hashes(at, family, key, e);
                let i = timed
                    .iter()
                    .position(|t| *t == noted)
                    .expect("it was noted when it was put");
                timed.swap_remove(i);
            }
            None => self.lasting = self.lasting.wrapping_sub(hash_entry(family, key, e)),
        }
    }
}
