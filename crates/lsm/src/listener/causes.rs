//! Causes in events and statistics, as types. Each has the words that metrics and messages print.

use std::fmt;

/// Declares an enumeration, and the words that each variant prints.
macro_rules! causes {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $words:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// All variants in the order of their declaration. Later versions may have more.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Returns the words for this variant in metrics, in JSON and in messages.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $words,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

causes! {
    /// A cause for which writers are slowed or held. More causes may be added.
    StallCause {
        /// Sealed memtables wait for their flush.
        Memtables = "memtables",
        /// Level 0 has many tables, and every read searches each of them.
        Level0 = "level0",
        /// Compactions owe many bytes.
        CompactionDebt = "compaction_debt",
        /// The environment's memory budget is used up.
        MemoryBudget = "memory_budget",
        /// Garbage in blob files is near its bound.
        Space = "space",
    }
}

causes! {
    /// The work that failed in an event [`super::Event::BackgroundError`]. More may be added.
    BackgroundErrorReason {
        /// A flush of memtables.
        Flush = "flush",
        /// A compaction.
        Compaction = "compaction",
        /// A garbage collection of blob files.
        Gc = "collection",
        /// An append to the write-ahead log, or a sync of it.
        Log = "log",
        /// An edit of the manifest.
        Manifest = "manifest",
        /// The disk is too full for further writes.
        Space = "space",
    }
}

causes! {
    /// The reason for a compaction. More reasons may be added.
    CompactionReason {
        /// Level 0 has too many tables.
        L0Tables = "level 0 tables",
        /// Level 0 has too many bytes.
        L0Bytes = "level 0 bytes",
        /// A level is over its target.
        LevelBytes = "level bytes",
        /// The entries of a level hide many bytes of blob files.
        HiddenGarbage = "hidden garbage",
        /// Reads searched level 0 without finding their keys.
        Reads = "reads of level 0",
        /// Values have expired.
        Expired = "expired values",
        /// A table consists mostly of tombstones.
        Tombstones = "tombstones",
        /// Scans read values one by one. The compaction relocates them in the order of their keys.
        Relocation = "value relocation",
        /// A caller asked for the compaction.
        Manual = "manual",
    }
}

causes! {
    /// The work that wrote a blob file. More may be added.
    BlobFileReason {
        /// A flush of memtables.
        Flush = "flush",
        /// A compaction.
        Compaction = "compaction",
        /// A garbage collection of blob files.
        Gc = "collection",
        /// An ingestion of prepared tables.
        Ingest = "ingest",
    }
}

causes! {
    /// The work that wrote bytes to the device. More may be added.
    WriteCause {
        /// The write-ahead log.
        Log = "log",
        /// Flushes of memtables.
        Flush = "flush",
        /// Ingestions of prepared tables.
        Ingest = "ingest",
        /// Compactions.
        Compaction = "compaction",
        /// Garbage collections of blob files, and of extents of pages.
        Gc = "collection",
        /// System transactions and system checkpoints of families in pages.
        SystemLog = "system_log",
    }
}
