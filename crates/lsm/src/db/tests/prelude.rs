//! The names of the crate that the tests of the engine use.

pub(in crate::db::tests) use crate::db::*;
pub(in crate::db::tests) use crate::options::{FamilyOptions, Options, ReadOptions, WriteOptions};
pub(in crate::db::tests) use basalt_env::Env;
pub(in crate::db::tests) use basalt_env::sync::atomic::Ordering::SeqCst;
pub(in crate::db::tests) use basalt_fs::{Bytes, Error, ErrorKind, Result};
pub(in crate::db::tests) use basalt_kv::batch::WriteBatch;
pub(in crate::db::tests) use basalt_kv::key::SeqNo;
pub(in crate::db::tests) use std::sync::Arc;
