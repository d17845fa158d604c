//! All metadata, in memory: inodes, their extents and their names. It changes by [`Record`]s alone, the same when they are made and when the journal
//! is replayed, so that what a mount finds is what was there.
//!
//! An inode takes 24 bytes here and its name 16 more beside the text; the one extent that most files have lies in the inode.

use std::collections::BTreeSet;

use super::names::{Names, NamesCopy};
use super::record::{Ino, Kind, MAX_NAME, ROOT, Record};
use super::runs::{Extent, Extents, MAX_FILE_BLOCKS, Placed, Run, count_steps};
use super::slab::Slab;
use super::space::FreeSpace;

/// Set in [`Inode::first`] when the extents lie in the table of many.
const MANY: u64 = 1 << 63;

#[derive(Clone, Copy, Default)]
struct Inode {
    /// A file's only extent, packed, or where its extents are; a directory's parent.
    first: u64,
    /// Bytes of a file; names in a directory.
    len: u64,
    /// Blocks of a file; with [`VAGUE`].
    blocks: u32,
    /// Names it has, and in the upper two bits what it is; 0 is a free inode.
    links: u32,
}

const KIND_SHIFT: u32 = 30;

/// Set in [`Inode::blocks`] when a file may go on behind its length.
const VAGUE: u32 = 1 << 31;

impl Inode {
    fn kind(&self) -> Option<Kind> {
        match self.links >> KIND_SHIFT {
            1 => Some(Kind::File),
            2 => Some(Kind::Log),
            3 => Some(Kind::Dir),
            _ => None,
        }
    }

    fn set_kind(&mut self, kind: Kind) {
        let number = match kind {
            Kind::File => 1,
            Kind::Log => 2,
            Kind::Dir => 3,
        };
        self.links = (number << KIND_SHIFT) | self.links();
    }

    fn links(&self) -> u32 {
        self.links & ((1 << KIND_SHIFT) - 1)
    }

    fn blocks(&self) -> u64 {
        u64::from(self.blocks & !VAGUE)
    }

    fn is_vague(&self) -> bool {
        self.blocks & VAGUE != 0
    }

    fn set_vague(&mut self, vague: bool) {
        self.blocks &= !VAGUE;
        if vague {
            self.blocks |= VAGUE;
        }
    }
}

/// The extents of files that have several.
#[derive(Clone, Default)]
struct Many {
    lists: Slab<Option<Extents>>,
    free: Vec<u32>,
}

/// What a record did besides.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Blocks that nobody has any more.
    pub freed: Vec<Run>,
    /// The file that has no name any more, with the blocks it had: whoever has it open reads them.
    pub gone: Option<(Ino, Extents)>,
}

/// Why a record cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such name or inode.
    Missing,
    /// The name is taken, by a file.
    Taken,
    /// The name is taken, by a directory.
    IsDir,
    /// It is no directory.
    NotDir,
    /// The directory has names in it.
    NotEmpty,
    /// A directory would become part of itself.
    Loop,
    /// The file has a second name.
    Linked,
    /// A number or a name is outside its limits.
    Limit,
    /// It makes no sense here.
    Order,
}

impl Refusal {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Refusal::Missing => "a name or an inode that is not there",
            Refusal::Taken => "a name or an inode that is taken",
            Refusal::IsDir => "a directory in a file's place",
            Refusal::NotDir => "a file in a directory's place",
            Refusal::NotEmpty => "a directory that is not empty",
            Refusal::Loop => "a directory inside of itself",
            Refusal::Linked => "a file with a second name",
            Refusal::Limit => "a number outside its limits",
            Refusal::Order => "a record that has no place here",
        }
    }
}

/// See the module's head.
#[derive(Default)]
pub struct Meta {
    inodes: Slab<Inode>,
    /// Numbers below the highest that nobody has.
    free: FreeSpace,
    many: Many,
    names: Names,
    /// Inodes that there may be.
    max_inodes: usize,
    used: usize,
    dirs: usize,
    /// What all files have on the device.
    placed: Placed,
    /// Bytes of lists of several extents.
    list_bytes: u64,
}

/// All of it at one moment, to be written while the original goes on.
pub struct MetaCopy {
    inodes: Slab<Inode>,
    many: Many,
    names: NamesCopy,
}

/// What there is, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MetaCounts {
    /// Files, logs among them.
    pub files: u64,
    /// Directories, the root among them.
    pub dirs: u64,
    /// Extents of all files.
    pub extents: u64,
    /// Blocks of all files.
    pub blocks: u64,
    /// Bytes of memory without the text of names.
    pub memory: u64,
    /// Bytes of names.
    pub text: u64,
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Bytes; names in a directory.
    pub len: u64,
    /// Blocks, holes among them.
    pub blocks: u64,
    /// It may go on behind its length, as far as its blocks go.
    pub vague: bool,
    /// Names it has.
    pub links: u32,
}

impl Meta {
    /// With a root directory and nothing else.
    pub fn new(max_inodes: usize) -> Meta {
        let mut meta = Meta {
            max_inodes,
            ..Meta::default()
        };
        meta.make(ROOT, Kind::Dir, 0).expect("the first inode");
        meta
    }

    /// So many inodes there may be from now on.
    pub fn set_max_inodes(&mut self, max: usize) {
        self.max_inodes = max;
    }

    /// All names: their directory, the name, what it leads to.
    pub fn names(&self) -> impl Iterator<Item = (Ino, &str, Ino)> + '_ {
        self.names.iter()
    }

    fn inode(&self, ino: Ino) -> Result<&Inode, Refusal> {
        if ino as usize >= self.inodes.len() {
            return Err(Refusal::Missing);
        }
        let inode = self.inodes.get(ino as usize);
        inode.kind().map(|_| inode).ok_or(Refusal::Missing)
    }

    fn file(&self, ino: Ino) -> Result<&Inode, Refusal> {
        let inode = self.inode(ino)?;
        match inode.kind() {
            Some(Kind::Dir) => Err(Refusal::IsDir),
            _ => Ok(inode),
        }
    }

    fn dir(&self, ino: Ino) -> Result<&Inode, Refusal> {
        let inode = self.inode(ino)?;
        match inode.kind() {
            Some(Kind::Dir) => Ok(inode),
            _ => Err(Refusal::NotDir),
        }
    }

    /// What an inode is.
    pub fn facts(&self, ino: Ino) -> Result<Facts, Refusal> {
        let inode = self.inode(ino)?;
        Ok(Facts {
            kind: inode.kind().expect("it is in use"),
            len: inode.len,
            blocks: inode.blocks(),
            vague: inode.is_vague(),
            links: inode.links(),
        })
    }

    /// What a directory has under a name.
    pub fn find(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.names.find(dir, name)
    }

    /// The directory that a directory lies in.
    pub fn parent(&self, dir: Ino) -> Result<Ino, Refusal> {
        Ok(self.dir(dir)?.first as Ino)
    }

    /// Returns the names and inodes of a directory, in no order. The cost grows with the number of
    /// names in that directory alone.
    pub fn children(&self, dir: Ino) -> impl Iterator<Item = (&str, Ino)> + '_ {
        self.names.children(dir)
    }

    /// All inodes in use.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, Facts)> + '_ {
        let numbers = self.inodes.iter().map(|(ino, _)| ino as Ino);
        numbers.filter_map(|ino| Some((ino, self.facts(ino).ok()?)))
    }

    /// A file's extents.
    pub fn extents(&self, ino: Ino) -> Result<Extents, Refusal> {
        Ok(extents_of(self.file(ino)?, &self.many))
    }

    /// A number for a new inode.
    pub fn new_ino(&self) -> Result<Ino, Refusal> {
        match self.free.iter().next() {
            Some(run) => Ok(run.start as Ino),
            None if self.inodes.len() < self.max_inodes => Ok(self.inodes.len() as Ino),
            None => Err(Refusal::Limit),
        }
    }

    fn make(&mut self, ino: Ino, kind: Kind, len: u64) -> Result<(), Refusal> {
        let place = ino as usize;
        if place >= self.max_inodes {
            return Err(Refusal::Limit);
        }
        if self.inode(ino).is_ok() {
            return Err(Refusal::Taken);
        }
        let known = self.inodes.len();
        if place < known {
            let taken = self.free.take(Run {
                start: u64::from(ino),
                len: 1,
            });
            assert!(taken, "what nobody has is free");
        } else {
            // A checkpoint leaves out those that were free.
            self.inodes.grow_to(place + 1);
            if place > known {
                self.now_free(known as u64, (place - known) as u64);
            }
        }
        let inode = self.inodes.get_mut(place);
        *inode = Inode {
            len: if kind == Kind::Dir { 0 } else { len },
            ..Inode::default()
        };
        inode.set_kind(kind);
        self.used += 1;
        self.dirs += usize::from(kind == Kind::Dir);
        Ok(())
    }

    fn now_free(&mut self, start: u64, len: u64) {
        let free = self.free.free(Run { start, len });
        debug_assert!(free, "inode {start} is given back twice");
    }

    /// Adds what a file has to the sums.
    fn tally(&mut self, extents: &Extents) {
        let Placed { extents: n, blocks } = extents.placed();
        self.placed.extents += n;
        self.placed.blocks += blocks;
        self.list_bytes += extents.memory();
    }

    /// Takes what a file has off the sums.
    fn untally(&mut self, extents: &Extents) {
        let Placed { extents: n, blocks } = extents.placed();
        self.placed.extents -= n;
        self.placed.blocks -= blocks;
        self.list_bytes -= extents.memory();
    }

    fn unmake(&mut self, ino: Ino) -> Option<Extents> {
        let inode = *self.inodes.get(ino as usize);
        let dir = inode.kind() == Some(Kind::Dir);
        let extents = (!dir).then(|| extents_of(&inode, &self.many));
        if let Some(extents) = &extents {
            self.untally(extents);
        }
        if !dir && inode.first & MANY != 0 {
            self.drop_many((inode.first & !MANY) as u32);
        }
        *self.inodes.get_mut(ino as usize) = Inode::default();
        self.now_free(u64::from(ino), 1);
        self.used -= 1;
        self.dirs -= usize::from(dir);
        extents
    }

    fn drop_many(&mut self, i: u32) {
        *self.many.lists.get_mut(i as usize) = None;
        self.many.free.push(i);
    }

    /// Changes where a file's blocks lie. The list is taken out meanwhile: one that is not shared is changed in place.
    fn change_extents<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Extents) -> R) -> R {
        let inode = *self.inodes.get(ino as usize);
        let list = (inode.first & MANY != 0).then_some((inode.first & !MANY) as u32);
        let mut extents = match list {
            Some(i) => self.many.lists.get_mut(i as usize).take(),
            None => Some(extents_of(&inode, &self.many)),
        }
        .expect("a list that an inode names");
        self.untally(&extents);
        let done = change(&mut extents);
        self.tally(&extents);
        let blocks = extents.blocks() as u32;
        let first = match (extents.single(), list) {
            (Some(one), None) => one,
            (Some(one), Some(i)) => {
                self.drop_many(i);
                one
            }
            (None, list) => {
                let i = list.or_else(|| self.many.free.pop());
                let i = i.unwrap_or_else(|| self.many.lists.push(None) as u32);
                *self.many.lists.get_mut(i as usize) = Some(extents);
                MANY | u64::from(i)
            }
        };
        let inode = self.inodes.get_mut(ino as usize);
        inode.first = first;
        inode.blocks = blocks | (inode.blocks & VAGUE);
        done
    }

    fn add_name(&mut self, dir: Ino, name: &str, ino: Ino) -> Result<(), Refusal> {
        check_name(name)?;
        self.check_room()?;
        self.dir(dir)?;
        let inode = *self.inode(ino)?;
        if self.names.find(dir, name).is_some() {
            return Err(Refusal::Taken);
        }
        if inode.kind() == Some(Kind::Dir) {
            if inode.links() > 0 || ino == ROOT {
                return Err(Refusal::IsDir);
            }
            self.inodes.get_mut(ino as usize).first = u64::from(dir);
        }
        if inode.links() == (1 << KIND_SHIFT) - 1 {
            return Err(Refusal::Limit);
        }
        self.names.insert(dir, name, ino);
        self.inodes.get_mut(ino as usize).links += 1;
        self.inodes.get_mut(dir as usize).len += 1;
        Ok(())
    }

    fn check_room(&self) -> Result<(), Refusal> {
        match self.names.has_room() {
            true => Ok(()),
            false => Err(Refusal::Limit),
        }
    }

    fn drop_name(&mut self, dir: Ino, name: &str) -> Option<Ino> {
        let ino = self.names.remove(dir, name)?;
        self.inodes.get_mut(ino as usize).links -= 1;
        self.inodes.get_mut(dir as usize).len -= 1;
        Some(ino)
    }

    /// After a name went: the file that has none left goes.
    fn gone(&mut self, ino: Ino, effect: &mut Effect) {
        if self.inodes.get(ino as usize).links() == 0
            && let Some(extents) = self.unmake(ino)
        {
            effect.gone = Some((ino, extents));
        }
    }

    /// True when `dir` is `of` or lies in it.
    fn lies_in(&self, dir: Ino, of: Ino) -> bool {
        let mut at = dir;
        // No deeper than there are directories.
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

    /// Does what a record says, or nothing.
    pub fn apply(&mut self, record: &Record) -> Result<Effect, Refusal> {
        let mut effect = Effect::default();
        match record {
            Record::Create {
                ino,
                kind,
                dir,
                name,
            } => {
                self.dir(*dir)?;
                if self.names.find(*dir, name).is_some() {
                    return Err(Refusal::Taken);
                }
                self.make(*ino, *kind, 0)?;
                if let Err(refusal) = self.add_name(*dir, name, *ino) {
                    self.unmake(*ino);
                    return Err(refusal);
                }
            }
            Record::Link { dir, name, ino } => {
                self.file(*ino)?;
                self.add_name(*dir, name, *ino)?;
            }
            Record::Unlink { dir, name } => {
                let ino = self.find(*dir, name).ok_or(Refusal::Missing)?;
                let inode = self.inode(ino)?;
                if inode.kind() == Some(Kind::Dir) && inode.len > 0 {
                    return Err(Refusal::NotEmpty);
                }
                self.drop_name(*dir, name);
                self.gone(ino, &mut effect);
            }
            Record::Rename {
                dir,
                name,
                to_dir,
                to_name,
            } => self.rename((*dir, name), (*to_dir, to_name), &mut effect)?,
            Record::Reuse {
                dir,
                name,
                to_dir,
                to_name,
            } => {
                let ino = self.find(*dir, name).ok_or(Refusal::Missing)?;
                let inode = self.file(ino)?;
                if inode.links() > 1 {
                    return Err(Refusal::Linked);
                }
                self.dir(*to_dir)?;
                if self.find(*to_dir, to_name).is_some() {
                    return Err(Refusal::Taken);
                }
                self.rename((*dir, name), (*to_dir, to_name), &mut effect)?;
                let inode = self.inodes.get_mut(ino as usize);
                inode.len = 0;
                inode.set_vague(true);
                inode.set_kind(Kind::Log);
            }
            Record::Grow { ino, runs } => {
                let has = self.file(*ino)?.blocks();
                let more: u64 = runs.iter().map(|r| r.len).sum();
                if has + more > MAX_FILE_BLOCKS {
                    return Err(Refusal::Limit);
                }
                self.change_extents(*ino, |extents| {
                    runs.iter().for_each(|r| extents.push(Some(r.start), r.len));
                });
                self.inodes.get_mut(*ino as usize).set_vague(true);
            }
            Record::Length { ino, len } => {
                self.file(*ino)?;
                let inode = self.inodes.get_mut(*ino as usize);
                inode.len = *len;
                inode.set_vague(false);
            }
            Record::Append { ino } => {
                self.file(*ino)?;
                self.inodes.get_mut(*ino as usize).set_vague(true);
            }
            Record::Cut { ino, blocks } => {
                self.file(*ino)?;
                effect.freed = self.change_extents(*ino, |extents| extents.cut(*blocks));
            }
            Record::Punch { ino, from, blocks } => {
                self.file(*ino)?;
                let to = from.checked_add(*blocks).ok_or(Refusal::Limit)?;
                effect.freed = self.change_extents(*ino, |extents| extents.punch(*from..to));
            }
            Record::Inode { .. } | Record::Hole { .. } | Record::Jump { .. } => {
                return Err(Refusal::Order);
            }
        }
        Ok(effect)
    }

    fn rename(
        &mut self,
        (dir, name): (Ino, &str),
        (to_dir, to_name): (Ino, &str),
        effect: &mut Effect,
    ) -> Result<(), Refusal> {
        let ino = self.find(dir, name).ok_or(Refusal::Missing)?;
        self.dir(to_dir)?;
        let is_dir = self.inode(ino)?.kind() == Some(Kind::Dir);
        let old = self.find(to_dir, to_name);
        match old {
            // Two names of one file, or one name twice: as POSIX has it, nothing happens.
            Some(old) if old == ino => return Ok(()),
            Some(old) if self.dir(old).is_ok() => return Err(Refusal::IsDir),
            Some(_) if is_dir => return Err(Refusal::NotDir),
            _ => {}
        }
        if is_dir && self.lies_in(to_dir, ino) {
            return Err(Refusal::Loop);
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
            self.gone(old, effect);
        }
        Ok(())
    }

    /// Applies a record of a checkpoint, which makes the whole from nothing in any order of directories.
    pub fn restore(&mut self, record: &Record) -> Result<(), Refusal> {
        match record {
            Record::Inode {
                ino: ROOT,
                kind: Kind::Dir,
                ..
            } => Ok(()),
            Record::Inode { ino, kind, len } => self.make(*ino, *kind, *len),
            Record::Link { dir, name, ino } => self.add_name(*dir, name, *ino),
            Record::Hole { ino, blocks } => {
                let has = self.file(*ino)?.blocks();
                if has.saturating_add(*blocks) > MAX_FILE_BLOCKS {
                    return Err(Refusal::Limit);
                }
                self.change_extents(*ino, |extents| extents.push(None, *blocks));
                Ok(())
            }
            Record::Grow { .. } | Record::Length { .. } | Record::Append { .. } => {
                self.apply(record).map(|_| ())
            }
            _ => Err(Refusal::Order),
        }
    }

    /// Files without a name, and directories that hang in no other: a sound checkpoint has none. Each directory is
    /// visited once, however deep they lie.
    pub fn unreachable(&self) -> Vec<Ino> {
        let (mut rooted, mut lost) = (BTreeSet::from([ROOT]), BTreeSet::new());
        let mut hangs = |at: Ino, facts: Facts| {
            let (mut at, mut path) = (at, BTreeSet::new());
            while facts.kind == Kind::Dir && !rooted.contains(&at) {
                count_steps(1);
                // A directory that was met on this way lies in itself.
                let round = lost.contains(&at) || !path.insert(at);
                match self.parent(at) {
                    Ok(above) if !round => at = above,
                    _ => {
                        lost.append(&mut path);
                        return true;
                    }
                }
            }
            rooted.append(&mut path);
            facts.links == 0
        };
        self.inodes()
            .filter(|(ino, facts)| *ino != ROOT && hangs(*ino, *facts))
            .map(|(ino, _)| ino)
            .collect()
    }

    /// A copy to be written.
    pub fn copy(&self) -> MetaCopy {
        MetaCopy {
            inodes: self.inodes.clone(),
            many: self.many.clone(),
            names: self.names.copy(),
        }
    }

    /// Bytes of a checkpoint of it, and rather more than that.
    pub fn checkpoint_bound(&self) -> u64 {
        let (names, text) = self.names.size();
        // By the longest records of each, see `record`, and what is left free at the ends of pieces.
        let records = self.used as u64 * 42 + names * 13 + text + self.placed.extents * 30;
        records + records / 4 + 4096
    }

    /// What there is.
    pub fn counts(&self) -> MetaCounts {
        let (entries, text) = self.names.memory();
        let memory = self.inodes.memory() + self.free.memory() + entries;
        let memory = memory + self.many.lists.memory() + self.many.free.capacity() * 4;
        MetaCounts {
            files: (self.used - self.dirs) as u64,
            dirs: self.dirs as u64,
            extents: self.placed.extents,
            blocks: self.placed.blocks,
            memory: memory as u64 + self.list_bytes,
            text: text as u64,
        }
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let right = !name.is_empty() && name.len() <= MAX_NAME && !name.contains('/');
    match right && ![".", ".."].contains(&name) {
        true => Ok(()),
        false => Err(Refusal::Limit),
    }
}

fn extents_of(inode: &Inode, many: &Many) -> Extents {
    match inode.first {
        _ if inode.blocks() == 0 => Extents::default(),
        first if first & MANY != 0 => {
            let list = many.lists.get((first & !MANY) as usize);
            list.clone().unwrap_or_default()
        }
        one => Extents::of_one(one, inode.blocks()),
    }
}

/// Runs in one record at most.
const RUNS_A_RECORD: usize = 500;

impl MetaCopy {
    /// Calls `each` with the records that make it from nothing, until that says to stop.
    pub fn records<E>(&self, mut each: impl FnMut(&Record) -> Result<(), E>) -> Result<(), E> {
        for (ino, inode) in self.inodes.iter() {
            let Some(kind) = inode.kind() else { continue };
            let (ino, is_dir) = (ino as Ino, kind == Kind::Dir);
            let len = if is_dir { 0 } else { inode.len };
            each(&Record::Inode { ino, kind, len })?;
            if is_dir {
                continue;
            }
            let mut runs = Vec::new();
            let extents = extents_of(inode, &self.many);
            for Extent { len, place, .. } in extents.iter() {
                if (place.is_none() || runs.len() == RUNS_A_RECORD) && !runs.is_empty() {
                    let runs = std::mem::take(&mut runs);
                    each(&Record::Grow { ino, runs })?;
                }
                match place {
                    Some(start) => runs.push(Run { start, len }),
                    None => each(&Record::Hole { ino, blocks: len })?,
                }
            }
            if !runs.is_empty() {
                each(&Record::Grow { ino, runs })?;
            }
            match inode.is_vague() {
                true => each(&Record::Append { ino })?,
                false => each(&Record::Length { ino, len })?,
            }
        }
        for (dir, name, ino) in self.names.iter() {
            let name = name.to_string();
            each(&Record::Link { dir, name, ino })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::steps;

    /// A mount climbed from each directory to the root: where they lie in each other, 20,000 of them took 200 million
    /// steps.
    #[test]
    fn deep_directories_are_visited_once_each() {
        const DEPTH: u32 = 2_000;
        let mut meta = Meta::new(1 << 20);
        for ino in 1..=DEPTH {
            let name = "d".to_string();
            let (kind, dir) = (Kind::Dir, ino - 1);
            let made = meta.apply(&Record::Create {
                ino,
                kind,
                dir,
                name,
            });
            made.unwrap();
        }
        let before = steps();
        assert_eq!(meta.unreachable(), []);
        assert!(steps() - before <= u64::from(2 * DEPTH));
    }

    /// Regression test: the listing of a directory walked over all names of the image.
    #[test]
    fn a_directory_is_listed_for_the_cost_of_what_it_has() {
        const FILES: u32 = 5_000;
        let mut meta = Meta::new(1 << 20);
        let mut make = |ino, kind, dir, name: String| {
            let made = meta.apply(&Record::Create {
                ino,
                kind,
                dir,
                name,
            });
            made.unwrap();
        };
        make(1, Kind::Dir, 0, "few".into());
        make(2, Kind::Dir, 0, "none".into());
        for ino in 3..FILES {
            let dir = if ino % 1000 == 999 { 1 } else { 0 };
            make(ino, Kind::File, dir, format!("{ino}"));
        }
        let list = |dir| {
            let before = steps();
            let mut inos: Vec<Ino> = meta.children(dir).map(|(_, ino)| ino).collect();
            inos.sort_unstable();
            (inos, steps() - before)
        };
        let (few, cost) = list(1);
        assert_eq!(few, [999, 1999, 2999, 3999, 4999]);
        assert!(cost <= 6, "{cost} steps for 5 names");
        let (none, cost) = list(2);
        assert!(none.is_empty() && cost <= 1, "{cost} steps for no name");
        assert_eq!(list(0).0.len(), FILES as usize - 3 - 5 + 2);
    }

    /// Directories that lie in each other, as damage could have it, hang in nothing, and are found in as few steps.
    #[test]
    fn directories_that_go_round_are_unreachable() {
        const ROUND: u32 = 1_000;
        let mut meta = Meta::new(1 << 20);
        for ino in 1..=ROUND {
            let kind = Kind::Dir;
            let made = meta.restore(&Record::Inode { ino, kind, len: 0 });
            made.unwrap();
        }
        for ino in 1..=ROUND {
            let (dir, name) = (ino % ROUND + 1, format!("{ino}"));
            meta.restore(&Record::Link { dir, name, ino }).unwrap();
        }
        let before = steps();
        let all: Vec<Ino> = (1..=ROUND).collect();
        assert_eq!(meta.unreachable(), all);
        assert!(steps() - before <= u64::from(3 * ROUND));
    }
}
