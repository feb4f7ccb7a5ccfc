//! The apiservers, from an option, an inventory or haproxy.cfg.

use std::net::{IpAddr, SocketAddr};

use super::{Apiserver, Facts, HAPROXY_CONFIG, PORT, SetupHost, SetupRefusal, SetupRequest, sources};
use crate::translate::keepalived::host_name;
use crate::translate::toml::name;
use crate::translate::{ForeignFile, translate};

/// A backend's name and its address.
pub(super) type SetupBackend = (String, String);

/// Those that an option or haproxy.cfg names. `None`: neither does.
pub(super) fn backends(
    request: &SetupRequest,
    host: &SetupHost,
    local: Option<&Apiserver>,
    facts: &mut Facts,
) -> Result<Option<Vec<SetupBackend>>, SetupRefusal> {
    let port = local.map_or(PORT, |it| it.local.port);
    if !request.backends.is_empty() {
        let mut all: Vec<SetupBackend> = Vec::new();
        for text in &request.backends {
            let address = match text.parse::<IpAddr>() {
                Ok(ip) => SocketAddr::new(ip, port).to_string(),
                Err(_) => text.clone(),
            };
            let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
            let parts = address.rsplit_once(':').filter(|(host, port)| !host.is_empty() && is_port(port));
            let (of_host, _) = parts.ok_or_else(|| SetupRefusal::BadBackend(text.clone()))?;
            let taken: Vec<_> = all.iter().map(|(name, _)| name.clone()).collect();
            let plain = of_host.trim_matches(['[', ']']);
            let called = plain.parse::<IpAddr>().map_or_else(|_| plain.to_owned(), backend_name);
            all.push((name(&called, &taken), address));
        }
        facts.add("backends", spelled(&all), "--backends".to_owned());
        return Ok(Some(all));
    }
    if let Some(file) = &request.inventory {
        let hosts = sources::inventory(file)?;
        if hosts.is_empty() {
            return Err(SetupRefusal::EmptyInventory(file.name.clone()));
        }
        let fact = sources::inventory_fact(file, &hosts);
        let all: Vec<_> = hosts.into_iter().map(|(name, ip)| (name, SocketAddr::new(ip, port).to_string())).collect();
        facts.add("backends", spelled(&all), fact.place);
        return Ok(Some(all));
    }
    match (local, host.file(HAPROXY_CONFIG)) {
        (None, Some(file)) => {
            let all = haproxy_servers(file);
            if all.is_empty() {
                return Ok(None);
            }
            facts.add("backends", spelled(&all), format!("{}: server", file.name));
            Ok(Some(all))
        }
        _ => Ok(None),
    }
}

/// The servers of the first frontend that has some.
fn haproxy_servers(file: &ForeignFile) -> Vec<SetupBackend> {
    let first = haproxy_frontend(file).unwrap_or_default();
    let text = |backend: &toml::Value, key: &str| Some(backend.get(key)?.as_str()?.to_owned());
    let all = first.get("backend").and_then(toml::Value::as_array).into_iter().flatten();
    all.filter_map(|backend| Some((text(backend, "name")?, text(backend, "address")?))).collect()
}

/// The port that its clients connect to, if the backends are HAProxy's servers.
pub(super) fn haproxy_port(
    request: &SetupRequest,
    host: &SetupHost,
    local: Option<&Apiserver>,
) -> Option<(u16, String)> {
    if local.is_some() || !request.backends.is_empty() || request.inventory.is_some() {
        return None;
    }
    let file = host.file(HAPROXY_CONFIG)?;
    let frontend = haproxy_frontend(file)?;
    let (_, port) = frontend.get("listen")?.as_array()?.first()?.as_str()?.rsplit_once(':')?;
    Some((port.parse().ok()?, format!("{}: bind", file.name)))
}

/// The first frontend that has servers.
fn haproxy_frontend(file: &ForeignFile) -> Option<toml::Table> {
    let document = translate(file, None).toml.parse::<toml::Table>().ok()?;
    let all = document.get("frontend")?.as_array()?;
    all.iter().find(|it| it.get("backend").is_some())?.as_table().cloned()
}

pub(super) fn addressed(all: impl Iterator<Item = IpAddr>, port: u16) -> Vec<SetupBackend> {
    all.map(|ip| (backend_name(ip), SocketAddr::new(ip, port).to_string())).collect()
}

pub(super) fn with_port(backends: &[SetupBackend], port: u16) -> Vec<SetupBackend> {
    let at = |address: &str| address.rsplit_once(':').map_or(String::new(), |(host, _)| format!("{host}:{port}"));
    backends.iter().map(|(name, address)| (name.clone(), at(address))).collect()
}

fn backend_name(ip: IpAddr) -> String {
    host_name(ip).replacen("lb-", "cp-", 1)
}

pub(super) fn spelled(backends: &[SetupBackend]) -> String {
    backends.iter().map(|(_, address)| &**address).collect::<Vec<_>>().join(", ")
}
