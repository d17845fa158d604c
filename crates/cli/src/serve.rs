//! `serve`: the server over a store.

mod postgres;

use crate::args;
use crate::engine;
use crate::failure::{Failure, Outcome};
use crate::output::note;
use crate::store::{Access, environment};
use basalt_server::{Listening, ServerOptions, SyncPolicy};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Runs `basalt serve`. Returns after SIGTERM, Ctrl-C or SHUTDOWN.
pub fn serve(args: args::Serve) -> Outcome {
    let place = &args.store;
    let postgres = match &args.postgres {
        Some(text) => Some(postgres::settings(&args, address("--postgres", text)?)?),
        None => None,
    };
    let listen = match (args.port, &args.listen, &postgres) {
        (Some(port), _, _) => address("--port", &format!("127.0.0.1:{port}"))?,
        (None, Some(listen), _) => address("--listen", listen)?,
        (None, None, None) => address("--listen", "127.0.0.1:6379")?,
        (None, None, Some(settings)) => return postgres::serve_alone(settings),
    };
    let mut options = ServerOptions {
        listen,
        unprotected: args.unprotected,
        sync: match args.sync {
            args::Sync::Always => SyncPolicy::Always,
            args::Sync::Everysec => SyncPolicy::EverySecond,
            args::Sync::Never => SyncPolicy::Never,
        },
        max_clients: args.max_clients as usize,
        idle_timeout: Duration::from_secs(args.timeout.into()),
        tcp_keepalive: Duration::from_secs(args.tcp_keepalive.into()),
        ..ServerOptions::default()
    };
    let sync = options.sync.name();
    // The address is bound before an image is made, which may take minutes and remains.
    let taken = Listening::begin(&options).map_err(|e| Failure::store(place, e))?;
    let access = Access::Write(args.make);
    let (env, path) = environment(place, access, Some(&args.budget))?;
    options.engine = engine::options(place, (&env, &path), access, Some(&args.budget))?
        .allow_nonempty_dir(args.make.allow_nonempty_dir);
    options.dir = path;
    let postgres = match &postgres {
        Some(settings) => Some(postgres::start(settings)?),
        None => None,
    };
    let served = basalt_server::serve_on(taken, &env, options, |listening| {
        note(format_args!(
            "basalt {} serves Redis clients on {listening}, data in {}, sync {sync}; try `redis-cli -p {} ping`, stop with Ctrl-C",
            env!("CARGO_PKG_VERSION"),
            place,
            listening.port()
        ));
    });
    let stopped = postgres.map_or(Ok(()), |running| running.stop());
    served.map_err(|e| Failure::store(place, e))?;
    stopped?;
    note(format_args!(
        "basalt: all accepted requests are finished, and the store is closed"
    ));
    Ok(0)
}

/// Parses the address of a flag: `127.0.0.1:6379`, `localhost:6379`, `[::1]:6379`.
fn address(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        Failure::new(format!(
            "{flag} {text} is not an address; write host and port, such as 127.0.0.1:6379"
        ))
    })
}
