//! The bound on the space of blob files, in bytes.

/// Returns the space for garbage in blob files, in bytes, for `reachable` bytes of live data:
/// `max_space_amp - 1` times `reachable`, and at least `space_slack`.
pub(super) fn room_of(max_space_amp: f64, space_slack: u64, reachable: f64) -> f64 {
    ((max_space_amp - 1.0) * reachable).max(space_slack as f64)
}
