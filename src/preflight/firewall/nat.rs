//! Checks whether this host translates packets to a frontend or to a backend: such flows cannot be offloaded, because
//! their packets have other addresses on the wire than their sockets know.
//!
//! The first packet of each leg walks the rules. Rules of Docker, kube-proxy and CNIs for their own networks, or for
//! marked packets, are reported only if they match such a packet. A rule that may match is reported only if it names
//! the packet's address or port.

#[cfg(test)]
mod tests;
mod walk;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::rules::{Act, Chain, Hook, Matched, Rule, RuleTarget, RuleWay, Ruleset, Side, Translation, Transport};
use crate::config::{self, Config, OffloadMode, Source};
use crate::model::finding::Finding;
use crate::preflight::place::HostPlace;
use crate::sys::netdev;
use crate::sys::netlink;
use walk::hit;

const TOPIC: &str = "NAT";

const STAY: &str = "packets on the wire have other addresses than Baton's sockets, so Baton does not offload these \
                    flows (nat): they cost twice the CPU, and end with the process or the host";
const PERHAPS: &str = "in cases that the rules do not show, packets on the wire have other addresses than Baton's \
                       sockets, and Baton does not offload these flows (nat)";
const TAKEN: &str = "clients that connect there do not reach Baton";

/// The first packet of a connection.
#[derive(Clone, Debug)]
struct FirstPacket {
    /// `None`: any client.
    from: Option<IpAddr>,
    to: SocketAddr,
    /// The outgoing interface, if it is known.
    interface: Option<String>,
}

/// `complete`: whether all rules could be read.
pub(super) fn look(rules: &Ruleset, complete: bool, config: &Config, place: &HostPlace) -> Vec<Finding> {
    if config.offload.mode == OffloadMode::Off {
        return Vec::new();
    }
    let listens = config.frontends.iter().flat_map(|frontend| &frontend.listen).map(|vip| vip.socket_addr());
    let services: Vec<_> = listens.filter(|service| !service.ip().is_loopback()).collect();
    let legs: Vec<_> = config.frontends.iter().flat_map(|frontend| legs(frontend, place)).collect();
    let mut findings = judge(rules, &services, &legs);
    if findings.is_empty() && complete {
        findings.push(Finding::good(TOPIC, "no rule translates packets to a frontend or a backend"));
    }
    findings
}

/// One packet to each backend on another host, from each address that Baton may use.
fn legs(frontend: &config::Frontend, place: &HostPlace) -> Vec<FirstPacket> {
    let backends = frontend.backends.iter().filter_map(|backend| match &backend.address {
        config::Target::Address(at) => Some(at.socket_addr()),
        config::Target::Name { .. } => None,
    });
    let mut legs = Vec::new();
    for to in backends.filter(|to| !place.holds(to.ip())) {
        let same_family = |ip: &IpAddr| ip.is_ipv6() == to.is_ipv6() && !ip.is_unspecified();
        let mut sources: Vec<IpAddr> = match frontend.source {
            Source::Auto => frontend.listen.iter().map(|vip| vip.ip()).filter(same_family).collect(),
            Source::Address(ip) => Some(ip).filter(same_family).into_iter().collect(),
            Source::Route => Vec::new(),
        };
        if sources.is_empty() {
            sources.extend(netdev::source_towards(to.ip()));
        }
        let interface = netlink::route(to.ip()).ok().and_then(|route| netdev::name(route.interface).ok());
        legs.extend(sources.into_iter().map(|from| FirstPacket { from: Some(from), to, interface: interface.clone() }));
    }
    legs
}

fn judge(rules: &Ruleset, services: &[SocketAddr], legs: &[FirstPacket]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for service in services {
        findings.extend(taken(rules, *service));
        let from_clients = FirstPacket { from: None, to: *service, interface: None };
        if let Some(hit) = hit(rules, Hook::Input, &from_clients, Side::Source) {
            findings.push(hit.finding(&format!("clients of {service}"), &[*service]));
        }
        findings.extend(brought(rules, *service));
    }
    // One finding per rule, however many backends it concerns.
    let mut of_rules = BTreeMap::<_, (Hit<'_>, Vec<SocketAddr>)>::new();
    for leg in legs {
        for (hook, side) in [(Hook::Output, Side::Destination), (Hook::Postrouting, Side::Source)] {
            if let Some(hit) = hit(rules, hook, leg, side) {
                let (_, to) = of_rules.entry(hit.rule.delete.clone()).or_insert((hit, Vec::new()));
                if !to.contains(&leg.to) {
                    to.push(leg.to);
                }
            }
        }
    }
    for (hit, to) in of_rules.into_values() {
        let names: Vec<_> = to.iter().map(ToString::to_string).collect();
        findings.push(hit.finding(&format!("packets to {}", names.join(", ")), &to));
    }
    findings
}

/// Connections to the service that are certainly translated to another address.
fn taken(rules: &Ruleset, service: SocketAddr) -> Option<Finding> {
    if service.ip().is_unspecified() {
        return None;
    }
    let packet = FirstPacket { from: None, to: service, interface: None };
    let hit = hit(rules, Hook::Prerouting, &packet, Side::Destination).filter(|hit| hit.certain)?;
    let Act::Translate(translation) = &hit.rule.act else { return None };
    let is_of_other_process = match translation.to {
        RuleTarget::Address(ip) => ip != service.ip() || !has_port(translation, service.port()),
        RuleTarget::Own | RuleTarget::Same => translation.ports.is_some() && !has_port(translation, service.port()),
    };
    let read = format!("{hit} redirects connections to {service} to another address or port");
    is_of_other_process.then(|| Finding::fault(TOPIC, read, TAKEN, hit.exempt(&[service])))
}

/// Connections to other addresses or ports that are translated to the service.
fn brought(rules: &Ruleset, service: SocketAddr) -> Vec<Finding> {
    let mut findings = Vec::new();
    for chain in reached(rules, Hook::Prerouting) {
        for rule in &chain.rules {
            let Act::Translate(translation) = &rule.act else { continue };
            let to_service = match translation.to {
                RuleTarget::Address(ip) => {
                    ip == service.ip() || (service.ip().is_unspecified() && is_same_family(ip, service))
                }
                RuleTarget::Own => true,
                RuleTarget::Same => translation.is_stateless && translation.ports.is_some(),
            };
            let to_port = match &translation.ports {
                Some(ports) => ports.contains(&service.port()),
                None => says(
                    rule,
                    |matched| matches!(matched, Matched::Port(_, Side::Destination, ports) if ports.iter().any(|range| range.contains(&service.port()))),
                ),
            };
            let is_ours = rule.tests.iter().all(|test| match &test.of {
                Matched::Family(family) => ((*family == 6) == service.is_ipv6()) != test.negated,
                Matched::Protocol(protocols) => has_tcp(protocols) != test.negated,
                Matched::Port(Some(Transport::Udp), ..) => false,
                _ => true,
            });
            // A translation to the same address and port changes nothing.
            let changes = translation.ports.is_some() || matches!(translation.to, RuleTarget::Address(_));
            if translation.side == Side::Destination && to_service && to_port && is_ours && changes {
                let read = format!("{}: {rule} redirects connections to the frontend at {service}", place_of(chain));
                let fix = format!("add to [[frontend]] listen where these clients connect, then: {}", rule.delete);
                findings.push(Finding::hindrance(TOPIC, read, STAY, fix));
            }
        }
    }
    findings
}

fn is_same_family(ip: IpAddr, service: SocketAddr) -> bool {
    ip.is_ipv6() == service.is_ipv6()
}

fn has_port(translation: &Translation, port: u16) -> bool {
    translation.ports.as_ref().is_none_or(|ports| ports.contains(&port))
}

fn has_tcp(protocols: &[String]) -> bool {
    protocols.iter().any(|one| one == "tcp" || one == "6" || one == "all")
}

fn says(rule: &Rule, what: impl Fn(&Matched) -> bool) -> bool {
    rule.tests.iter().any(|test| !test.negated && what(&test.of))
}

fn place_of(chain: &Chain) -> String {
    format!("{} {}", chain.table, chain.name)
}

/// The base chains at `hook`, and all chains that they call.
fn reached(rules: &Ruleset, hook: Hook) -> Vec<&Chain> {
    let mut reached: Vec<_> = rules.at(hook).into_iter().map(|(chain, _)| chain).collect();
    let mut next = 0;
    while let Some(chain) = reached.get(next).copied() {
        next += 1;
        for rule in &chain.rules {
            let (Act::Jump(name) | Act::Goto(name)) = &rule.act else { continue };
            let called = rules.chains.iter().find(|other| other.table == chain.table && other.name == *name);
            reached.extend(called.filter(|called| !reached.iter().any(|known| std::ptr::eq(*known, *called))));
        }
    }
    reached
}

/// A rule that translates a packet.
struct Hit<'r> {
    /// The chain in which an earlier rule would have to be inserted.
    base: &'r Chain,
    chain: &'r Chain,
    rule: &'r Rule,
    certain: bool,
    /// Whether one of the tests on the way names the packet's own address or port.
    named: bool,
}

impl std::fmt::Display for Hit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", place_of(self.chain), self.rule)
    }
}

impl Hit<'_> {
    fn finding(&self, whom: &str, to: &[SocketAddr]) -> Finding {
        let read = format!("{self} translates {whom}");
        match self.certain {
            true => Finding::hindrance(TOPIC, read, STAY, self.exempt(to)),
            false => Finding::advice(TOPIC, read, PERHAPS, self.exempt(to)),
        }
    }

    /// The rule that exempts these from the translation.
    fn exempt(&self, to: &[SocketAddr]) -> String {
        if matches!(&self.rule.act, Act::Translate(translation) if translation.is_stateless) {
            return self.rule.delete.clone();
        }
        let rule = |to: &SocketAddr| {
            let (ip, port) = (to.ip(), to.port());
            let (family, bits) = if to.is_ipv6() { ("ip6", 128) } else { ("ip", 32) };
            match self.rule.way {
                RuleWay::Iptables => {
                    // The older tables and the newer ones are independent of each other.
                    let command = self.rule.delete.split(' ').next().unwrap_or_default();
                    format!("{command} -t nat -I {} -p tcp -d {ip}/{bits} --dport {port} -j ACCEPT", self.base.name)
                }
                RuleWay::Nft => {
                    format!(
                        "nft insert rule {} {} {family} daddr {ip} tcp dport {port} accept",
                        self.base.table, self.base.name
                    )
                }
            }
        };
        to.iter().map(rule).collect::<Vec<_>>().join(" && ")
    }
}
