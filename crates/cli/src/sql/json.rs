//! Values and rows as JSON. Objects keep the order of the columns.

use basalt_sql::{SqlType, ValueRef};

/// Returns the text of a value of a type, or `None` for NULL.
pub fn text(value: ValueRef<'_>, ty: SqlType) -> Option<String> {
    if value == ValueRef::Null {
        return None;
    }
    let mut text = String::new();
    ty.write_text(value, &mut text);
    Some(text)
}

/// Appends a text as a JSON string.
pub fn string(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// Appends a value of a type. Numbers and booleans are those of JSON; a value of `json` is embedded
/// if it is valid; all others are strings.
pub fn value(value: ValueRef<'_>, ty: SqlType, out: &mut String) {
    match (value, ty) {
        (ValueRef::Null, _) => out.push_str("null"),
        (ValueRef::Integer(n), SqlType::Boolean) => {
            out.push_str(if n == 0 { "false" } else { "true" });
        }
        (ValueRef::Integer(n), _) => out.push_str(&n.to_string()),
        (ValueRef::Real(x), _) if x.is_finite() => {
            out.push_str(&serde_json::Value::from(x).to_string());
        }
        (ValueRef::Text(text), SqlType::Json | SqlType::Jsonb) if is_json(text) => {
            // A line feed between tokens would end the line of the object.
            out.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
        }
        (other, ty) => string(&text(other, ty).unwrap_or_default(), out),
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Appends an object with these names and values.
pub fn object<'a>(
    fields: impl IntoIterator<Item = (&'a str, ValueRef<'a>, SqlType)>,
    out: &mut String,
) {
    out.push('{');
    for (i, (name, field, ty)) in fields.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        string(name, out);
        out.push(':');
        value(field, ty, out);
    }
    out.push('}');
}

#[cfg(test)]
mod tests;
