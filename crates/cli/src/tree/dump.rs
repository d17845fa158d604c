//! `tree dump`: the pages of a family in the order of their keys, and its extents.

use super::check::{counted, counts_json};
use super::{family, in_levels, no_pages, position_json, range_json, range_text};
use crate::escape::{brief, escape};
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::location::StoreLocation;
use crate::progress::{count, human_bytes};
use crate::store::{Access, open_db};
use crate::tree_args;
use basalt::{
    ErrorKind, InspectedExtent, InspectedNode, InspectedPage, Kind, PageCounts, PageEntry,
    PageInspector,
};
use basalt_blob::Reference;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;

/// Runs `basalt tree dump`.
pub fn dump(args: &tree_args::Dump) -> Outcome {
    let place = &StoreLocation::of_argument(&args.store);
    let db = open_db(place, Access::Read, None)?;
    let mut families: Vec<(String, PageInspector)> = Vec::new();
    let names = match &args.family {
        Some(name) => vec![name.clone()],
        None => db.families(),
    };
    for name in names {
        match db.inspect_pages(&family(&db, &name)?) {
            Ok(pages) => families.push((name, pages)),
            Err(e) if e.kind() != ErrorKind::InvalidArgument => {
                return Err(Failure::store(place, e));
            }
            Err(_) if args.family.is_some() => return Err(in_levels(&name)),
            Err(_) => {}
        }
    }
    if families.is_empty() {
        return Err(no_pages(place));
    }
    let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    let failed = |e| Failure::output("standard output", e);
    let mut is_damaged = false;
    for (name, pages) in &families {
        is_damaged |= dump_family(args, name, pages, &mut out).map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    drop(families);
    db.close().map_err(|e| Failure::store(place, e))?;
    Ok(if is_damaged { EXIT_NO } else { 0 })
}

/// Prints a family. Returns true if a page is damaged.
fn dump_family(
    args: &tree_args::Dump,
    name: &str,
    pages: &PageInspector,
    out: &mut dyn Write,
) -> std::io::Result<bool> {
    if !args.json {
        let levels = count(pages.stats().levels, "level", "levels");
        writeln!(out, "family {name}, {levels} of index pages")?;
    }
    let mut counts = PageCounts::default();
    let (mut is_damaged, mut is_whole) = (false, true);
    let mut written = Ok(());
    pages.each(args.entries, &mut |node| {
        if node.level == 0 && args.limit.is_some_and(|limit| counts.leaves >= limit) {
            is_whole = false;
            return false;
        }
        counts.add(&node);
        is_damaged |= node.damage().next().is_some();
        written = match args.json {
            true => writeln!(out, "{}", node_json(name, &node, args.entries)),
            false => out.write_all(node_text(&node, counts.leaves).as_bytes()),
        };
        written.is_ok()
    });
    written?;
    let extents = pages.extents();
    if args.json {
        let extents: Vec<Value> = extents.iter().map(extent_json).collect();
        let summary = json!({
            "family": name, "node": "family", "is_whole": is_whole, "counts": counts_json(&counts), "extents": extents,
        });
        writeln!(out, "{summary}")?;
        return Ok(is_damaged);
    }
    let read = match is_whole {
        true => "printed",
        false => "printed, and there are more",
    };
    writeln!(out, "{read}: {}", counted(&counts))?;
    for extent in &extents {
        writeln!(out, "{}", extent_text(extent))?;
    }
    Ok(is_damaged)
}

/// Returns an index page or a leaf, with its pages. `number` is that of a leaf.
fn node_text(node: &InspectedNode, number: u64) -> String {
    let mut text = match node.level {
        0 => format!("leaf {number}: {}\n", range_text(&node.keys)),
        level => format!("index page of level {level}: {}\n", range_text(&node.keys)),
    };
    if node.id != node.base.position {
        let _ = writeln!(text, "  id     {}", node.id);
    }
    let mut add = |name: &str, page: &InspectedPage, has_children: bool| {
        let _ = writeln!(text, "  {name:<6} {}", page_text(page, has_children));
        let entries = page.content.iter().flat_map(|content| &content.entries);
        for entry in entries {
            let _ = writeln!(text, "    {}", entry_text(entry));
        }
    };
    add("base", &node.base, node.level > 0);
    for page in &node.deltas {
        add("delta", page, false);
    }
    text
}

fn page_text(page: &InspectedPage, has_children: bool) -> String {
    let content = match &page.content {
        Err(e) => return format!("{}: DAMAGED: {e}", page.position),
        Ok(content) => content,
    };
    let raw = human_bytes(content.raw_bytes);
    if has_children {
        let children = count(content.count, "child", "children");
        return format!("{}: {children}, {raw} before compression", page.position);
    }
    let mut text = format!(
        "{}: {}, {}, {raw} before compression",
        page.position,
        count(content.count, "entry", "entries"),
        count(content.tombstones, "tombstone", "tombstones")
    );
    if let Some(part) = &page.part {
        let _ = write!(text, "; only {} count", range_text(part));
    }
    text
}

/// Returns the name of a kind of entries.
pub fn kind_name(kind: Option<Kind>) -> &'static str {
    match kind {
        Some(Kind::Put) => "value",
        Some(Kind::PutTtl) => "value with expiry",
        Some(Kind::Delete) => "tombstone",
        Some(Kind::Merge) => "operands",
        Some(Kind::BlobRef) => "reference",
        _ => "entry of a later version",
    }
}

/// Returns the value of an entry without its expiry, and the expiry.
fn value_of(entry: &PageEntry) -> (&[u8], Option<u64>) {
    match (entry.kind, entry.value.split_first_chunk::<8>()) {
        (Some(Kind::PutTtl), Some((at, value))) => (value, Some(u64::from_le_bytes(*at))),
        _ => (&entry.value, None),
    }
}

/// Returns the reference of an entry whose value is in a blob file; `None` for other entries, and
/// for a reference that cannot be decoded.
pub fn reference_of(entry: &PageEntry) -> Option<Reference> {
    let is_reference = entry.kind == Some(Kind::BlobRef);
    (is_reference.then(|| Reference::decode(&entry.value).ok())).flatten()
}

fn entry_text(entry: &PageEntry) -> String {
    let (kind, key) = (kind_name(entry.kind), brief(&entry.key));
    let (value, expiry) = match reference_of(entry) {
        Some(to) => (format!("blob file {}", to.number), to.expire_at_ms),
        None => {
            let (value, expiry) = value_of(entry);
            (brief(value), expiry)
        }
    };
    let expiry = expiry.map_or(String::new(), |at| format!(" (expires at {at} ms)"));
    let text = format!("{kind}{expiry}\t{key}\t{value}");
    text.trim_end_matches('\t').to_string()
}

fn node_json(family: &str, node: &InspectedNode, with_entries: bool) -> Value {
    let base = page_json(&node.base, with_entries && node.level == 0);
    let deltas = node.deltas.iter();
    let deltas: Vec<Value> = deltas.map(|page| page_json(page, with_entries)).collect();
    let kind = match node.level {
        0 => "leaf",
        _ => "index",
    };
    json!({
        "family": family, "node": kind, "level": node.level, "keys": range_json(&node.keys),
        "id": position_json(&node.id), "is_mapped": node.is_mapped, "base": base, "deltas": deltas,
    })
}

fn page_json(page: &InspectedPage, with_entries: bool) -> Value {
    let mut out = position_json(&page.position);
    out["part"] = page.part.as_ref().map(range_json).into();
    match &page.content {
        Err(e) => out["damage"] = e.to_string().into(),
        Ok(content) => {
            out["entries"] = content.count.into();
            out["tombstones"] = content.tombstones.into();
            out["raw_bytes"] = content.raw_bytes.into();
            if with_entries {
                out["list"] = content.entries.iter().map(entry_json).collect();
            }
        }
    }
    out
}

fn entry_json(entry: &PageEntry) -> Value {
    let (value, expiry) = match reference_of(entry) {
        Some(to) => (Value::Null, to.expire_at_ms),
        None => {
            let (value, expiry) = value_of(entry);
            (escape(value).into(), expiry)
        }
    };
    json!({
        "kind": kind_name(entry.kind), "key": escape(&entry.key), "value": value,
        "expire_at_ms": expiry, "blob_file": reference_of(entry).map(|to| to.number),
    })
}

fn extent_text(extent: &InspectedExtent) -> String {
    format!(
        "extent {}: {}, {} on disk, {} in use, {}",
        extent.file,
        human_bytes(extent.bytes),
        human_bytes(extent.bytes_on_disk),
        human_bytes(extent.valid_bytes),
        match extent.is_sealed {
            true => "sealed",
            false => "not sealed",
        }
    )
}

fn extent_json(extent: &InspectedExtent) -> Value {
    json!({
        "file": extent.file, "bytes": extent.bytes, "bytes_on_disk": extent.bytes_on_disk,
        "valid_bytes": extent.valid_bytes,
        "is_sealed": extent.is_sealed,
    })
}
