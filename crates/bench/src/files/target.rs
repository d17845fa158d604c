//! The targets of the measurement: an image, and directories of kernel filesystems.

use super::FsArgs;
use crate::Stop;
use crate::counters::Counters;
use crate::engine::{host_directory, remove_tree};
use crate::flags::Switch;
use basalt::env::{EnvBuilder, EnvParts};
use basalt::fs::{File, FileSystem};
use basalt::lava::LavaFs;
use basalt::lava::image::{self, Format};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A filesystem that is measured.
pub struct Target {
    pub name: String,
    kind: Kind,
    counters: Counters,
    /// Files of the read workload.
    pub files: Vec<Arc<dyn File>>,
}

enum Kind {
    Host(Arc<dyn FileSystem>),
    /// The filesystem is `None` between two mounts.
    Lava(Option<Arc<LavaFs>>, PathBuf),
}

fn own(dir: &Path) -> PathBuf {
    dir.join(format!("fs-{}", rustix::process::getpid().as_raw_nonzero()))
}

/// Returns all targets of `args`, the image first.
pub fn all(args: &FsArgs) -> Result<Vec<Target>, Stop> {
    let dir = own(&args.dir);
    let host = host_directory(&dir, Switch::On)?;
    host.create_dir(Path::new("host"))?;
    let path = dir.join("image");
    let how = Format::default()
        .size(Some(args.image_size))
        .sparse(args.sparse);
    let path = match &args.image {
        None => {
            image::format(&path, &how, &mut |_, _, _| ())?;
            path
        }
        Some(path) => path.clone(),
    };
    let counters = match &args.image {
        Some(device) => Counters::of_device(device),
        None => Counters::new(&dir),
    };
    let mut targets = vec![
        Target {
            name: "lava".into(),
            kind: Kind::Lava(Some(image::open(&path, false, Some(&own_jobs()))?), path),
            counters,
            files: Vec::new(),
        },
        Target {
            name: "host".into(),
            kind: Kind::Host(host_directory(&dir.join("host"), Switch::On)?),
            counters: Counters::new(&dir),
            files: Vec::new(),
        },
    ];
    for also in &args.also {
        let dir = own(also);
        targets.push(Target {
            name: also
                .file_name()
                .map_or("other".into(), |n| n.to_string_lossy().into_owned()),
            kind: Kind::Host(host_directory(&dir, Switch::On)?),
            counters: Counters::new(&dir),
            files: Vec::new(),
        });
    }
    Ok(targets)
}

/// Returns parts of an environment that the image uses alone.
fn own_jobs() -> EnvParts {
    EnvBuilder::without_fs().parts()
}

/// Removes everything that the run has made.
pub fn remove(args: &FsArgs) -> Result<(), Stop> {
    for dir in [&args.dir].into_iter().chain(&args.also) {
        let host = host_directory(dir, Switch::Off)?;
        let own = own(Path::new(""));
        if host.exists(&own)? {
            remove_tree(&*host, &own)?;
        }
    }
    Ok(())
}

impl Target {
    pub fn fs(&self) -> Arc<dyn FileSystem> {
        match &self.kind {
            Kind::Host(fs) => fs.clone(),
            Kind::Lava(fs, _) => fs.clone().expect("it is mounted"),
        }
    }

    /// Returns the filesystem of an image.
    pub fn lava(&self) -> Option<Arc<LavaFs>> {
        match &self.kind {
            Kind::Host(_) => None,
            Kind::Lava(fs, _) => fs.clone(),
        }
    }

    /// Leaves the image in the state of a crash.
    pub fn crash(&mut self) {
        if let Kind::Lava(fs, _) = &mut self.kind
            && let Some(fs) = fs.take()
        {
            fs.abandon();
        }
    }

    /// Opens the image again.
    pub fn mount(&mut self) -> Result<(), Stop> {
        if let Kind::Lava(fs, path) = &mut self.kind {
            *fs = Some(image::open(path, false, Some(&own_jobs()))?);
        }
        Ok(())
    }

    /// Returns the bytes that the block device has written, those of other processes included.
    pub fn written(&self) -> Option<u64> {
        self.counters.disk().map(|d| d.write_bytes)
    }
}
