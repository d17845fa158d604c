//! The content of an image, as text for people and as JSON for scripts.

use super::copy::PIECE;
use crate::escape::escape;
use crate::failure::{Failure, Outcome};
use crate::output::table;
use crate::output::{note, print};
use crate::progress::{count, human_bytes};
use basalt::fs::{FileStat, FileSystem};
use basalt::lava::{FileReport, LavaFs};
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns a path of an image as one line of text.
pub fn display_path(path: &Path) -> String {
    match escape(path.as_os_str().as_bytes()) {
        root if root.trim_matches('/').is_empty() => "the root".to_string(),
        path => path,
    }
}

/// Returns the failure for a path that does not exist, or for another error.
pub fn failed(image: &Path, path: &Path, e: basalt::Error) -> Failure {
    match e.is_not_found() {
        true => Failure::new(format!(
            "there is no {} in {1}; `basalt fs ls {1}` shows what there is",
            display_path(path),
            image.display()
        )),
        false => Failure::image(image, e),
    }
}

/// Returns everything in a directory by path, and with `recursive` everything below it. A stack
/// replaces recursion: directories may be nested as deep as names have space.
fn entries(fs: &LavaFs, dir: &Path, recursive: bool) -> basalt::Result<Vec<(PathBuf, FileStat)>> {
    let below = |dir: &Path| -> basalt::Result<Vec<PathBuf>> {
        let all = fs.list(dir)?;
        Ok(all.into_iter().rev().map(|e| dir.join(e.name)).collect())
    };
    let mut found = Vec::new();
    let mut todo = below(dir)?;
    while let Some(path) = todo.pop() {
        let stat = fs.stat(&path)?;
        if recursive && stat.is_dir {
            todo.extend(below(&path)?);
        }
        found.push((path, stat));
    }
    Ok(found)
}

/// Runs `basalt fs ls`.
pub fn list(
    fs: &LavaFs,
    image: &Path,
    path: &Path,
    long: bool,
    recursive: bool,
    as_json: bool,
) -> Outcome {
    let error = |e| failed(image, path, e);
    let stat = fs.stat(path).map_err(error)?;
    let found = match stat.is_dir {
        true => entries(fs, path, recursive).map_err(error)?,
        false => vec![(path.to_path_buf(), stat)],
    };
    let name = |of: &Path| {
        // Names are relative to the path of the command line.
        let below = of.strip_prefix(path).ok();
        let below = below.filter(|b| !b.as_os_str().is_empty()).unwrap_or(of);
        display_path(below)
    };
    if as_json {
        let mut all: Vec<Value> = Vec::new();
        for (p, s) in &found {
            all.push(json!({
                "path": p.display().to_string(), "directory": s.is_dir, "bytes": s.len,
                "length_is_exact": fs.describe(p).map_err(error)?.exact, "space_bytes": s.on_disk,
            }));
        }
        print(&format!(
            "{:#}\n",
            json!({"image": image.display().to_string(), "entries": all})
        ))?;
    } else if long {
        let mut rows = vec![["name", "bytes", "space"].map(String::from)];
        for (p, s) in &found {
            if s.is_dir {
                rows.push([name(p) + "/", "-".into(), "-".into()]);
                continue;
            }
            // After a crash, a file may have more bytes than its known length.
            let more = match fs.describe(p).map_err(error)?.exact {
                true => "",
                false => "+",
            };
            rows.push([name(p), format!("{}{more}", s.len), s.on_disk.to_string()]);
        }
        print(&table(&rows))?;
    } else {
        let mut text = String::new();
        for (p, s) in &found {
            let _ = writeln!(text, "{}{}", name(p), if s.is_dir { "/" } else { "" });
        }
        print(&text)?;
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

/// Runs `basalt fs stat`.
pub fn stat(fs: &LavaFs, image: &Path, path: &Path, as_json: bool) -> Outcome {
    let r = fs.describe(path).map_err(|e| failed(image, path, e))?;
    if as_json {
        let extents: Vec<Value> = r
            .extents
            .iter()
            .map(|e| json!({"offset": e.offset, "bytes": e.len, "place": e.place}))
            .collect();
        print(&format!(
            "{:#}\n",
            json!({
                "image": image.display().to_string(), "path": path.display().to_string(), "kind": kind(&r),
                "inode": r.inode, "names": r.links, "bytes": if r.is_dir { 0 } else { r.len },
                "names_in_it": r.is_dir.then_some(r.len), "length_is_exact": r.exact, "extents": extents,
            })
        ))?;
        return Ok(0);
    }
    let mut text = match display_path(path) {
        _ if r.is_dir && r.inode == 0 => format!("the root of {}\n", image.display()),
        path => format!("{path} in {}\n", image.display()),
    };
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<11} {value}");
    };
    line("kind", kind(&r).into());
    line("inode", r.inode.to_string());
    if r.is_dir {
        line("names in it", r.len.to_string());
        print(&text)?;
        return Ok(0);
    }
    line("names", r.links.to_string());
    let exact = match r.exact {
        true => "",
        false => ", perhaps more: the records show the end",
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
    print(&text)?;
    Ok(0)
}

/// Runs `basalt fs cat`.
pub fn cat(fs: &LavaFs, image: &Path, path: &Path) -> Outcome {
    let error = |e| failed(image, path, e);
    let file = fs.open(path).map_err(error)?;
    let end = fs.stat(path).map_err(error)?.len;
    if !fs.describe(path).map_err(error)?.exact {
        note(format_args!(
            "basalt: a crash has left the length of {} inexact; these are its first {end} bytes, and `basalt fs cp` copies all of its space",
            display_path(path)
        ));
    }
    let mut out = std::io::stdout().lock();
    let mut at = 0;
    while at < end {
        let piece = file
            .read(at, PIECE.min((end - at) as usize))
            .map_err(error)?;
        if piece.is_empty() {
            break;
        }
        out.write_all(&piece)
            .map_err(|e| Failure::output("standard output", e))?;
        at += piece.len() as u64;
    }
    out.flush()
        .map_err(|e| Failure::output("standard output", e))?;
    Ok(0)
}

/// Runs `basalt fs report`.
pub fn report(fs: &LavaFs, image: &Path, as_json: bool) -> Outcome {
    let u = fs.usage();
    let info = fs.info();
    let a_file = u.extents as f64 / u.files.max(1) as f64;
    // This is the part of the free space in pieces shorter than the largest extent that a growing
    // file asks for.
    let scattered = match u.free_bytes {
        0 => 0.0,
        free => u.short_free_bytes as f64 / free as f64,
    };
    if as_json {
        print(&format!(
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
    print(&text)?;
    Ok(0)
}
