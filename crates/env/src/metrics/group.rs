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

/// The groups of a registry.
#[derive(Clone, Default)]
pub(super) struct Groups(Arc<Mutex<GroupList>>);

/// The groups by type. There are few of them, so that a list is searched fastest.
#[derive(Default)]
struct GroupList(Vec<(TypeId, Arc<dyn Any + Send + Sync>)>);

impl GroupList {
    fn find<G: CounterGroup>(&self) -> Option<Arc<G>> {
        let known = self.0.iter().find(|(id, _)| *id == TypeId::of::<G>());
        known.map(|(_, group)| group.clone().downcast().expect("listed by its type"))
    }
}

impl Metrics {
    /// Returns the registry's counters of this type, and makes them at the first call. They stay as
    /// long as the registry. Another thread may get a new group a moment before the registry shows
    /// it.
    pub fn group<G: CounterGroup>(&self) -> Arc<G> {
        if let Some(known) = self.groups.0.lock().find() {
            return known;
        }
        let group = Arc::new(G::default());
        let mut groups = self.groups.0.lock();
        // Another thread may have made the group meanwhile.
        if let Some(known) = groups.find() {
            return known;
        }
        groups.0.push((TypeId::of::<G>(), group.clone()));
        drop(groups);
        let read = group.clone();
        self.permanent_source(move |out| {
            out.extend(G::ROWS.iter().map(|(name, help, counter)| {
                MetricSample::new(name, &[], help, MetricValue::Counter(counter(&read).get()))
            }));
        });
        group
    }
}
