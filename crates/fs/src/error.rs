//! The one error type of the project. Every crate above re-exports it, so that a caller meets the
//! same kinds everywhere. A caller decides by three questions: the kind of the error, how far it
//! reaches, and whether a retry can succeed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of every fallible call in Basalt.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, grouped by what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Stored bytes are not what was written: a checksum, address, length or order is wrong.
    Corruption,
    /// The operating system refused or failed an input/output call.
    Io,
    /// The device or a quota is full. Reads go on; writes resume when space returns.
    NoSpace,
    /// An earlier failure left this file or store in doubt. It takes no further writes until it is
    /// reopened.
    Poisoned,
    /// The store or filesystem takes no writes at present; the message gives the reason.
    ReadOnly,
    /// Another holder has the requested object, or a budget is used up for the moment.
    Busy,
    /// The caller's argument is outside the documented limits.
    InvalidArgument,
    /// A version, feature or operation that this build does not understand.
    Unsupported,
    /// The store was closed.
    Closed,
    /// No such file, directory or column family.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// A caller cancelled the operation before it was done.
    Cancelled,
    /// A precondition of a write does not hold any more, and nothing was written. The caller reads
    /// again, and retries with the result.
    Conflict,
    /// A transaction asked for a lock whose holder waits, directly or through others, for a lock of
    /// this transaction. The caller rolls the transaction back, and begins again.
    Deadlock,
}

impl ErrorKind {
    /// Returns the kind in lower-case words, as messages and metrics print it.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Corruption => "corruption",
            ErrorKind::Io => "i/o error",
            ErrorKind::NoSpace => "no space",
            ErrorKind::Poisoned => "poisoned",
            ErrorKind::ReadOnly => "read-only",
            ErrorKind::Busy => "busy",
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Closed => "closed",
            ErrorKind::NotFound => "not found",
            ErrorKind::AlreadyExists => "already exists",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Deadlock => "deadlock",
        }
    }
}

/// The extent of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// This call only. Everything else is as before.
    Operation,
    /// The named file. Other files are as before.
    File,
    /// The whole store. It needs a reopen, space, or an operator.
    Store,
}

/// The content of an error, which its clones share.
#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    reach: Reach,
    retry: bool,
    message: String,
    path: Option<PathBuf>,
    offset: Option<u64>,
    os: Option<i32>,
}

/// A typed error: its kind, its reach, whether a retry can help, and its place. Cloning is cheap,
/// because one failed commit group fails every writer in it with the same error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

impl Error {
    /// Returns an error of `kind` with a message that says what happened and what to do. The reach
    /// and the retry flag take the usual values of the kind. [`Error::with_reach`] and
    /// [`Error::with_retry`] change them.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let (reach, retry) = match kind {
            ErrorKind::Corruption => (Reach::File, false),
            ErrorKind::Io => (Reach::File, false),
            ErrorKind::NoSpace => (Reach::Store, true),
            ErrorKind::Poisoned => (Reach::Store, false),
            ErrorKind::ReadOnly => (Reach::Store, true),
            ErrorKind::Busy => (Reach::Operation, true),
            ErrorKind::Closed => (Reach::Store, false),
            ErrorKind::InvalidArgument
            | ErrorKind::Unsupported
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::Cancelled
            | ErrorKind::Conflict
            | ErrorKind::Deadlock => (Reach::Operation, false),
        };
        Error(Arc::new(Inner {
            kind,
            reach,
            retry,
            message: message.into(),
            path: None,
            offset: None,
            os: None,
        }))
    }

    /// Returns the error for damage at `offset` of `path`. The message says what was expected and
    /// what was there.
    pub fn corruption(path: &Path, offset: u64, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corruption, message).at(path, offset)
    }

    /// Returns the error for a caller's mistake.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// Returns the error for something that this build does not understand or offer.
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Returns the error for an operating system error while doing `what` to `path`. The kind
    /// follows from the system's error.
    pub fn io(what: &str, path: &Path, source: std::io::Error) -> Error {
        use std::io::ErrorKind as Os;
        let kind = match source.kind() {
            Os::NotFound => ErrorKind::NotFound,
            Os::AlreadyExists => ErrorKind::AlreadyExists,
            Os::StorageFull | Os::QuotaExceeded => ErrorKind::NoSpace,
            Os::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            Os::Unsupported => ErrorKind::Unsupported,
            Os::NotADirectory | Os::IsADirectory | Os::InvalidFilename => {
                ErrorKind::InvalidArgument
            }
            _ => ErrorKind::Io,
        };
        let advice = match source.kind() {
            Os::FileTooLarge => "; raise the limit on the size of files (`ulimit -f`)",
            _ => "",
        };
        let mut e = Error::new(kind, format!("{what}: {source}{advice}"));
        e.inner_mut().path = Some(path.to_path_buf());
        e.inner_mut().os = source.raw_os_error();
        e
    }

    fn inner_mut(&mut self) -> &mut Inner {
        if Arc::get_mut(&mut self.0).is_none() {
            let i = &self.0;
            self.0 = Arc::new(Inner {
                kind: i.kind,
                reach: i.reach,
                retry: i.retry,
                message: i.message.clone(),
                path: i.path.clone(),
                offset: i.offset,
                os: i.os,
            });
        }
        Arc::get_mut(&mut self.0).expect("just made unique")
    }

    /// Adds the file and the byte offset.
    pub fn at(mut self, path: &Path, offset: u64) -> Error {
        self.inner_mut().path = Some(path.to_path_buf());
        self.inner_mut().offset = Some(offset);
        self
    }

    /// Adds the file.
    pub fn in_file(mut self, path: &Path) -> Error {
        self.inner_mut().path = Some(path.to_path_buf());
        self
    }

    /// Sets how far the error reaches.
    pub fn with_reach(mut self, reach: Reach) -> Error {
        self.inner_mut().reach = reach;
        self
    }

    /// Sets whether the same call can succeed later without a change by the caller.
    pub fn with_retry(mut self, retry: bool) -> Error {
        self.inner_mut().retry = retry;
        self
    }

    /// Puts the operation in progress before the message: `context: message`.
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        let inner = self.inner_mut();
        inner.message = format!("{context}: {}", inner.message);
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns how far the error reaches.
    pub fn reach(&self) -> Reach {
        self.0.reach
    }

    /// Returns true if the same call may succeed later without a reopen.
    pub fn retryable(&self) -> bool {
        self.0.retry
    }

    /// Returns the message without kind, file and offset: for reports that name those themselves.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the file that the error concerns, if it is known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Returns the byte offset that the error concerns, if it is known.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// Returns the operating system's error number, if there was one.
    pub fn os_error(&self) -> Option<i32> {
        self.0.os
    }

    /// Returns true for [`ErrorKind::Corruption`].
    pub fn is_corruption(&self) -> bool {
        self.0.kind == ErrorKind::Corruption
    }

    /// Returns true if stored bytes are the cause, and not the device: for `Corruption`, `NotFound`
    /// and `Unsupported`.
    pub fn is_damage(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Corruption | ErrorKind::NotFound | ErrorKind::Unsupported
        )
    }

    /// Returns true for [`ErrorKind::NotFound`].
    pub fn is_not_found(&self) -> bool {
        self.0.kind == ErrorKind::NotFound
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = &self.0;
        write!(f, "{}: {}", i.kind.name(), i.message)?;
        match (&i.path, i.offset) {
            (Some(p), Some(o)) => write!(f, " ({} at offset {o})", p.display()),
            (Some(p), None) => write!(f, " ({})", p.display()),
            (None, Some(o)) => write!(f, " (at offset {o})"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
