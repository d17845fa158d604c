//! [`FlushFlag`]: up to which transaction of its owner's log a family of a passive store is
//! persisted (PASV 5.2).

/// The position of a transaction in the log of a passive store's owner. The first transaction of a
/// log is 1, each further one is one more. 0 is the position before the first transaction.
pub type Tsn = u64;

/// The bound of transaction numbers. A store that takes a billion transactions a second reaches it
/// after a hundred years.
pub const TSN_LIMIT: Tsn = 1 << 62;

/// A mark that everything of one family up to a transaction is in tables or pages (PASV 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct FlushFlag {
    /// The last transaction whose items are persisted. A transaction without items of the family
    /// counts as well.
    pub tsn: Tsn,
    /// Sequence number of that transaction's first item, also if the item is of another family. If
    /// the transaction has no items, it is the number that the next item gets.
    pub first_seq: u64,
    /// Sequence number of that transaction's last item. `first_seq - 1` if it has no items.
    pub last_seq: u64,
}

impl FlushFlag {
    /// Returns the flag of a transaction with `items` items whose first number is `first_seq`,
    /// which is 1 or more.
    pub fn of(tsn: Tsn, first_seq: u64, items: u64) -> FlushFlag {
        FlushFlag {
            tsn,
            first_seq,
            last_seq: first_seq + items - 1,
        }
    }

    /// Returns the flag before the first transaction of a log, in a store whose newest sequence
    /// number is `last_seq`.
    pub fn before_first(last_seq: u64) -> FlushFlag {
        FlushFlag {
            tsn: 0,
            first_seq: last_seq + 1,
            last_seq,
        }
    }

    /// Returns the number of items of the transaction.
    pub fn items(&self) -> u64 {
        self.last_seq + 1 - self.first_seq
    }
}
