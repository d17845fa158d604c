//! The shell: statements and commands of a terminal, a file, standard input or arguments.

use super::database;
use super::describe::{self, Kinds};
use super::input::{ByteLines, Input, InputLine, LineEditor, default_history};
use super::interrupt::Interrupter;
use super::meta::{self, FileCopy, MetaCommand};
use super::render::{ResultFormat, Style};
use super::runner::{CopySource, Runner, Target};
use super::splitter::{Splitter, Statement};
use crate::failure::{EXIT_NO, Failure, Outcome};
use crate::output::{note, print};
use crate::sql_args::Shell as ShellArgs;
use basalt_sql::{Database, TransactionStatus};
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;

/// The most files that include each other.
const MAX_INCLUDES: u32 = 32;

/// What happens after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Continue,
    Quit,
}

/// A running shell.
struct Shell {
    database: Database,
    runner: Runner,
    is_interactive: bool,
    keep_going: bool,
    /// A statement failed.
    has_failed: bool,
    includes: u32,
}

/// Runs `basalt sql` without a further command.
pub fn shell(args: &ShellArgs) -> Outcome {
    let is_interactive =
        args.commands.is_empty() && args.files.is_empty() && std::io::stdin().is_terminal();
    let style = Style {
        format: match (args.csv, args.json, args.json_document) {
            (true, ..) => ResultFormat::Csv,
            (_, true, _) => ResultFormat::Json,
            (.., true) => ResultFormat::JsonDocument,
            _ => ResultFormat::Aligned,
        },
        null: String::new(),
        is_expanded: false,
    };
    // A missing file is reported before a database is made.
    let mut inputs: Vec<Input> = Vec::new();
    for command in &args.commands {
        inputs.push(Input::Lines(ByteLines::text(command)));
    }
    for file in &args.files {
        inputs.push(Input::Lines(ByteLines::open(file)?.0));
    }
    let database = database::open(&args.place, Some(args.make))?;
    let place = args.place.store();
    let failure = |e| database::failure(&place, &e);
    let session = database.session().map_err(failure)?;
    let interrupter = Interrupter::install(session.interrupt_handle(), is_interactive);
    let mut runner = Runner::new(session, interrupter, style);
    runner.is_quiet = args.quiet;
    if inputs.is_empty() {
        inputs.push(match is_interactive {
            true => {
                let history = args.history.clone().or_else(default_history);
                Input::Terminal(Box::new(LineEditor::new(
                    history.filter(|_| !args.no_history),
                )?))
            }
            false => Input::Lines(ByteLines::stdin()),
        });
    }
    let mut shell = Shell {
        database,
        runner,
        is_interactive,
        keep_going: args.keep_going,
        has_failed: false,
        includes: 0,
    };
    if is_interactive {
        print(&format!(
            "basalt {}, database in {place}; \\? shows the commands, \\q ends\n",
            env!("CARGO_PKG_VERSION")
        ))?;
    }
    let ran = shell.run_all(inputs);
    let (has_failed, database) = (shell.has_failed, shell.database.clone());
    drop(shell);
    let closed = database.close();
    ran?;
    closed.map_err(failure)?;
    // The user of a terminal has seen the errors.
    Ok(if has_failed && !is_interactive {
        EXIT_NO
    } else {
        0
    })
}

impl Shell {
    fn run_all(&mut self, inputs: Vec<Input>) -> Result<(), Failure> {
        for mut input in inputs {
            if self.run_input(&mut input)? == Flow::Quit || self.must_stop() {
                break;
            }
        }
        if self.is_interactive {
            print("\n")?;
        }
        self.runner.end_document()
    }

    /// Returns `true` if no further statement may run.
    fn must_stop(&self) -> bool {
        let was_interrupted = self.has_failed && self.runner.interrupter.was_interrupted();
        !self.is_interactive && self.has_failed && (!self.keep_going || was_interrupted)
    }

    fn prompt(&self, splitter: &Splitter) -> String {
        let status = match self.runner.session.status() {
            TransactionStatus::Idle => "",
            TransactionStatus::Active => "*",
            TransactionStatus::Failed => "!",
        };
        format!("basalt{}{status}> ", splitter.prompt())
    }

    /// Runs all lines of an input.
    fn run_input(&mut self, input: &mut Input) -> Result<Flow, Failure> {
        let origin = match input {
            Input::Terminal(_) => None,
            Input::Lines(lines) => Some(lines.name.clone()),
        };
        let mut splitter = Splitter::default();
        loop {
            let prompt = self.prompt(&splitter);
            let line = match input.read(&prompt)? {
                InputLine::Text(line) => line,
                InputLine::Interrupted => {
                    splitter.reset(input.line() + 1);
                    continue;
                }
                InputLine::End => break,
            };
            if splitter.is_in_code() && line.trim_start().starts_with('\\') {
                let flow = self.meta(line.trim(), &mut splitter, input)?;
                if flow == Flow::Quit || self.must_stop() {
                    return Ok(flow);
                }
                // The line is none of the splitter's.
                splitter.skip_line();
                continue;
            }
            for statement in splitter.push(&line) {
                let before = input.line();
                self.run_statement(&statement, origin.as_deref(), input)?;
                splitter.skip_lines(input.line() - before);
                if self.must_stop() {
                    return Ok(Flow::Quit);
                }
                // Ctrl-C at a statement of a file ends the file, and not the shell.
                let was_interrupted = self.runner.interrupter.was_interrupted();
                if was_interrupted && origin.is_some() && self.is_interactive {
                    return Ok(Flow::Continue);
                }
            }
        }
        // Statements of files and arguments need no semicolon at the end.
        if let Some(statement) = splitter.finish().filter(|_| !self.is_interactive) {
            self.run_statement(&statement, origin.as_deref(), input)?;
        }
        Ok(Flow::Continue)
    }

    fn run_statement(
        &mut self,
        statement: &Statement,
        origin: Option<&str>,
        input: &mut Input,
    ) -> Result<(), Failure> {
        if let Input::Terminal(editor) = input {
            editor.remember(&format!("{};", statement.text));
        }
        // The data of a COPY in an argument comes from standard input.
        let mut stdin;
        let source = match origin {
            Some("-c") => {
                stdin = Input::Lines(ByteLines::stdin());
                &mut stdin
            }
            _ => input,
        };
        let source = CopySource::Script(source);
        let origin = origin.filter(|origin| *origin != "-c");
        let is_done = self.runner.run(statement, origin, Target::Stdout, source)?;
        self.has_failed |= !is_done;
        Ok(())
    }

    /// Reports a command that failed.
    fn meta_failed(&mut self, why: &str) {
        self.has_failed = true;
        note(format_args!("basalt: {why}"));
    }

    /// Runs a command that begins with a backslash.
    fn meta(
        &mut self,
        line: &str,
        splitter: &mut Splitter,
        input: &mut Input,
    ) -> Result<Flow, Failure> {
        if let Input::Terminal(editor) = input {
            editor.remember(line);
        }
        let command = match meta::parse(line) {
            Ok(command) => command,
            Err(why) => {
                self.meta_failed(&why);
                return Ok(Flow::Continue);
            }
        };
        let style = &mut self.runner.style;
        match command {
            MetaCommand::Quit => return Ok(Flow::Quit),
            MetaCommand::Help => print(meta::HELP)?,
            MetaCommand::Syntax(words) => match meta::syntax(&words) {
                Ok(text) => print(&text)?,
                Err(why) => self.meta_failed(&why),
            },
            MetaCommand::Reset => splitter.reset(input.line()),
            MetaCommand::Print => print(&format!("{}\n", splitter.pending().trim_end()))?,
            MetaCommand::Timing(on) => {
                self.runner.is_timing = on.unwrap_or(!self.runner.is_timing);
            }
            MetaCommand::Expanded(on) => style.is_expanded = on.unwrap_or(!style.is_expanded),
            MetaCommand::Null(text) => style.null = text,
            MetaCommand::Format(name) => match name.as_str() {
                "aligned" => style.format = ResultFormat::Aligned,
                "csv" => style.format = ResultFormat::Csv,
                "json" => style.format = ResultFormat::Json,
                other => {
                    let why = format!("there is no format {other}; take aligned, csv or json");
                    self.meta_failed(&why);
                }
            },
            MetaCommand::Echo(text) => print(&format!("{text}\n"))?,
            MetaCommand::Include(file) => return self.include(&file),
            MetaCommand::Describe(name) => {
                match describe::describe(&self.database.catalog(), &name) {
                    Some(text) => print(&text)?,
                    None => {
                        let why =
                            format!("there is no table, view, sequence or index named {name}");
                        self.meta_failed(&why);
                    }
                }
            }
            MetaCommand::List(kinds, pattern) => {
                let kinds = Kinds {
                    tables: kinds.contains('t'),
                    views: kinds.contains('v'),
                    sequences: kinds.contains('s'),
                    indexes: kinds.contains('i'),
                };
                match describe::list(&self.database.catalog(), kinds, pattern.as_deref()) {
                    Some(text) => print(&text)?,
                    None => note(format_args!("basalt: there are no relations of this kind")),
                }
            }
            MetaCommand::Copy(copy) => self.copy(&copy)?,
        }
        Ok(Flow::Continue)
    }

    /// Runs the statements of a file.
    fn include(&mut self, file: &str) -> Result<Flow, Failure> {
        if self.includes >= MAX_INCLUDES {
            self.meta_failed(&format!(
                "\\i {file}: more than {MAX_INCLUDES} files include each other"
            ));
            return Ok(Flow::Continue);
        }
        let lines = match ByteLines::open(Path::new(file)) {
            Ok((lines, _)) => lines,
            Err(Failure::Message(why, _)) => {
                self.meta_failed(&why);
                return Ok(Flow::Continue);
            }
            Err(e) => return Err(e),
        };
        self.includes += 1;
        let flow = self.run_input(&mut Input::Lines(lines));
        self.includes -= 1;
        flow
    }

    /// Runs `\copy`.
    fn copy(&mut self, copy: &FileCopy) -> Result<(), Failure> {
        let statement = Statement {
            text: copy.statement.clone(),
            line: 0,
        };
        let path = Path::new(&copy.file);
        let is_done = if copy.is_from {
            let file = match crate::directory::open_named(path) {
                Ok(file) => file,
                Err(e) => {
                    self.meta_failed(&format!("cannot open {}: {e}", copy.file));
                    return Ok(());
                }
            };
            let len = file
                .metadata()
                .ok()
                .filter(|m| m.is_file())
                .map(|m| m.len());
            let mut reader = BufReader::with_capacity(256 << 10, file);
            let source = CopySource::Reader(&mut reader, len);
            self.runner.run(&statement, None, Target::Stdout, source)?
        } else {
            let flags = rustix::fs::OFlags::CREATE
                | rustix::fs::OFlags::TRUNC
                | rustix::fs::OFlags::WRONLY
                | rustix::fs::OFlags::CLOEXEC;
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            let file = match rustix::fs::open(path, flags, mode) {
                Ok(file) => std::fs::File::from(file),
                Err(e) => {
                    self.meta_failed(&format!("cannot open {}: {e}", copy.file));
                    return Ok(());
                }
            };
            let mut writer = BufWriter::with_capacity(256 << 10, file);
            let target = Target::File(&mut writer);
            let source = CopySource::Reader(&mut std::io::empty(), None);
            let is_done = self.runner.run(&statement, None, target, source)?;
            if let Err(e) = writer.flush() {
                self.meta_failed(&format!("cannot write {}: {e}", copy.file));
            }
            is_done
        };
        self.has_failed |= !is_done;
        Ok(())
    }
}
