//! `export`: writes entries of a store in the formats that `load` reads.

use crate::args;
use crate::directory::{DirectoryWriter, Refused, is_inside};
use crate::escape::brief;
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::output::note;
use crate::progress::{self, count, count_entries};
use crate::store::{Access, Cursor, Store, Value, argument};
use crate::text_entry::Format;
use indicatif::ProgressBar;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Number of refused keys that are named.
const NAMED: u64 = 10;

/// Counts of an export.
#[derive(Default)]
struct Counts {
    entries: u64,
    bytes: u64,
    refused: u64,
    others: u64,
    expiries: u64,
}

/// Runs `basalt export`.
pub fn export(args: args::Export) -> Outcome {
    let prefix = argument(args.prefix.as_deref().unwrap_or_default(), false)?;
    let store = Store::open(&args.which, Access::Read)?;
    let clock = store.db().env().clock().clone();
    let start = clock.now();
    let bar = progress::entries("exporting", expected_entries(&store, &prefix));
    let mut counts = Counts::default();
    let cursor = store.cursor(&prefix, None, None, false, false)?;
    match &args.files {
        Some(dir) => to_directory(
            cursor,
            dir,
            args.overwrite,
            &store,
            prefix.len(),
            &bar,
            &mut counts,
        )?,
        None => to_lines(cursor, &args, &bar, &mut counts)?,
    }
    bar.finish_and_clear();
    store.close()?;
    let took = clock.now().saturating_sub(start);
    if counts.others > 0 {
        note(format_args!(
            "basalt: {} not exported; a Redis client reads such keys",
            count(
                counts.others,
                "key that holds no string is",
                "keys that hold no strings are"
            )
        ));
    }
    if counts.expiries > 0 && args.files.is_some() {
        note(format_args!(
            "basalt: {} an expiry, which a file cannot keep; --format jsonl keeps it",
            count(counts.expiries, "entry has", "entries have")
        ));
    }
    note(format_args!(
        "exported {}, {}",
        count_entries(counts.entries),
        progress::rate(counts.bytes, took)
    ));
    if counts.entries + counts.others + counts.refused == 0 && !prefix.is_empty() {
        note(format_args!(
            "basalt: no key begins with {}",
            brief(&prefix)
        ));
    }
    if counts.refused > 0 {
        note(format_args!(
            "basalt: {} not exported; `basalt export --format jsonl` exports any key",
            count(
                counts.refused,
                "key cannot be a file name and was",
                "keys cannot be file names and were"
            )
        ));
        return Ok(EXIT_NO);
    }
    Ok(0)
}

/// Returns the approximate number of entries for the progress bar, or `None` if only a part of them
/// is exported.
fn expected_entries(store: &Store, prefix: &[u8]) -> Option<u64> {
    if !prefix.is_empty() || !progress::watched() {
        return None;
    }
    let stats = store.db().stats();
    let entries = stats
        .families
        .iter()
        .flat_map(|f| &f.levels)
        .map(|l| l.entries.saturating_sub(l.deletes))
        .sum();
    // Entries in memtables are not counted. With such entries, any total would be wrong.
    (stats.memtable_bytes == 0 && entries > 0).then_some(entries)
}

/// Key, value and expiry of a string.
type StringEntry = (Vec<u8>, basalt::Bytes, Option<u64>);

/// Returns the next entry that is a string.
fn next_string(
    cursor: &mut Cursor<'_>,
    counts: &mut Counts,
) -> Result<Option<StringEntry>, Failure> {
    loop {
        match cursor.next_entry()? {
            None => return Ok(None),
            Some((key, Value::Bytes(value, expiry))) => {
                counts.entries += 1;
                counts.bytes += (key.len() + value.len()) as u64;
                counts.expiries += u64::from(expiry.is_some());
                return Ok(Some((key, value, expiry)));
            }
            Some((_, Value::Absent | Value::Other(_))) => counts.others += 1,
        }
    }
}

fn to_directory(
    mut cursor: Cursor<'_>,
    dir: &Path,
    overwrite: bool,
    store: &Store,
    prefix_len: usize,
    bar: &ProgressBar,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let mut directory = DirectoryWriter::new(dir, overwrite)
        .map_err(|e| Failure::os("make the directory", dir, e))?
        .ok_or_else(|| {
            Failure::new(format!(
                "{} is not empty; name a new directory, or add --overwrite to replace files with the names of keys",
                dir.display()
            ))
        })?;
    let place = store.place();
    if place.image.is_none() && (is_inside(dir, &place.dir) || is_inside(&place.dir, dir)) {
        return Err(Failure::new(format!(
            "{} and the store in {place} lie one inside the other; export to another directory",
            dir.display(),
        )));
    }
    while let Some((key, value, _)) = next_string(&mut cursor, counts)? {
        match directory.write(&key[prefix_len..], &value) {
            Ok(()) => {}
            Err(Refused::Key(why)) => {
                counts.entries -= 1;
                counts.bytes -= (key.len() + value.len()) as u64;
                counts.refused += 1;
                if counts.refused <= NAMED {
                    bar.suspend(|| {
                        note(format_args!("basalt: not exported: {}: {why}", brief(&key)))
                    });
                }
            }
            Err(Refused::Directory(e)) => {
                return Err(Failure::new(format!(
                    "cannot write {} under {}: {e}; {} files are written",
                    brief(&key),
                    dir.display(),
                    counts.entries - 1
                )));
            }
        }
        bar.inc(1);
    }
    directory
        .sync()
        .map_err(|e| Failure::os("make durable what was written under", dir, e))
}

fn to_lines(
    mut cursor: Cursor<'_>,
    args: &args::Export,
    bar: &ProgressBar,
    counts: &mut Counts,
) -> Result<(), Failure> {
    let file = args.output.as_deref().filter(|f| f.as_os_str() != "-");
    let format = args
        .format
        .or_else(|| file.and_then(Format::of_name))
        .unwrap_or(Format::Jsonl);
    let mut output = match file {
        Some(file) if !args.overwrite && rustix::fs::lstat(file).is_ok() => {
            return Err(Failure::new(format!(
                "{} is there already; name another file, or replace it with --overwrite",
                file.display()
            )));
        }
        Some(file) => Output::create(file)?,
        None => Output::Stdout(std::io::stdout().lock()),
    };
    let mut text = String::new();
    while let Some((key, value, expiry)) = next_string(&mut cursor, counts)? {
        format.print(&key, Some(&value), expiry, &mut text);
        if text.len() >= 64 << 10 {
            output.write(text.as_bytes())?;
            if text.capacity() > 4 << 20 {
                text = String::new();
            }
            text.clear();
        }
        bar.inc(1);
    }
    output.write(text.as_bytes())?;
    output.finish()
}

/// The target of lines. A file gets its name when it is complete and durable.
enum Output {
    Stdout(std::io::StdoutLock<'static>),
    File {
        file: File,
        temporary: PathBuf,
        name: PathBuf,
    },
}

impl Output {
    fn create(name: &Path) -> Result<Output, Failure> {
        let mut temporary = name.as_os_str().to_owned();
        temporary.push(format!(
            ".partial-{}",
            rustix::process::getpid().as_raw_nonzero()
        ));
        let temporary = PathBuf::from(temporary);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o666))
            .map_err(|e| Failure::os("make", name, e))?;
        Ok(Output::File {
            file: File::from(file),
            temporary,
            name: name.to_path_buf(),
        })
    }

    fn write(&mut self, text: &[u8]) -> Result<(), Failure> {
        match self {
            Output::Stdout(out) => out
                .write_all(text)
                .map_err(|e| Failure::output("standard output", e)),
            Output::File { file, name, .. } => file
                .write_all(text)
                .map_err(|e| Failure::output(&name.display().to_string(), e)),
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        match &mut self {
            Output::Stdout(out) => out
                .flush()
                .map_err(|e| Failure::output("standard output", e)),
            Output::File {
                file,
                temporary,
                name,
            } => {
                file.sync_all()
                    .map_err(|e| Failure::output(&name.display().to_string(), e))?;
                rustix::fs::rename(&*temporary, &*name)
                    .map_err(|e| Failure::os("name", name, e))?;
                *temporary = PathBuf::new();
                Ok(())
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // A failed export leaves no partial file.
        if let Output::File { temporary, .. } = self
            && !temporary.as_os_str().is_empty()
        {
            let _ = rustix::fs::unlink(&*temporary);
        }
    }
}
