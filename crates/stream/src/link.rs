//! Links and concatenations: streams that share extents.

use crate::catalog::{ExtentEntry, NewExtent};
use crate::directory::{destroy, install, prepare};
use crate::extent::ExtentId;
use crate::options::StreamOptions;
use crate::stream::Stream;
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
    /// streams of several filesystems, a directory with other files, or a stream opened for reading
    /// that a crash left unsealed; `Corruption` if two different extents have one id; `Unsupported`
    /// if the filesystem has no links. After an error no stream is left.
    pub fn concatenate(
        streams: &[&Stream],
        dir: impl AsRef<Path>,
        options: StreamOptions,
    ) -> Result<Stream> {
        options.validate()?;
        let dir = dir.as_ref();
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
            match stream.seal() {
                Err(e) if e.kind() == ErrorKind::ReadOnly => {}
                sealed => sealed?,
            }
        }
        prepare(env, dir)?;
        let made = link_all(streams, dir).and_then(|extents| install(env, dir, &extents));
        if let Err(e) = made {
            // What stays is removed by the next attempt.
            let _ = destroy(env, dir);
            return Err(e);
        }
        Stream::open(env, dir, options)
    }
}

/// Gives the extents of all streams a name in a directory. Returns them in their order.
fn link_all(streams: &[&Stream], dir: &Path) -> Result<Vec<(NewExtent, u64)>> {
    let mut lives: BTreeMap<ExtentId, (u128, u64)> = BTreeMap::new();
    let mut linked = Vec::new();
    for stream in streams {
        // Erased meanwhile, an extent would have no name to link.
        let _names = stream.inner.names.read();
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
            let name = id.file_name();
            let fs = stream.inner.env.fs();
            fs.link(&stream.inner.dir.join(&name), &dir.join(&name))?;
            let seq = linked.len() as u64;
            linked.push((NewExtent { id, life, seq }, len));
        }
    }
    Ok(linked)
}
