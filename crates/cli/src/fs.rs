//! `fs`: commands on images and devices with Basalt's own filesystem: make, look into, copy in and
//! out, tidy, check, grow.

mod copy;
mod end;
mod remove;
mod show;

use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::filesystem::{Steps, make_image, open_image_alone};
use crate::location::Access;
use crate::output::print;
use crate::progress::{count, human_bytes, rate};
use basalt::env::Clock;
use basalt::lava::image::{self, Format};
use basalt_bench::flags::parse_size;
use clap::{Args, Subcommand};
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  basalt fs format store.lava --size 20G
  basalt serve --image store.lava
  basalt fs ls -l store.lava basalt-data
  basalt fs cp store.lava:basalt-data ./copy
  basalt fs cp ./copy store.lava:restored
  basalt fs rm -r store.lava restored
  basalt fs check store.lava && basalt check --image store.lava

An image is a file or a block device with Basalt's own filesystem: files that only grow, all metadata in memory, and a synced append that writes \
only its bytes. One process writes an image at a time; commands that only read may run side by side. `fs check` verifies the filesystem, `basalt check` the \
store in it.

Exit codes: 0 done; 1 damage was found; 2 not done.";

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Fs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make an empty filesystem in a file or on a block device
    Format(FormatArgs),
    /// List a directory of an image
    Ls(Ls),
    /// Show what an image knows of a file: length, names, extents
    Stat(Stat),
    /// Print a file's bytes
    Cat(Cat),
    /// Copy files and directories into an image or out of one
    Cp(Cp),
    /// Make directories in an image, and those that are missing above them
    Mkdir(Mkdir),
    /// Remove files and directories of an image, such as checkpoints, and stores that are not in
    /// use
    Rm(Rm),
    /// Prove that extents, counts and free space agree
    #[command(after_help = "\
Examples:
  basalt fs check store.lava
  basalt fs check store.lava && basalt check --image store.lava")]
    Check(Look),
    /// Make an image larger; nothing in it is moved
    Grow(Grow),
    /// Show what an image holds and costs: space, fragmentation, metadata
    #[command(after_help = "\
Examples:
  basalt fs report store.lava
  basalt fs report store.lava --json")]
    Report(Look),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs format store.lava --size 20G
  basalt fs format /dev/sdb

The space of an image file is written when the image is made, so that no later write allocates space of the disk below. With --sparse the image is made at \
once and allocates space later. Each first write of a block then costs a change of the kernel's metadata: synced appends run at less than half of their rate \
until all space is written. A block device is used whole, and discarded instead of written.

Before the format, all bytes of a file are read, and of a device the ends and a thousand positions between them. Bytes that are not zeros are data, and are \
kept unless --force is given.")]
struct FormatArgs {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Make it this many bytes long, such as 20G; a device or an existing file may go without
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// Do not write the file's space now
    #[arg(long)]
    sparse: bool,
    /// Do not discard the free space of a device, now or later: for a device whose space was
    /// written, such as a loop device over a file
    #[arg(long, conflicts_with = "sparse")]
    no_discard: bool,
    /// Destroy the present content
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
struct Look {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs ls store.lava
  basalt fs ls -l store.lava basalt-data")]
struct Ls {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The directory in it
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Print lengths and space, too
    #[arg(short, long)]
    long: bool,
    /// List directories inside of it, too
    #[arg(short, long)]
    recursive: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs stat store.lava basalt-data
  basalt fs stat store.lava basalt-data/CURRENT")]
struct Stat {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The file or directory in it
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs cat store.lava basalt-data/CURRENT > CURRENT")]
struct Cat {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The file in it
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs cp store.lava:basalt-data ./copy       copy a directory out of the image
  basalt fs cp ./copy store.lava:restored          copy it back
  basalt fs cp /dev/sdb:basalt-data/CURRENT .      copy a file into a directory

IMAGE:PATH is a path in the image; one of FROM and TO has this form. If TO is a directory, the copy gets the name of FROM in it; otherwise the directory above \
TO must exist. DIR/. is the content of DIR without DIR itself, so that `basalt fs cp --overwrite FROM/. TO` finishes an interrupted copy of FROM to TO. Nothing \
is replaced unless --overwrite is given. If FROM is a link, it is followed; links in a directory are left out. The copy is durable when the command returns. If a \
crash left the length of a file inexact, all of its space is copied, as readers of logs expect. An interrupted copy leaves the current file as \
.cp-HASH.unfinished, which the next copy into that directory removes.

Exit codes: 0 done; 2 not done, or not all of it: names that are not UTF-8 cannot be in an image.")]
struct Cp {
    /// The file or directory to copy
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// The target of the copy
    #[arg(value_name = "TO")]
    to: PathBuf,
    /// Replace existing files
    #[arg(long)]
    overwrite: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs mkdir store.lava old
  basalt fs mkdir /dev/sdb backups/monday backups/tuesday

Existing directories stay as they are. The new directories are durable when the command returns.")]
struct Mkdir {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The directories to make in it
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs rm -r store.lava monday                remove a checkpoint in the image
  basalt fs rm -r store.lava basalt-data/lost      remove the files that `basalt repair` put aside
  basalt fs rm store.lava notes.txt old/CURRENT

Removed files cannot be restored. A store is removed only if no process uses it. The space of a file that a checkpoint shares with its store becomes free \
when both names are removed. The command works on a full image, and the removal is durable when it returns.")]
struct Rm {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The files and directories in it
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Remove directories with everything in them, too
    #[arg(short, long)]
    recursive: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  basalt fs grow store.lava --size 40G
  lvextend -L +20G vg/basalt && basalt fs grow /dev/vg/basalt

The added space of a file is written, unless the image was made with --sparse. An interruption leaves the old size or the new one.")]
struct Grow {
    /// The image file, or the block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Grow to this many bytes in all [default: all of its file or device]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
}

/// Runs `basalt fs`.
pub fn fs(args: Fs) -> Outcome {
    match args.action {
        Action::Format(a) => {
            make_image(
                &a.image,
                &Format::default()
                    .size(a.size)
                    .sparse(a.sparse)
                    .no_discard(a.no_discard)
                    .force(a.force),
            )?;
            Ok(0)
        }
        Action::Ls(a) => {
            let fs = open_image_alone(&a.image, Access::Read)?;
            show::list(
                &fs,
                &a.image,
                &a.path.unwrap_or_default(),
                a.long,
                a.recursive,
                a.json,
            )
        }
        Action::Stat(a) => {
            let fs = open_image_alone(&a.image, Access::Read)?;
            show::stat(&fs, &a.image, &a.path.unwrap_or_default(), a.json)
        }
        Action::Cat(a) => {
            let fs = open_image_alone(&a.image, Access::Read)?;
            show::cat(&fs, &a.image, &a.path)
        }
        Action::Cp(a) => copy::copy(&a.from, &a.to, a.overwrite),
        Action::Mkdir(a) => {
            let fs = open_image_alone(&a.image, Access::Remove)?;
            remove::make(&fs, &a.image, &a.paths)
        }
        Action::Rm(a) => {
            let fs = open_image_alone(&a.image, Access::Remove)?;
            remove::remove(&fs, &a.image, &a.paths, a.recursive)
        }
        Action::Check(a) => check(&a),
        Action::Grow(a) => grow(&a),
        Action::Report(a) => {
            let fs = open_image_alone(&a.image, Access::Read)?;
            show::report(&fs, &a.image, a.json)
        }
    }
}

fn check(args: &Look) -> Outcome {
    let name = args.image.display();
    let found = image::check(&args.image).map_err(|e| Failure::image(&args.image, e))?;
    let sound = found.is_sound();
    // Counts up to the point of damage have no meaning.
    let counted = |n: u64| sound.then_some(n);
    if args.json {
        let damage: Vec<_> = (found.damage.iter())
            .map(|e| json!({"message": e.to_string(), "offset": e.offset()}))
            .collect();
        print(&format!(
            "{:#}\n",
            json!({
                "image": name.to_string(), "sound": sound, "damage": damage, "more_damage": found.more_damage,
                "mends": found.automatic_repairs, "clean": found.clean, "files": counted(found.files), "directories": counted(found.dirs),
                "names": counted(found.names), "extents": counted(found.extents), "file_bytes": counted(found.file_bytes),
                "metadata_bytes": counted(found.metadata_bytes), "fixed_bytes": counted(found.fixed_bytes), "free_bytes": counted(found.free_bytes),
                "journal_transactions": counted(found.journal_transactions),
            })
        ))?;
        return Ok(if sound { 0 } else { EXIT_NO });
    }
    let mut text = String::new();
    for e in &found.damage {
        let _ = writeln!(text, "damage: {e}");
    }
    if found.more_damage > 0 {
        let _ = writeln!(text, "damage: {} more places", found.more_damage);
    }
    for what in &found.automatic_repairs {
        let _ = writeln!(text, "the next command that writes repairs this: {what}");
    }
    let _ = match found.damage.len() as u64 + found.more_damage {
        0 => writeln!(
            text,
            "{name} is sound: {}, {}, {}, {} in {}; {} of metadata, {} free: every block has one owner",
            count(found.files, "file", "files"),
            count(found.dirs, "directory", "directories"),
            count(found.names, "name", "names"),
            human_bytes(found.file_bytes),
            count(found.extents, "extent", "extents"),
            human_bytes(found.metadata_bytes + found.fixed_bytes),
            human_bytes(found.free_bytes),
        ),
        n => writeln!(
            text,
            "{name} is damaged in {} or more; keep a copy of it. {}",
            count(n, "place", "places"),
            match image::open(&args.image, true, None) {
                Ok(_) => "It can be read: `basalt fs cp` copies its files out",
                Err(_) => "It cannot be opened, not even to read: go back to a backup",
            }
        ),
    };
    print(&text)?;
    Ok(if sound { 0 } else { EXIT_NO })
}

fn grow(args: &Grow) -> Outcome {
    let name = args.image.display();
    let clock = Clock::system();
    let began = clock.now();
    let mut bar = Steps::default();
    let grown = image::grow(&args.image, args.size, &mut |step, done, of| {
        bar.at(step, done, of);
    });
    bar.end();
    let (before, after) = grown.map_err(|e| Failure::image(&args.image, e))?;
    print(&if before == after {
        format!("{name} has {}, as before\n", human_bytes(after))
    } else {
        let written = match bar.written {
            0 => String::new(),
            n => format!("; {} written", rate(n, clock.now() - began)),
        };
        format!(
            "{name} has {}, {} more{written}\n",
            human_bytes(after),
            human_bytes(after - before)
        )
    })?;
    Ok(0)
}
