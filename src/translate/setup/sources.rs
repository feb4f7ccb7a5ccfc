//! Reads the files of a Kubernetes host: kubeadm's, those of k3s and RKE2, and kubespray's inventory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use yaml_rust2::parser::{EventReceiver, Parser};
use yaml_rust2::{Event, Yaml, YamlLoader};

use super::host_range::expanded;
use super::{SetupFact, SetupRefusal};
use crate::translate::ForeignFile;

/// The apiserver's static pod.
pub(super) const KUBEADM_MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
/// An administrator's kubeconfig, with the address that kubeadm got by --control-plane-endpoint.
pub(super) const KUBEADM_CONFIG: &str = "/etc/kubernetes/admin.conf";
pub(super) const K3S_CONFIG: &str = "/etc/rancher/k3s/config.yaml";
pub(super) const RKE2_CONFIG: &str = "/etc/rancher/rke2/config.yaml";

/// An apiserver of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalApiserver {
    /// `None`: the file names none, and the host's own address counts.
    pub ip: Option<IpAddr>,
    pub port: u16,
    /// The file and its keys, of the address if it names one.
    pub place: String,
    /// The file and its key of the port. `None`: the file does not name it, and the default counts.
    pub port_place: Option<String>,
    /// Addresses that the certificates have besides, each with the file and its key.
    pub names: Vec<(IpAddr, String)>,
    /// Where k3s or RKE2 has its files, if not where it usually has them.
    pub data_dir: Option<String>,
}

impl LocalApiserver {
    /// The names that are wanted, each once, and their places.
    pub(super) fn named(&self, is_wanted: impl Fn(&IpAddr) -> bool) -> (Vec<IpAddr>, String) {
        let all = || self.names.iter().filter(|(ip, _)| is_wanted(ip));
        let places: BTreeSet<_> = all().map(|(_, place)| &**place).collect();
        let ips: BTreeSet<_> = all().map(|(ip, _)| *ip).collect();
        (ips.into_iter().collect(), places.into_iter().collect::<Vec<_>>().join("; "))
    }

    /// Of the address and the port together.
    pub(super) fn places(&self) -> String {
        let Self { place, port_place, .. } = self;
        let Some(other) = port_place.as_ref().filter(|other| *other != place) else { return place.clone() };
        let file = place.rsplit_once(": ").map_or("", |(file, _)| file);
        match other.strip_prefix(file).and_then(|rest| rest.strip_prefix(": ")) {
            Some(key) => format!("{place}, {key}"),
            None => format!("{place}; {other}"),
        }
    }
}

/// `--advertise-address` and `--secure-port` of kube-apiserver.yaml. `None`: it is no such manifest.
pub(super) fn kubeadm(file: &ForeignFile) -> Result<Option<LocalApiserver>, SetupRefusal> {
    let Some(pod) = document(file)? else { return Ok(None) };
    expect_table(&pod, file, "manifest of a pod")?;
    let containers: Vec<_> = pod["spec"]["containers"].as_vec().into_iter().flatten().collect();
    // Others of the pod may have flags of the same names.
    let named = containers.iter().copied().find(|it| it["name"].as_str() == Some("kube-apiserver"));
    let containers = named.map_or(containers, |it| vec![it]);
    let words = containers.into_iter().flat_map(|it| [&it["command"], &it["args"]]).filter_map(Yaml::as_vec).flatten();
    // A shell's command is one word.
    let words: Vec<_> = words.filter_map(Yaml::as_str).flat_map(str::split_whitespace).collect();
    // As the apiserver reads it: `--name=value`, or the value in the next word.
    let flag = |name: &str| {
        let at = words
            .iter()
            .position(|word| *word == name || word.strip_prefix(name).is_some_and(|it| it.starts_with('=')))?;
        Some(
            words[at]
                .split_once('=')
                .map_or_else(|| words.get(at + 1).copied().unwrap_or_default(), |(_, value)| value),
        )
    };
    // A value that cannot be read is no reason to take the default: the apiserver would not do so.
    let bad = |name: &str, value: &str| SetupRefusal::BadFlag(file.name.clone(), name.to_owned(), value.to_owned());
    let read = |name: &'static str| flag(name).map(|value| (value, bad(name, value)));
    let ip: Option<IpAddr> = read("--advertise-address").map(|(it, bad)| it.parse().map_err(|_| bad)).transpose()?;
    let port: Option<u16> = read("--secure-port").map(|(it, bad)| it.parse().map_err(|_| bad)).transpose()?;
    let flags = match (ip, port) {
        (None, None) if words.is_empty() => return Ok(None),
        (None, None) => "it is there",
        (Some(_), Some(_)) => "--advertise-address, --secure-port",
        (Some(_), None) => "--advertise-address",
        (None, Some(_)) => "--secure-port",
    };
    let place = format!("{}: {flags}", file.name);
    let port_place = port.map(|_| place.clone());
    Ok(Some(LocalApiserver { ip, port: port.unwrap_or(6443), place, port_place, ..LocalApiserver::default() }))
}

/// `server` of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownEndpoint {
    /// An address, or a name.
    pub host: String,
    pub port: u16,
}

impl KnownEndpoint {
    /// `None`: a name.
    pub(super) fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Where the clients of the cluster connect to.
pub(super) fn endpoint(file: &ForeignFile) -> Result<Option<KnownEndpoint>, SetupRefusal> {
    let Some(config) = document(file)? else { return Ok(None) };
    expect_table(&config, file, "kubeconfig")?;
    let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap_or_default();
    Ok(authority(server))
}

/// The texts of a key, each with its file, and the last file that has the key.
#[derive(Default)]
pub(super) struct RancherValue<'a> {
    pub texts: Vec<(String, &'a str)>,
    file: &'a str,
}

/// The values of config.yaml of k3s or RKE2 and of the files in config.yaml.d, each with the file that has it: the last file counts,
/// and a key that ends in `+` adds to what was there (docs.k3s.io/installation/configuration).
#[derive(Default)]
pub(super) struct RancherConfig<'a> {
    pub values: BTreeMap<String, RancherValue<'a>>,
    first: &'a str,
}

impl<'a> RancherConfig<'a> {
    pub(super) fn read(files: &[&'a ForeignFile]) -> Result<Self, SetupRefusal> {
        let mut all = Self { first: files.first().map_or("", |file| &file.name), ..Self::default() };
        for file in files {
            let document = document(file)?.unwrap_or(Yaml::Null);
            for (key, value) in named(&document) {
                let texts = match value.as_vec() {
                    Some(list) => list.iter().filter_map(text).collect(),
                    None => text(value).into_iter().collect::<Vec<_>>(),
                };
                let (key, adds) = key.strip_suffix('+').map_or((&*key, false), |key| (key, true));
                let RancherValue { texts: before, file: of } = all.values.entry(key.to_owned()).or_default();
                let texts = texts.into_iter().map(|text| (text, &*file.name));
                before.splice(if adds { before.len() } else { 0 }.., texts);
                *of = &file.name;
            }
        }
        Ok(all)
    }

    /// Each with its place.
    fn addresses(&self, key: &str) -> Vec<(IpAddr, String)> {
        let all = self.values.get(key).into_iter().flat_map(|value| &value.texts);
        let parts = all.flat_map(|(text, file)| text.split(',').map(move |part| (part, file)));
        parts.filter_map(|(part, file)| Some((part.trim().parse().ok()?, format!("{file}: {key}")))).collect()
    }

    pub(super) fn port(&self, key: &str) -> Result<Option<u16>, SetupRefusal> {
        let Some(RancherValue { texts, file }) = self.values.get(key) else { return Ok(None) };
        let text = texts.last().map_or("", |(text, _)| text);
        let bad = |_| SetupRefusal::BadFlag((*file).to_owned(), key.to_owned(), text.to_owned());
        text.parse().map(Some).map_err(bad)
    }
}

/// config.yaml of k3s or RKE2, and the files beside it that count as well.
pub(super) fn rancher(files: &[&ForeignFile]) -> Result<LocalApiserver, SetupRefusal> {
    let config = RancherConfig::read(files)?;
    let mut addresses = ["advertise-address", "node-ip"].into_iter().flat_map(|key| config.addresses(key));
    let (ip, place) = addresses.next().unzip();
    let port = config.port("https-listen-port")?;
    let port_file = config.values.get("https-listen-port").map_or(config.first, |value| value.file);
    let port_place = port.map(|_| format!("{port_file}: https-listen-port"));
    let place = place.or_else(|| port_place.clone()).unwrap_or_else(|| format!("{}: it is there", config.first));
    let data_dir = config.values.get("data-dir").and_then(|value| Some(value.texts.last()?.0.to_string()));
    let names = config.addresses("tls-san");
    Ok(LocalApiserver { ip, port: port.unwrap_or(6443), place, port_place, names, data_dir })
}

/// The hosts of the group kube_control_plane, in the order of the file: name and address. Both forms of Ansible's inventories.
pub(super) fn inventory(file: &ForeignFile) -> Result<Vec<(String, IpAddr)>, SetupRefusal> {
    let Inventory { members, children, hosts, .. } = Inventory::read(file)?;
    let (mut group, mut seen) = (Vec::new(), BTreeSet::new());
    let mut pending: Vec<String> = GROUPS.iter().rev().map(|name| (*name).to_owned()).collect();
    while let Some(name) = pending.pop() {
        group.extend(members.get(&name).into_iter().flatten().cloned());
        if let Some(of_group) = children.get(&name).filter(|_| seen.insert(name.clone())) {
            pending.extend(of_group.iter().rev().cloned());
        }
    }
    let address = |name: &String| {
        let of_host = hosts.get(name);
        let keys = ["access_ip", "ip", "ansible_host"].into_iter();
        let given: Vec<_> = keys.filter_map(|key| Some((key, &**of_host?.get(key)?))).collect();
        let mut texts = given.iter().map(|(_, text)| *text).chain([&**name]);
        texts.find_map(|text| text.parse().ok()).map(|ip| (name.clone(), ip)).ok_or_else(|| match given.first() {
            Some((key, text)) => {
                SetupRefusal::HostIsNamed(file.name.clone(), name.clone(), (*key).to_owned(), (*text).to_owned())
            }
            None => SetupRefusal::NoHostAddress(file.name.clone(), name.clone()),
        })
    };
    // A host may be in several of the groups.
    let mut seen = BTreeSet::new();
    group.iter().filter(|name| seen.insert(*name)).map(address).collect()
}

/// `kube_apiserver_port` of any host or group.
pub(super) fn inventory_port(file: &ForeignFile) -> Result<Option<u16>, SetupRefusal> {
    let Inventory { hosts, variables, .. } = Inventory::read(file)?;
    let all: BTreeSet<_> = hosts.values().chain(variables.values()).filter_map(|it| it.get(APISERVER_PORT)).collect();
    let list = all.iter().map(|text| &***text).collect::<Vec<_>>().join(", ");
    match all.len() {
        0 => Ok(None),
        1 => list
            .parse()
            .map(Some)
            .map_err(|_| SetupRefusal::BadFlag(file.name.clone(), APISERVER_PORT.to_owned(), list)),
        _ => Err(SetupRefusal::SeveralPorts(file.name.clone(), APISERVER_PORT, list)),
    }
}

/// kubespray's.
const APISERVER_PORT: &str = "kube_apiserver_port";

/// Groups with their hosts and their groups, and the variables of each host and each group.
#[derive(Default)]
struct Inventory {
    members: BTreeMap<String, Vec<String>>,
    children: BTreeMap<String, Vec<String>>,
    hosts: BTreeMap<String, BTreeMap<String, String>>,
    variables: BTreeMap<String, BTreeMap<String, String>>,
}

impl Inventory {
    fn read(file: &ForeignFile) -> Result<Self, SetupRefusal> {
        if is_ini(&file.text) { Ok(inventory_ini(&file.text)) } else { inventory_yaml(file) }
    }
}

/// Former names of the group stand in older inventories.
const GROUPS: [&str; 3] = ["kube_control_plane", "kube-master", "kube_master"];

/// A file of the other form begins with a key and a colon. An INI file may begin with hosts that are in no group.
fn is_ini(text: &str) -> bool {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    let is_header =
        |line: &str| line.starts_with('[') && line.split('#').next().is_some_and(|it| it.trim().ends_with(']'));
    let is_host = |line: &str| {
        let name = line.split_whitespace().next().unwrap_or_default();
        line.contains('=') && !name.ends_with(':') || !line.contains(':') && !line.starts_with(['-', '{'])
    };
    lines().any(is_header) || lines().next().is_some_and(is_host)
}

fn inventory_ini(text: &str) -> Inventory {
    let mut all = Inventory::default();
    let mut section = "";
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            section = name;
            continue;
        }
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default().to_owned();
        match section.split_once(':') {
            Some((group, "children")) => all.children.entry(group.to_owned()).or_default().push(name),
            // [group:vars] lists no hosts.
            Some((group, _)) => {
                let variable = line.split_once('=').map(|(key, value)| (key.trim().to_owned(), unquoted(value.trim())));
                all.variables.entry(group.to_owned()).or_default().extend(variable);
            }
            None => {
                let variables = words.take_while(|word| !word.starts_with('#')).filter_map(|word| word.split_once('='));
                let variables: Vec<_> = variables.map(|(key, value)| (key.to_owned(), unquoted(value))).collect();
                for name in expanded(&name) {
                    all.hosts.entry(name.clone()).or_default().extend(variables.iter().cloned());
                    all.members.entry(section.to_owned()).or_default().push(name);
                }
            }
        }
    }
    all
}

fn inventory_yaml(file: &ForeignFile) -> Result<Inventory, SetupRefusal> {
    let mut all = Inventory::default();
    let document = document(file)?.unwrap_or(Yaml::Null);
    let mut pending: Vec<(String, &Yaml)> = named(&document);
    while let Some((name, content)) = pending.pop() {
        let variables = |yaml| named(yaml).into_iter().filter_map(|(key, value)| Some((key, text(value)?)));
        all.variables.entry(name.clone()).or_default().extend(variables(&content["vars"]));
        for (host, of_host) in named(&content["hosts"]) {
            for host in expanded(&host) {
                all.hosts.entry(host.clone()).or_default().extend(variables(of_host));
                all.members.entry(name.clone()).or_default().push(host);
            }
        }
        let children = named(&content["children"]);
        all.children.entry(name).or_default().extend(children.iter().map(|(child, _)| child.clone()));
        pending.extend(children);
    }
    Ok(all)
}

fn unquoted(value: &str) -> String {
    value.trim_matches(['"', '\'']).to_owned()
}

/// `None`: a table or a list.
fn text(yaml: &Yaml) -> Option<String> {
    match yaml {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(is) => Some(is.to_string()),
        _ => None,
    }
}

/// The keys of a table, in its order.
fn named(yaml: &Yaml) -> Vec<(String, &Yaml)> {
    let all = yaml.as_hash().into_iter().flatten();
    all.filter_map(|(key, value)| Some((key.as_str()?.to_owned(), value))).collect()
}

/// The host and port in `https://10.0.0.100:6443`.
fn authority(url: &str) -> Option<KnownEndpoint> {
    let place = url.split_once("://")?.1.split('/').next()?;
    let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let is_whole = |host: &str| !host.is_empty() && (!host.contains(':') || host.ends_with(']'));
    match place.rsplit_once(':').filter(|(host, _)| is_whole(host)) {
        Some((host, port)) => Some(KnownEndpoint { host: bare(host), port: port.parse().ok()? }),
        None => Some(KnownEndpoint { host: bare(place), port: HTTPS }).filter(|it| !it.host.is_empty()),
    }
}

/// RFC 9110 section 4.2.2.
const HTTPS: u16 = 443;

/// `what`: the kind of file that has its name.
fn expect_table(document: &Yaml, file: &ForeignFile, what: &'static str) -> Result<(), SetupRefusal> {
    match document {
        Yaml::Hash(_) => Ok(()),
        _ => Err(SetupRefusal::NotWhatItsNameSays(file.name.clone(), what)),
    }
}

/// The first document of the file.
fn document(file: &ForeignFile) -> Result<Option<Yaml>, SetupRefusal> {
    // The loader copies what an alias stands for; a file of a few lines may stand for more than any memory has.
    let mut size = YamlSize::default();
    let read = Parser::new_from_str(&file.text).load(&mut size, true);
    read.map_err(|error| SetupRefusal::NoYaml(file.name.clone(), error))?;
    if size.total > YAML_BYTES_MAX {
        return Err(SetupRefusal::TooManyAliases(file.name.clone()));
    }
    let documents =
        YamlLoader::load_from_str(&file.text).map_err(|error| SetupRefusal::NoYaml(file.name.clone(), error))?;
    Ok(documents.into_iter().next())
}

/// The memory that a document needs with each alias written out, roughly.
#[derive(Default)]
struct YamlSize {
    total: u64,
    /// Of each anchor, by its number.
    anchors: BTreeMap<usize, u64>,
    /// Anchors of the tables and lists around, and the total before each.
    around: Vec<(usize, u64)>,
}

impl EventReceiver for YamlSize {
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Scalar(text, _, anchor, _) => {
                let size = NODE_BYTES + text.len() as u64;
                self.anchors.insert(anchor, size);
                self.total = self.total.saturating_add(size);
            }
            Event::Alias(anchor) => {
                let size = self.anchors.get(&anchor).copied().unwrap_or(NODE_BYTES);
                self.total = self.total.saturating_add(size);
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                self.around.push((anchor, self.total));
                self.total = self.total.saturating_add(NODE_BYTES);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some((anchor, before)) = self.around.pop() {
                    self.anchors.insert(anchor, self.total - before);
                }
            }
            _ => {}
        }
    }
}

const NODE_BYTES: u64 = 64;
const YAML_BYTES_MAX: u64 = 256 << 20;

/// Backends of the inventory, and where they are from.
pub(super) fn inventory_fact(file: &ForeignFile, all: &[(String, IpAddr)]) -> SetupFact {
    let value = all.iter().map(|(name, ip)| format!("{name} {ip}")).collect::<Vec<_>>().join(", ");
    SetupFact { key: "inventory", value, place: format!("{}: group kube_control_plane", file.name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> ForeignFile {
        ForeignFile { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_apiservers_flags_are_read_from_command_and_args() {
        let text = "spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - --advertise-address=10.0.0.11\n    args: [--secure-port=7443]\n";
        let read = kubeadm(&file("m.yaml", text)).unwrap().unwrap();
        assert_eq!((read.ip, read.port), (Some("10.0.0.11".parse().unwrap()), 7443));
        assert_eq!(read.place, "m.yaml: --advertise-address, --secure-port");
        assert_eq!(kubeadm(&file("m.yaml", "kind: Pod\n")).unwrap(), None);
        let error = kubeadm(&file("m.yaml", "a: [\n")).unwrap_err().to_string();
        assert!(error.starts_with("m.yaml is not YAML: "), "{error}");
        assert_eq!(kubeadm(&file("m.yaml", "")).unwrap(), None);
    }

    /// It counted as a host without an apiserver, and nothing said so.
    #[test]
    fn a_file_that_is_not_what_its_name_says_is_refused() {
        let error = kubeadm(&file("m.yaml", "Zm9v\n")).unwrap_err().to_string();
        assert_eq!(error, "m.yaml is no manifest of a pod: fix it, or move it away");
        let error = endpoint(&file("admin.conf", "- a\n")).unwrap_err().to_string();
        assert_eq!(error, "admin.conf is no kubeconfig: fix it, or move it away");
    }

    #[test]
    fn a_port_of_the_apiserver_that_is_none_is_not_said_to_be_6443_by_the_manifest() {
        let manifest = |flag: &str| {
            let text = format!("spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - {flag}\n");
            kubeadm(&file("m.yaml", &text)).map(|read| read.unwrap().place).map_err(|error| error.to_string())
        };
        assert_eq!(manifest("--secure-port=99999").unwrap_err(), "m.yaml: \"99999\" is no value of --secure-port");
        assert_eq!(manifest("--advertise-address=x").unwrap_err(), "m.yaml: \"x\" is no value of --advertise-address");
        assert_eq!(manifest("--allow-privileged=true").unwrap(), "m.yaml: it is there");
        // Regression: a value in a word of its own was not read, and 6443 was said to be the manifest's.
        assert_eq!(manifest("--secure-port\n    - \"8443\"").unwrap(), "m.yaml: --secure-port");
        assert_eq!(manifest("--secure-port").unwrap_err(), "m.yaml: \"\" is no value of --secure-port");
    }

    #[test]
    fn the_endpoint_of_a_kubeconfig_is_an_address_or_a_name() {
        let server = |url: &str| endpoint(&file("c", &format!("clusters:\n- cluster:\n    server: {url}\n"))).unwrap();
        let place = |host: &str, port| Some(KnownEndpoint { host: host.to_owned(), port });
        assert_eq!(server("https://10.0.0.100:8443"), place("10.0.0.100", 8443));
        assert_eq!(server("https://[fd00::1]:6443"), place("fd00::1", 6443));
        assert_eq!(server("https://[fd00::1]"), place("fd00::1", 443));
        assert_eq!(server("https://10.0.0.100"), place("10.0.0.100", 443));
        assert_eq!(server("https://api.example.com:8443/"), place("api.example.com", 8443));
        assert_eq!(server("https://api.example.com:x"), None);
        assert_eq!(server("''"), None);
        assert_eq!(place("api.example.com", 1).unwrap().ip(), None);
    }

    #[test]
    fn k3s_names_its_address_as_text_or_as_a_list() {
        let read = |text: &str| rancher(&[&file("c", text)]);
        let all = read("node-ip: 10.0.0.11,fd00::11\nhttps-listen-port: 7443\ntls-san: [10.0.0.100, a.b]\n").unwrap();
        assert_eq!((all.ip, all.port), (Some("10.0.0.11".parse().unwrap()), 7443));
        assert_eq!(all.names, [("10.0.0.100".parse::<IpAddr>().unwrap(), "c: tls-san".to_owned())]);
        assert_eq!(read("").unwrap().port, 6443);
        assert_eq!(read("https-listen-port: \"7443\"\n").unwrap().port, 7443);
        let none = read("https-listen-port: 99999\n").unwrap_err().to_string();
        assert_eq!(none, "c: \"99999\" is no value of https-listen-port");
    }

    /// The files beside config.yaml were not read, and the port was said to be 6443.
    #[test]
    fn the_last_file_of_k3s_counts_and_a_plus_adds() {
        let files = [
            file("c", "token: x\nhttps-listen-port: 6444\ntls-san: [10.0.0.100]\nnode-ip: 10.0.0.9\n"),
            file("c.d/10", "https-listen-port: 7443\ntls-san+: fd00::100\n"),
            file("c.d/20", "node-ip: [10.0.0.11]\ntls-san+: [a.b, 10.0.0.101]\n"),
        ];
        let read = rancher(&files.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((read.ip, read.port, &*read.place), (Some("10.0.0.11".parse().unwrap()), 7443, "c.d/20: node-ip"));
        let names = [("10.0.0.100", "c"), ("fd00::100", "c.d/10"), ("10.0.0.101", "c.d/20")];
        let named = |(ip, file): (&str, &str)| (ip.parse::<IpAddr>().unwrap(), format!("{file}: tls-san"));
        assert_eq!(read.names, names.map(named));
        let agent = super::super::agent::rancher_agent(&[
            &file("c", "server: https://x\n"),
            &file("d", "lb-server-port: 7000\n"),
        ])
        .unwrap();
        assert!(agent.joins && agent.balancer_port == Some(7000));
    }

    #[test]
    fn the_apiserver_of_a_pod_is_the_container_of_its_name_and_may_be_started_by_a_shell() {
        let read = |containers: &str| {
            let read = kubeadm(&file("m", &format!("spec:\n  containers:\n{containers}"))).unwrap().unwrap();
            (read.port, read.place)
        };
        let own = "  - name: kube-apiserver\n    command: [kube-apiserver, --allow-privileged=true]\n";
        let beside = "  - name: proxy\n    command: [proxy, --secure-port=9999]\n";
        for both in [format!("{own}{beside}"), format!("{beside}{own}")] {
            assert_eq!(read(&both), (6443, "m: it is there".to_owned()));
        }
        let shell = "  - command: [/bin/sh, -c, \"exec kube-apiserver --secure-port=8443 2>&1\"]\n";
        assert_eq!(read(shell), (8443, "m: --secure-port".to_owned()));
    }

    #[test]
    fn the_port_of_the_apiservers_stands_anywhere_in_an_inventory_once() {
        let port = |text: &str| inventory_port(&file("hosts", text)).map_err(|error| error.to_string());
        let ini = "[kube_control_plane]\ncp1 ip=10.0.0.11\n";
        assert_eq!(port(ini), Ok(None));
        assert_eq!(port(&format!("{ini}[kube_control_plane:vars]\nkube_apiserver_port = 6444\n")), Ok(Some(6444)));
        assert_eq!(port(&format!("{ini}cp2 ip=10.0.0.12 kube_apiserver_port=6444\n")), Ok(Some(6444)));
        let yaml = "all:\n  vars: {kube_apiserver_port: 7443}\n  children:\n    kube_control_plane: {hosts: {cp1: {ip: 10.0.0.11}}}\n";
        assert_eq!(port(yaml), Ok(Some(7443)));
        let two = format!("{ini}[all:vars]\nkube_apiserver_port=1\n[kube_control_plane:vars]\nkube_apiserver_port=2\n");
        assert_eq!(
            port(&two).unwrap_err(),
            "hosts has several values of kube_apiserver_port (1, 2): name the apiservers by --backends"
        );
        let none = port(&format!("{ini}[all:vars]\nkube_apiserver_port={{{{ x }}}}\n")).unwrap_err();
        assert_eq!(none, "hosts: \"{{ x }}\" is no value of kube_apiserver_port");
    }

    /// Each line stands for ten times the one before it.
    #[test]
    fn an_inventory_that_stands_for_more_than_the_memory_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for line in 1..12 {
            let before = format!("*a{}, ", line - 1).repeat(10);
            text += &format!("a{line}: &a{line} [{}]\n", before.trim_end_matches(", "));
        }
        let error = inventory(&file("hosts.yaml", &text)).unwrap_err().to_string();
        assert_eq!(error, "hosts.yaml has aliases that stand for more than 256 MiB: write the hosts out");
        let few = "all:\n  vars: &v {a: b}\n  more: *v\n";
        assert_eq!(inventory(&file("hosts.yaml", few)).unwrap(), []);
    }

    #[test]
    fn a_group_of_groups_has_their_hosts_and_hosts_may_stand_before_the_first_header() {
        let names = |text: &str| {
            let all = inventory(&file("hosts", text)).unwrap_or_else(|error| panic!("{error}: {text}"));
            all.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let children = "[masters]\ncp1 ip=10.0.0.11\ncp2 ip=10.0.0.12\n[kube_control_plane:children]\nmasters\nagain\n[again:children]\n\
                        kube_control_plane\n";
        assert_eq!(names(children), ["cp1", "cp2"]);
        assert_eq!(
            names("cp1 ip=10.0.0.11\n10.0.0.12\n[kube_control_plane]\ncp1\n10.0.0.12 # cp2\n"),
            ["cp1", "10.0.0.12"]
        );
        let yaml = "all:\n  children:\n    kube_control_plane:\n      children:\n        masters:\n          hosts:\n            cp1: {ip: 10.0.0.11}\n";
        assert_eq!(names(yaml), ["cp1"]);
        for text in ["cp1 ip=10.0.0.11\n", "10.0.0.11\n10.0.0.12\n"] {
            assert_eq!(names(text), [""; 0], "no host is in the group");
        }
    }

    #[test]
    fn a_range_of_hosts_is_one_of_an_inventory_in_either_form() {
        let expected: Vec<_> =
            ["10.0.0.11", "10.0.0.12"].map(|ip| (ip.to_owned(), ip.parse().unwrap())).into_iter().collect();
        assert_eq!(inventory(&file("hosts", "[kube_control_plane]\n10.0.0.[11:12]\n")).unwrap(), expected);
        let yaml = "all:\n  children:\n    kube_control_plane:\n      hosts:\n        10.0.0.[11:12]: {}\n";
        assert_eq!(inventory(&file("hosts.yaml", yaml)).unwrap(), expected);
    }

    #[test]
    fn both_forms_of_an_inventory_name_the_same_hosts() {
        let ini = "# hosts\n[all]\ncp1 ansible_host=192.0.2.11 ip=10.0.0.11\ncp2 ansible_host=10.0.0.12\nw1 ansible_host=10.0.0.21\n\n\
                   [kube_control_plane]\ncp1\ncp2\n[kube_control_plane:vars]\na=b\n[kube_node]\nw1\n";
        let yaml = "all:\n  hosts:\n    cp1: {ansible_host: 192.0.2.11, ip: 10.0.0.11}\n    cp2: {ansible_host: 10.0.0.12}\n    \
                    w1: {ansible_host: 10.0.0.21}\n  children:\n    kube_control_plane:\n      hosts:\n        cp1:\n        cp2:\n    \
                    k8s_cluster:\n      children:\n        kube_node:\n          hosts:\n            w1:\n";
        let expected =
            [("cp1", "10.0.0.11"), ("cp2", "10.0.0.12")].map(|(name, ip)| (name.to_owned(), ip.parse().unwrap()));
        assert_eq!(inventory(&file("hosts.ini", ini)).unwrap(), expected);
        assert_eq!(inventory(&file("hosts.yaml", yaml)).unwrap(), expected);
        let without = inventory(&file("hosts.ini", "[kube_control_plane]\ncp1\n")).unwrap_err().to_string();
        assert_eq!(without, "hosts.ini: host cp1 has no address: set ip or ansible_host");
        let named =
            inventory(&file("hosts.ini", "[kube_control_plane]\ncp1 ansible_host=a.b\n")).unwrap_err().to_string();
        assert_eq!(named, "hosts.ini: host cp1 has ansible_host a.b, a name: set ip to its address");
    }
}
