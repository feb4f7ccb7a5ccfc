//! How it is noticed that a connection's far host is gone: tcp(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt;

use super::{int_option, tcp_info};

/// include/net/tcp.h, MAX_TCP_KEEPCNT.
const PROBES_MAX: u32 = 127;

/// include/uapi/linux/tcp.h, and the values that it may have.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(120);

/// The kernel asks a far end that does not answer so often within `user_timeout`, if it can be told.
const ASKED_LEAST: u32 = 3;

/// Detection of a vanished far host: keepalive (tcp(7)) while idle; with data in flight, whoever has the socket watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTimeouts {
    pub keepalive_idle: Duration,
    pub keepalive_interval: Duration,
    /// How long a host may be silent.
    pub user_timeout: Duration,
}

impl SocketTimeouts {
    /// The time between two keepalive probes, and the number of unanswered ones after which a host was silent for `user_timeout`.
    fn probes(&self) -> (Duration, u32) {
        let asked = self.user_timeout.saturating_sub(self.keepalive_idle).as_secs_f64();
        let interval = self.keepalive_interval.max(Duration::from_secs((asked / f64::from(PROBES_MAX)).ceil() as u64));
        let count = (asked / interval.as_secs_f64()).ceil() as u32;
        (interval, count.clamp(1, PROBES_MAX))
    }
}

/// Sets keepalive, and how rarely the kernel may ask a far end that does not answer. On a listener, future accepted sockets have
/// both too.
pub(crate) fn set_timeouts(socket: impl AsFd, timeouts: &SocketTimeouts) -> io::Result<()> {
    set_timeouts_after(socket, timeouts, 0)
}

/// As [`set_timeouts`], for a socket whose far end has left keepalive probes unanswered: they do not count.
pub(crate) fn set_timeouts_anew(socket: impl AsFd, timeouts: &SocketTimeouts) -> io::Result<()> {
    let unanswered = tcp_info::unanswered_probes(&socket)?;
    set_timeouts_after(socket, timeouts, unanswered)
}

fn set_timeouts_after(socket: impl AsFd, timeouts: &SocketTimeouts, unanswered: u8) -> io::Result<()> {
    let socket = socket.as_fd();
    let (interval, count) = timeouts.probes();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, timeouts.keepalive_idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, (count + u32::from(unanswered)).min(PROBES_MAX))?;
    limit_backoff(socket, timeouts.user_timeout / ASKED_LEAST);
    Ok(())
}

/// Removes the TCP_USER_TIMEOUT (tcp(7)) that an earlier release set. With it the kernel ends connections of living hosts: it counts from
/// a closed window on, and goes on counting when the window opens by less than the next segment to send has, even if that is sent in
/// parts and all is acknowledged (net/ipv4/tcp_timer.c, tcp_probe_timer: icsk_probes_tstamp; tcp_input.c, tcp_ack_probe). Hours later,
/// the next window that stays closed for one retransmission timeout ends the connection.
pub(crate) fn forget_user_timeout(socket: impl AsFd) {
    // Fails for a socket that is closed, which has no use for it.
    let _ = sockopt::set_tcp_user_timeout(socket, 0);
}

/// Lets the kernel wait no longer than `longest` before it repeats a segment or probes a closed window: TCP_RTO_MAX_MS, as of Linux 6.15.
/// Without it the time doubles up to two minutes.
fn limit_backoff(socket: BorrowedFd<'_>, longest: Duration) {
    let milliseconds = longest.clamp(BACKOFF_MIN, BACKOFF_MAX).as_millis() as libc::c_int;
    // An older kernel refuses it.
    let _ = int_option::set(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, milliseconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(idle_s: u64, interval_s: u64, user_timeout_ms: u64) -> (u64, u32) {
        let timeouts = SocketTimeouts {
            keepalive_idle: Duration::from_secs(idle_s),
            keepalive_interval: Duration::from_secs(interval_s),
            user_timeout: Duration::from_millis(user_timeout_ms),
        };
        let (interval, count) = timeouts.probes();
        (interval.as_secs(), count)
    }

    #[test]
    fn the_last_unanswered_probe_is_as_old_as_the_silence_that_is_allowed() {
        assert_eq!(probes(10, 5, 30_000), (5, 4), "the defaults");
        assert_eq!(probes(10, 7, 30_000), (7, 3));
        assert_eq!(probes(1, 1, 1_500), (1, 1));
        assert_eq!(probes(10, 5, 10_000), (5, 1), "one probe must be asked");
        assert_eq!(probes(2, 1, 7_200_000), (57, 127), "the kernel counts no further");
    }
}
