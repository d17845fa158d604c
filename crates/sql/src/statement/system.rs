//! The relations of `pg_catalog` and `information_schema` that statements may read, with the
//! columns that the executor declares for them.

use crate::types::SqlType;

/// A relation of the system's schemas.
#[derive(Debug, Clone, Copy)]
pub struct SystemRelation {
    /// `pg_catalog` or `information_schema`.
    pub schema: &'static str,
    /// Name of the relation.
    pub name: &'static str,
    /// Names and types of its columns, in order.
    pub columns: &'static [(&'static str, SqlType)],
}

impl SystemRelation {
    /// Returns the name of the relation in the executor's dialect. Users' objects cannot have it.
    pub fn emitted(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }
}

/// Returns `true` for a name that an object of a user cannot have.
pub fn is_reserved(name: &str) -> bool {
    let name = name.to_lowercase();
    ["pg_catalog.", "information_schema."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

const INT: SqlType = SqlType::Integer;
const OID: SqlType = SqlType::BigInt;
const TEXT: SqlType = SqlType::Text;
const BOOL: SqlType = SqlType::Boolean;

const fn catalog(
    name: &'static str,
    columns: &'static [(&'static str, SqlType)],
) -> SystemRelation {
    SystemRelation {
        schema: "pg_catalog",
        name,
        columns,
    }
}

const fn information(
    name: &'static str,
    columns: &'static [(&'static str, SqlType)],
) -> SystemRelation {
    SystemRelation {
        schema: "information_schema",
        name,
        columns,
    }
}

/// All relations of the system's schemas.
pub const SYSTEM_RELATIONS: &[SystemRelation] = &[
    catalog(
        "pg_namespace",
        &[
            ("oid", OID),
            ("nspname", TEXT),
            ("nspowner", OID),
            ("nspacl", TEXT),
        ],
    ),
    catalog(
        "pg_class",
        &[
            ("oid", OID),
            ("relname", TEXT),
            ("relnamespace", OID),
            ("reltype", OID),
            ("reloftype", OID),
            ("relowner", OID),
            ("relam", OID),
            ("relfilenode", OID),
            ("reltablespace", OID),
            ("relpages", INT),
            ("reltuples", SqlType::Real),
            ("reltoastrelid", OID),
            ("relhasindex", BOOL),
            ("relisshared", BOOL),
            ("relpersistence", TEXT),
            ("relkind", TEXT),
            ("relnatts", INT),
            ("relchecks", INT),
            ("relhasrules", BOOL),
            ("relhastriggers", BOOL),
            ("relhassubclass", BOOL),
            ("relrowsecurity", BOOL),
            ("relforcerowsecurity", BOOL),
            ("relispartition", BOOL),
            ("relispopulated", BOOL),
            ("relreplident", TEXT),
            ("relacl", TEXT),
            ("reloptions", TEXT),
            ("relpartbound", TEXT),
        ],
    ),
    catalog(
        "pg_attribute",
        &[
            ("attrelid", OID),
            ("attname", TEXT),
            ("atttypid", OID),
            ("attlen", INT),
            ("attndims", INT),
            ("attbyval", BOOL),
            ("attislocal", BOOL),
            ("attinhcount", INT),
            ("atthasmissing", BOOL),
            ("attoptions", TEXT),
            ("attnum", INT),
            ("atttypmod", INT),
            ("attnotnull", BOOL),
            ("atthasdef", BOOL),
            ("attidentity", TEXT),
            ("attgenerated", TEXT),
            ("attisdropped", BOOL),
            ("attcollation", OID),
            ("attstorage", TEXT),
            ("attcompression", TEXT),
            ("attstattarget", INT),
            ("attacl", TEXT),
            ("attfdwoptions", TEXT),
        ],
    ),
    catalog(
        "pg_attrdef",
        &[
            ("oid", OID),
            ("adrelid", OID),
            ("adnum", INT),
            ("adbin", TEXT),
        ],
    ),
    catalog(
        "pg_type",
        &[
            ("oid", OID),
            ("typname", TEXT),
            ("typnamespace", OID),
            ("typowner", OID),
            ("typlen", INT),
            ("typbyval", BOOL),
            ("typtype", TEXT),
            ("typcategory", TEXT),
            ("typispreferred", BOOL),
            ("typisdefined", BOOL),
            ("typrelid", OID),
            ("typelem", OID),
            ("typarray", OID),
            ("typbasetype", OID),
            ("typtypmod", INT),
            ("typndims", INT),
            ("typdefault", TEXT),
            ("typnotnull", BOOL),
            ("typcollation", OID),
            ("typdelim", TEXT),
            ("typinput", TEXT),
            ("typreceive", TEXT),
        ],
    ),
    catalog(
        "pg_index",
        &[
            ("indexrelid", OID),
            ("indrelid", OID),
            ("indnatts", INT),
            ("indnkeyatts", INT),
            ("indisunique", BOOL),
            ("indnullsnotdistinct", BOOL),
            ("indisprimary", BOOL),
            ("indisexclusion", BOOL),
            ("indimmediate", BOOL),
            ("indisclustered", BOOL),
            ("indisvalid", BOOL),
            ("indisready", BOOL),
            ("indislive", BOOL),
            ("indisreplident", BOOL),
            ("indkey", TEXT),
            ("indcollation", TEXT),
            ("indclass", TEXT),
            ("indoption", TEXT),
            ("indexprs", TEXT),
            ("indpred", TEXT),
        ],
    ),
    catalog(
        "pg_constraint",
        &[
            ("oid", OID),
            ("conname", TEXT),
            ("connamespace", OID),
            ("contype", TEXT),
            ("condeferrable", BOOL),
            ("condeferred", BOOL),
            ("convalidated", BOOL),
            ("conrelid", OID),
            ("contypid", OID),
            ("conindid", OID),
            ("conparentid", OID),
            ("confrelid", OID),
            ("confupdtype", TEXT),
            ("confdeltype", TEXT),
            ("confmatchtype", TEXT),
            ("conislocal", BOOL),
            ("coninhcount", INT),
            ("connoinherit", BOOL),
            ("conkey", TEXT),
            ("confkey", TEXT),
            ("conbin", TEXT),
        ],
    ),
    catalog(
        "pg_database",
        &[
            ("oid", OID),
            ("datname", TEXT),
            ("datdba", OID),
            ("encoding", INT),
            ("datcollate", TEXT),
            ("datctype", TEXT),
            ("daticulocale", TEXT),
            ("datistemplate", BOOL),
            ("datallowconn", BOOL),
            ("datconnlimit", INT),
            ("dattablespace", OID),
            ("datacl", TEXT),
            ("datlocprovider", TEXT),
        ],
    ),
    catalog(
        "pg_roles",
        &[
            ("oid", OID),
            ("rolname", TEXT),
            ("rolsuper", BOOL),
            ("rolinherit", BOOL),
            ("rolcreaterole", BOOL),
            ("rolcreatedb", BOOL),
            ("rolcanlogin", BOOL),
            ("rolreplication", BOOL),
            ("rolconnlimit", INT),
            ("rolpassword", TEXT),
            ("rolvaliduntil", SqlType::Timestamptz),
            ("rolbypassrls", BOOL),
        ],
    ),
    catalog(
        "pg_user",
        &[("usename", TEXT), ("usesysid", OID), ("usesuper", BOOL)],
    ),
    catalog(
        "pg_am",
        &[
            ("oid", OID),
            ("amname", TEXT),
            ("amhandler", TEXT),
            ("amtype", TEXT),
        ],
    ),
    catalog(
        "pg_collation",
        &[
            ("oid", OID),
            ("collname", TEXT),
            ("collnamespace", OID),
            ("collencoding", INT),
            ("collprovider", TEXT),
        ],
    ),
    catalog(
        "pg_description",
        &[
            ("objoid", OID),
            ("classoid", OID),
            ("objsubid", INT),
            ("description", TEXT),
        ],
    ),
    catalog(
        "pg_depend",
        &[
            ("classid", OID),
            ("objid", OID),
            ("objsubid", INT),
            ("refclassid", OID),
            ("refobjid", OID),
            ("refobjsubid", INT),
            ("deptype", TEXT),
        ],
    ),
    catalog(
        "pg_sequence",
        &[
            ("seqrelid", OID),
            ("seqtypid", OID),
            ("seqstart", SqlType::BigInt),
            ("seqincrement", SqlType::BigInt),
            ("seqmax", SqlType::BigInt),
            ("seqmin", SqlType::BigInt),
            ("seqcache", SqlType::BigInt),
            ("seqcycle", BOOL),
        ],
    ),
    catalog(
        "pg_settings",
        &[
            ("name", TEXT),
            ("setting", TEXT),
            ("unit", TEXT),
            ("category", TEXT),
            ("short_desc", TEXT),
            ("context", TEXT),
            ("vartype", TEXT),
            ("source", TEXT),
            ("min_val", TEXT),
            ("max_val", TEXT),
            ("enumvals", TEXT),
            ("boot_val", TEXT),
            ("reset_val", TEXT),
        ],
    ),
    catalog(
        "pg_tables",
        &[
            ("schemaname", TEXT),
            ("tablename", TEXT),
            ("tableowner", TEXT),
            ("tablespace", TEXT),
            ("hasindexes", BOOL),
            ("hasrules", BOOL),
            ("hastriggers", BOOL),
            ("rowsecurity", BOOL),
        ],
    ),
    catalog(
        "pg_views",
        &[
            ("schemaname", TEXT),
            ("viewname", TEXT),
            ("viewowner", TEXT),
            ("definition", TEXT),
        ],
    ),
    catalog(
        "pg_indexes",
        &[
            ("schemaname", TEXT),
            ("tablename", TEXT),
            ("indexname", TEXT),
            ("tablespace", TEXT),
            ("indexdef", TEXT),
        ],
    ),
    catalog(
        "pg_sequences",
        &[
            ("schemaname", TEXT),
            ("sequencename", TEXT),
            ("sequenceowner", TEXT),
            ("start_value", SqlType::BigInt),
            ("min_value", SqlType::BigInt),
            ("max_value", SqlType::BigInt),
            ("increment_by", SqlType::BigInt),
            ("cycle", BOOL),
            ("cache_size", SqlType::BigInt),
            ("last_value", SqlType::BigInt),
        ],
    ),
    catalog(
        "pg_stat_activity",
        &[
            ("datid", OID),
            ("datname", TEXT),
            ("pid", INT),
            ("usename", TEXT),
            ("application_name", TEXT),
            ("client_addr", TEXT),
            ("backend_start", SqlType::Timestamptz),
            ("state", TEXT),
            ("query", TEXT),
        ],
    ),
    catalog(
        "pg_policy",
        &[
            ("oid", OID),
            ("polname", TEXT),
            ("polrelid", OID),
            ("polcmd", TEXT),
            ("polpermissive", BOOL),
            ("polroles", TEXT),
            ("polqual", TEXT),
            ("polwithcheck", TEXT),
        ],
    ),
    catalog(
        "pg_statistic_ext",
        &[
            ("oid", OID),
            ("stxrelid", OID),
            ("stxname", TEXT),
            ("stxnamespace", OID),
            ("stxowner", OID),
            ("stxstattarget", INT),
            ("stxkeys", TEXT),
            ("stxkind", TEXT),
        ],
    ),
    catalog(
        "pg_publication",
        &[
            ("oid", OID),
            ("pubname", TEXT),
            ("pubowner", OID),
            ("puballtables", BOOL),
            ("pubinsert", BOOL),
            ("pubupdate", BOOL),
            ("pubdelete", BOOL),
            ("pubtruncate", BOOL),
            ("pubviaroot", BOOL),
        ],
    ),
    catalog(
        "pg_publication_namespace",
        &[("oid", OID), ("pnpubid", OID), ("pnnspid", OID)],
    ),
    catalog(
        "pg_publication_rel",
        &[
            ("oid", OID),
            ("prpubid", OID),
            ("prrelid", OID),
            ("prqual", TEXT),
            ("prattrs", TEXT),
        ],
    ),
    catalog(
        "pg_trigger",
        &[
            ("oid", OID),
            ("tgrelid", OID),
            ("tgparentid", OID),
            ("tgname", TEXT),
            ("tgfoid", OID),
            ("tgtype", INT),
            ("tgenabled", TEXT),
            ("tgisinternal", BOOL),
            ("tgconstraint", OID),
        ],
    ),
    catalog(
        "pg_inherits",
        &[
            ("inhrelid", OID),
            ("inhparent", OID),
            ("inhseqno", INT),
            ("inhdetachpending", BOOL),
        ],
    ),
    catalog(
        "pg_auth_members",
        &[
            ("roleid", OID),
            ("member", OID),
            ("grantor", OID),
            ("admin_option", BOOL),
        ],
    ),
    catalog(
        "pg_foreign_table",
        &[("ftrelid", OID), ("ftserver", OID), ("ftoptions", TEXT)],
    ),
    catalog(
        "pg_foreign_server",
        &[
            ("oid", OID),
            ("srvname", TEXT),
            ("srvowner", OID),
            ("srvfdw", OID),
            ("srvoptions", TEXT),
        ],
    ),
    catalog(
        "pg_foreign_data_wrapper",
        &[("oid", OID), ("fdwname", TEXT), ("fdwowner", OID)],
    ),
    catalog(
        "pg_extension",
        &[
            ("oid", OID),
            ("extname", TEXT),
            ("extowner", OID),
            ("extnamespace", OID),
            ("extrelocatable", BOOL),
            ("extversion", TEXT),
        ],
    ),
    catalog(
        "pg_enum",
        &[
            ("oid", OID),
            ("enumtypid", OID),
            ("enumsortorder", SqlType::Real),
            ("enumlabel", TEXT),
        ],
    ),
    catalog(
        "pg_range",
        &[
            ("rngtypid", OID),
            ("rngsubtype", OID),
            ("rngmultitypid", OID),
            ("rngcollation", OID),
        ],
    ),
    catalog(
        "pg_rewrite",
        &[
            ("oid", OID),
            ("rulename", TEXT),
            ("ev_class", OID),
            ("ev_type", TEXT),
            ("ev_enabled", TEXT),
            ("is_instead", BOOL),
        ],
    ),
    catalog(
        "pg_event_trigger",
        &[
            ("oid", OID),
            ("evtname", TEXT),
            ("evtevent", TEXT),
            ("evtowner", OID),
            ("evtenabled", TEXT),
        ],
    ),
    catalog(
        "pg_language",
        &[("oid", OID), ("lanname", TEXT), ("lanowner", OID)],
    ),
    catalog(
        "pg_seclabel",
        &[
            ("objoid", OID),
            ("classoid", OID),
            ("objsubid", INT),
            ("provider", TEXT),
            ("label", TEXT),
        ],
    ),
    catalog(
        "pg_shdescription",
        &[("objoid", OID), ("classoid", OID), ("description", TEXT)],
    ),
    catalog(
        "pg_opclass",
        &[
            ("oid", OID),
            ("opcmethod", OID),
            ("opcname", TEXT),
            ("opcnamespace", OID),
            ("opcintype", OID),
            ("opcdefault", BOOL),
        ],
    ),
    catalog(
        "pg_proc",
        &[
            ("oid", OID),
            ("proname", TEXT),
            ("pronamespace", OID),
            ("proowner", OID),
            ("prolang", OID),
            ("prokind", TEXT),
            ("proisstrict", BOOL),
            ("proretset", BOOL),
            ("provolatile", TEXT),
            ("pronargs", INT),
            ("prorettype", OID),
            ("proargtypes", TEXT),
            ("proargnames", TEXT),
            ("prosrc", TEXT),
        ],
    ),
    catalog(
        "pg_matviews",
        &[
            ("schemaname", TEXT),
            ("matviewname", TEXT),
            ("matviewowner", TEXT),
            ("tablespace", TEXT),
            ("hasindexes", BOOL),
            ("ispopulated", BOOL),
            ("definition", TEXT),
        ],
    ),
    catalog(
        "pg_locks",
        &[
            ("locktype", TEXT),
            ("database", OID),
            ("relation", OID),
            ("pid", INT),
            ("mode", TEXT),
            ("granted", BOOL),
        ],
    ),
    catalog(
        "pg_authid",
        &[
            ("oid", OID),
            ("rolname", TEXT),
            ("rolsuper", BOOL),
            ("rolinherit", BOOL),
            ("rolcreaterole", BOOL),
            ("rolcreatedb", BOOL),
            ("rolcanlogin", BOOL),
            ("rolreplication", BOOL),
            ("rolbypassrls", BOOL),
            ("rolconnlimit", INT),
            ("rolpassword", TEXT),
            ("rolvaliduntil", SqlType::Timestamptz),
        ],
    ),
    catalog(
        "pg_tablespace",
        &[
            ("oid", OID),
            ("spcname", TEXT),
            ("spcowner", OID),
            ("spcacl", TEXT),
            ("spcoptions", TEXT),
        ],
    ),
    catalog(
        "pg_default_acl",
        &[
            ("oid", OID),
            ("defaclrole", OID),
            ("defaclnamespace", OID),
            ("defaclobjtype", TEXT),
            ("defaclacl", TEXT),
        ],
    ),
    catalog(
        "pg_cast",
        &[
            ("oid", OID),
            ("castsource", OID),
            ("casttarget", OID),
            ("castfunc", OID),
            ("castcontext", TEXT),
            ("castmethod", TEXT),
        ],
    ),
    catalog(
        "pg_conversion",
        &[
            ("oid", OID),
            ("conname", TEXT),
            ("connamespace", OID),
            ("conowner", OID),
            ("conforencoding", INT),
            ("contoencoding", INT),
            ("condefault", BOOL),
        ],
    ),
    catalog(
        "pg_operator",
        &[
            ("oid", OID),
            ("oprname", TEXT),
            ("oprnamespace", OID),
            ("oprleft", OID),
            ("oprright", OID),
            ("oprresult", OID),
        ],
    ),
    catalog(
        "pg_db_role_setting",
        &[("setdatabase", OID), ("setrole", OID), ("setconfig", TEXT)],
    ),
    information(
        "schemata",
        &[
            ("catalog_name", TEXT),
            ("schema_name", TEXT),
            ("schema_owner", TEXT),
        ],
    ),
    information(
        "tables",
        &[
            ("table_catalog", TEXT),
            ("table_schema", TEXT),
            ("table_name", TEXT),
            ("table_type", TEXT),
            ("is_insertable_into", TEXT),
        ],
    ),
    information(
        "views",
        &[
            ("table_catalog", TEXT),
            ("table_schema", TEXT),
            ("table_name", TEXT),
            ("view_definition", TEXT),
            ("is_updatable", TEXT),
        ],
    ),
    information(
        "columns",
        &[
            ("table_catalog", TEXT),
            ("table_schema", TEXT),
            ("table_name", TEXT),
            ("column_name", TEXT),
            ("ordinal_position", INT),
            ("column_default", TEXT),
            ("is_nullable", TEXT),
            ("data_type", TEXT),
            ("character_maximum_length", INT),
            ("numeric_precision", INT),
            ("numeric_scale", INT),
            ("datetime_precision", INT),
            ("udt_schema", TEXT),
            ("udt_name", TEXT),
            ("is_identity", TEXT),
            ("identity_generation", TEXT),
            ("is_generated", TEXT),
            ("is_updatable", TEXT),
        ],
    ),
    information(
        "sequences",
        &[
            ("sequence_catalog", TEXT),
            ("sequence_schema", TEXT),
            ("sequence_name", TEXT),
            ("data_type", TEXT),
            ("start_value", TEXT),
            ("minimum_value", TEXT),
            ("maximum_value", TEXT),
            ("increment", TEXT),
            ("cycle_option", TEXT),
        ],
    ),
    information(
        "table_constraints",
        &[
            ("constraint_catalog", TEXT),
            ("constraint_schema", TEXT),
            ("constraint_name", TEXT),
            ("table_catalog", TEXT),
            ("table_schema", TEXT),
            ("table_name", TEXT),
            ("constraint_type", TEXT),
            ("is_deferrable", TEXT),
            ("initially_deferred", TEXT),
        ],
    ),
    information(
        "key_column_usage",
        &[
            ("constraint_catalog", TEXT),
            ("constraint_schema", TEXT),
            ("constraint_name", TEXT),
            ("table_catalog", TEXT),
            ("table_schema", TEXT),
            ("table_name", TEXT),
            ("column_name", TEXT),
            ("ordinal_position", INT),
            ("position_in_unique_constraint", INT),
        ],
    ),
    information(
        "referential_constraints",
        &[
            ("constraint_catalog", TEXT),
            ("constraint_schema", TEXT),
            ("constraint_name", TEXT),
            ("unique_constraint_catalog", TEXT),
            ("unique_constraint_schema", TEXT),
            ("unique_constraint_name", TEXT),
            ("match_option", TEXT),
            ("update_rule", TEXT),
            ("delete_rule", TEXT),
        ],
    ),
    information(
        "constraint_column_usage",
        &[
            ("table_catalog", TEXT),
            ("table_schema", TEXT),
            ("table_name", TEXT),
            ("column_name", TEXT),
            ("constraint_catalog", TEXT),
            ("constraint_schema", TEXT),
            ("constraint_name", TEXT),
        ],
    ),
    information(
        "check_constraints",
        &[
            ("constraint_catalog", TEXT),
            ("constraint_schema", TEXT),
            ("constraint_name", TEXT),
            ("check_clause", TEXT),
        ],
    ),
];

/// Returns a relation of the system's schemas. Without a schema, `pg_catalog` is searched.
pub fn system_relation(schema: Option<&str>, name: &str) -> Option<&'static SystemRelation> {
    let schema = schema.unwrap_or("pg_catalog");
    SYSTEM_RELATIONS
        .iter()
        .find(|r| r.schema == schema && r.name == name)
}

/// Relations of `pg_catalog` that have no rows, because what they list does not exist here.
const EMPTY_RELATIONS: &[&str] = &[
    "pg_policy",
    "pg_statistic_ext",
    "pg_publication",
    "pg_publication_namespace",
    "pg_publication_rel",
    "pg_trigger",
    "pg_inherits",
    "pg_auth_members",
    "pg_foreign_table",
    "pg_foreign_server",
    "pg_foreign_data_wrapper",
    "pg_extension",
    "pg_enum",
    "pg_range",
    "pg_rewrite",
    "pg_event_trigger",
    "pg_language",
    "pg_seclabel",
    "pg_shdescription",
    "pg_opclass",
    "pg_proc",
    "pg_matviews",
    "pg_locks",
    "pg_description",
    "pg_default_acl",
    "pg_cast",
    "pg_conversion",
    "pg_operator",
    "pg_db_role_setting",
];

/// Returns `true` for a relation of `pg_catalog` that never has rows.
pub fn is_always_empty(name: &str) -> bool {
    EMPTY_RELATIONS.contains(&name)
}
