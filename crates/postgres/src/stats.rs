//! Counters of a server, also in the metrics of the environment.

use basalt::Env;
use basalt::env::{Counter, Gauge};

/// What a server counted since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PostgresStats {
    /// Sessions that are open.
    pub connections: u64,
    /// Sessions that were opened.
    pub connections_total: u64,
    /// Connections that were refused because of the limit.
    pub rejected_total: u64,
    /// Failed authentications.
    pub authentication_failures_total: u64,
    /// Statements that were run.
    pub queries_total: u64,
    /// Errors that were sent to clients.
    pub errors_total: u64,
    /// Cancel requests with the right secret.
    pub cancels_total: u64,
}

/// The counters. Clones count the same.
#[derive(Clone)]
pub(crate) struct Counters {
    pub connections: Gauge,
    pub connections_total: Counter,
    pub rejected: Counter,
    pub authentication_failures: Counter,
    pub queries: Counter,
    pub errors: Counter,
    pub cancels: Counter,
}

impl Counters {
    /// Registers the counters of a server, labelled with its address.
    pub fn new(env: &Env, address: &str) -> Counters {
        let metrics = env.metrics();
        let labels = [("listen", address)];
        let counter = |name, help| metrics.counter(name, &labels, help);
        Counters {
            connections: metrics.gauge(
                "postgres_connections",
                &labels,
                "Sessions of PostgreSQL clients that are open",
            ),
            connections_total: counter(
                "postgres_connections_total",
                "Sessions of PostgreSQL clients that were opened",
            ),
            rejected: counter(
                "postgres_rejected_connections_total",
                "Connections of PostgreSQL clients that the limit refused",
            ),
            authentication_failures: counter(
                "postgres_authentication_failures_total",
                "Failed authentications of PostgreSQL clients",
            ),
            queries: counter(
                "postgres_queries_total",
                "Statements that PostgreSQL clients ran",
            ),
            errors: counter(
                "postgres_errors_total",
                "Errors that were sent to PostgreSQL clients",
            ),
            cancels: counter(
                "postgres_cancels_total",
                "Cancel requests of PostgreSQL clients with the right secret",
            ),
        }
    }

    /// Returns the values.
    pub fn read(&self) -> PostgresStats {
        PostgresStats {
            connections: self.connections.get().max(0) as u64,
            connections_total: self.connections_total.get(),
            rejected_total: self.rejected.get(),
            authentication_failures_total: self.authentication_failures.get(),
            queries_total: self.queries.get(),
            errors_total: self.errors.get(),
            cancels_total: self.cancels.get(),
        }
    }
}
