//! Errors look as psql's, and results are whole.

use super::*;
use basalt_sql::SqlType;

#[test]
fn an_error_shows_its_position() {
    let e = SqlError::new(SqlState::UNDEFINED_COLUMN, "column \"x\" does not exist")
        .with_position(15)
        .with_detail("D.")
        .with_hint("H.");
    assert_eq!(
        error_text("ERROR", &e, "SELECT a,\n    x FROM t\n"),
        "ERROR:  42703: column \"x\" does not exist\nLINE 2:     x FROM t\n            ^\n\
         DETAIL:  D.\nHINT:  H.\n"
    );
    for position in [0, 1, 1000] {
        let text = caret("SELECT", position);
        assert_eq!(text.lines().count(), 2, "{text}");
    }
    let long = format!("SELECT {}, x, {}", "a".repeat(80), "b".repeat(80));
    let text = caret(&long, 90);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0].chars().nth(lines[1].len() - 1),
        Some('x'),
        "{text}"
    );
    assert!(
        lines[0].starts_with("LINE 1: ...") && lines[0].ends_with("..."),
        "{text}"
    );
}

#[test]
fn an_empty_result_has_a_header() {
    let columns = [ResultColumn {
        name: "id".into(),
        ty: SqlType::Integer,
        array: None,
        origin: None,
    }];
    let print = |format, is_expanded| {
        let style = Style {
            format,
            null: String::new(),
            is_expanded,
        };
        let mut out = Vec::new();
        let printer = ResultPrinter::new(&mut out, &style, &columns, None);
        printer.finish("SELECT 0", false).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        print(ResultFormat::Aligned, false),
        " id \n----\n(0 rows)\n\n"
    );
    assert_eq!(print(ResultFormat::Aligned, true), "(0 rows)\n\n");
    assert_eq!(print(ResultFormat::Csv, false), "id\n");
    assert_eq!(print(ResultFormat::Json, false), "");
    assert_eq!(
        print(ResultFormat::JsonDocument, false),
        "{\"tag\":\"SELECT 0\",\"columns\":[{\"name\":\"id\",\"type\":\"integer\"}],\"rows\":[]}"
    );
}
