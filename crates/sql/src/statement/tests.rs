//! Statements are rewritten and run on tables of SQLite, and the answers are PostgreSQL's.

mod definitions;
mod errors;
mod harness;
mod hostile;
mod programs;
mod queries;
mod types;
mod writes;
