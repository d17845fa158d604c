//! Tests of the module `table`.

use super::*;

/// Returns the table of `docs/server.md`.
fn document() -> String {
    let mut out = String::from("| command | does | cost |\n|---|---|---|\n");
    let mut row = |name: &str, s: &Spec| {
        out.push_str(&format!("| {name} | {} | {} |\n", s.summary, s.complexity));
    };
    for spec in COMMANDS {
        if spec.subcommands.is_empty() {
            row(&spec.name.to_uppercase(), spec);
        }
        for sub in spec.subcommands {
            row(&sub.full_name.replace('|', " ").to_uppercase(), sub);
        }
    }
    out
}

#[test]
fn the_document_lists_exactly_these_commands() {
    let page = include_str!("../../../../../docs/server.md");
    let table = document();
    assert!(
        page.contains(&table),
        "docs/server.md should contain this table:\n{table}"
    );
}

#[test]
fn the_table_is_sorted_and_consistent() {
    let check = |list: &[Spec]| {
        assert!(list.is_sorted_by(|a, b| a.name < b.name));
        for s in list {
            assert!(s.full_name.ends_with(s.name) && s.name.len() <= 24);
            assert!(s.arity != 0);
            assert_eq!(s.name, s.name.to_lowercase());
        }
    };
    check(COMMANDS);
    for s in COMMANDS {
        check(s.subcommands);
    }
    let keys = |name: &str, len| -> Vec<usize> {
        find(COMMANDS, name.as_bytes()).unwrap().keys(len).collect()
    };
    assert_eq!(keys("MSET", 5), [1, 3]);
    assert_eq!(keys("mget", 4), [1, 2, 3]);
    assert_eq!(keys("get", 2), [1]);
    assert!(keys("ping", 2).is_empty());
}
