//! Stopping: signals, the last replies, and closing the store.

use super::{SIGNALS, Server, enqueue, io_error};
use crate::command::NO_SLOW_READS;
use crate::resp::reply::Reply;
use basalt::Result;
use mio::Interest;
use mio::net::UnixStream;
use std::io::Read as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The state of a server that stops.
pub(super) struct Stopping {
    /// Time at which slow reads that have not ended get an error, so that the requests behind them
    /// can run.
    slow_until: Duration,
    /// Time at which the remaining clients are disconnected.
    until: Duration,
}

impl Server {
    /// Lets SIGTERM and SIGINT stop the server as
    /// [`ShutdownHandle::shutdown`](super::ShutdownHandle::shutdown) does. A second signal ends the
    /// wait for clients that do not take their replies. Commits are finished in any case.
    pub fn stop_on_signals(&mut self) -> Result<()> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let pair = || std::os::unix::net::UnixStream::pair();
        let (receiver, sender) = pair().map_err(|e| io_error("signals", e))?;
        let other = sender.try_clone().map_err(|e| io_error("signals", e))?;
        receiver
            .set_nonblocking(true)
            .map_err(|e| io_error("signals", e))?;
        for (signal, pipe) in [(SIGTERM, sender), (SIGINT, other)] {
            signal_hook::low_level::pipe::register(signal, pipe)
                .map_err(|e| io_error("signals", e))?;
        }
        let mut receiver = UnixStream::from_std(receiver);
        self.poll
            .registry()
            .register(&mut receiver, SIGNALS, Interest::READABLE)
            .map_err(|e| io_error("signals", e))?;
        self.signals = Some(receiver);
        Ok(())
    }

    pub(super) fn signalled(&mut self) {
        let mut bytes = [0; 16];
        let Some(signals) = &mut self.signals else {
            return;
        };
        let mut again = self.stopping.is_some();
        while let Ok(n @ 1..) = signals.read(&mut bytes) {
            again |= n > 1;
        }
        self.urgent |= again;
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Accepts no further client. Requests that were read are still served.
    pub(super) fn begin_stop(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            let _ = self.poll.registry().deregister(&mut listener);
            let now = self.exec.env.clock().now();
            self.stopping = Some(Stopping {
                slow_until: now + self.exec.options.drain,
                until: now + self.exec.options.drain_in_all,
            });
            for (slot, c) in self.connections.iter_mut().enumerate() {
                if let Some(c) = c {
                    enqueue(&mut self.run_list, c, slot);
                }
            }
            self.drop_blocked();
        }
    }

    /// Continues to stop at the end of a turn. Returns true if nothing is left to do.
    pub(super) fn stopped(&mut self) -> bool {
        let stopping = self.stopping.as_ref().expect("it is stopping");
        let now = self.exec.env.clock().now();
        let all = self.urgent || now >= stopping.until;
        if now >= stopping.slow_until && !self.exec.no_slow_reads {
            self.end_slow_reads();
        }
        for slot in 0..self.connections.len() {
            let Some(c) = &mut self.connections[slot] else {
                continue;
            };
            // Only the client's own progress counts, and not the commits that its replies wait for,
            // nor other clients.
            let idle = c.takes_nothing_for(now);
            if all || idle.is_some_and(|idle| idle >= self.exec.options.drain) {
                self.drop_client(slot);
            }
        }
        self.connections.iter().all(Option::is_none) && self.exec.keys.is_drained()
    }

    /// Answers running, waiting and future slow reads with an error. A slow read of a large store
    /// takes longer than a server may take to stop, and requests that were read stand behind it.
    fn end_slow_reads(&mut self) {
        self.exec.no_slow_reads = true;
        self.parked.clear();
        for (slot, c) in self.connections.iter_mut().enumerate() {
            let Some(c) = c else {
                continue;
            };
            // A reply that is made in pieces ends by itself.
            if c.slow && c.assembly.is_none() {
                if let Some(gone) = &c.gone {
                    gone.store(true, Ordering::Release);
                }
                self.exec.counters.count_errors(NO_SLOW_READS.as_bytes(), 1);
                let mut reply = Reply::default();
                reply.error(NO_SLOW_READS);
                // The thread's own answer will be dropped.
                c.slow_done(reply);
                self.to_write.push(slot);
            }
            c.unparked |= c.parked.is_some() && !c.fetching;
            enqueue(&mut self.run_list, c, slot);
        }
    }

    pub(super) fn close(self) -> Result<()> {
        let Server {
            exec,
            slow,
            fetcher,
            streams,
            sweeper,
            preparer,
            syncer,
            mut reclaimer,
            ..
        } = self;
        drop(slow);
        drop(fetcher);
        drop(streams);
        drop(sweeper);
        drop(preparer);
        drop(syncer);
        let store = exec.keys.store().clone();
        drop(exec);
        let closed = store.close();
        reclaimer.join();
        closed
    }
}
