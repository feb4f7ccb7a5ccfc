//! The next step of a flow after an event, and the meaning of an error on one of its sockets.

use std::io;

use super::flow::Side;
use crate::model::end_reason::EndReason;

/// The next step of a flow after an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlowVerdict {
    Keep,
    /// Connect it to a backend. `seen`: the events of its client's socket: bytes, and an end behind them.
    Connect {
        readable: bool,
        ends: bool,
    },
    /// Both legs are established: move all bytes that can be moved.
    Serve,
    /// With the errno of the call that reported it, or 0.
    End(EndReason, i32),
}

/// The reason for an error on one side's socket.
pub(super) fn ended_by(side: Side, errno: i32) -> FlowVerdict {
    let reason = match errno {
        libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED | 0 => match side {
            Side::Client => EndReason::ClientReset,
            Side::Backend => EndReason::BackendReset,
        },
        errno if is_silence(errno) => match side {
            Side::Client => EndReason::ClientTimedOut,
            Side::Backend => EndReason::BackendTimedOut,
        },
        _ => EndReason::Internal,
    };
    FlowVerdict::End(reason, errno)
}

/// Whether the kernel gave a connection up after keepalive or repeated segments. The kernel then returns ETIMEDOUT, or the meaning of the
/// last ICMP error if some came instead of acknowledgements (tcp_write_err; icmp_err_convert in net/ipv4/icmp.c,
/// icmpv6_err_convert): a firewall that rejects by default makes that ECONNREFUSED.
pub(super) fn is_silence(errno: i32) -> bool {
    let routes = [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EHOSTDOWN, libc::ENONET, libc::ENETDOWN];
    let refusals = [libc::ECONNREFUSED, libc::EACCES, libc::ENOPROTOOPT, libc::EPROTO, libc::EOPNOTSUPP];
    errno == libc::ETIMEDOUT || routes.contains(&errno) || refusals.contains(&errno)
}

pub(super) fn errno(error: Option<&io::Error>) -> i32 {
    error.and_then(io::Error::raw_os_error).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with iptables -j REJECT at the client, its flow ended as internal.
    #[test]
    fn a_firewall_that_rejects_is_a_host_that_does_not_answer() {
        for errno in [libc::ETIMEDOUT, libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::EACCES, libc::ENOPROTOOPT] {
            assert!(matches!(ended_by(Side::Client, errno), FlowVerdict::End(EndReason::ClientTimedOut, _)), "{errno}");
            assert!(
                matches!(ended_by(Side::Backend, errno), FlowVerdict::End(EndReason::BackendTimedOut, _)),
                "{errno}"
            );
        }
        assert!(matches!(ended_by(Side::Client, libc::EPIPE), FlowVerdict::End(EndReason::ClientReset, _)));
        assert!(matches!(ended_by(Side::Backend, libc::ECONNRESET), FlowVerdict::End(EndReason::BackendReset, _)));
    }
}
