//! Annotated hexdumps of formats. The pages of `docs/format` show them, and tests compare them with
//! what the code writes.

use std::fmt::Write;

/// A walk through bytes that says of each what it means.
pub struct Dump<'a> {
    /// The bytes that are shown.
    pub bytes: &'a [u8],
    /// The offset of the next byte.
    pub at: usize,
    /// The text so far.
    pub out: String,
}

impl Dump<'_> {
    /// Writes a line that names what follows.
    pub fn title(&mut self, title: &str) {
        let _ = writeln!(self.out, "# {title}");
    }
    /// The next `len` bytes, sixteen a line, with what they mean beside the first.
    pub fn line(&mut self, len: usize, what: &str) {
        let end = self.at + len;
        let mut what = what;
        while self.at < end {
            let n = (end - self.at).min(16);
            let mut hex = String::new();
            for b in &self.bytes[self.at..self.at + n] {
                let _ = write!(hex, "{b:02x} ");
            }
            let line = format!("{:04x}  {hex:<48} {what}", self.at);
            let _ = writeln!(self.out, "{}", line.trim_end());
            what = "";
            self.at += n;
        }
    }
    /// Adds a line for each field: its length in bytes, and what it is.
    pub fn lines(&mut self, fields: &[(usize, &str)]) {
        for (len, what) in fields {
            self.line(*len, what);
        }
    }
}

/// The bytes that a dump shows.
pub fn bytes(dump: &str) -> Vec<u8> {
    let lines = dump.lines().filter(|l| !l.starts_with('#'));
    let hex = lines.flat_map(|l| l[6..l.len().min(54)].split(' '));
    hex.filter(|b| !b.is_empty())
        .map(|b| u8::from_str_radix(b, 16).expect("hex"))
        .collect()
}
