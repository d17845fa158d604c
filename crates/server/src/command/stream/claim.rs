//! XCLAIM and XAUTOCLAIM.

use super::{group_of, has_group, interval_start, no_group, push_entry, strict_id};
use crate::command::{CommandResult, Context, Failure, Outcome, quoted, too_long, word};
use crate::keyspace::{Claim, Claims};
use crate::number::parse_i64;
use crate::resp::request::Request;
use crate::stream::StreamId;
use std::collections::BTreeMap;

/// Maximum number of pending entries that XAUTOCLAIM claims if the command has no COUNT.
const DEFAULT_COUNT: u64 = 100;
/// Number of pending entries that XAUTOCLAIM may examine for each one that it may claim.
const EXAMINED_A_CLAIM: u64 = 10;
/// Maximum number of bytes of an id in a reply.
const MAX_ID_REPLY_BYTES: usize = 64;
/// Maximum COUNT of XAUTOCLAIM, because Redis allocates 16 bytes of memory for each.
const MAX_COUNT: i64 = 1 << 43;

fn number(r: &Request, at: usize, what: &str, command: &str) -> Result<i64, Failure> {
    let invalid = || Failure::new(format!("ERR Invalid {what} argument for {command}"));
    parse_i64(r.arg(at)).ok_or_else(invalid)
}

/// The options of XCLAIM.
struct Options {
    ids: Vec<StreamId>,
    delivered_ms: u64,
    deliveries: Option<u64>,
    force: bool,
    just_ids: bool,
    last_id: StreamId,
}

fn options(r: &Request, now_ms: u64) -> Result<Options, Failure> {
    let ids = r.args().skip(5).map_while(|id| strict_id(id, 0).ok());
    let ids: Vec<StreamId> = ids.collect();
    let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let mut delivered = now;
    let mut i = 5 + ids.len();
    let mut o = Options {
        ids,
        delivered_ms: now_ms,
        deliveries: None,
        force: false,
        just_ids: false,
        last_id: StreamId::MIN,
    };
    while i < r.len() {
        let more = i + 1 < r.len();
        match word(r, i).as_str() {
            "FORCE" => o.force = true,
            "JUSTID" => o.just_ids = true,
            "IDLE" if more => {
                delivered = now.wrapping_sub(number(r, i + 1, "IDLE option", "XCLAIM")?);
                i += 1;
            }
            "TIME" if more => {
                delivered = number(r, i + 1, "TIME option", "XCLAIM")?;
                i += 1;
            }
            "RETRYCOUNT" if more => {
                let n = number(r, i + 1, "RETRYCOUNT option", "XCLAIM")?;
                o.deliveries = u64::try_from(n).ok();
                i += 1;
            }
            "LASTID" if more => {
                o.last_id = strict_id(r.arg(i + 1), 0)?;
                i += 1;
            }
            _ => {
                return Err(Failure::new(format!(
                    "ERR Unrecognized XCLAIM option '{}'",
                    quoted(r.arg(i))
                )));
            }
        }
        i += 1;
    }
    // As in Redis, an impossible time is replaced by the current time.
    o.delivered_ms = u64::try_from(delivered).map_or(now_ms, |at| at.min(now_ms));
    Ok(o)
}

/// Returns true if a pending entry was delivered at least `min_idle_ms` ago.
fn is_idle(delivered_ms: u64, min_idle_ms: i64, now_ms: u64) -> bool {
    min_idle_ms <= 0 || i128::from(now_ms) - i128::from(delivered_ms) >= min_idle_ms.into()
}

pub(crate) fn xclaim(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let (key, group, now_ms) = (r.arg(1), r.arg(2), c.now_ms());
    if !has_group(c, key, group)? {
        return Err(no_group(key, group));
    }
    let min_idle_ms = number(r, 4, "min-idle-time", "XCLAIM")?;
    let o = options(r, now_ms)?;
    let pending = group_of(c, key, group).pending();
    let unknown = o
        .ids
        .iter()
        .filter(|id| o.force && !pending.contains_key(id));
    let unknown: Vec<StreamId> = unknown.copied().collect();
    let located = c.keys().stream_locate(key, unknown.into_iter())?;
    let stream = c.exec.keys.loaded_stream(key);
    let of = group_of(c, key, group);
    let mut claims = Claims {
        last_id: (o.last_id > of.last_id).then_some(o.last_id),
        ..Claims::default()
    };
    // The state of each id after the earlier claims of this command. The command may name an id
    // more than once.
    let mut claimed: BTreeMap<StreamId, Claim> = BTreeMap::new();
    let mut replied = Vec::new();
    for id in o.ids {
        let (lsn, delivered_ms, deliveries) = match (claimed.get(&id), of.pending().get(&id)) {
            (Some(claim), _) => (claim.lsn, Some(claim.delivered_ms), claim.deliveries),
            (None, Some(pending)) if !stream.is_live(pending.lsn) => {
                claims.dropped.push(id);
                continue;
            }
            (None, Some(p)) => (p.lsn, Some(p.delivered_ms), p.deliveries),
            (None, None) => match located.get(&id) {
                // The entry is delivered for the first time.
                Some(lsn) => (*lsn, None, 1),
                None => continue,
            },
        };
        if delivered_ms.is_some_and(|at| !is_idle(at, min_idle_ms, now_ms)) {
            continue;
        }
        let claim = Claim {
            id,
            lsn,
            delivered_ms: o.delivered_ms,
            deliveries: match o.deliveries {
                Some(n) => n,
                None if o.just_ids => deliveries,
                None => deliveries.wrapping_add(1),
            },
        };
        claimed.insert(id, claim);
        replied.push((id, lsn));
    }
    claims.taken = claimed.into_values().collect();
    let body = push_claimed(c, key, &replied, o.just_ids)?;
    c.reply.array(replied.len());
    c.reply.raw(&body);
    carry_out(c, r, claims);
    Ok(Outcome::Replied)
}

/// Returns the encoded entries of a reply, or their ids.
fn push_claimed(
    c: &mut Context<'_>,
    key: &[u8],
    claimed: &[(StreamId, u64)],
    just_ids: bool,
) -> Result<Vec<u8>, Failure> {
    let limit = c.exec.options.reply_hard_bytes;
    let mut out = crate::resp::reply::Reply::new(c.reply.protocol());
    if just_ids {
        for (id, _) in claimed {
            out.bulk(id.to_string().as_bytes());
        }
        return Ok(out.to_vec());
    }
    let lsns = claimed.iter().map(|(_, lsn)| *lsn).collect();
    let found = c.keys().stream_entries(key, &lsns, limit)?;
    let found = found.ok_or_else(|| too_long(limit))?;
    for (_, lsn) in claimed {
        push_entry(&mut out, &found[lsn]);
        if out.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(out.to_vec())
}

fn carry_out(c: &mut Context<'_>, r: &Request, claims: Claims) {
    let changes = !claims.taken.is_empty() || !claims.dropped.is_empty();
    if changes || claims.last_id.is_some() {
        c.keys().claim(r.arg(1), r.arg(2), r.arg(3), claims);
    }
}

pub(crate) fn xautoclaim(c: &mut Context<'_>, r: &Request) -> CommandResult {
    let min_idle_ms = number(r, 4, "min-idle-time", "XAUTOCLAIM")?;
    let start = interval_start(r.arg(5))?;
    let (mut count, mut just_ids, mut i) = (DEFAULT_COUNT, false, 6);
    while i < r.len() {
        match word(r, i).as_str() {
            "COUNT" if i + 1 < r.len() => {
                let most = i64::MAX / 16;
                count = match parse_i64(r.arg(i + 1)).filter(|n| (1..=most).contains(n)) {
                    Some(n) => n as u64,
                    None => return Err(Failure::new("ERR COUNT must be > 0")),
                };
                i += 1;
            }
            "JUSTID" => just_ids = true,
            _ => return Err(Failure::syntax()),
        }
        i += 1;
    }
    let (key, group, now_ms) = (r.arg(1), r.arg(2), c.now_ms());
    if !has_group(c, key, group)? {
        return Err(no_group(key, group));
    }
    if count > MAX_COUNT as u64 {
        return Err(Failure::new(
            "ERR Insufficient memory, failed allocating transient memory, COUNT too high.",
        ));
    }
    let stream = c.exec.keys.loaded_stream(key);
    let mut pending = group_of(c, key, group).pending().range(start..);
    let (mut claims, mut claimed) = (Claims::default(), Vec::new());
    let mut examinable = count.saturating_mul(EXAMINED_A_CLAIM);
    // A reply above the limit would not reach the client, and the claims would be carried out.
    count = count.min((c.exec.options.reply_hard_bytes / MAX_ID_REPLY_BYTES) as u64);
    while examinable > 0 && count > 0 {
        let Some((id, pending)) = pending.next() else {
            break;
        };
        examinable -= 1;
        if !stream.is_live(pending.lsn) {
            claims.dropped.push(*id);
            count -= 1;
        } else if is_idle(pending.delivered_ms, min_idle_ms, now_ms) {
            claimed.push((*id, pending.lsn));
            claims.taken.push(Claim {
                id: *id,
                lsn: pending.lsn,
                delivered_ms: now_ms,
                deliveries: pending.deliveries.wrapping_add(u64::from(!just_ids)),
            });
            count -= 1;
        }
    }
    let next = pending.next().map_or(StreamId::MIN, |(id, _)| *id);
    let body = push_claimed(c, key, &claimed, just_ids)?;
    c.reply.array(3);
    c.reply.bulk(next.to_string().as_bytes());
    c.reply.array(claimed.len());
    c.reply.raw(&body);
    c.reply.array(claims.dropped.len());
    for id in &claims.dropped {
        c.reply.bulk(id.to_string().as_bytes());
    }
    carry_out(c, r, claims);
    Ok(Outcome::Replied)
}
