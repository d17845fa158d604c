//! Tables look as psql's.

use super::*;

fn table(columns: &[(&str, bool)], rows: &[&[&str]]) -> String {
    let columns = columns.iter().map(|(name, is_right)| Column {
        name: (*name).to_string(),
        is_right: *is_right,
    });
    let mut table = Table::new(columns.collect());
    for row in rows {
        table.row(row.iter().copied());
    }
    let mut out = String::new();
    table.take(None, &mut out);
    table.footer(&mut out);
    out
}

#[test]
fn numbers_are_aligned_to_the_right() {
    assert_eq!(
        table(
            &[("id", true), ("name", false)],
            &[&["1", "a"], &["200", "bcdef"]]
        ),
        " id  | name  \n-----+-------\n   1 | a\n 200 | bcdef\n(2 rows)\n\n"
    );
    assert_eq!(
        table(&[("x", true)], &[&["1"]]),
        " x \n---\n 1\n(1 row)\n\n"
    );
    assert_eq!(table(&[("x", false)], &[]), " x \n---\n(0 rows)\n\n");
}

#[test]
fn lines_of_a_value_are_lines_of_the_table() {
    assert_eq!(
        table(
            &[("a", false), ("b", false)],
            &[&["x\nyy", "1\n2"], &["z", "3"]]
        ),
        " a  | b \n----+---\n x +| 1+\n yy | 2\n z  | 3\n(2 rows)\n\n"
    );
}

#[test]
fn wide_characters_count_twice_and_control_characters_are_escaped() {
    assert_eq!(
        table(
            &[("a", false), ("b", false)],
            &[&["日本", "\u{1b}[2J"], &["é", "a\tb"]]
        ),
        "  a   |     b     \n------+-----------\n 日本 | \\x1B[2J\n é    | a       b\n(2 rows)\n\n"
    );
}

#[test]
fn expanded_records_have_one_line_a_column() {
    let mut out = String::new();
    expanded(
        1,
        &["id", "name"],
        &["1", "a long text of a column"],
        &mut out,
    );
    expanded(2, &["id", "name"], &["2", "x\nyy"], &mut out);
    assert_eq!(
        out,
        "-[ RECORD 1 ]-----------------\nid   | 1\nname | a long text of a column\n\
         -[ RECORD 2 ]\nid   | 2\nname | x +\n     | yy\n"
    );
}

#[test]
fn a_table_can_be_written_in_parts() {
    let mut table = Table::of_names(&["a"]);
    let mut out = String::new();
    table.row(["1"]);
    assert!(table.bytes() > 0);
    table.take(Some("Title"), &mut out);
    table.row(["222"]);
    table.take(Some("Title"), &mut out);
    table.footer(&mut out);
    assert_eq!(out, "Title\n a \n---\n 1\n 222\n(2 rows)\n\n");
}
