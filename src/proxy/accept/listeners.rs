//! One worker's listening sockets.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::addr::VipAddr;
use crate::proxy::plane::FrontendPlane;

/// One worker's socket for one address.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: OwnedFd,
    pub address: VipAddr,
    /// It is bound to another address, and a BPF program gives it the connections to `address`.
    pub is_shared: bool,
    pub frontend: Arc<FrontendPlane>,
}
