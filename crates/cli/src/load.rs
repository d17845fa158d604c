//! `load`: writes many entries into the store, from lines of text or from a directory.
//!
//! Files of a directory come in the order of their keys: they go into tables that are prepared and
//! added to the store (`load/directory.rs`). Lines come in any order. Their entries form batches of
//! about a mebibyte. A batch is submitted and waited for later, so that the next one is read while
//! the engine writes. Batches are not synced one by one. One sync at the end makes all of them
//! durable, and only then the command reports success.

mod directory;

use crate::args;
use crate::directory::{DirectoryWalk, LeftOut, open_named};
use crate::failure::{Failure, Outcome};
use crate::output::note;
use crate::progress::{self, count_entries};
use crate::store::{Access, Limits, Store, argument};
use crate::text_entry::{Format, KvRecord, Line, Lines, MAX_LINE};
use basalt::{TableWriter, Ticket, WriteBatch, WriteOptions};
use indicatif::ProgressBar;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Bytes at which a batch is submitted.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of submitted batches in flight. A larger batch is submitted alone.
const IN_FLIGHT_BYTES: usize = 16 << 20;
/// Number of left-out lines or files that are named.
const NAMED: u64 = 10;

/// Runs `basalt load`.
pub fn load(args: args::Load) -> Outcome {
    let prefix = argument(args.prefix.as_deref().unwrap_or_default(), false)?;
    // Wrong arguments are reported before a store is made.
    let source = match (&args.files, &args.input) {
        (Some(dir), _) => {
            DirectoryWalk::new(dir, args.follow_symlinks, None)
                .map_err(|e| Failure::os("read the directory", dir, e))?;
            LoadSource::Directory(dir)
        }
        (None, Some(file)) if file.as_os_str() != "-" => {
            let format = args.format.or_else(|| Format::of_name(file));
            if format.is_none()
                && file
                    .extension()
                    .is_some_and(|e| e.eq_ignore_ascii_case("csv"))
            {
                return Err(Failure::new(format!(
                    "{} looks like comma-separated text, which load does not read; turn it into JSON lines or tab-separated text, or say with --format which of them it is",
                    file.display()
                )));
            }
            let input = open_named(file).map_err(|e| Failure::os("open", file, e))?;
            let len = input.metadata().map_or(0, |m| m.len());
            let input = Box::new(BufReader::with_capacity(256 << 10, input));
            LoadSource::Lines(
                file.display().to_string(),
                input,
                format.unwrap_or(Format::Jsonl),
                (len > 0).then_some(len),
            )
        }
        _ => LoadSource::Lines(
            "standard input".into(),
            Box::new(BufReader::with_capacity(256 << 10, std::io::stdin().lock())),
            args.format.unwrap_or(Format::Jsonl),
            None,
        ),
    };
    let store = Store::open_within(&args.which, Access::Write(args.make), Some(&args.budget))?;
    let clock = store.db().env().clock().clone();
    let start = clock.now();
    let mut load = Load {
        store: &store,
        limits: Limits::of(&args.which),
        prefix,
        skip_bad: args.skip_bad,
        batch: WriteBatch::new(),
        table: None,
        prepared: (0, 0),
        in_flight: VecDeque::new(),
        in_flight_bytes: 0,
        entries: 0,
        bytes: 0,
        skipped: 0,
        bar: ProgressBar::hidden(),
    };
    let (ended, left_out) = match source {
        LoadSource::Lines(name, input, format, len) => {
            load.bar = progress::bytes("loading", len);
            (load.lines(&name, input, format), LeftOut::default())
        }
        LoadSource::Directory(dir) => load.directory(dir, args.follow_symlinks),
    };
    // Entries that were stored before an error stay. They are made durable, so that the message can
    // say so.
    let finished = load.finish();
    let (entries, bytes, skipped) = (load.entries, load.bytes, load.skipped);
    load.bar.finish_and_clear();
    drop(load);
    let took = clock.now().saturating_sub(start);
    let finished = finished.and_then(|()| store.close());
    finished?;
    if let Err(Failure::Message(sentence, code)) = ended {
        return Err(Failure::Message(
            match entries {
                1 => format!("{sentence}; the 1 entry before it is in the store and durable"),
                n => format!("{sentence}; the {n} entries before it are in the store and durable"),
            },
            code,
        ));
    }
    ended?;
    report_left_out(&left_out);
    if skipped > 0 {
        let were = if skipped == 1 { "was" } else { "were" };
        note(format_args!(
            "basalt: {} could not be stored and {were} left out (--skip-bad)",
            count_entries(skipped)
        ));
    }
    if entries == 0 {
        note(format_args!("loaded nothing: there was no entry to store"));
        return Ok(0);
    }
    note(format_args!(
        "loaded {}, {}; {} durable",
        count_entries(entries),
        progress::rate(bytes, took),
        match entries {
            1 => "it is".to_string(),
            n => format!("all {n} are"),
        }
    ));
    Ok(0)
}

enum LoadSource<'a> {
    Lines(String, Box<dyn BufRead + 'a>, Format, Option<u64>),
    Directory(&'a Path),
}

struct Load<'a> {
    store: &'a Store,
    limits: Limits,
    prefix: Vec<u8>,
    skip_bad: bool,
    batch: WriteBatch,
    /// The table that is being prepared, with its entries and bytes. They count when they are in
    /// the store.
    table: Option<TableWriter>,
    prepared: (u64, u64),
    in_flight: VecDeque<(Ticket, usize)>,
    in_flight_bytes: usize,
    entries: u64,
    bytes: u64,
    skipped: u64,
    bar: ProgressBar,
}

impl Load<'_> {
    fn lines(
        &mut self,
        name: &str,
        input: Box<dyn BufRead + '_>,
        format: Format,
    ) -> Result<(), Failure> {
        let mut lines = Lines::new(input, MAX_LINE);
        loop {
            let number = lines.number() + 1;
            let (parsed, used) = match lines.next_line() {
                Err(e) => return Err(Failure::os("read", Path::new(name), e)),
                Ok(None) => return Ok(()),
                Ok(Some(Line::TooLong(used))) => (
                    Err(format!(
                        "the line has {used} bytes, at most {MAX_LINE} are read; write a large value as value_b64"
                    )),
                    used,
                ),
                Ok(Some(Line::Text(text, used))) => {
                    if text.is_empty() || (text == b"\r" && format == Format::Jsonl) {
                        self.bar.inc(used);
                        continue;
                    }
                    (format.parse(text), used)
                }
            };
            self.bar.inc(used);
            let what = || format!("{name}, line {number}");
            match parsed {
                Err(why) => self.bad(format!("{}: {why}", what()))?,
                Ok(record) => self.add(record, what)?,
            }
        }
    }

    /// Adds an entry. `name` returns its origin for messages.
    fn add(&mut self, mut record: KvRecord, name: impl Fn() -> String) -> Result<(), Failure> {
        if !self.prefix.is_empty() {
            record.key.splice(..0, self.prefix.iter().copied());
        }
        if let Err(why) = self
            .limits
            .check(&record.key, record.value.len() as u64, &name)
        {
            return self.bad(why);
        }
        if let Err(e) = self.store.put(&mut self.batch, &record) {
            return self.bad(format!("{}: {e}", name()));
        }
        self.entries += 1;
        self.bytes += (record.key.len() + record.value.len()) as u64;
        drop(record);
        if self.batch.raw_bytes() >= BATCH_BYTES {
            self.submit()?;
        }
        Ok(())
    }

    /// Handles an entry that cannot be stored: the load ends, or leaves it out.
    fn bad(&mut self, why: String) -> Result<(), Failure> {
        if !self.skip_bad {
            return Err(Failure::new(format!(
                "{why}; correct it, or leave such entries out with --skip-bad"
            )));
        }
        self.skipped += 1;
        if self.skipped <= NAMED {
            self.bar
                .suspend(|| note(format_args!("basalt: left out: {why}")));
        } else if self.skipped == NAMED + 1 {
            self.bar.suspend(|| {
                note(format_args!(
                    "basalt: left out: and more, counted at the end"
                ))
            });
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        // These are bytes of memory: a batch holds its compressed values.
        let bytes = batch.raw_bytes();
        while self.in_flight_bytes > 0 && self.in_flight_bytes + bytes > IN_FLIGHT_BYTES {
            self.wait_for_oldest()?;
        }
        let ticket = self.store.db().submit(batch, &WriteOptions::UNSYNCED);
        self.in_flight.push_back((ticket, bytes));
        self.in_flight_bytes += bytes;
        Ok(())
    }

    fn wait_for_oldest(&mut self) -> Result<(), Failure> {
        if let Some((ticket, bytes)) = self.in_flight.pop_front() {
            self.in_flight_bytes -= bytes;
            ticket.wait().map_err(|e| self.store.failure(e))?;
        }
        Ok(())
    }

    /// Submits the last batch, waits for all batches and makes them durable.
    fn finish(&mut self) -> Result<(), Failure> {
        if !self.batch.is_empty() {
            self.submit()?;
        }
        while !self.in_flight.is_empty() {
            self.wait_for_oldest()?;
        }
        self.add_table()?;
        self.store.db().sync().map_err(|e| self.store.failure(e))
    }
}

fn report_left_out(left_out: &LeftOut) {
    let note = |n: u64, one: &str, many: &str, advice: &str| {
        if n > 0 {
            let what = if n == 1 { one } else { many };
            note(format_args!("basalt: left out {n} {what}{advice}"));
        }
    };
    note(
        left_out.links,
        "symbolic link",
        "symbolic links",
        ": --follow-symlinks reads what they lead to",
    );
    note(
        left_out.special,
        "socket, pipe or device",
        "sockets, pipes and devices",
        "",
    );
    note(
        left_out.empty_dirs,
        "directory without files",
        "directories without files",
        ": a store holds files, not directories",
    );
    note(
        left_out.stores,
        "directory",
        "directories",
        ": it is the store itself",
    );
}
