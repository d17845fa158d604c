//! Tests of the check of an image, of growing, and of discards.

use super::*;
use super::{by_hand, fresh};
use crate::check::check;
use crate::metadata_record::InodeKind;
use basalt_fs::Intent;
use basalt_sim::{DeviceCut, SimDevice};
use std::io::IoSlice;

fn put(fs: &LavaFs, path: &str, bytes: usize) -> Arc<dyn File> {
    let f = fs.create(Path::new(path)).unwrap();
    f.append(&[IoSlice::new(&vec![7; bytes])], Intent::Sync)
        .unwrap();
    f.sync_all().unwrap();
    f
}

fn root(fs: &LavaFs) {
    fs.sync_metadata(Path::new("")).unwrap();
}

#[test]
fn a_check_counts_each_block_once() {
    let (device, fs) = fresh(512);
    fs.create_dir(Path::new("d/e")).unwrap();
    put(&fs, "d/a", 10_000);
    put(&fs, "b", 1 << 20).release_range(0..8192).unwrap();
    fs.link(Path::new("b"), Path::new("d/b")).unwrap();
    fs.create_log(
        Path::new("log"),
        LogOptions {
            capacity: 100_000,
            reuse: None,
        },
    )
    .unwrap();
    root(&fs);
    let left = device.cut(DeviceCut::Nothing);
    let found = check(&*left, Path::new("image")).unwrap();
    assert!(found.is_sound() && !found.clean, "{found:?}");
    assert_eq!((found.files, found.dirs, found.names), (3, 3, 6));
    assert_eq!(found.file_bytes, (3 + 254 + 25) * 4096);
    assert!(
        found.automatic_repairs[0].contains("not closed"),
        "{:?}",
        found.automatic_repairs
    );
    drop(fs);
    let found = check(&*device, Path::new("image")).unwrap();
    assert!(
        found.clean && found.automatic_repairs.is_empty(),
        "{found:?}"
    );
    let sum = found.fixed_bytes + found.file_bytes + found.metadata_bytes + found.free_bytes;
    assert_eq!(sum, device.facts().len);
    // The loss of one copy of the superblock is no damage.
    device.damage(4096, &[0; 4096]);
    let found = check(&*device, Path::new("image")).unwrap();
    assert!(
        found.is_sound() && found.automatic_repairs[0].contains("superblock"),
        "{found:?}"
    );
    device.damage((1 << 20) - 4096, &[1]);
    let found = check(&*device, Path::new("image"));
    let e = found.expect_err("nothing says that it is an image");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    device.damage((1 << 20) - 4096, b"B");
    device.damage((1 << 20) - 4000, &[1]);
    let found = check(&*device, Path::new("image")).unwrap();
    assert!(
        found.damage[0].to_string().contains("neither copy"),
        "{found:?}"
    );
}

/// A check finds metadata that this code never writes, in frames with right checksums.
#[test]
fn a_check_reports_wrong_owners_and_counts() {
    let (device, fs) = fresh(512);
    put(&fs, "one", 4096);
    put(&fs, "two", 4096);
    root(&fs);
    let two = fs.shared.state.lock().meta.extents(2).unwrap();
    let run = two.runs().next().unwrap();
    let lies = |records: &[JournalRecord]| {
        let left = device.cut(DeviceCut::Nothing);
        let fs = LavaFs::mount(left.clone(), &by_hand()).unwrap();
        {
            // This bypasses the state, which would refuse the change.
            let mut state = fs.shared.state.lock();
            for r in records {
                state.record(r).unwrap();
            }
        }
        root(&fs);
        let left = left.cut(DeviceCut::Nothing);
        let e = LavaFs::mount(left.clone(), &by_hand()).err().unwrap();
        assert!(e.is_corruption(), "{e}");
        let found = check(&*left, Path::new("image")).unwrap();
        found
            .damage
            .iter()
            .map(|e| e.to_string())
            .collect::<Vec<_>>()
    };
    let twice = lies(&[JournalRecord::Grow {
        ino: 1,
        runs: vec![run],
    }]);
    assert_eq!(twice.len(), 1);
    assert!(
        twice[0].contains("one (inode 1)") && twice[0].contains("two (inode 2)"),
        "{twice:?}"
    );
    let long = lies(&[JournalRecord::Length { ino: 1, len: 5000 }]);
    assert!(long[0].contains("one (inode 1) has 5000 bytes"), "{long:?}");
    let outside = lies(&[JournalRecord::Grow {
        ino: 1,
        runs: vec![runs::Run {
            start: 1 << 30,
            len: 3,
        }],
    }]);
    assert!(outside[0].contains("not on the device"), "{outside:?}");
}

#[test]
fn an_image_grows_while_it_is_used() {
    let (device, fs) = fresh(512);
    let before = fs.usage();
    let f = put(&fs, "a", 4096);
    assert_eq!(fs.grow().unwrap(), 0, "it is as long as its device");
    device.grow((16 << 20) + 100);
    assert_eq!(fs.grow().unwrap(), 16 << 20);
    f.append(&[IoSlice::new(&[8; 4096])], Intent::Sync).unwrap();
    f.sync_data().unwrap();
    let after = fs.usage();
    assert_eq!(after.total_bytes, before.total_bytes + (16 << 20));
    assert!(after.free_bytes > before.free_bytes + (15 << 20));
    let left = device.cut(DeviceCut::Nothing);
    let again = LavaFs::mount(left, &by_hand()).unwrap();
    assert_eq!(again.usage().total_bytes, after.total_bytes);
    let f = again.open(Path::new("a")).unwrap();
    assert_eq!(&f.read(4096, 4096).unwrap()[..], &[8; 4096][..]);
}

#[test]
fn free_blocks_are_discarded_after_their_removal_is_durable() {
    let (device, fs) = fresh(512);
    put(&fs, "a", 1 << 20);
    put(&fs, "small", 4096);
    root(&fs);
    for name in ["a", "small"] {
        fs.remove(Path::new(name)).unwrap();
    }
    fs.discard();
    assert_eq!(device.discarded(), 0, "a power cut may bring it back");
    root(&fs);
    let free = fs.space(Path::new("")).unwrap().free;
    fs.discard();
    assert_eq!(device.discarded(), 1 << 20, "small pieces are not worth it");
    assert_eq!(fs.space(Path::new("")).unwrap().free, free);
    // No caller waits for a discard: idle blocks are allocated when no others are free.
    put(&fs, "b", 1 << 20);
    root(&fs);
    fs.remove(Path::new("b")).unwrap();
    root(&fs);
    let all = fs.space(Path::new("")).unwrap().free;
    put(&fs, "c", all as usize);
    assert_eq!(device.discarded(), 1 << 20);
}

#[test]
fn reading_needs_fewer_features_than_writing() {
    let (device, fs) = fresh(512);
    put(&fs, "a", 4096);
    drop(fs);
    let mut superblock = match probe::probe(&*device, Path::new("")).unwrap() {
        probe::Probed::Image(s, _) => s,
        _ => panic!("it is ours"),
    };
    superblock.unknown = 4;
    for at in layout::SUPERBLOCKS {
        device.damage(at, &superblock.encode(at));
    }
    let mount = |read_only: bool| {
        let options = LavaOptions {
            read_only,
            ..by_hand()
        };
        LavaFs::mount(device.clone(), &options)
    };
    let e = mount(false).err().expect("refused");
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    let fs = mount(true).unwrap();
    assert_eq!(fs.open(Path::new("a")).unwrap().len(), 4096);
}

/// A hostile image may have one very high inode number. A mount and a check take little memory for
/// the numbers between.
#[test]
fn a_high_inode_number_takes_little_memory() {
    let device = SimDevice::new(1 << 40, 512);
    format::format(&*device, [3; 16], true, Path::new("image")).unwrap();
    let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
    let create = |ino, name: &str| JournalRecord::Create {
        ino,
        kind: InodeKind::File,
        dir: 0,
        name: name.to_string(),
    };
    {
        let mut state = fs.shared.state.lock();
        let far = create((1 << 30) - 1, "far");
        assert!(state.record(&far).is_ok());
        assert!(state.record(&create(1 << 20, "between")).is_ok());
        assert!(state.record(&create(1 << 30, "too far")).is_err());
    }
    for checkpointed in [false, true] {
        fs.sync_metadata(Path::new("")).unwrap();
        if checkpointed {
            fs.checkpoint().unwrap();
        }
        let left = device.cut(DeviceCut::Nothing);
        let checked = check(&*left, Path::new("image")).unwrap();
        assert!(checked.is_sound(), "{:?}", checked.damage);
        let again = LavaFs::mount(left, &by_hand()).unwrap();
        let usage = again.usage();
        assert_eq!(usage.files, 2);
        assert!(usage.memory < 128 << 20, "{usage:?}");
        // The numbers between are allocated.
        again.create(Path::new("new")).unwrap();
        assert_eq!(again.describe(Path::new("new")).unwrap().inode, 1);
    }
}

/// An image with a smaller write unit than direct I/O has here goes through the page cache.
#[test]
fn an_image_with_a_smaller_write_unit_opens() {
    use basalt_fs::device::{Device, DeviceOptions};
    let path = std::env::temp_dir().join(format!("basalt-lava-units-{}", std::process::id()));
    let how = image::Format {
        size: Some(8 << 20),
        ..image::Format::default()
    };
    image::format(&path, &how, &mut |_, _, _| ()).unwrap();
    let wide = |read_only| {
        DeviceOptions::new(&path)
            .write_unit(4096)
            .read_only(read_only)
    };
    for n in 0..3u8 {
        let device = image::open_device(&wide(false)).unwrap();
        let unit = device.facts().unit;
        let fs = LavaFs::mount(device, &by_hand()).unwrap();
        let f = fs.create(Path::new(&format!("{n}"))).unwrap();
        f.append(&[IoSlice::new(&[n; 700])], Intent::Sync).unwrap();
        f.sync_all().unwrap();
        fs.sync_metadata(Path::new("")).unwrap();
        drop((f, fs));
        let fs = LavaFs::mount(
            image::open_device(&wide(true)).unwrap(),
            &LavaOptions {
                read_only: true,
                ..by_hand()
            },
        )
        .unwrap();
        assert!(
            unit == 512 && !fs.info().direct,
            "{}",
            fs.info().description
        );
        let f = fs.open(Path::new(&format!("{n}"))).unwrap();
        assert_eq!(f.read(0, 700).unwrap(), vec![n; 700]);
    }
    let host = basalt_fs::HostFs::new(basalt_fs::HostOptions::new("")).unwrap();
    host.remove(&path).unwrap();
}

/// A device with `no_discard` gets no discards on any mount.
#[test]
fn a_no_discard_image_gets_no_discards() {
    for no_discard in [false, true] {
        let device = SimDevice::new(16 << 20, 512);
        let features = format::Features {
            sparse: false,
            no_discard,
        };
        format::format_with_features(&*device, [5; 16], features, Path::new("image")).unwrap();
        for life in 0..3 {
            let fs = LavaFs::mount(device.clone(), &by_hand()).unwrap();
            let path = PathBuf::from(format!("{life}"));
            let f = fs.create(&path).unwrap();
            f.append(&[IoSlice::new(&[1; 1 << 20])], Intent::Sync)
                .unwrap();
            f.sync_all().unwrap();
            drop(f);
            fs.remove(&path).unwrap();
            fs.sync_metadata(Path::new("")).unwrap();
            if life > 0 {
                fs.checkpoint().unwrap();
            }
        }
        assert_eq!(device.discarded() == 0, no_discard);
    }
}

/// An interrupted `fs grow` is repeated: a part of the new space exists already. A test of the
/// device (`basalt_fs::device`) checks the space on the disk.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a real file, as the tools have it"
)]
fn an_interrupted_grow_can_be_repeated() {
    use basalt_fs::device::{DeviceOptions, HostDevice};
    const MIB: u64 = 1 << 20;
    let name = format!("basalt-lava-grow-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let how = image::Format {
        size: Some(8 * MIB),
        ..image::Format::default()
    };
    image::format(&path, &how, &mut |_, _, _| ()).unwrap();
    // The interrupted attempt has added 10 of 16 MiB, with their space.
    let fd = rustix::fs::open(&path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    let zeros = vec![0; 10 * MIB as usize];
    assert_eq!(rustix::io::pwrite(&fd, &zeros, 8 * MIB), Ok(zeros.len()));
    rustix::fs::fsync(&fd).unwrap();
    let device = HostDevice::open(&DeviceOptions::new(&path)).unwrap();
    device
        .extend(8 * MIB..24 * MIB, false, &mut |_| ())
        .unwrap();
    assert_eq!(device.facts().len, 24 * MIB);
    let fs = LavaFs::mount(device, &by_hand()).unwrap();
    assert_eq!(fs.grow().unwrap(), 16 * MIB);
    drop(fs);
    std::fs::remove_file(&path).unwrap();
}
