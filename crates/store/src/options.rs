//! Settings of a store.

use basalt_log::LogEngineOptions;
use basalt_lsm::Options;

/// Settings of a [`crate::Store`]: those of each engine.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Settings of the tables. `create_if_missing` is that of the store.
    pub tables: Options,
    /// Settings of the logs. `create_if_missing` has no effect: logs are made when they are first
    /// asked for.
    pub logs: LogEngineOptions,
}

impl StoreOptions {
    /// Sets [`StoreOptions::tables`].
    #[must_use]
    pub fn tables(mut self, options: Options) -> Self {
        self.tables = options;
        self
    }

    /// Sets [`StoreOptions::logs`].
    #[must_use]
    pub fn logs(mut self, options: LogEngineOptions) -> Self {
        self.logs = options;
        self
    }

    /// Returns the settings of the logs, as a store passes them to the engine.
    pub(crate) fn of_logs(&self, create: bool) -> LogEngineOptions {
        self.logs.clone().create_if_missing(create)
    }
}
