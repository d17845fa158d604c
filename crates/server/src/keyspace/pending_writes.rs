//! Writes that are not in the store yet, in the order of keys: the overlay's versions and the
//! layers' writes.

use super::overlay::OverlayEntry;
use crate::layer::Layer;
use crate::layout::{DataType, KEY_PREFIX_LEN};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::iter::Peekable;

/// The newest version of a key in the overlay.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewestVersion {
    /// Position of the version among all writes; 0 if there are no layers.
    pub rank: u64,
    pub entry: Option<OverlayEntry>,
}

/// Returns the keys of a layer in a range of the store, as positions in the order of the layer's
/// keys.
fn range(layer: &Layer, from: &[u8], to: &[u8]) -> std::ops::Range<usize> {
    let prefix = layer.prefix();
    let begin = match from.split_at_checked(KEY_PREFIX_LEN) {
        Some((own, key)) if own == prefix => layer.place(key),
        _ if from <= &prefix[..] => 0,
        _ => layer.len(),
    };
    let end = match to.split_at_checked(KEY_PREFIX_LEN) {
        Some((own, key)) if own == prefix => layer.place(key),
        _ if to <= &prefix[..] => 0,
        _ => layer.len(),
    };
    begin..end.max(begin)
}

/// Returns the last engine key of a layer in a range of the store.
pub(super) fn last(layer: &Layer, from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let last = range(layer, from, to).next_back()?;
    Some([&layer.prefix()[..], layer.nth(last).0].concat())
}

struct Cursor<'a> {
    rank: u64,
    layer: &'a Layer,
    left: std::ops::Range<usize>,
}

impl<'a> Cursor<'a> {
    fn key(&self) -> Option<&'a [u8]> {
        (!self.left.is_empty()).then(|| self.layer.nth(self.left.start).0)
    }
}

/// Returns the newest write of each key in a range of the store, in the order of keys. The range
/// lies in one generation.
pub(super) fn merged<'a>(
    overlay: impl Iterator<Item = (&'a [u8], NewestVersion)>,
    layers: impl Iterator<Item = (u64, &'a Layer)>,
    from: &[u8],
    to: &[u8],
) -> impl Iterator<Item = (Cow<'a, [u8]>, Option<OverlayEntry>)> {
    let layers = layers.filter(|(_, layer)| from.starts_with(layer.prefix()));
    let cursor = |(rank, layer)| Cursor {
        rank,
        layer,
        left: range(layer, from, to),
    };
    Merged {
        overlay: overlay.peekable(),
        layers: layers.map(cursor).collect(),
    }
}

struct Merged<'a, I: Iterator<Item = (&'a [u8], NewestVersion)>> {
    overlay: Peekable<I>,
    layers: Vec<Cursor<'a>>,
}

impl<'a, I: Iterator<Item = (&'a [u8], NewestVersion)>> Iterator for Merged<'a, I> {
    type Item = (Cow<'a, [u8]>, Option<OverlayEntry>);

    fn next(&mut self) -> Option<Self::Item> {
        let least = self.layers.iter().filter_map(Cursor::key).min();
        let Some(key) = least else {
            let (key, over) = self.overlay.next()?;
            return Some((key.into(), over.entry));
        };
        let order = self
            .overlay
            .peek()
            .map_or(Ordering::Greater, |(stored, _)| {
                stored[KEY_PREFIX_LEN..].cmp(key)
            });
        let mut newest = None;
        if order != Ordering::Greater {
            let (stored, over) = self.overlay.next()?;
            if order == Ordering::Less {
                return Some((stored.into(), over.entry));
            }
            newest = Some((over.rank, over.entry));
        }
        let mut prefix = &[0; KEY_PREFIX_LEN];
        for cursor in &mut self.layers {
            if cursor.key() != Some(key) {
                continue;
            }
            prefix = cursor.layer.prefix();
            let is_there = cursor.layer.nth(cursor.left.start).1;
            cursor.left.start += 1;
            if newest.is_none_or(|(rank, _)| rank < cursor.rank) {
                let string = OverlayEntry {
                    data_type: DataType::String,
                    expire_at_ms: None,
                };
                newest = Some((cursor.rank, is_there.then_some(string)));
            }
        }
        let stored = [&prefix[..], key].concat();
        newest.map(|(_, entry)| (stored.into(), entry))
    }
}
