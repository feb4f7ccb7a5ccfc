//! Checks the requirements of a fleet: the link, its key, and source ports for each instance.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::firewall;
use super::kernel::Setting;
use super::limits::local_ports;
use super::node_ports::{self, BEYOND};
use super::place::HostPlace;
use crate::config::{Config, OffloadMode, Peer, Peers};
use crate::model::finding::Finding;
use crate::model::fleet::{SLOTS, port_range};
use crate::sys::netdev;
use crate::sys::netlink::{Route, route};
use crate::sys::source;

/// A peer on the same link answers within milliseconds, even if it refuses.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Findings, and their settings for sysctl.d. Without `[peers]`: none.
pub(super) fn look(config: &Config, place: &HostPlace) -> (Vec<Finding>, Vec<Setting>) {
    let Some(peers) = &config.peers else { return Default::default() };
    let (mut findings, mut settings) = (own_address(peers, place), Vec::new());
    let shared = peers.shared.iter().map(|shared| key_file("peers.key_file", &shared.path, SHARED_KEY));
    let own = peers.own_key.iter().map(|own| key_file("peers.private_key_file", &own.path, OWN_KEY));
    findings.extend(shared.chain(own));
    findings.extend(links(peers));
    findings.extend(families(peers, place));
    findings.extend(firewall::let_in(peers.listen, peers.beat_port(), &peers.peers));
    findings.extend(answers(peers));
    findings.extend(source_ports(config, peers, &mut settings));
    findings.extend(node_ports::look(size(&BEYOND, peers.slot) >= flows_max(config)));
    findings.extend(nft(config));
    (findings, settings)
}

/// Whether peers find this instance at an address that stays on this host.
fn own_address(peers: &Peers, place: &HostPlace) -> Vec<Finding> {
    let (topic, ip) = ("peers.listen", peers.listen.ip());
    let better = || {
        let towards = peers.peers.first().and_then(|peer| netdev::source_towards(peer.address.ip()));
        let own = towards.filter(|own| !place.vips.contains(own));
        let own = own.map_or_else(
            || "this host's own address".to_owned(),
            |own| SocketAddr::new(own, peers.listen.port()).to_string(),
        );
        format!("listen = \"{own}\" under [peers], and the same as this instance's address in the files of the others")
    };
    if place.vips.contains(&ip) {
        return vec![Finding::fault(topic, format!("{ip} is a VIP"), LISTEN_VIP, better())];
    }
    match ip.is_unspecified() || place.holds(ip) {
        true => vec![Finding::good(topic, format!("{} is this host's own", peers.listen))],
        false => vec![Finding::fault(topic, format!("{ip} is not on this host"), LISTEN_UNREACHABLE, better())],
    }
}

fn key_file(topic: &str, file: &Path, why: &'static str) -> Finding {
    let path = file.display();
    let mode = std::fs::metadata(file).map(|file| file.permissions().mode() & 0o7777);
    match mode {
        Ok(mode) if mode & 0o077 == 0 => Finding::good(topic, format!("{path}: mode {mode:o}")),
        Ok(mode) => Finding::advice(topic, format!("{path}: mode {mode:o}"), why, format!("chmod 600 '{path}'")),
        Err(error) => Finding::advice(topic, format!("{path}: {error}"), why, format!("ls -l '{path}'")),
    }
}

/// Packets are forwarded to a peer as the next hop, so it must be a neighbour.
fn links(peers: &Peers) -> Vec<Finding> {
    let look = |peer: &Peer| {
        let (topic, ip) = (format!("link to {}", peer.name), peer.address.ip());
        let command = format!("ip route get {ip}");
        match route(ip) {
            Ok(Route { is_local: true, .. }) => {
                let read = format!("{ip} is an address of this host");
                let fix = format!("the address of {}'s host under [[peers.peer]]", peer.name);
                Finding::fault(topic, read, "the instance would be its own peer, and wait for itself", fix)
            }
            Ok(Route { gateway: Some(gateway), .. }) => Finding::fault(
                topic,
                format!("{ip} is behind the router {gateway}"),
                ROUTED,
                format!("{command}; name an address of {} on a link that both hosts are on", peer.name),
            ),
            Ok(Route { interface, .. }) => {
                let name = netdev::name(interface).unwrap_or_else(|_| interface.to_string());
                Finding::good(topic, format!("{ip} is a neighbour on {name}"))
            }
            Err(error) => Finding::fault(topic, format!("no route to {ip}: {error}"), UNREACHABLE, command),
        }
    };
    peers.peers.iter().map(look).collect()
}

/// A packet is forwarded in its own family, so the link needs an address of each family of the VIPs.
fn families(peers: &Peers, place: &HostPlace) -> Vec<Finding> {
    let of_listen = |(_, network): &&(String, ipnet::IpNet)| network.addr() == peers.listen.ip();
    let Some((interface, _)) = place.networks.iter().find(of_listen) else { return Vec::new() };
    let own = |v6: bool| {
        let is_own = |ip: IpAddr| ip.is_ipv6() == v6 && !place.vips.contains(&ip) && is_global(ip);
        place.networks.iter().any(|(name, network)| name == interface && is_own(network.addr()))
    };
    let families = [(false, "IPv4"), (true, "IPv6")].into_iter();
    let missing = families.filter(|(v6, _)| place.vips.iter().any(|vip| vip.is_ipv6() == *v6) && !own(*v6));
    let told = missing.map(|(v6, family)| {
        let read = format!("{interface} has no {family} address of its own, and a VIP is {family}");
        let sample = if v6 { "fd00::21/64" } else { "10.0.0.21/24" };
        Finding::fault(
            "link",
            read,
            FAMILY,
            format!("ip address add {sample} dev {interface}, with an address of your network"),
        )
    });
    told.collect()
}

/// Peers are not told of link-local addresses.
fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// Whether each peer's port answers; all are asked at the same time.
fn answers(peers: &Peers) -> Vec<Finding> {
    let ask = |peer: &Peer| {
        let (topic, address) = (format!("port of {}", peer.name), peer.address);
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(_) => Finding::good(topic, format!("{address} answers")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let fix = format!("on {}: systemctl start baton, and the same port in its peers.listen", peer.name);
                Finding::advice(topic, format!("{address} refuses: no instance listens there"), DOWN, fix)
            }
            Err(error) => {
                let fix = format!(
                    "on {}: baton check -c /etc/baton/baton.toml --host, which finds the rule that drops the packets",
                    peer.name
                );
                Finding::fault(topic, format!("{address} does not answer: {error}"), UNREACHABLE, fix)
            }
        }
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = peers.peers.iter().map(|peer| scope.spawn(move || ask(peer))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
    })
}

/// Whether this instance's port range is enough if all flows go to one backend.
fn source_ports(config: &Config, peers: &Peers, settings: &mut Vec<Setting>) -> Option<Finding> {
    let topic = "source ports";
    let range = local_ports()?;
    let shown = |range: &RangeInclusive<u16>| format!("{}-{}", range.start(), range.end());
    let flows = flows_max(config);
    let own = port_range(range.clone(), peers.slot);
    let number = size(&range, peers.slot);
    let read = match own {
        Some(own) => format!("slot {}: {}-{}, {number} of {}", peers.slot, own.first, own.last, shown(&range)),
        None => format!("{} is too small for {SLOTS} instances", shown(&range)),
    };
    let suffices = own.is_some() && number >= flows;
    let wide = size(&WIDE, peers.slot);
    let better = if size(&BEYOND, peers.slot) >= flows { BEYOND } else { WIDE };
    // The kernel's default, where nobody has chosen: deploy/sysctl has the wider one, and all hosts need one.
    let value = if suffices && range != source::DEFAULT_RANGE { range } else { better.clone() };
    settings.extend(node_ports::setting(&value));
    // Written even if it is right: it must be the same on all hosts.
    settings.push(Setting {
        path: RANGE.to_owned(),
        value: format!("{} {}", value.start(), value.end()),
        why: PORT_RANGES,
    });
    if suffices {
        return Some(Finding::good(topic, format!("{read}; the range must be the same on all hosts")));
    }
    let fix = format!("sysctl -w net.ipv4.ip_local_port_range=\"{} {}\"", better.start(), better.end());
    let why = format!(
        "max_connections = {flows} flows may all go to one backend, and this instance has {number} ports towards it; the \
         range must be the same on all hosts"
    );
    Some(match own {
        None => Finding::fault(topic, read, PORT_RANGES, fix),
        Some(_) if number < wide => Finding::advice(topic, read, why, fix),
        Some(_) => {
            Finding::advice(topic, read, why, format!("max_connections = {number}, or another instance or backend"))
        }
    })
}

/// The limit for flows, if the file sets one.
fn flows_max(config: &Config) -> u32 {
    config.process.max_connections.unwrap_or(0)
}

/// Ports of one part of `range`.
fn size(range: &RangeInclusive<u16>, slot: u8) -> u32 {
    port_range(range.clone(), slot).map_or(0, |part| u32::from(part.last - part.first) + 1)
}

/// Without offload, Baton's own nftables table exempts the VIP's ports from tracking.
fn nft(config: &Config) -> Option<Finding> {
    let wanted = config.offload.mode == OffloadMode::Off;
    let there = Command::new("nft").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match there {
        _ if !wanted => None,
        Ok(status) if status.success() => {
            Some(Finding::good("nft", "installed: Baton exempts the VIP's ports from tracking"))
        }
        _ => Some(Finding::advice("nft", "not installed", NFT, "apt-get install nftables")),
    }
}

const RANGE: &str = "net/ipv4/ip_local_port_range";
/// All but the ports of well-known services.
const WIDE: RangeInclusive<u16> = 10240..=65535;

const LISTEN_VIP: &str = "the VIP moves to another host: the peers then reach that host instead of this instance, just when they need this one";
const LISTEN_UNREACHABLE: &str = "the peers cannot reach this instance: they know none of its flows when its host dies";
const SHARED_KEY: &str = "any user who can read the key can act as any instance, and reset or redirect flows";
const OWN_KEY: &str = "any user who can read the key can act as this instance, and reset or redirect flows";
const ROUTED: &str = "this host forwards packets of the peer's flows unchanged to the peer as next hop, and a router in between \
                      sends them back: after a move of the VIP the clients of these flows wait";
const UNREACHABLE: &str =
    "the two instances do not know each other's flows: when one host dies, the other cannot reset its clients";
const FAMILY: &str =
    "the peers have no next hop for packets of this host's flows: after a move of the VIP those clients wait";
const DOWN: &str = "until the peer runs, this instance waits for it at each start, for sync_deadline at most";
const PORT_RANGES: &str = "each instance uses an eighth of the range for its connections to backends, and finds the owner of a packet by \
                           its port: the range must be the same on all hosts";
const NFT: &str = "this instance does not offload, so it needs nftables to exempt the VIP from connection tracking: a firewall \
                   that drops untracked packets would keep it from resetting clients";
