//! Why `baton init` writes nothing.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::fleet::SLOTS;

/// Why there is nothing to write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupRefusal {
    #[error("no file of this host says which address clients know: name it with --vip")]
    NoVip,
    #[error("{1} says that clients know {list}: name the one that moves between hosts with --vip", list = spelled_ips(.0))]
    SeveralVips(Vec<IpAddr>, String),
    #[error(
        "--vip {0} is this host's own address: choose one that no host has; if it is the VIP already, let it be a /32 or /128 there, or the second address of its network"
    )]
    OwnVip(IpAddr),
    #[error("--vip {0} is no address that can move between hosts")]
    BadVip(IpAddr),
    #[error("--vip {0} is no address of a host: in {1} it is the network itself, or the broadcast address")]
    NetworksVip(IpAddr, IpNet),
    #[error(
        "{0}: the apiserver of this host has {1}, and the hosts are named by addresses like {2}, so that nothing here says which \
         addresses the other apiservers have: name all of them by --backends, the same on each host"
    )]
    OtherNetwork(String, IpAddr, IpAddr),
    #[error(
        "{0} has {1}, an address of this host: --peers names the other hosts only; --hosts names all, the same on each"
    )]
    OwnPeer(&'static str, IpAddr),
    #[error("--hosts has no address of this host")]
    NotAmongHosts,
    #[error("--hosts has {0} and {1}, and both are addresses of this host: name each host once")]
    TwiceAmongHosts(IpAddr, IpAddr),
    #[error("{0} has {1} twice: name each host once")]
    NamedTwice(&'static str, IpAddr),
    #[error("{0} is the VIP and a host's own address as well")]
    VipIsHost(IpAddr),
    #[error("{0} instances: a fleet has at most {SLOTS}")]
    TooMany(usize),
    #[error(
        "{file} has slot {before}, and {own} has position {position} in --hosts, from 0: add new hosts at the end of --hosts, on each \
         host in the same order, or give the slot by --slot {before}; instances of the same slot do not link"
    )]
    SlotMoved { file: String, before: u8, own: IpAddr, position: u8 },
    #[error("no network of this host has {0} in it, and no route leads there: name the interface with --interface")]
    NoInterface(IpAddr),
    #[error("this host has no interface {0}")]
    UnknownInterface(String),
    #[error("this host has no route to {0}")]
    NoRoute(IpAddr),
    #[error(
        "this host is an agent of {program} ({place}). It has no apiserver, and its kubelet always connects to the agent's own balancer \
         on 127.0.0.1, port {taken}; Baton balances for it at a VIP that `server` of each agent names. For other clients of this host, \
         give a free port by --port", taken = .taken.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    )]
    AgentHasItsOwn { place: String, program: &'static str, taken: Vec<u16> },
    #[error("no file of this host names an apiserver: name them with --backends or --inventory")]
    NoBackends,
    #[error(
        "--node-local has no peers: --peers names the other hosts that have an apiserver as this one has, and --backends or --inventory \
         names all: give one of them"
    )]
    PeersBesideBackends,
    #[error("--backends has {0:?}: expected an address, or a host with a port from 1 to 65535")]
    BadBackend(String),
    #[error("{0} has {1}, which is the VIP: a backend is an apiserver at the address of its own host")]
    BackendIsVip(String, String),
    #[error("Baton would reject the file, so none is written:\n{faults}", faults = .0.join("\n"))]
    Rejected(Vec<String>),
    #[error("{0} has no host in the group kube_control_plane")]
    EmptyInventory(String),
    #[error("{0}: host {1} has no address: set ip or ansible_host")]
    NoHostAddress(String, String),
    #[error("{0}: host {1} has {2} {3}, a name: set ip to its address")]
    HostIsNamed(String, String, String, String),
    #[error("{0} has several values of {1} ({2}): name the apiservers by --backends")]
    SeveralPorts(String, &'static str, String),
    #[error("{0}: {2:?} is no value of {1}")]
    BadFlag(String, String, String),
    #[error(
        "{1} counts for nothing where {0} is imported: leave it out, or name the VIP with --vip, and {0} is not read"
    )]
    Imported(&'static str, &'static str),
    #[error("{0} has no frontend that Baton can write (`baton import {0}` says why): name the VIP with --vip")]
    NoFrontend(String),
    #[error("{0} has aliases that stand for more than 256 MiB: write the hosts out")]
    TooManyAliases(String),
    #[error("{file} {why}: name the apiservers by --backends; its frontends with servers are {candidates}")]
    WhichFrontend { file: String, why: &'static str, candidates: String },
    #[error(
        "{0} names servers by server-template, so nothing here says all addresses: name the apiservers by --backends"
    )]
    ServerTemplate(String),
    #[error("{0} is no {1}: fix it, or move it away")]
    NotWhatItsNameSays(String, &'static str),
    #[error("{0} is not YAML: {1}")]
    NoYaml(String, yaml_rust2::ScanError),
}

pub(super) fn spelled_ips(all: &[IpAddr]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
