//! The process that has a port: the socket that listens there, and its process.

use std::fmt;

use super::process;
use super::sock_diag::{self, ListeningSocket};
use crate::addr::VipAddr;

/// Whether a socket listens on `address` itself.
pub(crate) fn is_taken(address: VipAddr) -> bool {
    sock_diag::listeners().unwrap_or_default().iter().any(|it| VipAddr::new(it.address) == address)
}

/// A socket that listens where Baton would, with its process, as far as Baton may see it.
#[derive(Debug)]
pub struct PortHolder {
    socket: Option<ListeningSocket>,
    process: Option<process::Holder>,
}

impl PortHolder {
    /// The socket that listens on the port of `address`, on that address or on all.
    pub(crate) fn find(address: VipAddr) -> Self {
        let on_port = sock_diag::listeners().unwrap_or_default().into_iter();
        let mut on_port: Vec<_> = on_port.filter(|it| it.address.port() == address.port()).collect();
        // A listener on the address itself excludes Baton also where Baton could share the port.
        on_port.sort_by_key(|it| VipAddr::new(it.address) != address);
        let ip = address.ip();
        let covers = |it: &ListeningSocket| {
            let there = it.address.ip();
            VipAddr::new(it.address) == address || there.is_unspecified() && (there.is_ipv6() || ip.is_ipv4())
        };
        Self::of(on_port.into_iter().find(covers))
    }

    /// The socket with this cookie.
    pub(crate) fn of_cookie(cookie: u64) -> Self {
        Self::of(sock_diag::listeners().unwrap_or_default().into_iter().find(|it| it.cookie == cookie))
    }

    fn of(socket: Option<ListeningSocket>) -> Self {
        Self { process: socket.as_ref().and_then(|it| process::holder(it.inode)), socket }
    }

    /// The program's name. `None`: Baton may not see its process.
    pub(crate) fn name(&self) -> Option<&str> {
        self.process.as_ref().map(|process| process.name.as_str())
    }

    /// It listens on all addresses, and not on one of them alone.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.socket.is_some_and(|socket| socket.address.ip().is_unspecified())
    }
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some(process) => write!(f, "process {} ({})", process.pid, process.name)?,
            None => f.write_str("another process")?,
        }
        match self.socket {
            Some(socket) if socket.address.ip().is_unspecified() => {
                write!(f, " listens on port {} of all addresses", socket.address.port())
            }
            _ => f.write_str(" listens there"),
        }
    }
}
