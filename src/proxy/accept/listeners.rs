//! What one worker accepts from.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::addr::VipAddr;
use crate::proxy::plane::FrontendPlane;
use crate::sys::eventfd::EventFd;

/// One worker's socket for one address.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: OwnedFd,
    pub address: VipAddr,
    pub frontend: Arc<FrontendPlane>,
}

/// All listeners of a worker. An index stays with its listener; closed ones leave a gap.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(in crate::proxy) all: Vec<Option<Listener>>,
    /// Monotonic ns since when accepting is paused.
    pub(super) paused_since_ns: Option<u64>,
    /// Whoever comes is reset.
    pub(super) closed: bool,
    /// They stay open, but another process takes what they have.
    pub(super) parked: bool,
    /// Given up for a moment when descriptors have run out, to reset who waits.
    pub(super) spare: Option<EventFd>,
}

impl Listeners {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { all: Vec::new(), paused_since_ns: None, closed: false, parked: false, spare: Some(EventFd::new()?) })
    }
}
