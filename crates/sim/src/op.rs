//! The names of the calls of [`FileSystem`](basalt_fs::FileSystem) and [`File`](basalt_fs::File).
//! The simulated disk reports its changes by them, and the fault injector selects calls by them.

/// One kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each variant is the call of the same name")]
pub enum OpKind {
    Create,
    CreateLog,
    Open,
    Stat,
    List,
    CreateDir,
    Rename,
    Remove,
    Link,
    SyncMetadata,
    SyncFiles,
    Lock,
    Space,
    Append,
    AlignToUnit,
    SyncData,
    SyncAll,
    Read,
    ExtendLog,
    ReleaseRange,
}

impl OpKind {
    /// Every kind, in the order of declaration.
    pub const ALL: &'static [OpKind] = &[
        OpKind::Create,
        OpKind::CreateLog,
        OpKind::Open,
        OpKind::Stat,
        OpKind::List,
        OpKind::CreateDir,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::Link,
        OpKind::SyncMetadata,
        OpKind::SyncFiles,
        OpKind::Lock,
        OpKind::Space,
        OpKind::Append,
        OpKind::AlignToUnit,
        OpKind::SyncData,
        OpKind::SyncAll,
        OpKind::Read,
        OpKind::ExtendLog,
        OpKind::ReleaseRange,
    ];

    /// Returns the call's name as it is written in code.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Create => "create",
            OpKind::CreateLog => "create_log",
            OpKind::Open => "open",
            OpKind::Stat => "stat",
            OpKind::List => "list",
            OpKind::CreateDir => "create_dir",
            OpKind::Rename => "rename",
            OpKind::Remove => "remove",
            OpKind::Link => "link",
            OpKind::SyncMetadata => "sync_metadata",
            OpKind::SyncFiles => "sync_files",
            OpKind::Lock => "lock",
            OpKind::Space => "space",
            OpKind::Append => "append",
            OpKind::AlignToUnit => "align_to_unit",
            OpKind::SyncData => "sync_data",
            OpKind::SyncAll => "sync_all",
            OpKind::Read => "read",
            OpKind::ExtendLog => "extend_log",
            OpKind::ReleaseRange => "release_range",
        }
    }

    /// Returns true for calls that change what a power cut may leave.
    pub fn mutates(self) -> bool {
        !matches!(
            self,
            OpKind::Open | OpKind::Stat | OpKind::List | OpKind::Space | OpKind::Read
        )
    }

    /// Returns true for the calls that make something durable.
    pub fn syncs(self) -> bool {
        matches!(
            self,
            OpKind::SyncMetadata | OpKind::SyncFiles | OpKind::SyncData | OpKind::SyncAll
        )
    }
}

/// Selects the calls that a fault or a lie strikes, of those that match its rule. Calls are counted
/// from 1, from the moment the rule was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The n-th matching call only.
    Nth(u64),
    /// The n-th matching call and every one after it.
    From(u64),
    /// Every k-th matching call.
    EveryKth(u64),
    /// This many matching calls in a hundred, chosen by seed.
    Percent(u8),
}

impl When {
    /// Returns true if the rule strikes the `count`-th matching call.
    pub(crate) fn strikes(self, count: u64, rng: &mut crate::rng::Rng) -> bool {
        match self {
            When::Nth(n) => count == n,
            When::From(n) => count >= n,
            When::EveryKth(k) => k > 0 && count.is_multiple_of(k),
            When::Percent(p) => rng.percent(u64::from(p)),
        }
    }
}
