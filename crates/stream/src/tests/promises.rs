//! The promises of the interface, on a simulated disk and on the host.

use super::*;
use basalt_fs::{HostFs, HostOptions};

fn read(stream: &Stream, at: ExtentAddress, data: &[u8]) {
    let found = stream.read(at, data.len()).unwrap();
    assert_eq!(&found[..], data);
    let request = stream.read_request(at, data.len()).unwrap();
    let found = request.file.read(request.offset, request.len).unwrap();
    assert_eq!(&found[..], data);
}

/// Runs the promises on any filesystem.
fn conformance(env: &Env, root: &Path) {
    releases(env, root);
    let fs = env.fs();
    let dir = root.join("s");
    let missing = Stream::open(env, &dir, options()).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let stream = Stream::create(env, &dir, options()).unwrap();
    let again = Stream::create(env, &dir, options()).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(stream.extents(), []);

    // Appends fill one extent after the other, and are read at once.
    let data = |n: u8, len: usize| -> Vec<u8> { (0..len).map(|i| n ^ i as u8).collect() };
    let mut places = Vec::new();
    for n in 0..20u8 {
        let data = data(n, 1000);
        let (a, b) = data.split_at(300);
        let bufs = [IoSlice::new(a), IoSlice::new(b)];
        let at = stream.append(&bufs, Intent::Lazy).unwrap();
        read(&stream, at, &data);
        places.push(at);
    }
    let large = data(99, 20_000);
    let of_its_own = append(&stream, &large).unwrap();
    read(&stream, of_its_own, &large);
    let extents: BTreeSet<ExtentId> = places.iter().map(|at| at.extent).collect();
    assert!(extents.len() > 1 && !extents.contains(&of_its_own.extent));
    assert_eq!(
        append(&stream, b"").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );

    // A sync seals what is full, and a seal the rest.
    let unsealed = |stream: &Stream| stream.extents().iter().filter(|e| !e.sealed).count();
    assert_eq!(unsealed(&stream), extents.len() + 1);
    stream.sync().unwrap();
    assert_eq!(unsealed(&stream), 1);
    let active = stream.extents().into_iter().find(|e| !e.sealed).unwrap();
    let refused = stream.erase(&[active.id]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    stream.seal().unwrap();
    assert_eq!(unsealed(&stream), 0);

    // Bytes can have their own address in them, also behind a sync.
    let bound = Stream::create(env, root.join("bound"), options()).unwrap();
    for _ in 0..2 {
        let mut bytes = [7; 24];
        let bind = |at: ExtentAddress, bytes: &mut [u8]| {
            bytes[..8].copy_from_slice(&at.extent.0.to_le_bytes());
            bytes[8..16].copy_from_slice(&at.offset.to_le_bytes());
        };
        let at = (bound.append_bound(&mut bytes, Intent::Lazy, bind)).unwrap();
        assert_eq!(bytes[..8], at.extent.0.to_le_bytes());
        assert_eq!(bytes[8..16], at.offset.to_le_bytes());
        read(&bound, at, &bytes);
        bound.sync().unwrap();
    }
    append(&bound, b"behind").unwrap();

    // Wrong reads are errors.
    let first = places[0];
    let unknown = ExtentAddress {
        extent: ExtentId(1),
        offset: 0,
    };
    assert_eq!(
        stream.read(unknown, 1).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    for (offset, len) in [(first.offset, 9 << 10), (1 << 40, 1), (u64::MAX, 2)] {
        let e = stream
            .read(ExtentAddress { offset, ..first }, len)
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    }

    let header = ExtentAddress { offset: 0, ..first };
    assert_eq!(
        stream.read(header, 8).unwrap_err().kind(),
        ErrorKind::Corruption
    );
    let order: Vec<ExtentId> = stream.extents().iter().map(|e| e.id).collect();
    let mut begun: Vec<ExtentId> = places.iter().map(|at| at.extent).collect();
    begun.dedup();
    begun.push(of_its_own.extent);
    assert_eq!(order, begun);

    // A link shares the extents, and both go their own ways.
    let linked = stream.link(root.join("link")).unwrap();
    assert_eq!(linked.extents(), stream.extents());
    read(&linked, first, &data(0, 1000));
    let new = append(&linked, b"only in the link").unwrap();
    linked.sync().unwrap();
    assert_eq!(stream.read(new, 1).unwrap_err().kind(), ErrorKind::NotFound);

    // An erased extent stays for the other stream, and goes with the last one.
    stream.erase(&[first.extent, first.extent]).unwrap();
    assert_eq!(
        stream.read(first, 1).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        stream.erase(&[first.extent]).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    read(&linked, first, &data(0, 1000));
    let file = first.extent.file_name();
    assert!(!fs.exists(&dir.join(&file)).unwrap());
    assert!(fs.exists(&root.join("link").join(&file)).unwrap());

    // A concatenation has the extents of all, each once.
    let whole = Stream::concatenate(&[&stream, &linked, &stream], root.join("all"), options());
    let whole = whole.unwrap();
    let ids =
        |stream: &Stream| -> BTreeSet<ExtentId> { stream.extents().iter().map(|e| e.id).collect() };
    let all: BTreeSet<ExtentId> = ids(&stream).union(&ids(&linked)).copied().collect();
    assert_eq!(ids(&whole), all);
    read(&whole, new, b"only in the link");
    let taken = stream.link(root.join("all")).err().unwrap();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    let of_none = Stream::concatenate(&[], root.join("none"), options());
    assert_eq!(of_none.err().unwrap().kind(), ErrorKind::InvalidArgument);
    linked.erase(&[first.extent]).unwrap();
    read(&whole, first, &data(0, 1000));
    whole.erase(&[first.extent]).unwrap();
    let nowhere = Stream::open(env, root.join("none"), options())
        .err()
        .unwrap();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound);
    for name in ["s", "link", "all"] {
        assert!(!fs.exists(&root.join(name).join(&file)).unwrap());
    }

    // A stream that is opened again has the same content; a reader changes nothing.
    let before = whole.extents();
    drop(whole);
    let reader = Stream::open_read_only(env, root.join("all"), options()).unwrap();
    assert_eq!(reader.extents(), before);
    for e in [
        append(&reader, b"x").err(),
        reader.sync().err(),
        reader.seal().err(),
        reader.erase(&[new.extent]).err(),
    ] {
        assert_eq!(e.unwrap().kind(), ErrorKind::ReadOnly);
    }
    let copy = reader.link(root.join("of the reader")).unwrap();
    assert_eq!(copy.extents(), before);
    let whole = Stream::open(env, root.join("all"), options()).unwrap();
    assert_eq!(whole.extents(), before);
    for (n, at) in (0..).zip(&places) {
        if at.extent != first.extent {
            read(&whole, *at, &data(n, 1000));
        }
    }
    assert_eq!(extent_files(&**fs, &root.join("all")), before.len());
    let wrong = Stream::open(env, root.join("all"), options().extent_bytes(1));
    assert_eq!(wrong.err().unwrap().kind(), ErrorKind::InvalidArgument);

    // A stream that is destroyed takes no other one with it.
    drop((whole, reader));
    Stream::destroy(env, root.join("all")).unwrap();
    let gone = Stream::open(env, root.join("all"), options())
        .err()
        .unwrap();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(fs.list(&root.join("all")).unwrap(), []);
    read(&copy, new, b"only in the link");
    Stream::create(env, root.join("all"), options()).unwrap();
}

/// Runs the promises of releases on any filesystem.
fn releases(env: &Env, root: &Path) {
    let dir = root.join("released");
    let open = || Stream::open(env, &dir, options()).unwrap();
    let stream = Stream::create(env, &dir, options().extent_bytes(64 << 10)).unwrap();
    let data = |n: u8| -> Vec<u8> { (0..5000).map(|i| n ^ (i / 7) as u8).collect() };
    let places: Vec<ExtentAddress> = (0..10)
        .map(|n| append(&stream, &data(n)).unwrap())
        .collect();
    let id = places[0].extent;
    let has = |stream: &Stream, kept: &[usize]| {
        for n in kept {
            read(stream, places[*n], &data(*n as u8));
        }
    };
    let info = |stream: &Stream| stream.extents()[0];
    let (begin, ends) = (EXTENT_HEADER as u64, info(&stream).len);
    assert_eq!(info(&stream).on_disk, ends);
    let refused = |id: ExtentId, range: Range<u64>| {
        // One wrong range refuses all of them.
        let ranges = [begin..ends, range];
        stream.release(id, &ranges).unwrap_err().kind()
    };

    // Only ranges of what a sealed extent holds are released.
    assert_eq!(refused(id, begin..ends), ErrorKind::InvalidArgument);
    stream.seal().unwrap();
    assert_eq!(info(&stream).on_disk, ends);
    assert_eq!(refused(ExtentId(1), begin..ends), ErrorKind::NotFound);
    #[expect(clippy::reversed_empty_ranges, reason = "a wrong range")]
    for range in [
        0..ends,
        begin - 1..ends,
        begin..ends + 1,
        ends + 1..ends + 1,
        9000..8999,
        begin..u64::MAX,
    ] {
        assert_eq!(refused(id, range), ErrorKind::InvalidArgument);
    }
    has(&stream, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(info(&stream).on_disk, ends);
    assert_eq!(stream.release(id, &[]).unwrap(), Some(0));
    let bytes = places[1].offset..places[1].offset + 3000;
    let freed = stream.release(id, &[bytes]).unwrap();
    assert_eq!(freed, Some(0), "it has no whole block");
    has(&stream, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);

    // A linked extent stays, for both streams.
    let of = |first: usize, end: usize| places[first].offset..places[end].offset;
    let ranges = [of(1, 4), of(6, 8)];
    let second = stream.link(root.join("second")).unwrap();
    for stream in [&stream, &second] {
        assert_eq!(stream.release(id, &ranges).unwrap(), None);
        assert_eq!(info(stream).on_disk, ends);
    }
    for stream in [&stream, &second, &open()] {
        has(stream, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    // Once the other stream is gone, the whole blocks of the ranges are freed.
    drop(second);
    Stream::destroy(env, root.join("second")).unwrap();
    let freed = stream.release(id, &ranges).unwrap().unwrap();
    assert!((4 * 4096..=25_000).contains(&freed), "{freed} bytes");
    let kept = [0, 4, 5, 8, 9];
    let shrunk = info(&stream).on_disk;
    assert!(shrunk < ends && shrunk >= ends - freed, "{shrunk} bytes");
    assert_eq!(info(&stream).len, ends);
    has(&stream, &kept);
    assert_eq!(stream.release(id, &ranges).unwrap(), Some(0), "again");
    let readers = [
        Stream::open_read_only(env, &dir, options()).unwrap(),
        open(),
    ];
    for reader in &readers {
        assert_eq!(info(reader), info(&stream));
        has(reader, &kept);
    }
    let e = readers[0].release(id, &ranges).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
    drop((readers, stream));

    // An extent that no read has opened is released, and a link has what is left of it.
    let stream = open();
    assert!(stream.release(id, &[of(0, 5)]).unwrap() > Some(0));
    assert!(info(&stream).on_disk < shrunk);
    let linked = stream.link(root.join("of the rest")).unwrap();
    assert_eq!(info(&linked), info(&stream));
    for stream in [&stream, &linked] {
        has(stream, &[5, 8, 9]);
    }
    // An erasure leaves the extent to one stream.
    linked.erase(&[id]).unwrap();
    assert!(stream.release(id, &[of(0, 9)]).unwrap() > Some(0));
    has(&stream, &[9]);
    stream.erase(&[id]).unwrap();
    let gone = stream.release(id, &[of(0, 9)]).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[test]
fn streams_keep_their_promises() {
    let fs = disk(1);
    conformance(&Env::for_tests(fs.clone(), 1), Path::new(""));
}

#[test]
fn streams_keep_their_promises_on_the_host() {
    let dir = std::env::temp_dir().join(format!("basalt-stream-{}", std::process::id()));
    let fs = HostFs::new(HostOptions::new(&dir)).unwrap();
    conformance(&Env::builder(fs).build(), &dir);
    #[expect(clippy::disallowed_methods, reason = "the test's own directory")]
    std::fs::remove_dir_all(&dir).unwrap();
}

/// What an interrupted link left is removed by the next one; other files are not.
#[test]
fn a_directory_with_other_files_is_refused() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    fs.create_dir(Path::new("d")).unwrap();
    fs.create(Path::new("d/0123456789abcdef.extent")).unwrap();
    fs.create(Path::new("d/MANIFEST-000001")).unwrap();
    fs.create(Path::new("d/mine")).unwrap();
    let e = Stream::create(&env, "d", options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.to_string().contains("mine"), "{e}");
    fs.remove(Path::new("d/mine")).unwrap();
    let stream = Stream::create(&env, "d", options()).unwrap();
    assert_eq!(stream.extents(), []);
    assert_eq!(extent_files(&*fs, Path::new("d")), 0);
}

/// The manifest does not grow without end.
#[test]
fn the_manifest_is_written_anew() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let stream = Stream::create(&env, "d", options()).unwrap();
    for n in 0..3000u64 {
        let at = append(&stream, &n.to_be_bytes()).unwrap();
        stream.seal().unwrap();
        if n % 50 > 0 {
            stream.erase(&[at.extent]).unwrap();
        }
    }
    let manifest = fs.list(Path::new("d")).unwrap();
    let manifests: Vec<_> = (manifest.iter())
        .filter(|e| e.name.starts_with("MANIFEST-"))
        .collect();
    assert_eq!(manifests.len(), 1);
    let len = fs
        .stat(&Path::new("d").join(&manifests[0].name))
        .unwrap()
        .len;
    assert!(len < 300 << 10, "{len} bytes");
    let before = stream.extents();
    assert_eq!(before.len(), 60);
    drop(stream);
    let again = Stream::open(&env, "d", options()).unwrap();
    assert_eq!(again.extents(), before);
}

/// A stream whose `CURRENT` is lost is damaged, and no new one takes its place.
#[test]
fn a_stream_without_current_is_not_overwritten() {
    let fs = disk(1);
    let env = Env::for_tests(fs.clone(), 1);
    let stream = Stream::create(&env, "d", options()).unwrap();
    append(&stream, b"kept").unwrap();
    stream.sync().unwrap();
    drop(stream);
    fs.remove(Path::new("d/CURRENT")).unwrap();
    let e = Stream::create(&env, "d", options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert_eq!(extent_files(&*fs, Path::new("d")), 1);
}

/// Streams of two filesystems cannot share extents. A link that fails leaves no name behind.
#[test]
fn a_failed_link_leaves_nothing() {
    let (fs, other) = (disk(1), disk(2));
    let env = Env::for_tests(fs.clone(), 1);
    let stream = Stream::create(&env, "a", options()).unwrap();
    append(&stream, b"one").unwrap();
    let foreign = Stream::create(&Env::for_tests(other, 1), "b", options()).unwrap();
    let e = Stream::concatenate(&[&stream, &foreign], "c", options())
        .err()
        .unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(!fs.exists(Path::new("c")).unwrap());
    // An extent that is missing cannot be linked.
    stream.seal().unwrap();
    append(&stream, b"two").unwrap();
    stream.seal().unwrap();
    let last = stream.extents().pop().unwrap();
    fs.remove(&Path::new("a").join(last.id.file_name()))
        .unwrap();
    assert!(stream.link("c").is_err());
    assert_eq!(extent_files(&*fs, Path::new("c")), 0);
    let e = Stream::open(&env, "c", options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NotFound);
}
