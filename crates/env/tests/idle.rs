//! An environment at rest costs no thread, and kilobytes of memory. This is the only test of its
//! process, because it counts the process's threads.

mod support;

use basalt_env::{Env, JobOwner, JobPriority};
use std::sync::Arc;
use support::NoFiles;

#[expect(
    clippy::disallowed_methods,
    reason = "what the kernel says of this process is no file of a store"
)]
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = text.lines().find(|l| l.starts_with(field)).expect(field);
    let number = line.split_whitespace().nth(1).expect(field);
    number.parse().expect(field)
}

#[test]
fn idle_environments_have_no_threads() {
    let before = status("Threads:");
    let memory_before = status("VmRSS:");
    let fs: Arc<NoFiles> = Arc::new(NoFiles);
    // Each environment has 512 MiB of memory, 256 MiB of it cache.
    let envs: Vec<Env> = (0..100).map(|_| Env::builder(fs.clone()).build()).collect();
    let shared = Env::builder(fs.clone()).threads(3).build();
    let owners: Vec<JobOwner> = (0..100).map(|_| shared.jobs().new_owner()).collect();
    for env in &envs {
        env.jobs().new_owner().drain();
        env.jobs().notify();
    }
    assert_eq!(status("Threads:"), before);
    let grown = status("VmRSS:").saturating_sub(memory_before);
    assert!(grown < 10 << 10, "100 idle environments cost {grown} KiB");

    // The first job starts one thread. More jobs at once start at most three threads and the commit
    // lane.
    for owner in owners {
        owner.spawn(JobPriority::Compaction, || {});
        owner.spawn(JobPriority::Commit, || {});
        owner.spawn(JobPriority::Flush, || {});
        owner.drain();
    }
    let busy = status("Threads:");
    assert!(busy > before && busy <= before + 4, "{before} -> {busy}");

    // A registry that is kept keeps no thread.
    let metrics = shared.metrics().clone();
    drop(shared);
    // A joined thread may be visible for a moment longer.
    let gone = (0..1000).any(|_| {
        std::thread::yield_now();
        status("Threads:") == before
    });
    assert!(gone, "threads outlived the last handle");
    assert!(
        metrics
            .prometheus()
            .contains("basalt_jobs_pending{priority=\"flush\"} 0")
    );
}
