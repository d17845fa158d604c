//! Names in statements of a load.

use super::*;

#[test]
fn names_are_quoted_where_they_need_it() {
    for (name, want) in [
        ("people", "people"),
        ("public.people_2", "public.people_2"),
        ("People", "\"People\""),
        ("a\"b", "\"a\"\"b\""),
        ("2a", "\"2a\""),
        ("", "\"\""),
        ("t; DROP TABLE t", "\"t; DROP TABLE t\""),
    ] {
        assert_eq!(quote_name(name), want);
    }
    let columns = ["id".to_string(), "Name".to_string()];
    assert_eq!(copy_statement("t", &[]), "COPY t FROM STDIN");
    assert_eq!(
        copy_statement("t", &columns),
        "COPY t (id, \"Name\") FROM STDIN"
    );
}

#[test]
fn flags_name_one_byte() {
    assert_eq!(one_byte("--quote", "'").unwrap(), b'\'');
    assert_eq!(one_byte("--delimiter", "\\t").unwrap(), b'\t');
    for text in ["", "ab", "é"] {
        one_byte("--delimiter", text).expect_err("refused");
    }
}
