//! Maintenance of families that are kept in pages: compactions of leaves, collections of garbage
//! and system checkpoints, as background jobs.

use super::engine::Engine;
use super::health::RETRY_PAUSE;
use super::pages::FamilyPages;
use crate::listener::{BackgroundErrorReason, Event};
use basalt_env::JobPriority;
use basalt_fs::{Error, ErrorKind};
use std::cell::Cell;
use std::sync::Arc;

/// Bytes of pages that maintenance writes between two views that it installs for readers. Replaced
/// pages keep their space as long as readers use an older view.
const BYTES_BETWEEN_VIEWS: u64 = 32 << 20;

impl Engine {
    /// Queues maintenance of the trees that were written since it last ran.
    pub fn schedule_page_maintenance(self: &Arc<Self>) {
        if self.health.compactions_are_paused() {
            return;
        }
        let newest = self.tree.view();
        for (id, view) in newest.pages.iter() {
            let options = newest.families.get(id).map(|f| &f.options);
            let for_readers = options.is_some_and(|o| o.l0_compaction_for_reads);
            let is_due = view.pages.begin_maintenance();
            if is_due || (for_readers && view.pages.begin_merges()) {
                let (engine, pages, id) = (self.clone(), view.pages.clone(), *id);
                let job = move || engine.maintain_pages(id, &pages, is_due, for_readers);
                self.ctx.jobs.spawn(JobPriority::Compaction, job);
            }
        }
        // The jobs that maintain trees come first. Helpers of all stores take the threads that no
        // other long job of the environment wants.
        let max_helpers = self.ctx.max_compactions() - 1;
        for view in newest.pages.values() {
            // A helper may end before the next one begins, so the number that run ends no loop.
            for _ in 0..max_helpers {
                if !view.pages.begin_help(max_helpers) {
                    break;
                }
                let (engine, pages) = (self.clone(), view.pages.clone());
                let job = move || engine.help_to_maintain(&pages);
                self.ctx.jobs.spawn(JobPriority::Helper, job);
            }
        }
    }

    /// Runs a helper: compacts a tree that is far behind, while another job maintains it. It ends
    /// when a long job of any store waits for a thread.
    pub fn help_to_maintain(self: &Arc<Self>, pages: &Arc<FamilyPages>) {
        let goes_on = || {
            let is_wanted = pages.helpers_are_wanted() && !self.ctx.env.jobs().long_jobs_wait();
            is_wanted && !self.ctx.is_closing() && !pages.is_dropped()
        };
        let helped = pages.tree().compact_concurrently(&goes_on);
        let was_idle = matches!(helped, Ok(0));
        let failed = match helped {
            // Maintenance finds the damage, too, and reports it once.
            Err(e) if e.kind() != ErrorKind::Corruption && !pages.is_dropped() => {
                // Before the next maintenance can begin, which clears it.
                pages.note_failed_helper();
                Some(e)
            }
            _ => None,
        };
        if !was_idle {
            // The next maintenance installs a view, gives back space, and compacts what became due
            // while the helper had claimed its index page.
            pages.note_written();
        }
        if let Some(e) = failed {
            self.note_failed_maintenance(pages, e);
        }
        pages.end_help();
        if !was_idle {
            self.background.schedule();
        }
        self.ctx.env.jobs().notify();
    }

    /// Notes that maintenance of a tree, or a helper, has failed. If one of them fails, the others
    /// often find the same fault: only the first one reports it, and makes the pause longer.
    fn note_failed_maintenance(&self, pages: &FamilyPages, e: Error) {
        let known = self.health.compaction_error().map(|known| known.kind());
        // What failed may have poisoned a file for the others.
        let is_known = known == Some(e.kind()) || e.kind() == ErrorKind::Poisoned;
        if !pages.begin_report() && is_known {
            self.health.compaction_failed_again();
        } else {
            let e = e.context("maintaining the pages of a family");
            self.health.compaction_failed(e.clone(), false);
            self.ctx.notify(|| Event::BackgroundError {
                during: BackgroundErrorReason::Compaction,
                error: e.clone(),
            });
        }
        self.background.retry_later();
    }

    /// Maintains a tree: does what is due after writes, if `is_due`, and merges leaves for readers,
    /// if `for_readers`.
    fn maintain_pages(
        self: &Arc<Self>,
        family: u32,
        pages: &Arc<FamilyPages>,
        is_due: bool,
        for_readers: bool,
    ) {
        let restarted = match self.flushing.try_lock() {
            Some(_alone) => (self.drop_failed_ingestions()).and_then(|()| pages.tree().restart()),
            None => Ok(()),
        };
        let viewed_at = Cell::new(pages.tree().bytes_written());
        // Maintenance calls it between transactions.
        let goes_on = || {
            let written = pages.tree().bytes_written();
            if written - viewed_at.get() >= BYTES_BETWEEN_VIEWS && self.show_maintained(family) {
                viewed_at.set(written);
            }
            !self.ctx.is_closing() && !pages.is_dropped()
        };
        let maintained = || {
            if pages.has_failed() {
                pages.tree().reclaim()?;
            }
            if is_due {
                pages.tree().maintain_while(&goes_on)?;
            }
            match for_readers {
                true => pages.tree().merge_for_readers(&goes_on),
                false => Ok(()),
            }
        };
        let result = restarted.and_then(|()| maintained());
        let result = result.and(self.mark_dropped_records(family, pages));
        if is_due {
            pages.compute_debt();
        } else {
            // Their old pages are garbage now, which may make a collection due.
            pages.note_written();
        }
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
            self.note_failed_maintenance(pages, e);
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
