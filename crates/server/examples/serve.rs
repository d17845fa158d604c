//! A minimal server. Run `cargo run --release -p basalt-server --example serve -- DIR ADDR:PORT
//! [always|everysec|never]`.

use basalt::env::EnvBuilder;
use basalt::fs::{HostFs, HostOptions};
use basalt_server::{ServerOptions, SyncPolicy, serve};

fn main() -> basalt::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut options = ServerOptions::default();
    if let Some(dir) = args.next() {
        options.dir = dir.into();
    }
    if let Some(listen) = args.next() {
        options.listen = listen
            .parse()
            .map_err(|e| basalt::Error::invalid(format!("{listen}: {e}")))?;
    }
    if let Some(sync) = args.next() {
        options.sync = SyncPolicy::parse(&sync)
            .ok_or_else(|| basalt::Error::invalid(format!("{sync} is no sync policy")))?;
    }
    let env = EnvBuilder::new(HostFs::new(HostOptions::new("."))?).build();
    serve(&env, options, |address| {
        println!("serving {address}");
    })
}
