//! A client that sends messages and shows the answers as texts, and servers for it.

use basalt::Env;
use basalt_postgres::{PostgresOptions, PostgresServer};
use basalt_sim::{SimFs, SimOptions};
use basalt_sql::{Database, DatabaseOptions};
use bytes::{Buf, BytesMut};
use pgwire::messages::extendedquery::{Bind, Close, Describe, Execute, Flush, Parse, Sync};
use pgwire::messages::response::ErrorResponse;
use pgwire::messages::simplequery::Query;
use pgwire::messages::startup::{Authentication, SecretKey};
use pgwire::messages::{DecodeContext, Message, PgWireBackendMessage as Backend, ProtocolVersion};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Returns a server over an empty database on a free port.
pub fn server_with(options: PostgresOptions) -> PostgresServer {
    let fs = SimFs::new(SimOptions::default());
    let env = Env::builder(fs).build();
    let database = Database::open(&env, "database", DatabaseOptions::default()).unwrap();
    let options = PostgresOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..options
    };
    PostgresServer::start(database, &env, options).unwrap()
}

/// Returns a server with default options.
pub fn server() -> PostgresServer {
    server_with(PostgresOptions::default())
}

/// The bytes of a connection.
pub trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

/// A client.
pub struct Client {
    pub stream: Box<dyn ReadWrite>,
    input: BytesMut,
    context: DecodeContext,
    /// Process and secret of BackendKeyData.
    pub key: (i32, Vec<u8>),
    /// Messages that are not sent yet.
    pub batch: BytesMut,
}

impl Client {
    /// Returns a client over a stream.
    pub fn over(stream: impl ReadWrite + 'static) -> Client {
        let mut context = DecodeContext::new(ProtocolVersion::PROTOCOL3_0);
        context.awaiting_backend_ssl_response = false;
        Client {
            stream: Box::new(stream),
            input: BytesMut::new(),
            context,
            key: (0, Vec::new()),
            batch: BytesMut::new(),
        }
    }

    /// Connects without starting a session.
    pub fn connect(server: &PostgresServer) -> Client {
        Client::over(TcpStream::connect(server.local_addr()).unwrap())
    }

    /// Connects and starts a session. Returns the answers up to the first ReadyForQuery, too.
    pub fn start(server: &PostgresServer, parameters: &[(&str, &str)]) -> (Client, Vec<String>) {
        let mut client = Client::connect(server);
        client.send_startup(parameters);
        let answers = client.answers();
        (client, answers)
    }

    /// Connects and starts a session.
    pub fn session(server: &PostgresServer) -> Client {
        let (client, answers) = Client::start(server, &[("user", "anna")]);
        assert_eq!(answers.last().unwrap(), "Z I", "{answers:?}");
        client
    }

    /// Sends the packet that starts a session.
    pub fn send_startup(&mut self, parameters: &[(&str, &str)]) {
        let mut body = vec![0, 3, 0, 0];
        for (name, value) in parameters {
            body.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
        }
        body.push(0);
        let mut packet = (body.len() as u32 + 4).to_be_bytes().to_vec();
        packet.extend_from_slice(&body);
        self.send_bytes(&packet);
    }

    /// Sends bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    /// Puts a message into the batch.
    pub fn put(&mut self, message: impl Message) -> &mut Client {
        message.encode(&mut self.batch).unwrap();
        self
    }

    /// Sends the batch.
    pub fn send(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.send_bytes(&batch);
    }

    pub fn parse(&mut self, name: &str, query: &str, types: &[u32]) -> &mut Client {
        self.put(Parse::new(Some(name.into()), query.into(), types.to_vec()))
    }

    /// Puts a Bind with text parameters.
    pub fn bind(&mut self, portal: &str, name: &str, values: &[Option<&str>]) -> &mut Client {
        let values = values.iter().map(|v| v.map(|v| v.to_owned().into()));
        let (portal, name) = (Some(portal.into()), Some(name.into()));
        self.put(Bind::new(portal, name, vec![], values.collect(), vec![]))
    }

    pub fn describe(&mut self, kind: u8, name: &str) -> &mut Client {
        self.put(Describe::new(kind, Some(name.into())))
    }

    pub fn close(&mut self, kind: u8, name: &str) -> &mut Client {
        self.put(Close::new(kind, Some(name.into())))
    }

    pub fn execute(&mut self, portal: &str, max_rows: i32) -> &mut Client {
        self.put(Execute::new(Some(portal.into()), max_rows))
    }

    pub fn flush(&mut self) -> &mut Client {
        self.put(Flush::new())
    }

    /// Sends the batch and a Sync. Returns the answers.
    pub fn sync(&mut self) -> Vec<String> {
        self.put(Sync::new());
        self.send();
        self.answers()
    }

    /// Runs a query of the simple protocol. Returns the answers.
    pub fn query(&mut self, text: &str) -> Vec<String> {
        self.put(Query::new(text.into()));
        self.send();
        self.answers()
    }

    /// Runs a query that must succeed. Returns the values of its rows as texts.
    pub fn rows(&mut self, text: &str) -> Vec<String> {
        let answers = self.query(text);
        assert!(!answers.iter().any(|a| a.starts_with("E ")), "{answers:?}");
        let rows = answers.iter().filter_map(|a| a.strip_prefix("D "));
        rows.map(str::to_owned).collect()
    }

    /// Reads one answer. Returns `None` at the end of the connection.
    pub fn read(&mut self) -> Option<Backend> {
        loop {
            if let Some(message) = Backend::decode(&mut self.input, &self.context).unwrap() {
                return Some(message);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.input.extend_from_slice(&bytes[..n]),
            }
        }
    }

    /// Reads one answer as a text; `end` at the end of the connection.
    pub fn answer(&mut self) -> String {
        match self.read() {
            Some(message) => {
                if let Backend::BackendKeyData(data) = &message {
                    let secret = match &data.secret_key {
                        SecretKey::I32(secret) => secret.to_be_bytes().to_vec(),
                        SecretKey::Bytes(secret) => secret.to_vec(),
                    };
                    self.key = (data.pid, secret);
                }
                shown(message)
            }
            None => "end".into(),
        }
    }

    /// Reads answers up to ReadyForQuery, to the request of COPY data, or to the end.
    pub fn answers(&mut self) -> Vec<String> {
        self.answers_until(|answer| answer.starts_with("Z ") || answer.starts_with("G "))
    }

    /// Reads answers up to one, or to the end of the connection.
    pub fn answers_until(&mut self, is_last: impl Fn(&str) -> bool) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let answer = self.answer();
            let ends = is_last(&answer) || answer == "end";
            all.push(answer);
            if ends {
                return all;
            }
        }
    }

    /// Ends the session.
    pub fn terminate(mut self) {
        self.send_bytes(b"X\0\0\0\x04");
        assert_eq!(self.answer(), "end");
    }
}

/// Shows the fields of an error: severity, code and message, then the others with their letters.
fn error_text(error: &ErrorResponse) -> String {
    let field = |code: u8| {
        error
            .fields
            .iter()
            .find(|(c, _)| *c == code)
            .map(|(_, v)| v)
    };
    let mut out = format!(
        "{} {} {}",
        field(b'S').unwrap(),
        field(b'C').unwrap(),
        field(b'M').unwrap()
    );
    for code in *b"DHPstcn" {
        if let Some(value) = field(code) {
            out += &format!(" {}={value}", code as char);
        }
    }
    out
}

fn shown(message: Backend) -> String {
    match message {
        Backend::Authentication(authentication) => match authentication {
            Authentication::Ok => "R ok".into(),
            Authentication::SASL(names) => format!("R sasl {}", names.join(",")),
            Authentication::SASLContinue(data) => {
                format!("R continue {}", String::from_utf8_lossy(&data))
            }
            Authentication::SASLFinal(data) => {
                format!("R final {}", String::from_utf8_lossy(&data))
            }
            _ => "R other".into(),
        },
        Backend::ParameterStatus(status) => format!("S {}={}", status.name, status.value),
        Backend::BackendKeyData(_) => "K".into(),
        Backend::NegotiateProtocolVersion(_) => "v".into(),
        Backend::ParseComplete(_) => "1".into(),
        Backend::BindComplete(_) => "2".into(),
        Backend::CloseComplete(_) => "3".into(),
        Backend::PortalSuspended(_) => "s".into(),
        Backend::CommandComplete(complete) => format!("C {}", complete.tag),
        Backend::EmptyQueryResponse(_) => "I".into(),
        Backend::ReadyForQuery(ready) => {
            use pgwire::messages::response::TransactionStatus as Status;
            match ready.status {
                Status::Idle => "Z I".into(),
                Status::Transaction => "Z T".into(),
                Status::Error => "Z E".into(),
            }
        }
        Backend::ErrorResponse(error) => format!("E {}", error_text(&error)),
        Backend::NoticeResponse(notice) => {
            format!("N {}", error_text(&ErrorResponse::new(notice.fields)))
        }
        Backend::ParameterDescription(description) => format!("t {:?}", description.types),
        Backend::RowDescription(description) => {
            let fields = description.fields.iter();
            let fields = fields.map(|f| format!("{}:{}:{}", f.name, f.type_id, f.format_code));
            format!("T {}", fields.collect::<Vec<_>>().join(" "))
        }
        Backend::DataRow(mut row) => {
            let mut values = Vec::new();
            for _ in 0..row.field_count {
                values.push(match row.data.get_i32() {
                    -1 => "NULL".to_owned(),
                    len => {
                        let bytes = row.data.split_to(len as usize);
                        match std::str::from_utf8(&bytes) {
                            Ok(text) if !text.contains('\0') => text.to_owned(),
                            _ => bytes.iter().map(|b| format!("{b:02x}")).collect(),
                        }
                    }
                });
            }
            format!("D {}", values.join("|"))
        }
        Backend::NoData(_) => "n".into(),
        Backend::CopyData(data) => format!("d {}", String::from_utf8_lossy(&data.data)),
        Backend::CopyDone(_) => "c".into(),
        Backend::CopyInResponse(response) => format!("G {}", response.columns),
        Backend::CopyOutResponse(response) => format!("H {}", response.columns),
        other => format!("{other:?}"),
    }
}
