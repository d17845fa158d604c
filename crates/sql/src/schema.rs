//! [`Schema`]: a catalog with the families that its tables and indexes are in.

use crate::catalog::{Catalog, ObjectId, TableDef};
use crate::translate::{Families, TableLayout};
use basalt::Family;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A catalog with the families that its tables and indexes are in, as of one moment.
#[derive(Clone)]
pub struct Schema {
    /// All definitions.
    pub catalog: Catalog,
    /// The families of tables and indexes.
    pub families: Families,
    /// The family of the catalog itself.
    pub catalog_family: Family,
    layouts: BTreeMap<ObjectId, Arc<TableLayout>>,
}

impl Schema {
    /// Returns the schema of a catalog.
    pub fn new(catalog: Catalog, families: Families, catalog_family: Family) -> Schema {
        let layouts = catalog.tables();
        let layouts = layouts.map(|table| (table.id, Arc::new(TableLayout::of(table))));
        Schema {
            layouts: layouts.collect(),
            catalog,
            families,
            catalog_family,
        }
    }

    /// Returns how the rows of a table become items.
    pub fn layout(&self, table: ObjectId) -> Option<&Arc<TableLayout>> {
        self.layouts.get(&table)
    }

    /// Returns the family with this number.
    ///
    /// Errors: `NotFound` if the catalog has a number that the store lacks.
    pub fn family(&self, storage: ObjectId) -> basalt::Result<&Family> {
        self.families.get(&storage).ok_or_else(|| {
            basalt::Error::new(
                basalt::ErrorKind::NotFound,
                format!("the store has no family for object {storage} of the catalog"),
            )
        })
    }

    /// Returns `true` if a table has the same definition in both schemas.
    pub fn has_same(&self, table: &TableDef) -> bool {
        let now = self.catalog.table_by_id(table.id);
        now.is_some_and(|now| now.version == table.version)
    }
}
