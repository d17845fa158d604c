//! `tree check`: all pages of a closed store are read and verified.

use super::{in_levels, no_family, no_pages};
use crate::failure::{EXIT_NO, Failure, Outcome, strip_repair_advice};
use crate::findings::damage_json;
use crate::location::StoreLocation;
use crate::output::print_report;
use crate::progress::{count, count_entries, human_bytes};
use crate::store::{Access, environment};
use crate::tree_args;
use basalt::{Db, Options, PageCounts, TreeCheck};
use serde_json::{Value, json};
use std::fmt::Write;

/// Runs `basalt tree check`.
pub fn check(args: &tree_args::Check) -> Outcome {
    let place = &StoreLocation::of_argument(&args.store);
    let (env, path) = environment(place, Access::Read, None)?;
    let failure = |e| Failure::store(place, e);
    let family = args.family.as_deref();
    let checked = Db::check_pages(&env, &path, &Options::default(), family).map_err(failure)?;
    let checked = match &args.family {
        None if checked.is_empty() => return Err(no_pages(place)),
        Some(wanted) if checked.is_empty() => {
            let families = Db::families_of_closed(&env, &path).map_err(failure)?;
            return Err(match families.contains_key(wanted) {
                true => in_levels(wanted),
                false => no_family(wanted, &families.into_keys().collect::<Vec<_>>()),
            });
        }
        _ => checked,
    };
    let places: usize = checked.iter().map(|(_, found)| found.damage.len()).sum();
    print_report(&match args.json {
        true => {
            let families: Vec<Value> = checked.iter().map(family_json).collect();
            let report = json!({
                "dir": place.directory(), "image": place.image.as_ref().map(|i| i.display().to_string()),
                "sound": places == 0, "families": families,
            });
            format!("{report:#}\n")
        }
        false => text(place, &checked, places as u64),
    })?;
    Ok(if places == 0 { 0 } else { EXIT_NO })
}

/// Returns what pages have, in words.
pub fn counted(counts: &PageCounts) -> String {
    format!(
        "{}, {}, {}, {} as stored, {} of pages",
        count(counts.leaves, "leaf", "leaves"),
        count(counts.index_pages, "index page", "index pages"),
        count(counts.delta_pages, "delta page", "delta pages"),
        count_entries(counts.entries),
        human_bytes(counts.page_bytes)
    )
}

/// Returns what pages have, for scripts.
pub fn counts_json(counts: &PageCounts) -> Value {
    json!({
        "leaves": counts.leaves, "index_pages": counts.index_pages, "delta_pages": counts.delta_pages,
        "entries": counts.entries, "page_bytes": counts.page_bytes,
    })
}

fn family_json((name, found): &(String, TreeCheck)) -> Value {
    json!({
        "name": name, "sound": found.damage.is_empty(), "files": found.files, "bytes": found.bytes,
        "counts": counts_json(&found.counts), "damage": damage_json(&found.damage),
    })
}

fn text(place: &StoreLocation, checked: &[(String, TreeCheck)], places: u64) -> String {
    let mut text = String::new();
    for (name, found) in checked {
        for e in &found.damage {
            let _ = writeln!(text, "damage: {}", strip_repair_advice(&e.to_string()));
        }
        let files = count(found.files, "file", "files");
        let bytes = human_bytes(found.bytes);
        let read = match found.damage.is_empty() {
            true => "",
            false => "as far as they can be read, ",
        };
        let counted = counted(&found.counts);
        let _ = writeln!(
            text,
            "family {name}: {read}{counted}, in {files} with {bytes} in total"
        );
    }
    let families = count(checked.len() as u64, "family in pages", "families in pages");
    let _ = match places {
        0 => writeln!(text, "{place} is sound in its pages: {families}"),
        n => writeln!(
            text,
            "{place} is damaged in {}; {}, then run `basalt repair {}`",
            count(n, "place", "places"),
            place.copy_first(),
            place.flags()
        ),
    };
    text
}
