//! Random statements over random tables.

use super::schema::{Column, Table, both};
use basalt_sim::rng::Rng;

/// How the rows of a query are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// In their order.
    Ordered,
    /// As a multiset.
    Unordered,
}

/// Makes statements.
pub struct Generator<'a> {
    pub rng: &'a mut Rng,
    pub tables: &'a [Table],
}

const COMPARISONS: [&str; 6] = ["=", "<", ">", "<=", ">=", "<>"];

impl<'a> Generator<'a> {
    fn table(&mut self) -> &'a Table {
        &self.tables[self.rng.below(self.tables.len() as u64) as usize]
    }

    fn column<'t>(&mut self, table: &'t Table) -> &'t Column {
        // Columns of keys and indexes are chosen more often.
        let mut indexed = table.key.clone();
        indexed.extend(table.indexes.iter().map(|(columns, _)| columns[0]));
        let at = match !indexed.is_empty() && self.rng.percent(60) {
            true => indexed[self.rng.below(indexed.len() as u64) as usize],
            false => self.rng.below(table.columns.len() as u64) as usize,
        };
        &table.columns[at]
    }

    /// Returns a number column; a table without one has a number in its place.
    fn number(&mut self, table: &Table, alias: &str) -> String {
        let numbers: Vec<&Column> = table
            .columns
            .iter()
            .filter(|c| c.kind.is_number())
            .collect();
        match numbers.is_empty() {
            true => "2".to_owned(),
            false => {
                let at = self.rng.below(numbers.len() as u64) as usize;
                format!("{alias}.{}", numbers[at].name)
            }
        }
    }

    /// Returns a condition on a column.
    fn simple(&mut self, table: &Table, alias: &str) -> String {
        let column = self.column(table);
        let name = format!("{alias}.{}", column.name);
        let kind = column.kind;
        match self.rng.below(12) {
            0 => format!("{name} IS NULL"),
            1 => format!("{name} IS NOT NULL"),
            2 => {
                let values: Vec<String> = (0..1 + self.rng.below(5))
                    .map(|_| kind.compared(self.rng))
                    .collect();
                let not = if self.rng.percent(20) { " NOT" } else { "" };
                format!("{name}{not} IN ({})", values.join(", "))
            }
            3 => {
                let (low, high) = (kind.compared(self.rng), kind.compared(self.rng));
                format!("{name} BETWEEN {low} AND {high}")
            }
            4 if kind.is_text() => {
                let pattern = self
                    .rng
                    .pick(&["a%", "%b%", "_b", "ab_", "Z%", "%", "B\\%"]);
                let not = if self.rng.percent(20) { " NOT" } else { "" };
                let pattern = match pattern.contains('\\') {
                    true => both(&format!("'{pattern}'"), &format!("'{pattern}' ESCAPE '\\'")),
                    false => format!("'{pattern}'"),
                };
                format!("{name}{not} LIKE {pattern}")
            }
            5 => self.row_value(table, alias),
            6 => {
                let fits = |other: &&Column| other.kind.fits(kind) && other.name != column.name;
                match table.columns.iter().find(fits) {
                    Some(other) => {
                        let op = self.rng.pick(&COMPARISONS);
                        format!("{name} {op} {alias}.{}", other.name)
                    }
                    None => format!("{name} IS NOT NULL"),
                }
            }
            7 | 8 => format!("{name} = {}", kind.compared(self.rng)),
            _ => {
                let op = self.rng.pick(&COMPARISONS);
                format!("{name} {op} {}", kind.compared(self.rng))
            }
        }
    }

    /// Returns a comparison of the whole key, or of the first column.
    fn row_value(&mut self, table: &Table, alias: &str) -> String {
        let columns = match table.key.is_empty() {
            true => vec![0],
            false => table.key.clone(),
        };
        if columns.len() == 1 || self.rng.coin() {
            let equal = columns.iter().map(|at| {
                let column = &table.columns[*at];
                format!(
                    "{alias}.{} = {}",
                    column.name,
                    column.kind.literal(self.rng)
                )
            });
            return equal.collect::<Vec<String>>().join(" AND ");
        }
        let names: Vec<String> = columns
            .iter()
            .map(|at| format!("{alias}.{}", table.columns[*at].name))
            .collect();
        let values: Vec<String> = columns
            .iter()
            .map(|at| table.columns[*at].kind.literal(self.rng))
            .collect();
        let op = self.rng.pick(&["=", "<", ">="]);
        format!("({}) {op} ({})", names.join(", "), values.join(", "))
    }

    fn condition(&mut self, table: &Table, alias: &str, depth: u64) -> String {
        match self.rng.below(if depth == 0 { 6 } else { 10 }) {
            6 | 7 => {
                let left = self.condition(table, alias, depth - 1);
                format!("({left} AND {})", self.condition(table, alias, depth - 1))
            }
            8 => {
                let left = self.condition(table, alias, depth - 1);
                format!("({left} OR {})", self.condition(table, alias, depth - 1))
            }
            9 => format!("NOT ({})", self.condition(table, alias, depth - 1)),
            _ => self.simple(table, alias),
        }
    }

    fn filter(&mut self, table: &Table, alias: &str) -> String {
        match self.rng.percent(80) {
            true => format!(" WHERE {}", self.condition(table, alias, 2)),
            false => String::new(),
        }
    }

    /// Returns a column of an ORDER BY, with the place of its NULLs.
    fn order(&mut self, name: &str, descending: bool) -> String {
        let word = if descending { " DESC" } else { "" };
        let plain = if descending {
            " NULLS FIRST"
        } else {
            " NULLS LAST"
        };
        let nulls = match self.rng.below(6) {
            0 => " NULLS FIRST".to_owned(),
            1 => " NULLS LAST".to_owned(),
            _ => both("", plain),
        };
        format!("{name}{word}{nulls}")
    }

    fn limit(&mut self) -> String {
        match self.rng.below(3) {
            0 => format!(" LIMIT {}", self.rng.below(8)),
            1 => format!(" LIMIT {} OFFSET {}", self.rng.below(8), self.rng.below(5)),
            _ => String::new(),
        }
    }

    /// Returns all columns of a table in an order that leaves equal rows alone.
    fn total_order(&mut self, table: &Table, alias: &str) -> String {
        let descending = self.rng.coin();
        let mut columns: Vec<&Column> = table.columns.iter().collect();
        let first = self.rng.below(columns.len() as u64) as usize;
        columns.swap(0, first);
        let columns: Vec<String> = columns
            .iter()
            .map(|c| {
                let mixed = descending ^ self.rng.percent(20);
                self.order(&format!("{alias}.{}", c.name), mixed)
            })
            .collect();
        columns.join(", ")
    }

    /// Returns a column of another table that the column can be compared with.
    fn partner(&mut self, column: &Column, table: &'a Table) -> Option<&'a Column> {
        let fits = |c: &&Column| c.kind.fits(column.kind);
        let partners: Vec<&Column> = table.columns.iter().filter(fits).collect();
        match partners.is_empty() {
            true => None,
            false => Some(partners[self.rng.below(partners.len() as u64) as usize]),
        }
    }

    /// Returns two tables, and the condition that joins them as `x` and `y`.
    fn pair(&mut self) -> (&'a Table, &'a Table, String) {
        for _ in 0..20 {
            let (left, right) = (self.table(), self.table());
            let column = self.column(left);
            if let Some(partner) = self.partner(column, right) {
                return (
                    left,
                    right,
                    format!("x.{} = y.{}", column.name, partner.name),
                );
            }
        }
        let table = self.table();
        let name = &table.columns[0].name;
        (table, table, format!("x.{name} = y.{name}"))
    }

    /// Returns a query, and how its rows are compared.
    pub fn query(&mut self) -> (String, Rows) {
        match self.rng.below(20) {
            0..=4 => self.whole_rows(),
            5 | 6 => self.ordered_columns(),
            7 | 8 => self.grouped(),
            9..=11 => self.joined(),
            12 | 13 => self.nested(),
            14 => self.united(),
            15 => self.with(),
            16 | 17 => self.windows(),
            18 => self.extremes(),
            _ => self.three_tables(),
        }
    }

    fn whole_rows(&mut self) -> (String, Rows) {
        let table = self.table();
        let filter = self.filter(table, "x");
        let from = format!("SELECT * FROM {} AS x{filter}", table.name);
        match self.rng.coin() {
            true => (from, Rows::Unordered),
            false => {
                let order = self.total_order(table, "x");
                (
                    format!("{from} ORDER BY {order}{}", self.limit()),
                    Rows::Ordered,
                )
            }
        }
    }

    /// Orders by columns of a key or an index, and returns these columns alone.
    fn ordered_columns(&mut self) -> (String, Rows) {
        let table = self.table();
        let mut keys: Vec<&Vec<usize>> = table.indexes.iter().map(|(columns, _)| columns).collect();
        keys.push(&table.key);
        let key = keys[self.rng.below(keys.len() as u64) as usize];
        let mut columns = key.clone();
        columns.truncate(1 + self.rng.below(3) as usize);
        if self.rng.coin() {
            // Entries of an index end with the primary key.
            columns.clone_from(key);
            columns.extend(table.key.iter().filter(|at| !key.contains(at)));
        }
        if columns.is_empty() {
            columns.push(0);
        }
        let descending = self.rng.coin();
        let names: Vec<String> = columns
            .iter()
            .map(|at| format!("x.{}", table.columns[*at].name))
            .collect();
        let mut orders: Vec<String> = names.iter().map(|n| self.order(n, descending)).collect();
        if self.rng.coin() {
            // The default place of NULLs, which an index can give.
            let word = if descending { " DESC" } else { "" };
            let nulls = if descending {
                " NULLS LAST"
            } else {
                " NULLS FIRST"
            };
            orders = names.iter().map(|n| format!("{n}{word}{nulls}")).collect();
        }
        let distinct = if self.rng.percent(30) {
            "DISTINCT "
        } else {
            ""
        };
        let filter = self.filter(table, "x");
        let (names, orders, limit) = (names.join(", "), orders.join(", "), self.limit());
        let name = &table.name;
        let query =
            format!("SELECT {distinct}{names} FROM {name} AS x{filter} ORDER BY {orders}{limit}");
        (query, Rows::Ordered)
    }

    fn grouped(&mut self) -> (String, Rows) {
        let table = self.table();
        let column = self.column(table);
        let (name, other) = (&column.name, self.column(table).name.clone());
        let number = self.number(table, "x");
        let filter = self.filter(table, "x");
        let having = match self.rng.below(4) {
            0 => " HAVING count(*) > 1".to_owned(),
            1 => format!(" HAVING sum({number}) > 5"),
            _ => String::new(),
        };
        let distinct = if self.rng.coin() { "DISTINCT " } else { "" };
        let query = format!(
            "SELECT x.{name}, count(*), count({distinct}x.{other}), sum({number}), avg({number}), \
             min({number}), max({number}) FROM {} AS x{filter} GROUP BY x.{name}{having}",
            table.name
        );
        (query, Rows::Unordered)
    }

    fn extremes(&mut self) -> (String, Rows) {
        let table = self.table();
        let number = self.number(table, "x");
        let filter = self.filter(table, "x");
        let what = match self.rng.below(4) {
            0 => format!("min({number})"),
            1 => format!("max({number})"),
            2 => "count(*)".to_owned(),
            _ => format!("count(DISTINCT {number}), sum({number}) + 1"),
        };
        let query = format!("SELECT {what} FROM {} AS x{filter}", table.name);
        (query, Rows::Unordered)
    }

    fn joined(&mut self) -> (String, Rows) {
        let (left, right, on) = self.pair();
        let join = self
            .rng
            .pick(&["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
        let more = match join != "FULL JOIN" && self.rng.percent(30) {
            true => format!(" AND {}", self.simple(right, "y")),
            false => String::new(),
        };
        let filter = match self.rng.below(3) {
            0 => self.filter(left, "x"),
            1 => self.filter(right, "y"),
            _ => String::new(),
        };
        let from = format!(
            "FROM {} AS x {join} {} AS y ON {on}{more}{filter}",
            left.name, right.name
        );
        match self.rng.below(4) {
            0 => {
                let number = self.number(right, "y");
                let query = format!("SELECT count(*), sum({number}), min({number}) {from}");
                (query, Rows::Unordered)
            }
            1 => {
                let order = self.total_order(left, "x");
                let order = format!("{order}, {}", self.total_order(right, "y"));
                let limit = self.limit();
                (
                    format!("SELECT x.*, y.* {from} ORDER BY {order}{limit}"),
                    Rows::Ordered,
                )
            }
            _ => (format!("SELECT x.*, y.* {from}"), Rows::Unordered),
        }
    }

    fn three_tables(&mut self) -> (String, Rows) {
        let (left, right, on) = self.pair();
        let third = self.table();
        let column = self.column(right);
        let second = match self.partner(column, third) {
            Some(partner) => format!("y.{} = z.{}", column.name, partner.name),
            None => "y.c0 IS NULL".to_owned(),
        };
        let join = self.rng.pick(&["JOIN", "LEFT JOIN"]);
        let filter = self.filter(left, "x");
        let query = format!(
            "SELECT x.c0, y.c1, z.c0, count(*) FROM {} AS x JOIN {} AS y ON {on} \
             {join} {} AS z ON {second}{filter} GROUP BY x.c0, y.c1, z.c0",
            left.name, right.name, third.name
        );
        (query, Rows::Unordered)
    }

    fn nested(&mut self) -> (String, Rows) {
        let (left, right, on) = self.pair();
        let inner = self.condition(right, "y", 1);
        let outer = self.condition(left, "x", 1);
        let (a, b) = (&left.name, &right.name);
        let (x, y) = on.split_once(" = ").expect("a join compares");
        let number = self.number(right, "y");
        let not = if self.rng.percent(30) { "NOT " } else { "" };
        let query = match self.rng.below(5) {
            0 => format!(
                "SELECT * FROM {a} AS x WHERE {outer} AND {not}EXISTS \
                 (SELECT 1 FROM {b} AS y WHERE {on} AND {inner})"
            ),
            1 => format!(
                "SELECT * FROM {a} AS x WHERE {x} {not}IN (SELECT {y} FROM {b} AS y WHERE {inner})"
            ),
            2 => format!(
                "SELECT x.*, (SELECT count(*) FROM {b} AS y WHERE {on}), \
                 (SELECT max({number}) FROM {b} AS y WHERE {on} AND {inner}) FROM {a} AS x"
            ),
            3 => format!(
                "SELECT s.k, s.n FROM (SELECT {y} AS k, count(*) AS n FROM {b} AS y \
                 GROUP BY {y}) AS s WHERE s.n > 1"
            ),
            _ => format!(
                "SELECT x.*, s.n FROM {a} AS x LEFT JOIN (SELECT {y} AS k, count(*) AS n \
                 FROM {b} AS y WHERE {inner} GROUP BY {y}) AS s ON {x} = s.k WHERE {outer}"
            ),
        };
        (query, Rows::Unordered)
    }

    fn united(&mut self) -> (String, Rows) {
        let (left, right, on) = self.pair();
        let (x, y) = on.split_once(" = ").expect("a join compares");
        let (first, second) = (self.filter(left, "x"), self.filter(right, "y"));
        let word = self
            .rng
            .pick(&["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]);
        let query = format!(
            "SELECT {x} FROM {} AS x{first} {word} SELECT {y} FROM {} AS y{second}",
            left.name, right.name
        );
        (query, Rows::Unordered)
    }

    fn with(&mut self) -> (String, Rows) {
        let (left, right, on) = self.pair();
        let (x, y) = on.split_once(" = ").expect("a join compares");
        let filter = self.filter(left, "x");
        let (a, b) = (&left.name, &right.name);
        let query = match self.rng.below(3) {
            0 => {
                let number = self.number(left, "x");
                format!(
                    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 7) \
                     SELECT r.n, count(*) FROM r JOIN {a} AS x ON {number} = r.n{filter} GROUP BY r.n"
                )
            }
            1 => format!(
                "WITH w AS (SELECT {x} AS k FROM {a} AS x{filter}) \
                 SELECT y.* FROM {b} AS y JOIN w ON w.k = {y}"
            ),
            _ => format!(
                "WITH w AS (SELECT {x} AS k, count(*) AS n FROM {a} AS x{filter} GROUP BY {x}), \
                 v AS (SELECT max(n) AS m FROM w) SELECT w.k, w.n FROM w, v WHERE w.n = v.m"
            ),
        };
        (query, Rows::Unordered)
    }

    fn windows(&mut self) -> (String, Rows) {
        let table = self.table();
        let group = self.column(table).name.clone();
        let number = self.number(table, "x");
        let (order, filter) = (self.total_order(table, "x"), self.filter(table, "x"));
        let what = match self.rng.below(6) {
            0 => format!("row_number() OVER (ORDER BY {order})"),
            1 => format!("rank() OVER (PARTITION BY x.{group} ORDER BY {order})"),
            2 => format!("count(*) OVER (PARTITION BY x.{group})"),
            3 => format!("sum({number}) OVER (PARTITION BY x.{group} ORDER BY {order})"),
            4 => format!("lag({number}) OVER (ORDER BY {order})"),
            _ => format!(
                "max({number}) OVER (ORDER BY {order} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"
            ),
        };
        let query = format!("SELECT x.*, {what} FROM {} AS x{filter}", table.name);
        (query, Rows::Unordered)
    }

    /// Returns a statement that writes, and whether its outcome depends on the order of its writes.
    pub fn write(&mut self) -> (String, bool) {
        let table = self.table();
        let name = &table.name;
        match self.rng.below(10) {
            0..=4 => {
                let rows = 1 + self.rng.below(5);
                let rows: Vec<String> = (0..rows).map(|_| table.row(self.rng)).collect();
                (
                    format!("INSERT INTO {name} VALUES {}", rows.join(", ")),
                    false,
                )
            }
            5..=7 => {
                let column = self.column(table);
                let at = table.columns.iter().position(|c| c.name == column.name);
                let at = at.expect("a column of the table");
                let is_key = table.key.contains(&at)
                    || table
                        .indexes
                        .iter()
                        .any(|(c, unique)| *unique && c.contains(&at));
                let is_plain = column.kind.is_number() && column.kind != super::schema::Kind::Small;
                let value = match is_plain && self.rng.coin() {
                    true => format!("{} + {}", column.name, 1 + self.rng.below(40)),
                    false if !column.not_null && self.rng.percent(20) => "NULL".to_owned(),
                    false => column.kind.literal(self.rng),
                };
                let filter = self.condition(table, name, 1);
                let update = format!("UPDATE {name} SET {} = {value} WHERE {filter}", column.name);
                (update, is_key)
            }
            8 => {
                let filter = self.condition(table, name, 1);
                (format!("DELETE FROM {name} WHERE {filter}"), false)
            }
            _ => {
                let filter = self.condition(table, "x", 1);
                let source = table.row(self.rng);
                let insert = format!(
                    "INSERT INTO {name} SELECT * FROM {name} AS x WHERE {filter} \
                     UNION ALL VALUES {source}"
                );
                (insert, false)
            }
        }
    }
}
