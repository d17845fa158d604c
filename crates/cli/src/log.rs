//! `log`: the logs of a log store: what there is, records in and out, trims, check and repair.

mod append;
mod check;
mod records;
mod remove;
mod rename;
mod show;
mod tail;

use crate::escape::{escape, for_shell};
use crate::failure::{Failure, Outcome};
use crate::location::{Make, StoreLocation};
use crate::log_args::{Action, Log};
use crate::output::note;
use crate::store::{
    Access, CURRENT, LogsLocation, environment_for_logs, kind_of_store, store_above,
};
use basalt::env::Clock;
use basalt::{Env, ErrorKind};
use basalt_log::{Log as StoredLog, LogEngine, LogEngineOptions};
use basalt_server::layout::STREAM_LOG_PREFIX;
use rustix::fs::FileType;
use std::cell::Cell;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

/// Runs `basalt log`.
pub fn log(args: Log) -> Outcome {
    let wait = Duration::from_secs(args.wait);
    let place = |path: &Path| LogPlace::new(path, wait);
    match args.action {
        Action::Ls(a) => show::list(&place(&a.path), a.json),
        Action::Stat(a) => show::stat(&place(&a.path), a.log.as_deref(), a.json),
        Action::Dump(a) => show::dump(&place(&a.path), &a),
        Action::Append(a) => append::append(place(&a.path).making(a.make())?, &a),
        Action::Tail(a) => tail::tail(place(&a.path), &a),
        Action::Trim(a) => remove::trim(&place(&a.removal.path), &a),
        Action::Truncate(a) => remove::truncate(&place(&a.removal.path), &a),
        Action::Rm(a) => remove::rm(&place(&a.removal.path), &a),
        Action::Rename(a) => rename::rename(&place(&a.path), &a),
        Action::Check(a) => check::check(&place(&a.path), a.json),
        Action::Repair(a) => check::repair(&place(&a.path), a.yes, a.json),
    }
}

/// The location of a log store, as the command line names it.
struct LogPlace {
    store: StoreLocation,
    /// The argument, for advice.
    argument: String,
    /// The longest wait, in all, for processes that have the store open.
    wait: Duration,
    /// The time that the command has waited.
    waited: Cell<Duration>,
    /// True if the command has said that it waits.
    announced: Cell<bool>,
}

/// The open logs of a store, and the lock of the store that has them beside its tables.
struct OpenLogs {
    engine: LogEngine,
    _location: LogsLocation,
}

impl Deref for OpenLogs {
    type Target = LogEngine;

    fn deref(&self) -> &LogEngine {
        &self.engine
    }
}

/// The first pause of a command that waits for a store. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// After this wait, a command names the process that has the store open.
const QUIET_WAIT: Duration = Duration::from_millis(500);

impl LogPlace {
    /// Returns the location of a store whose image may have to be made.
    fn making(mut self, make: Make) -> Result<LogPlace, Failure> {
        if make.size.is_some() && self.store.image.is_none() {
            let (image, dir) = self.colon().ok_or_else(|| {
                Failure::new(format!(
                    "--size makes an image; name the store in it, as {}:logs",
                    self.argument
                ))
            })?;
            (self.store.image, self.store.dir) = (Some(image.into()), dir.into());
        }
        Ok(self)
    }

    fn new(path: &Path, wait: Duration) -> LogPlace {
        LogPlace {
            store: StoreLocation::of_argument(path),
            argument: path.display().to_string(),
            wait,
            waited: Cell::new(Duration::ZERO),
            announced: Cell::new(false),
        }
    }

    /// Repeats `attempt` while another process has the store open, until the command has waited for
    /// as long as it may in all.
    fn retry_while_busy<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let clock = Clock::system();
        let before = self.waited.get();
        let (began, mut pause) = (clock.now(), FIRST_PAUSE);
        loop {
            let busy = match attempt() {
                Err(Failure::Busy(sentence)) => sentence,
                done => return done,
            };
            let waited = before + (clock.now() - began);
            self.waited.set(waited);
            if waited >= self.wait {
                return Err(Failure::Busy(match self.wait.is_zero() {
                    true => format!("{busy}; stop that process and try again"),
                    false => format!(
                        "{busy}; waited {} s, and --wait SECONDS waits longer",
                        self.wait.as_secs()
                    ),
                }));
            }
            if waited >= QUIET_WAIT && !self.announced.replace(true) {
                note(format_args!("basalt: {busy}; waiting until it is free"));
            }
            clock.sleep(pause.min(self.wait - waited));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Splits the argument at its first colon.
    fn colon(&self) -> Option<(&str, &str)> {
        self.argument
            .split_once(':')
            .filter(|(image, _)| !image.is_empty())
    }

    /// Returns the argument quoted for a shell, for a command that the user can run.
    fn in_shell(&self) -> String {
        for_shell(self.argument.as_bytes())
    }

    /// Makes the failure of an engine error, with the advice for its kind.
    fn failure(&self, e: basalt::Error) -> Failure {
        Failure::log_store(&self.store, &self.in_shell(), e)
    }

    /// Makes the failure of an append of records. `log` names a log of the store that can be
    /// trimmed, in the form for messages, if there is one.
    fn append_failure(&self, log: Option<&str>, e: basalt::Error) -> Failure {
        match (log, e.kind()) {
            (Some(log), ErrorKind::NoSpace) => Failure::new(format!(
                "{e}; remove records with `basalt log trim {} {log} --up-to LSN`, or make space under {}, and run it again; nothing that was acknowledged is lost",
                self.in_shell(),
                self.store.on_disk().display()
            )),
            _ => self.failure(e),
        }
    }

    /// Returns where the logs are, and locks the store that has them beside its tables.
    fn locate(&self, access: Access) -> Result<LogsLocation, Failure> {
        let dir = &self.store.dir;
        let found = rustix::fs::stat(dir).map(|s| FileType::from_raw_mode(s.st_mode));
        match (&self.store.image, found) {
            (None, Err(rustix::io::Errno::NOENT))
                if access.make().is_none() && !self.is_in_store() =>
            {
                return Err(Failure::new(format!(
                    "there is no log store in {}; name another, or make one with `basalt log append {} LOG`",
                    self.argument,
                    self.in_shell()
                )));
            }
            // A new directory with a colon in its name is more likely a misspelt image.
            (None, Err(rustix::io::Errno::NOENT)) if let Some((image, _)) = self.colon() => {
                return Err(Failure::new(format!(
                    "there is no image {image}; --size 20G makes one of 20 GiB; for a directory with a colon in its name, make the directory first"
                )));
            }
            (None, Ok(kind)) if kind != FileType::Directory => {
                return Err(Failure::new(format!(
                    "{0} is not a directory; a store inside of an image is named {0}:PATH",
                    self.argument
                )));
            }
            _ => {}
        }
        self.retry_while_busy(|| environment_for_logs(&self.store, &self.in_shell(), access))
    }

    /// Returns true if the path names the directory of logs in the directory of a store.
    fn is_in_store(&self) -> bool {
        store_above(&self.store).is_some_and(|s| rustix::fs::stat(s.dir.join(CURRENT)).is_ok())
    }

    /// Opens the store.
    fn open(&self, access: Access) -> Result<OpenLogs, Failure> {
        self.open_at(self.locate(access)?, access)
    }

    /// Opens the store at a location of [`LogPlace::locate`].
    fn open_at(&self, location: LogsLocation, access: Access) -> Result<OpenLogs, Failure> {
        if let (Some(e), Some(keys)) = (&location.missing, &location.keys) {
            return Err(Failure::store(keys, e.clone()));
        }
        let (env, path) = (&location.env, &location.path);
        self.check_directory(env, path, access)?;
        let options = LogEngineOptions::default().create_if_missing(access.make().is_some());
        let engine = self.retry_while_busy(|| {
            let opened = match access {
                Access::Read => LogEngine::open_read_only(env, path, options.clone()),
                Access::Write(_) | Access::Remove => LogEngine::open(env, path, options.clone()),
            };
            opened.map_err(|e| self.failure(e))
        })?;
        Ok(OpenLogs {
            engine,
            _location: location,
        })
    }

    /// Refuses to make a store among other files.
    fn check_directory(&self, env: &Env, path: &Path, access: Access) -> Result<(), Failure> {
        let entries = match env.fs().list(path) {
            Ok(entries) => entries,
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(self.failure(e)),
        };
        let kind = kind_of_store(&entries);
        // A creation that failed, as on a full disk, may have left a manifest.
        let is_left = |name: &str| {
            ["LOCK", "CURRENT.tmp", "lost+found"].contains(&name) || name.starts_with("MANIFEST-")
        };
        let foreign = |e: &basalt::fs::DirEntry| !is_left(&e.name);
        let present = kind.is_some() || entries.iter().any(|e| e.name == "CURRENT");
        match access.make() {
            Some(make) if !present && !make.allow_nonempty_dir => {
                match entries.iter().find(|e| foreign(e)) {
                    None => Ok(()),
                    Some(entry) => Err(Failure::new(format!(
                        "{} holds other files, such as {}; name an empty or missing directory, or make the store among them with --allow-nonempty-dir",
                        self.store,
                        escape(entry.name.as_bytes())
                    ))),
                }
            }
            _ => Ok(()),
        }
    }

    /// Refuses to change a log that the server writes.
    fn refuse_stream(&self, log: &str) -> Result<(), Failure> {
        match log.starts_with(STREAM_LOG_PREFIX) {
            false => Ok(()),
            true => Err(Failure::new(format!(
                "the log {} holds a stream of Redis clients in the server's encoding; \
                 change the stream by XADD, XTRIM, XDEL and DEL",
                escape(log.as_bytes())
            ))),
        }
    }

    /// Returns a log.
    fn log(&self, engine: &LogEngine, name: &str) -> Result<StoredLog, Failure> {
        engine.log(name).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Failure::new(format!(
                "there is no log {} in {}; `basalt log ls {}` lists them",
                escape(name.as_bytes()),
                self.store,
                self.in_shell()
            )),
            _ => self.failure(e),
        })
    }
}
