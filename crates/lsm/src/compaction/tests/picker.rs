//! The picker's choices as data: a tree in short notation, and the plan for it.

use super::*;
use crate::FamilyOptions;
use crate::compaction::{
    Claim, FullDisk, HiddenGarbageModel, OutputRange, PickContext, Plan, compaction_debt,
    level_targets, pick, scores, subranges,
};
use crate::options::Compression;
use crate::version::FamilyVersion;
use std::sync::atomic::Ordering;

/// Builds a tree from lines such as `L1: 7=a-c*100 8=d-f*50!`: number, key range, bytes. `!`: being
/// compacted, `~`: all tombstones, `@`: expired long ago, `#`: all references.
fn tree(text: &str) -> FamilyVersion {
    let store = store();
    let mut v = FamilyVersion::empty(Cmp::Bytewise);
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let (level, tables) = line.split_once(':').expect("level");
        let level: usize = level.trim_start_matches('L').parse().expect("level");
        for word in tables.split_whitespace() {
            let (number, rest) = word.split_once('=').expect("number");
            let (range, rest) = rest.split_once('*').expect("size");
            let (from, to) = range.split_once('-').expect("range");
            let digits = rest.trim_end_matches(['!', '~', '@', '#']);
            let mut m = meta(from, to, digits.parse().expect("size"));
            let number: u64 = number.parse().expect("number");
            m.max_seq = number * 10;
            m.min_seq = number * 10 - 5;
            if rest.contains('~') {
                m.deletes = m.entries;
            }
            if rest.contains('#') {
                m.references = [(1, m.entries)].into();
            }
            if rest.contains('@') {
                m.soonest_expiry_ms = 1;
            }
            let t = store.table(number, m, Cmp::Bytewise);
            t.compacting.store(rest.contains('!'), Ordering::SeqCst);
            v.insert(level, t);
        }
    }
    v.check().unwrap();
    v
}

fn options() -> FamilyOptions {
    FamilyOptions {
        table_bytes: 100,
        base_level_bytes: 1000,
        ..FamilyOptions::default()
    }
}

fn context<'a>(version: &'a FamilyVersion, options: &'a FamilyOptions) -> PickContext<'a> {
    PickContext {
        family: 4,
        version,
        options,
        now_ms: 10_000_000,
        oldest_snapshot: MAX_SEQ,
        running: &[],
        entering: &[],
        urgent: false,
        still_for: Default::default(),
        hidden_garbage: Default::default(),
        relocation_set: Default::default(),
    }
}

fn describe(plan: Option<Plan>) -> String {
    let Some(p) = plan else {
        return "nothing".to_string();
    };
    let mut out = format!("{}:", p.reason);
    for (level, tables) in &p.inputs {
        let numbers: Vec<_> = tables.iter().map(|t| t.number.to_string()).collect();
        out += &format!(" L{level}[{}]", numbers.join(" "));
    }
    out += &format!(" -> L{}", p.output_level);
    if p.trivial_move {
        out += " move";
    }
    if p.bottommost {
        out += " bottom";
    }
    out
}

#[test]
fn plans_do_not_overlap_the_outputs_of_running_merges() {
    let options = options();
    let v = tree("L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=a-z*100");
    for (family, level, from, to, chosen) in [
        (4, 6, "k", "l", false),
        (4, 5, "k", "l", true),
        (5, 6, "k", "l", true),
        (4, 6, "0", "9", true),
    ] {
        let entering = [OutputRange::of_keys(
            family,
            level,
            from.as_bytes(),
            to.as_bytes(),
        )];
        let context = PickContext {
            entering: &entering,
            ..context(&v, &options)
        };
        let plan = pick(&context);
        assert_eq!(plan.is_some(), chosen, "{}", describe(plan));
    }
}

#[test]
fn the_picker_chooses_the_documented_inputs() {
    for (name, text, want) in [
        ("an empty tree", "", "nothing"),
        (
            "level 0 below its trigger",
            "L0: 3=a-z*100 2=a-z*100 1=a-z*100",
            "nothing",
        ),
        (
            "a first merge goes to the last level",
            "L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=a-z*100",
            "level 0 tables: L0[4 3 2 1] -> L6 bottom",
        ),
        (
            "level 0 by bytes",
            "L0: 2=a-z*600 1=a-z*600",
            "level 0 bytes: L0[2 1] -> L6 bottom",
        ),
        (
            "overlap is followed through other tables",
            "L0: 4=c-e*100 3=x-z*100 2=b-c*100 1=a-b*100
             L6: 9=d-d*100 8=f-g*100",
            "level 0 tables: L0[4 2 1] L6[9] -> L6 bottom",
        ),
        (
            "a table that overlaps nothing only moves",
            "L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=0-1*100",
            "level 0 tables: L0[1] -> L6 move bottom",
        ),
        (
            "but not when it is tombstones: those end at the bottom",
            "L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=0-1*100~",
            "level 0 tables: L0[1] -> L6 bottom",
        ),
        (
            "nor when values in it have expired",
            "L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=0-1*100@",
            "level 0 tables: L0[1] -> L6 bottom",
        ),
        (
            "one compaction of level 0 at a time",
            "L0: 8=p-q*100 7=p-q*100 6=p-q*100 5=p-q*100 4=a-b*100!",
            "nothing",
        ),
        (
            "nothing when a table below is taken",
            "L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=a-z*100
             L6: 9=m-n*100!",
            "nothing",
        ),
        (
            "too much in level 0: the oldest part goes first",
            "L0: 4=a-z*1000 3=a-z*1000 2=a-z*1000 1=a-z*1000",
            "level 0 tables: L0[2 1] -> L6 bottom",
        ),
        (
            "the least overlap for its size goes first",
            "L5: 11=a-c*600 12=d-f*600 13=g-i*600
             L6: 21=a-b*3000 22=d-e*3000 23=g-g*500 24=m-z*3000",
            "level bytes: L5[13] L6[23] -> L6 bottom",
        ),
        (
            "an old table's overlap counts less",
            "L5: 11=a-c*600 912=d-f*600 913=g-i*600
             L6: 21=a-b*3000 22=d-e*3000 23=g-g*500 24=m-z*3000",
            "level bytes: L5[11] L6[21] -> L6 bottom",
        ),
        (
            "taken tables are passed over",
            "L5: 11=a-c*1200 12=d-f*1200 13=g-i*600!
             L6: 21=a-b*3000 22=d-e*3100 23=g-g*500! 24=m-z*3000",
            "level bytes: L5[11] L6[21] -> L6 bottom",
        ),
        (
            "neighbours come along where that costs nothing below",
            "L5: 11=a-b*600 12=c-d*600
             L6: 21=a-d*500 24=m-z*9000",
            "level bytes: L5[11 12] L6[21] -> L6 bottom",
        ),
        (
            "a move with little below",
            "L4: 1=a-b*600 2=x-z*600
             L5: 11=n-p*900
             L6: 21=a-b*500 24=m-z*60000",
            "level bytes: L4[1] -> L5 move",
        ),
        (
            "no move over too many grandparents",
            "L4: 1=a-b*1200
             L5: 11=n-p*900
             L6: 21=a-a*600 22=b-b*600 24=m-z*60000",
            "level bytes: L4[1] -> L5",
        ),
        (
            "expired values at the bottom are rewritten in place",
            "L6: 1=a-b*100@ 2=c-d*100",
            "expired values: L6[1] -> L6 bottom",
        ),
        (
            "expired values above something go down",
            "L5: 3=a-b*100@
             L6: 1=a-b*100 2=c-d*100",
            "expired values: L5[3] L6[1] -> L6 bottom",
        ),
        (
            "expired values in level 0 too",
            "L0: 3=a-b*100@
             L6: 1=a-b*100 2=c-d*100",
            "expired values: L0[3] L6[1] -> L6 bottom",
        ),
        (
            "tombstones go to what they hide",
            "L5: 3=a-b*100~ 4=c-d*100
             L6: 1=a-b*100 2=c-d*100",
            "tombstones: L5[3] L6[1] -> L6 bottom",
        ),
        (
            "tombstones at the bottom hide nothing",
            "L6: 1=a-b*100~ 2=c-d*100",
            "tombstones: L6[1] -> L6 bottom",
        ),
    ] {
        let (v, o) = (tree(text), options());
        let plan = pick(&context(&v, &o));
        if let Some(p) = &plan {
            assert_eq!(p.family, 4);
        }
        assert_eq!(describe(plan), want, "{name}");
    }
}

#[test]
fn tombstones_that_a_snapshot_needs_are_not_picked() {
    let (v, o) = (tree("L6: 1=a-b*100~"), options());
    let mut ctx = context(&v, &o);
    ctx.oldest_snapshot = 9;
    assert!(pick(&ctx).is_none());
    ctx.oldest_snapshot = 10;
    assert!(pick(&ctx).is_some());
}

#[test]
fn a_trivial_move_does_not_skip_bottom_compression() {
    let v = tree("L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=0-1*100");
    let mut o = options();
    o.bottom_compression = Some(Compression::Zstd);
    assert_eq!(
        describe(pick(&context(&v, &o))),
        "level 0 tables: L0[1] -> L6 bottom"
    );
}

#[test]
fn level_targets_follow_the_bottom_level() {
    for (text, base, want) in [
        ("", 6, [0, 0, 0, 0, 0, 0, 1000]),
        ("L6: 1=a-b*900", 6, [0, 0, 0, 0, 0, 0, 1000]),
        ("L6: 1=a-b*9000", 5, [0, 0, 0, 0, 0, 1000, 9000]),
        ("L6: 1=a-b*90000", 4, [0, 0, 0, 0, 1000, 9000, 90000]),
        // The base level is never below data, however little there is.
        (
            "L3: 2=a-b*10
             L6: 1=a-b*900",
            3,
            [0, 0, 0, 1000, 1000, 1000, 1000],
        ),
    ] {
        let (v, o) = (tree(text), options());
        let t = level_targets(&v, &o);
        assert_eq!((t.base_level, t.bytes), (base, want), "{text}");
    }
}

#[test]
fn level_scores_and_debt_are_computed() {
    let o = options();
    let v = tree(
        "L0: 3=a-z*100 2=a-z*100
         L5: 5=a-b*1500
         L6: 1=a-b*9000",
    );
    assert_eq!(scores(&v, &o)[0], (5, 1.5));
    assert_eq!(scores(&v, &o)[1], (0, 0.5));
    // Level 5 has 500 bytes too many. With them their share of level 6 is merged.
    assert_eq!(compaction_debt(&v, &o), 500 + 500 * 9000 / 1500);
    let v = tree("L6: 1=a-b*9000");
    assert_eq!(compaction_debt(&v, &o), 0);
}

#[test]
fn a_claim_is_all_or_nothing_and_ends_when_dropped() {
    let (v, o) = (
        tree("L0: 4=a-z*100 3=a-z*100 2=a-z*100 1=a-z*100"),
        options(),
    );
    let plan = pick(&context(&v, &o)).unwrap();
    let taken = v.levels[0][2].clone();
    taken.compacting.store(true, Ordering::SeqCst);
    assert!(Claim::take(&plan).is_none());
    assert!(!v.levels[0][0].compacting.load(Ordering::SeqCst));
    taken.compacting.store(false, Ordering::SeqCst);
    let claim = Claim::take(&plan).unwrap();
    assert!(
        v.levels[0]
            .iter()
            .all(|t| t.compacting.load(Ordering::SeqCst))
    );
    assert!(pick(&context(&v, &o)).is_none());
    drop(claim);
    assert!(pick(&context(&v, &o)).is_some());
}

#[test]
fn subranges_cover_every_key_once() {
    let mut o = options();
    o.base_level_bytes = 100;
    // No table can be opened here, so a table counts as whole or as half.
    let v = tree(
        "L0: 4=a-z*800 3=a-m*800
         L6: 11=a-c*300 12=d-f*300 13=g-i*300 14=j-p*300 15=q-z*300",
    );
    let plan = pick(&context(&v, &o)).unwrap();
    assert_eq!(subranges(&Cmp::Bytewise, &plan, 10_000, 8).len(), 1);
    for max in 1..8 {
        let ranges = subranges(&Cmp::Bytewise, &plan, 100, max);
        assert!(ranges.len() <= max && (max < 3 || ranges.len() >= 2));
        assert_eq!(ranges[0].0, None);
        assert_eq!(ranges.last().unwrap().1, None);
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].1, pair[1].0);
            assert!(pair[0].0 < pair[0].1);
        }
    }
}

/// A merge of level 0 rewrites the base level, however many tables it takes. Under an urgent writer
/// level 0 waits for more tables, within bounds.
#[test]
fn an_urgent_writer_gets_larger_merges_of_level_0() {
    let o = options();
    let due = |l0: &str, bottom: u64, urgent: bool| {
        let v = tree(&format!("L0: {l0}\n L6: 100=a-z*{bottom}"));
        let ctx = PickContext {
            urgent,
            ..context(&v, &o)
        };
        pick(&ctx).is_some()
    };
    let l0 = |n: u64| {
        let tables: Vec<_> = (1..=n).rev().map(|i| format!("{i}=a-z*200")).collect();
        tables.join(" ")
    };
    // The usual trigger is four tables.
    assert!(due(&l0(4), 6000, false) && !due(&l0(3), 6000, false));
    // The base holds as much as 30 tables. Two thirds of the tables that slow writers are 8.
    assert!(!due(&l0(7), 6000, true) && due(&l0(8), 6000, true));
    // The base holds as much as 5 tables.
    assert!(!due(&l0(4), 1000, true) && due(&l0(5), 1000, true));
    // The trigger is never below the usual one.
    assert!(!due(&l0(3), 100, true) && due(&l0(4), 100, true));
}

/// Returns the bytes that tables hide, by level. Each record has ten bytes, and each reference has
/// an older one below it.
#[test]
fn hidden_bytes_do_not_exceed_the_bytes_below() {
    let hidden = |text: &str| {
        let v = tree(text);
        let all = HiddenGarbageModel {
            mean_record_bytes: 10.0,
            max_record_bytes: 10.0,
            hidden_per_reference: 10.0,
            most: 1e9,
            room: 1.0,
            bound_is_near: true,
            full: None,
        };
        let scores = all.scores(&v, |level| level + 1);
        let by_level: Vec<u64> = scores[..3].iter().map(|s| *s as u64).collect();
        (all.hidden(&v), by_level)
    };
    // Nothing is hidden without data below, or without large values below.
    assert_eq!(hidden("L0: 1=a-f*100#"), (0, vec![0, 0, 0]));
    assert_eq!(hidden("L0: 1=a-f*100#\nL2: 2=a-z*500"), (0, vec![0, 0, 0]));
    assert_eq!(hidden("L0: 1=a-f*100#\nL2: 2=g-z*500#"), (0, vec![0, 0, 0]));
    // Tables above enough references, above fewer, and above fewer than they hide together.
    let one = |n: u64| (n * 10, vec![n * 10, 0, 0]);
    assert_eq!(hidden("L0: 1=a-f*100#\nL2: 2=a-z*500#"), one(100));
    assert_eq!(hidden("L0: 1=a-f*100#\nL2: 2=a-z*5#"), one(5));
    assert_eq!(
        hidden("L0: 4=a-f*3# 3=g-l*2# 1=m-z*4#\nL2: 2=a-z*5#"),
        one(5)
    );
    // Tombstones hide values as well, those of older tables of level 0 included.
    assert_eq!(hidden("L0: 4=a-f*7~ 3=a-f*4#"), one(4));
    assert_eq!(hidden("L0: 4=a-f*4# 3=a-f*7~"), (0, vec![0, 0, 0]));
    // A key has versions in three levels. The middle one hides first, the lowest one; the highest
    // then hides the middle one.
    let chain = "L0: 9=a-f*6#\nL1: 5=a-f*6#\nL2: 2=a-z*6#";
    assert_eq!(hidden(chain), (120, vec![60, 60, 0]));
    // A deep table hides the values below it, even if a wider table lies above it.
    let wide = "L0: 9=a-z*20~\nL1: 5=a-c*10#\nL2: 1=a-c*10# 2=d-z*90#";
    assert_eq!(hidden(wide), (300, vec![200, 100, 0]));
    // A table that is being merged still hides values. Its merge is not due a second time.
    assert_eq!(hidden("L0: 1=a-f*3#!\nL2: 2=a-z*5#"), (30, vec![0, 0, 0]));
}

/// On a full disk the picker chose the oldest tables of level 0, without the newest tables and
/// their tombstones. No such merge fitted, so the deletes of a user freed no space.
#[test]
fn merges_on_a_full_disk_fit_the_free_space() {
    let o = options();
    let v = tree(
        "L0: 6=a-z*1000~ 5=a-z*1000 4=a-z*1000 3=a-z*2400
         L6: 2=a-z*1000",
    );
    let chosen = |full: Option<FullDisk>| {
        let hidden_garbage = HiddenGarbageModel {
            full,
            ..HiddenGarbageModel::default()
        };
        describe(pick(&PickContext {
            hidden_garbage,
            ..context(&v, &o)
        }))
    };
    let full = |room, must_fit| chosen(Some(FullDisk { room, must_fit }));
    // 1000 of 5400 values are deleted.
    let all = "level 0 tables: L0[6 5 4 3] L6[2] -> L6 bottom";
    assert_eq!(full(5300, false), all);
    // Among the newest tables the deleted part is larger. Older tables keep the tombstones.
    let three = "level 0 tables: L0[6 5 4] -> L0";
    let two = "level 0 tables: L0[6 5] -> L0";
    assert_eq!(full(3000, false), three);
    assert_eq!(full(1000, false), two);
    // A merge took more space than expected, so no value counts as deleted.
    assert_eq!(full(3000, true), three);
    assert_eq!(full(2500, true), two);
    // No merge surely fits, or the disk is not full: the plan takes the oldest part.
    let oldest = "level 0 tables: L0[3] L6[2] -> L6 bottom";
    assert_eq!(full(1000, true), oldest);
    assert_eq!(chosen(None), oldest);
}
