//! The steps of an epoch in the keyspace. An epoch is submitted as one batch of the store, ends in
//! an order that the module [`super`] defines, and removes its writes from the overlay.

use super::{Ended, Epoch, Keyspace};
use crate::epoch::SLOTS;
use crate::layout;
use crate::store::{CommitCallback, ElementWrite, Write};
use basalt::Result;
use smallvec::SmallVec;

impl Keyspace {
    /// Submits the open epoch if it holds writes, depends on nothing and another may be in flight.
    /// Returns true if it was submitted.
    pub fn submit(&mut self, sync: bool, done: impl FnOnce(usize) -> CommitCallback) -> bool {
        let slot = self.open;
        let open = self.epochs[slot].as_ref().expect("always there");
        // The writes to tables of an earlier epoch must be submitted first.
        if self.two_part.is_some() {
            return false;
        }
        if open.is_empty() || open.depends_on != 0 || self.in_flight == self.limits.in_flight {
            return false;
        }
        let flushed = open.flushed_from.is_some();
        let most = open.keys.len() + usize::from(open.layers) + 1 + open.elements.len();
        let mut writes = Vec::with_capacity(most);
        for key in &open.keys {
            // Keys of a generation that this epoch itself ended need not be written to the store.
            let (_, generation, _) = layout::decode_key(key).expect("a Redis key");
            if flushed && generation < open.flushed_to {
                continue;
            }
            let versions = self
                .overlay
                .get(key)
                .expect("an epoch's keys are in the overlay");
            let version = versions
                .iter()
                .find(|v| usize::from(v.slot) == slot)
                .expect("with its version");
            let write = match &version.value {
                Some(value) => Write::Put {
                    key: key.clone(),
                    value: value.clone(),
                },
                None => Write::Delete { key: key.clone() },
            };
            writes.push((open.rank(2 * version.layers), write));
        }
        for placed in self.layers.iter().filter(|placed| placed.slot == slot) {
            let layer = placed.layer.layer();
            if !flushed || layer.generation() == open.flushed_to {
                writes.push((placed.rank, Write::Layer(layer.clone())));
            }
        }
        if open.layers > 0 {
            // In a batch, the later write of a key wins.
            writes.sort_by_key(|(rank, _)| *rank);
        }
        let mut writes: Vec<Write> = writes.into_iter().map(|(_, write)| write).collect();
        let flushed_to = open.flushed_to;
        let elements = std::mem::take(&mut self.open_epoch().elements);
        let is_left = |write: &ElementWrite| {
            let (_, generation, _) = layout::decode_key(write.key()).expect("an element");
            !flushed || generation >= flushed_to
        };
        writes.extend(elements.into_iter().filter(is_left).map(Write::Element));
        if flushed {
            writes.push(Write::Generation {
                generation: flushed_to,
            });
        }
        let next = self
            .epochs
            .iter()
            .position(Option::is_none)
            .expect("fewer epochs in flight than slots");
        self.epochs[next] = Some(self.new_epoch());
        self.open = next;
        self.in_flight += 1;
        let appends = match &mut self.epochs[slot] {
            Some(epoch) => std::mem::take(&mut epoch.appends),
            None => Vec::new(),
        };
        let (store, sync, done) = (self.store.clone(), sync || flushed, done(slot));
        match (appends.is_empty(), writes.is_empty()) {
            (true, _) => store.submit(writes, sync, done),
            (false, true) => store.append(appends, sync, done),
            (false, false) => {
                self.two_part = Some(slot);
                let after = store.clone();
                let then = move |appended: Result<()>| match appended {
                    Ok(()) => after.submit(writes, sync, done),
                    Err(e) => done(Err(e)),
                };
                store.append(appends, sync, Box::new(then));
            }
        }
        true
    }

    fn new_epoch(&mut self) -> Epoch {
        self.begun += 1;
        Epoch {
            number: self.begun,
            ..Epoch::default()
        }
    }

    /// Notes that the commit of a submitted epoch has ended, in any order of epochs. Returns the
    /// epochs that end with it, and each open epoch that depended on one that failed. The caller
    /// resolves everything that waits for them before the next command runs. The second value is
    /// true if a flush has become durable, so that its space should be reclaimed.
    pub fn complete(&mut self, slot: usize, result: Result<()>) -> (SmallVec<[Ended; 2]>, bool) {
        assert!(slot != self.open, "the open epoch was not submitted");
        let epoch = self.epochs[slot].as_mut().expect("the epoch is known");
        epoch.commit_result = Some(result);
        self.two_part.take_if(|two_part| *two_part == slot);
        let mut ended = SmallVec::new();
        let mut flushed = false;
        while let Some((slot, result)) = self.next_to_end() {
            flushed |= self.end_epoch(slot, result, &mut ended);
        }
        (ended, flushed)
    }

    /// Returns an epoch whose commit has ended, if no other epoch has to end before it (rule 6).
    fn next_to_end(&mut self) -> Option<(usize, Result<()>)> {
        let submitted = |slot: &usize| *slot != self.open && self.epochs[*slot].is_some();
        let submitted: SmallVec<[usize; SLOTS]> = (0..SLOTS).filter(submitted).collect();
        let epoch = |slot: usize| self.epochs[slot].as_ref().expect("submitted");
        let may_end = |slot: &usize| {
            let own = epoch(*slot);
            let waits_for = |earlier: &usize| {
                let earlier = epoch(*earlier);
                earlier.number < own.number && (earlier.layers > 0 || own.layers > 0)
            };
            own.commit_result.is_some() && !submitted.iter().any(waits_for)
        };
        let slot = submitted.iter().copied().find(may_end)?;
        let commit_result = self.epochs[slot].as_mut()?.commit_result.take()?;
        Some((slot, commit_result))
    }

    fn end_epoch(
        &mut self,
        slot: usize,
        result: Result<()>,
        all: &mut SmallVec<[Ended; 2]>,
    ) -> bool {
        self.in_flight -= 1;
        let mut ended: SmallVec<[Ended; 2]> = SmallVec::new();
        let mut flushed = false;
        let bit = 1 << slot;
        let depends = self.open_epoch().depends_on & bit != 0;
        // The later epoch is undone first. Otherwise it would remove what the earlier one restores:
        // it may have created the stream of a key again that the earlier one had flushed.
        let dependent = (result.is_err() && depends).then(|| {
            let open = self.open;
            let failed = self.take_epoch(open, false);
            self.epochs[open] = Some(self.new_epoch());
            failed
        });
        let epoch = self.take_epoch(slot, result.is_ok());
        match &result {
            Ok(()) => {
                if epoch.flushed_from.is_some() {
                    self.store.retire_below(epoch.flushed_to);
                    flushed = true;
                }
                self.open_epoch().depends_on &= !bit;
            }
            Err(e) => {
                self.changes += 1;
                if let Some(failed) = dependent {
                    if let Some(before) = failed.flushed_from {
                        self.generation = before;
                    }
                    ended.push(Ended {
                        slot: self.open,
                        result: Err(e.clone()),
                    });
                }
                if let Some(before) = epoch.flushed_from {
                    self.generation = before;
                }
            }
        }
        ended.insert(0, Ended { slot, result });
        for fetch in self.many.values_mut() {
            for epoch in &ended {
                fetch.epoch_ended(epoch.slot, epoch.result.is_err());
            }
            // A failed flush restores an earlier generation.
            fetch.is_void |= fetch.generation() != self.generation;
        }
        all.extend(ended);
        flushed
    }

    /// Removes an epoch and its writes from the overlay. If the epoch is `stored`, earlier versions
    /// of its keys are removed, too: the store committed them before it, or refused them.
    fn take_epoch(&mut self, slot: usize, stored: bool) -> Epoch {
        let mut epoch = self.epochs[slot].take().expect("the epoch is known");
        self.pending_bytes -= epoch.bytes;
        for key in &epoch.keys {
            let Some(versions) = self.overlay.get_mut(key) else {
                // A later epoch that completed earlier has removed this version.
                continue;
            };
            let Some(own) = versions.iter().position(|v| usize::from(v.slot) == slot) else {
                continue;
            };
            // Versions are in the order of their epochs.
            versions.drain(if stored { 0 } else { own }..=own);
            if versions.is_empty() {
                self.overlay.remove(key);
            }
        }
        if epoch.layers > 0 {
            let ended = self.layers.extract_if(.., |placed| placed.slot == slot);
            for placed in ended.collect::<Vec<_>>() {
                let layer = placed.layer.layer().clone();
                match stored {
                    true => self.search_layer(layer, placed.rank),
                    false => self.discarded.push(layer),
                }
            }
        }
        for (key, wakes) in &epoch.streams {
            self.streams.epoch_ended(key, slot, stored, *wakes);
        }
        let changes = std::mem::take(&mut epoch.stream_changes);
        self.streams_of_epoch_ended(changes, slot, stored);
        for key in epoch.streams.keys().filter(|_| !stored) {
            self.recheck_stream(key);
        }
        if self.flush == Some(slot) {
            self.flush = None;
        }
        epoch
    }
}
