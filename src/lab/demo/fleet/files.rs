//! The configuration files of Baton on the hosts of the fleet.

use std::io;
use std::path::{Path, PathBuf};

use super::layout::{FleetLayout, HostPlan, PORT, VIP};
use crate::lab::demo::space::NetSpace;
use crate::sys::random;

/// What the configuration files of all hosts have in common.
pub(super) struct FleetFiles {
    key: PathBuf,
    ca: PathBuf,
    hosts: Vec<HostPlan>,
}

impl FleetFiles {
    pub(super) fn write(dir: &Path, ca: &Path, layout: FleetLayout) -> io::Result<Self> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let key = dir.join("peers.key");
        let secret: String = random::secret::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&key)?
            .write_all(secret.as_bytes())?;
        Ok(Self { key, ca: ca.to_owned(), hosts: layout.hosts() })
    }

    /// The file of docs/stacked.md for this host.
    pub(super) fn configuration(&self, host: &HostPlan, space: &NetSpace, stem: &Path) -> String {
        let text = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
        let balancers = || self.hosts.iter().filter(|host| host.balances);
        let slot = balancers().position(|other| other == host).unwrap_or(0);
        let peers: String = balancers()
            .filter(|other| *other != host)
            .map(|peer| format!("\n[[peers.peer]]\nname = \"{}\"\naddress = \"{}:9471\"\n", peer.name, peer.address))
            .collect();
        let backends: String = self
            .hosts
            .iter()
            .filter(|host| host.has_apiserver)
            .map(|it| format!("\n[[frontend.backend]]\nname = \"{}\"\naddress = \"{}:{PORT}\"\n", it.name, it.address))
            .collect();
        let share_port = if host.has_apiserver { "share_port = \"on\"\n" } else { "" };
        format!(
            r#"[instance]
name = "{name}"
slot = {slot}

[admin]
http = "127.0.0.1:9470"
socket = {socket}

[offload]
mode = "require"
pins = {pins}

[recorder]
size_mb = 0

[vip]
addresses = ["{VIP}/32"]
interface = "eth0"

[peers]
listen = "{address}:9471"
key_file = {key}
{peers}
[[frontend]]
name = "apiserver"
listen = ["{VIP}:{PORT}"]
balance = "least_conn"
{share_port}
[frontend.rebalance]
when = "ordered"

[frontend.health]
kind = "https"
path = "/readyz"
interval = "1s"
slow_start = "0s"
ca_file = {ca}
{backends}"#,
            name = host.name,
            address = host.address,
            socket = text(&stem.with_extension("sock")),
            pins = text(&space.pins()),
            key = text(&self.key),
            ca = text(&self.ca),
        )
    }
}
