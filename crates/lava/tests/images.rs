//! Tests of images as tools and servers make, open, grow and check them: existing data is kept
//! unless the format is forced, and a file with the image's name is a whole image.

use basalt_env::EnvBuilder;
use basalt_fs::{ErrorKind, FileSystem, HostFs, HostOptions, Intent, Result};
use basalt_lava::LavaFs;
use basalt_lava::image::{self, Format, Step};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn open(path: &Path, read_only: bool) -> Result<Arc<LavaFs>> {
    let env = EnvBuilder::without_fs().parts();
    image::open(path, read_only, Some(&env))
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("basalt-images-{}-{name}", std::process::id()));
        HostFs::new(HostOptions::new(""))
            .unwrap()
            .create_dir(&dir)
            .unwrap();
        Dir(dir)
    }

    fn fs(&self) -> std::sync::Arc<HostFs> {
        HostFs::new(HostOptions::new(&self.0)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let all = self.fs().list(Path::new("")).unwrap();
        all.into_iter().map(|e| e.name).collect()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let f = self.fs().create(Path::new(name)).unwrap();
        f.append(&[IoSlice::new(bytes)], Intent::Lazy).unwrap();
        f.sync_all().unwrap();
        self.0.join(name)
    }

    fn on_disk(&self, name: &str) -> u64 {
        self.fs().stat(Path::new(name)).unwrap().on_disk
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let fs = HostFs::new(HostOptions::new("")).unwrap();
        for e in fs.list(&self.0).unwrap() {
            fs.remove(&self.0.join(e.name)).unwrap();
        }
        fs.remove(&self.0).unwrap();
    }
}

const MIB: u64 = 1 << 20;

fn of_size(size: u64) -> Format {
    Format::default().size(Some(size))
}

fn quietly(path: &Path, how: &Format) -> basalt_fs::Result<u64> {
    image::format(path, how, &mut |_, _, _| ())
}

#[test]
fn a_new_image_is_allocated_unless_it_is_sparse() {
    let dir = Dir::new("made");
    let (full, sparse) = (dir.0.join("full"), dir.0.join("sparse"));
    let mut steps = Vec::new();
    let made = image::format(&full, &of_size(16 * MIB), &mut |step, done, all| {
        steps.push((step, done, all));
    });
    assert_eq!(made.unwrap(), 16 * MIB);
    assert_eq!(steps.last(), Some(&(Step::Writing, 16 * MIB, 16 * MIB)));
    quietly(&sparse, &of_size(16 * MIB).sparse(true)).unwrap();
    assert_eq!(
        dir.names(),
        ["full", "sparse"],
        "nothing is left beside them"
    );
    assert!(dir.on_disk("full") >= 16 * MIB);
    assert!(dir.on_disk("sparse") < 2 * MIB);
    for path in [full, sparse] {
        let fs = open(&path, false).unwrap();
        assert_eq!(fs.usage().total_bytes, 16 * MIB);
        drop(fs);
        let checked = image::check(&path).unwrap();
        assert!(checked.is_sound() && checked.clean, "{checked:?}");
    }
}

#[test]
fn a_device_with_data_is_formatted_only_with_force() {
    let dir = Dir::new("data");
    let image = dir.0.join("image");
    quietly(&image, &of_size(8 * MIB)).unwrap();
    let fs = open(&image, false).unwrap();
    fs.create(Path::new("kept")).unwrap().sync_all().unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    let e = quietly(&image, &of_size(8 * MIB)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    drop(fs);
    let mut late = vec![0u8; 5 << 20];
    *late.last_mut().unwrap() = 1;
    let late = dir.write("late", &late);
    let text = dir.write("text", b"a letter to a friend");
    for (path, what) in [
        (&image, "a Basalt image with 1 file"),
        (&late, "data that is not a Basalt image"),
        (&text, "data that is not a Basalt image"),
    ] {
        let before = dir.fs().stat(path).unwrap();
        let e = quietly(path, &of_size(8 * MIB)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        let said = e.to_string();
        assert!(said.contains(what) && said.contains("--force"), "{said}");
        assert_eq!(dir.fs().stat(path).unwrap(), before);
    }
    let fs = open(&image, true).unwrap();
    assert!(fs.exists(Path::new("kept")).unwrap());
    drop(fs);
    // A file of zeros has no data, and its own size is the default.
    let zeros = dir.write("zeros", &vec![0; 5 << 20]);
    assert_eq!(quietly(&zeros, &Format::default()).unwrap(), 5 * MIB);
    for path in [&image, &late, &text] {
        let forced = of_size(6 * MIB).force(true);
        assert_eq!(quietly(path, &forced).unwrap(), 6 * MIB);
        assert_eq!(open(path, false).unwrap().usage().files, 0);
    }
}

#[test]
fn a_path_that_cannot_be_an_image_is_refused_with_a_reason() {
    let dir = Dir::new("refused");
    let none = dir.0.join("none");
    let refused = |path: &Path, how: &Format| {
        let e = quietly(path, how).unwrap_err();
        (e.kind(), e.to_string())
    };
    let (kind, said) = refused(&none, &Format::default());
    assert!(
        kind == ErrorKind::InvalidArgument && said.contains("--size"),
        "{said}"
    );
    for size in [0, 4 * MIB - 1, 1 << 60] {
        let (kind, said) = refused(&none, &of_size(size));
        assert!(
            kind == ErrorKind::InvalidArgument && said.contains("4 MiB to 32 TiB"),
            "{said}"
        );
    }
    let (kind, said) = refused(&dir.0, &of_size(8 * MIB));
    assert!(
        kind == ErrorKind::InvalidArgument && said.contains("directory"),
        "{said}"
    );
    for device in ["/dev/basalt-is-not-here", "/dev/mapper/basalt-is-not-here"] {
        let (kind, said) = refused(Path::new(device), &of_size(8 * MIB));
        assert!(
            kind == ErrorKind::NotFound && said.contains("no such device"),
            "{said}"
        );
    }
    // The size is larger than any disk here.
    let (kind, said) = refused(&none, &of_size(30 << 40));
    assert!(
        kind == ErrorKind::NoSpace && said.contains("no room"),
        "{said}"
    );
    assert!(dir.names().is_empty(), "{:?}", dir.names());
    // An earlier attempt was interrupted.
    let left = dir.write("none.unfinished", &[0; 100_000]);
    quietly(&none, &of_size(8 * MIB)).unwrap();
    assert_eq!(dir.names(), ["none"]);
    // A file of that name with data stays, and so does the target of a link of that name.
    dir.fs().remove(Path::new("none")).unwrap();
    dir.write("none.unfinished", &[9; 100_000]);
    let (kind, said) = refused(&none, &of_size(8 * MIB));
    assert!(
        kind == ErrorKind::AlreadyExists && said.contains("move it away"),
        "{said}"
    );
    assert_eq!(
        dir.fs().stat(Path::new("none.unfinished")).unwrap().len,
        100_000
    );
    dir.fs().remove(Path::new("none.unfinished")).unwrap();
    let kept = dir.write("kept", &[0; 1000]);
    rustix::fs::symlink(&kept, &left).unwrap();
    let (_, said) = refused(&none, &of_size(8 * MIB));
    assert!(!said.is_empty());
    assert_eq!(dir.fs().stat(&kept).unwrap().len, 1000);
    rustix::fs::unlink(&left).unwrap();
    quietly(&none, &of_size(8 * MIB)).unwrap();
    assert_eq!(dir.names(), ["kept", "none"]);
    let text = dir.write("text", b"short");
    for read_only in [true, false] {
        let e = open(&text, read_only).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    let e = image::check(&text).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}

#[test]
fn an_image_grows_and_keeps_its_files() {
    let dir = Dir::new("grown");
    let path = dir.0.join("image");
    quietly(&path, &of_size(8 * MIB)).unwrap();
    let fs = open(&path, false).unwrap();
    let f = fs.create(Path::new("a")).unwrap();
    f.append(&[IoSlice::new(&[5; 8192])], Intent::Sync).unwrap();
    f.sync_all().unwrap();
    fs.sync_metadata(Path::new("")).unwrap();
    drop(f);
    let grow = |size: Option<u64>| image::grow(&path, size, &mut |_, _, _| ());
    assert_eq!(grow(Some(16 * MIB)).unwrap_err().kind(), ErrorKind::Busy);
    drop(fs);
    let e = grow(Some(7 * MIB)).unwrap_err();
    assert!(e.to_string().contains("smaller"), "{e}");
    assert_eq!(grow(Some(16 * MIB)).unwrap(), (8 * MIB, 16 * MIB));
    assert_eq!(grow(None).unwrap(), (16 * MIB, 16 * MIB));
    assert!(dir.on_disk("image") >= 16 * MIB, "it is written");
    let checked = image::check(&path).unwrap();
    assert!(checked.is_sound() && checked.files == 1, "{checked:?}");
    let fs = open(&path, false).unwrap();
    assert_eq!(
        &fs.open(Path::new("a")).unwrap().read(0, 8192).unwrap()[..],
        &[5; 8192]
    );
    // An interrupted attempt made the file longer. These bytes are no part of the image, and are
    // written when it is grown again.
    drop(fs);
    let longer = dir.0.join("image");
    let fd =
        rustix::fs::open(&longer, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    rustix::fs::ftruncate(&fd, 40 << 20).unwrap();
    assert_eq!(open(&path, false).unwrap().usage().total_bytes, 16 * MIB);
    assert_eq!(grow(Some(16 * MIB)).unwrap(), (16 * MIB, 16 * MIB));
    rustix::fs::ftruncate(&fd, 40 << 20).unwrap();
    assert_eq!(grow(Some(20 * MIB)).unwrap(), (16 * MIB, 20 * MIB));
    assert!(dir.on_disk("image") >= 20 * MIB && dir.on_disk("image") < 30 * MIB);
    let e = grow(Some(30 << 40)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    assert_eq!(grow(None).unwrap(), (20 * MIB, 20 * MIB));
    let fs = open(&path, false).unwrap();
    // Another program cut the file short. The mount reports that.
    drop(fs);
    let all = dir.fs().open(Path::new("image")).unwrap();
    let half = all.read(0, 8 << 20).unwrap();
    let cut = dir.write("cut", &half);
    let checked = image::check(&cut).unwrap();
    assert!(
        checked.damage[0].to_string().contains("cut short"),
        "{checked:?}"
    );
    assert!(open(&cut, false).is_err());
}

#[test]
fn pipes_directories_and_dangling_links_are_no_images() {
    let dir = Dir::new("kinds");
    let pipe = dir.0.join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    let dangling = dir.0.join("dangling");
    rustix::fs::symlink("nowhere", &dangling).unwrap();
    let null = Path::new("/dev/null");
    for path in [&pipe, &dir.0, null] {
        let all = [
            open(path, true).err(),
            open(path, false).err(),
            image::check(path).err(),
            quietly(path, &of_size(8 * MIB)).err(),
            image::grow(path, Some(8 * MIB), &mut |_, _, _| ()).err(),
        ];
        for e in all {
            let e = e.expect("no image");
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            assert!(
                e.to_string()
                    .contains("an image is a file or a block device"),
                "{e}"
            );
        }
    }
    let undiscarded = of_size(8 * MIB).no_discard(true);
    let e = quietly(&dir.0.join("file"), &undiscarded).unwrap_err();
    assert!(e.to_string().contains("--no-discard"), "{e}");
    let e = quietly(&dangling, &of_size(8 * MIB)).unwrap_err();
    assert!(e.to_string().contains("a dangling symbolic link"), "{e}");
    assert_eq!(dir.names(), ["dangling", "pipe"], "nothing is left");
}
