//! Background I/O leaves the device to waiting foreground threads, and takes it when it has fallen
//! behind. Time moves by sleeps only.

use basalt_env::{Clock, ForegroundIo, ForegroundLoad, ManualClock, SMALL_PIECE};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const BIG: usize = 1 << 20;
const MS: Duration = Duration::from_millis(1);

fn foreground_io() -> (Arc<ManualClock>, Clock, ForegroundIo) {
    let manual_clock = ManualClock::new(0);
    let clock = Clock::manual(manual_clock.clone());
    (manual_clock, clock.clone(), ForegroundIo::new(clock))
}

/// Runs a piece of background I/O that takes `takes`, and returns how long it waited for its turn.
fn piece(
    manual_clock: &ManualClock,
    clock: &Clock,
    foreground_io: &ForegroundIo,
    takes: Duration,
) -> Duration {
    let came = clock.now();
    let turn = foreground_io.turn();
    let waited = clock.now() - came;
    manual_clock.advance(takes);
    drop(turn);
    waited
}

#[test]
fn background_io_is_unthrottled_without_foreground_waiters() {
    let (manual_clock, clock, foreground_io) = foreground_io();
    for _ in 0..10 {
        assert_eq!(foreground_io.piece(BIG), BIG);
        assert_eq!(
            piece(&manual_clock, &clock, &foreground_io, MS),
            Duration::ZERO
        );
    }
    assert_eq!(foreground_io.paused(), Duration::ZERO);
}

#[test]
fn background_io_takes_a_quarter_of_the_time_beside_waiters() {
    let (manual_clock, clock, foreground_io) = foreground_io();
    let mut busy = Duration::ZERO;
    for i in 0..100 {
        foreground_io.foreground_read();
        assert_eq!(foreground_io.piece(BIG), SMALL_PIECE);
        assert_eq!(foreground_io.piece(1000), 1000, "never more than there is");
        // The foreground goes on while the background pauses.
        let came = clock.now();
        let takes = MS / 4 * (1 + i % 3);
        piece(&manual_clock, &clock, &foreground_io, takes);
        busy += takes;
        assert!(clock.now() - came <= takes + 3 * MS);
    }
    let share = busy.as_secs_f64() / clock.now().as_secs_f64();
    assert!((0.24..0.27).contains(&share), "{share}");
    assert_eq!(foreground_io.paused(), clock.now() - busy);
    // The last foreground read was a moment ago.
    manual_clock.advance(3 * MS);
    assert_eq!(foreground_io.piece(BIG), BIG);
    assert_eq!(
        piece(&manual_clock, &clock, &foreground_io, MS),
        Duration::ZERO
    );
}

#[test]
fn background_io_only_pauses_beside_large_syncs() {
    let (manual_clock, clock, foreground_io) = foreground_io();
    let mut waited = Duration::ZERO;
    for _ in 0..4 {
        foreground_io.foreground_sync(16_000);
        assert_eq!(foreground_io.foreground_load(), Some(ForegroundLoad::Large));
        assert_eq!(foreground_io.piece(BIG), BIG);
        waited += piece(&manual_clock, &clock, &foreground_io, MS);
    }
    assert!(waited >= 3 * MS, "{waited:?}");
    for small in [ForegroundIo::foreground_read, |c: &ForegroundIo| {
        c.foreground_sync(1000)
    }] {
        small(&foreground_io);
        assert_eq!(foreground_io.foreground_load(), Some(ForegroundLoad::Small));
        assert_eq!(foreground_io.piece(BIG), SMALL_PIECE);
        manual_clock.advance(10 * MS);
        foreground_io.foreground_sync(16_000);
        assert_eq!(
            foreground_io.piece(BIG),
            BIG,
            "no reader waits for a short I/O any more"
        );
    }
    let _urgent = foreground_io.urgent();
    assert_eq!(foreground_io.foreground_load(), None);
}

#[test]
fn the_pause_ends_when_the_foreground_io_ends() {
    let (manual_clock, clock, foreground_io) = foreground_io();
    foreground_io.foreground_read();
    piece(&manual_clock, &clock, &foreground_io, 10 * MS);
    foreground_io.foreground_read();
    let waited = piece(&manual_clock, &clock, &foreground_io, MS);
    assert!(waited <= 4 * MS, "of 30 ms: {waited:?}");
}

#[test]
fn an_urgent_guard_lifts_the_pauses_of_all_background_io() {
    let (manual_clock, clock, foreground_io) = foreground_io();
    foreground_io.foreground_read();
    piece(&manual_clock, &clock, &foreground_io, 10 * MS);
    let (one, other) = (foreground_io.urgent(), foreground_io.clone().urgent());
    for urgent in [one, other] {
        foreground_io.foreground_read();
        assert_eq!(foreground_io.piece(BIG), BIG);
        assert_eq!(
            piece(&manual_clock, &clock, &foreground_io, MS),
            Duration::ZERO
        );
        drop(urgent);
    }
    foreground_io.foreground_read();
    assert_eq!(foreground_io.piece(BIG), SMALL_PIECE);
    assert!(piece(&manual_clock, &clock, &foreground_io, MS) > Duration::ZERO);
}

/// Ends the thread beside a test, also if the test fails.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A foreground thread waits all the time, so each pause ends only by its own limit, whatever the
/// piece took.
#[test]
fn every_pause_of_background_io_is_bounded() {
    let (manual_clock, clock, foreground_io) = foreground_io();
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut longest = Duration::ZERO;
    basalt_env::thread::scope(|scope| {
        let (started, done, shared) = (&started, &done, &foreground_io);
        let _until = Until(done);
        scope.spawn(move || {
            while !done.load(SeqCst) {
                shared.foreground_read();
                started.store(true, SeqCst);
            }
        });
        while !started.load(SeqCst) {
            std::thread::yield_now();
        }
        for us in (1..2_000)
            .chain((2_000..80_000).step_by(997))
            .chain([10_000_000])
        {
            let takes = Duration::from_micros(us);
            piece(&manual_clock, &clock, &foreground_io, takes);
            let waited = piece(&manual_clock, &clock, &foreground_io, Duration::ZERO);
            assert!(
                waited <= takes * 3 + Duration::from_micros(50),
                "{us}: {waited:?}"
            );
            longest = longest.max(waited);
        }
    });
    basalt_sim::campaign!("longest pause: {longest:?}");
    assert!(longest <= 52 * MS, "{longest:?}");
}

#[test]
fn two_threads_get_the_background_turn_one_after_the_other() {
    let (manual_clock, clock, foreground_io) = foreground_io();
    foreground_io.foreground_read();
    piece(&manual_clock, &clock, &foreground_io, MS / 2);
    foreground_io.foreground_read();
    let first = foreground_io.turn();
    let came = clock.now();
    foreground_io.foreground_read();
    // The first piece has not ended. The second one waits for as long as a piece takes.
    let second = foreground_io.turn();
    assert!(clock.now() - came >= MS / 2);
    drop((first, second));
}
