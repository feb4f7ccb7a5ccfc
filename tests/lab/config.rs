//! Configuration files for the Baton of a lab, key by key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::host::Host;

/// One frontend and its backends; whatever is not set has Baton's default.
#[derive(Clone, Debug)]
pub struct Config {
    admin: Table,
    process: Table,
    log: Table,
    recorder: Table,
    path: Table,
    instance: Table,
    peers: Table,
    failover: Table,
    vip: Table,
    names: Table,
    cluster: Table,
    frontend: Table,
    health: Table,
    backends: Vec<Table>,
}

impl Config {
    pub fn new(lb: &Host, backends: &[&Host]) -> Self {
        let listen = vec![lb.v4(6443).to_string(), lb.v6(6443).to_string()];
        let config = Self {
            admin: Table::new(),
            process: Table::new(),
            log: Table::new(),
            // The machine may have an installed Baton, which records there.
            recorder: with(Table::new(), "size_mb", 0),
            // Proxied, unless a test says otherwise; what another program has pinned on this machine is none of the test's.
            path: with(with(Table::new(), "mode", "off"), "pins", "/sys/fs/bpf/baton-of-no-test"),
            instance: Table::new(),
            peers: Table::new(),
            failover: Table::new(),
            vip: Table::new(),
            names: Table::new(),
            cluster: Table::new(),
            frontend: Table::new(),
            health: Table::new(),
            backends: Vec::new(),
        };
        let config = config.admin("http", "127.0.0.1:9470").log("level", "debug");
        let config = config.frontend("name", "apiserver").frontend("listen", listen).health("kind", "tcp");
        // A backend that comes back has its whole share at once, so that tests of other things need not wait.
        let config = config.health("slow_start", "0s");
        backends.iter().fold(config, |config, host| config.backend(host.name, host.v4(6443)))
    }

    pub fn admin(self, key: &str, value: impl Into<Value>) -> Self {
        Self { admin: with(self.admin, key, value), ..self }
    }

    pub fn process(self, key: &str, value: impl Into<Value>) -> Self {
        Self { process: with(self.process, key, value), ..self }
    }

    pub fn log(self, key: &str, value: impl Into<Value>) -> Self {
        Self { log: with(self.log, key, value), ..self }
    }

    /// A recorder in `directory`.
    pub fn recording(self, directory: &Path) -> Self {
        let directory = directory.to_str().expect("UTF-8");
        Self { recorder: with(with(self.recorder, "size_mb", 8), "directory", directory), ..self }
    }

    /// A key of `[names]`.
    pub fn of_names(self, key: &str, value: impl Into<Value>) -> Self {
        Self { names: with(self.names, key, value), ..self }
    }

    pub fn names(self, file: &Path) -> Self {
        self.of_names("file", file.to_str().expect("UTF-8"))
    }

    pub fn cluster(self, key: &str, value: impl Into<Value>) -> Self {
        Self { cluster: with(self.cluster, key, value), ..self }
    }

    pub fn offload(self, key: &str, value: impl Into<Value>) -> Self {
        Self { path: with(self.path, key, value), ..self }
    }

    /// Flows are offloaded, with what is pinned in `directory`.
    pub fn offloading(self, directory: &Path) -> Self {
        self.offload("mode", "require").offload("pins", directory.to_str().expect("UTF-8")).offload("max_flows", 20_000)
    }

    pub fn instance(self, key: &str, value: impl Into<Value>) -> Self {
        Self { instance: with(self.instance, key, value), ..self }
    }

    pub fn peers(self, key: &str, value: impl Into<Value>) -> Self {
        Self { peers: with(self.peers, key, value), ..self }
    }

    pub fn without_peers(mut self, key: &str) -> Self {
        self.peers.remove(key);
        self
    }

    /// One key of the `[[peers.peer]]` with this name.
    pub fn peer_key(mut self, name: &str, key: &str, value: impl Into<Value>) -> Self {
        let all = self.peers.get_mut("peer").and_then(Value::as_array_mut).expect("peers");
        let mut tables = all.iter_mut().filter_map(Value::as_table_mut);
        let it = tables.find(|peer| peer["name"].as_str() == Some(name)).expect("a peer of this name");
        it.insert(key.to_owned(), value.into());
        self
    }

    /// It knows of no other instance.
    pub fn alone(self) -> Self {
        Self { peers: Table::new(), ..self }
    }

    pub fn is_alone(&self) -> bool {
        self.peers.is_empty()
    }

    pub fn failover(self, key: &str, value: impl Into<Value>) -> Self {
        Self { failover: with(self.failover, key, value), ..self }
    }

    pub fn vip(self, key: &str, value: impl Into<Value>) -> Self {
        Self { vip: with(self.vip, key, value), ..self }
    }

    /// One more `[[peers.peer]]`.
    pub fn peer(self, name: &str, address: SocketAddr) -> Self {
        let mut all = self.peers.get("peer").and_then(Value::as_array).cloned().unwrap_or_default();
        all.push(with(with(Table::new(), "name", name), "address", address.to_string()).into());
        self.peers("peer", all)
    }

    pub fn frontend(self, key: &str, value: impl Into<Value>) -> Self {
        Self { frontend: with(self.frontend, key, value), ..self }
    }

    pub fn health(self, key: &str, value: impl Into<Value>) -> Self {
        Self { health: with(self.health, key, value), ..self }
    }

    /// `[frontend.rebalance]`.
    pub fn rebalance(self, key: &str, value: impl Into<Value>) -> Self {
        let table = self.frontend.get("rebalance").and_then(Value::as_table).cloned().unwrap_or_default();
        self.frontend("rebalance", with(table, key, value))
    }

    /// `[frontend.health.damping]`.
    pub fn damping(self, key: &str, value: impl Into<Value>) -> Self {
        let table = self.health.get("damping").and_then(Value::as_table).cloned().unwrap_or_default();
        self.health("damping", with(table, key, value))
    }

    /// `[frontend.discover]`.
    pub fn discover(self, key: &str, value: impl Into<Value>) -> Self {
        let table = self.frontend.get("discover").and_then(Value::as_table).cloned().unwrap_or_default();
        self.frontend("discover", with(table, key, value))
    }

    /// HTTPS probes of /readyz that trust `ca_file`.
    pub fn https(self, ca_file: &Path) -> Self {
        self.health("kind", "https").health("path", "/readyz").health("ca_file", ca_file.to_str().expect("UTF-8"))
    }

    /// One more backend.
    pub fn backend(mut self, name: &str, address: SocketAddr) -> Self {
        self.backends.push(with(with(Table::new(), "name", name), "address", address.to_string()));
        self
    }

    /// Sets a key of the backend called `name`.
    pub fn of_backend(mut self, name: &str, key: &str, value: impl Into<Value>) -> Self {
        let backend = self.backends.iter_mut().find(|backend| backend["name"].as_str() == Some(name));
        backend.expect("a backend of that name").insert(key.to_owned(), value.into());
        self
    }

    pub fn without_backend(mut self, name: &str) -> Self {
        self.backends.retain(|backend| backend["name"].as_str() != Some(name));
        self
    }

    /// Only these backends, in this order.
    pub fn only(mut self, names: &[&str]) -> Self {
        self.backends.retain(|backend| names.contains(&backend["name"].as_str().expect("a name")));
        self
    }

    pub fn backend_names(&self) -> Vec<String> {
        self.backends.iter().map(|backend| backend["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// The file's text, with the admin socket at `socket`.
    pub fn text(&self, socket: &Path) -> String {
        let mut frontend = self.frontend.clone();
        frontend.insert("health".to_owned(), self.health.clone().into());
        if !self.backends.is_empty() {
            frontend.insert("backend".to_owned(), self.backends.clone().into());
        }
        let mut file = Table::new();
        let admin = with(self.admin.clone(), "socket", socket.to_str().expect("UTF-8"));
        file.insert("admin".to_owned(), admin.into());
        file.insert("process".to_owned(), self.process.clone().into());
        file.insert("log".to_owned(), self.log.clone().into());
        file.insert("recorder".to_owned(), self.recorder.clone().into());
        file.insert("offload".to_owned(), self.path.clone().into());
        let tables = [
            ("instance", &self.instance),
            ("peers", &self.peers),
            ("failover", &self.failover),
            ("vip", &self.vip),
            ("names", &self.names),
            ("cluster", &self.cluster),
        ];
        for (name, table) in tables {
            if !table.is_empty() {
                file.insert(name.to_owned(), table.clone().into());
            }
        }
        file.insert("frontend".to_owned(), vec![frontend].into());
        toml::to_string(&file).expect("plain values")
    }
}

/// Where a lab's Baton keeps its files.
#[derive(Clone, Debug)]
pub struct Paths {
    pub config: PathBuf,
    pub socket: PathBuf,
    pub log: PathBuf,
}

impl Paths {
    pub fn below(directory: &Path) -> Self {
        let file = |name| directory.join(name);
        Self { config: file("baton.toml"), socket: file("admin.sock"), log: file("baton.log") }
    }
}

fn with(mut table: Table, key: &str, value: impl Into<Value>) -> Table {
    table.insert(key.to_owned(), value.into());
    table
}
