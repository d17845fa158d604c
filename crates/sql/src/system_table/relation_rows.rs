//! The rows of the relations of `pg_catalog`.

use super::information;
use crate::catalog::{Catalog, ColumnPosition, ForeignKeyAction, Object, TableDef};
use crate::definition::{self as def, ConstraintKind, IndexRef};
use crate::statement::{SYSTEM_RELATIONS, SystemRelation};
use crate::types::SqlType;
use crate::value::Value;
use std::collections::BTreeMap;

/// A row by the names of its columns. The columns that it lacks are NULL.
pub type Cells = Vec<(&'static str, Value)>;

/// Returns a row by the names of its columns.
macro_rules! cells {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$((stringify!($name), crate::value::Value::from($value))),*]
    };
}
pub(super) use cells;

/// What the rows are computed from.
pub struct Input<'a> {
    /// All definitions.
    pub catalog: &'a Catalog,
    /// Name of the session's user.
    pub user: &'a str,
    /// The variables of the session.
    pub settings: &'a BTreeMap<String, String>,
}

/// Returns the rows of a relation, with their values in the order of its columns.
pub fn of(input: &Input<'_>, relation: &SystemRelation) -> Vec<Vec<Value>> {
    let found = match relation.schema {
        "pg_catalog" => input.catalog_rows(relation.name),
        _ => information::of(input, relation.name),
    };
    let columns = relation.columns;
    debug_assert!(
        found
            .iter()
            .flatten()
            .all(|(cell, _)| columns.iter().any(|(n, _)| n == cell))
    );
    let row = |cells: Cells| {
        let mut row = vec![Value::Null; columns.len()];
        for (name, value) in cells {
            if let Some(at) = columns.iter().position(|(column, _)| *column == name) {
                row[at] = value;
            }
        }
        row
    };
    found.into_iter().map(row).collect()
}

/// Returns positions of columns as PostgreSQL counts them, from 1.
fn numbers(columns: &[ColumnPosition], separator: &str) -> String {
    let numbers = columns.iter().map(|at| (u32::from(*at) + 1).to_string());
    numbers.collect::<Vec<String>>().join(separator)
}

/// Returns as many copies of a text as an index has columns.
fn repeated(index: &IndexRef<'_>, text: &str) -> String {
    vec![text; index.columns.len()].join(" ")
}

fn action_letter(action: ForeignKeyAction) -> &'static str {
    match action {
        ForeignKeyAction::Restrict => "a",
        ForeignKeyAction::Cascade => "c",
        ForeignKeyAction::SetNull => "n",
        ForeignKeyAction::SetDefault => "d",
    }
}

/// A column of a table, view, index or relation of the system.
struct Attribute<'a> {
    relation: i64,
    number: i64,
    name: &'a str,
    ty: SqlType,
    not_null: bool,
    has_default: bool,
    identity: &'a str,
}

impl Attribute<'_> {
    fn cells(&self) -> Cells {
        let row = def::type_row_of(self.ty);
        let is_text = row.category == "S";
        cells! {
            attrelid: self.relation,
            attname: self.name,
            atttypid: row.oid,
            attlen: row.length,
            attnum: self.number,
            attndims: 0,
            atttypmod: def::type_modifier(self.ty),
            attbyval: (1..=8).contains(&row.length),
            attstorage: if row.length < 0 { "x" } else { "p" },
            attcompression: "",
            attstattarget: -1,
            attnotnull: self.not_null,
            atthasdef: self.has_default,
            atthasmissing: false,
            attidentity: self.identity,
            attgenerated: "",
            attisdropped: false,
            attislocal: true,
            attinhcount: 0,
            attcollation: if is_text { 100 } else { 0 },
        }
    }
}

impl Input<'_> {
    fn catalog_rows(&self, name: &str) -> Vec<Cells> {
        match name {
            "pg_namespace" => self.namespaces(),
            "pg_class" => self.classes(),
            "pg_attribute" => self.attributes(),
            "pg_attrdef" => self.defaults(),
            "pg_type" => types(),
            "pg_index" => self.index_rows(),
            "pg_constraint" => self.constraint_rows(),
            "pg_sequence" => self.sequence_rows(),
            "pg_depend" => self.dependencies(),
            "pg_database" => vec![cells! {
                oid: def::DATABASE_OID, datname: crate::context::DATABASE, datdba: def::USER_OID,
                encoding: 6, datlocprovider: "c", datistemplate: false, datallowconn: true,
                datconnlimit: -1, dattablespace: 1663, datcollate: "C", datctype: "C",
            }],
            "pg_roles" | "pg_authid" => vec![cells! {
                oid: def::USER_OID, rolname: self.user, rolsuper: true, rolinherit: true,
                rolcreaterole: true, rolcreatedb: true, rolcanlogin: true, rolreplication: true,
                rolconnlimit: -1, rolbypassrls: true,
            }],
            "pg_user" => vec![cells! {
                usename: self.user, usesysid: def::USER_OID, usesuper: true,
            }],
            "pg_am" => vec![
                cells! { oid: 2, amname: "heap", amhandler: "heap_tableam_handler", amtype: "t" },
                cells! { oid: def::BTREE_OID, amname: "btree", amhandler: "bthandler",
                amtype: "i" },
            ],
            "pg_collation" => vec![
                cells! { oid: 100, collname: "default", collnamespace: def::PG_CATALOG_OID },
                cells! { oid: 950, collname: "C", collnamespace: def::PG_CATALOG_OID },
            ],
            "pg_tablespace" => vec![
                cells! { oid: 1663, spcname: "pg_default", spcowner: def::USER_OID },
                cells! { oid: 1664, spcname: "pg_global", spcowner: def::USER_OID },
            ],
            "pg_tables" => self.tables_view(),
            "pg_views" => self.views_view(),
            "pg_indexes" => self.indexes_view(),
            "pg_sequences" => self.sequences_view(),
            "pg_settings" => self.setting_rows(),
            "pg_stat_activity" => vec![cells! {
                datid: def::DATABASE_OID, datname: crate::context::DATABASE, pid: 1,
                usename: self.user, application_name: "", state: "active", query: "",
            }],
            _ => Vec::new(),
        }
    }

    fn namespaces(&self) -> Vec<Cells> {
        let schemas = ["pg_catalog", "public", "information_schema"];
        let row = |name: &str| {
            cells! { oid: def::schema_oid(name), nspname: name, nspowner: def::USER_OID }
        };
        schemas.into_iter().map(row).collect()
    }

    /// Returns the sequences that users see: not those of hidden row numbers.
    pub fn sequences(&self) -> impl Iterator<Item = &crate::catalog::SequenceDef> {
        self.catalog.objects().filter_map(|object| match object {
            Object::Sequence(sequence) if !def::is_row_sequence(self.catalog, sequence) => {
                Some(&**sequence)
            }
            _ => None,
        })
    }

    /// Returns the views.
    pub fn views(&self) -> impl Iterator<Item = &crate::catalog::ViewDef> {
        self.catalog.objects().filter_map(|object| match object {
            Object::View(view) => Some(&**view),
            _ => None,
        })
    }

    fn classes(&self) -> Vec<Cells> {
        let mut all = Vec::new();
        for table in self.catalog.tables() {
            let has_keys =
                !table.foreign_keys.is_empty() || self.catalog.children(table.id).next().is_some();
            let mut row = class(def::object_oid(table.id), &table.name, "r", def::PUBLIC_OID);
            set(&mut row, "relam", Value::from(2));
            set(
                &mut row,
                "relnatts",
                Value::from(table.columns.len() as i64),
            );
            set(
                &mut row,
                "relchecks",
                Value::from(table.checks.len() as i64),
            );
            let has_index = def::indexes(table).next().is_some();
            set(&mut row, "relhasindex", Value::from(has_index));
            // PostgreSQL keeps foreign keys by triggers.
            set(&mut row, "relhastriggers", Value::from(has_keys));
            all.push(row);
            for index in def::indexes(table) {
                let mut row = class(index.oid, index.name, "i", def::PUBLIC_OID);
                set(&mut row, "relam", Value::from(def::BTREE_OID));
                set(
                    &mut row,
                    "relnatts",
                    Value::from(index.columns.len() as i64),
                );
                set(&mut row, "relreplident", Value::from("n"));
                all.push(row);
            }
        }
        for view in self.views() {
            let mut row = class(def::object_oid(view.id), &view.name, "v", def::PUBLIC_OID);
            set(&mut row, "relnatts", Value::from(view.columns.len() as i64));
            set(&mut row, "relhasrules", Value::from(true));
            all.push(row);
        }
        for sequence in self.sequences() {
            let oid = def::object_oid(sequence.id);
            all.push(class(oid, &sequence.name, "S", def::PUBLIC_OID));
        }
        for relation in SYSTEM_RELATIONS {
            let is_table = relation.schema == "pg_catalog";
            let kind = if is_table { "r" } else { "v" };
            let schema = def::schema_oid(relation.schema);
            let mut row = class(def::system_oid(relation), relation.name, kind, schema);
            set(
                &mut row,
                "relnatts",
                Value::from(relation.columns.len() as i64),
            );
            all.push(row);
        }
        all
    }

    fn attributes(&self) -> Vec<Cells> {
        let mut all = Vec::new();
        for table in self.catalog.tables() {
            let relation = def::object_oid(table.id);
            for (at, column) in table.visible() {
                all.push(Attribute {
                    relation,
                    number: i64::from(at) + 1,
                    name: &column.name,
                    ty: column.ty,
                    not_null: column.not_null || table.primary_key.contains(&at),
                    has_default: has_default(column),
                    identity: if def::is_identity(column) { "a" } else { "" },
                });
            }
            for index in def::indexes(table) {
                let columns = index.columns.iter().enumerate();
                all.extend(columns.map(|(at, column)| {
                    let column = &table.columns[usize::from(*column)];
                    plain(index.oid, at, &column.name, column.ty)
                }));
            }
        }
        for view in self.views() {
            let relation = def::object_oid(view.id);
            let columns = view.columns.iter().enumerate();
            all.extend(columns.map(|(at, (name, ty))| plain(relation, at, name, *ty)));
        }
        for relation in SYSTEM_RELATIONS {
            let oid = def::system_oid(relation);
            let columns = relation.columns.iter().enumerate();
            all.extend(columns.map(|(at, (name, ty))| plain(oid, at, name, *ty)));
        }
        all.iter().map(Attribute::cells).collect()
    }

    fn defaults(&self) -> Vec<Cells> {
        let mut all = Vec::new();
        for table in self.catalog.tables() {
            for (at, column) in table.visible().filter(|(_, column)| has_default(column)) {
                let text = def::default_text(self.catalog, column);
                all.push(cells! {
                    oid: def::default_oid(table, at),
                    adrelid: def::object_oid(table.id),
                    adnum: i64::from(at) + 1,
                    adbin: text.unwrap_or_default(),
                });
            }
        }
        all
    }

    fn index_rows(&self) -> Vec<Cells> {
        let row = |table: &TableDef, index: IndexRef<'_>| {
            let columns = index.columns.len() as i64;
            cells! {
                indexrelid: index.oid,
                indrelid: def::object_oid(table.id),
                indnatts: columns,
                indnkeyatts: columns,
                indisunique: index.unique,
                indnullsnotdistinct: false,
                indisprimary: index.primary,
                indisexclusion: false,
                indimmediate: true,
                indisclustered: false,
                indisvalid: index.is_ready,
                indisready: true,
                indislive: true,
                indisreplident: false,
                indkey: numbers(index.columns, " "),
                indcollation: repeated(&index, "0"),
                indclass: repeated(&index, "0"),
                indoption: repeated(&index, "0"),
            }
        };
        let tables = self.catalog.tables();
        let rows = tables.flat_map(|table| def::indexes(table).map(move |index| row(table, index)));
        rows.collect()
    }

    fn constraint_rows(&self) -> Vec<Cells> {
        let mut all = Vec::new();
        for table in self.catalog.tables() {
            for constraint in def::constraints(table) {
                all.push(self.constraint_row(table, &constraint));
            }
        }
        all
    }

    fn constraint_row(&self, table: &TableDef, constraint: &def::ConstraintRef<'_>) -> Cells {
        let key_index = |table: &TableDef| {
            let mut indexes = def::indexes(table);
            indexes
                .find(|index| index.primary)
                .map_or(0, |index| index.oid)
        };
        let (letter, index, columns): (_, _, &[ColumnPosition]) = match constraint.kind {
            ConstraintKind::PrimaryKey => ("p", key_index(table), &table.primary_key),
            ConstraintKind::Unique(index) => ("u", def::object_oid(index.id), &index.columns),
            ConstraintKind::Check(_) => ("c", 0, &[]),
            ConstraintKind::ForeignKey(key) => {
                let parent = self.catalog.table_by_id(key.parent);
                let index = match key.parent_index {
                    Some(index) => def::object_oid(index),
                    None => parent.map_or(0, |parent| key_index(parent)),
                };
                ("f", index, &key.columns)
            }
        };
        let mut row = cells! {
            oid: constraint.oid,
            conname: constraint.name,
            connamespace: def::PUBLIC_OID,
            contype: letter,
            condeferrable: false,
            condeferred: false,
            convalidated: true,
            conrelid: def::object_oid(table.id),
            contypid: 0,
            conindid: index,
            conparentid: 0,
            confrelid: 0,
            confupdtype: " ",
            confdeltype: " ",
            confmatchtype: " ",
            conislocal: true,
            coninhcount: 0,
            connoinherit: letter != "c",
        };
        match constraint.kind {
            ConstraintKind::Check(check) => row.push(("conbin", Value::from(&*check.text))),
            ConstraintKind::ForeignKey(key) => {
                set(
                    &mut row,
                    "confrelid",
                    Value::from(def::object_oid(key.parent)),
                );
                set(
                    &mut row,
                    "confupdtype",
                    Value::from(action_letter(key.on_update)),
                );
                set(
                    &mut row,
                    "confdeltype",
                    Value::from(action_letter(key.on_delete)),
                );
                set(&mut row, "confmatchtype", Value::from("s"));
                let columns = numbers(&key.parent_columns, ",");
                row.push(("confkey", Value::from(format!("{{{columns}}}"))));
            }
            _ => {}
        }
        if !columns.is_empty() {
            row.push((
                "conkey",
                Value::from(format!("{{{}}}", numbers(columns, ","))),
            ));
        }
        row
    }

    fn sequence_rows(&self) -> Vec<Cells> {
        let row = |sequence: &crate::catalog::SequenceDef| {
            let (least, largest) = def::sequence_bounds(sequence);
            cells! {
                seqrelid: def::object_oid(sequence.id),
                seqtypid: def::type_oid(SqlType::BigInt),
                seqstart: sequence.start,
                seqincrement: sequence.increment,
                seqmax: largest,
                seqmin: least,
                seqcache: 1,
                seqcycle: false,
            }
        };
        self.sequences().map(row).collect()
    }

    fn dependencies(&self) -> Vec<Cells> {
        let class = SYSTEM_RELATIONS.iter().find(|r| r.name == "pg_class");
        let class = class.map_or(0, def::system_oid);
        let mut all = Vec::new();
        for sequence in self.sequences() {
            let Some((table, column)) = sequence.owner else {
                continue;
            };
            let owner = self.catalog.table_by_id(table);
            let owner = owner.and_then(|table| table.columns.get(usize::from(column)));
            all.push(cells! {
                classid: class,
                objid: def::object_oid(sequence.id),
                objsubid: 0,
                refclassid: class,
                refobjid: def::object_oid(table),
                refobjsubid: i64::from(column) + 1,
                deptype: if owner.is_some_and(def::is_identity) { "i" } else { "a" },
            });
        }
        all
    }

    fn tables_view(&self) -> Vec<Cells> {
        let row = |table: &std::sync::Arc<TableDef>| {
            cells! {
                schemaname: "public",
                tablename: &*table.name,
                tableowner: self.user,
                hasindexes: def::indexes(table).next().is_some(),
                hasrules: false,
                hastriggers: false,
                rowsecurity: false,
            }
        };
        self.catalog.tables().map(row).collect()
    }

    fn views_view(&self) -> Vec<Cells> {
        let row = |view: &crate::catalog::ViewDef| {
            let text = def::view_definition(self.catalog, def::object_oid(view.id));
            cells! {
                schemaname: "public",
                viewname: &*view.name,
                viewowner: self.user,
                definition: text.unwrap_or_default(),
            }
        };
        self.views().map(row).collect()
    }

    fn indexes_view(&self) -> Vec<Cells> {
        let mut all = Vec::new();
        for table in self.catalog.tables() {
            all.extend(def::indexes(table).map(|index| {
                cells! {
                    schemaname: "public",
                    tablename: &*table.name,
                    indexname: index.name,
                    indexdef: def::index_definition(table, &index),
                }
            }));
        }
        all
    }

    fn sequences_view(&self) -> Vec<Cells> {
        let row = |sequence: &crate::catalog::SequenceDef| {
            let (least, largest) = def::sequence_bounds(sequence);
            cells! {
                schemaname: "public",
                sequencename: &*sequence.name,
                sequenceowner: self.user,
                start_value: sequence.start,
                min_value: least,
                max_value: largest,
                increment_by: sequence.increment,
                cycle: false,
                cache_size: 1,
            }
        };
        self.sequences().map(row).collect()
    }
}

impl Input<'_> {
    fn setting_rows(&self) -> Vec<Cells> {
        let row = |(name, value): (&String, &String)| {
            cells! {
                name: &**name, setting: &**value, category: "Session", context: "user",
                vartype: "string", source: "session", boot_val: &**value, reset_val: &**value,
            }
        };
        self.settings.iter().map(row).collect()
    }
}

fn has_default(column: &crate::catalog::ColumnDef) -> bool {
    let is_serial = column.sequence.is_some() && !def::is_identity(column);
    is_serial || column.default.is_some()
}

fn plain(relation: i64, at: usize, name: &str, ty: SqlType) -> Attribute<'_> {
    Attribute {
        relation,
        number: at as i64 + 1,
        name,
        ty,
        not_null: false,
        has_default: false,
        identity: "",
    }
}

/// Replaces a value of a row.
fn set(cells: &mut Cells, name: &str, value: Value) {
    if let Some(cell) = cells.iter_mut().find(|(cell, _)| *cell == name) {
        cell.1 = value;
    }
}

fn class(oid: i64, name: &str, kind: &str, schema: i64) -> Cells {
    cells! {
        oid: oid,
        relname: name,
        relnamespace: schema,
        reltype: 0,
        reloftype: 0,
        relowner: def::USER_OID,
        relam: 0,
        relfilenode: oid,
        reltablespace: 0,
        relpages: 0,
        reltuples: -1.0,
        reltoastrelid: 0,
        relhasindex: false,
        relisshared: false,
        relpersistence: "p",
        relkind: kind,
        relnatts: 0,
        relchecks: 0,
        relhasrules: false,
        relhastriggers: false,
        relhassubclass: false,
        relrowsecurity: false,
        relforcerowsecurity: false,
        relispopulated: true,
        relreplident: "d",
        relispartition: false,
    }
}

fn types() -> Vec<Cells> {
    let row = |ty: &def::TypeRow| {
        let is_pseudo = ty.category == "P";
        cells! {
            oid: ty.oid,
            typname: ty.name,
            typnamespace: def::PG_CATALOG_OID,
            typowner: def::USER_OID,
            typlen: ty.length,
            typbyval: (1..=8).contains(&ty.length),
            typtype: if is_pseudo { "p" } else { "b" },
            typcategory: ty.category,
            typispreferred: matches!(ty.oid, 16 | 25 | 26 | 701 | 1184),
            typisdefined: true,
            typdelim: ",",
            typrelid: 0,
            typelem: 0,
            typarray: 0,
            typinput: format!("{}in", ty.name),
            typreceive: format!("{}recv", ty.name),
            typnotnull: false,
            typbasetype: 0,
            typtypmod: -1,
            typndims: 0,
            typcollation: if ty.category == "S" { 100 } else { 0 },
        }
    };
    def::TYPES.iter().map(row).collect()
}
