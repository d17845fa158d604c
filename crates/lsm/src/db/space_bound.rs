//! The bound on the space of blob files, in bytes.

/// As [`room`], by what a store tells of itself.
pub(super) fn room_of(max_space_amp: f64, space_slack: u64, reachable: f64) -> f64 {
    ((max_space_amp - 1.0) * reachable).max(space_slack as f64)
}
