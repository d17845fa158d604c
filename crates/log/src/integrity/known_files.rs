//! The files of a store: by its manifest, or by the headers of the files and the readable edits if
//! the manifest or `CURRENT` is damaged.

use super::live_read::RecordFile;
use crate::catalog::{self, Catalog, Change, CheckpointFile, FileEnd, Role};
use crate::checkpoint::{checkpoint_path, names_path};
use crate::lost_edits::{header_of, parse_checkpoint, parse_names};
use crate::physical::{self, file_path, parse_name};
use basalt_env::Env;
use basalt_fs::Result;
use basalt_records::manifest::{CURRENT, manifest_path, read_current};
use basalt_records::salvage::{self, scan};
use basalt_records::{FileHeader, FileKind, RecordKind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A physical log that a store has or should have.
pub(super) struct KnownFile {
    pub number: u64,
    pub role: Role,
    pub end: Option<FileEnd>,
    pub name: String,
    /// The open file; `None` if it is missing, or if nothing says which id it has.
    pub records: Option<RecordFile>,
    /// Bytes of the file's header.
    pub first_record: u64,
}

/// The files of a store, and where the knowledge comes from.
#[derive(Default)]
pub(super) struct KnownFiles {
    /// True if no file of the directory belongs to a store, except a first manifest that names no
    /// file. A process was killed while it created the store, and the next open creates it.
    pub is_unfinished: bool,
    /// The catalog, if `CURRENT` leads to a whole manifest.
    pub catalog: Option<Catalog>,
    pub store_id: u128,
    /// A number above those of all files.
    pub next_file: u64,
    pub files: BTreeMap<u64, KnownFile>,
    /// Checkpoints that may be the newest one, the newest first.
    pub checkpoints: Vec<CheckpointFile>,
    /// The newest checkpoint that a readable edit names, if the catalog is not whole.
    pub named: Option<u64>,
    /// Names files that may be that of the newest checkpoint, the newest first.
    pub names: Vec<CheckpointFile>,
    /// Names of files that look like a store's files, and of which no edit or header is known.
    pub unnamed: Vec<String>,
    /// True if the catalog is whole, or at least one edit is readable.
    pub any_edit: bool,
    /// True if neither `CURRENT` nor the manifest has damage or a torn tail, so that no edit is
    /// missing.
    pub manifest_is_sound: bool,
}

/// What the readable edits of manifests say, and what headers say.
#[derive(Default)]
struct Hints {
    ids: BTreeMap<u64, u128>,
    /// Physical logs that edits name.
    roles: BTreeMap<u64, Role>,
    ends: BTreeMap<u64, FileEnd>,
    removed: BTreeSet<u64>,
    /// Checkpoints and names files.
    checkpoints: BTreeMap<u64, CheckpointFile>,
}

/// Returns the number in the name of a manifest.
pub(super) fn parse_manifest(name: &str) -> Option<u64> {
    name.strip_prefix("MANIFEST-")?.parse().ok()
}

/// Returns true for names that a store gives to its files, but for the lock.
pub(super) fn is_own(name: &str) -> bool {
    parse_name(name).is_some()
        || parse_checkpoint(name).is_some()
        || parse_names(name).is_some()
        || parse_manifest(name).is_some()
}

impl KnownFiles {
    /// Learns the files of a store whose directory has these names. `catalog` is the catalog that
    /// `CURRENT` leads to, if it is readable.
    pub fn learn(
        env: &Env,
        dir: &Path,
        names: &[String],
        catalog: Option<Catalog>,
    ) -> Result<KnownFiles> {
        let numbers = names.iter().filter_map(|n| physical::number_of(n));
        let highest = numbers.filter(|n| *n < u64::MAX >> 8).max().unwrap_or(0);
        let mut known = KnownFiles {
            next_file: highest + 1,
            ..KnownFiles::default()
        };
        let mut hints = Hints::default();
        match &catalog {
            Some(catalog) => {
                known.any_edit = true;
                known.store_id = catalog.store_id;
                known.next_file = known.next_file.max(catalog.next_file);
                known.checkpoints.extend(catalog.checkpoint);
                known.names.extend(catalog.names);
                for (number, file) in &catalog.files {
                    hints.ids.insert(*number, file.file_id);
                    hints.ends.extend(file.end.map(|end| (*number, end)));
                    known.add(env, dir, *number, file.role, &hints)?;
                }
            }
            None => known.learn_without_catalog(env, dir, names, &mut hints)?,
        }
        let names_a_file = !hints.ids.is_empty() || !hints.checkpoints.is_empty();
        let mut own = names.iter().filter(|n| *n == CURRENT || is_own(n));
        known.is_unfinished = !names_a_file && own.all(|n| parse_manifest(n) == Some(1));
        known.catalog = catalog;
        Ok(known)
    }

    fn learn_without_catalog(
        &mut self,
        env: &Env,
        dir: &Path,
        names: &[String],
        hints: &mut Hints,
    ) -> Result<()> {
        if let Ok(Some(current)) = read_current(env, dir) {
            self.store_id = current.store_id;
        }
        let mut manifests: Vec<u64> = names.iter().filter_map(|n| parse_manifest(n)).collect();
        manifests.sort_unstable();
        for number in manifests {
            self.read_edits(env, dir, number, hints)?;
        }
        let (mut checkpoints, mut names_files) = (Vec::new(), Vec::new());
        for name in names {
            let found = match (parse_checkpoint(name), parse_names(name)) {
                (Some(number), _) => Some((number, &mut checkpoints)),
                (None, Some(number)) => Some((number, &mut names_files)),
                (None, None) => None,
            };
            if let Some((number, found)) = found {
                match self.header(env, dir, name, number)? {
                    Some(header) => found.push(CheckpointFile::without_end(&header)),
                    None => match hints.checkpoints.get(&number) {
                        Some(checkpoint) => found.push(*checkpoint),
                        None => self.unnamed.push(name.clone()),
                    },
                }
            }
            let Some((number, role)) = parse_name(name) else {
                continue;
            };
            if hints.removed.contains(&number) {
                continue;
            }
            if let Some(header) = self.header(env, dir, name, number)? {
                hints.ids.insert(number, header.file_id);
            }
            match hints.ids.contains_key(&number) {
                true => self.add(env, dir, number, role, hints)?,
                false => self.unnamed.push(name.clone()),
            }
        }
        for (number, role) in std::mem::take(&mut hints.roles) {
            if !hints.removed.contains(&number) && !self.files.contains_key(&number) {
                self.add(env, dir, number, role, hints)?;
            }
        }
        let of_checkpoints = |n: &u64| checkpoints.iter().any(|c| c.number == *n);
        self.named = hints
            .checkpoints
            .keys()
            .copied()
            .filter(of_checkpoints)
            .max();
        for found in [&mut checkpoints, &mut names_files] {
            found.sort_unstable_by_key(|c| std::cmp::Reverse(c.number));
        }
        (self.checkpoints, self.names) = (checkpoints, names_files);
        Ok(())
    }

    /// Returns the header of a file, if it is one of this store and has the number of its name.
    fn header(
        &mut self,
        env: &Env,
        dir: &Path,
        name: &str,
        number: u64,
    ) -> Result<Option<FileHeader>> {
        let header = header_of(env, &dir.join(name), FileKind::Log)?;
        let own = |h: &FileHeader| {
            h.number == number && (self.store_id == 0 || h.store_id == self.store_id)
        };
        let header = header.filter(own);
        if let Some(header) = &header {
            self.store_id = header.store_id;
        }
        Ok(header)
    }

    /// Takes what the readable edits of a manifest say. Edits that do not fit are left out.
    fn read_edits(&mut self, env: &Env, dir: &Path, number: u64, hints: &mut Hints) -> Result<()> {
        let path = manifest_path(dir, number);
        let Some(header) = header_of(env, &path, FileKind::Manifest)? else {
            return Ok(());
        };
        if self.store_id != 0 && header.store_id != self.store_id {
            return Ok(());
        }
        self.store_id = header.store_id;
        let file = env.fs().open(&path)?;
        for found in scan(&*file, &path, header.file_id, u64::MAX)?.found {
            if !found.whole || found.kind != RecordKind::Edit {
                continue;
            }
            let record = salvage::read(&*file, &path, &found)?;
            self.any_edit = true;
            for change in catalog::decode(&record.payload).unwrap_or_default() {
                match change {
                    Change::Add(n, file) => {
                        hints.ids.insert(n, file.file_id);
                        hints.roles.insert(n, file.role);
                        hints.ends.extend(file.end.map(|end| (n, end)));
                    }
                    Change::End(n, end) => {
                        hints.ends.insert(n, end);
                    }
                    Change::Remove(n) => {
                        hints.removed.insert(n);
                    }
                    Change::Checkpoint(c) | Change::Names(c) => {
                        hints.checkpoints.insert(c.number, c);
                    }
                    Change::NextFile(n) => self.next_file = self.next_file.max(n),
                    Change::Store(_) => {}
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, env: &Env, dir: &Path, number: u64, role: Role, hints: &Hints) -> Result<()> {
        let path = file_path(dir, number, role);
        let name = file_path(Path::new(""), number, role);
        let file = match env.fs().open(&path) {
            Ok(file) => Some(file),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e),
        };
        let header = header_of(env, &path, FileKind::Log)?;
        let unit = header.map_or(env.fs().info().write_unit as u64, |h| {
            u64::from(h.write_unit)
        });
        let known = KnownFile {
            number,
            role,
            end: hints.ends.get(&number).copied(),
            name: name.display().to_string(),
            first_record: unit,
            records: file.map(|file| RecordFile {
                file,
                path,
                file_id: hints.ids.get(&number).copied().unwrap_or_default(),
            }),
        };
        self.files.insert(number, known);
        Ok(())
    }

    /// Returns the names of the newest checkpoint and of the newest names file.
    pub fn newest_checkpoint(&self) -> Vec<String> {
        let checkpoint = self.checkpoints.first();
        let checkpoint = checkpoint.map(|c| checkpoint_path(Path::new(""), c.number));
        let names = self.names.first();
        let names = names.map(|c| names_path(Path::new(""), c.number));
        let paths = checkpoint.into_iter().chain(names);
        paths.map(|path| path.display().to_string()).collect()
    }
}
