//! Unit tests of `clock`.

use super::*;

#[test]
fn wall_time_never_goes_back_and_short_steps_add_up() {
    let manual_clock = ManualClock::new(1_000_000);
    let clock = Clock::manual(manual_clock.clone());
    for _ in 0..10 {
        clock.sleep(Duration::from_micros(300));
    }
    assert_eq!(clock.now(), Duration::from_millis(3));
    assert_eq!(clock.wall_ms(), 1_000_003);
    manual_clock.set_wall_ms(5);
    assert_eq!(clock.wall_ms(), 1_000_003);
    clock.observe_wall_ms(2_000_000);
    assert_eq!(clock.wall_ms(), 2_000_000);
}
