//! XADD and XTRIM.

use super::{LONGEST_ID, has_stream, invalid_id, strict_id};
use crate::command::{
    CommandResult, Context, Failure, Outcome, integer, too_long, word, wrong_arguments,
};
use crate::resp::request::Request;
use crate::stream::StreamId;
use crate::stream::lsn_set::LsnSet;
use crate::stream::record::StreamState;
use std::sync::Arc;

/// Number of entries of a node. An approximate trim removes whole nodes. A node begins at every
/// hundredth entry that was ever added.
const NODE_ENTRIES: u64 = 100;
/// Maximum number of entries that an approximate trim removes if the command has no LIMIT.
const DEFAULT_LIMIT: u64 = 100 * NODE_ENTRIES;

/// The entries that a trim keeps.
#[derive(Clone, Copy)]
enum Kept {
    All,
    Newest(u64),
    From(StreamId),
}

/// The id of a new entry.
#[derive(Clone, Copy)]
enum NewId {
    Generated,
    /// The sequence number is generated.
    Millisecond(u64),
    Given(StreamId),
}

/// The options of XADD and XTRIM.
struct Options {
    kept: Kept,
    approximate: bool,
    /// Maximum number of entries that an approximate trim removes, or `None` for no limit.
    limit: Option<u64>,
    no_create: bool,
    id: NewId,
    /// Index of the argument after the id.
    end: usize,
}

fn new_id(text: &[u8]) -> Result<NewId, Failure> {
    if text == b"*" {
        return Ok(NewId::Generated);
    }
    if let Some(ms) = text
        .strip_suffix(b"-*")
        .filter(|_| text.len() <= LONGEST_ID)
    {
        let ms = StreamId::parse(ms, 0).filter(|_| !ms.contains(&b'-'));
        return Ok(NewId::Millisecond(ms.ok_or_else(invalid_id)?.ms));
    }
    Ok(NewId::Given(strict_id(text, 0)?))
}

fn options(r: &Request, adds: bool) -> Result<Options, Failure> {
    let mut o = Options {
        kept: Kept::All,
        approximate: false,
        limit: None,
        no_create: false,
        id: NewId::Generated,
        end: r.len(),
    };
    let mut limit = None;
    let mut i = 2;
    while i < r.len() {
        let more = r.len() - 1 - i;
        let option = word(r, i);
        match option.as_str() {
            "*" if adds => {
                o.end = i + 1;
                break;
            }
            "MAXLEN" | "MINID" if more > 0 => {
                if !matches!(o.kept, Kept::All) {
                    return Err(Failure::new(
                        "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
                    ));
                }
                o.approximate = false;
                if more >= 2 && matches!(r.arg(i + 1), b"~" | b"=") {
                    o.approximate = r.arg(i + 1) == b"~";
                    i += 1;
                }
                o.kept = match option.as_str() {
                    "MAXLEN" => match integer(r, i + 1)? {
                        n @ 0.. => Kept::Newest(n as u64),
                        _ => return Err(Failure::new("ERR The MAXLEN argument must be >= 0.")),
                    },
                    _ => Kept::From(strict_id(r.arg(i + 1), 0)?),
                };
                i += 1;
            }
            "LIMIT" if more > 0 => {
                limit = Some(match integer(r, i + 1)? {
                    n @ 0.. => n as u64,
                    _ => return Err(Failure::new("ERR The LIMIT argument must be >= 0.")),
                });
                i += 1;
            }
            "NOMKSTREAM" if adds => o.no_create = true,
            _ if adds => {
                o.id = new_id(r.arg(i))?;
                o.end = i + 1;
                break;
            }
            _ => return Err(Failure::syntax()),
        }
        i += 1;
    }
    let trims = !matches!(o.kept, Kept::All);
    if limit.is_some_and(|n| n > 0) && !trims {
        return Err(Failure::new(
            "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
        ));
    }
    if !adds && !trims {
        return Err(Failure::new(
            "ERR syntax error, XTRIM must be called with a trimming strategy",
        ));
    }
    if limit.is_some() && !o.approximate {
        return Err(Failure::new(
            "ERR syntax error, LIMIT cannot be used without the special ~ option",
        ));
    }
    o.limit = match limit {
        Some(0) => None,
        Some(n) => Some(n),
        None => o.approximate.then_some(DEFAULT_LIMIT),
    };
    Ok(o)
}

/// Returns the first live LSN after a trim. `kept_from` is the first one that an exact trim keeps,
/// and `gone` has the LSNs of deleted entries.
fn trimmed(state: &StreamState, gone: &LsnSet, kept_from: u64, o: &Options) -> u64 {
    let kept_from = kept_from.clamp(state.first_lsn, state.next_lsn);
    if !o.approximate {
        return kept_from;
    }
    let mut first = state.first_lsn;
    loop {
        // The node of LSN n has the LSNs up to the next multiple of NODE_ENTRIES.
        let node_end = ((first - 1) / NODE_ENTRIES + 1) * NODE_ENTRIES + 1;
        let node_end = node_end.min(state.next_lsn);
        let removed = live(state.first_lsn..node_end, gone);
        if node_end > kept_from || node_end == first || o.limit.is_some_and(|n| removed > n) {
            return first;
        }
        first = node_end;
    }
}

/// Returns the number of live entries in a range of LSNs.
fn live(lsns: std::ops::Range<u64>, gone: &LsnSet) -> u64 {
    lsns.end - lsns.start - gone.count_in(lsns)
}

/// Returns the first LSN that an exact trim keeps. The stream is loaded or does not exist.
fn kept_from(
    c: &mut Context<'_>,
    key: &[u8],
    state: &StreamState,
    gone: &LsnSet,
    o: &Options,
) -> Result<u64, Failure> {
    Ok(match o.kept {
        Kept::All => state.first_lsn,
        Kept::Newest(n) => {
            let removed = live(state.first_lsn..state.next_lsn, gone).saturating_sub(n);
            gone.skip_absent(state.first_lsn, removed)
        }
        // The entry being added is not in the stream yet.
        Kept::From(id) if id > state.last_id => state.next_lsn,
        Kept::From(id) => c.keys().stream_lower_bound(key, id)?,
    })
}

pub(crate) fn xadd(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let o = options(r, true)?;
    let words = r.len() - o.end;
    if words < 2 || !words.is_multiple_of(2) {
        return Err(Failure::new(wrong_arguments("xadd")));
    }
    if matches!(o.id, NewId::Given(StreamId::MIN)) {
        return Err(Failure::new(
            "ERR The ID specified in XADD must be greater than 0-0",
        ));
    }
    let key = r.arg(1);
    let exists = has_stream(c, key)?;
    if !exists && o.no_create {
        c.reply.null();
        return Ok(Outcome::Replied);
    }
    let (before, gone) = match exists {
        true => {
            let stream = c.keys().loaded_stream(key);
            (stream.state, stream.gone.clone())
        }
        false => (StreamState::default(), Arc::default()),
    };
    let last = before.last_id;
    if last == StreamId::MAX {
        return Err(Failure::new(
            "ERR The stream has exhausted the last possible ID, unable to add more items",
        ));
    }
    let too_small = || {
        Failure::new(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        )
    };
    let id = match o.id {
        NewId::Generated if c.now_ms() > last.ms => StreamId::new(c.now_ms(), 0),
        NewId::Generated => last.next().expect("it is not the largest"),
        NewId::Millisecond(ms) if ms == last.ms => {
            StreamId::new(ms, last.seq.checked_add(1).ok_or_else(too_small)?)
        }
        NewId::Millisecond(ms) => StreamId::new(ms, 0),
        NewId::Given(id) => id,
    };
    if id <= last {
        return Err(too_small());
    }
    let longest = c.exec.options.max_request_bytes.min(1 << 29) as usize;
    if r.bytes() > longest {
        return Err(too_long(longest));
    }
    // The trim counts the new entry, too.
    let after = StreamState {
        last_id: id,
        next_lsn: before.next_lsn + 1,
        ..before
    };
    let first = match o.kept {
        Kept::From(least) if least > id => after.next_lsn,
        Kept::From(least) if least > last => before.next_lsn,
        _ => kept_from(c, key, &after, &gone, &o)?,
    };
    let first = trimmed(&after, &gone, first, &o);
    drop(gone);
    if !exists {
        let (incarnation, log) = c.keys().spare_log()?;
        c.keys().create_stream(key, incarnation, log);
    }
    let words: Vec<&[u8]> = r.args().skip(o.end).collect();
    c.keys().append_entry(key, id, first, words.iter().copied());
    c.reply.bulk(id.to_string().as_bytes());
    Ok(Outcome::Replied)
}

pub(crate) fn xtrim(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let o = options(r, false)?;
    let key = r.arg(1);
    if !has_stream(c, key)? {
        c.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    let stream = c.keys().loaded_stream(key);
    let (state, gone) = (stream.state, stream.gone.clone());
    let kept = kept_from(c, key, &state, &gone, &o)?;
    let first = trimmed(&state, &gone, kept, &o);
    let removed = live(state.first_lsn..first, &gone);
    // The set is not copied if nothing else holds it.
    drop(gone);
    if removed > 0 {
        c.keys().trim_stream(key, first);
    }
    c.reply.integer(removed as i64);
    Ok(Outcome::Replied)
}
