//! Why Baton cannot listen, or cannot share a port.

use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::pin::PinError;

use crate::addr::VipAddr;
use crate::sys::bpf::ProgramFault;
use crate::sys::port_holder::PortHolder;

/// Why Baton cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {holder}")]
    AddressInUse { address: VipAddr, holder: Box<PortHolder> },
    #[error(
        "cannot listen on {address}: {holder}, and Baton cannot share the port: {source}. Give Baton what it needs for that, or the \
         frontend another port, or that process one address of this host to listen on (kube-apiserver: --bind-address)"
    )]
    PortInUse { address: VipAddr, holder: Box<PortHolder>, source: SharingError },
    #[error("cannot share the port of {address}: {source}")]
    CannotShare { address: VipAddr, source: SharingError },
    #[error("cannot listen on {address}: another instance of Baton shares its port, and {holder}")]
    SharedByOther { address: VipAddr, holder: Box<PortHolder> },
    #[error(
        "cannot serve {address} with share_port = \"{wanted}\": the listening sockets of the process before this one are of the \
         other kind; it takes a restart: `baton evacuate`, then `systemctl restart baton`"
    )]
    InheritedPort { address: VipAddr, wanted: &'static str },
    #[error("cannot listen on {address}: {source}{}", lacks(source))]
    Listen { address: VipAddr, source: io::Error },
}

/// What a process without rights lacks.
fn lacks(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; a port below 1024 takes root or CAP_NET_BIND_SERVICE",
        _ => "",
    }
}

/// Why the program that shares ports does not run.
#[derive(Debug, thiserror::Error)]
pub enum SharingError {
    #[error("cannot mount the BPF file system: {0}; mount it before: mount -t bpf bpf /sys/fs/bpf")]
    Mount(io::Error),
    #[error("{path}: {source}", path = .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot find this network namespace: {0}")]
    Namespace(io::Error),
    #[error("cannot load the BPF program: {0}; it takes Linux 5.9, CAP_BPF and CAP_NET_ADMIN")]
    Load(Box<EbpfError>),
    #[error("cannot load the BPF program: {0}; it takes Linux 5.9, CAP_BPF and CAP_NET_ADMIN")]
    Program(ProgramFault),
    #[error("cannot pin the BPF program: {0}")]
    Pin(Box<PinError>),
    /// The broker's words.
    #[error("{0}")]
    Broker(io::Error),
    #[error("cannot change the map of shared ports: {0}")]
    Map(io::Error),
}
