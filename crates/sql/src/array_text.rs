//! The texts that stand for arrays: `{a,b}`, as PostgreSQL shows them.

use crate::error::SqlResult;
use crate::types::SqlType;
use crate::value::ValueRef;

/// Returns an item of an array in the text of an array.
pub fn array_item(value: ValueRef<'_>) -> SqlResult<String> {
    let mut text = String::new();
    match value {
        ValueRef::Null => return Ok("NULL".to_owned()),
        value => SqlType::Text.write_text(value, &mut text),
    }
    let is_special = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',' | '"' | '\\');
    if text.is_empty() || text.eq_ignore_ascii_case("null") || text.contains(is_special) {
        text = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    }
    Ok(text)
}

/// Returns the items of the text of an array, or of a vector of numbers with blanks between them.
pub fn array_items(text: &str) -> Vec<Option<String>> {
    let Some(inner) = text
        .trim()
        .strip_prefix('{')
        .and_then(|t| t.strip_suffix('}'))
    else {
        return text
            .split_whitespace()
            .map(|item| Some(item.to_owned()))
            .collect();
    };
    if inner.is_empty() {
        return Vec::new();
    }
    let (mut items, mut item) = (Vec::new(), String::new());
    let (mut is_quoted, mut was_quoted) = (false, false);
    let mut chars = inner.chars();
    let finish = |item: &mut String, was_quoted: &mut bool| {
        let text = std::mem::take(item);
        let is_null = !std::mem::take(was_quoted) && text == "NULL";
        (!is_null).then_some(text)
    };
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                is_quoted = !is_quoted;
                was_quoted = true;
            }
            '\\' => item.extend(chars.next()),
            ',' if !is_quoted => items.push(finish(&mut item, &mut was_quoted)),
            c => item.push(c),
        }
    }
    items.push(finish(&mut item, &mut was_quoted));
    items
}
