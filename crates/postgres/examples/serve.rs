//! Serves an empty database in memory, to try clients: `cargo run -p basalt-postgres --example
//! serve -- 127.0.0.1:5432 [password]`. It ends when its input ends.

use basalt::Env;
use basalt_postgres::{Passwords, PostgresOptions, PostgresServer};
use basalt_sim::{SimFs, SimOptions};
use basalt_sql::{Database, DatabaseOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().unwrap_or("127.0.0.1:5432".into());
    let options = PostgresOptions {
        listen: listen.parse()?,
        passwords: arguments.next().map_or(Passwords::None, Passwords::Shared),
        ..PostgresOptions::default()
    };
    let env = Env::builder(SimFs::new(SimOptions::default())).build();
    let database = Database::open(&env, "database", DatabaseOptions::default())?;
    let server = PostgresServer::start(database.clone(), &env, options)?;
    eprintln!("serving PostgreSQL clients on {}", server.local_addr());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    println!("{:?}", server.stats());
    server.stop();
    database.close()?;
    Ok(())
}
