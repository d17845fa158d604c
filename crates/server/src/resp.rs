//! The Redis serialization protocol, versions 2 and 3: parsing of requests ([`request`]), encoding
//! of replies ([`reply`]).

pub mod reply;
pub mod request;

/// The protocol version of a connection. Every connection begins with 2; `HELLO 3` changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2.
    #[default]
    Resp2,
    /// RESP3, which has types of its own for maps, sets, nulls and verbatim strings.
    Resp3,
}
