//! Inserts of many transactions into memtables, families in parallel, each by one thread (PASV 5.4:
//! families are replayed independently).
//!
//! The calling thread takes one family after the other, and so do jobs of the pool, if it has
//! threads to spare. A job that comes late finds nothing left.

use crate::db::memtable_set::MemtableSet;
use crate::db::write_path::apply::{Countdown, CountdownGuard, decompressed};
use crate::memtable::MemTable;
use crate::options::Compression;
use basalt_env::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use basalt_env::sync::{Mutex, named};
use basalt_env::{Env, JobOwner, JobPriority};
use basalt_fs::{Bytes, slot_size};
use basalt_kv::batch::{Ops, WriteBatch};
use basalt_kv::key::{Kind, SeqNo};
use basalt_records::RECORD_HEADER;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Number of items from which jobs of the pool insert some of the families.
const MIN_PARALLEL_ITEMS: usize = if cfg!(feature = "schedules") { 4 } else { 256 };

const VALIDATED: &str = "a batch that this process built is well formed";

/// An item of a transaction.
struct Item {
    /// Index of its payload.
    payload: u32,
    key: Range<u32>,
    value: Range<u32>,
    kind: Kind,
    seq: SeqNo,
}

/// The items of one family.
type FamilyItems = (Arc<MemTable>, Vec<Item>);

/// Items to be inserted, by family, the largest family first.
struct Work {
    payloads: Vec<Bytes>,
    families: Vec<FamilyItems>,
    /// Index of the next family that no thread has taken.
    next: AtomicUsize,
    left: Countdown,
}

impl Work {
    /// Inserts the items of families that no other thread has taken.
    fn run(&self) {
        while let Some((mem, items)) = self.families.get(self.next.fetch_add(1, SeqCst)) {
            let _done = CountdownGuard::new(&self.left);
            for item in items {
                let payload = &self.payloads[item.payload as usize];
                let part = |r: &Range<u32>| &payload[r.start as usize..r.end as usize];
                let (key, value) = (part(&item.key), part(&item.value));
                match item.kind {
                    Kind::RangeDelete => mem.delete_range(key, value, item.seq),
                    kind => mem.insert_from(payload, key, item.seq, kind, value),
                }
            }
        }
    }
}

/// Returns where a part of a payload is.
fn place(payload: &[u8], part: &[u8]) -> Range<u32> {
    if part.is_empty() {
        // An operation without a value has no place for it.
        return 0..0;
    }
    let at = part.as_ptr() as usize - payload.as_ptr() as usize;
    at as u32..(at + part.len()) as u32
}

/// Inserts batches, each with the sequence number of its first item. Items for whose family and
/// sequence number `keeps` returns false are left out, and so are items of families that do not
/// exist.
pub(super) fn insert(
    jobs: &JobOwner,
    env: &Env,
    active: &MemtableSet,
    batches: Vec<(SeqNo, WriteBatch)>,
    keeps: &dyn Fn(u32, SeqNo) -> bool,
) {
    let mut payloads = Vec::with_capacity(batches.len());
    let mut families: BTreeMap<u32, Vec<Item>> = BTreeMap::new();
    for (first, batch) in batches {
        let payload = basalt_kv::batch::payload(Bytes::from_owner(batch.into_parts().buf));
        let mut pinned: Option<(u32, usize)> = None;
        for (seq, op) in (first..).zip(Ops::new(&payload)) {
            let op = op.expect(VALIDATED);
            let mem = active
                .mems
                .get(&op.family)
                .filter(|_| keeps(op.family, seq));
            let Some(mem) = mem else { continue };
            if op.codec != Compression::None {
                // Families of a passive store give batches no codec; a handle of another kind may.
                mem.insert(op.key, seq, op.kind, &decompressed(&op).expect(VALIDATED));
                continue;
            }
            if op.kind != Kind::RangeDelete && MemTable::pins(op.value.len()) {
                let before = pinned.map_or(0, |(_, bytes)| bytes);
                pinned = Some((op.family, before + op.value.len()));
            }
            families.entry(op.family).or_default().push(Item {
                payload: payloads.len() as u32,
                key: place(&payload, op.key),
                value: place(&payload, op.value),
                kind: op.kind,
                seq,
            });
        }
        if let Some((family, bytes)) = pinned {
            // One large value keeps the whole batch in memory.
            let memory = slot_size(RECORD_HEADER + payload.len());
            active.mems[&family].add_pinned(memory.saturating_sub(bytes));
        }
        payloads.push(payload);
    }
    let mut families: Vec<FamilyItems> = (families.into_iter())
        .map(|(id, items)| (active.mems[&id].clone(), items))
        .collect();
    families.sort_by_key(|(_, items)| std::cmp::Reverse(items.len()));
    let items: usize = families.iter().map(|(_, items)| items.len()).sum();
    let helpers = env.jobs().parallelism().saturating_sub(1);
    let helpers = helpers.min(families.len().saturating_sub(1));
    let work = Arc::new(Work {
        payloads,
        left: Countdown::new(families.len()),
        families,
        next: AtomicUsize::new(0),
    });
    // A job that comes late must not keep the items until then.
    let offered = Arc::new(named("by_family::offered", Mutex::new(Some(work.clone()))));
    if !env.jobs().is_stepped() && work.families.len() > 1 && items >= MIN_PARALLEL_ITEMS {
        for _ in 0..helpers {
            let offered = offered.clone();
            jobs.spawn(JobPriority::Flush, move || {
                let work = offered.lock().clone();
                if let Some(work) = work {
                    work.run();
                }
            });
        }
    }
    work.run();
    work.left.wait();
    let done = offered.lock().take();
    drop(done);
}
