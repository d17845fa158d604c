//! Every filesystem of this crate passes the one conformance suite, and the simulated disk behaves
//! as the real one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use basalt_env::EnvBuilder;
use basalt_fs::device::{Device, DeviceOptions, HostDevice};
use basalt_fs::{FileSystem, HostFs, HostOptions};
use basalt_lava::image::{self, Format};
use basalt_lava::{LavaFs, LavaOptions};
use basalt_sim::campaign::scale;
use basalt_sim::conformance::{self, random_trace};
use basalt_sim::{CrashPolicy, FaultFs, SimFs, SimOptions};

fn sim(write_unit: usize, seed: u64) -> Arc<SimFs> {
    SimFs::new(SimOptions {
        write_unit,
        seed,
        ..SimOptions::default()
    })
}

/// A directory of the operating system that is removed when this value is dropped.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> TempDir {
        TempDir::inside(std::env::temp_dir())
    }

    /// The directory is in memory if the system has such a place, because thousands of real syncs
    /// would take minutes.
    #[expect(
        clippy::disallowed_methods,
        reason = "outside the filesystem under test"
    )]
    fn in_memory() -> TempDir {
        let memory = PathBuf::from("/dev/shm");
        TempDir::inside(if memory.is_dir() {
            memory
        } else {
            std::env::temp_dir()
        })
    }

    fn inside(parent: PathBuf) -> TempDir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "basalt-conformance-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let dir = parent.join(name);
        #[expect(
            clippy::disallowed_methods,
            reason = "outside the filesystem under test"
        )]
        std::fs::create_dir_all(&dir).expect("temporary directory");
        TempDir(dir)
    }

    fn host(&self, sub: u64, direct: bool) -> Arc<dyn FileSystem> {
        let root = self.0.join(sub.to_string());
        #[expect(
            clippy::disallowed_methods,
            reason = "outside the filesystem under test"
        )]
        std::fs::create_dir_all(&root).expect("temporary directory");
        HostFs::new(HostOptions::new(root).direct(direct)).expect("HostFs")
    }

    fn forget(&self, sub: u64) {
        #[expect(
            clippy::disallowed_methods,
            reason = "outside the filesystem under test"
        )]
        std::fs::remove_dir_all(self.0.join(sub.to_string())).expect("temporary directory");
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        #[expect(
            clippy::disallowed_methods,
            reason = "outside the filesystem under test"
        )]
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn sim_conforms() {
    for unit in [512, 1024, 4096] {
        for seed in basalt_sim::campaign::cases(0..5) {
            let _repeat = basalt_sim::repeat!(sim_conforms, "BASALT_CASE={seed}");
            conformance::run_all(&|| sim(unit, seed));
        }
    }
}

#[test]
fn fault_without_faults_conforms() {
    conformance::run_all(&|| FaultFs::new(sim(512, 3), 1));
}

#[test]
fn host_conforms() {
    let dir = TempDir::new();
    for direct in [false, true] {
        let next = AtomicU64::new(if direct { 1000 } else { 0 });
        conformance::run_all(&|| dir.host(next.fetch_add(1, Relaxed), direct));
    }
}

#[test]
fn sim_conforms_across_power_cuts() {
    let seeds = 300 * scale();
    for unit in [512, 4096] {
        conformance::crash::run_all(
            &|seed| {
                let fs = sim(unit, seed);
                let disk = Arc::clone(&fs);
                let policy = CrashPolicy::ALL[seed as usize % CrashPolicy::ALL.len()];
                (fs, Box::new(move |seed| disk.crash(policy, seed)))
            },
            seeds,
        );
    }
}

#[test]
fn sim_answers_as_a_host_directory_does() {
    let (on_disk, in_memory) = (TempDir::new(), TempDir::in_memory());
    let traces = 2_000 * scale();
    let mut calls = 0;
    for seed in basalt_sim::campaign::cases(0..traces) {
        let _repeat =
            basalt_sim::repeat!(sim_answers_as_a_host_directory_does, "BASALT_CASE={seed}");
        let dir = if seed % 20 < 2 { &on_disk } else { &in_memory };
        let host = dir.host(seed, seed % 2 == 1);
        let sim: Arc<dyn FileSystem> = sim(host.info().write_unit, seed);
        let trace = random_trace(seed, 40);
        let (on_host, on_sim) = (trace.play(&host), trace.play(&sim));
        for (h, s) in on_host.iter().zip(&on_sim) {
            assert_eq!(h, s, "host and sim part: random_trace({seed}, 40)");
        }
        calls += on_host.len();
        drop(host);
        dir.forget(seed);
    }
    basalt_sim::campaign!("traces={traces} calls={calls}");
}

fn make_image(path: &std::path::Path, size: u64) {
    let how = Format::default().size(Some(size));
    let mut progress = 0;
    let made = image::format(path, &how, &mut |_, done, _| progress = done);
    assert_eq!((made.expect("an image"), progress), (size, size));
}

#[test]
fn lava_conforms_on_an_image() {
    let dir = TempDir::new();
    let next = AtomicU64::new(0);
    for direct in [true, false] {
        conformance::run_all(&|| {
            let name = format!("image {}", next.fetch_add(1, Relaxed));
            let path = dir.0.join(name);
            make_image(&path, 16 << 20);
            let mut options = DeviceOptions::new(&path);
            options.direct = direct;
            let device = HostDevice::open(&options).expect("a device");
            assert!(direct || !device.facts().direct);
            let options = LavaOptions::default().env(Some(EnvBuilder::without_fs().parts()));
            LavaFs::mount(device, &options).expect("a mount")
        });
    }
}

#[test]
fn an_image_has_one_writer_or_many_readers() {
    let dir = TempDir::new();
    let path = dir.0.join("image");
    make_image(&path, 8 << 20);
    let open = |read_only: bool| {
        let mut options = DeviceOptions::new(&path);
        options.read_only = read_only;
        HostDevice::open(&options)
    };
    let one = open(false).expect("the first");
    for read_only in [false, true] {
        let e = open(read_only).err().expect("it is in use");
        assert_eq!(e.kind(), basalt_fs::ErrorKind::Busy);
        let pid = std::process::id().to_string();
        assert!(e.to_string().contains(&pid), "it names the holder: {e}");
    }
    drop(one);
    let (two, three) = (open(true).expect("a reader"), open(true).expect("another"));
    assert!(open(false).is_err());
    let options = LavaOptions::default().read_only(true);
    let fs = LavaFs::mount(two, &options).expect("a mount");
    let e = fs
        .create(std::path::Path::new("a"))
        .err()
        .expect("read-only");
    assert_eq!(e.kind(), basalt_fs::ErrorKind::ReadOnly);
    drop((fs, three));
    open(false).expect("no handle has the lock");
    let e = HostDevice::open(&DeviceOptions::new(&dir.0)).err();
    let e = e.expect("a directory is no image");
    assert_eq!(e.kind(), basalt_fs::ErrorKind::InvalidArgument, "{e}");
}
