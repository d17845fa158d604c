//! Objects as the catalog of PostgreSQL shows them: their numbers, and their definitions as texts.
//!
//! The number of a table, view, sequence or index is its number in the catalog + 16384. The index
//! of a primary key has no number in the catalog: its number comes from that of its table, as
//! those of constraints and defaults do.

use crate::catalog::{
    Catalog, CheckDef, ColumnDef, ColumnPosition, ForeignKeyAction, ForeignKeyDef, IndexDef,
    Object, ObjectId, SequenceDef, TableDef,
};
use crate::statement::{SYSTEM_RELATIONS, SystemRelation};
use crate::types::SqlType;

/// Number of the session's user.
pub const USER_OID: i64 = 10;

/// Number of the database.
pub const DATABASE_OID: i64 = 5;

/// Number of the schema `pg_catalog`.
pub const PG_CATALOG_OID: i64 = 11;

/// Number of the schema `public`.
pub const PUBLIC_OID: i64 = 2200;

/// Number of the schema `information_schema`.
pub const INFORMATION_SCHEMA_OID: i64 = 13_000;

/// Number of the access method `btree`.
pub const BTREE_OID: i64 = 403;

const FIRST_OBJECT: i64 = 16_384;
const FIRST_KEY_INDEX: i64 = 1 << 30;
const FIRST_SYSTEM: i64 = 12_000;

/// Numbers of the system's relations that PostgreSQL fixes, by name.
const FIXED_OIDS: &[(&str, i64)] = &[
    ("pg_type", 1247),
    ("pg_attribute", 1249),
    ("pg_proc", 1255),
    ("pg_class", 1259),
    ("pg_authid", 1260),
    ("pg_database", 1262),
    ("pg_am", 2601),
    ("pg_attrdef", 2604),
    ("pg_constraint", 2606),
    ("pg_depend", 2608),
    ("pg_description", 2609),
    ("pg_index", 2610),
    ("pg_namespace", 2615),
];

/// A type, as `pg_type` has it.
pub struct TypeRow {
    /// Number of the type.
    pub oid: i64,
    /// Name in `pg_type`.
    pub name: &'static str,
    /// Bytes of a value; -1 if it varies.
    pub length: i64,
    /// Letter of the category.
    pub category: &'static str,
}

const fn type_row(oid: i64, name: &'static str, length: i64, category: &'static str) -> TypeRow {
    TypeRow {
        oid,
        name,
        length,
        category,
    }
}

/// The types of PostgreSQL that clients find in `pg_type`.
pub const TYPES: &[TypeRow] = &[
    type_row(16, "bool", 1, "B"),
    type_row(17, "bytea", -1, "U"),
    type_row(18, "char", 1, "Z"),
    type_row(19, "name", 64, "S"),
    type_row(20, "int8", 8, "N"),
    type_row(21, "int2", 2, "N"),
    type_row(23, "int4", 4, "N"),
    type_row(25, "text", -1, "S"),
    type_row(26, "oid", 4, "N"),
    type_row(114, "json", -1, "U"),
    type_row(700, "float4", 4, "N"),
    type_row(701, "float8", 8, "N"),
    type_row(705, "unknown", -2, "X"),
    type_row(1042, "bpchar", -1, "S"),
    type_row(1043, "varchar", -1, "S"),
    type_row(1082, "date", 4, "D"),
    type_row(1083, "time", 8, "D"),
    type_row(1114, "timestamp", 8, "D"),
    type_row(1184, "timestamptz", 8, "D"),
    type_row(1700, "numeric", -1, "N"),
    type_row(2205, "regclass", 4, "N"),
    type_row(2206, "regtype", 4, "N"),
    type_row(2249, "record", -1, "P"),
    type_row(2278, "void", 4, "P"),
    type_row(2950, "uuid", 16, "U"),
    type_row(3802, "jsonb", -1, "U"),
];

/// Returns the number of a type.
pub fn type_oid(ty: SqlType) -> i64 {
    match ty {
        SqlType::Boolean => 16,
        SqlType::Bytea => 17,
        SqlType::BigInt => 20,
        SqlType::SmallInt => 21,
        SqlType::Integer => 23,
        SqlType::Text => 25,
        SqlType::Json => 114,
        SqlType::Real => 700,
        SqlType::Double => 701,
        SqlType::Char(_) => 1042,
        SqlType::Varchar(_) => 1043,
        SqlType::Date => 1082,
        SqlType::Time => 1083,
        SqlType::Timestamp => 1114,
        SqlType::Timestamptz => 1184,
        SqlType::Numeric(_) => 1700,
        SqlType::Uuid => 2950,
        SqlType::Jsonb => 3802,
    }
}

/// Returns the row of a type in `pg_type`.
pub fn type_row_of(ty: SqlType) -> &'static TypeRow {
    let oid = type_oid(ty);
    let found = TYPES.iter().find(|row| row.oid == oid);
    found.unwrap_or(&TYPES[7])
}

/// Returns the bytes of a value of a type, or -1 if its length varies.
pub fn type_length(ty: SqlType) -> i64 {
    type_row_of(ty).length
}

/// Returns the modifier of a type: its length, or its precision and scale; -1 without one.
pub fn type_modifier(ty: SqlType) -> i64 {
    match ty {
        SqlType::Varchar(Some(n)) | SqlType::Char(n) => i64::from(n) + 4,
        SqlType::Numeric(Some((precision, scale))) => {
            (i64::from(precision) << 16 | i64::from(scale)) + 4
        }
        _ => -1,
    }
}

/// Returns the number of a table, view, sequence or secondary index.
pub fn object_oid(id: ObjectId) -> i64 {
    FIRST_OBJECT + i64::from(id)
}

/// Returns the number in the catalog of a table, view, sequence or secondary index.
pub fn object_id(oid: i64) -> Option<ObjectId> {
    let in_range = (FIRST_OBJECT..FIRST_KEY_INDEX).contains(&oid);
    let id = oid - FIRST_OBJECT;
    in_range.then(|| ObjectId::try_from(id).ok()).flatten()
}

/// Returns the number of a relation of the system.
pub fn system_oid(relation: &SystemRelation) -> i64 {
    let fixed = FIXED_OIDS.iter().find(|(name, _)| *name == relation.name);
    if let Some((_, oid)) = fixed {
        return *oid;
    }
    let at = SYSTEM_RELATIONS
        .iter()
        .position(|r| r.schema == relation.schema && r.name == relation.name);
    let first = match relation.schema {
        "pg_catalog" => FIRST_SYSTEM,
        _ => INFORMATION_SCHEMA_OID + 1,
    };
    first + at.unwrap_or_default() as i64
}

/// Returns the number of a schema.
pub fn schema_oid(schema: &str) -> i64 {
    match schema {
        "pg_catalog" => PG_CATALOG_OID,
        "information_schema" => INFORMATION_SCHEMA_OID,
        _ => PUBLIC_OID,
    }
}

/// Returns `true` if statements find a relation without its schema.
pub fn is_visible(oid: i64) -> bool {
    !(INFORMATION_SCHEMA_OID..FIRST_OBJECT).contains(&oid)
}

/// Kinds of parts of tables that have numbers.
#[derive(Clone, Copy)]
enum PartKind {
    PrimaryKey = 1,
    Unique = 2,
    Check = 3,
    ForeignKey = 4,
    Default = 5,
}

fn part_oid(kind: PartKind, id: ObjectId, at: usize) -> i64 {
    (kind as i64) << 48 | i64::from(id) << 16 | at as i64
}

/// Returns the number of the default of a column.
pub fn default_oid(table: &TableDef, column: ColumnPosition) -> i64 {
    part_oid(PartKind::Default, table.id, usize::from(column))
}

/// An index, or the primary key of a table.
#[derive(Clone, Copy)]
pub struct IndexRef<'a> {
    /// Number of the index.
    pub oid: i64,
    /// Name of the index.
    pub name: &'a str,
    /// Its columns, in order.
    pub columns: &'a [ColumnPosition],
    /// No two rows have the same values.
    pub unique: bool,
    /// The index is that of the primary key.
    pub primary: bool,
    /// The index has the entries of all rows.
    pub is_ready: bool,
}

fn secondary(index: &IndexDef) -> IndexRef<'_> {
    IndexRef {
        oid: object_oid(index.id),
        name: &index.name,
        columns: &index.columns,
        unique: index.unique,
        primary: false,
        is_ready: index.is_ready,
    }
}

/// Returns the indexes of a table, that of its primary key first.
pub fn indexes(table: &TableDef) -> impl Iterator<Item = IndexRef<'_>> {
    let primary = (!table.primary_key.is_empty()).then(|| IndexRef {
        oid: FIRST_KEY_INDEX + i64::from(table.id),
        name: &table.primary_key_name,
        columns: &table.primary_key,
        unique: true,
        primary: true,
        is_ready: true,
    });
    primary
        .into_iter()
        .chain(table.indexes.iter().map(secondary))
}

/// What a constraint demands.
#[derive(Clone, Copy)]
pub enum ConstraintKind<'a> {
    /// The primary key.
    PrimaryKey,
    /// UNIQUE, with its index.
    Unique(&'a IndexDef),
    /// CHECK.
    Check(&'a CheckDef),
    /// A foreign key.
    ForeignKey(&'a ForeignKeyDef),
}

/// A constraint of a table.
#[derive(Clone, Copy)]
pub struct ConstraintRef<'a> {
    /// Number of the constraint.
    pub oid: i64,
    /// Name of the constraint.
    pub name: &'a str,
    /// What it demands.
    pub kind: ConstraintKind<'a>,
}

/// Returns the constraints of a table.
pub fn constraints(table: &TableDef) -> Vec<ConstraintRef<'_>> {
    let mut all = Vec::new();
    if !table.primary_key.is_empty() {
        all.push(ConstraintRef {
            oid: part_oid(PartKind::PrimaryKey, table.id, 0),
            name: &table.primary_key_name,
            kind: ConstraintKind::PrimaryKey,
        });
    }
    let unique = table.indexes.iter().filter(|index| index.is_constraint);
    all.extend(unique.map(|index| ConstraintRef {
        oid: part_oid(PartKind::Unique, index.id, 0),
        name: &index.name,
        kind: ConstraintKind::Unique(index),
    }));
    let checks = table.checks.iter().enumerate();
    all.extend(checks.map(|(at, check)| ConstraintRef {
        oid: part_oid(PartKind::Check, table.id, at),
        name: &check.name,
        kind: ConstraintKind::Check(check),
    }));
    let keys = table.foreign_keys.iter().enumerate();
    all.extend(keys.map(|(at, key)| ConstraintRef {
        oid: part_oid(PartKind::ForeignKey, table.id, at),
        name: &key.name,
        kind: ConstraintKind::ForeignKey(key),
    }));
    all
}

/// Returns a name as a statement has it: in double quotes if it must be.
pub fn quote_name(name: &str) -> String {
    let mut bytes = name.bytes();
    let starts = bytes
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'$';
    match starts && bytes.all(is_plain) && !RESERVED.contains(&name) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// Words that are names only if they are quoted.
const RESERVED: &[&str] = &[
    "all",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "both",
    "case",
    "cast",
    "check",
    "collate",
    "column",
    "constraint",
    "create",
    "default",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "false",
    "fetch",
    "for",
    "foreign",
    "from",
    "grant",
    "group",
    "having",
    "in",
    "intersect",
    "into",
    "limit",
    "not",
    "null",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "primary",
    "references",
    "returning",
    "select",
    "table",
    "then",
    "to",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "when",
    "where",
    "window",
    "with",
];

fn column_list(table: &TableDef, columns: &[ColumnPosition]) -> String {
    let names = columns
        .iter()
        .filter_map(|at| table.columns.get(usize::from(*at)));
    let names: Vec<String> = names.map(|column| quote_name(&column.name)).collect();
    names.join(", ")
}

/// Returns the default of a column as an expression of PostgreSQL.
pub fn default_text(catalog: &Catalog, column: &ColumnDef) -> Option<String> {
    if let Some(sequence) = column.sequence {
        let sequence = catalog.by_id(sequence)?;
        let name = quote_name(sequence.name()).replace('\'', "''");
        // The default of an identity column is not one that a user has given.
        return Some(format!("nextval('{name}'::regclass)"));
    }
    let text = column.default.as_deref()?;
    Some(match (text, column.ty) {
        ("basalt_now()", _) => "now()".to_owned(),
        ("basalt_today()", _) => "CURRENT_DATE".to_owned(),
        ("basalt_uuid()", _) => "gen_random_uuid()".to_owned(),
        ("0", SqlType::Boolean) => "false".to_owned(),
        ("1", SqlType::Boolean) => "true".to_owned(),
        (text, ty) if text.starts_with('\'') => {
            let ty = match ty {
                SqlType::Varchar(_) => "character varying".to_owned(),
                SqlType::Char(_) => "bpchar".to_owned(),
                SqlType::Numeric(_) => "numeric".to_owned(),
                ty => ty.to_string(),
            };
            format!("{text}::{ty}")
        }
        (text, _) => text.replace("basalt_", ""),
    })
}

/// Returns `true` for a column that is GENERATED ALWAYS AS IDENTITY.
pub fn is_identity(column: &ColumnDef) -> bool {
    column.always_generated && column.sequence.is_some()
}

/// Returns the statement that makes an index.
pub fn index_definition(table: &TableDef, index: &IndexRef<'_>) -> String {
    format!(
        "CREATE {}INDEX {} ON public.{} USING btree ({})",
        if index.unique { "UNIQUE " } else { "" },
        quote_name(index.name),
        quote_name(&table.name),
        column_list(table, index.columns)
    )
}

/// Returns how a constraint is written in CREATE TABLE.
pub fn constraint_definition(
    catalog: &Catalog,
    table: &TableDef,
    kind: ConstraintKind<'_>,
) -> String {
    match kind {
        ConstraintKind::PrimaryKey => {
            format!("PRIMARY KEY ({})", column_list(table, &table.primary_key))
        }
        ConstraintKind::Unique(index) => {
            format!("UNIQUE ({})", column_list(table, &index.columns))
        }
        ConstraintKind::Check(check) => format!("CHECK ({})", check.text),
        ConstraintKind::ForeignKey(key) => {
            let parent = catalog.table_by_id(key.parent);
            let (name, columns) = parent.map_or_else(Default::default, |parent| {
                let columns = column_list(parent, &key.parent_columns);
                (quote_name(&parent.name), columns)
            });
            let mut text = format!(
                "FOREIGN KEY ({}) REFERENCES {name}({columns})",
                column_list(table, &key.columns)
            );
            for (event, action) in [("UPDATE", key.on_update), ("DELETE", key.on_delete)] {
                if action != ForeignKeyAction::Restrict {
                    text.push_str(&format!(" ON {event} {}", action_name(action)));
                }
            }
            text
        }
    }
}

/// Returns the words of an action of a foreign key.
pub fn action_name(action: ForeignKeyAction) -> &'static str {
    match action {
        ForeignKeyAction::Restrict => "NO ACTION",
        ForeignKeyAction::Cascade => "CASCADE",
        ForeignKeyAction::SetNull => "SET NULL",
        ForeignKeyAction::SetDefault => "SET DEFAULT",
    }
}

/// Returns the table and the index with a number.
pub fn find_index(catalog: &Catalog, oid: i64) -> Option<(&TableDef, IndexRef<'_>)> {
    if oid >= FIRST_KEY_INDEX {
        let table = ObjectId::try_from(oid - FIRST_KEY_INDEX).ok()?;
        let table = catalog.table_by_id(table)?;
        return indexes(table)
            .find(|index| index.oid == oid)
            .map(|index| (&**table, index));
    }
    let id = object_id(oid)?;
    let table = catalog.tables().find(|table| table.index(id).is_some())?;
    Some((table, secondary(table.index(id)?)))
}

/// Returns the table and the constraint with a number.
pub fn find_constraint(catalog: &Catalog, oid: i64) -> Option<(&TableDef, ConstraintRef<'_>)> {
    let mut tables = catalog.tables();
    tables.find_map(|table| {
        let found = constraints(table).into_iter().find(|c| c.oid == oid)?;
        Some((&**table, found))
    })
}

/// Returns the name of the relation with a number.
pub fn relation_name(catalog: &Catalog, oid: i64) -> Option<String> {
    if let Some(object) = object_id(oid).and_then(|id| catalog.by_id(id)) {
        return Some(quote_name(object.name()));
    }
    if let Some((_, index)) = find_index(catalog, oid) {
        return Some(quote_name(index.name));
    }
    let relation = SYSTEM_RELATIONS.iter().find(|r| system_oid(r) == oid)?;
    Some(match relation.schema {
        "pg_catalog" => relation.name.to_owned(),
        schema => format!("{schema}.{}", relation.name),
    })
}

/// Returns the number of the relation that a text names, with or without its schema.
pub fn relation_oid(catalog: &Catalog, text: &str) -> Option<i64> {
    let parts = name_parts(text.trim());
    let (schema, name) = match &parts[..] {
        [name] => (None, name),
        [schema, name] => (Some(schema.as_str()), name),
        _ => return None,
    };
    if matches!(schema, None | Some("public")) {
        if let Some(object) = catalog.object(name) {
            return Some(object_oid(object.id()));
        }
        if let Some((_, index)) = catalog.index(name) {
            return Some(object_oid(index));
        }
        let mut keys = catalog.tables().flat_map(|table| indexes(table));
        if let Some(key) = keys.find(|index| index.primary && index.name == name) {
            return Some(key.oid);
        }
    }
    let schema = schema.unwrap_or("pg_catalog");
    let mut relations = SYSTEM_RELATIONS.iter();
    let found = relations.find(|r| r.schema == schema && r.name == name.as_str());
    found.map(system_oid)
}

/// Returns the parts of a qualified name, folded to lower case unless they are quoted.
fn name_parts(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut is_quoted) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted => parts.push(std::mem::take(&mut part)),
            c if is_quoted => part.push(c),
            c => part.extend(c.to_lowercase()),
        }
    }
    parts.push(part);
    parts
}

/// Returns the sequence that fills a column, for `pg_get_serial_sequence`.
pub fn serial_sequence(catalog: &Catalog, table: &str, column: &str) -> Option<String> {
    let parts = name_parts(table.trim());
    let table = catalog.table(parts.last()?)?;
    let column = table.column(column)?;
    let sequence = table.columns[usize::from(column)].sequence?;
    let name = catalog.by_id(sequence)?.name();
    Some(format!("public.{}", quote_name(name)))
}

/// Returns the query of a view, with a semicolon.
pub fn view_definition(catalog: &Catalog, oid: i64) -> Option<String> {
    match catalog.by_id(object_id(oid)?)? {
        Object::View(view) => Some(format!(" {};", view.text.trim().trim_end_matches(';'))),
        _ => None,
    }
}

/// Returns the least and the largest value of a sequence.
pub fn sequence_bounds(sequence: &SequenceDef) -> (i64, i64) {
    match sequence.increment > 0 {
        true => (1, i64::MAX),
        false => (i64::MIN, -1),
    }
}

/// Returns `true` for a sequence that fills the hidden row number of a table.
pub fn is_row_sequence(catalog: &Catalog, sequence: &SequenceDef) -> bool {
    let mut tables = catalog.tables();
    tables.any(|table| table.row_sequence == Some(sequence.id))
}
