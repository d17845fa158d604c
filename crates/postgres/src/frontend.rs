//! Messages of clients: decoding of bodies that a frame delimits. Every decoder ends with an error
//! if the body is truncated or has bytes after its last field, and allocates no more than the body
//! has bytes.

use basalt_sql::{SqlError, SqlResult, SqlState};

/// Returns an error of the protocol, 08P01.
pub fn protocol_error(message: impl Into<String>) -> SqlError {
    SqlError::new(SqlState("08P01"), message)
}

/// The fields of a body, read in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> SqlResult<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| protocol_error("insufficient data left in message"))?;
        self.0 = rest;
        Ok(taken)
    }
    fn u8(&mut self) -> SqlResult<u8> {
        Ok(self.take(1)?[0])
    }
    fn u16(&mut self) -> SqlResult<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }
    fn i32(&mut self) -> SqlResult<i32> {
        let bytes = self.take(4)?;
        Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
    /// Reads a text that ends with a zero byte.
    fn text(&mut self) -> SqlResult<&'a str> {
        let end = self.0.iter().position(|b| *b == 0);
        let end = end.ok_or_else(|| protocol_error("invalid string in message"))?;
        let bytes = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(bytes).map_err(|_| crate::types::not_utf8(bytes))
    }
    fn end(self) -> SqlResult<()> {
        match self.0 {
            [] => Ok(()),
            _ => Err(protocol_error("invalid message format")),
        }
    }
}

/// Format codes of a Bind: none, one for all, or one each.
#[derive(Debug, Clone, Copy)]
pub struct FormatCodes<'a>(&'a [u8]);

impl FormatCodes<'_> {
    /// Returns the number of codes.
    pub fn len(self) -> usize {
        self.0.len() / 2
    }
    /// Returns the code of a value: its own, the only one, or 0 for text.
    pub fn code(self, index: usize) -> i16 {
        let at = if self.len() == 1 { 0 } else { index * 2 };
        let code = self.0.get(at..at + 2);
        code.map_or(0, |code| i16::from_be_bytes([code[0], code[1]]))
    }
}

/// Parse: makes a prepared statement.
#[derive(Debug)]
pub struct Parse<'a> {
    /// Name of the statement; empty for the unnamed one.
    pub name: &'a str,
    /// Text of the statement.
    pub query: &'a str,
    /// Declared type numbers of parameters.
    pub types: Vec<u32>,
}

impl<'a> Parse<'a> {
    /// Decodes a body.
    pub fn decode(body: &'a [u8]) -> SqlResult<Parse<'a>> {
        let mut fields = Fields(body);
        let (name, query) = (fields.text()?, fields.text()?);
        let count = usize::from(fields.u16()?);
        let mut all = Fields(fields.take(count * 4)?);
        fields.end()?;
        let types = (0..count).map(|_| Ok(all.i32()? as u32));
        Ok(Parse {
            name,
            query,
            types: types.collect::<SqlResult<_>>()?,
        })
    }
}

/// Bind: makes a portal of a prepared statement and values.
#[derive(Debug)]
pub struct Bind<'a> {
    /// Name of the portal; empty for the unnamed one.
    pub portal: &'a str,
    /// Name of the statement.
    pub statement: &'a str,
    /// Formats of the values.
    pub formats: FormatCodes<'a>,
    /// The values; `None` for NULL.
    pub values: Vec<Option<&'a [u8]>>,
    /// Formats of the columns of the result.
    pub result_formats: FormatCodes<'a>,
}

impl<'a> Bind<'a> {
    /// Decodes a body.
    pub fn decode(body: &'a [u8]) -> SqlResult<Bind<'a>> {
        let mut fields = Fields(body);
        let (portal, statement) = (fields.text()?, fields.text()?);
        let count = usize::from(fields.u16()?);
        let formats = FormatCodes(fields.take(count * 2)?);
        let count = usize::from(fields.u16()?);
        let mut values = Vec::with_capacity(count.min(fields.0.len() / 4));
        for _ in 0..count {
            values.push(match fields.i32()? {
                -1 => None,
                len => {
                    let len = usize::try_from(len)
                        .map_err(|_| protocol_error("invalid length of a parameter"))?;
                    Some(fields.take(len)?)
                }
            });
        }
        let count = usize::from(fields.u16()?);
        let result_formats = FormatCodes(fields.take(count * 2)?);
        fields.end()?;
        Ok(Bind {
            portal,
            statement,
            formats,
            values,
            result_formats,
        })
    }
}

/// What Describe and Close name.
#[derive(Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A prepared statement.
    Statement(&'a str),
    /// A portal.
    Portal(&'a str),
}

impl<'a> Target<'a> {
    /// Decodes the body of Describe or Close.
    pub fn decode(body: &'a [u8]) -> SqlResult<Target<'a>> {
        let mut fields = Fields(body);
        let kind = fields.u8()?;
        let name = fields.text()?;
        fields.end()?;
        match kind {
            b'S' => Ok(Target::Statement(name)),
            b'P' => Ok(Target::Portal(name)),
            _ => Err(protocol_error(format!("invalid message subtype {kind}"))),
        }
    }
}

/// Execute: runs a portal.
#[derive(Debug)]
pub struct Execute<'a> {
    /// Name of the portal.
    pub portal: &'a str,
    /// Maximum number of rows to return; 0 for all.
    pub max_rows: u64,
}

impl<'a> Execute<'a> {
    /// Decodes a body.
    pub fn decode(body: &'a [u8]) -> SqlResult<Execute<'a>> {
        let mut fields = Fields(body);
        let portal = fields.text()?;
        // A negative limit means no limit, as in PostgreSQL.
        let max_rows = fields.i32()?.max(0) as u64;
        fields.end()?;
        Ok(Execute { portal, max_rows })
    }
}

/// Decodes a body that is one text: Query, CopyFail and a password.
pub fn decode_text(body: &[u8]) -> SqlResult<&str> {
    let mut fields = Fields(body);
    let text = fields.text()?;
    fields.end()?;
    Ok(text)
}

/// The first answer of a client to SASL: name of the mechanism, and data if there are some.
pub fn decode_sasl_initial(body: &[u8]) -> SqlResult<(&str, &[u8])> {
    let mut fields = Fields(body);
    let mechanism = fields.text()?;
    let data = match fields.i32()? {
        -1 => &[],
        len => {
            let len = usize::try_from(len).map_err(|_| protocol_error("invalid length"))?;
            fields.take(len)?
        }
    };
    fields.end()?;
    Ok((mechanism, data))
}

/// The first packet of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum StartupPacket<'a> {
    /// The client asks for TLS.
    Tls,
    /// The client asks for encryption by GSSAPI.
    Gss,
    /// The client cancels a statement of another connection.
    Cancel {
        /// Number of the connection.
        process: i32,
        /// Its secret.
        secret: &'a [u8],
    },
    /// The client starts a session.
    Session {
        /// Major and minor version of the protocol.
        version: (u16, u16),
        /// Names and values.
        parameters: Vec<(&'a str, &'a str)>,
    },
}

impl<'a> StartupPacket<'a> {
    /// Decodes a packet after its length.
    pub fn decode(body: &'a [u8]) -> SqlResult<StartupPacket<'a>> {
        let mut fields = Fields(body);
        let code = fields.i32()?;
        match code {
            80_877_103 => fields.end().map(|()| StartupPacket::Tls),
            80_877_104 => fields.end().map(|()| StartupPacket::Gss),
            80_877_102 => Ok(StartupPacket::Cancel {
                process: fields.i32()?,
                secret: fields.0,
            }),
            _ => {
                let version = ((code >> 16) as u16, code as u16);
                if version.0 != 3 {
                    return Err(SqlError::new(
                        SqlState::FEATURE_NOT_SUPPORTED,
                        format!(
                            "unsupported frontend protocol {}.{}: server supports 3.0 to 3.0",
                            version.0, version.1
                        ),
                    ));
                }
                let mut parameters = Vec::new();
                loop {
                    let name = fields.text()?;
                    if name.is_empty() {
                        break;
                    }
                    parameters.push((name, fields.text()?));
                }
                fields.end()?;
                Ok(StartupPacket::Session {
                    version,
                    parameters,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
