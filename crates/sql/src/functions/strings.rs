//! Functions of texts and bytes.

use super::Behaviour::{Pure, Strict};
use super::{Arguments, Entry};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::{SqlType, hex_bytes, hex_text};
use crate::value::{Value, ValueRef};

/// Maximum bytes of a text that a function makes.
const MAX_BYTES: usize = 256 << 20;

pub(super) const ENTRIES: &[Entry] = &[
    ("basalt_upper", 1, Strict, |a| {
        Ok(Value::Text(a.text(0)?.to_uppercase()))
    }),
    ("basalt_lower", 1, Strict, |a| {
        Ok(Value::Text(a.text(0)?.to_lowercase()))
    }),
    ("basalt_initcap", 1, Strict, |a| {
        Ok(Value::Text(initcap(&a.text(0)?)))
    }),
    ("basalt_length", 1, Strict, |a| {
        Ok(match a.get(0)? {
            ValueRef::Blob(bytes) => Value::Integer(bytes.len() as i64),
            _ => Value::Integer(a.text(0)?.chars().count() as i64),
        })
    }),
    ("basalt_octet_length", 1, Strict, |a| {
        Ok(Value::Integer(bytes_of(a, 0)?.len() as i64))
    }),
    ("basalt_bit_length", 1, Strict, |a| {
        Ok(Value::Integer(bytes_of(a, 0)?.len() as i64 * 8))
    }),
    ("basalt_left", 2, Strict, |a| {
        let text = a.text(0)?;
        let keep = counted(&text, a.integer(1)?);
        Ok(Value::Text(text.chars().take(keep).collect()))
    }),
    ("basalt_right", 2, Strict, |a| {
        let text = a.text(0)?;
        let keep = counted(&text, a.integer(1)?);
        let skip = text.chars().count() - keep;
        Ok(Value::Text(text.chars().skip(skip).collect()))
    }),
    ("basalt_lpad", 2, Strict, |a| pad(a, true)),
    ("basalt_lpad", 3, Strict, |a| pad(a, true)),
    ("basalt_rpad", 2, Strict, |a| pad(a, false)),
    ("basalt_rpad", 3, Strict, |a| pad(a, false)),
    ("basalt_repeat", 2, Strict, |a| {
        let text = a.text(0)?;
        let times = usize::try_from(a.integer(1)?).unwrap_or(0);
        bounded(text.len().saturating_mul(times))?;
        Ok(Value::Text(text.repeat(times)))
    }),
    ("basalt_reverse", 1, Strict, |a| {
        Ok(Value::Text(a.text(0)?.chars().rev().collect()))
    }),
    ("basalt_split_part", 3, Strict, split_part),
    ("basalt_strpos", 2, Strict, |a| {
        let (text, part) = (a.text(0)?, a.text(1)?);
        let at = text
            .find(&*part)
            .map_or(0, |at| text[..at].chars().count() as i64 + 1);
        Ok(Value::Integer(at))
    }),
    ("basalt_replace", 3, Strict, |a| {
        let (text, from, to) = (a.text(0)?, a.text(1)?, a.text(2)?);
        if from.is_empty() {
            return Ok(Value::Text(text.into_owned()));
        }
        let found = text.matches(&*from).count();
        bounded(text.len().saturating_add(found.saturating_mul(to.len())))?;
        Ok(Value::Text(text.replace(&*from, &to)))
    }),
    ("basalt_translate", 3, Strict, |a| {
        let (text, from, to) = (a.text(0)?, a.text(1)?, a.text(2)?);
        let from: Vec<char> = from.chars().collect();
        let to: Vec<char> = to.chars().collect();
        let map = |c: char| match from.iter().position(|f| *f == c) {
            Some(at) => to.get(at).copied(),
            None => Some(c),
        };
        Ok(Value::Text(text.chars().filter_map(map).collect()))
    }),
    ("basalt_overlay", 3, Strict, overlay),
    ("basalt_overlay", 4, Strict, overlay),
    ("basalt_btrim", 1, Strict, |a| trim(a, true, true)),
    ("basalt_btrim", 2, Strict, |a| trim(a, true, true)),
    ("basalt_ltrim", 1, Strict, |a| trim(a, true, false)),
    ("basalt_ltrim", 2, Strict, |a| trim(a, true, false)),
    ("basalt_rtrim", 1, Strict, |a| trim(a, false, true)),
    ("basalt_rtrim", 2, Strict, |a| trim(a, false, true)),
    ("basalt_substr", 2, Strict, substr),
    ("basalt_substr", 3, Strict, substr),
    ("basalt_chr", 1, Strict, |a| {
        let code = u32::try_from(a.integer(0)?).ok().filter(|c| *c != 0);
        match code.and_then(char::from_u32) {
            Some(c) => Ok(Value::Text(c.to_string())),
            None => {
                let message = "requested character is not a valid code point";
                Err(SqlError::new(SqlState("54000"), message))
            }
        }
    }),
    ("basalt_ascii", 1, Strict, |a| {
        Ok(Value::Integer(
            a.text(0)?
                .chars()
                .next()
                .map_or(0, |c| i64::from(u32::from(c))),
        ))
    }),
    ("basalt_md5", 1, Strict, |a| {
        let digest = super::format::md5(&bytes_of(a, 0)?);
        Ok(Value::Text(hex_text(&digest)[2..].to_owned()))
    }),
    ("basalt_quote_ident", 1, Strict, |a| {
        let name = a.text(0)?;
        let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        Ok(Value::Text(match plain {
            true => name.into_owned(),
            false => format!("\"{}\"", name.replace('"', "\"\"")),
        }))
    }),
    ("basalt_quote_literal", 1, Strict, |a| {
        Ok(Value::Text(format!("'{}'", a.text(0)?.replace('\'', "''"))))
    }),
    ("basalt_starts_with", 2, Strict, |a| {
        Ok(Value::from(a.text(0)?.starts_with(&*a.text(1)?)))
    }),
    ("basalt_encode", 2, Strict, encode),
    ("basalt_decode", 2, Strict, decode),
    ("basalt_bytea_concat", 2, Strict, |a| {
        let mut bytes = bytes_of(a, 0)?;
        bytes.extend(bytes_of(a, 1)?);
        Ok(Value::Blob(bytes))
    }),
    ("basalt_concat", -1, Pure, |a| concat(a, 0, "")),
    ("basalt_concat_ws", -1, Pure, |a| match a.get(0)? {
        ValueRef::Null => Ok(Value::Null),
        _ => concat(a, 1, &a.text(0)?),
    }),
    ("basalt_like", 2, Strict, |a| {
        like(&a.text(0)?, &a.text(1)?, Some('\\'))
    }),
    ("basalt_like", 3, Strict, |a| {
        like(&a.text(0)?, &a.text(1)?, escape(&a.text(2)?)?)
    }),
    ("basalt_ilike", 2, Strict, |a| {
        like(
            &a.text(0)?.to_lowercase(),
            &a.text(1)?.to_lowercase(),
            Some('\\'),
        )
    }),
    ("basalt_ilike", 3, Strict, |a| {
        let escape = escape(&a.text(2)?)?;
        like(
            &a.text(0)?.to_lowercase(),
            &a.text(1)?.to_lowercase(),
            escape,
        )
    }),
    ("basalt_regexp", 2, Strict, |a| {
        Ok(Value::from(
            regex(&a.text(1)?, false)?.is_match(&a.text(0)?),
        ))
    }),
    ("basalt_iregexp", 2, Strict, |a| {
        Ok(Value::from(regex(&a.text(1)?, true)?.is_match(&a.text(0)?)))
    }),
    ("basalt_regexp_replace", 3, Strict, regexp_replace),
    ("basalt_regexp_replace", 4, Strict, regexp_replace),
    ("basalt_json_valid", 1, Strict, |a| {
        Ok(Value::from(SqlType::Json.parse_text(&a.text(0)?).is_ok()))
    }),
];

fn bounded(bytes: usize) -> SqlResult<()> {
    match bytes <= MAX_BYTES {
        true => Ok(()),
        false => Err(SqlError::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            "requested length too large",
        )),
    }
}

fn bytes_of(a: &Arguments<'_, '_>, at: usize) -> SqlResult<Vec<u8>> {
    Ok(match a.get(at)? {
        ValueRef::Blob(bytes) => bytes.to_vec(),
        _ => a.text(at)?.as_bytes().to_vec(),
    })
}

fn initcap(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphanumeric();
    }
    out
}

/// Returns how many characters `left` and `right` keep. A negative number counts from the other
/// end.
fn counted(text: &str, n: i64) -> usize {
    let length = text.chars().count();
    match usize::try_from(n) {
        Ok(n) => n.min(length),
        Err(_) => length.saturating_sub(usize::try_from(n.unsigned_abs()).unwrap_or(length)),
    }
}

fn pad(a: &Arguments<'_, '_>, left: bool) -> SqlResult<Value> {
    let text = a.text(0)?;
    let width = usize::try_from(a.integer(1)?).unwrap_or(0);
    bounded(width.saturating_mul(4))?;
    let fill = if a.len() > 2 {
        a.text(2)?.into_owned()
    } else {
        " ".to_string()
    };
    let length = text.chars().count();
    if length >= width || fill.is_empty() {
        return Ok(Value::Text(text.chars().take(width).collect()));
    }
    let padding: String = fill.chars().cycle().take(width - length).collect();
    Ok(Value::Text(match left {
        true => padding + &text,
        false => text.into_owned() + &padding,
    }))
}

fn split_part(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (text, delimiter, n) = (a.text(0)?, a.text(1)?, a.integer(2)?);
    if n == 0 {
        let message = "field position must not be zero";
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    let parts: Vec<&str> = match delimiter.is_empty() {
        true => vec![&text],
        false => text.split(&*delimiter).collect(),
    };
    let at = match usize::try_from(n) {
        Ok(n) => Some(n - 1),
        Err(_) => parts
            .len()
            .checked_sub(usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    Ok(Value::from(
        at.and_then(|at| parts.get(at)).copied().unwrap_or(""),
    ))
}

fn overlay(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let (text, new, from) = (a.text(0)?, a.text(1)?, a.integer(2)?);
    let length = match a.len() {
        4 => a.integer(3)?,
        _ => new.chars().count() as i64,
    };
    if from < 1 {
        return Err(SqlError::new(
            SqlState("22011"),
            "negative substring length not allowed",
        ));
    }
    let before: String = text.chars().take(from as usize - 1).collect();
    let skip = (from - 1).saturating_add(length).max(0) as usize;
    let after: String = text.chars().skip(skip).collect();
    Ok(Value::Text(before + &new + &after))
}

fn trim(a: &Arguments<'_, '_>, start: bool, end: bool) -> SqlResult<Value> {
    let text = a.text(0)?;
    let set: Vec<char> = if a.len() > 1 {
        a.text(1)?.chars().collect()
    } else {
        vec![' ']
    };
    let mut out: &str = &text;
    if start {
        out = out.trim_start_matches(&set[..]);
    }
    if end {
        out = out.trim_end_matches(&set[..]);
    }
    Ok(Value::from(out))
}

/// SUBSTRING by characters, or bytes of bytea, from position 1.
fn substr(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let from = a.integer(1)?;
    let end = match a.len() {
        3 => {
            let length = a.integer(2)?;
            if length < 0 {
                let message = "negative substring length not allowed";
                return Err(SqlError::new(SqlState("22011"), message));
            }
            from.saturating_add(length)
        }
        _ => i64::MAX,
    };
    let skip = from.max(1) as usize - 1;
    let take = usize::try_from(end.saturating_sub(from.max(1))).unwrap_or(0);
    Ok(match a.get(0)? {
        ValueRef::Blob(bytes) => Value::Blob(bytes.iter().skip(skip).take(take).copied().collect()),
        _ => Value::Text(a.text(0)?.chars().skip(skip).take(take).collect()),
    })
}

fn encode(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let bytes = bytes_of(a, 0)?;
    match a.text(1)?.to_lowercase().as_str() {
        "hex" => Ok(Value::Text(hex_text(&bytes)[2..].to_owned())),
        "base64" => Ok(Value::Text(super::format::base64(&bytes))),
        other => Err(unknown_encoding(other)),
    }
}

fn decode(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let text = a.text(0)?;
    match a.text(1)?.to_lowercase().as_str() {
        "hex" => match hex_bytes(&text) {
            Some(bytes) => Ok(Value::Blob(bytes)),
            None => {
                let message = "invalid hexadecimal data";
                Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message))
            }
        },
        "escape" => SqlType::Bytea.parse_text(&text),
        other => Err(unknown_encoding(other)),
    }
}

fn unknown_encoding(name: &str) -> SqlError {
    let message = format!("unrecognized encoding: \"{name}\"");
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

fn concat(a: &Arguments<'_, '_>, from: usize, separator: &str) -> SqlResult<Value> {
    let mut out = String::new();
    let mut first = true;
    for at in from..a.len() {
        if a.get(at)? == ValueRef::Null {
            continue;
        }
        if !first {
            out.push_str(separator);
        }
        first = false;
        out.push_str(&a.text(at)?);
        bounded(out.len())?;
    }
    Ok(Value::Text(out))
}

fn escape(text: &str) -> SqlResult<Option<char>> {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (first, None) => Ok(first),
        _ => {
            let error = SqlError::new(SqlState("22025"), "invalid escape string");
            Err(error.with_hint("Escape string must be empty or one character."))
        }
    }
}

/// LIKE: `%` stands for any characters, `_` for one.
fn like(text: &str, pattern: &str, escape: Option<char>) -> SqlResult<Value> {
    // `None` is `_`; `%` starts a new piece.
    let mut pieces: Vec<Vec<Option<char>>> = vec![Vec::new()];
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let last = pieces.len() - 1;
        if Some(c) == escape {
            let next = chars.next().ok_or_else(|| {
                SqlError::new(
                    SqlState("22025"),
                    "LIKE pattern must not end with escape character",
                )
            })?;
            pieces[last].push(Some(next));
        } else if c == '%' {
            pieces.push(Vec::new());
        } else {
            pieces[last].push(if c == '_' { None } else { Some(c) });
        }
    }
    let text: Vec<char> = text.chars().collect();
    let fits = |piece: &[Option<char>], at: usize| {
        text.len() - at >= piece.len()
            && piece
                .iter()
                .zip(&text[at..])
                .all(|(p, c)| p.is_none_or(|p| p == *c))
    };
    let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
    if pieces.len() == 1 {
        return Ok(Value::from(text.len() == first.len() && fits(first, 0)));
    }
    if text.len() < first.len() + last.len() || !fits(first, 0) {
        return Ok(Value::from(false));
    }
    let end = text.len() - last.len();
    if !fits(last, end) {
        return Ok(Value::from(false));
    }
    // The pieces between are found one after the other, each as early as it can be.
    let mut at = first.len();
    for piece in &pieces[1..pieces.len() - 1] {
        let found = (at..=end).find(|at| at + piece.len() <= end && fits(piece, *at));
        match found {
            Some(found) => at = found + piece.len(),
            None => return Ok(Value::from(false)),
        }
    }
    Ok(Value::from(true))
}

/// Compiles a regular expression; sizes are limited, and matching takes linear time.
fn regex(pattern: &str, fold_case: bool) -> SqlResult<regex::Regex> {
    let built = regex::RegexBuilder::new(pattern)
        .case_insensitive(fold_case)
        .size_limit(1 << 20)
        .dfa_size_limit(1 << 20)
        .build();
    built.map_err(|e| {
        let message = "invalid regular expression";
        SqlError::new(SqlState("2201B"), message).with_detail(e.to_string())
    })
}

fn regexp_replace(a: &Arguments<'_, '_>) -> SqlResult<Value> {
    let flags = if a.len() > 3 {
        a.text(3)?.into_owned()
    } else {
        String::new()
    };
    if let Some(unknown) = flags.chars().find(|c| !"gi".contains(*c)) {
        let message = format!("invalid regular expression option: \"{unknown}\"");
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    let regex = regex(&a.text(1)?, flags.contains('i'))?;
    // PostgreSQL writes `\1` for a group and `\&` for the whole match.
    let mut replacement = String::new();
    let given = a.text(2)?;
    let mut chars = given.chars();
    while let Some(c) = chars.next() {
        match c {
            '$' => replacement.push_str("$$"),
            '\\' => match chars.next() {
                Some('&') => replacement.push_str("${0}"),
                Some(d) if d.is_ascii_digit() => replacement.push_str(&format!("${{{d}}}")),
                Some(other) => replacement.push(other),
                None => replacement.push('\\'),
            },
            other => replacement.push(other),
        }
    }
    let limit = usize::from(!flags.contains('g'));
    let text = a.text(0)?;
    let out = regex
        .replacen(&text, limit, replacement.as_str())
        .into_owned();
    bounded(out.len())?;
    Ok(Value::Text(out))
}
