//! `put`, `get`, `del`, `scan`: commands on a few entries.

use crate::args;
use crate::directory::open_named;
use crate::escape::brief;
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::output::{note, print_done};
use crate::progress::count;
use crate::store::{Access, Limits, Store, Value, argument};
use crate::text_entry::{Format, KvRecord};
use basalt::MAX_VALUE_LEN;
use basalt::{WriteBatch, WriteOptions};
use std::io::{IsTerminal, Read, Write};
use std::path::Path;

/// Runs `basalt put`.
pub fn put(args: args::Put) -> Outcome {
    let key = argument(&args.key, args.escaped)?;
    let value = match (&args.value, &args.value_file) {
        (Some(v), _) if v != "-" => argument(v, args.escaped)?,
        (_, Some(file)) if file.as_os_str() != "-" => {
            let f = open_named(file).map_err(|e| Failure::os("open", file, e))?;
            read_value(f, file)?
        }
        _ => read_value(std::io::stdin().lock(), Path::new("standard input"))?,
    };
    Limits::of(&args.which)
        .check(&key, value.len() as u64, || brief(&key))
        .map_err(Failure::new)?;
    let store = Store::open(&args.which, Access::Write(args.make))?;
    let expire_at_ms = args
        .expire_in
        .map(|s| store.db().env().clock().wall_ms().saturating_add(s * 1000));
    let mut batch = WriteBatch::new();
    let record = KvRecord {
        key,
        value,
        expire_at_ms,
    };
    store
        .put(&mut batch, &record)
        .and_then(|()| store.db().write(batch, &WriteOptions::SYNC))
        .map_err(|e| store.failure(e))?;
    store.close()?;
    Ok(0)
}

/// Reads a value to its end, or to the first byte past the limit.
fn read_value(from: impl Read, name: &Path) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    from.take(MAX_VALUE_LEN as u64 + 1)
        .read_to_end(&mut value)
        .map_err(|e| Failure::os("read", name, e))?;
    Ok(value)
}

/// Returns the sentence for a value that is no string.
fn other_type(key: &[u8], kind: &str) -> String {
    format!(
        "{} holds a {kind}, not a string; read it with a Redis client",
        brief(key)
    )
}

/// Runs `basalt get`.
pub fn get(args: args::Get) -> Outcome {
    let key = argument(&args.key, args.escaped)?;
    let store = Store::open(&args.which, Access::Read)?;
    let code = match store.get(&key)? {
        Value::Absent => EXIT_NO,
        Value::Other(kind) => return Err(Failure::new(other_type(&key, kind))),
        Value::Bytes(value, _) => {
            let mut out = std::io::stdout().lock();
            out.write_all(&value)
                .and_then(|()| {
                    if out.is_terminal() && value.last() != Some(&b'\n') {
                        out.write_all(b"\n")?;
                    }
                    out.flush()
                })
                .map_err(|e| Failure::output("standard output", e))?;
            0
        }
    };
    store.close()?;
    Ok(code)
}

/// Runs `basalt del`.
pub fn del(args: args::Del) -> Outcome {
    let keys = args
        .keys
        .iter()
        .map(|k| argument(k, args.escaped))
        .collect::<Result<Vec<_>, _>>()?;
    // A missing store has nothing to remove, so none is made.
    let store = Store::open(&args.which, Access::Remove)?;
    let mut batch = WriteBatch::new();
    let mut there = 0;
    for (i, key) in keys.iter().enumerate() {
        if keys[..i].contains(key) {
            continue;
        }
        match store.get(key)? {
            Value::Absent => {}
            Value::Other(kind) => return Err(Failure::new(other_type(key, kind))),
            Value::Bytes(..) => {
                there += 1;
                store
                    .delete(&mut batch, key)
                    .map_err(|e| store.failure(e))?;
            }
        }
    }
    if there > 0 {
        store
            .db()
            .write(batch, &WriteOptions::SYNC)
            .map_err(|e| store.failure(e))?;
    }
    store.close()?;
    let done = match there {
        0 => "nothing was removed",
        _ => "the keys were removed",
    };
    print_done(&format!("{there}\n"), done)?;
    Ok(if there > 0 { 0 } else { EXIT_NO })
}

/// Runs `basalt scan`.
pub fn scan(args: args::Scan) -> Outcome {
    let of = |a: &Option<std::ffi::OsString>| {
        a.as_ref()
            .map(|a| argument(a, args.range.escaped))
            .transpose()
    };
    let (prefix, from, to) = (
        of(&args.range.prefix)?,
        of(&args.range.from)?,
        of(&args.range.to)?,
    );
    let format = if args.json {
        Format::Jsonl
    } else {
        Format::Tsv
    };
    let store = Store::open(&args.which, Access::Read)?;
    let mut others = 0u64;
    {
        let mut cursor = store.cursor(
            prefix.as_deref().unwrap_or_default(),
            from.as_deref(),
            to.as_deref(),
            args.reverse,
            args.keys_only,
        )?;
        let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
        let mut line = String::new();
        let mut left = args.limit.unwrap_or(u64::MAX);
        while left > 0 {
            let Some((key, value)) = cursor.next_entry()? else {
                break;
            };
            line.clear();
            match (&value, args.keys_only) {
                (_, true) => format.print(&key, None, None, &mut line),
                (Value::Bytes(v, expire), false) => format.print(&key, Some(v), *expire, &mut line),
                (Value::Absent | Value::Other(_), false) => {
                    others += 1;
                    continue;
                }
            }
            out.write_all(line.as_bytes())
                .map_err(|e| Failure::output("standard output", e))?;
            left -= 1;
        }
        out.flush()
            .map_err(|e| Failure::output("standard output", e))?;
    }
    if others > 0 {
        note(format_args!(
            "basalt: {} not shown; --keys-only shows such keys, and a Redis client reads them",
            count(
                others,
                "key that holds no string is",
                "keys that hold no strings are"
            )
        ));
    }
    store.close()?;
    Ok(0)
}
