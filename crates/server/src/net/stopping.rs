//! The end: signals, the last replies, and closing the store.

use super::{SIGNALS, Server, enqueue, io_error};
use basalt::Result;
use mio::Interest;
use mio::net::UnixStream;
use std::io::Read as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Server {
    /// Lets SIGTERM and SIGINT stop the server as [`ShutdownHandle::shutdown`] does. A second one ends the wait for
    /// clients that do not take their replies; commits are finished all the same.
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
        if again {
            self.stopping = Some(Duration::ZERO);
        }
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Accepts nobody any more; what has been read is still served.
    pub(super) fn begin_stop(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            let _ = self.poll.registry().deregister(&mut listener);
            self.stopping
                .get_or_insert(self.exec.env.clock().now() + self.exec.options.drain);
            for (slot, c) in self.connections.iter_mut().enumerate() {
                if let Some(c) = c {
                    enqueue(&mut self.run_list, c, slot);
                }
            }
        }
    }

    pub(super) fn stopped(&mut self) -> bool {
        let deadline = self.stopping.expect("it is stopping");
        if self.exec.env.clock().now() >= deadline {
            for slot in 0..self.connections.len() {
                self.drop_client(slot);
            }
        }
        self.connections.iter().all(Option::is_none) && self.exec.keys.is_settled()
    }

    pub(super) fn close(self) -> Result<()> {
        let Server {
            exec,
            slow,
            syncer,
            mut reclaimer,
            ..
        } = self;
        drop(slow);
        drop(syncer);
        let store = exec.keys.store().clone();
        drop(exec);
        let closed = store.close();
        reclaimer.join();
        closed
    }
}
