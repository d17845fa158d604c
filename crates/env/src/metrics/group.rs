//! Groups of counters of which a registry has one each, such as the counters of reads from blob
//! files, which all files of an environment share.

use super::{Counter, MetricSample, MetricValue, Metrics};
use crate::sync::Mutex;
use std::any::{Any, TypeId};
use std::sync::Arc;

/// The name and the help text of a counter of a group, and where it is.
pub type CounterRow<G> = (&'static str, &'static str, fn(&G) -> &Counter);

/// Counters that a registry has once.
pub trait CounterGroup: Default + Send + Sync + 'static {
    /// The counters. A name belongs to one group.
    const ROWS: &'static [CounterRow<Self>];
}

/// The groups of a registry. There are few of them, so that a list is searched fastest.
#[derive(Clone, Default)]
pub(super) struct Groups(Arc<Mutex<Vec<(TypeId, Arc<dyn Any + Send + Sync>)>>>);

impl Metrics {
    /// Returns the registry's counters of this type, and makes them at the first call. They stay in
    /// the registry.
    pub fn group<G: CounterGroup>(&self) -> Arc<G> {
        let mut groups = self.groups.0.lock();
        let known = groups.iter().find(|(id, _)| *id == TypeId::of::<G>());
        if let Some((_, group)) = known {
            return group.clone().downcast().expect("listed by its type");
        }
        let group = Arc::new(G::default());
        groups.push((TypeId::of::<G>(), group.clone()));
        drop(groups);
        let read = group.clone();
        let source = self.source(move |out| {
            out.extend(G::ROWS.iter().map(|(name, help, counter)| {
                MetricSample::new(name, &[], help, MetricValue::Counter(counter(&read).get()))
            }));
        });
        source.keep();
        group
    }
}
