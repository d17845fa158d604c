//! Statements of known programs are analysed.

use super::harness::Harness;

#[test]
fn statements_of_psql() {
    let h = Harness::new();
    for text in [
        "SELECT n.nspname as \"Schema\", c.relname as \"Name\", CASE c.relkind WHEN 'r' THEN 'table' \
         WHEN 'v' THEN 'view' WHEN 'i' THEN 'index' END as \"Type\", \
         pg_catalog.pg_get_userbyid(c.relowner) as \"Owner\" FROM pg_catalog.pg_class c \
         LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam \
         WHERE c.relkind IN ('r','p','v','') AND n.nspname <> 'pg_catalog' \
         AND n.nspname !~ '^pg_toast' AND n.nspname <> 'information_schema' \
         AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1,2",
        "SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c \
         LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relname OPERATOR(pg_catalog.~) '^(t1)$' COLLATE pg_catalog.default \
         AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 2, 3",
        "SELECT c.relchecks, c.relkind, c.relhasindex, c.relhasrules, c.relhastriggers, \
         c.relrowsecurity, c.relforcerowsecurity, false AS relhasoids, c.relispartition, '', \
         c.reltablespace, CASE WHEN c.reloftype = 0 THEN '' ELSE \
         c.reloftype::pg_catalog.regtype::pg_catalog.text END, c.relpersistence, c.relreplident, \
         am.amname FROM pg_catalog.pg_class c \
         LEFT JOIN pg_catalog.pg_class tc ON (c.reltoastrelid = tc.oid) \
         LEFT JOIN pg_catalog.pg_am am ON (c.relam = am.oid) WHERE c.oid = '101'",
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), \
         (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true) FROM pg_catalog.pg_attrdef d \
         WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.atthasdef), a.attnotnull, \
         a.attidentity, a.attgenerated FROM pg_catalog.pg_attribute a \
         WHERE a.attrelid = '101' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
        "SELECT 't1'::regclass::oid, current_setting FROM (SELECT 1 AS current_setting) q",
        "SELECT version()",
    ] {
        h.command(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
}

#[test]
fn statements_of_pgbench() {
    let mut h = Harness::empty();
    for text in [
        "drop table if exists pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers",
        "create table pgbench_history(tid int,bid int,aid int,delta int,mtime timestamp,filler char(22))",
        "create table pgbench_tellers(tid int not null,bid int,tbalance int,filler char(84)) with (fillfactor=100)",
        "create table pgbench_accounts(aid int not null,bid int,abalance int,filler char(84)) with (fillfactor=100)",
        "create table pgbench_branches(bid int not null,bbalance int,filler char(88)) with (fillfactor=100)",
        "alter table pgbench_accounts add primary key (aid)",
        "insert into pgbench_branches(bid,bbalance) values(1,0)",
        "insert into pgbench_tellers(tid,bid,tbalance) values (1,1,0)",
        "insert into pgbench_accounts(aid,bid,abalance,filler) values (1,1,0,'')",
        "UPDATE pgbench_accounts SET abalance = abalance + -5 WHERE aid = 1",
        "SELECT abalance FROM pgbench_accounts WHERE aid = 1",
        "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, 1, 5, CURRENT_TIMESTAMP)",
        "vacuum analyze pgbench_branches",
        "truncate pgbench_accounts, pgbench_branches",
        "copy pgbench_accounts from stdin with (freeze on)",
    ] {
        h.run(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    }
    h.check(
        "SELECT delta, mtime FROM pgbench_history",
        "5|2026-03-04 05:06:07.89",
    );
}
