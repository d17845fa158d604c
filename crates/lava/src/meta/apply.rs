//! Applies records to the metadata.

use super::inode::MAX_LINKS;
use super::{ApplyEffect, ApplyError, Meta};
use crate::metadata_record::{Ino, InodeKind, JournalRecord, MAX_NAME, ROOT};
use crate::runs::MAX_FILE_BLOCKS;

impl Meta {
    /// Adds a name for an inode, or changes nothing.
    fn add_name(&mut self, dir: Ino, name: &str, ino: Ino) -> Result<(), ApplyError> {
        check_name(name)?;
        self.check_room()?;
        self.dir(dir)?;
        let inode = *self.inode(ino)?;
        if self.names.find(dir, name).is_some() {
            return Err(ApplyError::Exists);
        }
        if inode.kind() == Some(InodeKind::Dir) {
            if inode.links() > 0 || ino == ROOT {
                return Err(ApplyError::IsDir);
            }
            self.inodes.get_mut(ino as usize).first = u64::from(dir);
        }
        if inode.links() == MAX_LINKS {
            return Err(ApplyError::Limit);
        }
        self.names.insert(dir, name, ino);
        self.inodes.get_mut(ino as usize).links += 1;
        self.inodes.get_mut(dir as usize).len += 1;
        Ok(())
    }

    fn check_room(&self) -> Result<(), ApplyError> {
        match self.names.has_room() {
            true => Ok(()),
            false => Err(ApplyError::TooManyFiles),
        }
    }

    /// Removes a name. Returns its inode.
    fn drop_name(&mut self, dir: Ino, name: &str) -> Option<Ino> {
        let ino = self.names.remove(dir, name)?;
        self.inodes.get_mut(ino as usize).links -= 1;
        self.inodes.get_mut(dir as usize).len -= 1;
        Some(ino)
    }

    /// Removes an inode that has no name left.
    fn remove_unlinked(&mut self, ino: Ino, effect: &mut ApplyEffect) {
        if self.inodes.get(ino as usize).links() == 0
            && let Some(extents) = self.unmake(ino)
        {
            effect.gone = Some((ino, extents));
        }
    }

    /// Returns `true` if the directory `dir` is `of` or lies below it.
    fn lies_in(&self, dir: Ino, of: Ino) -> bool {
        let mut at = dir;
        // A path is no longer than the number of directories, unless damage made a cycle.
        for _ in 0..=self.dirs {
            if at == of {
                return true;
            }
            if at == ROOT {
                return false;
            }
            match self.parent(at) {
                Ok(above) => at = above,
                Err(_) => return false,
            }
        }
        true
    }

    /// Applies a record, or changes nothing.
    ///
    /// Errors: why the record cannot be applied.
    pub fn apply(&mut self, record: &JournalRecord) -> Result<ApplyEffect, ApplyError> {
        let mut effect = ApplyEffect::default();
        match record {
            JournalRecord::Create {
                ino,
                kind,
                dir,
                name,
            } => {
                self.dir(*dir)?;
                if self.names.find(*dir, name).is_some() {
                    return Err(ApplyError::Exists);
                }
                self.make(*ino, *kind, 0)?;
                if let Err(refusal) = self.add_name(*dir, name, *ino) {
                    self.unmake(*ino);
                    return Err(refusal);
                }
            }
            JournalRecord::Link { dir, name, ino } => {
                self.file(*ino)?;
                self.add_name(*dir, name, *ino)?;
            }
            JournalRecord::Unlink { dir, name } => {
                let ino = self.find(*dir, name).ok_or(ApplyError::NotFound)?;
                let inode = self.inode(ino)?;
                if inode.kind() == Some(InodeKind::Dir) && inode.len > 0 {
                    return Err(ApplyError::NotEmpty);
                }
                self.drop_name(*dir, name);
                self.remove_unlinked(ino, &mut effect);
            }
            JournalRecord::Rename {
                dir,
                name,
                to_dir,
                to_name,
            } => self.rename((*dir, name), (*to_dir, to_name), &mut effect)?,
            JournalRecord::Reuse {
                dir,
                name,
                to_dir,
                to_name,
            } => {
                let ino = self.find(*dir, name).ok_or(ApplyError::NotFound)?;
                let inode = self.file(ino)?;
                if inode.links() > 1 {
                    return Err(ApplyError::HasLinks);
                }
                self.dir(*to_dir)?;
                if self.find(*to_dir, to_name).is_some() {
                    return Err(ApplyError::Exists);
                }
                self.rename((*dir, name), (*to_dir, to_name), &mut effect)?;
                let inode = self.inodes.get_mut(ino as usize);
                inode.len = 0;
                inode.set_inexact(true);
                inode.set_kind(InodeKind::Log);
            }
            JournalRecord::Grow { ino, runs } => {
                let has = self.file(*ino)?.blocks();
                let more: u64 = runs.iter().map(|r| r.len).sum();
                if has + more > MAX_FILE_BLOCKS {
                    return Err(ApplyError::Limit);
                }
                self.change_extents(*ino, |extents| {
                    runs.iter().for_each(|r| extents.push(Some(r.start), r.len));
                });
                self.inodes.get_mut(*ino as usize).set_inexact(true);
            }
            JournalRecord::Length { ino, len } => {
                self.file(*ino)?;
                let inode = self.inodes.get_mut(*ino as usize);
                inode.len = *len;
                inode.set_inexact(false);
            }
            JournalRecord::Append { ino } => {
                self.file(*ino)?;
                self.inodes.get_mut(*ino as usize).set_inexact(true);
            }
            JournalRecord::Cut { ino, blocks } => {
                self.file(*ino)?;
                effect.freed = self.change_extents(*ino, |extents| extents.cut(*blocks));
            }
            JournalRecord::Punch { ino, from, blocks } => {
                self.file(*ino)?;
                let to = from.checked_add(*blocks).ok_or(ApplyError::Limit)?;
                effect.freed = self.change_extents(*ino, |extents| extents.punch(*from..to));
            }
            JournalRecord::Inode { .. }
            | JournalRecord::Hole { .. }
            | JournalRecord::Jump { .. } => {
                return Err(ApplyError::OutOfPlace);
            }
        }
        Ok(effect)
    }

    fn rename(
        &mut self,
        (dir, name): (Ino, &str),
        (to_dir, to_name): (Ino, &str),
        effect: &mut ApplyEffect,
    ) -> Result<(), ApplyError> {
        let ino = self.find(dir, name).ok_or(ApplyError::NotFound)?;
        self.dir(to_dir)?;
        let is_dir = self.inode(ino)?.kind() == Some(InodeKind::Dir);
        let old = self.find(to_dir, to_name);
        match old {
            // As in POSIX, a rename between two names of one file changes nothing.
            Some(old) if old == ino => return Ok(()),
            Some(old) if self.dir(old).is_ok() => return Err(ApplyError::IsDir),
            Some(_) if is_dir => return Err(ApplyError::NotDir),
            _ => {}
        }
        if is_dir && self.lies_in(to_dir, ino) {
            return Err(ApplyError::Loop);
        }
        check_name(to_name)?;
        self.check_room()?;
        if old.is_some() {
            self.drop_name(to_dir, to_name);
        }
        self.drop_name(dir, name);
        self.add_name(to_dir, to_name, ino)
            .expect("everything was checked");
        if let Some(old) = old {
            self.remove_unlinked(old, effect);
        }
        Ok(())
    }

    /// Applies a record of a checkpoint, whose records make the metadata from nothing. A name may
    /// come before the name of its directory.
    pub fn restore(&mut self, record: &JournalRecord) -> Result<(), ApplyError> {
        match record {
            JournalRecord::Inode {
                ino: ROOT,
                kind: InodeKind::Dir,
                ..
            } => Ok(()),
            JournalRecord::Inode { ino, kind, len } => self.make(*ino, *kind, *len),
            JournalRecord::Link { dir, name, ino } => self.add_name(*dir, name, *ino),
            JournalRecord::Hole { ino, blocks } => {
                let has = self.file(*ino)?.blocks();
                if has.saturating_add(*blocks) > MAX_FILE_BLOCKS {
                    return Err(ApplyError::Limit);
                }
                self.change_extents(*ino, |extents| extents.push(None, *blocks));
                Ok(())
            }
            JournalRecord::Grow { .. }
            | JournalRecord::Length { .. }
            | JournalRecord::Append { .. } => self.apply(record).map(|_| ()),
            _ => Err(ApplyError::OutOfPlace),
        }
    }
}

fn check_name(name: &str) -> Result<(), ApplyError> {
    let right = !name.is_empty() && name.len() <= MAX_NAME && !name.contains('/');
    match right && ![".", ".."].contains(&name) {
        true => Ok(()),
        false => Err(ApplyError::BadName),
    }
}
