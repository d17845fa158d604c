//! The ends of files in a salvage: which are proven, which files were cut, and which bytes behind
//! an end may have held records.

use super::{KnownFile, LogLoss, LogUnprovenEnd, Salvage};
use crate::catalog::Role;
use basalt_fs::Result;
use basalt_records::salvage::Salvaged;

impl Salvage<'_> {
    /// Notes that the previous file lost its last records, if the first record of this file is
    /// synced and its chain names another record. A record is synced only after all records of the
    /// previous file.
    pub(super) fn compare_with_last(&mut self, file: &KnownFile, found: &Salvaged) {
        let Some((before, role, last)) = self.last else {
            return;
        };
        let first = found.found.first();
        let first = first.filter(|r| r.offset == file.first_record);
        if role == file.role && first.is_none() && self.damaged.contains(&file.number) {
            self.without_next.insert(before);
        }
        let first = first.filter(|_| found.proven > 0);
        if role == file.role && first.is_some_and(|r| r.chain != 0 && Some(r.chain) != last) {
            self.lost_tails.insert(before);
        }
    }

    /// Notes the ends of replayed files that could be proven if nothing were damaged.
    pub(super) fn note_unproven_ends(&mut self) -> Result<()> {
        let known = self.known;
        for (number, end) in &self.ends {
            let file = &known.files[number];
            let gone = [
                (!known.manifest_is_sound, "the manifest"),
                (
                    !self.bad_checkpoints.is_empty() && !self.copied.proves(file, *end),
                    "the checkpoint",
                ),
                (self.lost_ops, "the metalog"),
                (self.without_next.contains(number), "the next file"),
                (self.damaged.contains(number), "another part of the file"),
                (
                    self.lost_tails.contains(number),
                    "the last records, which the next file continues",
                ),
            ];
            let gone = gone.iter().filter(|(is_gone, _)| *is_gone);
            let gone: Vec<&str> = gone.map(|(_, what)| *what).collect();
            let (Some(records), None) = (&file.records, file.end) else {
                continue;
            };
            if gone.is_empty() {
                continue;
            }
            let behind = records.last_nonzero(*end)?;
            let reason = format!("damaged or incomplete: {}", gone.join(", "));
            if behind <= *end && self.lost_tails.contains(number) {
                self.cut.entry(*number).or_insert(*end);
                continue;
            }
            if behind <= *end {
                self.notes.push(format!(
                    "{}: nothing proves that the records end at offset {end}, but only zeros are behind it; {reason}",
                    file.name
                ));
                continue;
            }
            if file.role == Role::Meta {
                self.reappearing.push(format!(
                    "operations behind offset {end} of {} may be lost, so records that were trimmed or removed may show again",
                    file.name
                ));
            }
            self.unproven_ends.push(LogUnprovenEnd {
                file: file.name.clone(),
                bytes: *end..behind,
                reason,
            });
        }
        Ok(())
    }

    /// Reports cut files. Only the indexes tell which records were behind the cut.
    pub(super) fn lose_cut(&mut self) {
        for (number, at) in std::mem::take(&mut self.cut) {
            let name = &self.known.files[&number].name;
            let reason = "the file was cut here; younger records in it are lost, too";
            self.lose(LogLoss::of_file(name, at..at, reason));
        }
    }
}
