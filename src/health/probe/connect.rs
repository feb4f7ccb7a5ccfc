//! The connection of a probe.

use std::io;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::addr::BackendAddr;

/// A lost SYN comes again after 1 s (RFC 6298), later than most timeouts: on a lossy path a single attempt would find
/// a healthy backend silent. So more follow, in parallel, at each fifth of the timeout; the first that ends decides.
const ATTEMPTS: u32 = 4;

pub(super) async fn connect(to: BackendAddr, timeout: Duration) -> io::Result<TcpStream> {
    let mut begin = interval((timeout / (ATTEMPTS + 1)).max(Duration::from_millis(1)));
    begin.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut attempts = JoinSet::new();
    let mut left = ATTEMPTS;
    loop {
        tokio::select! {
            Some(ended) = attempts.join_next() => return ended.map_err(io::Error::other)?,
            _ = begin.tick(), if left > 0 => {
                left -= 1;
                attempts.spawn(attempt(to));
            }
        }
    }
}

async fn attempt(to: BackendAddr) -> io::Result<TcpStream> {
    let socket = if to.ip().is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Closed with RST: a probe every second would else leave 60 sockets in TIME_WAIT for each backend.
    socket.set_zero_linger()?;
    socket.set_nodelay(true)?;
    socket.connect(to.socket_addr()).await
}
