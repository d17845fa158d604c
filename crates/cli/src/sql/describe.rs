//! `\d`: the definitions of a database, as psql shows them.

use super::aligned::Table;
use basalt_sql::catalog::{
    Catalog, ColumnPosition, ForeignKeyAction, ForeignKeyDef, Object, TableDef,
};
use std::fmt::Write as _;

/// The kinds of objects of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds {
    pub tables: bool,
    pub views: bool,
    pub sequences: bool,
    pub indexes: bool,
}

/// Returns `true` if a name matches a pattern with `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    let mut states = vec![(pattern, name)];
    // Each star tries all ends of the name; patterns are typed by hand and short.
    while let Some((pattern, name)) = states.pop() {
        match pattern.chars().next() {
            None if name.is_empty() => return true,
            None => {}
            Some('*') => {
                states.push((&pattern[1..], name));
                if let Some(c) = name.chars().next() {
                    states.push((pattern, &name[c.len_utf8()..]));
                }
            }
            Some(p) => {
                if let Some(c) = name.chars().next()
                    && (p == '?' || p == c)
                {
                    states.push((&pattern[p.len_utf8()..], &name[c.len_utf8()..]));
                }
            }
        }
    }
    false
}

/// Returns the list of the objects of some kinds whose names match the pattern, or `None` if there
/// is none.
pub fn list(catalog: &Catalog, kinds: Kinds, pattern: Option<&str>) -> Option<String> {
    let mut found: Vec<(&str, &str, &str)> = Vec::new();
    for object in catalog.objects() {
        match object {
            Object::Table(table) => {
                if kinds.tables {
                    found.push((&table.name, "table", ""));
                }
                if kinds.indexes {
                    let indexes = table.indexes.iter();
                    found.extend(indexes.map(|i| (i.name.as_str(), "index", table.name.as_str())));
                    if !table.primary_key.is_empty() {
                        found.push((&table.primary_key_name, "index", &table.name));
                    }
                }
            }
            Object::View(view) if kinds.views => found.push((&view.name, "view", "")),
            Object::Sequence(sequence) if kinds.sequences => {
                found.push((&sequence.name, "sequence", ""));
            }
            Object::View(_) | Object::Sequence(_) => {}
        }
    }
    found.retain(|(name, _, _)| pattern.is_none_or(|pattern| matches(pattern, name)));
    found.sort_unstable();
    if found.is_empty() {
        return None;
    }
    let mut table = match kinds.indexes {
        true => Table::of_names(&["Schema", "Name", "Type", "Table"]),
        false => Table::of_names(&["Schema", "Name", "Type"]),
    };
    for (name, kind, of) in found {
        let row = ["public", name, kind, of];
        table.row(row.into_iter().take(3 + usize::from(kinds.indexes)));
    }
    let mut out = String::new();
    table.take(Some("List of relations"), &mut out);
    table.footer(&mut out);
    Some(out)
}

/// Returns the description of the objects and indexes whose names match the pattern, or `None` if
/// there is none.
pub fn describe(catalog: &Catalog, pattern: &str) -> Option<String> {
    let pattern = pattern.strip_prefix("public.").unwrap_or(pattern);
    let pattern = match pattern.strip_prefix('"').and_then(|p| p.strip_suffix('"')) {
        Some(quoted) => quoted.to_string(),
        None => pattern.to_lowercase(),
    };
    let mut out = String::new();
    for object in catalog.objects().filter(|o| matches(&pattern, o.name())) {
        match object {
            Object::Table(table) => describe_table(catalog, table, &mut out),
            Object::View(view) => {
                let mut columns = Table::of_names(&["Column", "Type"]);
                for (name, ty) in &view.columns {
                    columns.row([name.as_str(), &ty.to_string()]);
                }
                columns.take(Some(&format!("View \"public.{}\"", view.name)), &mut out);
                let _ = writeln!(out, "View definition:\n {}\n", view.text);
            }
            Object::Sequence(sequence) => {
                let mut columns = Table::of_names(&["Type", "Start", "Increment"]);
                let (start, by) = (sequence.start.to_string(), sequence.increment.to_string());
                columns.row(["bigint", &start, &by]);
                let title = format!("Sequence \"public.{}\"", sequence.name);
                columns.take(Some(&title), &mut out);
                let owner = sequence.owner.and_then(|(table, column)| {
                    let table = catalog.table_by_id(table)?;
                    Some((&table.name, &table.columns.get(usize::from(column))?.name))
                });
                if let Some((table, column)) = owner {
                    let _ = writeln!(out, "Owned by: public.{table}.{column}");
                }
                out.push('\n');
            }
        }
    }
    for table in catalog.tables() {
        for index in table.indexes.iter().filter(|i| matches(&pattern, &i.name)) {
            let mut columns = Table::of_names(&["Column", "Type"]);
            for at in &index.columns {
                if let Some(column) = table.columns.get(usize::from(*at)) {
                    columns.row([column.name.as_str(), &column.ty.to_string()]);
                }
            }
            columns.take(Some(&format!("Index \"public.{}\"", index.name)), &mut out);
            let unique = if index.unique { "unique, " } else { "" };
            let _ = writeln!(out, "{unique}btree, for table \"public.{}\"\n", table.name);
        }
    }
    (!out.is_empty()).then_some(out)
}

/// Returns the names of columns, separated by commas.
fn names(table: &TableDef, columns: &[ColumnPosition]) -> String {
    let columns = columns
        .iter()
        .filter_map(|at| table.columns.get(usize::from(*at)));
    let names: Vec<&str> = columns.map(|c| c.name.as_str()).collect();
    names.join(", ")
}

fn describe_table(catalog: &Catalog, table: &TableDef, out: &mut String) {
    let mut columns = Table::of_names(&["Column", "Type", "Collation", "Nullable", "Default"]);
    for (at, column) in table.visible() {
        let is_set = column.not_null || table.primary_key.contains(&at);
        let sequence = column.sequence.and_then(|id| catalog.by_id(id));
        let default = match (sequence, &column.default) {
            _ if column.always_generated => "generated always as identity".to_string(),
            (Some(sequence), None) => format!("nextval('{}'::regclass)", sequence.name()),
            (_, default) => default.clone().unwrap_or_default(),
        };
        let nullable = if is_set { "not null" } else { "" };
        columns.row([
            column.name.as_str(),
            &column.ty.to_string(),
            "",
            nullable,
            &default,
        ]);
    }
    columns.take(Some(&format!("Table \"public.{}\"", table.name)), out);
    if !table.primary_key.is_empty() || !table.indexes.is_empty() {
        out.push_str("Indexes:\n");
    }
    if !table.primary_key.is_empty() {
        let (name, columns) = (&table.primary_key_name, names(table, &table.primary_key));
        let _ = writeln!(out, "    \"{name}\" PRIMARY KEY, btree ({columns})");
    }
    for index in &table.indexes {
        let kind = match (index.is_constraint, index.unique) {
            (true, _) => " UNIQUE CONSTRAINT, btree",
            (false, true) => " UNIQUE, btree",
            (false, false) => " btree",
        };
        let columns = names(table, &index.columns);
        let ready = if index.is_ready { "" } else { " (being built)" };
        let _ = writeln!(out, "    \"{}\"{kind} ({columns}){ready}", index.name);
    }
    if !table.checks.is_empty() {
        out.push_str("Check constraints:\n");
    }
    for check in &table.checks {
        let _ = writeln!(out, "    \"{}\" CHECK ({})", check.name, check.text);
    }
    if !table.foreign_keys.is_empty() {
        out.push_str("Foreign-key constraints:\n");
    }
    for key in &table.foreign_keys {
        let _ = writeln!(
            out,
            "    \"{}\" {}",
            key.name,
            foreign_key(catalog, table, key)
        );
    }
    let mut children = catalog.children(table.id).peekable();
    if children.peek().is_some() {
        out.push_str("Referenced by:\n");
    }
    for (child, key) in children {
        let definition = foreign_key(catalog, child, key);
        let _ = writeln!(
            out,
            "    TABLE \"{}\" CONSTRAINT \"{}\" {definition}",
            child.name, key.name
        );
    }
    out.push('\n');
}

/// Returns the definition of a foreign key.
fn foreign_key(catalog: &Catalog, child: &TableDef, key: &ForeignKeyDef) -> String {
    let columns = names(child, &key.columns);
    let parent = catalog.table_by_id(key.parent);
    let (name, parent_columns) = match parent {
        Some(parent) => (parent.name.as_str(), names(parent, &key.parent_columns)),
        None => ("?", String::new()),
    };
    let mut text = format!("FOREIGN KEY ({columns}) REFERENCES {name}({parent_columns})");
    for (event, action) in [("UPDATE", key.on_update), ("DELETE", key.on_delete)] {
        let action = match action {
            ForeignKeyAction::Restrict => continue,
            ForeignKeyAction::Cascade => "CASCADE",
            ForeignKeyAction::SetNull => "SET NULL",
            ForeignKeyAction::SetDefault => "SET DEFAULT",
        };
        let _ = write!(text, " ON {event} {action}");
    }
    text
}

#[cfg(test)]
mod tests;
