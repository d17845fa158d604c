//! The Redis serialization protocol, versions 2 and 3: requests in ([`request`]), replies out
//! ([`reply`]).

pub mod reply;
pub mod request;

/// Which version of the protocol a connection speaks. Every connection begins with 2; `HELLO 3`
/// changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2.
    #[default]
    Resp2,
    /// RESP3: maps, sets, nulls and verbatim strings of their own.
    Resp3,
}
