//! Tests with devices that lie: an acknowledged write is lost or goes to another place. A mount
//! shows a state of the history or reports damage. It never shows a mixture.

use super::power_cuts::{History, shown};
use super::*;
use super::{by_hand, fresh, scale};
use basalt_sim::rng::Rng;
use basalt_sim::{DeviceCut, DeviceFault};

/// Runs random histories in which one write of data or metadata goes astray.
#[test]
fn a_misdirected_write_is_found_unless_it_was_the_last() {
    let (mut struck, mut found, mut old) = (0, 0, 0);
    for seed in basalt_sim::campaign::cases(0..600 * scale()) {
        let _repeat = basalt_sim::repeat!(
            a_misdirected_write_is_found_unless_it_was_the_last,
            "BASALT_CASE={seed}"
        );
        let mut c = Rng::of(&[seed, 4711]);
        let (device, fs) = fresh(512);
        let mut h = History::new(seed + 1_000_000, &device, fs);
        h.lies = true;
        let (n, by) = (c.below(50), c.pick(&[512, 4096, 65_536, 1 << 20, 1 << 22]));
        device.fail(match c.coin() {
            true => DeviceFault::Lost(n),
            false => DeviceFault::Misplaced(n, by),
        });
        for _ in 0..c.below(80) {
            h.step();
            if c.percent(30) {
                h.sync();
            }
        }
        let (now, states) = h.states();
        let clean = c.coin();
        let astray = device.faults_left() == 0;
        struck += u64::from(astray);
        let left = match clean {
            true => {
                drop(h);
                device.cut(DeviceCut::All)
            }
            false => device.cut(DeviceCut::Some(seed)),
        };
        let place = format!("seed {seed}, write {n}, clean {clean}");
        let checked = check::check(&*left, Path::new("image"));
        let fs = match LavaFs::mount(left.clone(), &by_hand()) {
            Ok(fs) => fs,
            Err(e) => {
                assert!(
                    e.is_corruption() && device.faults_left() == 0,
                    "{place}: {e}"
                );
                assert!(!checked.unwrap().is_sound(), "{place}");
                found += 1;
                continue;
            }
        };
        let checked = checked.unwrap();
        assert!(checked.is_sound(), "{place}: {:?}", checked.damage);
        let (mut files, mut dirs) = (BTreeMap::new(), Vec::new());
        shown(&fs, "", &mut files, &mut dirs);
        dirs.sort();
        if now.is(&files, &dirs) {
            continue;
        }
        let known = states.iter().any(|s| s.is(&files, &dirs));
        assert!(known, "{place}: {:?} and {dirs:?}", files.keys());
        // A clean unmount says how far the journal goes.
        assert!(!clean, "{place}: a clean end, and something older");
        old += 1;
    }
    basalt_sim::campaign!(
        "writes gone astray: {struck}, found at a mount: {found}, an older state: {old}"
    );
    assert!(basalt_sim::campaign::case().is_some() || struck > 100 && found > 10);
}
