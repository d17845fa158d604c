//! Where a store lies: in a directory of the disk, or in one of an image ([`crate::filesystem`]).

use basalt_bench::flags::parse_size;
use clap::Args;
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

const DIR: &str = "./basalt-data";

/// The flags.
#[derive(Args, Clone, Debug)]
pub struct StoreLocation {
    /// The store's directory; with --image, the one inside of it
    #[arg(long, value_name = "DIR", default_value = DIR)]
    pub dir: PathBuf,
    /// The store lies in this image file or on this block device, in Basalt's own filesystem (see
    /// `basalt fs`)
    #[arg(long, value_name = "FILE|DEVICE")]
    pub image: Option<PathBuf>,
}

/// Where a command may make the store that it finds missing.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Make {
    /// Make a missing store also in a folder that holds other files
    #[arg(long)]
    pub allow_nonempty_dir: bool,
    /// Make a missing --image of this size, such as 20G
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "image")]
    pub size: Option<u64>,
    /// Make it at once instead of writing all of its space: saves the disk's space until it is
    /// needed, and costs each first write of a block the kernel's metadata
    #[arg(long, requires = "size")]
    pub sparse: bool,
}

/// What a command is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Only look: a store that is not there is an error.
    Read,
    /// Write: a store, or a family, that is not there is made.
    Write(Make),
    /// Write, but make nothing.
    Remove,
}

impl Access {
    /// What it says about making a store, if it may make one.
    pub fn make(self) -> Option<Make> {
        match self {
            Access::Write(make) => Some(make),
            Access::Read | Access::Remove => None,
        }
    }
}

/// As messages name it.
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
    /// The flags that lead here, for advice: `--dir DIR` or `--image FILE`.
    pub fn flags(&self) -> String {
        match &self.image {
            None => format!("--dir {}", self.dir.display()),
            Some(image) if self.dir == Path::new(DIR) => format!("--image {}", image.display()),
            Some(image) => {
                format!("--image {} --dir {}", image.display(), self.dir.display())
            }
        }
    }

    /// How to keep a copy of all of it, as advice.
    pub fn copy_first(&self) -> &'static str {
        match self.image {
            None => "copy the directory",
            Some(_) => "copy the image",
        }
    }

    /// What it takes on the disk: the directory, or the image.
    pub fn on_disk(&self) -> &Path {
        self.image.as_ref().unwrap_or(&self.dir)
    }

    /// The directory as reports for scripts name it: of an image the path in it.
    pub fn directory(&self) -> String {
        match &self.image {
            None => self.dir.display().to_string(),
            Some(_) => match self.path() {
                root if root.as_os_str().is_empty() => "/".to_string(),
                path => path.display().to_string(),
            },
        }
    }

    /// The directory in its filesystem, without what leads nowhere in an image.
    pub fn path(&self) -> PathBuf {
        let parts = self.dir.components();
        let parts = parts.filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
        parts.collect()
    }
}

/// The folder that a file would lie in, if it is not there.
pub fn missing_folder(file: &Path) -> Option<&Path> {
    let folder = file.parent().filter(|f| !f.as_os_str().is_empty())?;
    let found = rustix::fs::stat(folder);
    matches!(found, Err(rustix::io::Errno::NOENT)).then_some(folder)
}

/// `IMAGE:PATH`, if what stands before a colon is a file or a device.
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
