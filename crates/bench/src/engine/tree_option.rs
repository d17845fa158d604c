//! Options of the engine `tree` by name, for comparisons of settings.

use crate::flags::parse_size;
use basalt::TreeOptions;

/// An option of pages, and its value as it was given.
#[derive(Clone, Debug)]
pub struct TreeOption(String);

impl TreeOption {
    /// Reads `NAME=VALUE`. The error lists the names, or says which values the option takes.
    pub fn parse(text: &str) -> Result<TreeOption, String> {
        let option = TreeOption(text.to_owned());
        let pages = option.apply(TreeOptions::default())?;
        pages.validate().map_err(|e| e.to_string())?;
        Ok(option)
    }

    /// Returns the option as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Sets the option.
    pub(super) fn apply(&self, pages: TreeOptions) -> Result<TreeOptions, String> {
        let (name, value) = self.0.split_once('=').ok_or_else(|| {
            String::from("write NAME=VALUE, as in overwrite_ratio=0.25 or extent_bytes=16M")
        })?;
        let ratio = || {
            let parsed = value.parse::<f64>();
            parsed.map_err(|_| format!("{name} is {value:?}; it takes a number, as in 0.5"))
        };
        let bytes = || parse_size(value).map_err(|e| format!("{name}: {e}"));
        let size = || bytes().map(|bytes| bytes as usize);
        Ok(match name {
            "block_bytes" => pages.block_bytes(size()?),
            "extent_bytes" => pages.extent_bytes(bytes()?),
            "max_deltas" => pages.max_deltas(size()?),
            "leaf_delta_bytes" => pages.leaf_delta_bytes(Some(size()?)),
            "mapping_bytes" => pages.mapping_bytes(bytes()?),
            "usage_bytes" => pages.usage_bytes(bytes()?),
            "overwrite_ratio" => pages.overwrite_ratio(ratio()?),
            "cold_merge_ratio" => pages.cold_merge_ratio(ratio()?),
            "base_garbage" => pages.base_garbage(ratio()?),
            "delta_garbage" => pages.delta_garbage(ratio()?),
            "max_space_amp" => pages.max_space_amp(ratio()?),
            _ => {
                return Err(format!(
                    "pages have no option {name:?}; there are block_bytes, extent_bytes, \
                     max_deltas, leaf_delta_bytes, mapping_bytes, usage_bytes, overwrite_ratio, \
                     cold_merge_ratio, base_garbage, delta_garbage and max_space_amp \
                     (--block-size sets page_bytes, and --checkpoint-bytes is a flag of its own)"
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests;
