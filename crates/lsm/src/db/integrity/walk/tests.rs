//! Unit tests of `walk`.

use super::Progress;

#[test]
fn progress_adds_up_over_two_walks_and_never_passes_its_total() {
    let mut shown = Vec::new();
    let mut show = |walked, total| shown.push((walked, total));
    let mut progress = Progress::new(&mut show);
    progress.count(5);
    progress.expect(10);
    progress.step(0);
    progress.step(20);
    assert_eq!(progress.walked(), 25);
    progress.expect(8);
    progress.show_inside(3, 8);
    progress.show_inside(9, 8);
    progress.count(8);
    progress.step(1);
    progress.step(u64::MAX);
    let all = [
        (5, 15),
        (25, 25),
        (28, 33),
        (33, 33),
        (34, 34),
        (u64::MAX, u64::MAX),
    ];
    assert_eq!(shown, all);
}
