//! `[[frontend.backend]]`.

use std::collections::HashMap;
use std::sync::Arc;

use super::kind::{AddressKind, Name, ProbePlace, whole};
use super::process::cap;
use super::section::Section;
use super::{Backend, Target};

/// Reads all backends of the frontend `section`, without those in which an error was reported.
pub fn read_all(section: &Section) -> Vec<Backend> {
    let tables = section.tables("backend");
    let mut names = HashMap::new();
    let mut addresses: HashMap<String, String> = HashMap::new();
    let mut backends = Vec::new();
    for table in &tables {
        let Some(backend) = read(table) else { continue };
        let first = names.entry(backend.name.clone()).or_insert_with(|| table.key("name"));
        if *first != table.key("name") {
            let read = format!("{:?}, which is {first} too", &*backend.name);
            table.refuse("name", read, "a name that no other backend of the frontend has");
        }
        let place = place(&backend.address);
        let first = addresses.entry(place.clone()).or_insert_with(|| table.key("address"));
        if *first != table.key("address") {
            let read = format!("{place:?}, which is {first} too");
            table.warn("address", read, "each backend once; its weight says how much it takes");
        }
        backends.push(backend);
    }
    if backends.len() == tables.len() {
        warn_of_the_whole(section, &backends);
    }
    backends
}

/// An address or name as the file spells it.
pub fn place(target: &Target) -> String {
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
        let read = format!("{:?} with address = {:?}", health.to_string(), address.to_string());
        if health == *address {
            section.warn("health_address", read, "nothing: probes go to address anyway");
        } else if health.ip() != address.ip() {
            section.warn("health_address", read, "the same host: another one's health says nothing about this backend");
        }
    }
    let name = Arc::from(name?);
    Some(Backend { name, address: address?, weight, max_connections, health_address })
}

fn warn_of_the_whole(section: &Section, backends: &[Backend]) {
    if backends.len() == 1 {
        section.warn("backend", "one backend", "two or more: when it fails there is no other to go to");
    }
    if !backends.is_empty() && backends.iter().all(|backend| backend.weight == 0) {
        section.warn(
            "backend",
            "weight = 0 on every backend",
            "a weight on at least one: new flows are reset as it is",
        );
    }
}

/// Shares are counted in 1024ths of a weight, in 32 bits.
const WEIGHT_MAX: u32 = 1000;
