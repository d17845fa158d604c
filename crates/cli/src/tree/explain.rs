//! `tree explain`: what a read of a key visits, in which order, and why.

use super::{family, position_json, range_json, range_text};
use crate::escape::{brief, escape};
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::keyspace::Keyspace;
use crate::location::StoreLocation;
use crate::output::print;
use crate::progress::{count, human_bytes};
use crate::store::{Access, argument, open_db};
use crate::tree::dump::{kind_name, reference_of};
use crate::tree_args;
use basalt::{
    ExplainedMemtable, ExplainedPage, ExplainedTable, ExplainedVersion, Kind, PageEntry,
    PageExplanation, PageVerdict, ReadExplanation, TableVerdict,
};
use serde_json::{Value, json};
use std::fmt::Write;

/// Runs `basalt tree explain`.
pub fn explain(args: &tree_args::Explain) -> Outcome {
    let place = &StoreLocation::of_argument(&args.store);
    let key = argument(&args.key, args.escaped)?;
    let failure = |e| Failure::store(place, e);
    let db = open_db(place, Access::Read, None)?;
    let (family, stored) = match &args.family {
        Some(name) => (family(&db, name)?, key.clone()),
        None => match Keyspace::find(&db).map_err(failure)? {
            Some(keyspace) => (keyspace.family.clone(), keyspace.stored_key(&key)),
            None => {
                return Err(Failure::new(format!(
                    "the store in {place} has no keys of Redis clients; name a column family with --family: {}",
                    db.families().join(", ")
                )));
            }
        },
    };
    let explained = db.explain(&family, &stored).map_err(failure)?;
    let name = family.name().to_string();
    drop(family);
    db.close().map_err(failure)?;
    print(&match args.json {
        true => format!("{:#}\n", report_json(&name, &stored, &explained)),
        false => {
            let mut head = format!("key {} in family {name}", brief(&key));
            if stored != key {
                let _ = write!(head, ", stored as {}", brief(&stored));
            }
            format!("{head}\n{}", report(&explained))
        }
    })?;
    Ok(if explained.answer.is_ok() { 0 } else { EXIT_NO })
}

/// The numbered steps of a read.
#[derive(Default)]
struct Steps {
    text: String,
    number: u64,
}

impl Steps {
    fn add(&mut self, step: &str) {
        self.number += 1;
        let _ = writeln!(self.text, "{:>3}. {step}", self.number);
    }
}

fn report(explained: &ReadExplanation) -> String {
    let mut steps = Steps::default();
    let mut is_decided = false;
    for memtable in &explained.memtables {
        is_decided = memtable_steps(memtable, is_decided, &mut steps);
    }
    if explained.memtables_decide {
        let below = match &explained.pages {
            Some(_) => "pages",
            None => "tables",
        };
        let _ = writeln!(
            steps.text,
            "The memtables decide: a read visits none of the {below} below."
        );
    }
    match &explained.pages {
        Some(pages) => page_steps(pages, explained, &mut steps),
        None => table_steps(explained, &mut steps),
    }
    steps.text + &answer(explained)
}

/// Adds a memtable. Returns true if it or a newer one decides.
fn memtable_steps(memtable: &ExplainedMemtable, mut is_decided: bool, steps: &mut Steps) -> bool {
    let what = match memtable.is_active {
        true => "memtable",
        false => "sealed memtable",
    };
    let entries = count(memtable.entries, "entry", "entries");
    let mut step = format!("{what} of {entries} (records of the log that are not flushed): ");
    if memtable.versions.is_empty() && memtable.range_deleted_at.is_none() {
        step += "no entry of the key";
    }
    let ranges = memtable.range_deleted_at;
    let mut said = Vec::new();
    let mut is_range_said = false;
    let mut say_range = |said: &mut Vec<String>, is_decided: &mut bool| {
        if let Some(seq) = ranges
            && !std::mem::replace(&mut is_range_said, true)
        {
            let why = why(*is_decided);
            said.push(format!("range tombstone at sequence number {seq}{why}"));
            *is_decided = true;
        }
    };
    for version in &memtable.versions {
        if ranges > version.seq {
            say_range(&mut said, &mut is_decided);
        }
        said.push(format!("{}{}", version_text(version), why(is_decided)));
        is_decided |= version.kind != Kind::Merge;
    }
    say_range(&mut said, &mut is_decided);
    step += &said.join("; ");
    steps.add(&step);
    is_decided
}

/// Returns what a newer version does to one.
fn why(is_decided: bool) -> &'static str {
    match is_decided {
        true => ", hidden by a newer one",
        false => "",
    }
}

fn page_steps(pages: &PageExplanation, explained: &ReadExplanation, steps: &mut Steps) {
    for step in &pages.index {
        let mut text = format!(
            "index page of level {}, {}: child {} of {}, from {} on",
            step.level,
            step.position,
            step.child + 1,
            step.children,
            match step.child_key.is_empty() {
                true => "the first key".to_string(),
                false => brief(&step.child_key),
            }
        );
        if step.id != step.position {
            let _ = write!(
                text,
                "; the page mapping table leads to it from {}",
                step.id
            );
        }
        steps.add(&text);
    }
    let Some(leaf) = &pages.leaf else {
        return;
    };
    let own = leaf.pages.iter();
    let own = own.filter(|page| !page.is_base && !page.is_of_index);
    let deltas = count(own.count() as u64, "delta page", "delta pages");
    let mapping = match leaf.is_mapped {
        true => format!("the page mapping table has its base page and {deltas}"),
        false => "it is its own base page, without delta pages of its own".to_string(),
    };
    steps.add(&format!(
        "leaf with {}, named {}: {mapping}",
        range_text(&leaf.keys),
        leaf.id
    ));
    for page in &leaf.pages {
        steps.add(&page_text(page, explained));
    }
    let _ = writeln!(
        steps.text,
        "With an empty cache, a lookup in the pages costs {} of {}. The heads of the leaf's pages are read together. Small pages are read whole.",
        count(pages.device_reads, "device read", "device reads"),
        human_bytes(pages.device_bytes)
    );
    let mut versions = explained.page_versions.iter();
    if versions.any(|version| version.blob_file.is_some()) {
        steps.text += "The read of the value from its blob file comes in addition.\n";
    }
}

fn page_text(page: &ExplainedPage, explained: &ReadExplanation) -> String {
    let kind = match page.is_base {
        true => "base page",
        false if page.is_of_index => "delta page of the index page",
        false => "delta page",
    };
    let verdict = match &page.verdict {
        PageVerdict::OutsidePart => "not read, because the key is outside of its part".to_string(),
        PageVerdict::FilteredOut => {
            "its filter says that it does not have the key, so only its head is needed".to_string()
        }
        PageVerdict::Absent if page.is_base => "no entry of the key".to_string(),
        PageVerdict::Absent => "no entry of the key, so an older page is needed".to_string(),
        PageVerdict::Found(entry) if explained.page_versions.len() > 1 => {
            let versions = explained.page_versions.iter().map(version_text);
            let versions: Vec<String> = versions.collect();
            format!(
                "the newest entry of the key, {} of {}: {}",
                kind_name(entry.kind),
                human_bytes(entry.value.len() as u64),
                versions.join("; ")
            )
        }
        PageVerdict::Found(entry) => match explained.page_versions.first() {
            Some(version) => format!("the newest entry of the key: {}", version_text(version)),
            None => format!("the newest entry of the key: {}", entry_text(entry)),
        },
        PageVerdict::Hidden(Some(entry)) => {
            format!("{}, hidden by the newer page", entry_text(entry))
        }
        PageVerdict::Hidden(None) => "not needed, and no entry of the key".to_string(),
        PageVerdict::Damaged(e) => format!("DAMAGED: {e}"),
        _ => "unknown".to_string(),
    };
    let mut text = format!("{kind} {}: {verdict}", page.position);
    if let Some(part) = &page.part {
        let _ = write!(text, "; of the page only {} count", range_text(part));
    }
    text
}

/// Returns an entry of a page that does not decide.
fn entry_text(entry: &PageEntry) -> String {
    if let Some(to) = reference_of(entry) {
        return format!("an older value in blob file {}", to.number);
    }
    let len = match entry.kind {
        Some(Kind::Delete) => return "a tombstone".to_string(),
        Some(Kind::PutTtl) => entry.value.len().saturating_sub(8),
        _ => entry.value.len(),
    };
    format!(
        "an older {} of {}",
        kind_name(entry.kind),
        human_bytes(len as u64)
    )
}

fn version_text(version: &ExplainedVersion) -> String {
    let mut text = match (version.kind, version.blob_file) {
        (Kind::Delete, _) => "tombstone".to_string(),
        (Kind::Merge, _) => format!("operand of {}", human_bytes(version.value.len() as u64)),
        (_, Some(file)) => format!("value in blob file {file}"),
        _ => format!("value of {}", human_bytes(version.value.len() as u64)),
    };
    if let Some(seq) = version.seq {
        let _ = write!(text, " at sequence number {seq}");
    }
    match (version.expire_at_ms, version.is_expired) {
        (None, _) => {}
        (Some(at), true) => {
            let _ = write!(text, ", expired at {at} ms, so the key has no value");
        }
        (Some(at), false) => {
            let _ = write!(text, ", expires at {at} ms");
        }
    }
    text
}

fn table_steps(explained: &ReadExplanation, steps: &mut Steps) {
    for table in &explained.tables {
        steps.add(&table_text(table));
    }
    let tables = count(explained.tables_out_of_range, "table", "tables");
    let _ = writeln!(
        steps.text,
        "The key is outside of the keys of {tables}, which a read leaves out."
    );
}

fn table_text(table: &ExplainedTable) -> String {
    let verdict = match &table.verdict {
        TableVerdict::Filtered => "not read, because its filter excludes the key".to_string(),
        TableVerdict::Absent => "no entry of the key, although its filter admits it".to_string(),
        TableVerdict::Found(version) => version_text(version),
        TableVerdict::Hidden(Some(version)) => {
            format!("not read: {}, hidden by a newer one", version_text(version))
        }
        TableVerdict::Hidden(None) => "not read, and no entry of the key".to_string(),
        TableVerdict::Damaged(e) => format!("DAMAGED: {e}"),
        _ => "unknown".to_string(),
    };
    format!(
        "level {}, table {}, {}: {verdict}",
        table.level,
        table.file,
        human_bytes(table.bytes)
    )
}

fn answer(explained: &ReadExplanation) -> String {
    match &explained.answer {
        Ok(None) => "A read finds no value.\n".to_string(),
        Ok(Some(found)) => {
            let expiry = found.expire_at_ms;
            let expiry = expiry.map_or(String::new(), |at| format!(", which expires at {at} ms"));
            let bytes = human_bytes(found.value.len() as u64);
            format!("A read finds a value of {bytes}{expiry}.\n")
        }
        Err(e) => format!("A read fails: {e}\n"),
    }
}

fn report_json(family: &str, key: &[u8], explained: &ReadExplanation) -> Value {
    let memtables: Vec<Value> = (explained.memtables.iter())
        .map(|memtable| {
            let versions: Vec<Value> = memtable.versions.iter().map(version_json).collect();
            json!({
                "is_active": memtable.is_active, "entries": memtable.entries, "versions": versions,
                "range_deleted_at": memtable.range_deleted_at,
            })
        })
        .collect();
    let tables: Vec<Value> = explained.tables.iter().map(table_json).collect();
    let answer = match &explained.answer {
        Ok(None) => json!({"found": false}),
        Ok(Some(v)) => json!({
            "found": true, "value_bytes": v.value.len(), "expire_at_ms": v.expire_at_ms,
        }),
        Err(e) => json!({"error": e.to_string()}),
    };
    let pages = explained.pages.as_ref();
    json!({
        "family": family, "key": escape(key), "memtables": memtables, "memtables_decide": explained.memtables_decide,
        "pages": pages.map(|pages| pages_json(pages, explained)),
        "device_reads": pages.map(|pages| pages.device_reads), "device_bytes": pages.map(|pages| pages.device_bytes),
        "tables": tables, "tables_out_of_range": explained.tables_out_of_range, "answer": answer,
    })
}

fn pages_json(pages: &PageExplanation, explained: &ReadExplanation) -> Value {
    let index = pages.index.iter().map(|step| {
        json!({
            "level": step.level, "id": position_json(&step.id), "page": position_json(&step.position),
            "children": step.children, "child": step.child, "child_key": escape(&step.child_key),
        })
    });
    let leaf = pages.leaf.as_ref().map(|leaf| {
        let pages: Vec<Value> = leaf.pages.iter().map(page_json).collect();
        json!({
            "id": position_json(&leaf.id), "is_mapped": leaf.is_mapped, "keys": range_json(&leaf.keys),
            "pages": pages,
        })
    });
    let versions = explained.page_versions.iter().map(version_json);
    json!({
        "index": index.collect::<Vec<Value>>(), "leaf": leaf, "versions": versions.collect::<Vec<Value>>(),
        "error": pages.error.as_ref().map(|e| e.to_string()),
    })
}

fn page_json(page: &ExplainedPage) -> Value {
    let (verdict, entry) = match &page.verdict {
        PageVerdict::OutsidePart => ("outside_part", None),
        PageVerdict::FilteredOut => ("filtered_out", None),
        PageVerdict::Absent => ("absent", None),
        PageVerdict::Found(entry) => ("found", Some(entry)),
        PageVerdict::Hidden(entry) => ("hidden", entry.as_ref()),
        PageVerdict::Damaged(_) => ("damaged", None),
        _ => ("unknown", None),
    };
    let mut out = position_json(&page.position);
    out["page"] = match (page.is_base, page.is_of_index) {
        (true, _) => "base",
        (false, true) => "index_delta",
        (false, false) => "delta",
    }
    .into();
    out["part"] = page.part.as_ref().map(range_json).into();
    out["verdict"] = verdict.into();
    out["kind"] = entry.map(|entry| kind_name(entry.kind)).into();
    if let PageVerdict::Damaged(e) = &page.verdict {
        out["damage"] = e.to_string().into();
    }
    out
}

fn table_json(table: &ExplainedTable) -> Value {
    let (verdict, version) = match &table.verdict {
        TableVerdict::Filtered => ("filtered", None),
        TableVerdict::Absent => ("absent", None),
        TableVerdict::Found(version) => ("found", Some(version)),
        TableVerdict::Hidden(version) => ("hidden", version.as_ref()),
        TableVerdict::Damaged(_) => ("damaged", None),
        _ => ("unknown", None),
    };
    json!({
        "level": table.level, "file": table.file, "bytes": table.bytes, "verdict": verdict,
        "version": version.map(version_json),
    })
}

fn version_json(version: &ExplainedVersion) -> Value {
    json!({
        "seq": version.seq, "kind": format!("{:?}", version.kind), "value_bytes": version.value.len(),
        "expire_at_ms": version.expire_at_ms, "is_expired": version.is_expired, "blob_file": version.blob_file,
    })
}
