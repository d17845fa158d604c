//! Limits how much unused memory the C library's allocator keeps in a process that runs only
//! Basalt.
//!
//! The engine changes no setting of the allocator by default, because the allocator belongs to the
//! program. The command line and the benchmark call [`keep_little`] before they start threads. They
//! also set [`crate::EnvBuilder::trims_memory`]. With it, the environment calls
//! [`give_back_unused`] when the process holds much more memory than the ledger has reserved.
//! `docs/decisions/0031-memory.md` has the measurements.
//!
//! This is a leaf module with `unsafe`. Its invariant: the called functions take plain numbers,
//! touch only the allocator's own state, and take its locks themselves, so any thread may call them
//! at any time.
#![allow(unsafe_code)]

/// Blocks of at least this many bytes are mapped on their own and return to the system when they
/// are freed. The C library would raise this limit to 32 MiB as such blocks are freed, and keep
/// them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM: i32 = 128 << 10;
/// Bytes of free memory at the end of the heap that stay for the next allocation.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_AT_THE_END: i32 = 1 << 20;

/// Limits the allocator to one heap for each processor, 2 to 16, and has it return large blocks at
/// once. By default the C library makes up to eight heaps for each processor, and a thread cannot
/// use the free memory of another heap. Call this before threads start. Does nothing unless the C
/// library is glibc.
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let heaps = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 16));
        // SAFETY: the invariant at the head of the module. An unknown option is refused, which does
        // no harm.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, heaps as i32);
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_AT_THE_END);
        }
    }
}

/// Returns the bytes of memory that the process has now, as the system counts them. Returns `None`
/// if the system does not report them.
#[expect(
    clippy::disallowed_methods,
    reason = "what the kernel says of this process is no file of a store"
)]
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Returns unused pages to the system. Takes some milliseconds for each 100 MB of free memory, and
/// holds a heap's lock meanwhile. Does nothing if the allocator is another one.
pub fn give_back_unused() {
    basalt_fs::return_free_pages();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the invariant at the head of the module.
    unsafe {
        libc::malloc_trim(0);
    }
}
