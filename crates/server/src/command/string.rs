//! Commands on strings: GET, SET and their variants.

use super::{CommandResult, Context, Failure, Outcome, integer, too_long, word, wrong_arguments};
use crate::layout::DataType;
use crate::number::{format_f64, parse_f64, parse_i64, push_i64};
use crate::resp::request::Request;
use crate::value::Value;
use basalt::Bytes;

/// Number of keys of an MGET that are read in one batch.
const MGET_KEYS: usize = 1024;

/// Returns the string of a key, or `WRONGTYPE` for other types. Counts hits and misses.
pub(crate) fn string(c: &mut Context<'_>, key: &[u8]) -> Result<Option<Value>, Failure> {
    let value = c.keys().get(key)?;
    match &value {
        Some(v) if v.data_type != DataType::String => return Err(Failure::WrongType),
        Some(_) => c.exec.counters.hits += 1,
        None => c.exec.counters.misses += 1,
    }
    Ok(value)
}

/// Returns the string of a key for commands that write. Counts no hits and misses.
fn old_string(c: &mut Context<'_>, key: &[u8]) -> Result<Option<Value>, Failure> {
    let value = c.keys().get(key)?;
    match &value {
        Some(v) if v.data_type != DataType::String => Err(Failure::WrongType),
        _ => Ok(value),
    }
}

fn reply_value(c: &mut Context<'_>, value: Option<Value>) -> CommandResult {
    match value {
        Some(v) => c.reply.bulk_shared(v.data),
        None => c.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// Sets a key, or removes it if its expiry has passed already.
pub(crate) fn put_until(c: &mut Context<'_>, key: &[u8], data: Bytes, expire_at_ms: Option<u64>) {
    match expire_at_ms {
        Some(at) if at <= c.now_ms() => c.keys().delete(key),
        _ => c.keys().put(key, data, expire_at_ms),
    }
}

pub(crate) fn get(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let value = string(c, r.arg(1))?;
    reply_value(c, value)
}

/// The treatment of the expiry by a command that writes a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    None,
    Keep,
    Persist,
    /// Index of the argument with the number, milliseconds per unit, and whether it counts from
    /// now.
    At(usize, i64, bool),
}

/// Returns the expiry in ms since 1970.
fn expire_at(c: &Context<'_>, r: &Request, expiry: Expiry) -> Result<Option<u64>, Failure> {
    let Expiry::At(index, unit_ms, relative) = expiry else {
        return Ok(None);
    };
    let invalid = || {
        Failure::new(format!(
            "ERR invalid expire time in '{}' command",
            c.spec.name
        ))
    };
    let n = integer(r, index)?;
    if n <= 0 {
        return Err(invalid());
    }
    let ms = n.checked_mul(unit_ms).ok_or_else(invalid)?;
    let base = if relative { c.now_ms() as i64 } else { 0 };
    Ok(Some(ms.checked_add(base).ok_or_else(invalid)? as u64))
}

fn expiry_option(option: &str, index: usize) -> Option<Expiry> {
    Some(match option {
        "EX" => Expiry::At(index, 1000, true),
        "PX" => Expiry::At(index, 1, true),
        "EXAT" => Expiry::At(index, 1000, false),
        "PXAT" => Expiry::At(index, 1, false),
        _ => return None,
    })
}

pub(crate) fn set(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (mut nx, mut xx, mut get) = (false, false, false);
    let mut expiry = Expiry::None;
    let mut i = 3;
    while i < r.len() {
        match word(r, i).as_str() {
            "NX" if !xx => nx = true,
            "XX" if !nx => xx = true,
            "GET" => get = true,
            "KEEPTTL" if matches!(expiry, Expiry::None | Expiry::Keep) => expiry = Expiry::Keep,
            option => {
                let Some(e) = expiry_option(option, i + 1)
                    .filter(|_| expiry == Expiry::None && i + 1 < r.len())
                else {
                    return Err(Failure::syntax());
                };
                expiry = e;
                i += 1;
            }
        }
        i += 1;
    }
    let mut at = expire_at(c, r, expiry)?;
    let key = r.arg(1);
    // A plain SET reads nothing, so it depends on no epoch and costs no read.
    let old = if get { string(c, key)? } else { None };
    let known = match &old {
        Some(v) => Some(v.expire_at_ms),
        None if !get && (nx || xx || expiry == Expiry::Keep) => {
            c.keys().meta(key)?.map(|meta| meta.expire_at_ms)
        }
        None => None,
    };
    let refused = (nx && known.is_some()) || (xx && known.is_none());
    if !refused {
        if expiry == Expiry::Keep {
            at = known.flatten();
        }
        put_until(c, key, r.arg_kept(2), at);
    }
    if get {
        return reply_value(c, old);
    }
    if refused {
        c.reply.null();
    } else {
        c.reply.ok();
    }
    Ok(Outcome::Replied)
}

pub(crate) fn setnx(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let absent = c.keys().meta(r.arg(1))?.is_none();
    if absent {
        c.keys().put(r.arg(1), r.arg_kept(2), None);
    }
    c.reply.integer(i64::from(absent));
    Ok(Outcome::Replied)
}

fn set_with_expiry(c: &mut Context<'_>, r: &Request, unit_ms: i64) -> CommandResult {
    let at = expire_at(c, r, Expiry::At(2, unit_ms, true))?;
    put_until(c, r.arg(1), r.arg_kept(3), at);
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn setex(c: &mut Context<'_>, r: &Request) -> CommandResult {
    set_with_expiry(c, r, 1000)
}

pub(crate) fn psetex(c: &mut Context<'_>, r: &Request) -> CommandResult {
    set_with_expiry(c, r, 1)
}

pub(crate) fn getset(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let old = string(c, r.arg(1))?;
    c.keys().put(r.arg(1), r.arg_kept(2), None);
    reply_value(c, old)
}

pub(crate) fn getdel(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let old = string(c, r.arg(1))?;
    if old.is_some() {
        c.keys().delete(r.arg(1));
    }
    reply_value(c, old)
}

pub(crate) fn getex(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let mut expiry = Expiry::None;
    let mut i = 2;
    while i < r.len() {
        let option = word(r, i);
        if expiry != Expiry::None {
            return Err(Failure::syntax());
        }
        if option == "PERSIST" {
            expiry = Expiry::Persist;
        } else if let Some(e) = expiry_option(&option, i + 1).filter(|_| i + 1 < r.len()) {
            expiry = e;
            i += 1;
        } else {
            return Err(Failure::syntax());
        }
        i += 1;
    }
    let Some(value) = string(c, r.arg(1))? else {
        c.reply.null();
        return Ok(Outcome::Replied);
    };
    match expiry {
        Expiry::At(..) => {
            let at = expire_at(c, r, expiry)?;
            put_until(c, r.arg(1), value.data.clone(), at);
        }
        Expiry::Persist if value.expire_at_ms.is_some() => {
            c.keys().put(r.arg(1), value.data.clone(), None);
        }
        _ => {}
    }
    reply_value(c, Some(value))
}

pub(crate) fn mget(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let limit = c.exec.options.reply_hard_bytes;
    // The fetch ended there.
    if c.exec.keys.fetched_bytes() > limit {
        return Err(too_long(limit));
    }
    c.reply.array(r.len() - 1);
    let keys: Vec<&[u8]> = r.args().skip(1).collect();
    let mut held = c.reply.len();
    for part in keys.chunks(MGET_KEYS) {
        if held > limit {
            return Err(too_long(limit));
        }
        let values = c
            .exec
            .keys
            .get_strings(part.iter().copied(), limit - held)?;
        held += values.iter().flatten().map(Bytes::len).sum::<usize>();
        if held > limit {
            return Err(too_long(limit));
        }
        for value in values {
            match value {
                Some(v) => {
                    c.exec.counters.hits += 1;
                    c.reply.bulk_shared(v);
                }
                None => {
                    c.exec.counters.misses += 1;
                    c.reply.null();
                }
            }
        }
    }
    Ok(Outcome::Replied)
}

pub(crate) fn mset(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if r.len().is_multiple_of(2) {
        return Err(Failure::new(wrong_arguments("mset")));
    }
    for i in (1..r.len()).step_by(2) {
        c.keys().put(r.arg(i), r.arg_kept(i + 1), None);
    }
    c.reply.ok();
    Ok(Outcome::Replied)
}

pub(crate) fn msetnx(c: &mut Context<'_>, r: &Request) -> CommandResult {
    if r.len().is_multiple_of(2) {
        return Err(Failure::new(wrong_arguments("msetnx")));
    }
    for i in (1..r.len()).step_by(2) {
        if c.keys().meta(r.arg(i))?.is_some() {
            c.reply.integer(0);
            return Ok(Outcome::Replied);
        }
    }
    for i in (1..r.len()).step_by(2) {
        c.keys().put(r.arg(i), r.arg_kept(i + 1), None);
    }
    c.reply.integer(1);
    Ok(Outcome::Replied)
}

fn add(c: &mut Context<'_>, key: &[u8], by: i64) -> CommandResult {
    let (n, expire) = match c.keys().peek(key)? {
        Some((meta, _)) if meta.data_type != DataType::String => return Err(Failure::WrongType),
        // A separated value is longer than any integer.
        Some((meta, data)) => {
            let n = data.and_then(|data| parse_i64(&data));
            (n.ok_or_else(Failure::not_an_integer)?, meta.expire_at_ms)
        }
        None => (0, None),
    };
    let n = n
        .checked_add(by)
        .ok_or_else(|| Failure::new("ERR increment or decrement would overflow"))?;
    let mut text = Vec::with_capacity(20);
    push_i64(&mut text, n);
    c.keys().put(key, text.into(), expire);
    c.reply.integer(n);
    Ok(Outcome::Replied)
}

pub(crate) fn incr(c: &mut Context<'_>, r: &Request) -> CommandResult {
    add(c, r.arg(1), 1)
}

pub(crate) fn decr(c: &mut Context<'_>, r: &Request) -> CommandResult {
    add(c, r.arg(1), -1)
}

pub(crate) fn incrby(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let by = integer(r, 2)?;
    add(c, r.arg(1), by)
}

pub(crate) fn decrby(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let by = integer(r, 2)?
        .checked_neg()
        .ok_or_else(|| Failure::new("ERR decrement would overflow"))?;
    add(c, r.arg(1), by)
}

/// Returns a decimal as an integer of 10^-17, if it has such a form. Sums of these are exact, as
/// people expect of 0.1 + 0.2.
fn decimal(text: &[u8]) -> Option<i128> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let text = std::str::from_utf8(digits).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || whole.len() > 18 || fraction.len() > 17 {
        return None;
    }
    let mut n = 0i128;
    for b in whole
        .bytes()
        .chain(fraction.bytes().chain(std::iter::repeat(b'0')).take(17))
    {
        if !b.is_ascii_digit() {
            return None;
        }
        n = n * 10 + i128::from(b - b'0');
    }
    Some(if negative { -n } else { n })
}

fn format_decimal(n: i128) -> String {
    let one = 10i128.pow(17);
    let sign = if n < 0 { "-" } else { "" };
    let (whole, fraction) = (n.abs() / one, n.abs() % one);
    if fraction == 0 {
        return format!("{sign}{whole}");
    }
    let fraction = format!("{fraction:017}");
    format!("{sign}{whole}.{}", fraction.trim_end_matches('0'))
}

pub(crate) fn incrbyfloat(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let not_a_float = || Failure::new("ERR value is not a valid float");
    let old = old_string(c, r.arg(1))?;
    let (old_text, expire) = match &old {
        Some(v) => (&v.data[..], v.expire_at_ms),
        None => (&b"0"[..], None),
    };
    let value = parse_f64(old_text).ok_or_else(not_a_float)?;
    let by = parse_f64(r.arg(2)).ok_or_else(not_a_float)?;
    let sum = value + by;
    if !sum.is_finite() {
        return Err(Failure::new("ERR increment would produce NaN or Infinity"));
    }
    let text = match (decimal(old_text), decimal(r.arg(2))) {
        (Some(a), Some(b)) => format_decimal(a + b),
        _ => format_f64(sum),
    };
    let text = Bytes::from(text.into_bytes());
    c.keys().put(r.arg(1), text.clone(), expire);
    c.reply.bulk(&text);
    Ok(Outcome::Replied)
}

fn check_len(c: &Context<'_>, len: u64) -> Result<(), Failure> {
    if len > c.exec.options.max_bulk_bytes {
        return Err(Failure::new(
            "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
        ));
    }
    Ok(())
}

pub(crate) fn append(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let old = old_string(c, r.arg(1))?;
    let len = match old {
        None => {
            c.keys().put(r.arg(1), r.arg_kept(2), None);
            r.arg(2).len()
        }
        Some(v) => {
            let len = v.data.len() + r.arg(2).len();
            check_len(c, len as u64)?;
            let mut data = Vec::with_capacity(len);
            data.extend_from_slice(&v.data);
            data.extend_from_slice(r.arg(2));
            c.keys().put(r.arg(1), data.into(), v.expire_at_ms);
            len
        }
    };
    c.reply.integer(len as i64);
    Ok(Outcome::Replied)
}

pub(crate) fn strlen(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let meta = c.keys().meta_with_len(r.arg(1))?;
    match &meta {
        Some(meta) if meta.data_type != DataType::String => return Err(Failure::WrongType),
        Some(_) => c.exec.counters.hits += 1,
        None => c.exec.counters.misses += 1,
    }
    let len = meta.and_then(|meta| meta.len).unwrap_or(0);
    c.reply.integer(len as i64);
    Ok(Outcome::Replied)
}

pub(crate) fn getrange(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (start, end) = (integer(r, 2)?, integer(r, 3)?);
    let part = c.keys().get_range(r.arg(1), start, end)?;
    match &part {
        Some(v) if v.data_type != DataType::String => return Err(Failure::WrongType),
        Some(_) => c.exec.counters.hits += 1,
        None => c.exec.counters.misses += 1,
    }
    c.reply
        .bulk_shared(part.map_or_else(Bytes::new, |v| v.data));
    Ok(Outcome::Replied)
}

pub(crate) fn setrange(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let offset = integer(r, 2)?;
    if offset < 0 {
        return Err(Failure::new("ERR offset is out of range"));
    }
    let old = old_string(c, r.arg(1))?;
    let old_len = old.as_ref().map_or(0, |v| v.data.len());
    let part = r.arg(3);
    if part.is_empty() {
        c.reply.integer(old_len as i64);
        return Ok(Outcome::Replied);
    }
    let end = offset as u64 + part.len() as u64;
    check_len(c, end)?;
    let mut data = Vec::with_capacity(old_len.max(end as usize));
    if let Some(v) = &old {
        data.extend_from_slice(&v.data);
    }
    data.resize(old_len.max(end as usize), 0);
    data[offset as usize..end as usize].copy_from_slice(part);
    let len = data.len();
    c.keys()
        .put(r.arg(1), data.into(), old.and_then(|v| v.expire_at_ms));
    c.reply.integer(len as i64);
    Ok(Outcome::Replied)
}
