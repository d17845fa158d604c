//! Flush flags of a passive store whose manifest has lost edits.
//!
//! A flag that is older than a table would let a replay apply operands twice, so a family gets the
//! latest flag that one of its tables names. A family in pages has no such table: its store is not
//! repaired.

use super::{Loss, Repair};
use crate::db::integrity::manifest_salvage::{SalvagedCatalog, raise};
use crate::db::pages::any_written;
use crate::version::FlushFlag;
use basalt_fs::{Error, Result};

/// The value of `passive_from` if no readable edit has it. Later prepared tables get sequence
/// numbers above it. It is above the numbers of earlier prepared tables, and this number plus 2^39
/// is below those of all transactions.
const UNKNOWN_PASSIVE_FROM: u64 = 1 << 39;

impl Repair<'_> {
    /// Returns true if the store is passive.
    fn is_passive(&self) -> bool {
        self.learned.catalog.passive || !self.learned.table_flags.is_empty()
    }

    /// Refuses a passive store with families in pages if edits may be lost.
    ///
    /// Errors: `InvalidArgument`.
    pub(super) fn check_passive(&self) -> Result<()> {
        if self.learned.sure || !self.is_passive() {
            return Ok(());
        }
        match any_written(self.env, self.dir)? {
            None => Ok(()),
            Some(tree) => Err(Error::invalid(format!(
                "the store is passive, its manifest has lost edits, and nothing says up to which transaction the pages in {} are persisted; restore a checkpoint, and let its owner replay the log",
                tree.display()
            ))),
        }
    }

    /// Gives each family of a passive store its flag.
    pub(super) fn restore_flags(&mut self) -> Result<()> {
        if !self.is_passive() {
            return Ok(());
        }
        self.raise_flags()?;
        if !self.learned.sure {
            self.restore_passive();
        }
        self.report_old_flags();
        Ok(())
    }

    /// Gives each family the latest flag that one of its tables names, if that is later than its
    /// own.
    fn raise_flags(&mut self) -> Result<()> {
        let SalvagedCatalog {
            catalog,
            table_flags,
            sure,
            ..
        } = &mut self.learned;
        for family in catalog.families.values_mut() {
            for &number in family.tables.keys() {
                let mut flag = table_flags.get(&number).copied();
                if *sure {
                    let path = self.tables.path(number);
                    let own = basalt_table::family_of(&*self.env.fs().open(&path)?, &path)?;
                    flag = own.and_then(|own| own.flush_flag);
                }
                if let Some(flag) = flag {
                    raise(&mut family.flush_flag, flag);
                }
            }
        }
        Ok(())
    }

    /// Reports families with entries that are newer than their flag.
    fn report_old_flags(&mut self) {
        let mut losses = Vec::new();
        for family in self.learned.catalog.families.values() {
            let seqs = family.tables.values().map(|table| table.meta.max_seq);
            let newest = seqs.chain(family.pages).max().unwrap_or(0);
            if let Some(flag) = family.flush_flag.filter(|flag| newest > flag.last_seq) {
                losses.push(Loss {
                    family: Some(family.name.clone()),
                    ..Loss::of_file(
                        "MANIFEST",
                        0..0,
                        &format!(
                            "the family has entries up to sequence number {newest}, and nothing says that it is persisted further than transaction {}, which ends with {}: a replay applies the transactions after it once more, so operands may count twice; compare the family with its owner's data, or restore a checkpoint",
                            flag.tsn, flag.last_seq
                        ),
                    )
                });
            }
        }
        losses.into_iter().for_each(|loss| self.lose(loss));
    }

    /// Makes the store passive, and gives a flag to each family whose tables name none.
    fn restore_passive(&mut self) {
        let catalog = &mut self.learned.catalog;
        catalog.passive = true;
        if catalog.passive_from == 0 {
            catalog.passive_from = UNKNOWN_PASSIVE_FROM;
        }
        let known = catalog.families.values().filter_map(|f| f.flush_flag);
        let least = known.min_by_key(|flag| flag.tsn);
        let least = least.unwrap_or(FlushFlag::before_first(catalog.last_seq));
        let mut unknown = Vec::new();
        for family in catalog.families.values_mut() {
            if family.flush_flag.is_none() {
                family.flush_flag = Some(least);
                unknown.push(family.name.clone());
            }
        }
        for name in unknown {
            self.lose(Loss {
                family: Some(name),
                ..Loss::of_file(
                    "MANIFEST",
                    0..0,
                    &format!(
                        "the family's flush flag is lost: items of transactions up to {} are lost if no table has them; compare the family with its owner's data, or restore a checkpoint",
                        least.tsn
                    ),
                )
            });
        }
        self.report.notes.push(format!(
            "the store is passive: its owner must replay its log from transaction {} on",
            least.tsn + 1
        ));
    }
}
