//! What a reload changes, in words for the log and for whoever asked for it.

use std::sync::Arc;

use crate::config::{Backend, Config, Frontend, Target};

/// One sentence for each change from `old` to `new`; empty if there is none.
pub fn between(old: &Config, new: &Config) -> Vec<String> {
    let mut changes = Vec::new();
    if old.process.workers != new.process.workers {
        changes.push("process.workers changed: it takes effect when the process is next started".to_owned());
    }
    let mut same = old.process.clone();
    same.workers = new.process.workers;
    if same != new.process {
        changes.push("process settings changed".to_owned());
    }
    if old.log != new.log {
        changes.push("log settings changed".to_owned());
    }
    if old.path != new.path {
        changes.push(
            "path settings changed: whether and when flows graduate takes effect at once, the rest when the process \
             is next started"
                .to_owned(),
        );
    }
    if old.peers != new.peers || old.instance != new.instance {
        changes.push(match (&old.peers, &new.peers) {
            (Some(before), Some(after)) if (&before.name, before.slot) == (&after.name, after.slot) => {
                "peers changed".to_owned()
            }
            (Some(_), Some(_)) => {
                "peers changed; this instance keeps its name and its slot until the process is next started".to_owned()
            }
            _ => "peers: that there are any, or none, takes effect when the process is next started".to_owned(),
        });
    }
    if old.takeover != new.takeover {
        changes.push(
            "takeover settings changed: track_file takes effect with the next handover, the rest when the process is next \
             started"
                .to_owned(),
        );
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
