//! The PostgreSQL side of `serve`: its flags, and the server over a relational database.

use crate::args::Serve;
use crate::directory::open_named;
use crate::failure::{Failure, Outcome};
use crate::location::StoreLocation;
use crate::output::note;
use crate::sql::database;
use crate::sql_args::MakeDatabase;
use basalt_postgres::{Passwords, PostgresOptions, PostgresServer, TlsIdentity};
use basalt_sql::{Database, DatabaseOptions, SqlError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Maximum bytes of a password file.
const MAX_PASSWORD: u64 = 1024;
/// Maximum bytes of a certificate or a key.
const MAX_PEM: u64 = 1 << 20;

/// What the flags say about PostgreSQL clients.
#[derive(Debug)]
pub struct PostgresSettings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The directory of the database.
    pub dir: PathBuf,
    /// The password that clients must give.
    pub password: Option<String>,
    /// Clients need no password, although other machines reach the address.
    pub unprotected: bool,
    /// Files of the certificate chain and of its private key, in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// Returns the settings for PostgreSQL clients, with files checked. `listen` is the
/// address of `--postgres`, parsed.
pub fn settings(args: &Serve, listen: SocketAddr) -> Result<PostgresSettings, Failure> {
    let password = match &args.postgres_password_file {
        Some(file) => Some(read_password(file)?),
        None => None,
    };
    let is_local = match listen.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    };
    if !is_local && password.is_none() && !args.unprotected {
        return Err(Failure::new(format!(
            "--postgres {listen} can be reached by other machines, and there is no password; give one with --postgres-password-file, or allow it with --unprotected"
        )));
    }
    let tls = args
        .postgres_tls_cert
        .clone()
        .zip(args.postgres_tls_key.clone());
    for file in tls.iter().flat_map(|(cert, key)| [cert, key]) {
        open_named(file).map_err(|e| Failure::os("open", file, e))?;
    }
    Ok(PostgresSettings {
        listen,
        dir: args.sql_dir.clone(),
        password,
        unprotected: args.unprotected,
        tls,
    })
}

/// Reads a password: the first line of a file.
fn read_password(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let input = open_named(file).map_err(|e| Failure::os("open", file, e))?;
    let mut input = std::fs::File::take(input, MAX_PASSWORD + 1);
    let read = input.read_to_string(&mut text);
    let n = read.map_err(|e| Failure::os("read", file, e))?;
    let password = text.lines().next().unwrap_or("");
    if n as u64 > MAX_PASSWORD || password.is_empty() {
        return Err(Failure::new(format!(
            "--postgres-password-file {}: the first line must be a password of 1 to {MAX_PASSWORD} bytes",
            file.display()
        )));
    }
    Ok(password.to_string())
}

/// A running server for PostgreSQL clients, with its database.
pub struct RunningPostgres {
    server: PostgresServer,
    database: Database,
    place: StoreLocation,
}

impl RunningPostgres {
    /// Interrupts running statements, disconnects clients, and closes the database.
    pub fn stop(self) -> Result<(), Failure> {
        self.server.stop();
        let closed = self.database.close();
        closed.map_err(|e| database::failure(&self.place, &e))
    }
}

/// Starts the server over the database in the directory of the settings, which is made if it does
/// not exist.
pub fn start(settings: &PostgresSettings) -> Result<RunningPostgres, Failure> {
    let place = StoreLocation {
        dir: settings.dir.clone(),
        image: None,
    };
    let (env, dir) = database::place(&place, Some(MakeDatabase::default()))?;
    let failed = |e: &SqlError| database::failure(&place, e);
    let database = Database::open(&env, dir, DatabaseOptions::default());
    let database = database.map_err(|e| failed(&e))?;
    let tls = match &settings.tls {
        None => None,
        Some((certificate, key)) => Some(TlsIdentity {
            certificate_pem: read_pem(certificate)?,
            key_pem: read_pem(key)?,
        }),
    };
    let options = PostgresOptions {
        listen: settings.listen,
        passwords: match &settings.password {
            Some(password) => Passwords::Shared(password.clone()),
            None => Passwords::None,
        },
        unprotected: settings.unprotected,
        tls,
        ..PostgresOptions::default()
    };
    let server = PostgresServer::start(database.clone(), &env, options);
    let server = server.map_err(|e| Failure::new(e.message()))?;
    let listening = server.local_addr();
    note(format_args!(
        "basalt {} serves PostgreSQL clients on {listening}, data in {place}; try `psql -h {} -p {}`, stop with Ctrl-C",
        env!("CARGO_PKG_VERSION"),
        listening.ip(),
        listening.port()
    ));
    Ok(RunningPostgres {
        server,
        database,
        place,
    })
}

/// Serves PostgreSQL clients alone, until SIGTERM or Ctrl-C.
pub fn serve_alone(settings: &PostgresSettings) -> Outcome {
    let signals = Signals::new([SIGTERM, SIGINT]);
    let mut signals = signals.map_err(|e| Failure::new(format!("waiting for signals: {e}")))?;
    let running = start(settings)?;
    signals.forever().next();
    running.stop()?;
    note(format_args!(
        "basalt: all statements are finished or interrupted, and the database is closed"
    ));
    Ok(0)
}

fn read_pem(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut pem = Vec::new();
    let file = open_named(path).map_err(|e| Failure::os("open", path, e))?;
    let read = std::fs::File::take(file, MAX_PEM).read_to_end(&mut pem);
    read.map_err(|e| Failure::os("read", path, e))?;
    Ok(pem)
}
