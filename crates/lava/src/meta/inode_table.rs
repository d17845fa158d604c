//! Makes and removes inodes, and changes their extents, with the sums over all files.

use super::inode::{IN_LIST, INEXACT, Inode, extents_of};
use super::{ApplyError, Meta};
use crate::extents::{Allocated, Extents};
use crate::metadata_record::{Ino, InodeKind};
use crate::runs::Run;

impl Meta {
    /// Makes an inode without a name.
    ///
    /// Errors: `Exists` for a number in use, `TooManyFiles` for a number that is too large.
    pub(super) fn make(&mut self, ino: Ino, kind: InodeKind, len: u64) -> Result<(), ApplyError> {
        let place = ino as usize;
        if place >= self.max_inodes {
            return Err(ApplyError::TooManyFiles);
        }
        if self.inode(ino).is_ok() {
            return Err(ApplyError::Exists);
        }
        let known = self.inodes.len();
        if place < known {
            let taken = self.free.take(Run {
                start: u64::from(ino),
                len: 1,
            });
            assert!(taken, "an unused inode number is free");
        } else {
            // A checkpoint has no records of free inodes.
            self.inodes.grow_to(place + 1);
            if place > known {
                self.now_free(known as u64, (place - known) as u64);
            }
        }
        let inode = self.inodes.get_mut(place);
        *inode = Inode {
            len: if kind == InodeKind::Dir { 0 } else { len },
            ..Inode::default()
        };
        inode.set_kind(kind);
        self.used += 1;
        self.dirs += usize::from(kind == InodeKind::Dir);
        Ok(())
    }

    /// Marks inode numbers as free.
    fn now_free(&mut self, start: u64, len: u64) {
        let free = self.free.free(Run { start, len });
        debug_assert!(free, "inode {start} is given back twice");
    }

    /// Adds the extents of a file to the sums.
    fn tally(&mut self, extents: &Extents) {
        let Allocated { extents: n, blocks } = extents.allocated();
        self.allocated.extents += n;
        self.allocated.blocks += blocks;
        self.list_bytes += extents.memory();
    }

    /// Subtracts the extents of a file from the sums.
    fn untally(&mut self, extents: &Extents) {
        let Allocated { extents: n, blocks } = extents.allocated();
        self.allocated.extents -= n;
        self.allocated.blocks -= blocks;
        self.list_bytes -= extents.memory();
    }

    /// Removes an inode. Returns the extents of a file.
    pub(super) fn unmake(&mut self, ino: Ino) -> Option<Extents> {
        let inode = *self.inodes.get(ino as usize);
        let dir = inode.kind() == Some(InodeKind::Dir);
        let extents = (!dir).then(|| extents_of(&inode, &self.lists));
        if let Some(extents) = &extents {
            self.untally(extents);
        }
        if !dir && inode.first & IN_LIST != 0 {
            self.drop_list((inode.first & !IN_LIST) as u32);
        }
        *self.inodes.get_mut(ino as usize) = Inode::default();
        self.now_free(u64::from(ino), 1);
        self.used -= 1;
        self.dirs -= usize::from(dir);
        extents
    }

    fn drop_list(&mut self, i: u32) {
        *self.lists.table.get_mut(i as usize) = None;
        self.lists.free.push(i);
    }

    /// Changes the extents of a file. The list leaves the table meanwhile, so that a list without
    /// another owner is changed in place.
    pub(super) fn change_extents<R>(
        &mut self,
        ino: Ino,
        change: impl FnOnce(&mut Extents) -> R,
    ) -> R {
        let inode = *self.inodes.get(ino as usize);
        let list = (inode.first & IN_LIST != 0).then_some((inode.first & !IN_LIST) as u32);
        let mut extents = match list {
            Some(i) => self.lists.table.get_mut(i as usize).take(),
            None => Some(extents_of(&inode, &self.lists)),
        }
        .expect("a list that an inode names");
        self.untally(&extents);
        let done = change(&mut extents);
        self.tally(&extents);
        let blocks = extents.blocks() as u32;
        let first = match (extents.single(), list) {
            (Some(one), None) => one,
            (Some(one), Some(i)) => {
                self.drop_list(i);
                one
            }
            (None, list) => {
                let i = list.or_else(|| self.lists.free.pop());
                let i = i.unwrap_or_else(|| self.lists.table.push(None) as u32);
                *self.lists.table.get_mut(i as usize) = Some(extents);
                IN_LIST | u64::from(i)
            }
        };
        let inode = self.inodes.get_mut(ino as usize);
        inode.first = first;
        inode.blocks = blocks | (inode.blocks & INEXACT);
        done
    }
}
