//! What a command may use: memory, threads, files, the device. One set of flags for every command
//! that can use much.

use crate::failure::Failure;
use crate::progress::human_bytes;
use crate::separation::Separation;
use basalt::Options;
use basalt::env::EnvBuilder;
use basalt_bench::flags::parse_size;
use clap::Args;

/// Defaults, the engine's own.
const MEMORY: u64 = 512 << 20;
const CACHE: u64 = 256 << 20;
const WRITE_BUFFER: u64 = 64 << 20;
/// Less is of no use.
const LEAST_WRITE_BUFFER: u64 = 64 << 10;

/// The flags.
#[derive(Args, Clone)]
#[command(next_help_heading = "Budgets")]
pub struct Budget {
    /// The whole memory budget: memtables, cache, buffers, clients [default: 512M]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// The block cache's part of it, at most three quarters [default: 256M, or half of --memory if
    /// that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub cache: Option<u64>,
    /// Memtable bytes at which they are written out as tables; larger means fewer compactions and a
    /// longer recovery [default: 64M, or an eighth of --memory if that is less]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub write_buffer: Option<u64>,
    /// Threads for flushes and compactions; 0 takes one more than there are processors, at least 3
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub background_threads: usize,
    /// Bytes a second that flushes and compactions may read and write; 0 is no limit
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub io_limit: u64,
    /// Table files held open at once
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    pub open_files: u64,
    #[command(flatten)]
    pub separation: Separation,
}

impl Budget {
    /// Memory, cache and write buffer: a part that is not set keeps its proportion to the whole.
    fn parts(&self) -> (u64, u64, u64) {
        let memory = self.memory.unwrap_or(MEMORY);
        let cache = self.cache.unwrap_or(CACHE.min(memory / 2));
        let least = LEAST_WRITE_BUFFER.min(memory);
        let buffer = WRITE_BUFFER.min(memory / 8).max(least);
        (memory, cache, self.write_buffer.unwrap_or(buffer))
    }

    /// The environment within these bounds.
    pub fn environment<F>(&self, env: EnvBuilder<F>) -> Result<EnvBuilder<F>, Failure> {
        let (memory, cache, write_buffer) = self.parts();
        if memory < 4 * LEAST_WRITE_BUFFER {
            return Err(Failure::new(format!(
                "--memory {} is too small to be of use; give at least {}",
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
                "--write-buffer {} is too small to be of use; give at least 64K",
                human_bytes(write_buffer)
            )));
        }
        if (1..1 << 20).contains(&self.io_limit) {
            return Err(Failure::new(format!(
                "--io-limit {} a second would hold writers back for ever; give at least 1M, or 0 for none",
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

    /// Engine options within these bounds.
    pub fn engine(&self) -> Options {
        Options {
            write_buffer_bytes: self.parts().2,
            ..self.separation.engine()
        }
    }
}
