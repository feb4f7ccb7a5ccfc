//! `[[frontend]]`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeTable;

use super::document::Document;
use super::kind::{Kind, Listen, Name, Network, OneOf, SourcePlace, Time, Truth, Whole, time, whole};
use super::process::cap;
use super::section::{Element, Section};
use super::{
    Backend, Discover, DiscoverSource, Frontend, Keepalive, Limits, ProxyProtocol, Rebalance, RebalanceWhen, SharePort,
    Source, Target, backend, can_share_port, discover, health,
};
use crate::addr::{SourceMask, VipAddr};
use crate::model::balance::Balance;
use crate::model::duration::display;

/// A frontend, and the places of its addresses in the file. After an error its values are meaningless.
pub(super) struct Read {
    pub frontend: Frontend,
    pub listen: Vec<Element<VipAddr>>,
}

/// Reads one table `[[frontend]]`. `reset_within` is `[process]`'s.
pub(super) fn read(section: &Section, reset_within: Duration) -> Read {
    let name = section.require("name", &Name).unwrap_or_default();
    let listen = listen(section);
    let drain_timeout = section.read_or("drain_timeout", &DRAIN_TIMEOUT, Duration::from_secs(150));
    if drain_timeout.value.is_zero() && drain_timeout.is_given() {
        let message = format!(
            "{} is \"0s\": Baton resets connections to a draining backend at once",
            section.name("drain_timeout")
        );
        section.warn("drain_timeout", message, "set a few seconds, in which they can end by themselves");
    }
    let (connect_timeout, hedge_after, connect_attempts) = connect(section);
    let discover = discover::read(&section.table("discover"), &name, section.has("discover"));
    // A cluster says where its apiservers are only at one of them.
    let is_of_cluster = |it: &Discover| matches!(it.source, DiscoverSource::Kubernetes(_));
    let needs_backends = !section.has("discover") || discover.as_ref().is_some_and(is_of_cluster);
    let mut frontend = Frontend {
        name: Arc::from(name),
        listen: listen.iter().map(|element| element.value).collect(),
        share_port: share_port(section, &listen),
        balance: section.read_or("balance", &BALANCE, Balance::LeastConn).value,
        source: Source::Auto,
        connect_timeout,
        hedge_after,
        connect_attempts,
        drain_timeout: drain_timeout.value,
        idle_timeout: idle_timeout(section),
        keepalive: keepalive(section),
        proxy_protocol: proxy_protocol(section),
        limits: limits(section),
        allow: networks(section, "allow"),
        deny: networks(section, "deny"),
        rebalance: rebalance(&section.table("rebalance")),
        health: health::read(&section.table("health"), reset_within),
        backends: backend::read_all(section, !needs_backends),
        discover,
    };
    frontend.source = source(section, &frontend.backends);
    Read { frontend, listen }
}

/// A frontend with default settings: for the last flows of one that the file no longer has.
pub fn by_default(name: &str) -> Frontend {
    let document = Document::new(Path::new("defaults"), "");
    let nothing = DeTable::new();
    let read = read(&Section::root(&document, &nothing), Duration::ZERO);
    Frontend { name: Arc::from(name), ..read.frontend }
}

fn listen(section: &Section) -> Vec<Element<VipAddr>> {
    let listen = section.list("listen", &Listen);
    if section.is_absent_or_empty("listen") {
        let name = section.name("listen");
        let message = if section.has("listen") { format!("{name} is empty") } else { format!("missing {name}") };
        let help = format!("expected an array in [ ] of at least one: {}", Listen.allowed());
        section.refuse("listen", message, help);
    }
    for element in listen.iter().filter(|element| element.value.port() == 0) {
        let message = format!("{} is \"{}\", without a fixed port", element.name, element.value);
        section.document.warning(
            &element.place,
            message,
            "set a port: with 0 the kernel chooses another one at each start",
        );
    }
    listen
}

fn share_port(section: &Section, listen: &[Element<VipAddr>]) -> SharePort {
    let share_port = section.read_or("share_port", &SHARE_PORT, SharePort::Auto).value;
    let other = listen.iter().find(|element| !can_share_port(element.value));
    if let (SharePort::On, Some(other)) = (share_port, other) {
        let message = format!("{} is \"on\", and {} is \"{}\"", section.name("share_port"), other.name, other.value);
        section.refuse(
            "share_port",
            message,
            "expected only single addresses in \"listen\", each with a port: not 0.0.0.0, not [::], none of loopback; or set \
             \"auto\", which binds the ports of such addresses",
        );
    }
    share_port
}

fn source(section: &Section, backends: &[Backend]) -> Source {
    let source = section.read_or("source", &SourcePlace, Source::Auto).value;
    if let Source::Address(ip) = source {
        let other_family = |backend: &&Backend| match backend.address {
            Target::Address(address) => address.ip().is_ipv4() != ip.is_ipv4(),
            Target::Name { .. } => false,
        };
        if let Some(backend) = backends.iter().find(other_family) {
            let name = section.name("source");
            let message =
                format!("{name} is \"{ip}\", and backend {:?} is of the other address family", &*backend.name);
            section.warn(
                "source",
                message,
                "set an address of the backends' family: for backends of the other family the kernel chooses the \
                 source address",
            );
        }
    }
    source
}

fn connect(section: &Section) -> (Duration, Option<Duration>, u32) {
    let timeout = section.read_or("connect_timeout", &CONNECT_TIMEOUT, Duration::from_secs(1));
    let hedge_after = section.read_or("hedge_after", &HEDGE_AFTER, Duration::from_millis(200));
    let attempts = section.read_or("connect_attempts", &whole(1, 16), 3);
    let refused = timeout.is_refused() || hedge_after.is_refused();
    let hedged = !hedge_after.value.is_zero();
    if hedged && hedge_after.value >= timeout.value && !refused {
        let key = if hedge_after.is_given() { "hedge_after" } else { "connect_timeout" };
        let (hedge, timeout) = (display(hedge_after.value), display(timeout.value));
        let title = section.title();
        let message = format!("hedge_after ({hedge}) is not below connect_timeout ({timeout}) in {title}");
        section.warn(key, message, "set hedge_after below connect_timeout, or no hedged attempt ever starts");
    }
    if hedged && hedge_after.is_given() && attempts.value == 1 && attempts.is_given() {
        let message = format!("{} is 1, although hedge_after is set", section.name("connect_attempts"));
        section.warn("connect_attempts", message, "set at least 2, or no hedged attempt ever starts");
    }
    (timeout.value, (hedged).then_some(hedge_after.value), attempts.value)
}

fn idle_timeout(section: &Section) -> Option<Duration> {
    let idle = section.read_or("idle_timeout", &IDLE_TIMEOUT, Duration::ZERO);
    if !idle.value.is_zero() && idle.value < QUIET_WATCH {
        let message = format!(
            "{} is \"{}\", and watches of Kubernetes are silent for longer",
            section.name("idle_timeout"),
            display(idle.value)
        );
        section.warn("idle_timeout", message, format!("set \"0s\" (never) or at least \"{}\"", display(QUIET_WATCH)));
    }
    (!idle.value.is_zero()).then_some(idle.value)
}

fn keepalive(section: &Section) -> Keepalive {
    let idle = section.read_or("keepalive_idle", &KEEPALIVE, Duration::from_secs(10));
    let interval = section.read_or("keepalive_interval", &KEEPALIVE, Duration::from_secs(5));
    let user_timeout = section.read_or("user_timeout", &USER_TIMEOUT, Duration::from_secs(30));
    // The kernel counts user_timeout from the last received segment, including the idle time before the first probe,
    // and then ends a flow with any unanswered probe, whatever their count (net/ipv4/tcp_timer.c, tcp_keepalive_timer).
    let second_probe = idle.value + interval.value;
    let refused = user_timeout.is_refused() || idle.is_refused() || interval.is_refused();
    if user_timeout.value <= second_probe && !refused {
        let given = [("user_timeout", &user_timeout), ("keepalive_idle", &idle), ("keepalive_interval", &interval)];
        let key = given.iter().find(|(_, read)| read.is_given()).map_or("user_timeout", |(key, _)| key);
        let (user, second) = (display(user_timeout.value), display(second_probe));
        let title = section.title();
        let message =
            format!("user_timeout ({user}) is not above keepalive_idle + keepalive_interval ({second}) in {title}");
        section.warn(key, message, "set user_timeout above their sum, or one lost probe ends an idle connection");
    }
    Keepalive {
        idle: idle.value,
        interval: interval.value,
        count: section.read_or("keepalive_count", &whole(1, 127), 3).value,
        user_timeout: user_timeout.value,
    }
}

fn proxy_protocol(section: &Section) -> ProxyProtocol {
    let accept_from = section.list("accept_proxy_from", &Network);
    for element in accept_from.iter().filter(|element| element.value.prefix_len() == 0) {
        let message = format!("{} is \"{}\", which is every client", element.name, element.value);
        let help = "name only the networks of the proxies: the sender of a header chooses the client address for limits and \
             lists";
        section.document.warning(&element.place, message, help);
    }
    ProxyProtocol {
        accept_from: accept_from.into_iter().map(|element| element.value).collect(),
        header_timeout: section.read_or("proxy_header_timeout", &PROXY_HEADER_TIMEOUT, Duration::from_secs(3)).value,
        send_v2: section.read_or("send_proxy_v2", &Truth, false).value,
    }
}

fn limits(section: &Section) -> Limits {
    let bits = |key, kind: &Whole, default: u8| {
        section.read_or(key, kind, u32::from(default)).value.try_into().unwrap_or(default)
    };
    let SourceMask { ipv4_bits, ipv6_bits } = SourceMask::default();
    Limits {
        max_connections: cap(section, "max_connections"),
        max_connections_per_source: cap(section, "max_connections_per_source"),
        accept_rate_per_source: cap(section, "accept_rate_per_source"),
        source_mask: SourceMask {
            ipv4_bits: bits("source_mask_ipv4", &whole(0, 32), ipv4_bits),
            ipv6_bits: bits("source_mask_ipv6", &whole(0, 128), ipv6_bits),
        },
    }
}

fn networks(section: &Section, key: &str) -> Vec<ipnet::IpNet> {
    let networks = section.list(key, &Network);
    for element in networks.iter().filter(|element| key == "deny" && element.value.prefix_len() == 0) {
        let message = format!("{} is \"{}\", which denies every client", element.name, element.value);
        section.document.warning(&element.place, message, "name a narrower network");
    }
    networks.into_iter().map(|element| element.value).collect()
}

fn rebalance(section: &Section) -> Rebalance {
    Rebalance {
        when: section.read_or("when", &REBALANCE_WHEN, RebalanceWhen::AfterOutage).value,
        per_minute: section.read_or("per_minute", &whole(1, 60_000), 60).value,
        min_idle: section.read_or("min_idle", &MIN_IDLE, Duration::from_secs(5)).value,
        tolerance_percent: section.read_or("tolerance_percent", &whole(1, 1000), 10).value,
    }
}

const SHARE_PORT: OneOf<SharePort> =
    OneOf(&[("auto", SharePort::Auto), ("on", SharePort::On), ("off", SharePort::Off)]);
const BALANCE: OneOf<Balance> = OneOf(&[
    ("least_conn", Balance::LeastConn),
    ("round_robin", Balance::RoundRobin),
    ("random_two", Balance::RandomTwo),
    ("source_hash", Balance::SourceHash),
]);
const REBALANCE_WHEN: OneOf<RebalanceWhen> = OneOf(&[
    ("after_outage", RebalanceWhen::AfterOutage),
    ("always", RebalanceWhen::Always),
    ("ordered", RebalanceWhen::Ordered),
]);
const DAY: Duration = Duration::from_secs(24 * 3600);
const CONNECT_TIMEOUT: Time = time(Duration::from_millis(10), Duration::from_secs(120));
const HEDGE_AFTER: Time = Time { zero: Some("never"), ..time(Duration::from_millis(1), Duration::from_secs(120)) };
const DRAIN_TIMEOUT: Time = Time { zero: Some("reset at once"), ..time(Duration::from_millis(100), DAY) };
const IDLE_TIMEOUT: Time =
    Time { zero: Some("never"), ..time(Duration::from_secs(1), Duration::from_secs(30 * 24 * 3600)) };
/// tcp(7) caps TCP_KEEPIDLE and TCP_KEEPINTVL at 32767 s.
const KEEPALIVE: Time = Time { whole_seconds: true, ..time(Duration::from_secs(1), Duration::from_secs(7200)) };
const USER_TIMEOUT: Time = time(Duration::from_millis(500), Duration::from_secs(7200));
const PROXY_HEADER_TIMEOUT: Time = time(Duration::from_millis(10), Duration::from_secs(60));
const MIN_IDLE: Time = time(Duration::from_millis(100), DAY);
/// HTTP/2 clients of an apiserver ping a silent connection after 30 s; a limit below twice that would end idle watches.
const QUIET_WATCH: Duration = Duration::from_secs(60);
