//! The location of a store: a directory of the disk, or one of an image ([`crate::filesystem`]).

use basalt_bench::flags::parse_size;
use clap::{Args, ValueEnum};
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

const DIR: &str = "./basalt-data";

/// The flags of a store's location.
#[derive(Args, Clone, Debug)]
pub struct StoreLocation {
    /// Use the store in this directory; with --image, a directory inside of the image
    #[arg(long, value_name = "DIR", default_value = DIR)]
    pub dir: PathBuf,
    /// Use the store in this image file or on this block device, in Basalt's own filesystem (see
    /// `basalt fs`)
    #[arg(long, value_name = "FILE|DEVICE")]
    pub image: Option<PathBuf>,
}

/// The engines of `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreEngine {
    /// Levels of sorted tables, with large values in blob files
    Lsm,
    /// A tree of pages, with large values in blob files
    Tree,
}

/// The flags for a store that a command may make.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Make {
    /// Make a missing store even in a directory that holds other files
    #[arg(long)]
    pub allow_nonempty_dir: bool,
    /// Make a missing --image of this many bytes, such as 20G
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "image")]
    pub size: Option<u64>,
    /// Make the image without writing its space: this saves the disk's space until it is needed,
    /// and each first write of a block costs a change of the kernel's metadata
    #[arg(long, requires = "size")]
    pub sparse: bool,
    /// Make a missing store with this engine [default: lsm]
    ///
    /// The engine is that of a store that is created, and of all families that are made in it
    /// later. An existing store keeps its own engine, and a command that names the other one
    /// fails. With `tree`, keys are in a tree of pages: see docs/tree.md.
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub engine: Option<StoreEngine>,
}

/// The access that a command needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The command only reads. A missing store is an error.
    Read,
    /// The command writes, and makes a missing store or family.
    Write(Make),
    /// The command writes, and makes nothing.
    Remove,
}

impl Access {
    /// Returns the flags for making a store, if the command may make one.
    pub fn make(self) -> Option<Make> {
        match self {
            Access::Write(make) => Some(make),
            Access::Read | Access::Remove => None,
        }
    }

    /// Returns the engine that the flags name.
    pub fn engine(self) -> Option<StoreEngine> {
        self.make().and_then(|make| make.engine)
    }
}

/// Formats the location for messages.
impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.image {
            None => write!(f, "{}", self.dir.display()),
            Some(image) => match self.path() {
                root if root.as_os_str().is_empty() => write!(f, "the root of {}", image.display()),
                path => write!(f, "{} in {}", path.display(), image.display()),
            },
        }
    }
}

impl StoreLocation {
    /// Returns the location that an argument names: a directory, or `IMAGE:PATH`.
    pub fn of_argument(path: &Path) -> StoreLocation {
        let (image, dir) = match in_image(path) {
            Some((image, dir)) => (Some(image), dir),
            None => (None, path.to_path_buf()),
        };
        StoreLocation { dir, image }
    }

    /// Returns the flags of this location for advice: `--dir DIR` or `--image FILE`.
    pub fn flags(&self) -> String {
        match &self.image {
            None => format!("--dir {}", self.dir.display()),
            Some(image) if self.dir == Path::new(DIR) => format!("--image {}", image.display()),
            Some(image) => {
                let dir = match self.dir.as_os_str().is_empty() {
                    true => Path::new("."),
                    false => &self.dir,
                };
                format!("--image {} --dir {}", image.display(), dir.display())
            }
        }
    }

    /// Returns advice on how to copy the whole store.
    pub fn copy_first(&self) -> &'static str {
        match self.image {
            None => "copy the directory",
            Some(_) => "copy the image",
        }
    }

    /// Returns the path on the disk: the directory, or the image.
    pub fn on_disk(&self) -> &Path {
        self.image.as_ref().unwrap_or(&self.dir)
    }

    /// Returns the directory for reports to scripts. In an image it is the path in the image.
    pub fn directory(&self) -> String {
        match &self.image {
            None => self.dir.display().to_string(),
            Some(_) => match self.path() {
                root if root.as_os_str().is_empty() => "/".to_string(),
                path => path.display().to_string(),
            },
        }
    }

    /// Returns the directory in its filesystem, in an image without `.` components.
    pub fn path(&self) -> PathBuf {
        let parts = self.dir.components();
        let parts = parts.filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
        parts.collect()
    }
}

/// Returns the directory of a file if that directory is missing.
pub fn missing_directory(file: &Path) -> Option<&Path> {
    let directory = file.parent().filter(|f| !f.as_os_str().is_empty())?;
    let found = rustix::fs::stat(directory);
    matches!(found, Err(rustix::io::Errno::NOENT)).then_some(directory)
}

/// Splits `IMAGE:PATH`, if the part before a colon is a file or a device.
pub fn in_image(text: &Path) -> Option<(PathBuf, PathBuf)> {
    let bytes = text.as_os_str().as_bytes();
    let colons = bytes.iter().enumerate().filter(|(_, b)| **b == b':');
    for (i, _) in colons {
        let image = Path::new(OsStr::from_bytes(&bytes[..i]));
        let kind = rustix::fs::stat(image).map(|s| FileType::from_raw_mode(s.st_mode));
        if matches!(kind, Ok(k) if k != FileType::Directory) {
            let path = Path::new(OsStr::from_bytes(&bytes[i + 1..]));
            return Some((image.to_path_buf(), path.to_path_buf()));
        }
    }
    None
}
