//! Separating values on their way into tables: a flush or a merge hands large ones over and gets the references that the tables hold.

use super::counts::PackCounts;
use super::{BlobBuilder, BlobMeta, BlobOptions, Form, Name, Reference, blob_name, packed, record};
use basalt_env::store_dir::{Created, StoreDir};
use basalt_env::{CacheKey, CachePriority, Env, IoPriority};
use basalt_fs::{AlignedBuf, Bytes, Lifetime, Result, slot_size};
use basalt_kv::codec::Compression;
use basalt_kv::codec::Effort;
use basalt_kv::key::Kind;
use std::sync::Arc;

/// A blob file ends with the user key that makes it so long.
pub(crate) const BLOB_BYTES: u64 = 64 << 20;

/// Gives the number of the next file.
pub type NewNumber<'a> = Box<dyn Fn() -> u64 + Send + 'a>;

/// Writes blob files one after the other, each begun when a value comes. Dropped unfinished, it removes what it made.
pub struct Separator<'a> {
    // Dropped before `created`, so that no builder is alive when its file goes.
    open: Option<(u64, BlobBuilder)>,
    created: Created,
    env: Env,
    store: Arc<dyn StoreDir>,
    new_number: NewNumber<'a>,
    io: IoPriority,
    /// Values may come that are compressed.
    packs: bool,
    /// Entries get other sequence numbers than records.
    prepares: bool,
    /// Index pages go into the cache, and records.
    warm: (bool, bool),
    made: Vec<(u64, BlobMeta)>,
    payload: Vec<u8>,
    counts: PackCounts,
}

impl<'a> Separator<'a> {
    /// Writes files into the store's folder, with numbers that `new_number` gives. With `warm_cache` they go into the cache on the way out.
    pub fn new(
        env: &Env,
        store: Arc<dyn StoreDir>,
        new_number: NewNumber<'a>,
        io: IoPriority,
        warm_cache: bool,
    ) -> Separator<'a> {
        Separator {
            open: None,
            created: Created::new(store.clone()),
            env: env.clone(),
            store,
            new_number,
            io,
            packs: false,
            prepares: false,
            warm: (warm_cache, warm_cache),
            made: Vec::new(),
            payload: Vec::new(),
            counts: PackCounts::of(env),
        }
    }

    /// Values may come that are compressed, or are to be: the files say so.
    pub fn with_packed(mut self, packs: bool) -> Separator<'a> {
        self.packs = packs;
        self
    }

    /// The entries of what comes get their sequence numbers later: references say which the records have.
    pub fn of_prepared(mut self) -> Separator<'a> {
        self.prepares = true;
        self
    }

    /// Indexes go into the cache or not, whatever records do.
    pub fn warm_index(&mut self, warm: bool) {
        self.warm.0 = warm;
    }

    /// True for a payload that a family with this `min_blob_size` keeps out of its tables.
    #[inline]
    pub fn wants(min_blob_size: Option<usize>, kind: Kind, payload: &[u8]) -> bool {
        let Some(least) = min_blob_size else {
            return false;
        };
        match kind {
            Kind::Put => payload.len() >= least,
            // Behind its expiry.
            Kind::PutTtl => payload.len() >= least + 8,
            _ => false,
        }
    }

    /// Another user key begins: the only place where a file may end.
    pub fn begin_user_key(&mut self) -> Result<()> {
        if self
            .open
            .as_ref()
            .is_some_and(|(_, b)| b.size() >= BLOB_BYTES)
        {
            self.end_file()?;
        }
        Ok(())
    }

    /// Takes the payload of an entry of kind `Put` or `PutTtl`, which is compressed so if that is worth it. What stands in the table instead, until
    /// the next call.
    pub fn put(
        &mut self,
        name: &Name<'_>,
        kind: Kind,
        payload: &[u8],
        codec: Compression,
    ) -> Result<&[u8]> {
        // Somebody waits for what is prepared.
        let effort = match self.prepares {
            true => Effort::Writer,
            false => Effort::Background,
        };
        let packed = packed::pack(kind, codec, effort, payload, |form, stored| {
            self.counts.packed(payload.len(), stored.len());
            self.put_stored(name, form, stored)
        });
        match packed {
            None => self.put_stored(name, &Form::plain(kind, payload), payload)?,
            Some(done) => {
                done?;
                self.warm(self.last_cached(), name, kind, payload);
            }
        }
        Ok(&self.payload)
    }

    /// As [`Separator::put`], of a value that is stored as these bytes already. Nothing is told of its reference.
    pub fn put_stored(&mut self, name: &Name<'_>, form: &Form, stored: &[u8]) -> Result<()> {
        if self.open.is_none() {
            self.open = Some(self.begin_file()?);
        }
        let (number, builder) = self.open.as_mut().expect("just made");
        builder.add(name, form, stored)?;
        let expiry = stored.first_chunk().map(|at| u64::from_le_bytes(*at));
        self.payload.clear();
        let reference = Reference {
            number: *number,
            expire_at_ms: expiry.filter(|_| form.kind == Kind::PutTtl),
            seq: Some(name.seq).filter(|_| self.prepares),
        };
        reference.encode(&mut self.payload);
        Ok(())
    }

    /// The file that the last payload went to, its place among that file's records, and the file's id.
    pub fn last(&self) -> (u64, u32, u128) {
        let (number, builder) = self.open.as_ref().expect("a payload was taken");
        (*number, builder.records() as u32 - 1, builder.file_id())
    }

    /// Puts a record that lies elsewhere into the cache, as those that are written here.
    pub fn warm(&self, at: CacheKey, name: &Name<'_>, kind: Kind, payload: &[u8]) {
        let (cache, len) = (
            self.env.cache(),
            record::HEADER_LEN + name.key.len() + payload.len(),
        );
        if !self.warm.1 || !cache.takes(len) {
            return;
        }
        let mut head = Vec::with_capacity(len - payload.len());
        let form = Form::plain(kind, payload);
        record::encode_head(&mut head, at.file, at.offset, name, &form);
        let mut bytes = AlignedBuf::with_lifetime(len, Lifetime::Cached);
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(payload);
        let charge = slot_size(len);
        cache.insert(at, Bytes::from_owner(bytes), charge, CachePriority::Normal);
    }

    /// Where the record of the last payload would be in the cache.
    pub fn last_cached(&self) -> CacheKey {
        let (_, builder) = self.open.as_ref().expect("a payload was taken");
        builder.last()
    }

    fn begin_file(&mut self) -> Result<(u64, BlobBuilder)> {
        let number = (self.new_number)();
        let path = self.store.dir().join(blob_name(number));
        let file = self.created.create(&path)?;
        let options = BlobOptions {
            file_id: self.env.random().next_u128(),
            io: self.io,
            warm_cache: self.warm.0,
            warm_records: self.warm.1,
            packed: self.packs,
        };
        let mut builder = BlobBuilder::new(&self.env, file, &path, options);
        if self.prepares {
            builder.write_behind();
        }
        Ok((number, builder))
    }

    fn end_file(&mut self) -> Result<()> {
        if let Some((number, builder)) = self.open.take() {
            self.made.push((number, builder.finish()?));
        }
        Ok(())
    }

    /// Ends the last file. Data is durable, names are not: sync the directory. From here on the files are the caller's.
    pub fn finish(mut self) -> Result<Vec<(u64, BlobMeta)>> {
        self.end_file()?;
        self.created.keep();
        Ok(std::mem::take(&mut self.made))
    }
}
