//! Garbage of families in pages: the records of blob files whose references the pages have dropped.
//!
//! A tree reports a dropped reference when no recovery can bring it back. The edit that marks the
//! record comes later. If a crash or an error comes between them, the mark is lost: the record
//! keeps its space until a repair, and no reader notices. A mark always follows its report, so no
//! page of the newest content refers to a marked record.
//!
//! The same step that installs the marks shows the newest content of the tree. A filter may have
//! removed an entry that the content shown before still has, and a reader of that content must not
//! meet files without the record.

use super::engine::Engine;
use super::pages::FamilyPages;
use super::tree::blob_edits::BlobChange;
use crate::compaction::{DroppedRefs, DroppingJob};
use crate::listener::{BackgroundErrorReason, Event};
use crate::version::edit::Edit;
use basalt_blob::Reference;
use basalt_blob::garbage::Dead;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::key::Cmp;
use basalt_tree::DroppedEntry;
use std::sync::Arc;

impl Engine {
    /// Marks the records whose references the pages of a family have dropped. They wait if a flush
    /// runs or has failed behind its write to the pages.
    pub(super) fn mark_dropped_records(&self, family: u32, pages: &Arc<FamilyPages>) -> Result<()> {
        let dropped = pages.dropped_references().take();
        if dropped.entries().is_empty() || pages.is_dropped() {
            return Ok(());
        }
        // From here on, the records that garbage collections move are remembered.
        let epoch = self.tree.lock().blobs.begin();
        let marked = self
            .find_dropped(family, dropped.entries())
            .and_then(|(dead, errors)| {
                errors
                    .into_iter()
                    .for_each(|e| self.report_unmarked(family, e));
                self.install_marks(family, pages, dead)
            });
        self.tree.lock().blobs.end(epoch);
        match marked {
            Ok(true) => Ok(()),
            Ok(false) => {
                pages.dropped_references().give_back(dropped);
                Ok(())
            }
            // A family that was dropped meanwhile has no records.
            Err(_) if pages.is_dropped() => Ok(()),
            // Damage does not go away. The marks are lost, as in a crash.
            Err(e) if e.kind() == ErrorKind::Corruption => {
                self.report_unmarked(family, e);
                Ok(())
            }
            Err(e) => {
                pages.dropped_references().give_back(dropped);
                Err(e)
            }
        }
    }

    /// Marks what the trees have reported so far, before the store is closed. A record whose mark
    /// fails keeps its space.
    pub(super) fn mark_dropped_before_close(&self) {
        for (family, view) in self.tree.view().pages.iter() {
            let _ = self.mark_dropped_records(*family, &view.pages);
        }
    }

    fn report_unmarked(&self, family: u32, e: Error) {
        let view = self.tree.view();
        let name = view.families.get(&family).map_or("", |f| &f.name);
        let error = e.context(format!(
            "marking values that the pages of family {name:?} have dropped"
        ));
        self.ctx.notify(|| Event::BackgroundError {
            during: BackgroundErrorReason::Compaction,
            error,
        });
    }

    /// Returns the records of dropped references, and one error for each index that could not be
    /// read.
    fn find_dropped(
        &self,
        family: u32,
        dropped: &[DroppedEntry],
    ) -> Result<(Vec<Dead>, Vec<Error>)> {
        let blobs = || self.tree.view().version.blobs.clone();
        let mut found = DroppedRefs::new(DroppingJob {
            env: &self.ctx.env,
            family,
            cmp: &Cmp::Bytewise,
            blobs: &blobs,
            cancelled: self.ctx.closing(),
        });
        for entry in dropped {
            found.add(&entry.key, 0, &Reference::decode(&entry.value)?)?;
        }
        found.finish()
    }

    /// Installs marks, and shows the newest content of the tree. Returns false, and changes
    /// nothing, while a flush is between its write to the tree and its edit.
    fn install_marks(
        &self,
        family: u32,
        pages: &Arc<FamilyPages>,
        dead: Vec<Dead>,
    ) -> Result<bool> {
        let Some(_alone) = self.flushing.try_lock() else {
            return Ok(false);
        };
        if pages.tree().has_unconfirmed() {
            return Ok(false);
        }
        let change = BlobChange { dead, gc: None };
        self.tree
            .install_with(Edit::default(), Vec::new(), change, |_, view| {
                if let Some(shown) = view.pages.get(&family) {
                    let newest = shown.maintained();
                    Arc::make_mut(&mut view.pages).insert(family, newest);
                }
            })?;
        Ok(true)
    }
}
