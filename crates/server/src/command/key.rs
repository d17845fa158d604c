//! Commands on keys of any type: existence, expiry, and scans over keys.

use super::{
    CommandResult, Context, Failure, NO_SLOW_READS, Outcome, SlowKind, SlowRead, integer, word,
};
use crate::catalog::DATABASE;
use crate::cursor::ScanPosition;
use crate::glob;
use crate::keyspace::StreamKey;
use crate::layout::{self, DataType};
use crate::number::parse_u64;
use crate::resp::reply::Reply;
use crate::resp::request::Request;
use std::sync::Arc;

/// Number of keys that one SCAN visits at most, and about the number of expired or deleted ones
/// besides. Other clients wait meanwhile.
const SCAN_WORK: u64 = 10_000;
/// Number of keys for each of the few steps of a RANDOMKEY, with the meaning of [`SCAN_WORK`].
const RANDOM_WORK: u64 = 1_000;
/// Matching steps after which a SCAN tries no further key. One key takes at most 17 million
/// ([`glob`]).
const MATCH_WORK: u64 = 1 << 21;

pub(crate) fn del(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let mut found = Vec::new();
    for i in 1..r.len() {
        if c.keys().meta(r.arg(i))?.is_some() {
            found.push(r.arg(i));
        }
    }
    // A key that is named twice is deleted once.
    found.sort_unstable();
    found.dedup();
    for key in &found {
        c.keys().delete(key);
    }
    c.reply.integer(found.len() as i64);
    Ok(Outcome::Replied)
}

pub(crate) fn exists(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let mut n = 0;
    for i in 1..r.len() {
        let there = c.keys().meta(r.arg(i))?.is_some();
        if there {
            c.exec.counters.hits += 1;
        } else {
            c.exec.counters.misses += 1;
        }
        n += i64::from(there);
    }
    c.reply.integer(n);
    Ok(Outcome::Replied)
}

pub(crate) fn type_of(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let name = c
        .keys()
        .meta(r.arg(1))?
        .map_or("none", |v| v.data_type.name());
    c.reply.simple(name);
    Ok(Outcome::Replied)
}

/// Sets the expiry of a live key, in ms since 1970, or removes it.
fn set_expiry(c: &mut Context<'_>, key: &[u8], at: Option<u64>) -> Result<(), Failure> {
    match c.keys().meta(key)?.map(|meta| meta.data_type) {
        None => {}
        Some(DataType::String) => {
            if let Some(value) = c.keys().get(key)? {
                c.keys().put(key, value.data, at);
            }
        }
        Some(DataType::Stream) => match c.keys().stream(key)? {
            StreamKey::Loaded => c.keys().expire_stream(key, at),
            StreamKey::Absent | StreamKey::OtherType => {}
        },
        // Only a newer version writes headers of other types.
        Some(other) => {
            return Err(Failure::new(format!(
                "ERR a newer version wrote this {}; only that version can change it",
                other.name()
            )));
        }
    }
    Ok(())
}

fn expire_generic(c: &mut Context<'_>, r: &Request, unit_ms: i64, relative: bool) -> CommandResult {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for i in 3..r.len() {
        match word(r, i).as_str() {
            "NX" => nx = true,
            "XX" => xx = true,
            "GT" => gt = true,
            "LT" => lt = true,
            _ => {
                return Err(Failure::new(format!(
                    "ERR Unsupported option {}",
                    super::quoted(r.arg(i))
                )));
            }
        }
    }
    if nx && (xx || gt || lt) {
        return Err(Failure::new(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    if gt && lt {
        return Err(Failure::new(
            "ERR GT and LT options at the same time are not compatible",
        ));
    }
    let base = if relative { c.now_ms() as i64 } else { 0 };
    let at = integer(r, 2)?
        .checked_mul(unit_ms)
        .and_then(|ms| ms.checked_add(base))
        .ok_or_else(|| {
            Failure::new(format!(
                "ERR invalid expire time in '{}' command",
                c.spec.name
            ))
        })?;
    let Some(meta) = c.keys().meta(r.arg(1))? else {
        c.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let current = meta.expire_at_ms.map(|at| at as i64);
    let refused = (nx && current.is_some())
        || (xx && current.is_none())
        || (gt && current.is_none_or(|c| at <= c))
        || (lt && current.is_some_and(|c| at >= c));
    let at = at.max(0) as u64;
    if !refused && at <= c.now_ms() {
        c.keys().delete(r.arg(1));
    } else if !refused {
        set_expiry(c, r.arg(1), Some(at))?;
    }
    c.reply.integer(i64::from(!refused));
    Ok(Outcome::Replied)
}

pub(crate) fn expire(c: &mut Context<'_>, r: &Request) -> CommandResult {
    expire_generic(c, r, 1000, true)
}
pub(crate) fn pexpire(c: &mut Context<'_>, r: &Request) -> CommandResult {
    expire_generic(c, r, 1, true)
}
pub(crate) fn expireat(c: &mut Context<'_>, r: &Request) -> CommandResult {
    expire_generic(c, r, 1000, false)
}
pub(crate) fn pexpireat(c: &mut Context<'_>, r: &Request) -> CommandResult {
    expire_generic(c, r, 1, false)
}

fn ttl_generic(c: &mut Context<'_>, r: &Request, seconds: bool, absolute: bool) -> CommandResult {
    let answer = match c.keys().meta(r.arg(1))? {
        None => -2,
        Some(v) => match v.expire_at_ms {
            None => -1,
            Some(at) => {
                let base = if absolute { 0 } else { c.now_ms() };
                let ms = at.saturating_sub(base) as i64;
                if seconds {
                    ms.saturating_add(500) / 1000
                } else {
                    ms
                }
            }
        },
    };
    c.reply.integer(answer);
    Ok(Outcome::Replied)
}

pub(crate) fn ttl(c: &mut Context<'_>, r: &Request) -> CommandResult {
    ttl_generic(c, r, true, false)
}
pub(crate) fn pttl(c: &mut Context<'_>, r: &Request) -> CommandResult {
    ttl_generic(c, r, false, false)
}
pub(crate) fn expiretime(c: &mut Context<'_>, r: &Request) -> CommandResult {
    ttl_generic(c, r, true, true)
}
pub(crate) fn pexpiretime(c: &mut Context<'_>, r: &Request) -> CommandResult {
    ttl_generic(c, r, false, true)
}

pub(crate) fn persist(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let meta = c.keys().meta(r.arg(1))?;
    let had = meta.is_some_and(|m| m.expire_at_ms.is_some());
    if had {
        set_expiry(c, r.arg(1), None)?;
    }
    c.reply.integer(i64::from(had));
    Ok(Outcome::Replied)
}

pub(crate) fn scan(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let cursor = parse_u64(r.arg(1)).ok_or_else(|| Failure::new("ERR invalid cursor"))?;
    let mut count = 10;
    let mut pattern: Option<&[u8]> = None;
    let mut wanted: Option<String> = None;
    let mut i = 2;
    while i < r.len() {
        if i + 1 == r.len() {
            return Err(Failure::syntax());
        }
        match word(r, i).as_str() {
            "COUNT" => {
                count = integer(r, i + 1)?;
                if count < 1 {
                    return Err(Failure::syntax());
                }
            }
            "MATCH" => pattern = Some(r.arg(i + 1)),
            "TYPE" => wanted = Some(word(r, i + 1).to_ascii_lowercase()),
            _ => return Err(Failure::syntax()),
        }
        i += 2;
    }
    let pattern = pattern.filter(|p| *p != b"*");
    let prefix = pattern.map(glob::literal_prefix).unwrap_or_default();
    let pattern = pattern.map(|p| glob::Pattern::new(p, false, layout::MAX_KEY_LEN));
    let (mut from, to) = c.keys().bounds(&prefix);
    let (start, _) = c.keys().bounds(b"");
    let place = c.exec.cursors.place(cursor);
    if let ScanPosition::At(key) = &place {
        from = from.max([&start[..], key].concat());
    }
    let budget = (count as u64).min(SCAN_WORK);
    let mut seen = 0;
    let mut matching = 0;
    let mut next = None;
    let mut found = Reply::new(c.reply.protocol());
    let mut n = 0;
    let byte_limit = c.exec.options.reply_soft_bytes;
    let paused = c
        .exec
        .keys
        .scan(&from, &to, SCAN_WORK, &mut |key, data_type| {
            if seen == budget || found.len() >= byte_limit || matching >= MATCH_WORK {
                next = Some(key.to_vec());
                return false;
            }
            seen += 1;
            let pattern = pattern.as_ref();
            if pattern.is_none_or(|p| p.matches_counting(key, &mut matching))
                && wanted.as_ref().is_none_or(|w| w == data_type.name())
            {
                found.bulk(key);
                n += 1;
            }
            true
        })?;
    let next = match next.or(paused) {
        Some(key) => {
            if c.exec.cursors.is_used_up() {
                if let Some(e) = c.exec.cursor_failure.clone() {
                    return Err(e.into());
                }
                c.exec.cursors_wanted = true;
                return Ok(Outcome::NoCursor);
            }
            let cursor = c.exec.cursors.at(key.into());
            c.exec.cursors_wanted |= c.exec.cursors.wants_more();
            cursor
        }
        None => 0,
    };
    // The count comes last, because a command that waited for a cursor number runs again.
    c.exec.counters.cursors_forgotten += u64::from(place == ScanPosition::Forgotten);
    c.reply.array(2);
    c.reply.bulk_u64(next);
    c.reply.array(n);
    found.drain_into(c.reply);
    Ok(Outcome::Replied)
}

pub(super) fn slow(c: &mut Context<'_>, prefix: &[u8], what: SlowKind) -> CommandResult {
    if c.exec.no_slow_reads {
        return Err(Failure::new(NO_SLOW_READS));
    }
    if !c.exec.slow_room {
        return Ok(Outcome::Later);
    }
    let capture = c.keys().capture(prefix);
    Ok(Outcome::Slow(Box::new(SlowRead {
        capture,
        what,
        reply: Reply::new(c.reply.protocol()),
        reply_limit: c.exec.options.reply_hard_bytes,
        gone: Arc::default(),
    })))
}

pub(crate) fn keys(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let pattern = r.arg(1).to_vec();
    slow(
        c,
        &glob::literal_prefix(&pattern),
        SlowKind::Keys { pattern },
    )
}

pub(crate) fn dbsize(c: &mut Context<'_>, _: &Request) -> CommandResult {
    if let Some(keys) = c.exec.exact_count() {
        // The reply waits for writes in flight, because it depends on them, too.
        c.keys().touch_all();
        c.reply.integer(keys as i64);
        return Ok(Outcome::Replied);
    }
    slow(c, b"", SlowKind::Count)
}

pub(crate) fn randomkey(c: &mut Context<'_>, _: &Request) -> CommandResult {
    let (from, to) = c.keys().bounds(b"");
    let mut key = None;
    let first = c.exec.keys.scan(&from, &to, RANDOM_WORK, &mut |k, _| {
        key = Some(k.to_vec());
        false
    })?;
    // The lower end is where the keys begin, or a key before which there are none.
    let Some(mut low) = key.clone().or(first) else {
        c.reply.null();
        return Ok(Outcome::Replied);
    };
    // The search takes a random position between two keys and the key behind it, up to three times
    // with that key as the lower end (keys form clusters), and then a few keys further. It is quick
    // for any number of keys, and not quite uniform.
    let mut middle = from.clone();
    if let Some(last) = c.exec.keys.last(&from, &to, RANDOM_WORK)? {
        for _ in 0..1 + c.exec.env.random().below(3) {
            middle = [&from[..], &between(c, &low, &last)].concat();
            let mut steps = c.exec.env.random().below(16);
            c.exec.keys.scan(&middle, &to, RANDOM_WORK, &mut |k, _| {
                low = k.to_vec();
                key = Some(k.to_vec());
                steps = steps.saturating_sub(1);
                steps > 0
            })?;
        }
    }
    match key {
        Some(key) => c.reply.bulk(&key),
        // Only deleted and expired keys so far: the thread for slow reads continues the search.
        None => return slow(c, b"", SlowKind::Random { from: middle }),
    }
    Ok(Outcome::Replied)
}

/// Returns random bytes that order between two keys.
fn between(c: &Context<'_>, low: &[u8], high: &[u8]) -> Vec<u8> {
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let number = |b: &[u8]| {
        let mut n = [0; 8];
        let len = b.len().min(8);
        n[..len].copy_from_slice(&b[..len]);
        u64::from_be_bytes(n)
    };
    let (from, to) = (number(&low[common..]), number(&high[common..]));
    let span = to.saturating_sub(from).saturating_add(1);
    let at = from.saturating_add(c.exec.env.random().below(span));
    [&low[..common], &at.to_be_bytes()].concat()
}

pub(crate) fn flush(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if r.len() > 2 || (r.len() == 2 && !matches!(word(r, 1).as_str(), "SYNC" | "ASYNC")) {
        return Err(Failure::syntax());
    }
    c.keys().flush()?;
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn object_encoding(c: &mut Context<'_>, r: &Request) -> CommandResult {
    match c.keys().peek(r.arg(2))? {
        None => c.reply.null(),
        Some((meta, _)) if meta.data_type == DataType::Stream => c.reply.bulk(b"stream"),
        // A separated value is longer than that.
        Some((_, None)) => c.reply.bulk(b"raw"),
        Some((_, Some(data))) => c.reply.bulk(match data.len() {
            1..=20 if crate::number::parse_i64(&data).is_some() => b"int",
            0..=44 => b"embstr",
            _ => b"raw",
        }),
    }
    Ok(Outcome::Replied)
}

pub(crate) fn object_freq(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if c.keys().meta(r.arg(2))?.is_some() {
        return Err(Failure::new(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    c.reply.null();
    Ok(Outcome::Replied)
}

fn object_number(c: &mut Context<'_>, r: &Request, n: i64) -> CommandResult {
    match c.keys().meta(r.arg(2))? {
        Some(_) => c.reply.integer(n),
        None => c.reply.null(),
    }
    Ok(Outcome::Replied)
}

pub(crate) fn object_idletime(c: &mut Context<'_>, r: &Request) -> CommandResult {
    object_number(c, r, 0)
}

pub(crate) fn object_refcount(c: &mut Context<'_>, r: &Request) -> CommandResult {
    object_number(c, r, 1)
}

pub(crate) fn memory_usage(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if r.len() != 3 {
        if r.len() != 5 || word(r, 3) != "SAMPLES" {
            return Err(Failure::syntax());
        }
        if integer(r, 4)? < 0 {
            return Err(Failure::syntax());
        }
    }
    match c.keys().meta_with_len(r.arg(2))? {
        // This is the size of the entry in a memtable, before compression and compaction.
        Some(v) => c.reply.integer(
            (layout::encode_key(DATABASE, 0, r.arg(2)).len() + v.len.unwrap_or(0) + 1 + 48) as i64,
        ),
        None => c.reply.null(),
    }
    Ok(Outcome::Replied)
}
