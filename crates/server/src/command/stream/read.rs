//! XREAD.

use super::{push_entries, strict_id};
use crate::command::{
    Block, BlockEnd, CommandResult, Context, Failure, Outcome, Resumed, integer, too_long, word,
};
use crate::keyspace::StreamKey;
use crate::number::parse_i64;
use crate::resp::request::Request;
use crate::stream::StreamId;
use crate::stream::jobs::EntryRange;
use basalt::Bytes;

/// The error if the numbers of streams and ids differ. Redis has the same text for XREADGROUP.
const UNBALANCED: &str =
    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.";
/// Maximum number of streams of one request. All of them must be loaded at the same time.
const MOST_STREAMS: usize = 512;

/// The options of XREAD and XREADGROUP.
pub(super) struct Options {
    /// Longest wait in ms, 0 for no limit, or `None` without BLOCK.
    pub block_ms: Option<u64>,
    /// Maximum number of entries of each stream.
    pub count: u64,
    /// Index of the first key.
    pub first: usize,
    /// Number of keys.
    pub keys: usize,
    /// Index of the group's name, which the consumer's follows.
    pub group: Option<usize>,
    /// True if entries count as acknowledged when they are delivered.
    pub no_ack: bool,
}

/// Parses the timeout of a blocking command, in ms.
fn timeout_ms(text: &[u8]) -> Result<u64, Failure> {
    let timeout = parse_i64(text)
        .ok_or_else(|| Failure::new("ERR timeout is not an integer or out of range"))?;
    u64::try_from(timeout).map_err(|_| Failure::new("ERR timeout is negative"))
}

/// Parses the options of XREAD, or with `groups` of XREADGROUP.
pub(super) fn options(r: &Request, groups: bool) -> Result<Options, Failure> {
    let only_groups = |option: &str| {
        Failure::new(format!(
            "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
        ))
    };
    let (mut block_ms, mut count, mut i) = (None, 0, 1);
    let (mut group, mut no_ack) = (None, false);
    while i < r.len() {
        let more = r.len() - 1 - i;
        match word(r, i).as_str() {
            "BLOCK" if more > 0 => {
                block_ms = Some(timeout_ms(r.arg(i + 1))?);
                i += 1;
            }
            "COUNT" if more > 0 => {
                count = integer(r, i + 1)?.max(0) as u64;
                i += 1;
            }
            "STREAMS" if more > 0 => {
                if !more.is_multiple_of(2) {
                    return Err(Failure::new(UNBALANCED));
                }
                let keys = more / 2;
                if keys > MOST_STREAMS {
                    return Err(Failure::new(format!(
                        "ERR too many streams: {keys}, at most {MOST_STREAMS} are allowed"
                    )));
                }
                return Ok(Options {
                    block_ms,
                    count: if count == 0 { u64::MAX } else { count },
                    first: i + 1,
                    keys,
                    group,
                    no_ack,
                });
            }
            "GROUP" if more >= 2 && !groups => return Err(only_groups("GROUP")),
            "GROUP" if more >= 2 => {
                group = Some(i + 1);
                i += 2;
            }
            "NOACK" if !groups => return Err(only_groups("NOACK")),
            "NOACK" => no_ack = true,
            _ => return Err(Failure::syntax()),
        }
        i += 1;
    }
    Err(Failure::syntax())
}

/// Returns the ids after which entries are requested, one for each key.
fn ids(c: &mut Context<'_>, r: &Request, o: &Options) -> Result<Vec<StreamId>, Failure> {
    let mut after = Vec::with_capacity(o.keys);
    for i in o.first..o.first + o.keys {
        let exists = super::has_stream(c, r.arg(i))?;
        after.push(match r.arg(i + o.keys) {
            b"$" if exists => c.keys().loaded_stream(r.arg(i)).state.last_id,
            b"$" => StreamId::MIN,
            b">" => {
                return Err(Failure::new(
                    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
                ));
            }
            id => strict_id(id, 0)?,
        });
    }
    Ok(after)
}

/// Replies to a blocked request whose wait ends without entries.
pub(super) fn end_wait(c: &mut Context<'_>, end: BlockEnd) -> CommandResult {
    match end {
        BlockEnd::TimedOut => {
            c.reply.null_array();
            Ok(Outcome::Replied)
        }
        BlockEnd::Refused => Err(Failure::new(
            "UNBLOCKED client unblocked via CLIENT UNBLOCK",
        )),
        BlockEnd::Failed(e) => Err(Failure::Store(e)),
    }
}

pub(crate) fn xread(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let o = options(r, false)?;
    let after = match c.exec.resumed.take() {
        None => ids(c, r, &o)?,
        Some(Resumed { end: Some(end), .. }) => return end_wait(c, end),
        Some(Resumed { after, .. }) => after,
    };
    let limit = c.exec.options.reply_hard_bytes;
    let (mut found, mut bytes) = (Vec::new(), 0);
    for (i, after) in (o.first..).zip(&after) {
        // In Redis, a key that got another type does not end the wait.
        if c.keys().stream(r.arg(i))? != StreamKey::Loaded {
            continue;
        }
        let stream = c.keys().loaded_stream(r.arg(i));
        let Some(start) = after.next().filter(|_| stream.state.last_id > *after) else {
            continue;
        };
        let range = EntryRange {
            start,
            end: StreamId::MAX,
            reverse: false,
            count: o.count,
            from_lsn: 0,
        };
        let entries = c.keys().stream_range(r.arg(i), &range, limit)?;
        bytes += entries
            .iter()
            .map(|(_, entry)| entry.body.len())
            .sum::<usize>();
        if bytes > limit {
            return Err(too_long(limit));
        }
        if !entries.is_empty() {
            found.push((i, entries));
        }
    }
    if !found.is_empty() {
        c.reply.map_of_lists(found.len());
        for (i, entries) in &found {
            c.reply.list_of_map();
            c.reply.bulk(r.arg(*i));
            push_entries(c.reply, entries, limit)?;
        }
        return Ok(Outcome::Replied);
    }
    let Some(timeout_ms) = o.block_ms else {
        c.reply.null_array();
        return Ok(Outcome::Replied);
    };
    let keys = (o.first..o.first + o.keys).map(|i| Bytes::copy_from_slice(r.arg(i)));
    Ok(Outcome::Block(Box::new(Block {
        timeout_ms,
        keys: keys.collect(),
        after,
        groups: Vec::new(),
    })))
}
