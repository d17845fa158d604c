//! The examples of all help texts are command lines that the parser takes.

use super::Cli;
use clap::{CommandFactory, Parser};

/// Returns the commands of an example line, as words.
fn commands(example: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words) = (Vec::new(), Vec::<String>::new());
    let (mut word, mut quoted) = (String::new(), false);
    let example = example.split("   ").next().unwrap_or("");
    for c in example.chars().chain([' ', ';']) {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            '|' | '&' | ';' if !quoted => {
                let end = words.iter().position(|word| word == ">" || word == "<");
                words.truncate(end.unwrap_or(words.len()));
                commands.push(std::mem::take(&mut words));
            }
            c => word.push(c),
        }
    }
    commands.retain(|words| !words.is_empty());
    commands
}

fn walk(command: &clap::Command, checked: &mut u64) {
    let help = command.get_after_help().map(ToString::to_string);
    for line in help.iter().flat_map(|help| help.lines()) {
        let Some(example) = line.strip_prefix("  ").filter(|l| l.contains("basalt")) else {
            continue;
        };
        for mut words in commands(example) {
            match words[0].as_str() {
                "basalt" => {}
                "basalt-bench" => {
                    words.splice(..1, ["basalt".to_string(), "bench".to_string()]);
                }
                _ => continue,
            }
            if let Err(e) = Cli::try_parse_from(&words) {
                panic!("{example}: {e}");
            }
            *checked += 1;
        }
    }
    for command in command.get_subcommands() {
        walk(command, checked);
    }
}

#[test]
fn examples_of_help_texts_parse() {
    let mut checked = 0;
    walk(&Cli::command(), &mut checked);
    assert!(checked >= 100, "{checked} commands");
}
