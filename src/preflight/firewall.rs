//! Checks whether the firewall lets the kernel tell a client that its connection is gone.
//!
//! When a VIP arrives, packets of connections that began on another host arrive too. The kernel answers them with RST,
//! unless a rule drops packets that conntrack does not know: then their clients wait for minutes, the very fault that
//! Baton must prevent.
//!
//! ```text
//!   nft -j ─▶ nft ──────┐
//!                       ├─▶ rules ─▶ walk: the verdict on such a packet, and on its answer
//!   iptables-save ─▶ iptables ─┘  └─▶ nat: whether they translate it
//! ```

mod iptables;
mod nat;
mod nft;
mod rules;
#[cfg(test)]
mod tests;
mod walk;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use super::kernel;
use super::place::HostPlace;
use crate::config::{Config, Peer};
use crate::model::finding::Finding;
use crate::model::untracked;
use rules::{RuleWay, Ruleset, Transport};
use walk::{Culprit, Packet, Towards, culprit};

const TOPIC: &str = "firewall";

pub(super) fn look(config: &Config, place: &HostPlace) -> Vec<Finding> {
    let (rules, unread) = read();
    let translated = nat::look(&rules, unread.is_empty(), config, place);
    let mut findings = of_vips(&rules, unread, place);
    findings.extend(translated);
    findings
}

fn of_vips(rules: &Ruleset, unread: Vec<Finding>, place: &HostPlace) -> Vec<Finding> {
    let services: Vec<_> = place.services.iter().copied().filter(|s| place.vips.contains(&s.ip())).collect();
    if services.is_empty() {
        return vec![Finding::good(TOPIC, "no VIP: every connection begins here")];
    }
    let mut findings = unread;
    let loose = kernel::read("net/netfilter/nf_conntrack_tcp_loose");
    let found = services.iter().find_map(|service| judge(rules, *service, loose));
    match found {
        Some(finding) => findings.push(finding),
        None if findings.is_empty() => {
            let number: usize = rules.chains.iter().map(|chain| chain.rules.len()).sum();
            findings.push(Finding::good(
                TOPIC,
                format!("{number} rules; none drops connections that began on another host"),
            ));
        }
        None => {}
    }
    findings
}

/// Whether each of `peers` may connect to `listen`, and whether its beats reach `beat_port` there.
pub(super) fn let_in(listen: SocketAddr, beat_port: u16, peers: &[Peer]) -> Vec<Finding> {
    let (rules, _) = read();
    let beats = SocketAddr::new(listen.ip(), beat_port);
    vec![admits(&rules, Transport::Tcp, listen, peers), admits(&rules, Transport::Udp, beats, peers)]
}

/// Whether packets of each of `peers` to `at` come in.
fn admits(rules: &Ruleset, transport: Transport, at: SocketAddr, peers: &[Peer]) -> Finding {
    let (topic, why, perhaps) = match transport {
        Transport::Tcp => ("firewall of peers.listen", PEERS, PEERS_PERHAPS),
        Transport::Udp => ("firewall of peers.beat_port", BEATS, BEATS_PERHAPS),
    };
    let what = transport.name();
    for peer in peers {
        let ip = peer.address.ip();
        let packet = Packet { transport, service: at, towards: Towards::Service, state: "new", other: Some(ip) };
        let Some(culprit) = culprit(rules, packet) else { continue };
        let read = format!("{culprit} drops packets of {} ({ip}) to {what} {at}", peer.name);
        let fix = culprit.accept(rules, transport, at, Some(ip));
        return match (transport, culprit.perhaps) {
            (Transport::Tcp, false) => Finding::fault(topic, read, why, fix),
            // Beats are only needed while the link is cut.
            (Transport::Udp, false) => Finding::advice(topic, read, why, fix),
            (_, true) => Finding::advice(topic, read, perhaps, fix),
        };
    }
    Finding::good(topic, format!("no rule drops packets of peers to {what} {at}"))
}

/// The fault of `rules` for clients of `service`. `loose`: nf_conntrack_tcp_loose, if connections are tracked.
fn judge(rules: &Ruleset, service: SocketAddr, loose: Option<i64>) -> Option<Finding> {
    let packet = |towards, state| Packet { transport: Transport::Tcp, service, towards, state, other: None };
    if let Some(culprit) = culprit(rules, packet(Towards::Service, "new")).filter(|culprit| !culprit.perhaps) {
        let does = if culprit.rule.ends_with("reject") { "rejects" } else { "drops" };
        let read = format!("{culprit} {does} new connections to {service}");
        return Some(Finding::fault(
            TOPIC,
            read,
            "no client can connect",
            culprit.accept(rules, Transport::Tcp, service, None),
        ));
    }
    // With loose tracking, the first packet of a connection that arrives here makes it a new one; without, the packet
    // is invalid. A client's answer to a challenge is invalid in both cases.
    let certain = loose == Some(0);
    for towards in [Towards::Service, Towards::Client] {
        let Some(culprit) = culprit(rules, packet(towards, "invalid")) else { continue };
        let what = match towards {
            Towards::Service => "packets of connections that this host has not seen begin",
            Towards::Client => "resets of connections that this host has not seen begin",
        };
        let read = format!("{culprit} drops {what}, to and from {service}");
        let fix = culprit.notrack(rules, service);
        return Some(match certain && !culprit.perhaps {
            true => Finding::fault(TOPIC, read, FAULT, fix),
            false if certain => Finding::advice(TOPIC, read, PERHAPS, fix),
            false => Finding::advice(TOPIC, read, LOOSE, fix),
        });
    }
    None
}

const FAULT: &str = "when the VIP comes here, clients of connections that began on another host get no answer, not \
                     even a reset: they wait a quarter of an hour, until TCP gives up";
const PERHAPS: &str = "for some clients, or in cases that the rules do not show, this host does not answer connections that began on \
                       another host when the VIP comes here";
const PEERS: &str =
    "the peer does not receive this host's flows: when one of the two dies, the other cannot reset its clients";
const PEERS_PERHAPS: &str = "in cases that the rules do not show, the peer does not receive this host's flows";
const BEATS: &str =
    "if the link between the two is cut, each considers the other dead though it lives, and resets its flows";
const BEATS_PERHAPS: &str = "in cases that the rules do not show, this host receives no beats of the peer, and considers it dead when \
                             the link is cut";
const LOOSE: &str = "with nf_conntrack_tcp_loose most packets of connections that began on another host count as new, but the rule \
                     drops segments outside a window without an answer";

impl Culprit {
    /// A rule before all others of its chain that accepts the service's packets. `from`: only those of that client.
    fn accept(&self, _rules: &Ruleset, transport: Transport, service: SocketAddr, from: Option<IpAddr>) -> String {
        let protocol = transport.name();
        let (command, bits) = if service.is_ipv6() { ("ip6tables", 128) } else { ("iptables", 32) };
        let (ip, port) = (service.ip(), service.port());
        match self.way {
            RuleWay::Iptables => {
                let from = from.map(|from| format!("-s {from}/{bits} ")).unwrap_or_default();
                format!("{command} -I {} -p {protocol} {from}-d {ip}/{bits} --dport {port} -j ACCEPT", self.chain)
            }
            RuleWay::Nft => {
                let family = if service.is_ipv6() { "ip6" } else { "ip" };
                let chain = format!("{} {}", self.table, self.chain);
                let from = from.map(|from| format!("{family} saddr {from} ")).unwrap_or_default();
                format!("nft insert rule {chain} {from}{family} daddr {ip} {protocol} dport {port} accept")
            }
        }
    }

    /// A rule that keeps conntrack from judging the service's packets; with one that accepts them, if only tracked
    /// packets pass.
    fn notrack(&self, rules: &Ruleset, service: SocketAddr) -> String {
        let mut fix = format!(
            "nft 'table inet baton_notrack {{ \
             chain in {{ type filter hook prerouting priority raw; {}; }}; \
             chain out {{ type filter hook output priority raw; {}; }}; }}'",
            untracked::coming(service).join("; "),
            untracked::going(service),
        );
        let state = "untracked";
        let untracked = Packet { transport: Transport::Tcp, service, towards: Towards::Service, state, other: None };
        if let Some(culprit) = culprit(rules, untracked) {
            fix = format!("{fix} && {}", culprit.accept(rules, Transport::Tcp, service, None));
        }
        fix
    }
}

impl std::fmt::Display for Culprit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.table, self.chain, self.rule)
    }
}

/// All rules of this network namespace, and findings about those that could not be read.
fn read() -> (Ruleset, Vec<Finding>) {
    let (mut rules, mut findings) = (Ruleset::default(), Vec::new());
    let mut foreign = Vec::new();
    match run("nft", &["-j", "list", "ruleset"]) {
        Ok(text) => match serde_json::from_str(&text).ok().as_ref().and_then(nft::read) {
            Some(read) => (rules, foreign) = (read.rules, read.foreign),
            None => findings.push(unread("nftables", "Baton does not understand the output of nft")),
        },
        Err(error) => findings.push(unread("nftables", error)),
    }
    for (family, command, changes) in
        [("ip", "iptables-nft-save", "iptables"), ("ip6", "ip6tables-nft-save", "ip6tables")]
    {
        if !foreign.iter().any(|foreign| foreign == family) {
            continue;
        }
        match run(command, &[]) {
            Ok(text) => {
                // iptables-save shows more of the same tables than nft does.
                let told = iptables::read(&text, changes);
                rules.chains.retain(|chain| !told.chains.iter().any(|other| other.table == chain.table));
                rules.chains.extend(told.chains);
            }
            Err(error) => findings.push(unread(command, error)),
        }
    }
    for (changes, command, names) in [
        ("iptables-legacy", "iptables-legacy-save", "ip_tables_names"),
        ("ip6tables-legacy", "ip6tables-legacy-save", "ip6_tables_names"),
    ] {
        let names = std::fs::read_to_string(format!("/proc/thread-self/net/{names}")).unwrap_or_default();
        if names.trim().is_empty() {
            continue;
        }
        match run(command, &[]) {
            Ok(text) => rules.chains.extend(iptables::read(&text, changes).chains),
            Err(error) => findings.push(unread(command, error)),
        }
    }
    (rules, findings)
}

/// Reads `bytes` as each listing, and walks through the rules.
#[cfg(fuzzing)]
pub(super) fn read_any(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let of_nft = serde_json::from_slice(bytes).ok().as_ref().and_then(nft::read).map(|read| read.rules);
    let service = ([10, 0, 0, 100], 6443).into();
    for rules in of_nft.into_iter().chain([iptables::read(&text, "iptables")]) {
        for (towards, state) in [(Towards::Service, "invalid"), (Towards::Client, "untracked")] {
            culprit(&rules, Packet { transport: Transport::Tcp, service, towards, state, other: None });
        }
        judge(&rules, service, Some(0));
    }
}

fn unread(what: &str, why: impl std::fmt::Display) -> Finding {
    Finding::advice(
        TOPIC,
        format!("cannot read {what}: {why}"),
        "a rule that drops untracked packets would leave clients waiting when the VIP comes here",
        "run this as root, with nft (Debian: nftables) or iptables-save installed",
    )
}

fn run(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(said.lines().next().unwrap_or("the command failed").to_owned()))
        }
    }
}
