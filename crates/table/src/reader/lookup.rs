//! A point lookup that does not wait: it names the block that it needs next, and goes on when the
//! caller has that block. A caller with many keys can so read the blocks of all of them at once,
//! from any number of tables.

use super::TableReader;
use crate::format::filter;
use crate::format::{BlockHandle, BlockKind, open_block};
use crate::index::IndexBlock;
use basalt_fs::{Bytes, Lifetime, ReadRequest, Result};
use basalt_kv::entry::FoundEntry;
use basalt_kv::key::SeqNo;
use std::sync::Arc;

/// The block that a lookup waits for.
enum Stage {
    /// The filter page; the key's line begins at this byte of its payload.
    Filter(usize),
    /// The index partition.
    Index,
    /// The data block.
    Data,
}

/// The lookup of one key in one table.
pub struct Lookup {
    wanted: Wanted,
    hash: Option<u64>,
    stage: Stage,
    /// The newest range tombstone of this table over the key.
    deleted: Option<SeqNo>,
}

/// A block that a lookup waits for.
#[derive(Clone)]
pub struct Wanted {
    table: Arc<TableReader>,
    kind: BlockKind,
    /// The number of the filter page or the index partition.
    number: usize,
    handle: BlockHandle,
}

/// The result of a step.
pub enum LookupStep {
    /// The lookup needs another block.
    On(Lookup),
    /// The newest visible version of the key in this table, if there is one.
    Is(Option<FoundEntry>),
}

impl Wanted {
    /// Returns the block's file id and offset, which identify it among all blocks.
    pub fn id(&self) -> (u128, u64) {
        (self.table.file_id, self.handle.offset)
    }

    /// Returns true for a block that holds values.
    pub fn is_data(&self) -> bool {
        self.kind == BlockKind::Data
    }

    /// Returns the bytes that reading this block brings into memory: those read, and those
    /// decompressed from them. Both are in memory at the same time.
    pub fn read_bytes(&self) -> usize {
        self.handle.disk_len() + self.handle.raw as usize
    }

    /// Returns the payload if it needs no read.
    pub fn cached(&self) -> Option<Bytes> {
        let pinned = match self.kind {
            BlockKind::Filter => self.table.pins.filter(self.number as u64),
            BlockKind::Index => {
                let partition = self.table.pins.partition(self.number);
                partition.map(|p| p.index.payload())
            }
            _ => None,
        };
        if let Some(pinned) = pinned {
            return Some(pinned.clone());
        }
        (self.table.env.cache()).get(self.table.cache_key(&self.handle))
    }

    /// Reads blocks, all of them in flight together. Each block has its own result.
    pub fn read_batch(wanted: &[Wanted], fill_cache: bool) -> Vec<Result<Bytes>> {
        if let [one] = wanted {
            one.table.env.foreground_io().foreground_read();
            return vec![one.table.block(one.kind, &one.handle, fill_cache)];
        }
        let Some(first) = wanted.first() else {
            return Vec::new();
        };
        let mut booked: Vec<_> = (wanted.iter())
            .map(|w| Some(w.table.book_read(&w.handle)))
            .collect();
        let mut payloads: Vec<Option<Result<Bytes>>> = wanted.iter().map(|_| None).collect();
        // `asked` lists the blocks whose file is open or could be opened.
        let mut asked: Vec<usize> = Vec::with_capacity(wanted.len());
        let mut requests = Vec::with_capacity(wanted.len());
        for (i, w) in wanted.iter().enumerate() {
            match w.table.file() {
                Ok(file) => {
                    asked.push(i);
                    requests.push(ReadRequest {
                        file,
                        offset: w.handle.offset,
                        len: w.handle.disk_len(),
                        lifetime: Lifetime::Cached,
                    });
                }
                Err(e) => payloads[i] = Some(Err(e)),
            }
        }
        first.table.env.foreground_io().foreground_read();
        let mut done = first.table.env.fs().submit_reads(requests);
        done.wait_all();
        while let Some((i, disk)) = done.next() {
            let i = asked[i];
            let (
                Wanted {
                    table,
                    kind,
                    handle,
                    ..
                },
                booked,
            ) = (&wanted[i], booked[i].take());
            let booked = booked.expect("each read ends once");
            let opened =
                disk.and_then(|d| open_block(&table.path, table.file_id, *kind, handle, d));
            payloads[i] = Some(opened.map(|p| table.keep(*kind, handle, p, booked, fill_cache)));
        }
        (payloads.into_iter())
            .map(|p| p.expect("each read ends"))
            .collect()
    }
}

impl Lookup {
    /// Begins the lookup of a user key. `target` is the internal key to seek for it as of `seq`.
    pub fn begin(
        table: &Arc<TableReader>,
        user_key: &[u8],
        target: &[u8],
        seq: SeqNo,
    ) -> Result<LookupStep> {
        let deleted = table.ranges.newest(&table.cmp, user_key, seq);
        if table.is_newest(deleted) {
            return Ok(LookupStep::Is(FoundEntry::newer(None, deleted)));
        }
        let hash = table.bytewise.then(|| filter::key_hash(user_key));
        if let Some(hash) = hash
            && let Some((page, at)) = table.filter_place(hash)
        {
            return Ok(LookupStep::On(Lookup {
                wanted: Wanted {
                    table: table.clone(),
                    kind: BlockKind::Filter,
                    number: page as usize,
                    handle: table.filter_page(page),
                },
                hash: Some(hash),
                stage: Stage::Filter(at),
                deleted,
            }));
        }
        Lookup::index(table.clone(), hash, deleted, target)
    }

    fn index(
        table: Arc<TableReader>,
        hash: Option<u64>,
        deleted: Option<SeqNo>,
        target: &[u8],
    ) -> Result<LookupStep> {
        let Some(number) = table.find_partition(&table.as_stored(target))? else {
            return Ok(LookupStep::Is(FoundEntry::newer(None, deleted)));
        };
        let handle = table.partition_handle(number)?;
        Ok(LookupStep::On(Lookup {
            wanted: Wanted {
                table,
                kind: BlockKind::Index,
                number,
                handle,
            },
            hash,
            stage: Stage::Index,
            deleted,
        }))
    }

    /// Returns the block that the lookup waits for.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Continues with the payload of the block that the lookup waits for. Key, target and sequence
    /// number are those that the lookup began with.
    pub fn feed(
        self,
        payload: &Bytes,
        user_key: &[u8],
        target: &[u8],
        seq: SeqNo,
    ) -> Result<LookupStep> {
        let (hash, deleted) = (self.hash, self.deleted);
        let Wanted {
            table,
            handle,
            number,
            ..
        } = self.wanted;
        match self.stage {
            Stage::Filter(at) => {
                let page = number as u64;
                if table.pins.filter(page).is_none() {
                    table.pins.offer_filter(page, &handle, payload);
                }
                let asked = hash.expect("a filter was asked");
                match table.page_may_contain(payload, page, at, asked)? {
                    true => Lookup::index(table, hash, deleted, target),
                    false => Ok(LookupStep::Is(FoundEntry::newer(None, deleted))),
                }
            }
            Stage::Index => {
                let partition = IndexBlock::new(payload.clone())
                    .map_err(|d| d.at(&table.path, handle.offset))?;
                if table.pins.partition(number).is_none() {
                    table.pins.offer_partition(number, &handle, &partition);
                }
                let target = table.as_stored(target);
                let handle = table.find_in(&partition, handle.offset, &target)?;
                Ok(LookupStep::On(Lookup {
                    wanted: Wanted {
                        table,
                        kind: BlockKind::Data,
                        number: 0,
                        handle,
                    },
                    hash,
                    stage: Stage::Data,
                    deleted,
                }))
            }
            Stage::Data => {
                let found = table.found(payload, &handle, user_key, seq, hash)?;
                Ok(LookupStep::Is(FoundEntry::newer(found, deleted)))
            }
        }
    }
}
