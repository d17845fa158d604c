//! Links and concatenations: streams that share extents.

use crate::catalog::{ExtentEntry, NewExtent};
use crate::directory::{destroy, install, prepare};
use crate::extent::ExtentId;
use crate::options::StreamOptions;
use crate::stream::Stream;
use basalt_env::file_copy::{cannot_link, copy_sparse_file};
use basalt_fs::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

impl Stream {
    /// Makes a second stream in a directory, with hard links to the same extents, as of one moment.
    /// The extent that is appended to is sealed before. Costs a name for each extent, and copies no
    /// bytes. From then on the two streams are changed apart from each other.
    ///
    /// Errors: those of [`Stream::concatenate`].
    pub fn link(&self, dir: impl AsRef<Path>) -> Result<Stream> {
        Stream::concatenate(&[self], dir, self.inner.options.clone())
    }

    /// Makes a stream in a directory, with hard links to the extents of several streams of one
    /// filesystem, in their order. An extent that several of them have is there once. Extents that
    /// begin during the call are left out. After a crash, the new stream is whole if this call
    /// returned; otherwise it is whole or missing.
    ///
    /// Errors: `AlreadyExists` if the directory has a stream; `InvalidArgument` for no streams,
    /// streams of several filesystems, a directory with other files, a stream opened for reading
    /// that a crash left unsealed, or one opened for a salvage; `Corruption` if two different
    /// extents have one id, or an extent is damaged ([`Stream::damage`]); `Unsupported` if the
    /// filesystem has no links. After an error no stream is left.
    pub fn concatenate(
        streams: &[&Stream],
        dir: impl AsRef<Path>,
        options: StreamOptions,
    ) -> Result<Stream> {
        link_streams(streams, dir.as_ref(), options, None).map(|(stream, _)| stream)
    }

    /// Makes a second stream in a directory as [`Stream::link`] does. Extents that cannot be linked
    /// there, because it is on another filesystem or on one without links, are copied if
    /// `copy_files` is set. `check_continue` is called before an extent is copied, and after each
    /// piece of it, at most a mebibyte. If it returns an error, the call ends with that error.
    ///
    /// Extents may be erased, and ranges released, while extents are copied. An extent that is
    /// erased meanwhile may be left out. A released range has its old bytes or zeros in the copy.
    /// Damaged blocks are zeros in the copy; the caller's checksums detect them.
    ///
    /// Errors: those of [`Stream::concatenate`], with `Unsupported` also for another filesystem if
    /// `copy_files` is not set; those of `check_continue`; `NoSpace`, `Io`.
    pub fn link_or_copy(
        &self,
        dir: impl AsRef<Path>,
        copy_files: bool,
        check_continue: &dyn Fn() -> Result<()>,
    ) -> Result<StreamCopyReport> {
        let copies = CopyFallback {
            copy_files,
            check_continue,
        };
        let options = self.inner.options.clone();
        link_streams(&[self], dir.as_ref(), options, Some(&copies)).map(|(_, report)| report)
    }
}

/// The extents of a stream that [`Stream::link_or_copy`] has made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamCopyReport {
    /// Number of extents.
    pub extents: u64,
    /// Bytes of extents that were linked.
    pub linked_bytes: u64,
    /// Bytes of extents that were copied.
    pub copied_bytes: u64,
}

/// Options for extents that cannot be linked.
struct CopyFallback<'a> {
    copy_files: bool,
    check_continue: &'a dyn Fn() -> Result<()>,
}

/// Makes a stream from the extents of other streams. Without `copies`, all extents are linked.
fn link_streams(
    streams: &[&Stream],
    dir: &Path,
    options: StreamOptions,
    copies: Option<&CopyFallback<'_>>,
) -> Result<(Stream, StreamCopyReport)> {
    options.validate()?;
    let Some(first) = streams.first() else {
        return Err(Error::invalid("a concatenation needs at least one stream"));
    };
    let env = &first.inner.env;
    for stream in streams {
        if !Arc::ptr_eq(stream.inner.env.fs(), env.fs()) {
            return Err(Error::invalid(format!(
                "the streams in {} and {} are on different filesystems",
                first.inner.dir.display(),
                stream.inner.dir.display()
            )));
        }
        if !stream.inner.has_manifest() {
            return Err(Error::invalid(format!(
                "the stream in {} was opened for a salvage, and cannot be linked",
                stream.inner.dir.display()
            )));
        }
        if let Some(damage) = stream.damage().into_iter().next() {
            return Err(damage);
        }
        match stream.seal() {
            Err(e) if e.kind() == ErrorKind::ReadOnly => {}
            sealed => sealed?,
        }
    }
    prepare(env, dir)?;
    let mut report = StreamCopyReport::default();
    let made =
        link_all(streams, dir, copies, &mut report).and_then(|extents| install(env, dir, &extents));
    if let Err(e) = made {
        // What stays is removed by the next attempt.
        let _ = destroy(env, dir);
        return Err(e);
    }
    Ok((Stream::open(env, dir, options)?, report))
}

/// Gives the extents of all streams a name in a directory. Returns them in their order.
fn link_all(
    streams: &[&Stream],
    dir: &Path,
    copies: Option<&CopyFallback<'_>>,
    report: &mut StreamCopyReport,
) -> Result<Vec<(NewExtent, u64)>> {
    let mut lives: BTreeMap<ExtentId, (u128, u64)> = BTreeMap::new();
    let mut linked = Vec::new();
    for stream in streams {
        // The lock prevents erasures, because an erased extent has no name to link. It is released
        // while an extent is copied, because a copy takes long.
        let mut names = Some(stream.inner.names.read());
        let mut has_copied = false;
        for (id, entry) in stream.inner.extents_in_order() {
            let ExtentEntry { life, len, .. } = entry;
            let Some(len) = len else {
                if stream.inner.read_only {
                    return Err(Error::invalid(format!(
                        "extent {id} is not sealed; open the stream in {} for writing",
                        stream.inner.dir.display()
                    )));
                }
                continue;
            };
            match lives.insert(id, (life, len)) {
                None => {}
                Some(other) if other == (life, len) => continue,
                Some(_) => {
                    let what = format!(
                        "the stream in {} has an extent with the id {id}, which is another one",
                        stream.inner.dir.display()
                    );
                    return Err(Error::new(ErrorKind::Corruption, what));
                }
            }
            let env = &stream.inner.env;
            let from = stream.inner.dir.join(id.file_name());
            let to = dir.join(id.file_name());
            let locked = names.take().unwrap_or_else(|| stream.inner.names.read());
            match (env.fs().link(&from, &to), copies) {
                (Ok(()), _) => {
                    report.linked_bytes += len;
                    names = Some(locked);
                }
                (Err(e), Some(copies)) if cannot_link(&e) => {
                    if !copies.copy_files {
                        return Err(Error::unsupported(format!(
                            "extents cannot be linked there ({e}); give a directory on the stream's own filesystem, or allow copies"
                        )));
                    }
                    drop(locked);
                    has_copied = true;
                    if !copy_extent(stream, id, &to, len, copies)? {
                        continue;
                    }
                    report.copied_bytes += len;
                }
                (Err(e), _) if e.is_not_found() => {
                    match stream.inner.extents.read().get(&id) {
                        // The extent was erased while another one was copied.
                        None if has_copied => continue,
                        None => return Err(e),
                        Some(extent) => return Err(extent.missing_is_damage(e)),
                    }
                }
                (Err(e), _) => return Err(e),
            }
            report.extents += 1;
            let seq = linked.len() as u64;
            linked.push((NewExtent { id, life, seq }, len));
        }
    }
    Ok(linked)
}

/// Copies an extent. Returns false if it was erased meanwhile.
fn copy_extent(
    stream: &Stream,
    id: ExtentId,
    to: &Path,
    len: u64,
    copies: &CopyFallback<'_>,
) -> Result<bool> {
    (copies.check_continue)()?;
    let inner = &stream.inner;
    let there = || inner.extents.read().get(&id).cloned();
    let Some(extent) = there() else {
        return Ok(false);
    };
    let file = match extent.file(&inner.env) {
        Err(_) if there().is_none() => return Ok(false),
        file => file?,
    };
    let each = &mut |_: &[u8]| (copies.check_continue)();
    copy_sparse_file(&inner.env, (&*file, &extent.path), to, len, each)?;
    Ok(true)
}
