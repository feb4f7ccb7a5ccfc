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
            let Some(frontend) = haproxy_frontend(file)? else { return Ok(None) };
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

/// A frontend of haproxy.cfg.
struct HaproxyFrontend {
    name: String,
    /// The port that clients connect to.
    port: u16,
    servers: Vec<SetupBackend>,
    /// Names of the servers that get no connection.
    left_out: Vec<String>,
    /// Others come from a name.
    has_template: bool,
}

impl HaproxyFrontend {
    fn read(table: &toml::Value) -> Option<Self> {
        let text = |value: &toml::Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let (_, port) = table.get("listen")?.as_array()?.first()?.as_str()?.rsplit_once(':')?;
        let mut read = Self {
            name: text(table, "name")?,
            port: port.parse().ok()?,
            servers: Vec::new(),
            left_out: Vec::new(),
            has_template: table.get("discover").is_some(),
        };
        for backend in table.get("backend")?.as_array()? {
            let (name, address) = (text(backend, "name")?, text(backend, "address")?);
            match backend.get("weight").and_then(toml::Value::as_integer) {
                Some(0) => read.left_out.push(name),
                _ => read.servers.push((name, address)),
            }
        }
        Some(read).filter(|it| !it.servers.is_empty())
    }

    /// Whether its servers are apiservers, as far as their port tells.
    fn is_of_apiservers(&self) -> bool {
        self.servers.iter().all(|(_, address)| address.ends_with(&format!(":{PORT}")))
    }

    fn is_of_web(&self) -> bool {
        [80, 443].contains(&self.port)
    }
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
    let frontend = haproxy_frontend(file).ok()??;
    Some((frontend.port, format!("{}: bind", file.name)))
}

/// The frontend of the apiservers. `None`: the file has none with servers.
fn haproxy_frontend(file: &ForeignFile) -> Result<Option<HaproxyFrontend>, SetupRefusal> {
    let document = translate(file, None).toml.parse::<toml::Table>().unwrap_or_default();
    let tables = document.get("frontend").and_then(toml::Value::as_array).into_iter().flatten();
    let mut all: Vec<_> = tables.filter_map(HaproxyFrontend::read).collect();
    if all.is_empty() {
        let has_template = file.text.lines().any(|line| line.split_whitespace().next() == Some("server-template"));
        return if has_template { Err(SetupRefusal::ServerTemplate(file.name.clone())) } else { Ok(None) };
    }
    let spelled = |it: &HaproxyFrontend| format!("{} (port {}: {})", it.name, it.port, spelled(&it.servers));
    let candidates = all.iter().map(spelled).collect::<Vec<_>>().join("; ");
    let which = |why| SetupRefusal::WhichFrontend { file: file.name.clone(), why, candidates };
    let apiservers = all.iter().filter(|it| it.is_of_apiservers()).count();
    match (apiservers, all.len()) {
        (1, _) => all.retain(HaproxyFrontend::is_of_apiservers),
        (0, 1) if !all[0].is_of_web() => {}
        (0, _) => return Err(which("has no frontend whose servers are apiservers, by their port 6443")),
        _ => return Err(which("has several frontends whose servers are apiservers, by their port 6443")),
    }
    match all.pop() {
        Some(frontend) if frontend.has_template => Err(SetupRefusal::ServerTemplate(file.name.clone())),
        frontend => Ok(frontend),
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

pub(super) fn spelled(backends: &[SetupBackend]) -> String {
    backends.iter().map(|(_, address)| &**address).collect::<Vec<_>>().join(", ")
}
