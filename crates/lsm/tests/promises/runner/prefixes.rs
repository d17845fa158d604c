//! Scans of one prefix, if the options have prefixes: the filters must not hide a key.

use super::Runner;
use crate::history::{FAMILIES, key_bytes, options, prefix_of};

impl Runner {
    /// Compares a walk over all of the key's prefix from the key on, then back to its first key.
    /// The walk adds nothing to the digest of answers, since the options decide whether it is done.
    pub(super) fn scan_prefix(&mut self, family: usize, key: u16, snapshot: Option<u8>) {
        let name = FAMILIES[family];
        let Some(handle) = self.families.get(name).cloned() else {
            return;
        };
        let family_options = options(self.options).family(name).clone();
        let Some(extractor) = family_options.prefix_extractor else {
            return;
        };
        let key = key_bytes(key);
        let Some(prefix) = prefix_of(&extractor, &key) else {
            return;
        };
        let (read, table) = self.view(snapshot, name);
        let read = read
            .prefix_same_as_start(true)
            .fill_cache(!self.nonce.is_multiple_of(2));
        let now = self.now();
        let of_prefix = |k: &[u8]| prefix_of(&extractor, k).as_ref() == Some(&prefix);
        let live = table.iter().filter(|(k, _)| of_prefix(k));
        let all: Vec<(Vec<u8>, Vec<u8>)> = live
            .filter_map(|(k, e)| Some((k.clone(), e.shown(now)?.value)))
            .collect();
        let behind = all.partition_point(|(k, _)| *k < key);

        let shown = (|| {
            let mut it = self.db.as_ref().expect("open").iter(&handle, &read)?;
            let mut shown = Vec::new();
            it.seek(&key)?;
            while it.valid() {
                shown.push((it.key().to_vec(), it.value().to_vec()));
                it.next()?;
            }
            let up = shown.len();
            it.seek_for_prev(&key)?;
            while it.valid() {
                shown.push((it.key().to_vec(), it.value().to_vec()));
                it.prev()?;
            }
            Ok((shown, up))
        })();
        let Some((mut shown, up)) = self.allow("scanning a prefix", shown) else {
            return;
        };
        let mut down = shown.split_off(up);
        down.reverse();
        assert!(
            shown == all[behind..],
            "{name}: from {key:?} on, prefixes {extractor:?}, snapshot {snapshot:?}"
        );
        let to = behind + usize::from(all.get(behind).is_some_and(|(k, _)| *k == key));
        assert!(
            down == all[..to],
            "{name}: back from {key:?}, prefixes {extractor:?}, snapshot {snapshot:?}"
        );
    }
}
