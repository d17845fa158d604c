//! [`BlobAccess`]: the access of an iterator to values in blob files.

use super::UserIter;
use crate::iter::{InternalIter, ScanHistory};
use crate::options::ReadOptions;
use crate::version::BlobSet;
use basalt_blob::{Name, ReadMode, Reference};
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::entry::expiry_of;
use basalt_kv::key::{SeqNo, parse_internal_key};
use std::sync::Arc;

/// The blob files that the entries of a family refer to, and how an iterator reads them.
pub(crate) struct BlobAccess {
    pub(in crate::iter) blobs: Arc<BlobSet>,
    /// The family's id.
    pub(in crate::iter) family: u32,
    pub(in crate::iter) how: ReadMode,
    /// Lengths of the family's last scans.
    pub(in crate::iter) scan_history: Arc<ScanHistory>,
    /// True if the iterator reads no values.
    pub(super) keys_only: bool,
}

impl BlobAccess {
    /// Returns the access of an iterator over a family.
    pub(crate) fn of(
        blobs: &Arc<BlobSet>,
        family: u32,
        scan_history: &Arc<ScanHistory>,
        options: &ReadOptions,
    ) -> BlobAccess {
        BlobAccess {
            blobs: blobs.clone(),
            family,
            how: ReadMode::user(options.fill_cache),
            scan_history: scan_history.clone(),
            keys_only: options.keys_only,
        }
    }
}

/// Returns the value in the payload of a blob record: the payload without its expiry. Fails with
/// `Corruption` if the payload is too short.
pub(in crate::iter) fn without_expiry(payload: Bytes, to: &Reference) -> Result<Bytes> {
    if to.expire_at_ms.is_some() {
        expiry_of(&payload)?;
        return Ok(payload.slice(8..));
    }
    Ok(payload)
}

impl UserIter {
    /// Remembers that the current value is in a blob file. An iterator over keys forgets it.
    pub(super) fn set_lazy_value(&mut self, seq: SeqNo, to: Reference) -> Result<()> {
        if !self.required_blobs()?.keys_only {
            self.lazy_value = Some((seq, to));
        }
        Ok(())
    }

    /// Returns the access to blob files. Fails with `Unsupported` if the iterator has none.
    fn required_blobs(&self) -> Result<&BlobAccess> {
        self.blobs.as_ref().ok_or_else(|| {
            Error::unsupported(
                "cannot read a separated value: this iterator has no access to blob files",
            )
        })
    }

    /// Returns the payload, with its expiry, of the blob record that the merged cursor's entry
    /// refers to. For an iterator over keys the payload is the expiry alone.
    pub(super) fn read_payload(&self, to: &Reference) -> Result<Bytes> {
        let (key, seq, _) = parse_internal_key(self.iter.key())?;
        let access = self.required_blobs()?;
        if access.keys_only {
            // Only the expiry decides whether the key is visible, and the reference has it.
            let expiry = to.expire_at_ms.map(u64::to_le_bytes);
            return Ok(expiry.map_or_else(Bytes::new, |at| Bytes::copy_from_slice(&at)));
        }
        let family = access.family;
        let name = Name { family, key, seq };
        let read = access.blobs.read(&name, to, &self.cmp, access.how);
        read.map(|(_, payload)| payload)
    }

    /// Returns true if the current value is in a blob file and has not been read.
    #[inline]
    pub(in crate::iter) fn has_lazy_value(&self) -> bool {
        self.lazy_value.is_some()
    }

    /// Reads the current value if it is in a blob file. After an error the iterator is not valid.
    pub(in crate::iter) fn read_value(&mut self) -> Result<()> {
        let Some((seq, to)) = self.lazy_value.take() else {
            return Ok(());
        };
        let access = self.required_blobs()?;
        let (family, key) = (access.family, self.key());
        let name = Name { family, key, seq };
        let read = access.blobs.read(&name, &to, &self.cmp, access.how);
        match read.and_then(|(_, payload)| without_expiry(payload, &to)) {
            Ok(value) => {
                self.saved_value = value;
                Ok(())
            }
            Err(e) => {
                self.invalidate();
                Err(e)
            }
        }
    }
}
