//! The options of `server` and `default-server`.

use std::collections::BTreeMap;

use super::sections::Directive;
use crate::translate::ledger::Ledger;

/// One option, and the line that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerOption {
    pub value: String,
    pub line: usize,
}

/// A server with its own options and those of `default-server` before it.
#[derive(Clone, Debug)]
pub(super) struct CfgServer {
    pub line: usize,
    pub name: String,
    pub address: String,
    /// Of a `server-template`: how many servers, or a range.
    pub count: Option<String>,
    options: BTreeMap<String, ServerOption>,
}

/// Options without a value.
const FLAGS: [&str; 32] = [
    "check",
    "check-ssl",
    "check-send-proxy",
    "check-reuse-pool",
    "check-via-socks4",
    "ssl",
    "backup",
    "disabled",
    "enabled",
    "send-proxy",
    "send-proxy-v2",
    "send-proxy-v2-ssl",
    "send-proxy-v2-ssl-cn",
    "agent-check",
    "stick",
    "non-stick",
    "tfo",
    "force-sslv3",
    "force-tlsv10",
    "force-tlsv11",
    "force-tlsv12",
    "force-tlsv13",
    "sslv3",
    "tlsv10",
    "tlsv11",
    "tlsv12",
    "tlsv13",
    "tls-tickets",
    "ssl-reuse",
    "allow-0rtt",
    "strict-maxconn",
    "renegotiate",
];

/// Options with a value.
const VALUED: [&str; 63] = [
    "inter",
    "fastinter",
    "downinter",
    "fall",
    "rise",
    "weight",
    "maxconn",
    "maxqueue",
    "minconn",
    "slowstart",
    "port",
    "addr",
    "verify",
    "verifyhost",
    "ca-file",
    "crt",
    "crl-file",
    "sni",
    "check-sni",
    "alpn",
    "npn",
    "check-alpn",
    "check-proto",
    "proto",
    "ciphers",
    "ciphersuites",
    "cookie",
    "redir",
    "observe",
    "on-error",
    "on-marked-down",
    "on-marked-up",
    "error-limit",
    "track",
    "source",
    "usesrc",
    "interface",
    "resolvers",
    "init-addr",
    "resolve-prefer",
    "resolve-net",
    "resolve-opts",
    "id",
    "namespace",
    "agent-inter",
    "agent-addr",
    "agent-port",
    "agent-send",
    "ssl-min-ver",
    "ssl-max-ver",
    "pool-max-conn",
    "pool-low-conn",
    "pool-purge-delay",
    "max-reuse",
    "socks4",
    "tcp-ut",
    "ws",
    "shard",
    "proxy-v2-options",
    "guid",
    "init-state",
    "hash-key",
    "log-proto",
];

/// Options that other files of this room read.
const SETTINGS: [&str; 28] = [
    "check",
    "check-ssl",
    "inter",
    "fastinter",
    "fall",
    "rise",
    "weight",
    "maxconn",
    "slowstart",
    "port",
    "addr",
    "verify",
    "verifyhost",
    "ca-file",
    "crt",
    "sni",
    "check-sni",
    "backup",
    "disabled",
    "send-proxy",
    "send-proxy-v2",
    "send-proxy-v2-ssl",
    "send-proxy-v2-ssl-cn",
    "source",
    "ssl",
    "tcp-ut",
    "maxqueue",
    "resolvers",
];

/// The servers of the lines `server` and `server-template` among `lines`, in their order.
pub(super) fn servers<'c>(lines: impl Iterator<Item = &'c Directive>, ledger: &mut Ledger) -> Vec<CfgServer> {
    let mut defaults = BTreeMap::new();
    let mut servers = Vec::new();
    for directive in lines {
        match directive.word(0) {
            "default-server" => options(directive, 1, &mut defaults, ledger),
            "server" if directive.words.len() < 3 => ledger.missing(directive.line, "it has no name or no address"),
            "server-template" if directive.words.len() < 4 => {
                ledger.missing(directive.line, "it has no prefix, no number or no name");
            }
            keyword @ ("server" | "server-template") => {
                let count = (keyword == "server-template").then(|| directive.word(2).to_owned());
                let at = if count.is_some() { 3 } else { 2 };
                let mut own = defaults.clone();
                options(directive, at + 1, &mut own, ledger);
                let (name, address) = (directive.word(1).to_owned(), directive.word(at).to_owned());
                servers.push(CfgServer { line: directive.line, name, address, count, options: own });
            }
            _ => {}
        }
    }
    servers
}

fn options(directive: &Directive, from: usize, all: &mut BTreeMap<String, ServerOption>, ledger: &mut Ledger) {
    let line = directive.line;
    let mut words = directive.words.iter().skip(from);
    while let Some(word) = words.next() {
        let (name, is_off) = word.strip_prefix("no-").map_or((&**word, false), |rest| (rest, true));
        if FLAGS.contains(&name) {
            match is_off {
                true => drop(all.remove(name)),
                false => drop(all.insert(name.to_owned(), ServerOption { value: String::new(), line })),
            }
            note(name, line, ledger);
        } else if VALUED.contains(&&**word) {
            let Some(value) = words.next() else {
                ledger.missing(line, format!("{word} has no value"));
                return;
            };
            all.insert(word.clone(), ServerOption { value: value.clone(), line });
            // 0 is what counts without the option.
            match word == "minconn" && value == "0" {
                true => ledger.kept(line, "minconn 0 is not set to HAProxy"),
                false => note(word, line, ledger),
            }
        } else {
            ledger.missing(line, format!("{word}: `baton import` does not know this option"));
        }
    }
}

/// What is to say about an option that becomes no key.
fn note(name: &str, line: usize, ledger: &mut Ledger) {
    if SETTINGS.contains(&name) {
        return;
    }
    let say = |why: &str| format!("{name}: {why}");
    match name {
        "on-marked-down" => ledger.kept(line, say("Baton resets the connections of a dead backend")),
        "observe" | "on-error" | "error-limit" => {
            ledger.kept(line, say("Baton watches live connections, and probes a backend at once that fails"));
        }
        "enabled" | "strict-maxconn" => ledger.kept(line, say("so it is")),
        "init-addr" | "resolve-prefer" | "resolve-net" | "resolve-opts" => {
            ledger.kept(line, say("Baton starts without an answer, and resolves names every resolve_interval"));
        }
        "downinter" => ledger.no_equal(line, say("Baton probes an ejected backend every interval too")),
        "on-marked-up" => ledger.no_equal(line, say("Baton has no backup servers")),
        "minconn" => ledger.missing(line, say("Baton has no queue, and one limit for a backend: max_connections")),
        "track" => ledger.missing(line, say("Baton probes each backend by itself")),
        "agent-check" => {
            ledger.missing(line, say("Baton asks no agent: `baton drain` and `weight` change a backend's share"))
        }
        "check-send-proxy" => ledger.missing(line, say("Baton's probes send no PROXY header")),
        "usesrc" => ledger.missing(line, say("backends see Baton's address, not the client's; send_proxy_v2 tells it")),
        "interface" => ledger.missing(line, say("the kernel's routes choose the interface")),
        "namespace" | "socks4" | "check-via-socks4" => {
            ledger.missing(line, say("Baton connects to backends in its own network"))
        }
        "proxy-v2-options" | "redir" => ledger.missing(line, say("Baton has nothing like it")),
        name if name.starts_with("agent-") => ledger.no_equal(line, say("Baton asks no agent")),
        _ => ledger.no_equal(line, say("it changes no TCP connection that Baton passes through")),
    }
}

impl CfgServer {
    pub(super) fn option(&self, name: &str) -> Option<&ServerOption> {
        self.options.get(name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    /// The option that turns on a PROXY header of version 2.
    pub(super) fn proxy_v2(&self) -> Option<&ServerOption> {
        ["send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn"].iter().find_map(|name| self.option(name))
    }
}
