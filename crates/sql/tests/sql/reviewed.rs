//! Failures that a review has found, each with its story.

use crate::harness::{Sql, env, open};
use basalt_sim::{CrashPolicy, SimFs, SimOptions};

/// A parent's value was converted to the child's type with rounding, so the delete of the parent
/// 1.5 took the child of the parent 2 along, and some parents could not be changed at all.
#[test]
fn cascades_take_children_of_equal_values_alone() {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE p (id NUMERIC PRIMARY KEY, n INT);
         CREATE TABLE c (pid INT REFERENCES p ON DELETE CASCADE);
         INSERT INTO p VALUES (1.5, 0), (2, 0), (5000000000, 0); INSERT INTO c VALUES (2);
         DELETE FROM p WHERE id = 1.5;
         UPDATE p SET n = 1 WHERE id = 5000000000; DELETE FROM p WHERE id = 5000000000",
    );
    assert_eq!(sql.run("SELECT pid FROM c"), ["2"]);
    sql.run(
        "CREATE TABLE code (code TEXT PRIMARY KEY, n INT);
         CREATE TABLE short (code VARCHAR(3) REFERENCES code);
         INSERT INTO code VALUES ('ABCD', 0); UPDATE code SET n = 1; DELETE FROM code",
    );
    sql.run(
        "CREATE TABLE whole (id INT PRIMARY KEY); INSERT INTO whole VALUES (2);
         CREATE TABLE part (id NUMERIC REFERENCES whole)",
    );
    assert_eq!(sql.fail("INSERT INTO part VALUES (1.5)").state().0, "23503");
    sql.run("INSERT INTO part VALUES (2.0)");
    sql.check();
}

/// A prepared EXECUTE could name itself, and the stack overflowed.
#[test]
fn an_execute_is_not_prepared() {
    let mut sql = Sql::new();
    sql.run("PREPARE a AS SELECT 1");
    assert_eq!(sql.fail("PREPARE b AS EXECUTE a").state().0, "42601");
    assert_eq!(
        sql.fail("PREPARE b AS CREATE TABLE t (a INT)").state().0,
        "42601"
    );
}

/// `setval` and `nextval` were acknowledged before the binlog was synced.
#[test]
fn values_of_sequences_that_a_client_has_seen_survive_a_power_cut() {
    let disk = SimFs::new(SimOptions::default());
    let database = open(&basalt::Env::for_tests(disk.clone(), 1));
    let mut sql = Sql::of(&database);
    sql.run("CREATE SEQUENCE s; SELECT setval('s', 1000)");
    let cut = disk.crash(CrashPolicy::NothingUnsynced, 1);
    let mut after = Sql::of(&open(&basalt::Env::for_tests(cut, 2)));
    assert_eq!(after.run("SELECT nextval('s')"), ["1001"]);
    sql.run("SELECT nextval('s')");
    let cut = disk.crash(CrashPolicy::NothingUnsynced, 1);
    let mut after = Sql::of(&open(&basalt::Env::for_tests(cut, 3)));
    let next: i64 = after.run("SELECT nextval('s')")[0]
        .parse()
        .expect("a number");
    assert!(next > 1001, "{next}");
}

/// A transaction that had deleted a parent did not see a foreign key that came meanwhile.
#[test]
fn a_new_foreign_key_conflicts_with_deletes_of_parents() {
    let mut a = Sql::new();
    let mut b = Sql::of(&a.database);
    a.run(
        "CREATE TABLE p (id INT PRIMARY KEY); INSERT INTO p VALUES (1);
         CREATE TABLE c (pid INT); INSERT INTO c VALUES (1);
         BEGIN; DELETE FROM p",
    );
    b.run("ALTER TABLE c ADD FOREIGN KEY (pid) REFERENCES p");
    assert_eq!(a.fail("COMMIT").state().0, "40001");
    a.check();
}

/// DROP COLUMN took the index along that another foreign key was served by.
#[test]
fn a_column_that_a_foreign_key_needs_stays() {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE p (id INT PRIMARY KEY);
         CREATE TABLE c (a INT, b INT, UNIQUE (a, b), FOREIGN KEY (a) REFERENCES p)",
    );
    assert_eq!(sql.fail("ALTER TABLE c DROP COLUMN b").state().0, "2BP01");
    sql.run("CREATE INDEX ON c (a); ALTER TABLE c DROP COLUMN b; INSERT INTO p VALUES (1)");
    sql.run("INSERT INTO c VALUES (1)");
    sql.check();
}

/// The primary key was looked at before the key that ON CONFLICT names.
#[test]
fn on_conflict_looks_at_its_own_key_first() {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE t (id INT PRIMARY KEY, email TEXT UNIQUE, n INT);
         INSERT INTO t VALUES (1, 'a', 0)",
    );
    sql.run("INSERT INTO t VALUES (1, 'a', 0) ON CONFLICT (email) DO NOTHING");
    sql.run("INSERT INTO t VALUES (1, 'a', 7) ON CONFLICT (email) DO UPDATE SET n = excluded.n");
    assert_eq!(sql.run("SELECT * FROM t"), ["1|a|7"]);
    let e = sql.fail("INSERT INTO t VALUES (1, 'b', 0) ON CONFLICT (email) DO NOTHING");
    assert_eq!(e.state().0, "23505");
}

/// A row that a cascade of the same statement had deleted was missing when its own turn came.
#[test]
fn a_tree_is_deleted_with_its_cascades() {
    let mut sql = Sql::new();
    sql.run(
        "CREATE TABLE tree (id INT PRIMARY KEY, up INT REFERENCES tree ON DELETE CASCADE);
         INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2), (4, 1)",
    );
    sql.run("DELETE FROM tree");
    assert_eq!(sql.run("SELECT count(*) FROM tree"), ["0"]);
    sql.check();
}

/// All rows got the same value of a volatile default, and `now()` was the beginning of 1970.
#[test]
fn defaults_of_new_columns_are_of_their_time() {
    let mut sql = Sql::of(&open(&env(1)));
    sql.run("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2)");
    for default in ["gen_random_uuid()::text", "random()::text"] {
        let e = sql.fail(&format!(
            "ALTER TABLE t ADD COLUMN b TEXT DEFAULT {default}"
        ));
        assert_eq!(e.state().0, "0A000", "{default}");
    }
    let mut fresh = Sql::of(&sql.database);
    fresh.run("ALTER TABLE t ADD COLUMN b TIMESTAMP DEFAULT now()");
    let years = fresh.run("SELECT DISTINCT extract(year FROM b) FROM t");
    assert_eq!(years, ["2023"]);
}

/// `default_transaction_read_only` had no effect outside of blocks, nor had SET inside of one.
#[test]
fn read_only_settings_are_kept() {
    let mut sql = Sql::new();
    sql.run("CREATE TABLE t (a INT); SET default_transaction_read_only = on");
    assert_eq!(sql.fail("INSERT INTO t VALUES (1)").state().0, "25006");
    assert_eq!(sql.fail("CREATE TABLE u (a INT)").state().0, "25006");
    sql.run("SET default_transaction_read_only = off; BEGIN; SET transaction_read_only = on");
    assert_eq!(sql.fail("INSERT INTO t VALUES (1)").state().0, "25006");
    sql.run("ROLLBACK; INSERT INTO t VALUES (1)");
}
