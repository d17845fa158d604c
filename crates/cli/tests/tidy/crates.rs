//! The order of the crates: a crate depends only on crates below it.

use super::{Text, none, texts};
use std::collections::BTreeMap;

/// The crates that each crate may depend on, which are crates below it in docs/architecture.md.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("fs", &[]),
    ("env", &["fs"]),
    ("lava", &["fs", "env"]),
    (SIM, &["fs", "env", "lava"]),
    ("kv", &["fs", "env"]),
    ("records", &["fs", "env", "kv"]),
    ("table", &["fs", "env", "kv"]),
    ("blob", &["fs", "env", "kv", "records", "table"]),
    ("log", &["fs", "env", "kv", "records"]),
    ("stream", &["fs", "env", "kv", "records"]),
    ("tree", &["fs", "env", "kv", "log", "stream"]),
    (
        "lsm",
        &["fs", "env", "kv", "records", "table", "blob", "tree"],
    ),
    ("transactions", &["fs", "env", "kv", "lsm"]),
    ("store", &["fs", "env", "lsm", "log"]),
    // These build the sources of ten crates again, for tests alone.
    ("env-schedules", &["fs"]),
    ("kv-schedules", &["fs", "env"]),
    ("records-schedules", &["fs", "env", "kv"]),
    ("table-schedules", &["fs", "env", "kv"]),
    ("blob-schedules", &["fs", "env", "kv", "records", "table"]),
    ("log-schedules", &["fs", "env", "kv", "records"]),
    ("stream-schedules", &["fs", "env", "kv", "records"]),
    ("tree-schedules", &["fs", "env", "kv", "log", "stream"]),
    (
        "lsm-schedules",
        &["fs", "env", "kv", "records", "table", "blob", "tree"],
    ),
    ("transactions-schedules", &["fs", "env", "kv", "lsm"]),
    (
        "basalt",
        &[
            "fs",
            "env",
            "kv",
            "lava",
            "lsm",
            "log",
            "store",
            "transactions",
        ],
    ),
    ("raft", &["log", "basalt"]),
    ("server", &["basalt"]),
    // The example of `bench` that times parts of the engine names them.
    ("bench", &["kv", "table", "lsm", "log", "basalt"]),
    ("sql", &["kv", "basalt"]),
    ("postgres", &["basalt", "sql"]),
    // The command `blob` reads blob files without their store, and `log` stores of logs.
    (
        "cli",
        &[
            "blob", "log", "basalt", "server", "sql", "postgres", "bench",
        ],
    ),
];

/// The crate of simulated disks and injected faults. No binary contains it. Other crates depend on
/// it in the sections of their manifests that are listed here, and in no other.
const SIM: &str = "sim";
const SIM_SECTIONS: &[&str] = &[
    "[dev-dependencies]",
    // Only cargo-fuzz sets this.
    "[target.'cfg(fuzzing)'.dependencies]",
];

/// Complains of a dependency on a crate that is not below. Dependencies of tests count, too.
fn dependencies(manifest: &Text) -> Vec<String> {
    let krate = manifest.krate();
    let Some((_, below)) = DEPENDENCIES.iter().find(|(name, _)| *name == krate) else {
        return vec![manifest.complaint(0, "a new crate: give it its place in DEPENDENCIES")];
    };
    let (mut out, mut section) = (Vec::new(), "");
    for (i, line) in manifest.text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        if !section.contains("dependencies") {
            continue;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or("");
        let own = match name.strip_prefix("basalt-") {
            Some(own) => own,
            None if name == "basalt" => name,
            None => continue,
        };
        if own == SIM {
            if !SIM_SECTIONS.contains(&section) {
                out.push(manifest.complaint(i, "only tests depend on sim: [dev-dependencies]"));
            }
        } else if !below.contains(&own) {
            out.push(manifest.complaint(i, &format!("{krate} does not stand above {own}")));
        }
    }
    if !manifest.text.contains("[lints]\nworkspace = true") {
        out.push(manifest.complaint(0, "the workspace's lints hold in every crate"));
    }
    out
}

#[test]
fn crates_depend_only_on_lower_crates() {
    let manifests = texts("Cargo.toml");
    let members = manifests.iter().filter(|t| !t.krate().is_empty());
    none(members.clone().flat_map(dependencies).collect());
    let found: BTreeMap<&str, ()> = members.map(|t| (t.krate(), ())).collect();
    assert!(
        DEPENDENCIES
            .iter()
            .all(|(name, _)| found.contains_key(name))
    );
    for (name, below) in DEPENDENCIES {
        for b in *below {
            let lower = DEPENDENCIES.iter().position(|(n, _)| n == b);
            assert!(lower < DEPENDENCIES.iter().position(|(n, _)| n == name));
        }
    }
}

/// The rule complains of a manifest that breaks it.
#[test]
fn the_dependency_rule_reports_violations() {
    let bites = |rule: fn(&Text) -> Vec<String>, path: &str, text: &str| {
        assert_eq!(rule(&Text::new(path, text)).len(), 1, "{path}: {text}");
    };
    let spares = |rule: fn(&Text) -> Vec<String>, path: &str, text: &str| {
        let found = rule(&Text::new(path, text));
        assert_eq!(found, Vec::<String>::new(), "{path}: {text}");
    };
    let lints = "[lints]\nworkspace = true";
    bites(
        dependencies,
        "crates/fs/Cargo.toml",
        &format!("{lints}\n[dependencies]\nbasalt-env.workspace = true"),
    );
    for (krate, section, own) in [
        ("fs", "[dependencies]", "basalt-lava"),
        ("env", "[dependencies]", "basalt-lava"),
        ("fs", "[dev-dependencies]", "basalt-env"),
        ("env", "[dependencies]", "basalt-sim"),
        ("bench", "[dependencies]", "basalt-sim"),
        ("lsm", "[build-dependencies]", "basalt-sim"),
        ("lsm", "[target.'cfg(unix)'.dependencies]", "basalt-sim"),
        ("sim", "[dependencies]", "basalt-lsm"),
    ] {
        let manifest = format!("{lints}\n{section}\n{own}.workspace = true");
        bites(
            dependencies,
            &format!("crates/{krate}/Cargo.toml"),
            &manifest,
        );
    }
    for (krate, section, own) in [
        ("fs", SIM_SECTIONS[0], "basalt-sim"),
        ("lsm", SIM_SECTIONS[1], "basalt-sim"),
        ("sim", "[dependencies]", "basalt-lava"),
    ] {
        let manifest = format!("{lints}\n{section}\n{own}.workspace = true");
        spares(
            dependencies,
            &format!("crates/{krate}/Cargo.toml"),
            &manifest,
        );
    }
    bites(
        dependencies,
        "crates/server/Cargo.toml",
        &format!("{lints}\n[dev-dependencies]\nbasalt-lsm = \"1\""),
    );
    bites(
        dependencies,
        "crates/fs/Cargo.toml",
        "[dependencies]\nbytes = \"1\"",
    );
    spares(
        dependencies,
        "crates/env/Cargo.toml",
        &format!("{lints}\n[dependencies]\nbasalt-fs = \"1\""),
    );
}
