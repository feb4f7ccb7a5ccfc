//! The apiservers, from an option, an inventory or haproxy.cfg.

use std::net::{IpAddr, SocketAddr};

use super::haproxy::frontend_of_apiservers;
use super::{
    Apiserver, Facts, HAPROXY_CONFIG, PORT, SetupBackend, SetupHost, SetupRefusal, SetupRequest, sources, spelled,
};
use crate::translate::keepalived::host_name;
use crate::translate::toml::name;

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
        let port_of_file = sources::inventory_port(file)?;
        let port = port_of_file.unwrap_or(port);
        let mut fact = sources::inventory_fact(file, &hosts);
        if port_of_file.is_some() {
            fact.place += ", kube_apiserver_port";
        }
        let mut all: Vec<SetupBackend> = Vec::new();
        for (called, ip) in hosts {
            let taken: Vec<_> = all.iter().map(|(name, _)| name.clone()).collect();
            all.push((name(&called, &taken), SocketAddr::new(ip, port).to_string()));
        }
        facts.add("backends", spelled(&all), fact.place);
        return Ok(Some(all));
    }
    match (local, host.file(HAPROXY_CONFIG)) {
        (None, Some(file)) => {
            let Some(frontend) = frontend_of_apiservers(file)? else { return Ok(None) };
            let mut place = format!("{}: server", file.name);
            if !frontend.left_out.is_empty() {
                place += &format!("; backup or disabled, so left out: {}", frontend.left_out.join(", "));
            }
            facts.add("backends", spelled(&frontend.servers), place);
            Ok(Some(frontend.servers))
        }
        _ => Ok(None),
    }
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
