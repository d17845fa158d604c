//! Damage of extents and how long it is remembered.

use super::*;

fn extents(numbers: &[u64]) -> BTreeSet<ExtentId> {
    numbers.iter().copied().map(ExtentId).collect()
}

/// Regression test: damage of one extent made the wait of all others begin again, and was
/// reported as theirs. An extent whose ranges were derived stayed.
#[test]
fn each_extent_has_its_own_damage_and_its_own_wait() {
    let damage = |what: &str| Error::corruption(std::path::Path::new("extent"), 0, what);
    let mut underived = UnderivedExtents::default();
    underived.note(&extents(&[1, 2]), &damage("first"), 0);
    underived.note(&extents(&[3]), &damage("second"), 100);
    underived.forget(&extents(&[2]));
    let mut among = |numbers: &[u64], written| {
        let (found, damage) = underived.among(&extents(numbers), written, 800);
        (found, damage.map(|e| e.to_string()))
    };
    let (found, reported) = among(&[1, 2, 3], 100);
    assert_eq!(found, extents(&[1, 3]));
    assert!(reported.is_some_and(|e| e.contains("first")));
    let (found, reported) = among(&[1, 2, 3], 101);
    assert_eq!(found, extents(&[3]));
    assert!(reported.is_some_and(|e| e.contains("second")));
    assert_eq!(among(&[1, 2, 3], 201), (extents(&[]), None));
}
