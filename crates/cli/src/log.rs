//! `log`: the logs of a log store: what there is, records in and out, trims, check and repair.

mod change;
mod check;
mod records;
mod show;
mod tail;

use crate::escape::escape;
use crate::failure::{Failure, Outcome};
use crate::location::{Make, StoreLocation, in_image};
use crate::log_args::{Action, Log};
use crate::store::{Access, environment_for_logs, kind_of_store};
use basalt::{Env, ErrorKind};
use basalt_log::{Log as StoredLog, LogEngine, LogEngineOptions};
use rustix::fs::FileType;
use std::path::{Path, PathBuf};

/// Runs `basalt log`.
pub fn log(args: Log) -> Outcome {
    match args.action {
        Action::Ls(a) => show::list(&LogPlace::new(&a.path), a.json),
        Action::Stat(a) => show::stat(&LogPlace::new(&a.path), a.log.as_deref(), a.json),
        Action::Dump(a) => show::dump(&a),
        Action::Append(a) => change::append(&a),
        Action::Tail(a) => tail::tail(&a),
        Action::Trim(a) => change::trim(&a),
        Action::Check(a) => check::check(&LogPlace::new(&a.path), a.json),
        Action::Repair(a) => check::repair(&LogPlace::new(&a.path), a.yes, a.json),
    }
}

/// The location of a log store, as the command line names it.
struct LogPlace {
    store: StoreLocation,
    /// The argument, for advice.
    argument: String,
}

impl LogPlace {
    /// Returns the location of a store whose image may have to be made.
    fn making(path: &Path, make: Make) -> Result<LogPlace, Failure> {
        let mut place = LogPlace::new(path);
        if make.size.is_some() && place.store.image.is_none() {
            let (image, dir) = place.colon().ok_or_else(|| {
                Failure::new(format!(
                    "--size makes an image; name the store in it, as {}:logs",
                    path.display()
                ))
            })?;
            (place.store.image, place.store.dir) = (Some(image.into()), dir.into());
        }
        Ok(place)
    }

    fn new(path: &Path) -> LogPlace {
        let store = match in_image(path) {
            Some((image, dir)) => StoreLocation {
                dir,
                image: Some(image),
            },
            None => StoreLocation {
                dir: path.to_path_buf(),
                image: None,
            },
        };
        LogPlace {
            store,
            argument: path.display().to_string(),
        }
    }

    /// Splits the argument at its first colon.
    fn colon(&self) -> Option<(&str, &str)> {
        self.argument
            .split_once(':')
            .filter(|(image, _)| !image.is_empty())
    }

    /// Makes the failure of an engine error, with the advice for its kind.
    fn failure(&self, e: basalt::Error) -> Failure {
        Failure::log_store(&self.store, &self.argument, e)
    }

    fn environment(&self, access: Access) -> Result<(Env, PathBuf), Failure> {
        let dir = &self.store.dir;
        let found = rustix::fs::stat(dir).map(|s| FileType::from_raw_mode(s.st_mode));
        match (&self.store.image, found) {
            (None, Err(rustix::io::Errno::NOENT)) if access.make().is_none() => {
                return Err(Failure::new(format!(
                    "there is no log store in {0}; name another, or make one with `basalt log append {0} LOG`",
                    self.argument
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
        environment_for_logs(&self.store, &self.argument, access)
    }

    /// Opens the store.
    fn open(&self, access: Access) -> Result<LogEngine, Failure> {
        let (env, path) = self.environment(access)?;
        self.open_in(&env, &path, access)
    }

    /// Opens the store in an environment of [`LogPlace::environment`].
    fn open_in(&self, env: &Env, path: &Path, access: Access) -> Result<LogEngine, Failure> {
        self.check_directory(env, path, access)?;
        let options = LogEngineOptions::default().create_if_missing(access.make().is_some());
        let opened = match access {
            Access::Read => LogEngine::open_read_only(env, path, options),
            Access::Write(_) | Access::Remove => LogEngine::open(env, path, options),
        };
        opened.map_err(|e| self.failure(e))
    }

    /// Refuses to make a store among other files.
    fn check_directory(&self, env: &Env, path: &Path, access: Access) -> Result<(), Failure> {
        let entries = match env.fs().list(path) {
            Ok(entries) => entries,
            Err(e) if e.is_not_found() => return Ok(()),
            Err(e) => return Err(self.failure(e)),
        };
        let kind = kind_of_store(&entries);
        let foreign = |e: &basalt::fs::DirEntry| e.name != "lost+found" && e.name != "LOCK";
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

    /// Returns a log.
    fn log(&self, engine: &LogEngine, name: &str) -> Result<StoredLog, Failure> {
        engine.log(name).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Failure::new(format!(
                "there is no log {} in {}; `basalt log ls {}` lists them",
                escape(name.as_bytes()),
                self.store,
                self.argument
            )),
            _ => self.failure(e),
        })
    }
}
