//! What reads promise beyond single answers: reads that prefix filters save, and many keys read at once.

#![deny(missing_docs)]

mod prefixes;
mod together;
mod watched;
