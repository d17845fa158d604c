//! User checkpoints: sorted changes from memory become delta pages of the leaves that have their
//! keys (ArkDB, section 4.1.2).

use crate::mapping::Change;
use crate::page::{PageBuilder, PageKind};
use crate::page_id::PageId;
use crate::storage::{PageWriter, Prepared, Storage};
use crate::system_log::SystemTx;
use crate::usage::StreamKind;
use basalt_fs::Result;

impl Storage {
    /// Writes the delta pages of changes, whose keys rise strictly, without a commit. `note` is
    /// kept with the commit, for the memory tier. Runs beside compactions and collections.
    ///
    /// Errors: those of reading and writing; then nothing has changed.
    pub fn prepare_user_checkpoint<'a>(
        &self,
        changes: impl Iterator<Item = (&'a [u8], u8, &'a [u8])>,
        note: Option<Vec<u8>>,
    ) -> Result<Prepared<'_>> {
        let view = self.view();
        let mut writer = PageWriter::new(self, StreamKind::Delta);
        let mut builder = PageBuilder::new(PageKind::Delta, 0);
        // The leaf of each page of the writer.
        let mut leaves: Vec<PageId> = Vec::new();
        let mut current: Option<(PageId, Option<Vec<u8>>)> = None;
        for (key, kind, value) in changes {
            let inside =
                |(_, end): &(PageId, Option<Vec<u8>>)| end.as_deref().is_none_or(|end| key < end);
            let leaf = match current.as_ref().filter(|leaf| inside(leaf)) {
                Some((leaf, _)) => *leaf,
                None => {
                    if let Some((leaf, _)) = current.take().filter(|_| !builder.is_empty()) {
                        writer.add(&mut builder, PageId::NONE)?;
                        leaves.push(leaf);
                    }
                    let path = self.path(&view, key)?;
                    let leaf = path.leaf;
                    current = Some((leaf, path.end()));
                    leaf
                }
            };
            builder.add(key, kind, value);
            if builder.max_len() >= self.options.page_bytes {
                writer.add(&mut builder, PageId::NONE)?;
                leaves.push(leaf);
            }
        }
        if let Some((leaf, _)) = current.filter(|_| !builder.is_empty()) {
            writer.add(&mut builder, PageId::NONE)?;
            leaves.push(leaf);
        }
        let ids = writer.finish()?;
        let changes = leaves.into_iter().zip(ids);
        let tx = SystemTx {
            changes: changes
                .map(|(key, delta)| Change::Append { key, delta })
                .collect(),
            note,
            ..SystemTx::default()
        };
        Ok(Prepared {
            tx,
            view,
            _writers: vec![writer],
            _maintenance: None,
        })
    }
}
