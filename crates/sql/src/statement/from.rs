//! FROM: tables, views, subqueries and joins.

use super::binder::{Binder, Bound, Relation, RelationColumn, Ty, VisibleColumn, column_sql};
use super::name::{fold, qualified, quote};
use super::parse::positioned;
use super::query::{columns_of, rename};
use super::system::system_relation;
use crate::catalog::{Object, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, JoinConstraint, JoinOperator, TableFactor, TableWithJoins,
};
use std::sync::Arc;

/// A join tree: its SQL, and its columns in the order of `*`.
struct Tree {
    sql: String,
    visible: Vec<VisibleColumn>,
}

impl Binder<'_> {
    /// Binds FROM into the innermost scope. Returns the clause, or an empty text.
    pub(super) fn from(&mut self, from: &[TableWithJoins]) -> SqlResult<String> {
        if from.is_empty() {
            return Ok(String::new());
        }
        self.scope()?.no_aggregates = Some("JOIN conditions");
        self.scope()?.no_windows = Some("JOIN conditions");
        let mut list = Vec::new();
        for item in from {
            let tree = self.tree(item)?;
            let outer = |j: &ast::Join| {
                use JoinOperator as J;
                matches!(
                    j.join_operator,
                    J::Right(_) | J::RightOuter(_) | J::FullOuter(_)
                )
            };
            let wrap = from.len() > 1 && item.joins.iter().any(outer);
            list.push(if wrap {
                format!("({})", tree.sql)
            } else {
                tree.sql
            });
            self.scope()?.visible.extend(tree.visible);
        }
        Ok(format!(" FROM {}", list.join(", ")))
    }

    fn tree(&mut self, item: &TableWithJoins) -> SqlResult<Tree> {
        let mut tree = self.factor(&item.relation)?;
        for join in &item.joins {
            if join.global {
                return Err(SqlError::unsupported("GLOBAL JOIN"));
            }
            let right = self.factor(&join.relation)?;
            tree = self.join(tree, right, &join.join_operator)?;
        }
        Ok(tree)
    }

    fn join(&mut self, left: Tree, right: Tree, operator: &JoinOperator) -> SqlResult<Tree> {
        use JoinOperator as J;
        let (word, constraint, left_null, right_null) = match operator {
            J::Join(c) | J::Inner(c) => ("JOIN", c, false, false),
            J::Left(c) | J::LeftOuter(c) => ("LEFT JOIN", c, false, true),
            J::Right(c) | J::RightOuter(c) => ("RIGHT JOIN", c, true, false),
            J::FullOuter(c) => ("FULL JOIN", c, true, true),
            J::CrossJoin(JoinConstraint::None) => {
                let mut visible = left.visible;
                visible.extend(right.visible);
                return Ok(Tree {
                    sql: format!("{} JOIN {}", left.sql, right.sql),
                    visible,
                });
            }
            _ => return Err(SqlError::unsupported("this kind of join")),
        };
        let (mut left, mut right) = (left, right);
        let names = match constraint {
            JoinConstraint::On(condition) => {
                let before = std::mem::take(&mut self.scope()?.visible);
                let mut visible = before.clone();
                visible.extend(left.visible.iter().cloned());
                visible.extend(right.visible.iter().cloned());
                self.scope()?.visible = visible;
                let condition = self.condition(condition, "JOIN/ON");
                self.scope()?.visible = before;
                let condition = condition?.sql;
                self.mark_nullable(&mut left.visible, left_null)?;
                self.mark_nullable(&mut right.visible, right_null)?;
                let sql = format!("{} {word} {} ON {condition}", left.sql, right.sql);
                left.visible.extend(right.visible);
                return Ok(Tree {
                    sql,
                    visible: left.visible,
                });
            }
            JoinConstraint::Using(names) => {
                let mut out = Vec::new();
                for name in names {
                    out.push(fold(super::name::column_name(name)?));
                }
                out
            }
            JoinConstraint::UsingAlias(..) => {
                return Err(SqlError::unsupported("USING with an alias"));
            }
            JoinConstraint::Natural => {
                let in_right = |name: &String| right.visible.iter().any(|c| c.name == *name);
                left.visible
                    .iter()
                    .map(|c| c.name.clone())
                    .filter(in_right)
                    .collect()
            }
            JoinConstraint::None => {
                return Err(SqlError::syntax("syntax error: a join without ON or USING"));
            }
        };
        let (conditions, merged) = self.using(&names, &left, &right, left_null, right_null)?;
        self.mark_nullable(&mut left.visible, left_null)?;
        self.mark_nullable(&mut right.visible, right_null)?;
        let on = match conditions.is_empty() {
            true => "1".to_string(),
            false => conditions.join(" AND "),
        };
        let sql = format!("{} {word} {} ON {on}", left.sql, right.sql);
        let rest = left.visible.into_iter().chain(right.visible);
        let rest = rest.filter(|c| !names.contains(&c.name));
        let visible = merged.into_iter().chain(rest).collect();
        Ok(Tree { sql, visible })
    }

    /// Returns the conditions of USING and the merged columns.
    fn using(
        &mut self,
        names: &[String],
        left: &Tree,
        right: &Tree,
        left_null: bool,
        right_null: bool,
    ) -> SqlResult<(Vec<String>, Vec<VisibleColumn>)> {
        let find = |tree: &Tree, name: &String, side: &str| {
            let mut found = tree.visible.iter().filter(|c| c.name == *name);
            match (found.next(), found.next()) {
                (Some(column), None) => Ok(column.clone()),
                (None, _) => {
                    let message = format!(
                        "column \"{name}\" specified in USING clause does not exist in {side} table"
                    );
                    Err(SqlError::new(SqlState::UNDEFINED_COLUMN, message))
                }
                (Some(_), Some(_)) => {
                    let message = format!(
                        "common column name \"{name}\" appears more than once in {side} table"
                    );
                    Err(SqlError::new(SqlState::AMBIGUOUS_COLUMN, message))
                }
            }
        };
        let (mut conditions, mut merged) = (Vec::new(), Vec::new());
        for name in names {
            let (a, b) = (find(left, name, "left")?, find(right, name, "right")?);
            conditions.push(self.compare("=", a.bound(), b.bound())?.sql);
            let sql = match (left_null, right_null) {
                (true, true) => format!("coalesce({}, {})", a.sql, b.sql),
                (true, false) => b.sql.clone(),
                _ => a.sql.clone(),
            };
            let nullable = match (left_null, right_null) {
                (true, true) => a.nullable && b.nullable,
                (true, false) => b.nullable,
                _ => a.nullable,
            };
            let ty = super::binder::common_type(a.ty, b.ty, "JOIN/USING")?;
            let kept = if left_null && !right_null { &b } else { &a };
            let relation = if left_null && right_null {
                None
            } else {
                kept.relation
            };
            let origin = kept.origin.filter(|_| !(left_null && right_null));
            merged.push(VisibleColumn {
                name: name.clone(),
                sql,
                ty,
                nullable,
                origin,
                relation,
            });
        }
        Ok((conditions, merged))
    }

    /// Notes that an outer join makes the columns of a side NULL.
    fn mark_nullable(&mut self, visible: &mut [VisibleColumn], nullable: bool) -> SqlResult<()> {
        if !nullable {
            return Ok(());
        }
        for column in visible.iter_mut() {
            column.nullable = true;
        }
        let scope = self.scope()?;
        for column in visible {
            if let Some(relation) = column.relation.and_then(|r| scope.relations.get_mut(r)) {
                for column in &mut relation.columns {
                    column.nullable = true;
                }
            }
        }
        Ok(())
    }

    fn factor(&mut self, factor: &TableFactor) -> SqlResult<Tree> {
        self.deeper(|binder| binder.any_factor(factor))
    }

    fn any_factor(&mut self, factor: &TableFactor) -> SqlResult<Tree> {
        match factor {
            TableFactor::Table {
                name,
                alias,
                args,
                with_hints,
                version: None,
                with_ordinality: false,
                partitions,
                json_path: None,
                sample: None,
                index_directives,
                inheritance: _,
            } => {
                let plain =
                    with_hints.is_empty() && partitions.is_empty() && index_directives.is_empty();
                if !plain {
                    return Err(SqlError::unsupported("hints or partitions of a table"));
                }
                match args {
                    None => self.table(name, alias.as_ref()),
                    Some(args) if args.settings.is_none() => {
                        self.table_function(name, &args.args, alias.as_ref())
                    }
                    Some(_) => Err(SqlError::unsupported("settings of a table function")),
                }
            }
            TableFactor::Derived {
                lateral: false,
                subquery,
                alias,
                sample: None,
            } => {
                self.refuse_subquery()?;
                self.scope()?.hidden = true;
                let bound = self.query(subquery, None);
                self.scope()?.hidden = false;
                let bound = bound?;
                let mut columns = columns_of(&bound);
                let name = match alias {
                    Some(alias) => fold(&alias.name),
                    None => self.fresh("subquery"),
                };
                if let Some(alias) = alias {
                    rename(&mut columns, &alias.columns, &name)?;
                }
                let wrapped = format!("({})", bound.sql);
                self.add_relation(name, &wrapped, columns, None, None)
            }
            TableFactor::Derived { lateral: true, .. } => Err(SqlError::unsupported("LATERAL")),
            TableFactor::Function { lateral: true, .. } => Err(SqlError::unsupported("LATERAL")),
            TableFactor::Function {
                name,
                args,
                with_ordinality: false,
                alias,
                ..
            } => self.table_function(name, args, alias.as_ref()),
            TableFactor::NestedJoin {
                table_with_joins,
                alias: None,
            } => {
                let tree = self.tree(table_with_joins)?;
                let sql = match table_with_joins.joins.is_empty() {
                    true => tree.sql,
                    false => format!("({})", tree.sql),
                };
                Ok(Tree {
                    sql,
                    visible: tree.visible,
                })
            }
            TableFactor::NestedJoin { .. } => Err(SqlError::unsupported("an alias of a join")),
            TableFactor::UNNEST { .. } => Err(SqlError::unsupported("unnest")),
            other => Err(SqlError::unsupported(format!(
                "the table expression {other}"
            ))),
        }
    }

    fn table(
        &mut self,
        name: &ast::ObjectName,
        alias: Option<&ast::TableAlias>,
    ) -> SqlResult<Tree> {
        let found = qualified(name, &self.places)?;
        let display = match alias {
            Some(alias) => fold(&alias.name),
            None => found.name.clone(),
        };
        let names = alias.map_or(&[][..], |a| &a.columns);
        if found.schema.is_none()
            && let Some(cte) = self
                .ctes
                .iter()
                .rev()
                .find(|c| c.name == found.name)
                .cloned()
        {
            let mut columns = cte.columns;
            rename(&mut columns, names, &display)?;
            return self.add_relation(display, &quote(&cte.emitted), columns, None, found.position);
        }
        let object = match found.schema {
            None => self.catalog.object(&found.name).cloned(),
            Some(_) => None,
        };
        match object {
            Some(Object::Table(table)) => {
                self.refuse_table()?;
                self.relations.insert(table.name.clone());
                let column = |(_, c): (u16, &crate::catalog::ColumnDef)| {
                    (c.name.clone(), c.name.clone(), Ty::Sql(c.ty), !c.not_null)
                };
                let mut columns: Vec<_> = table.visible().map(column).collect();
                for (at, (position, _)) in table.visible().enumerate() {
                    columns[at].3 &= !table.primary_key.contains(&position);
                }
                rename(&mut columns, names, &display)?;
                let sql = quote(&table.name);
                self.add_relation(display, &sql, columns, Some(table), found.position)
            }
            Some(Object::View(view)) => {
                self.refuse_table()?;
                self.read_view(&view.name);
                let column = |(name, ty): &(String, SqlType)| {
                    (name.clone(), name.clone(), Ty::Sql(*ty), true)
                };
                let mut columns: Vec<_> = view.columns.iter().map(column).collect();
                rename(&mut columns, names, &display)?;
                self.add_relation(display, &quote(&view.name), columns, None, found.position)
            }
            Some(Object::Sequence(_)) => {
                Err(SqlError::unsupported("a query of a sequence as a table"))
            }
            None => {
                let relation = system_relation(found.schema.as_deref(), &found.name);
                let Some(relation) = relation else {
                    let message = format!("relation \"{}\" does not exist", found.display());
                    let error = SqlError::new(SqlState::UNDEFINED_TABLE, message);
                    return Err(positioned(error, found.position));
                };
                let column = |(name, ty): &(&str, SqlType)| {
                    (name.to_string(), name.to_string(), Ty::Sql(*ty), true)
                };
                let mut columns: Vec<_> = relation.columns.iter().map(column).collect();
                rename(&mut columns, names, &display)?;
                let sql = quote(&relation.emitted());
                self.add_relation(display, &sql, columns, None, found.position)
            }
        }
    }

    /// Notes that a view is read, with all that is below it.
    fn read_view(&mut self, name: &str) {
        let mut waiting = vec![name.to_owned()];
        while let Some(name) = waiting.pop() {
            if self.relations.insert(name.clone())
                && let Some(view) = self.catalog.view(&name)
            {
                waiting.extend(view.reads.iter().cloned());
            }
        }
    }

    fn refuse_table(&self) -> SqlResult<()> {
        match self.no_subqueries {
            Some(place) => Err(SqlError::unsupported(format!("a table in {place}"))),
            None => Ok(()),
        }
    }

    /// Adds a relation to the innermost scope. Columns are name, name in the executor, type, and
    /// whether NULL occurs.
    fn add_relation(
        &mut self,
        alias: String,
        sql: &str,
        columns: Vec<RelationColumn>,
        table: Option<Arc<TableDef>>,
        position: Option<u32>,
    ) -> SqlResult<Tree> {
        let emitted = self.emitted_alias(&alias);
        let scope = self.scope()?;
        if scope.relations.iter().any(|r| r.alias == alias) {
            let message = format!("table name \"{alias}\" specified more than once");
            return Err(positioned(
                SqlError::new(SqlState("42712"), message),
                position,
            ));
        }
        let at = scope.relations.len();
        let origins: Vec<u16> = match &table {
            Some(table) => table.visible().map(|(p, _)| p).collect(),
            None => Vec::new(),
        };
        let id = table.as_ref().map(|t| t.id);
        let columns: Vec<VisibleColumn> = columns
            .into_iter()
            .enumerate()
            .map(|(n, (name, column, ty, nullable))| VisibleColumn {
                name,
                sql: column_sql(&emitted, &column),
                ty,
                nullable,
                origin: id.zip(origins.get(n).copied()),
                relation: Some(at),
            })
            .collect();
        let sql = format!("{sql} AS {}", quote(&emitted));
        let visible = columns.clone();
        scope.relations.push(Relation {
            alias,
            emitted,
            columns,
            table,
        });
        Ok(Tree { sql, visible })
    }

    fn table_function(
        &mut self,
        name: &ast::ObjectName,
        args: &[FunctionArg],
        alias: Option<&ast::TableAlias>,
    ) -> SqlResult<Tree> {
        let found = qualified(name, &self.places)?;
        if let ("unnest", [FunctionArg::Unnamed(FunctionArgExpr::Expr(array))]) =
            (found.name.as_str(), args)
        {
            let array = self.value(array)?;
            let sql = self.unnested(array)?;
            let shown = alias.map_or_else(|| found.name.clone(), |a| fold(&a.name));
            let text = Ty::Sql(SqlType::Text);
            let columns = vec![(shown.clone(), "value".to_string(), text, true)];
            return self.add_relation(shown, &sql, columns, None, found.position);
        }
        if found.name != "generate_series" {
            return Err(SqlError::unsupported(format!(
                "the table function {}",
                found.name
            )));
        }
        let mut bounds = Vec::new();
        for arg in args {
            let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = arg else {
                return Err(SqlError::unsupported(
                    "a named argument of a table function",
                ));
            };
            let visible = std::mem::take(&mut self.scope()?.visible);
            self.scope()?.hidden = true;
            let bound = self.value(expr);
            self.scope()?.hidden = false;
            self.scope()?.visible = visible;
            bounds.push(self.resolve(bound?, Ty::Sql(SqlType::Integer))?);
        }
        let one = Bound::new("1", SqlType::Integer);
        let (from, to, step) = match &bounds[..] {
            [from, to] => (from, to, &one),
            [from, to, step] => (from, to, step),
            _ => {
                let message = "function generate_series needs two or three arguments";
                return Err(SqlError::new(SqlState::UNDEFINED_FUNCTION, message));
            }
        };
        let integers = bounds
            .iter()
            .all(|b| matches!(b.ty, Ty::Sql(ty) if ty.is_integer()));
        if !integers {
            return Err(SqlError::unsupported(
                "generate_series of other values than integers",
            ));
        }
        let big = bounds.iter().any(|b| b.ty == Ty::Sql(SqlType::BigInt));
        let ty = if big {
            SqlType::BigInt
        } else {
            SqlType::Integer
        };
        let display = alias.map_or_else(|| found.name.clone(), |a| fold(&a.name));
        // A function of one column gives it the alias's name.
        let mut columns = vec![(display.clone(), "value".to_string(), Ty::Sql(ty), false)];
        if let Some(alias) = alias {
            rename(&mut columns, &alias.columns, &display)?;
        }
        let bounds_sql = format!(
            "SELECT {} AS \"a\", {} AS \"b\", basalt_step({}) AS \"s\"",
            from.sql, to.sql, step.sql
        );
        let sql = format!(
            "(WITH RECURSIVE \"r\"(\"value\", \"b\", \"s\") AS (SELECT \"a\", \"b\", \"s\" FROM \
             ({bounds_sql}) WHERE (\"s\" > 0 AND \"a\" <= \"b\") OR (\"s\" < 0 AND \"a\" >= \
             \"b\") UNION ALL SELECT \"value\" + \"s\", \"b\", \"s\" FROM \"r\" WHERE (\"s\" > 0 \
             AND \"value\" <= \"b\" - \"s\") OR (\"s\" < 0 AND \"value\" >= \"b\" - \"s\")) SELECT \
             \"value\" FROM \"r\")"
        );
        self.add_relation(display, &sql, columns, None, found.position)
    }
}
