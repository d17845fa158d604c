//! Lengths of values: one length, a range, a Pareto distribution, or the lengths of a directory's
//! files.
//!
//! The length of a value follows from the number of its key. So an overwrite changes no length, and
//! the live bytes of a store are known without a scan.

use crate::Stop;
use crate::engine::host_directory;
use crate::flags::{Switch, parse_size};
use basalt::fs::FileSystem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Lengths of values, as a flag gives them.
#[derive(Clone, Debug, PartialEq)]
pub enum SizesAsked {
    /// All values have the length of `--value-size`.
    Fixed,
    /// Lengths from the first to the second, with equal probability.
    Uniform(u64, u64),
    /// Generalised Pareto distribution around 0 with this mean, and with the shape of production
    /// stores (0.2615).
    Pareto(u64),
    /// Lengths of the files of a directory.
    Folder(PathBuf),
}

/// Shape of the generalised Pareto distribution of value sizes in the field (Cao et al., FAST
/// 2020).
const SHAPE: f64 = 0.2615;
/// The longest value of a Pareto distribution, as a multiple of the mean. The tail itself has no
/// end.
const LONGEST: f64 = 64.0;

/// Parses `fixed`, `uniform:100-1000`, `pareto:400` or `folder:DIR`.
pub fn parse_sizes(text: &str) -> Result<SizesAsked, String> {
    let size = parse_size;
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "fixed" if rest.is_empty() => Ok(SizesAsked::Fixed),
        "uniform" => {
            let (low, high) = rest
                .split_once('-')
                .ok_or_else(|| format!("{text:?} is not a range; write uniform:100-1000"))?;
            let (low, high) = (size(low)?, size(high)?);
            if low > high {
                return Err(format!("{text:?} ends before it begins"));
            }
            Ok(SizesAsked::Uniform(low, high))
        }
        "pareto" => Ok(SizesAsked::Pareto(size(rest)?.max(1))),
        "folder" if !rest.is_empty() => Ok(SizesAsked::Folder(rest.into())),
        _ => Err(format!(
            "{text:?} is not a distribution of sizes; write fixed, uniform:100-1000, pareto:400 or folder:DIR"
        )),
    }
}

/// A distribution of lengths that is ready for use.
#[derive(Clone, Debug)]
pub struct Sizes(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fixed(usize),
    Uniform(u64, u64),
    Pareto(f64),
    Files(Arc<[u32]>),
}

impl Sizes {
    /// Makes the distribution of one length.
    pub fn fixed(bytes: usize) -> Sizes {
        Sizes(Kind::Fixed(bytes))
    }

    /// Makes the distribution of a flag. It lists the files of a directory here, once.
    pub fn new(asked: &SizesAsked, fixed: u64) -> Result<Sizes, Stop> {
        Ok(Sizes(match asked {
            SizesAsked::Fixed => Kind::Fixed(fixed as usize),
            SizesAsked::Uniform(low, high) => Kind::Uniform(*low, *high),
            SizesAsked::Pareto(mean) => Kind::Pareto(*mean as f64),
            SizesAsked::Folder(dir) => Kind::Files(lengths(dir)?.into()),
        }))
    }

    /// Returns the length for 64 random bits.
    pub fn at(&self, bits: u64) -> usize {
        let part = |n: u64| ((u128::from(bits) * u128::from(n)) >> 64) as u64;
        match &self.0 {
            Kind::Fixed(bytes) => *bytes,
            Kind::Uniform(low, high) => (low + part(high - low + 1)) as usize,
            Kind::Pareto(mean) => {
                let u = (bits >> 11) as f64 / (1u64 << 53) as f64;
                let scale = mean * (1.0 - SHAPE);
                let x = scale / SHAPE * ((1.0 - u).powf(-SHAPE) - 1.0);
                x.min(mean * LONGEST).round() as usize
            }
            Kind::Files(lengths) => lengths[part(lengths.len() as u64) as usize] as usize,
        }
    }

    /// Returns the length if the distribution has only one.
    pub fn only(&self) -> Option<usize> {
        match self.0 {
            Kind::Fixed(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the longest possible length.
    pub fn longest(&self) -> usize {
        match &self.0 {
            Kind::Fixed(bytes) => *bytes,
            Kind::Uniform(_, high) => *high as usize,
            Kind::Pareto(mean) => (mean * LONGEST) as usize,
            Kind::Files(lengths) => lengths.iter().copied().max().unwrap_or(0) as usize,
        }
    }
}

/// Returns the lengths of all regular files under a directory, in the order of their paths.
fn lengths(dir: &Path) -> Result<Vec<u32>, Stop> {
    fn walk(fs: &dyn FileSystem, path: &Path, out: &mut Vec<u32>) -> Result<(), Stop> {
        let mut entries = fs.list(path)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let inner = path.join(&entry.name);
            if entry.is_dir {
                walk(fs, &inner, out)?;
            } else if let Ok(stat) = fs.stat(&inner) {
                let longest = basalt::MAX_VALUE_LEN as u64;
                out.push(stat.len.min(longest) as u32);
            }
        }
        Ok(())
    }
    // This check comes before the directory is opened as the directory of a store, which would make
    // it.
    let kind = rustix::fs::stat(dir).map(|s| rustix::fs::FileType::from_raw_mode(s.st_mode));
    if kind != Ok(rustix::fs::FileType::Directory) {
        return Err(Stop::new(format!(
            "{} is not a directory to take value sizes from",
            dir.display()
        )));
    }
    let fs = host_directory(dir, Switch::Off)?;
    let mut out = Vec::new();
    walk(fs.as_ref(), Path::new(""), &mut out)?;
    if out.is_empty() {
        return Err(Stop::new(format!(
            "{} has no files to take value sizes from",
            dir.display()
        )));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
