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
fn objects_have_the_numbers_and_kinds_of_the_catalog() {
    let mut sql = shop();
    assert_eq!(
        sql.run(
            "SELECT oid, relname, relkind, relhasindex, relchecks FROM pg_catalog.pg_class
             WHERE relnamespace = 2200 ORDER BY 1"
        ),
        [
            "16385|customers|r|t|1",
            "16386|customers_id_seq|S|f|0",
            "16387|customers_name_key|i|f|0",
            "16388|orders|r|t|0",
            "16389|orders_item|i|f|0",
            "16390|names|v|f|0",
            "16391|numbers|S|f|0",
            "16392|log|r|f|0",
            "1073741825|customers_pkey|i|f|0",
            "1073741828|orders_pkey|i|f|0",
        ]
    );
    assert_eq!(
        sql.run(
            "SELECT 'orders'::regclass::oid, to_regclass('public.nothing'),
             to_regclass('pg_catalog.pg_class'), 16388::regclass, 'pg_am'::regclass"
        ),
        ["16388|NULL|1259|orders|2601"]
    );
    assert_eq!(sql.fail("SELECT 'nothing'::regclass").state().0, "42P01");
}

#[test]
fn definitions_are_shown_as_statements() {
    let mut sql = shop();
    assert_eq!(
        sql.run("SELECT indexname, indexdef FROM pg_indexes ORDER BY 1"),
        [
            "customers_name_key|CREATE UNIQUE INDEX customers_name_key ON public.customers USING \
             btree (name)",
            "customers_pkey|CREATE UNIQUE INDEX customers_pkey ON public.customers USING btree (id)",
            "orders_item|CREATE INDEX orders_item ON public.orders USING btree (item, number)",
            "orders_pkey|CREATE UNIQUE INDEX orders_pkey ON public.orders USING btree (customer, \
             number)",
        ]
    );
    assert_eq!(
        sql.run(
            "SELECT conname, contype, conkey, confkey, pg_get_constraintdef(oid)
             FROM pg_constraint ORDER BY 1"
        ),
        [
            "customers_balance_check|c|NULL|NULL|CHECK (balance >= 0)",
            "customers_name_key|u|{2}|NULL|UNIQUE (name)",
            "customers_pkey|p|{1}|NULL|PRIMARY KEY (id)",
            "orders_customer_fkey|f|{1}|{1}|FOREIGN KEY (customer) REFERENCES customers(id) ON \
             DELETE CASCADE",
            "orders_pkey|p|{1,2}|NULL|PRIMARY KEY (customer, number)",
        ]
    );
    assert_eq!(
        sql.run("SELECT adnum, pg_get_expr(adbin, adrelid) FROM pg_attrdef ORDER BY 1"),
        [
            "1|nextval('customers_id_seq'::regclass)",
            "3|0",
            "4|true",
            "5|'none'::text",
            "6|now()",
        ]
    );
    assert_eq!(
        sql.run(
            "SELECT pg_get_viewdef('names'), pg_get_serial_sequence('customers', 'id'),
             pg_get_indexdef('orders_pkey'::regclass, 2, true)"
        ),
        [" SELECT id, name FROM customers;|public.customers_id_seq|number"]
    );
}

#[test]
fn the_information_schema_has_tables_columns_and_keys() {
    let mut sql = shop();
    assert_eq!(
        sql.run("SELECT table_name, table_type FROM information_schema.tables ORDER BY 1"),
        [
            "customers|BASE TABLE",
            "log|BASE TABLE",
            "names|VIEW",
            "orders|BASE TABLE"
        ]
    );
    assert_eq!(
        sql.run(
            "SELECT column_name, ordinal_position, column_default, is_nullable, data_type,
             character_maximum_length, numeric_precision, numeric_scale, udt_name
             FROM information_schema.columns
             WHERE table_schema = 'public' AND table_name = 'customers' ORDER BY 2"
        ),
        [
            "id|1|nextval('customers_id_seq'::regclass)|NO|integer|NULL|32|0|int4",
            "name|2|NULL|NO|character varying|40|NULL|NULL|varchar",
            "balance|3|0|YES|numeric|NULL|10|2|numeric",
            "is_active|4|true|NO|boolean|NULL|NULL|NULL|bool",
            "note|5|'none'::text|YES|text|NULL|NULL|NULL|text",
            "made|6|now()|YES|timestamp with time zone|NULL|NULL|NULL|timestamptz",
        ]
    );
    assert_eq!(
        sql.run(
            "SELECT c.constraint_name, c.constraint_type, k.column_name, k.ordinal_position
             FROM information_schema.table_constraints c
             LEFT JOIN information_schema.key_column_usage k USING (constraint_name)
             ORDER BY 1, 4"
        ),
        [
            "customers_balance_check|CHECK|NULL|NULL",
            "customers_name_key|UNIQUE|name|1",
            "customers_pkey|PRIMARY KEY|id|1",
            "orders_customer_fkey|FOREIGN KEY|customer|1",
            "orders_pkey|PRIMARY KEY|customer|1",
            "orders_pkey|PRIMARY KEY|number|2",
        ]
    );
    assert_eq!(
        sql.run(
            "SELECT constraint_name, unique_constraint_name, delete_rule
             FROM information_schema.referential_constraints"
        ),
        ["orders_customer_fkey|customers_pkey|CASCADE"]
    );
}

#[test]
fn the_rows_follow_the_schema_of_the_transaction() {
    let mut sql = shop();
    let mut other = Sql::of(&sql.database);
    let names = "SELECT string_agg(relname, ',' ORDER BY relname) FROM pg_class
                 WHERE relkind = 'r' AND relnamespace = 2200";
    assert_eq!(other.run(names), ["customers,log,orders"]);
    other.run("BEGIN");
    assert_eq!(other.run(names), ["customers,log,orders"]);
    sql.run("DROP TABLE log; CREATE TABLE \"Mixed Case\" (\"A\" INT PRIMARY KEY)");
    assert_eq!(sql.run(names), ["Mixed Case,customers,orders"]);
    assert_eq!(other.run(names), ["customers,log,orders"]);
    other.run("COMMIT");
    assert_eq!(other.run(names), ["Mixed Case,customers,orders"]);
    assert_eq!(
        sql.run("SELECT indexdef FROM pg_indexes WHERE tablename = 'Mixed Case'"),
        [
            "CREATE UNIQUE INDEX \"Mixed Case_pkey\" ON public.\"Mixed Case\" USING btree \
             (\"A\")"
        ]
    );
}

#[test]
fn the_system_schemas_are_read_only() {
    let mut sql = shop();
    let mut state = |script: &str| sql.fail(script).state().0;
    assert_eq!(state("CREATE TABLE pg_catalog.t (a INT)"), "42501");
    assert_eq!(
        state("CREATE VIEW information_schema.v AS SELECT 1"),
        "42501"
    );
    assert_eq!(
        state("CREATE TABLE \"pg_catalog.pg_class\" (a INT)"),
        "42939"
    );
    assert_eq!(
        state("INSERT INTO pg_catalog.pg_am (oid) VALUES (1)"),
        "42501"
    );
    assert_eq!(state("UPDATE pg_catalog.pg_am SET oid = 1"), "42501");
    assert_eq!(state("DELETE FROM information_schema.tables"), "42501");
    assert_eq!(state("DROP TABLE pg_catalog.pg_class"), "42501");
    assert_eq!(state("SELECT * FROM pg_catalog.nothing"), "42P01");
    assert_eq!(state("SELECT nothing FROM pg_catalog.pg_class"), "42703");
}

#[test]
fn views_can_read_system_relations() {
    let mut sql = shop();
    sql.run("CREATE VIEW relations AS SELECT relname, relkind FROM pg_class WHERE relkind = 'S'");
    assert_eq!(
        sql.run("SELECT relname FROM relations ORDER BY 1"),
        ["customers_id_seq", "numbers"]
    );
}

#[test]
fn programs_ask_for_keys_in_their_ways() {
    let mut sql = shop();
    // The query of the JDBC driver for the columns of a primary key.
    assert_eq!(
        sql.run(
            "SELECT result.TABLE_NAME, result.COLUMN_NAME, result.KEY_SEQ, result.PK_NAME
             FROM (SELECT ct.relname AS TABLE_NAME, a.attname AS COLUMN_NAME,
                 (information_schema._pg_expandarray(i.indkey)).n AS KEY_SEQ,
                 ci.relname AS PK_NAME, information_schema._pg_expandarray(i.indkey) AS KEYS,
                 a.attnum AS A_ATTNUM
                 FROM pg_catalog.pg_class ct
                 JOIN pg_catalog.pg_attribute a ON (ct.oid = a.attrelid)
                 JOIN pg_catalog.pg_index i ON (a.attrelid = i.indrelid)
                 JOIN pg_catalog.pg_class ci ON (ci.oid = i.indexrelid)
                 WHERE ct.relname = 'orders' AND i.indisprimary) result
             WHERE result.A_ATTNUM = (result.KEYS).x
             ORDER BY result.table_name, result.pk_name, result.key_seq"
        ),
        [
            "orders|customer|1|orders_pkey",
            "orders|number|2|orders_pkey"
        ]
    );
    assert_eq!(
        sql.run(
            "SELECT a.attname FROM pg_index i
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
             WHERE i.indrelid = 'orders'::regclass AND i.indisprimary ORDER BY a.attnum"
        ),
        ["customer", "number"]
    );
    assert_eq!(
        sql.run("SELECT indkey[0], indkey[1] FROM pg_index WHERE indexrelid = 16389"),
        ["3|2"]
    );
    assert_eq!(
        sql.run("SELECT EXISTS (SELECT FROM information_schema.tables WHERE table_name = 'log')"),
        ["t"]
    );
    assert_eq!(
        sql.run("SELECT current_schemas(true)"),
        ["{pg_catalog,public}"]
    );
}

#[test]
fn variables_are_settings() {
    let mut sql = Sql::new();
    sql.run("SET application_name = 'shop'");
    assert_eq!(
        sql.run("SELECT current_setting('application_name')"),
        ["shop"]
    );
    assert_eq!(
        sql.run("SELECT setting FROM pg_settings WHERE name = 'application_name'"),
        ["shop"]
    );
    assert_eq!(sql.run("SELECT current_setting('no.such', true)"), ["NULL"]);
    assert_eq!(
        sql.fail("SELECT current_setting('no.such')").state().0,
        "42704"
    );
}

#[test]
fn arrays_are_texts() {
    let mut sql = shop();
    assert_eq!(
        sql.run(
            "SELECT ARRAY['a', 'b c', NULL], ARRAY(SELECT amname FROM pg_am ORDER BY 1),
             array_to_string(ARRAY[1, 2], '-'), 2 = ANY (ARRAY[1, 2]), 3 <> ALL (ARRAY[1, 2])"
        ),
        ["{a,\"b c\",NULL}|{btree,heap}|1-2|t|t"]
    );
    assert_eq!(
        sql.run(
            "SELECT array_agg(attname ORDER BY attnum DESC) FROM pg_attribute
             WHERE attrelid = 'orders'::regclass"
        ),
        ["{item,number,customer}"]
    );
    assert_eq!(
        sql.run(
            "SELECT unnest(indkey), generate_subscripts(indkey, 1) FROM pg_index
             WHERE indexrelid = 'orders_item'::regclass"
        ),
        ["3|0", "2|1"]
    );
}

/// The queries of `psql` and SQLAlchemy, as they were recorded.
fn recorded() -> Vec<&'static str> {
    let page = include_str!("../../../../docs/postgres-catalog.md");
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
        sql.run(&query.replace("= $1", "= 23"));
    }
}

/// Returns the recorded query with this number.
fn psql(number: usize) -> &'static str {
    let page = include_str!("../../../../docs/postgres-catalog.md");
    let (_, found) = page
        .split_once(&format!("Query {number}:\n\n```sql\n"))
        .expect("a number");
    found.split("```").next().expect("an end").trim()
}

#[test]
fn psql_describes_tables() {
    let mut sql = shop();
    assert_eq!(
        sql.run(psql(1)),
        [
            "public|customers|table|basalt",
            "public|customers_id_seq|sequence|basalt",
            "public|log|table|basalt",
            "public|names|view|basalt",
            "public|numbers|sequence|basalt",
            "public|orders|table|basalt",
        ]
    );
    assert_eq!(sql.run(psql(3)), ["16385|public|customers"]);
    assert_eq!(sql.run(psql(4)), ["1|r|t|f|t|f|f|f|f||0||p|d|heap"]);
    assert_eq!(
        sql.run(psql(5)),
        [
            "id|integer|nextval('customers_id_seq'::regclass)|t|NULL||",
            "name|character varying(40)|NULL|t|NULL||",
            "balance|numeric(10,2)|0|f|NULL||",
            "is_active|boolean|true|t|NULL||",
            "note|text|'none'::text|f|NULL||",
            "made|timestamp with time zone|now()|f|NULL||",
        ]
    );
    assert_eq!(
        sql.run(psql(6)),
        [
            "customers_pkey|t|t|f|t|CREATE UNIQUE INDEX customers_pkey ON public.customers USING \
             btree (id)|PRIMARY KEY (id)|p|f|f|f|0",
            "customers_name_key|f|t|f|t|CREATE UNIQUE INDEX customers_name_key ON \
             public.customers USING btree (name)|UNIQUE (name)|u|f|f|f|0",
        ]
    );
    assert_eq!(
        sql.run(psql(7)),
        ["customers_balance_check|CHECK (balance >= 0)"]
    );
    let key = "FOREIGN KEY (customer) REFERENCES customers(id) ON DELETE CASCADE";
    assert_eq!(
        sql.run(&psql(8).replace("16385", "16388")),
        [format!("t|orders_customer_fkey|{key}|orders")]
    );
    assert_eq!(
        sql.run(psql(9)),
        [format!("orders_customer_fkey|orders|{key}")]
    );
    for number in 10..=15 {
        assert_eq!(sql.run(psql(number)), [""; 0], "query {number}");
    }
}

#[test]
fn psql_describes_sequences_indexes_and_the_rest() {
    let mut sql = shop();
    assert_eq!(
        sql.run(&psql(16).replace("16385", "16391")),
        ["bigint|10|1|9223372036854775807|5|no|1"]
    );
    assert_eq!(
        sql.run(&psql(17).replace("16385", "16386")),
        ["public.customers.id|a"]
    );
    assert_eq!(
        sql.run(&psql(18).replace("16385", "16389")),
        ["item|text|yes|item", "number|integer|yes|number"]
    );
    assert_eq!(
        sql.run(&psql(19).replace("16385", "16389")),
        ["f|f|f|t|f|f|f|f|btree|orders|NULL"]
    );
    assert_eq!(
        sql.run(psql(20)),
        [
            "public|customers_name_key|index|basalt|customers",
            "public|customers_pkey|index|basalt|customers",
            "public|orders_item|index|basalt|orders",
            "public|orders_pkey|index|basalt|orders",
        ]
    );
    assert_eq!(sql.run(psql(21)), ["basalt|basalt|UTF8|C|C|NULL|libc|NULL"]);
    assert_eq!(sql.run(psql(22)), ["public|basalt"]);
    assert_eq!(sql.run(psql(23)), [""; 0]);
    assert_eq!(sql.run(psql(24)), ["public|names|view|basalt"]);
    assert_eq!(
        sql.run(psql(25)),
        [
            "public|customers_id_seq|sequence|basalt",
            "public|numbers|sequence|basalt",
        ]
    );
    assert_eq!(sql.run(psql(26)), ["basalt|t|t|t|t|t|-1|NULL|{}|t|t"]);
    assert_eq!(sql.run(psql(27)), [""; 0]);
}
