//! The frontend of haproxy.cfg whose servers are the apiservers, for a host where `baton init` finds nothing else that names them.

use super::{Apiserver, HAPROXY_CONFIG, PORT, SetupBackend, SetupHost, SetupRefusal, SetupRequest, spelled};
use crate::translate::{ForeignFile, translate};

/// Baton's own are safer than those that HAProxy's users write.
const TIMES: [&str; 7] = ["interval", "fast_interval", "timeout", "rise", "fall", "reset_fall", "slow_start"];

/// A frontend of haproxy.cfg.
pub(super) struct HaproxyFrontend {
    name: String,
    /// The port that clients connect to.
    port: u16,
    pub servers: Vec<SetupBackend>,
    /// Names of the servers that get no connection.
    pub left_out: Vec<String>,
    /// Others come from a name.
    has_template: bool,
    /// The keys of `[frontend.health]` that say what HAProxy's check asks for, without its times.
    health: toml::Table,
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
            health: table.get("health").and_then(toml::Value::as_table).cloned().unwrap_or_default(),
        };
        read.health.retain(|key, _| !TIMES.contains(&key));
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

    /// The port that its clients connect to, and its place.
    pub(super) fn port(&self) -> (u16, String) {
        (self.port, format!("{HAPROXY_CONFIG}: bind"))
    }

    /// What HAProxy's check asks the apiservers for, as keys of `[frontend.health]`. `None`: it does not ask the process.
    pub(super) fn check(self) -> Option<toml::Table> {
        let asks = self.health.get("kind").and_then(toml::Value::as_str).is_some_and(|kind| kind != "tcp");
        asks.then_some(self.health)
    }

    fn is_of_web(&self) -> bool {
        [80, 443].contains(&self.port)
    }
}

/// The frontend whose servers are the backends. `None`: they are others.
pub(super) fn chosen(request: &SetupRequest, host: &SetupHost, local: Option<&Apiserver>) -> Option<HaproxyFrontend> {
    if local.is_some() || !request.backends.is_empty() || request.inventory.is_some() {
        return None;
    }
    frontend_of_apiservers(host.file(HAPROXY_CONFIG)?).ok()?
}

/// The frontend of the apiservers. `None`: the file has none with servers.
pub(super) fn frontend_of_apiservers(file: &ForeignFile) -> Result<Option<HaproxyFrontend>, SetupRefusal> {
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
