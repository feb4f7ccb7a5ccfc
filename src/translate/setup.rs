//! `baton init`: from what the operator asks for and what the host has to Baton's file. Each value says its source.

mod agent;
mod backends;
mod haproxy;
mod health;
mod host_range;
mod loading;
mod peers;
mod refusal;
mod slot;
mod sources;
#[cfg(test)]
mod tests;
pub(crate) mod unit_flags;
mod vip;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::Serialize;

use super::keepalived::{KEY_FILE, PEER_PORT, host_name, key_step};
use super::toml::{Toml, array, quoted};
use super::{ForeignFile, translate};
use crate::model::fleet::SLOTS;
use agent::{K3S_AGENT_CA, RKE2_AGENT_CA, RancherAgent};
use backends::{addressed, backends, with_port};
use haproxy::HaproxyFrontend;
use health::HealthSource;
pub(crate) use loading::refuse_rejected;
use peers::{new_peers, peers_of, refuse_twice};
pub(crate) use refusal::SetupRefusal;
use refusal::spelled_ips;
use slot::slot;
use sources::{K3S_CONFIG, KUBEADM_CONFIG, KUBEADM_MANIFEST, KnownEndpoint, LocalApiserver, RKE2_CONFIG};
use vip::{interface, vips};

/// The options of the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetupRequest {
    pub vips: Vec<IpAddr>,
    pub peers: Vec<IpAddr>,
    /// All instances, this one among them.
    pub hosts: Vec<IpAddr>,
    /// Each an address, or an address or a name with a port.
    pub backends: Vec<String>,
    pub interface: Option<String>,
    pub port: Option<u16>,
    pub ca_file: Option<String>,
    pub inventory: Option<ForeignFile>,
    pub is_node_local: bool,
    /// This instance's, which no other one has.
    pub slot: Option<u8>,
    /// Baton's file that is on this host already.
    pub before: Option<ForeignFile>,
}

impl SetupRequest {
    /// The first option that is given, besides the VIP and how Baton runs.
    fn beside_the_vip(&self) -> Option<&'static str> {
        let given = [
            ("--peers", !self.peers.is_empty()),
            ("--hosts", !self.hosts.is_empty()),
            ("--backends", !self.backends.is_empty()),
            ("--interface", self.interface.is_some()),
            ("--port", self.port.is_some()),
            ("--ca-file", self.ca_file.is_some()),
            ("--inventory", self.inventory.is_some()),
            ("--slot", self.slot.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

/// The way of a packet from this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRoute {
    pub interface: String,
    pub source: IpAddr,
}

/// What this host has.
pub(crate) struct SetupHost {
    /// By interface. A second address of a network, as keepalived's `10.0.0.100/24`, has the longest prefix.
    pub networks: Vec<(String, IpNet)>,
    pub route: Box<dyn Fn(IpAddr) -> Option<HostRoute>>,
    /// Those of [`SetupHost::FILES`] that exist, the `.yaml` and `.yml` ones of [`SetupHost::DIRECTORIES`] in their order, and the flags
    /// of [`unit_flags::units`]; the name is the path.
    pub files: Vec<ForeignFile>,
    /// Those of [`SetupHost::AUTHORITIES`] that exist.
    pub authorities: Vec<String>,
}

impl SetupHost {
    pub(crate) const FILES: [&str; 6] =
        [KUBEADM_MANIFEST, KUBEADM_CONFIG, K3S_CONFIG, RKE2_CONFIG, HAPROXY_CONFIG, KEEPALIVED_CONFIG];
    pub(crate) const DIRECTORIES: [&str; 2] = ["/etc/rancher/k3s/config.yaml.d", "/etc/rancher/rke2/config.yaml.d"];
    pub(crate) const AUTHORITIES: [&str; 5] = [KUBEADM_CA, K3S_CA, RKE2_CA, K3S_AGENT_CA, RKE2_AGENT_CA];

    fn file(&self, path: &str) -> Option<&ForeignFile> {
        self.files.iter().find(|file| file.name == path)
    }

    /// The file at `path` of k3s or RKE2, those of the directory beside it and the unit's flags, in the order in which they count.
    fn files_of(&self, path: &str) -> Vec<&ForeignFile> {
        self.file(path)
            .into_iter()
            .chain(self.files.iter().filter(|it| unit_flags::counts_beside(path, &it.name)))
            .collect()
    }

    fn has_authority(&self, path: &str) -> bool {
        self.authorities.iter().any(|it| it == path)
    }

    fn is_own(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|(_, network)| network.addr() == ip)
    }

    /// Whether `ip` is an address that stays on this host. A VIP has the longest prefix here, and may be on the host now.
    fn is_fixed(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|(_, network)| network.addr() == ip && !is_single(network))
    }

    /// The network of this host in which `ip` is the broadcast address, or that of the network itself.
    fn network_without(&self, ip: IpAddr) -> Option<IpNet> {
        let mut all =
            self.networks.iter().map(|(_, network)| network).filter(|it| it.addr().is_ipv4() && it.prefix_len() < 31);
        all.find(|it| it.network() == ip || it.broadcast() == ip).map(IpNet::trunc)
    }

    /// The network of an interface that has `ip` in it.
    fn network_of(&self, ip: IpAddr) -> Option<(&str, IpAddr)> {
        let mut all = self.networks.iter().filter(|(name, network)| name != "lo" && !is_single(network));
        all.find(|(_, network)| network.contains(&ip)).map(|(name, network)| (&**name, network.addr()))
    }
}

fn is_single(network: &IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

/// A value, and where it is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SetupFact {
    pub key: &'static str,
    pub value: String,
    pub place: String,
}

/// A backend's name and its address.
type SetupBackend = (String, String);

fn spelled(backends: &[SetupBackend]) -> String {
    backends.iter().map(|(_, address)| &**address).collect::<Vec<_>>().join(", ")
}

/// The files to write, and the reasons.
#[derive(Clone, Debug)]
pub(crate) struct SetupPlan {
    pub toml: String,
    pub facts: Vec<SetupFact>,
    /// The CA that the probes use.
    pub ca_file: Option<String>,
    /// Hosts of the other instances, which need the same key.
    pub peers: Vec<IpAddr>,
    /// Those of them that the file before does not name; all, if there is none.
    pub new_peers: Vec<IpAddr>,
    /// Steps that remain.
    pub steps: Vec<String>,
}

impl SetupPlan {
    /// The text, with the CA at the path that `here` makes of the host's.
    pub(crate) fn with_ca_at(&self, here: impl Fn(&Path) -> PathBuf) -> String {
        let Some(ca_file) = &self.ca_file else { return self.toml.clone() };
        self.toml.replace(&quoted(ca_file), &quoted(&here(Path::new(ca_file)).display().to_string()))
    }
}

/// Baton's file for this host.
pub(crate) fn plan(request: &SetupRequest, host: &SetupHost) -> Result<SetupPlan, SetupRefusal> {
    let agent = RancherAgent::find(host)?;
    if request.is_node_local {
        if let Some(agent) = agent {
            agent.refuse_its_ports(request.port)?;
            return node_local(request, host, None, Some(agent.kind));
        }
        let of_host = Apiserver::find(host)?;
        return node_local(request, host, of_host.as_ref(), of_host.as_ref().map(|it| it.kind));
    }
    let agent = agent.filter(|agent| agent.has_joined).map(|agent| agent.kind);
    let of_host = if agent.is_some() { None } else { Apiserver::find(host)? };
    if request.vips.is_empty()
        && let Some(haproxy) = host.file(HAPROXY_CONFIG)
    {
        if let Some(option) = request.beside_the_vip() {
            return Err(SetupRefusal::Imported(HAPROXY_CONFIG, option));
        }
        return translated(request, haproxy, host.file(KEEPALIVED_CONFIG));
    }
    let kind = agent.or(of_host.as_ref().map(|it| it.kind));
    with_vip(request, host, of_host.as_ref(), kind)
}

/// The apiserver of this host, and which distribution's it is.
struct Apiserver {
    local: LocalApiserver,
    kind: Distribution,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    Kubeadm,
    K3s,
    Rke2,
}

impl Distribution {
    fn name(self) -> &'static str {
        match self {
            Self::Kubeadm => "kubeadm",
            Self::K3s => "k3s",
            Self::Rke2 => "RKE2",
        }
    }
}

impl Apiserver {
    fn find(host: &SetupHost) -> Result<Option<Self>, SetupRefusal> {
        if let Some(file) = host.file(KUBEADM_MANIFEST)
            && let Some(local) = sources::kubeadm(file)?
        {
            return Ok(Some(Self { local, kind: Distribution::Kubeadm }));
        }
        for (path, kind) in [(K3S_CONFIG, Distribution::K3s), (RKE2_CONFIG, Distribution::Rke2)] {
            let files = host.files_of(path);
            if !files.is_empty() {
                return Ok(Some(Self { local: sources::rancher(&files)?, kind }));
            }
        }
        // Neither needs a file: a server that runs has its CA.
        let mut all = [(K3S_CA, Distribution::K3s), (RKE2_CA, Distribution::Rke2)].into_iter();
        let found = all.find(|(ca, _)| host.has_authority(ca));
        Ok(found.map(|(ca, kind)| {
            let local = LocalApiserver { port: PORT, place: format!("{ca}: it is there"), ..LocalApiserver::default() };
            Self { local, kind }
        }))
    }
}

/// `kind`: whose the cluster is.
fn with_vip(
    request: &SetupRequest,
    host: &SetupHost,
    local: Option<&Apiserver>,
    kind: Option<Distribution>,
) -> Result<SetupPlan, SetupRefusal> {
    let mut facts = Facts::default();
    let known = match host.file(KUBEADM_CONFIG) {
        Some(file) => sources::endpoint(file)?,
        None => None,
    };
    let vips = vips(request, host, local, known.as_ref().and_then(KnownEndpoint::ip), &mut facts)?;
    let first = vips[0];
    let (interface, place) = interface(request, host, first)?;
    facts.add("interface", interface.clone(), place);
    let (own, peers) = instances(request, host, &vips, &mut facts)?;
    let mut all: Vec<_> = peers.iter().copied().chain([own]).collect();
    all.sort_unstable();
    let slot = slot(request, own, &all, &mut facts)?;
    let backends = match backends(request, host, local, &mut facts)? {
        Some(backends) => backends,
        None => {
            let port = local.map_or(PORT, |it| it.local.port);
            let of_own = local.and_then(|it| it.local.ip).unwrap_or(own);
            if of_own != own && !peers.is_empty() {
                return Err(SetupRefusal::OtherNetwork(
                    local.map(|it| it.local.place.clone()).unwrap_or_default(),
                    of_own,
                    own,
                ));
            }
            let at = |ip: &IpAddr| if *ip == own { of_own } else { *ip };
            let place = local.map_or_else(
                || "no file here names an apiserver: one is expected on each host; --backends names others".to_owned(),
                |it| format!("{}; the peers alike", it.local.places()),
            );
            let backends = addressed(all.iter().map(at), port);
            facts.add("backends", spelled(&backends), place);
            backends
        }
    };
    let is_vip = |address: &str| address.parse::<SocketAddr>().is_ok_and(|at| vips.contains(&at.ip()));
    if let Some((_, address)) = backends.iter().find(|(_, address)| is_vip(address)) {
        return Err(SetupRefusal::BackendIsVip(facts.place("backends"), address.clone()));
    }
    // A name is taken for one of the VIP's.
    let known_port = known.filter(|known| known.ip().is_none_or(|ip| vips.contains(&ip)));
    let known_port = known_port.map(|known| (known.port, format!("{KUBEADM_CONFIG}: server, {}", known.host)));
    let haproxy = haproxy::chosen(request, host, local);
    let known_port = known_port.or_else(|| haproxy.as_ref().map(HaproxyFrontend::port));
    let port = match (request.port, known_port, local) {
        (Some(port), ..) => facts.port(port, "--port"),
        (None, Some((port, place)), _) => facts.port(port, &place),
        (None, None, local) => {
            let place = local.and_then(|it| it.local.port_place.as_deref()).unwrap_or("Kubernetes' default");
            facts.port(local.map_or(PORT, |it| it.local.port), place)
        }
    };
    let mut toml = head();
    toml.table("[instance]");
    toml.key("name", &quoted(&host_name(own)), &facts.place("own address"));
    toml.key("slot", &slot.to_string(), &facts.place("slot"));
    facts.add("name", host_name(own), "the own address".to_owned());
    if !peers.is_empty() {
        toml.table("[peers]");
        toml.key("listen", &quoted(&SocketAddr::new(own, PEER_PORT).to_string()), &facts.place("own address"));
        toml.key("key_file", &quoted(KEY_NAME), "the same key on each host");
        for peer in &peers {
            toml.table("[[peers.peer]]");
            toml.key("name", &quoted(&host_name(*peer)), "its address");
            toml.key("address", &quoted(&SocketAddr::new(*peer, PEER_PORT).to_string()), &facts.place("peers"));
        }
    }
    toml.table("[vip]");
    let single = |ip: &IpAddr| IpNet::from(*ip).to_string();
    toml.key("addresses", &array(&vips.iter().map(single).collect::<Vec<_>>()), &facts.place("vip"));
    toml.key("interface", &quoted(&interface), &facts.place("interface"));
    let listen: Vec<_> = vips.iter().map(|ip| SocketAddr::new(*ip, port).to_string()).collect();
    frontend("apiserver", &listen, &mut toml, &facts);
    let data_dir = local.and_then(|it| it.local.data_dir.as_deref());
    let health = HealthSource::choose(request, host, (kind, data_dir), haproxy.and_then(HaproxyFrontend::check));
    health.write(&mut toml, &mut facts);
    write_backends(&backends, &mut toml, &facts);
    if kind == Some(Distribution::Rke2) {
        let listen: Vec<_> = vips.iter().map(|ip| SocketAddr::new(*ip, RKE2_SUPERVISOR).to_string()).collect();
        frontend("rke2-supervisor", &listen, &mut toml, &facts);
        health.write_again(&mut toml);
        write_backends(&with_port(&backends, RKE2_SUPERVISOR), &mut toml, &facts);
        let place = "RKE2: further servers and agents join there".to_owned();
        facts.add("supervisor", listen.join(", "), place);
    }
    let mut steps = Vec::new();
    if request.vips.is_empty() {
        let vip = spelled_ips(&vips);
        steps.push(format!("make sure that {vip} is no host's own address: Baton takes it when nobody answers there"));
    }
    if peers.is_empty() {
        steps.push("one instance only: if another host serves this VIP, name it with --peers".to_owned());
    }
    let new_peers = new_peers(request, &peers);
    Ok(SetupPlan { toml: toml.text(), facts: facts.all, ca_file: health.ca_file, peers, new_peers, steps })
}

/// The control plane on 127.0.0.1, for the clients of this host alone.
fn node_local(
    request: &SetupRequest,
    host: &SetupHost,
    local: Option<&Apiserver>,
    kind: Option<Distribution>,
) -> Result<SetupPlan, SetupRefusal> {
    if !request.peers.is_empty() && (!request.backends.is_empty() || request.inventory.is_some()) {
        return Err(SetupRefusal::PeersBesideBackends);
    }
    let mut facts = Facts::default();
    let backends = match (backends(request, host, local, &mut facts)?, local) {
        (Some(backends), _) => backends,
        (None, Some(it)) => {
            let own = it.local.ip.or_else(|| (host.route)(*request.peers.first()?).map(|route| route.source));
            let all: Vec<_> = own.into_iter().chain(request.peers.iter().copied()).collect();
            if all.is_empty() {
                return Err(SetupRefusal::NoBackends);
            }
            let backends = addressed(all.iter().copied(), it.local.port);
            facts.add("backends", spelled(&backends), format!("{}; --peers", it.local.places()));
            backends
        }
        (None, None) if request.peers.is_empty() => return Err(SetupRefusal::NoBackends),
        (None, None) => {
            let backends = addressed(request.peers.iter().copied(), PORT);
            facts.add(
                "backends",
                spelled(&backends),
                "--peers; no file here names an apiserver of this host".to_owned(),
            );
            backends
        }
    };
    let port = match (request.port, local) {
        (Some(port), _) => facts.port(port, "--port"),
        // A port on loopback cannot be shared.
        (None, Some(it)) if it.local.port == PORT => {
            let place = it.local.port_place.as_ref().unwrap_or(&it.local.place);
            facts.port(BESIDE_APISERVER, &format!("the apiserver of this host has {PORT}, by {place}"))
        }
        (None, _) => facts.port(PORT, "--node-local"),
    };
    let mut toml = head();
    toml.table("[process]");
    toml.key("workers", "1", "--node-local: the clients of one host");
    toml.table("[offload]");
    toml.key("mode", "\"off\"", "--node-local: no flow of a client on the own host is offloaded");
    let listen = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string()];
    frontend("apiserver", &listen, &mut toml, &facts);
    let health = HealthSource::choose(request, host, (kind, None), None);
    health.write(&mut toml, &mut facts);
    write_backends(&backends, &mut toml, &facts);
    let steps = vec![format!("give the clients of this host https://127.0.0.1:{port} as server")];
    let (peers, new_peers) = (Vec::new(), Vec::new());
    Ok(SetupPlan { toml: toml.text(), facts: facts.all, ca_file: health.ca_file, peers, new_peers, steps })
}

/// What `baton import` writes.
fn translated(
    request: &SetupRequest,
    haproxy: &ForeignFile,
    keepalived: Option<&ForeignFile>,
) -> Result<SetupPlan, SetupRefusal> {
    let translation = translate(haproxy, keepalived);
    let mut facts = Facts::default();
    for ledger in &translation.ledgers {
        let lines = ledger.lines();
        let lost = lines.iter().filter(|line| line.changes_behaviour()).count();
        let value = format!("{} lines, {lost} without an equal", lines.len());
        facts.add("imported", value, ledger.name.clone());
    }
    // `init` makes the key itself, and says where it goes.
    let mut steps: Vec<_> = translation.steps.into_iter().filter(|step| *step != key_step()).collect();
    steps.push("`baton import` says what became of each line".to_owned());
    let document = translation.toml.parse::<toml::Table>().unwrap_or_default();
    if !document.contains_key("frontend") {
        return Err(SetupRefusal::NoFrontend(haproxy.name.clone()));
    }
    let peers: Vec<_> = peers_of(&document).collect();
    let new_peers = new_peers(request, &peers);
    // Beside the file, wherever that is.
    let toml = translation.toml.replace(&quoted(KEY_FILE), &quoted(KEY_NAME));
    let frontends = document.get("frontend").and_then(toml::Value::as_array).into_iter().flatten();
    let mut authorities = frontends.filter_map(|frontend| frontend.get("health")?.get("ca_file")?.as_str());
    let ca_file = authorities.next().map(str::to_owned);
    Ok(SetupPlan { toml, facts: facts.all, ca_file, peers, new_peers, steps })
}

/// This instance's address, and those of the others.
fn instances(
    request: &SetupRequest,
    host: &SetupHost,
    vips: &[IpAddr],
    facts: &mut Facts,
) -> Result<(IpAddr, Vec<IpAddr>), SetupRefusal> {
    refuse_twice(request)?;
    let (own, place, mut peers, of_peers) = if !request.hosts.is_empty() {
        let mut owned = request.hosts.iter().copied().filter(|ip| host.is_own(*ip));
        let own = owned.next().ok_or(SetupRefusal::NotAmongHosts)?;
        if let Some(other) = owned.find(|other| *other != own) {
            return Err(SetupRefusal::TwiceAmongHosts(own, other));
        }
        let peers = request.hosts.iter().copied().filter(|ip| *ip != own).collect::<Vec<_>>();
        (own, "--hosts: this host has it".to_owned(), peers, "--hosts")
    } else if let Some(first) = request.peers.first() {
        if let Some(ip) = request.peers.iter().find(|ip| host.is_own(**ip)) {
            return Err(SetupRefusal::OwnPeer("--peers", *ip));
        }
        let route = (host.route)(*first).ok_or(SetupRefusal::NoRoute(*first))?;
        (route.source, format!("the route to {first}"), request.peers.clone(), "--peers")
    } else {
        let in_network = host.network_of(vips[0]).map(|(_, own)| own);
        let own = in_network.or_else(|| (host.route)(vips[0]).map(|route| route.source));
        let own = own.ok_or(SetupRefusal::NoRoute(vips[0]))?;
        (own, format!("the route to {}", vips[0]), Vec::new(), "")
    };
    peers.sort_unstable();
    if let Some(ip) = peers.iter().chain([&own]).find(|ip| vips.contains(ip)) {
        return Err(SetupRefusal::VipIsHost(*ip));
    }
    if peers.len() >= usize::from(SLOTS) {
        return Err(SetupRefusal::TooMany(peers.len() + 1));
    }
    facts.add("own address", own.to_string(), place);
    if !peers.is_empty() {
        facts.add("peers", spelled_ips(&peers), of_peers.to_owned());
    }
    Ok((own, peers))
}

/// The facts so far, in the order in which they are told.
#[derive(Debug, Default)]
struct Facts {
    all: Vec<SetupFact>,
}

impl Facts {
    fn add(&mut self, key: &'static str, value: String, place: String) {
        self.all.push(SetupFact { key, value, place });
    }

    fn port(&mut self, port: u16, place: &str) -> u16 {
        self.add("port", port.to_string(), place.to_owned());
        port
    }

    fn place(&self, key: &str) -> String {
        self.all.iter().find(|fact| fact.key == key).map(|fact| fact.place.clone()).unwrap_or_default()
    }
}

fn head() -> Toml {
    let mut toml = Toml::default();
    toml.comment("Written by `baton init`; each key names the source of its value.");
    toml.comment("A key that is not here is at its default: config/baton.toml explains every key.");
    toml
}

fn frontend(name: &str, listen: &[String], toml: &mut Toml, facts: &Facts) {
    toml.table("[[frontend]]");
    toml.bare_key("name", &quoted(name));
    toml.key("listen", &array(listen), &format!("port: {}", facts.place("port")));
}

fn write_backends(backends: &[SetupBackend], toml: &mut Toml, facts: &Facts) {
    for (name, address) in backends {
        toml.table("[[frontend.backend]]");
        toml.bare_key("name", &quoted(name));
        toml.key("address", &quoted(address), &facts.place("backends"));
    }
}

const HAPROXY_CONFIG: &str = "/etc/haproxy/haproxy.cfg";
const KEEPALIVED_CONFIG: &str = "/etc/keepalived/keepalived.conf";
const KUBEADM_CA: &str = "/etc/kubernetes/pki/ca.crt";
const K3S_CA: &str = "/var/lib/rancher/k3s/server/tls/server-ca.crt";
const RKE2_CA: &str = "/var/lib/rancher/rke2/server/tls/server-ca.crt";
/// The apiserver's.
const PORT: u16 = 6443;
/// As Talos' KubePrism has it.
const BESIDE_APISERVER: u16 = 7445;
const RKE2_SUPERVISOR: u16 = 9345;
/// Beside the configuration file.
const KEY_NAME: &str = "peers.key";
