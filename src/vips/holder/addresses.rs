//! The VIP's addresses on this host: reads them, adds them and removes them.
//!
//! Baton adds each address alone (/32, /128) and for the time of a lease. An entry of the same address with another mask has no lease, so the
//! kernel would keep it when Baton is killed; Baton removes it.

use std::fs;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::LEASE_SECONDS;
use crate::config::VipSettings;
use crate::sys::{netdev, netlink};

/// The entries of these addresses on the interface, and whether it has other addresses of IPv4, and of IPv6, that hosts behind a router can
/// reach.
pub(super) fn on(interface: &str, addresses: &[IpAddr]) -> io::Result<(Vec<IpNet>, [bool; 2])> {
    let all = netdev::networks()?.into_iter().filter(|(name, _)| name == interface).map(|(_, network)| network);
    let (mut here, others): (Vec<_>, Vec<_>) = all.partition(|network| addresses.contains(&network.addr()));
    here.sort();
    here.dedup();
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let has = |is_ipv6: bool| others.iter().map(IpNet::addr).any(|ip| ip.is_ipv6() == is_ipv6 && !is_link_local(ip));
    Ok((here, [has(false), has(true)]))
}

pub(super) fn is_alone(network: &IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

/// Adds or renews each address. An error says which one the kernel refuses, why, and what to do.
pub(super) fn add(settings: &VipSettings) -> Result<(), String> {
    let name = &*settings.interface;
    let index = match netdev::interface(name) {
        Ok(interface) => interface.index,
        Err(error) => return Err(format!("interface {name}: {error}; make it, or name another one in [vip]")),
    };
    for ip in &settings.addresses {
        netlink::lease(index, *ip, LEASE_SECONDS).map_err(|error| {
            let advice = match error.raw_os_error() {
                Some(libc::EACCES) if ip.is_ipv6() => {
                    format!("; IPv6 is disabled there: sysctl -w net.ipv6.conf.{name}.disable_ipv6=0, or remove {ip} from [vip]")
                }
                Some(libc::EPERM) => "; Baton needs CAP_NET_ADMIN".to_owned(),
                _ => String::new(),
            };
            format!("cannot add {ip} to {name}: {error}{advice}")
        })?;
    }
    Ok(())
}

/// Removes these entries, as far as it can; the first error, with its entry.
pub(super) fn remove(interface: &str, all: &[IpNet]) -> Result<(), (IpNet, io::Error)> {
    let Ok(index) = netdev::interface(interface).map(|it| it.index) else { return Ok(()) };
    let remove_one = |network: &IpNet| {
        let others = if is_alone(network) { Vec::new() } else { netlink::secondaries(index, *network)? };
        if !others.is_empty() && !promotes(interface) {
            let others = crate::model::humane::list(&others);
            return Err(io::Error::other(format!("the kernel would remove {others} too (promote_secondaries is 0)")));
        }
        netlink::end_lease(index, *network).map(drop)
    };
    let failed = all.iter().filter_map(|network| remove_one(network).err().map(|error| (*network, error)));
    failed.collect::<Vec<_>>().into_iter().next().map_or(Ok(()), Err)
}

/// Whether the kernel keeps the secondary addresses of a network whose primary address is removed.
fn promotes(interface: &str) -> bool {
    ["all", interface].iter().any(|name| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/promote_secondaries");
        fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
    })
}
