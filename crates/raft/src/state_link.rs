//! What a log must know of its node's state machine.

use crate::state_store::StateStore;
use std::sync::Arc;
use tokio::sync::watch;

/// What a log must know of its node's state machine.
pub(crate) struct StateLink {
    pub store: Arc<StateStore>,
    /// Index of the last entry that is applied, or that an installed snapshot has.
    pub applied: watch::Receiver<Option<u64>>,
}
