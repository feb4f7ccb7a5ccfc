//! The loaded program: opened once, used by one thread, outliving the process.

mod error;

pub use error::{InstallError, OpenError};

use std::io;
use std::net::SocketAddr;

use super::counters::Counters;
use super::entry::{Ends, Entry, Key, Splice};
use super::settings::PathSettings;
use crate::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use crate::model::splice::LegState;

/// The program on its interfaces, with its maps.
#[derive(Debug)]
pub struct Program {
    capacity: u32,
}

/// A connected socket of this host, by its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    local: SocketAddr,
    remote: SocketAddr,
}

/// Both entries of a flow that was removed, with their last counters. `None`: there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub up: Option<Entry>,
    pub down: Option<Entry>,
}

/// Where a scan goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    /// The kernel's own mark; `None`: at the beginning.
    pub mark: Option<u32>,
}

/// What is changed in place, while packets go on passing: nothing that was counted is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sockets are gone.
    Commit,
    /// Packets leave through another interface.
    Interface(u32),
    /// RST is the answer to whatever comes.
    Reset,
    /// Packets pass to the kernel.
    Pass,
}

/// What a backend was asked and whether it answered, over all its graduated flows. Monotonic ns, 0: never; 1 ms exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The first packet that demands an answer (data, FIN, a probe) since the backend's last packet.
    pub asked_ns: u64,
    /// The backend's last packet.
    pub answered_ns: u64,
}

impl Program {
    /// Loads the program, or adopts the one that is pinned, and attaches it to its interfaces in this thread's network
    /// namespace.
    pub fn open(_settings: &PathSettings) -> Result<Self, OpenError> {
        Err(OpenError::NotSupported)
    }

    /// Flows that the map can hold.
    pub fn flows_max(&self) -> u32 {
        self.capacity / 2
    }

    /// What the kernel knows of each leg, in one call; `None`: there is no such socket in this network namespace.
    pub fn probe(&self, _legs: &[Leg]) -> io::Result<Vec<Option<LegState>>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Enters both directions, or neither. Never evicts, never replaces.
    pub fn install(&self, _flow: &Splice) -> Result<(), InstallError> {
        Err(InstallError::Full)
    }

    /// Changes entries in place; returns how many were there.
    pub fn change(&self, _keys: &[Key], _change: Change) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes out both directions; their last counters.
    pub fn remove(&self, _flow: &Ends) -> io::Result<Removed> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn entry(&self, _key: &Key) -> io::Result<Option<Entry>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Adds up to about `most` entries to `out`; false once all were seen. Entries that come or go meanwhile may be
    /// missed or seen twice.
    pub fn scan(&self, _cursor: &mut Cursor, _most: usize, _out: &mut Vec<(Key, Entry)>) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn counters(&self) -> io::Result<Counters> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Of the backend in `slot`.
    pub fn evidence(&self, _slot: u16) -> io::Result<Evidence> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Leg {
    /// The socket that was accepted.
    pub fn client(client: ClientAddr, vip: VipAddr) -> Self {
        Self { local: vip.socket_addr(), remote: client.socket_addr() }
    }

    /// The socket that was connected.
    pub fn backend(local: LocalAddr, backend: BackendAddr) -> Self {
        Self { local: local.socket_addr(), remote: backend.socket_addr() }
    }
}
