//! For each false assumption of an engine about a disk, a tiny engine that makes it, and a careful
//! twin. The first must lose data on `SimFs` within a few hundred power cuts, the second never.
//! This is why a passing engine test means something.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use basalt_fs::{File, FileSystem, Intent, LogOptions};
use basalt_sim::{CrashPolicy, Lie, LieKind, SimFs, SimOptions, When};

fn p(s: &str) -> &Path {
    Path::new(s)
}

fn append(f: &Arc<dyn File>, bytes: &[u8]) -> u64 {
    f.append(&[IoSlice::new(bytes)], Intent::Sync).unwrap()
}

/// Returns a disk with a durable directory.
fn sim(seed: u64) -> Arc<SimFs> {
    let fs = SimFs::new(SimOptions {
        write_unit: if seed.is_multiple_of(2) { 512 } else { 4096 },
        seed,
        ..SimOptions::default()
    });
    fs.create_dir(p("d")).unwrap();
    fs.sync_metadata(p("")).unwrap();
    fs
}

/// Reads `len` bytes at `at`, whatever the length is. Returns `None` if the name or the bytes are
/// missing.
fn read(fs: &SimFs, path: &str, at: u64, len: usize) -> Option<Vec<u8>> {
    let bytes = fs.open(p(path)).ok()?.read(at, len).unwrap();
    (bytes.len() == len).then(|| bytes.to_vec())
}

/// Returns a record that shows by itself whether it is whole: fill byte, length, checksum, content.
fn record(fill: u8, len: usize) -> Vec<u8> {
    let body = vec![fill; len];
    let mut r = vec![fill];
    r.extend_from_slice(&(len as u32).to_le_bytes());
    r.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    r.extend_from_slice(&body);
    r
}

/// Runs an engine on many disks, each cut under every policy. `run` writes, and returns a judge of
/// the state after the cut: it says whether the engine's promise still holds.
fn failures<J: Fn(&SimFs) -> bool>(run: impl Fn(&Arc<SimFs>) -> J) -> usize {
    let mut lost = 0;
    for seed in 0..60 {
        let fs = sim(seed);
        let judge = run(&fs);
        for &policy in CrashPolicy::ALL {
            lost += usize::from(!judge(&fs.crash(policy, seed)));
        }
    }
    lost
}

#[track_caller]
fn caught<J: Fn(&SimFs) -> bool>(naive: impl Fn(&Arc<SimFs>) -> J) {
    assert!(
        failures(naive) > 0,
        "the disk is too kind: the naive engine got away with it"
    );
}

#[track_caller]
fn sound<J: Fn(&SimFs) -> bool>(careful: impl Fn(&Arc<SimFs>) -> J) {
    assert_eq!(
        failures(careful),
        0,
        "the disk takes more than the contract allows"
    );
}

/// Returns true if the state after a cut keeps the engine's promise.
type Judge = Box<dyn Fn(&SimFs) -> bool>;

fn named_file(fs: &Arc<SimFs>, path: &str) -> Arc<dyn File> {
    let f = fs.create(p(path)).unwrap();
    fs.sync_metadata(p("d")).unwrap();
    f
}

#[test]
fn an_append_is_not_durable_by_itself() {
    let engine = |sync: bool| {
        move |fs: &Arc<SimFs>| {
            let f = named_file(fs, "d/f");
            append(&f, b"acknowledged");
            if sync {
                f.sync_data().unwrap();
            }
            |cut: &SimFs| read(cut, "d/f", 0, 12).as_deref() == Some(b"acknowledged")
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn unsynced_appends_have_no_order() {
    // The false assumption: "If the commit mark is there, the record before it is there."
    let engine = |sync_between: bool| {
        move |fs: &Arc<SimFs>| {
            let f = named_file(fs, "d/f");
            append(&f, &[1; 4096]);
            if sync_between {
                f.sync_data().unwrap();
            }
            append(&f, &[2; 4096]);
            |cut: &SimFs| {
                let mark = read(cut, "d/f", 4096, 4096) == Some(vec![2; 4096]);
                !mark || read(cut, "d/f", 0, 4096) == Some(vec![1; 4096])
            }
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn appends_to_two_files_have_no_order() {
    let engine = |sync_between: bool| {
        move |fs: &Arc<SimFs>| {
            let (value, key) = (named_file(fs, "d/values"), named_file(fs, "d/keys"));
            append(&value, &[7; 100]);
            if sync_between {
                value.sync_data().unwrap();
            }
            append(&key, b"points to value 0");
            |cut: &SimFs| {
                let key = read(cut, "d/keys", 0, 17).as_deref() == Some(b"points to value 0");
                !key || read(cut, "d/values", 0, 100) == Some(vec![7; 100])
            }
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn the_length_does_not_show_which_bytes_were_written() {
    // The false assumption: all bytes up to len() were written by this engine. The length may be
    // long. Recovery stops at len(), which may also be short.
    let by_length = |exact: bool| {
        move |fs: &Arc<SimFs>| {
            let f = named_file(fs, "d/f");
            append(&f, &[5; 3_000]);
            f.sync_data().unwrap();
            if exact {
                f.sync_all().unwrap();
            }
            |cut: &SimFs| cut.open(p("d/f")).is_ok_and(|f| f.len() == 3_000)
        }
    };
    caught(by_length(false));
    sound(by_length(true));
    let log_end = |fs: &Arc<SimFs>| {
        let options = LogOptions {
            capacity: 65_536,
            reuse: None,
        };
        let f = fs.create_log(p("d/log"), options).unwrap();
        fs.sync_metadata(p("d")).unwrap();
        append(&f, &[5; 3_000]);
        f.sync_data().unwrap();
        |cut: &SimFs| cut.open(p("d/log")).is_ok_and(|f| f.len() == 3_000)
    };
    caught(log_end);
}

#[test]
fn unsynced_bytes_inside_the_length_may_be_anything() {
    // The false assumption: "A file whose length is right is whole." There may be length without
    // data, and not even zeros.
    caught(|fs: &Arc<SimFs>| {
        let f = named_file(fs, "d/f");
        append(&f, &[5; 3_000]);
        |cut: &SimFs| {
            let f = cut.open(p("d/f")).unwrap();
            f.len() != 3_000 || read(cut, "d/f", 0, 3_000) == Some(vec![5; 3_000])
        }
    });
    // The false assumption: "Bytes that this engine did not write are zero."
    caught(|fs: &Arc<SimFs>| {
        let f = named_file(fs, "d/f");
        append(&f, &[5; 3_000]);
        |cut: &SimFs| {
            let f = cut.open(p("d/f")).unwrap();
            f.read(0, 8_192).unwrap().iter().all(|b| [0, 5].contains(b))
        }
    });
}

#[test]
fn a_created_name_needs_its_directory_synced() {
    let engine = |sync: bool| {
        move |fs: &Arc<SimFs>| {
            let f = fs.create(p("d/f")).unwrap();
            append(&f, b"x");
            f.sync_all().unwrap();
            if sync {
                fs.sync_metadata(p("d")).unwrap();
            }
            |cut: &SimFs| read(cut, "d/f", 0, 1).as_deref() == Some(b"x")
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn a_new_directory_needs_its_parent_synced() {
    let engine = |sync: bool| {
        move |fs: &Arc<SimFs>| {
            fs.create_dir(p("d/new")).unwrap();
            let f = fs.create(p("d/new/f")).unwrap();
            append(&f, b"x");
            f.sync_all().unwrap();
            fs.sync_metadata(p("d/new")).unwrap();
            if sync {
                fs.sync_metadata(p("d")).unwrap();
            }
            |cut: &SimFs| read(cut, "d/new/f", 0, 1).as_deref() == Some(b"x")
        }
    };
    caught(engine(false));
    sound(engine(true));
}

/// Points CURRENT at a new state by a rename, with or without each of its two syncs.
fn switch(sync_content: bool, sync_dir: bool) -> impl Fn(&Arc<SimFs>) -> Judge {
    move |fs| {
        let old = fs.create(p("d/CURRENT")).unwrap();
        append(&old, b"state 1");
        old.sync_all().unwrap();
        fs.sync_metadata(p("d")).unwrap();
        let new = fs.create(p("d/tmp")).unwrap();
        append(&new, b"state 2");
        if sync_content {
            new.sync_all().unwrap();
        }
        fs.rename(p("d/tmp"), p("d/CURRENT")).unwrap();
        if sync_dir {
            fs.sync_metadata(p("d")).unwrap();
        }
        Box::new(move |cut| {
            let got = read(cut, "d/CURRENT", 0, 7);
            let new = got.as_deref() == Some(b"state 2");
            new || (!sync_dir && got.as_deref() == Some(b"state 1"))
        })
    }
}

#[test]
fn a_rename_is_atomic_but_carries_no_bytes_with_it() {
    caught(switch(false, false));
    caught(switch(false, true));
    sound(switch(true, false));
    sound(switch(true, true));
}

#[test]
fn a_rename_is_durable_only_with_its_directory() {
    // The false assumption: after the rename returned, the old state may be removed.
    let engine = |sync: bool| {
        move |fs: &Arc<SimFs>| {
            let _ = switch(true, sync)(fs);
            |cut: &SimFs| read(cut, "d/CURRENT", 0, 7).as_deref() == Some(b"state 2")
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn directory_changes_have_no_order() {
    // The false assumption: "The old log is removed after the new table was made, so one of them is
    // there."
    let engine = |sync_between: bool| {
        move |fs: &Arc<SimFs>| {
            let log = named_file(fs, "d/log");
            append(&log, b"x");
            log.sync_all().unwrap();
            let table = fs.create(p("d/table")).unwrap();
            append(&table, b"x");
            table.sync_all().unwrap();
            if sync_between {
                fs.sync_metadata(p("d")).unwrap();
            }
            fs.remove(p("d/log")).unwrap();
            |cut: &SimFs| cut.exists(p("d/log")).unwrap() || cut.exists(p("d/table")).unwrap()
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn a_removed_name_may_return_after_a_power_cut() {
    let engine = |sync: bool| {
        move |fs: &Arc<SimFs>| {
            named_file(fs, "d/f");
            fs.remove(p("d/f")).unwrap();
            if sync {
                fs.sync_metadata(p("d")).unwrap();
            }
            |cut: &SimFs| !cut.exists(p("d/f")).unwrap()
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn an_append_of_many_sectors_is_not_atomic() {
    // This engine believes the record if its first byte is right. The twin believes its checksum.
    let engine = |checked: bool| {
        move |fs: &Arc<SimFs>| {
            let f = named_file(fs, "d/f");
            append(&f, &record(3, 20_000));
            move |cut: &SimFs| {
                let f = cut.open(p("d/f")).unwrap();
                let all = f.read(0, f.allocated() as usize).unwrap();
                if all.len() < 9 || all[0] != 3 {
                    return true;
                }
                let len = u32::from_le_bytes(all[1..5].try_into().unwrap()) as usize;
                let sum = u32::from_le_bytes(all[5..9].try_into().unwrap());
                let Some(body) = all.get(9..9 + len) else {
                    return true;
                };
                if checked && crc32c::crc32c(body) != sum {
                    return true;
                }
                len == 20_000 && body.iter().all(|b| *b == 3)
            }
        }
    };
    caught(engine(false));
    sound(engine(true));
}

/// Writes one record into recycled space that holds a valid record of an earlier life further on.
/// Recovery reads records until one is not valid. `bound` says whether a record's checksum covers
/// the life that it belongs to.
fn recycle(bound: bool) -> impl Fn(&Arc<SimFs>) -> Judge {
    move |fs| {
        let options = LogOptions {
            capacity: 16_384,
            reuse: None,
        };
        let unit = fs.info().write_unit;
        let put = |log: &Arc<dyn File>, life: u8, fill: u8| {
            let mut r = record(fill, 100);
            if bound {
                r[5] ^= life;
            }
            append(log, &r);
            log.sync_data().unwrap();
            log.align_to_unit().unwrap();
        };
        let old = fs.create_log(p("d/old"), options).unwrap();
        put(&old, 1, 11);
        put(&old, 1, 12);
        fs.sync_metadata(p("d")).unwrap();
        let reuse = LogOptions {
            reuse: Some(p("d/old")),
            ..options
        };
        let new = fs.create_log(p("d/new"), reuse).unwrap();
        fs.sync_metadata(p("d")).unwrap();
        put(&new, 2, 21);
        Box::new(move |cut| {
            let log = cut.open(p("d/new")).unwrap();
            let mut found = Vec::new();
            for at in 0.. {
                let r = log.read((at * unit) as u64, 109).unwrap();
                if r.len() < 109 || r[1..5] != 100u32.to_le_bytes() {
                    break;
                }
                let mut sum = crc32c::crc32c(&r[9..]).to_le_bytes();
                if bound {
                    sum[0] ^= 2;
                }
                if r[5..9] != sum {
                    break;
                }
                found.push(r[0]);
            }
            found == [21]
        })
    }
}

#[test]
fn recycled_space_shows_its_earlier_life() {
    caught(recycle(false));
    sound(recycle(true));
}

#[test]
fn a_file_new_by_name_may_show_a_removed_files_bytes() {
    caught(|fs: &Arc<SimFs>| {
        let old = named_file(fs, "d/old");
        append(&old, &[0xee; 4_096]);
        old.sync_all().unwrap();
        fs.remove(p("d/old")).unwrap();
        drop(old);
        fs.sync_metadata(p("d")).unwrap();
        append(&named_file(fs, "d/new"), &[0x11; 4_096]);
        |cut: &SimFs| read(cut, "d/new", 0, 512) != Some(vec![0xee; 512])
    });
}

#[test]
fn a_later_sync_does_not_repair_a_failed_one() {
    // This engine syncs again through a fresh handle, gets Ok, and believes it. The twin writes the
    // record again elsewhere.
    let engine = |again: bool| {
        move |fs: &Arc<SimFs>| {
            let f = named_file(fs, "d/f");
            fs.lie(Lie {
                kind: LieKind::FailedSync,
                path: "d/f".into(),
                when: When::Nth(1),
            });
            append(&f, &[1; 9_000]);
            assert!(f.sync_data().is_err());
            assert!(f.sync_data().is_err(), "the handle is poisoned");
            assert_eq!(f.read(0, 9_000).unwrap(), vec![1; 9_000]);
            let home = if again {
                fs.open(p("d/f")).unwrap().sync_all().unwrap();
                "d/f"
            } else {
                let g = named_file(fs, "d/g");
                append(&g, &[1; 9_000]);
                g.sync_data().unwrap();
                "d/g"
            };
            move |cut: &SimFs| read(cut, home, 0, 9_000) == Some(vec![1; 9_000])
        }
    };
    caught(engine(true));
    sound(engine(false));
}

#[test]
fn data_read_after_a_kill_may_still_be_lost() {
    // This engine recovers an unsynced record after the death of the process and acknowledges it.
    // Then the power fails.
    let engine = |sync: bool| {
        move |fs: &Arc<SimFs>| {
            append(&named_file(fs, "d/f"), b"record");
            let next = fs.kill();
            assert_eq!(read(&next, "d/f", 0, 6).as_deref(), Some(&b"record"[..]));
            if sync {
                next.open(p("d/f")).unwrap().sync_data().unwrap();
            }
            move |_: &SimFs| {
                CrashPolicy::ALL.iter().all(|&policy| {
                    read(&next.crash(policy, 1), "d/f", 0, 6).as_deref() == Some(b"record")
                })
            }
        }
    };
    caught(engine(false));
    sound(engine(true));
}

#[test]
fn released_space_may_reappear_after_a_power_cut() {
    let outcomes = |want_zero: bool| {
        move |fs: &Arc<SimFs>| {
            let f = named_file(fs, "d/f");
            append(&f, &[4; 8_192]);
            f.sync_all().unwrap();
            f.release_range(0..4_096).unwrap();
            move |cut: &SimFs| (read(cut, "d/f", 0, 1) == Some(vec![0])) == want_zero
        }
    };
    caught(outcomes(true));
    caught(outcomes(false));
}

#[test]
fn synced_neighbouring_bytes_are_never_changed() {
    sound(|fs: &Arc<SimFs>| {
        let f = named_file(fs, "d/f");
        let mut good = Vec::new();
        for i in 1..10u8 {
            let r = record(i, usize::from(i) * 333);
            good.push((append(&f, &r), r));
            f.sync_data().unwrap();
            f.align_to_unit().unwrap();
        }
        append(&f, &[0xff; 10_000]);
        move |cut: &SimFs| {
            good.iter()
                .all(|(at, r)| read(cut, "d/f", *at, r.len()).as_ref() == Some(r))
        }
    });
}
