//! Code for tests alone: a disk and a device in memory that lose what no sync covered, injected
//! faults, the conformance suite of filesystems, and the tools that campaigns share.
//!
//! - [`SimFs`] a simulated disk; [`all_tests_on_lava`] runs a test binary again with LavaFS on it
//! - [`SimDevice`] a simulated block device
//! - [`fault`] a wrapper of any filesystem whose calls fail; [`OpKind`] and [`When`] choose the
//!   calls
//! - [`conformance`] checks that every filesystem passes
//! - [`hexdump`] hexdumps of formats, for the pages of `docs/format`
//! - [`mutate`] wrong bytes by seed; [`rng`] random numbers from a seed
//! - [`TestAllocator`] the allocator of test binaries with long campaigns
//! - [`campaign`] the counts that a campaign prints, and the line that repeats a failure
//!
//! Crates depend on this one in tests alone (`[dev-dependencies]`), and under coverage-guided
//! fuzzing: no binary contains it. Unit tests inside of `fs` see the traits of `fs` twice, as those
//! under test and as those that this crate implements. So tests of `fs` that need a simulated disk
//! are integration tests of this crate.

#![deny(missing_docs)]

pub mod campaign;
pub mod conformance;
mod content;
mod device;
pub mod fault;
pub mod hexdump;
pub mod mutate;
mod op;
pub mod rng;
mod sim_fs;

/// The allocator of test binaries with long campaigns: such a binary declares it as its
/// `#[global_allocator]`. It is mimalloc. A crash state opens and closes a store, which allocates
/// thousands of small blocks, and the C library's allocator had a fifth of the samples. Binaries
/// that measure memory, and binaries that users run, keep the system's allocator. Under Miri it is
/// the system's allocator, because Miri cannot call mimalloc.
#[cfg(not(miri))]
pub use mimalloc::MiMalloc as TestAllocator;
#[cfg(miri)]
pub use std::alloc::System as TestAllocator;

pub use device::{DeviceCut, DeviceFault, DeviceSnapshot, SimDevice};
pub use fault::FaultFs;
pub use op::{OpKind, When};
pub use sim_fs::{
    CrashPolicy, Lie, LieKind, SimFs, SimOptions, SimSnapshot, all_tests_on_lava, is_on_lava,
};
