//! Statements of dumps are told apart by their first words.

use super::*;

#[test]
fn statements_of_pg_dump_are_told_apart() {
    for text in [
        "SET statement_timeout = 0",
        "SELECT pg_catalog.set_config('search_path', '', false)",
        "ALTER TABLE public.t OWNER TO postgres",
        "ALTER SEQUENCE public.t_id_seq\n    OWNER TO postgres",
        "COMMENT ON EXTENSION plpgsql IS 'x'",
        "CREATE EXTENSION IF NOT EXISTS plpgsql WITH SCHEMA pg_catalog",
        "GRANT ALL ON TABLE t TO u",
        "BEGIN",
        "COMMIT",
        "CREATE SCHEMA public",
        "ALTER TABLE ONLY t REPLICA IDENTITY FULL",
    ] {
        assert_eq!(kind(text), Kind::Skip, "{text}");
    }
    for text in [
        "CREATE TABLE public.t (\n    id integer NOT NULL\n)",
        "ALTER TABLE ONLY public.t ADD CONSTRAINT t_pkey PRIMARY KEY (id)",
        "ALTER SEQUENCE public.t_id_seq OWNED BY public.t.id",
        "SELECT pg_catalog.setval('public.t_id_seq', 5, true)",
        "CREATE SCHEMA publication",
        "ENDLESS",
        "COPY t TO STDOUT",
    ] {
        assert_eq!(kind(text), Kind::Other, "{text}");
    }
    assert_eq!(kind("COPY public.t (id, name) FROM stdin"), Kind::Copy);
    assert_eq!(
        kind("INSERT INTO public.t VALUES (1, 'OWNER TO x')"),
        Kind::Insert
    );
    assert_eq!(rows_of("INSERT 0 5"), 5);
    assert_eq!(rows_of("CREATE TABLE"), 0);
}
