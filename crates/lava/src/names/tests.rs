//! Unit tests of `names`.

use super::*;
use basalt_sim::rng::Rng;
use std::collections::BTreeMap;

/// Compares the list of each directory with the model.
fn check_children(names: &Names, model: &BTreeMap<(Ino, String), u32>) {
    for dir in 0..6 {
        let mut listed: Vec<(&str, Ino)> = names.children(dir).collect();
        listed.sort_unstable();
        let of = model.iter().filter(|((of, _), _)| *of == dir);
        assert!(
            listed
                .into_iter()
                .eq(of.map(|((_, n), ino)| (&n[..], *ino)))
        );
    }
}

#[test]
fn names_behave_like_a_map() {
    let mut c = Rng::new(3);
    let mut names = Names::default();
    let mut model = BTreeMap::new();
    for step in 0..60_000u32 {
        let dir = c.below(5) as Ino;
        let name = format!("{:0>1$}", c.below(800), 1 + c.below(3) as usize * 20);
        match names.find(dir, &name) {
            None => {
                assert_eq!(model.insert((dir, name.clone()), step), None);
                names.insert(dir, &name, step);
            }
            found => {
                assert_eq!(names.remove(dir, &name), found);
                assert_eq!(model.remove(&(dir, name)), found);
            }
        }
        assert_eq!(names.len(), model.len());
        if step % 500 == 0 {
            check_children(&names, &model);
        }
    }
    check_children(&names, &model);
    // Remove the names of all directories but one, and add names again.
    for ((dir, name), ino) in std::mem::take(&mut model) {
        if dir != 2 {
            assert_eq!(names.remove(dir, &name), Some(ino));
            continue;
        }
        model.insert((dir, name), ino);
    }
    check_children(&names, &model);
    for dir in 0..5 {
        names.insert(dir, "again", dir);
        model.insert((dir, "again".to_string()), dir);
    }
    check_children(&names, &model);
    let mut all: Vec<_> = names
        .iter()
        .map(|(dir, name, ino)| ((dir, name.to_string()), ino))
        .collect();
    all.sort();
    assert!(all.into_iter().eq(model));
    assert!(
        names.text.bytes() < 8 * PIECE,
        "the text of removed names goes"
    );
}
