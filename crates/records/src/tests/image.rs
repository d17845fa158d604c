//! Hand-made file images, and records that no writer writes.

use super::*;
use crate::header;
use crate::record::{Life, RecordHeader};
use basalt_fs::{Error, ErrorKind};

/// A read-only file with these bytes.
pub(super) struct Image(pub(super) Bytes);

impl File for Image {
    fn append(&self, _: &[std::io::IoSlice<'_>], _: basalt_fs::Intent) -> Result<u64> {
        Err(Error::new(ErrorKind::ReadOnly, "an image"))
    }
    fn align_to_unit(&self) -> Result<u64> {
        Err(Error::new(ErrorKind::ReadOnly, "an image"))
    }
    fn sync_data(&self) -> Result<()> {
        Ok(())
    }
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
    fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let from = (offset as usize).min(self.0.len());
        Ok(self.0.slice(from..(from + len).min(self.0.len())))
    }
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn allocated(&self) -> u64 {
        self.0.len() as u64
    }
    fn extend_log(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn release_range(&self, _: std::ops::Range<u64>) -> Result<()> {
        Ok(())
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Returns a file image with one header and hand-made records.
fn image(heads: &[(RecordHeader, &[u8])]) -> Vec<u8> {
    let life = Life::new(5);
    let mut b = header::encode(&file_header(512, 5, 1));
    for (head, payload) in heads {
        let at = b.len();
        b.resize(at + RECORD_HEADER, 0);
        life.seal(&mut b[at..], at as u64, head);
        b.extend_from_slice(payload);
        b.resize(b.len().next_multiple_of(8), 0);
    }
    b
}

fn open_image(b: Vec<u8>) -> RecordReader {
    let file: Arc<dyn File> = Arc::new(Image(b.into()));
    RecordReader::open(file, Path::new("image"), FileKind::Log, Some(5))
        .unwrap()
        .expect("a header")
}

const HEAD: RecordHeader = RecordHeader {
    crc: 0,
    payload_crc: 0,
    len: 0,
    kind: 1,
    flags: 0,
    synced: 0,
    first_seq: 1,
    chain: 0,
    count: 1,
};

#[test]
fn a_length_past_the_end_allocates_nothing_and_is_a_torn_tail() {
    let len = u32::MAX;
    let mut reader = open_image(image(&[(RecordHeader { len, ..HEAD }, b"short")]));
    assert!(reader.next(0).unwrap().is_none());
    assert_eq!(
        reader.tail(),
        Tail {
            end: 512,
            torn: true
        }
    );
    assert!(reader.next(513).unwrap_err().is_corruption());
    assert!(
        reader.next(0).unwrap_err().is_corruption(),
        "damage stays damage"
    );
}

#[test]
fn records_of_a_later_version_are_refused_by_name() {
    for head in [
        RecordHeader { kind: 9, ..HEAD },
        RecordHeader { flags: 4, ..HEAD },
    ] {
        let e = open_image(image(&[(head, b"")])).next(0).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert_eq!(e.offset(), Some(512));
    }
}
