//! An open stream: appends, reads, seals and erasures.

use crate::catalog::{self, Catalog, Change};
use crate::directory::{self, MANIFEST_PREFIX};
use crate::extent::{Extent, ExtentId, ExtentInfo, Place};
use crate::options::StreamOptions;
use basalt_env::Env;
use basalt_env::sync::{Mutex, RwLock, named};
use basalt_fs::{Bytes, Error, ErrorKind, Intent, ReadRequest, Result};
use basalt_records::manifest::{Manifest, manifest_path, read_current, replay};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A manifest is written anew when it has this many times the bytes that it began with, and this
/// many bytes.
const MANIFEST_GROWTH: u64 = 4;
const MANIFEST_LEAST: u64 = 64 << 10;

/// A stream. Cloning is cheap, and all clones are the same stream.
#[derive(Clone)]
pub struct Stream {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub env: Env,
    pub dir: PathBuf,
    pub options: StreamOptions,
    read_only: bool,
    appends: Mutex<Appends>,
    manifested: Mutex<Manifested>,
    /// A leaf.
    extents: RwLock<BTreeMap<ExtentId, Arc<Extent>>>,
    /// Locked by a link as long as the names of extents must stay, and by erasures.
    pub names: RwLock<()>,
}

/// The extents that were appended to since the stream was opened.
struct Appends {
    /// The extent that is appended to.
    active: Option<Arc<Extent>>,
    /// Extents that take no more bytes and are not sealed.
    left: Vec<Arc<Extent>>,
    /// Why the stream takes no more appends.
    failed: Option<Error>,
}

struct Manifested {
    manifest: Manifest,
    catalog: Catalog,
}

impl Stream {
    /// Makes an empty stream in a directory, which is made if it is missing. The stream is there
    /// after a crash once this call returned.
    ///
    /// Errors: `AlreadyExists` if there is a stream; `InvalidArgument` for a wrong option, or a
    /// directory with other files.
    pub fn create(env: &Env, dir: impl AsRef<Path>, options: StreamOptions) -> Result<Stream> {
        options.validate()?;
        let dir = dir.as_ref();
        directory::prepare(env, dir)?;
        directory::install(env, dir, &BTreeMap::new())?;
        Stream::open(env, dir, options)
    }

    /// Opens a stream. Extents that a crash left unsealed are sealed; of those, bytes that were
    /// never synced may be there or not. Files that the manifest does not name are removed. Reads
    /// no extent.
    ///
    /// Errors: `NotFound` if there is no stream; `Corruption` if the manifest is damaged or an
    /// extent is missing or shorter than it was; `Unsupported` for a stream of a later version.
    pub fn open(env: &Env, dir: impl AsRef<Path>, options: StreamOptions) -> Result<Stream> {
        Stream::open_as(env, dir.as_ref(), options, false)
    }

    /// Opens a stream for reading. Nothing is written, and calls that change it fail with
    /// `ReadOnly`. Errors are those of [`Stream::open`].
    pub fn open_read_only(
        env: &Env,
        dir: impl AsRef<Path>,
        options: StreamOptions,
    ) -> Result<Stream> {
        Stream::open_as(env, dir.as_ref(), options, true)
    }

    fn open_as(env: &Env, dir: &Path, options: StreamOptions, read_only: bool) -> Result<Stream> {
        options.validate()?;
        let Some(current) = read_current(env, dir)? else {
            let what = format!("there is no stream in {}; create it first", dir.display());
            return Err(Error::new(ErrorKind::NotFound, what));
        };
        let mut catalog = Catalog::default();
        replay(env, dir, &current, |edit| {
            catalog.apply(&catalog::decode(edit)?)
        })?;
        if catalog.stream_id != current.store_id {
            let path = manifest_path(dir, current.number);
            let what = format!(
                "the manifest is of stream {:032x}, expected {:032x}",
                catalog.stream_id, current.store_id
            );
            return Err(Error::corruption(&path, 0, what));
        }
        let mut sealed = Vec::new();
        let mut extents = BTreeMap::new();
        for (id, len) in &catalog.extents {
            let path = dir.join(id.file_name());
            let found = env.fs().stat(&path).map_err(|e| match e.is_not_found() {
                true => Error::corruption(
                    &path,
                    0,
                    "the manifest names this extent, and it is missing",
                ),
                false => e,
            })?;
            let len = match len {
                Some(len) if *len > found.allocated => {
                    let what = format!(
                        "the extent has {} bytes, and the manifest says that it has {len}",
                        found.allocated
                    );
                    return Err(Error::corruption(&path, found.allocated, what));
                }
                Some(len) => *len,
                None => {
                    sealed.push(Change::Seal(*id, found.allocated));
                    found.allocated
                }
            };
            extents.insert(*id, Arc::new(Extent::known(dir, *id, len)));
        }
        let stream = Stream {
            inner: Arc::new(Inner {
                env: env.clone(),
                dir: dir.to_path_buf(),
                options,
                read_only,
                appends: named(
                    "Stream::appends",
                    Mutex::new(Appends {
                        active: None,
                        left: Vec::new(),
                        failed: None,
                    }),
                ),
                manifested: named(
                    "Stream::manifested",
                    Mutex::new(Manifested {
                        manifest: Manifest::unwritten(dir, current.number, catalog.stream_id),
                        catalog,
                    }),
                ),
                extents: named("Stream::extents", RwLock::new(extents)),
                names: named("Stream::names", RwLock::new(())),
            }),
        };
        if !read_only {
            stream.inner.finish_open(&sealed, current.number)?;
        }
        Ok(stream)
    }

    /// Appends bytes, and returns their place. They lie in one extent, one behind the other. They
    /// are volatile until [`Stream::sync`]; [`Intent`] says when that comes, and whether the bytes
    /// survive the death of the process before.
    ///
    /// Errors: `NoSpace` and `Io`, after which none of the bytes are in the stream, and the next
    /// append begins another extent; `Poisoned` after a failed sync; `ReadOnly`;
    /// `InvalidArgument` for no bytes.
    pub fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<Place> {
        let inner = &self.inner;
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        if len == 0 {
            return Err(Error::invalid("an append to a stream has no bytes"));
        }
        inner.check_writable()?;
        let mut appends = inner.appends.lock();
        if let Some(e) = &appends.failed {
            return Err(e.clone());
        }
        let most = inner.options.extent_bytes;
        let room = |extent: &&Arc<Extent>| extent.len() + len <= most;
        let extent = match appends.active.as_ref().filter(room) {
            Some(extent) => extent.clone(),
            None => inner.begin_extent(&mut appends)?,
        };
        match extent.file(&inner.env)?.append(bufs, intent) {
            Ok(offset) => {
                extent.extend(offset + len);
                Ok(Place {
                    extent: extent.id,
                    offset,
                })
            }
            Err(e) => {
                // The handle takes no more appends. What was appended before can still be synced.
                let ended = appends.active.take();
                appends.left.extend(ended);
                Err(e)
            }
        }
    }

    /// Makes all bytes that were appended so far survive a power cut. Other threads may append
    /// meanwhile. Extents that are full are sealed.
    ///
    /// Errors: if a sync fails, it is unknown what is on the device, and the stream takes no more
    /// appends and syncs (`Poisoned`) until it is opened again.
    pub fn sync(&self) -> Result<()> {
        let inner = &self.inner;
        inner.check_writable()?;
        let appends = inner.appends.lock();
        if let Some(e) = &appends.failed {
            return Err(e.clone());
        }
        let left = appends.left.clone();
        let synced = match &appends.active {
            None => {
                drop(appends);
                Ok(())
            }
            Some(active) => {
                let file = active.file(&inner.env)?.clone();
                // The next append must not touch the sectors of this sync.
                let aligned = file.align_to_unit();
                drop(appends);
                aligned.and_then(|end| file.sync_data_to(end))
            }
        };
        let all = synced.and_then(|()| {
            left.iter()
                .try_for_each(|extent| extent.file(&inner.env)?.sync_all())
        });
        if let Err(e) = all {
            let what = format!("an earlier sync of the stream failed: {e}; open it again");
            inner.appends.lock().failed =
                Some(Error::new(ErrorKind::Poisoned, what).in_file(&inner.dir));
            return Err(e);
        }
        if left.is_empty() {
            return Ok(());
        }
        inner.install(|catalog| {
            let unsealed = |extent: &&Arc<Extent>| catalog.extents.get(&extent.id) == Some(&None);
            let seal = |extent: &Arc<Extent>| Change::Seal(extent.id, extent.len());
            Ok(left.iter().filter(unsealed).map(seal).collect())
        })?;
        let is_sealed = |extent: &Arc<Extent>| left.iter().any(|sealed| sealed.id == extent.id);
        inner
            .appends
            .lock()
            .left
            .retain(|extent| !is_sealed(extent));
        Ok(())
    }

    /// Seals the extent that is appended to, durably. The next append begins another one.
    pub fn seal(&self) -> Result<()> {
        self.inner.check_writable()?;
        let mut appends = self.inner.appends.lock();
        if appends.failed.is_none() {
            let active = appends.active.take();
            appends.left.extend(active);
        }
        drop(appends);
        self.sync()
    }

    /// Reads bytes. Costs one device read.
    ///
    /// Errors: `NotFound` if the stream does not have the extent; `Corruption` if the extent ends
    /// before, or its header is damaged.
    pub fn read(&self, at: Place, len: usize) -> Result<Bytes> {
        let extent = self.inner.readable(at, len)?;
        let bytes = extent.file(&self.inner.env)?.read(at.offset, len)?;
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(ends_before(&extent, at.offset, len)),
        }
    }

    /// Returns the request of a read, for a batch of reads
    /// ([`FileSystem::submit_reads`](basalt_fs::FileSystem::submit_reads)). Its result can be
    /// shorter only if the file was cut. Errors are those of [`Stream::read`].
    pub fn read_request(&self, at: Place, len: usize) -> Result<ReadRequest> {
        let extent = self.inner.readable(at, len)?;
        Ok(ReadRequest {
            file: extent.file(&self.inner.env)?.clone(),
            offset: at.offset,
            len,
        })
    }

    /// Removes extents from the stream, durably: after a crash they are all there or none is. Reads
    /// that have begun go on. An extent that another stream has stays for that one.
    ///
    /// Errors: `NotFound` if the stream does not have one of them; `InvalidArgument` if one is not
    /// sealed. Then none is removed.
    pub fn erase(&self, extents: &[ExtentId]) -> Result<()> {
        let inner = &self.inner;
        inner.check_writable()?;
        let _names = inner.names.write();
        inner.install(|catalog| {
            let erase = |id: &ExtentId| match catalog.extents.get(id) {
                Some(Some(_)) => Ok(Change::Erase(*id)),
                Some(None) => Err(Error::invalid(format!(
                    "extent {id} is appended to; seal it before it is erased"
                ))),
                None => Err(inner.unknown(*id)),
            };
            let mut ids = extents.to_vec();
            ids.sort_unstable();
            ids.dedup();
            ids.iter().map(erase).collect()
        })?;
        for id in extents {
            let Some(extent) = inner.extents.write().remove(id) else {
                continue;
            };
            // A file that stays is removed by the next open.
            let _ = inner.env.fs().remove(&extent.path);
        }
        Ok(())
    }

    /// Returns the extents, by their ids.
    pub fn extents(&self) -> Vec<ExtentInfo> {
        let m = self.inner.manifested.lock();
        let extents = self.inner.extents.read();
        let info = |(id, sealed): (&ExtentId, &Option<u64>)| {
            Some(ExtentInfo {
                id: *id,
                len: extents.get(id)?.len(),
                sealed: sealed.is_some() || self.inner.read_only,
            })
        };
        m.catalog.extents.iter().filter_map(info).collect()
    }
}

impl Inner {
    fn check_writable(&self) -> Result<()> {
        match self.read_only {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::ReadOnly,
                "the stream was opened for reading only",
            )
            .in_file(&self.dir)),
        }
    }

    fn unknown(&self, id: ExtentId) -> Error {
        let what = format!("the stream in {} has no extent {id}", self.dir.display());
        Error::new(ErrorKind::NotFound, what)
    }

    fn readable(&self, at: Place, len: usize) -> Result<Arc<Extent>> {
        let extent = self.extents.read().get(&at.extent).cloned();
        let extent = extent.ok_or_else(|| self.unknown(at.extent))?;
        let end = at.offset.checked_add(len as u64);
        match end.is_some_and(|end| end <= extent.len()) {
            true => Ok(extent),
            false => Err(ends_before(&extent, at.offset, len)),
        }
    }

    /// Seals the extents that a crash left unsealed, and removes files that the manifest does not
    /// name.
    fn finish_open(&self, sealed: &[Change], manifest: u64) -> Result<()> {
        let fs = self.env.fs();
        for entry in fs.list(&self.dir)?.iter().filter(|e| !e.is_dir) {
            let is_named = |id| self.extents.read().contains_key(&id);
            let old_extent = ExtentId::of_file_name(&entry.name).is_some_and(|id| !is_named(id));
            let path = self.dir.join(&entry.name);
            let old_manifest = entry.name.starts_with(MANIFEST_PREFIX)
                && path != manifest_path(&self.dir, manifest);
            if old_extent || old_manifest {
                fs.remove(&path)?;
            }
        }
        for change in sealed {
            let Change::Seal(id, _) = change else {
                continue;
            };
            // The bytes may only be in the page cache, if just the process died.
            fs.open(&self.dir.join(id.file_name()))?.sync_data()?;
        }
        if sealed.is_empty() {
            return Ok(());
        }
        self.install(|_| Ok(sealed.to_vec()))
    }

    /// Begins the next extent.
    fn begin_extent(&self, appends: &mut Appends) -> Result<Arc<Extent>> {
        let id = loop {
            let id = ExtentId(self.env.random().next_u64());
            if !self.extents.read().contains_key(&id) {
                break id;
            }
        };
        let begun = Extent::create(&self.env, &self.dir, id).and_then(|extent| {
            // A manifest never names a file that is not there.
            self.env.fs().sync_metadata(&self.dir)?;
            self.install(|_| Ok(vec![Change::Add(id)]))?;
            Ok(Arc::new(extent))
        });
        let extent = begun.inspect_err(|_| {
            // If the edit is in doubt, the file must stay for it.
            if !self.manifested.lock().manifest.in_doubt() {
                let _ = self.env.fs().remove(&self.dir.join(id.file_name()));
            }
        })?;
        self.extents.write().insert(id, extent.clone());
        let full = appends.active.replace(extent.clone());
        appends.left.extend(full);
        Ok(extent)
    }

    /// Changes the catalog, durably.
    fn install(&self, changes: impl FnOnce(&Catalog) -> Result<Vec<Change>>) -> Result<()> {
        let mut m = self.manifested.lock();
        let changes = changes(&m.catalog)?;
        if changes.is_empty() {
            return Ok(());
        }
        let mut catalog = m.catalog.clone();
        catalog.apply(&changes)?;
        let grown = m.manifest.bytes() > MANIFEST_LEAST.max(m.manifest.begun() * MANIFEST_GROWTH);
        if grown || m.manifest.in_doubt() {
            let number = catalog.next_manifest.max(m.manifest.number() + 1);
            catalog.next_manifest = number + 1;
            // If the attempt fails, the name is taken.
            m.catalog.next_manifest = catalog.next_manifest;
            let state = catalog::encode(&catalog.changes());
            // After a failure either manifest may be the current one.
            let old = m.manifest.number();
            m.manifest.doubt();
            m.manifest = Manifest::create(&self.env, &self.dir, catalog.stream_id, number, &state)?;
            // An old manifest that stays is removed by the next open.
            let _ = self.env.fs().remove(&manifest_path(&self.dir, old));
        } else {
            m.manifest.append(&catalog::encode(&changes))?;
        }
        m.catalog = catalog;
        Ok(())
    }

    /// Returns the bytes of each extent, for a link: all of them are sealed.
    pub fn sealed_extents(&self) -> Result<BTreeMap<ExtentId, u64>> {
        let m = self.manifested.lock();
        let sealed = |(id, len): (&ExtentId, &Option<u64>)| {
            len.map(|len| (*id, len)).ok_or_else(|| {
                Error::invalid(format!(
                    "extent {id} is not sealed; open the stream for writing"
                ))
            })
        };
        m.catalog.extents.iter().map(sealed).collect()
    }
}

fn ends_before(extent: &Extent, offset: u64, len: usize) -> Error {
    let what = format!(
        "expected {len} bytes, the extent has {} bytes",
        extent.len()
    );
    Error::corruption(&extent.path, offset, what)
}
