//! Walks over the records of an open blob file, in the order of the file.

use super::{BlobReader, BlobRecord, ReadMode};
use crate::builder::Blocks;
use crate::index;
use crate::record::{self, HEADER_LEN as RECORD_HEADER};
use basalt_fs::{AlignedBuf, Error, File, Result};
use basalt_table::{BlockKind, read_exact};
use std::ops::Range;

/// Bytes of one read of a walk.
const WALK_STEP: u64 = 1 << 20;
/// Bytes of a gap between two wanted records that a walk reads along with them.
const WALK_GAP: u64 = 64 << 10;

impl BlobReader {
    /// Returns the bytes of the blocks that records lie in.
    pub fn blocks(&self) -> Result<u64> {
        let mut kept = Blocks::default();
        self.places(&mut |place| {
            kept.add(&place);
            Ok(())
        })?;
        Ok(kept.bytes)
    }

    /// Reads and verifies the records that `wanted` accepts, in the file's order and in large
    /// steps. `before` is called with the bytes of each read before it starts.
    pub fn walk(
        &self,
        wanted: &dyn Fn(u32) -> bool,
        before: &mut dyn FnMut(usize) -> Result<()>,
        each: &mut dyn FnMut(u32, BlobRecord) -> Result<()>,
    ) -> Result<()> {
        let hashes = self.directory.hashes.len();
        let file = self.records.file()?;
        let mut run: Vec<(u32, Range<u64>)> = Vec::new();
        let mut ordinal = 0u32;
        for n in 0..self.directory.places.len() {
            let page = self.page(BlockKind::BlobPlaces, hashes + n, ReadMode::job(false))?;
            let bad =
                |what: &str| Error::corruption(&self.index_path, self.pages[hashes + n], what);
            for place in index::places(&page).map_err(bad)? {
                if u64::from(ordinal) >= self.directory.records
                    || place.end > self.directory.data_end
                {
                    return Err(bad("records past the end of the file"));
                }
                if wanted(ordinal) {
                    let from = run.first().map_or(place.start, |(_, p)| p.start);
                    let last = run.last().map_or(place.start, |(_, p)| p.end);
                    if place.start - last > WALK_GAP || place.end - from > WALK_STEP {
                        self.walk_run(&*file, &mut run, before, each)?;
                    }
                    run.push((ordinal, place));
                }
                ordinal += 1;
            }
        }
        if u64::from(ordinal) != self.directory.records {
            return Err(self.missing(ordinal));
        }
        self.walk_run(&*file, &mut run, before, each)
    }

    fn walk_run(
        &self,
        file: &dyn File,
        run: &mut Vec<(u32, Range<u64>)>,
        before: &mut dyn FnMut(usize) -> Result<()>,
        each: &mut dyn FnMut(u32, BlobRecord) -> Result<()>,
    ) -> Result<()> {
        let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else {
            return Ok(());
        };
        let (from, len) = (first.start, (last.end - first.start) as usize);
        before(len)?;
        let turn = self.env.foreground_io().turn();
        let all = read_exact(file, &self.records_path, from, len)?;
        drop(turn);
        let id = self.directory.records_in;
        // A caller that keeps a record keeps the whole read alive. If much of the read was not
        // wanted, each record is copied.
        let kept: u64 = run.iter().map(|(_, p)| p.end - p.start).sum();
        let sparse = kept < len as u64 / 4 * 3;
        for (ordinal, place) in run.drain(..) {
            let at = (place.start - from) as usize..(place.end - from) as usize;
            let bytes = match sparse {
                true => AlignedBuf::cached_copy(&all[at]),
                false => all.slice(at),
            };
            let head = record::check(&self.records_path, id, place.start, &bytes)?;
            self.check_len(&head, &place)?;
            let key = RECORD_HEADER..RECORD_HEADER + head.key_len;
            let record = BlobRecord {
                at: place.start,
                family: head.family,
                key: bytes.slice(key),
                seq: head.seq,
                kind: head.kind,
                codec: head.codec,
                value: bytes.slice(head.value()),
                value_sum: head.value_sum(),
            };
            each(ordinal, record)?;
        }
        Ok(())
    }
}
