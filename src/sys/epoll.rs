//! epoll(7), edge-triggered for flows and level-triggered for listeners.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Events that one call takes from the kernel.
const BATCH: usize = 256;

/// The events of one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The token it was registered with.
    pub token: u64,
    flags: EventFlags,
}

impl Ready {
    /// Bytes, an EOF or an error can be read.
    pub fn readable(self) -> bool {
        self.flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// There is room to write, or writing would return an error.
    pub fn writable(self) -> bool {
        self.flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// An EOF or an error follows the readable bytes.
    pub(crate) fn ends(self) -> bool {
        self.flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// The socket has a pending error: reset, timed out, refused. HUP alone does not show that: it also means that both
    /// directions were closed in order.
    pub(crate) fn failed(self) -> bool {
        self.flags.intersects(EventFlags::ERR)
    }

    /// It can no longer move a byte in either direction.
    pub(crate) fn hung_up(self) -> bool {
        self.flags.intersects(EventFlags::HUP)
    }
}

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// The buffer for events; it stays with the thread that waits.
pub struct Events(Vec<epoll::Event>);

impl Epoll {
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Watches a flow's socket for all events, edge-triggered: one call until its end.
    pub fn watch_flow(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.0, socket, EventData::new_u64(token), flags)?)
    }

    /// As [`Epoll::watch_flow`], for a socket that is watched already: epoll reports its present readiness once more.
    pub(crate) fn watch_flow_again(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::modify(&self.0, socket, EventData::new_u64(token), flags)?)
    }

    /// Watches a listener or an eventfd, level-triggered.
    pub fn watch_level(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Stops watching. Closing the last descriptor of the socket does so too.
    pub fn forget(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits for events, without `timeout` for ever; returns their number.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout
            .map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) as _ });
        match epoll::wait(&self.0, &mut events.0[..], timeout.as_ref()) {
            Ok(count) => Ok(count),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        let none = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Self(vec![none; BATCH])
    }
}

impl Events {
    /// Event `index` of the last wait.
    pub fn event(&self, index: usize) -> Ready {
        let event = self.0[index];
        Ready { token: event.data.u64(), flags: event.flags }
    }
}
