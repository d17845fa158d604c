//! Tests of the module `stats`.

use super::*;
use basalt::env::BudgetUse;
use basalt::lsm::db::{BlobShare, BlobStats, FamilyStats, LevelStats, StallStats};

fn report() -> Report {
    let level = |tables, bytes, target_bytes, entries| LevelStats {
        tables,
        bytes,
        target_bytes,
        entries,
        deletes: 1,
        score: 0.5,
        bytes_entered: bytes,
        bytes_written: bytes * 3,
        ..LevelStats::default()
    };
    Report {
        dir: "d".into(),
        place: "d".into(),
        filesystem: "f".into(),
        engine: Stats {
            families: vec![FamilyStats {
                name: "default".into(),
                levels: vec![
                    level(2, 20 << 20, 0, 10),
                    level(0, 0, 0, 0),
                    level(3, 100 << 20, 256 << 20, 90),
                ],
            }],
            log_bytes: 30 << 20,
            user_bytes_written: 100,
            wal_bytes_written: 110,
            flush_bytes_written: 90,
            read_only: Some("the device is full".into()),
            blobs: BlobStats {
                files: 2,
                bytes: 12 << 20,
                live_records: 7,
                live_bytes: 10 << 20,
                names: 3,
                max_space_amp: 1.25,
                by_garbage: {
                    let mut shares = [BlobShare::default(); 10];
                    shares[1] = BlobShare {
                        files: 2,
                        bytes: 12 << 20,
                        garbage_bytes: 2 << 20,
                    };
                    shares
                },
                collected_bytes_written: 20,
                hidden_bytes: 1 << 20,
                space_debt: 7,
                pressure: 0.2,
                recent_bytes_added: 100,
                recent_collection_bytes_written: 50,
                ..BlobStats::default()
            },
            stall_us: vec![("level 0", 1500)],
            stalls: vec![StallStats {
                cause: "level 0",
                count: 2,
                us: 1500,
            }],
            budgets: vec![
                BudgetUse {
                    name: "open_files",
                    used: 3,
                    limit: 40,
                },
                BudgetUse {
                    name: "background_io_bytes_per_s",
                    used: 2048,
                    limit: 0,
                },
            ],
            ..Stats::default()
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
        "WRITES FAIL: the device is full",
        "space, at most                 1.49",
        "write, since open              2.20",
        "L2",
        "256.00 MiB",
        "level 0                        2 times, 0.002 s",
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
    let json = report().json();
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
    assert_eq!(json["since_open"]["stall_us"]["level 0"], 1500);
    assert_eq!(json["since_open"]["stalls"]["level 0"], 2);
    assert_eq!(json["budgets"]["open_files"]["limit"], 40);
    assert_eq!(json["blobs"]["garbage_bytes"], 2 << 20);
    assert_eq!(json["blobs"]["space_amp"], 1.33);
    let level = &json["families"][0]["levels"][2];
    assert_eq!(level["since_open"]["write_amp"], 3.0);
}
