//! Comparison of what families of a passive store hold with their flush flags.

use super::StoreWalk;
use crate::version::catalog::{Catalog, CatalogFamily};
use crate::version::{FlushFlag, table_name};
use basalt_fs::{Error, ErrorKind, Result};

/// What follows from a flag that is older than the entries of its family, and what to do.
const OLD_FLAG: &str = "a replay would apply transactions that the family has once more; run `basalt repair`, or restore a checkpoint";

impl StoreWalk<'_, '_> {
    /// Reports tables and pages that are newer than the flush flag of their family. All entries of
    /// a family have sequence numbers up to its flag's last one: the edit that adds a table or
    /// names pages also installs the flag. A store with a log has no flags.
    pub(super) fn flags(&mut self, catalog: &Catalog) -> Result<()> {
        for family in catalog.families.values() {
            if let Some(flag) = family.flush_flag {
                self.flag_of_family(family, &flag)?;
            }
        }
        Ok(())
    }

    fn flag_of_family(&mut self, family: &CatalogFamily, flag: &FlushFlag) -> Result<()> {
        let manifest = format!(
            "the manifest says that family {:?} is persisted up to transaction {}",
            family.name, flag.tsn
        );
        if let Some(seq) = family.pages.filter(|seq| *seq > flag.last_seq) {
            let what = format!(
                "{manifest}, which ends with sequence number {}, and its pages have entries up to {seq}: {OLD_FLAG}",
                flag.last_seq
            );
            self.report
                .damage
                .push(Error::new(ErrorKind::Corruption, what));
        }
        for (&number, table) in &family.tables {
            if self.bad_tables.contains(&number) {
                continue;
            }
            let path = self.dir.join(table_name(number));
            if table.meta.max_seq > flag.last_seq {
                let what = format!(
                    "the table has entries up to sequence number {}, and {manifest}, which ends with {}: {OLD_FLAG}",
                    table.meta.max_seq, flag.last_seq
                );
                self.report.damage.push(Error::corruption(&path, 0, what));
                continue;
            }
            let own = basalt_table::family_of(&*self.env.fs().open(&path)?, &path)?;
            if let Some(own) = own.and_then(|own| own.flush_flag)
                && own.tsn > flag.tsn
            {
                let what = format!(
                    "the table was written when the family was persisted up to transaction {}, and {manifest}: {OLD_FLAG}",
                    own.tsn
                );
                self.report.damage.push(Error::corruption(&path, 0, what));
            }
        }
        Ok(())
    }
}
