//! Failures of commands: one sentence that says what to do, and an exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | done, and the answer is no: no such key, damage, or keys that could not be exported |
//! | 2 | not done: wrong arguments, no such store, a store in use, a failed read or write |

use crate::location::{StoreLocation, in_image, missing_directory};
use crate::progress::human_bytes;
use basalt::ErrorKind;
use rustix::fs::FileType;
use std::fmt::Display;
use std::path::Path;

/// Exit code for an answer of no.
pub const EXIT_NO: u8 = 1;
/// Exit code for a command that could not do its work.
pub const EXIT_FAILED: u8 = 2;

/// The reason why a command stops.
#[derive(Debug)]
pub enum Failure {
    /// The text to print, and the exit code.
    Message(String, u8),
    /// Another process has the store or the image open. The text to print.
    Busy(String),
    /// The reader of our output has closed the pipe, as `| head` does. Nothing is printed.
    ReaderGone,
}

/// Words before the process that has a store or an image open.
const IN_USE: &str = " is in use by ";

/// The result of a command: its exit code if it ran.
pub type Outcome = Result<u8, Failure>;

impl Failure {
    /// Makes a failure of a command that could not do its work.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure::Message(sentence.into(), EXIT_FAILED)
    }

    /// Makes the failure of a system call on a file or directory of the command line.
    pub fn os(what: impl Display, name: &Path, source: impl Into<std::io::Error>) -> Failure {
        let source = source.into();
        Failure::new(format!("cannot {what} {}: {source}", name.display()))
    }

    /// Makes the failure of a write to standard output or to the output file.
    pub fn output(name: &str, source: std::io::Error) -> Failure {
        if source.kind() == std::io::ErrorKind::BrokenPipe {
            Failure::ReaderGone
        } else {
            Failure::new(format!("cannot write to {name}: {source}"))
        }
    }

    /// Adds to the message that a change was made before the failure. `done` says which.
    pub fn after(self, done: &str) -> Failure {
        match self {
            Failure::Message(sentence, code) => {
                Failure::Message(format!("{sentence}; {done}"), code)
            }
            other => other,
        }
    }

    /// Makes the failure of an engine error on a store, with the advice for its kind.
    pub fn store(place: &StoreLocation, e: basalt::Error) -> Failure {
        let flags = place.flags();
        Failure::of_kind(
            e.kind(),
            match e.kind() {
                _ if let Some(sentence) = refused_by_system(&e, place) => sentence,
                ErrorKind::Busy => match holder(&e.to_string()) {
                    Some(holder) => format!(
                        "the store in {place} is in use by {holder}; ask a running server with `redis-cli INFO`, or stop it and try again"
                    ),
                    None => words(&e),
                },
                // The engine reports a directory without a store, and this sentence says so.
                ErrorKind::NotFound if place.image.is_some() => format!(
                    "there is no store in {place}; name another directory of the image with --dir, or make one with `basalt serve {flags}` or `basalt put {flags}`"
                ),
                ErrorKind::NotFound if e.to_string().contains("no store here") => format!(
                    "there is no store in {place}; name another with --dir, or make one with `basalt serve` or `basalt put`"
                ),
                ErrorKind::NotFound => format!(
                    "there is no store in {place} ({e}); name another with --dir, or make one with `basalt serve` or `basalt put`"
                ),
                ErrorKind::Corruption => format!(
                    "the store in {place} is damaged: {}; run `basalt check {flags}` to see all of it, and keep a copy before `basalt repair`",
                    strip_repair_advice(&e.to_string())
                ),
                ErrorKind::NoSpace if let (Some(image), None) = (&place.image, e.os_error()) => {
                    full(image, &flags, &e.to_string())
                }
                ErrorKind::NoSpace if let Some(image) = &place.image => format!(
                    "{e}; make space on the disk under {}; nothing that was acknowledged is lost, and `basalt check` works meanwhile",
                    image.display()
                ),
                ErrorKind::NoSpace => {
                    format!(
                        "{e}; make space on the device under {place} and run it again, or copy the directory to a larger device and give that as --dir; nothing that was acknowledged is lost, and `basalt check` works meanwhile"
                    )
                }
                ErrorKind::Unsupported => {
                    format!("{e}; the store in {place} needs a newer version of basalt")
                }
                ErrorKind::InvalidArgument => match message_at(&e, place).rsplit_once("; ") {
                    Some((what, advice)) if advice.contains("allow_nonempty_dir") => format!(
                        "{what}; name an empty or missing directory with --dir, or make the store among them with --allow-nonempty-dir"
                    ),
                    _ => with_flags(&message_at(&e, place)),
                },
                _ => format!("{e} (store in {place})"),
            },
        )
    }

    /// Makes the failure of an engine error on a store of logs, with the advice for its kind.
    /// `argument` is the location on the command line.
    pub fn log_store(place: &StoreLocation, argument: &str, e: basalt::Error) -> Failure {
        Failure::of_kind(
            e.kind(),
            match e.kind() {
                _ if let Some(sentence) = refused_by_system(&e, place) => sentence,
                ErrorKind::Busy => match holder(&e.to_string()) {
                    Some(holder) => format!(
                        "the log store in {place}{IN_USE}{holder}; a store has one owner at a time"
                    ),
                    None => format!("{}; a store has one owner at a time", words(&e)),
                },
                ErrorKind::NotFound => format!(
                    "there is no log store in {place}; name another, or make one with `basalt log append {argument} LOG`"
                ),
                ErrorKind::Corruption => format!(
                    "the log store in {place} is damaged: {}; run `basalt log check {argument}` to see all of it, and keep a copy before `basalt log repair`",
                    strip_repair_advice(&e.to_string())
                ),
                ErrorKind::NoSpace => format!(
                    "{e}; make space under {}, and run it again; nothing that was acknowledged is lost",
                    place.on_disk().display()
                ),
                ErrorKind::Unsupported => {
                    format!("{e}; the log store in {place} needs a newer version of basalt")
                }
                ErrorKind::InvalidArgument => words(&e),
                ErrorKind::Io if e.path().is_some() => e.to_string(),
                _ => format!("{e} (log store in {place})"),
            },
        )
    }

    /// Makes the failure of an error of this kind.
    fn of_kind(kind: ErrorKind, sentence: String) -> Failure {
        match kind == ErrorKind::Busy && sentence.contains(IN_USE) {
            true => Failure::Busy(sentence),
            false => Failure::new(sentence),
        }
    }

    /// Returns what is printed, without the name of the program.
    pub fn sentence(&self) -> &str {
        match self {
            Failure::Message(sentence, _) | Failure::Busy(sentence) => sentence,
            Failure::ReaderGone => "",
        }
    }

    /// Makes the failure of an error on an image.
    pub fn image(image: &Path, e: basalt::Error) -> Failure {
        let name = image.display();
        Failure::of_kind(
            e.kind(),
            match e.kind() {
                _ if let Some(sentence) = refused_by_system(&e, &name) => sentence,
                ErrorKind::Busy => match holder(&e.to_string()) {
                    Some(holder) => {
                        format!(
                            "the image {name} is in use by {holder}; stop it, or use another image"
                        )
                    }
                    None => words(&e),
                },
                // This check comes before the directory is looked at: the path behind the colon may
                // have slashes.
                ErrorKind::NotFound if let Some(advice) = image_path_advice(image) => {
                    format!("there is no image {name}; {advice}")
                }
                ErrorKind::NotFound if e.to_string().contains(NO_FILESYSTEM) => {
                    no_filesystem_on(image)
                }
                ErrorKind::NotFound
                    if e.os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) =>
                {
                    match missing_directory(image) {
                        Some(directory) => format!(
                            "there is no image {name}: the directory {} is not there",
                            directory.display()
                        ),
                        None => format!(
                            "there is no image {name}; `basalt fs format {name} --size 20G` makes one of 20 GiB"
                        ),
                    }
                }
                ErrorKind::Corruption => format!(
                    "the image {name} is damaged: {}; run `basalt fs check {name}`, and keep a copy",
                    words(&e)
                ),
                // A command that only reads does not advise how to destroy the content.
                ErrorKind::InvalidArgument if e.to_string().contains(FOREIGN_CONTENT) => format!(
                    "{name} is not a Basalt image: neither of its two headers is in its place; name another file or device"
                ),
                ErrorKind::NoSpace if is_full(&e) => format!(
                    "the image {name} is full; remove something with `basalt fs rm -r {name} PATH`, or make it larger with `basalt fs grow {name} --size N`"
                ),
                _ => words(&e),
            },
        )
    }

    /// Makes the failure of an error while an image was made.
    pub fn making_image(image: &Path, e: basalt::Error) -> Failure {
        match e.kind() {
            ErrorKind::InvalidArgument => Failure::new(words(&e)),
            _ => Failure::image(image, e),
        }
    }
}

/// Returns the sentence for a read-only filesystem and for a lack of permission. Commands that only
/// read write nothing, so on a read-only filesystem the command is one that writes.
fn refused_by_system(e: &basalt::Error, place: impl Display) -> Option<String> {
    let errno = rustix::io::Errno::from_raw_os_error(e.os_error()?);
    match errno {
        rustix::io::Errno::ROFS => Some(format!(
            "{place} is on a read-only filesystem, and this command writes; make the filesystem writable, or work on a copy on another one ({})",
            words(e)
        )),
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => Some(format!(
            "permission denied in {place} ({}); run the command as the owner of the files, or work on a copy{}",
            words(e),
            match e.path().is_some_and(is_unreadable) {
                true => "",
                false => ". Commands that only read need no write permission",
            }
        )),
        _ => None,
    }
}

/// Returns true if this process may not read a file, or list a directory and open what is in it.
fn is_unreadable(path: &Path) -> bool {
    let is_directory = rustix::fs::stat(path)
        .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory);
    let needed = match is_directory {
        true => rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK,
        false => rustix::fs::Access::READ_OK,
    };
    rustix::fs::access(path, needed) == Err(rustix::io::Errno::ACCESS)
}

/// Returns advice for `IMAGE:PATH` where only an image is allowed: how the path is given there.
pub fn image_path_advice(name: &Path) -> Option<String> {
    let (image, path) = in_image(name)?;
    let (image, path) = (image.display(), path.display());
    Some(format!(
        "the path in {image} is an argument of its own, as in `basalt fs ls {image} {path}`; with --image {image} it is --dir {path}"
    ))
}

/// Returns the sentence for zeros in place of an image's headers. It does not advise to format a
/// file that may hold data.
fn no_filesystem_on(image: &Path) -> String {
    let name = image.display();
    let stat = rustix::fs::stat(image).map(|s| (FileType::from_raw_mode(s.st_mode), s.st_size));
    match stat {
        Ok((FileType::RegularFile, 0)) => {
            format!(
                "{name} is empty; `basalt fs format {name} --size 20G` makes an image of 20 GiB of it"
            )
        }
        Ok((FileType::RegularFile, _)) | Err(_) => format!(
            "{name} is not a Basalt image, or its head is damaged: there are only zeros where the two headers should be; name another, or go back to a backup"
        ),
        Ok(_) => format!(
            "there is no filesystem on {name}: there are only zeros where the two headers should be; if it never had one, `basalt fs format {name}` makes one"
        ),
    }
}

/// The filesystem's words for zeros instead of a filesystem.
const NO_FILESYSTEM: &str = "there is no filesystem on it";
/// The filesystem's words for a file with other content.
const FOREIGN_CONTENT: &str = "not a Basalt image";
/// The filesystem's words for an image without free space.
const IMAGE_FULL: &str = "the image is full";

/// Returns true if the image is full, and not the disk under it.
pub fn is_full(e: &basalt::Error) -> bool {
    e.kind() == ErrorKind::NoSpace && e.os_error().is_none() && e.to_string().contains(IMAGE_FULL)
}

/// Returns the sentence for an image that is too full for a store, with advice. The engine gives
/// numbers if it refuses before it tries.
fn full(image: &Path, flags: &str, text: &str) -> String {
    let number = |before: &str, behind: &str| -> Option<u64> {
        let (left, _) = text.split_once(behind)?;
        let (before_it, digits) = left.rsplit_once(' ')?;
        before_it.ends_with(before).then(|| digits.parse().ok())?
    };
    let name = image.display();
    let figures = number("", " bytes are free on").zip(number("of which", " are reserved for"));
    let free_text = figures.map_or_else(String::new, |(free, kept)| {
        format!(
            ": {} are free, and {} are reserved for work that frees space",
            human_bytes(free),
            human_bytes(kept)
        )
    });
    // Below half of the reserve, the engine refuses deletes as well.
    let keys = match figures {
        Some((free, kept)) if free < kept / 2 => String::new(),
        _ => format!("delete keys and run `basalt compact {flags}`, "),
    };
    format!(
        "the image {name} is full{free_text}; {keys}remove files with `basalt fs rm -r {name} PATH`, or make it larger with `basalt fs grow {name} --size N`; nothing that was acknowledged is lost"
    )
}

/// Returns an error's words without its kind, for errors whose words say all.
fn words(e: &basalt::Error) -> String {
    let text = e.to_string();
    let text = match text.split_once(": ") {
        Some((kind, rest)) if kind == e.kind().name() => rest,
        _ => &text,
    };
    readable_sizes(text)
}

/// Returns the words of an engine's error. At the root of an image, the engine's words have an
/// offset without a file name.
fn message_at(e: &basalt::Error, place: &StoreLocation) -> String {
    let text = words(e);
    match text.strip_prefix("opening the store in : ") {
        Some(rest) => format!(
            "{place}{}",
            rest.strip_prefix(' ')
                .map_or(format!(": {rest}"), |r| format!(" {r}"))
        ),
        None => text,
    }
}

/// Replaces the engine's advice that names an option by advice that names the flag.
fn with_flags(text: &str) -> String {
    let pages = "open it without `pages`, or copy its entries into a new family";
    let flag = "leave --engine tree out, or export its entries and load them into a new store";
    text.replace(pages, flag)
}

/// Replaces `67108864 bytes` and `67108864 more bytes` by `64.00 MiB` and `64.00 MiB more`. Small
/// numbers stay, because they may be counts.
fn readable_sizes(text: &str) -> String {
    const LARGE: u64 = 64 << 10;
    let words: Vec<&str> = text.split(' ').collect();
    let mut out: Vec<String> = Vec::with_capacity(words.len());
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let size = word.parse().ok().filter(|n| digits && *n >= LARGE);
        let next = |i: usize| words.get(at + i).copied().unwrap_or("");
        let (more, unit) = match next(1) {
            "more" => (" more", next(2)),
            unit => ("", unit),
        };
        match (size, unit.strip_prefix("bytes")) {
            (Some(n), Some(behind)) if !behind.starts_with(char::is_alphanumeric) => {
                out.push(format!("{}{more}{behind}", human_bytes(n)));
                at += if more.is_empty() { 2 } else { 3 };
            }
            _ => {
                out.push(word.to_string());
                at += 1;
            }
        }
    }
    out.join(" ")
}

/// Removes the engine's own advice to repair from the words for damage. The sentence here gives the
/// advice with the directory's name.
pub fn strip_repair_advice(text: &str) -> String {
    let Some((what, rest)) = text.split_once("; run `basalt repair`") else {
        return text.to_string();
    };
    // The file and offset follow the advice.
    let place = rest.rfind(" (").map_or("", |i| &rest[i..]);
    format!("{what}{place}")
}

/// Returns the holder of a store's lock from the filesystem's words: `process 12 (basalt serve)`.
pub fn holder(text: &str) -> Option<&str> {
    let rest = &text[text.find("process ")?..];
    let numbered = rest["process ".len()..].starts_with(|c: char| c.is_ascii_digit());
    if !numbered && !rest.starts_with("process itself") {
        return None;
    }
    // A command line can have any content. The advice behind the holder is the end of the text.
    Some(
        rest.split_once("); ")
            .map_or(rest, |(h, _)| &rest[..h.len() + 1]),
    )
}

#[cfg(test)]
mod tests;
