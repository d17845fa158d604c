//! Opens the database of a command, and turns its errors into failures of commands.

use crate::failure::{Failure, holder};
use crate::location::{Access, StoreLocation};
use crate::sql_args::{MakeDatabase, SqlLocation};
use crate::store::environment;
use basalt::{Env, Options};
use basalt_sql::{Database, DatabaseOptions, SqlError, SqlState};
use std::path::PathBuf;

/// Returns an environment for a command, and the directory of the database in it. With `make`, the
/// command may make the image and the database.
pub fn place(place: &StoreLocation, make: Option<MakeDatabase>) -> Result<(Env, PathBuf), Failure> {
    let access = match make {
        Some(make) => Access::Write(make.store()),
        None => Access::Read,
    };
    if place.image.is_none()
        && make.is_none()
        && let Err(rustix::io::Errno::NOENT) = rustix::fs::stat(&place.dir)
    {
        return Err(missing(place));
    }
    environment(place, access, None)
}

/// Opens a database. With `make`, a missing one is made.
pub fn open(location: &SqlLocation, make: Option<MakeDatabase>) -> Result<Database, Failure> {
    let store = location.store();
    let (env, dir) = place(&store, make)?;
    let tables = Options::default()
        .create_if_missing(make.is_some())
        .allow_nonempty_dir(make.is_some_and(|m| m.allow_nonempty_dir));
    let options = DatabaseOptions::default().tables(tables);
    Database::open(&env, dir, options).map_err(|e| failure(&store, &e))
}

/// Makes the failure of a missing database.
fn missing(place: &StoreLocation) -> Failure {
    Failure::new(format!(
        "there is no database in {place}; name another with --dir, or make one with `basalt sql {}`",
        place.flags()
    ))
}

/// Returns `true` for the error of a database that was not closed and is opened for reading.
pub fn is_unclosed(e: &SqlError) -> bool {
    // The engine has no error kind for this case.
    e.message()
        .contains("the store is passive and was not closed")
}

/// Makes the failure of a database that cannot be opened, read or closed, with the advice for its
/// kind.
pub fn failure(place: &StoreLocation, e: &SqlError) -> Failure {
    let words = sentence(e);
    // The engine reports a directory without a store in these words.
    if words.contains("no store here") {
        return missing(place);
    }
    if is_unclosed(e) {
        return Failure::new(format!(
            "the database in {place} was not closed; open it once with `basalt sql {}`, and run the command again",
            place.flags()
        ));
    }
    Failure::new(match e.state() {
        SqlState::LOCK_NOT_AVAILABLE => format!(
            "cannot open the database in {place}: {} has it open; if this is a server, connect with psql, otherwise wait for it or stop it",
            holder(e.message()).unwrap_or("another process")
        ),
        SqlState::DATA_CORRUPTED => format!(
            "the database in {place} is damaged: {words}; keep a copy, and run `basalt check {}`",
            place.flags()
        ),
        SqlState::DISK_FULL => format!(
            "{words}; make space under {}, and run it again; nothing that was committed is lost",
            place.on_disk().display()
        ),
        _ => format!("{words} (database in {place})"),
    })
}

/// Returns an error as one line: message, SQLSTATE, detail and hint.
pub fn sentence(e: &SqlError) -> String {
    e.to_string().replace('\n', " ")
}
