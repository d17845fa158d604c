//! The index from a key's hash to an entry's slot: open addressing, linear probing, eight bytes for
//! each place.
//!
//! The low 32 bits of the hash are kept beside the slot number. They give the home place, so
//! growing and removing read no entry. They also reject nearly every other key, so a lookup reads
//! one entry.

/// At most three of four places are taken, so a probe always ends.
#[derive(Default)]
pub(super) struct Index {
    places: Vec<u64>,
    taken: usize,
}

const EMPTY: u64 = u64::MAX;

fn tag(hash: u64) -> u32 {
    hash as u32
}

impl Index {
    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    /// Returns the place of the first entry with this hash for which `is_it` is true.
    fn find_place(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut at = tag(hash) as usize & self.mask();
        loop {
            let place = self.places[at];
            if place == EMPTY {
                return None;
            }
            if (place >> 32) as u32 == tag(hash) && is_it(place as u32) {
                return Some(at);
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Returns the slot for which `is_it` is true, among those with this hash.
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let at = self.find_place(hash, is_it)?;
        Some(self.places[at] as u32)
    }

    /// Adds a slot that is not in the index. Returns true if the index grew.
    pub(super) fn add(&mut self, hash: u64, slot: u32) -> bool {
        let grow = (self.taken + 1) * 4 > self.places.len() * 3;
        if grow {
            let size = (self.places.len() * 2).max(16);
            let old = std::mem::replace(&mut self.places, vec![EMPTY; size]);
            for place in old.into_iter().filter(|p| *p != EMPTY) {
                self.put(place);
            }
        }
        self.put(u64::from(tag(hash)) << 32 | u64::from(slot));
        self.taken += 1;
        grow
    }

    fn put(&mut self, place: u64) {
        let mut at = (place >> 32) as usize & self.mask();
        while self.places[at] != EMPTY {
            at = (at + 1) & self.mask();
        }
        self.places[at] = place;
    }

    /// Removes a slot. Slots that were pushed past it move back, so no tombstones accumulate.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let mut hole = self
            .find_place(hash, |s| s == slot)
            .expect("every entry is in the index");
        let mask = self.mask();
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let place = self.places[at];
            if place == EMPTY {
                break;
            }
            let home = (place >> 32) as usize & mask;
            // The slot may move into the hole unless its home lies cyclically in (hole, at].
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = place;
                hole = at;
            }
        }
        self.places[hole] = EMPTY;
        self.taken -= 1;
    }

    /// Returns the number of places, taken or not.
    pub(super) fn size(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests;
