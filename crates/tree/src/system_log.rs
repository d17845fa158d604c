//! System transactions and system checkpoints as logical logs have them (ArkDB, section 5.2).
//!
//! The log `system` has a record for each system transaction; its log sequence number is the
//! transaction's timestamp. The log `checkpoint` has the records of the last system checkpoint: the
//! mapping table, the usage of extents, and the root, as of one timestamp. A checkpoint is appended
//! as one batch, so it is whole or not there.

use crate::entries::DroppedEntry;
use crate::features::{self, Features};
use crate::mapping::{Change, State, SysTime, get_bytes, put_bytes};
use crate::page_id::PageId;
use crate::usage::UsageTable;
use basalt_kv::encoding::{get_varint64, put_varint};

/// Bytes of a record of a checkpoint.
const PART: usize = 1 << 20;

/// Most levels below a root. Each index page has two children or more, so no tree reaches it.
pub(crate) const MAX_LEVEL: u8 = 64;

/// The root page of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Root {
    pub id: PageId,
    /// Levels below the root: 0 if it is a leaf.
    pub level: u8,
}

/// A system transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SystemTx {
    pub changes: Vec<Change>,
    /// New index pages above pages that `changes` name, and the new root.
    pub above: Vec<PageId>,
    pub root: Option<Root>,
    /// Note of the memory tier, returned to it after recovery. `None` if it has not changed.
    pub note: Option<Vec<u8>>,
    /// Entries that the observer is told of after the commit. They are in no record.
    pub dropped: Vec<DroppedEntry>,
}

/// What a system checkpoint has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SystemCheckpoint {
    pub time: SysTime,
    pub root: Root,
    pub note: Vec<u8>,
    pub chains: Vec<(PageId, State)>,
    pub usage: UsageTable,
}

impl Root {
    fn encode(self, out: &mut Vec<u8>) {
        self.id.encode(out);
        out.push(self.level);
    }

    fn decode(bytes: &[u8], at: &mut usize) -> Option<Root> {
        let id = PageId::decode(bytes, at)?;
        let level = *bytes.get(*at).filter(|level| **level <= MAX_LEVEL)?;
        *at += 1;
        Some(Root { id, level })
    }
}

const HAS_ROOT: u8 = 1;
const HAS_NOTE: u8 = 2;

impl SystemTx {
    /// Returns the features of the format that the record of the transaction uses.
    fn features(&self) -> Features {
        let to_index = |change: &Change| matches!(change, Change::Append { to_index: true, .. });
        match self.changes.iter().any(to_index) {
            true => features::INDEX_DELTAS,
            false => 0,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.features());
        let root = self.root.map_or(0, |_| HAS_ROOT);
        let note = self.note.as_ref().map_or(0, |_| HAS_NOTE);
        out.push(root | note);
        if let Some(root) = self.root {
            root.encode(&mut out);
        }
        if let Some(note) = &self.note {
            put_bytes(&mut out, note);
        }
        put_varint(&mut out, self.above.len() as u64);
        self.above.iter().for_each(|id| id.encode(&mut out));
        self.changes.iter().for_each(|c| c.encode(&mut out));
        out
    }

    /// Returns the ids of the pages that the transaction may have written.
    pub fn written(&self) -> impl Iterator<Item = PageId> {
        let of_change = |change: &Change| -> Vec<PageId> {
            match change {
                Change::Append { delta, .. } => vec![*delta],
                Change::Consolidate { with, .. } => with.iter().copied().collect(),
                Change::Overwrite { base, .. } => vec![*base],
                Change::Rewrite { with, .. } => with.iter().map(|(_, id)| *id).collect(),
            }
        };
        let changed = self.changes.iter().flat_map(of_change);
        self.above.iter().copied().chain(changed)
    }

    /// Decodes a record whose features are known. Returns `None` if it uses others than it names.
    pub fn decode(bytes: &[u8]) -> Option<SystemTx> {
        let mut at = 0;
        let features = features::decode(bytes, &mut at)?;
        let flags = *bytes.get(at)?;
        at += 1;
        if flags & !(HAS_ROOT | HAS_NOTE) != 0 {
            return None;
        }
        let root = match flags & HAS_ROOT {
            0 => None,
            _ => Some(Root::decode(bytes, &mut at)?),
        };
        let note = match flags & HAS_NOTE {
            0 => None,
            _ => Some(get_bytes(bytes, &mut at)?.to_vec()),
        };
        let mut above = Vec::new();
        for _ in 0..get_varint64(bytes, &mut at)? {
            above.push(PageId::decode(bytes, &mut at)?);
        }
        let mut changes = Vec::new();
        while at < bytes.len() {
            changes.push(Change::decode(bytes, &mut at)?);
        }
        let tx = SystemTx {
            changes,
            above,
            root,
            note,
            dropped: Vec::new(),
        };
        (tx.features() & !features == 0).then_some(tx)
    }
}

impl SystemCheckpoint {
    /// Returns the features of the format that the checkpoint uses.
    fn features(&self) -> Features {
        let of_index =
            |state: &State| matches!(state, State::Live(pages) if pages.has_index_deltas);
        let mut features = 0;
        if self.chains.iter().any(|(_, state)| of_index(state)) {
            features |= features::INDEX_DELTAS;
        }
        if self.usage.iter().any(|(_, usage)| usage.ranges.is_none()) {
            features |= features::EXTENTS_WITHOUT_RANGES;
        }
        features
    }

    /// Returns the records of the checkpoint. Each begins with the log sequence number of the
    /// first.
    pub fn encode(&self, first: u64) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        put_varint(&mut out, self.features());
        put_varint(&mut out, self.time);
        self.root.encode(&mut out);
        put_bytes(&mut out, &self.note);
        self.usage.encode(&mut out);
        put_varint(&mut out, self.chains.len() as u64);
        for (key, state) in &self.chains {
            key.encode(&mut out);
            state.encode(&mut out);
        }
        let part = |bytes: &[u8]| {
            let mut part = first.to_le_bytes().to_vec();
            part.extend_from_slice(bytes);
            part
        };
        out.chunks(PART).map(part).collect()
    }

    /// Returns the log sequence number of the first record of a checkpoint, and what this record
    /// has of it.
    pub fn open_part(record: &[u8]) -> Option<(u64, &[u8])> {
        let (first, bytes) = record.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*first), bytes))
    }

    /// Decodes a checkpoint whose features are known. Returns `None` if it uses others than it
    /// names.
    pub fn decode(bytes: &[u8]) -> Option<SystemCheckpoint> {
        let at = &mut 0;
        let features = features::decode(bytes, at)?;
        let time = get_varint64(bytes, at)?;
        let root = Root::decode(bytes, at)?;
        let note = get_bytes(bytes, at)?.to_vec();
        let usage = UsageTable::decode(bytes, at)?;
        let mut chains = Vec::new();
        for _ in 0..get_varint64(bytes, at)? {
            chains.push((PageId::decode(bytes, at)?, State::decode(bytes, at)?));
        }
        let checkpoint = SystemCheckpoint {
            time,
            root,
            note,
            chains,
            usage,
        };
        let is_named = checkpoint.features() & !features == 0;
        (is_named && *at == bytes.len()).then_some(checkpoint)
    }
}
