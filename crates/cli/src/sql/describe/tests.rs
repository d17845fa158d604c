//! Descriptions look as psql's.

use super::*;
use basalt_sql::SqlType;
use basalt_sql::catalog::{CheckDef, ColumnDef, IndexDef, SequenceDef, ViewDef};
use std::sync::Arc;

fn column(name: &str, ty: SqlType) -> ColumnDef {
    ColumnDef {
        name: name.into(),
        ty,
        not_null: false,
        default: None,
        missing: None,
        sequence: None,
        always_generated: false,
        dropped: false,
    }
}

fn catalog() -> Catalog {
    let mut catalog = Catalog::default();
    let mut id = column("id", SqlType::Integer);
    id.sequence = Some(2);
    let mut gone = column("gone", SqlType::Text);
    gone.dropped = true;
    let mut name = column("name", SqlType::Varchar(Some(20)));
    name.not_null = true;
    name.default = Some("'x'".into());
    let table = |id: u32, name: &str, columns: Vec<ColumnDef>| TableDef {
        id,
        name: name.into(),
        columns,
        primary_key: vec![0],
        primary_key_name: format!("{name}_pkey"),
        row_sequence: None,
        indexes: Vec::new(),
        checks: Vec::new(),
        foreign_keys: Vec::new(),
        version: 1,
        is_ready: true,
        storage: id,
    };
    let mut people = table(1, "people", vec![id, gone, name]);
    people.indexes.push(IndexDef {
        id: 4,
        name: "people_name".into(),
        columns: vec![2],
        unique: true,
        is_constraint: false,
        is_ready: true,
        storage: 4,
    });
    people.checks.push(CheckDef {
        name: "named".into(),
        expression: String::new(),
        text: "name <> ''".into(),
    });
    let mut pets = table(3, "pets", vec![column("owner", SqlType::Integer)]);
    pets.foreign_keys.push(ForeignKeyDef {
        name: "pets_owner_fkey".into(),
        columns: vec![0],
        parent: 1,
        parent_columns: vec![0],
        parent_index: None,
        on_delete: ForeignKeyAction::Cascade,
        on_update: ForeignKeyAction::Restrict,
    });
    catalog.put(Object::Sequence(Arc::new(SequenceDef {
        id: 2,
        name: "people_id_seq".into(),
        start: 1,
        increment: 1,
        owner: Some((1, 0)),
    })));
    catalog.put(Object::Table(Arc::new(people)));
    catalog.put(Object::Table(Arc::new(pets)));
    catalog.put(Object::View(Arc::new(ViewDef {
        id: 5,
        name: "everyone".into(),
        query: String::new(),
        text: "SELECT name FROM people".into(),
        columns: vec![("name".into(), SqlType::Text)],
        reads: vec!["people".into()],
    })));
    catalog
}

#[test]
fn a_table_is_described_with_all_of_its_parts() {
    let text = describe(&catalog(), "people").unwrap();
    let want = "Table \"public.people\"
 Column |         Type          | Collation | Nullable |               Default               
--------+-----------------------+-----------+----------+-------------------------------------
 id     | integer               |           | not null | nextval('people_id_seq'::regclass)
 name   | character varying(20) |           | not null | 'x'
Indexes:
    \"people_pkey\" PRIMARY KEY, btree (id)
    \"people_name\" UNIQUE, btree (name)
Check constraints:
    \"named\" CHECK (name <> '')
Referenced by:
    TABLE \"pets\" CONSTRAINT \"pets_owner_fkey\" FOREIGN KEY (owner) REFERENCES people(id) \
ON DELETE CASCADE

";
    let unpadded = |t: &str| -> Vec<String> {
        let lines = t
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.map(|l| l.replace('-', "")).collect()
    };
    assert_eq!(unpadded(&text), unpadded(want), "{text}");
    let pets = describe(&catalog(), "public.pets").unwrap();
    assert!(
        pets.contains("Foreign-key constraints:\n    \"pets_owner_fkey\""),
        "{pets}"
    );
}

#[test]
fn other_objects_are_described() {
    let catalog = catalog();
    let view = describe(&catalog, "everyone").unwrap();
    assert!(
        view.contains("View definition:\n SELECT name FROM people\n"),
        "{view}"
    );
    let sequence = describe(&catalog, "people_id_seq").unwrap();
    assert!(
        sequence.contains("Owned by: public.people.id\n"),
        "{sequence}"
    );
    let index = describe(&catalog, "PEOPLE_NAME").unwrap();
    assert!(
        index.contains("unique, btree, for table \"public.people\""),
        "{index}"
    );
    assert_eq!(describe(&catalog, "\"People\""), None);
    assert_eq!(
        describe(&catalog, "p*")
            .unwrap()
            .matches("Table \"")
            .count(),
        2
    );
}

#[test]
fn lists_have_the_kinds_that_were_asked_for() {
    let catalog = catalog();
    let only = |tables, views, sequences, indexes| Kinds {
        tables,
        views,
        sequences,
        indexes,
    };
    let all = list(&catalog, only(true, true, true, false), None).unwrap();
    assert!(all.contains("(4 rows)"), "{all}");
    let indexes = list(&catalog, only(false, false, false, true), None).unwrap();
    assert!(
        indexes.contains("(3 rows)") && indexes.contains("| people_name"),
        "{indexes}"
    );
    let some = list(&catalog, only(true, false, false, false), Some("pe?s")).unwrap();
    assert!(some.contains("(1 row)"), "{some}");
    assert_eq!(
        list(&catalog, only(true, false, false, false), Some("x*")),
        None
    );
}
