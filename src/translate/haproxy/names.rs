//! Servers that HAProxy knows by name: `[frontend.discover]` of a `server-template`, and the name servers of `resolvers`.

use std::net::{IpAddr, SocketAddr};

use super::proxy::{Draft, port};
use super::sections::{CfgSection, SectionKind};
use super::server::{CfgServer, ServerOption};
use super::value;
use crate::translate::ledger::Ledger;
use crate::translate::toml::{array, quoted};

/// Options of a server for which a discovered backend has no key.
const OF_ONE_BACKEND: [&str; 5] = ["maxconn", "backup", "disabled", "port", "addr"];

/// The source of the backends of `servers`, and the line of the server that it stands for.
pub(super) fn discover(
    servers: &[CfgServer],
    ports: &[u16],
    sections: &[CfgSection],
    ledger: &mut Ledger,
) -> (Draft, Option<usize>) {
    let mut draft = Draft::new("[frontend.discover]");
    let mut found = None;
    for server in servers {
        let asked = asked(server, sections, ledger);
        // One server with a name is a template of one.
        let is_source = server.count.is_some() || servers.len() == 1 && !asked.is_empty();
        match is_source {
            true if found.is_some() => ledger.missing(
                server.line,
                "a frontend has one source of backends, [frontend.discover], and another line has it: its servers are not written",
            ),
            true => {
                if source(server, &asked, ports, &mut draft, ledger) {
                    found = Some(server.line);
                }
            }
            false => by_the_host(server, &asked, ledger),
        }
    }
    (draft, found)
}

/// The name servers that HAProxy asks for the server's name, each with its line. Empty: those of the host.
fn asked(server: &CfgServer, sections: &[CfgSection], ledger: &mut Ledger) -> Vec<(usize, SocketAddr)> {
    let Some(ServerOption { value: name, line }) = server.option("resolvers") else { return Vec::new() };
    let is_address = value::server(&server.address).is_ok_and(|(host, _)| is_ip(&host));
    if is_address {
        ledger.kept(*line, "resolvers: there is no name to resolve");
        return Vec::new();
    }
    let is_it = |section: &&CfgSection| {
        section.kind == SectionKind::Other && section.keyword == "resolvers" && section.name == *name
    };
    let Some(resolvers) = sections.iter().find(is_it) else {
        ledger.missing(*line, format!("resolvers: there is no section resolvers {name}"));
        return Vec::new();
    };
    let mut all = Vec::new();
    for directive in resolvers.own("nameserver") {
        match name_server(directive.word(2)) {
            Some(address) => {
                if directive.word(2).starts_with("tcp") {
                    ledger.missing(directive.line, "Baton asks a name server by UDP, and by TCP what UDP cuts short");
                }
                all.push((directive.line, address));
            }
            None => ledger.missing(
                directive.line,
                format!("{}: a name server of Baton's has an address and a port", directive.word(2)),
            ),
        }
    }
    match all.is_empty() {
        true => ledger.kept(*line, "resolvers: Baton asks the name servers of /etc/resolv.conf"),
        false => resolvers.own("parse-resolv-conf").for_each(|directive| {
            ledger.missing(directive.line, "Baton asks the name servers that \"servers\" names, and no others");
        }),
    }
    all
}

fn name_server(text: &str) -> Option<SocketAddr> {
    let text = ["udp@", "udp4@", "udp6@"].iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text);
    let (host, port) = value::server(text).ok()?;
    let address: SocketAddr = format!("{host}:{}", port?).parse().ok()?;
    (!address.ip().is_unspecified()).then_some(address)
}

/// Notes a server that is a backend with a name, whose address Baton asks of the host.
fn by_the_host(server: &CfgServer, asked: &[(usize, SocketAddr)], ledger: &mut Ledger) {
    let Some(option) = server.option("resolvers").filter(|_| !asked.is_empty()) else { return };
    let all: Vec<_> = asked.iter().map(|(_, address)| address.to_string()).collect();
    ledger.missing(
        option.line,
        format!(
            "resolvers {}: Baton asks the host's resolver for the name of a single backend, not {}: write the backend's address, or \
             follow one name for all with [frontend.discover]",
            option.value,
            all.join(", ")
        ),
    );
    for (line, _) in asked {
        ledger.missing(*line, "Baton asks the host's resolver for the name of a single backend");
    }
}

/// Writes the table for `server`. `false`: it cannot be a source, and the ledger says why.
fn source(
    server: &CfgServer,
    asked: &[(usize, SocketAddr)],
    ports: &[u16],
    draft: &mut Draft,
    ledger: &mut Ledger,
) -> bool {
    let line = server.line;
    let (host, own_port) = match value::server(&server.address) {
        Ok((host, _)) if is_ip(&host) => {
            let why =
                format!("{host} is an address: as many servers at one address are one backend, [[frontend.backend]]");
            ledger.missing(line, why);
            return false;
        }
        Ok(read) => read,
        Err(why) => {
            ledger.missing(line, why);
            return false;
        }
    };
    let is_srv = host.starts_with('_');
    let port = if is_srv { None } else { port(line, own_port, ports, ledger) };
    if !is_srv && port.is_none() {
        return false;
    }
    draft.set("kind", quoted("dns"), line, ledger);
    draft.set("name", quoted(&host), line, ledger);
    match port {
        Some(port) => draft.set("port", port.to_string(), line, ledger),
        None => {
            draft.set("record", quoted("srv"), line, ledger);
            ledger.missing(line, "record SRV: a discovered backend has weight = 1, whatever weight its record has");
        }
    }
    if let Some(((first, _), option)) = asked.first().zip(server.option("resolvers")) {
        let servers = array(&asked.iter().map(|(_, address)| address.to_string()).collect::<Vec<_>>());
        for at in asked.iter().map(|(at, _)| *at).chain([option.line]) {
            ledger.translated(at, format!("[frontend.discover] servers = {servers}"));
        }
        draft.set("servers", servers, *first, ledger);
    }
    let bound = server.count.as_deref().unwrap_or("1");
    let most = match bound.rsplit('-').next().unwrap_or(bound) {
        "1" => "1 server".to_owned(),
        many => format!("{many} servers"),
    };
    ledger.missing(
        line,
        format!(
            "at most {most}: Baton has no such bound: every address of the name is a backend, and a list of more than 256 changes nothing"
        ),
    );
    ledger.no_equal(line, format!("{}: a discovered backend has its address as its name", server.name));
    one_backend(server, ledger);
    true
}

/// What a discovered backend has no key for.
fn one_backend(server: &CfgServer, ledger: &mut Ledger) {
    for name in OF_ONE_BACKEND {
        if let Some(option) = server.option(name).filter(|option| option.value != "0") {
            let why = format!(
                "{name}: a discovered backend has no keys of its own: it gets flows without a limit, and is probed where it is"
            );
            ledger.missing(option.line, why);
        }
    }
    if let Some(option) = server.option("weight").filter(|option| option.value != "1") {
        ledger.missing(option.line, format!("weight {}: a discovered backend has weight = 1", option.value));
    }
}

fn is_ip(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
}
