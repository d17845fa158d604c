//! Random statements over tables of very different rates.

use basalt_sim::rng::Rng;
use basalt_sql::catalog::{Catalog, TableDef};
use std::sync::Arc;

/// Makes the tables that every history has.
pub const TABLES: &str = "
    CREATE TABLE accounts (id INT PRIMARY KEY, owner TEXT NOT NULL UNIQUE,
        balance INT NOT NULL DEFAULT 100 CHECK (balance >= 0));
    CREATE TABLE orders (id SERIAL PRIMARY KEY,
        account INT REFERENCES accounts ON DELETE CASCADE ON UPDATE CASCADE, item TEXT, n INT);
    CREATE INDEX orders_item ON orders (item, n);
    CREATE TABLE lines (order_id INT REFERENCES orders ON DELETE CASCADE, line INT, note TEXT,
        PRIMARY KEY (order_id, line));
    CREATE TABLE marks (account INT REFERENCES accounts ON DELETE SET NULL ON UPDATE CASCADE,
        what TEXT);
    CREATE TABLE events (at INT, what TEXT);
    CREATE TABLE counters (k TEXT PRIMARY KEY, n INT NOT NULL DEFAULT 1, u INT UNIQUE);
    CREATE TABLE cold (k INT PRIMARY KEY, v TEXT)";

/// Names of the tables that histories create, alter and drop.
const EXTRAS: [&str; 3] = ["extra0", "extra1", "extra2"];
/// Names of the columns that histories add and drop.
const COLUMNS: [&str; 3] = ["x0", "x1", "x2"];

/// Makes random statements.
pub struct Statements {
    pub rng: Rng,
    nonce: u64,
}

impl Statements {
    pub fn new(rng: Rng) -> Statements {
        Statements { rng, nonce: 0 }
    }

    fn text(&mut self) -> String {
        self.nonce += 1;
        let len = 10 + self.rng.below(70) as usize;
        format!("'{:06}{}'", self.nonce, "x".repeat(len))
    }

    fn account(&mut self) -> u64 {
        self.rng.below(30)
    }

    /// Returns a statement that changes rows.
    pub fn rows(&mut self, catalog: &Catalog) -> String {
        match self.rng.below(100) {
            0..22 => self.accounts(),
            22..40 => self.orders(),
            40..48 => self.lines(),
            48..52 => self.marks(),
            52..70 => self.events(),
            70..82 => self.counters(),
            82..84 => self.cold(),
            _ => self.extra_rows(catalog),
        }
    }

    fn accounts(&mut self) -> String {
        let (a, b, n) = (self.account(), self.account(), self.rng.below(60));
        match self.rng.below(20) {
            0..8 => {
                let owner = self.rng.below(60);
                format!(
                    "INSERT INTO accounts VALUES ({a}, 'owner{owner}', {n}) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance"
                )
            }
            8..12 => format!("UPDATE accounts SET balance = balance + {n} - 20 WHERE id = {a}"),
            12..16 => format!(
                "UPDATE accounts SET balance = CASE WHEN id = {a} THEN balance - {n} ELSE balance + {n} END WHERE id IN ({a}, {b})"
            ),
            16 => format!("UPDATE accounts SET id = {b} WHERE id = {a}"),
            17 => {
                format!("UPDATE accounts SET owner = owner || 'x' WHERE id BETWEEN {a} AND {a} + 5")
            }
            _ => format!("DELETE FROM accounts WHERE id = {a}"),
        }
    }

    fn orders(&mut self) -> String {
        let (a, n) = (self.account(), self.rng.below(20));
        match self.rng.below(10) {
            0..4 => format!("INSERT INTO orders (account, item, n) VALUES ({a}, 'item{n}', {n})"),
            4..6 => format!(
                "INSERT INTO orders (account, item, n) SELECT id, 'of ' || owner, {n} FROM accounts WHERE id < {}",
                a / 4
            ),
            6 => format!("UPDATE orders SET n = n + 1 WHERE item = 'item{n}'"),
            7 => format!("UPDATE orders SET account = NULL WHERE n = {n}"),
            _ => format!("DELETE FROM orders WHERE account = {a} OR n = {n}"),
        }
    }

    fn lines(&mut self) -> String {
        let (line, note) = (self.rng.below(4), self.text());
        match self.rng.below(6) {
            0..4 => format!(
                "INSERT INTO lines SELECT id, {line}, {note} FROM orders ORDER BY id DESC LIMIT 3 ON CONFLICT DO NOTHING"
            ),
            4 => format!("UPDATE lines SET line = line + 1 WHERE line = {line}"),
            _ => format!("DELETE FROM lines WHERE line = {line}"),
        }
    }

    fn marks(&mut self) -> String {
        let (a, what) = (self.account(), self.text());
        match self.rng.below(4) {
            0 => format!("DELETE FROM marks WHERE account = {a} OR account IS NULL"),
            _ => format!("INSERT INTO marks VALUES ({a}, {what})"),
        }
    }

    fn events(&mut self) -> String {
        let (at, what) = (self.rng.below(50), self.text());
        match self.rng.below(10) {
            0 => format!("DELETE FROM events WHERE at < {at}"),
            1 => format!("UPDATE events SET what = {what} WHERE at BETWEEN {at} AND {at} + 2"),
            _ => format!("INSERT INTO events VALUES ({at}, {what}), ({at} + 1, {what})"),
        }
    }

    fn counters(&mut self) -> String {
        let (k, u) = (self.rng.below(25), self.rng.below(40));
        match self.rng.below(8) {
            0..5 => format!(
                "INSERT INTO counters (k) VALUES ('k{k}') ON CONFLICT (k) DO UPDATE SET n = counters.n + 1 RETURNING n"
            ),
            5 => format!("UPDATE counters SET u = {u} WHERE k = 'k{k}'"),
            // The values of a unique index move to other rows.
            6 => format!("UPDATE counters SET u = 1000 - u WHERE k > 'k{k}'"),
            _ => format!("DELETE FROM counters WHERE k = 'k{k}'"),
        }
    }

    fn cold(&mut self) -> String {
        let (k, v) = (self.rng.below(10), self.text());
        format!("INSERT INTO cold VALUES ({k}, {v}) ON CONFLICT (k) DO UPDATE SET v = excluded.v")
    }

    fn extra(&mut self, catalog: &Catalog) -> Option<Arc<TableDef>> {
        let alive: Vec<&str> = EXTRAS
            .into_iter()
            .filter(|name| catalog.table(name).is_some())
            .collect();
        match alive.is_empty() {
            true => None,
            false => catalog.table(self.rng.pick(&alive)).cloned(),
        }
    }

    fn extra_rows(&mut self, catalog: &Catalog) -> String {
        let Some(table) = self.extra(catalog) else {
            return self.create_extra(catalog);
        };
        let (name, a, b) = (&table.name, self.rng.below(40), self.text());
        let added = table.visible().map(|(_, column)| column.name.clone());
        let added: Vec<String> = added.filter(|name| name.starts_with('x')).collect();
        match (self.rng.below(10), added.first()) {
            (0, Some(x)) => format!("UPDATE {name} SET {x} = {a} WHERE a >= {a}"),
            (1, Some(x)) => format!("INSERT INTO {name} (a, {x}) VALUES ({a}, {a})"),
            (2, _) => format!("DELETE FROM {name} WHERE a = {a} OR a = {a} + 1"),
            (3, _) => format!("UPDATE {name} SET a = a + 1, b = {b} WHERE a > {a} + 20"),
            _ => format!("INSERT INTO {name} (a, b) VALUES ({a}, {b})"),
        }
    }

    fn create_extra(&mut self, catalog: &Catalog) -> String {
        let free = |name: &&str| catalog.table(name).is_none();
        let Some(name) = EXTRAS.into_iter().find(free) else {
            return self.events();
        };
        match self.rng.below(3) {
            0 => format!("CREATE TABLE {name} (a INT, b TEXT)"),
            1 => format!("CREATE TABLE {name} (id SERIAL PRIMARY KEY, a INT, b TEXT UNIQUE)"),
            _ => format!(
                "CREATE TABLE {name} (id SERIAL PRIMARY KEY, a INT, b TEXT, q INT REFERENCES accounts ON DELETE SET NULL)"
            ),
        }
    }

    /// Returns a statement that changes the catalog, or one that is likely to.
    pub fn ddl(&mut self, catalog: &Catalog) -> String {
        let Some(table) = self.extra(catalog) else {
            return self.create_extra(catalog);
        };
        let (name, n) = (&table.name, self.rng.below(3));
        let column = self.rng.pick(&COLUMNS);
        let has_column = table.visible().any(|(_, c)| c.name == column);
        match self.rng.below(20) {
            0..3 => self.create_extra(catalog),
            3 => format!("DROP TABLE {name} CASCADE"),
            4 => format!("TRUNCATE {name}"),
            5 => format!("TRUNCATE {name} RESTART IDENTITY"),
            6 => "TRUNCATE events".to_owned(),
            7..9 if has_column => format!("ALTER TABLE {name} DROP COLUMN {column}"),
            7..9 => format!("ALTER TABLE {name} ADD COLUMN {column} INT DEFAULT {n}"),
            9 => format!("ALTER TABLE {name} ADD COLUMN {column} INT"),
            10..13 => match catalog.index(&format!("{name}_{n}")) {
                Some(_) => format!("DROP INDEX {name}_{n}"),
                None => format!("CREATE INDEX {name}_{n} ON {name} (a, b)"),
            },
            13 => format!("CREATE UNIQUE INDEX ON {name} (a)"),
            14 => match catalog.index(&format!("events_{n}")) {
                Some(_) => format!("DROP INDEX events_{n}"),
                None => format!("CREATE INDEX events_{n} ON events (at)"),
            },
            15 => match catalog.index("counters_n") {
                Some(_) => "DROP INDEX counters_n".to_owned(),
                None => "CREATE INDEX counters_n ON counters (n, u)".to_owned(),
            },
            16 => match catalog.view("richest") {
                Some(_) => "DROP VIEW richest".to_owned(),
                None => {
                    "CREATE VIEW richest AS SELECT owner, balance FROM accounts WHERE balance > 50"
                        .to_owned()
                }
            },
            17 => match catalog.view("sums") {
                Some(_) => "DROP VIEW sums".to_owned(),
                None => {
                    format!("CREATE VIEW sums AS SELECT a, count(*) AS n FROM {name} GROUP BY a")
                }
            },
            18 => format!("ALTER TABLE {name} ADD CONSTRAINT {name}_u UNIQUE (a, b)"),
            _ => format!("ALTER TABLE {name} ALTER COLUMN a SET NOT NULL"),
        }
    }

    /// Returns the statements of a transaction block.
    pub fn block(&mut self, catalog: &Catalog) -> Vec<String> {
        let mut script = vec!["BEGIN".to_owned()];
        for _ in 0..1 + self.rng.below(4) {
            script.push(self.rows(catalog));
            if self.rng.percent(30) {
                script.push("SAVEPOINT s".to_owned());
                script.push(self.rows(catalog));
                script.push(self.rows(catalog));
                if self.rng.percent(60) {
                    script.push("ROLLBACK TO s".to_owned());
                }
            }
        }
        let end = if self.rng.percent(80) {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        script.push(end.to_owned());
        script
    }
}
