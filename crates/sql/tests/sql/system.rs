//! The relations of `pg_catalog` and `information_schema`.

use crate::harness::Sql;

/// A schema with all kinds of objects.
fn shop() -> Sql {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE customers (
             id SERIAL PRIMARY KEY,
             name VARCHAR(40) NOT NULL UNIQUE,
             balance NUMERIC(10, 2) DEFAULT 0 CHECK (balance >= 0),
             is_active BOOLEAN NOT NULL DEFAULT true,
             note TEXT DEFAULT 'none',
             made TIMESTAMPTZ DEFAULT now()
         );
         CREATE TABLE orders (
             customer INT NOT NULL REFERENCES customers ON DELETE CASCADE,
             number INT NOT NULL,
             item TEXT,
             PRIMARY KEY (customer, number)
         );
         CREATE INDEX orders_item ON orders (item, number);
         CREATE VIEW names AS SELECT id, name FROM customers;
         CREATE SEQUENCE numbers START 10 INCREMENT 5;
         CREATE TABLE log (line TEXT)",
    );
    sql
}

#[test]
fn objects_are_listed() {
    let mut sql = shop();
    for q in [
        "SELECT oid, relname, relkind FROM pg_catalog.pg_class WHERE relnamespace = 2200 ORDER BY 1",
        "SELECT table_name, table_type FROM information_schema.tables ORDER BY 1",
        "SELECT * FROM pg_catalog.pg_views",
        "SELECT indexname, indexdef FROM pg_indexes ORDER BY 1",
        "SELECT conname, contype, conkey, confkey, pg_get_constraintdef(oid) FROM pg_constraint ORDER BY 1",
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE relname = 'customers' ORDER BY attnum",
        "SELECT adnum, adbin FROM pg_attrdef",
    ] {
        println!("{q}\n  {}", sql.run(q).join("\n  "));
    }
}

/// The queries of `psql` and SQLAlchemy, as they were recorded.
fn recorded() -> Vec<&'static str> {
    let page = include_str!("../../../postgres/README-catalog.md");
    let blocks = page.split("```sql\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    blocks
        .map(str::trim)
        .filter(|query| !query.contains("..."))
        .collect()
}

#[test]
fn all_recorded_queries_are_answered() {
    let mut sql = shop();
    let queries = recorded();
    assert!(queries.len() > 40, "{} queries", queries.len());
    for query in queries {
        let mut query = query.to_owned();
        query = query.replace("= $1", "= 23");
        if let Err(e) = sql.try_run(&query) {
            println!("{query}\nfails: {e}");
        }
    }
}
