//! Which changes of base pages may run beside each other: compactions of different index pages, and
//! nothing else (ArkDB, section 4.1.3).

use crate::page_id::PageId;
use basalt_env::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, named};
use std::collections::BTreeSet;

/// Serialises transactions that change base pages, except compactions of different index pages.
///
/// Such a compaction holds `running` shared, and claims its index page by the id of its base page:
/// the key under which a parent names it may change, and only the compaction itself replaces the
/// base page. It takes `structure` once it has written the leaves, and holds it until its commit.
pub(crate) struct MaintenanceLock {
    running: RwLock<()>,
    /// Base pages of the index pages that are being compacted.
    claimed: Mutex<BTreeSet<PageId>>,
    structure: Mutex<()>,
}

/// Held by a transaction that changes base pages, until its commit.
pub(crate) enum MaintenanceGuard<'a> {
    /// No other transaction changes base pages.
    Exclusive(#[expect(dead_code)] RwLockWriteGuard<'a, ()>),
    /// Compactions of other index pages may run.
    Shared(Claim<'a>),
}

/// Held by a compaction that shares the lock and has claimed no index page yet.
pub(crate) struct SharedMaintenance<'a> {
    lock: &'a MaintenanceLock,
    running: RwLockReadGuard<'a, ()>,
}

/// Held by a compaction that has claimed its index page: no other compaction works on that page.
pub(crate) struct Claim<'a> {
    lock: &'a MaintenanceLock,
    base: PageId,
    _running: RwLockReadGuard<'a, ()>,
}

impl Default for MaintenanceLock {
    fn default() -> MaintenanceLock {
        MaintenanceLock {
            running: named("MaintenanceLock::running", RwLock::new(())),
            claimed: named("MaintenanceLock::claimed", Mutex::default()),
            structure: named("MaintenanceLock::structure", Mutex::new(())),
        }
    }
}

impl MaintenanceLock {
    /// Waits until no other transaction changes base pages.
    pub fn exclusive(&self) -> MaintenanceGuard<'_> {
        MaintenanceGuard::Exclusive(self.running.write())
    }

    /// Returns `None` if another transaction changes base pages.
    pub fn try_exclusive(&self) -> Option<MaintenanceGuard<'_>> {
        self.running.try_write().map(MaintenanceGuard::Exclusive)
    }

    /// Waits until no transaction holds the lock exclusively.
    pub fn shared(&self) -> SharedMaintenance<'_> {
        SharedMaintenance {
            running: self.running.read(),
            lock: self,
        }
    }
}

impl<'a> SharedMaintenance<'a> {
    /// Claims an index page. Returns `None` if another compaction has claimed it.
    pub fn claim(self, base: PageId) -> Option<Claim<'a>> {
        let is_free = self.lock.claimed.lock().insert(base);
        is_free.then(|| Claim {
            lock: self.lock,
            base,
            _running: self.running,
        })
    }
}

impl<'a> Claim<'a> {
    /// Returns the base page of the claimed index page.
    pub fn base(&self) -> PageId {
        self.base
    }

    /// Returns true if compactions of other index pages run.
    pub fn has_others(&self) -> bool {
        self.lock.claimed.lock().len() > 1
    }

    /// Waits until no other compaction changes index pages above those it has claimed. The caller
    /// holds the guard until its commit.
    pub fn lock_structure(&self) -> MutexGuard<'a, ()> {
        self.lock.structure.lock()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.lock.claimed.lock().remove(&self.base);
    }
}
