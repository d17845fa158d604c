//! `tree`: the pages of families that are kept in pages: printed, checked, and a read explained.

mod check;
mod dump;
mod explain;

use crate::escape::brief;
use crate::failure::{Failure, Outcome};
use crate::tree_args::{Action, Tree};
use basalt::{Db, Family, PagePosition, PageRange};
use serde_json::{Value, json};

/// Runs `basalt tree`.
pub fn tree(args: Tree) -> Outcome {
    match args.action {
        Action::Dump(a) => dump::dump(&a),
        Action::Check(a) => check::check(&a),
        Action::Explain(a) => explain::explain(&a),
    }
}

/// Returns the failure for a store without pages.
fn no_pages(place: &impl std::fmt::Display) -> Failure {
    Failure::new(format!(
        "the store in {place} has no family in pages; `basalt stats` shows the levels of its families"
    ))
}

/// Returns the failure for a family that is kept in levels.
fn in_levels(name: &str) -> Failure {
    Failure::new(format!(
        "the family {name} is kept in levels of tables, and has no pages; `basalt stats` shows its levels, and `basalt tree explain` explains reads of it, too"
    ))
}

/// Returns the failure for a family that is not there.
fn no_family(name: &str, families: &[String]) -> Failure {
    Failure::new(format!(
        "the store has no family {name}; it has {}",
        families.join(", ")
    ))
}

/// Returns a family of an open store.
fn family(db: &Db, name: &str) -> Result<Family, Failure> {
    db.family(name)
        .ok_or_else(|| no_family(name, &db.families()))
}

/// Returns a range of keys in words.
fn range_text(keys: &PageRange) -> String {
    let key = |key: &[u8]| match key.is_empty() {
        true => "the empty key".to_string(),
        false => brief(key),
    };
    match (&keys.low, &keys.high) {
        (None, None) => "all keys".to_string(),
        (None, Some(high)) => format!("keys before {}", key(high)),
        (Some(low), None) => format!("keys from {}", key(low)),
        (Some(low), Some(high)) => format!("keys from {} to before {}", key(low), key(high)),
    }
}

fn range_json(keys: &PageRange) -> Value {
    let key = |key: &Option<Vec<u8>>| key.as_deref().map(crate::escape::escape);
    json!({"from": key(&keys.low), "to": key(&keys.high)})
}

fn position_json(at: &PagePosition) -> Value {
    json!({"file": at.file, "offset": at.offset, "bytes": at.bytes})
}
