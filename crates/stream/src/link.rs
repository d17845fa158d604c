//! Links and concatenations: streams that share extents.

use crate::directory::{install, prepare};
use crate::extent::ExtentId;
use crate::options::StreamOptions;
use crate::stream::Stream;
use basalt_fs::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

impl Stream {
    /// Makes a second stream in a directory, with hard links to the same extents. The extent that
    /// is appended to is sealed before. Costs a name for each extent, and copies no bytes. Both
    /// streams then go their own ways.
    ///
    /// Errors: those of [`Stream::concatenate`].
    pub fn link(&self, dir: impl AsRef<Path>) -> Result<Stream> {
        Stream::concatenate(&[self], dir, self.inner.options.clone())
    }

    /// Makes a stream in a directory, with hard links to the extents of several streams of one
    /// filesystem. An extent that several of them share is there once. The stream is there whole
    /// after a crash once this call returned; before, it is whole or not there.
    ///
    /// Errors: `AlreadyExists` if the directory has a stream; `InvalidArgument` for no streams, a
    /// directory with other files, or a stream opened for reading that a crash left unsealed;
    /// `Unsupported` if the filesystem has no links.
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
        let mut sources: Vec<&Stream> = streams.to_vec();
        sources.sort_by_key(|stream| Arc::as_ptr(&stream.inner));
        sources.dedup_by_key(|stream| Arc::as_ptr(&stream.inner));
        for stream in &sources {
            stream.seal_for_link()?;
        }
        prepare(env, dir)?;
        let mut extents: BTreeMap<ExtentId, u64> = BTreeMap::new();
        for stream in sources {
            // Erased meanwhile, an extent would have no name to link.
            let _names = stream.inner.names.read();
            for (id, len) in stream.inner.sealed_extents()? {
                match extents.insert(id, len) {
                    None => {
                        let name = id.file_name();
                        env.fs()
                            .link(&stream.inner.dir.join(&name), &dir.join(&name))?;
                    }
                    Some(other) if other == len => {}
                    Some(other) => {
                        let what = format!(
                            "extent {id} has {other} bytes in one stream and {len} in {}",
                            stream.inner.dir.display()
                        );
                        return Err(Error::new(ErrorKind::Corruption, what));
                    }
                }
            }
        }
        install(env, dir, &extents)?;
        Stream::open(env, dir, options)
    }

    /// Seals what was appended, unless the stream is only read.
    fn seal_for_link(&self) -> Result<()> {
        match self.seal() {
            Err(e) if e.kind() == ErrorKind::ReadOnly => Ok(()),
            sealed => sealed,
        }
    }
}
