//! The lead of a queue.

use super::*;

/// Fails every group, as an engine that was closed does.
struct Closed;

impl Commit<u32> for Closed {
    fn commit(&self, group: &mut [u32]) -> Results {
        let closed = || Err(crate::reserve::closed());
        group.iter().map(|_| closed()).collect()
    }

    fn lead_in_background(&self) {}
}

/// Regression test: a close failed a request whose thread had been given the lead and had not woken
/// yet. The lead was lost, and a call that came behind it waited for ever.
#[test]
fn a_failed_request_hands_its_lead_on() {
    let queue = CoalescingQueue::<u32>::new();
    assert!(queue.try_lead_alone());
    let ticket = TicketState::new(Cost::default(), true);
    queue.queue.lock().push(1, Cost::default(), &ticket);
    // The leader of the fourth group in a row hands the lead on.
    assert!(queue.hand_on(false, &Closed));
    queue.fail_all(&crate::reserve::closed());
    assert!(queue.wait_for(&ticket, &Closed).is_err());
    assert!(queue.try_lead_alone(), "the lead was lost");
}
