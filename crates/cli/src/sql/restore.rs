//! `sql restore`: restores a database to a transaction or a time, from a checkpoint and a binlog.

use super::database::{is_unclosed, sentence};
use super::time::{format_ms, parse_ms};
use crate::failure::{Failure, Outcome, holder};
use crate::location::{Access, Make, StoreLocation};
use crate::output::print_done;
use crate::progress::{DelayedBar, count};
use crate::sql_args::Restore;
use crate::store::environment;
use basalt_sql::{Database, DatabaseOptions, RestoreOptions, RestoreTarget, SqlError, SqlState};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Returns the absolute path of an argument. A missing directory is an error.
fn existing(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    match rustix::fs::stat(path) {
        Ok(_) => std::path::absolute(path).map_err(|e| Failure::os("find", path, e)),
        Err(rustix::io::Errno::NOENT) => Err(Failure::new(format!(
            "{flag} {}: there is no such directory",
            path.display()
        ))),
        Err(e) => Err(Failure::os("look at", path, e)),
    }
}

/// Makes the failure of a restore into `place`.
fn failure(args: &Restore, place: &StoreLocation, e: &SqlError) -> Failure {
    let binlog = args.binlog.display();
    if is_unclosed(e) {
        return Failure::new(format!(
            "cannot restore: --binlog {binlog}: the database was not closed; open it once with `basalt sql --dir {binlog}`, and run the command again"
        ));
    }
    Failure::new(match e.state() {
        // The target is new and the checkpoint is copied, so the lock is that of the binlog.
        SqlState::LOCK_NOT_AVAILABLE => format!(
            "cannot restore: --binlog {binlog}: {} has the database open; wait for it or stop it",
            holder(e.message()).unwrap_or("another process")
        ),
        // The library's message names the target or the directory.
        SqlState::INVALID_PARAMETER_VALUE | SqlState::UNDEFINED_OBJECT => sentence(e),
        _ => format!("cannot restore into {place}: {}", sentence(e)),
    })
}

/// Runs `basalt sql restore`.
pub fn restore(args: &Restore) -> Outcome {
    let target = match (args.to_tsn, &args.to_time) {
        (Some(tsn), _) => RestoreTarget::Tsn(tsn),
        (None, Some(text)) => RestoreTarget::TimeMs(parse_ms(text).ok_or_else(|| {
            Failure::new(format!(
                "--to-time {text} is not a date with a time and a zone, such as 2025-01-02T03:04:05Z"
            ))
        })?),
        (None, None) => return Err(Failure::new("restore needs --to-tsn or --to-time")),
    };
    let checkpoint = existing("--checkpoint", &args.checkpoint)?;
    let binlog = existing("--binlog", &args.binlog)?;
    let place = StoreLocation {
        dir: args.into.clone(),
        image: None,
    };
    let make = Make {
        allow_nonempty_dir: false,
        size: None,
        sparse: false,
        engine: None,
    };
    let (env, into) = environment(&place, Access::Write(make), None)?;
    let is_used = env
        .fs()
        .list(&into)
        .is_ok_and(|entries| !entries.is_empty());
    if is_used {
        return Err(Failure::new(format!(
            "--into {place} holds files; name a missing or empty directory"
        )));
    }
    let mut bar = DelayedBar::new("restoring");
    let options = RestoreOptions {
        checkpoint,
        binlog,
        target,
        into,
    };
    let restored = Database::restore(
        &env,
        &options,
        DatabaseOptions::default(),
        &mut |done, of| {
            bar.at(done, of);
        },
    );
    bar.end();
    let restored = restored.map_err(|e| failure(args, &place, &e))?;
    let time = restored.commit_ms.map(format_ms);
    let text = match args.json {
        true => {
            let report = json!({
                "into": place.directory(), "tsn": restored.tsn, "commit_time": time,
                "records": restored.transactions,
            });
            format!("{report:#}\n")
        }
        false => format!(
            "{place}: {} of the binlog applied, the last is {}{}\n",
            count(restored.transactions, "transaction", "transactions"),
            restored.tsn,
            time.map_or(String::new(), |time| format!(" of {time}"))
        ),
    };
    print_done(&text, "the database was restored")?;
    Ok(0)
}
