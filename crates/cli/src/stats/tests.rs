//! Tests of the module `stats`.

use super::*;
use basalt::StallCause;
use basalt::env::BudgetUse;
use basalt::{BlobShare, BlobStats, Error, ErrorKind, FamilyStats, LevelStats, StallStats};

fn report() -> Report {
    let level = |tables, bytes, target_bytes, entries| {
        let mut level = LevelStats::default();
        level.tables = tables;
        level.bytes = bytes;
        level.target_bytes = target_bytes;
        level.entries = entries;
        level.deletes = 1;
        level.score = 0.5;
        level.bytes_entered = bytes;
        level.bytes_written = bytes * 3;
        level
    };
    Report {
        dir: "d".into(),
        place: "d".into(),
        filesystem: "f".into(),
        logs: None,
        leaves: BTreeMap::new(),
        engine: {
            let mut stats = Stats::default();
            stats.families = vec![{
                let mut family = FamilyStats::default();
                family.name = "default".into();
                family.levels = vec![
                    level(2, 20 << 20, 0, 10),
                    level(0, 0, 0, 0),
                    level(3, 100 << 20, 256 << 20, 90),
                ];
                family
            }];
            stats.log_bytes = 30 << 20;
            stats.user_bytes_written = 100;
            stats.wal_bytes_written = 110;
            stats.flush_bytes_written = 90;
            let full = Error::new(ErrorKind::NoSpace, "the device is full");
            stats.read_only = Some(ReadOnlyReason::Halted(full));
            stats.blobs = {
                let mut blobs = BlobStats::default();
                blobs.files = 2;
                blobs.bytes = 12 << 20;
                blobs.live_records = 7;
                blobs.live_bytes = 10 << 20;
                blobs.names = 3;
                blobs.max_space_amp = 1.25;
                blobs.by_garbage = {
                    let mut shares = [BlobShare::default(); 10];
                    shares[1] = {
                        let mut share = BlobShare::default();
                        share.files = 2;
                        share.bytes = 12 << 20;
                        share.garbage_bytes = 2 << 20;
                        share
                    };
                    shares
                };
                blobs.collected_bytes_written = 20;
                blobs.hidden_bytes = 1 << 20;
                blobs.space_debt = 7;
                blobs.pressure = 0.2;
                blobs.recent_bytes_added = 100;
                blobs.recent_collection_bytes_written = 50;
                blobs
            };
            stats.stall_us = vec![(StallCause::Level0, 1500)];
            stats.stalls = vec![StallStats::new(StallCause::Level0, 2, 1500)];
            stats.budgets = vec![
                BudgetUse::new("open_files", 3, 40),
                BudgetUse::new("background_io_bytes_per_s", 2048, 0),
            ];
            stats
        },
        cache: CacheStats::default(),
        memory: LedgerUse::default(),
        fs: FsStats::default(),
    }
}

#[test]
fn tables_show_shape_and_amplification() {
    let text = report().tables();
    for part in [
        "family default, 3 sorted runs",
        "WRITES FAIL: no space: the device is full",
        "space, at most                 1.49",
        "write, since open              2.20",
        "L2",
        "256.00 MiB",
        "level0                         2 times, 0.002 s",
        "open_files                     3 of 40",
        "background_io_bytes_per_s      2.00 KiB no limit",
        "live / garbage                 10.00 MiB in 7 values / 2.00 MiB",
        "space amplification            1.33, at most 1.25",
        "room below the bound           none, 768.00 KiB beyond it",
        "overwritten, not merged yet    about 1.00 MiB",
        "1.50 bytes written to blob files for each byte of new values, writers slowed by 20 %",
        "write, by cause                log 1.10, flush 0.90, ingest 0.00, compaction 0.00, collection 0.20",
        "10 to  20 %    2 files    12.00 MiB  ##############################\n",
        "20 to  30 %    0 files\n",
        "3.00",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("L1"), "empty levels are not shown\n{text}");
    let mut guessed = report();
    guessed.engine.blobs.hidden_is_guessed = true;
    let text = guessed.tables();
    let said = "overwritten, not merged yet    perhaps 1.00 MiB, estimated from overlapping keys";
    assert!(text.contains(said), "{text}");
}

#[test]
fn json_has_the_same_figures() {
    let mut reading = report();
    reading.engine.read_only = Some(ReadOnlyReason::OpenedForReading);
    assert_eq!(reading.json()["read_only"], "opened for reading only");
    assert!(!reading.tables().contains("WRITES FAIL"));
    let json = report().json();
    assert_eq!(json["read_only"], "no space: the device is full");
    assert_eq!(json["amplification"]["space"], 1.49);
    assert_eq!(json["amplification"]["write_since_open"], 2.2);
    assert_eq!(
        json["amplification"]["write_since_open_by_cause"]["collection"],
        0.2
    );
    assert_eq!(json["blobs"]["headroom_bytes"], -(768 << 10));
    assert_eq!(json["blobs"]["space_debt"], 7);
    assert_eq!(json["blobs"]["recent"]["collections_write_amp"], 1.5);
    assert_eq!(json["blobs"]["by_garbage"][1]["files"], 2);
    assert_eq!(json["blobs"]["by_garbage"][1]["from_percent"], 10);
    assert_eq!(json["families"][0]["levels"][2]["target_bytes"], 256 << 20);
    assert_eq!(json["since_open"]["stall_us"]["level0"], 1500);
    assert_eq!(json["since_open"]["stalls"]["level0"], 2);
    assert_eq!(json["budgets"]["open_files"]["limit"], 40);
    assert_eq!(json["blobs"]["garbage_bytes"], 2 << 20);
    assert_eq!(json["blobs"]["space_amp"], 1.33);
    let level = &json["families"][0]["levels"][2];
    assert_eq!(level["since_open"]["write_amp"], 3.0);
}
