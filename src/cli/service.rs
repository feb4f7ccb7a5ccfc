//! The service manager: sd_notify(3), its store of descriptors, and what it passes in (sd_listen_fds(3)).
//!
//! Listening sockets in its store outlive a crash and a restart: connections wait for the next process instead of being
//! refused. Without a service manager this module does nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::addr::VipAddr;
use crate::sys::{fd_passing, inherited, socket};

/// How long the service manager may take to notice that another process is the main one.
const BARRIER_MAX: Duration = Duration::from_secs(1);

/// Descriptors of one message to the store.
const STORED_AT_ONCE: usize = 64;

#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
}

impl ServiceManager {
    /// The manager named by `NOTIFY_SOCKET`, or none.
    pub(super) fn find() -> Self {
        let connected = std::env::var("NOTIFY_SOCKET").ok().map(|name| {
            let socket = UnixDatagram::unbound()?;
            match name.strip_prefix('@') {
                Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
                None => socket.connect(&name)?,
            }
            Ok::<_, io::Error>(socket)
        });
        let socket = connected.and_then(|connected| match connected {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, "cannot connect to the service manager");
                None
            }
        });
        Self { socket }
    }

    pub(super) fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    pub(super) fn ready(&self) {
        self.send("READY=1\n", &[]);
    }

    /// Reports that the loops turn. [`watchdog`] says how often the manager expects that.
    pub(super) fn alive(&self) {
        self.send("WATCHDOG=1\n", &[]);
    }

    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\n", &[]);
    }

    /// Stores listening sockets for a crash and a restart. Sockets that are stored already are not stored twice.
    pub(super) fn store(&self, listeners: &[(VipAddr, OwnedFd)]) {
        let mut addresses: Vec<_> = listeners.iter().map(|(address, _)| *address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            let own = listeners.iter().filter(|(listening, _)| *listening == address);
            let fds: Vec<_> = own.map(|(_, socket)| socket.as_fd()).collect();
            for some in fds.chunks(STORED_AT_ONCE) {
                self.send(&format!("FDSTORE=1\nFDNAME={}\n", name(address)), some);
            }
        }
    }

    /// Removes the listening sockets of one address from the store.
    pub(super) fn forget(&self, address: VipAddr) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={}\n", name(address)), &[]);
    }

    /// Makes process `pid` the main one. Returns when the manager knows it: if this process ended earlier, the manager
    /// would take that for the end of the service. Blocks.
    pub(super) fn set_main_pid(&self, pid: u32) {
        if !self.is_there() {
            return;
        }
        self.send(&format!("MAINPID={pid}\n"), &[]);
        let Ok((read_end, write_end)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
        self.send("BARRIER=1\n", &[write_end.as_fd()]);
        drop(write_end);
        if !fd_passing::wait_readable(&read_end, BARRIER_MAX).unwrap_or(false) {
            tracing::warn!("the service manager has not confirmed the new main PID");
        }
    }

    fn send(&self, text: &str, fds: &[BorrowedFd<'_>]) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = fd_passing::send(socket, text.as_bytes(), fds) {
            tracing::warn!(%error, text = text.trim_end(), "cannot send a message to the service manager");
        }
    }
}

/// Listening sockets that the service manager passed in. Call it before anything else is opened.
pub(super) fn passed_listeners() -> Vec<(VipAddr, OwnedFd)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    // After an upgrade the variables still name the first process.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(PASSED_MAX);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let fds = inherited::take_passed(FIRST_PASSED, count);
    let listeners = fds.into_iter().filter_map(|fd| {
        let name = names.next();
        let address = match socket::listens_nowhere(&fd) {
            // Only the name in the store tells the address that it serves.
            true => address_of(name?)?,
            false => socket::listening_address(&fd)?,
        };
        Some((address, fd))
    });
    // A socket unit's sockets are blocking unless it has NonBlocking=yes (systemd.socket(5)): a worker would wait in
    // accept(2) for ever.
    let set = |(address, fd): &(VipAddr, OwnedFd)| match rustix::io::ioctl_fionbio(fd, true) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%address, %error, "cannot use a listening socket of the service manager");
            false
        }
    };
    listeners.filter(set).collect()
}

/// The silence after which the service manager restarts the process (`WatchdogSec=`, sd_watchdog_enabled(3)). After an
/// upgrade `WATCHDOG_PID` still names the first process, but the manager watches its successor.
pub(super) fn watchdog() -> Option<Duration> {
    let us = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(Duration::from_micros(us)).filter(|limit| !limit.is_zero())
}

/// A name must not contain a colon.
fn name(address: VipAddr) -> String {
    format!("baton-{}", address.to_string().replace(':', "_"))
}

/// The address in a [`name`].
fn address_of(name: &str) -> Option<VipAddr> {
    Some(VipAddr::new(name.strip_prefix("baton-")?.replace('_', ":").parse().ok()?))
}

/// SD_LISTEN_FDS_START (sd_listen_fds(3)).
const FIRST_PASSED: i32 = 3;
const PASSED_MAX: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_store_hold_no_colon_and_differ() {
        let names =
            ["10.0.0.1:6443", "10.0.0.1:6444", "[::1]:6443"].map(|text| name(VipAddr::new(text.parse().unwrap())));
        assert!(names.iter().all(|name| !name.contains(':')));
        assert_eq!((names[0].as_str(), names[2].as_str()), ("baton-10.0.0.1_6443", "baton-[__1]_6443"));
        assert!(names.iter().all(|text| address_of(text).is_some_and(|address| name(address) == *text)));
        assert_eq!((address_of("stored"), address_of("baton-x")), (None, None));
    }
}
