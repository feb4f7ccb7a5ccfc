//! The changes of a reload, in words for the log and for the operator who ordered it.

use std::sync::Arc;

use crate::addr::VipAddr;
use crate::config::{Backend, Config, Frontend, OffloadMode, SharePort, Target};

const ANEW: &str = "it needs a restart: `baton evacuate`, then `systemctl restart baton`";

/// Changes that a reload cannot make: a sentence each, with the command that can. Empty: none. `has_offload`: whether this
/// process can offload flows.
pub(super) fn refused(old: &Config, new: &Config, has_offload: bool) -> Vec<String> {
    const UPGRADE: &str = "`baton upgrade` starts a new process with it, which gets all flows";
    const KEEP: &str = "without it, the slot is this instance's position among all names, which has changed; set it \
                        to the slot that `baton peers` shows, or restart: `baton evacuate`, then `systemctl restart \
                        baton`";
    const EMPTY: &str = "it needs an empty map: `baton evacuate`, stop Baton, `baton offload remove`, start it";
    let places = |config: &Config| config.peers.as_ref().map(|peers| (peers.name.clone(), peers.slot));
    let (before, after) = (places(old), places(new));
    let [renamed, moved] = match (&before, &after) {
        (Some(before), Some(after)) => [before.0 != after.0, before.1 != after.1],
        _ => [false; 2],
    };
    let keys = [
        ("process.workers", old.process.workers != new.process.workers, UPGRADE),
        (
            "offload.mode",
            old.offload.mode == OffloadMode::Off && new.offload.mode != OffloadMode::Off && !has_offload,
            UPGRADE,
        ),
        ("offload.interfaces", old.offload.interfaces != new.offload.interfaces, UPGRADE),
        ("offload.max_flows", old.offload.max_flows != new.offload.max_flows, EMPTY),
        ("offload.pins", old.offload.pins != new.offload.pins, EMPTY),
        ("instance.name", renamed, ANEW),
        ("instance.slot", moved, if new.instance.slot.is_some() { ANEW } else { KEEP }),
        ("[peers]", before.is_some() != after.is_some(), UPGRADE),
    ];
    let refused = keys.iter().filter(|(_, changed, _)| *changed);
    refused.map(|(key, _, how)| format!("a reload cannot change {key}: {how}")).collect()
}

/// As [`refused`], of listening addresses that are served in the other way than share_port asks for.
pub(super) fn refused_ports(ports: &[(VipAddr, SharePort)]) -> Vec<String> {
    let line = |(address, asked): &(VipAddr, SharePort)| {
        format!("a reload cannot change share_port of {address} to \"{}\": {ANEW}", asked.label())
    };
    ports.iter().map(line).collect()
}

/// One sentence for each change from `old` to `new`; empty if there is none.
pub(super) fn between(old: &Config, new: &Config) -> Vec<String> {
    let mut changes = Vec::new();
    if old.process != new.process {
        changes.push("process settings changed".to_owned());
    }
    if old.log != new.log {
        changes.push("log settings changed".to_owned());
    }
    if old.offload != new.offload {
        changes
            .push("offload settings changed: they apply to flows that Baton tries to offload from now on".to_owned());
    }
    if old.peers != new.peers {
        changes.push("peers changed".to_owned());
    }
    if old.failover != new.failover {
        changes.push("failover settings changed: track_file applies from the next evacuation on".to_owned());
    }
    if old.vip != new.vip {
        changes.push("VIP settings changed".to_owned());
    }
    if old.admin != new.admin {
        changes.push("admin addresses changed".to_owned());
    }
    for frontend in &new.frontends {
        match named(&old.frontends, &frontend.name) {
            None => changes.push(format!("frontend {} added", frontend.name)),
            Some(before) => compare(before, frontend, &mut changes),
        }
    }
    for frontend in old.frontends.iter().filter(|frontend| named(&new.frontends, &frontend.name).is_none()) {
        changes.push(format!("frontend {} removed: its flows drain", frontend.name));
    }
    changes
}

fn compare(old: &Frontend, new: &Frontend, changes: &mut Vec<String>) {
    let name = &new.name;
    for address in new.listen.iter().filter(|address| !old.listen.contains(address)) {
        changes.push(format!("frontend {name} listens on {address}"));
    }
    for address in old.listen.iter().filter(|address| !new.listen.contains(address)) {
        changes.push(format!("frontend {name} no longer listens on {address}"));
    }
    for backend in &new.backends {
        let before = old.backends.iter().find(|before| before.name == backend.name);
        match before {
            None => changes.push(format!("backend {name}/{} added", backend.name)),
            Some(before) if before != backend => {
                changes.push(format!("backend {name}/{}: {}", backend.name, difference(before, backend)));
            }
            Some(_) => {}
        }
    }
    for backend in old.backends.iter().filter(|before| !new.backends.iter().any(|after| after.name == before.name)) {
        changes.push(format!("backend {name}/{} removed: its flows drain", backend.name));
    }
    if old.health != new.health {
        changes.push(format!("frontend {name}: health settings changed"));
    }
    let rest = Frontend {
        listen: new.listen.clone(),
        backends: new.backends.clone(),
        health: new.health.clone(),
        ..old.clone()
    };
    if rest != *new {
        changes.push(format!("frontend {name}: settings changed"));
    }
}

fn difference(old: &Backend, new: &Backend) -> String {
    let mut parts = Vec::new();
    if old.address != new.address {
        parts.push(format!("address {} becomes {}", target(&old.address), target(&new.address)));
    }
    if old.weight != new.weight {
        parts.push(format!("weight {} becomes {}", old.weight, new.weight));
    }
    if old.max_connections != new.max_connections {
        parts.push("max_connections changed".to_owned());
    }
    if old.health_address != new.health_address {
        parts.push("health_address changed".to_owned());
    }
    parts.join(", ")
}

fn target(target: &Target) -> String {
    match target {
        Target::Address(address) => address.to_string(),
        Target::Name { host, port } => format!("{host}:{port}"),
    }
}

fn named<'a>(frontends: &'a [Arc<Frontend>], name: &str) -> Option<&'a Arc<Frontend>> {
    frontends.iter().find(|frontend| &*frontend.name == name)
}
