//! Verification of an open store: every live record and every page of the indexes is read from the
//! device.

use super::live_read::{IndexedRecord, RecordFile, read_all};
use super::report::LogVerifyReport;
use crate::apply::place_of;
use crate::engine::Engine;
use crate::index::{EntryPlace, PageLocation};
use crate::mapping::{Location, Mapping};
use crate::namespace::LogState;
use crate::pages;
use basalt_env::JobPriority;
use basalt_env::sync::Mutex;
use basalt_env::sync::atomic::{AtomicBool, Ordering::SeqCst};
use basalt_fs::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Entries of a log that are verified in one step.
const STEP_ENTRIES: usize = 4096;

/// A verification of all live records and pages, in steps.
pub(crate) struct LiveWalk {
    logs: VecDeque<Arc<LogState>>,
    /// The LSN at which the walk goes on in the first of the logs.
    at: u64,
    /// Pages of the current log that were read in the last step.
    pages: BTreeMap<PageLocation, Option<Mapping>>,
    /// Bytes of live records when the walk began.
    total: u64,
    pub report: LogVerifyReport,
}

impl LiveWalk {
    pub fn new(engine: &Engine) -> LiveWalk {
        let logs: VecDeque<_> = engine.namespace.all().into();
        LiveWalk {
            at: 0,
            pages: BTreeMap::new(),
            total: logs.iter().map(|log| log.lock().index.bytes()).sum(),
            report: LogVerifyReport {
                logs: logs.len() as u64,
                ..LogVerifyReport::default()
            },
            logs,
        }
    }

    /// Returns the bytes of live records that were read, and those of all.
    pub fn progress(&self) -> (u64, u64) {
        let done = self.report.live_bytes;
        (done, self.total.max(done))
    }

    /// Verifies some records. Returns false if there are none left.
    ///
    /// Errors: those of the filesystem. Damage is in the report.
    pub fn step(&mut self, engine: &Engine) -> Result<bool> {
        engine.check_open()?;
        let Some(log) = self.logs.front().cloned() else {
            return Ok(false);
        };
        let entries = {
            let inner = log.lock();
            match inner.deleted {
                true => Vec::new(),
                false => inner.index.entries_from(self.at, STEP_ENTRIES),
            }
        };
        let Some((last, _)) = entries.last() else {
            self.logs.pop_front();
            self.pages.clear();
            self.at = 0;
            return Ok(true);
        };
        let next = last.checked_add(1);
        let mut wanted = Vec::with_capacity(entries.len());
        let before = std::mem::take(&mut self.pages);
        for (lsn, place) in entries {
            if let Some(location) = self.locate(engine, &log, place, &before, lsn)? {
                let log = log.number;
                wanted.push(IndexedRecord { log, lsn, location });
            }
        }
        self.read(engine, &log, wanted)?;
        match next {
            Some(next) => self.at = next,
            None => {
                self.logs.pop_front();
            }
        }
        Ok(true)
    }

    /// Returns the location of a record, or `None` if its page is damaged or was removed since.
    fn locate(
        &mut self,
        engine: &Engine,
        log: &LogState,
        place: EntryPlace,
        before: &BTreeMap<PageLocation, Option<Mapping>>,
        lsn: u64,
    ) -> Result<Option<Location>> {
        let at = match place {
            EntryPlace::Known(location) => return Ok(Some(location)),
            EntryPlace::OnPage(at) => at,
        };
        if !self.pages.contains_key(&at) {
            let known = before.get(&at).cloned();
            let page = match known {
                Some(page) => page,
                None => self.read_page(engine, log, at)?,
            };
            self.pages.insert(at, page);
        }
        let Some(page) = &self.pages[&at] else {
            return Ok(None);
        };
        let location = page.get(lsn);
        if location.is_none() && log.lock().index.find(lsn) == Some(place) {
            self.report.damage.push(Error::new(
                ErrorKind::Corruption,
                format!(
                    "the index of log {:?} says that LSN {lsn} is on a page that does not have it",
                    log.name()
                ),
            ));
        }
        Ok(location)
    }

    fn read_page(
        &mut self,
        engine: &Engine,
        log: &LogState,
        at: PageLocation,
    ) -> Result<Option<Mapping>> {
        self.report.pages += 1;
        match pages::load_uncached(&engine.logs, log.number, at) {
            Ok(page) => {
                self.report.bytes += u64::from(at.len);
                Ok(page)
            }
            Err(e) => {
                let name = log.name();
                self.report
                    .note(e.context(format!("reading a page of the index of log {name:?}")))?;
                Ok(None)
            }
        }
    }

    fn read(
        &mut self,
        engine: &Engine,
        log: &Arc<LogState>,
        mut wanted: Vec<IndexedRecord>,
    ) -> Result<()> {
        let file = |number| {
            engine.logs.get(number).map(|f| RecordFile {
                file: f.file().clone(),
                path: f.path.clone(),
                file_id: f.file_id,
            })
        };
        let mut again = Vec::new();
        let report = &mut self.report;
        read_all(&mut wanted, &file, &mut |record, found| {
            if let Ok(true) = found {
                report.records += 1;
                report.live_bytes += u64::from(record.location.len);
                report.bytes += u64::from(record.location.len);
                return Ok(());
            }
            again.push((*record, found.err()));
            Ok(())
        })?;
        for (record, error) in again {
            self.read_again(engine, log, &record, error)?;
        }
        Ok(())
    }

    /// Judges a record that did not verify. It may have been moved or removed since the index was
    /// read; then its new place counts.
    fn read_again(
        &mut self,
        engine: &Engine,
        log: &Arc<LogState>,
        record: &IndexedRecord,
        error: Option<Error>,
    ) -> Result<()> {
        let found = match place_of(log, record.lsn) {
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(e),
            Ok(None) => return Ok(()),
            Ok(Some(EntryPlace::Known(location))) => Some(location),
            Ok(Some(EntryPlace::OnPage(at))) => pages::load_uncached(&engine.logs, log.number, at)
                .ok()
                .flatten()
                .and_then(|page| page.get(record.lsn)),
        };
        let context = format!("reading LSN {} of log {:?}", record.lsn, log.name());
        if found == Some(record.location) || found.is_none() {
            let e = error.unwrap_or_else(|| {
                let file = record.location.file;
                Error::corruption(
                    engine.logs.dir(),
                    0,
                    format!("physical log {file}, where the index has the record, is missing"),
                )
            });
            return self.report.note(e.context(context));
        }
        let mut moved = vec![IndexedRecord {
            location: found.expect("checked above"),
            ..*record
        }];
        let file = |number| {
            engine.logs.get(number).map(|f| RecordFile {
                file: f.file().clone(),
                path: f.path.clone(),
                file_id: f.file_id,
            })
        };
        let report = &mut self.report;
        read_all(&mut moved, &file, &mut |moved, found| {
            match found {
                Ok(true) => {
                    report.records += 1;
                    report.live_bytes += u64::from(moved.location.len);
                }
                // It was moved a second time: the collection that moved it has just read it.
                Ok(false) => {}
                Err(e) => report.note(e.context(&context))?,
            }
            Ok(())
        })
    }
}

/// Calls of a verification's caller with bytes read, and bytes that there are to read.
type Progress = Box<dyn FnMut(u64, u64) + Send>;

/// A verification of an open store that runs in the background: [`crate::LogEngine::verify`].
/// Dropping it does not end the verification.
pub struct LogVerification {
    engine: Arc<Engine>,
    shared: Arc<Shared>,
}

struct Shared {
    cancelled: AtomicBool,
    run: Mutex<Run>,
}

struct Run {
    walk: LiveWalk,
    progress: Progress,
    /// The end of the verification.
    done: Option<Result<()>>,
}

impl Shared {
    /// Takes a step. Returns false if the verification has ended.
    fn step(&self, engine: &Engine) -> bool {
        let mut run = self.run.lock();
        if run.done.is_some() {
            return false;
        }
        let stepped = match self.cancelled.load(SeqCst) {
            true => Err(Error::new(
                ErrorKind::Cancelled,
                "the verification was cancelled",
            )),
            false => run.walk.step(engine),
        };
        let (read, all) = run.walk.progress();
        (run.progress)(read, all);
        match stepped {
            Ok(true) => {}
            Ok(false) => run.done = Some(Ok(())),
            Err(e) => run.done = Some(Err(e)),
        }
        run.done.is_none()
    }
}

fn schedule(engine: &Engine, shared: Arc<Shared>) {
    // A step at a time, so that more urgent work waits for one step at most.
    engine.in_background(JobPriority::Gc, move |engine| {
        if shared.step(engine) {
            schedule(engine, shared);
        }
    });
}

impl LogVerification {
    pub(crate) fn begin(engine: &Arc<Engine>, progress: Progress) -> LogVerification {
        let shared = Arc::new(Shared {
            cancelled: AtomicBool::new(false),
            run: Mutex::new(Run {
                walk: LiveWalk::new(engine),
                progress,
                done: None,
            }),
        });
        schedule(engine, shared.clone());
        LogVerification {
            engine: engine.clone(),
            shared,
        }
    }

    /// Returns true if the verification has ended.
    pub fn is_done(&self) -> bool {
        self.shared.run.lock().done.is_some()
    }

    /// Ends the verification after its current step. [`LogVerification::wait`] then fails with
    /// `Cancelled`.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, SeqCst);
    }

    /// Waits for the end, and returns the report. The waiting thread takes part in the work.
    ///
    /// Errors: `Io` if a file cannot be read; `Closed` if the store was closed meanwhile;
    /// `Cancelled`. Damage is no error, but in the report.
    pub fn wait(self) -> Result<LogVerifyReport> {
        while self.shared.step(&self.engine) {}
        let mut run = self.shared.run.lock();
        let ended = run.done.clone().expect("the steps have ended");
        ended.map(|()| std::mem::take(&mut run.walk.report))
    }
}
