//! Checks the blob files of a store against the rule that binds them to tables: each record that is
//! neither marked nor of a dropped family has exactly one reference, and each reference leads to
//! such a record. A record of a family in pages may have none: pages may hide its reference, and a
//! crash may have lost its mark.

use super::StoreWalk;
use crate::db::integrity::walk::{check_len, open_named};
use crate::db::open::bind_families;
use crate::db::pages;
use crate::iter::InternalIter;
use crate::options::Options;
use crate::version::catalog::{Catalog, CatalogBlob, CatalogFamily, CatalogTable};
use crate::version::{BlobSet, TableStore, blob_names, table_name};
use basalt_blob::verify::{digest, verify};
use basalt_blob::{BlobMeta, BlobReader};
use basalt_env::Env;
use basalt_fs::{Error, ErrorKind, File, Result};
use basalt_kv::key::{Cmp, Kind, parse_internal_key};
use basalt_kv::separated::{Name, Reference};
use basalt_table::{ReadPattern, TableReader};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads every byte of a blob file: it must be exactly the one that `meta` describes.
pub(in crate::db) fn verify_blob(
    env: &Env,
    dir: &Path,
    number: u64,
    meta: &BlobMeta,
) -> Result<()> {
    let names = blob_names(number, meta).into_iter();
    let paths: Vec<_> = names.map(|n| dir.join(n)).collect();
    let mut files = Vec::new();
    for path in &paths {
        files.push(open_named(env, path, "blob file")?);
    }
    // The file of a log may be longer than its records.
    let (sized, size) = match &meta.index {
        None => (&paths[0], meta.size),
        Some(index) => (&paths[1], index.size),
    };
    check_len(env, sized, size)?;
    let reader = open(env, &paths, &files, meta)?;
    if let Some(index) = &meta.index {
        let found = digest(&*files[1], &paths[1], index.size)?;
        if found != index.digest {
            return Err(Error::corruption(
                &paths[1],
                0,
                format!(
                    "digest is {found:032x}, the manifest records {:032x}",
                    index.digest
                ),
            ));
        }
    }
    verify(&reader, &*files[0], &paths[0], meta)
}

fn open(
    env: &Env,
    paths: &[PathBuf],
    files: &[Arc<dyn File>],
    meta: &BlobMeta,
) -> Result<BlobReader> {
    match &meta.index {
        None => BlobReader::open(env, Arc::new(files[0].clone()), &paths[0], meta),
        Some(_) => BlobReader::open_log(
            env,
            (Box::new(files[0].clone()), &paths[0]),
            (Box::new(files[1].clone()), &paths[1]),
            meta,
        ),
    }
}

/// The sums over the references to one blob file.
#[derive(Default)]
struct ReferenceSums {
    records: Vec<u64>,
    hash_sum: u64,
    bytes: u64,
}

impl ReferenceSums {
    /// Marks a record as referenced. Returns false if it was referenced before.
    fn mark_referenced(&mut self, ordinal: u32) -> bool {
        let (word, bit) = (ordinal as usize / 64, 1u64 << (ordinal % 64));
        if self.records.len() <= word {
            self.records.resize(word + 1, 0);
        }
        let new = self.records[word] & bit == 0;
        self.records[word] |= bit;
        new
    }

    fn has(&self, ordinal: u32) -> bool {
        let word = self.records.get(ordinal as usize / 64);
        word.is_some_and(|w| w >> (ordinal % 64) & 1 == 1)
    }
}

impl StoreWalk<'_, '_> {
    /// Checks the blob files against the references of all tables. `sure` is true if every edit is
    /// known: then each reference must lead to a record.
    pub(super) fn blobs(&mut self, options: &Options, catalog: &Catalog, sure: bool) -> Result<()> {
        for (&number, blob) in &catalog.blobs {
            self.report.files += 1;
            if let Err(e) = verify_blob(self.env, self.dir, number, &blob.meta) {
                self.bad_blobs.insert(number);
                self.report.note(e)?;
            }
            // Both are below 2^48, and a damaged manifest may name any number of files.
            let bytes = blob.meta.size + blob.meta.index.map_or(0, |i| i.size);
            self.report.blob_bytes = self.report.blob_bytes.saturating_add(bytes);
            self.progress.step(blob.meta.size);
        }
        match sure {
            true => self.references(options, catalog),
            false => Ok(()),
        }
    }

    /// Follows every reference of every table that can be read.
    fn references(&mut self, options: &Options, catalog: &Catalog) -> Result<()> {
        let families = bind_families(catalog, options)?;
        let set = BlobSet::of(&TableStore::new(self.env, self.dir), catalog);
        let mut referred: BTreeMap<u64, ReferenceSums> = BTreeMap::new();
        for (id, family) in &catalog.families {
            let cmp = &families[id].options.comparator;
            if !catalog.lineage.is_in_order(*id, cmp) {
                self.report.damage.push(Error::new(
                    ErrorKind::Corruption,
                    format!(
                        "family {:?}: the lineage of its blob files is out of order",
                        family.name
                    ),
                ));
                return Ok(());
            }
            for (&number, CatalogTable { meta, .. }) in &family.tables {
                if meta.references.is_empty() || self.bad_tables.contains(&number) {
                    continue;
                }
                let path = self.dir.join(table_name(number));
                let file = self.env.fs().open(&path)?;
                let table = TableReader::open_shifted(self.env, file, &path, meta, cmp.clone())?;
                let mut iter = table.iter(ReadPattern::Compaction);
                iter.seek_to_first()?;
                while iter.valid() {
                    let followed = parse_internal_key(iter.key()).and_then(|(key, seq, kind)| {
                        let name = Name {
                            family: *id,
                            key,
                            seq,
                        };
                        match kind {
                            Kind::BlobRef => {
                                let value = iter.value();
                                self.follow(&name, cmp, value, &set, catalog, &mut referred)
                            }
                            _ => Ok(()),
                        }
                    });
                    if let Err(e) = followed {
                        let e = if e.path().is_none() {
                            e.in_file(&path)
                        } else {
                            e
                        };
                        self.report.note(e)?;
                    }
                    iter.next()?;
                }
            }
        }
        let in_pages = |(id, family): (&u32, &CatalogFamily)| family.pages.map(|_| *id);
        for id in catalog.families.iter().filter_map(in_pages) {
            if self.bad_trees.contains(&id) {
                continue;
            }
            let mut bad = Vec::new();
            pages::walk_references(self.env, self.dir, catalog, id, &mut |key, value| {
                let name = Name {
                    family: id,
                    key,
                    seq: 0,
                };
                let cmp = &Cmp::Bytewise;
                let followed = self.follow(&name, cmp, value, &set, catalog, &mut referred);
                bad.extend(followed.err());
            })?;
            bad.into_iter().try_for_each(|e| self.report.note(e))?;
        }
        self.report.referred_bytes += referred.values().map(|r| r.bytes).sum::<u64>();
        // The references of an unreadable table are not known.
        if !self.bad_tables.is_empty() {
            return Ok(());
        }
        for (number, blob) in &catalog.blobs {
            if !self.bad_blobs.contains(number) {
                let of = referred.remove(number).unwrap_or_default();
                match self.check_references(*number, blob, catalog, &of) {
                    Ok(unmarked) => self.report.unmarked_records += unmarked,
                    Err(e) => self.report.note(e)?,
                }
            }
        }
        Ok(())
    }

    /// Follows the reference of the entry with this name.
    fn follow(
        &self,
        entry: &Name<'_>,
        cmp: &Cmp,
        payload: &[u8],
        set: &BlobSet,
        catalog: &Catalog,
        referred: &mut BTreeMap<u64, ReferenceSums>,
    ) -> Result<()> {
        let to = Reference::decode(payload)?;
        let name = to.record(entry);
        let (key, seq) = (name.key, name.seq);
        let file = set.file(to.number, &name, cmp)?;
        if self.bad_blobs.contains(&file.number) {
            return Ok(());
        }
        let (ordinal, place) = file.reader()?.find(&name, true)?;
        let of = referred.entry(file.number).or_default();
        of.bytes += place.end - place.start;
        of.hash_sum = of.hash_sum.wrapping_add(name.hash(file.meta.file_id));
        let bad = |what: &str| {
            Err(Error::corruption(
                &file.path(),
                0,
                format!("record {ordinal}, of key {key:02x?} with sequence number {seq}, {what}"),
            ))
        };
        if catalog.blobs[&file.number].garbage.has(ordinal) {
            return bad("is marked as garbage and has a reference");
        }
        match of.mark_referenced(ordinal) {
            true => Ok(()),
            false => bad("has two references, or the index has it for another key"),
        }
    }

    /// Checks that every record has a reference or a mark, or belongs to a dropped family or one in
    /// pages. Returns the number of records of families in pages that have neither.
    fn check_references(
        &self,
        number: u64,
        blob: &CatalogBlob,
        catalog: &Catalog,
        of: &ReferenceSums,
    ) -> Result<u64> {
        let names = blob_names(number, &blob.meta).into_iter();
        let paths: Vec<_> = names.map(|n| self.dir.join(n)).collect();
        let files = (paths.iter().map(|p| self.env.fs().open(p))).collect::<Result<Vec<_>>>()?;
        let reader = open(self.env, &paths, &files, &blob.meta)?;
        let path = paths[0].clone();
        let mut sum = of.hash_sum.wrapping_add(blob.garbage.hash_sum());
        let (mut lost, mut unmarked) = (None, 0);
        let rest = |n: u32| !of.has(n) && !blob.garbage.has(n);
        reader.walk(&rest, &mut |_| Ok(()), &mut |ordinal, record| {
            sum = sum.wrapping_add(record.name().hash(blob.meta.file_id));
            match catalog.families.get(&record.family) {
                Some(family) if family.pages.is_some() => unmarked += 1,
                Some(_) => drop(lost.get_or_insert((ordinal, record))),
                None => {}
            }
            Ok(())
        })?;
        let bad = |what: String| Err(Error::corruption(&path, 0, what));
        if let Some((ordinal, r)) = lost {
            return bad(format!(
                "record {ordinal}, of key {:02x?} with sequence number {}, has no reference and is not marked as garbage",
                &r.key[..],
                r.seq
            ));
        }
        match sum == reader.hash_sum() {
            true => Ok(unmarked),
            false => bad(format!(
                "the hashes of references and marks add up to {sum:016x}, those of its records to {:016x}: one belongs to another record",
                reader.hash_sum()
            )),
        }
    }
}
