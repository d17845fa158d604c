//! The space of removed files is used again, but never under a reader.

use super::*;
use crate::LogEngine;
use basalt_sim::{SimFs, SimOptions};

const SPACE: u64 = 64 << 10;

#[test]
fn a_removed_file_is_used_again_when_no_reader_has_it() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let engine = LogEngine::open(&env, "logs", crate::LogEngineOptions::default()).unwrap();
    let logs = &engine.engine().logs;
    logs.note_space_need(true);
    let (writer, reader) = logs.begin(Role::Data, SPACE).unwrap();
    drop(writer);
    logs.remove(reader.number, true).unwrap();
    assert_eq!(logs.take_recycled(), None, "a reader has the file");
    assert!(
        env.fs().exists(&reader.path).unwrap(),
        "it waits for its reader"
    );
    let path = reader.path.clone();
    drop(reader);

    let written = env.fs().stats().bytes_prewritten;
    let (_writer, next) = logs.begin(Role::Data, SPACE).unwrap();
    assert!(next.file().allocated() >= SPACE);
    assert_eq!(env.fs().stats().bytes_prewritten, written);
    assert!(
        !env.fs().exists(&path).unwrap(),
        "the next file took it over"
    );
}

#[test]
fn removed_files_are_kept_only_for_synced_appends() {
    let env = Env::for_tests(SimFs::new(SimOptions::default()), 1);
    let engine = LogEngine::open(&env, "logs", crate::LogEngineOptions::default()).unwrap();
    let logs = &engine.engine().logs;
    let removed = |needs: bool| {
        logs.note_space_need(needs);
        let (_writer, file) = logs.begin(Role::Data, 0).unwrap();
        logs.remove(file.number, true).unwrap();
        file.path.clone()
    };
    let unneeded = removed(false);
    assert!(!env.fs().exists(&unneeded).unwrap());
    let kept = removed(true);
    assert!(env.fs().exists(&kept).unwrap());
    logs.note_space_need(false);
    assert!(!env.fs().exists(&kept).unwrap(), "the need has gone");
}
