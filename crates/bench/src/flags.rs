//! Values of flags: sizes in bytes, and switches.

use clap::ValueEnum;

/// A switch: on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// The switch is on.
    On,
    /// The switch is off.
    Off,
}

/// Parses a number of bytes: `4096`, `4K`, `64M`, `1G` (powers of 1024; `KiB` and `KB` mean the
/// same).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a number of bytes; write 4096, 4K, 64M, 1G or 1T");
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let shift = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).ok_or_else(bad)
}

#[cfg(test)]
mod tests;
