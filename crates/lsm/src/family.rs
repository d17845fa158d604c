//! [`Family`]: the handle of a column family, with what a batch must know of it.

use crate::codec::Compression;
use crate::key::Cmp;
use crate::merge::MergeOperator;
use basalt_fs::{Error, Result};
use std::sync::Arc;

/// A column family of an open store. Cheap to clone; it does not keep the store open.
#[derive(Clone)]
pub struct Family {
    pub(crate) id: u32,
    pub(crate) store: u64,
    pub(crate) name: Arc<str>,
    pub(crate) cmp: Cmp,
    pub(crate) operator: Option<Arc<dyn MergeOperator>>,
    pub(crate) min_blob_size: Option<usize>,
    pub(crate) blob_compression: Compression,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Family({}, {:?})", self.id, self.name)
    }
}

impl Family {
    /// Its number, never used again in this store.
    pub fn id(&self) -> u32 {
        self.id
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    pub(crate) fn store(&self) -> u64 {
        self.store
    }
    /// Refuses an operand that the family cannot take.
    pub(crate) fn check_operand(&self, operand: &[u8]) -> Result<()> {
        let Some(operator) = &self.operator else {
            return Err(Error::invalid(format!(
                "family {:?} has no merge operator; set `merge_operator` in its options and open the store again",
                self.name
            )));
        };
        operator.check_operand(operand).map_err(|refusal| {
            Error::invalid(format!(
                "family {:?}: merge operator {:?} takes no such operand: {refusal}",
                self.name,
                operator.name()
            ))
        })
    }
    pub(crate) fn cmp(&self) -> &Cmp {
        &self.cmp
    }
    pub(crate) fn min_blob_size(&self) -> Option<usize> {
        self.min_blob_size
    }
    pub(crate) fn blob_compression(&self) -> Compression {
        self.blob_compression
    }
    #[cfg(any(test, fuzzing))]
    pub(crate) fn packing_of_no_store(
        id: u32,
        min_blob_size: usize,
        blob_compression: Compression,
    ) -> Family {
        Family {
            blob_compression,
            ..Family::separating_of_no_store(id, min_blob_size)
        }
    }
    #[cfg(any(test, fuzzing))]
    pub(crate) fn separating_of_no_store(id: u32, min_blob_size: usize) -> Family {
        Family {
            min_blob_size: Some(min_blob_size),
            ..Family::of_no_store(id)
        }
    }
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of_no_store(id: u32) -> Family {
        Family {
            id,
            store: 0,
            name: "".into(),
            operator: None,
            min_blob_size: None,
            blob_compression: Compression::None,
            cmp: Cmp::Bytewise,
        }
    }
}
