//! The connection of a probe.

use std::io;

use tokio::net::{TcpSocket, TcpStream};

use crate::addr::BackendAddr;

pub(super) async fn connect(to: BackendAddr) -> io::Result<TcpStream> {
    let socket = if to.ip().is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Closed with RST: otherwise a probe every second would keep 60 sockets in TIME_WAIT for each backend.
    socket.set_zero_linger()?;
    socket.set_nodelay(true)?;
    socket.connect(to.socket_addr()).await
}
