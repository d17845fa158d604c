//! Generations of memtables and the view that readers take.
//!
//! A generation is one log and the memtables of all families that its records went to. It is sealed and flushed as a
//! whole, and its log is removed with one manifest edit: what is in tables and what is in logs never overlaps across families.

use super::throttle::Backlog;
use crate::blob::{Blocks, How, Name, Reference, packed, record};
use crate::iter::Habit;
use crate::key::{Cmp, Kind, SeqNo};
use crate::memtable::{Found, MemTable};
use crate::options::FamilyOptions;
use crate::table::{ReadBudget, TableFamily, hash_of};
use crate::version::{FamilyVersion, Version};
use crate::wal::{Outgoing, RECORD_HEADER};
use basalt_env::sync::Mutex;
use basalt_env::{Env, MemoryKind, Reservation};
use basalt_fs::{Bytes, File, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A blob record of a log.
#[derive(Clone)]
struct Place {
    seq: SeqNo,
    offset: u64,
    len: u32,
    /// Of its value with expiry as memtables have it, whatever the record has.
    value_len: u32,
}

/// What [`Places`] know of a record.
pub(crate) struct FoundPlace {
    /// Where it lies.
    pub place: Range<u64>,
    /// Bytes of its value with expiry, decompressed.
    pub value_len: usize,
}

/// Blob records of a log.
#[derive(Clone, Default)]
pub(crate) struct Places {
    /// Ascending by sequence number and by offset.
    list: Vec<Place>,
    /// Their bytes.
    pub bytes: u64,
    /// The blocks that they lie in.
    pub blocks: Blocks,
}

impl Places {
    fn add(&mut self, place: Place) {
        let (offset, len) = (place.offset, u64::from(place.len));
        self.list.push(place);
        self.bytes += len;
        self.blocks.add(&(offset..offset + len));
    }

    /// The record of a sequence number.
    pub fn of(&self, seq: SeqNo) -> Option<FoundPlace> {
        let at = self.list.binary_search_by_key(&seq, |p| p.seq).ok()?;
        let p = &self.list[at];
        Some(FoundPlace {
            place: p.offset..p.offset + u64::from(p.len),
            value_len: p.value_len as usize,
        })
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// The log of a generation.
pub(crate) struct GenerationLog {
    pub number: u64,
    pub file_id: u128,
    /// To sync it by, and to give back what nobody needs of it.
    pub file: Arc<dyn File>,
}

/// One log's memtables.
pub(crate) struct Generation {
    /// Grows from one generation to the next.
    pub number: u64,
    /// By family id.
    pub mems: BTreeMap<u32, Arc<MemTable>>,
    /// Number of the log its records went to; 0 for none yet.
    log: Arc<OnceLock<GenerationLog>>,
    /// Where the blob records of the log begin, by sequence number, ascending.
    separated: Arc<Mutex<Places>>,
    booked: Arc<Mutex<Reservation>>,
}

impl Generation {
    pub fn new(
        env: &Env,
        number: u64,
        families: impl Iterator<Item = (u32, Cmp)>,
    ) -> Arc<Generation> {
        Arc::new(Generation {
            number,
            mems: families.map(|(id, cmp)| (id, MemTable::new(cmp))).collect(),
            log: Arc::default(),
            separated: Arc::default(),
            booked: Arc::new(Mutex::new(env.ledger().reserve(MemoryKind::Memtable, 0))),
        })
    }

    /// The same memtables and one more family.
    pub fn with_family(&self, id: u32, cmp: Cmp) -> Arc<Generation> {
        let mut mems = self.mems.clone();
        mems.insert(id, MemTable::new(cmp));
        Arc::new(Generation {
            number: self.number,
            mems,
            log: self.log.clone(),
            separated: self.separated.clone(),
            booked: self.booked.clone(),
        })
    }

    /// The same memtables without a family.
    pub fn without_family(&self, id: u32) -> Arc<Generation> {
        let mut mems = self.mems.clone();
        mems.remove(&id);
        Arc::new(Generation {
            number: self.number,
            mems,
            log: self.log.clone(),
            separated: self.separated.clone(),
            booked: self.booked.clone(),
        })
    }

    /// Its log's number, 0 for none yet.
    pub fn log(&self) -> u64 {
        self.log.get().map_or(0, |l| l.number)
    }

    /// Its log, if it has one.
    pub fn log_file(&self) -> Option<&GenerationLog> {
        self.log.get()
    }

    /// Notes the log that its records go to.
    pub fn set_log(&self, log: GenerationLog) {
        assert!(self.log.set(log).is_ok(), "a generation has one log");
    }

    /// Keeps where the blob records of a group are that was just written to the log.
    pub fn keep_places(&self, records: &[Outgoing<'_>]) {
        if records.iter().all(|r| r.separated.is_empty()) {
            return;
        }
        let mut places = self.separated.lock();
        for r in records {
            for s in r.separated {
                let at = RECORD_HEADER + s.at as usize;
                let head = record::Head::parse(&r.buf[at..]).expect("a record of this process");
                let stored = &r.buf[at..][head.value()];
                let value_len = packed::payload_len(head.kind, head.codec, stored);
                places.add(Place {
                    seq: r.first_seq + u64::from(s.op),
                    offset: r.offset + at as u64,
                    len: head.record_len() as u32,
                    value_len: value_len.expect("a record of this process") as u32,
                });
            }
        }
    }

    /// Where the blob records of its log are, by sequence number. Of a generation that takes no more writes.
    pub fn places(&self) -> Places {
        self.separated.lock().clone()
    }

    /// Bytes of blob records in its log.
    pub fn separated_bytes(&self) -> u64 {
        self.separated.lock().bytes
    }

    /// Bytes of all its memtables.
    pub fn memory(&self) -> u64 {
        let places = self.separated.lock().list.capacity() * size_of::<Place>();
        self.mems.values().map(|m| m.memory() as u64).sum::<u64>() + places as u64
    }

    /// True when nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.mems.values().all(|m| m.is_empty())
    }

    /// Brings the ledger up to date.
    pub fn book_memory(&self) {
        self.book(self.memory());
    }

    /// Books so many bytes: before a group is inserted what it will need at most, which [`Self::book_memory`] corrects.
    pub fn book(&self, bytes: u64) {
        self.booked.lock().resize(bytes);
    }
}

/// A family as the open store knows it.
#[derive(Clone)]
pub(crate) struct FamilyEntry {
    pub id: u32,
    pub name: Arc<str>,
    pub options: Arc<FamilyOptions>,
    /// How far its scans go.
    pub habit: Arc<Habit>,
}

impl FamilyEntry {
    /// As its tables name it.
    pub fn in_table(&self) -> TableFamily {
        TableFamily {
            id: self.id,
            name: self.name.clone(),
        }
    }
}

/// What became of a reference.
pub(crate) enum Opened {
    /// The kind and payload that its entry would have with its value in the tree.
    Is(Kind, Bytes),
    /// Its value's time is over. Nothing was read.
    Over,
    /// The budget does not reach for it. Nothing was read.
    Later,
}

/// All that readers need, as of the last change of shape. Readers clone the `Arc` and work undisturbed.
#[derive(Clone)]
pub(crate) struct View {
    pub active: Arc<Generation>,
    /// Newest first.
    pub sealed: Vec<Arc<Generation>>,
    pub version: Arc<Version>,
    pub families: Arc<BTreeMap<u32, FamilyEntry>>,
    /// What `version` makes of writers' speed. Worked out when a view is set.
    pub backlog: Backlog,
    /// When tables were last added that did not come from memtables: who reads as of then, or later, must have them.
    pub ingested: SeqNo,
}

impl View {
    /// The memtables of a family, newest first.
    pub fn memtables(&self, family: u32) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active)
            .chain(&self.sealed)
            .filter_map(move |g| g.mems.get(&family))
    }

    /// A version with its value in the tree, wherever that is. Its payload is taken from `budget` before it is read.
    pub fn open_reference(
        &self,
        name: &Name<'_>,
        payload: &[u8],
        now_ms: u64,
        fill_cache: bool,
        budget: &mut ReadBudget,
    ) -> Result<Opened> {
        let to = Reference::decode(payload)?;
        if to.is_over(now_ms) {
            return Ok(Opened::Over);
        }
        let cmp = &self.families[&name.family].options.comparator;
        let how = How::user(fill_cache);
        let read = (self.version.blobs).read_within(name, &to, cmp, how, budget)?;
        Ok(match read {
            Some((kind, value)) => Opened::Is(kind, value),
            None => Opened::Later,
        })
    }

    /// The newest version of a key visible at `seq`, tombstones included.
    pub fn get(
        &self,
        family: u32,
        key: &[u8],
        seq: SeqNo,
        fill_cache: bool,
    ) -> Result<Option<Found>> {
        for mem in self.memtables(family) {
            if let Some(found) = mem.get(key, seq) {
                return Ok(Some(found));
            }
        }
        let Some(tables) = self.version.families.get(&family) else {
            return Ok(None);
        };
        get_in_tables(tables, key, seq, fill_cache)
    }
}

/// Tables whose filters are fetched from memory side by side before the first of them is asked.
const TOGETHER: usize = 8;

/// As [`View::get`], in a family's tables.
fn get_in_tables(
    tables: &FamilyVersion,
    key: &[u8],
    seq: SeqNo,
    fill_cache: bool,
) -> Result<Option<Found>> {
    let hash = hash_of(&tables.cmp, key);
    let newest = tables.levels[0]
        .iter()
        .filter(|t| t.meta.min_seq <= seq && t.overlaps(Some(key), Some(key)))
        .map(|t| (0, t));
    let below =
        (1..tables.levels.len()).filter_map(|level| Some((level, tables.find(level, key)?)));
    let mut candidates = newest.chain(below);
    let mut best: Option<Found> = None;
    loop {
        let next: [_; TOGETHER] = std::array::from_fn(|_| {
            let (level, t) = candidates.next()?;
            if let (Some(hash), Some(reader)) = (hash, t.opened()) {
                reader.prefetch_filter(hash);
            }
            Some((level, t))
        });
        for candidate in next {
            let Some((level, t)) = candidate else {
                return Ok(best);
            };
            // Level 0 is sorted by newest sequence number: nothing further down can beat what is found.
            if let Some(b) = &best
                && (level > 0 || b.seq >= t.meta.max_seq)
            {
                return Ok(best);
            }
            if let Some(found) = t.reader()?.get_hashed(key, hash, seq, fill_cache)?
                && best.as_ref().is_none_or(|b| found.seq > b.seq)
            {
                best = Some(found);
            }
        }
    }
}
