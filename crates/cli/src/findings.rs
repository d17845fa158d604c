//! The findings of a check, and the question before a repair, of a store of any kind.

use crate::failure::{EXIT_FAILED, Failure, strip_repair_advice};
use crate::location::StoreLocation;
use crate::output::prompt;
use serde_json::json;
use std::fmt::Write;
use std::io::{BufRead, IsTerminal};

/// What a check of a store of any kind has found.
pub struct Findings<'a> {
    /// Damage.
    pub damage: &'a [basalt::Error],
    /// Files that the next open removes.
    pub unused_files: &'a [String],
    /// Files that no readable metadata names.
    pub unnamed: &'a [String],
    /// Files that are not a store's.
    pub foreign: &'a [String],
    /// Places behind which a crash has left a part of a record.
    pub torn_tails: &'a [String],
}

/// Returns a line for each finding.
pub fn findings(found: &Findings<'_>) -> String {
    let mut text = String::new();
    for e in found.damage {
        // The last line says how to repair a store of this kind.
        let _ = writeln!(text, "damage: {}", strip_repair_advice(&e.to_string()));
    }
    let lists = [
        (
            found.unused_files,
            "unused file",
            "harmless; the next open removes it",
        ),
        (
            found.unnamed,
            "not named by readable metadata",
            "repair may need it; do not remove it",
        ),
        (found.foreign, "not a store's file", "it is left alone"),
        (
            found.torn_tails,
            "torn tail of a log",
            "normal after a crash; the next open cuts it",
        ),
    ];
    for (names, what, advice) in lists {
        for name in names {
            let _ = writeln!(text, "{what}: {name} ({advice})");
        }
    }
    text
}

/// Returns damage as `--json` shows it.
pub fn damage_json(damage: &[basalt::Error]) -> Vec<serde_json::Value> {
    let one = |e: &basalt::Error| {
        json!({
            "kind": e.kind().name(), "message": strip_repair_advice(&e.to_string()),
            "file": e.path().map(|p| p.display().to_string()), "offset": e.offset(),
        })
    };
    damage.iter().map(one).collect()
}

/// Asks the user whether a store is to be repaired.
///
/// Errors: a message that says what to do, if the user does not agree or cannot be asked.
pub fn confirm_repair(place: &StoreLocation) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(format!(
            "repair changes the store in {place}; {} first, then run it with --yes",
            place.copy_first()
        )));
    }
    ask(&format!(
        "Repair keeps what verifies in {place} and moves damaged files aside. Is there a copy of it?"
    ))
}

/// Asks the user on a terminal whether to go on.
///
/// Errors: a message that says what to do, if the user does not agree or gives no answer.
pub fn ask(what: &str) -> Result<(), Failure> {
    prompt(format_args!("{what} Go on? [y/N] "));
    let mut answer = String::new();
    (std::io::stdin().lock().read_line(&mut answer))
        .map_err(|e| Failure::new(format!("cannot read the answer: {e}; run it with --yes")))?;
    match matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(Failure::Message("nothing was changed".into(), EXIT_FAILED)),
    }
}
