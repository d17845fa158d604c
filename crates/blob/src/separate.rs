//! Separates values on their way into tables: a flush or a merge passes large values and gets the
//! references that the tables hold.

use super::counters::CompressionCounters;
use super::{
    BlobBuilder, BlobMeta, BlobOptions, Form, Name, Reference, blob_name, compressed, record,
};
use basalt_env::store_dir::{Created, StoreDir};
use basalt_env::{CacheKey, CachePriority, Env, IoPriority};
use basalt_fs::{AlignedBuf, Bytes, Lifetime, Result, slot_size};
use basalt_kv::codec::Compression;
use basalt_kv::codec::Effort;
use basalt_kv::key::Kind;
use std::sync::Arc;

/// Bytes at which a blob file ends, after the user key that reaches them.
pub(crate) const BLOB_BYTES: u64 = 64 << 20;

/// Returns the number of the next file.
pub type NewNumber<'a> = Box<dyn Fn() -> u64 + Send + 'a>;

/// Writes blob files one after the other. Each is created when its first value comes. If the
/// separator is dropped unfinished, it removes its files.
pub struct Separator<'a> {
    // This field is dropped before `created`, so that no builder is alive when its file is removed.
    open: Option<(u64, BlobBuilder)>,
    created: Created,
    env: Env,
    store: Arc<dyn StoreDir>,
    new_number: NewNumber<'a>,
    io: IoPriority,
    /// True if values may be compressed.
    may_compress: bool,
    /// True if a caller waits for prepared tables.
    prepares: bool,
    /// True if references name the sequence number of their record.
    names_seq: bool,
    /// True if index pages go into the cache, and true if records do.
    warm: (bool, bool),
    made: Vec<(u64, BlobMeta)>,
    payload: Vec<u8>,
    counts: Arc<CompressionCounters>,
}

impl<'a> Separator<'a> {
    /// Makes a separator that writes files into the store's directory, with numbers from
    /// `new_number`. With `warm_cache`, index pages and records go into the cache as they are
    /// written.
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
            may_compress: false,
            prepares: false,
            names_seq: false,
            warm: (warm_cache, warm_cache),
            made: Vec::new(),
            payload: Vec::new(),
            counts: env.metrics().group(),
        }
    }

    /// Allows compressed values, and values to be compressed. The files' headers say so.
    pub fn with_compressed(mut self, may_compress: bool) -> Separator<'a> {
        self.may_compress = may_compress;
        self
    }

    /// Makes references name their record's sequence number, because the entries get their own
    /// sequence numbers later.
    pub fn of_prepared(mut self) -> Separator<'a> {
        self.prepares = true;
        self.of_pages()
    }

    /// Makes references name their record's sequence number, because entries in pages have none.
    pub fn of_pages(mut self) -> Separator<'a> {
        self.names_seq = true;
        self
    }

    /// Sets whether index pages go into the cache, independently of records.
    pub fn warm_index(&mut self, warm: bool) {
        self.warm.0 = warm;
    }

    /// Returns true for a payload that a family with this `min_blob_size` keeps out of its tables.
    #[inline]
    pub fn wants(min_blob_size: Option<usize>, kind: Kind, payload: &[u8]) -> bool {
        let Some(least) = min_blob_size else {
            return false;
        };
        match kind {
            Kind::Put => payload.len() >= least,
            // The value follows its expiry of 8 bytes.
            Kind::PutTtl => payload.len() >= least.saturating_add(8),
            _ => false,
        }
    }

    /// Begins another user key. A file may end only here.
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

    /// Writes the payload of an entry of kind `Put` or `PutTtl`, compressed by `codec` if that is
    /// worth it. Returns the bytes that stand in the table instead, which are valid until the next
    /// call.
    pub fn put(
        &mut self,
        name: &Name<'_>,
        kind: Kind,
        payload: &[u8],
        codec: Compression,
    ) -> Result<&[u8]> {
        // A caller waits for prepared tables.
        let effort = match self.prepares {
            true => Effort::Writer,
            false => Effort::Background,
        };
        let compressed = compressed::pack(kind, codec, effort, payload, |form, stored| {
            self.counts.note(payload.len(), stored.len());
            self.put_stored(name, form, stored)
        });
        match compressed {
            None => self.put_stored(name, &Form::plain(kind, payload), payload)?,
            Some(done) => {
                done?;
                self.warm(self.last_cached(), name, kind, payload);
            }
        }
        Ok(&self.payload)
    }

    /// Writes a value whose stored bytes are given. The reference stays inside the separator and is
    /// not returned.
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
            seq: Some(name.seq).filter(|_| self.names_seq),
        };
        reference.encode(&mut self.payload);
        Ok(())
    }

    /// Returns the number of the file that has the last payload, the record's rank among that
    /// file's records, and the file's id.
    pub fn last(&self) -> (u64, u32, u128) {
        let (number, builder) = self.open.as_ref().expect("a payload was taken");
        (*number, builder.records() as u32 - 1, builder.file_id())
    }

    /// Puts a record of another file into the cache, in the same way as records that are written
    /// here.
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

    /// Returns the cache key of the record with the last payload.
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
            compressed: self.may_compress,
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

    /// Ends the last file and returns all files, which the caller then owns. Data is durable, names
    /// are not: the caller syncs the directory.
    pub fn finish(mut self) -> Result<Vec<(u64, BlobMeta)>> {
        self.end_file()?;
        self.created.keep();
        Ok(std::mem::take(&mut self.made))
    }
}
