//! Random tables: their columns, keys, indexes, and literals of their columns.

use basalt_sim::rng::Rng;

/// Begins a part of a statement that has another form in SQLite: `⟦PostgreSQL⟧SQLite⟧`.
pub fn both(postgres: &str, sqlite: &str) -> String {
    format!("⟦{postgres}⟧{sqlite}⟧")
}

/// Returns a statement in PostgreSQL's dialect, or in SQLite's.
pub fn dialect(statement: &str, sqlite: bool) -> String {
    let mut out = String::new();
    let mut rest = statement;
    while let Some((before, behind)) = rest.split_once('⟦') {
        out.push_str(before);
        let mut parts = behind.splitn(3, '⟧');
        let forms = [parts.next(), parts.next()].map(Option::unwrap_or_default);
        out.push_str(forms[usize::from(sqlite)]);
        rest = parts.next().unwrap_or_default();
    }
    out + rest
}

/// A type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Small,
    Int,
    Big,
    Numeric,
    Double,
    Text,
    Varchar,
    Bool,
    Date,
    Stamp,
    Bytes,
}

/// All types. Integers are the most frequent ones, so that joins have partners.
const KINDS: [Kind; 14] = [
    Kind::Small,
    Kind::Int,
    Kind::Int,
    Kind::Int,
    Kind::Big,
    Kind::Numeric,
    Kind::Double,
    Kind::Text,
    Kind::Text,
    Kind::Varchar,
    Kind::Bool,
    Kind::Date,
    Kind::Stamp,
    Kind::Bytes,
];

/// Numbers that are no value of most columns.
const FOREIGN_NUMBERS: [&str; 12] = [
    "16.67",
    "-2.5",
    "0.001",
    "7.0",
    "70000",
    "-70000",
    "99999999999",
    "-99999999999",
    "9007199254740993",
    "9223372036854775807",
    "1e30",
    "-1e30",
];

const WORDS: [&str; 10] = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "B%",
    "zed",
    "Zed",
    "\u{e4}rger",
    "a_c",
];

impl Kind {
    /// Returns the name of the type, in both dialects.
    pub fn declared(self) -> String {
        match self {
            Kind::Small => "SMALLINT".to_owned(),
            Kind::Int => "INT".to_owned(),
            Kind::Big => "BIGINT".to_owned(),
            Kind::Numeric => "NUMERIC(10,2)".to_owned(),
            Kind::Double => "DOUBLE PRECISION".to_owned(),
            Kind::Text => "TEXT".to_owned(),
            Kind::Varchar => "VARCHAR(20)".to_owned(),
            Kind::Bool => both("BOOLEAN", "INT"),
            Kind::Date => both("DATE", "TEXT"),
            Kind::Stamp => both("TIMESTAMP", "TEXT"),
            Kind::Bytes => both("BYTEA", "BLOB"),
        }
    }

    pub fn is_number(self) -> bool {
        matches!(
            self,
            Kind::Small | Kind::Int | Kind::Big | Kind::Numeric | Kind::Double
        )
    }

    pub fn is_text(self) -> bool {
        matches!(self, Kind::Text | Kind::Varchar)
    }

    /// Returns `true` if values of the two types can be compared.
    pub fn fits(self, other: Kind) -> bool {
        self == other || self.is_number() && other.is_number() || self.is_text() && other.is_text()
    }

    /// Returns a literal that a column of the type takes.
    pub fn literal(self, rng: &mut Rng) -> String {
        let n = rng.below(24) as i64 - 4;
        match self {
            Kind::Small | Kind::Int => n.to_string(),
            Kind::Big if rng.percent(10) => {
                (9_007_199_254_740_990 + rng.below(8) as i64).to_string()
            }
            Kind::Big => n.to_string(),
            Kind::Numeric if rng.coin() => n.to_string(),
            Kind::Numeric => format!("{n}.{:02}", rng.below(4) * 25),
            Kind::Double => format!("{}", n as f64 / 2.0),
            Kind::Text | Kind::Varchar => format!("'{}'", rng.pick(&WORDS)),
            Kind::Bool => rng.pick(&["TRUE", "FALSE"]).to_owned(),
            Kind::Date => format!("'2024-0{}-{:02}'", 1 + rng.below(2), 1 + rng.below(9)),
            Kind::Stamp => format!("'2024-01-0{} 1{}:30:00'", 1 + rng.below(5), rng.below(3)),
            Kind::Bytes => {
                let hex = rng.pick(&["", "00", "0001", "ff", "ff00", "61"]);
                both(&format!("'\\x{hex}'"), &format!("x'{hex}'"))
            }
        }
    }

    /// Returns a literal that a value of the type is compared with.
    pub fn compared(self, rng: &mut Rng) -> String {
        match self.is_number() && rng.percent(25) {
            true => rng.pick(&FOREIGN_NUMBERS).to_owned(),
            false => self.literal(rng),
        }
    }
}

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub kind: Kind,
    pub not_null: bool,
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    pub name: String,
    pub columns: Vec<Column>,
    /// Positions of the columns of the primary key; empty for a table without one.
    pub key: Vec<usize>,
    /// Positions of the columns of each index, and whether it is unique.
    pub indexes: Vec<(Vec<usize>, bool)>,
}

impl Table {
    /// Returns a table with one to three columns of its key, and one to four others.
    pub fn random(rng: &mut Rng, name: &str) -> Table {
        let keys = rng.pick(&[0, 1, 1, 1, 2, 2, 3]) as usize;
        let n = keys + 2 + rng.below(4) as usize;
        let columns = (0..n).map(|at| Column {
            name: format!("c{at}"),
            // Most keys are integers: the others have too few values.
            kind: match at < keys && rng.percent(60) {
                true => Kind::Int,
                false => rng.pick(&KINDS),
            },
            not_null: at < keys || rng.percent(40),
        });
        let columns: Vec<Column> = columns.collect();
        let mut key: Vec<usize> = (0..keys).collect();
        if keys > 1 && rng.coin() {
            key.reverse();
        }
        let mut table = Table {
            name: name.to_owned(),
            columns,
            key,
            indexes: Vec::new(),
        };
        for _ in 0..rng.below(4) {
            table.add_index(rng);
        }
        table
    }

    /// Adds an index over one to three columns. Returns its position.
    pub fn add_index(&mut self, rng: &mut Rng) -> usize {
        let mut columns: Vec<usize> = Vec::new();
        for _ in 0..rng.pick(&[1, 1, 2, 3]) {
            let at = rng.below(self.columns.len() as u64) as usize;
            if !columns.contains(&at) {
                columns.push(at);
            }
        }
        self.indexes.push((columns, false));
        self.indexes.len() - 1
    }

    /// Returns CREATE TABLE.
    pub fn create(&self) -> String {
        let columns = self.columns.iter().map(|column| {
            let not_null = if column.not_null { " NOT NULL" } else { "" };
            format!("{} {}{not_null}", column.name, column.kind.declared())
        });
        let mut parts: Vec<String> = columns.collect();
        if !self.key.is_empty() {
            parts.push(format!("PRIMARY KEY ({})", self.names(&self.key)));
        }
        format!("CREATE TABLE {} ({})", self.name, parts.join(", "))
    }

    /// Adds a column, with a default or with NULLs. Returns ALTER TABLE.
    pub fn add_column(&mut self, rng: &mut Rng) -> String {
        let kind = rng.pick(&KINDS);
        let column = Column {
            name: format!("c{}", self.columns.len()),
            kind,
            not_null: rng.coin(),
        };
        let default = match column.not_null {
            true => format!(" NOT NULL DEFAULT {}", kind.literal(rng)),
            false => String::new(),
        };
        let (table, name, ty) = (&self.name, &column.name, kind.declared());
        let alter = format!("ALTER TABLE {table} ADD COLUMN {name} {ty}{default}");
        self.columns.push(column);
        alter
    }

    /// Returns CREATE INDEX of the index at a position.
    pub fn create_index(&self, at: usize) -> String {
        let (columns, unique) = &self.indexes[at];
        let unique = if *unique { "UNIQUE " } else { "" };
        let columns = self.names(columns);
        let name = &self.name;
        format!("CREATE {unique}INDEX {name}_i{at} ON {name} ({columns})")
    }

    fn names(&self, columns: &[usize]) -> String {
        let names: Vec<&str> = columns
            .iter()
            .map(|at| self.columns[*at].name.as_str())
            .collect();
        names.join(", ")
    }

    /// Returns the values of a row, as literals.
    pub fn row(&self, rng: &mut Rng) -> String {
        let values = self
            .columns
            .iter()
            .map(|column| match !column.not_null && rng.percent(20) {
                true => "NULL".to_owned(),
                false => column.kind.literal(rng),
            });
        format!("({})", values.collect::<Vec<String>>().join(", "))
    }
}
