//! Settings of a server.

use crate::socket::KEEPALIVE_MOST;
use basalt::fs::FileSystem;
use basalt::{Error, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// The users that may connect, and their passwords.
#[derive(Clone, Default)]
pub enum Passwords {
    /// Every client is accepted under any user name.
    #[default]
    None,
    /// One password for all user names.
    Shared(String),
    /// Names of users with their passwords.
    Users(Vec<(String, String)>),
}

/// A certificate and its key, for connections over TLS.
#[derive(Clone)]
pub struct TlsIdentity {
    /// The chain of certificates in PEM, that of the server first.
    pub certificate_pem: Vec<u8>,
    /// The private key in PEM.
    pub key_pem: Vec<u8>,
}

impl TlsIdentity {
    /// Reads the two PEM files.
    ///
    /// Errors: those of the filesystem, with the path of the file.
    pub fn read(fs: &dyn FileSystem, certificate: &Path, key: &Path) -> Result<TlsIdentity> {
        let read = |path: &Path| -> Result<Vec<u8>> {
            let file = fs.open(path)?;
            let len = fs.stat(path)?.len as usize;
            Ok(file.read(0, len)?.to_vec())
        };
        Ok(TlsIdentity {
            certificate_pem: read(certificate)?,
            key_pem: read(key)?,
        })
    }
}

/// Settings of a server, each with a default that suits one machine.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Address and port to listen on. Default 127.0.0.1:5432. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Users and their passwords. The server asks for them with SCRAM-SHA-256. Default: none.
    pub passwords: Passwords,
    /// True to allow an address that other machines reach, although there is no password. Default
    /// false.
    pub unprotected: bool,
    /// Certificate and key. If they are set, clients may use TLS. Default: none.
    pub tls: Option<TlsIdentity>,
    /// True to refuse clients without TLS. Default false.
    pub require_tls: bool,
    /// Number of sessions at a time. Default 1,000. Each one has a thread.
    pub max_connections: usize,
    /// Time that a client may take to authenticate. Default 60 s.
    pub authentication_timeout: Duration,
    /// Time after which a client that sends nothing outside of a transaction is disconnected; zero
    /// for never. Default 0.
    pub idle_timeout: Duration,
    /// Time after which a client that sends nothing inside of a transaction is disconnected; zero
    /// for never. Default 0.
    pub idle_in_transaction_timeout: Duration,
    /// Idle time after which TCP keepalive probes start. Three probes follow, each a third of that
    /// time apart. Zero turns keepalive off. At most 32,767 s. Default 300 s.
    pub tcp_keepalive: Duration,
    /// Maximum bytes of a message of a client. Default 256 MiB, at most 1 GiB.
    pub max_message_bytes: usize,
    /// Maximum bytes of rows that a portal with a row limit keeps when the client runs another
    /// statement before the portal's end. Default 64 MiB.
    pub portal_bytes: usize,
    /// Time that a stopping server waits for a client that reads none of its last replies.
    /// Default 5 s.
    pub drain: Duration,
}

/// Maximum of `max_message_bytes`.
const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// Minimum of `max_message_bytes`.
const MIN_MESSAGE_BYTES: usize = 64 << 10;

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 5432)),
            passwords: Passwords::None,
            unprotected: false,
            tls: None,
            require_tls: false,
            max_connections: 1000,
            authentication_timeout: Duration::from_secs(60),
            idle_timeout: Duration::ZERO,
            idle_in_transaction_timeout: Duration::ZERO,
            tcp_keepalive: Duration::from_secs(300),
            max_message_bytes: 256 << 20,
            portal_bytes: 64 << 20,
            drain: Duration::from_secs(5),
        }
    }
}

impl PostgresOptions {
    /// Checks that the values are inside their documented ranges.
    ///
    /// Errors: `InvalidArgument` with the name of the option.
    pub fn validate(&self) -> Result<()> {
        let has_password = !matches!(self.passwords, Passwords::None);
        if !self.listen.ip().is_loopback() && !self.unprotected && !has_password {
            return Err(Error::invalid(format!(
                "refusing to listen on {} for PostgreSQL clients: there is no password, so everyone who reaches this address could read and erase the data; set a password, use 127.0.0.1:{}, or set `unprotected` to allow it",
                self.listen,
                self.listen.port()
            )));
        }
        let one;
        let pairs: &[(String, String)] = match &self.passwords {
            Passwords::None => &[],
            Passwords::Shared(password) => {
                one = [("all users".to_owned(), password.clone())];
                &one
            }
            Passwords::Users(users) if users.is_empty() => {
                return Err(Error::invalid(
                    "the list of PostgreSQL users is empty: name at least one user",
                ));
            }
            Passwords::Users(users) => users,
        };
        for (name, password) in pairs {
            // SASLprep changes other characters, and clients may differ in how they do it.
            if password.is_empty() || !password.bytes().all(|b| (b' '..=b'~').contains(&b)) {
                return Err(Error::invalid(format!(
                    "the PostgreSQL password of {name} must have at least one character, and only printable ASCII characters"
                )));
            }
        }
        if self.require_tls && self.tls.is_none() {
            return Err(Error::invalid(
                "TLS is required of PostgreSQL clients, and there is no certificate: set a certificate and a key",
            ));
        }
        if self.tcp_keepalive > Duration::from_secs(KEEPALIVE_MOST) {
            return Err(Error::invalid(format!(
                "tcp_keepalive of PostgreSQL clients is {} seconds, which is too long: set at most {KEEPALIVE_MOST} seconds, or 0 to turn keepalive off",
                self.tcp_keepalive.as_secs()
            )));
        }
        if self.max_connections == 0 {
            return Err(Error::invalid("max_connections is 0: set at least 1"));
        }
        if !(MIN_MESSAGE_BYTES..=MAX_MESSAGE_BYTES).contains(&self.max_message_bytes) {
            return Err(Error::invalid(format!(
                "max_message_bytes is {}: set {MIN_MESSAGE_BYTES} to {MAX_MESSAGE_BYTES} bytes",
                self.max_message_bytes
            )));
        }
        Ok(())
    }
}
