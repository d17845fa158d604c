//! Repair of blob files: the readable records of damaged files, files that no edit names, every
//! reference of every table, and the records that are garbage.
//!
//! A reference leads to the file that its number names, or to the file that the number stands for.
//! If the record is not there, the reference leads to any file that has the record, by its name. A
//! reference without a record becomes a tombstone with the sequence number of the value: older
//! versions stay hidden. A second reference to one record gets the value itself.
//!
//! The edit that makes a log a blob file names it. If that edit may be lost, references may lead to
//! any log, whether it is replayed or not. Records of a damaged log move to a new blob file.
//!
//! From the first access to a file, its record index is in memory: 21 bytes a record.

use super::Repair;
use crate::db::integrity::manifest_salvage::log_header;
use crate::db::integrity::report::{KeyRange, Loss};
use crate::db::store_files::StoreFile;
use crate::iter::InternalIter;
use crate::options::Compression;
use crate::version::catalog::{CatalogBlob, CatalogTable};
use crate::version::{BlobFile, TableFile, blob_name, index_name, log_name};
use basalt_blob::garbage::Garbage;
use basalt_blob::inspect;
use basalt_blob::lineage::{Lineage, ReplacedFiles};
use basalt_blob::salvage::{Salvaged, salvage, salvage_log};
use basalt_blob::{BlobBuilder, BlobMeta, BlobOptions, BlobRecord, Name, Reference};
use basalt_env::IoPriority;
use basalt_fs::{ErrorKind, Result};
use basalt_kv::key::{Cmp, Kind, parse_internal_key};
use basalt_table::ReadPattern;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Most lost keys of one file and family that the report names one by one. If there are more, it
/// names their range.
const NAMED_KEYS: usize = 20;

/// The blob files of the store, as far as repair has read them.
#[derive(Default)]
pub(super) struct Blobs {
    sources: BTreeMap<u64, BlobSource>,
    /// The targets of numbers, as far as they are certain, and the files that records of damaged
    /// files went to.
    lineage: Lineage,
    /// The damaged file that a new one was made of, and the bytes of it that could not be read.
    damaged_sources: BTreeMap<u64, (u64, Range<u64>)>,
    /// Numbers in references of pages.
    in_pages: BTreeSet<u64>,
    /// Keys whose values are lost, by the file that had them and family.
    lost: BTreeMap<(u64, u32), Vec<Vec<u8>>>,
    all_read: bool,
}

struct BlobSource {
    /// The file's metadata in the manifest.
    known: Option<Arc<BlobMeta>>,
    /// True if the check found the file whole.
    sound: bool,
    /// True if the file is a log.
    log: bool,
    /// True if an edit names the file, or a lost edit may have named it. The file then stays if a
    /// reference leads to it. Values of other files are copied.
    named: bool,
    state: SourceState,
}

enum SourceState {
    NotRead,
    /// The file is missing, or nothing in it verifies, or all that verifies is now in another file.
    Gone,
    Read(Box<FileRecords>),
}

/// The records of a whole file.
struct FileRecords {
    file: Arc<BlobFile>,
    all: Vec<RecordSummary>,
    /// Ordinals of the records, sorted by hash.
    by_hash: Vec<u32>,
    /// By ordinal, whether a reference to the record was found.
    claimed: Vec<bool>,
}

struct RecordSummary {
    hash: u64,
    family: u32,
    bytes: u32,
}

impl FileRecords {
    /// Returns the ordinal of a record with this name. Prefers a record without a reference.
    fn find(&self, name: &Name<'_>) -> Option<u32> {
        let meta = &self.file.meta;
        if !(meta.min_seq..=meta.max_seq).contains(&name.seq)
            || !meta.families.contains_key(&name.family)
        {
            return None;
        }
        let hash = name.hash(meta.file_id);
        let of = |o: &u32| &self.all[*o as usize];
        let first = self.by_hash.partition_point(|o| of(o).hash < hash);
        let same = self.by_hash[first..].iter().copied();
        let same = same
            .take_while(|o| of(o).hash == hash)
            .filter(|o| of(o).family == name.family);
        same.min_by_key(|o| self.claimed[*o as usize])
    }
}

impl Blobs {
    /// Takes the blob files out of the catalog. At the end of the repair the catalog gets back
    /// those that are certain.
    pub fn new(
        learned: &mut crate::db::integrity::manifest_salvage::SalvagedCatalog,
        names: &[String],
        bad: &BTreeSet<u64>,
    ) -> Blobs {
        let catalog = &mut learned.catalog;
        let mut sources = BTreeMap::new();
        for (&number, blob) in &std::mem::take(&mut catalog.blobs) {
            let source = BlobSource {
                log: blob.meta.index.is_some(),
                known: Some(blob.meta.clone()),
                sound: !bad.contains(&number),
                named: true,
                state: SourceState::NotRead,
            };
            sources.insert(number, source);
        }
        for name in names {
            let (number, log) = match StoreFile::parse(name) {
                Some(StoreFile::Blob(number)) => (number, false),
                // A certain catalog names all logs with values that tables refer to.
                Some(StoreFile::Log(number)) if !learned.sure => (number, true),
                _ => continue,
            };
            let named = !learned.sure && !learned.retired.contains(&number);
            sources.entry(number).or_insert(BlobSource {
                known: None,
                sound: false,
                log,
                named,
                state: SourceState::NotRead,
            });
        }
        let lineage = std::mem::take(&mut catalog.lineage);
        Blobs {
            sources,
            lineage: match learned.sure {
                true => (*lineage).clone(),
                false => Lineage::default(),
            },
            ..Blobs::default()
        }
    }

    /// True if a readable edit made this log a blob file: it was flushed.
    pub fn is_known_log(&self, number: u64) -> bool {
        let source = self.sources.get(&number);
        source.is_some_and(|s| s.log && s.known.is_some())
    }

    /// Returns the name of a file, whether the file exists or not.
    fn name(&self, number: u64) -> String {
        match self.sources.get(&number).is_some_and(|s| s.log) {
            true => log_name(number),
            false => blob_name(number),
        }
    }

    fn records(&self, number: u64) -> Option<&FileRecords> {
        match &self.sources.get(&number)?.state {
            SourceState::Read(records) => Some(records),
            _ => None,
        }
    }

    fn records_mut(&mut self, number: u64) -> &mut FileRecords {
        match self.sources.get_mut(&number).map(|s| &mut s.state) {
            Some(SourceState::Read(records)) => records,
            _ => unreachable!("resolved to a file that was read"),
        }
    }

    /// Returns true if a reference may be changed to lead to this record.
    fn may_claim(&self, file: u64, ordinal: u32) -> bool {
        let free = |r: &FileRecords| !r.claimed[ordinal as usize];
        self.sources[&file].named && self.records(file).is_some_and(free)
    }

    fn claim(&mut self, file: u64, ordinal: u32) {
        self.records_mut(file).claimed[ordinal as usize] = true;
    }

    /// Returns the file that a number means for a record.
    fn meaning(&self, number: u64, name: &Name<'_>, cmp: &Cmp) -> Option<u64> {
        if self.lineage.is_name(number) {
            return self.lineage.resolve(number, name.family, name.key, cmp);
        }
        let source = self.sources.get(&number)?;
        source.named.then_some(number)
    }
}

impl Repair<'_> {
    fn blob(&self, number: u64, meta: &Arc<BlobMeta>) -> Arc<BlobFile> {
        self.tables.blob(number, meta.clone())
    }

    /// Reads a file. Its state is then `Read` or `Gone`.
    fn read_blob(&mut self, number: u64) -> Result<()> {
        let source = &self.blobs.sources[&number];
        let (named, known) = (source.named, source.known.clone());
        let sound = known.clone().filter(|_| source.sound);
        let state = match sound {
            Some(meta) => self.take_in(number, meta)?,
            None => self.read_unknown(number, named, known)?,
        };
        let source = self.blobs.sources.get_mut(&number).expect("looked up");
        source.state = state;
        Ok(())
    }

    fn read_unknown(
        &mut self,
        number: u64,
        named: bool,
        known: Option<Arc<BlobMeta>>,
    ) -> Result<SourceState> {
        let log = self.blobs.sources[&number].log;
        let name = self.blobs.name(number);
        let path = self.dir.join(&name);
        let file = match self.env.fs().open(&path) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => return Ok(SourceState::Gone),
            Err(e) => return Err(e),
        };
        match inspect::verify(self.env, &path, &mut |_| ()) {
            Ok(report) => return self.take_in(number, Arc::new(report.meta)),
            Err(e) if e.kind() == ErrorKind::Corruption => {}
            Err(e) => return Err(e),
        }
        if !named {
            return Ok(SourceState::Gone);
        }
        // A log may never have been one.
        let suspicious = !log || known.is_some();
        if suspicious {
            self.set_aside(&name, "it is damaged");
        }
        let mut id = known.map(|m| m.file_id);
        if log && id.is_none() {
            id = log_header(self.env, self.dir, number)?.map(|h| h.file_id);
        }
        let new = self.new_number();
        let walk = |each: &mut dyn FnMut(BlobRecord) -> Result<()>| match (log, id) {
            (false, id) => salvage(&*file, &path, id, each),
            (true, Some(id)) => salvage_log(&*file, &path, id, each),
            (true, None) => Ok(Salvaged::default()),
        };
        // The new file's header says before the first record whether the file has compressed
        // values.
        let mut has_compressed = false;
        let looked = walk(&mut |r| {
            has_compressed |= r.codec != Compression::None;
            Ok(())
        });
        if let Err(e) = looked
            && e.kind() != ErrorKind::Corruption
        {
            return Err(e);
        }
        let mut builder: Option<BlobBuilder> = None;
        let run = &*self;
        let walked = walk(&mut |r| {
            let b = match &mut builder {
                Some(b) => b,
                none => none.insert(run.blob_builder(new, has_compressed)?),
            };
            b.add(&r.name(), &r.form(), &r.value)
        });
        let (records, lost) = match walked {
            Ok(w) => (w.records, w.lost),
            // The file's id is not known.
            Err(e) if e.kind() == ErrorKind::Corruption => (0, Vec::new()),
            Err(e) => return Err(e),
        };
        if suspicious || records > 0 {
            self.report.notes.push(format!(
                "{name}: {records} values in it are readable{}",
                match records {
                    0 => String::new(),
                    _ => format!(", and copied to {}", blob_name(new)),
                }
            ));
        }
        let first = lost.first().map_or(file.len(), |r| r.start);
        let last = lost.last().map_or(file.len(), |r| r.end);
        let Some(builder) = builder else {
            return Ok(SourceState::Gone);
        };
        let meta = Arc::new(builder.finish()?);
        self.blobs
            .damaged_sources
            .insert(new, (number, first..last));
        if !self.blobs.lineage.is_name(number) {
            // From now on the old number means the new file.
            let all: Arc<[u8]> = Arc::from(&b""[..]);
            let targets = meta
                .families
                .keys()
                .map(|id| (*id, vec![(all.clone(), new)]));
            let done = ReplacedFiles {
                sources: vec![number],
                targets: targets.collect(),
            };
            let families = &self.learned.catalog.families;
            let order = |id: u32| {
                let name = families.get(&id).map_or("", |f| &f.name);
                self.options.family(name).comparator.clone()
            };
            self.blobs.lineage.add_gc(&done, &order);
        }
        let source = BlobSource {
            known: None,
            sound: true,
            log: false,
            named: true,
            state: self.take_in(new, meta)?,
        };
        self.blobs.sources.insert(new, source);
        Ok(SourceState::Gone)
    }

    fn blob_builder(&self, number: u64, has_compressed: bool) -> Result<BlobBuilder> {
        let path = self.tables.blob_path(number);
        let file = self.env.fs().create(&path)?;
        let options = BlobOptions {
            file_id: self.env.random().next_u128(),
            io: IoPriority::High,
            warm_cache: false,
            warm_records: false,
            compressed: has_compressed,
        };
        Ok(BlobBuilder::new(self.env, file, &path, options))
    }

    /// Reads every record of a whole file.
    fn take_in(&self, number: u64, meta: Arc<BlobMeta>) -> Result<SourceState> {
        let file = self.blob(number, &meta);
        let mut all = Vec::with_capacity(meta.records as usize);
        (file.reader()?).walk(&|_| true, &mut |_| Ok(()), &mut |_, r| {
            all.push(RecordSummary {
                hash: r.name().hash(meta.file_id),
                family: r.family,
                bytes: (basalt_blob::record::HEADER_LEN + r.key.len() + r.value.len()) as u32,
            });
            Ok(())
        })?;
        let mut by_hash: Vec<u32> = (0..all.len() as u32).collect();
        by_hash.sort_unstable_by_key(|o| all[*o as usize].hash);
        Ok(SourceState::Read(Box::new(FileRecords {
            file,
            claimed: vec![false; all.len()],
            all,
            by_hash,
        })))
    }

    /// Returns the place of the value of `name`, whose entry refers to `number`: file and ordinal.
    fn resolve(&mut self, number: u64, name: &Name<'_>, cmp: &Cmp) -> Result<Option<(u64, u32)>> {
        // The targets of a damaged file are known only after the file was read.
        while let Some(file) = self.blobs.meaning(number, name, cmp) {
            match self.blobs.sources.get(&file).map(|s| &s.state) {
                Some(SourceState::NotRead) => self.read_blob(file)?,
                Some(SourceState::Read(records)) => {
                    if let Some(ordinal) = records.find(name) {
                        return Ok(Some((file, ordinal)));
                    }
                    break;
                }
                Some(SourceState::Gone) | None => break,
            }
        }
        if !self.blobs.all_read {
            let all: Vec<u64> = self.blobs.sources.keys().copied().collect();
            for number in all {
                if matches!(self.blobs.sources[&number].state, SourceState::NotRead) {
                    self.read_blob(number)?;
                }
            }
            self.blobs.all_read = true;
        }
        let mut best = None;
        for (&number, source) in &self.blobs.sources {
            let SourceState::Read(records) = &source.state else {
                continue;
            };
            let Some(ordinal) = records.find(name) else {
                continue;
            };
            let better = (source.named, !records.claimed[ordinal as usize]);
            if best.is_none_or(|(b, _)| better > b) {
                match records.file.reader()?.get(name, false) {
                    Ok(_) => best = Some((better, (number, ordinal))),
                    Err(e) if e.kind() == ErrorKind::Corruption => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(best.map(|(_, place)| place))
    }

    /// Records the loss of a value, whose entry refers to the file `number`.
    pub(super) fn lose_value(&mut self, family: u32, number: u64, key: &[u8]) {
        let cmp = {
            let f = self.learned.family(family, self.options);
            self.options.family(&f.name).comparator.clone()
        };
        let name = Name {
            family,
            key,
            seq: 0,
        };
        let file = match self.blobs.lineage.is_name(number) {
            true => self.blobs.lineage.resolve(number, family, key, &cmp),
            false => None,
        };
        let file = file.unwrap_or(number);
        let file = self
            .blobs
            .damaged_sources
            .get(&file)
            .map_or(file, |(old, _)| *old);
        let keys = self.blobs.lost.entry((file, name.family)).or_default();
        keys.push(key.to_vec());
    }

    /// Reads the damaged blob files, so that the lineage says which files their numbers mean.
    pub(super) fn salvage_blobs(&mut self) -> Result<()> {
        let damaged: Vec<u64> = (self.blobs.sources.iter())
            .filter(|(_, s)| s.known.is_some() && !s.sound)
            .map(|(n, _)| *n)
            .collect();
        for number in damaged {
            self.read_blob(number)?;
        }
        let in_order = self.learned.catalog.families.iter().all(|(id, f)| {
            let cmp = &self.options.family(&f.name).comparator;
            self.blobs.lineage.is_in_order(*id, cmp)
        });
        if !in_order {
            self.blobs.lineage = Lineage::default();
        }
        Ok(())
    }

    /// Claims the records that the references of a table lead to, if all references can stay as
    /// they are. Otherwise the function returns false and claims nothing, and the table must be
    /// rewritten.
    pub(super) fn claim_references(
        &mut self,
        family: u32,
        cmp: &Cmp,
        table: &TableFile,
    ) -> Result<bool> {
        let mut claims = Vec::new();
        if table.meta.references.is_empty() {
            return Ok(true);
        }
        let mut iter = table.reader()?.iter(ReadPattern::Compaction);
        iter.seek_to_first()?;
        while iter.valid() {
            let (key, seq, kind) = parse_internal_key(iter.key())?;
            if kind == Kind::BlobRef {
                let to = Reference::decode(iter.value())?;
                let name = to.record(&Name { family, key, seq });
                match self.resolve(to.number, &name, cmp)? {
                    Some((file, ordinal))
                        if self.blobs.may_claim(file, ordinal)
                            && self.blobs.meaning(to.number, &name, cmp) == Some(file) =>
                    {
                        claims.push((file, ordinal));
                    }
                    _ => return Ok(false),
                }
            }
            iter.next()?;
        }
        for (file, ordinal) in claims {
            self.blobs.claim(file, ordinal);
        }
        Ok(true)
    }

    /// Resolves a reference to a record that no other reference has claimed. If that record is
    /// already claimed, the result is the value itself. Returns `None` if the value cannot be read.
    pub(super) fn lead(
        &mut self,
        to: &Reference,
        name: &Name<'_>,
        cmp: &Cmp,
    ) -> Result<Option<(Kind, Vec<u8>)>> {
        let Some((file, ordinal)) = self.resolve(to.number, name, cmp)? else {
            return Ok(None);
        };
        if !self.blobs.may_claim(file, ordinal) {
            let records = self.blobs.records(file).expect("resolved");
            let value = records.file.reader()?.get(name, false)?;
            return Ok(Some((to.kind(), value.to_vec())));
        }
        self.blobs.claim(file, ordinal);
        let number = match self.blobs.meaning(to.number, name, cmp) == Some(file) {
            true => to.number,
            false => file,
        };
        let mut payload = Vec::new();
        Reference { number, ..*to }.encode(&mut payload);
        Ok(Some((Kind::BlobRef, payload)))
    }

    /// Resolves a reference in pages as [`Repair::lead`] does.
    pub(super) fn lead_in_pages(
        &mut self,
        family: u32,
        key: &[u8],
        to: &Reference,
    ) -> Result<Option<(Kind, Vec<u8>)>> {
        let name = to.record(&Name {
            family,
            key,
            seq: 0,
        });
        let led = self.lead(to, &name, &Cmp::Bytewise)?;
        if let Some((Kind::BlobRef, payload)) = &led {
            self.blobs
                .in_pages
                .insert(Reference::decode(payload)?.number);
        }
        Ok(led)
    }

    /// Returns the file that a resolved reference leads to.
    pub(super) fn claimed_file(
        &self,
        number: u64,
        name: &Name<'_>,
        cmp: &Cmp,
    ) -> Option<&Arc<BlobFile>> {
        let file = self.blobs.meaning(number, name, cmp)?;
        Some(&self.blobs.records(file)?.file)
    }

    /// Returns true if some blob file may have values of a family.
    pub(super) fn may_have_values(&self, family: u32) -> bool {
        let sure = self.learned.sure;
        let mut sources = self.blobs.sources.values();
        sources.any(|source| match &source.known {
            Some(meta) => meta.families.contains_key(&family),
            // A certain catalog names all files with values of pages, and these are in no log.
            None => !sure && !source.log,
        })
    }

    /// Reports the values that cannot be read, and puts the blob files that tables refer to into
    /// the catalog. This is the last step, after all tables have their last form.
    pub(super) fn finish_blobs(&mut self) {
        self.report_lost_values();
        self.install_blobs();
    }

    fn report_lost_values(&mut self) {
        for ((file, family), mut keys) in std::mem::take(&mut self.blobs.lost) {
            let f = self.learned.family(family, self.options).name.clone();
            let cmp = self.options.family(&f).comparator.clone();
            keys.sort_by(|a, b| cmp.user(a, b));
            let name = self.blobs.name(file);
            let damaged_source = self
                .blobs
                .damaged_sources
                .values()
                .find(|(old, _)| *old == file);
            let known = self.blobs.sources.get(&file).and_then(|s| s.known.clone());
            let bytes = damaged_source.map_or(0..known.map_or(0, |m| m.size), |(_, b)| b.clone());
            let reason = match self.names.contains(&name) {
                true => "the value cannot be read",
                false => "the value is lost with this blob file, which is missing",
            };
            let mut lose = |from: &[u8], to: &[u8], entries: usize| {
                self.lose(Loss {
                    family: Some(f.clone()),
                    keys: Some(KeyRange {
                        from: Some(from.to_vec()),
                        to: Some(to.to_vec()),
                    }),
                    entries: Some(entries as u64),
                    ..Loss::of_file(
                        &name,
                        bytes.clone(),
                        &format!(
                            "{reason}; a tombstone is in its place, which hides older versions"
                        ),
                    )
                });
            };
            match &keys[..] {
                [first, .., last] if keys.len() > NAMED_KEYS => lose(first, last, keys.len()),
                few => few.iter().for_each(|key| lose(key, key, 1)),
            }
        }
    }

    /// Gives the catalog the files that references lead to. All other records of these files are
    /// marked as garbage.
    fn install_blobs(&mut self) {
        let mut referred = std::mem::take(&mut self.blobs.in_pages);
        for f in self.learned.catalog.families.values() {
            for CatalogTable { meta, .. } in f.tables.values() {
                referred.extend(meta.references.iter().map(|(n, _)| *n));
            }
        }
        let mut lineage = std::mem::take(&mut self.blobs.lineage);
        for name in lineage.names() {
            if !referred.contains(&name) {
                lineage.forget(name);
            }
        }
        let sources = std::mem::take(&mut self.blobs.sources);
        for (number, source) in sources {
            let name = match source.log {
                true => log_name(number),
                false => blob_name(number),
            };
            let there = self.names.contains(&name);
            let records = match source.state {
                SourceState::Read(r) if source.named && r.claimed.contains(&true) => r,
                state => {
                    if !there && matches!(state, SourceState::Read(_)) {
                        // Nothing refers to what this repair copied.
                        self.replaced.push(name);
                    } else if source.named && (!source.log || source.known.is_some()) {
                        self.set_aside(&name, "no table refers to a value in it");
                    }
                    continue;
                }
            };
            let meta = records.file.meta.clone();
            let c = &mut self.learned.catalog;
            let mut garbage = Garbage::none(meta.records as u32);
            for (ordinal, r) in records.all.iter().enumerate() {
                if !records.claimed[ordinal] && c.families.contains_key(&r.family) {
                    let new = garbage.mark(ordinal as u32, r.family, u64::from(r.bytes), r.hash);
                    assert!(new, "each record once");
                }
            }
            // Ids of dropped families are not given out again while records of these families
            // remain.
            let highest = meta.families.keys().next_back().copied().unwrap_or(0);
            c.next_family = c.next_family.max(highest.saturating_add(1));
            c.last_seq = c.last_seq.max(meta.max_seq);
            let index = meta.index.map(|i| index_name(i.number));
            let stays = |n: &String| *n == name || Some(n) == index.as_ref();
            if self.aside.iter().any(&stays) {
                self.report
                    .notes
                    .push(format!("{name} is kept: tables refer to values in it"));
            }
            self.aside.retain(|n| !stays(n));
            self.replaced.retain(|n| !stays(n));
            match there {
                true => self.report.blobs_kept += 1,
                false => self.report.blobs_written += 1,
            }
            let blob = CatalogBlob {
                location: crate::version::FileLocation::Local,
                meta,
                garbage: Arc::new(garbage),
                made_ms: None,
            };
            c.blobs.insert(number, blob);
        }
        self.learned.catalog.lineage = Arc::new(lineage);
    }
}
