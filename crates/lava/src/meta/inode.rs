//! Inodes in memory, 24 bytes each, and the lists of extents that do not fit into them.

use crate::cow_table::CowTable;
use crate::extents::Extents;
use crate::metadata_record::InodeKind;

/// Bit of [`Inode::first`]: the extents are a list of [`ExtentLists`].
pub(super) const IN_LIST: u64 = 1 << 63;

/// An inode in memory.
#[derive(Clone, Copy, Default)]
pub(super) struct Inode {
    /// For a file, its only extent, packed, or [`IN_LIST`] and the index of its list. For a
    /// directory, the number of its parent.
    pub(super) first: u64,
    /// Length of a file, in bytes; number of names in a directory.
    pub(super) len: u64,
    /// Blocks of a file, and the bit [`INEXACT`].
    pub(super) blocks: u32,
    /// Number of names, and the kind in the upper two bits. 0 is a free inode.
    pub(super) links: u32,
}

const KIND_SHIFT: u32 = 30;
/// The largest number of names that an inode may have.
pub(super) const MAX_LINKS: u32 = (1 << KIND_SHIFT) - 1;

/// Bit of [`Inode::blocks`]: the file may be longer than its recorded length.
pub(super) const INEXACT: u32 = 1 << 31;

impl Inode {
    /// Returns the kind; `None` for a free inode.
    pub(super) fn kind(&self) -> Option<InodeKind> {
        match self.links >> KIND_SHIFT {
            1 => Some(InodeKind::File),
            2 => Some(InodeKind::Log),
            3 => Some(InodeKind::Dir),
            _ => None,
        }
    }

    pub(super) fn set_kind(&mut self, kind: InodeKind) {
        let number = match kind {
            InodeKind::File => 1,
            InodeKind::Log => 2,
            InodeKind::Dir => 3,
        };
        self.links = (number << KIND_SHIFT) | self.links();
    }

    /// Returns the number of names.
    pub(super) fn links(&self) -> u32 {
        self.links & MAX_LINKS
    }

    /// Returns the blocks of a file, holes included.
    pub(super) fn blocks(&self) -> u64 {
        u64::from(self.blocks & !INEXACT)
    }

    /// Returns `true` if the file may be longer than its recorded length.
    pub(super) fn is_inexact(&self) -> bool {
        self.blocks & INEXACT != 0
    }

    pub(super) fn set_inexact(&mut self, inexact: bool) {
        self.blocks &= !INEXACT;
        if inexact {
            self.blocks |= INEXACT;
        }
    }
}

/// The extents of files that have several extents.
#[derive(Clone, Default)]
pub(super) struct ExtentLists {
    /// A list for each such file; `None` for a free place.
    pub(super) table: CowTable<Option<Extents>>,
    /// Indexes of the free places.
    pub(super) free: Vec<u32>,
}

/// Returns the extents of a file.
pub(super) fn extents_of(inode: &Inode, lists: &ExtentLists) -> Extents {
    match inode.first {
        _ if inode.blocks() == 0 => Extents::default(),
        first if first & IN_LIST != 0 => {
            let list = lists.table.get((first & !IN_LIST) as usize);
            list.clone().unwrap_or_default()
        }
        one => Extents::of_one(one, inode.blocks()),
    }
}
