//! Whether the frontends' ports are free on this host, and which processes have them if not.

use std::io;
use std::net::IpAddr;

use crate::addr::VipAddr;
use crate::config::{Config, Frontend, SharePort, can_share_port};
use crate::model::finding::Finding;
use crate::sys::port_holder::PortHolder;
use crate::sys::{netdev, process, socket};

pub(super) fn look(config: &Config) -> Vec<Finding> {
    let here: Vec<_> = netdev::addresses().unwrap_or_default().into_iter().map(|(_, ip)| ip).collect();
    let all =
        config.frontends.iter().flat_map(|frontend| frontend.listen.iter().map(move |address| (frontend, *address)));
    let fixed = all.filter(|(_, address)| address.port() != 0);
    fixed.filter_map(|(frontend, address)| look_at(frontend, address, &here)).collect()
}

fn look_at(frontend: &Frontend, address: VipAddr, here: &[IpAddr]) -> Option<Finding> {
    let topic = format!("port of {address}");
    let can_share = can_share_port(address) && frontend.share_port != SharePort::Off;
    let in_use = socket::ensure_unused(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    if !in_use {
        let shares =
            can_share && (frontend.share_port == SharePort::On || frontend.has_backend_at(address.port(), here));
        return (shares && may_share()).then(|| {
            Finding::good(topic, "free, and Baton does not bind it: another process may listen on it on all addresses")
        });
    }
    let holder = PortHolder::find(address);
    if holder.name() == Some(OWN_NAME) {
        return None;
    }
    let read = holder.to_string();
    Some(match (holder.is_everywhere(), can_share) {
        (true, true) if may_share() => Finding::good(topic, format!("{read}; Baton shares the port")),
        (true, true) => Finding::fault(
            topic,
            read,
            "Baton shares a port by a BPF program, which takes Linux 5.9, CAP_BPF and CAP_NET_ADMIN; this command has not both",
            format!("start Baton by deploy/baton.service, {OTHER_WAYS}"),
        ),
        (true, false) if can_share_port(address) => {
            Finding::fault(topic, read, IN_USE, format!("share_port = \"auto\", {OTHER_WAYS}"))
        }
        (true, false) => Finding::fault(topic, read, IN_USE, format!("name the VIP in \"listen\", {OTHER_WAYS}")),
        (false, _) => Finding::fault(topic, read, IN_USE, "stop that process, or give the frontend another port"),
    })
}

fn may_share() -> bool {
    [CAP_NET_ADMIN, CAP_BPF].iter().all(|capability| process::holds_capability(*capability))
}

/// The name of Baton's own processes in proc(5).
const OWN_NAME: &str = "baton";
const IN_USE: &str = "Baton cannot listen there, and does not start";
const OTHER_WAYS: &str = "or give the frontend another port, or that process one address of this host to listen on \
                          (kube-apiserver: --bind-address)";
/// include/uapi/linux/capability.h
const CAP_NET_ADMIN: u32 = 12;
const CAP_BPF: u32 = 39;
