//! Maintenance of families that are kept in pages: compactions of leaves, collections of garbage
//! and system checkpoints, as background jobs.

use super::engine::Engine;
use super::health::RETRY_PAUSE;
use super::pages::FamilyPages;
use crate::compaction::still_before_rewrite;
use crate::listener::{BackgroundErrorReason, Event};
use basalt_env::JobPriority;
use std::sync::Arc;

impl Engine {
    /// Queues maintenance of the trees that were written since it last ran.
    pub fn schedule_page_maintenance(self: &Arc<Self>) {
        if self.health.compactions_are_paused() {
            return;
        }
        let newest = self.tree.view();
        for (id, view) in newest.pages.iter() {
            let is_for_readers = || {
                let options = newest.families.get(id).map(|f| &f.options);
                options.is_some_and(|o| o.l0_compaction_for_reads)
                    && (view.pages.paid_by_reads()).is_some_and(|bytes| {
                        self.background.idle_for() >= still_before_rewrite(bytes)
                    })
                    && view.pages.begin_rewrite()
            };
            let is_due = view.pages.begin_maintenance();
            let rewrites = !is_due && is_for_readers();
            if is_due || rewrites {
                let (engine, pages, id) = (self.clone(), view.pages.clone(), *id);
                let job = move || engine.maintain_pages(id, &pages, rewrites);
                self.ctx.jobs.spawn(JobPriority::Compaction, job);
            }
        }
    }

    /// Maintains a tree. With `rewrites`, leaves with delta pages are written again for readers, as
    /// long as no write comes.
    fn maintain_pages(self: &Arc<Self>, family: u32, pages: &Arc<FamilyPages>, rewrites: bool) {
        let restarted = match self.flushing.try_lock() {
            Some(_alone) => (self.drop_failed_ingestions()).and_then(|()| pages.tree().restart()),
            None => Ok(()),
        };
        let goes_on = || !self.ctx.is_closing() && !pages.is_dropped();
        let maintained = || {
            if pages.has_failed() {
                pages.tree().reclaim()?;
            }
            if rewrites {
                let is_idle = || goes_on() && !self.background.idle_for().is_zero();
                pages.tree().rewrite_fragmented(&is_idle)?;
            }
            pages.tree().maintain_while(&goes_on)
        };
        let result = restarted.and_then(|()| maintained());
        let result = result.and(self.mark_dropped_records(family, pages));
        pages.compute_debt();
        // Space that only the views of before needed.
        let is_shown = self.show_maintained(family);
        let result = match is_shown {
            true => result.and_then(|()| pages.tree().release_space()),
            false => result,
        };
        // An error in a dropped family concerns no caller.
        let result = if pages.is_dropped() { Ok(()) } else { result };
        // A flush was in the way of some marks.
        let is_marked = pages.dropped_references().is_empty() || pages.is_dropped();
        pages.end_maintenance(result.is_err(), is_shown && is_marked);
        if let Err(e) = result {
            let e = e.context("maintaining the pages of a family");
            self.health.compaction_failed(e.clone(), false);
            self.ctx.notify(|| Event::BackgroundError {
                during: BackgroundErrorReason::Compaction,
                error: e.clone(),
            });
            self.background.retry_later();
        }
        match is_shown && is_marked {
            true => self.background.schedule(),
            // A flush or the maintenance of another family was in the way.
            false => self.background.schedule_after(RETRY_PAUSE),
        }
        self.ctx.env.jobs().notify();
    }

    /// Lets readers see a tree as it is after its maintenance. Returns false during a flush:
    /// between its write to the tree and its edit, the tree has entries that memtables have, too.
    fn show_maintained(&self, family: u32) -> bool {
        let Some(_alone) = self.flushing.try_lock() else {
            return false;
        };
        let view = self.tree.view();
        let Some(shown) = view.pages.get(&family) else {
            return true;
        };
        if shown.pages.tree().has_unconfirmed() {
            // A flush has failed behind its write. The next attempt shows the tree.
            return true;
        }
        drop(view);
        self.tree.change_view(|_, view| {
            if let Some(shown) = view.pages.get(&family) {
                let newest = shown.maintained();
                Arc::make_mut(&mut view.pages).insert(family, newest);
            }
        });
        true
    }
}
