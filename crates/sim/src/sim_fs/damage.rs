//! Damage by tests that need a given byte of a given file to be wrong. It is durable at once, and
//! does not count as a change.

use std::path::Path;

use super::disk::{Disk, FileNode, Node};
use super::{DiskState, SimFs, effect};
use crate::content::Content;
use basalt_fs::Result;

impl Disk {
    /// Returns the same disk for a new process. Unsynced changes stay unsynced.
    pub(super) fn after_process_death(&self) -> Disk {
        let mut disk = self.clone();
        disk.sweep(&Default::default());
        disk
    }
}

/// Makes the same change to the live and the durable bytes of a file. If both are one content, as
/// in a file at rest, the change is made once and they share it.
fn change_both(f: &mut FileNode, change: impl Fn(&mut Content)) {
    if f.live.is_clone_of(&f.durable) {
        // The clone in `durable` goes first, or the change would copy the chunk that both share.
        f.durable = Content::default();
        change(&mut f.live);
        f.durable = f.live.clone();
    } else {
        change(&mut f.live);
        change(&mut f.durable);
    }
}

impl SimFs {
    fn damage<R>(&self, f: impl FnOnce(&mut DiskState) -> Result<R>) -> Result<R> {
        f(&mut self.state.lock())
    }

    /// Inverts bit `bit` (0 to 7) of the byte at `offset`.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> Result<()> {
        if let Some(lava) = &self.lava {
            let byte = lava.read_all(path)?[offset as usize] ^ (1 << bit);
            return lava.overwrite(path, offset, &[byte]);
        }
        self.damage(|state| {
            let ino = state.disk.lookup_file(path)?;
            change_both(state.disk.file_mut(ino), |content| {
                let byte = content.to_vec(offset, 1)[0] ^ (1 << bit);
                content.write(offset, &[byte]);
            });
            Ok(())
        })
    }

    /// Writes `bytes` at `offset`, inside the file's space.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.overwrite(path, offset, bytes);
        }
        self.damage(|state| {
            let ino = state.disk.lookup_file(path)?;
            change_both(state.disk.file_mut(ino), |content| {
                content.write(offset, bytes);
            });
            Ok(())
        })
    }

    /// Cuts the file and its space to `len` bytes, unless it is shorter.
    pub fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        if let Some(lava) = &self.lava {
            return super::on_lava::cut_short(lava, path, len);
        }
        self.damage(|state| {
            let ino = state.disk.lookup_file(path)?;
            let f = state.disk.file_mut(ino);
            f.cut_space(len, 1);
            f.len = f.len.min(len);
            f.exact_len = f.exact_len.min(len);
            f.synced_end = f.synced_end.min(len);
            state.sweep();
            Ok(())
        })
    }

    /// Exchanges two files: each name gets the other's bytes.
    pub fn swap_files(&self, a: &Path, b: &Path) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.swap_files(a, b);
        }
        self.damage(|state| {
            let (ino_a, ino_b) = (state.disk.lookup_file(a)?, state.disk.lookup_file(b)?);
            let (dir_a, name_a) = state.disk.parent(a)?;
            let (dir_b, name_b) = state.disk.parent(b)?;
            state.disk.change_names(vec![
                effect(dir_a, &name_a, Some(ino_b)),
                effect(dir_b, &name_b, Some(ino_a)),
            ]);
            state.disk.commit_names(dir_a);
            state.disk.commit_names(dir_b);
            Ok(())
        })
    }

    /// Returns all bytes of the file's space, also those past its length.
    pub fn read_all(&self, path: &Path) -> Result<Vec<u8>> {
        if let Some(lava) = &self.lava {
            return lava.read_all(path);
        }
        self.damage(|state| {
            let ino = state.disk.lookup_file(path)?;
            let f = state.disk.file(ino);
            Ok(f.live.to_vec(0, f.alloc as usize))
        })
    }

    /// Creates a durable file of exactly these bytes, in place of the file with this name. Its
    /// directory must exist.
    pub fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        if let Some(lava) = &self.lava {
            return lava.write_file(path, bytes);
        }
        self.damage(|state| {
            let (dir, name) = state.disk.parent(path)?;
            let mut content = Content::default();
            content.write(0, bytes);
            let len = bytes.len() as u64;
            let ino = state.disk.new_node(Node::File(Box::new(FileNode {
                live: content.clone(),
                durable: content,
                len,
                alloc: len,
                durable_alloc: len,
                synced_end: len,
                exact_len: len,
                ..FileNode::default()
            })));
            state.disk.change_names(vec![effect(dir, &name, Some(ino))]);
            state.disk.commit_names(dir);
            state.sweep();
            Ok(())
        })
    }

    /// Returns a digest of every name, length and byte that calls can see. Equal disks have equal
    /// digests.
    pub fn digest(&self) -> u64 {
        if let Some(lava) = &self.lava {
            return lava.digest();
        }
        let state = self.state.lock();
        let mut sum = Vec::new();
        let mut dirs = vec![(String::new(), super::disk::ROOT)];
        while let Some((path, dir)) = dirs.pop() {
            for (name, ino) in state.disk.entries(dir) {
                let path = format!("{path}/{name}");
                sum.extend_from_slice(path.as_bytes());
                match &**state.disk.node(ino) {
                    Node::Dir => dirs.push((path, ino)),
                    Node::File(f) => {
                        sum.extend_from_slice(&f.len.to_le_bytes());
                        sum.extend_from_slice(&f.alloc.to_le_bytes());
                        sum.extend_from_slice(&f.digest().to_le_bytes());
                    }
                }
            }
        }
        let low = crc32c::crc32c(&sum);
        sum.reverse();
        u64::from(low) << 32 | u64::from(crc32c::crc32c(&sum))
    }
}
