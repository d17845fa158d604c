//! The relational database, by statements.

mod basics;
mod compare;
mod copy;
mod harness;
mod hostile;
mod isolation;
mod logic;
mod reviewed;
mod system;
