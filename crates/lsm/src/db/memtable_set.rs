//! The memtables of all families that share one log.
//!
//! A memtable set is one log and the memtables of all families that its records went to. Sets of a
//! passive store have no log, and are divided when some families are sealed. A set with a log is
//! sealed and flushed as a whole, and one manifest edit adds its tables and removes its log. Tables
//! and logs never overlap, in any family (decision 0001).

use super::log_position::SealedFlags;
use crate::memtable::MemTable;
use basalt_blob::Blocks;
use basalt_env::sync::atomic::{AtomicU64, Ordering::SeqCst};
use basalt_env::sync::{Mutex, named};
use basalt_env::{Env, MemoryKind, Reservation};
use basalt_fs::File;
use basalt_kv::key::{Cmp, SeqNo};
use basalt_kv::separated::compressed;
use basalt_kv::separated::record;
use basalt_records::{Outgoing, RECORD_HEADER};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The position and the size of a blob record in a log.
#[derive(Clone)]
struct SeparatedRecord {
    seq: SeqNo,
    offset: u64,
    len: u32,
    /// Bytes of the value with its expiry as memtables have it, whatever form the record has.
    value_len: u32,
}

/// The place and length of one record of [`SeparatedRecords`].
pub(crate) struct RecordRange {
    /// Position of the record.
    pub place: Range<u64>,
    /// Bytes of the value with its expiry, decompressed.
    pub value_len: usize,
}

/// The blob records of a log.
#[derive(Clone, Default)]
pub(crate) struct SeparatedRecords {
    /// Records in ascending order of sequence number and of offset.
    list: Vec<SeparatedRecord>,
    /// Bytes of the records.
    pub bytes: u64,
    /// Bytes of the blocks that the records lie in.
    pub blocks: Blocks,
}

impl SeparatedRecords {
    fn add(&mut self, place: SeparatedRecord) {
        let (offset, len) = (place.offset, u64::from(place.len));
        self.list.push(place);
        self.bytes += len;
        self.blocks.add(&(offset..offset + len));
    }

    /// Returns the record of a sequence number.
    pub fn of(&self, seq: SeqNo) -> Option<RecordRange> {
        let at = self.list.binary_search_by_key(&seq, |p| p.seq).ok()?;
        let p = &self.list[at];
        Some(RecordRange {
            place: p.offset..p.offset + u64::from(p.len),
            value_len: p.value_len as usize,
        })
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// Sums over [`SeparatedRecords`]. The commit leader changes them, under the lock of the records.
#[derive(Default)]
struct SeparatedSums {
    /// Bytes of the blob records.
    bytes: AtomicU64,
    /// Bytes of memory that the list takes.
    memory: AtomicU64,
}

/// The log of a memtable set.
pub(crate) struct MemtableSetLog {
    pub number: u64,
    pub file_id: u128,
    /// Handle to sync the log, and to give back the parts of the file that are not needed.
    pub file: Arc<dyn File>,
}

/// The memtables of all families that share one log, or of some families of a store without a log.
pub(crate) struct MemtableSet {
    /// Number of the set. Each new memtable set has a larger one.
    pub number: u64,
    /// Memtables by family id.
    pub mems: BTreeMap<u32, Arc<MemTable>>,
    /// Number of the log that the records went to, or 0 if there is none yet.
    log: Arc<OnceLock<MemtableSetLog>>,
    /// The highest sequence number in the set.
    last_seq: Arc<AtomicU64>,
    /// Positions of the blob records in the log, in ascending order of sequence number.
    separated: Arc<Mutex<SeparatedRecords>>,
    /// Sums over `separated`, which writers read with each group without its lock.
    separated_sums: Arc<SeparatedSums>,
    booked: Arc<Mutex<Reservation>>,
    /// In a passive store, the flags that the flush of the set installs.
    flags: OnceLock<SealedFlags>,
    /// The bytes of memory of a set that takes no more writes.
    sealed_bytes: OnceLock<u64>,
}

impl MemtableSet {
    pub fn new(
        env: &Env,
        number: u64,
        families: impl Iterator<Item = (u32, Cmp)>,
    ) -> Arc<MemtableSet> {
        Arc::new(MemtableSet {
            number,
            mems: families.map(|(id, cmp)| (id, MemTable::new(cmp))).collect(),
            log: Arc::default(),
            last_seq: Arc::default(),
            separated: Arc::default(),
            separated_sums: Arc::default(),
            booked: Arc::new(named(
                "MemtableSet::booked",
                Mutex::new(env.ledger().reserve(MemoryKind::Memtable, 0)),
            )),
            flags: OnceLock::new(),
            sealed_bytes: OnceLock::new(),
        })
    }

    /// Divides a set without a log. Returns a sealed set with the memtables of `families` and with
    /// `flags`, and an active set with the other memtables, under `number`, and with empty
    /// memtables for `families`.
    pub fn divide(
        &self,
        env: &Env,
        number: u64,
        families: &BTreeSet<u32>,
        flags: SealedFlags,
    ) -> (Arc<MemtableSet>, Arc<MemtableSet>) {
        assert_eq!(self.log(), 0, "a memtable set with a log is sealed whole");
        let (sealed, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (self.mems.clone().into_iter()).partition(|(id, _)| families.contains(id));
        let fresh = sealed.iter().map(|(id, mem)| (*id, mem.cmp().clone()));
        let active = MemtableSet::new(env, number, fresh);
        let mut active = Arc::into_inner(active).expect("nothing else has it yet");
        active.mems.extend(kept);
        active.note_seq(self.last_seq());
        let sealed = MemtableSet {
            number: self.number,
            mems: sealed,
            log: Arc::default(),
            last_seq: self.last_seq.clone(),
            separated: Arc::default(),
            separated_sums: Arc::default(),
            // Readers of the undivided set hold memory of the sealed memtables.
            booked: self.booked.clone(),
            flags: OnceLock::from(flags),
            sealed_bytes: OnceLock::new(),
        };
        active.book_memory();
        sealed.book_memory();
        // A reader of an earlier set may hold them after their flush.
        for mem in sealed.mems.values() {
            mem.keep_booking(sealed.booked.clone());
        }
        (Arc::new(sealed), Arc::new(active))
    }

    /// Returns the bytes of a sealed set, which are added up once.
    pub fn sealed_bytes(&self) -> u64 {
        *self.sealed_bytes.get_or_init(|| self.memory())
    }

    /// Returns the flags that the flush of the set installs, in a passive store.
    pub fn flags(&self) -> Option<&SealedFlags> {
        self.flags.get()
    }

    /// Returns the bytes of the memtables of families.
    pub fn memory_of(&self, families: &BTreeSet<u32>) -> u64 {
        let of = self.mems.iter().filter(|(id, _)| families.contains(id));
        of.map(|(_, mem)| mem.memory() as u64).sum()
    }

    /// Returns the same memtables and one more family.
    pub fn with_family(&self, id: u32, cmp: Cmp) -> Arc<MemtableSet> {
        let mut mems = self.mems.clone();
        mems.insert(id, MemTable::new(cmp));
        Arc::new(MemtableSet {
            number: self.number,
            mems,
            log: self.log.clone(),
            last_seq: self.last_seq.clone(),
            separated: self.separated.clone(),
            separated_sums: self.separated_sums.clone(),
            booked: self.booked.clone(),
            flags: OnceLock::new(),
            sealed_bytes: OnceLock::new(),
        })
    }

    /// Returns the same memtables without a family.
    pub fn without_family(&self, id: u32) -> Arc<MemtableSet> {
        let mut mems = self.mems.clone();
        mems.remove(&id);
        Arc::new(MemtableSet {
            number: self.number,
            mems,
            log: self.log.clone(),
            last_seq: self.last_seq.clone(),
            separated: self.separated.clone(),
            separated_sums: self.separated_sums.clone(),
            booked: self.booked.clone(),
            flags: OnceLock::new(),
            sealed_bytes: OnceLock::new(),
        })
    }

    /// Returns the number of the log, or 0 if there is none yet.
    pub fn log(&self) -> u64 {
        self.log.get().map_or(0, |l| l.number)
    }

    /// Returns the log, if the set has one.
    pub fn log_file(&self) -> Option<&MemtableSetLog> {
        self.log.get()
    }

    /// Notes the log that the records of the set go to.
    pub fn set_log(&self, log: MemtableSetLog) {
        assert!(self.log.set(log).is_ok(), "a memtable set has one log");
    }

    /// Notes the highest sequence number of a group, before it is inserted.
    pub fn note_seq(&self, last: SeqNo) {
        self.last_seq.store(last, SeqCst);
    }

    /// Returns the highest sequence number in the set; 0 if it is empty.
    pub fn last_seq(&self) -> SeqNo {
        self.last_seq.load(SeqCst)
    }

    /// Records the positions of the blob records of a group that was just written to the log.
    pub fn keep_places(&self, records: &[Outgoing<'_>]) {
        if records.iter().all(|r| r.separated.is_empty()) {
            return;
        }
        let mut places = self.separated.lock();
        for r in records {
            for s in r.separated {
                let at = RECORD_HEADER + s.at as usize;
                let head = record::BlobRecordHeader::parse(&r.buf[at..])
                    .expect("a record of this process");
                let stored = &r.buf[at..][head.value()];
                let value_len = compressed::payload_len(head.kind, head.codec, stored);
                places.add(SeparatedRecord {
                    seq: r.first_seq + u64::from(s.op),
                    offset: r.offset + at as u64,
                    len: head.record_len() as u32,
                    value_len: value_len.expect("a record of this process") as u32,
                });
            }
        }
        let memory = places.list.capacity() * size_of::<SeparatedRecord>();
        self.separated_sums.memory.store(memory as u64, SeqCst);
        self.separated_sums.bytes.store(places.bytes, SeqCst);
    }

    /// Returns the positions of the blob records in the log, by sequence number. The set must take
    /// no more writes.
    pub fn places(&self) -> SeparatedRecords {
        self.separated.lock().clone()
    }

    /// Returns the bytes of blob records in the log.
    pub fn separated_bytes(&self) -> u64 {
        self.separated_sums.bytes.load(SeqCst)
    }

    /// Returns the bytes of all memtables of the set.
    pub fn memory(&self) -> u64 {
        let separated = self.separated_sums.memory.load(SeqCst);
        self.mems.values().map(|m| m.memory() as u64).sum::<u64>() + separated
    }

    /// Returns true if nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.mems.values().all(|m| m.is_empty())
    }

    /// Sets the bytes in the memory ledger to what the memtables hold now.
    pub fn book_memory(&self) {
        self.book(self.memory());
    }

    /// Reserves `bytes` bytes in the memory ledger. Before a group is inserted, they are the most
    /// that it will need; [`Self::book_memory`] corrects the amount later.
    pub fn book(&self, bytes: u64) {
        self.booked.lock().resize(bytes);
    }
}
