//! What a host is called of which only the Ethernet address is known.

use std::net::IpAddr;

use crate::addr::Mac;
use crate::config::Config;
use crate::sys::netdev;
use crate::sys::netlink::neighbours;
use crate::table::backend::Registry;
use crate::table::names::ClientNames;

/// The host with this Ethernet address on this network, in words: with the name of the peer, of the backend or of the node that is there, else with
/// its own address, as far as the kernel knows one.
pub(super) fn named_host(
    interface: &str,
    mac: Mac,
    config: &Config,
    (registry, names): (&Registry, &ClientNames),
) -> String {
    let spelled = super::spelled(mac);
    let Ok(interface) = netdev::interface(interface) else { return spelled };
    let its: Vec<IpAddr> = neighbours(interface.index, mac).unwrap_or_default();
    let is_its = |ip: IpAddr| its.contains(&ip.to_canonical());
    let mut peers = config.peers.iter().flat_map(|it| &it.peers);
    let peer = peers.find(|peer| is_its(peer.address.ip())).map(|peer| peer.name.to_string());
    let backends = || registry.backends().into_iter();
    let backend = || backends().find(|it| it.address().is_some_and(|at| is_its(at.ip())));
    let node = || its.iter().find_map(|ip| Some(names.of(*ip)?.to_string()));
    let own = || {
        let vips = config.vip.iter().flat_map(|it| &it.addresses);
        its.iter().find(|ip| !vips.clone().any(|vip| vip == *ip)).map(ToString::to_string)
    };
    let host_of = || backend().map(|it| format!("the host of backend {}", it.label()));
    match peer.or_else(node).or_else(host_of).or_else(own) {
        Some(name) => format!("{name}, {spelled}"),
        None => spelled,
    }
}
