//! What a command may use: memory, threads, files, the device. One set of flags for every command that can use much.

use crate::failure::Failure;
use crate::progress::human_bytes;
use basalt::Options;
use basalt::env::EnvBuilder;
use basalt_bench::args::parse_size;
use clap::Args;

/// The flags. Defaults are the engine's own.
#[derive(Args, Clone)]
#[command(next_help_heading = "Budgets")]
pub struct Budget {
    /// The whole memory budget: memtables, cache, buffers, clients
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub memory: u64,
    /// The block cache's part of it
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_size)]
    pub cache: u64,
    /// Memtable bytes at which they are written out as tables; larger means fewer compactions and a longer recovery
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub write_buffer: u64,
    /// Threads for flushes and compactions; 0 takes one more than there are processors, at least 3
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub background_threads: usize,
    /// Bytes a second that flushes and compactions may read and write; 0 is no limit
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub io_limit: u64,
    /// Table files held open at once
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    pub open_files: u64,
}

impl Budget {
    /// The environment within these bounds.
    pub fn environment(&self, env: EnvBuilder) -> Result<EnvBuilder, Failure> {
        if self.cache > self.memory {
            return Err(Failure::new(format!(
                "--cache {} is more than --memory {}, of which it is a part; raise the one or lower the other",
                human_bytes(self.cache),
                human_bytes(self.memory)
            )));
        }
        if self.write_buffer > self.memory {
            return Err(Failure::new(format!(
                "--write-buffer {} is more than --memory {}, of which it is a part; raise the one or lower the other",
                human_bytes(self.write_buffer),
                human_bytes(self.memory)
            )));
        }
        if self.write_buffer < 64 << 10 {
            return Err(Failure::new(format!(
                "--write-buffer {} is too small to be of use; give at least 64K",
                human_bytes(self.write_buffer)
            )));
        }
        if (1..1 << 20).contains(&self.io_limit) {
            return Err(Failure::new(format!(
                "--io-limit {} a second would hold writers back for ever; give at least 1M, or 0 for none",
                human_bytes(self.io_limit)
            )));
        }
        let env = env
            .memory_bytes(self.memory)
            .cache_bytes(self.cache)
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
            write_buffer_bytes: self.write_buffer,
            ..Options::default()
        }
    }
}
