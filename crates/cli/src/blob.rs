//! `blob`: the files of separated values, in a store or alone.

use crate::args;
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::filesystem::open_image;
use crate::location::StoreLocation;
use crate::output::print;
use crate::output::table;
use crate::progress::{self, count, human_bytes};
use crate::stats::garbage_by_file;
use crate::store::{Access, open_db};
use basalt::env::EnvBuilder;
use basalt::fs::{HostFs, HostOptions};
use basalt::{BlobFamilyStats, BlobFileStats, BlobStats};
use basalt::{Env, ErrorKind};
use basalt_blob::inspect::{self, BlobReport};
use basalt_blob::verify::ValueBytes;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Runs `basalt blob`.
pub fn blob(args: args::Blob) -> Outcome {
    let place = StoreLocation {
        dir: args.dir,
        image: args.image,
    };
    match args.action {
        args::BlobAction::List(a) => list(&place, &a),
        args::BlobAction::Verify(a) => verify(&place, a),
        args::BlobAction::Explain(a) => explain(&place, a),
    }
}

fn family(f: &BlobFamilyStats) -> String {
    match &f.name {
        Some(name) => name.clone(),
        None => format!("{} (dropped)", f.id),
    }
}

fn json_of(f: &BlobFileStats) -> Value {
    let families: Vec<Value> = (f.families.iter())
        .map(|f| {
            json!({
                "id": f.id, "name": f.name, "records": f.records, "bytes": f.bytes,
                "live_records": f.live_records, "live_bytes": f.live_bytes,
                "garbage_bytes": f.bytes - f.live_bytes,
            })
        })
        .collect();
    json!({
        "number": f.number, "file": f.name, "bytes": f.bytes(), "records": f.records(),
        "live_records": f.live_records(), "live_bytes": f.live_bytes(), "garbage_bytes": f.garbage_bytes(),
        "min_sequence_number": f.min_seq(), "max_sequence_number": f.max_seq(),
        "made_ms": f.made_ms, "names": f.names, "families": families,
    })
}

fn list(place: &StoreLocation, args: &args::BlobList) -> Outcome {
    let db = open_db(place, Access::Read, None)?;
    let (files, all) = (db.blob_files(), db.stats().blobs);
    let now_ms = db.env().clock().wall_ms();
    db.close().map_err(|e| Failure::store(place, e))?;
    print(&if args.json {
        let files: Vec<Value> = files.iter().map(json_of).collect();
        let report = json!({
            "dir": place.directory(), "files": files, "bytes": all.bytes, "live_records": all.live_records,
            "live_bytes": all.live_bytes, "reachable_bytes": all.reachable_bytes(), "garbage_bytes": all.garbage_bytes(), "names": all.names,
            "space_amp": all.space_amp(), "max_space_amp": all.max_space_amp, "headroom_bytes": all.headroom_bytes(),
            "space_debt": all.space_debt, "hidden_bytes": all.hidden_bytes, "hidden_is_guessed": all.hidden_is_guessed,
        });
        format!("{report:#}\n")
    } else {
        listed(place, &files, &all, now_ms)
    })?;
    Ok(0)
}

/// Returns the time since then, in its largest unit.
fn age(made_ms: Option<u64>, now_ms: u64) -> String {
    let Some(made) = made_ms else {
        return "-".into();
    };
    match now_ms.saturating_sub(made) / 1000 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

fn listed(place: &StoreLocation, files: &[BlobFileStats], all: &BlobStats, now_ms: u64) -> String {
    if files.is_empty() {
        return format!("{place} has no blob files\n");
    }
    let mut rows = vec![
        [
            "file",
            "size",
            "values",
            "live",
            "live bytes",
            "garbage",
            "of it",
            "age",
            "from",
            "to",
        ]
        .map(String::from),
    ];
    let mut of_families = String::new();
    for f in files {
        rows.push([
            f.name.clone(),
            human_bytes(f.bytes()),
            f.records().to_string(),
            f.live_records().to_string(),
            human_bytes(f.live_bytes()),
            human_bytes(f.garbage_bytes()),
            format!(
                "{:.0} %",
                f.garbage_bytes() as f64 * 100.0 / f.bytes().max(1) as f64
            ),
            age(f.made_ms, now_ms),
            f.min_seq().to_string(),
            f.max_seq().to_string(),
        ]);
        for part in &f.families {
            let _ = writeln!(
                of_families,
                "  {}: family {}, {} of {} alive, {} of {}",
                f.name,
                family(part),
                part.live_records,
                count(part.records, "value", "values"),
                human_bytes(part.live_bytes),
                human_bytes(part.bytes),
            );
        }
        if !f.names.is_empty() {
            let names: Vec<String> = f.names.iter().map(u64::to_string).collect();
            let _ = writeln!(of_families, "  {}: stands for {}", f.name, names.join(", "));
        }
    }
    format!(
        "{}\n{}\n{of_families}{}\n{}, {}: {} live in {}, {} garbage; {:.2} bytes a reachable byte{}, at most {:.2} wanted; {}\n",
        place,
        table(&rows),
        garbage_by_file(all),
        count(all.files, "blob file", "blob files"),
        human_bytes(all.bytes),
        human_bytes(all.live_bytes),
        count(all.live_records, "value", "values"),
        human_bytes(all.garbage_bytes()),
        all.space_amp(),
        match all.hidden_is_guessed {
            true => format!(
                " if newer keys overwrite all they can, {}",
                human_bytes(all.hidden_bytes)
            ),
            false => String::new(),
        },
        all.max_space_amp,
        count(
            all.names,
            "name of a collected file",
            "names of collected files"
        ),
    )
}

/// Returns an environment over the image that the files lie in, if they do.
fn of_image(place: &StoreLocation) -> Result<Option<Env>, Failure> {
    match &place.image {
        None => Ok(None),
        Some(name) => {
            let env = EnvBuilder::without_fs().parts();
            let fs = open_image(name, Access::Read, &env)?;
            Ok(Some(env.with_fs(fs)))
        }
    }
}

/// Returns an environment for a file, over the image or over the directory of the file, and the
/// path of the file in it.
fn around(image: &Option<Env>, file: &Path) -> Result<(Env, PathBuf), Failure> {
    if let Some(env) = image {
        return Ok((env.clone(), file.to_path_buf()));
    }
    let path = std::path::absolute(file).map_err(|e| Failure::os("find", file, e))?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let fs = HostFs::new(HostOptions::new(dir)).map_err(|e| unreadable(file, &e))?;
    Ok((Env::builder(fs).build(), path))
}

/// Makes the failure for a file that cannot be read, which is not damage of the file.
fn unreadable(file: &Path, e: &basalt::Error) -> Failure {
    Failure::new(match e.kind() {
        ErrorKind::NotFound => format!("there is no file {}", file.display()),
        ErrorKind::Unsupported => format!("{e}; it needs a newer version of basalt"),
        _ => e.to_string(),
    })
}

fn verify(place: &StoreLocation, args: args::BlobVerify) -> Outcome {
    // Each file comes with the digest that the manifest has of it, if there is one.
    let mut files: Vec<(PathBuf, Option<u128>)> = Vec::new();
    if args.files.is_empty() {
        let db = open_db(place, Access::Read, None)?;
        for f in db.blob_files() {
            files.push((place.dir.join(&f.name), Some(f.digest())));
        }
        db.close().map_err(|e| Failure::store(place, e))?;
    } else {
        files.extend(args.files.into_iter().map(|f| (f, None)));
    }
    let image = of_image(place)?;
    let len = |file: &PathBuf| match &image {
        None => rustix::fs::stat(file).map_or(0, |s| s.st_size as u64),
        Some(env) => env.fs().stat(file).map_or(0, |s| s.len),
    };
    let total: u64 = files.iter().map(|(f, _)| len(f) * 2).sum();
    let bar = progress::bytes("verifying", Some(total));
    let (mut damage, mut records, mut bytes) = (Vec::new(), 0, 0);
    let mut values = ValueBytes::default();
    let count_of = files.len() as u64;
    for (file, digest) in files {
        let (env, path) = around(&image, &file)?;
        match inspect::verify(&env, &path, &mut |read| bar.inc(read)) {
            Ok(report) => {
                records += report.meta.records;
                bytes += report.meta.size;
                let of = report.values.unwrap_or_default();
                values.compressed += of.compressed;
                values.stored += of.stored;
                values.own += of.own;
                if let Some(expected) = digest.filter(|d| *d != report.meta.digest) {
                    let what = format!(
                        "digest is {:032x}, the manifest records {expected:032x}",
                        report.meta.digest
                    );
                    damage.push(basalt::Error::corruption(&path, 0, what));
                }
            }
            // A file that the store has lost is damage. A file that the command line names wrongly
            // is a mistake.
            Err(e)
                if e.kind() == ErrorKind::Corruption || (digest.is_some() && e.is_not_found()) =>
            {
                damage.push(e);
            }
            Err(e) => {
                bar.finish_and_clear();
                return Err(unreadable(&file, &e));
            }
        }
    }
    bar.finish_and_clear();
    let sound = damage.is_empty();
    print(&if args.json {
        let damage = crate::findings::damage_json(&damage);
        let report = json!({
            "sound": sound, "files": count_of, "records": records, "bytes": bytes,
            "compressed_records": values.compressed, "value_bytes": values.own, "stored_value_bytes": values.stored,
            "damage": damage,
        });
        format!("{report:#}\n")
    } else {
        let mut text = String::new();
        for e in &damage {
            let _ = writeln!(text, "damage: {e}");
        }
        let mut walked = format!(
            "{}, {}, {}",
            count(count_of, "blob file", "blob files"),
            human_bytes(bytes),
            count(records, "value", "values")
        );
        if values.compressed > 0 {
            let _ = write!(
                walked,
                " of {} in {}, {} of them compressed",
                human_bytes(values.own),
                human_bytes(values.stored),
                values.compressed
            );
        }
        let _ = match damage.len() as u64 {
            0 => writeln!(text, "sound: {walked}"),
            n => writeln!(
                text,
                "damaged: {} of {}",
                count(n, "file", "files"),
                count(count_of, "file", "files")
            ),
        };
        text
    })?;
    Ok(if sound { 0 } else { EXIT_NO })
}

fn explain(place: &StoreLocation, args: args::BlobExplain) -> Outcome {
    let (env, path) = around(&of_image(place)?, &args.file)?;
    let report = inspect::explain(&env, &path).map_err(|e| unreadable(&args.file, &e))?;
    print(&if args.json {
        format!("{:#}\n", explained_json(&args.file, &report))
    } else {
        explained(&args.file, &report)
    })?;
    Ok(0)
}

/// Returns the bytes of the index for each record.
fn a_record(bytes: u64, report: &BlobReport) -> f64 {
    bytes as f64 / report.meta.records.max(1) as f64
}

fn explained_json(file: &Path, report: &BlobReport) -> Value {
    let (m, l) = (&report.meta, &report.layout);
    let families: Vec<Value> = (m.families.iter())
        .map(|(id, share)| json!({"id": id, "records": share.records, "bytes": share.bytes}))
        .collect();
    json!({
        "file": file.display().to_string(), "file_id": format!("{:032x}", m.file_id), "bytes": m.size,
        "records": m.records, "records_end": m.data_end,
        "min_sequence_number": m.min_seq, "max_sequence_number": m.max_seq,
        "sum_of_hashes": format!("{:016x}", report.hash_sum),
        "pages_at": l.pages_at, "hash_pages": l.hash_pages, "hash_bytes": l.hash_bytes,
        "position_pages": l.place_pages, "position_bytes": l.place_bytes, "directory_at": l.directory_at,
        "hash_bytes_a_record": a_record(l.hash_bytes, report),
        "index_bytes_a_record": a_record(l.hash_bytes + l.place_bytes, report),
        "may_have_compressed_values": report.compressed, "families": families,
    })
}

fn explained(file: &Path, report: &BlobReport) -> String {
    let (m, l) = (&report.meta, &report.layout);
    let mut out = format!("{}\n", file.display());
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<24} {value}");
    };
    line("file id", format!("{:032x}", m.file_id));
    line(
        "size",
        format!("{} ({} bytes)", human_bytes(m.size), m.size),
    );
    line(
        "values",
        format!(
            "{}, {} each with header and key, up to byte {}",
            m.records,
            human_bytes((m.data_end - 64) / m.records.max(1)),
            m.data_end
        ),
    );
    line(
        "compressed values",
        if report.compressed { "perhaps" } else { "none" }.to_string(),
    );
    line(
        "sequence numbers",
        format!("{} to {}", m.min_seq, m.max_seq),
    );
    for (id, share) in &m.families {
        line(
            &format!("family {id}"),
            format!(
                "{}, {}",
                count(share.records, "value", "values"),
                human_bytes(share.bytes)
            ),
        );
    }
    line(
        "hash pages",
        format!(
            "{}, {} from byte {}, {:.2} bytes a value",
            l.hash_pages,
            human_bytes(l.hash_bytes),
            l.pages_at,
            a_record(l.hash_bytes, report)
        ),
    );
    line(
        "position pages",
        format!(
            "{}, {}, {:.2} bytes a value",
            l.place_pages,
            human_bytes(l.place_bytes),
            a_record(l.place_bytes, report)
        ),
    );
    line(
        "directory",
        format!(
            "{} at byte {}, footer included",
            human_bytes(m.index.map_or(m.size, |i| i.size) - l.directory_at),
            l.directory_at
        ),
    );
    line("sum of hashes", format!("{:016x}", report.hash_sum));
    out
}
