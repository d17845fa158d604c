//! The runner's reads: points, many points, cursors and whole scans, each compared with the
//! reference.

use super::{Cursor, Runner, read_all};
use crate::history::{FAMILIES, Move, key_bytes};
use crate::model::{Entry, FamilyState, Key, Table, difference, digest, visible};
use basalt_lsm::{Family, ReadOptions};
use std::sync::Arc;

impl Runner {
    /// Returns the read options of a snapshot, and the contents of a family that it must show.
    pub(super) fn view(&self, snapshot: Option<u8>, name: &str) -> (ReadOptions, Arc<Table>) {
        let now: &FamilyState = &self.model.state()[name];
        let Some((s, state)) = snapshot.and_then(|i| self.snapshots.get(i as usize)) else {
            return (ReadOptions::default(), now.table.clone());
        };
        let options = ReadOptions::default().snapshot(Some(s.clone()));
        let table = match state.get(name) {
            Some(then) if then.life == now.life => then.table.clone(),
            // The family was made after the snapshot: as of the snapshot it is empty.
            _ => Arc::default(),
        };
        (options, table)
    }

    pub(super) fn note_answer(&mut self, parts: &[&[u8]]) {
        for p in parts {
            for b in *p {
                self.answers = self.answers.wrapping_mul(0x100_0000_01b3) ^ u64::from(*b);
            }
            self.answers = crate::rng::mix(self.answers ^ p.len() as u64);
        }
    }

    pub(super) fn get(&mut self, family: usize, key: u16, snapshot: Option<u8>) {
        let name = FAMILIES[family];
        let Some(handle) = self.families.get(name).cloned() else {
            return;
        };
        let key = key_bytes(key);
        let (options, table) = self.view(snapshot, name);
        let now = self.now();
        let want = table.get(&key).and_then(|e| e.shown(now));
        let got = self
            .db
            .as_ref()
            .expect("open")
            .get_with_expiry(&handle, &key, &options);
        let Some(got) = self.allow("get", got) else {
            return;
        };
        let have = got.map(|v| Entry::new(v.value.to_vec(), v.expire_at_ms));
        assert_eq!(
            have,
            want,
            "get {name}/{:?} snapshot {snapshot:?}",
            String::from_utf8_lossy(&key)
        );
        let bytes = have.map_or(Vec::new(), |e| e.value);
        self.note_answer(&[&bytes]);
    }

    pub(super) fn multi_get(&mut self, keys: &[(usize, u16)], snapshot: Option<u8>) {
        let mut wanted = Vec::new();
        let mut handles = Vec::new();
        let now = self.now();
        let mut read = ReadOptions::default();
        for &(family, key) in keys {
            let Some(handle) = self.families.get(FAMILIES[family]).cloned() else {
                continue;
            };
            let key = key_bytes(key);
            let (options, table) = self.view(snapshot, FAMILIES[family]);
            read = options;
            let value = table.get(&key).and_then(|e| e.shown(now)).map(|e| e.value);
            wanted.push(value);
            handles.push((handle, key));
        }
        let asked: Vec<(&Family, &[u8])> = handles.iter().map(|(f, k)| (f, k.as_slice())).collect();
        let got = self.db.as_ref().expect("open").multi_get(&asked, &read);
        assert_eq!(got.len(), asked.len());
        for (got, want) in got.into_iter().zip(wanted) {
            if let Some(got) = self.allow("multi_get", got) {
                assert_eq!(
                    got.map(|v| v.to_vec()),
                    want,
                    "multi_get snapshot {snapshot:?}"
                );
            }
        }
    }

    pub(super) fn cursor(
        &mut self,
        family: usize,
        snapshot: Option<u8>,
        from: Option<u16>,
        to: Option<u16>,
    ) -> Option<Cursor> {
        let name = FAMILIES[family];
        let handle = self.families.get(name).cloned()?;
        let (mut options, table) = self.view(snapshot, name);
        options.lower_bound = from.map(key_bytes);
        options.upper_bound = to.map(key_bytes);
        options.fill_cache = !self.nonce.is_multiple_of(3);
        let now = self.now();
        let inside = |k: &Key| {
            options.lower_bound.as_ref().is_none_or(|l| k >= l)
                && options.upper_bound.as_ref().is_none_or(|u| k < u)
        };
        let rows = table
            .iter()
            .filter(|(k, _)| inside(k))
            .filter_map(|(k, e)| Some((k.clone(), e.shown(now)?)))
            .collect();
        let made = self.db.as_ref().expect("open").iter(&handle, &options);
        let iter = self.allow("iter", made)?;
        Some(Cursor {
            iter,
            rows,
            at: None,
            orphan: false,
        })
    }

    /// Moves a cursor and compares. Returns false if the cursor met an error.
    pub(super) fn go(&mut self, c: &mut Cursor, m: &Move) -> bool {
        let last = c.rows.len().checked_sub(1);
        let mut steps = vec![];
        match m {
            Move::Next(n) => (0..*n).for_each(|_| steps.push(Move::Next(1))),
            Move::Prev(n) => (0..*n).for_each(|_| steps.push(Move::Prev(1))),
            other => steps.push(other.clone()),
        }
        for step in steps {
            let result = match step {
                Move::First => {
                    c.at = last.map(|_| 0);
                    c.iter.seek_to_first()
                }
                Move::Last => {
                    c.at = last;
                    c.iter.seek_to_last()
                }
                Move::Seek(k) => {
                    let k = key_bytes(k);
                    c.at = c.rows.iter().position(|r| r.0 >= k);
                    c.iter.seek(&k)
                }
                Move::SeekForPrev(k) => {
                    let k = key_bytes(k);
                    c.at = c.rows.iter().rposition(|r| r.0 <= k);
                    c.iter.seek_for_prev(&k)
                }
                Move::Next(_) => {
                    let Some(at) = c.at else { break };
                    c.at = Some(at + 1).filter(|i| *i < c.rows.len());
                    c.iter.next()
                }
                Move::Prev(_) => {
                    let Some(at) = c.at else { break };
                    c.at = at.checked_sub(1);
                    c.iter.prev()
                }
            };
            match result {
                Err(_) if c.orphan => return false,
                other => {
                    if self.allow("moving an iterator", other).is_none() {
                        return false;
                    }
                }
            }
            let have = c.iter.valid().then(|| {
                let entry = Entry::new(c.iter.value().to_vec(), c.iter.expire_at_ms());
                (c.iter.key().to_vec(), entry)
            });
            let want = c.at.map(|i| c.rows[i].clone());
            assert!(
                have == want,
                "iterator after {m:?}: wanted {want:?}, there {have:?}"
            );
            if let Some((k, e)) = have
                && !c.orphan
            {
                self.note_answer(&[&k, &e.value]);
            }
        }
        true
    }

    pub(super) fn scan(
        &mut self,
        family: usize,
        snapshot: Option<u8>,
        reverse: bool,
        from: Option<u16>,
        to: Option<u16>,
    ) {
        let Some(mut c) = self.cursor(family, snapshot, from, to) else {
            return;
        };
        let (first, step) = if reverse {
            (Move::Last, Move::Prev(1))
        } else {
            (Move::First, Move::Next(1))
        };
        if !self.go(&mut c, &first) {
            return;
        }
        while c.at.is_some() {
            if !self.go(&mut c, &step) {
                return;
            }
        }
    }

    /// Compares everything that is visible.
    pub fn check_all(&mut self) {
        self.poll();
        if self.trace {
            eprintln!(
                "check_all: {} commits, {:?}",
                self.model.len(),
                self.db.as_ref().expect("open").stats()
            );
        }
        let read = read_all(self.db.as_ref().expect("open"));
        let Some(shown) = self.allow("reading all", read) else {
            return;
        };
        let want = visible(self.model.state(), self.now());
        if shown != want {
            // A point read beside the scan shows whether the entry is lost, or only the way to it.
            for (name, table) in &want {
                for (k, e) in table {
                    let f = self.families[name].clone();
                    let got = self
                        .db
                        .as_ref()
                        .expect("open")
                        .get(&f, k, &ReadOptions::default());
                    if got
                        .as_ref()
                        .ok()
                        .map(|v| v.as_deref() == Some(&e.value[..]))
                        != Some(true)
                    {
                        eprintln!(
                            "get {name}/{:?} gives {got:?}",
                            String::from_utf8_lossy(&k[..k.len().min(24)])
                        );
                    }
                }
            }
        }
        assert!(
            shown == want,
            "after {} commits:\n  {}",
            self.model.len(),
            difference(&want, &shown)
        );
        let sum = digest(&shown).to_le_bytes();
        self.note_answer(&[&sum]);
        let last = self.model.mark(self.model.len()).digest(self.now());
        assert_eq!(last, digest(&shown), "the reference disagrees with itself");
    }
}
