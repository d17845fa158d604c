//! Image files of the host as devices: growth on a nearly full disk.

use super::{Device, DeviceOptions, HostDevice};
use crate::ErrorKind;

/// `fs grow` was interrupted on a disk with little room. The bytes that it had written counted as
/// used in the next attempt. So each later attempt was refused, though the disk had room for
/// exactly this image.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a real file, as the tools have it"
)]
fn an_interrupted_grow_on_a_nearly_full_disk_can_be_repeated() {
    const MIB: u64 = 1 << 20;
    let name = format!("basalt-device-grow-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let device = HostDevice::open_or_create(&path).unwrap();
    device.fill(8 * MIB, false, &mut |_| ()).unwrap();
    drop(device);
    // The interrupted attempt left 10 of 16 MiB, and their space.
    let fd = rustix::fs::open(&path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    let zeros = vec![0; 10 * MIB as usize];
    assert_eq!(rustix::io::pwrite(&fd, &zeros, 8 * MIB), Ok(zeros.len()));
    rustix::fs::fsync(&fd).unwrap();
    let device = HostDevice::open(&DeviceOptions::new(&path)).unwrap();
    let grow = |to| device.extend(8 * MIB..to, false, &mut |_| ());
    // The disk has room for 24 MiB in all, and for a little that the disk itself needs for them.
    device
        .pretended_disk
        .store(24 * MIB + 64 * 1024, std::sync::atomic::Ordering::SeqCst);
    let refused = grow(25 * MIB).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert_eq!(device.facts().len, 8 * MIB);
    rustix::io::pwrite(&fd, &zeros, 8 * MIB).unwrap();
    drop(device);
    let device = HostDevice::open(&DeviceOptions::new(&path)).unwrap();
    device
        .pretended_disk
        .store(24 * MIB + 64 * 1024, std::sync::atomic::Ordering::SeqCst);
    device
        .extend(8 * MIB..24 * MIB, false, &mut |_| ())
        .unwrap();
    assert_eq!(device.facts().len, 24 * MIB);
    drop(device);
    std::fs::remove_file(&path).unwrap();
}
