//! Lines of statements: of a terminal with line editing, of a file, of standard input or of an
//! argument.

use crate::directory::open_named;
use crate::failure::Failure;
use crate::output::note;
use rustix::fs::Mode;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Maximum bytes of a line.
pub const MAX_LINE: u64 = 1 << 30;
/// Statements that the history keeps.
const HISTORY_ENTRIES: usize = 10_000;
/// The environment variable with the file of the history.
const HISTORY_VARIABLE: &str = "BASALT_SQL_HISTORY";

/// Reads lines of bytes, and counts them.
pub struct ByteLines {
    reader: Box<dyn BufRead>,
    /// For messages.
    pub name: String,
    /// The number of the last line, from 1.
    pub line: u64,
}

impl ByteLines {
    /// Opens a file, or standard input if the name is `-`. Returns the bytes of the file too, if
    /// they are known.
    pub fn open(file: &Path) -> Result<(ByteLines, Option<u64>), Failure> {
        if file.as_os_str() == "-" {
            return Ok((ByteLines::stdin(), None));
        }
        let input = open_named(file).map_err(|e| Failure::os("open", file, e))?;
        let len = input
            .metadata()
            .ok()
            .filter(|m| m.is_file())
            .map(|m| m.len());
        let lines = ByteLines {
            reader: Box::new(BufReader::with_capacity(256 << 10, input)),
            name: file.display().to_string(),
            line: 0,
        };
        Ok((lines, len))
    }

    pub fn stdin() -> ByteLines {
        ByteLines {
            reader: Box::new(BufReader::new(std::io::stdin())),
            name: "standard input".to_string(),
            line: 0,
        }
    }

    pub fn text(text: &str) -> ByteLines {
        ByteLines {
            reader: Box::new(std::io::Cursor::new(text.as_bytes().to_vec())),
            name: "-c".to_string(),
            line: 0,
        }
    }

    /// Reads the next line with its line feed. Returns `false` at the end.
    pub fn read(&mut self, line: &mut Vec<u8>) -> Result<bool, Failure> {
        line.clear();
        let read = (&mut self.reader).take(MAX_LINE).read_until(b'\n', line);
        let n = read.map_err(|e| Failure::os("read", Path::new(&self.name), e))?;
        if n as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            return Err(Failure::new(format!(
                "{}, line {}: the line has more than {MAX_LINE} bytes",
                self.name,
                self.line + 1
            )));
        }
        self.line += u64::from(n > 0);
        Ok(n > 0)
    }

    /// Reads the next line as text.
    pub fn read_text(&mut self) -> Result<Option<String>, Failure> {
        let mut line = Vec::new();
        if !self.read(&mut line)? {
            return Ok(None);
        }
        let text = String::from_utf8(line).map_err(|_| {
            Failure::new(format!(
                "{}, line {}: the line is not UTF-8; convert the file first, as with iconv",
                self.name, self.line
            ))
        })?;
        Ok(Some(text))
    }
}

/// A line of a shell.
pub enum InputLine {
    /// A line with its line feed, if it has one.
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

/// The source of a shell's lines.
pub enum Input {
    Terminal(Box<LineEditor>),
    Lines(ByteLines),
}

/// A terminal with line editing.
pub struct LineEditor {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
    line: u64,
}

impl LineEditor {
    /// Makes an editor. A history that cannot be read or written is reported, and the shell
    /// continues without it.
    pub fn new(history: Option<PathBuf>) -> Result<LineEditor, Failure> {
        let unusable = |e| Failure::new(format!("cannot use the terminal: {e}"));
        let config = Config::builder().auto_add_history(false).build();
        let history_of = FileHistory::new();
        let mut editor = Editor::with_history(config, history_of).map_err(unusable)?;
        let _ = editor.set_max_history_size(HISTORY_ENTRIES);
        if let Some(file) = &history
            && let Err(e) = editor.load_history(file)
            && !matches!(&e, ReadlineError::Io(e) if e.kind() == std::io::ErrorKind::NotFound)
        {
            note(format_args!(
                "basalt: cannot read the history {}: {e}",
                file.display()
            ));
        }
        Ok(LineEditor {
            editor,
            history,
            line: 0,
        })
    }

    /// Adds a statement to the history, in memory and in its file.
    pub fn remember(&mut self, statement: &str) {
        if self.editor.add_history_entry(statement).unwrap_or(false)
            && let Some(file) = &self.history
            && let Err(e) = make_parents(file).and_then(|()| self.editor.append_history(file))
        {
            note(format_args!(
                "basalt: cannot write the history {}: {e}",
                file.display()
            ));
            self.history = None;
        }
    }

    fn read(&mut self, prompt: &str) -> Result<InputLine, Failure> {
        match self.editor.readline(prompt) {
            Ok(mut line) => {
                line.push('\n');
                self.line += 1;
                Ok(InputLine::Text(line))
            }
            Err(ReadlineError::Eof) => Ok(InputLine::End),
            Err(ReadlineError::Interrupted) => Ok(InputLine::Interrupted),
            Err(e) => Err(Failure::new(format!("cannot read the terminal: {e}"))),
        }
    }
}

/// Makes the directories above a file, for its owner alone.
fn make_parents(file: &Path) -> Result<(), ReadlineError> {
    let parents = file
        .ancestors()
        .skip(1)
        .filter(|p| !p.as_os_str().is_empty());
    let missing: Vec<&Path> = parents
        .take_while(|p| matches!(rustix::fs::stat(*p), Err(rustix::io::Errno::NOENT)))
        .collect();
    for parent in missing.into_iter().rev() {
        rustix::fs::mkdir(parent, Mode::RWXU).map_err(std::io::Error::from)?;
    }
    Ok(())
}

/// Returns the file of the history: that of the environment, or the default in the user's directory
/// for state. An empty variable means that there is none.
pub fn default_history() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    if let Some(file) = variable(HISTORY_VARIABLE) {
        return (!file.is_empty()).then(|| PathBuf::from(file));
    }
    let absolute = |dir: std::ffi::OsString| Some(PathBuf::from(dir)).filter(|d| d.is_absolute());
    let state = variable("XDG_STATE_HOME").and_then(absolute);
    let home = || variable("HOME").and_then(absolute);
    let state = state.or_else(|| Some(home()?.join(".local/state")))?;
    Some(state.join("basalt").join("sql_history"))
}

impl Input {
    /// Reads the next line. Only a terminal shows the prompt.
    pub fn read(&mut self, prompt: &str) -> Result<InputLine, Failure> {
        match self {
            Input::Terminal(editor) => editor.read(prompt),
            Input::Lines(lines) => Ok(match lines.read_text()? {
                Some(text) => InputLine::Text(text),
                None => InputLine::End,
            }),
        }
    }

    /// Returns the number of the last line.
    pub fn line(&self) -> u64 {
        match self {
            Input::Terminal(editor) => editor.line,
            Input::Lines(lines) => lines.line,
        }
    }

    /// Reads the next line of COPY data. Returns `false` at the end, also that of Ctrl-C.
    pub fn read_data(&mut self, line: &mut Vec<u8>) -> Result<bool, Failure> {
        match self {
            Input::Terminal(editor) => match editor.read(">> ")? {
                InputLine::Text(text) => {
                    *line = text.into_bytes();
                    Ok(true)
                }
                InputLine::Interrupted | InputLine::End => Ok(false),
            },
            Input::Lines(lines) => lines.read(line),
        }
    }
}
