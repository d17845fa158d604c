//! How values and rows are encoded.

mod reader;
mod row;

pub use reader::{Reader, put_bytes, put_text, put_varint};
pub use row::{Row, encode_row, put_value};

#[cfg(test)]
mod tests;
