//! Why the offload engine cannot be opened, or a flow cannot be entered.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::pin::PinError;
use aya::programs::ProgramError;
use thiserror::Error;

use super::Unread;
use crate::sys::bpf::ProgramFault;

/// Why nothing can be offloaded. Each message says what fixes it; until then every flow stays proxied.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("{path} is not on a BPF file system; mount one there: mount -t bpf bpf {path}", path = .path.display())]
    NotBpffs { path: PathBuf },
    #[error("mounting the BPF file system: {0}; mount it before: mount -t bpf bpf /sys/fs/bpf")]
    Mount(io::Error),
    #[error("{path}: {source}", path = .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "{path} is of another version (layout {found}, this one has {wanted}); `baton offload remove` removes it and \
         resets its flows",
        path = .path.display()
    )]
    Layout { path: PathBuf, found: u32, wanted: u32 },
    #[error(
        "loading the program: {0}; it takes a kernel with the BPF of Linux 6.1, /sys/kernel/btf/vmlinux and CAP_BPF, CAP_NET_ADMIN, \
         CAP_PERFMON"
    )]
    Load(Box<EbpfError>),
    #[error(
        "loading the program: {0}; it takes a kernel with the BPF of Linux 6.1, /sys/kernel/btf/vmlinux and CAP_BPF, CAP_NET_ADMIN, \
         CAP_PERFMON"
    )]
    Program(ProgramFault),
    #[error("pinning: {0}")]
    Pin(Box<PinError>),
    #[error("interface {interface}: {source}; name those of this host in [offload] interfaces")]
    Interface { interface: String, source: io::Error },
    #[error(
        "interface {interface} has no Ethernet header (hardware type {hardware}); leave it out of [offload] interfaces"
    )]
    Hardware { interface: String, hardware: u16 },
    #[error("attaching to {interface}: {source}; it takes CAP_NET_ADMIN")]
    Attach { interface: String, source: Box<dyn Error + Send + Sync> },
    #[error(
        "interface {interface} has a {kind} filter of another program at preference 1, and packets would meet that before Baton's; give it \
         another preference (tc filter show dev {interface} ingress)"
    )]
    Preceded { interface: String, kind: String },
    /// The broker's words.
    #[error("{0}")]
    Broker(io::Error),
    #[error("cannot start the offload engine's thread: {0}")]
    Begin(io::Error),
    #[error("cannot read the pinned program: {0}; `baton offload remove` removes it and resets its flows")]
    Pinned(#[from] io::Error),
}

impl OpenError {
    pub(super) fn load(error: EbpfError) -> Self {
        Self::Load(Box::new(error))
    }

    pub(super) fn program(error: ProgramError) -> Self {
        Self::Program(error.into())
    }

    pub(super) fn attach(interface: &str, error: impl Error + Send + Sync + 'static) -> Self {
        Self::Attach { interface: interface.to_owned(), source: Box::new(error) }
    }

    pub(super) fn pin(error: PinError) -> Self {
        Self::Pin(Box::new(error))
    }
}

/// Why a flow was not entered; it stays proxied.
#[derive(Debug, Error)]
pub enum InstallError {
    /// Neither direction was entered.
    #[error("the map of offloaded flows is full")]
    Full,
    /// An older flow with these addresses has not been removed yet.
    #[error("an entry with these addresses is still there")]
    Exists,
    /// The entry there could not be read.
    #[error(transparent)]
    Unread(#[from] Unread),
    #[error("entering a flow: {0}")]
    Io(io::Error),
}

impl From<io::Error> for InstallError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull => Self::Full,
            io::ErrorKind::AlreadyExists => Self::Exists,
            _ => Self::Io(error),
        }
    }
}
