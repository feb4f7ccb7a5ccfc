//! Finds the VIPs among the frontends' addresses, and their interfaces on this host.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::config::{Config, Target};
use crate::sys::netdev;

/// The loopback interface.
pub(super) const LOOPBACK: &str = "lo";

/// The facts about this host that all checks use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostPlace {
    /// Addresses and ports that clients connect to; a wildcard stands for every VIP of its family.
    pub services: Vec<SocketAddr>,
    /// Addresses that move between hosts, or that several hosts have at once.
    pub vips: BTreeSet<IpAddr>,
    /// The VIPs that this host keeps on its loopback interface, even if other hosts have them.
    pub kept: BTreeSet<IpAddr>,
    /// Interfaces that clients' packets arrive on, as far as that is known.
    pub interfaces: Vec<String>,
    /// Every address of this host.
    pub networks: Vec<(String, IpNet)>,
    /// Whether other instances may forward packets here.
    pub has_peers: bool,
    /// Whether a backend is on this very host.
    pub has_backend: bool,
}

impl HostPlace {
    /// `moved`: addresses that keepalived moves.
    pub(super) fn find(config: &Config, moved: &[IpAddr]) -> Self {
        Self::among(config, moved, netdev::networks().unwrap_or_default(), netdev::source_towards)
    }

    /// As [`HostPlace::find`], for a host with these `networks` where packets to an address have the source `source`.
    fn among(
        config: &Config,
        moved: &[IpAddr],
        networks: Vec<(String, IpNet)>,
        source: impl Fn(IpAddr) -> Option<IpAddr>,
    ) -> Self {
        let listen: Vec<_> = config.frontends.iter().flat_map(|f| &f.listen).map(|vip| vip.socket_addr()).collect();
        let mut services: Vec<_> = listen.iter().copied().filter(|service| !service.ip().is_unspecified()).collect();
        for wildcard in listen.iter().filter(|service| service.ip().is_unspecified()) {
            let same = moved.iter().filter(|vip| vip.is_ipv6() == wildcard.is_ipv6());
            services.extend(same.map(|vip| SocketAddr::new(*vip, wildcard.port())));
        }
        services.retain(|service| !service.ip().is_loopback());
        let holders = |ip: IpAddr| networks.iter().filter(move |(_, network)| network.addr() == ip);
        let is_vip = |ip: &IpAddr| {
            moved.contains(ip)
                || holders(*ip).next().is_none()
                || holders(*ip).any(|(name, network)| name == LOOPBACK || is_guest(name, network, &networks))
        };
        let vips: BTreeSet<_> = services.iter().map(SocketAddr::ip).filter(is_vip).collect();
        let kept: BTreeSet<_> =
            vips.iter().copied().filter(|vip| holders(*vip).any(|(name, _)| name == LOOPBACK)).collect();
        let has = |ip: IpAddr| holders(ip).next().is_some();
        let backends = config.frontends.iter().flat_map(|frontend| &frontend.backends);
        let has_backend =
            backends.into_iter().any(|backend| matches!(backend.address, Target::Address(at) if has(at.ip())));
        // By the interface of an address, or else of its network, or else of the route to it.
        let mut interfaces = BTreeSet::new();
        for ip in services.iter().map(SocketAddr::ip) {
            let on = |name: &str| name != LOOPBACK;
            let mut found: Vec<_> = holders(ip).map(|(name, _)| name).filter(|name| on(name)).collect();
            if found.is_empty() {
                let around = networks.iter().filter(|(_, network)| network.contains(&ip));
                found.extend(around.map(|(name, _)| name).filter(|name| on(name)));
            }
            if found.is_empty()
                && let Some(source) = source(ip)
            {
                found.extend(holders(source).map(|(name, _)| name).filter(|name| on(name)));
            }
            interfaces.extend(found.into_iter().cloned());
        }
        // Packets to a VIP on the loopback interface arrive on any other.
        if !kept.is_empty() || (interfaces.is_empty() && !services.is_empty()) {
            interfaces.extend(networks.iter().map(|(name, _)| name.clone()).filter(|name| name != LOOPBACK));
        }
        if let Some(peers) = &config.peers {
            interfaces.extend(holders(peers.listen.ip()).map(|(name, _)| name.clone()));
        }
        let interfaces = interfaces.into_iter().collect();
        let has_peers = config.peers.is_some();
        Self { services, vips, kept, interfaces, networks, has_peers, has_backend }
    }

    pub(super) fn holds(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|(_, network)| network.addr() == ip)
    }
}

/// An address with a full-length prefix, on an interface with an ordinary one as well.
fn is_guest(name: &str, network: &IpNet, networks: &[(String, IpNet)]) -> bool {
    let ordinary = |(other, of): &(String, IpNet)| {
        other == name && of.prefix_len() != of.max_prefix_len() && of.addr().is_ipv6() == network.addr().is_ipv6()
    };
    network.prefix_len() == network.max_prefix_len() && networks.iter().any(ordinary)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str) -> Config {
        let text = format!(
            "[[frontend]]\nname = \"f\"\nlisten = {listen}\n[[frontend.backend]]\nname = \"a\"\naddress = \"10.0.0.21:6444\"\n"
        );
        crate::config::parse(&text, std::path::Path::new("test.toml")).unwrap().config
    }

    fn networks(text: &[(&str, &str)]) -> Vec<(String, IpNet)> {
        text.iter().map(|(name, network)| (name.to_string(), network.parse().unwrap())).collect()
    }

    fn find(listen: &str, moved: &[&str], on: &[(&str, &str)]) -> HostPlace {
        let moved: Vec<_> = moved.iter().map(|ip| ip.parse().unwrap()).collect();
        HostPlace::among(&config(listen), &moved, networks(on), |_| None)
    }

    const HOST: &[(&str, &str)] = &[("lo", "127.0.0.1/8"), ("eth0", "10.0.0.21/24"), ("eth1", "192.168.0.1/24")];

    fn ips(set: &BTreeSet<IpAddr>) -> Vec<String> {
        set.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_address_of_the_host_s_own_is_no_vip() {
        let place = find("[\"10.0.0.21:6443\", \"127.0.0.1:6443\"]", &[], HOST);
        assert_eq!((ips(&place.vips), place.interfaces), (vec![], vec!["eth0".to_owned()]));
        assert!(place.has_backend);
    }

    #[test]
    fn an_address_of_another_host_is_one_and_its_network_says_by_which_interface() {
        let place = find("[\"10.0.0.100:6443\"]", &[], HOST);
        assert_eq!((ips(&place.vips), place.interfaces), (vec!["10.0.0.100".to_owned()], vec!["eth0".to_owned()]));
        assert!(place.kept.is_empty());
    }

    #[test]
    fn an_address_on_the_loopback_interface_is_one_that_is_kept_and_comes_by_any_other() {
        let on = [HOST, &[("lo", "203.0.113.9/32")]].concat();
        let place = find("[\"203.0.113.9:6443\"]", &[], &on);
        assert_eq!(
            (ips(&place.kept), place.interfaces),
            (vec!["203.0.113.9".to_owned()], vec!["eth0".into(), "eth1".into()])
        );
    }

    #[test]
    fn a_guest_on_the_interface_is_one_and_a_wildcard_stands_for_what_keepalived_moves() {
        let on = [HOST, &[("eth0", "10.0.0.100/32")]].concat();
        assert_eq!(ips(&find("[\"10.0.0.100:6443\"]", &[], &on).vips), ["10.0.0.100"]);
        let place = find("[\"0.0.0.0:6443\"]", &["10.0.0.100"], HOST);
        assert_eq!(place.services, ["10.0.0.100:6443".parse().unwrap()]);
        assert_eq!(ips(&place.vips), ["10.0.0.100"]);
    }
}
