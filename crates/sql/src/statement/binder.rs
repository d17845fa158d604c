//! [`Binder`]: what is known while a statement is rewritten: names in scope, types of parameters,
//! relations that are read.

use super::name::{fold, quote, quote_text};
use super::parse::{Places, positioned, too_complex};
use crate::catalog::{Catalog, ObjectId, TableDef};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use crate::value::Value;
use sqlparser::ast::Ident;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of expressions and queries inside of each other.
const MAX_DEPTH: usize = 240;

/// The type of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ty {
    /// A literal or parameter whose context decides, or an expression that cannot be typed.
    Unknown,
    /// INTERVAL, which columns cannot have.
    Interval,
    /// A type of columns.
    Sql(SqlType),
    /// An array of a type, which columns cannot have. Its values are texts.
    Array(SqlType),
}

impl From<SqlType> for Ty {
    fn from(ty: SqlType) -> Ty {
        Ty::Sql(ty)
    }
}

impl Ty {
    /// Returns the type that a client sees.
    pub(super) fn display(self) -> SqlType {
        match self {
            Ty::Sql(ty) => ty,
            Ty::Unknown | Ty::Interval | Ty::Array(_) => SqlType::Text,
        }
    }

    /// Returns the name of the type for messages.
    pub(super) fn name(self) -> String {
        match self {
            Ty::Unknown => "unknown".to_string(),
            Ty::Interval => "interval".to_string(),
            Ty::Array(ty) => format!("{}[]", without_limits(ty)),
            Ty::Sql(ty) => without_limits(ty).to_string(),
        }
    }
}

/// Types that are compared and converted among each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    Boolean,
    Number,
    Text,
    Bytea,
    Moment,
    Time,
    Uuid,
    Json,
    Interval,
}

/// Returns the category of a type; `None` if it is not known.
pub(super) fn category(ty: Ty) -> Option<Category> {
    Some(match ty {
        Ty::Unknown => return None,
        Ty::Interval => Category::Interval,
        Ty::Array(_) => Category::Text,
        Ty::Sql(ty) => match ty {
            SqlType::Boolean => Category::Boolean,
            SqlType::Text | SqlType::Varchar(_) | SqlType::Char(_) => Category::Text,
            SqlType::Bytea => Category::Bytea,
            SqlType::Date | SqlType::Timestamp | SqlType::Timestamptz => Category::Moment,
            SqlType::Time => Category::Time,
            SqlType::Uuid => Category::Uuid,
            SqlType::Json | SqlType::Jsonb => Category::Json,
            _ => Category::Number,
        },
    })
}

/// Returns a type without the limits of a column, for values that are compared with it.
pub(super) fn without_limits(ty: SqlType) -> SqlType {
    match ty {
        SqlType::Varchar(_) => SqlType::Varchar(None),
        SqlType::Numeric(_) => SqlType::Numeric(None),
        SqlType::Char(_) => SqlType::Char(u32::MAX),
        other => other,
    }
}

/// Returns the type of a parameter whose context has a type: without the limits of a column, which
/// would change the value.
pub(super) fn parameter_type(ty: SqlType) -> SqlType {
    match ty {
        SqlType::Char(_) => SqlType::Text,
        other => without_limits(other),
    }
}

/// What an expression is, as far as its context must know.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Plain,
    /// A text literal whose type the context decides.
    Text(String),
    /// NULL.
    Null,
    /// A parameter, from 0.
    Param(usize),
    /// A literal number, with its digits.
    Number(String),
    /// A row of expressions.
    Row(Vec<Bound>),
}

/// An expression in the executor's dialect.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bound {
    /// The expression; it can be an operand of any operator as it is.
    pub(super) sql: String,
    pub(super) ty: Ty,
    pub(super) kind: Kind,
    /// The value can be NULL.
    pub(super) nullable: bool,
    /// Arithmetic whose result was not yet checked for the range of its type.
    pub(super) unchecked: bool,
    pub(super) origin: Option<(ObjectId, u16)>,
}

impl Bound {
    pub(super) fn new(sql: impl Into<String>, ty: impl Into<Ty>) -> Bound {
        Bound {
            sql: sql.into(),
            ty: ty.into(),
            kind: Kind::Plain,
            nullable: true,
            unchecked: false,
            origin: None,
        }
    }

    pub(super) fn not_null(mut self) -> Bound {
        self.nullable = false;
        self
    }

    pub(super) fn nullable_if(mut self, nullable: bool) -> Bound {
        self.nullable = nullable;
        self
    }

    pub(super) fn literal(value: &Value, ty: impl Into<Ty>) -> Bound {
        Bound::new(literal(value), ty).nullable_if(value.is_null())
    }

    /// Returns `true` for a literal or a parameter whose context decides the type.
    pub(super) fn is_open(&self) -> bool {
        let open = matches!(self.kind, Kind::Text(_) | Kind::Null | Kind::Param(_));
        open && self.ty == Ty::Unknown
    }

    /// Adds the check of the range to arithmetic.
    pub(super) fn checked(mut self) -> Bound {
        if !self.unchecked {
            return self;
        }
        self.unchecked = false;
        self.sql = match self.ty {
            Ty::Sql(SqlType::SmallInt) => format!("basalt_int2({})", self.sql),
            Ty::Sql(SqlType::Integer) => format!("basalt_int4({})", self.sql),
            Ty::Sql(SqlType::BigInt) => format!("basalt_int8({})", self.sql),
            Ty::Sql(SqlType::Numeric(Some((_, scale)))) if scale <= 15 => {
                format!("basalt_numeric({}, {scale})", self.sql)
            }
            _ => self.sql,
        };
        self
    }
}

/// Returns a value as a literal of the executor's dialect.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_string(),
        Value::Integer(n) => n.to_string(),
        Value::Real(x) if x.is_infinite() => if *x > 0.0 { "9e999" } else { "-9e999" }.to_string(),
        Value::Real(x) => format!("{x:?}"),
        Value::Text(text) => quote_text(text),
        Value::Blob(bytes) => {
            let hex = crate::types::hex_text(bytes);
            format!("X'{}'", &hex[2..])
        }
    }
}

/// A column that unqualified names find, or that `*` lists.
#[derive(Debug, Clone)]
pub(super) struct VisibleColumn {
    pub(super) name: String,
    pub(super) sql: String,
    pub(super) ty: Ty,
    pub(super) nullable: bool,
    pub(super) origin: Option<(ObjectId, u16)>,
    /// The relation that it belongs to; `None` for a column merged by USING.
    pub(super) relation: Option<usize>,
}

impl VisibleColumn {
    pub(super) fn bound(&self) -> Bound {
        let mut bound = Bound::new(self.sql.clone(), self.ty).nullable_if(self.nullable);
        bound.origin = self.origin;
        bound
    }
}

/// A table, view, subquery or CTE in a FROM.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    /// The name by which columns are qualified.
    pub(super) alias: String,
    /// The same in the executor's dialect, unquoted.
    pub(super) emitted: String,
    pub(super) columns: Vec<VisibleColumn>,
    pub(super) table: Option<Arc<TableDef>>,
}

/// The names that one SELECT sees, and what it has aggregated.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope {
    pub(super) relations: Vec<Relation>,
    pub(super) visible: Vec<VisibleColumn>,
    /// A subquery in FROM is bound: it does not see this scope.
    pub(super) hidden: bool,
    /// Expressions of GROUP BY, in the executor's dialect.
    pub(super) groups: Vec<String>,
    /// Columns used outside of aggregates: how messages call them, relation, and SQL.
    pub(super) ungrouped: Vec<(String, Option<usize>, String, Option<u32>)>,
    pub(super) has_aggregate: bool,
    /// Aggregates around the expression that is bound.
    pub(super) aggregate_depth: usize,
    /// The clause that is bound, if it takes no aggregates.
    pub(super) no_aggregates: Option<&'static str>,
    pub(super) no_windows: Option<&'static str>,
    /// A SELECT list is bound: `unnest` may multiply the rows.
    pub(super) takes_sets: bool,
    pub(super) unnested: Option<super::array::Unnested>,
    /// Named windows.
    pub(super) windows: BTreeMap<String, ()>,
}

/// A column of a relation: name, name in the executor, type, and whether NULL occurs.
pub(super) type RelationColumn = (String, String, Ty, bool);

/// A common table expression.
#[derive(Debug, Clone)]
pub(super) struct Cte {
    pub(super) name: String,
    pub(super) emitted: String,
    pub(super) columns: Vec<RelationColumn>,
}

/// What is known while a statement is rewritten.
pub(super) struct Binder<'c> {
    pub(super) catalog: &'c Catalog,
    pub(super) places: Arc<Places>,
    pub(super) parameters: Vec<Option<SqlType>>,
    /// Number that is added to the parameters' numbers.
    pub(super) parameter_offset: usize,
    pub(super) scopes: Vec<Scope>,
    pub(super) ctes: Vec<Cte>,
    pub(super) relations: BTreeSet<String>,
    pub(super) locked: BTreeSet<String>,
    pub(super) has_side_effects: bool,
    /// The place that takes no subqueries.
    pub(super) no_subqueries: Option<&'static str>,
    /// The place that takes no parameters.
    pub(super) no_parameters: Option<&'static str>,
    depth: usize,
    next_name: usize,
    rebinds: usize,
}

impl<'c> Binder<'c> {
    pub(super) fn new(
        catalog: &'c Catalog,
        places: &Arc<Places>,
        declared: &[Option<SqlType>],
    ) -> Binder<'c> {
        Binder {
            catalog,
            places: places.clone(),
            parameters: declared.to_vec(),
            parameter_offset: 0,
            scopes: Vec::new(),
            ctes: Vec::new(),
            relations: BTreeSet::new(),
            locked: BTreeSet::new(),
            has_side_effects: false,
            no_subqueries: None,
            no_parameters: None,
            depth: 0,
            next_name: 0,
            rebinds: 0,
        }
    }

    /// Returns the types of the parameters, as far as they are known by now.
    pub(super) fn parameter_types(&self) -> Vec<SqlType> {
        self.parameters
            .iter()
            .map(|ty| ty.unwrap_or(SqlType::Text))
            .collect()
    }

    /// Runs `with` one level deeper. Fails if the statement is nested too deeply.
    pub(super) fn deeper<T>(
        &mut self,
        with: impl FnOnce(&mut Self) -> SqlResult<T>,
    ) -> SqlResult<T> {
        if self.depth >= MAX_DEPTH {
            return Err(too_complex());
        }
        self.depth += 1;
        let result = with(self);
        self.depth -= 1;
        result
    }

    /// Returns `true` if a part of a statement may be bound a second time, with types that a later
    /// part brought. The number is limited because parts are nested.
    pub(super) fn may_rebind(&mut self) -> bool {
        self.rebinds += 1;
        self.rebinds <= 64
    }

    /// Returns a name that no user can have chosen for the executor's query.
    pub(super) fn fresh(&mut self, base: &str) -> String {
        self.next_name += 1;
        format!("{base}#{}", self.next_name)
    }

    /// Adds the position of a name to an error.
    pub(super) fn at(&self, ident: &Ident, error: SqlError) -> SqlError {
        positioned(error, self.places.position(ident.span.start))
    }

    /// Returns how an alias is called in the executor's dialect. The executor does not distinguish
    /// names that differ only in case.
    pub(super) fn emitted_alias(&mut self, alias: &str) -> String {
        let lower = alias.to_lowercase();
        let clashes = self
            .scopes
            .iter()
            .flat_map(|s| &s.relations)
            .any(|r| r.emitted.to_lowercase() == lower && r.alias != alias);
        if clashes {
            self.fresh(alias)
        } else {
            alias.to_owned()
        }
    }

    pub(super) fn scope(&mut self) -> SqlResult<&mut Scope> {
        let missing = || SqlError::internal("an expression is bound outside of a scope");
        self.scopes.last_mut().ok_or_else(missing)
    }

    /// Returns the column of an unqualified name.
    pub(super) fn column(&mut self, ident: &Ident) -> SqlResult<Bound> {
        let name = fold(ident);
        for at in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[at];
            if scope.hidden {
                continue;
            }
            let mut found = scope.visible.iter().filter(|c| c.name == name);
            let Some(column) = found.next().cloned() else {
                continue;
            };
            if found.next().is_some() {
                let message = format!("column reference \"{name}\" is ambiguous");
                let error = SqlError::new(SqlState::AMBIGUOUS_COLUMN, message);
                return Err(self.at(ident, error));
            }
            self.use_column(at, &column, ident);
            return Ok(column.bound());
        }
        let message = format!("column \"{name}\" does not exist");
        Err(self.at(ident, SqlError::new(SqlState::UNDEFINED_COLUMN, message)))
    }

    /// Returns the column of a qualified name.
    pub(super) fn qualified_column(&mut self, idents: &[Ident]) -> SqlResult<Bound> {
        let (table, ident) = match idents {
            [table, column] => (table, column),
            [schema, table, column] if fold(schema) == "public" => (table, column),
            [schema, table, column]
                if matches!(&*fold(schema), "pg_catalog" | "information_schema") =>
            {
                (table, column)
            }
            _ => {
                let display: Vec<String> = idents.iter().map(|i| i.to_string()).collect();
                return Err(SqlError::unsupported(format!(
                    "the name {}",
                    display.join(".")
                )));
            }
        };
        let (alias, name) = (fold(table), fold(ident));
        for at in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[at];
            if scope.hidden {
                continue;
            }
            let Some(relation) = scope.relations.iter().find(|r| r.alias == alias) else {
                continue;
            };
            let found = relation.columns.iter().find(|c| c.name == name).cloned();
            let Some(column) = found else {
                let message = format!("column {alias}.{name} does not exist");
                return Err(self.at(table, SqlError::new(SqlState::UNDEFINED_COLUMN, message)));
            };
            self.use_column(at, &column, ident);
            return Ok(column.bound());
        }
        let message = format!("missing FROM-clause entry for table \"{alias}\"");
        Err(self.at(table, SqlError::new(SqlState::UNDEFINED_TABLE, message)))
    }

    /// Notes that a column of a scope is used.
    fn use_column(&mut self, at: usize, column: &VisibleColumn, ident: &Ident) {
        let position = self.places.position(ident.span.start);
        let scope = &mut self.scopes[at];
        if scope.aggregate_depth == 0 && !scope.groups.contains(&column.sql) {
            let relation = column.relation.and_then(|r| scope.relations.get(r));
            let display = match relation {
                Some(relation) => format!("{}.{}", relation.alias, column.name),
                None => column.name.clone(),
            };
            scope
                .ungrouped
                .push((display, column.relation, column.sql.clone(), position));
        }
    }

    /// Returns the parameter `$n`, with `n` from 1.
    pub(super) fn parameter(&mut self, n: usize) -> SqlResult<Bound> {
        if let Some(place) = self.no_parameters {
            let message = format!("there is no parameter ${n}: {place} takes no parameters");
            return Err(SqlError::new(SqlState::UNDEFINED_PARAMETER, message));
        }
        if n == 0 || n > 30_000 {
            let message = format!("there is no parameter ${n}");
            return Err(SqlError::new(SqlState::UNDEFINED_PARAMETER, message));
        }
        if self.parameters.len() < n {
            self.parameters.resize(n, None);
        }
        let ty = self.parameters[n - 1].map_or(Ty::Unknown, Ty::Sql);
        let mut bound = Bound::new(format!("?{}", n + self.parameter_offset), ty);
        bound.kind = Kind::Param(n - 1);
        Ok(bound)
    }

    /// Gives a literal or parameter of open type the type of its context. Other expressions stay.
    pub(super) fn resolve(&mut self, bound: Bound, ty: Ty) -> SqlResult<Bound> {
        if bound.ty != Ty::Unknown {
            return Ok(bound);
        }
        let Bound { kind, mut sql, .. } = bound.clone();
        match (kind, ty) {
            (_, Ty::Unknown) => return Ok(bound),
            (Kind::Text(text), Ty::Interval) => {
                let mut canonical = String::new();
                let interval = crate::types::datetime::parse_interval(&text)?;
                crate::types::datetime::write_interval(interval, &mut canonical);
                return Ok(Bound::literal(&Value::Text(canonical), Ty::Interval));
            }
            (Kind::Text(text), Ty::Sql(target)) => {
                let value = without_limits(target).coerce(Value::Text(text))?;
                return Ok(Bound::literal(&value, target));
            }
            (Kind::Param(at), Ty::Sql(target)) => {
                let ty = *self.parameters[at].get_or_insert(parameter_type(target));
                return Ok(Bound {
                    ty: Ty::Sql(ty),
                    ..bound
                });
            }
            (Kind::Param(_), Ty::Interval) => {
                sql = format!("basalt_interval({sql})");
            }
            _ => {}
        }
        Ok(Bound { sql, ty, ..bound })
    }

    /// Brings expressions to one type, as CASE, COALESCE and UNION do.
    pub(super) fn unify(&mut self, all: &mut [Bound], what: &str) -> SqlResult<Ty> {
        let mut common = Ty::Unknown;
        for bound in all.iter().filter(|b| b.ty != Ty::Unknown) {
            common = common_type(common, bound.ty, what)?;
        }
        let target = match common {
            Ty::Unknown if all.iter().all(Bound::is_open) => Ty::Sql(SqlType::Text),
            other => other,
        };
        for bound in all {
            let taken = std::mem::replace(bound, Bound::new("", Ty::Unknown));
            // Parameters of a list without a type stay open for the context.
            *bound = match common {
                Ty::Unknown => taken,
                _ => self.resolve(taken, common)?,
            };
            *bound = to_common(std::mem::replace(bound, Bound::new("", common)), common);
        }
        Ok(target)
    }
}

/// Returns the type of two types that are mixed, or 42804.
pub(super) fn common_type(left: Ty, right: Ty, what: &str) -> SqlResult<Ty> {
    if left == right || right == Ty::Unknown {
        return Ok(left);
    }
    let (Ty::Sql(a), Ty::Sql(b)) = (left, right) else {
        if left == Ty::Unknown {
            return Ok(right);
        }
        return Err(mismatch(left, right, what));
    };
    let rank = |ty: SqlType| match ty {
        SqlType::SmallInt => 0,
        SqlType::Integer => 1,
        SqlType::BigInt => 2,
        SqlType::Numeric(_) => 3,
        SqlType::Real => 4,
        SqlType::Date => 0,
        SqlType::Timestamp => 1,
        _ => 5,
    };
    match (category(left), category(right)) {
        (Some(Category::Number), Some(Category::Number)) => {
            if let (SqlType::Numeric(x), SqlType::Numeric(y)) = (a, b) {
                let scale = x.zip(y).map(|((_, s), (_, t))| (1000, s.max(t)));
                return Ok(Ty::Sql(SqlType::Numeric(scale)));
            }
            Ok(if rank(a) >= rank(b) { left } else { right })
        }
        (Some(Category::Moment), Some(Category::Moment)) => {
            Ok(if rank(a) >= rank(b) { left } else { right })
        }
        (Some(Category::Text), Some(Category::Text)) => Ok(Ty::Sql(SqlType::Text)),
        (Some(Category::Json), Some(Category::Json)) => Ok(Ty::Sql(SqlType::Jsonb)),
        _ => Err(mismatch(left, right, what)),
    }
}

fn mismatch(left: Ty, right: Ty, what: &str) -> SqlError {
    let message = format!(
        "{what} types {} and {} cannot be matched",
        left.name(),
        right.name()
    );
    SqlError::new(SqlState::DATATYPE_MISMATCH, message)
}

/// Brings a date to a timestamp if the common type is one, and integers to a float.
pub(super) fn to_common(bound: Bound, common: Ty) -> Bound {
    let target = match (bound.ty, common) {
        (Ty::Sql(SqlType::Date), Ty::Sql(SqlType::Timestamp | SqlType::Timestamptz)) => common,
        _ => return bound,
    };
    let nullable = bound.nullable;
    Bound::new(cast_call(&bound.sql, target.display()), target).nullable_if(nullable)
}

/// Returns the call that casts an expression.
pub(super) fn cast_call(sql: &str, ty: SqlType) -> String {
    format!("basalt_cast({sql}, {})", quote_text(&ty.to_string()))
}

/// Returns a column of a relation in the executor's dialect.
pub(super) fn column_sql(emitted: &str, column: &str) -> String {
    format!("{}.{}", quote(emitted), quote(column))
}
