//! Checks whether this host lets a VIP serve its purpose: the kernel's settings, the firewall, limits, and keepalived's
//! configuration. It changes nothing; only [`sysctl_file`] writes a file, on request.
//!
//! ```text
//!   place ──▶ kernel        settings of sysctl(8)         ─┐
//!         ──▶ firewall      nftables, iptables, NAT        ├─▶ findings: the value, why it matters, the fix
//!         ──▶ limits        descriptors, ports, rights     │
//!         ──▶ shared_ports  who has the frontends' ports   │
//!         ──▶ keepalived    its file, its process          │
//!         ──▶ built_in_vip  rights, interface, with [vip]  │
//!         ──▶ fleet         link, key, ports, with [peers]─┘
//! ```

mod built_in_vip;
mod firewall;
mod fleet;
mod keepalived;
mod kernel;
mod limits;
pub(crate) mod mover;
mod node_ports;
mod place;
mod shared_ports;
pub(crate) mod sysctl_file;

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

use crate::config::Config;
use crate::config::budget::BudgetHost;
use crate::model::finding::Finding;
use crate::sys::{netdev, netlink};
use keepalived::Keepalived;
pub(crate) use kernel::Setting;
use place::HostPlace;

/// The result of the checks.
#[derive(Debug)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Kernel settings that this host should have, also those that it has.
    pub settings: Vec<Setting>,
}

/// What this host adds to the heartbeat budget: the timers of keepalived's file at `path`, or of its default file, and the host's
/// own addresses.
pub(crate) fn budget_host(path: Option<&Path>) -> BudgetHost {
    let networks = netdev::networks().unwrap_or_default();
    let by_baton = netlink::added_to_loopback().unwrap_or_default();
    let on_loopback = networks.iter().filter(|(name, _)| name == place::LOOPBACK).map(|(_, network)| network.addr());
    let routed = on_loopback.filter(|ip| !ip.is_loopback() && !by_baton.contains(ip)).collect();
    let keepalived = Keepalived::read(path);
    BudgetHost { adverts: keepalived.advert_interval(), track: keepalived.vip_track(), own: fixed(&networks), routed }
}

/// Why keepalived's file at `path` cannot be read.
pub(crate) fn keepalived_fault(path: &Path) -> Option<io::Error> {
    Keepalived::read(Some(path)).fault_of_named()
}

/// The addresses that stay on their host. A VIP is a /32 or /128, or comes to a network where the interface has an address already.
pub(crate) fn fixed(networks: &[(String, IpNet)]) -> Vec<IpAddr> {
    let is_first = |index: usize| {
        let (name, network) = &networks[index];
        networks[..index].iter().all(|(other, before)| other != name || before.trunc() != network.trunc())
    };
    let is_single = |network: &IpNet| network.prefix_len() == network.max_prefix_len();
    let all = networks.iter().enumerate().filter(|(index, (_, network))| !is_single(network) && is_first(*index));
    all.map(|(_, (_, network))| network.addr()).collect()
}

/// Reads `bytes` as each listing and file that another program writes.
#[cfg(fuzzing)]
pub(crate) fn read_any(bytes: &[u8]) {
    firewall::read_any(bytes);
    keepalived::read_any(bytes);
}

/// Checks this host, in the calling thread's network namespace. `keepalived`: its file, if it is not
/// [`keepalived::KEEPALIVED_DEFAULT`].
pub fn look(config: &Config, keepalived: Option<&Path>) -> Report {
    let keepalived = Keepalived::read(keepalived);
    let place = HostPlace::find(config, &keepalived.addresses());
    let (mut findings, mut settings) = kernel::look(&place);
    findings.extend(firewall::look(config, &place));
    findings.extend(limits::look(config, &place));
    findings.extend(shared_ports::look(config));
    let (of_fleet, needed) = fleet::look(config, &place);
    findings.extend(of_fleet);
    settings.extend(needed);
    let both = built_in_vip::of_keepalived(config);
    findings.extend(built_in_vip::look(config, &both));
    if both.is_empty() {
        findings.extend(keepalived.judge(config, &place));
    }
    Report { findings, settings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vip_that_is_here_now_is_no_address_that_stays() {
        let networks =
            ["10.0.0.11/24", "10.0.0.100/24", "10.0.0.101/32", "192.168.1.11/24", "fd00::11/64", "fd00::100/128"];
        let networks: Vec<_> = networks.iter().map(|text| ("eth0".to_owned(), text.parse().unwrap())).collect();
        let own = fixed(&networks).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(own, ["10.0.0.11", "192.168.1.11", "fd00::11"]);
    }
}
