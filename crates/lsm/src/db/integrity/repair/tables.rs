//! Repair of tables: the readable blocks of damaged tables, tables that no edit names, and merges
//! where levels are not certain.

use super::Repair;
use crate::compaction::ranges::{RangeDelFilter, TombstoneCutter};
use crate::compaction::table_options;
use crate::compaction::visibility::Stripes;
use crate::db::integrity::check;
use crate::db::integrity::manifest_salvage::raise;
use crate::db::integrity::report::{KeyRange, Loss};
use crate::db::integrity::walk::is_missing;
use crate::db::store_files::StoreFile;
use crate::iter::{InternalIter, MergingIter};
use crate::version::FileLocation;
use crate::version::catalog::{CatalogFamily, CatalogTable};
use crate::version::edit::AddTable;
use crate::version::{LEVELS, TableFile, table_name};
use basalt_blob::{Name, Reference};
use basalt_env::IoPriority;
use basalt_fs::{ErrorKind, File, Result};
use basalt_kv::key::{
    Cmp, Kind, SeqNo, encode_internal_key, pack_trailer, parse_internal_key, user_key,
};
use basalt_kv::ranges::Fragments;
use basalt_table::salvage::{KnownTable, Salvaged, salvage};
use basalt_table::{ReadPattern, TableBuilder, TableFamily, TableMeta, TableOptions, TableReader};
use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::Arc;

/// A table that the check found damaged or missing.
struct DamagedTable {
    name: String,
    path: PathBuf,
    family_id: u32,
    /// The family, with the flush flag that the table names if that is later.
    family: CatalogFamily,
    level: u32,
    /// The table's description in the manifest, if an edit names the table.
    meta: Option<Arc<TableMeta>>,
}

impl DamagedTable {
    /// Returns the size of the file in bytes as the manifest has it, or 0 if no edit names it.
    fn size(&self) -> u64 {
        self.meta.as_ref().map_or(0, |m| m.size)
    }

    /// Returns the first and the last user key as the manifest has them.
    fn key_range(&self) -> KeyRange {
        let meta = self.meta.as_ref();
        KeyRange {
            from: meta.map(|m| user_key(&m.smallest).to_vec()),
            to: meta.map(|m| user_key(&m.largest).to_vec()),
        }
    }

    /// Returns what the manifest says of the file, for the salvage.
    fn known(&self) -> KnownTable {
        let meta = self.meta.as_deref();
        meta.map_or_else(KnownTable::default, KnownTable::from)
    }

    /// Returns the loss of all entries.
    fn all_lost(&self, reason: &str) -> Loss {
        Loss {
            family: Some(self.family.name.clone()),
            keys: Some(self.key_range()),
            entries: self.meta.as_ref().map(|m| m.entries),
            ..Loss::of_file(&self.name, 0..self.size(), reason)
        }
    }
}

impl Repair<'_> {
    pub(super) fn builder(
        &self,
        id: u32,
        family: &CatalogFamily,
        level: u32,
        number: u64,
    ) -> Result<TableBuilder> {
        let path = self.tables.path(number);
        let file = self.env.fs().create(&path)?;
        let bottom = level as usize == LEVELS - 1;
        let own = TableFamily {
            id,
            name: family.name.as_str().into(),
        };
        let options = TableOptions {
            flush_flag: family.flush_flag,
            ..table_options(self.options.family(&family.name), own, bottom)
        };
        Ok(TableBuilder::new(
            self.env,
            file,
            &path,
            self.env.random().next_u128(),
            options,
            IoPriority::High,
        ))
    }

    /// Replaces the catalog's damaged tables by what they still hold.
    pub(super) fn salvage_tables(&mut self) -> Result<()> {
        let all: Vec<(u32, u64)> = self
            .learned
            .catalog
            .families
            .iter()
            .flat_map(|(id, f)| f.tables.keys().map(|n| (*id, *n)))
            .collect();
        for (family, number) in all {
            if !self.bad_tables.contains(&number) {
                self.report.tables_kept += 1;
                continue;
            }
            let f = self
                .learned
                .catalog
                .families
                .get_mut(&family)
                .expect("listed above");
            let CatalogTable { level, meta, .. } = f.tables.remove(&number).expect("listed above");
            self.salvage_table(family, level, number, Some(meta))?;
        }
        Ok(())
    }

    /// Copies the readable entries of a damaged table into a new one at the same level, and reports
    /// the rest.
    fn salvage_table(
        &mut self,
        family_id: u32,
        level: u32,
        number: u64,
        meta: Option<Arc<TableMeta>>,
    ) -> Result<()> {
        let mut family = self.learned.family(family_id, self.options).clone();
        if let Some(flag) = self.learned.table_flags.get(&number) {
            raise(&mut family.flush_flag, *flag);
        }
        let table = DamagedTable {
            name: table_name(number),
            path: self.tables.path(number),
            family_id,
            family,
            level,
            meta,
        };
        let Some(file) = self.open_damaged(&table)? else {
            return Ok(());
        };
        self.set_aside(&table.name, "it is damaged");
        let Some(salvaged) = self.copy_readable(&table, &*file)? else {
            return Ok(());
        };
        let tombstones_lost = self.report_lost_tombstones(&table, &salvaged);
        self.report_lost_entries(&table, salvaged, tombstones_lost);
        Ok(())
    }

    /// Opens a damaged table. If the file is missing, reports the loss and returns `None`.
    fn open_damaged(&mut self, table: &DamagedTable) -> Result<Option<Arc<dyn File>>> {
        match self.env.fs().open(&table.path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.is_not_found() => {
                let why = match self.learned.sure {
                    true => is_missing("table"),
                    false => {
                        "it is missing; if an edit that is lost had removed it, nothing of it is lost".into()
                    }
                };
                self.lose(table.all_lost(&why));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Copies the entries and range tombstones that can be read into a new table, which takes the
    /// place of the damaged one. If nothing can be read at all, reports the loss and returns
    /// `None`.
    fn copy_readable(&mut self, table: &DamagedTable, file: &dyn File) -> Result<Option<Salvaged>> {
        let size = table.size();
        let cmp = self.options.family(&table.family.name).comparator.clone();
        let known = table.known();
        let new_number = self.new_number();
        let mut builder: Option<TableBuilder> = None;
        let mut seen = 0;
        let run = &*self;
        let begin = || run.builder(table.family_id, &table.family, table.level, new_number);
        let salvaged = salvage(file, &table.path, &known, &cmp, &mut |key, value| {
            seen += (key.len() + value.len()) as u64;
            run.progress.borrow_mut().show_inside(seen, size);
            if builder.is_none() {
                builder = Some(begin()?);
            }
            builder.as_mut().expect("just made").add(key, value)
        });
        run.progress.borrow_mut().count(size);
        let salvaged = match salvaged {
            Ok(salvaged) => salvaged,
            Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::InvalidArgument) => {
                // Only before the first entry: nothing of it was copied.
                assert!(builder.is_none(), "salvage ended early: {e}");
                let mut loss = table.all_lost(&e.to_string());
                loss.bytes = 0..file.len().max(size);
                self.lose(loss);
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let ranges = &salvaged.ranges;
        if !ranges.is_empty() && builder.is_none() {
            builder = Some(begin()?);
        }
        if let Some(mut b) = builder {
            for i in 0..ranges.len() {
                let (from, to) = ranges.range(i);
                b.delete_range(from, to, ranges.seqs_of(i));
            }
            let meta = b.finish()?;
            self.replacement.insert(table.name.clone(), new_number);
            if let Some(flag) = table.family.flush_flag {
                self.learned.table_flags.insert(new_number, flag);
            }
            self.new_table(AddTable {
                family: table.family_id,
                level: table.level,
                number: new_number,
                meta,
                location: FileLocation::Local,
            });
        }
        Ok(Some(salvaged))
    }

    /// Reports the range tombstones of a damaged table that could not be read. Returns whether
    /// there are any.
    fn report_lost_tombstones(&mut self, table: &DamagedTable, salvaged: &Salvaged) -> bool {
        let found = salvaged.ranges.pieces() as u64;
        let meta = table.meta.as_ref();
        let lost = match meta {
            Some(m) => found < m.range_deletes,
            None => salvaged.ranges_lost == Some(true),
        };
        if lost {
            let mut loss = table
                .all_lost("range tombstones cannot be read: keys in deleted ranges show again");
            loss.entries = meta.map(|m| m.range_deletes - found);
            loss.older_may_reappear = true;
            self.lose(loss);
        } else if meta.is_none() && salvaged.ranges_lost.is_none() {
            self.report.notes.push(format!(
                "{}: its properties are damaged; its readable range tombstones are kept",
                table.name
            ));
        }
        lost
    }

    /// Reports the entries of a damaged table that could not be read, or that none is lost.
    fn report_lost_entries(
        &mut self,
        table: &DamagedTable,
        salvaged: Salvaged,
        tombstones_lost: bool,
    ) {
        let entries = table.meta.as_ref().map(|m| m.entries);
        let written = entries.or(salvaged.entries_written);
        let missing = written.and_then(|w| w.checked_sub(salvaged.entries));
        if missing == Some(0) {
            if !tombstones_lost {
                self.report.notes.push(format!(
                    "{}: nothing is lost, all {} entries are readable",
                    table.name, salvaged.entries
                ));
            }
            return;
        }
        if salvaged.lost.is_empty() && missing.is_some() {
            // Blocks are missing from an index that verifies: their place is not known.
            let mut loss = table.all_lost("entries are missing, and every block found verifies");
            loss.entries = missing;
            self.lose(loss);
        }
        let one = salvaged.lost.len() == 1;
        let whole = table.key_range();
        for part in salvaged.lost {
            self.lose(Loss {
                family: Some(table.family.name.clone()),
                keys: Some(KeyRange {
                    from: part.from.or_else(|| whole.from.clone()),
                    to: part.to.or_else(|| whole.to.clone()),
                }),
                entries: missing.filter(|_| one),
                ..Loss::of_file(&table.name, part.bytes, &part.reason)
            });
        }
    }

    /// Places tables on disk that no readable edit names. If the tree is certain, unfinished work
    /// left them. Otherwise, a lost edit may have named them.
    pub(super) fn place_unreferenced_tables(&mut self) -> Result<()> {
        if self.learned.sure {
            return Ok(());
        }
        let placed: std::collections::BTreeSet<u64> = self
            .learned
            .catalog
            .families
            .values()
            .flat_map(|f| f.tables.keys().copied())
            .collect();
        let unreferenced: Vec<u64> = self
            .names
            .iter()
            .filter(|n| !self.aside.contains(n))
            .filter_map(|n| match StoreFile::parse(n) {
                Some(StoreFile::Table(n)) => Some(n),
                _ => None,
            })
            .filter(|n| !placed.contains(n) && !self.learned.retired.contains(n))
            .collect();
        if unreferenced.is_empty() {
            return Ok(());
        }
        let alone = self.learned.catalog.families.keys().eq([&0])
            && self.learned.dropped_families.is_empty()
            && !self.other_families
            && self.options.families.keys().all(|n| n == "default");
        // An edit that makes a family adds no table. If one edit is lost, and a table shows that it
        // added one, then it made no family.
        let provable = !self.learned.any_edit || self.learned.lost_edits.is_some_and(|n| n <= 1);
        if !self.learned.any_edit {
            self.report.notes.push(
                "no edit of the manifest is readable: the families are those that the tables name: one that had no table is missing with its entries, and one that was dropped shortly before may be among them".into(),
            );
        }
        for number in unreferenced {
            let name = table_name(number);
            let family = self.learned.table_families.get(&number);
            let family = self.learned.catalog.families.get(family.unwrap_or(&0));
            if family.is_some_and(|f| f.pages.is_some()) {
                // It was prepared, and its entries are in pages if it was added.
                self.set_aside(&name, "no edit names it, and its family is kept in pages");
                continue;
            }
            if let Some(&family) = self.learned.table_families.get(&number) {
                self.place_unreferenced_table(family, number)?;
                continue;
            }
            if !(alone && provable) {
                let len = self.env.fs().stat(&self.tables.path(number))?.len;
                self.lose(Loss {
                    keys: Some(KeyRange::default()),
                    older_may_reappear: true,
                    ..Loss::of_file(
                        &name,
                        0..len,
                        "the edit that named this table is lost, and with it the family that it belongs to",
                    )
                });
                self.set_aside(&name, "its family is not known");
                continue;
            }
            self.report.notes.push(format!(
                "{name} does not record its family, and is added to \"default\""
            ));
            self.supposed.insert(number);
            self.place_unreferenced_table(0, number)?;
        }
        Ok(())
    }

    fn place_unreferenced_table(&mut self, family: u32, number: u64) -> Result<()> {
        let name = table_name(number);
        let path = self.tables.path(number);
        let family_name = self.learned.family(family, self.options).name.clone();
        let cmp = self.options.family(&family_name).comparator.clone();
        let file = self.env.fs().open(&path)?;
        let sound = TableReader::inspect(self.env, file, &path, cmp.clone()).and_then(|meta| {
            check::verify_table(self.env, self.dir, family, number, &meta, &cmp).map(|_| meta)
        });
        match sound {
            Ok(meta) => {
                self.report.notes.push(format!(
                    "{name} is added to family {family_name:?}: the edit that named it is lost"
                ));
                let c = &mut self.learned.catalog;
                c.last_seq = c.last_seq.max(meta.max_seq);
                self.report.tables_kept += 1;
                let f = self.learned.family(family, self.options);
                f.tables.insert(number, CatalogTable::local(0, meta));
                Ok(())
            }
            Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::InvalidArgument) => {
                self.salvage_table(family, 0, number, None)
            }
            Err(e) => Err(e),
        }
    }

    /// Reports for each lost range of keys whether another table may still hold older versions of
    /// them.
    pub(super) fn note_reappearing(&mut self) {
        let families = &self.learned.catalog.families;
        for loss in &mut self.report.losses {
            let (Some(name), Some(range)) = (&loss.family, &loss.keys) else {
                continue;
            };
            let Some(f) = families.values().find(|f| f.name == *name) else {
                continue;
            };
            let cmp = &self.options.family(name).comparator;
            let overlaps = |m: &TableMeta| {
                let before = |a: &[u8], b: &[u8]| cmp.user(a, b) == Ordering::Less;
                !range
                    .to
                    .as_ref()
                    .is_some_and(|to| before(to, user_key(&m.smallest)))
                    && !range
                        .from
                        .as_ref()
                        .is_some_and(|from| before(user_key(&m.largest), from))
            };
            let own = self.replacement.get(&loss.file);
            loss.older_may_reappear |= f
                .tables
                .iter()
                .any(|(n, t)| Some(n) != own && overlaps(&t.meta));
        }
    }

    /// Brings the tables into their last form: every reference leads to a record of its own. If the
    /// order between tables is not certain, each family's tables become one sorted run at the
    /// bottom.
    pub(super) fn finish_tables(&mut self) -> Result<()> {
        let ids: Vec<u32> = self.learned.catalog.families.keys().copied().collect();
        for id in ids {
            let f = &self.learned.catalog.families[&id];
            let cmp = self.options.family(&f.name).comparator.clone();
            let tables: Vec<(u32, Arc<TableFile>)> = (f.tables.iter())
                .map(|(&n, CatalogTable { level, meta, .. })| {
                    (*level, self.tables.table(n, meta.clone(), cmp.clone()))
                })
                .collect();
            if !self.learned.sure && tables.len() > 1 {
                self.merge_family(id, tables.into_iter().map(|t| t.1).collect())?;
                continue;
            }
            for (level, table) in tables {
                if self.claim_references(id, &cmp, &table)? {
                    continue;
                }
                let name = table_name(table.number);
                let made = self.rewrite(id, level, &[table], u64::MAX)?;
                if made.lost > 0 {
                    self.set_aside(&name, "values that it refers to are lost");
                } else {
                    let new: Vec<_> = made.tables.iter().map(|t| table_name(t.number)).collect();
                    self.report.notes.push(format!(
                        "{name} is written anew as {}: values that it refers to are elsewhere",
                        new.join(", ")
                    ));
                }
                self.replace(&name, id, made.tables);
            }
        }
        Ok(())
    }

    /// Merges a family's tables into one sorted run with the newest version of every key.
    fn merge_family(&mut self, id: u32, mut tables: Vec<Arc<TableFile>>) -> Result<()> {
        // If several tables have one version as an operand, the youngest table has the operand with
        // all operands that were merged into it. Tables from replayed logs come last, because they
        // have only the operands of their log.
        tables.sort_by_key(|t| std::cmp::Reverse(self.original_number(t.number)));
        let name = self.learned.catalog.families[&id].name.clone();
        let level = (LEVELS - 1) as u32;
        let most = self.options.family(&name).table_bytes;
        let made = self.rewrite(id, level, &tables, most)?;
        self.report.notes.push(format!(
            "family {name:?}: its {} tables are merged into {}, because an edit of the manifest is lost and with it the order between them; keys deleted by lost entries may show again",
            tables.len(),
            made.tables.len()
        ));
        if made.operands {
            self.report.notes.push(format!(
                "family {name:?} holds merge operands: where a table and one that it was compacted into are both there, an operand may count twice",
            ));
        }
        for (i, table) in tables.iter().enumerate() {
            let name = table_name(table.number);
            if self.supposed.contains(&table.number) {
                self.set_aside(
                    &name,
                    "no edit names the family of this table, so the family is a guess",
                );
            }
            let new = if i == 0 {
                made.tables.clone()
            } else {
                Vec::new()
            };
            self.replace(&name, id, new);
        }
        Ok(())
    }

    /// Returns the number of the table whose entries this table has, or 0 if the entries are from a
    /// log.
    fn original_number(&self, number: u64) -> u64 {
        if self.replayed.contains(&number) {
            return 0;
        }
        let copied = self.replacement.iter().find(|(_, new)| **new == number);
        match copied.and_then(|(old, _)| StoreFile::parse(old)) {
            Some(StoreFile::Table(old)) => old,
            _ => number,
        }
    }

    /// Replaces a table by new tables that have its entries.
    fn replace(&mut self, name: &str, family: u32, new: Vec<AddTable>) {
        match self.names.iter().any(|n| n == name) {
            true => self.report.tables_kept -= 1,
            // This repair wrote the table.
            false => self.report.tables_written -= 1,
        }
        if let Some(StoreFile::Table(number)) = StoreFile::parse(name) {
            let f = self.learned.family(family, self.options);
            f.tables.remove(&number);
        }
        self.replaced.push(name.to_string());
        new.into_iter().for_each(|t| self.new_table(t));
    }

    /// Rewrites the entries of tables as one sorted run, in tables of about `most` bytes. Each
    /// reference then leads to a record of its own. The newest version of a key stays, and the
    /// versions below operands stay.
    fn rewrite(
        &mut self,
        id: u32,
        level: u32,
        tables: &[Arc<TableFile>],
        most: u64,
    ) -> Result<RewrittenTables> {
        let family = self.learned.catalog.families[&id].clone();
        let cmp = self.options.family(&family.name).comparator.clone();
        let mut children: Vec<Box<dyn InternalIter>> = Vec::new();
        let mut readers = Vec::new();
        for table in tables {
            let reader = table.reader()?;
            children.push(Box::new(reader.iter(ReadPattern::Compaction)));
            readers.push(reader);
        }
        let pieces = readers.iter().flat_map(|r| r.ranges().iter());
        let ranges = Fragments::build(&cmp, pieces, Some(&[]));
        let mut deleted = RangeDelFilter::new(&cmp, &ranges, &[]);
        // All range tombstones stay, because deeper tables may hold entries that they hide.
        let mut cutter = TombstoneCutter::new(cmp.clone(), ranges.clone());
        let mut iter = MergingIter::new(cmp.clone(), children);
        let mut stripes = Stripes::new(&[]);
        let mut made = RewrittenTables::default();
        let mut builder: Option<(u64, TableBuilder)> = None;
        let (mut user, mut last_key): (Vec<u8>, Option<Vec<u8>>) = (Vec::new(), None);
        let mut same: Vec<(Kind, Vec<u8>)> = Vec::new();
        let mut internal = Vec::new();
        iter.seek_to_first()?;
        while iter.valid() {
            let (key, seq, kind) = parse_internal_key(iter.key())?;
            user.clear();
            user.extend_from_slice(key);
            // Collect all entries of one version.
            same.clear();
            same.push((kind, iter.value().to_vec()));
            iter.next()?;
            while iter.valid() {
                let (key, next, kind) = parse_internal_key(iter.key())?;
                if next != seq || cmp.user(key, &user).is_ne() {
                    break;
                }
                same.push((kind, iter.value().to_vec()));
                iter.next()?;
            }
            // A value or tombstone is what the operand with its number was merged into.
            same.sort_by_key(|(kind, _)| *kind == Kind::Merge);
            if !stripes.is_visible(&cmp, &user, seq, same[0].0) || deleted.hides(&user, seq) {
                continue;
            }
            let (kind, value) = self.resolve_version(id, &cmp, &user, seq, &mut same, &mut made)?;
            made.operands |= kind == Kind::Merge;
            // More versions of the key follow an operand, and a table may end only between keys.
            let new_key = last_key
                .as_deref()
                .is_none_or(|k| cmp.user(k, &user).is_ne());
            if new_key {
                last_key = Some(user.clone());
            }
            if let Some((number, mut b)) =
                builder.take_if(|(_, b)| new_key && b.estimated_size() >= most)
            {
                cutter.write_before(Some(&user), &mut b);
                made.add(id, level, number, b)?;
            }
            if builder.is_none() {
                let number = self.new_number();
                builder = Some((number, self.builder(id, &family, level, number)?));
            }
            let (_, b) = builder.as_mut().expect("just made");
            internal.clear();
            encode_internal_key(&mut internal, &user, pack_trailer(seq, kind));
            b.add(&internal, &value)?;
        }
        if builder.is_none() && cutter.has_before(None) {
            let number = self.new_number();
            builder = Some((number, self.builder(id, &family, level, number)?));
        }
        if let Some((number, mut b)) = builder {
            cutter.write_before(None, &mut b);
            made.add(id, level, number, b)?;
        }
        Ok(made)
    }

    /// Returns the entry for one version: the first of its values that can be read. `same` has all
    /// entries of the version, operands last. If no value can be read and one is lost, the result
    /// is a tombstone.
    fn resolve_version(
        &mut self,
        family: u32,
        cmp: &Cmp,
        key: &[u8],
        seq: SeqNo,
        same: &mut Vec<(Kind, Vec<u8>)>,
        made: &mut RewrittenTables,
    ) -> Result<(Kind, Vec<u8>)> {
        let mut nowhere = None;
        for (kind, value) in &mut *same {
            match kind {
                Kind::BlobRef => {
                    let to = Reference::decode(value)?;
                    let name = to.record(&Name { family, key, seq });
                    if let Some(led) = self.lead(&to, &name, cmp)? {
                        return Ok(led);
                    }
                    nowhere.get_or_insert(to.number);
                }
                Kind::Put | Kind::PutTtl => return Ok((*kind, std::mem::take(value))),
                _ => {}
            }
        }
        match nowhere {
            None => Ok(same.swap_remove(0)),
            Some(number) => {
                made.lost += 1;
                self.lose_value(family, number, key);
                Ok((Kind::Delete, Vec::new()))
            }
        }
    }
}

/// The result of rewriting tables.
#[derive(Default)]
struct RewrittenTables {
    tables: Vec<AddTable>,
    /// Number of values that could not be read.
    lost: u64,
    /// True if the entries include operands.
    operands: bool,
}

impl RewrittenTables {
    fn add(&mut self, family: u32, level: u32, number: u64, b: TableBuilder) -> Result<()> {
        self.tables.push(AddTable {
            family,
            level,
            number,
            meta: b.finish()?,
            location: FileLocation::Local,
        });
        Ok(())
    }
}
