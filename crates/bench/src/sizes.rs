//! How long values are: one length, a range, a Pareto distribution, or the lengths of a folder's
//! files.
//!
//! A key's length is its own and follows from its number, so that an overwrite changes no length
//! and the live bytes of a store are known without looking.

use crate::Stop;
use crate::engine::host_directory;
use crate::flags::{Switch, parse_size};
use basalt::fs::FileSystem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Lengths of values, as they are asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum SizesAsked {
    /// All as `--value-size` says.
    Fixed,
    /// From the first to the second, each as likely.
    Uniform(u64, u64),
    /// Generalised Pareto around 0 with this mean, and the shape that was found in production
    /// stores (0.2615).
    Pareto(u64),
    /// As the files of a folder.
    Folder(PathBuf),
}

/// Shape of the generalised Pareto distribution of value sizes in the field (Cao et al., FAST
/// 2020).
const SHAPE: f64 = 0.2615;
/// No value of a Pareto distribution is longer than so many times the mean: the tail has no end.
const LONGEST: f64 = 64.0;

/// `fixed`, `uniform:100-1000`, `pareto:400`, `folder:DIR`.
pub fn parse_sizes(text: &str) -> Result<SizesAsked, String> {
    let size = parse_size;
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "fixed" if rest.is_empty() => Ok(SizesAsked::Fixed),
        "uniform" => {
            let (low, high) = rest
                .split_once('-')
                .ok_or_else(|| format!("{text:?} is no range; write uniform:100-1000"))?;
            let (low, high) = (size(low)?, size(high)?);
            if low > high {
                return Err(format!("{text:?} ends before it begins"));
            }
            Ok(SizesAsked::Uniform(low, high))
        }
        "pareto" => Ok(SizesAsked::Pareto(size(rest)?.max(1))),
        "folder" if !rest.is_empty() => Ok(SizesAsked::Folder(rest.into())),
        _ => Err(format!(
            "{text:?} is no distribution of sizes; write fixed, uniform:100-1000, pareto:400 or folder:DIR"
        )),
    }
}

/// Lengths of values, ready to be drawn.
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
    /// All of one length.
    pub fn fixed(bytes: usize) -> Sizes {
        Sizes(Kind::Fixed(bytes))
    }

    /// As asked; a folder's files are looked at once, here.
    pub fn new(asked: &SizesAsked, fixed: u64) -> Result<Sizes, Stop> {
        Ok(Sizes(match asked {
            SizesAsked::Fixed => Kind::Fixed(fixed as usize),
            SizesAsked::Uniform(low, high) => Kind::Uniform(*low, *high),
            SizesAsked::Pareto(mean) => Kind::Pareto(*mean as f64),
            SizesAsked::Folder(dir) => Kind::Files(lengths(dir)?.into()),
        }))
    }

    /// The length for 64 random bits.
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

    /// The length when there is only one.
    pub fn only(&self) -> Option<usize> {
        match self.0 {
            Kind::Fixed(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The longest that may come.
    pub fn longest(&self) -> usize {
        match &self.0 {
            Kind::Fixed(bytes) => *bytes,
            Kind::Uniform(_, high) => *high as usize,
            Kind::Pareto(mean) => (mean * LONGEST) as usize,
            Kind::Files(lengths) => lengths.iter().copied().max().unwrap_or(0) as usize,
        }
    }
}

/// Lengths of all regular files under a folder, in the order of their paths.
fn lengths(dir: &Path) -> Result<Vec<u32>, Stop> {
    fn walk(fs: &dyn FileSystem, path: &Path, out: &mut Vec<u32>) -> Result<(), Stop> {
        let mut entries = fs.list(path)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let inner = path.join(&entry.name);
            if entry.is_dir {
                walk(fs, &inner, out)?;
            } else if let Ok(stat) = fs.stat(&inner) {
                let longest = basalt::lsm::MAX_VALUE_LEN as u64;
                out.push(stat.len.min(longest) as u32);
            }
        }
        Ok(())
    }
    // Before the folder is opened as a store's, which would make it.
    let kind = rustix::fs::stat(dir).map(|s| rustix::fs::FileType::from_raw_mode(s.st_mode));
    if kind != Ok(rustix::fs::FileType::Directory) {
        return Err(Stop::new(format!(
            "{} is no folder to take value sizes from",
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
mod tests {
    use super::*;
    use basalt::env::Random;

    fn mean_of(sizes: &Sizes) -> f64 {
        let random = Random::from_seed(3);
        let n = 200_000;
        (0..n)
            .map(|_| sizes.at(random.next_u64()) as f64)
            .sum::<f64>()
            / n as f64
    }

    #[test]
    fn every_form_is_read_and_others_are_refused() {
        assert_eq!(parse_sizes("fixed"), Ok(SizesAsked::Fixed));
        assert_eq!(
            parse_sizes("uniform:1K-2K"),
            Ok(SizesAsked::Uniform(1024, 2048))
        );
        assert_eq!(parse_sizes("pareto:400"), Ok(SizesAsked::Pareto(400)));
        assert_eq!(
            parse_sizes("folder:/x/y"),
            Ok(SizesAsked::Folder("/x/y".into()))
        );
        for bad in [
            "",
            "fixed:1",
            "uniform:5",
            "uniform:9-1",
            "pareto:",
            "folder:",
            "normal:3",
        ] {
            assert!(parse_sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_are_distributed_as_they_say() {
        let uniform = Sizes(Kind::Uniform(10, 20));
        let random = Random::from_seed(5);
        let mut seen = [0u32; 21];
        for _ in 0..10_000 {
            seen[uniform.at(random.next_u64())] += 1;
        }
        assert!(seen[..10].iter().all(|&n| n == 0) && seen[10..].iter().all(|&n| n > 500));
        // The Pareto distribution's mean is the one asked for, its median far below it, its tail
        // cut.
        let pareto = Sizes(Kind::Pareto(400.0));
        let mean = mean_of(&pareto);
        assert!((mean - 400.0).abs() < 8.0, "{mean}");
        let half = pareto.at(u64::MAX / 2) as f64;
        let median = 400.0 * (1.0 - SHAPE) / SHAPE * (2f64.powf(SHAPE) - 1.0);
        assert!((half - median).abs() <= 1.0, "{half} {median}");
        assert!(pareto.at(u64::MAX) <= pareto.longest());
        assert_eq!(mean_of(&Sizes::fixed(7)), 7.0);
        let files = Sizes(Kind::Files(vec![1, 2, 1000].into()));
        assert!((mean_of(&files) - 1003.0 / 3.0).abs() < 5.0);
        assert_eq!((files.longest(), files.only()), (1000, None));
    }
}
