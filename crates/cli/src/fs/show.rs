//! What an image holds, as text for people and as JSON for scripts.

use crate::failure::{Failure, Outcome};
use crate::point::say;
use crate::progress::{count, human_bytes};
use crate::stats::table;
use basalt::fs::lava::{FileReport, LavaFs};
use basalt::fs::{FileStat, FileSystem};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A path that leads nowhere, or another failure.
pub fn failed(image: &Path, path: &Path, e: basalt::Error) -> Failure {
    match e.is_not_found() {
        true => Failure::new(format!(
            "there is no {} in {1}; `basalt fs ls {1}` shows what there is",
            path.display(),
            image.display()
        )),
        false => Failure::image(image, e),
    }
}

/// Everything in a directory, deeper too if asked, by path.
fn entries(
    fs: &LavaFs,
    dir: &Path,
    recursive: bool,
    into: &mut Vec<(PathBuf, FileStat)>,
) -> basalt::Result<()> {
    for e in fs.list(dir)? {
        let path = dir.join(&e.name);
        let stat = fs.stat(&path)?;
        into.push((path.clone(), stat));
        if recursive && e.is_dir {
            entries(fs, &path, true, into)?;
        }
    }
    Ok(())
}

/// `basalt fs ls`.
pub fn list(
    fs: &LavaFs,
    image: &Path,
    path: &Path,
    long: bool,
    recursive: bool,
    as_json: bool,
) -> Outcome {
    let error = |e| failed(image, path, e);
    let mut found = Vec::new();
    let stat = fs.stat(path).map_err(error)?;
    match stat.is_dir {
        true => entries(fs, path, recursive, &mut found).map_err(error)?,
        false => found.push((path.to_path_buf(), stat)),
    }
    let shown = |of: &Path| {
        // Names as they are below what was asked for.
        let below = of.strip_prefix(path).ok();
        let below = below.filter(|b| !b.as_os_str().is_empty()).unwrap_or(of);
        below.display().to_string()
    };
    if as_json {
        let all: Vec<Value> = found
            .iter()
            .map(|(p, s)| {
                json!({
                    "path": p.display().to_string(), "directory": s.is_dir, "bytes": s.len,
                    "space_bytes": s.on_disk,
                })
            })
            .collect();
        say(&format!(
            "{:#}\n",
            json!({"image": image.display().to_string(), "entries": all})
        ))?;
    } else if long {
        let mut rows = vec![["name", "bytes", "space"].map(String::from)];
        rows.extend(found.iter().map(|(p, s)| match s.is_dir {
            true => [shown(p) + "/", "-".into(), "-".into()],
            false => [shown(p), s.len.to_string(), s.on_disk.to_string()],
        }));
        say(&table(&rows))?;
    } else {
        let mut text = String::new();
        for (p, s) in &found {
            let _ = writeln!(text, "{}{}", shown(p), if s.is_dir { "/" } else { "" });
        }
        say(&text)?;
    }
    Ok(0)
}

fn kind(report: &FileReport) -> &'static str {
    match (report.is_dir, report.is_log) {
        (true, _) => "directory",
        (_, true) => "log",
        _ => "file",
    }
}

/// `basalt fs stat`.
pub fn stat(fs: &LavaFs, image: &Path, path: &Path, as_json: bool) -> Outcome {
    let r = fs.describe(path).map_err(|e| failed(image, path, e))?;
    if as_json {
        let extents: Vec<Value> = r
            .extents
            .iter()
            .map(|e| json!({"offset": e.offset, "bytes": e.len, "place": e.place}))
            .collect();
        say(&format!(
            "{:#}\n",
            json!({
                "image": image.display().to_string(), "path": path.display().to_string(), "kind": kind(&r),
                "inode": r.inode, "names": r.links, "bytes": r.len, "length_is_exact": r.exact,
                "extents": extents,
            })
        ))?;
        return Ok(0);
    }
    let mut text = format!("{} in {}\n", path.display(), image.display());
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<10} {value}");
    };
    line("kind", kind(&r).into());
    line("inode", r.inode.to_string());
    if r.is_dir {
        line("names in it", r.len.to_string());
        say(&text)?;
        return Ok(0);
    }
    line("names", r.links.to_string());
    let exact = match r.exact {
        true => "",
        false => ", perhaps more: readers find the end by what records say",
    };
    line("length", format!("{} bytes{exact}", r.len));
    let space: u64 = r
        .extents
        .iter()
        .filter(|e| e.place.is_some())
        .map(|e| e.len)
        .sum();
    line("space", format!("{space} bytes"));
    let mut rows = vec![["from byte", "bytes", "on the device at"].map(String::from)];
    rows.extend(r.extents.iter().map(|e| {
        let place = e.place.map_or("given back".into(), |p| p.to_string());
        [e.offset.to_string(), e.len.to_string(), place]
    }));
    if rows.len() > 1 {
        text.push_str(&table(&rows));
    }
    say(&text)?;
    Ok(0)
}

/// `basalt fs report`.
pub fn report(fs: &LavaFs, image: &Path, as_json: bool) -> Outcome {
    let u = fs.usage();
    let info = fs.info();
    let a_file = u.extents as f64 / u.files.max(1) as f64;
    // How much of what is free lies in pieces shorter than the largest extent that a growing file asks for.
    let scattered = match u.free_bytes {
        0 => 0.0,
        free => u.short_free_bytes as f64 / free as f64,
    };
    if as_json {
        say(&format!(
            "{:#}\n",
            json!({
                "image": image.display().to_string(), "filesystem": info.description, "uuid": u.uuid_text(),
                "write_unit": info.write_unit, "sparse": u.sparse, "total_bytes": u.total_bytes,
                "files": u.files, "directories": u.dirs, "extents": u.extents, "extents_a_file": a_file,
                "file_bytes": u.file_bytes, "free_bytes": u.free_bytes, "free_pieces": u.free_pieces,
                "longest_free_bytes": u.longest_free_bytes, "short_free_bytes": u.short_free_bytes,
                "reserved_bytes": u.reserved_bytes, "journal_bytes": u.journal_bytes,
                "checkpoint_bytes": u.checkpoint_bytes, "memory_bytes": u.memory + u.name_bytes,
            })
        ))?;
        return Ok(0);
    }
    let mut text = format!("{} ({})\n", image.display(), info.description);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<14} {value}");
    };
    line("filesystem", u.uuid_text());
    let percent = |part: u64| part as f64 * 100.0 / u.total_bytes.max(1) as f64;
    line(
        "space",
        format!(
            "{}{}: {} in files ({:.1} %), {} free, of which {} are kept for metadata",
            human_bytes(u.total_bytes),
            if u.sparse { ", sparse" } else { "" },
            human_bytes(u.file_bytes),
            percent(u.file_bytes),
            human_bytes(u.free_bytes),
            human_bytes(u.reserved_bytes),
        ),
    );
    line(
        "names",
        format!(
            "{}, {}",
            count(u.files, "file", "files"),
            count(u.dirs, "directory", "directories")
        ),
    );
    line(
        "fragmentation",
        format!(
            "{} ({a_file:.2} a file); what is free lies in {}, the longest of {}, {:.1} % of it in pieces below 1 MiB",
            count(u.extents, "extent", "extents"),
            count(u.free_pieces, "piece", "pieces"),
            human_bytes(u.longest_free_bytes),
            scattered * 100.0
        ),
    );
    line(
        "metadata",
        format!(
            "{} of checkpoint, {} of journal behind it, {} in memory",
            human_bytes(u.checkpoint_bytes),
            human_bytes(u.journal_bytes),
            human_bytes(u.memory + u.name_bytes)
        ),
    );
    say(&text)?;
    Ok(0)
}
