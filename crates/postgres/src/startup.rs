//! The begin of a connection: TLS, cancel requests, authentication, and the session's variables.

use crate::backend;
use crate::frontend::{StartupPacket, decode_sasl_initial, protocol_error};
use crate::scram::{Exchange, Failure, SCRAM, SCRAM_PLUS, Verifier};
use crate::state::ServerState;
use crate::wire::{End, Stream, Wire};
use basalt_sql::{Session, SqlError, SqlState};
use rustls::ServerConnection;

/// Longest packet of a startup in bytes, PostgreSQL's.
const STARTUP_BYTES: usize = 10_000;
/// Longest message of an authentication in bytes.
const AUTHENTICATION_BYTES: usize = 65_536;
/// First byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// Variables of a session whose value the client gets at the start and after every change, with the
/// names by which clients know them.
pub const REPORTED: [&str; 6] = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
    "search_path",
];

/// The version that drivers see if the session names none. They choose their catalog queries by its
/// number.
const SERVER_VERSION: &str = concat!("15.0 (Basalt ", env!("CARGO_PKG_VERSION"), ")");

/// What a client sent to start a session.
pub struct Startup {
    /// Name of the user.
    pub user: String,
    parameters: Vec<(String, String)>,
    unknown: Vec<String>,
    minor_version: u16,
}

fn fatal(state: SqlState, message: impl Into<String>) -> End {
    End::Fatal(SqlError::new(state, message))
}

/// Reads packets until the client starts a session. Returns `None` if it cancelled a statement
/// instead.
pub fn negotiate(wire: &mut Wire, server: &ServerState) -> Result<Option<Startup>, End> {
    if wire.peek_byte()? == TLS_HANDSHAKE {
        start_tls(wire, server)?;
    }
    // A client may ask for TLS once and for GSSAPI once before it starts the session.
    for _ in 0..3 {
        let frame = wire.read_startup(STARTUP_BYTES)?;
        match StartupPacket::decode(wire.body(&frame)).map_err(End::Fatal)? {
            StartupPacket::Tls => {
                let is_offered = server.tls.is_some() && matches!(wire.stream(), Stream::Plain(_));
                wire.out.push(if is_offered { b'S' } else { b'N' });
                wire.flush()?;
                if is_offered {
                    start_tls(wire, server)?;
                }
            }
            StartupPacket::Gss => {
                wire.out.push(b'N');
                wire.flush()?;
            }
            StartupPacket::Cancel { process, secret } => {
                server.cancel(process, secret);
                return Ok(None);
            }
            StartupPacket::Session {
                version,
                parameters,
            } => return startup_of(version.1, &parameters).map(Some),
        }
    }
    Err(End::Fatal(protocol_error("too many startup packets")))
}

fn start_tls(wire: &mut Wire, server: &ServerState) -> Result<(), End> {
    let tls = server.tls.as_ref().ok_or(End::Closed)?;
    let session = ServerConnection::new(tls.config.clone()).map_err(|_| End::Closed)?;
    wire.start_tls(session)
}

fn startup_of(minor_version: u16, parameters: &[(&str, &str)]) -> Result<Startup, End> {
    let mut startup = Startup {
        user: String::new(),
        parameters: Vec::new(),
        unknown: Vec::new(),
        minor_version,
    };
    for (name, value) in parameters {
        match *name {
            "user" => startup.user = (*value).to_owned(),
            // There is one database, and any name selects it.
            "database" => {}
            "replication" if ["", "0", "false", "off", "no"].contains(value) => {}
            "replication" => {
                return Err(fatal(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "replication connections are not supported",
                ));
            }
            "options" => startup.parameters.extend(command_line(value)?),
            _ if name.starts_with("_pq_.") => startup.unknown.push((*name).to_owned()),
            _ => startup
                .parameters
                .push(((*name).to_owned(), (*value).to_owned())),
        }
    }
    match startup.user.is_empty() {
        true => Err(fatal(
            SqlState("28000"),
            "no PostgreSQL user name specified in startup packet",
        )),
        false => Ok(startup),
    }
}

/// Parses `-c name=value` and `--name=value` of the startup parameter `options`. A backslash takes
/// the next character as it is.
fn command_line(text: &str) -> Result<Vec<(String, String)>, End> {
    let mut words = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let last = words.last_mut().expect("there is a word");
        match c {
            '\\' => last.extend(chars.next()),
            _ if c.is_whitespace() => words.push(String::new()),
            _ => last.push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    let mut out = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            Some("") => words.next(),
            Some(rest) => Some(rest.to_owned()),
            None => None,
        };
        let setting = setting.as_deref().and_then(|s| s.split_once('='));
        let (name, value) = setting.ok_or_else(|| {
            fatal(
                SqlState::SYNTAX_ERROR,
                format!("invalid command-line argument for server process: {word}"),
            )
        })?;
        out.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(out)
}

/// Asks the client for its password, if the server has passwords.
pub fn authenticate(wire: &mut Wire, server: &ServerState, startup: &Startup) -> Result<(), End> {
    if startup.minor_version > 0 || !startup.unknown.is_empty() {
        let unknown: Vec<&str> = startup.unknown.iter().map(String::as_str).collect();
        backend::put_negotiate_version(&mut wire.out, &unknown);
    }
    let is_tls = matches!(wire.stream(), Stream::Tls(_));
    if server.options.require_tls && !is_tls {
        return Err(fatal(
            SqlState("28000"),
            "the server accepts only connections over TLS: set sslmode=require",
        ));
    }
    if let Some(verifier) = server.verifier(&startup.user) {
        let hash = server.tls.as_ref().filter(|_| is_tls);
        let hash = hash.and_then(|tls| tls.certificate_hash.as_deref());
        wire.max_message = AUTHENTICATION_BYTES;
        run_scram(wire, &verifier, hash).map_err(|end| match end {
            ScramEnd::Connection(end) => end,
            ScramEnd::Failed(Failure::Malformed(message)) => {
                server.counters.authentication_failures.add(1);
                End::Fatal(protocol_error(message))
            }
            ScramEnd::Failed(Failure::Refused) => {
                server.counters.authentication_failures.add(1);
                fatal(
                    SqlState("28P01"),
                    format!(
                        "password authentication failed for user \"{}\"",
                        startup.user
                    ),
                )
            }
        })?;
        wire.max_message = server.options.max_message_bytes;
    }
    backend::put_authentication_ok(&mut wire.out);
    Ok(())
}

/// Why an exchange of SCRAM ended early.
enum ScramEnd {
    Connection(End),
    Failed(Failure),
}

impl From<End> for ScramEnd {
    fn from(end: End) -> ScramEnd {
        ScramEnd::Connection(end)
    }
}

impl From<Failure> for ScramEnd {
    fn from(failure: Failure) -> ScramEnd {
        ScramEnd::Failed(failure)
    }
}

fn run_scram(wire: &mut Wire, verifier: &Verifier, hash: Option<&[u8]>) -> Result<(), ScramEnd> {
    let mechanisms: &[&str] = match hash {
        Some(_) => &[SCRAM_PLUS, SCRAM],
        None => &[SCRAM],
    };
    backend::put_sasl(&mut wire.out, mechanisms);
    wire.flush()?;
    let frame = password_message(wire)?;
    let (mechanism, data) = decode_sasl_initial(wire.body(&frame)).map_err(End::Fatal)?;
    if !mechanisms.contains(&mechanism) {
        return Err(
            Failure::Malformed("client selected an invalid SASL authentication mechanism").into(),
        );
    }
    let (exchange, answer) = Exchange::begin(verifier, mechanism, hash, data)?;
    backend::put_sasl_continue(&mut wire.out, &answer);
    wire.flush()?;
    let frame = password_message(wire)?;
    let last = exchange.finish(wire.body(&frame))?;
    backend::put_sasl_final(&mut wire.out, &last);
    Ok(())
}

/// Reads a message of the authentication.
fn password_message(wire: &mut Wire) -> Result<crate::wire::Frame, End> {
    let frame = wire.peek()?;
    wire.consume(&frame);
    match frame.kind {
        b'p' => Ok(frame),
        b'X' => Err(End::Closed),
        kind => Err(End::Fatal(protocol_error(format!(
            "expected SASL response, got message type {kind}"
        )))),
    }
}

/// Sets the session's variables. Returns the messages that tell the client its fixed parameters and
/// its key.
pub fn begin_session(
    session: &mut Session,
    startup: &Startup,
    process: i32,
    secret: [u8; 4],
) -> Result<Vec<u8>, End> {
    for (name, value) in &startup.parameters {
        if name.eq_ignore_ascii_case("client_encoding") {
            let encoding = value.trim_matches(['\'', '"']).to_ascii_lowercase();
            if !["utf8", "utf-8", "unicode", "sql_ascii", "auto"].contains(&encoding.as_str()) {
                return Err(fatal(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!("client encoding \"{value}\" is not supported: use UTF8"),
                ));
            }
            continue;
        }
        match session.set_variable(name, value) {
            // Drivers of Java send the zone of their machine. The server ignores it: times stay in
            // UTC, and the parameters that follow say so.
            Err(_) if name.eq_ignore_ascii_case("TimeZone") => {}
            result => result.map_err(End::Fatal)?,
        }
    }
    let mut out = Vec::new();
    for (name, value) in [
        ("server_version", SERVER_VERSION),
        ("server_encoding", "UTF8"),
        ("integer_datetimes", "on"),
        ("IntervalStyle", "postgres"),
        ("is_superuser", "on"),
        ("default_transaction_read_only", "off"),
        ("in_hot_standby", "off"),
        ("session_authorization", &startup.user),
    ] {
        let value = session.variable(name).unwrap_or(value);
        backend::put_parameter_status(&mut out, name, value);
    }
    backend::put_backend_key(&mut out, process, secret);
    Ok(out)
}
