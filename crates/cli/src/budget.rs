//! Limits of a command: memory, threads, files and device. Every command that can use much has this
//! one set of flags.

use crate::failure::Failure;
use crate::progress::human_bytes;
use crate::separation::Separation;
use basalt::Options;
use basalt::env::EnvBuilder;
use basalt_bench::flags::parse_size;
use clap::Args;

/// Default budgets in bytes, those of the engine: memory, cache, write buffer.
const MEMORY: u64 = 512 << 20;
const CACHE: u64 = 256 << 20;
const WRITE_BUFFER: u64 = 64 << 20;
/// The smallest write buffer in bytes. A smaller one is of no use.
const LEAST_WRITE_BUFFER: u64 = 64 << 10;

/// The flags of the budget.
#[derive(Args, Clone)]
#[command(next_help_heading = "Budgets")]
pub struct Budget {
    /// Limit memtables, cache, buffers and clients to this many bytes in all [default: 512M]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Use this many bytes of the memory for the block cache, at most three quarters [default:
    /// 256M, or half of --memory if that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub cache: Option<u64>,
    /// Flush memtables at this many bytes; larger means fewer compactions and a longer recovery
    /// [default: 64M, or an eighth of --memory if that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub write_buffer: Option<u64>,
    /// Run this many threads for flushes and compactions; 0 takes one more than there are
    /// processors, at least 3
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub background_threads: usize,
    /// Limit flushes and compactions to this many bytes a second of reads and writes; 0 is no limit
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub io_limit: u64,
    /// Hold at most this many table files open
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    pub open_files: u64,
    #[command(flatten)]
    pub separation: Separation,
}

impl Budget {
    /// Returns memory, cache and write buffer in bytes. A part without a flag keeps its proportion
    /// to the whole.
    fn parts(&self) -> (u64, u64, u64) {
        let memory = self.memory.unwrap_or(MEMORY);
        let cache = self.cache.unwrap_or(CACHE.min(memory / 2));
        let least = LEAST_WRITE_BUFFER.min(memory);
        let buffer = WRITE_BUFFER.min(memory / 8).max(least);
        (memory, cache, self.write_buffer.unwrap_or(buffer))
    }

    /// Makes the environment within these limits.
    pub fn environment<F>(&self, env: EnvBuilder<F>) -> Result<EnvBuilder<F>, Failure> {
        let (memory, cache, write_buffer) = self.parts();
        if memory < 4 * LEAST_WRITE_BUFFER {
            return Err(Failure::new(format!(
                "--memory {} is too small; give at least {}",
                human_bytes(memory),
                human_bytes(4 * LEAST_WRITE_BUFFER)
            )));
        }
        if cache > memory / 4 * 3 {
            return Err(Failure::new(format!(
                "--cache {} is more than three quarters of --memory {}, of which it is a part; raise the one or lower the other",
                human_bytes(cache),
                human_bytes(memory)
            )));
        }
        if write_buffer > memory {
            return Err(Failure::new(format!(
                "--write-buffer {} is more than --memory {}, of which it is a part; raise the one or lower the other",
                human_bytes(write_buffer),
                human_bytes(memory)
            )));
        }
        if write_buffer < LEAST_WRITE_BUFFER {
            return Err(Failure::new(format!(
                "--write-buffer {} is too small; give at least 64K",
                human_bytes(write_buffer)
            )));
        }
        if (1..1 << 20).contains(&self.io_limit) {
            return Err(Failure::new(format!(
                "--io-limit {} a second is too low; give at least 1M, or 0 for no limit",
                human_bytes(self.io_limit)
            )));
        }
        let env = env
            .memory_bytes(memory)
            .cache_bytes(cache)
            .open_files(self.open_files as usize)
            .io_bytes_per_s(self.io_limit);
        Ok(match self.background_threads {
            0 => env,
            n => env.threads(n),
        })
    }

    /// Returns engine options within these limits.
    pub fn engine(&self) -> Options {
        self.separation.engine().write_buffer_bytes(self.parts().2)
    }
}
