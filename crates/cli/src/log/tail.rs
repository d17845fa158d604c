//! `log tail`: the last records of a log, and those that follow.

use super::LogPlace;
use super::records::RecordPrinter;
use crate::escape::escape;
use crate::failure::{Failure, Outcome};
use crate::log_args::Tail;
use crate::output::note;
use crate::store::{Access, LogsLocation};
use basalt::{Bytes, Env};
use basalt_log::{Log, MAX_LSN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pause between two looks at a store that is followed. Nothing wakes the command: a reader
/// that keeps the store open keeps the process out that would append.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};
/// After this many looks at a busy store, the command says that it waits. Short commands are done
/// before.
const QUIET_LOOKS: u32 = 4;

/// Runs `basalt log tail`.
pub fn tail(place: LogPlace, args: &Tail) -> Outcome {
    let mut printer = RecordPrinter::new(args.format.format());
    let mut follower = Follower {
        place,
        log: &args.log,
        next: 0,
        last_printed: None,
        version: Vec::new(),
        on_disk: None,
    };
    follower.print_last(args.count, &mut printer)?;
    if !args.follow {
        return Ok(0);
    }
    // The loop below waits itself, for any time.
    follower.place.wait = Duration::ZERO;
    let mut busy_looks = 0;
    loop {
        if pause_or_reader_gone() {
            return Err(Failure::ReaderGone);
        }
        match follower.print_new(&mut printer) {
            Ok(()) => busy_looks = 0,
            // Another process appends. Its records are there when it closes the store.
            Err(Failure::Busy(sentence)) => {
                busy_looks += 1;
                if busy_looks == QUIET_LOOKS {
                    let sentence = sentence.trim_end_matches("; stop that process and try again");
                    note(format_args!("basalt: {sentence}; waiting until it is free"));
                }
            }
            Err(e) => return Err(e),
        }
    }
}

/// Waits for the pause. Returns true as soon as no process reads standard output any more.
fn pause_or_reader_gone() -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let gone = PollFlags::ERR | PollFlags::NVAL;
    poll(&mut fds, Some(&PAUSE)).is_ok() && fds[0].revents().intersects(gone)
}

/// A log that is followed. The store is open only while records are read.
struct Follower<'a> {
    place: LogPlace,
    log: &'a str,
    /// The LSN at which the next record may be.
    next: u64,
    /// The last record that was printed, before `next`.
    last_printed: Option<Bytes>,
    /// The content of `CURRENT` when the store was last read. Each owner writes another one.
    version: Vec<u8>,
    /// The directory of the logs on the disk, whose `CURRENT` is read without a lock: commands on
    /// keys of the same store may run. `None` for an image.
    on_disk: Option<(Env, PathBuf)>,
}

impl Follower<'_> {
    /// Prints the last records.
    fn print_last(&mut self, count: u64, printer: &mut RecordPrinter) -> Result<(), Failure> {
        let location = self.place.locate(Access::Read)?;
        if self.place.store.image.is_none() {
            self.on_disk = Some((location.env.clone(), location.path.clone()));
        }
        self.with_log(location, |follower, log| {
            let mut from = log.last().map_or(0, |last| last + 1);
            follower.next = from;
            let (limit, mut damage) = (usize::try_from(count).unwrap_or(usize::MAX), None);
            for record in log.iter_back(MAX_LSN).take(limit) {
                match record {
                    Ok((lsn, _)) => from = lsn,
                    Err(e) => damage = Some(e),
                }
            }
            follower.print_from(log, from, printer)?;
            damage.map_or(Ok(()), |e| Err(follower.place.failure(e)))
        })
    }

    /// Prints the records behind the last one that was printed, if another process had the store
    /// since.
    fn print_new(&mut self, printer: &mut RecordPrinter) -> Result<(), Failure> {
        if let Some((env, path)) = &self.on_disk
            && version(env, path).is_ok_and(|version| version == self.version)
        {
            return Ok(());
        }
        let location = self.place.locate(Access::Read)?;
        let found = version(&location.env, &location.path);
        if found.is_ok_and(|version| version == self.version) {
            return Ok(());
        }
        self.with_log(location, |follower, log| {
            let last = follower
                .next
                .checked_sub(1)
                .zip(follower.last_printed.as_ref());
            if let Some((lsn, printed)) = last
                && log.trimmed().is_none_or(|trimmed| lsn > trimmed)
                && log.read(lsn).ok().flatten().as_ref() != Some(printed)
            {
                let end = match log.last() {
                    Some(last) => format!("now ends at LSN {last}"),
                    None => "is now empty".to_string(),
                };
                note(format_args!(
                    "basalt: printed records of {} were removed or replaced; the log {end}",
                    escape(follower.log.as_bytes())
                ));
                follower.next = follower.next.min(log.last().map_or(0, |last| last + 1));
                // The next look compares with what the log has now: the loss was reported.
                let before = follower.next.checked_sub(1);
                follower.last_printed = before.and_then(|lsn| log.read(lsn).ok().flatten());
            }
            follower.print_from(log, follower.next, printer)
        })
    }

    fn print_from(
        &mut self,
        log: &Log,
        from: u64,
        printer: &mut RecordPrinter,
    ) -> Result<(), Failure> {
        for record in log.iter(from) {
            match record {
                Ok((lsn, data)) => {
                    printer.print(lsn, &data)?;
                    self.next = self.next.max(lsn + 1);
                    self.last_printed = Some(data);
                }
                Err(e) => {
                    printer.flush()?;
                    return Err(self.place.failure(e));
                }
            }
        }
        printer.flush()
    }

    /// Opens the store for reading, and closes it when `read` has returned.
    fn with_log(
        &mut self,
        location: LogsLocation,
        read: impl FnOnce(&mut Self, &Log) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (env, path) = (location.env.clone(), location.path.clone());
        let engine = self.place.open_at(location, Access::Read)?;
        // An owner that comes between the two reads leaves another version, which is noticed next.
        self.version = version(&env, &path).map_err(|e| self.place.failure(e))?;
        let log = self.place.log(&engine, self.log)?;
        let done = read(self, &log);
        drop(log);
        engine.close().map_err(|e| self.place.failure(e))?;
        done
    }
}

/// Returns the content of the file that every owner of a store writes.
fn version(env: &Env, path: &Path) -> basalt::Result<Vec<u8>> {
    let file = env.fs().open(&path.join("CURRENT"))?;
    let len = usize::try_from(file.len()).unwrap_or(usize::MAX).min(4096);
    Ok(file.read(0, len)?.to_vec())
}
