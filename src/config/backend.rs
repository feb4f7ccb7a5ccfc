//! `[[frontend.backend]]`.

use std::collections::HashMap;
use std::sync::Arc;

use super::kind::{AddressKind, Name, ProbePlace, whole};
use super::process::cap;
use super::section::Section;
use super::{Backend, Target};

/// Reads all backends of the frontend `section`, without those in which an error was reported. `is_enough`: more of them are
/// discovered, so that the file needs none.
pub(super) fn read_all(section: &Section, is_enough: bool) -> Vec<Backend> {
    let tables = if is_enough && !section.has("backend") { Vec::new() } else { section.tables("backend") };
    let mut names = HashMap::new();
    let mut addresses: HashMap<String, (String, u32)> = HashMap::new();
    let mut backends = Vec::new();
    for table in &tables {
        let Some(backend) = read(table) else { continue };
        let (first, line) =
            names.entry(backend.name.clone()).or_insert_with(|| (table.key("name"), table.line_of("name")));
        if *first != table.key("name") {
            let message = format!("two backends of {} are named {:?}", section.title(), &*backend.name);
            table.refuse("name", message, format!("give each a name of its own; the first is on line {line}"));
        }
        let place = place(&backend.address);
        let (first, line) =
            addresses.entry(place.clone()).or_insert_with(|| (table.key("address"), table.line_of("address")));
        if *first != table.key("address") {
            let message = format!("two backends of {} have the address {place:?}", section.title());
            let help = format!("write each backend once, and set its share by its weight; the first is on line {line}");
            table.warn("address", message, help);
        }
        backends.push(backend);
    }
    if backends.len() == tables.len() && !section.has("discover") {
        warn_of_the_whole(section, &backends);
    }
    backends
}

/// An address or name in the file's spelling.
pub(super) fn place(target: &Target) -> String {
    match target {
        Target::Address(address) => address.to_string(),
        Target::Name { host, port } => format!("{host}:{port}"),
    }
}

fn read(section: &Section) -> Option<Backend> {
    let name = section.require("name", &Name);
    let address = section.require("address", &AddressKind);
    let weight = section.read_or("weight", &whole(0, WEIGHT_MAX), 1).value;
    let max_connections = cap(section, "max_connections");
    let health_address = section.read("health_address", &ProbePlace).value;
    if let (Some(Target::Address(address)), Some(health)) = (&address, health_address) {
        let name = section.name("health_address");
        if health == *address {
            let message = format!("{name} is its address, \"{address}\"");
            section.warn("health_address", message, "remove it: Baton probes the address anyway");
        } else if health.ip() != address.ip() {
            let message = format!("{name} is \"{health}\", another host than its address \"{address}\"");
            section.warn(
                "health_address",
                message,
                "name the same host: the health of another host does not show whether this one lives",
            );
        }
    }
    let name = Arc::from(name?);
    Some(Backend { name, address: address?, weight, max_connections, health_address, is_discovered: false })
}

fn warn_of_the_whole(section: &Section, backends: &[Backend]) {
    if backends.len() == 1 {
        let message = format!("{} has one backend only", section.title());
        section.warn("backend", message, "add a second backend: when this one fails, Baton resets all flows");
    }
    if !backends.is_empty() && backends.iter().all(|backend| backend.weight == 0) {
        let message = format!("every backend of {} has weight = 0", section.title());
        let help = "give at least one backend a weight: until then Baton resets every new connection";
        section.warn("backend", message, help);
    }
}

/// Shares are counted in 1024ths of a weight, in 32 bits.
const WEIGHT_MAX: u32 = 1000;
