//! What reads promise beyond single answers: many keys read at once.

#![deny(missing_docs)]

mod together;
mod watched;
