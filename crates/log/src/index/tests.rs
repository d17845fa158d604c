//! The index compared with a `BTreeMap` under random histories.

use super::*;
use basalt_env::Random;
use std::collections::BTreeMap;

/// The index, what it should have, and the pages that were written.
struct Pair {
    random: Random,
    index: LogIndex,
    model: BTreeMap<u64, Location>,
    pages: BTreeMap<PageLocation, Mapping>,
    freed: Freed,
    /// Bytes of records that were added.
    added: u64,
    next_offset: u64,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        Pair {
            random: Random::from_seed(seed),
            index: LogIndex::default(),
            model: BTreeMap::new(),
            pages: BTreeMap::new(),
            freed: Freed::default(),
            added: 0,
            next_offset: 64,
        }
    }

    fn location(&mut self) -> Location {
        let len = 20 + self.random.below(300) as u32;
        let offset = self.next_offset.next_multiple_of(8) + 40;
        self.next_offset = offset + u64::from(len);
        Location {
            file: self.next_offset / 20_000,
            offset,
            len,
        }
    }

    fn some_lsn(&self) -> u64 {
        let (first, last) = self.ends();
        first.saturating_sub(2) + self.random.below(last - first + 5)
    }

    fn ends(&self) -> (u64, u64) {
        let end = |entry: Option<(&u64, &Location)>| entry.map_or(10, |(lsn, _)| *lsn);
        (
            end(self.model.first_key_value()),
            end(self.model.last_key_value()),
        )
    }

    fn insert(&mut self) {
        let last = self.ends().1;
        let lsn = match self.random.below(12) {
            0 => self.some_lsn(),
            1 => last + 1 + self.random.below(40),
            _ => last + 1,
        };
        let location = self.location();
        match self.index.insert(lsn, location) {
            Inserted::New => {
                assert_eq!(self.model.insert(lsn, location), None);
                self.added += u64::from(location.len);
            }
            Inserted::Duplicate(place) => {
                assert_eq!(self.model.get(&lsn), Some(&self.resolve(lsn, place)));
            }
        }
    }

    fn resolve(&self, lsn: u64, place: EntryPlace) -> Location {
        match place {
            EntryPlace::Known(location) => location,
            EntryPlace::OnPage(page) => self.pages[&page].get(lsn).expect("the page has it"),
        }
    }

    fn remove(&mut self) {
        let (first, last) = self.ends();
        let range = match self.random.below(6) {
            0 => self.some_lsn()..=u64::MAX,
            1 => {
                let from = self.some_lsn();
                from..=from + self.random.below(30)
            }
            2 => 0..=first + self.random.below(last - first + 1),
            _ => 0..=first + self.random.below(20),
        };
        let cut = self.index.pages_cut_by(&range);
        let pages = &self.pages;
        let mut load = |page: PageLocation| {
            assert!(cut.contains(&page), "a page that was not announced");
            Some(pages[&page].clone())
        };
        let mut freed = Freed::default();
        self.index.remove(&range, &mut load, &mut freed);
        let gone: Vec<Location> = self.model.range(range.clone()).map(|(_, l)| *l).collect();
        self.model.retain(|lsn, _| !range.contains(lsn));
        assert_eq!(freed.count, gone.len() as u64);
        let mut bytes = BTreeMap::new();
        for l in &gone {
            *bytes.entry(l.file).or_insert(0) += u64::from(l.len);
        }
        assert_eq!(freed.records.iter().collect::<BTreeMap<_, _>>(), bytes);
        self.note(freed);
    }

    fn note(&mut self, freed: Freed) {
        self.freed.records.add_all(&freed.records);
        self.freed.pages.add_all(&freed.pages);
    }

    fn flush_page(&mut self) {
        let keep = self.random.below(200);
        let Some(mapping) = self.index.next_page(keep).map(|page| page.mapping()) else {
            return;
        };
        let at = PageLocation {
            file: self.pages.len() as u64 / 10,
            offset: self.pages.len() as u64,
            len: mapping.bytes().len() as u32,
        };
        self.pages.insert(at, mapping.clone());
        // The log changes while the page is being written.
        for _ in 0..self.random.below(4) {
            match self.random.below(3) {
                0 => self.remove(),
                1 => self.move_some(),
                _ => self.insert(),
            }
        }
        let mut freed = Freed::default();
        self.index
            .install_page(PageContent::of(&mapping), at, &mut freed);
        self.note(freed);
    }

    /// Moves the smallest LSNs to a page, which only the caller knows.
    fn install_first_page(&mut self, freed: &mut Freed) -> (PageLocation, Mapping) {
        let mapping = self.index.next_page(0).unwrap().mapping();
        let at = PageLocation {
            file: 1,
            offset: 0,
            len: 9,
        };
        self.index
            .install_page(PageContent::of(&mapping), at, freed);
        (at, mapping)
    }

    fn unload_some(&mut self) {
        let pages: Vec<PageLocation> = self.index.pages.iter().map(|page| page.at).collect();
        let Some(at) = pages.get(self.random.below(pages.len().max(1) as u64) as usize) else {
            return;
        };
        let mut freed = Freed::default();
        let exact = self.index.unload_page(*at, &self.pages[at], &mut freed);
        assert_eq!(exact, None, "the counts were exact");
        assert_eq!(
            (freed.records.sum(), freed.pages.sum()),
            (0, u64::from(at.len))
        );
        self.note(freed);
    }

    fn move_some(&mut self) {
        let lsns: Vec<u64> = self.model.keys().copied().collect();
        for _ in 0..self.random.below(20) {
            let Some(lsn) = lsns.get(self.random.below(lsns.len().max(1) as u64) as usize) else {
                return;
            };
            let Some(from) = self.model.get(lsn).copied() else {
                continue;
            };
            let page = match self.index.find(*lsn) {
                Some(EntryPlace::OnPage(page)) => Some(page),
                _ => None,
            };
            let to = Location {
                len: from.len,
                ..self.location()
            };
            let stale = Location {
                offset: from.offset + 8,
                ..from
            };
            let mut freed = Freed::default();
            if page.is_none() {
                let moved = self.index.move_record(*lsn, stale, page, to, &mut freed);
                assert!(!moved);
                assert_eq!(freed.records.sum() + freed.pages.sum(), 0);
            }
            assert!(self.index.move_record(*lsn, from, page, to, &mut freed));
            assert_eq!(freed.records.sum(), u64::from(from.len));
            self.model.insert(*lsn, to);
            self.note(freed);
            self.added += u64::from(to.len);
        }
    }

    fn check(&self) {
        assert_eq!(self.index.count(), self.model.len() as u64);
        let bytes: u64 = self.model.values().map(|l| u64::from(l.len)).sum();
        assert_eq!(self.index.bytes(), bytes);
        assert_eq!(self.index.first(), self.model.keys().next().copied());
        assert_eq!(self.index.last(), self.model.keys().next_back().copied());
        let mut live = Freed::default();
        self.index.live(&mut live);
        assert_eq!(live.records.sum(), bytes);
        assert_eq!(live.count, self.index.count());
        assert_eq!(live.records.sum() + self.freed.records.sum(), self.added);
        let from = self.some_lsn();
        let limit = 1 + self.random.below(300) as usize;
        let resolved = |entries: Vec<(u64, EntryPlace)>| -> Vec<(u64, Location)> {
            let of = |(lsn, place)| (lsn, self.resolve(lsn, place));
            entries.into_iter().map(of).collect()
        };
        let up = self
            .model
            .range(from..)
            .map(|(lsn, l)| (*lsn, *l))
            .take(limit);
        assert!(
            resolved(self.index.entries_from(from, limit))
                .into_iter()
                .eq(up)
        );
        let down = self
            .model
            .range(..=from)
            .rev()
            .map(|(lsn, l)| (*lsn, *l))
            .take(limit);
        assert!(
            resolved(self.index.entries_down_from(from, limit))
                .into_iter()
                .eq(down)
        );
        for lsn in [from, from + 1, from + 50] {
            let found = self.index.find(lsn).map(|place| self.resolve(lsn, place));
            assert_eq!(found, self.model.get(&lsn).copied(), "LSN {lsn}");
        }
        self.check_gaps();
        let mut bytes = Vec::new();
        self.index.encode(&mut bytes);
        let mut at = 0;
        let again = LogIndex::decode(&bytes, &mut at).expect("it decodes");
        assert_eq!(at, bytes.len());
        assert_eq!(
            (again.count(), again.bytes()),
            (self.index.count(), self.index.bytes())
        );
        assert_eq!(
            again.entries_from(0, usize::MAX),
            self.index.entries_from(0, usize::MAX)
        );
    }

    fn check_gaps(&self) {
        let (a, b) = (self.some_lsn(), self.some_lsn());
        let range = a.min(b)..=a.max(b);
        let mut expected: Vec<RangeInclusive<u64>> = Vec::new();
        for lsn in range.clone().filter(|lsn| !self.model.contains_key(lsn)) {
            match expected.last_mut() {
                Some(gap) if gap.end() + 1 == lsn => *gap = *gap.start()..=lsn,
                _ => expected.push(lsn..=lsn),
            }
        }
        assert_eq!(self.index.gaps(&range), expected);
    }
}

#[test]
fn the_index_agrees_with_a_model() {
    let (mut pages, mut removed) = (0, 0);
    for seed in 0..60 {
        let mut pair = Pair::new(seed);
        // Some logs are trimmed closely behind, others grow.
        let remove_in = [12, 60, 400][seed as usize % 3];
        for step in 0..2500 {
            match pair.random.below(1000) {
                n if n < 1000 / remove_in => pair.remove(),
                n if n > 990 => pair.move_some(),
                n if n > 975 => pair.flush_page(),
                n if n > 970 => pair.unload_some(),
                _ => pair.insert(),
            }
            if step % 50 == 0 {
                pair.check();
            }
        }
        pair.check();
        pages += pair.index.pages();
        removed += pair.freed.records.iter().count();
    }
    println!("index: pages={pages} files_with_garbage={removed}");
    assert!(pages > 100 && removed > 100);
}

#[test]
fn records_removed_from_an_unreadable_page_count_as_live() {
    let mut pair = Pair::new(1);
    for _ in 0..400 {
        pair.insert();
    }
    let mut freed = Freed::default();
    pair.install_first_page(&mut freed);
    let (first, bytes) = (pair.index.first().unwrap(), pair.index.bytes());
    pair.index
        .remove(&(first..=first + 9), &mut |_| None, &mut freed);
    assert!(freed.count > 0 && freed.records.sum() < bytes / 4);
    pair.index
        .remove(&(0..=u64::MAX), &mut |_| None, &mut freed);
    assert_eq!((pair.index.count(), pair.index.bytes()), (0, 0));
    assert_eq!(freed.records.sum(), bytes);
}

/// Records of a page whose bytes count too much go back to L0, or are moved.
#[test]
fn overcounted_bytes_end_with_their_page() {
    for unload in [true, false] {
        let mut pair = Pair::new(2);
        for _ in 0..300 {
            pair.insert();
        }
        let mut freed = Freed::default();
        let (at, mapping) = pair.install_first_page(&mut freed);
        let cut = 0..=mapping.iter().nth(99).unwrap().0;
        pair.index.remove(&cut, &mut |_| None, &mut freed);
        pair.model.retain(|lsn, _| !cut.contains(lsn));
        let mut freed = Freed::default();
        if unload {
            let exact = pair.index.unload_page(at, &mapping, &mut freed).unwrap();
            let lens = mapping.iter().filter(|(lsn, _)| !cut.contains(lsn));
            let lens = lens.map(|(_, location)| u64::from(location.len));
            assert_eq!(exact.sum(), lens.sum());
            assert_ne!(exact.sum(), freed.records.sum());
        } else {
            for (lsn, from) in mapping.iter().filter(|(lsn, _)| !cut.contains(lsn)) {
                let to = Location { file: 99, ..from };
                assert!(pair.index.move_record(lsn, from, Some(at), to, &mut freed));
            }
        }
        let bytes: u64 = pair.model.values().map(|l| u64::from(l.len)).sum();
        assert_eq!(pair.index.bytes(), bytes, "unload: {unload}");
        pair.index
            .remove(&(0..=u64::MAX), &mut |_| None, &mut freed);
        assert_eq!((pair.index.count(), pair.index.bytes()), (0, 0));
    }
}

/// A store that a bug or a hand has changed: the page on disk says other files and lengths than the
/// checkpoint.
#[test]
fn a_page_that_disagrees_with_the_index_does_no_harm() {
    let at = |file| PageLocation {
        file,
        offset: 0,
        len: 9,
    };
    let place = |file, len| Location {
        file,
        offset: 512,
        len,
    };
    let written = Mapping::of((1..=9).map(|lsn| (lsn, place(3, 10))));
    for (file, len) in [(4, 10), (3, 1000)] {
        let other = Mapping::of((1..=9).map(|lsn| (lsn, place(file, len))));
        let mut index = LogIndex::default();
        for (lsn, location) in written.iter() {
            index.insert(lsn, location);
        }
        let mut freed = Freed::default();
        index.install_page(PageContent::of(&written), at(8), &mut freed);
        index.remove(&(2..=4), &mut |_| Some(other.clone()), &mut freed);
        let (from, to) = (place(file, len), place(5, 20));
        assert!(index.move_record(7, from, Some(at(8)), to, &mut freed));
        index.remove(&(0..=u64::MAX), &mut |_| Some(other.clone()), &mut freed);
        assert_eq!((index.count(), index.bytes()), (0, 0));
        assert!(freed.records.sum() <= 110, "{freed:?}");
    }
}

#[test]
fn ten_million_lsns_with_a_thousand_holes_take_few_bytes() {
    let mut index = LogIndex::default();
    let mut offset = 64;
    let holes = 1000;
    for lsn in (1..=1_000_000u64).filter(|lsn| lsn % (1_000_000 / holes) != 0) {
        index.insert(
            lsn,
            Location {
                file: offset >> 28,
                offset: offset % (1 << 28),
                len: 1000,
            },
        );
        offset += 1048;
        if index.in_memory() > 1024 {
            let mapping = index.next_page(512).unwrap().mapping();
            let at = PageLocation {
                file: 0,
                offset,
                len: 1500,
            };
            index.install_page(PageContent::of(&mapping), at, &mut Freed::default());
        }
    }
    assert_eq!(index.gaps(&(1..=1_000_000)).len() as u64, holes);
    let each = index.memory() as f64 / index.count() as f64;
    assert!(each < 1.0, "{each} bytes of memory a record");
}

#[test]
fn bytes_that_are_no_index_are_refused() {
    let mut pair = Pair::new(5);
    for step in 0..3000 {
        pair.insert();
        if step % 300 == 299 {
            pair.flush_page();
        }
    }
    let mut bytes = Vec::new();
    pair.index.encode(&mut bytes);
    let mut accepted = 0;
    for seed in 0..4000 {
        let random = Random::from_seed(seed);
        let mut wrong = bytes.clone();
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => wrong[at] ^= 1 << random.below(8),
            1 => wrong[at] = 0xff,
            _ => wrong.truncate(at),
        }
        let mut at = 0;
        if let Some(index) = LogIndex::decode(&wrong, &mut at) {
            index.entries_from(0, 1000);
            accepted += 1;
        }
    }
    assert!(accepted > 100, "only {accepted} were accepted");
}
