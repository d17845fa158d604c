//! The budgets of clients: limits and use, beside the engine's budgets, in INFO and in the metrics.

use super::Executor;
use basalt::Env;
use basalt::env::{BUDGET_LIMIT, BUDGET_USED, BudgetUse, Gauge};

const NAMES: [&str; 4] = [
    "clients",
    "client_memory_bytes",
    "pending_write_bytes",
    "stream_memory_bytes",
];

/// The gauges `budget_used` and `budget_limit` of each budget.
pub(crate) struct BudgetGauges([(Gauge, Gauge); 4]);

impl BudgetGauges {
    pub fn new(env: &Env) -> BudgetGauges {
        BudgetGauges(NAMES.map(|name| {
            let labels = [("budget", name)];
            let metrics = env.metrics();
            (
                metrics.gauge("budget_used", &labels, BUDGET_USED),
                metrics.gauge("budget_limit", &labels, BUDGET_LIMIT),
            )
        }))
    }
}

impl Executor {
    /// Returns the budgets while `clients` clients are connected.
    pub fn budgets(&self, clients: usize) -> [BudgetUse; 4] {
        let options = &self.options;
        let figures = [
            (clients as u64, options.max_clients as u64),
            (self.client_bytes, options.client_memory_bytes),
            (
                self.keys.pending_bytes() as u64,
                options.pending_write_bytes as u64,
            ),
            (
                self.keys.stream_stats().1 as u64,
                self.keys.stream_budget().0 as u64,
            ),
        ];
        std::array::from_fn(|i| BudgetUse::new(NAMES[i], figures[i].0, figures[i].1))
    }

    /// Sets the gauges.
    pub fn show_budgets(&self, clients: usize) {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        for (budget, (used, limit)) in self.budgets(clients).iter().zip(&self.budget_gauges.0) {
            used.set(signed(budget.used));
            limit.set(signed(budget.limit));
        }
    }

    pub fn connected(&self) -> usize {
        self.sessions.iter().flatten().count()
    }
}
