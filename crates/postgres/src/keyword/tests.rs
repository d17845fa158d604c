//! First words of statements.

use super::*;

#[test]
fn the_first_word_is_found_behind_comments() {
    assert_eq!(keyword("select 1"), Keyword::Select);
    assert_eq!(keyword("  (SELECT 1) UNION (SELECT 2)"), Keyword::Select);
    assert_eq!(
        keyword("-- begin\n/* a /* b */ c */ Commit"),
        Keyword::Commit
    );
    assert_eq!(keyword("START TRANSACTION READ ONLY"), Keyword::Begin);
    assert_eq!(keyword("rollback to savepoint a"), Keyword::Rollback);
    assert_eq!(keyword("selection"), Keyword::Other);
    assert_eq!(keyword("/* open"), Keyword::Other);
    assert_eq!(keyword("-- only"), Keyword::Other);
    assert_eq!(keyword(""), Keyword::Other);
    assert_eq!(keyword("größer"), Keyword::Other);
}

#[test]
fn deallocate_names_statements() {
    let name = |name: &str| Deallocated::Name(name.into());
    assert_eq!(deallocated("DEALLOCATE ALL"), Deallocated::All);
    assert_eq!(deallocated("deallocate prepare all ;"), Deallocated::All);
    assert_eq!(deallocated("DEALLOCATE S_1"), name("s_1"));
    assert_eq!(deallocated("DEALLOCATE PREPARE \"S \"\"1\""), name("S \"1"));
    assert_eq!(deallocated("DISCARD ALL"), Deallocated::All);
    assert_eq!(deallocated("DISCARD PLANS"), Deallocated::None);
}
