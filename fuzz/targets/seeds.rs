//! Writes the seeds of every target to `corpus/<target>/`, where the fuzzer looks for them: made from the golden files by
//! the code under test, so that they follow the formats.
#![allow(dead_code)]

#[path = "../../crates/cli/src/escape.rs"]
mod escape;
#[path = "../../crates/cli/src/fuzzing.rs"]
mod fuzzing;
#[path = "../../crates/cli/src/text_entry.rs"]
mod text_entry;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let engine = basalt_lsm::fuzzing::targets();
    let logs = basalt_log::fuzzing::TARGETS.iter();
    let others = logs
        .chain(basalt_tree::fuzzing::TARGETS)
        .chain(basalt_server::fuzzing::TARGETS)
        .chain(fuzzing::TARGETS);
    let images = basalt_lava_targets::fuzzing::targets();
    for target in engine.chain(images).chain(others) {
        let dir = corpus.join(target.name);
        std::fs::create_dir_all(&dir)?;
        let seeds = (target.seeds)();
        for (i, seed) in seeds.iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{i:03}")), seed)?;
        }
        let words: String = target
            .words
            .iter()
            .map(|w| {
                let hex: String = w.iter().map(|b| format!("\\x{b:02x}")).collect();
                format!("\"{hex}\"\n")
            })
            .collect();
        // libFuzzer refuses a dictionary without words.
        let words = if words.is_empty() { "\"\\x00\"\n".into() } else { words };
        std::fs::write(corpus.join(format!("{}.dict", target.name)), words)?;
        println!("{}: {} seeds", target.name, seeds.len());
    }
    Ok(())
}
