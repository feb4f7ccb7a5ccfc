//! Backends that Baton finds by itself.

mod dns;
mod file;
mod kubernetes;

use std::path::PathBuf;

use crate::lab::*;

/// A load balancer whose file has no backend, before three echo servers.
struct Discovering {
    lab: Lab,
    _servers: [Server; 3],
    config: Config,
}

impl Discovering {
    fn new(test: &str, kind: &str) -> Option<Self> {
        let lab = Lab::new(test)?;
        let servers = lab.echo_everywhere();
        let config = lab.config().only(&[]).discover("kind", kind);
        let config = config.discover("cache_file", lab.directory().join("state/cache").display().to_string());
        Some(Self { lab, _servers: servers, config })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lab.directory().join(name)
    }
}

/// The name of the discovered backend on `host`.
fn name_of(host: &Host) -> String {
    format!("{}-6443", host.v4)
}

/// Waits until the backends are these, and all of them are ready.
#[track_caller]
fn wait_for(baton: &Baton, hosts: &[&Host]) {
    let mut wanted: Vec<_> = hosts.iter().map(|host| (name_of(host), "ready".to_owned())).collect();
    wanted.sort();
    let look = || {
        let status = baton.status();
        let text = |backend: &serde_json::Value, key: &str| backend[key].as_str().unwrap_or_default().to_owned();
        let backends = status["frontends"][0]["backends"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<_> = backends.iter().map(|it| (text(it, "name"), text(it, "health_state"))).collect();
        found.sort();
        found
    };
    eventually(LONG, &format!("the backends are {wanted:?}"), || {
        let found = look();
        if found != wanted {
            eprintln!("{found:?}");
        }
        found == wanted
    });
}

/// The number of failures that an event has said, and the last of them.
#[track_caller]
fn failures(baton: &Baton) -> (usize, String) {
    let failed = baton.events_of("discovery_failed");
    let last = failed.last().map(|event| event["error"].as_str().unwrap_or_default().to_owned());
    (failed.len(), last.unwrap_or_default())
}
