//! The configuration: only valid values exist here. [`load()`] reads a file and reports every error in it at once.
//!
//! ```text
//! file -> document (lines, TOML) -> section (a table, key by key) -> kind (one value) -> the types below
//!              ^ findings: errors and warnings of all of them
//! ```
//! There is no mirror of the file in between for serde to fill: serde stops at the first wrong type or unknown key.

mod backend;
pub(crate) mod budget;
mod certificate;
mod cluster;
mod diagnostic;
mod discover;
mod document;
mod failover;
mod file;
mod foreign;
mod frontend;
mod health;
mod identity;
mod kind;
mod load;
mod named;
mod names;
mod offload;
mod peers;
mod process;
mod recorded;
mod recorder;
mod renamed;
mod section;
mod spelling;
mod title;
pub(crate) mod tls;
mod unknown;
mod vip;
mod watch;

pub use budget::{BudgetHost, VipTrack};
pub use diagnostic::{Diagnostic, Loaded, Quote, Rejected, Severity};
pub(crate) use discover::read_list;
pub use discover::{Discover, DiscoverSource, DnsRecord, DnsSource, KubernetesSource};
pub(crate) use file::{FileFault, UnreadFile, read as read_file};
pub(crate) use foreign::{HAPROXY, KEEPALIVED, program_of};
pub use frontend::by_default as frontend_by_default;
pub(crate) use health::reset_after_silence;
pub use identity::{KeyFile, PeerKey, PrivateKey, PublicKey};
pub use load::{by_default, check, load, parse};
pub(crate) use named::names_file;
pub use names::NamesSettings;
pub(crate) use names::{NamesInFile, read_names};
pub use process::Group;
pub(crate) use process::read_socket;
pub(crate) use recorded::{FileOwner, FrontendSettings};
pub use recorder::RecorderSettings;
pub(crate) use watch::FileWatch;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::addr::{BackendAddr, SourceMask, VipAddr};
use crate::model::balance::Balance;
use crate::model::discover::{AddressSet, backend_name};
use crate::model::fleet::InstanceName;

/// A whole, valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub admin: Admin,
    pub process: Process,
    pub log: Log,
    pub recorder: RecorderSettings,
    pub names: NamesSettings,
    pub offload: OffloadSettings,
    pub cluster: Cluster,
    pub instance: Instance,
    /// `None`: this instance is alone.
    pub peers: Option<Peers>,
    pub failover: FailoverSettings,
    /// `None`: Baton does not move the VIP.
    pub vip: Option<VipSettings>,
    /// At least one; names are unique.
    pub frontends: Vec<Arc<Frontend>>,
}

impl Config {
    /// This instance's name among its peers.
    pub(crate) fn name(&self) -> Option<&InstanceName> {
        self.peers.as_ref().map(|peers| &peers.name).or(self.instance.name.as_ref())
    }

    /// Whether clients reach this load balancer at `address`.
    pub(crate) fn is_own(&self, address: BackendAddr) -> bool {
        let listens =
            self.frontends.iter().flat_map(|it| &it.listen).any(|it| it.socket_addr() == address.socket_addr());
        listens || self.vip.as_ref().is_some_and(|vip| vip.addresses.contains(&address.ip()))
    }

    /// This configuration of a file, with the backends of `found` by frontend.
    pub(crate) fn with_found(&self, found: &HashMap<Arc<str>, AddressSet>) -> Self {
        let of_one = |frontend: &Arc<Frontend>| match found.get(&frontend.name) {
            Some(found) if frontend.discover.is_some() => {
                let found = found.iter().copied().filter(|address| !self.is_own(*address)).collect();
                Arc::new(frontend.with_found(&found))
            }
            _ => frontend.clone(),
        };
        Self { frontends: self.frontends.iter().map(of_one).collect(), ..self.clone() }
    }
}

/// `[admin]`: the interfaces for watching and operating Baton.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Read-only HTTP. `None`: not served.
    pub http: Option<SocketAddr>,
    /// The Unix socket for everything that changes something; mode 0600.
    pub socket: PathBuf,
    /// HTTP with /metrics, /livez and /readyz alone. `None`: not served.
    pub metrics: Option<SocketAddr>,
    /// Names of this host in URLs of its pages with addresses of clients, beside those that it knows by itself.
    pub allowed_hosts: Vec<String>,
    /// Its members may read by a second Unix socket, [`Admin::read_socket`]. `None`: there is no such socket.
    pub group: Option<Group>,
}

/// `[process]`: settings for all frontends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Worker threads; `None`: one per core that the process may run on. Fixed until the process is replaced.
    pub workers: Option<usize>,
    /// Limit for flows. `None`: as many as the file descriptor limit allows.
    pub max_connections: Option<u32>,
    /// How long a stop fails readiness before it closes the listeners.
    pub shutdown_delay: Duration,
    /// How long a stop then waits for flows to end before it resets them.
    pub stop_timeout: Duration,
    /// Mass resets (a backend died) are spread over this time, with jitter ...
    pub reset_within: Duration,
    /// ... and never exceed this many a second.
    pub reset_rate: u32,
}

/// `[cluster]`: the timers of the clients' cluster. The budgets of `baton check`, `baton what-if` and `baton nodes` use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// A node whose lease was not renewed for this long is NotReady.
    pub node_monitor_grace_period: Duration,
    /// Between two renewals.
    pub lease_renew: Duration,
    /// keepalived's advert_int, if a VIP moves between instances.
    pub vrrp_advert_interval: Option<Duration>,
    /// Time from an instance's silence to the failure of keepalived's track_script: its (interval + timeout) × fall.
    pub vrrp_track_time: Duration,
}

/// `[instance]`: this instance's identity in a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub name: Option<InstanceName>,
    /// The range of the source ports that is its own, from 0. `None`: its place among all names.
    pub slot: Option<u8>,
}

/// `[peers]`: the other instances for the same addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// This instance's.
    pub name: InstanceName,
    /// This instance's range of the source ports, below [`crate::model::fleet::SLOTS`].
    pub slot: u8,
    /// The address where the peers reach this instance.
    pub listen: SocketAddr,
    /// The UDP port of beats beside the link, the same for all instances. `None`: as that of the link.
    pub beat_port: Option<u16>,
    /// The key that all instances share. `None`: each is known by its own.
    pub shared: Option<KeyFile<PeerKey>>,
    /// The one before it, which counts as well.
    pub shared_previous: Option<PeerKey>,
    /// The key that only this instance has.
    pub own_key: Option<KeyFile<PrivateKey>>,
    /// How long readiness waits for peers that cannot be reached.
    pub sync_deadline: Duration,
    /// At least one, in the order of their names; no name and no address is this instance's own.
    pub peers: Vec<Peer>,
}

/// `[failover]`: the handling of flows of an instance that is dead or out of reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverSettings {
    /// Whether idle clients are challenged at once when their flow died with its owner.
    pub challenge: bool,
    /// Limit for such segments per second.
    pub resets_per_second: u32,
    /// How long unknown packets are dropped rather than reset while records are still on their way.
    pub guard: Duration,
    /// Clients in the first of these networks are reset first, then those in the next; all others last.
    pub priority: Vec<IpNet>,
    /// Holds 1 while this host should not have the VIP, for keepalived's vrrp_track_file. `None`: only readiness says so.
    pub track_file: Option<PathBuf>,
}

/// `[vip]`: addresses that Baton itself moves between the instances, all together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VipSettings {
    /// At least one.
    pub addresses: Vec<IpAddr>,
    pub interface: Arc<str>,
    /// Of several equal instances, the one with the highest priority takes the VIP.
    pub priority: u8,
    /// The program, with its arguments, that Baton runs when this host has got the VIP. Empty: none.
    pub on_gain: Vec<String>,
    pub on_loss: Vec<String>,
}

/// `[[peers.peer]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: InstanceName,
    pub address: SocketAddr,
    /// Each is its own; two during a rotation. Empty: it is known by the shared key.
    pub public_keys: Vec<PublicKey>,
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
    pub flows: FlowLog,
    /// Limit for lines about ended flows per second; further lines are skipped and counted.
    pub flows_per_second: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Human,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// The ended flows that get a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLog {
    All,
    /// Only those that neither the client nor the backend ended in the ordinary way (FIN).
    Errors,
    Off,
}

/// `[offload]`: flows that the BPF program carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadSettings {
    pub mode: OffloadMode,
    /// Interfaces with the program. Empty: those of the routes to frontends' and backends' addresses.
    pub interfaces: Vec<Arc<str>>,
    /// Limit for offloaded flows. A pinned map keeps its size until it is removed.
    pub max_flows: u32,
    /// Answered requests before a flow may be offloaded ...
    pub after_round_trips: u32,
    /// ... unless it has reached this age.
    pub after: Duration,
    /// The folder in a BPF file system where program and maps are pinned.
    pub pins: PathBuf,
}

/// Whether flows are offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadMode {
    /// Where the host allows it; else they stay proxied.
    Auto,
    Off,
    /// Where the host does not allow it, Baton does not start.
    Require,
}

/// `[[frontend]] source`: the source address of a backend leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The address that the client asked for, where flows may be offloaded; else the route's.
    Auto,
    /// The kernel chooses by the route to the backend.
    Route,
    /// This one, towards backends of its family; the route's for others.
    Address(IpAddr),
}

/// `[[frontend]] share_port`: whether another process may listen on the frontend's port, on all addresses of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharePort {
    /// If a backend is on this host at the same port, or another process has the port already.
    Auto,
    /// Baton never binds the port.
    On,
    /// Baton binds the port.
    Off,
}

impl SharePort {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// `[[frontend]]`: a set of listening addresses and the backends behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontend {
    pub name: Arc<str>,
    /// At least one, no address twice in the whole file.
    pub listen: Vec<VipAddr>,
    pub share_port: SharePort,
    pub balance: Balance,
    pub source: Source,
    /// One connect attempt gets this long.
    pub connect_timeout: Duration,
    /// A second, parallel attempt starts when the first has not answered after this. `None`: never.
    pub hedge_after: Option<Duration>,
    /// Attempts for one flow, hedged ones included; at least 1.
    pub connect_attempts: u32,
    /// How long the flows of a draining backend may go on.
    pub drain_timeout: Duration,
    /// No byte either way for this long ends a flow. `None`: never.
    pub idle_timeout: Option<Duration>,
    pub keepalive: Keepalive,
    pub proxy_protocol: ProxyProtocol,
    pub limits: Limits,
    /// Sources that may connect. Empty: all.
    pub allow: Vec<IpNet>,
    /// Sources that may not, even if allowed.
    pub deny: Vec<IpNet>,
    pub rebalance: Rebalance,
    pub health: Health,
    /// `None`: the backends are those of the file alone.
    pub discover: Option<Discover>,
    /// At least one, unless they are discovered; names are unique within the frontend. Those of the file come first.
    pub backends: Vec<Backend>,
}

impl Frontend {
    /// This frontend of the file, with the backends at `found` after its own. An address that the file has already, or that is found
    /// twice, is one backend.
    fn with_found(&self, found: &AddressSet) -> Self {
        let mut all = self.clone();
        for address in found {
            let (name, target) = (backend_name(*address), Target::Address(*address));
            if all.backends.iter().any(|backend| backend.address == target) {
                continue;
            }
            let is_taken = |name: &str| all.backends.iter().any(|backend| *backend.name == *name);
            let name = if is_taken(&name) { format!("found-{name}") } else { name };
            all.backends.push(Backend {
                name: Arc::from(name),
                address: target,
                weight: 1,
                max_connections: None,
                health_address: None,
                is_discovered: true,
            });
        }
        all
    }

    /// Whether a backend of the file is on a host that has the addresses `here`, at `port`: its process may listen there on all addresses.
    pub(crate) fn has_backend_at(&self, port: u16, here: &[IpAddr]) -> bool {
        // Discovered ones come and go, and the way in which a port is served stays until a restart.
        let own = self.backends.iter().filter(|backend| !backend.is_discovered);
        own.into_iter().any(|backend| match backend.address {
            Target::Address(at) => at.port() == port && here.contains(&at.ip()),
            Target::Name { .. } => false,
        })
    }
}

/// Whether the port of a listening address can be shared: a wildcard stands for every address, loopback's clients are this
/// host's own, and port 0 is not known before it is bound.
pub(crate) fn can_share_port(address: VipAddr) -> bool {
    !address.ip().is_unspecified() && !address.ip().is_loopback() && address.port() != 0
}

/// How Baton notices that a leg's far host has vanished (tcp(7)): keepalive probes while idle, TCP_USER_TIMEOUT while
/// data is in flight. Neither alone covers both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Whole seconds; TCP_KEEPIDLE.
    pub idle: Duration,
    /// Whole seconds; TCP_KEEPINTVL.
    pub interval: Duration,
    /// TCP_KEEPCNT.
    pub count: u32,
    /// TCP_USER_TIMEOUT; overrides `count`.
    pub user_timeout: Duration,
}

/// The PROXY protocol (proxy-protocol.txt of HAProxy), both ways off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyProtocol {
    /// Clients from these networks must begin with a v1 or v2 header. Empty: no header is read.
    pub accept_from: Vec<IpNet>,
    /// How long such a client may take to send it.
    pub header_timeout: Duration,
    /// Begin each backend leg with a v2 header.
    pub send_v2: bool,
}

/// Caps. `None`: no cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub max_connections: Option<u32>,
    pub max_connections_per_source: Option<u32>,
    /// Limit for accepts per second from one source; bursts of as many pass.
    pub accept_rate_per_source: Option<u32>,
    pub source_mask: SourceMask,
}

/// `[frontend.rebalance]`, `when`: what begins to move existing flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebalanceWhen {
    /// A backend that is back: flows that began since its last probe that passed move.
    AfterOutage,
    /// Any backend with more than its share gives idle flows away at any time.
    Always,
    /// An operator's `baton rebalance` alone.
    Ordered,
}

/// `[frontend.rebalance]`: which existing flows move, and their pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebalance {
    pub when: RebalanceWhen,
    /// Limit for moved flows per minute; after an outage and by order Baton may be faster.
    pub per_minute: u32,
    /// A flow may be moved only after this long without a byte; after an outage and by order, after less.
    pub min_idle: Duration,
    /// A backend gives flows away only if it is more than this many percent above its share.
    pub tolerance_percent: u32,
}

/// `[frontend.health]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    pub kind: ProbeKind,
    /// For http and https.
    pub path: String,
    /// The Host header (http, https) and, unless `server_name` is set, the TLS name. `None`: the backend's address.
    pub host: Option<String>,
    /// For tls and https.
    pub tls: Option<ProbeTls>,
    pub interval: Duration,
    /// The interval while a state is changing.
    pub fast_interval: Duration,
    pub timeout: Duration,
    /// Successes in a row until ready.
    pub rise: u32,
    /// Failures in a row until draining or ejected.
    pub fall: u32,
    /// Failures in a row until an ejected backend's flows are reset; at least `fall`.
    pub reset_fall: u32,
    /// Each interval is shortened by up to this many percent, at random.
    pub jitter_percent: u32,
    /// A backend that came back gets a growing share for this long. Zero: its full share at once.
    pub slow_start: Duration,
    pub damping: Damping,
    /// How often a backend's DNS name is resolved again.
    pub resolve_interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Tcp,
    Tls,
    Http,
    Https,
}

/// Flap damping after RFC 2439: each loss of ready adds 1 to a penalty that halves every `half_life`; above
/// `suppress` the backend is held back from ready until the penalty is below `reuse`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Damping {
    pub half_life: Duration,
    pub suppress: f64,
    pub reuse: f64,
}

/// TLS for probes. The flows themselves are passed through and never decrypted.
#[derive(Clone, Debug)]
pub struct ProbeTls {
    /// Built from ca_file or insecure_skip_verify, and the client certificate.
    pub client: Arc<rustls::ClientConfig>,
    /// The name to verify and to send as SNI. `None`: `host`, or the backend's DNS name or address.
    pub server_name: Option<rustls_pki_types::ServerName<'static>>,
    /// Digest of the settings and of the files' contents: equal fingerprints mean equal probes.
    pub fingerprint: u64,
}

impl PartialEq for ProbeTls {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.server_name == other.server_name
    }
}

/// `[[frontend.backend]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub name: Arc<str>,
    pub address: Target,
    /// Share of new flows relative to the others; 0: no new flows, existing ones go on.
    pub weight: u32,
    pub max_connections: Option<u32>,
    /// Where probes go. `None`: to `address`.
    pub health_address: Option<BackendAddr>,
    /// Whether the frontend's discovery has found it, and the file does not have it.
    pub is_discovered: bool,
}

/// A backend's address, or a name that is resolved again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Address(BackendAddr),
    Name { host: String, port: u16 },
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;

    /// The shortest file there is: all the rest are defaults.
    const MINIMAL: &str = r#"
[[frontend]]
name = "apiserver"
listen = ["127.0.0.1:6443"]
[[frontend.backend]]
name = "cp1"
address = "10.0.0.11:6443"
[[frontend.backend]]
name = "cp2"
address = "10.0.0.12:6443"
"#;

    pub(crate) fn minimal() -> Config {
        parse(MINIMAL, Path::new("minimal.toml")).unwrap().config
    }

    #[test]
    fn discovered_backends_come_after_those_of_the_file_and_are_none_of_the_load_balancer_s_own_addresses() {
        let text = MINIMAL.replace("name = \"cp2\"", "name = \"10.0.0.13-6443\"");
        let text = text.replace(
            "[[frontend.backend]]\nname = \"cp1\"",
            "[frontend.discover]\nkind = \"file\"\npath = \"x\"\n[[frontend.backend]]\nname = \"cp1\"",
        );
        let file = parse(&text, Path::new("minimal.toml")).unwrap().config;
        let found = ["10.0.0.11:6443", "10.0.0.13:6443", "10.0.0.14:6443", "127.0.0.1:6443"];
        let found: AddressSet = found.iter().map(|it| BackendAddr::new(it.parse().unwrap())).collect();
        let names =
            |config: &Config| config.frontends[0].backends.iter().map(|it| it.name.to_string()).collect::<Vec<_>>();
        let sets = HashMap::from([(Arc::from("apiserver"), found.clone()), (Arc::from("gone"), found.clone())]);
        let all = file.with_found(&sets);
        assert_eq!(names(&all), ["cp1", "10.0.0.13-6443", "found-10.0.0.13-6443", "10.0.0.14-6443"]);
        assert_eq!(all.frontends[0].backends.iter().filter(|it| it.is_discovered).count(), 2);
        assert_eq!(minimal().with_found(&sets), minimal(), "a frontend without a source has the file's alone");
    }

    #[test]
    fn the_shortest_file_is_taken_without_a_warning() {
        let loaded = parse(MINIMAL, Path::new("minimal.toml")).unwrap();
        assert_eq!(loaded.warnings, []);
        let Config { admin, process, frontends, .. } = loaded.config;
        assert_eq!(admin.http, Some("127.0.0.1:9470".parse().unwrap()));
        assert_eq!((process.workers, process.max_connections), (None, None));
        assert_eq!((frontends[0].idle_timeout, frontends[0].limits), (None, Limits::default()));
    }
}
