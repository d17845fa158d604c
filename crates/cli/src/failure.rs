//! How a command ends when it does not end well: one sentence that says what to do, and an exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | done, and the answer is no: the key is absent, the store is damaged, some keys could not be exported |
//! | 2 | not done: wrong arguments, no such store, a store in use, a failed read or write |

use crate::place::Place;
use basalt::ErrorKind;
use std::fmt::Display;
use std::path::Path;

/// Exit code for an answer of no.
pub const ANSWER_NO: u8 = 1;
/// Exit code for a command that could not do its work.
pub const NOT_DONE: u8 = 2;

/// Why a command stops.
#[derive(Debug)]
pub enum Failure {
    /// What to print, and the exit code.
    Told(String, u8),
    /// Whoever read our output went away. Nothing is printed: it is how `| head` ends a pipe.
    ReaderGone,
}

/// The result of a command: its exit code when it ran.
pub type Outcome = Result<u8, Failure>;

impl Failure {
    /// The work could not be done.
    pub fn new(sentence: impl Into<String>) -> Failure {
        Failure::Told(sentence.into(), NOT_DONE)
    }

    /// A failed call of the operating system on something the user named.
    pub fn os(what: impl Display, name: &Path, source: impl Into<std::io::Error>) -> Failure {
        let source = source.into();
        Failure::new(format!("cannot {what} {}: {source}", name.display()))
    }

    /// A failed write to standard output or to a file given for it.
    pub fn output(name: &str, source: std::io::Error) -> Failure {
        if source.kind() == std::io::ErrorKind::BrokenPipe {
            Failure::ReaderGone
        } else {
            Failure::new(format!("cannot write to {name}: {source}"))
        }
    }

    /// An engine error met on a store, with the advice that its kind asks for.
    pub fn store(place: &Place, e: basalt::Error) -> Failure {
        let flags = place.flags();
        Failure::new(match e.kind() {
            ErrorKind::Busy => match holder(&e.to_string()) {
                Some(holder) => format!(
                    "the store in {place} is in use by {holder}; ask a running server with `redis-cli INFO`, or stop it and try again"
                ),
                None => words(&e),
            },
            // Said by the engine of a directory without a store, which is what this sentence says.
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
                without_advice(&e.to_string())
            ),
            ErrorKind::NoSpace if place.image.is_some() => {
                format!(
                    "{e}; `basalt fs grow` makes the image larger, and `basalt fs report` says what it has; nothing that was acknowledged is lost, and `basalt check` works meanwhile"
                )
            }
            ErrorKind::NoSpace => {
                format!(
                    "{e}; make space on the device under {place} and run it again, or copy the folder to a larger device and give that as --dir; nothing that was acknowledged is lost, and `basalt check` works meanwhile"
                )
            }
            ErrorKind::Unsupported => {
                format!("{e}; the store in {place} needs a newer version of basalt")
            }
            ErrorKind::InvalidArgument => match words(&e).rsplit_once("; ") {
                Some((what, advice)) if advice.contains("create_among_files") => format!(
                    "{what}; name an empty or missing folder with --dir, or make the store among them with --among-files"
                ),
                _ => words(&e),
            },
            _ => format!("{e} (store in {place})"),
        })
    }

    /// An error met on an image as such.
    pub fn image(image: &Path, e: basalt::Error) -> Failure {
        let name = image.display();
        Failure::new(match e.kind() {
            ErrorKind::Busy => match holder(&e.to_string()) {
                Some(holder) => {
                    format!("the image {name} is in use by {holder}; stop it, or use another image")
                }
                None => words(&e),
            },
            ErrorKind::NotFound
                if e.os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) =>
            {
                format!(
                    "there is no image {name}; `basalt fs format {name} --size 20G` makes one of 20 GiB"
                )
            }
            ErrorKind::Corruption => format!(
                "the image {name} is damaged: {}; run `basalt fs check {name}`, and keep a copy",
                words(&e)
            ),
            _ => words(&e),
        })
    }
}

/// An error without its kind: for those whose words say all there is to do.
fn words(e: &basalt::Error) -> String {
    let text = e.to_string();
    match text.split_once(": ") {
        Some((kind, rest)) if kind == e.kind().name() => rest.to_string(),
        _ => text,
    }
}

/// Damage without the engine's own advice to repair, which the sentence here gives with the folder's name.
fn without_advice(text: &str) -> String {
    let Some((what, rest)) = text.split_once("; run `basalt repair`") else {
        return text.to_string();
    };
    // The place follows the advice.
    let place = rest.rfind(" (").map_or("", |i| &rest[i..]);
    format!("{what}{place}")
}

/// Who holds the store's lock, out of the filesystem's words for it: `process 12 (basalt serve)`.
fn holder(text: &str) -> Option<&str> {
    let rest = &text[text.find("process ")?..];
    // A command line can hold anything; the advice that follows the holder is the last thing said.
    Some(
        rest.split_once("); ")
            .map_or(rest, |(h, _)| &rest[..h.len() + 1]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_d() -> Place {
        Place {
            dir: "d".into(),
            image: None,
        }
    }

    #[test]
    fn a_held_store_names_its_holder_once() {
        let e = basalt::Error::new(
            ErrorKind::Busy,
            "the store is in use by process 12 (basalt serve); stop it, or use another directory",
        );
        let Failure::Told(text, code) = Failure::store(&in_d(), e) else {
            panic!("it is told");
        };
        assert_eq!(
            text,
            "the store in d is in use by process 12 (basalt serve); ask a running server with `redis-cli INFO`, or stop it and try again"
        );
        assert_eq!(code, NOT_DONE);
        assert_eq!(holder("busy: budget used up"), None);
    }

    #[test]
    fn damage_gives_its_advice_once_and_keeps_its_place() {
        let e = basalt::Error::corruption(
            Path::new("d/MANIFEST-000001"),
            0,
            "CURRENT names this manifest, and it is missing; run `basalt repair` to rebuild it",
        );
        let Failure::Told(text, _) = Failure::store(&in_d(), e) else {
            panic!("it is told");
        };
        assert_eq!(text.matches("basalt repair").count(), 1, "{text}");
        assert!(
            text.contains("it is missing (d/MANIFEST-000001 at offset 0)"),
            "{text}"
        );
    }
}
