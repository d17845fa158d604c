//! The memtable: a sorted map in memory that many threads insert into at once and that readers never wait for.

use crate::iter::InternalIter;
use crate::key::{Cmp, Kind, SeqNo};
use basalt_fs::{Bytes, Result};
use std::sync::Arc;

/// One family's writes since the last flush. See the module.
pub struct MemTable(Cmp);

/// What a lookup found: the newest version of the key visible at the snapshot.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its sequence number.
    pub seq: SeqNo,
    /// Value, tombstone, ...
    pub kind: Kind,
    /// The payload, pinned: it keeps what it needs alive and was not copied.
    pub value: Bytes,
}

impl MemTable {
    /// An empty table. Costs a few kilobytes until something is inserted.
    pub fn new(cmp: Cmp) -> Arc<MemTable> {
        Arc::new(MemTable(cmp))
    }
    /// Inserts an entry. `value` is a slice of the batch's memory: small values are copied beside the key, large ones
    /// keep the batch's memory alive instead. (key, seq, kind) must be new. Any number of threads may insert at once.
    pub fn insert(&self, user_key: &[u8], seq: SeqNo, kind: Kind, value: &Bytes) {
        let _ = (user_key, seq, kind, value);
        todo!()
    }
    /// The newest version of `user_key` with a sequence number of at most `seq`.
    pub fn get(self: &Arc<Self>, user_key: &[u8], seq: SeqNo) -> Option<Found> {
        let _ = (user_key, seq);
        todo!()
    }
    /// A cursor; sees entries inserted before it moves over their place.
    pub fn iter(self: &Arc<Self>) -> MemIter {
        todo!()
    }
    /// Bytes of memory held, pinned batch memory included.
    pub fn memory(&self) -> usize {
        todo!()
    }
    /// Entries.
    pub fn len(&self) -> usize {
        todo!()
    }
    /// True when nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The family's order.
    pub fn cmp(&self) -> &Cmp {
        &self.0
    }
}

/// A cursor over a memtable.
pub struct MemIter(Arc<MemTable>);

impl InternalIter for MemIter {
    fn valid(&self) -> bool {
        todo!()
    }
    fn seek_to_first(&mut self) -> Result<()> {
        todo!()
    }
    fn seek_to_last(&mut self) -> Result<()> {
        todo!()
    }
    fn seek(&mut self, _target: &[u8]) -> Result<()> {
        todo!()
    }
    fn seek_for_prev(&mut self, _target: &[u8]) -> Result<()> {
        todo!()
    }
    fn next(&mut self) -> Result<()> {
        todo!()
    }
    fn prev(&mut self) -> Result<()> {
        todo!()
    }
    fn key(&self) -> &[u8] {
        todo!()
    }
    fn value(&self) -> &[u8] {
        todo!()
    }
    fn pinned_value(&self) -> Bytes {
        let _ = &self.0;
        todo!()
    }
}
