//! Pages as they are written and read, and damage.

use super::*;
use basalt_stream::ExtentId;

fn key(i: u32) -> Vec<u8> {
    format!("user/{i:06}").into_bytes()
}

fn made(count: u32, compression: Compression) -> (PageId, Bytes) {
    let mut builder = PageBuilder::new(PageKind::Leaf, 0);
    for i in 0..count {
        builder.add(&key(i * 2), 1, format!("value {i}").as_bytes());
    }
    let estimate = builder.max_len();
    let mut out = Vec::new();
    builder.finish(PageId::NONE, compression, &mut out);
    assert!(out.len() <= estimate);
    let id = PageId {
        extent: ExtentId(7),
        offset: 4096,
        len: out.len() as u32,
    };
    bind(id.address(), &mut out);
    (id, out.into())
}

#[test]
fn pages_are_read_as_written() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        for count in [0, 1, 2, 300] {
            let (id, bytes) = made(count, compression);
            let page = Page::open(id, &bytes).unwrap();
            assert_eq!(page.count(), count as usize);
            for i in 0..count {
                assert_eq!(page.find(&key(i * 2)), Ok(i as usize));
                assert_eq!(page.find(&key(i * 2 + 1)), Err(i as usize + 1));
                assert_eq!(page.key(i as usize), key(i * 2));
                assert_eq!(page.value(i as usize), format!("value {i}").as_bytes());
            }
            assert_eq!(page.find(b"a"), Err(0));
            assert_eq!(page.find(b"z"), Err(count as usize));
        }
    }
    let packed = made(300, Compression::Zstd).1.len();
    assert!(packed < made(300, Compression::None).1.len() / 2);
}

#[test]
fn a_page_is_bound_to_its_place() {
    let (id, bytes) = made(10, Compression::None);
    let elsewhere = [
        PageId {
            extent: ExtentId(8),
            ..id
        },
        PageId { offset: 8192, ..id },
    ];
    for wrong in elsewhere {
        let e = Page::open(wrong, &bytes).unwrap_err();
        assert!(e.contains("header is wrong"), "{e}");
    }
}

/// Every flipped bit and every cut is found, and hostile bodies with right checksums make no panic.
#[test]
fn damage_is_found() {
    for compression in [Compression::None, Compression::Lz4] {
        let (id, bytes) = made(20, compression);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            Page::open(id, &damaged.into()).unwrap_err();
        }
        for len in 0..bytes.len() {
            Page::open(id, &bytes.slice(..len)).unwrap_err();
        }
        let random = basalt_env::Random::from_seed(1);
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut hostile = bytes.to_vec();
            for _ in 0..1 + random.below(3) {
                let at = 8 + random.below(bytes.len() as u64 - 8) as usize;
                hostile[at] = random.next_u64() as u8;
            }
            let crc = crc32c::crc32c(&hostile[PAGE_HEADER..]);
            hostile[4..8].copy_from_slice(&crc.to_le_bytes());
            bind(id.address(), &mut hostile);
            match Page::open(id, &hostile.into()) {
                Ok(page) => {
                    opened += 1;
                    for i in 0..page.count() {
                        assert_eq!(page.find(&page.key(i)), Ok(i));
                    }
                }
                Err(_) => refused += 1,
            }
        }
        assert!(opened > 100 && refused > 1000, "{opened} {refused}");
    }
}

/// An id whose end is above the largest offset is refused, in an index page and in the system log.
#[test]
fn ids_that_no_page_has_are_refused() {
    let wrong = PageId {
        extent: ExtentId(7),
        offset: u32::MAX,
        len: 1,
    };
    assert_eq!(PageId::from_bytes(&wrong.to_bytes()), None);
    let mut encoded = Vec::new();
    wrong.encode(&mut encoded);
    assert_eq!(PageId::decode(&encoded, &mut 0), None);
    let mut builder = PageBuilder::new(PageKind::Index, 1);
    builder.add(b"a", 0, &wrong.to_bytes());
    let mut out = Vec::new();
    builder.finish(PageId::NONE, Compression::None, &mut out);
    let id = PageId {
        extent: ExtentId(7),
        offset: 4096,
        len: out.len() as u32,
    };
    bind(id.address(), &mut out);
    let e = Page::open(id, &out.into()).unwrap_err();
    assert!(e.contains("has no page id"), "{e}");
}
