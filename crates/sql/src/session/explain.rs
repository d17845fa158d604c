//! EXPLAIN: the plan of a statement, and what it has cost.

use super::{Outcome, Row, RowSink, Session};
use crate::error::{SqlError, SqlResult};
use crate::schema::Schema;
use crate::sqlite_error;
use crate::state::StatementCounts;
use crate::statement::{Command, Executable, Explain};
use crate::value::{Value, ValueRef};
use std::collections::BTreeMap;

/// A step of a plan.
struct Step {
    text: String,
    depth: usize,
}

/// What a statement has cost.
struct Costs {
    rows: u64,
    microseconds: u128,
    counts: StatementCounts,
    device_reads: u64,
}

impl Session {
    /// Shows the plan of a statement; with ANALYZE also runs it.
    pub(super) fn explain(
        &mut self,
        explain: &Explain,
        schema: &Schema,
        parameters: &[Value],
        sink: &mut dyn RowSink,
    ) -> SqlResult<Outcome> {
        let executable = match &*explain.statement {
            Command::Query(query) => &query.executable,
            Command::Write(write) => &write.executable,
            _ => return Err(SqlError::unsupported("EXPLAIN of this statement")),
        };
        self.declare(schema, &executable.relations)?;
        let steps = self.plan(executable, parameters)?;
        let costs = match explain.analyze {
            true => Some(self.analyze(explain, parameters)?),
            false => None,
        };
        self.end_statement()?;
        let lines = match explain.json {
            true => vec![json(&steps, costs.as_ref())],
            false => text(&steps, costs.as_ref()),
        };
        for line in &lines {
            sink.row(&Row::of(&[ValueRef::Text(line)]))?;
        }
        Ok(Outcome::done("EXPLAIN", lines.len() as u64))
    }

    /// Returns the steps of a statement's plan, each after the one that it belongs to.
    fn plan(&self, executable: &Executable, parameters: &[Value]) -> SqlResult<Vec<Step>> {
        let failed = |e: rusqlite::Error| {
            let raised = self.context.take_error();
            raised.unwrap_or_else(|| sqlite_error::of(&e))
        };
        let sql = format!("EXPLAIN QUERY PLAN {}", executable.sql);
        let mut statement = self.connection.prepare(&sql).map_err(failed)?;
        let taken = statement.parameter_count();
        for (at, value) in parameters.iter().take(taken).enumerate() {
            statement
                .raw_bind_parameter(at + 1, value)
                .map_err(failed)?;
        }
        let mut rows = statement.raw_query();
        let mut steps: Vec<Step> = Vec::new();
        let mut depths = BTreeMap::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let id: i64 = row.get(0).map_err(failed)?;
            let parent: i64 = row.get(1).map_err(failed)?;
            let text: String = row.get(3).map_err(failed)?;
            let depth = depths.get(&parent).map_or(0, |depth| depth + 1);
            depths.insert(id, depth);
            let text = match text.split_once(" VIRTUAL TABLE INDEX ") {
                Some((table, plan)) => {
                    let plan = plan.split_once(':').map_or(plan, |(_, plan)| plan);
                    format!("{}: {plan}", table.replacen("SCAN ", "Scan ", 1))
                }
                None => text,
            };
            steps.push(Step { text, depth });
        }
        Ok(steps)
    }

    fn analyze(&mut self, explain: &Explain, parameters: &[Value]) -> SqlResult<Costs> {
        let clock = self.storage.env().clock().clone();
        let reads = self.device_reads();
        let begin = clock.now();
        let rows = match &*explain.statement {
            Command::Query(query) => {
                let mut ignored = |_: &Row<'_>| Ok(());
                self.run_query(query, parameters, &mut ignored)?
            }
            Command::Write(write) => self.run_write(write, parameters)?.0,
            _ => 0,
        };
        let microseconds = clock.now().saturating_sub(begin).as_micros();
        Ok(Costs {
            rows,
            microseconds,
            counts: self.state.lock().counts,
            device_reads: self.device_reads() - reads,
        })
    }

    /// Returns the cache misses of the process since it started. Misses of other sessions are
    /// included.
    fn device_reads(&self) -> u64 {
        self.storage.env().cache().stats().misses
    }
}

fn text(steps: &[Step], costs: Option<&Costs>) -> Vec<String> {
    let mut lines: Vec<String> = steps
        .iter()
        .map(|step| match step.depth {
            0 => step.text.clone(),
            depth => format!("{}->  {}", "  ".repeat(depth), step.text),
        })
        .collect();
    if let Some(costs) = costs {
        lines.push(format!("Rows: {}", costs.rows));
        lines.push(format!(
            "Scans: {}, entries read: {}, gets: {}",
            costs.counts.scans, costs.counts.entries, costs.counts.gets
        ));
        lines.push(format!("Device reads: {} blocks", costs.device_reads));
        let ms = costs.microseconds as f64 / 1000.0;
        lines.push(format!("Execution Time: {ms:.3} ms"));
    }
    lines
}

fn json(steps: &[Step], costs: Option<&Costs>) -> String {
    let step = |step: &Step| {
        format!(
            "{{\"depth\": {}, \"step\": {}}}",
            step.depth,
            json_text(&step.text)
        )
    };
    let steps = steps.iter().map(step).collect::<Vec<String>>().join(", ");
    let mut out = format!("[{{\"Plan\": [{steps}]");
    if let Some(costs) = costs {
        out.push_str(&format!(
            ", \"Rows\": {}, \"Scans\": {}, \"Entries\": {}, \"Gets\": {}, \"Device Reads\": {}, \"Execution Time\": {:.3}",
            costs.rows,
            costs.counts.scans,
            costs.counts.entries,
            costs.counts.gets,
            costs.device_reads,
            costs.microseconds as f64 / 1000.0
        ));
    }
    out.push_str("}]");
    out
}

fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
