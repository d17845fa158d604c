//! Point reads of keys whose newest version is an operand. The sources are read from new to old,
//! until an entry ends the chain of operands.

use super::page_iter::PageIter;
use super::view::{OpenedValue, View};
use crate::iter::{InternalIter, MergingIter};
use basalt_fs::Result;
use basalt_kv::key::{Cmp, Kind, SeqNo, internal_key, parse_internal_key, seek_trailer};
use basalt_kv::merge::Chain;
use basalt_kv::separated::Name;
use basalt_table::{ReadBudget, ReadPattern};
use std::cmp::Ordering;

/// State of a read that follows one key through the sources, from new to old.
struct Descent<'a> {
    view: &'a View,
    family: u32,
    fill_cache: bool,
    cmp: &'a Cmp,
    key: &'a [u8],
    /// Sequence number of the newest range tombstone over the key in the sources so far. Older
    /// entries are deleted.
    deleted: SeqNo,
    /// First internal key that belongs to the read.
    target: Vec<u8>,
    now_ms: u64,
    budget: &'a mut ReadBudget,
    chain: Chain,
}

/// State of the chain after a source.
enum ChainState {
    /// Older sources may hold more operands.
    Open,
    /// Older sources hold no entry of the chain.
    End,
    /// The budget is used up.
    Later,
}

impl Descent<'_> {
    /// Adds the entries of a source to the chain. `deleted` is the sequence number of the source's
    /// newest range tombstone over the key. If there is one, all entries in older sources are older
    /// than it.
    fn through(
        &mut self,
        source: Option<&mut dyn InternalIter>,
        deleted: Option<SeqNo>,
    ) -> Result<ChainState> {
        self.deleted = self.deleted.max(deleted.unwrap_or(0));
        let met = match source {
            Some(source) => self.take_from(source)?,
            None => ChainState::Open,
        };
        Ok(match met {
            ChainState::Open if self.deleted > 0 => ChainState::End,
            met => met,
        })
    }

    fn take_from(&mut self, source: &mut dyn InternalIter) -> Result<ChainState> {
        source.seek(&self.target)?;
        while source.valid() {
            let (user, seq, kind) = parse_internal_key(source.key())?;
            if self.cmp.user(user, self.key) != Ordering::Equal {
                break;
            }
            if seq < self.deleted {
                return Ok(ChainState::End);
            }
            let (mut kind, mut value) = (kind, None);
            if kind == Kind::BlobRef {
                let name = Name {
                    family: self.family,
                    key: user,
                    seq,
                };
                let (view, now_ms) = (self.view, self.now_ms);
                let (payload, fill_cache) = (source.value(), self.fill_cache);
                match view.open_reference(&name, payload, now_ms, fill_cache, self.budget)? {
                    OpenedValue::Is(opened, payload) => (kind, value) = (opened, Some(payload)),
                    OpenedValue::Over => return Ok(ChainState::End),
                    OpenedValue::Later => return Ok(ChainState::Later),
                }
            } else if !self.budget.take(source.value().len()) {
                return Ok(ChainState::Later);
            }
            let value = || value.unwrap_or_else(|| source.pinned_value());
            if self.chain.take(kind, value, self.now_ms)? {
                return Ok(ChainState::End);
            }
            source.next()?;
        }
        Ok(ChainState::Open)
    }
}

impl View {
    /// Returns the operands of a key that are visible at `seq`, with the value below them at wall
    /// time `now_ms`. Each entry is read once, and no source below the one that ends the chain is
    /// read. The bytes are taken from `budget`; returns `None` if the budget is too small.
    pub fn operands(
        &self,
        family: u32,
        key: &[u8],
        seq: SeqNo,
        now_ms: u64,
        fill_cache: bool,
        budget: &mut ReadBudget,
    ) -> Result<Option<Chain>> {
        let cmp = &self.families[&family].options.comparator;
        let mut descent = Descent {
            view: self,
            family,
            fill_cache,
            cmp,
            key,
            deleted: 0,
            target: internal_key(key, seek_trailer(seq)),
            now_ms,
            budget,
            chain: Chain::default(),
        };
        for mem in self.memtables(family) {
            match descent.through(Some(&mut mem.iter()), mem.deleted_at(key, seq))? {
                ChainState::Open => {}
                ChainState::End => return Ok(Some(descent.chain)),
                ChainState::Later => return Ok(None),
            }
        }
        if let Some(pages) = self.pages.get(&family) {
            let mut entries = PageIter::new(pages, fill_cache);
            let more = descent.through(Some(&mut entries), None)?;
            return Ok((!matches!(more, ChainState::Later)).then_some(descent.chain));
        }
        let Some(tables) = self.version.families.get(&family) else {
            return Ok(Some(descent.chain));
        };
        let pattern = if fill_cache {
            ReadPattern::Cached
        } else {
            ReadPattern::Uncached
        };
        // Tables of level 0 are read as one source, because after a repair their ranges of sequence
        // numbers may overlap.
        let mut level0: Vec<Box<dyn InternalIter>> = Vec::new();
        let mut deleted: Option<SeqNo> = None;
        for t in &tables.levels[0] {
            if t.meta.min_seq <= seq && t.overlaps(Some(key), Some(key)) {
                let reader = t.reader()?;
                deleted = deleted.max(reader.ranges().newest(cmp, key, seq));
                if reader.may_hold(key, fill_cache)? {
                    level0.push(Box::new(reader.iter(pattern)));
                }
            }
        }
        let mut level0 = MergingIter::new(cmp.clone(), level0);
        match descent.through(Some(&mut level0), deleted)? {
            ChainState::Open => {}
            ChainState::End => return Ok(Some(descent.chain)),
            ChainState::Later => return Ok(None),
        }
        for level in 1..tables.levels.len() {
            let Some(t) = tables.find(level, key) else {
                continue;
            };
            let reader = t.reader()?;
            let deleted = reader.ranges().newest(cmp, key, seq);
            let mut held = match reader.may_hold(key, fill_cache)? {
                true => Some(reader.iter(pattern)),
                false => None,
            };
            let source = held.as_mut().map(|i| i as &mut dyn InternalIter);
            match descent.through(source, deleted)? {
                ChainState::Open => {}
                ChainState::End => break,
                ChainState::Later => return Ok(None),
            }
        }
        Ok(Some(descent.chain))
    }
}
