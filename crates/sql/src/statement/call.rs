//! Calls of functions, aggregates and window functions.

use super::binder::{Binder, Bound, Category, Kind, Ty, category, to_common};
use super::expr::text_sql;
use super::name::{fold, parts, quote_text};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArguments, OrderByExpr,
};

/// How the result of a function is typed.
#[derive(Debug, Clone, Copy)]
enum Result {
    Of(SqlType),
    /// The type of the first argument.
    First,
    /// `Double` for a double argument, otherwise `Numeric`.
    Float,
    Interval,
}

/// A scalar function. The letters are the arguments' types: `t` text, `n` number, `i` integer, `d`
/// moment, `y` bytea, `a` any.
struct Scalar {
    name: &'static str,
    emitted: &'static str,
    arguments: &'static str,
    required: usize,
    result: Result,
}

const fn scalar(
    name: &'static str,
    emitted: &'static str,
    arguments: &'static str,
    required: usize,
    result: Result,
) -> Scalar {
    Scalar {
        name,
        emitted,
        arguments,
        required,
        result,
    }
}

use SqlType as T;
const TEXT: Result = Result::Of(T::Text);
const INT: Result = Result::Of(T::Integer);
const BIGINT: Result = Result::Of(T::BigInt);
const BOOL: Result = Result::Of(T::Boolean);
const DOUBLE: Result = Result::Of(T::Double);

/// The scalar functions that have nothing special.
const SCALARS: &[Scalar] = &[
    scalar("upper", "basalt_upper", "t", 1, TEXT),
    scalar("lower", "basalt_lower", "t", 1, TEXT),
    scalar("initcap", "basalt_initcap", "t", 1, TEXT),
    scalar("length", "basalt_length", "t", 1, INT),
    scalar("char_length", "basalt_length", "t", 1, INT),
    scalar("character_length", "basalt_length", "t", 1, INT),
    scalar("octet_length", "basalt_octet_length", "a", 1, INT),
    scalar("bit_length", "basalt_bit_length", "a", 1, INT),
    scalar("left", "basalt_left", "ti", 2, TEXT),
    scalar("right", "basalt_right", "ti", 2, TEXT),
    scalar("lpad", "basalt_lpad", "tit", 2, TEXT),
    scalar("rpad", "basalt_rpad", "tit", 2, TEXT),
    scalar("repeat", "basalt_repeat", "ti", 2, TEXT),
    scalar("reverse", "basalt_reverse", "t", 1, TEXT),
    scalar("split_part", "basalt_split_part", "tti", 3, TEXT),
    scalar("strpos", "basalt_strpos", "tt", 2, INT),
    scalar("position", "basalt_strpos", "tt", 2, INT),
    scalar("replace", "basalt_replace", "ttt", 3, TEXT),
    scalar("translate", "basalt_translate", "ttt", 3, TEXT),
    scalar("overlay", "basalt_overlay", "ttii", 3, TEXT),
    scalar("btrim", "basalt_btrim", "tt", 1, TEXT),
    scalar("trim", "basalt_btrim", "tt", 1, TEXT),
    scalar("ltrim", "basalt_ltrim", "tt", 1, TEXT),
    scalar("rtrim", "basalt_rtrim", "tt", 1, TEXT),
    scalar("chr", "basalt_chr", "i", 1, TEXT),
    scalar("ascii", "basalt_ascii", "t", 1, INT),
    scalar("md5", "basalt_md5", "a", 1, TEXT),
    scalar("to_hex", "basalt_to_hex", "i", 1, TEXT),
    scalar("quote_ident", "basalt_quote_ident", "t", 1, TEXT),
    scalar("quote_literal", "basalt_quote_literal", "t", 1, TEXT),
    scalar("starts_with", "basalt_starts_with", "tt", 2, BOOL),
    scalar("regexp_replace", "basalt_regexp_replace", "tttt", 3, TEXT),
    scalar("encode", "basalt_encode", "yt", 2, TEXT),
    scalar("decode", "basalt_decode", "tt", 2, Result::Of(T::Bytea)),
    scalar("abs", "basalt_abs", "n", 1, Result::First),
    scalar("sign", "basalt_sign", "n", 1, Result::Float),
    scalar("ceil", "basalt_ceil", "n", 1, Result::Float),
    scalar("ceiling", "basalt_ceil", "n", 1, Result::Float),
    scalar("floor", "basalt_floor", "n", 1, Result::Float),
    scalar("power", "basalt_power", "nn", 2, Result::Float),
    scalar("pow", "basalt_power", "nn", 2, Result::Float),
    scalar("sqrt", "basalt_sqrt", "n", 1, Result::Float),
    scalar("cbrt", "basalt_cbrt", "n", 1, DOUBLE),
    scalar("exp", "basalt_exp", "n", 1, Result::Float),
    scalar("ln", "basalt_ln", "n", 1, Result::Float),
    scalar("log", "basalt_log", "nn", 1, Result::Float),
    scalar("log10", "basalt_log", "n", 1, Result::Float),
    scalar("sin", "basalt_sin", "n", 1, DOUBLE),
    scalar("cos", "basalt_cos", "n", 1, DOUBLE),
    scalar("tan", "basalt_tan", "n", 1, DOUBLE),
    scalar("asin", "basalt_asin", "n", 1, DOUBLE),
    scalar("acos", "basalt_acos", "n", 1, DOUBLE),
    scalar("atan", "basalt_atan", "n", 1, DOUBLE),
    scalar("atan2", "basalt_atan2", "nn", 2, DOUBLE),
    scalar("radians", "basalt_radians", "n", 1, DOUBLE),
    scalar("degrees", "basalt_degrees", "n", 1, DOUBLE),
    scalar("pi", "basalt_pi", "", 0, DOUBLE),
    scalar("gcd", "basalt_gcd", "ii", 2, Result::First),
    scalar("random", "basalt_random", "", 0, DOUBLE),
    scalar("gen_random_uuid", "basalt_uuid", "", 0, Result::Of(T::Uuid)),
    scalar("now", "basalt_now", "", 0, Result::Of(T::Timestamptz)),
    scalar(
        "transaction_timestamp",
        "basalt_now",
        "",
        0,
        Result::Of(T::Timestamptz),
    ),
    scalar(
        "current_timestamp",
        "basalt_now",
        "i",
        0,
        Result::Of(T::Timestamptz),
    ),
    scalar(
        "localtimestamp",
        "basalt_now",
        "i",
        0,
        Result::Of(T::Timestamp),
    ),
    scalar(
        "statement_timestamp",
        "basalt_clock",
        "",
        0,
        Result::Of(T::Timestamptz),
    ),
    scalar(
        "clock_timestamp",
        "basalt_clock",
        "",
        0,
        Result::Of(T::Timestamptz),
    ),
    scalar("current_date", "basalt_today", "", 0, Result::Of(T::Date)),
    scalar(
        "localtime",
        "basalt_time_of_day",
        "",
        0,
        Result::Of(T::Time),
    ),
    scalar(
        "current_time",
        "basalt_time_of_day",
        "",
        0,
        Result::Of(T::Time),
    ),
    scalar(
        "make_date",
        "basalt_make_date",
        "iii",
        3,
        Result::Of(T::Date),
    ),
    scalar(
        "make_timestamp",
        "basalt_make_timestamp",
        "iiiiin",
        6,
        Result::Of(T::Timestamp),
    ),
    scalar("age", "basalt_age", "dd", 1, Result::Interval),
    scalar(
        "to_timestamp",
        "basalt_to_timestamp",
        "n",
        1,
        Result::Of(T::Timestamptz),
    ),
    scalar("version", "basalt_version", "", 0, TEXT),
    scalar("current_user", "basalt_user", "", 0, TEXT),
    scalar("session_user", "basalt_user", "", 0, TEXT),
    scalar("user", "basalt_user", "", 0, TEXT),
    scalar("current_role", "basalt_user", "", 0, TEXT),
    scalar("current_database", "basalt_database", "", 0, TEXT),
    scalar("current_catalog", "basalt_database", "", 0, TEXT),
    scalar("current_schema", "basalt_schema", "", 0, TEXT),
    scalar("pg_backend_pid", "basalt_backend_pid", "", 0, INT),
    scalar("pg_table_is_visible", "basalt_is_visible", "a", 1, BOOL),
    scalar("pg_collation_is_visible", "basalt_true", "a", 1, BOOL),
    scalar("pg_relation_is_publishable", "basalt_true", "a", 1, BOOL),
    scalar("has_column_privilege", "basalt_true", "aaaa", 3, BOOL),
    scalar("has_sequence_privilege", "basalt_true", "aaa", 2, BOOL),
    scalar("pg_is_in_recovery", "basalt_false", "", 0, BOOL),
    scalar("to_regclass", "basalt_to_regclass", "t", 1, BIGINT),
    scalar("pg_partition_ancestors", "basalt_null", "a", 1, BIGINT),
    scalar("pg_get_function_result", "basalt_null", "a", 1, TEXT),
    scalar("pg_get_function_arguments", "basalt_null", "a", 1, TEXT),
    scalar(
        "pg_get_function_identity_arguments",
        "basalt_null",
        "a",
        1,
        TEXT,
    ),
    scalar("pg_get_triggerdef", "basalt_null", "aa", 1, TEXT),
    scalar(
        "pg_get_statisticsobjdef_columns",
        "basalt_null",
        "a",
        1,
        TEXT,
    ),
    scalar("pg_tablespace_location", "basalt_null", "a", 1, TEXT),
    scalar("pg_indexes_size", "basalt_relation_size", "a", 1, BIGINT),
    scalar("current_setting", "basalt_current_setting", "ta", 1, TEXT),
    scalar("pg_size_pretty", "basalt_size_pretty", "a", 1, TEXT),
    scalar("array_to_string", "basalt_array_to_string", "tt", 2, TEXT),
    scalar("array_remove", "basalt_array_remove", "tt", 2, TEXT),
    scalar("array_upper", "basalt_array_upper", "ti", 2, INT),
    scalar("array_length", "basalt_array_upper", "ti", 2, INT),
    scalar("pg_type_is_visible", "basalt_true", "a", 1, BOOL),
    scalar("pg_function_is_visible", "basalt_true", "a", 1, BOOL),
    scalar("has_table_privilege", "basalt_true", "aaa", 2, BOOL),
    scalar("has_schema_privilege", "basalt_true", "aaa", 2, BOOL),
    scalar("has_database_privilege", "basalt_true", "aaa", 2, BOOL),
    scalar("pg_get_userbyid", "basalt_user_by_id", "a", 1, TEXT),
    scalar("pg_encoding_to_char", "basalt_encoding_name", "i", 1, TEXT),
    scalar("format_type", "basalt_format_type", "aa", 2, TEXT),
    scalar("pg_get_expr", "basalt_get_expr", "aaa", 2, TEXT),
    scalar("pg_get_indexdef", "basalt_get_indexdef", "aaa", 1, TEXT),
    scalar(
        "pg_get_constraintdef",
        "basalt_get_constraintdef",
        "aa",
        1,
        TEXT,
    ),
    scalar("pg_get_viewdef", "basalt_get_viewdef", "aa", 1, TEXT),
    scalar(
        "pg_get_serial_sequence",
        "basalt_get_serial_sequence",
        "tt",
        2,
        TEXT,
    ),
    scalar("obj_description", "basalt_null", "aa", 1, TEXT),
    scalar("col_description", "basalt_null", "aa", 2, TEXT),
    scalar("shobj_description", "basalt_null", "aa", 2, TEXT),
    scalar("pg_relation_size", "basalt_relation_size", "at", 1, BIGINT),
    scalar(
        "pg_total_relation_size",
        "basalt_relation_size",
        "a",
        1,
        BIGINT,
    ),
    scalar("pg_table_size", "basalt_relation_size", "a", 1, BIGINT),
    scalar("pg_database_size", "basalt_database_size", "a", 1, BIGINT),
    scalar("json_valid", "basalt_json_valid", "t", 1, BOOL),
];

/// Aggregates of one number that the executor has or that are registered.
pub(super) const STATISTICS: &[(&str, &str)] = &[
    ("stddev", "basalt_stddev_samp"),
    ("stddev_samp", "basalt_stddev_samp"),
    ("stddev_pop", "basalt_stddev_pop"),
    ("variance", "basalt_var_samp"),
    ("var_samp", "basalt_var_samp"),
    ("var_pop", "basalt_var_pop"),
];

const AGGREGATES: &[&str] = &[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "string_agg",
    "array_agg",
    "bool_and",
    "bool_or",
    "every",
    "stddev",
    "stddev_samp",
    "stddev_pop",
    "variance",
    "var_samp",
    "var_pop",
];

const WINDOW_FUNCTIONS: &[&str] = &[
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "lag",
    "lead",
    "first_value",
    "last_value",
    "nth_value",
];

/// Returns the name of a field of EXTRACT, or 22023.
pub(super) fn field_name(field: &str) -> SqlResult<String> {
    let name = field.trim_matches(['\'', '"']).to_lowercase();
    let base = name.strip_suffix('s').unwrap_or(&name);
    let known = match base {
        "year" | "month" | "day" | "hour" | "minute" | "second" | "millisecond" | "microsecond"
        | "quarter" | "week" | "dow" | "isodow" | "doy" | "epoch" | "century" | "decade"
        | "millennium" | "isoyear" | "julian" | "timezone" => base,
        "millenium" => "millennium",
        _ => {
            let message = format!("unit \"{name}\" not recognized");
            return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
        }
    };
    Ok(known.to_string())
}

pub(super) fn undefined(name: &str, arguments: &[Bound]) -> SqlError {
    let types: Vec<String> = arguments.iter().map(|a| a.ty.name()).collect();
    let message = format!("function {name}({}) does not exist", types.join(", "));
    SqlError::new(SqlState::UNDEFINED_FUNCTION, message).with_hint(
        "No function matches the given name and argument types. You might need to add explicit \
         type casts.",
    )
}

/// The parts of a call.
pub(super) struct Call<'a> {
    pub(super) name: String,
    pub(super) arguments: Vec<&'a Expr>,
    pub(super) star: bool,
    pub(super) distinct: bool,
    pub(super) order: Vec<&'a OrderByExpr>,
}

impl Binder<'_> {
    /// Binds a call.
    pub(super) fn function(&mut self, function: &Function) -> SqlResult<Bound> {
        let names = parts(&function.name)?;
        let ident = match names[..] {
            [name] => name,
            [schema, name] if matches!(&*fold(schema), "pg_catalog" | "public") => name,
            _ => {
                return Err(SqlError::unsupported(format!(
                    "the function {}",
                    function.name
                )));
            }
        };
        let call = call_parts(function, fold(ident))?;
        let is_aggregate = AGGREGATES.contains(&call.name.as_str());
        let is_window = WINDOW_FUNCTIONS.contains(&call.name.as_str());
        let bound = if is_window && function.over.is_none() {
            let message = format!("window function {} requires an OVER clause", call.name);
            Err(SqlError::new(SqlState("42P20"), message))
        } else if is_aggregate || is_window {
            self.aggregate(function, &call)
        } else {
            let extra = function.filter.is_some()
                || function.over.is_some()
                || call.distinct
                || call.star
                || !call.order.is_empty();
            if extra {
                let message = format!("{} is not an aggregate function", call.name);
                Err(SqlError::new(SqlState::WRONG_OBJECT_TYPE, message))
            } else {
                self.named_call(&call.name, &call.arguments)
            }
        };
        bound.map_err(|e| match e.position() {
            None if e.state() == SqlState::UNDEFINED_FUNCTION => self.at(ident, e),
            _ => e,
        })
    }

    /// Binds a call of a scalar function by its name.
    pub(super) fn named_call(&mut self, name: &str, arguments: &[&Expr]) -> SqlResult<Bound> {
        let mut bounds = Vec::new();
        for argument in arguments {
            let bound = self.value(argument)?;
            bounds.push(bound);
        }
        self.call(name, bounds)
    }

    fn call(&mut self, name: &str, mut arguments: Vec<Bound>) -> SqlResult<Bound> {
        if let Some(result) = self.special_call(name, &mut arguments)? {
            return Ok(result);
        }
        let Some(found) = SCALARS.iter().find(|s| s.name == name) else {
            return Err(undefined(name, &arguments));
        };
        let count = arguments.len();
        if count < found.required || count > found.arguments.len() {
            return Err(undefined(name, &arguments));
        }
        let display = arguments.clone();
        let mut sqls = Vec::new();
        let mut first = Ty::Unknown;
        for (at, (argument, letter)) in arguments
            .into_iter()
            .zip(found.arguments.bytes())
            .enumerate()
        {
            let argument = self.argument(argument, letter).map_err(|e| match e {
                Some(error) => error,
                None => undefined(name, &display),
            })?;
            if at == 0 {
                first = argument.ty;
            }
            sqls.push(argument.sql);
        }
        // The precision of CURRENT_TIMESTAMP(n) would round, which is not done.
        if matches!(name, "current_timestamp" | "localtimestamp") {
            if sqls.iter().any(|s| s != "6") {
                return Err(SqlError::unsupported(format!("a precision of {name}")));
            }
            sqls.clear();
        }
        let ty = match found.result {
            Result::Of(ty) => Ty::Sql(ty),
            Result::First => first,
            Result::Interval => Ty::Interval,
            Result::Float => match first {
                Ty::Sql(ty @ (T::Double | T::Real)) => Ty::Sql(ty),
                Ty::Sql(ty) if ty.is_integer() => Ty::Sql(T::Double),
                _ => Ty::Sql(T::Numeric(None)),
            },
        };
        let nullable = !display.is_empty();
        let sql = format!("{}({})", found.emitted, sqls.join(", "));
        Ok(Bound::new(sql, ty).nullable_if(nullable))
    }

    /// Checks an argument by its letter. The error is `None` if the type does not fit.
    fn argument(
        &mut self,
        argument: Bound,
        letter: u8,
    ) -> std::result::Result<Bound, Option<SqlError>> {
        let (target, wanted) = match letter {
            b't' => (T::Text, Category::Text),
            b'n' => (T::Double, Category::Number),
            b'i' => (T::Integer, Category::Number),
            b'd' => (T::Timestamp, Category::Moment),
            b'y' => (T::Bytea, Category::Bytea),
            _ => {
                let argument = self.resolve(argument, Ty::Sql(T::Text)).map_err(Some)?;
                return Ok(argument);
            }
        };
        let argument = self.resolve(argument, Ty::Sql(target)).map_err(Some)?;
        let fits = match category(argument.ty) {
            None => true,
            Some(found) if letter == b'i' => {
                found == wanted && matches!(argument.ty, Ty::Sql(ty) if ty.is_integer())
            }
            // The length of bytes, and names of the system's types.
            Some(Category::Bytea) => letter == b't' || letter == b'y',
            Some(found) => found == wanted,
        };
        match fits {
            true if letter == b'd' => Ok(to_common(argument, Ty::Sql(T::Timestamp))),
            true => Ok(argument),
            false => Err(None),
        }
    }

    /// Binds the functions whose rewriting is special; `None` for others.
    fn special_call(&mut self, name: &str, arguments: &mut Vec<Bound>) -> SqlResult<Option<Bound>> {
        let taken = std::mem::take(arguments);
        Ok(Some(match (name, taken.len()) {
            ("coalesce", 1..) => self.same_typed(name, "coalesce", taken)?,
            ("greatest", 1..) => self.same_typed(name, "basalt_greatest", taken)?,
            ("least", 1..) => self.same_typed(name, "basalt_least", taken)?,
            ("nullif", 2) => {
                let mut taken = taken;
                let ty = taken[0].ty;
                self.unify(&mut taken, "NULLIF")?;
                let ty = if ty == Ty::Unknown { taken[0].ty } else { ty };
                let ty = if ty == Ty::Unknown {
                    Ty::Sql(T::Text)
                } else {
                    ty
                };
                Bound::new(format!("nullif({}, {})", taken[0].sql, taken[1].sql), ty)
            }
            ("substr" | "substring", 2 | 3) => self.substring(taken)?,
            ("round" | "trunc", 1 | 2) => self.round(name, taken)?,
            ("mod", 2) => {
                let mut taken = taken.into_iter();
                let (left, right) = (taken.next(), taken.next());
                let (Some(left), Some(right)) = (left, right) else {
                    return Ok(None);
                };
                self.arithmetic(&sqlparser::ast::BinaryOperator::Modulo, left, right)?
                    .checked()
            }
            ("concat", 1..) => {
                let mut list = Vec::new();
                for argument in taken {
                    let argument = self.resolve(argument, Ty::Sql(T::Text))?;
                    list.push(text_sql(&argument));
                }
                Bound::new(format!("basalt_concat({})", list.join(", ")), T::Text).not_null()
            }
            ("concat_ws", 2..) => {
                let mut list = Vec::new();
                for argument in taken {
                    let argument = self.resolve(argument, Ty::Sql(T::Text))?;
                    list.push(text_sql(&argument));
                }
                Bound::new(format!("basalt_concat_ws({})", list.join(", ")), T::Text)
            }
            ("date_trunc", 2) => self.date_trunc(taken)?,
            ("date_part", 2) => {
                let field = literal_text(&taken[0], "the field of date_part")?;
                let field = field_name(&field)?;
                self.extract(&field, taken[1].clone(), T::Double)?
            }
            ("to_char", 2) => self.char_of(taken)?,
            ("to_date", 2) | ("to_timestamp", 2) | ("to_number", 2) => {
                return Err(SqlError::unsupported(format!("{name} with a pattern")));
            }
            ("current_schemas", 1) => {
                let sql = format!(
                    "CASE WHEN {} THEN '{{pg_catalog,public}}' ELSE '{{public}}' END",
                    taken[0].sql
                );
                Bound::new(format!("({sql})"), Ty::Array(T::Text)).not_null()
            }
            ("unnest", 1) => self.unnest_call(&taken[0])?,
            ("generate_subscripts", 2) => self.subscripts_call(&taken[0])?,
            ("json_build_object" | "jsonb_build_object", _) => self.json_object(taken)?,
            ("nextval" | "currval", 1) | ("setval", 2 | 3) => self.sequence_call(name, taken)?,
            ("lastval", 0) => return Err(SqlError::unsupported("lastval")),
            ("pg_typeof", 1) => {
                let display = taken[0].ty.name();
                Bound::new(quote_text(&display), T::Text).not_null()
            }
            (
                "json_agg" | "jsonb_agg" | "percentile_cont" | "percentile_disc" | "mode" | "corr"
                | "generate_series",
                _,
            ) => {
                return Err(SqlError::unsupported(format!(
                    "the function {name} in this place"
                )));
            }
            _ => {
                *arguments = taken;
                return Ok(None);
            }
        }))
    }

    fn same_typed(&mut self, name: &str, emitted: &str, mut all: Vec<Bound>) -> SqlResult<Bound> {
        let ty = self.unify(&mut all, &name.to_uppercase())?;
        let nullable = all.iter().all(|b| b.nullable);
        if let [only] = &all[..] {
            return Ok(only.clone());
        }
        let list: Vec<&str> = all.iter().map(|b| b.sql.as_str()).collect();
        Ok(Bound::new(format!("{emitted}({})", list.join(", ")), ty).nullable_if(nullable))
    }

    fn substring(&mut self, arguments: Vec<Bound>) -> SqlResult<Bound> {
        let display = arguments.clone();
        let mut list = Vec::new();
        let is_pattern = matches!(&arguments[1].kind, Kind::Text(_))
            || matches!(category(arguments[1].ty), Some(Category::Text));
        if is_pattern {
            return Err(SqlError::unsupported("SUBSTRING with a pattern"));
        }
        let bytea = arguments[0].ty == Ty::Sql(T::Bytea);
        for (argument, letter) in arguments.into_iter().zip(*b"tii") {
            let argument = self.argument(argument, letter);
            list.push(argument.map_err(|e| e.unwrap_or_else(|| undefined("substring", &display)))?);
        }
        let sqls: Vec<&str> = list.iter().map(|b| b.sql.as_str()).collect();
        let ty = if bytea { T::Bytea } else { T::Text };
        Ok(Bound::new(
            format!("basalt_substr({})", sqls.join(", ")),
            ty,
        ))
    }

    fn round(&mut self, name: &str, arguments: Vec<Bound>) -> SqlResult<Bound> {
        let display = arguments.clone();
        let mut arguments = arguments.into_iter();
        let value = arguments
            .next()
            .unwrap_or_else(|| Bound::new("NULL", Ty::Unknown));
        let value = self.resolve(value, Ty::Sql(T::Double))?;
        if !matches!(category(value.ty), None | Some(Category::Number)) {
            return Err(undefined(name, &display));
        }
        let Some(scale) = arguments.next() else {
            let ty = match value.ty {
                Ty::Sql(ty @ (T::Double | T::Real)) => ty,
                Ty::Sql(ty) if ty.is_integer() => T::Double,
                _ => T::Numeric(Some((1000, 0))),
            };
            return Ok(Bound::new(format!("basalt_{name}({}, 0)", value.sql), ty));
        };
        let scale = self.resolve(scale, Ty::Sql(T::Integer))?;
        // PostgreSQL has no round of a double to digits.
        if matches!(value.ty, Ty::Sql(T::Double | T::Real)) {
            return Err(undefined(name, &display));
        }
        let digits = match &scale.kind {
            Kind::Number(digits) => digits.parse::<i64>().ok(),
            _ => None,
        };
        let known = digits
            .and_then(|n| u16::try_from(n.max(0)).ok())
            .filter(|n| *n <= 100);
        let ty = T::Numeric(known.map(|scale| (1000, scale)));
        Ok(Bound::new(
            format!("basalt_{name}({}, {})", value.sql, scale.sql),
            ty,
        ))
    }

    fn date_trunc(&mut self, arguments: Vec<Bound>) -> SqlResult<Bound> {
        let field = literal_text(&arguments[0], "the field of date_trunc")?;
        let field = field_name(&field)?;
        if matches!(
            &*field,
            "dow" | "isodow" | "doy" | "epoch" | "julian" | "timezone"
        ) {
            let message = format!("unit \"{field}\" not supported for date_trunc");
            return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
        }
        let value = self.resolve(arguments[1].clone(), Ty::Sql(T::Timestamptz))?;
        let ty = match value.ty {
            Ty::Sql(T::Date) => T::Timestamptz,
            Ty::Sql(ty @ (T::Timestamp | T::Timestamptz)) => ty,
            Ty::Unknown => T::Timestamp,
            _ => return Err(undefined("date_trunc", &arguments)),
        };
        let value = to_common(value, Ty::Sql(ty));
        let sql = format!("basalt_date_trunc({}, {})", quote_text(&field), value.sql);
        Ok(Bound::new(sql, ty).nullable_if(value.nullable))
    }

    fn char_of(&mut self, arguments: Vec<Bound>) -> SqlResult<Bound> {
        let value = self.resolve(arguments[0].clone(), Ty::Sql(T::Timestamp))?;
        let pattern = self.resolve(arguments[1].clone(), Ty::Sql(T::Text))?;
        let ty = match (category(value.ty), value.ty) {
            (Some(Category::Moment | Category::Number), ty) => ty.display().to_string(),
            (Some(Category::Interval), _) => "interval".to_string(),
            _ => return Err(undefined("to_char", &arguments)),
        };
        let sql = format!(
            "basalt_to_char({}, {}, {})",
            value.sql,
            pattern.sql,
            quote_text(&ty)
        );
        Ok(Bound::new(sql, T::Text))
    }

    fn sequence_call(&mut self, name: &str, arguments: Vec<Bound>) -> SqlResult<Bound> {
        let sequence = match &arguments[0].kind {
            Kind::Text(text) => {
                let text = text.trim();
                let text = text.strip_prefix("public.").unwrap_or(text);
                let unquoted = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
                unquoted.map_or_else(|| text.to_lowercase(), str::to_owned)
            }
            // The number of a `regclass` literal.
            Kind::Plain => {
                let id = arguments[0]
                    .sql
                    .parse()
                    .ok()
                    .and_then(|id| self.catalog.by_id(id));
                match id {
                    Some(object) => object.name().to_owned(),
                    None => return Err(SqlError::unsupported(format!("{name} of an expression"))),
                }
            }
            _ => return Err(SqlError::unsupported(format!("{name} of an expression"))),
        };
        let Some(found) = self.catalog.sequence(&sequence) else {
            let (state, message) = match self.catalog.object(&sequence) {
                Some(_) => (
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("\"{sequence}\" is not a sequence"),
                ),
                None => (
                    SqlState::UNDEFINED_TABLE,
                    format!("relation \"{sequence}\" does not exist"),
                ),
            };
            return Err(SqlError::new(state, message));
        };
        let id = found.id;
        self.has_side_effects |= name != "currval";
        let mut list = vec![id.to_string()];
        for (argument, ty) in arguments.into_iter().skip(1).zip([T::BigInt, T::Boolean]) {
            list.push(self.resolve(argument, Ty::Sql(ty))?.sql);
        }
        Ok(Bound::new(
            format!("basalt_{name}({})", list.join(", ")),
            T::BigInt,
        ))
    }
}

fn literal_text(bound: &Bound, what: &str) -> SqlResult<String> {
    match &bound.kind {
        Kind::Text(text) => Ok(text.clone()),
        _ => Err(SqlError::unsupported(format!("an expression as {what}"))),
    }
}

fn call_parts(function: &Function, name: String) -> SqlResult<Call<'_>> {
    let mut call = Call {
        name,
        arguments: Vec::new(),
        star: false,
        distinct: false,
        order: Vec::new(),
    };
    let unsupported = |what: &str| Err(SqlError::unsupported(format!("{what} in a call")));
    if function.uses_odbc_syntax || !matches!(function.parameters, FunctionArguments::None) {
        return unsupported("this syntax");
    }
    if function.null_treatment.is_some() {
        return unsupported("IGNORE NULLS or RESPECT NULLS");
    }
    if !function.within_group.is_empty() {
        return unsupported("WITHIN GROUP");
    }
    let list = match &function.args {
        FunctionArguments::None => return Ok(call),
        FunctionArguments::Subquery(_) => return unsupported("a query as the argument"),
        FunctionArguments::List(list) => list,
    };
    call.distinct = list.duplicate_treatment == Some(DuplicateTreatment::Distinct);
    for argument in &list.args {
        match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => call.arguments.push(expr),
            FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => call.star = true,
            _ => return unsupported("a named argument"),
        }
    }
    if call.star && !call.arguments.is_empty() {
        return Err(SqlError::syntax("syntax error at or near \"*\""));
    }
    for clause in &list.clauses {
        match clause {
            FunctionArgumentClause::OrderBy(order) => call.order.extend(order),
            _ => return unsupported("this clause"),
        }
    }
    Ok(call)
}
