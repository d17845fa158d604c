//! [`DatabaseOptions`]: the settings of a database.

use crate::committer::StorageLog;
use basalt::log::LogEngineOptions;
use basalt::{FamilyOptions, LogMode, Options, PassiveOptions, StoreOptions};

/// Settings of a database.
#[derive(Clone)]
#[non_exhaustive]
pub struct DatabaseOptions {
    /// Whether the store under the binlog has a log of its own. Default [`StorageLog::None`]: the
    /// store is passive.
    pub storage_log: StorageLog,
    /// A commit is durable on the device when it is acknowledged. Default `true`. With `false` a
    /// power cut loses the last commits, and the database is as it was before them. Sessions change
    /// it for themselves by `SET synchronous_commit`.
    pub synchronous_commit: bool,
    /// Least bytes of the newest binlog records that are kept for readers and point-in-time
    /// restores. Records that the store needs for a replay are kept in any case. Default 1 GiB.
    pub binlog_retention_bytes: u64,
    /// Maximum bytes of memory that the writes of one transaction may take. Default 256 MiB.
    pub max_transaction_bytes: u64,
    /// Settings of the store. Its log mode is set by `storage_log`.
    pub tables: Options,
    /// Settings of the binlog's log engine.
    pub logs: LogEngineOptions,
    /// Settings of a passive store: bounds on the part of the binlog that it pins.
    pub passive: PassiveOptions,
    /// Settings of the families of tables and indexes.
    pub families: FamilyOptions,
}

impl Default for DatabaseOptions {
    fn default() -> DatabaseOptions {
        DatabaseOptions {
            storage_log: StorageLog::None,
            synchronous_commit: true,
            binlog_retention_bytes: 1 << 30,
            max_transaction_bytes: 256 << 20,
            tables: Options::default(),
            logs: LogEngineOptions::default(),
            passive: PassiveOptions::default(),
            families: FamilyOptions::default(),
        }
    }
}

/// Declares a setter for each field.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $ty:ty,)*) => {
        impl DatabaseOptions {
            $(
                #[doc = concat!("Sets [`DatabaseOptions::", stringify!($field), "`].")]
                #[must_use]
                pub fn $field(mut self, value: $ty) -> DatabaseOptions {
                    self.$field = value;
                    self
                }
            )*
        }
    };
}

setters! {
    storage_log: StorageLog,
    synchronous_commit: bool,
    binlog_retention_bytes: u64,
    max_transaction_bytes: u64,
    tables: Options,
    logs: LogEngineOptions,
    passive: PassiveOptions,
    families: FamilyOptions,
}

impl DatabaseOptions {
    /// Returns the settings of the store.
    pub(crate) fn store_options(&self) -> StoreOptions {
        let log = match self.storage_log {
            StorageLog::None => LogMode::Passive(self.passive.clone()),
            StorageLog::Own { .. } => LogMode::Own,
        };
        let tables = self.tables.clone().log(log);
        let tables = tables.default_family(self.families.clone());
        StoreOptions::default()
            .tables(tables)
            .logs(self.logs.clone())
    }
}
