//! Plans: which key of a table serves the constraints of a query.
//!
//! SQLite's planner asks for each table and each set of constraints what a scan would cost, and
//! picks the order of joins by the answers. The chosen plan comes back as a number when the scan
//! begins.

use crate::catalog::TableDef;
use crate::keys::KeyPart;
use crate::translate::TableLayout;

/// Rows that a table is taken to have if nothing is known about it.
pub const UNKNOWN_ROWS: f64 = 100_000.0;

/// Approximate number of rows that a scan reads for each row that meets its other conditions.
const FILTERED: f64 = 10.0;

/// Maximum number of indexes of a table that plans can name.
pub const MAX_INDEXES: usize = 250;

/// Maximum number of columns of a key that plans use.
const MAX_EQUAL: usize = 31;

/// How a constraint compares its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`, or IN, which asks value by value.
    Equal,
    /// IS NULL.
    IsNull,
    /// `>` or `>=`.
    Above,
    /// `<` or `<=`.
    Below,
}

/// A constraint that a scan may use.
#[derive(Debug, Clone, Copy)]
pub struct Constraint {
    /// Its number in SQLite's list.
    pub number: usize,
    /// Position of its column.
    pub column: u16,
    /// How it compares.
    pub comparison: Comparison,
    /// Its value is known when the statement is prepared.
    pub is_constant: bool,
    /// It compares with the collation of bytes.
    pub is_binary: bool,
}

/// A column of ORDER BY.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Position of the column.
    pub column: u16,
    /// DESC.
    pub descending: bool,
}

/// The constraints and the order of a scan, as SQLite's `xBestIndex` gives them.
pub struct Question<'a> {
    /// Constraints that can be used.
    pub constraints: &'a [Constraint],
    /// ORDER BY, or the columns of GROUP BY and DISTINCT.
    pub order: &'a [Order],
    /// Positions of the columns that the statement reads.
    pub used: &'a dyn Fn(u16) -> bool,
    /// Approximate number of rows of the table.
    pub rows: f64,
    /// LIMIT and OFFSET together, if the statement reads no more rows of an ordered scan.
    pub limit: Option<f64>,
}

/// How a scan reads a table. It is packed into the number that SQLite keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plan {
    /// The key of the scan: 0 for the primary key, n for the index at position n - 1 of the table.
    pub key: u8,
    /// Columns of the key that are compared with one value each.
    pub equal: u8,
    /// The next column has a lower bound.
    pub has_lower: bool,
    /// The next column has an upper bound.
    pub has_upper: bool,
    /// Rows come in descending order.
    pub reverse: bool,
    /// At most one row fits: it is read by a get.
    pub point: bool,
    /// The index has all columns that the statement reads.
    pub covering: bool,
    /// The scan builds a hash table over one column that no key serves. Its position is `column`.
    pub hash: bool,
    /// The column of a hash table.
    pub column: u8,
}

impl Plan {
    /// Returns the plan as a number.
    pub fn pack(self) -> i32 {
        let flags = [
            self.has_lower,
            self.has_upper,
            self.reverse,
            self.point,
            self.covering,
            self.hash,
        ];
        let flags = flags
            .iter()
            .rev()
            .fold(0, |bits, flag| bits << 1 | i32::from(*flag));
        let low = match self.hash {
            true => i32::from(self.column),
            false => i32::from(self.key),
        };
        low | i32::from(self.equal) << 8 | flags << 16
    }

    /// Returns the plan of a number that [`Plan::pack`] has made.
    pub fn unpack(number: i32) -> Plan {
        let flag = |bit: i32| number >> (16 + bit) & 1 == 1;
        let (low, hash) = (number as u8, flag(5));
        Plan {
            key: if hash { 0 } else { low },
            equal: (number >> 8) as u8,
            has_lower: flag(0),
            has_upper: flag(1),
            reverse: flag(2),
            point: flag(3),
            covering: flag(4),
            hash,
            column: if hash { low } else { 0 },
        }
    }
}

/// The answer to a [`Question`].
#[derive(Debug, Clone)]
pub struct Answer {
    /// The plan.
    pub plan: Plan,
    /// Numbers of the constraints whose values the scan gets, in their order.
    pub arguments: Vec<usize>,
    /// Cost, in rows of a scan.
    pub cost: f64,
    /// Approximate number of rows that the scan returns.
    pub rows: f64,
    /// The rows come in the order that was asked for.
    pub is_ordered: bool,
    /// The plan in words, for EXPLAIN.
    pub description: String,
}

/// A key that a plan may use.
struct Candidate<'a> {
    key: u8,
    name: &'a str,
    parts: &'a [KeyPart],
    unique: bool,
    covering: bool,
}

/// Returns the cheapest plan.
pub fn choose(table: &TableDef, layout: &TableLayout, question: &Question<'_>) -> Answer {
    let primary = Candidate {
        key: 0,
        name: "the primary key",
        parts: &layout.key,
        unique: true,
        covering: true,
    };
    let mut best = judge(table, &primary, &layout.key, question);
    let indexes = table.indexes.iter().zip(&layout.indexes).take(MAX_INDEXES);
    for (number, (index, entries)) in indexes.enumerate() {
        if !index.is_ready {
            continue;
        }
        let in_index = |column: u16| {
            let parts = entries.parts.iter().chain(&layout.key);
            parts.into_iter().any(|part| part.column == column)
        };
        let mut columns = table.visible().map(|(at, _)| at);
        let candidate = Candidate {
            key: number as u8 + 1,
            name: &index.name,
            parts: &entries.parts,
            unique: index.unique,
            covering: columns.all(|at| !(question.used)(at) || in_index(at)),
        };
        let answer = judge(table, &candidate, &layout.key, question);
        if answer.cost < best.cost {
            best = answer;
        }
    }
    match hash(table, question, &best) {
        Some(hashed) => hashed,
        None => best,
    }
}

/// Returns what a scan by one key costs.
fn judge(
    table: &TableDef,
    key: &Candidate<'_>,
    primary: &[KeyPart],
    question: &Question<'_>,
) -> Answer {
    let mut arguments = Vec::new();
    let mut plan = Plan {
        key: key.key,
        ..Plan::default()
    };
    let find = |column: u16, comparison: Comparison| {
        let mut found = question.constraints.iter();
        let found = found.find(|c| c.column == column && c.comparison == comparison && c.is_binary);
        found.map(|c| c.number)
    };
    for part in key.parts.iter().take(MAX_EQUAL) {
        let equal = find(part.column, Comparison::Equal);
        let equal = equal.or_else(|| find(part.column, Comparison::IsNull).filter(|_| part.marked));
        match equal {
            Some(number) => arguments.push(number),
            None => {
                let lower = find(part.column, Comparison::Above);
                let upper = find(part.column, Comparison::Below);
                (plan.has_lower, plan.has_upper) = (lower.is_some(), upper.is_some());
                plan.equal = arguments.len() as u8;
                arguments.extend(lower.into_iter().chain(upper));
                break;
            }
        }
    }
    if !plan.has_lower && !plan.has_upper {
        plan.equal = arguments.len() as u8;
    }
    let equal = usize::from(plan.equal);
    let nulls = |number: &usize| {
        let mut all = question.constraints.iter();
        all.any(|c| c.number == *number && c.comparison == Comparison::IsNull)
    };
    let is_full = equal == key.parts.len();
    plan.point = key.unique && is_full && !arguments.iter().any(nulls);
    plan.covering = key.covering;
    // Entries with the same columns of an index are in the order of the primary key.
    let is_new = |part: &&KeyPart| key.parts.iter().all(|other| other.column != part.column);
    let suffix = primary.iter().filter(is_new);
    let rest: Vec<&KeyPart> = key.parts[equal..].iter().chain(suffix).collect();
    let (is_ordered, descending) = order_of(&rest, question, plan.point);
    plan.reverse = descending;
    let mut rows = question.rows.max(1000.0);
    if plan.point {
        rows = 1.0;
    } else {
        for at in 0..equal {
            rows /= if at == 0 { 100.0 } else { 10.0 };
        }
        for _ in 0..usize::from(plan.has_lower) + usize::from(plan.has_upper) {
            rows /= 4.0;
        }
        rows = rows.max(2.0);
    }
    if let Some(limit) = question.limit.filter(|_| is_ordered) {
        let has_filter = question.constraints.len() > arguments.len();
        rows = rows.min(limit * if has_filter { FILTERED } else { 1.0 });
    }
    let per_row = match (key.key, key.covering) {
        (0, _) => 1.0,
        (_, true) => 0.8,
        (_, false) => 3.0,
    };
    let mut cost = 5.0 + rows * per_row;
    if !is_ordered && !question.order.is_empty() {
        cost += rows * rows.log2().max(1.0) * 0.1;
    }
    Answer {
        description: describe(table, key, &plan),
        plan,
        arguments,
        cost,
        rows,
        is_ordered: is_ordered && !question.order.is_empty(),
    }
}

/// Says whether the columns `rest` of a key give the order that is asked for, and whether they are
/// read downwards.
fn order_of(rest: &[&KeyPart], question: &Question<'_>, is_point: bool) -> (bool, bool) {
    let Some(first) = question.order.first() else {
        return (true, false);
    };
    if is_point {
        return (true, false);
    }
    // A column with one value has no part in the order.
    let is_single = |column: u16| {
        let mut constraints = question.constraints.iter();
        constraints
            .any(|c| c.column == column && c.comparison == Comparison::Equal && c.is_constant)
    };
    let mut rest = rest.iter();
    for order in question.order {
        if order.descending != first.descending {
            return (false, false);
        }
        if is_single(order.column) && !rest.clone().any(|part| part.column == order.column) {
            continue;
        }
        match rest.next() {
            Some(part) if part.column == order.column => {}
            _ => return (false, false),
        }
    }
    (true, first.descending)
}

/// Returns a plan that hashes the table, if nothing better serves an equality with another table.
fn hash(table: &TableDef, question: &Question<'_>, best: &Answer) -> Option<Answer> {
    if best.plan.equal > 0 || best.plan.has_lower || best.plan.has_upper {
        return None;
    }
    let mut joins = question.constraints.iter();
    let join = joins.find(|c| {
        c.comparison == Comparison::Equal && !c.is_constant && c.is_binary && c.column < 255
    })?;
    let rows = (question.rows / 1000.0).max(2.0);
    let cost = rows * 4.0 + question.rows.max(1000.0) / 100.0;
    if cost >= best.cost {
        // A few rows in the order of a key cost less than a hash table.
        return None;
    }
    let column = &table.columns[usize::from(join.column)].name;
    Some(Answer {
        plan: Plan {
            hash: true,
            column: join.column as u8,
            ..Plan::default()
        },
        arguments: vec![join.number],
        cost,
        rows,
        is_ordered: false,
        description: format!("hash table over {column}"),
    })
}

fn describe(table: &TableDef, key: &Candidate<'_>, plan: &Plan) -> String {
    let name = |part: &KeyPart| {
        let column = table.columns.get(usize::from(part.column));
        column.map_or("row number", |column| &column.name)
    };
    let mut conditions = Vec::new();
    for (at, part) in key.parts.iter().enumerate() {
        let at = at as u8;
        if at < plan.equal {
            conditions.push(format!("{}=?", name(part)));
        } else if at == plan.equal {
            if plan.has_lower {
                conditions.push(format!("{}>?", name(part)));
            }
            if plan.has_upper {
                conditions.push(format!("{}<?", name(part)));
            }
        }
    }
    let what = match (plan.point, conditions.is_empty()) {
        (true, _) => "get by",
        (false, true) => "whole scan of",
        (false, false) => "range of",
    };
    let direction = if plan.reverse { ", backwards" } else { "" };
    let covering = match plan.key > 0 && plan.covering {
        true => ", without rows",
        false => "",
    };
    match conditions.is_empty() {
        true => format!("{what} {}{direction}{covering}", key.name),
        false => {
            let conditions = conditions.join(" AND ");
            format!("{what} {} ({conditions}){direction}{covering}", key.name)
        }
    }
}
