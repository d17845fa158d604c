//! One target of the tool's text formats: the one that the binary is named after. The tool is a binary, so its modules are
//! taken in as they are.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/cli/src/escape.rs"]
mod escape;
#[path = "../../crates/cli/src/fuzzing.rs"]
mod fuzzing;
#[path = "../../crates/cli/src/text_entry.rs"]
mod text_entry;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let name = env!("CARGO_BIN_NAME");
    let target = fuzzing::TARGETS.iter().find(|t| t.name == name);
    (target.expect("a target of this name").run)(input);
});
