//! `[[frontend]]` and `[[frontend.backend]]` from a frontend and the backend that it leads to.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::access::access;
use super::names::discover;
use super::probe::{GlobalProbes, health};
use super::sections::{CfgSection, Directive, Effective};
use super::server::{CfgServer, servers};
use super::unset;
use super::value::{self, bounded, duration, listening, time, time_in};
use crate::model::duration::display;
use crate::translate::ledger::Ledger;
use crate::translate::toml::{Toml, array, name, quoted};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The bounds of Baton's keys.
const CONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(120));
const USER_TIMEOUT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(7200));
const IDLE_MIN: Duration = Duration::from_secs(1);
const CONNECT_ATTEMPTS_MAX: u32 = 16;
const KEEPALIVE_S_MAX: u64 = 7200;
const KEEPALIVE_COUNT_MAX: u32 = 127;

/// The keys of one table.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// With its brackets.
    header: &'static str,
    /// Lines above the keys.
    comments: Vec<String>,
    keys: Vec<(&'static str, String, String)>,
}

impl Draft {
    pub(super) fn new(header: &'static str) -> Self {
        Self { header, comments: Vec::new(), keys: Vec::new() }
    }

    /// Sets a key that the `line` asks for. The first line that sets a key wins.
    pub(super) fn set(&mut self, key: &'static str, value: String, line: usize, ledger: &mut Ledger) {
        if self.keys.iter().any(|(known, ..)| *known == key) {
            return;
        }
        ledger.translated(line, format!("{} {key} = {value}", self.header));
        self.keys.push((key, value, ledger.place(line)));
    }

    pub(super) fn has_tls(&self) -> bool {
        self.keys.iter().any(|(key, value, _)| *key == "kind" && ["\"tls\"", "\"https\""].contains(&value.as_str()))
    }

    fn write(&self, toml: &mut Toml) {
        if !self.keys.is_empty() {
            toml.table(self.header);
            self.comments.iter().for_each(|words| toml.comment(words));
            self.keys.iter().for_each(|(key, value, place)| toml.key(key, value, place));
        }
    }
}

/// The sections of one frontend of Baton's.
pub(super) struct ProxyPair<'c> {
    pub frontend: &'c CfgSection,
    /// The same section for `listen`.
    pub backend: &'c CfgSection,
}

/// What all pairs share.
pub(super) struct TranslatedProxies<'c> {
    pub sections: &'c [CfgSection],
    pub global: GlobalProbes,
    /// The names that are in use.
    pub names: Vec<String>,
    /// The addresses that are in use.
    pub listening: Vec<SocketAddr>,
    /// Those of each frontend that was written.
    pub written: Vec<(String, Vec<SocketAddr>)>,
    /// What is to do by hand before the file serves.
    pub steps: Vec<String>,
}

/// Writes the frontend of `pair`. `false`: nothing can be written, and the ledger says why.
pub(super) fn write(pair: &ProxyPair, shared: &mut TranslatedProxies, toml: &mut Toml, ledger: &mut Ledger) -> bool {
    let ProxyPair { frontend, backend } = pair;
    let (front, back) = (frontend.effective(shared.sections), backend.effective(shared.sections));
    let mut table = Draft::new("[[frontend]]");
    let is_its_name = if frontend.name.is_empty() { &frontend.keyword } else { &frontend.name };
    let own_name = name(is_its_name, &shared.names);
    let others = shared.listening.len();
    let ports = binds(frontend, shared, &mut table, ledger);
    let servers =
        servers(back.all().filter(|it| ["server", "server-template", "default-server"].contains(&it.word(0))), ledger);
    if ports.is_empty() || servers.is_empty() {
        let what = if ports.is_empty() { "bind that Baton can have" } else { "server" };
        ledger.missing(frontend.line, format!("no frontend is written: it has no {what}"));
        return false;
    }
    let (discover, source) = discover(&servers, &ports, shared.sections, ledger);
    let mut backends = Vec::new();
    for server in servers.iter().filter(|it| it.count.is_none() && Some(it.line) != source) {
        backends.extend(backend_table(server, &ports, &backends, ledger));
    }
    if backends.is_empty() && source.is_none() {
        ledger.missing(frontend.line, "no frontend is written: it has no server that Baton can connect to");
        return false;
    }
    let mut named = Draft::new("[[frontend]]");
    named.set("name", quoted(&own_name), frontend.line, ledger);
    if frontend.line != backend.line {
        ledger.translated(backend.line, "its servers are the frontend's [[frontend.backend]]");
    }
    settings(&front, &back, &servers, &mut table, ledger);
    let has_proxy = frontend.own("bind").any(|bind| bind.words.iter().any(|word| word == "accept-proxy"));
    let own_backend = (frontend.line != backend.line).then_some(&back);
    let admitting = access(&front, own_backend, has_proxy, &mut table, ledger);
    if !admitting.is_empty() {
        let lines = admitting.iter().map(|line| ledger.place(*line)).collect::<Vec<_>>().join(", ");
        named.comments.push(format!("It admits clients that HAProxy rejects: {lines}."));
        shared.steps.push(format!(
            "set \"allow\" or \"deny\" of frontend {own_name} before it serves: it admits clients that HAProxy rejects ({lines})"
        ));
    }
    shared.written.push((own_name.clone(), shared.listening[others..].to_vec()));
    shared.names.push(own_name);
    named.keys.extend(table.keys);
    named.write(toml);
    health(&back, &servers, &shared.global, ledger).write(toml);
    discover.write(toml);
    backends.iter().for_each(|(_, draft)| draft.write(toml));
    true
}

/// Reads the lines `bind`; returns the ports of the addresses that Baton can listen on.
fn binds(frontend: &CfgSection, shared: &mut TranslatedProxies, table: &mut Draft, ledger: &mut Ledger) -> Vec<u16> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let mut lines = Vec::new();
    let mut with_proxy = Vec::new();
    for directive in frontend.own("bind") {
        let line = directive.line;
        let has = |word: &str| directive.words.iter().any(|it| it == word);
        if has("ssl") {
            ledger.missing(line, "ssl: Baton ends no TLS, so it does not listen here; without ssl it would pass clients' TLS on to the backends");
            continue;
        }
        match listening(directive.word(1), has("v6only")) {
            Err(why) => {
                ledger.missing(line, why);
                continue;
            }
            Ok(some) => {
                let new: Vec<_> = some.into_iter().filter(|it| !shared.listening.contains(it)).collect();
                if new.is_empty() {
                    ledger.kept(line, "another line has this address");
                }
                shared.listening.extend(&new);
                addresses.extend(&new);
            }
        }
        lines.push(line);
        if has("accept-proxy") {
            with_proxy.push(line);
        }
        bind_options(directive, table, ledger);
    }
    let Some(first) = lines.first().filter(|_| !addresses.is_empty()) else { return Vec::new() };
    let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    for line in &lines[1..] {
        ledger.translated(*line, format!("[[frontend]] listen = {}", array(&all)));
    }
    table.set("listen", array(&all), *first, ledger);
    match with_proxy.first() {
        Some(line) if with_proxy.len() == lines.len() => {
            table.set("accept_proxy_from", array(&["0.0.0.0/0", "::/0"]), *line, ledger);
        }
        Some(_) => with_proxy.iter().for_each(|line| {
            ledger.missing(*line, "accept-proxy: Baton asks for a PROXY header by the client's network, not by the address it connects to: set accept_proxy_from");
        }),
        None => {}
    }
    let mut ports: Vec<_> = addresses.iter().map(SocketAddr::port).collect();
    ports.dedup();
    ports
}

fn bind_options(directive: &Directive, table: &mut Draft, ledger: &mut Ledger) {
    const HARMLESS: [&str; 5] = ["v4v6", "v6only", "defer-accept", "tfo", "accept-proxy"];
    const UNUSED: [&str; 12] =
        ["name", "id", "backlog", "mss", "nice", "process", "thread", "level", "user", "group", "mode", "shards"];
    let line = directive.line;
    let mut words = directive.words.iter().skip(2);
    while let Some(word) = words.next() {
        match &**word {
            word if HARMLESS.contains(&word) => {}
            "transparent" => ledger.kept(line, "transparent: the host need not have the address yet"),
            word if UNUSED.contains(&word) => {
                words.next();
                ledger.no_equal(line, format!("{word}: it changes no connection that Baton passes through"));
            }
            "maxconn" => match words.next().and_then(|it| it.parse::<u32>().ok()) {
                Some(0) => ledger.kept(line, "maxconn 0: no limit"),
                Some(max) => table.set("max_connections", max.to_string(), line, ledger),
                None => ledger.missing(line, "maxconn has no number"),
            },
            "tcp-ut" => match words.next().and_then(|it| time(it)) {
                Some(Duration::ZERO) => ledger.kept(line, unset("tcp-ut 0")),
                Some(time) => user_timeout(time, line, table, ledger),
                None => ledger.missing(line, "tcp-ut has no time"),
            },
            "interface" => {
                words.next();
                ledger.missing(line, "interface: Baton listens on the address on every interface");
            }
            other => ledger.missing(line, format!("{other}: Baton has nothing like it")),
        }
    }
}

fn user_timeout(time: Duration, line: usize, table: &mut Draft, ledger: &mut Ledger) {
    let time = bounded(time, USER_TIMEOUT, &format!("tcp-ut {}", display(time)), line, ledger);
    table.set("user_timeout", duration(time), line, ledger);
}

fn settings(front: &Effective, back: &Effective, servers: &[CfgServer], table: &mut Draft, ledger: &mut Ledger) {
    if let Some(directive) = back.find("balance") {
        balance(directive, table, ledger);
    }
    if let Some((value, line)) = timeout(back, "connect", ledger) {
        let words = format!("timeout connect {}", display(value));
        let value = bounded(value, CONNECT_TIMEOUT, &words, line, ledger);
        table.set("connect_timeout", duration(value), line, ledger);
    }
    if let Some(directive) = back.find("retries") {
        match directive.word(1).parse::<u32>() {
            // HAProxy counts the attempts after the first.
            Ok(retries) => {
                let (line, bounds) = (directive.line, (1, CONNECT_ATTEMPTS_MAX));
                let attempts = bounded(retries.saturating_add(1), bounds, &directive.words.join(" "), line, ledger);
                table.set("connect_attempts", attempts.to_string(), line, ledger);
            }
            Err(_) => ledger.missing(directive.line, "it has no number"),
        }
    }
    idle_timeout(front, back, table, ledger);
    if let Some(directive) = front.find("maxconn") {
        match directive.word(1).parse::<u32>() {
            Ok(max) if max > 0 => table.set("max_connections", max.to_string(), directive.line, ledger),
            Ok(_) => ledger.kept(directive.line, "no limit"),
            Err(_) => ledger.missing(directive.line, "it has no number"),
        }
    }
    for (words, key) in [("idle", "keepalive_idle"), ("intvl", "keepalive_interval")] {
        let Some(directive) = keepalive(front, back, words) else { continue };
        let line = directive.line;
        // In seconds, unlike all others; HAProxy takes the next whole one.
        if let Some(value) = time_in(directive.word(1), "s") {
            if value.is_zero() {
                ledger.kept(line, unset(&directive.words.join(" ")));
                continue;
            }
            let seconds = bounded(
                value.as_millis().div_ceil(1000) as u64,
                (1, KEEPALIVE_S_MAX),
                &directive.words.join(" "),
                line,
                ledger,
            );
            table.set(key, duration(Duration::from_secs(seconds)), line, ledger);
        }
    }
    if let Some(directive) = keepalive(front, back, "cnt")
        && let Ok(count) = directive.word(1).parse::<u32>()
    {
        match count {
            0 => ledger.kept(directive.line, unset(&directive.words.join(" "))),
            _ => {
                let (line, bounds) = (directive.line, (1, KEEPALIVE_COUNT_MAX));
                let count = bounded(count, bounds, &directive.words.join(" "), line, ledger);
                table.set("keepalive_count", count.to_string(), line, ledger);
            }
        }
    }
    if let Some(directive) = back.find("source") {
        match directive.word(1).trim_end_matches(":0").parse::<IpAddr>() {
            Ok(ip) if ip.is_unspecified() => ledger.kept(directive.line, "the kernel chooses the source address"),
            Ok(ip) => table.set("source", quoted(&ip.to_string()), directive.line, ledger),
            _ => ledger.missing(directive.line, "\"source\" is one address of this host"),
        }
        if directive.words.len() > 2 {
            ledger.missing(directive.line, format!("{}: backends see Baton's address", directive.words[2..].join(" ")));
        }
    }
    proxy_header(servers, table, ledger);
}

/// In HAProxy's mode tcp, `timeout tunnel` counts once both ends are connected, else the shorter of the two others.
fn idle_timeout(front: &Effective, back: &Effective, table: &mut Draft, ledger: &mut Ledger) {
    let [client, server, tunnel] =
        [timeout(front, "client", ledger), timeout(back, "server", ledger), timeout(back, "tunnel", ledger)];
    let shorter = client.into_iter().chain(server).min_by_key(|(value, _)| *value);
    let Some((value, line)) = tunnel.or(shorter) else { return };
    let kinds = [("tunnel", tunnel), ("client", client), ("server", server)];
    let kind = kinds.iter().find(|(_, read)| *read == Some((value, line))).map_or("", |(kind, _)| kind);
    let others = [client, server].into_iter().flatten().filter(|(_, other)| *other != line);
    let (most, month) = (display(value), 30 * DAY);
    match value {
        value if value > month => {
            table.set("idle_timeout", quoted("0s"), line, ledger);
            ledger.kept(line, format!("{most} is longer than Baton counts, so: never"));
        }
        value => {
            let value = bounded(value, (IDLE_MIN, month), &format!("timeout {kind} {most}"), line, ledger);
            table.set("idle_timeout", duration(value), line, ledger);
        }
    }
    others.for_each(|(_, other)| {
        ledger.kept(other, "idle_timeout counts both directions, and a shorter or later time decides")
    });
}

fn timeout(effective: &Effective, kind: &str, ledger: &mut Ledger) -> Option<(Duration, usize)> {
    let directive = effective.find(&format!("timeout {kind}"))?;
    let read = time(directive.word(2));
    if read.is_none() {
        ledger.missing(directive.line, format!("{:?} is no time", directive.word(2)));
    }
    if read == Some(Duration::ZERO) {
        let why = match kind {
            "connect" => unset(&directive.words.join(" ")),
            // One of the two others may decide.
            _ => format!("timeout {kind} 0 is not set to HAProxy"),
        };
        ledger.kept(directive.line, why);
    }
    Some((read.filter(|time| !time.is_zero())?, directive.line))
}

fn keepalive<'c>(front: &Effective<'c>, back: &Effective<'c>, what: &str) -> Option<&'c Directive> {
    front.find(&format!("clitcpka-{what}")).or_else(|| back.find(&format!("srvtcpka-{what}")))
}

fn balance(directive: &Directive, table: &mut Draft, ledger: &mut Ledger) {
    let algorithm = directive.word(1);
    let baton = match algorithm.split('(').next().unwrap_or_default() {
        "roundrobin" | "static-rr" => "round_robin",
        "leastconn" => "least_conn",
        "source" => "source_hash",
        "random" => "random_two",
        _ => {
            let why = format!(
                "{algorithm}: Baton chooses by least_conn, its default, or by round_robin, random_two or source_hash"
            );
            return ledger.missing(directive.line, why);
        }
    };
    table.set("balance", quoted(baton), directive.line, ledger);
}

fn proxy_header(servers: &[CfgServer], table: &mut Draft, ledger: &mut Ledger) {
    let v2: Vec<_> = servers.iter().filter_map(CfgServer::proxy_v2).collect();
    let v1: Vec<_> =
        servers.iter().filter(|it| it.proxy_v2().is_none()).filter_map(|it| it.option("send-proxy")).collect();
    let Some(first) = v2.iter().chain(&v1).next() else { return };
    if v2.len() + v1.len() < servers.len() {
        ledger.missing(
            first.line,
            "send-proxy: Baton sends a PROXY header to all backends of a frontend or to none: set send_proxy_v2",
        );
        return;
    }
    table.set("send_proxy_v2", "true".to_owned(), first.line, ledger);
    v1.iter().for_each(|it| {
        ledger.missing(it.line, "send-proxy: Baton sends version 2, and the backend must understand it")
    });
}

/// One `[[frontend.backend]]`, with its name.
fn backend_table(
    server: &CfgServer,
    ports: &[u16],
    before: &[(String, Draft)],
    ledger: &mut Ledger,
) -> Option<(String, Draft)> {
    let line = server.line;
    let (host, port) = match value::server(&server.address) {
        Ok(read) => read,
        Err(why) => {
            ledger.missing(line, why);
            return None;
        }
    };
    if ["0.0.0.0", "[::]"].contains(&&*host) {
        ledger.missing(
            line,
            format!(
                "{}: HAProxy connects to where the client did, and Baton to addresses of backends only",
                server.address
            ),
        );
        return None;
    }
    let port = self::port(line, port, ports, ledger)?;
    let taken: Vec<_> = before.iter().map(|(name, _)| name.clone()).collect();
    let own = name(&server.name, &taken);
    let mut draft = Draft::new("[[frontend.backend]]");
    draft.set("name", quoted(&own), line, ledger);
    draft.set("address", quoted(&format!("{host}:{port}")), line, ledger);
    weight(server, &mut draft, ledger);
    if let Some(option) = server.option("maxconn") {
        match option.value.parse::<u32>() {
            Ok(max) if max > 0 => draft.set("max_connections", max.to_string(), option.line, ledger),
            Ok(_) => ledger.kept(option.line, "maxconn 0: no limit"),
            Err(_) => ledger.missing(option.line, format!("maxconn {} is no number", option.value)),
        }
    }
    if let Some(option) = server.option("maxqueue").filter(|option| option.value != "0") {
        ledger.missing(
            option.line,
            "maxqueue: Baton has no queue: a new connection goes to a backend that has room, or is reset at once",
        );
    }
    if let Some(option) = server.option("ssl") {
        ledger
            .missing(option.line, "ssl: Baton encrypts no connection to a backend: the client's own TLS goes through");
    }
    for name in ["source", "tcp-ut"] {
        if let Some(option) = server.option(name).filter(|option| option.value != "0") {
            ledger.missing(
                option.line,
                format!("{name}: Baton has it for a whole frontend: \"source\" and \"user_timeout\""),
            );
        }
    }
    health_address(server, &host, port, &mut draft, ledger);
    Some((own, draft))
}

/// The port of a server whose address has that one, or none.
pub(super) fn port(line: usize, own: Option<u16>, ports: &[u16], ledger: &mut Ledger) -> Option<u16> {
    match (own, ports) {
        (Some(port), _) => Some(port),
        (None, [port]) => Some(*port),
        (None, _) => {
            ledger.missing(line, "it has no port, and the frontend has several: write the server once for each port, in frontends of their own");
            None
        }
    }
}

fn weight(server: &CfgServer, draft: &mut Draft, ledger: &mut Ledger) {
    if let Some(option) = server.option("disabled") {
        draft.set("weight", "0".to_owned(), option.line, ledger);
    }
    if let Some(option) = server.option("backup") {
        draft.set("weight", "0".to_owned(), option.line, ledger);
        ledger.missing(
            option.line,
            "backup: Baton has no backup servers: with weight = 0 it gets no connection until you raise its weight",
        );
    }
    if let Some(option) = server.option("weight") {
        match option.value.parse::<u32>() {
            Ok(weight) if weight <= 1000 => draft.set("weight", weight.to_string(), option.line, ledger),
            _ => ledger.missing(option.line, format!("weight {} is no number up to 1000", option.value)),
        }
    }
}

fn health_address(server: &CfgServer, host: &str, port: u16, draft: &mut Draft, ledger: &mut Ledger) {
    let (at, to) = (server.option("addr"), server.option("port"));
    let Some(line) = at.or(to).map(|option| option.line).filter(|_| server.has("check")) else { return };
    let host = at.map_or(Ok((host.to_owned(), None)), |option| value::server(&option.value)).map(|(host, _)| host);
    let to = to.map_or(Some(port), |option| option.value.parse().ok().filter(|port| *port > 0));
    let address = host.ok().zip(to).map(|(host, port)| format!("{host}:{port}"));
    match address.filter(|it| it.parse::<SocketAddr>().is_ok_and(|it| !it.ip().is_unspecified())) {
        Some(address) => draft.set("health_address", quoted(&address), line, ledger),
        None => ledger
            .missing(line, "addr, port: \"health_address\" is an address with a port, and the server is known by name"),
    }
}
