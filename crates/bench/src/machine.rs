//! Facts about the machine of a run, which readers need to judge its results.

use crate::counters::{block_device, mount_of, read_kernel_file};
use serde_json::{Value, json};
use std::path::Path;

/// Returns facts about the machine and the disk under `dir`. An unknown fact is null.
pub fn describe(dir: &Path) -> Value {
    let uname = rustix::system::uname();
    let line = |file: &str, name: &str| {
        read_kernel_file(Path::new(file))?.lines().find_map(|l| {
            Some(
                l.strip_prefix(name)?
                    .trim_start_matches([':', ' ', '\t'])
                    .trim()
                    .to_string(),
            )
        })
    };
    let memory = line("/proc/meminfo", "MemTotal")
        .and_then(|t| t.split(' ').next()?.parse::<u64>().ok())
        .map(|kib| kib * 1024);
    let of_disk = |name: &str| {
        let text = read_kernel_file(&block_device(dir)?.join(name))?;
        Some(text.trim().to_string())
    };
    // The queue of a partition is that of its disk.
    let queue = |name: &str| {
        of_disk(&format!("queue/{name}"))
            .or_else(|| of_disk(&format!("../queue/{name}")))
            .and_then(|t| t.parse::<u64>().ok())
    };
    let disk = of_disk("uevent").and_then(|t| {
        t.lines()
            .find_map(|l| Some(l.strip_prefix("DEVNAME=")?.to_string()))
    });
    json!({
        "cpu": line("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, |n| n.get()),
        "memory_bytes": memory,
        "kernel": format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        "architecture": uname.machine().to_string_lossy(),
        "filesystem": mount_of(dir).map(|m| m.0),
        "disk": disk,
        "disk_model": of_disk("device/model").or_else(|| of_disk("../device/model")),
        "disk_bytes": of_disk("size").and_then(|t| t.parse::<u64>().ok()).map(|sectors| sectors * 512),
        "disk_rotational": queue("rotational").map(|r| r == 1),
        "disk_logical_sector": queue("logical_block_size"),
        "disk_physical_sector": queue("physical_block_size"),
        "disk_write_cache": of_disk("queue/write_cache").or_else(|| of_disk("../queue/write_cache")),
    })
}
