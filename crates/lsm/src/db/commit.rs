//! The commit queue: writers queue batches, one writer leads, and the group shares one log write
//! and one sync.
//!
//! The leader is a writer that comes while no thread leads. For batches without a waiting writer,
//! the leader is a job on the commit lane. A leader commits one group and hands the lead to the
//! first waiter in the queue that is awake. If all waiters sleep and little is queued, the leader
//! goes on for a few groups, and the waiters wake up to their answers. Otherwise the store would
//! stand still for as long as a thread takes to wake up, tens of times as long as the group. So no
//! caller works for others longer than [`MAX_GROUPS_IN_A_ROW`] groups, except that a writer leads
//! the groups before its own batch if no other thread does. Conditional batches are groups of their
//! own.
//!
//! A leader waits a moment for the writers of the last group to come back: see
//! [`super::write_path::group_wait`].
//!
//! The queue's bytes are reserved in the memory ledger. When submitted batches fill the queue,
//! `submit` waits until groups were taken from it, and leads groups itself while no other thread
//! does. Decision 0028.

use super::back_pressure::GroupSize;
use super::engine::Engine;
use super::log::GroupRoom;
use super::throttle::WaitMode;
use super::write_path::Writer;
use super::write_path::apply::insert_group;
use super::write_path::checks::Check;
use super::write_path::queue::{CommitGroup, GROUP_BYTES, GroupWaitPlan, PendingBatch, Queue};
use super::write_path::ticket_state::{Callback, Phase, TicketState, Waiter};
use basalt_env::JobPriority;
use basalt_env::sync::MutexGuard;
use basalt_fs::{Bytes, Error, Result};
use basalt_kv::batch::WriteBatch;
use basalt_kv::key::SeqNo;
use basalt_records::{Outgoing, RECORD_HEADER, RecordKind};
use smallvec::SmallVec;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Most groups that a leader commits in a row. It goes on only while at most `MAX_QUEUED_BYTES` are
/// queued and the waiters sleep.
const MAX_GROUPS_IN_A_ROW: u32 = 4;
const MAX_QUEUED_BYTES: usize = 64 << 10;
/// Number of batches at the front of the queue among which the leader searches for a writer that is
/// awake.
const MAX_WAITERS_EXAMINED: usize = 16;

/// The outcome of a group.
enum GroupOutcome {
    /// The group is committed, from this sequence number on.
    From(SeqNo),
    /// Nothing was changed: the group is held back for this time.
    Later(Duration),
}

basalt_env::sync::thread_local! {
    /// Number of calls of [`run_all`] on this thread's stack.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// A mark that this thread runs callbacks of a group, while it lives. The callbacks may be of any
/// store, because all stores share the commit lane.
struct InsideCallbacks;

impl InsideCallbacks {
    fn enter() -> InsideCallbacks {
        CALLBACKS.with(|depth| depth.set(depth.get() + 1));
        InsideCallbacks
    }

    fn is_here() -> bool {
        CALLBACKS.with(|depth| depth.get() > 0)
    }
}

impl Drop for InsideCallbacks {
    fn drop(&mut self) {
        CALLBACKS.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Runs all callbacks of a group, also those behind one that panics. Returns the first panic.
fn run_all(callbacks: SmallVec<[(Callback, Result<SeqNo>); 1]>) -> Option<Box<dyn Any + Send>> {
    let mut panic = None;
    let _inside = InsideCallbacks::enter();
    for (then, one) in callbacks {
        if let Err(e) = catch_unwind(AssertUnwindSafe(|| then(one))) {
            panic.get_or_insert(e);
        }
    }
    panic
}

/// The thread on which the callbacks of a group run.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Callbacks {
    /// The callbacks run on the leader's thread.
    Here,
    /// The callbacks run in a job of the commit lane.
    OnLane,
}

pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let message = basalt_env::thread::panic_message(panic);
    message.unwrap_or_else(|| "a panic without a message".to_string())
}

impl Engine {
    /// Commits a batch if its checks hold. An empty batch only checks, and syncs with `sync`.
    /// Leads the batch's group if no other thread leads.
    pub(super) fn write(
        self: &Arc<Self>,
        batch: WriteBatch,
        sync: bool,
        checks: Box<[Check]>,
    ) -> Result<SeqNo> {
        let mut own = PendingBatch::new(batch, sync, checks);
        let mut q = self.writes.queue().lock();
        if q.is_empty() && q.begin_lead() {
            let own_batch = std::slice::from_ref(&own);
            let plan = self.plan_group_wait(&mut q, own_batch, WaitMode::Wait);
            drop(q);
            let (wait_mode, run) = (WaitMode::Wait, Callbacks::Here);
            let result = self.lead_groups(Some(own), Some(plan), wait_mode, run);
            return result
                .expect("a leader's own batch is committed with the group, or fails with it");
        }
        let ticket = TicketState::new(Phase::Queued, Waiter::Awake);
        own.ticket = Some(ticket.clone());
        self.writes.queue().push(q, own);
        self.wait_for_ticket(&ticket)
    }

    /// Queues a batch. An empty batch only syncs. With `WaitMode::Wait`, the function waits while
    /// the queue is full, except inside a callback.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        batch: WriteBatch,
        sync: bool,
        checks: Box<[Check]>,
        wait_mode: WaitMode,
    ) -> Arc<TicketState> {
        let ticket = TicketState::new(Phase::Queued, Waiter::None);
        let mut pending = PendingBatch::new(batch, sync, checks);
        pending.ticket = Some(ticket.clone());
        pending.submitted = true;
        let q = self.writes.queue().lock();
        // A callback that waited would keep the commit lane from all stores.
        match wait_mode == WaitMode::Wait && !InsideCallbacks::is_here() {
            true => self.queue_when_there_is_room(q, pending),
            false => self.writes.queue().push(q, pending),
        }
        ticket
    }

    /// Queues a batch once it fits the queue, behind all batches that are held already. While no
    /// other thread leads, this thread leads groups itself. On the commit lane, and where jobs are
    /// stepped, no other thread would lead. The callbacks of these groups run on the commit lane,
    /// because this thread may hold a lock that they take.
    fn queue_when_there_is_room<'q>(
        self: &'q Arc<Self>,
        mut q: MutexGuard<'q, Queue>,
        pending: PendingBatch,
    ) {
        let ledger = self.ctx.env.ledger();
        // A queue gets no notice of memory that other stores release, so the function looks here.
        if q.has_room(ledger) {
            return self.writes.queue().push(q, pending);
        }
        self.ctx.counters.submits_held.add(1);
        let own = q.hold(pending);
        while !own.is_admitted() {
            if q.begin_lead() {
                drop(q);
                let lead = || self.lead_groups(None, None, WaitMode::Wait, Callbacks::OnLane);
                let led = catch_unwind(AssertUnwindSafe(lead));
                q = self.writes.queue().lock();
                if let Err(panic) = led {
                    // The caller gets no ticket, so its batch must not stay in the queue before
                    // other batches.
                    q.withdraw(&own, ledger);
                    drop(q);
                    resume_unwind(panic);
                }
                q.admit_held(ledger);
                continue;
            }
            self.writes.queue().wait_while_held(&mut q, &own);
        }
        // While this thread led, the first held thread was this one, which did not wait. If no
        // thread leads now, the next one has to.
        q.wake_next_leader();
    }

    /// Returns the ticket of a batch that was refused.
    pub(super) fn failed_ticket(e: Error) -> Arc<TicketState> {
        TicketState::new(Phase::Done(Err(e)), Waiter::None)
    }

    /// Makes sure that the queued batches are committed even if no thread waits for them.
    pub(super) fn ensure_leader(self: &Arc<Self>) {
        let mut q = self.writes.queue().lock();
        if q.schedule_lead() {
            drop(q);
            self.spawn_leader(None);
        }
    }

    /// Lets the commit lane lead, at once or after a delay. The caller has marked the lead as
    /// scheduled.
    fn spawn_leader(self: &Arc<Self>, delay: Option<Duration>) {
        let (jobs, lane) = (&self.ctx.jobs, JobPriority::Commit);
        // A delayed job may never run: closing drops it, and it does not keep the engine. A job
        // without a delay answers every batch. If closing begins after this check, it takes the
        // lead itself, because the lead is scheduled and not active. Today closing also waits for
        // every leader that asks for a delay.
        let delay = delay.filter(|_| !self.ctx.is_closing());
        match delay {
            None => {
                let engine = self.clone();
                jobs.spawn(lane, move || engine.lead_on_lane());
            }
            Some(delay) => {
                let engine = Arc::downgrade(self);
                jobs.spawn_after(lane, delay, move || {
                    if let Some(engine) = engine.upgrade() {
                        engine.lead_on_lane();
                    }
                });
            }
        }
    }

    /// Leads one group on the lane that all stores share.
    fn lead_on_lane(self: &Arc<Self>) {
        if self.writes.queue().try_lead() {
            // Under a stepped scheduler no other store is kept waiting, and time moves only by
            // waiting.
            let stepped = self.ctx.env.jobs().is_stepped();
            let wait_mode = if stepped {
                WaitMode::Wait
            } else {
                WaitMode::Return
            };
            self.lead_group(None, wait_mode);
        }
    }

    /// Commits one group, and the groups of writers that fell asleep behind it. The caller has the
    /// lead. The lead is handed on before any callback runs.
    ///
    /// Returns the result of the caller's own batch, if it brings one.
    pub(super) fn lead_group(
        self: &Arc<Self>,
        own: Option<PendingBatch>,
        wait_mode: WaitMode,
    ) -> Option<Result<SeqNo>> {
        self.lead_groups(own, None, wait_mode, Callbacks::Here)
    }

    /// Commits groups as [`Engine::lead_group`] does. `plan` is how the leader waits for other
    /// writers, if the caller has decided that.
    fn lead_groups(
        self: &Arc<Self>,
        own: Option<PendingBatch>,
        mut plan: Option<Option<GroupWaitPlan>>,
        wait_mode: WaitMode,
        run: Callbacks,
    ) -> Option<Result<SeqNo>> {
        let mut of_own = None;
        let mut own = own;
        let may_stay = wait_mode == WaitMode::Wait;
        for turn in 1.. {
            // The caller's own batch is done, so the caller waits for nothing on behalf of others.
            let wait_mode = if turn == 1 {
                wait_mode
            } else {
                WaitMode::Return
            };
            let mut group: CommitGroup = own.take().into_iter().collect();
            // The lead is handed on and every ticket is answered in all cases, because other
            // threads wait for both without a limit.
            let committed = catch_unwind(AssertUnwindSafe(|| {
                if turn == 1 {
                    let plan = plan.take().unwrap_or_else(|| {
                        let mut q = self.writes.queue().lock();
                        self.plan_group_wait(&mut q, &group, wait_mode)
                    });
                    if let Some(plan) = plan {
                        self.writes.queue().wait_for_group(plan);
                    }
                }
                let mut writer = self.writes.lock();
                self.writes
                    .queue()
                    .take_group(&mut group, self.ctx.env.ledger());
                self.commit_group(&mut writer, &mut group, wait_mode)
            }));
            let (result, mut panic) = match committed {
                Ok(Ok(GroupOutcome::Later(delay))) => {
                    self.writes.queue().put_back(group);
                    self.hand_over(Some(delay), false);
                    return of_own;
                }
                Ok(Ok(GroupOutcome::From(first))) => (Ok(first), None),
                Ok(Err(e)) => (Err(e), None),
                Err(panic) => {
                    self.health.set_broken(panic_text(&*panic));
                    let e = self.health.check_jobs().expect_err("just set");
                    (Err(e), Some(panic))
                }
            };
            let once_more = turn < MAX_GROUPS_IN_A_ROW && may_stay && panic.is_none();
            let mut handed_over = self.hand_over(None, once_more);
            let mut seq = result.as_ref().map_or(0, |first| *first);
            let mut callbacks: SmallVec<[_; 1]> = SmallVec::new();
            for p in group {
                seq += u64::from(p.count);
                let one = result.as_ref().map(|_| seq.saturating_sub(1));
                let one = one.map_err(Error::clone);
                let Some(ticket) = p.ticket else {
                    of_own = Some(one);
                    continue;
                };
                callbacks.extend(ticket.complete(one));
            }
            if !callbacks.is_empty() {
                // Callbacks may take long. A callback may also wait for a thread that waits for the
                // lead or for an answer.
                handed_over = handed_over || self.hand_over(None, false);
            }
            if run == Callbacks::OnLane && !callbacks.is_empty() {
                let callbacks = std::mem::take(&mut callbacks);
                let call = move || {
                    if let Some(panic) = run_all(callbacks) {
                        resume_unwind(panic);
                    }
                };
                self.ctx.jobs.spawn(JobPriority::Commit, call);
            }
            panic = panic.or(run_all(callbacks));
            if let Some(panic) = panic {
                if turn == 1 {
                    resume_unwind(panic);
                }
                // A panic in a later turn belongs to batches of other callers. The caller's batch
                // has its answer.
                return of_own;
            }
            if handed_over {
                break;
            }
        }
        of_own
    }

    /// Returns how many writers of the last group a leader waits for, or `None` if it does not
    /// wait. `own` are the batches that the leader brings.
    fn plan_group_wait(
        &self,
        q: &mut Queue,
        own: &[PendingBatch],
        wait_mode: WaitMode,
    ) -> Option<GroupWaitPlan> {
        if self.ctx.env.jobs().is_stepped() || wait_mode == WaitMode::Return {
            // No other thread is on the way, or the lane of all stores would wait.
            return None;
        }
        let bytes: usize = own.iter().map(|p| p.len).sum();
        if q.bytes() + bytes >= GROUP_BYTES {
            return None;
        }
        let sync = own.iter().any(|p| p.sync) || q.syncs();
        if sync {
            self.writes.queue().begin_synced_group();
        }
        if own.first().or(q.batches().next())?.is_conditional() {
            // The group is full: no other batch joins it.
            return None;
        }
        q.plan_wait(own.len(), sync)
    }

    /// Waits until a batch is committed, or has failed. Leads groups meanwhile if no other thread
    /// does.
    pub(super) fn wait_for_ticket(self: &Arc<Self>, ticket: &TicketState) -> Result<SeqNo> {
        ticket.wait(self.writes.queue(), &|| {
            self.lead_group(None, WaitMode::Wait);
        })
    }

    /// Commits and answers the queued batches that no other thread will lead.
    pub(super) fn lead_all(self: &Arc<Self>) {
        while self.writes.queue().try_lead() {
            self.lead_group(None, WaitMode::Wait);
        }
    }

    /// Hands the lead to a writer that waits, or else to the lane, at once or after a delay.
    /// Returns false if the caller keeps the lead: it may go on (`once_more`) and all waiters
    /// sleep. Little work is done before a waiter would be awake.
    pub(super) fn hand_over(self: &Arc<Self>, delay: Option<Duration>, once_more: bool) -> bool {
        let mut q = self.writes.queue().lock();
        self.writes.queue().end_group(&q);
        let once_more = once_more && !q.syncs() && q.bytes() <= MAX_QUEUED_BYTES;
        let mut awake_waiter = None;
        // Only the first few batches are searched, because the queue stands still meanwhile.
        for p in q.batches().take(MAX_WAITERS_EXAMINED) {
            let ticket = p.ticket.as_ref().expect("what is queued has one");
            let mut slot = ticket.slot.lock();
            let free = matches!(slot.phase, Phase::Queued);
            match slot.waiter {
                Waiter::Awake if free => {
                    slot.phase = Phase::Lead;
                    ticket.wake();
                    return true;
                }
                Waiter::Asleep if free => awake_waiter = awake_waiter.or(Some(ticket)),
                _ => {}
            }
        }
        if let Some(ticket) = awake_waiter {
            if once_more {
                return false;
            }
            ticket.slot.lock().phase = Phase::Lead;
            ticket.wake();
            return true;
        }
        // The lane's own thread may be inside a held `submit`.
        let queued = q.give_lead_back(self.ctx.env.ledger());
        drop(q);
        if queued {
            self.spawn_leader(delay);
        }
        true
    }

    /// Commits a group. The steps of the write path are admission, sequence numbers, log, sync,
    /// memtables and publication.
    fn commit_group(
        self: &Arc<Self>,
        writer: &mut Writer,
        group: &mut [PendingBatch],
        wait_mode: WaitMode,
    ) -> Result<GroupOutcome> {
        if let [one] = group {
            self.check_preconditions(&one.checks)?;
        }
        let bytes: usize = group.iter().map(|p| p.buf.len()).sum();
        let saved_bytes: usize = group.iter().map(|p| p.saved_bytes).sum();
        let raw: usize = group.iter().flat_map(|p| &p.raw).map(Bytes::len).sum();
        let sync = group.iter().any(|p| p.sync);
        let count: u64 = group.iter().map(|p| u64::from(p.count)).sum();
        if count == 0 {
            self.health.check_jobs()?;
            if sync {
                self.sync_log(writer)?;
            }
            // Numbers of a failed append are used up, and are not visible.
            return Ok(GroupOutcome::From(self.tree.visible() + 1));
        }
        let size = GroupSize {
            bytes: bytes as u64,
            memory: (bytes + raw) as u64,
            entries: count,
            has_compressed: raw > 0,
        };
        let active = match self.make_room(writer, &size, wait_mode)? {
            GroupRoom::Ready(active) => active,
            GroupRoom::Later(delay) => return Ok(GroupOutcome::Later(delay)),
        };
        let first = writer.take_seqs(count)?;

        let mut seq = first;
        let mut records: SmallVec<[Outgoing<'_>; 1]> = SmallVec::with_capacity(group.len());
        for p in group.iter_mut().filter(|p| p.count > 0) {
            records.push(Outgoing {
                buf: &mut p.buf,
                kind: RecordKind::Batch,
                first_seq: seq,
                count: p.count,
                payload_crc: p.payload_crc,
                separated: &p.separated,
                offset: 0,
            });
            seq += u64::from(p.count);
        }
        let began = sync.then(|| self.ctx.env.clock().now());
        self.append_to_log(writer, &mut records, sync)?;
        active.keep_places(&records);
        drop(records);
        if let Some(began) = began {
            let took = self.ctx.env.clock().now() - began;
            self.writes.queue().lock().note_sync(took);
        }

        active.note_seq(first + count - 1);
        insert_group(&active, group, first, bytes);
        active.book_memory();
        self.tree.publish(first + count - 1);
        self.ctx.counters.commit_groups.add(1);
        self.ctx.counters.commits.add(group.len() as u64);
        let batches = group.iter().filter(|p| p.count > 0).count();
        self.ctx
            .counters
            .user_bytes
            .add((bytes + saved_bytes - batches * RECORD_HEADER) as u64);
        if raw > 0 {
            self.ctx.counters.compression.note(raw, raw - saved_bytes);
        }
        self.preallocate_log(writer, &active);
        self.background.watch_idle();
        Ok(GroupOutcome::From(first))
    }
}
