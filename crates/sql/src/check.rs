//! The check of a database: rows, index entries and references, against each other.

use crate::catalog::TableDef;
use crate::error::SqlResult;
use crate::keys::{decode_columns, primary_key};
use crate::schema::Schema;
use crate::storage::Storage;
use crate::translate::{IndexLayout, TableLayout, row_values};
use crate::value::Value;
use basalt::{Db, Family, ReadOptions};

/// Maximum number of problems that a check reports.
const MAX_PROBLEMS: usize = 1000;

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Tables that were checked.
    pub tables: u64,
    /// Rows that were checked.
    pub rows: u64,
    /// Entries of indexes that were checked.
    pub entries: u64,
    /// A sentence for each problem, at most 1,000.
    pub problems: Vec<String>,
}

impl CheckReport {
    fn add(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

/// Checks all rows, index entries and references of a database, as of one moment.
///
/// Errors: those of reads. Damage of tables' files is found by the check of the store.
pub fn check(storage: &Storage, progress: &mut dyn FnMut(&CheckReport)) -> SqlResult<CheckReport> {
    let (transaction, schema) = storage.begin()?;
    let options = ReadOptions::default().snapshot(transaction.snapshot().cloned());
    let check = Check {
        db: storage.db(),
        schema: &schema,
        options,
    };
    let mut report = CheckReport::default();
    for table in schema.catalog.tables() {
        check.table(table, &mut report, progress)?;
        report.tables += 1;
        progress(&report);
    }
    for family in storage.unnamed_families() {
        report.add(format!(
            "the store has family {:?}, which belongs to no table or index",
            family.name()
        ));
    }
    Ok(report)
}

struct Check<'c> {
    db: &'c Db,
    schema: &'c Schema,
    options: ReadOptions,
}

impl Check<'_> {
    fn table(
        &self,
        table: &TableDef,
        report: &mut CheckReport,
        progress: &mut dyn FnMut(&CheckReport),
    ) -> SqlResult<()> {
        let layout = TableLayout::of(table);
        let family = self.schema.family(table.storage)?;
        let mut iter = self.db.iter(family, &self.options)?;
        let mut rows = 0;
        iter.seek_to_first()?;
        while iter.valid() {
            rows += 1;
            match row_values(table, iter.value()) {
                Err(e) => report.add(format!(
                    "table {:?}, row {:02x?}: {e}",
                    table.name,
                    iter.key()
                )),
                Ok(values) => self.row(table, &layout, iter.key(), &values, report)?,
            }
            report.rows += 1;
            if report.rows.is_multiple_of(10_000) {
                progress(report);
            }
            iter.next()?;
        }
        for (index, entries) in table.indexes.iter().zip(&layout.indexes) {
            if index.is_ready {
                self.index(table, &index.name, entries, rows, report)?;
            }
        }
        Ok(())
    }

    fn row(
        &self,
        table: &TableDef,
        layout: &TableLayout,
        key: &[u8],
        values: &[Value],
        report: &mut CheckReport,
    ) -> SqlResult<()> {
        let name = &table.name;
        if !table.primary_key.is_empty() {
            let is_key = primary_key(&layout.key, values, 0).is_ok_and(|wanted| wanted == key);
            if !is_key {
                report.add(format!(
                    "table {name:?}, row {key:02x?}: the stored key differs from the primary key of the row"
                ));
            }
        } else if decode_columns(key, &layout.key, &mut Vec::new()).is_err() {
            report.add(format!(
                "table {name:?}, row {key:02x?}: the key is not a row number"
            ));
        }
        for (at, column) in table.visible() {
            if column.not_null && values[usize::from(at)].is_null() {
                report.add(format!(
                    "table {name:?}, row {key:02x?}: column {:?} is NULL and NOT NULL",
                    column.name
                ));
            }
        }
        for (index, entries) in table.indexes.iter().zip(&layout.indexes) {
            if !index.is_ready {
                continue;
            }
            let entry = entries.entry(values, key)?;
            let wanted: &[u8] = if entry.is_unique { key } else { &[] };
            let found = self.get(self.schema.family(index.storage)?, &entry.key)?;
            if found.as_deref() != Some(wanted) {
                report.add(format!(
                    "index {:?}: the entry of row {key:02x?} of table {name:?} is missing or points to another row",
                    index.name
                ));
            }
        }
        for foreign_key in &table.foreign_keys {
            let checked = crate::row_write::check_stored_parent(
                self.schema,
                self.db,
                &self.options,
                table,
                foreign_key,
                values,
            );
            if let Err(e) = checked {
                report.add(format!("table {name:?}, row {key:02x?}: {e}"));
            }
        }
        Ok(())
    }

    fn get(&self, family: &Family, key: &[u8]) -> SqlResult<Option<basalt::Bytes>> {
        Ok(self.db.get(family, key, &self.options)?)
    }

    fn index(
        &self,
        table: &TableDef,
        name: &str,
        entries: &IndexLayout,
        rows: u64,
        report: &mut CheckReport,
    ) -> SqlResult<()> {
        let family = self.schema.family(entries.storage)?;
        let mut iter = self.db.iter(family, &self.options)?;
        let mut found = 0;
        iter.seek_to_first()?;
        while iter.valid() {
            found += 1;
            let mut values = Vec::new();
            if decode_columns(iter.key(), &entries.parts, &mut values).is_err() {
                report.add(format!(
                    "index {name:?}, entry {:02x?}: malformed",
                    iter.key()
                ));
            }
            iter.next()?;
        }
        report.entries += found;
        if found != rows {
            report.add(format!(
                "index {name:?} has {found} entries, and table {:?} has {rows} rows",
                table.name
            ));
        }
        Ok(())
    }
}
