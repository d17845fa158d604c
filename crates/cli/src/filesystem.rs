//! The filesystem of a command: that of the disk, or that of an image. This module opens, makes or
//! refuses an image.

use crate::failure::{Failure, image_path_advice};
use crate::location::{Access, Make, StoreLocation, missing_directory};
use crate::output::note;
use crate::progress;
use basalt::env::{Clock, EnvBuilder, EnvParts};
use basalt::fs::{FileSystem, HostFs, HostOptions};
use basalt::lava::LavaFs;
use basalt::lava::image::{self, Format, Step};
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the filesystem, and the store's directory in it. On the disk the directory is an
/// absolute path, so that messages name it in full. The disk's filesystem has this directory as its
/// root, because sector sizes are determined for the root.
///
/// Fails if the directory is missing and may not be made: a command that only reads makes none.
///
/// An image becomes part of the environment of these parts.
pub fn open(
    place: &StoreLocation,
    access: Access,
    env: &EnvParts,
) -> Result<(Arc<dyn FileSystem>, PathBuf), Failure> {
    let Some(name) = &place.image else {
        if access.make().is_none() {
            must_exist_on_disk(place)?;
        }
        let path = std::path::absolute(&place.dir);
        let path = path.map_err(|e| Failure::os("find", &place.dir, e))?;
        let fs = HostFs::new(HostOptions::new(&path)).map_err(|e| Failure::store(place, e))?;
        return Ok((fs, path));
    };
    let fs = open_image(name, access, env)?;
    let path = place.path();
    let there = fs.stat(&path);
    match (there, access.make()) {
        (Ok(s), _) if !s.is_dir => {
            return Err(Failure::new(format!(
                "{place} is not a directory; name the store's directory with --dir"
            )));
        }
        (Err(e), None) if e.is_not_found() => {
            return Err(Failure::new(format!(
                "there is no store {place}; `basalt fs ls {}` shows what there is",
                name.display()
            )));
        }
        (Err(e), _) if !e.is_not_found() => return Err(Failure::store(place, e)),
        _ => {}
    }
    Ok((fs, path))
}

fn must_exist_on_disk(place: &StoreLocation) -> Result<(), Failure> {
    let dir = &place.dir;
    match rustix::fs::stat(dir) {
        Ok(s)
            if rustix::fs::FileType::from_raw_mode(s.st_mode)
                == rustix::fs::FileType::Directory =>
        {
            Ok(())
        }
        Ok(_) => Err(Failure::new(format!(
            "{} is not a directory; name the store's directory with --dir, or an image with --image",
            dir.display()
        ))),
        Err(rustix::io::Errno::NOENT) => Err(Failure::new(format!(
            "there is no store in {}; name another with --dir, or make one with `basalt serve` or `basalt put`",
            dir.display()
        ))),
        Err(e) => Err(Failure::os("look at", dir, e)),
    }
}

/// Opens an image for a command without a store in it.
pub fn open_image_alone(name: &Path, access: Access) -> Result<Arc<LavaFs>, Failure> {
    open_image(name, access, &EnvBuilder::without_fs().parts())
}

/// Opens an image for a command. If the image is missing, the command may make files, and a size is
/// given, then the image is made first. The image becomes part of the environment of these parts.
pub fn open_image(name: &Path, access: Access, env: &EnvParts) -> Result<Arc<LavaFs>, Failure> {
    let missing = matches!(rustix::fs::stat(name), Err(rustix::io::Errno::NOENT));
    if missing && let Some(advice) = image_path_advice(name) {
        let name = name.display();
        return Err(Failure::new(format!("there is no image {name}; {advice}")));
    }
    match access.make() {
        Some(Make {
            size: Some(size),
            sparse,
            ..
        }) if missing => {
            let how = Format::default().size(Some(size)).sparse(sparse);
            make_image(name, &how)?;
        }
        Some(_) if missing => {
            must_have_directory(name)?;
            return Err(Failure::new(format!(
                "there is no image {0}; --size 20G makes one of 20 GiB, and so does `basalt fs format {0} --size 20G`",
                name.display()
            )));
        }
        _ => {}
    }
    let fs = image::open(name, access == Access::Read, Some(env))
        .map_err(|e| Failure::image(name, e))?;
    if let Some(Make {
        size: Some(size), ..
    }) = access.make()
    {
        let has = fs.usage().total_bytes;
        if has != size / 4096 * 4096 {
            let (name, has, said) = (name.display(), as_flag(has), as_flag(size));
            return Err(Failure::new(match fs.usage().total_bytes < size {
                true => format!(
                    "{name} has {has}, and --size says {said}; leave --size out, or make it larger with `basalt fs grow {name} --size {said}`"
                ),
                false => format!(
                    "{name} has {has}, and --size says {said}; leave --size out: an image cannot be made smaller"
                ),
            }));
        }
    }
    Ok(fs)
}

/// Returns a size in the form of flags: `64M`.
pub fn as_flag(size: u64) -> String {
    let unit = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = unit
        .into_iter()
        .find(|(shift, _)| size > 0 && size.is_multiple_of(1 << shift));
    match unit {
        Some((shift, letter)) => format!("{}{letter}", size >> shift),
        None => size.to_string(),
    }
}

/// Fails if the directory of a new image is missing: it may be a misspelt name.
fn must_have_directory(image: &Path) -> Result<(), Failure> {
    match missing_directory(image) {
        None => Ok(()),
        Some(directory) => Err(Failure::new(format!(
            "the directory {} is not there, so no image can be made in it; make it first, or name another place",
            directory.display()
        ))),
    }
}

/// Makes an image or formats a device, with a progress bar on a terminal, and reports it.
pub fn make_image(name: &Path, how: &Format) -> Result<u64, Failure> {
    must_have_directory(name)?;
    let clock = Clock::system();
    let began = clock.now();
    let mut bar = Steps::default();
    let made = image::format(name, how, &mut |step, done, of| bar.at(step, done, of));
    bar.end();
    let size = made.map_err(|e| Failure::making_image(name, e))?;
    let written = bar.written;
    note(format_args!(
        "basalt: made {}, {}",
        name.display(),
        match written {
            0 if how.sparse => format!("{}, written when it is used", progress::human_bytes(size)),
            0 => progress::human_bytes(size),
            n => progress::rate(n, clock.now() - began),
        }
    ));
    Ok(size)
}

/// A progress bar for each step of making an image.
#[derive(Default)]
pub struct Steps {
    bar: Option<(Step, ProgressBar)>,
    /// Bytes of space written so far.
    pub written: u64,
}

impl Steps {
    /// Moves the bar of a step.
    pub fn at(&mut self, step: Step, done: u64, of: u64) {
        if self.bar.as_ref().is_none_or(|(at, _)| *at != step) {
            self.end();
            let what = match step {
                Step::Looking => "looking",
                Step::Writing => "writing",
            };
            self.bar = Some((step, progress::bytes(what, Some(of))));
        }
        if step == Step::Writing {
            self.written = done;
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub fn end(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
