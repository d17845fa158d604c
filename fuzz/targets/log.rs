//! One target of the log engine: the one that the binary is named after.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| basalt_log::fuzzing::run(env!("CARGO_BIN_NAME"), input));
