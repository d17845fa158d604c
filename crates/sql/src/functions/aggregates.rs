//! Aggregates that the executor lacks.

use super::{FunctionContext, Output, guarded};
use crate::error::{SqlError, SqlResult, SqlState};
use crate::types::SqlType;
use crate::value::Value;
use rusqlite::Connection;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::Value as Native;
use std::sync::Arc;

/// The one value of a subquery; a second row fails with 21000.
struct Single(Arc<dyn FunctionContext>);

impl Aggregate<Option<Native>, Output> for Single {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<Option<Native>> {
        Ok(None)
    }

    fn step(&self, call: &mut Context<'_>, found: &mut Option<Native>) -> rusqlite::Result<()> {
        let value: Native = call.get(0)?;
        guarded(self.0.as_ref(), || match found.replace(value) {
            None => Ok(()),
            Some(_) => {
                let message = "more than one row returned by a subquery used as an expression";
                Err(SqlError::new(SqlState::CARDINALITY_VIOLATION, message))
            }
        })
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        found: Option<Option<Native>>,
    ) -> rusqlite::Result<Output> {
        Ok(Output(match found.flatten() {
            None | Some(Native::Null) => Value::Null,
            Some(Native::Integer(n)) => Value::Integer(n),
            Some(Native::Real(x)) => Value::Real(x),
            Some(Native::Text(text)) => Value::Text(text),
            Some(Native::Blob(bytes)) => Value::Blob(bytes),
        }))
    }
}

/// Count, mean and sum of squared differences, by Welford's method.
#[derive(Default)]
struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
}

/// Variance or standard deviation, of a sample or of all values.
struct Spread {
    context: Arc<dyn FunctionContext>,
    sample: bool,
    root: bool,
}

impl Aggregate<Moments, Output> for Spread {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<Moments> {
        Ok(Moments::default())
    }

    fn step(&self, call: &mut Context<'_>, moments: &mut Moments) -> rusqlite::Result<()> {
        let value: Native = call.get(0)?;
        guarded(self.context.as_ref(), || {
            let x = match value {
                Native::Null => return Ok(()),
                Native::Integer(n) => n as f64,
                Native::Real(x) => x,
                _ => return Err(SqlError::internal("a spread of values that are no numbers")),
            };
            moments.count += 1;
            let before = x - moments.mean;
            moments.mean += before / moments.count as f64;
            moments.squares += before * (x - moments.mean);
            Ok(())
        })
    }

    fn finalize(&self, _: &mut Context<'_>, moments: Option<Moments>) -> rusqlite::Result<Output> {
        guarded(self.context.as_ref(), || {
            Ok(Output(spread(self, &moments.unwrap_or_default())?))
        })
    }
}

fn spread(kind: &Spread, moments: &Moments) -> SqlResult<Value> {
    let below = if kind.sample { 1 } else { 0 };
    let Some(divisor) = moments.count.checked_sub(below).filter(|n| *n > 0) else {
        return Ok(Value::Null);
    };
    let variance = moments.squares / divisor as f64;
    let x = if kind.root { variance.sqrt() } else { variance };
    SqlType::Double.coerce(Value::Real(x))
}

/// Registers the aggregates.
pub(super) fn register(
    connection: &Connection,
    context: Arc<dyn FunctionContext>,
) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_aggregate_function("basalt_single", 1, flags, Single(context.clone()))?;
    let spreads = [
        ("basalt_var_samp", true, false),
        ("basalt_var_pop", false, false),
        ("basalt_stddev_samp", true, true),
        ("basalt_stddev_pop", false, true),
    ];
    for (name, sample, root) in spreads {
        let context = context.clone();
        let spread = Spread {
            context,
            sample,
            root,
        };
        connection.create_aggregate_function(name, 1, flags, spread)?;
    }
    Ok(())
}
