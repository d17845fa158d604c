//! Updates and reads of the persistence points of an open store.

use super::engine::Engine;
use super::log_position::SealedFlags;
use super::persistence::{FamilyPoint, PassiveStats, Persistence, PersistencePoints};
use super::write_path::Writer;
use crate::listener::Event;
use crate::version::Tsn;
use basalt_fs::{Error, Result};

impl Engine {
    /// Returns what the store knows of its persistence.
    ///
    /// Errors: `InvalidArgument` if the store is not passive.
    pub(crate) fn persistence(&self) -> Result<&Persistence> {
        self.persistence.as_deref().ok_or_else(|| {
            Error::invalid(
                "the store is not passive: it has a log of its own, and no persistence points",
            )
        })
    }

    /// Returns the global persistence point of a passive store.
    pub(crate) fn global_point(&self) -> Tsn {
        let catalog = self.tree.catalog();
        let flags = catalog.families.values().filter_map(|f| f.flush_flag);
        flags.map(|flag| flag.tsn).min().unwrap_or(0)
    }

    /// Returns up to where the store is persisted.
    ///
    /// Errors: `InvalidArgument` if the store is not passive.
    pub(crate) fn persistence_points(&self) -> Result<PersistencePoints> {
        let persistence = self.persistence()?;
        let applied = persistence.applied();
        let catalog = self.tree.catalog();
        let families = catalog.families.values();
        let families: Vec<FamilyPoint> = families
            .filter_map(|f| {
                Some(FamilyPoint {
                    family: f.name.clone(),
                    flag: f.flush_flag?,
                })
            })
            .collect();
        let global = families.iter().map(|f| f.flag.tsn).min().unwrap_or(0);
        Ok(PersistencePoints {
            global,
            applied: applied.max(global),
            families,
        })
    }

    /// Returns figures of a passive store; `None` for a store with a log.
    pub(crate) fn passive_stats(&self) -> Option<PassiveStats> {
        let persistence = self.persistence.as_ref()?;
        let global = self.global_point();
        Some(persistence.stats(global))
    }

    /// Notes the last transaction that was applied, and the end of the owner's log.
    pub(crate) fn note_applied(&self, tsn: Tsn, log_end: u64) {
        if let Some(persistence) = &self.persistence {
            persistence.note_applied(tsn, log_end);
        }
    }

    /// Makes the owner's log durable up to a transaction that is about to be durable in the store.
    pub(crate) fn make_owner_durable(&self, tsn: Tsn) -> Result<()> {
        let passive = self.ctx.options.log.passive();
        let Some(owner) = passive.and_then(|p| p.owner_log.as_ref()) else {
            return Ok(());
        };
        owner.make_durable(tsn).map_err(|e| {
            e.context(format!(
                "making the owner's log durable up to transaction {tsn}"
            ))
        })
    }

    /// Notes flags that an edit has made durable, and tells who waits for them.
    pub(crate) fn note_flags(&self, flags: &SealedFlags) {
        let Some(persistence) = &self.persistence else {
            return;
        };
        let ends = flags.points.iter().map(|(id, point)| (*id, point.log_end));
        persistence.note_persisted(ends, &self.tree.catalog());
        self.report_point();
    }

    /// Reports the global persistence point to listeners, and to who waits, if it has risen.
    pub(crate) fn report_point(&self) {
        let Some(persistence) = &self.persistence else {
            return;
        };
        let global = self.global_point();
        if persistence.begin_report(global) {
            let applied = persistence.applied();
            self.ctx.notify(|| Event::Persisted { global, applied });
            self.ctx.env.jobs().notify();
        }
    }

    /// Notes that a family was created, in a passive store.
    pub(crate) fn note_family_created(&self, writer: &Writer, id: u32) {
        if let Some(position) = &writer.passive {
            self.note_caught_up(id, position.log_end());
        }
    }

    /// Notes that the replay has reached the flag of a family.
    pub(crate) fn note_caught_up(&self, id: u32, log_end: u64) {
        if let Some(persistence) = &self.persistence {
            persistence.note_persisted(std::iter::once((id, log_end)), &self.tree.catalog());
        }
    }
}
