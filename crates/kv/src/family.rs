//! [`Family`]: the handle of a column family, with the settings that a batch needs.

use crate::codec::Compression;
use crate::key::Cmp;
use crate::merge::{MergeOperator, Merging};
use basalt_fs::{Error, Result};
use std::sync::Arc;

/// The settings of a family that an engine opens.
#[derive(Clone)]
pub struct FamilyConfig {
    /// Id of the family. Its store never uses the id again.
    pub id: u32,
    /// Number, in this process, of the store that the family belongs to. 0 is no store.
    pub store: u64,
    /// Name of the family.
    pub name: Arc<str>,
    /// Order of the family's keys.
    pub comparator: Cmp,
    /// Operator for operands, if the family takes them.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Length in bytes from which on a value is separated from its key. `None` separates no value.
    pub min_blob_size: Option<usize>,
    /// Compression of separated values.
    pub blob_compression: Compression,
}

impl FamilyConfig {
    /// Returns the settings of a family of no store, without a name and with all defaults. It is
    /// for tests and tools that encode batches.
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

/// A column family of an open store. Cloning is cheap. The handle does not keep the store open.
#[derive(Clone)]
pub struct Family(FamilyConfig);

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Family({}, {:?})", self.0.id, self.0.name)
    }
}

impl Family {
    /// Makes the handle of a family that an engine has opened.
    #[doc(hidden)]
    pub fn new(config: FamilyConfig) -> Family {
        Family(config)
    }
    /// Returns the family's id, which its store never uses again.
    pub fn id(&self) -> u32 {
        self.0.id
    }
    /// Returns the family's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
    /// Returns the number, in this process, of the store that the family belongs to.
    pub fn store(&self) -> u64 {
        self.0.store
    }
    /// Checks an operand.
    ///
    /// Errors: `InvalidArgument` if the family has no merge operator, or if its operator refuses
    /// the operand.
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
    /// Returns the merging of the family, by its operator if it has one. It is for code that
    /// computes values from operands that are not in the store.
    #[doc(hidden)]
    pub fn merging(&self) -> Merging {
        Merging::new(self.0.name.clone(), self.0.merge_operator.clone())
    }
    /// Returns the order of the family's keys.
    pub fn cmp(&self) -> &Cmp {
        &self.0.comparator
    }
    /// Returns the length in bytes from which on values are separated from their keys, or `None` if
    /// no value is.
    pub fn min_blob_size(&self) -> Option<usize> {
        self.0.min_blob_size
    }
    /// Returns the compression of separated values.
    pub fn blob_compression(&self) -> Compression {
        self.0.blob_compression
    }

    /// Returns a family of no store, with the settings of [`FamilyConfig::detached`].
    pub fn detached(id: u32) -> Family {
        Family(FamilyConfig::detached(id))
    }

    /// Returns the same family, with values of `min_blob_size` bytes and more separated and
    /// compressed by `compression`.
    pub fn separating(mut self, min_blob_size: usize, compression: Compression) -> Family {
        self.0.min_blob_size = Some(min_blob_size);
        self.0.blob_compression = compression;
        self
    }
}
