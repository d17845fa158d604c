//! Loads in progress. The first thread that asks for a block loads it, and the others wait for the
//! same result.

use super::CacheKey;
use crate::sync::ThreadId;
use crate::sync::{Condvar, Mutex};
use basalt_fs::{Bytes, Result};
use std::sync::Arc;

enum Progress {
    Flying,
    Landed(Result<Bytes>),
    /// The load panicked.
    Crashed,
}

struct Flight {
    key: CacheKey,
    pilot: ThreadId,
    progress: Mutex<Progress>,
    landed: Condvar,
}

/// The loads in progress of one shard. It is a list, because there are seldom more loads than
/// threads.
#[derive(Default)]
pub(super) struct Flights(Mutex<Vec<Arc<Flight>>>);

/// The part of the caller in a load, as [`Loads::join`] returns it.
pub(super) enum Seat<'a> {
    /// The caller must load the block and then call [`LoadGuard::complete`].
    Pilot(Pilot<'a>),
    /// Another thread loaded the block, with this result. `None` if its load panicked.
    Passenger(Option<Result<Bytes>>),
    /// The caller's own thread is loading this block already.
    Again,
}

/// The duty to finish a load. If it is dropped before [`LoadGuard::complete`], the waiting threads
/// continue without a result.
pub(super) struct Pilot<'a> {
    flights: &'a Flights,
    flight: Arc<Flight>,
}

impl Flights {
    pub(super) fn board(&self, key: CacheKey) -> Seat<'_> {
        let me = crate::sync::this_thread();
        let mut flying = self.0.lock();
        let Some(flight) = flying.iter().find(|f| f.key == key).cloned() else {
            let flight = Arc::new(Flight {
                key,
                pilot: me,
                progress: Mutex::new(Progress::Flying),
                landed: Condvar::new(),
            });
            flying.push(flight.clone());
            return Seat::Pilot(Pilot {
                flights: self,
                flight,
            });
        };
        drop(flying);
        if flight.pilot == me {
            return Seat::Again;
        }
        let mut progress = flight.progress.lock();
        loop {
            match &*progress {
                Progress::Flying => flight.landed.wait(&mut progress),
                Progress::Landed(result) => return Seat::Passenger(Some(result.clone())),
                Progress::Crashed => return Seat::Passenger(None),
            }
        }
    }
}

impl Pilot<'_> {
    pub(super) fn land(self, result: Result<Bytes>) {
        *self.flight.progress.lock() = Progress::Landed(result);
    }
}

impl Drop for Pilot<'_> {
    fn drop(&mut self) {
        let mut flying = self.flights.0.lock();
        flying.retain(|f| !Arc::ptr_eq(f, &self.flight));
        drop(flying);
        let mut progress = self.flight.progress.lock();
        if matches!(*progress, Progress::Flying) {
            *progress = Progress::Crashed;
        }
        drop(progress);
        self.flight.landed.notify_all();
    }
}
