//! Reads: by points, by walks, and by cursors that are held, follow the store or stay within a
//! prefix.

use super::{Execution, brief, lives, shown};
use crate::operations::{BEGINNINGS, FAMILIES, HELD, Item, Move, ReadTarget, What, key_bytes};
use crate::operators::{own_extractor, region};
use basalt_lsm::db::Iter;
use basalt_lsm::{Family, ReadOptions, Result};
use std::fmt::Write;

impl Execution<'_> {
    pub(super) fn read_options(&self, snapshot: Option<usize>) -> ReadOptions {
        ReadOptions::default()
            .snapshot(snapshot.and_then(|n| self.snapshots.get(n).cloned()))
            .fill_cache(self.settings.fill_cache)
    }

    fn bounded(&self, look: &ReadTarget) -> ReadOptions {
        self.read_options(look.snapshot)
            .lower_bound(look.from.map(key_bytes))
            .upper_bound(look.to.map(key_bytes))
    }

    pub(super) fn get(&mut self, look: &ReadTarget, key: u64) {
        let Some(family) = self.families.get(FAMILIES[look.family]) else {
            return;
        };
        let read = self.read_options(look.snapshot);
        let found = self.db().get_with_expiry(family, &key_bytes(key), &read);
        let text = match found {
            Err(e) => format!("{:?}", e.kind()),
            Ok(Some(v)) if lives(&v.value) => {
                format!("{} until {:?}", brief(&v.value), v.expire_at_ms)
            }
            Ok(_) => "absent".to_string(),
        };
        self.say(format!("get: {text}"));
    }

    pub(super) fn multi_get(&mut self, keys: &[(usize, u64)], snapshot: Option<usize>) {
        let read = self.read_options(snapshot);
        let asked: Vec<(Family, Vec<u8>)> = (keys.iter())
            .filter_map(|(f, k)| Some((self.families.get(FAMILIES[*f])?.clone(), key_bytes(*k))))
            .collect();
        let asked: Vec<(&Family, &[u8])> = asked.iter().map(|(f, k)| (f, &k[..])).collect();
        let mut text = String::new();
        for found in self.db().multi_get(&asked, &read) {
            match found {
                Err(e) => write!(text, "{:?}; ", e.kind()),
                Ok(Some(v)) if lives(&v) => write!(text, "{}; ", brief(&v)),
                Ok(_) => write!(text, "absent; "),
            }
            .expect("a string takes all");
        }
        self.say(format!("multi_get: {text}"));
    }

    /// Moves an iterator on to the next row that readers show. Returns that row.
    pub(super) fn row(iter: &mut Iter, down: bool) -> Result<Option<String>> {
        while iter.valid() {
            if lives(iter.value()) {
                let (key, value) = (shown(iter.key()), brief(iter.value()));
                return Ok(Some(format!(
                    "{key} = {value} until {:?}",
                    iter.expire_at_ms()
                )));
            }
            if down { iter.prev() } else { iter.next() }?;
        }
        Ok(None)
    }

    fn say_row(&mut self, what: &str, row: Result<Option<String>>) {
        let text = match row {
            Ok(Some(row)) => row,
            Ok(None) => "the end".to_string(),
            Err(e) => format!("{:?}", e.kind()),
        };
        self.say(format!("{what}: {text}"));
    }

    pub(super) fn scan(&mut self, look: &ReadTarget, down: bool) {
        let Some(family) = self.families.get(FAMILIES[look.family]) else {
            return;
        };
        let mut iter = match self.db().iter(family, &self.bounded(look)) {
            Ok(iter) => iter,
            Err(e) => return self.say(format!("iter: {:?}", e.kind())),
        };
        let mut moved = if down {
            iter.seek_to_last()
        } else {
            iter.seek_to_first()
        };
        loop {
            let row = moved.and_then(|()| Self::row(&mut iter, down));
            let more = matches!(row, Ok(Some(_)));
            self.say_row("scan", row);
            if !more {
                return;
            }
            moved = if down { iter.prev() } else { iter.next() };
        }
    }

    pub(super) fn scan_in_pieces(&mut self, look: &ReadTarget, down: bool, skips: u64) {
        let Some(family) = self.families.get(FAMILIES[look.family]).cloned() else {
            return;
        };
        // Each piece is read as of the same moment.
        let mut read = self.bounded(look);
        read.snapshot.get_or_insert_with(|| self.db().snapshot());
        read.max_skippable_entries = skips;
        let mut from: Option<Vec<u8>> = None;
        loop {
            let mut iter = self.db().iter(&family, &read).expect("as the one before");
            let mut moved = match &from {
                Some(key) if down => iter.seek_for_prev(key),
                Some(key) => iter.seek(key),
                None if down => iter.seek_to_last(),
                None => iter.seek_to_first(),
            };
            loop {
                let row = moved.and_then(|()| Self::row(&mut iter, down));
                let more = matches!(row, Ok(Some(_)));
                if iter.resume_key().is_none() {
                    self.say_row("piece", row);
                }
                if !more {
                    break;
                }
                moved = if down { iter.prev() } else { iter.next() };
            }
            match iter.resume_key() {
                Some(key) => from = Some(key.to_vec()),
                None => return,
            }
        }
    }

    pub(super) fn move_iter(&mut self, iter: &mut Iter, to: &Move) {
        let steps = match to {
            Move::Next(n) | Move::Prev(n) => *n,
            _ => 1,
        };
        let down = matches!(to, Move::Prev(_) | Move::Last | Move::SeekForPrev(_));
        for _ in 0..steps {
            let moved = match to {
                Move::First => iter.seek_to_first(),
                Move::Last => iter.seek_to_last(),
                Move::Seek(key) => iter.seek(&key_bytes(*key)),
                Move::SeekForPrev(key) => iter.seek_for_prev(&key_bytes(*key)),
                Move::Next(_) | Move::Prev(_) if !iter.valid() => return,
                Move::Next(_) => iter.next(),
                Move::Prev(_) => iter.prev(),
            };
            let row = moved.and_then(|()| Self::row(iter, down));
            self.say_row("iterator", row);
        }
    }

    pub(super) fn multi_get_within(&mut self, keys: &[(usize, u64)], snapshot: Option<usize>) {
        let read = self.read_options(snapshot);
        let asked: Vec<(Family, Vec<u8>)> = (keys.iter())
            .filter_map(|(f, k)| Some((self.families.get(FAMILIES[*f])?.clone(), key_bytes(*k))))
            .collect();
        let mut answers: Vec<Option<String>> = vec![None; asked.len()];
        let mut calls = 0;
        while answers.contains(&None) {
            let open: Vec<usize> = (0..asked.len()).filter(|i| answers[*i].is_none()).collect();
            let part: Vec<(&Family, &[u8])> = (open.iter())
                .map(|i| (&asked[*i].0, &asked[*i].1[..]))
                .collect();
            let budget = self.settings.read_budget;
            let found = self.db().multi_get_within(&part, &read, budget);
            let before = open.len();
            for (i, found) in open.into_iter().zip(found) {
                answers[i] = found.map(|found| match found {
                    Err(e) => format!("{:?}", e.kind()),
                    Ok(Some(v)) if lives(&v) => brief(&v),
                    Ok(_) => "absent".to_string(),
                });
            }
            let after = answers.iter().filter(|a| a.is_none()).count();
            assert!(after < before, "each call answers one key at least");
            calls += 1;
        }
        self.did("calls_of_multi_gets_in_parts", calls);
        let answers: Vec<String> = answers.into_iter().flatten().collect();
        self.say(format!("multi_get: {}", answers.join("; ")));
    }

    pub(super) fn open_iter(&mut self, look: &ReadTarget, first: &Move) {
        let Some(family) = self.families.get(FAMILIES[look.family]) else {
            return;
        };
        let made = self.db().iter(family, &self.bounded(look));
        let mut iter = made.expect("of a family that is there");
        self.move_iter(&mut iter, first);
        if self.iters.len() >= HELD {
            self.iters.remove(0);
        }
        self.iters.push(iter);
    }

    /// Moves a held iterator on to another moment.
    pub(super) fn refresh(&mut self, n: usize, snapshot: Option<usize>, to: &Move) {
        if self.iters.is_empty() {
            return;
        }
        let mut iter = self.iters.remove(n % self.iters.len());
        let snapshot = snapshot.and_then(|n| self.snapshots.get(n).cloned());
        match iter.refresh(snapshot.as_ref()) {
            Ok(()) => {
                assert!(!iter.valid(), "it is not positioned");
                self.did("refreshed_iterators", 1);
                self.say("refreshed".to_string());
                self.move_iter(&mut iter, to);
            }
            Err(e) => self.say(format!("refresh: {:?}", e.kind())),
        }
        self.iters.push(iter);
    }

    /// Opens a cursor that follows the store. It is never of the first family: readers there skip
    /// entries that compactions may have removed. Such a cursor continues from its position, so its
    /// answers would show what compactions removed.
    pub(super) fn open_tail(&mut self, look: &ReadTarget, first: &Move) {
        let Some(family) = self.families.get(FAMILIES[look.family.max(1)]) else {
            return;
        };
        let options = self.bounded(look).tailing(true).snapshot(None);
        let made = self.db().iter(family, &options);
        let mut tail = made.expect("of a family that is there");
        let moved = tail
            .seek_to_first()
            .and_then(|()| Self::row(&mut tail, false));
        self.say_row("tail", moved);
        self.move_tail(&mut tail, first);
        if self.tails.len() >= HELD {
            self.tails.remove(0);
        }
        self.tails.push(tail);
    }

    pub(super) fn move_tail(&mut self, tail: &mut Iter, to: &Move) {
        let steps = match to {
            Move::Next(n) => *n,
            _ => 1,
        };
        for _ in 0..steps {
            let moved = match to {
                Move::First => tail.seek_to_first(),
                Move::Seek(key) => tail.seek(&key_bytes(*key)),
                Move::Next(_) => tail.next(),
                // The cursor walks up only.
                Move::Last => tail.seek_to_last(),
                Move::SeekForPrev(key) => tail.seek_for_prev(&key_bytes(*key)),
                Move::Prev(_) => tail.prev(),
            };
            let row = moved.and_then(|()| Self::row(tail, false));
            if matches!(row, Ok(Some(_))) {
                self.did("rows_of_tailing_cursors", 1);
            }
            self.say_row("tail", row);
        }
    }

    /// Walks over all keys between bounds that leave keys with one prefix.
    pub(super) fn beginning(&mut self, look: &ReadTarget, with: usize, down: bool) {
        let Some(family) = self.families.get(FAMILIES[look.family]) else {
            return;
        };
        let from = BEGINNINGS[with].to_vec();
        let mut to = from.clone();
        match to.pop() {
            Some(0xff) => *to.last_mut().expect("two bytes") += 1,
            last => to.push(last.expect("one byte") + 1),
        }
        let read = self
            .read_options(look.snapshot)
            .lower_bound(Some(from))
            .upper_bound(Some(to));
        let made = self.db().iter(family, &read);
        let mut iter = made.expect("of a family that is there");
        let to = if down { Move::Last } else { Move::First };
        let rows = self.walk(&mut iter, &to, None, "of one beginning");
        self.did("rows_of_one_beginning", rows);
    }

    /// Walks from a move to the end, or back after `turn` rows. Returns the number of rows.
    fn walk(&mut self, iter: &mut Iter, from: &Move, turn: Option<u64>, what: &str) -> u64 {
        let mut down = matches!(from, Move::Last | Move::SeekForPrev(_));
        let mut moved = match from {
            Move::First => iter.seek_to_first(),
            Move::Last => iter.seek_to_last(),
            Move::Seek(key) => iter.seek(&key_bytes(*key)),
            Move::SeekForPrev(key) => iter.seek_for_prev(&key_bytes(*key)),
            Move::Next(_) | Move::Prev(_) => unreachable!("not drawn"),
        };
        let mut rows = 0;
        loop {
            let row = moved.and_then(|()| Self::row(iter, down));
            let more = matches!(row, Ok(Some(_)));
            self.say_row(what, row);
            if !more {
                return rows;
            }
            rows += 1;
            if turn == Some(rows) {
                down = !down;
            }
            moved = if down { iter.prev() } else { iter.next() };
        }
    }

    /// Walks over the keys of one prefix: by the iterator's own means if the family has the
    /// extractor, and otherwise by the bounds of the prefix's keys.
    pub(super) fn prefix(&mut self, look: &ReadTarget, from: &Move, turn: Option<u64>) {
        let n = look.family;
        let Some(family) = self.families.get(FAMILIES[n]).cloned() else {
            return;
        };
        let mut read = self.bounded(look);
        // Without a key to seek, the prefix is that of the key found. In the first family
        // compactions influence which key that is.
        let from = match from {
            Move::First if n == 0 => Move::Seek(30),
            Move::Last if n == 0 => Move::SeekForPrev(30),
            other => other.clone(),
        };
        let own = own_extractor(n);
        let options = self.options();
        let has = (options.family(FAMILIES[n]).prefix_extractor.as_ref())
            .is_some_and(|e| e.name() == own.name());
        if has {
            read.prefix_same_as_start = true;
            self.did("walks_by_prefix", 1);
        } else {
            let key = match &from {
                Move::Seek(key) | Move::SeekForPrev(key) => Some(key_bytes(*key)),
                _ => {
                    let mut iter = self.db().iter(&family, &read).expect("it is there");
                    let found = match from {
                        Move::First => iter.seek_to_first(),
                        _ => iter.seek_to_last(),
                    };
                    (found.is_ok() && iter.valid()).then(|| iter.key().to_vec())
                }
            };
            if let Some((least, end)) = key.and_then(|key| region(n, &key)) {
                read.lower_bound = read.lower_bound.max(Some(least));
                if let Some(end) = end {
                    read.upper_bound = Some(read.upper_bound.map_or(end.clone(), |to| to.min(end)));
                }
            }
            self.did("walks_by_the_bounds_of_a_prefix", 1);
        }
        let mut iter = self.db().iter(&family, &read).expect("it is there");
        let rows = self.walk(&mut iter, &from, turn, "of one prefix");
        self.did("rows_of_one_prefix", rows);
    }

    /// Checks that operands outlive the value below them, and do not expire with it.
    pub(super) fn outlived(&mut self) {
        let now = self.now_ms();
        let mut found = 0;
        for ((family, key), base) in &self.bases {
            let (Some(end), 1..) = base else { continue };
            if *end > now {
                continue;
            }
            let family = &self.families[FAMILIES[*family]];
            let read = self
                .db()
                .get_with_expiry(family, key, &self.read_options(None));
            let alone = matches!(&read, Ok(Some(v)) if v.expire_at_ms.is_none());
            assert!(alone, "operands over a value that has expired: {read:?}");
            found += 1;
        }
        self.did("operands_outlived_their_value", found);
    }

    /// Lets a tailing cursor at the end move on to a key that is written there.
    pub(super) fn follow(&mut self, n: usize, len: u32, flush: bool) {
        let Some(family) = self.families.get(FAMILIES[n]).cloned() else {
            return;
        };
        // This key lies behind all others.
        let (key, last) = (2, key_bytes(2));
        let item = |what| Item {
            family: n,
            key,
            what,
        };
        self.write(&[item(What::Delete)], false);
        let options = self.read_options(None).tailing(true);
        let made = self.db().iter(&family, &options);
        let mut tail = made.expect("of a family that is there");
        let mut moved = tail.seek(b"key0060");
        while moved.is_ok() && tail.valid() {
            moved = tail.next();
        }
        if let Err(e) = moved {
            return self.say(format!("follow: {:?}", e.kind()));
        }
        if flush {
            self.db().flush().expect("nothing is in its way");
        }
        self.write(&[item(What::Put(len))], false);
        let moved = tail.next();
        assert!(tail.valid() && tail.key() == last, "{moved:?}");
        self.did("tailing_cursors_went_on_at_the_end", 1);
        let row = moved.and_then(|()| Self::row(&mut tail, false));
        self.say_row("follow", row);
        self.tails.push(tail);
        if self.tails.len() > HELD {
            self.tails.remove(0);
        }
    }
}
