//! Scans over the keyspace: the keys of the store, merged with the writes that are not in it yet.

use super::Keyspace;
use super::overlay::OverlayEntry;
use super::pending_writes::{self, NewestVersion};
use crate::catalog::DATABASE;
use crate::layer::Layer;
use crate::layout::{self, DataType};
use crate::store::StoreView;
use basalt::{Bytes, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// A captured state of the keyspace, for a scan on another thread.
pub(crate) struct Capture {
    pub view: Box<dyn StoreView>,
    overlay: Vec<(Bytes, NewestVersion)>,
    layers: Vec<(u64, Arc<Layer>)>,
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub now_ms: u64,
    pub changes: u64,
}

/// Called with a Redis key, its type and its expiry. The result false ends the scan.
pub(crate) type KeyVisitor<'a> = dyn FnMut(&[u8], DataType, Option<u64>) -> bool + 'a;

impl Keyspace {
    /// Returns the bounds of the engine keys whose Redis keys begin with `prefix`.
    pub fn bounds(&self, prefix: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let from = [
            &layout::key_prefix(DATABASE, self.generation)[..],
            &prefix[..prefix.len().min(layout::MAX_KEY_LEN)],
        ]
        .concat();
        let to = layout::prefix_end(&from);
        (from, to)
    }

    /// Makes the running command depend on everything that is not in the store yet.
    pub fn touch_all(&mut self) {
        self.touch_flush();
        for (slot, epoch) in self.epochs.iter().enumerate() {
            if epoch.as_ref().is_some_and(|e| !e.is_empty()) {
                self.touched |= 1 << slot;
            }
        }
    }

    /// Visits live keys (without their prefix) in `[from, to)` in order, with their type. The
    /// result false ends the scan. It visits about `work` keys, live or not, and counts a long
    /// value as several, because the loop waits for it. Then it returns the key to continue with.
    pub fn scan(
        &mut self,
        from: &[u8],
        to: &[u8],
        work: u64,
        visit: &mut dyn FnMut(&[u8], DataType) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        self.touch_all();
        if from >= to {
            return Ok(None);
        }
        let view = self.store.view();
        let overlay = self
            .overlay
            .range::<[u8], _>((
                std::ops::Bound::Included(from),
                std::ops::Bound::Excluded(to),
            ))
            .map(|(k, v)| (&k[..], self.newest_version(v)));
        let layers = self.layers.iter().map(|l| (l.rank, &**l.layer.layer()));
        let paused = merge(
            &*view,
            pending_writes::merged(overlay, layers, from, to),
            from,
            to,
            self.now_ms,
            work,
            &mut |k, t, _| visit(k, t),
        )?;
        Ok(paused.map(redis_key))
    }

    /// Returns an upper end of the keys in `[from, to)`: about the last one of store and overlay,
    /// even if it is deleted. `work` is as for [`Keyspace::scan`].
    pub fn last(&self, from: &[u8], to: &[u8], work: u64) -> Result<Option<Vec<u8>>> {
        let range = Bytes::copy_from_slice(from)..Bytes::copy_from_slice(to);
        let above = self.overlay.range(range).next_back();
        let stored = self.store.view().last(from, to, work)?;
        let layers = self
            .layers
            .iter()
            .map(|l| pending_writes::last(l.layer.layer(), from, to));
        let last = above.map(|(k, _)| k.to_vec()).max(stored);
        let last = last.max(layers.max().flatten());
        Ok(last.map(redis_key))
    }

    /// Captures everything with a prefix, for a scan on another thread.
    pub fn capture(&mut self, prefix: &[u8]) -> Capture {
        self.touch_all();
        let (from, to) = self.bounds(prefix);
        Capture {
            view: self.store.view(),
            overlay: self
                .overlay
                .range(Bytes::copy_from_slice(&from)..Bytes::copy_from_slice(&to))
                .map(|(k, v)| (k.clone(), self.newest_version(v)))
                .collect(),
            layers: (self.layers.iter())
                .map(|l| (l.rank, l.layer.layer().clone()))
                .collect(),
            from,
            to,
            now_ms: self.now_ms,
            changes: self.changes,
        }
    }
}

/// Returns an engine key without its prefix.
fn redis_key(mut key: Vec<u8>) -> Vec<u8> {
    key.drain(..layout::KEY_PREFIX_LEN);
    key
}

impl Capture {
    /// Visits live keys with type and expiry. The result false ends the scan.
    pub fn scan(&self, visit: &mut KeyVisitor<'_>) -> Result<()> {
        self.scan_from(&self.from, visit)
    }

    /// Visits live keys like [`Capture::scan`], from an engine key on.
    pub fn scan_from(&self, from: &[u8], visit: &mut KeyVisitor<'_>) -> Result<()> {
        let skipped = self.overlay.partition_point(|(k, _)| &k[..] < from);
        let overlay = self.overlay[skipped..].iter().map(|(k, v)| (&k[..], *v));
        let layers = self.layers.iter().map(|(rank, layer)| (*rank, &**layer));
        let paused = merge(
            &*self.view,
            pending_writes::merged(overlay, layers, from, &self.to),
            from,
            &self.to,
            self.now_ms,
            u64::MAX,
            visit,
        )?;
        assert!(paused.is_none(), "nothing pauses without a bound");
        Ok(())
    }
}

/// Returns the type and expiry of a value in the store. A separated value is a string.
fn stored_entry(value: Option<&[u8]>, expire_at_ms: Option<u64>) -> Result<OverlayEntry> {
    let Some(value) = value else {
        return Ok(OverlayEntry {
            data_type: DataType::String,
            expire_at_ms,
        });
    };
    Ok(OverlayEntry {
        data_type: layout::value_type(value)?,
        expire_at_ms: layout::expiry_of(value, expire_at_ms)?,
    })
}

/// Bytes of an inline value that count as another visited key, because they were read as well.
const WORK_UNIT: u64 = 4 << 10;

/// Merges a view with the writes over it. Both are in order. After about `work` keys it returns the
/// engine key to continue with.
fn merge<'a>(
    view: &dyn StoreView,
    overlay: impl Iterator<Item = (Cow<'a, [u8]>, Option<OverlayEntry>)>,
    from: &[u8],
    to: &[u8],
    now_ms: u64,
    work: u64,
    visit: &mut KeyVisitor<'_>,
) -> Result<Option<Vec<u8>>> {
    let mut overlay = overlay.peekable();
    let mut going = true;
    let mut failed = None;
    let mut left = work;
    let mut paused = None;
    let mut show = |key: &[u8], entry: Option<OverlayEntry>, value_len: usize| {
        if left == 0 {
            paused = Some(key.to_vec());
            return false;
        }
        left = left.saturating_sub(1 + value_len as u64 / WORK_UNIT);
        match entry {
            Some(e) if e.expire_at_ms.is_none_or(|at| at > now_ms) => {
                let (_, _, key) = layout::decode_key(key).expect("scans stay inside a database");
                visit(key, e.data_type, e.expire_at_ms)
            }
            _ => true,
        }
    };
    let stopped_at = view.scan(from, to, work, &mut |key, value, expire_at_ms| {
        while let Some((k, entry)) = overlay.next_if(|(k, _)| **k < *key) {
            going = show(&k, entry, 0);
            if !going {
                return false;
            }
        }
        let entry = match overlay.next_if(|(k, _)| **k == *key) {
            Some((_, entry)) => entry,
            None => match stored_entry(value, expire_at_ms) {
                Ok(entry) => Some(entry),
                Err(e) => {
                    failed = Some(e);
                    going = false;
                    return false;
                }
            },
        };
        going = show(key, entry, value.map_or(0, <[u8]>::len));
        going
    })?;
    if let Some(e) = failed {
        return Err(e);
    }
    for (k, entry) in overlay {
        // Keys that the store did not visit may lie in between.
        going = going && stopped_at.as_ref().is_none_or(|at| k[..] < at[..]) && show(&k, entry, 0);
        if !going {
            break;
        }
    }
    Ok(paused.or(stopped_at))
}
