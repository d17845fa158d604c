//! Commands with a backslash are parsed as psql does, or refused with a sentence.

use super::*;

#[test]
fn commands_are_parsed() {
    use MetaCommand as M;
    for (line, want) in [
        ("\\q", M::Quit),
        ("\\?\n", M::Help),
        ("\\h create table", M::Syntax("create table".into())),
        ("\\timing", M::Timing(None)),
        ("\\x on;", M::Expanded(Some(true))),
        ("\\pset null 'a ''b'", M::Null("a 'b".into())),
        ("\\pset format csv", M::Format("csv".into())),
        ("\\echo a  'b  c'", M::Echo("a b  c".into())),
        ("\\i 'my file.sql'", M::Include("my file.sql".into())),
        ("\\d", M::List("tvs".into(), None)),
        ("\\d t;", M::Describe("t".into())),
        ("\\dt", M::List("t".into(), None)),
        ("\\di+ p*", M::List("i".into(), Some("p*".into()))),
    ] {
        assert_eq!(parse(line), Ok(want), "{line}");
    }
    for line in [
        "\\foo",
        "\\i",
        "\\i a b",
        "\\x maybe",
        "\\pset",
        "\\echo 'a",
        "\\dq",
        "\\",
    ] {
        let why = parse(line).expect_err("refused");
        assert!(!why.is_empty() && !why.contains('\n'), "{why}");
    }
}

#[test]
fn copies_become_statements_for_the_server() {
    for (line, statement, file, is_from) in [
        (
            "t from 'a b.csv' csv header",
            "COPY t FROM STDIN csv header",
            "a b.csv",
            true,
        ),
        (
            "\"my to\" (a, b) TO x",
            "COPY \"my to\" (a, b) TO STDOUT",
            "x",
            false,
        ),
        (
            "(select ' to ' from t) to 'it''s' with (format csv);",
            "COPY (select ' to ' from t) TO STDOUT with (format csv)",
            "it's",
            false,
        ),
    ] {
        let want = FileCopy {
            statement: statement.into(),
            file: file.into(),
            is_from,
        };
        assert_eq!(
            parse(&format!("\\copy {line}")),
            Ok(MetaCommand::Copy(want))
        );
    }
    for line in [
        "",
        "t",
        "t from",
        "t from 'x",
        "from x",
        "t into x",
        ") to x",
        "é to",
    ] {
        parse(&format!("\\copy {line}")).expect_err("refused");
    }
}

#[test]
fn the_forms_of_commands_are_found() {
    assert!(syntax("").unwrap().contains("CREATE TABLE"));
    assert!(syntax("insert into").unwrap().contains("ON CONFLICT"));
    assert!(syntax("create").unwrap().matches("CREATE").count() >= 4);
    assert!(syntax("vacuum").unwrap_err().contains("\\h"));
    let names: Vec<&str> = SYNTAX.iter().map(|(name, _)| *name).collect();
    assert!(names.is_sorted());
}

/// Pieces of which hostile lines consist.
const PIECES: &[&str] = &[
    "copy", "d", " ", "'", "\"", "(", ")", "from", "to", "é", ";", "\\", "pset", "null", "x",
];

#[test]
fn any_line_is_parsed_or_refused() {
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % n
    };
    for _ in 0..20_000 {
        let n = below(12);
        let line: String = (0..n).map(|_| PIECES[below(PIECES.len())]).collect();
        let _ = parse(&format!("\\{line}"));
        let _ = parse(&format!("\\copy {line}"));
    }
}
