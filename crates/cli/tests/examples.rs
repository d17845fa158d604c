//! The examples of `--help`: each command has one, and those that need nothing from outside are
//! run.
mod harness;
use harness::{Scratch, ended};
use std::path::Path;
use std::process::{Command, Stdio};

const BASALT: &str = env!("CARGO_BIN_EXE_basalt");

/// Parts of examples that need another program, a device, a place outside, much space or much time,
/// or that do not end.
const NEEDS_MORE: [&str; 15] = [
    "redis-",
    "basalt serve",
    "bench ",
    "/dev/",
    "/srv/",
    "/backup/",
    "/mnt/",
    "zcat ",
    "lvextend ",
    "20G",
    "40G",
    "tail -f",
    "--follow",
    "pg_dump ",
    // The reader of the binlog is not there yet.
    "sql binlog",
];

/// Returns the text of `--help` of a command.
fn help(command: &[&str]) -> String {
    let out = Command::new(BASALT).args(command).arg("--help").output();
    String::from_utf8(out.expect("the tool starts").stdout).unwrap()
}

/// Returns the lines of a section of a help text, without their indentation.
fn section<'a>(help: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = help.lines().skip_while(|line| !line.starts_with(heading));
    let lines = lines.skip(1).take_while(|line| line.starts_with("  "));
    lines.map(str::trim).collect()
}

/// Returns all commands that have no commands of their own, and those that have.
fn commands() -> Vec<Vec<String>> {
    let (mut found, mut open) = (Vec::new(), vec![Vec::<String>::new()]);
    while let Some(command) = open.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = help(&words);
        for line in section(&help, "Commands:") {
            // A line that continues a description is indented further.
            let is_name = help.contains(&format!("\n  {line}")) && !line.starts_with("help");
            if let (true, Some(name)) = (is_name, line.split_whitespace().next()) {
                open.push([&command[..], &[name.to_string()]].concat());
            }
        }
        if !command.is_empty() {
            found.push(command);
        }
    }
    found
}

fn examples(help: &str) -> Vec<String> {
    // A description may follow behind spaces.
    let example = |line: &str| line.split("   ").next().unwrap().trim().to_string();
    // A line without the tool's name continues one that is wider than the text.
    let lines = section(help, "Examples:").into_iter();
    let lines = lines.filter(|line| line.contains("basalt"));
    lines.map(example).collect()
}

/// Makes what the examples name: stores of keys and of logs, an image, and files.
fn prepare() -> Scratch {
    let s = Scratch::new("examples");
    s.file("logo.png", [7; 9000]);
    s.file("site/index.html", "hello");
    s.file("photos/one.jpg", [1; 5000]);
    s.file("entries.jsonl", "{\"key\": \"k\", \"value\": \"v\"}\n");
    s.file("people.csv", "id,name\n1,Ada\n");
    s.file("people.txt", "2\tGrace\n3\tNULL\n");
    s.file(
        "shop.sql",
        "CREATE TABLE shop (id int);\nCOPY shop (id) FROM stdin;\n1\n\\.\n",
    );
    let script = r"
        set -e
        basalt sql -c 'CREATE TABLE people (id int PRIMARY KEY, name text)'
        for key in greeting a b c now user:1; do basalt put $key hello; done
        basalt put -e 'bin\x00ary' x
        basalt put logo --value-file logo.png
        basalt load --files site --prefix site/
        (seq 16; seq 18 1000) | sed 's/.*/&\t&/' | basalt log append logs orders --with-lsns
        basalt fs format store.lava --size 1G --sparse
        basalt put --image store.lava a hello
        basalt put --dir pages --engine tree user:1 hello
        basalt log append store.lava:logs orders hello
        basalt fs mkdir store.lava monday restored old basalt-data/lost
        basalt fs cp entries.jsonl store.lava:notes.txt
        basalt fs cp entries.jsonl store.lava:old/CURRENT
    ";
    let ran = shell(&s.dir, script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    s
}

fn shell(dir: &Path, script: &str) -> harness::Ran {
    let tool = Path::new(BASALT).parent().unwrap().display();
    let path = format!("{tool}:{}", std::env::var("PATH").unwrap_or_default());
    let mut c = Command::new("sh");
    c.current_dir(dir).env("PATH", path).args(["-c", script]);
    c.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ended(c.spawn().expect("a shell starts"))
}

/// Runs an example in a fresh copy of what it needs.
fn run(prepared: &Scratch, blob: &str, example: &str) {
    let s = Scratch::new("example");
    let from = prepared.dir.join(".");
    let copied = Command::new("cp").arg("-a").args([&from, &s.dir]).status();
    assert!(copied.expect("cp starts").success());
    if example.contains("cp ./copy") {
        s.file("copy/x", "x");
    }
    let script = example.split(" | jq").next().unwrap();
    let script = script.replace("000012.blob", blob);
    let mut ran = shell(&s.dir, &script);
    if ran.err.contains("run it with --yes") {
        ran = shell(&s.dir, &format!("{script} --yes"));
    }
    assert_eq!(ran.code, Some(0), "{example}: {ran:?}");
}

#[test]
fn each_command_has_examples_that_run() {
    let prepared = prepare();
    let blob = harness::tree(&prepared.path("basalt-data")).into_iter();
    let blob = blob
        .map(|(name, _)| name.display().to_string())
        .find(|name| name.ends_with(".index") || name.ends_with(".blob"))
        .expect("a large value is in a blob file");
    let (mut ran, mut commands_with) = (0, 0);
    for command in commands() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let (help, name) = (help(&words), command.join(" "));
        let examples = examples(&help);
        let own = |example: &&String| {
            example.contains(&format!("basalt {name}"))
                || example.contains(&format!("basalt-{name}"))
        };
        assert!(examples.iter().any(|e| own(&e)), "{name} has no example");
        commands_with += 1;
        for example in examples {
            if !NEEDS_MORE.iter().any(|part| example.contains(part)) {
                run(&prepared, &blob, &example);
                ran += 1;
            }
        }
    }
    assert!(commands_with >= 52 && ran >= 72, "{commands_with}, {ran}");
}
