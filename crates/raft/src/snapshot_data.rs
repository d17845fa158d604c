//! The data of a snapshot, as openraft sends it from node to node.
//!
//! A snapshot that a node builds is a pinned moment of its store. Its bytes are made when the first
//! of them is read: openraft builds a snapshot every few thousand entries, and most are never sent.
//!
//! Format: a version (1 byte), then for each key its length and that of its value (4 bytes each,
//! little-endian), key and value; then `u32::MAX`, the number of keys (8 bytes), and the CRC-32C of
//! all bytes before (4 bytes).

use basalt::{Db, Error, Family, ReadOptions, Result, Snapshot};
use std::io;
use std::io::SeekFrom;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;

/// Version of the format, the first byte.
const VERSION: u8 = 1;
/// Stands in the place of a key's length behind the last key.
const END: u32 = u32::MAX;

/// A moment of a state machine's data, which the store keeps as long as this exists.
pub(crate) struct PinnedData {
    pub db: Db,
    pub family: Family,
    pub snapshot: Snapshot,
}

impl PinnedData {
    /// Returns the encoded data. It is in memory as a whole.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let options = ReadOptions::default()
            .snapshot(Some(self.snapshot.clone()))
            .fill_cache(false);
        let mut keys = self.db.iter(&self.family, &options)?;
        let mut out = vec![VERSION];
        let mut count = 0u64;
        keys.seek_to_first()?;
        while keys.valid() {
            // The store limits both to less than 4 GiB.
            out.extend((keys.key().len() as u32).to_le_bytes());
            out.extend((keys.value().len() as u32).to_le_bytes());
            out.extend(keys.key());
            out.extend(keys.value());
            count += 1;
            keys.next()?;
        }
        out.extend(END.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        Ok(out)
    }
}

/// Returns the keys and values of encoded data. The checksum covers all bytes, so a decoder of data
/// that passes it fails only for data of another version or another program.
///
/// Errors: `Corruption` with the offset.
pub(crate) fn decode(data: &[u8]) -> Result<Vec<(&[u8], &[u8])>> {
    let wrong = |at: usize, what: &str| {
        Error::corruption(
            Path::new("snapshot"),
            at as u64,
            format!("data of a received snapshot: {what}"),
        )
    };
    let Some((body, sum)) = data.split_last_chunk::<4>() else {
        return Err(wrong(0, "it is too short"));
    };
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(wrong(0, "the checksum is wrong"));
    }
    let Some((&VERSION, mut rest)) = body.split_first() else {
        return Err(wrong(0, "this build does not know its version"));
    };
    let mut found = Vec::new();
    loop {
        let at = body.len() - rest.len();
        let cut = || wrong(at, "it ends inside of a key");
        let (key_len, behind) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let key_len = u32::from_le_bytes(*key_len);
        if key_len == END {
            let count = <[u8; 8]>::try_from(behind).map_err(|_| cut())?;
            return match u64::from_le_bytes(count) == found.len() as u64 {
                true => Ok(found),
                false => Err(wrong(at, "the number of keys is wrong")),
            };
        }
        let (value_len, behind) = behind.split_first_chunk::<4>().ok_or_else(cut)?;
        let value_len = u32::from_le_bytes(*value_len);
        let (key, behind) = behind.split_at_checked(key_len as usize).ok_or_else(cut)?;
        let (value, behind) = behind
            .split_at_checked(value_len as usize)
            .ok_or_else(cut)?;
        found.push((key, value));
        rest = behind;
    }
}

enum Content {
    /// A snapshot of this node, of which no byte was read yet.
    Pinned(Arc<PinnedData>),
    /// The bytes of a pinned snapshot are being made.
    Encoding(JoinHandle<Result<Vec<u8>>>),
    Bytes(Vec<u8>),
}

/// The data of a snapshot: the type `SnapshotData` of the type configuration.
///
/// The first read of a built snapshot encodes it into memory, on a thread for blocking calls. So a
/// node that sends or receives a snapshot needs as much memory as its data has bytes, once for each
/// snapshot on its way.
pub struct StateSnapshot {
    content: Content,
    position: u64,
    /// Target of a seek that is not complete.
    seek: Option<SeekFrom>,
}

impl StateSnapshot {
    /// Returns the data of a snapshot to be received.
    pub(crate) fn empty() -> StateSnapshot {
        StateSnapshot::of(Content::Bytes(Vec::new()))
    }

    pub(crate) fn pinned(data: &Arc<PinnedData>) -> StateSnapshot {
        StateSnapshot::of(Content::Pinned(data.clone()))
    }

    fn of(content: Content) -> StateSnapshot {
        StateSnapshot {
            content,
            position: 0,
            seek: None,
        }
    }

    /// Returns all bytes.
    pub(crate) async fn into_bytes(mut self) -> Result<Vec<u8>> {
        let encoded = std::future::poll_fn(|cx| self.poll_bytes(cx).map(|r| r.map(drop))).await;
        encoded.map_err(|e| Error::io("encoding a snapshot", Path::new("snapshot"), e))?;
        match self.content {
            Content::Bytes(bytes) => Ok(bytes),
            _ => Ok(Vec::new()),
        }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut Vec<u8>>> {
        if let Content::Pinned(data) = &self.content {
            let data = data.clone();
            let encoding = tokio::task::spawn_blocking(move || data.encode());
            self.content = Content::Encoding(encoding);
        }
        if let Content::Encoding(encoding) = &mut self.content {
            let bytes = ready!(Pin::new(encoding).poll(cx)).map_err(io::Error::other)?;
            self.content = Content::Bytes(bytes.map_err(io::Error::other)?);
        }
        match &mut self.content {
            Content::Bytes(bytes) => Poll::Ready(Ok(bytes)),
            _ => Poll::Ready(Err(io::Error::other("the bytes of the snapshot are lost"))),
        }
    }
}

impl AsyncRead for StateSnapshot {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let position = self.position;
        let bytes = ready!(self.poll_bytes(cx))?;
        let start = (position as usize).min(bytes.len());
        let len = buf.remaining().min(bytes.len() - start);
        buf.put_slice(&bytes[start..start + len]);
        self.position += len as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for StateSnapshot {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.seek = Some(position);
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let target = match self.seek {
            None => Some(self.position),
            Some(SeekFrom::Start(at)) => Some(at),
            Some(SeekFrom::Current(by)) => self.position.checked_add_signed(by),
            Some(SeekFrom::End(by)) => {
                let len = ready!(self.poll_bytes(cx))?.len() as u64;
                len.checked_add_signed(by)
            }
        };
        self.seek = None;
        Poll::Ready(match target {
            Some(target) => {
                self.position = target;
                Ok(target)
            }
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a seek to before the start of a snapshot",
            )),
        })
    }
}

impl AsyncWrite for StateSnapshot {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let position = self.position;
        let bytes = ready!(self.poll_bytes(cx))?;
        // The other node says where a part belongs: its error must not cost memory here.
        if position > bytes.len() as u64 {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "a part of a snapshot begins at byte {position}, but only {} bytes came before",
                    bytes.len()
                ),
            )));
        }
        let start = position as usize;
        let over = buf.len().min(bytes.len() - start);
        bytes[start..start + over].copy_from_slice(&buf[..over]);
        bytes.extend_from_slice(&buf[over..]);
        self.position += buf.len() as u64;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
