//! A directory to run the real program in.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// A directory that is removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes an empty directory.
    pub fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("basalt-bench-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    /// Runs the program in the directory. Returns exit code, output and errors.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        let out = Command::new(env!("CARGO_BIN_EXE_basalt-bench"))
            .current_dir(&self.0)
            .args(args)
            .output()
            .unwrap();
        (
            out.status.code().unwrap(),
            String::from_utf8(out.stdout).unwrap(),
            String::from_utf8(out.stderr).unwrap(),
        )
    }

    /// Runs the program, which must succeed, and parses its JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let (code, out, err) = self.run(&[args, &["--json"]].concat());
        assert_eq!(code, 0, "{args:?}: {err}");
        serde_json::from_str(&out).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
