//! From a file to a [`Config`], or to all its errors.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use super::diagnostic::shown;
use super::document::Document;
use super::section::{Element, Section};
use super::{
    Admin, Config, Diagnostic, FileFault, Frontend, Loaded, Rejected, Severity, Target, UnreadFile, cluster, failover,
    file, frontend, names, offload, peers, process, recorder, vip,
};
use crate::addr::VipAddr;

/// Reads and checks the file at `path`, and the certificate files that it names.
pub fn load(path: &Path) -> Result<Loaded, Rejected> {
    check(path, file::read(path))
}

/// Checks the bytes `read` of the file at `path`, and reads the certificate files that it names.
pub fn check(path: &Path, read: Result<Vec<u8>, FileFault>) -> Result<Loaded, Rejected> {
    let rejected = |(line, column): (u32, u32), message: String, help: &str| {
        let (file, key, help) = (shown(path), "file".into(), help.to_owned());
        let (severity, quote) = (Severity::Error, None);
        let error = Diagnostic { severity, file, line, column, key, message, help, quote };
        Rejected { errors: vec![error], warnings: Vec::new(), unread: Vec::new() }
    };
    let bytes = read.map_err(|fault| {
        let message = format!("cannot read the configuration: {fault}");
        match fault {
            FileFault::Unanswered(silence) => Rejected {
                unread: vec![UnreadFile { path: path.to_owned(), silence }],
                ..rejected((0, 0), message, silence.advice())
            },
            _ => rejected((0, 0), message, "expected a readable file of at most 1 MiB"),
        }
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let lines = String::from_utf8_lossy(before);
        let line = 1 + lines.matches('\n').count() as u32;
        let column = 1 + lines.rsplit('\n').next().unwrap_or_default().chars().count() as u32;
        let byte = error.as_bytes()[before.len()];
        rejected((line, column), format!("the file is not UTF-8: it has the byte {byte:#04x} here"), "save it as UTF-8")
    })?;
    parse(&text, path)
}

/// Checks `text`. Messages call it `path`, and files that it names are looked for beside `path`.
pub fn parse(text: &str, path: &Path) -> Result<Loaded, Rejected> {
    let document = Document::new(path, text);
    let config = read(&document);
    let unread = document.unread();
    let (errors, warnings) = document.into_findings();
    match config {
        Some(config) if errors.is_empty() => Ok(Loaded { config, warnings }),
        _ => Err(Rejected { errors, warnings, unread }),
    }
}

/// The configuration of a file that has only these frontends.
pub fn by_default(frontends: Vec<Arc<Frontend>>) -> Config {
    let nothing = read(&Document::new(Path::new("defaults"), "")).expect("no text has no fault of syntax");
    Config { frontends, ..nothing }
}

/// `None` after a syntax error; after any other error the value is meaningless.
fn read(document: &Document) -> Option<Config> {
    let table = document.syntax()?;
    let root = Section::root(document, table.get_ref());
    let admin = process::admin(&root.table("admin"));
    let process = process::process(&root.table("process"));
    let log = process::log(&root.table("log"));
    let recorder = recorder::read(&root.table("recorder"));
    let clients = names::read(&root.table("names"));
    let offload = offload::read(&root.table("offload"), process.max_connections);
    let cluster = cluster::read(&root.table("cluster"));
    let failover = failover::read(&root.table("failover"), root.has("peers"));
    let (instance, peers) = peers::read(&root.table("instance"), &root.table("peers"), root.has("peers"));
    if let Some(peers) = &peers {
        let instances = 1 + peers.peers.len();
        offload::warn_of_fleet(&root.table("offload"), &offload, process.max_connections, instances);
    }
    let mut names = HashMap::new();
    let mut listen = Vec::new();
    let mut frontends = Vec::new();
    for section in root.tables("frontend") {
        let read = frontend::read(&section, process.reset_within);
        refuse_loops(&section, &read);
        let (first, line) =
            names.entry(read.frontend.name.clone()).or_insert_with(|| (section.key("name"), section.line_of("name")));
        if *first != section.key("name") && !read.frontend.name.is_empty() {
            let message = format!("two frontends are named {:?}", &*read.frontend.name);
            section.refuse("name", message, format!("give each a name of its own; the first is on line {line}"));
        }
        listen.extend(read.listen);
        frontends.push(Arc::new(read.frontend));
    }
    refuse_twice(document, &listen, &admin);
    if peers.is_some() {
        warn_of_unnamed(document, &listen);
    }
    let vip = vip::read(&root.table("vip"), peers.as_ref(), &listen, &frontends);
    root.refuse_unknown_keys();
    Some(Config {
        admin,
        process,
        log,
        recorder,
        names: clients,
        offload,
        cluster,
        instance,
        peers,
        failover,
        vip,
        frontends,
    })
}

/// An address serves once. A wildcard and a specific address of one port are two: the kernel prefers the specific.
fn refuse_twice(document: &Document, listen: &[Element<VipAddr>], admin: &Admin) {
    let fixed = listen.iter().filter(|element| element.value.port() != 0);
    let http = admin.http.map(|http| (VipAddr::new(http), ("admin.http", "\"http\" in [admin]")));
    let metrics = admin.metrics.map(|metrics| (VipAddr::new(metrics), ("admin.metrics", "\"metrics\" in [admin]")));
    let mut taken: HashMap<VipAddr, (&str, &str)> = http.into_iter().chain(metrics).collect();
    for element in fixed {
        let (key, first) = *taken.entry(element.value).or_insert((&element.place.key, &element.name));
        if key != element.place.key {
            let message = format!("{} is \"{}\", as is {first}", element.name, element.value);
            document.error(&element.place, message, "listen on each address once");
        }
    }
}

/// The instances of a fleet serve the addresses that their files name.
fn warn_of_unnamed(document: &Document, listen: &[Element<VipAddr>]) {
    let is_vip = |ip: IpAddr| !ip.is_unspecified() && !ip.is_loopback();
    let is_named = |port| listen.iter().any(|element| element.value.port() == port && is_vip(element.value.ip()));
    let wildcards = listen.iter().filter(|element| element.value.ip().is_unspecified());
    for element in wildcards.filter(|element| !is_named(element.value.port())) {
        let port = element.value.port();
        let message =
            format!("{} is \"{}\", and no frontend names a VIP with port {port}", element.name, element.value);
        document.warning(
            &element.place,
            message,
            "name each VIP in \"listen\": peers cannot keep, forward or reset flows of an address that no file names",
        );
    }
}

/// A frontend that is its own backend would connect to itself until the file descriptors run out.
fn refuse_loops(section: &Section, read: &frontend::Read) {
    for backend in &read.frontend.backends {
        let Target::Address(address) = backend.address else { continue };
        if let Some(own) = read.listen.iter().find(|element| element.value.socket_addr() == address.socket_addr()) {
            let message = format!("{} is \"{}\", the address of backend {:?}", own.name, own.value, &*backend.name);
            section.document.error(
                &own.place,
                message,
                "listen on an address that is not one of the frontend's backends",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::renamed;

    const REFERENCE: &str = include_str!("../../config/baton.toml");

    /// Every key that a file may hold, dotted and without indices, tables included.
    fn known_keys() -> BTreeSet<String> {
        let document = Document::new(Path::new("keys"), "[[peers.peer]]\n[[frontend]]\n[[frontend.backend]]\n");
        read(&document);
        document.known()
    }

    #[test]
    fn the_new_names_of_keys_are_keys_and_the_old_ones_are_not() {
        let known = known_keys();
        for (old, new) in renamed::KEYS {
            let table = old.rsplit_once('.').map_or(String::new(), |(table, _)| format!("{table}."));
            assert!(known.contains(&format!("{table}{new}")) && !known.contains(old), "{old}: {new}");
        }
    }

    #[test]
    fn the_reference_holds_every_key_and_no_other() {
        let mut shown = BTreeSet::new();
        let mut table = "";
        for line in REFERENCE.lines().map(|line| line.strip_prefix('#').unwrap_or(line)) {
            let is_key = |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if let Some(header) = line.strip_prefix('[') {
                table = header.trim_matches(['[', ']']);
                shown.insert(table.to_owned());
            } else if let Some((key, _)) = line.split_once('=').filter(|(key, _)| is_key(key.trim_end())) {
                shown.insert(format!("{table}.{}", key.trim_end()));
            }
        }
        assert_eq!(shown, known_keys());
    }
}
