//! An open stream: appends, reads, seals and erasures.

use crate::catalog::{self, Catalog, Change, ExtentEntry, LARGEST_NUMBER, NewExtent};
use crate::directory::{self, manifest_number};
use crate::extent::{Extent, ExtentAddress, ExtentId, ExtentInfo, HEADER, check_features};
use crate::options::StreamOptions;
use basalt_env::Env;
use basalt_env::sync::{Mutex, RwLock, named};
use basalt_fs::{Bytes, Error, ErrorKind, Intent, Lifetime, ReadRequest, Result};
use basalt_records::manifest::{CURRENT, Manifest, manifest_path, read_current, replay};
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

/// All locks of this crate, for tests under the scheduler: `docs/testing/schedules.md`.
///
/// | lock | what it serialises | held over |
/// |---|---|---|
/// | `Stream::names` | erasures, releases, and links, which need the names | links, a release |
/// | `Stream::appends` | appends, and the choice of the extent | one append |
/// | `Stream::manifested` | changes of the manifest | one edit |
#[cfg(feature = "schedules")]
pub const LOCK_ORDER: basalt_env::sync::lock_log::CrateLocks =
    basalt_env::sync::lock_log::CrateLocks {
        order: &["Stream::names", "Stream::appends", "Stream::manifested"],
        leaves: &["Stream::extents", "Extent::file"],
    };

/// Locks, in this order: `names`, `appends`, `manifested`; then `extents`, a leaf.
pub(crate) struct Inner {
    pub env: Env,
    pub dir: PathBuf,
    pub options: StreamOptions,
    pub read_only: bool,
    /// Locked by a link as long as the names of extents must stay, by erasures, and by releases,
    /// during which no extent may get a second name.
    pub names: RwLock<()>,
    appends: Mutex<Appends>,
    pub manifested: Mutex<Manifested>,
    pub extents: RwLock<BTreeMap<ExtentId, Arc<Extent>>>,
}

/// The extents that are not sealed.
struct Appends {
    /// The extent that is appended to.
    active: Option<Arc<Extent>>,
    /// Extents that take no more bytes.
    unsealed: Vec<Arc<Extent>>,
    /// Why the stream takes no more appends.
    failed: Option<Error>,
}

impl Appends {
    fn have_failed(&self) -> bool {
        self.failed.is_some()
            || self
                .unsealed
                .iter()
                .any(|extent| extent.append_has_failed())
    }
}

pub(crate) struct Manifested {
    manifest: Manifest,
    pub catalog: Catalog,
}

impl Stream {
    /// Makes an empty stream in a directory, which is made if it is missing. The stream survives a
    /// power cut once this call returned.
    ///
    /// Errors: `AlreadyExists` if there is a stream; `InvalidArgument` for a wrong option, or a
    /// directory with other files; `Corruption` if the directory has a stream without `CURRENT`.
    pub fn create(env: &Env, dir: impl AsRef<Path>, options: StreamOptions) -> Result<Stream> {
        options.validate()?;
        let dir = dir.as_ref();
        directory::prepare(env, dir)?;
        directory::install(env, dir, &[])?;
        Stream::open(env, dir, options)
    }

    /// Opens a stream. Extents that a crash left unsealed are sealed at their allocated length;
    /// their bytes that were never synced may be missing or garbage. Files that the manifest does
    /// not name are removed. Reads no extent.
    ///
    /// On a full disk the stream opens, too: extents are then sealed, and files removed, when there
    /// is space again.
    ///
    /// Errors: `NotFound` if there is no stream; `Corruption` if the manifest is damaged or an
    /// extent is missing or shorter than it was; `Unsupported` for a stream of a later version.
    pub fn open(env: &Env, dir: impl AsRef<Path>, options: StreamOptions) -> Result<Stream> {
        Stream::open_as(env, dir.as_ref(), options, false)
    }

    /// Opens a stream for reading, as it is now. Nothing is written, and calls that change it fail
    /// with `ReadOnly`. No process may change the stream meanwhile. Errors are those of
    /// [`Stream::open`]. A missing or truncated extent does not fail the call: [`Stream::damage`]
    /// returns an error for each, and reads of the missing bytes return the same error.
    pub fn open_read_only(
        env: &Env,
        dir: impl AsRef<Path>,
        options: StreamOptions,
    ) -> Result<Stream> {
        Stream::open_as(env, dir.as_ref(), options, true)
    }

    /// Opens all extent files of a directory for reading, in the order of their ids: for a salvage.
    /// It needs no manifest and no header of an extent. An extent is as long as its file, but not
    /// longer than the manifest says, if that can be read. Extents that were erased and whose files
    /// are still there are included. A missing directory is a stream without extents.
    ///
    /// Costs one device read for each extent.
    ///
    /// Errors: `InvalidArgument` for a wrong option; `Unsupported` for a stream of a later version;
    /// those of the filesystem.
    pub fn open_for_salvage(
        env: &Env,
        dir: impl AsRef<Path>,
        options: StreamOptions,
    ) -> Result<Stream> {
        options.validate()?;
        let dir = dir.as_ref();
        let known = match load(env, dir) {
            Ok((_, catalog)) => catalog.extents,
            Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
            Err(e) if e.is_damage() => BTreeMap::new(),
            Err(e) => return Err(e),
        };
        let files = match Stream::extent_files(env, dir) {
            Err(e) if e.is_not_found() => Vec::new(),
            files => files?,
        };
        let (mut catalog, mut extents) = (Catalog::default(), BTreeMap::new());
        for (seq, (id, path)) in (0..).zip(files) {
            let extent = Extent::existing(dir, id, None);
            let found = extent.stat(env)?.allocated;
            match env.fs().open(&path).and_then(|file| file.read(0, HEADER)) {
                Ok(header) => check_features(&header).map_err(|e| e.at(&path, 0))?,
                Err(e) if e.is_damage() => {}
                Err(e) => return Err(e),
            }
            let len = known.get(&id).and_then(|entry| entry.len);
            let len = len.map_or(found, |len| len.min(found));
            extent.set_len(len);
            let (life, len) = (0, Some(len));
            catalog.extents.insert(id, ExtentEntry { life, seq, len });
            extents.insert(id, Arc::new(extent));
        }
        let manifest = Manifest::unwritten(dir, 0, 0);
        let manifested = Manifested { manifest, catalog };
        let inner = Inner::new(env, dir, options, true, manifested, extents);
        Ok(Stream {
            inner: Arc::new(inner),
        })
    }

    /// Removes a stream, which must not be open. Extents that other streams have stay for those. A
    /// call that a crash interrupts leaves no stream; the next call removes the rest.
    pub fn destroy(env: &Env, dir: impl AsRef<Path>) -> Result<()> {
        directory::destroy(env, dir.as_ref())
    }

    /// Returns the files of a directory that have the name of an extent, in the order of their ids:
    /// for a salvage of a stream whose manifest cannot be read.
    ///
    /// Errors: `NotFound` if there is no such directory.
    pub fn extent_files(env: &Env, dir: impl AsRef<Path>) -> Result<Vec<(ExtentId, PathBuf)>> {
        let dir = dir.as_ref();
        let entries = env.fs().list(dir)?;
        let names = entries.iter().filter(|e| !e.is_dir).map(|e| &e.name);
        let mut files: Vec<_> = names
            .filter_map(|name| Some((ExtentId::of_file_name(name)?, dir.join(name))))
            .collect();
        files.sort_unstable();
        Ok(files)
    }

    fn open_as(env: &Env, dir: &Path, options: StreamOptions, read_only: bool) -> Result<Stream> {
        options.validate()?;
        let (number, catalog) = load(env, dir)?;
        let mut extents = BTreeMap::new();
        for (id, entry) in &catalog.extents {
            let mut extent = Extent::existing(dir, *id, Some(entry.life));
            match length(env, &extent, entry)? {
                (len, None) => extent.set_len(len),
                (_, Some(damage)) if !read_only => return Err(damage),
                (len, damage) => {
                    extent.set_len(len);
                    extent.damage = damage;
                }
            }
            extents.insert(*id, Arc::new(extent));
        }
        let manifested = Manifested {
            manifest: Manifest::unwritten(dir, number, catalog.stream_id),
            catalog,
        };
        let inner = Inner::new(env, dir, options, read_only, manifested, extents);
        if !read_only {
            inner.finish_open()?;
        }
        Ok(Stream {
            inner: Arc::new(inner),
        })
    }

    /// Appends bytes, and returns their address. They lie in one extent, one behind the other. They
    /// are volatile until [`Stream::sync`]; [`Intent`] says when that comes, and whether the bytes
    /// survive the death of the process before.
    ///
    /// Errors: `NoSpace` and `Io`, after which the next append begins another extent; `Poisoned`
    /// after a failed sync; `ReadOnly`; `InvalidArgument` for no bytes.
    pub fn append(&self, bufs: &[IoSlice<'_>], intent: Intent) -> Result<ExtentAddress> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.append_with(len, |extent, env| extent.append(env, bufs, intent))
    }

    /// Appends bytes that depend on their own address, for example checksums that cover it. `bind`
    /// gets the address, and completes the bytes before they are written. It must be quick: other
    /// appends wait for it.
    ///
    /// Promises and errors are those of [`Stream::append`].
    pub fn append_bound(
        &self,
        bytes: &mut [u8],
        intent: Intent,
        bind: impl FnOnce(ExtentAddress, &mut [u8]),
    ) -> Result<ExtentAddress> {
        self.append_with(bytes.len() as u64, |extent, env| {
            let at = ExtentAddress {
                extent: extent.id,
                offset: extent.file(env)?.len(),
            };
            bind(at, bytes);
            let offset = extent.append(env, &[IoSlice::new(bytes)], intent)?;
            debug_assert_eq!(offset, at.offset, "appends are serialised by the lock");
            Ok(offset)
        })
    }

    /// Appends `len` bytes to an extent that has space for them.
    fn append_with(
        &self,
        len: u64,
        append: impl FnOnce(&Extent, &Env) -> Result<u64>,
    ) -> Result<ExtentAddress> {
        let inner = &self.inner;
        if len == 0 {
            return Err(Error::invalid("an append to a stream has no bytes"));
        }
        inner.check_writable()?;
        let mut appends = inner.appends.lock();
        if let Some(e) = &appends.failed {
            return Err(e.clone());
        }
        let most = inner.options.extent_bytes;
        let has_room = |extent: &&Arc<Extent>| extent.len() + len <= most;
        let extent = match appends.active.as_ref().filter(has_room) {
            Some(extent) => extent.clone(),
            None => inner.begin_extent(&mut appends)?,
        };
        let appended = append(&extent, &inner.env);
        if appended.is_err() {
            // The handle takes no more appends.
            let ended = appends.active.take();
            appends.unsealed.extend(ended);
        }
        Ok(ExtentAddress {
            extent: extent.id,
            offset: appended?,
        })
    }

    /// Makes all bytes that were appended so far survive a power cut. Other threads may append
    /// meanwhile. Extents that are full are sealed, if the manifest can be written.
    ///
    /// Errors: after a failed sync it is unknown what is on the device, and the stream takes no
    /// more appends and syncs (`Poisoned`) until [`Stream::restart`].
    pub fn sync(&self) -> Result<()> {
        let sealed = self.inner.sync()?;
        // The bytes are durable. A seal that fails is repeated by the next call.
        drop(sealed);
        Ok(())
    }

    /// Makes all bytes durable as [`Stream::sync`] does, and seals the extent that is appended to.
    /// The next append begins another one.
    ///
    /// Errors: those of [`Stream::sync`]; those of the manifest, after which the bytes are durable
    /// and the extent is not sealed yet.
    pub fn seal(&self) -> Result<()> {
        self.inner.check_writable()?;
        let mut appends = self.inner.appends.lock();
        if appends.failed.is_none() {
            let active = appends.active.take();
            appends.unsealed.extend(active);
        }
        drop(appends);
        self.inner.sync()?
    }

    /// Returns true if the stream needs a [`Stream::restart`]: a sync has failed, and the stream
    /// takes no appends; or an append has failed, after which the next sync may fail.
    pub fn has_failed(&self) -> bool {
        self.inner.appends.lock().have_failed()
    }

    /// Goes on after a failed append or sync: extents that were not sealed end where the last
    /// successful sync left them. Bytes that were appended since are lost, also those of other
    /// threads, which must not rely on a later sync. Does nothing if nothing has failed.
    ///
    /// Errors: those of the manifest; then the call may be repeated.
    pub fn restart(&self) -> Result<()> {
        let inner = &self.inner;
        let mut appends = inner.appends.lock();
        if !appends.have_failed() {
            return Ok(());
        }
        let active = appends.active.take();
        appends.unsealed.extend(active);
        appends.unsealed.iter().for_each(|e| e.cut_to_synced());
        let ended = appends.unsealed.clone();
        drop(appends);
        inner.seal_all(&ended)?;
        inner.appends.lock().failed = None;
        Ok(())
    }

    /// Reads bytes. Costs one device read, and a second one for the header when an extent is read
    /// for the first time.
    ///
    /// Errors: `NotFound` if the stream does not have the extent; `Corruption` if the extent ends
    /// before, if its header is damaged, or for bytes of the header. Bytes between an append and
    /// the sync behind it, which no append returned, are undefined.
    pub fn read(&self, at: ExtentAddress, len: usize) -> Result<Bytes> {
        let request = self.read_request(at, len)?;
        let bytes = request.file.read(at.offset, len)?;
        match bytes.len() == len {
            true => Ok(bytes),
            false => {
                let path = self.inner.dir.join(at.extent.file_name());
                let what = format!("expected {len} bytes, found {}", bytes.len());
                Err(Error::corruption(&path, at.offset, what))
            }
        }
    }

    /// Returns the request of a read, for a batch of reads
    /// ([`FileSystem::submit_reads`](basalt_fs::FileSystem::submit_reads)). Its result can be
    /// shorter only if the file was cut. Errors are those of [`Stream::read`].
    pub fn read_request(&self, at: ExtentAddress, len: usize) -> Result<ReadRequest> {
        let inner = &self.inner;
        let extent = inner.readable(at, len)?;
        let file = extent.file(&inner.env).map_err(|e| {
            // An erasure beside this call has removed the name.
            match inner.extents.read().contains_key(&at.extent) {
                true => e,
                false => inner.unknown(at.extent),
            }
        })?;
        Ok(ReadRequest {
            file,
            offset: at.offset,
            len,
            lifetime: Lifetime::Cached,
        })
    }

    /// Removes extents from the stream, durably: after a crash they are all there or none is. Reads
    /// that have begun go on. An extent that another stream has stays for that one.
    ///
    /// Errors: `NotFound` if the stream does not have one of them, and `InvalidArgument` if one is
    /// not sealed; then none is removed. After an error of the filesystem, the extents are still
    /// there, and the next open may find them gone.
    pub fn erase(&self, extents: &[ExtentId]) -> Result<()> {
        let inner = &self.inner;
        inner.check_writable()?;
        let _names = inner.names.write();
        inner.install(|catalog| {
            let erase = |id: &ExtentId| match catalog.extents.get(id).map(|entry| entry.len) {
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

    /// Returns the bytes of an extent that may be read; `None` if the stream does not have it.
    pub fn extent_len(&self, extent: ExtentId) -> Option<u64> {
        (self.inner.extents.read().get(&extent)).map(|extent| extent.len())
    }

    /// Returns the damage of extents that are missing, or shorter than the manifest says. Only
    /// [`Stream::open_read_only`] opens a stream that has some.
    pub fn damage(&self) -> Vec<Error> {
        let extents = self.inner.extents.read();
        let damage = extents.values().filter_map(|extent| extent.damage.clone());
        damage.collect()
    }

    /// Returns the extents in their order: that of their beginnings, and of the streams of a
    /// concatenation.
    pub fn extents(&self) -> Vec<ExtentInfo> {
        let in_order = self.inner.extents_in_order();
        let extents = self.inner.extents.read();
        let info = |(id, entry): (ExtentId, ExtentEntry)| {
            let extent = extents.get(&id)?;
            let len = extent.len();
            Some(ExtentInfo {
                id,
                len,
                on_disk: extent.on_disk().min(len),
                sealed: entry.len.is_some(),
            })
        };
        in_order.into_iter().filter_map(info).collect()
    }
}

impl Inner {
    fn new(
        env: &Env,
        dir: &Path,
        options: StreamOptions,
        read_only: bool,
        manifested: Manifested,
        extents: BTreeMap<ExtentId, Arc<Extent>>,
    ) -> Inner {
        let of_catalog = manifested.catalog.extents.iter();
        let unsealed = of_catalog.filter(|(_, entry)| entry.len.is_none());
        let appends = Appends {
            active: None,
            unsealed: unsealed.map(|(id, _)| extents[id].clone()).collect(),
            failed: None,
        };
        Inner {
            env: env.clone(),
            dir: dir.to_path_buf(),
            options,
            read_only,
            names: named("Stream::names", RwLock::new(())),
            appends: named("Stream::appends", Mutex::new(appends)),
            manifested: named("Stream::manifested", Mutex::new(manifested)),
            extents: named("Stream::extents", RwLock::new(extents)),
        }
    }

    /// Returns true unless the stream was opened for a salvage.
    pub fn has_manifest(&self) -> bool {
        self.manifested.lock().catalog.stream_id != 0
    }

    pub fn check_writable(&self) -> Result<()> {
        match self.read_only {
            false => Ok(()),
            true => {
                let what = "the stream was opened for reading only";
                Err(Error::new(ErrorKind::ReadOnly, what).in_file(&self.dir))
            }
        }
    }

    pub fn unknown(&self, id: ExtentId) -> Error {
        let what = format!("the stream in {} has no extent {id}", self.dir.display());
        Error::new(ErrorKind::NotFound, what)
    }

    fn readable(&self, at: ExtentAddress, len: usize) -> Result<Arc<Extent>> {
        let extent = self.extents.read().get(&at.extent).cloned();
        let extent = extent.ok_or_else(|| self.unknown(at.extent))?;
        let (begin, limit) = (HEADER as u64, extent.len());
        let end = at.offset.checked_add(len as u64);
        match at.offset >= begin && end.is_some_and(|end| end <= limit) {
            true => Ok(extent),
            false => Err(extent.damage.clone().unwrap_or_else(|| {
                let what = match limit > begin {
                    true => {
                        format!("expected {len} bytes, the extent has bytes {begin} to {limit}")
                    }
                    false => format!("expected {len} bytes, the file has {limit} bytes"),
                };
                Error::corruption(&extent.path, at.offset, what)
            })),
        }
    }

    /// Returns the extents in their order.
    pub fn extents_in_order(&self) -> Vec<(ExtentId, ExtentEntry)> {
        self.manifested.lock().catalog.in_order()
    }

    /// Seals the extents that a crash left unsealed, and removes files that the manifest does not
    /// name. Nothing is removed before a fresh manifest is current: what the old one says may not
    /// be durable, and a power cut would then bring back an edit that names a removed file.
    fn finish_open(&self) -> Result<()> {
        let fs = self.env.fs();
        // An interrupted open may have left a manifest with the next number.
        let names = fs.list(&self.dir)?;
        let used = names
            .iter()
            .filter_map(|entry| manifest_number(&entry.name));
        let used = used.max().unwrap_or(0).min(LARGEST_NUMBER);
        let mut m = self.manifested.lock();
        m.catalog.next_manifest = m.catalog.next_manifest.max(used + 1);
        drop(m);
        let unsealed = self.appends.lock().unsealed.clone();
        // The bytes may only be in the page cache, if just the process died.
        let sync = |extent: &Arc<Extent>| fs.open(&extent.path)?.sync_all();
        let seal = |extent: &Arc<Extent>| Change::Seal(extent.id, extent.len());
        let done = unsealed
            .iter()
            .try_for_each(sync)
            .and_then(|()| self.install(|_| Ok(unsealed.iter().map(seal).collect())));
        match done {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(()),
            Err(e) => return Err(e),
        }
        self.appends.lock().unsealed.clear();
        self.remove_unnamed()
    }

    /// Removes the files that the manifest does not name. A file that cannot be removed stays.
    fn remove_unnamed(&self) -> Result<()> {
        let fs = self.env.fs();
        let m = self.manifested.lock();
        for entry in fs.list(&self.dir)?.iter().filter(|e| !e.is_dir) {
            let old_extent = ExtentId::of_file_name(&entry.name)
                .is_some_and(|id| !m.catalog.extents.contains_key(&id));
            let old_manifest =
                manifest_number(&entry.name).is_some_and(|number| number != m.manifest.number());
            if old_extent || old_manifest {
                let _ = fs.remove(&self.dir.join(&entry.name));
            }
        }
        Ok(())
    }

    /// Begins the next extent.
    fn begin_extent(&self, appends: &mut Appends) -> Result<Arc<Extent>> {
        // While the manifest is in doubt, each attempt would leave a file.
        self.install(|_| Ok(Vec::new()))?;
        let random = self.env.random();
        let id = loop {
            let id = ExtentId(random.next_u64());
            if !self.extents.read().contains_key(&id) {
                break id;
            }
        };
        let life = random.next_u128();
        let begun = Extent::create(&self.env, &self.dir, id, life).and_then(|extent| {
            // A manifest never names a file that is not there.
            self.env.fs().sync_metadata(&self.dir)?;
            self.install(|catalog| {
                let seq = catalog.next_seq;
                Ok(vec![Change::Add(NewExtent { id, life, seq })])
            })?;
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
        appends.unsealed.extend(full);
        Ok(extent)
    }

    /// Makes all bytes durable. The inner result is that of the seals.
    fn sync(&self) -> Result<Result<()>> {
        self.check_writable()?;
        let appends = self.appends.lock();
        if let Some(e) = &appends.failed {
            return Err(e.clone());
        }
        let unsealed = appends.unsealed.clone();
        // What a success of this call makes durable.
        let lens: Vec<(Arc<Extent>, u64)> = (appends.active.iter().chain(&unsealed))
            .map(|extent| (extent.clone(), extent.len()))
            .collect();
        let synced = match &appends.active {
            None => {
                drop(appends);
                Ok(())
            }
            Some(active) => {
                let file = active.file(&self.env)?;
                // The next append must not touch the sectors of this sync.
                let aligned = file.align_to_unit();
                drop(appends);
                aligned.and_then(|end| file.sync_data_to(end))
            }
        };
        let sync_all = |extent: &Arc<Extent>| extent.sync_all(&self.env);
        if let Err(e) = synced.and_then(|()| unsealed.iter().try_for_each(sync_all)) {
            let what =
                format!("an earlier sync of the stream failed: {e}; restart it, or open it again");
            let poisoned = Error::new(ErrorKind::Poisoned, what).in_file(&self.dir);
            self.appends.lock().failed = Some(poisoned);
            return Err(e);
        }
        lens.iter()
            .for_each(|(extent, len)| extent.note_synced(*len));
        Ok(self.seal_all(&unsealed))
    }

    /// Notes the lengths of extents that are synced and take no more bytes.
    fn seal_all(&self, synced: &[Arc<Extent>]) -> Result<()> {
        if synced.is_empty() {
            return Ok(());
        }
        self.install(|catalog| {
            let is_unsealed = |extent: &&Arc<Extent>| {
                (catalog.extents.get(&extent.id)).is_some_and(|entry| entry.len.is_none())
            };
            let seal = |extent: &Arc<Extent>| Change::Seal(extent.id, extent.len());
            Ok(synced.iter().filter(is_unsealed).map(seal).collect())
        })?;
        let is_sealed = |extent: &Arc<Extent>| synced.iter().any(|other| other.id == extent.id);
        let mut appends = self.appends.lock();
        appends.unsealed.retain(|extent| !is_sealed(extent));
        drop(appends);
        // The handles that appended are not needed any more.
        synced.iter().for_each(|extent| extent.close());
        Ok(())
    }

    /// Changes the catalog, durably. Without changes, only a manifest in doubt is replaced.
    fn install(&self, changes: impl FnOnce(&Catalog) -> Result<Vec<Change>>) -> Result<()> {
        let mut m = self.manifested.lock();
        let changes = changes(&m.catalog)?;
        if changes.is_empty() && !m.manifest.in_doubt() {
            return Ok(());
        }
        let mut catalog = m.catalog.clone();
        catalog.apply(&changes)?;
        let grown = m.manifest.bytes() > MANIFEST_LEAST.max(m.manifest.begun() * MANIFEST_GROWTH);
        if !grown && !m.manifest.in_doubt() {
            m.manifest.append(&catalog::encode(&changes))?;
            m.catalog = catalog;
            return Ok(());
        }
        let number = catalog.next_manifest.max(m.manifest.number() + 1);
        catalog.next_manifest = number + 1;
        // If the attempt fails, the name is taken.
        m.catalog.next_manifest = catalog.next_manifest;
        let state = catalog::encode(&catalog.changes());
        let (fs, old) = (self.env.fs(), m.manifest.number());
        match Manifest::create(&self.env, &self.dir, catalog.stream_id, number, &state) {
            Ok(manifest) => m.manifest = manifest,
            // Without space, nothing has replaced `CURRENT`: the old manifest goes on.
            Err(e) if e.kind() == ErrorKind::NoSpace && !self.names(number) => {
                let _ = fs.remove(&manifest_path(&self.dir, number));
                if m.manifest.in_doubt() {
                    return Err(e);
                }
                m.manifest.append(&catalog::encode(&changes))?;
                m.catalog.apply(&changes)?;
                return Ok(());
            }
            Err(e) => {
                // Either manifest may be the current one.
                m.manifest.doubt();
                return Err(e);
            }
        }
        m.catalog = catalog;
        // An old manifest that stays is removed by the next open.
        let _ = fs.remove(&manifest_path(&self.dir, old));
        Ok(())
    }

    /// Returns true if `CURRENT` may name a manifest.
    fn names(&self, number: u64) -> bool {
        let current = read_current(&self.env, &self.dir);
        !matches!(current, Ok(Some(current)) if current.number != number)
    }
}

/// Reads the manifest. Returns its number and what it says.
fn load(env: &Env, dir: &Path) -> Result<(u64, Catalog)> {
    let Some(current) = read_current(env, dir)? else {
        return Err(directory::no_stream(env, dir)?);
    };
    if current.number > LARGEST_NUMBER {
        let what = format!("the number of the manifest is {}", current.number);
        return Err(Error::corruption(&dir.join(CURRENT), 0, what));
    }
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
    Ok((current.number, catalog))
}

/// Returns the bytes of an extent that may be read, and the damage if the file is missing or
/// shorter than the manifest says.
fn length(env: &Env, extent: &Extent, entry: &ExtentEntry) -> Result<(u64, Option<Error>)> {
    let found = match extent.stat(env) {
        Ok(found) => found.allocated,
        Err(e) if e.kind() == ErrorKind::Corruption => return Ok((0, Some(e))),
        Err(e) => return Err(e),
    };
    let Some(len) = entry.len.filter(|len| *len > found) else {
        return Ok((entry.len.unwrap_or(found), None));
    };
    let what = format!("the extent has {found} bytes, and the manifest says that it has {len}");
    Ok((found, Some(Error::corruption(&extent.path, found, what))))
}
