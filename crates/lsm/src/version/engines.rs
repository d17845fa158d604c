//! [`EngineKind`]: the engines that a store has beside its tables, each in a directory of its own.
//!
//! The manifest of the tables is the manifest of the store. For each engine it has an incompatible
//! feature bit. So a version that does not know the engine refuses the store, instead of copying
//! the store without the engine's data.

use std::collections::BTreeSet;
use std::fmt;

/// An engine that a store has beside its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum EngineKind {
    /// Logical logs.
    Logs,
}

const ALL: [EngineKind; 1] = [EngineKind::Logs];

impl EngineKind {
    /// Returns the name of the directory, in the store's directory, that has the engine's files.
    pub fn directory(self) -> &'static str {
        match self {
            EngineKind::Logs => "logs",
        }
    }

    /// Returns the engine's incompatible feature bit. It is persisted.
    fn bit(self) -> u32 {
        match self {
            EngineKind::Logs => 1,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineKind::Logs => "logs",
        })
    }
}

/// The incompatible feature bit of a store whose pages may have references to blob files. It is
/// persisted. A version that does not know such references would take them for values.
pub(super) const REFERENCES_IN_PAGES: u32 = 2;

/// The incompatible feature bit of a passive store. It is persisted. A version that does not know
/// passive stores would show transactions of which only a part is persisted.
pub(super) const PASSIVE: u32 = 4;

/// Returns the engines of incompatible feature bits, and the bits that no engine has.
pub(super) fn of_bits(bits: u32) -> (BTreeSet<EngineKind>, u32) {
    let engines: BTreeSet<EngineKind> =
        (ALL.into_iter().filter(|kind| bits & kind.bit() != 0)).collect();
    let rest = bits & !to_bits(&engines);
    (engines, rest)
}

/// Returns the incompatible feature bits of engines.
pub(crate) fn to_bits(engines: &BTreeSet<EngineKind>) -> u32 {
    engines.iter().fold(0, |bits, kind| bits | kind.bit())
}
