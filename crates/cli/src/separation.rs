//! The flags of separated values: which values a store keeps in blob files, how much space these
//! may take, and how they are compressed. All commands that write much have them.

use basalt::{Options, TreeOptions};
use basalt_bench::engine::Compression;
use basalt_bench::flags::parse_size;
use basalt_server::layout::LEAST_MIN_BLOB_SIZE;
use basalt_server::{MIN_BLOB_SIZE, engine_defaults};
use clap::Args;

/// The flags of separated values.
#[derive(Args, Clone)]
#[command(next_help_heading = "Large values and compression")]
pub struct Separation {
    /// Write values of at least this many bytes to blob files, which merges do not carry along; 0
    /// for none. Not remembered: old values stay where they are until a merge of tables reads them
    /// [default: 4K]
    #[arg(long, value_name = "BYTES", value_parser = parse_least)]
    pub min_blob_size: Option<u64>,
    /// Let blob files take at most this many bytes for each byte of theirs in use; smaller means
    /// more rewriting
    #[arg(long, value_name = "N", default_value_t = 1.25, value_parser = parse_amp)]
    pub max_space_amp: f64,
    /// Compress blocks of tables or pages in this way, and each value in blob files that becomes an
    /// eighth shorter. Not remembered: old data stays as it is until a merge reads it [default:
    /// none, and lz4 for pages]
    #[arg(long, value_enum)]
    pub compression: Option<Compression>,
}

const _: () = assert!(MIN_BLOB_SIZE == 4 << 10, "the help text above names 4K");

fn parse_least(text: &str) -> Result<u64, String> {
    let least = LEAST_MIN_BLOB_SIZE as u64;
    match parse_size(text)? {
        n if n == 0 || n >= least => Ok(n),
        _ => Err(format!(
            "allowed are {least} and more, or 0 for no blob files"
        )),
    }
}

fn parse_amp(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (1.05..=1000.0).contains(&n) => Ok(n),
        _ => Err("allowed are 1.05 to 1000".into()),
    }
}

impl Separation {
    /// Returns the engine's options with these flags.
    pub fn engine(&self) -> Options {
        let mut options = engine_defaults();
        if let Some(least) = self.min_blob_size {
            options.default_family.min_blob_size = (least > 0).then_some(least as usize);
        }
        if let Some(codec) = self.codec() {
            options.default_family.compression = codec;
            options.default_family.blob_compression = codec;
        }
        options.max_space_amp = self.max_space_amp;
        options
    }

    /// Returns the compression of the flags, if they have one.
    fn codec(&self) -> Option<basalt::Compression> {
        self.compression.map(|c| match c {
            Compression::None => basalt::Compression::None,
            Compression::Lz4 => basalt::Compression::Lz4,
            Compression::Zstd => basalt::Compression::Zstd,
        })
    }

    /// Returns the settings of pages with these flags.
    pub fn pages(&self) -> TreeOptions {
        let pages = TreeOptions::default();
        match self.codec() {
            Some(codec) => pages.compression(codec),
            None => pages,
        }
    }
}
