//! One target of the page tree: the one that the binary is named after.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| basalt_tree::fuzzing::run(env!("CARGO_BIN_NAME"), input));
