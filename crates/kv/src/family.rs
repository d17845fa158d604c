//! [`Family`]: the handle of a column family, with what a batch must know of it.

use crate::codec::Compression;
use crate::key::Cmp;
use crate::merge::MergeOperator;
use basalt_fs::{Error, Result};
use std::sync::Arc;

/// What an engine says of a family that it opens.
#[derive(Clone)]
pub struct FamilyConfig {
    /// The family's id, never used again in its store.
    pub id: u32,
    /// The store that the family belongs to, by its number in this process. 0 is no store.
    pub store: u64,
    /// Name of the family.
    pub name: Arc<str>,
    /// Order of the family's keys.
    pub comparator: Cmp,
    /// Operator for operands, if the family takes them.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Length in bytes from which on a value is kept apart from its key; `None` for no value.
    pub min_blob_size: Option<usize>,
    /// Compression of such values.
    pub blob_compression: Compression,
}

impl FamilyConfig {
    /// A family of no store, without a name and with the default of everything else: for tests and
    /// tools that encode batches.
    pub fn detached(id: u32) -> FamilyConfig {
        FamilyConfig {
            id,
            store: 0,
            name: "".into(),
            comparator: Cmp::Bytewise,
            merge_operator: None,
            min_blob_size: None,
            blob_compression: Compression::None,
        }
    }
}

/// A column family of an open store. Cheap to clone; it does not keep the store open.
#[derive(Clone)]
pub struct Family(FamilyConfig);

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Family({}, {:?})", self.0.id, self.0.name)
    }
}

impl Family {
    /// Makes the handle of a family that an engine has opened.
    pub fn new(config: FamilyConfig) -> Family {
        Family(config)
    }
    /// Its number, never used again in this store.
    pub fn id(&self) -> u32 {
        self.0.id
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
    /// The store that it belongs to, by its number in this process.
    pub fn store(&self) -> u64 {
        self.0.store
    }
    /// Refuses an operand that the family cannot take.
    pub fn check_operand(&self, operand: &[u8]) -> Result<()> {
        let Some(operator) = &self.0.merge_operator else {
            return Err(Error::invalid(format!(
                "family {:?} has no merge operator; set `merge_operator` in its options and open the store again",
                self.0.name
            )));
        };
        operator.check_operand(operand).map_err(|refusal| {
            Error::invalid(format!(
                "family {:?}: merge operator {:?} takes no such operand: {refusal}",
                self.0.name,
                operator.name()
            ))
        })
    }
    /// Order of its keys.
    pub fn cmp(&self) -> &Cmp {
        &self.0.comparator
    }
    /// Length in bytes from which on its values are kept apart from their keys; `None` for no
    /// value.
    pub fn min_blob_size(&self) -> Option<usize> {
        self.0.min_blob_size
    }
    /// Compression of values that are kept apart.
    pub fn blob_compression(&self) -> Compression {
        self.0.blob_compression
    }

    /// A family of no store: see [`FamilyConfig::detached`].
    pub fn detached(id: u32) -> Family {
        Family(FamilyConfig::detached(id))
    }

    /// The same family, with values of `min_blob_size` bytes and more kept apart and compressed so.
    pub fn separating(mut self, min_blob_size: usize, compression: Compression) -> Family {
        self.0.min_blob_size = Some(min_blob_size);
        self.0.blob_compression = compression;
        self
    }
}
