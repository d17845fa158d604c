//! An explanation of a read agrees with the read: values, tombstones, expiry, operands and ranges,
//! in memtables, in pages and in tables.

use super::prelude::*;
use crate::TreeOptions;
use basalt_env::{Clock, EnvBuilder, ManualClock, Random};
use basalt_kv::key::Kind;
use basalt_kv::merge::Append;
use basalt_sim::{SimFs, SimOptions};
use std::path::Path;
use std::time::Duration;

const START_MS: u64 = 1_000_000;

fn families() -> [(&'static str, FamilyOptions); 2] {
    let append = || FamilyOptions::default().merge_operator(Some(Arc::new(Append::new(*b","))));
    let pages = TreeOptions::default()
        .page_bytes(400)
        .extent_bytes(8 << 10)
        .max_deltas(3);
    [
        ("pages", append().pages(Some(pages))),
        ("levels", append().table_bytes(4 << 10)),
    ]
}

fn options() -> Options {
    let [(_, pages), (_, levels)] = families();
    let mut options = Options::default().write_buffer_bytes(64 << 10);
    options.families.insert("pages".to_string(), pages);
    options.families.insert("levels".to_string(), levels);
    options
}

/// Returns the value that the versions of an explanation give, the newest one first.
fn fold<'a>(versions: impl Iterator<Item = &'a ExplainedVersion>) -> Option<Vec<u8>> {
    let mut operands: Vec<&[u8]> = Vec::new();
    let mut base = None;
    for version in versions {
        match version.kind {
            Kind::Merge => operands.push(&version.value),
            Kind::Delete => break,
            _ => {
                base = (!version.is_expired).then_some(&version.value[..]);
                break;
            }
        }
    }
    let parts: Vec<&[u8]> = base.into_iter().chain(operands.into_iter().rev()).collect();
    (!parts.is_empty()).then(|| parts.join(&b","[..]))
}

/// Returns the versions of memtables that no range tombstone hides, and a tombstone for those.
fn in_memory(explained: &ReadExplanation) -> Vec<ExplainedVersion> {
    let mut versions = Vec::new();
    for memtable in &explained.memtables {
        let deleted = memtable.range_deleted_at;
        let newer = memtable.versions.iter().filter(|v| v.seq > deleted);
        versions.extend(newer.cloned());
        if deleted.is_some() {
            let tombstone = ExplainedVersion {
                seq: deleted,
                kind: Kind::Delete,
                value: Bytes::new(),
                expire_at_ms: None,
                is_expired: false,
                blob_file: None,
            };
            versions.push(tombstone);
        }
    }
    versions
}

fn write(db: &Db, family: &Family, random: &Random, now_ms: u64) {
    let key = format!("k{:02}", random.below(40));
    let value = format!("v{}", random.below(1000));
    let (key, value) = (key.as_bytes(), value.as_bytes());
    let mut batch = WriteBatch::new();
    match random.below(10) {
        0 | 1 => batch.delete(family, key),
        2 | 3 => batch.put_ttl(family, key, value, now_ms + random.below(3000)),
        4..=6 => batch.merge(family, key, value),
        7 => {
            let to = format!("k{:02}", random.below(40));
            match key < to.as_bytes() {
                true => batch.delete_range(family, key, to.as_bytes()),
                false => Ok(()),
            }
        }
        _ => batch.put(family, key, value),
    }
    .unwrap();
    db.write(batch, &WriteOptions::default()).unwrap();
}

/// How often explanations had something.
#[derive(Debug, Default)]
struct Seen {
    memtables_decide: u64,
    ranges: u64,
    lists: u64,
    hidden_pages: u64,
    found_tables: u64,
    hidden_tables: u64,
}

/// Compares explanations of all keys with reads.
fn compare(db: &Db, family: &Family, seen: &mut Seen) {
    for n in 0..41 {
        let key = format!("k{n:02}");
        let read = db.get(family, key.as_bytes(), &ReadOptions::default());
        let read = read.unwrap().map(|value| value.to_vec());
        let explained = db.explain(family, key.as_bytes()).unwrap();
        let answer = explained.answer.as_ref().unwrap();
        assert_eq!(answer.as_ref().map(|found| found.value.to_vec()), read);
        let in_memory = in_memory(&explained);
        let decides = in_memory.iter().any(|v| v.kind != Kind::Merge);
        assert_eq!(explained.memtables_decide, decides);
        seen.memtables_decide += u64::from(decides);
        let has_range = |m: &ExplainedMemtable| m.range_deleted_at.is_some();
        seen.ranges += u64::from(explained.memtables.iter().any(has_range));
        if family.name() == "pages" {
            assert!(explained.tables.is_empty() && explained.tables_out_of_range == 0);
            let pages = explained.pages.as_ref().expect("the family has pages");
            assert!(pages.error.is_none());
            let versions = in_memory.iter().chain(&explained.page_versions);
            assert_eq!(fold(versions), read, "{key}");
            seen.lists += u64::from(explained.page_versions.len() > 1);
            let leaf = pages.leaf.as_ref().expect("no page is damaged");
            let hidden = leaf.pages.iter();
            let hidden = hidden.filter(|p| matches!(p.verdict, PageVerdict::Hidden(Some(_))));
            seen.hidden_pages += hidden.count() as u64;
            continue;
        }
        assert!(explained.pages.is_none());
        let mut is_decided = decides;
        for table in &explained.tables {
            match &table.verdict {
                TableVerdict::Found(version) => {
                    assert!(!is_decided, "{key}");
                    seen.found_tables += 1;
                    is_decided = version.kind != Kind::Merge;
                }
                TableVerdict::Hidden(_) => {
                    assert!(is_decided, "{key}");
                    seen.hidden_tables += 1;
                }
                TableVerdict::Filtered | TableVerdict::Absent => assert!(!is_decided, "{key}"),
                TableVerdict::Damaged(e) => panic!("{e}"),
            }
        }
        assert!(is_decided || read.is_none() || has_operands(&explained));
    }
}

/// Returns true if an operand is among the versions.
fn has_operands(explained: &ReadExplanation) -> bool {
    let in_memory = explained.memtables.iter().flat_map(|m| &m.versions);
    let in_tables = explained.tables.iter();
    let in_tables = in_tables.filter_map(|table| match &table.verdict {
        TableVerdict::Found(version) => Some(version),
        _ => None,
    });
    in_memory.chain(in_tables).any(|v| v.kind == Kind::Merge)
}

#[test]
fn an_explanation_agrees_with_the_read() {
    let mut seen = Seen::default();
    for seed in 0..6 {
        let disk = SimFs::new(SimOptions::default());
        let (random, clock) = (Random::from_seed(seed), ManualClock::new(START_MS));
        let opens = std::cell::Cell::new(0);
        let env = || {
            // An open must not draw the numbers of extents that a tree had before.
            opens.set(opens.get() + 1);
            let env = EnvBuilder::for_tests(disk.clone(), seed + 10 * opens.get());
            env.clock(Clock::manual(clock.clone())).build()
        };
        let mut db = Db::open(&env(), "db", options()).unwrap();
        for (name, family) in families() {
            db.create_family(name, family).unwrap();
        }
        for step in 0..600 {
            let handle = |name: &str| db.family(name).unwrap();
            let both = [handle("pages"), handle("levels")];
            for family in &both {
                write(&db, family, &random, env().clock().wall_ms());
            }
            clock.advance(Duration::from_millis(random.below(20)));
            match random.below(40) {
                0 => db.flush().unwrap(),
                1 => db.compact_range(&both[0], None, None).unwrap(),
                2 => db.compact_range(&both[1], None, None).unwrap(),
                _ => {}
            }
            if step % 30 == 0 {
                both.iter()
                    .for_each(|family| compare(&db, family, &mut seen));
            }
            if step % 150 == 149 {
                // A store that is opened for reading has the log in its memtables.
                drop(both);
                db.sync().unwrap();
                db.abandon();
                let reader = Db::open_read_only(&env(), "db", options()).unwrap();
                for name in ["pages", "levels"] {
                    let family = reader.family(name).unwrap();
                    compare(&reader, &family, &mut seen);
                }
                reader.close().unwrap();
                db = Db::open(&env(), "db", options()).unwrap();
            }
        }
        db.close().unwrap();
    }
    println!("{seen:?}");
    let Seen {
        memtables_decide,
        ranges,
        lists,
        hidden_pages,
        found_tables,
        hidden_tables,
    } = seen;
    for count in [memtables_decide, ranges, found_tables, hidden_tables] {
        assert!(count > 100, "{count}");
    }
    assert!(lists > 20 && hidden_pages > 100, "{lists} {hidden_pages}");
}

#[test]
fn pages_of_a_family_in_levels_are_refused_and_those_of_others_are_checked() {
    let disk = SimFs::new(SimOptions::default());
    let env = Env::for_tests(disk.clone(), 1);
    let db = Db::open(&env, "db", options()).unwrap();
    for (name, family) in families() {
        db.create_family(name, family).unwrap();
    }
    let (pages, levels) = (db.family("pages").unwrap(), db.family("levels").unwrap());
    for n in 0..50u32 {
        let key = n.to_be_bytes();
        db.put(&pages, &key, &[7; 50], &WriteOptions::default())
            .unwrap();
    }
    db.flush().unwrap();
    let refused = db.inspect_pages(&levels).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(
        refused.to_string().contains("levels of tables"),
        "{refused}"
    );
    let inspector = db.inspect_pages(&pages).unwrap();
    let leaves = inspector.count_leaves().unwrap();
    let mut positions = Vec::new();
    inspector.each(false, &mut |node| {
        if node.level == 0 {
            positions.push(node.base.position.clone());
        }
        true
    });
    assert_eq!(positions.len() as u64, leaves);
    drop((inspector, pages, levels));
    let busy = Db::check_pages(&env, "db", &options(), None).err().unwrap();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    db.close().unwrap();
    let missing = Db::check_pages(&env, "nowhere", &options(), None)
        .err()
        .unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let [(name, found)] = &Db::check_pages(&env, "db", &options(), None).unwrap()[..] else {
        panic!("one family is in pages");
    };
    assert_eq!((&name[..], found.counts.leaves), ("pages", leaves));
    assert_eq!(found.counts.entries, 50);
    assert!(found.damage.is_empty());
    let report = Db::verify_store(&env, "db", &options(), &mut |_, _| ()).unwrap();
    assert_eq!(report.entries, 50);
    let last = positions.last().unwrap();
    let files = Path::new("db/pages/1").join(&last.file);
    disk.flip_bit(&files, last.offset + last.bytes - 1, 0)
        .unwrap();
    let found = &Db::check_pages(&env, "db", &options(), None).unwrap()[0].1;
    assert_eq!(found.damage.len(), 1, "{:?}", found.damage);
    assert_eq!(found.damage[0].path(), Some(&*files));
    let report = Db::verify_store(&env, "db", &options(), &mut |_, _| ()).unwrap();
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    assert!((1..50).contains(&report.entries), "{}", report.entries);
}
