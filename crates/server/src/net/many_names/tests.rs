//! Tests of the module `many_names`.

use super::*;
use crate::options::ServerOptions;
use crate::store::memory::MemoryStore;
use basalt::env::EnvBuilder;
use basalt::fs::{HostFs, HostOptions};

/// A server that does not run.
fn server() -> Server {
    let fs = HostFs::new(HostOptions::new(std::env::temp_dir())).unwrap();
    let env = EnvBuilder::new(fs).build();
    let options = ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ServerOptions::default()
    };
    let listener = super::super::accepting::listen(options.listen).unwrap();
    Server::over(&env, options, listener, Arc::new(MemoryStore::default())).unwrap()
}

fn job(arguments: &[&str], gone: bool) -> PrepareJob {
    let request = Request::from_arguments(arguments);
    PrepareJob {
        requester: Requester { slot: 0, id: 7 },
        input_bytes: request.memory(),
        input: TableInput::Request(request),
        kind: ManyKind::Delete,
        secret: 5,
        gone: Arc::new(AtomicBool::new(gone)),
    }
}

fn results(server: &Server, n: usize) -> Vec<PreparedNames> {
    let mut found = Vec::new();
    while found.len() < n {
        for event in std::mem::take(&mut *server.shared.events.lock()) {
            if let Event::Prepared(prepared) = event {
                found.push(prepared);
            }
        }
        basalt::env::Clock::system().sleep(std::time::Duration::from_millis(1));
    }
    found
}

/// Regression test: the table of a client that had gone was made all the same, and its request
/// stayed in memory meanwhile without being counted.
#[test]
fn no_table_is_prepared_for_a_disconnected_client() {
    let mut server = server();
    server.connections.push(None);
    let shared = server.shared.clone();
    let arguments = vec!["del"; 2000];
    let mut request = Request::from_arguments(&arguments);
    let mut command = ManyCommand::take(&mut request).unwrap();
    command.stage = Stage::Preparing;
    let bytes = command.request_bytes;
    let job = job(&arguments, true);
    assert_eq!(job.input_bytes, bytes);
    server.preparer.prepare(job, &shared);
    server.preparer.discard_command(command);
    assert_eq!(server.preparer.gone_bytes(), bytes);
    let prepared = results(&server, 1).remove(0);
    assert!(matches!(prepared.result, NameTable::GivenUp));
    server.prepared(prepared);
    assert_eq!(
        (server.preparer.gone_bytes(), server.preparer.awaited),
        (0, 0)
    );
}

/// Regression test: a panic ended the thread that makes tables, and every later command with
/// many names waited for ever.
#[test]
fn a_panic_in_preparing_a_table_fails_only_its_command() {
    let mut server = server();
    let shared = server.shared.clone();
    // No command has a request without arguments.
    server.preparer.prepare(job(&[], false), &shared);
    server.preparer.prepare(job(&["del", "k"], false), &shared);
    let results = results(&server, 2);
    assert!(matches!(results[0].result, NameTable::Failed));
    assert!(matches!(results[1].result, NameTable::Made(..)));
}

/// The places for answers count before the fetch begins.
#[test]
fn answer_slots_count_as_client_memory() {
    let names = Arc::new(Names::new(
        Request::from_arguments(&["del", "k"]),
        1,
        true,
        5,
    ));
    let memory = |places| {
        let stage = Stage::Prepared(names.clone(), places);
        let spec = table::resolve(&Request::from_arguments(&["del", "k"])).unwrap();
        let command = ManyCommand {
            spec,
            kind: ManyKind::Delete,
            stage,
            request_bytes: 0,
        };
        command.memory()
    };
    assert_eq!(memory(Some(places(1000))), memory(None) + 16_000);
}
