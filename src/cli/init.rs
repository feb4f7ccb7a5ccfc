//! `baton init`: this host's files, from what is on it.

mod files;
mod service;

use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::check::{self, CheckArguments};
use super::output::{CliError, Output};
use super::socket;
use crate::config::{self, PeerKey};
use crate::model::finding::Verdict;
use crate::model::fleet::SLOTS;
use crate::model::humane::printable;
use crate::preflight::{self, sysctl_file};
use crate::sys::{netdev, netlink, random};
use crate::translate::{ForeignFile, HostRoute, SetupHost, SetupPlan, SetupRequest, plan, refuse_rejected, unit_flags};
use files::{SetupFile, SetupFileError, SetupOutcome};

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example, on each of three control-plane hosts:
  baton init --vip 10.0.0.100 --hosts 10.0.0.11,10.0.0.12,10.0.0.13

It reads the files of kubeadm, k3s, RKE2, HAProxy and keepalived that it finds, prints each value with its source, and
overwrites no file. Exit code: 0 Baton can start with the file, 1 it cannot")]
pub(super) struct InitArguments {
    /// The address that clients know [default: that of kubeadm's admin.conf or of tls-san; where there is an haproxy.cfg, that file's and keepalived.conf's].
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    vip: Vec<IpAddr>,
    /// The other hosts with an instance.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    peers: Vec<IpAddr>,
    /// All hosts with an instance, this one among them: the same on each, a new host at the end.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with = "peers")]
    hosts: Vec<IpAddr>,
    /// This instance's slot, which no other one has [default: the one that its file has, else the position in --hosts].
    #[arg(long, value_name = "0-7", value_parser = clap::value_parser!(u8).range(0..i64::from(SLOTS)))]
    slot: Option<u8>,
    /// The apiservers, each with or without a port [default: those of the files, else one on each host].
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    backends: Vec<String>,
    /// kubespray's inventory, hosts.yaml or an INI file: its control plane are the apiservers.
    #[arg(long, value_name = "FILE", conflicts_with = "backends")]
    inventory: Option<PathBuf>,
    /// The interface for the VIP [default: the one whose network has the VIP, else the one of the route to it].
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The port that clients connect to [default: the apiservers'].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// The CA of the apiservers' certificates, for the probes [default: the cluster's, if it is here].
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The fleet's key, from a file or from standard input (-) [default: the one that is there, else a new one].
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Serves the clients of this host alone, on 127.0.0.1, without a VIP; --peers are hosts with an apiserver.
    #[arg(long, conflicts_with_all = ["vip", "hosts", "slot", "interface", "key"])]
    node_local: bool,
    /// Writes a static pod for the kubelet instead of a unit for systemd. It works before `kubeadm init`.
    #[arg(long, requires = "image")]
    static_pod: bool,
    /// The image of the static pod.
    #[arg(long, requires = "static_pod")]
    image: Option<String>,
    /// Writes no file, and prints all but the key.
    #[arg(long)]
    print: bool,
    /// Replaces files that differ, and keeps a copy of each.
    #[arg(long)]
    force: bool,
    /// Reads and writes files below DIR instead of /.
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

pub(super) fn run(arguments: &InitArguments, config: &Path, output: &Output) -> Result<ExitCode, CliError> {
    // What a path in the file is relative to is another folder.
    let root = std::path::absolute(&arguments.root).map_err(|error| CliError::path(&arguments.root, error))?;
    let place = HostFiles { root: &root };
    // The unit and the static pod name it.
    let config = &match (config.is_relative(), place.is_this_host()) {
        (false, _) => config.to_owned(),
        (true, true) => std::path::absolute(config).map_err(|error| CliError::path(config, error))?,
        (true, false) => {
            let error =
                io::Error::new(io::ErrorKind::InvalidInput, "with --root, the host's own path, which begins with /");
            return Err(CliError::path(config, error));
        }
    };
    let mut request = request(arguments)?;
    request.before = place.read(config)?;
    let plan = plan(&request, &host(&place)?)?;
    if !arguments.static_pod && !arguments.print {
        refuse_hidden(config)?;
    }
    refuse_rejected(&plan.with_ca_at(|path| place.of(path)), &place.of(config))?;
    let mut all = vec![SetupFile { path: place.of(config), text: plan.toml.clone(), mode: 0o644 }];
    all.push(starter(arguments, &place, config, &plan));
    if arguments.print {
        return print(&plan, &all, output);
    }
    let key_path = place.of(config).with_file_name("peers.key");
    let key = (!plan.peers.is_empty()).then(|| key(arguments, &key_path)).transpose()?;
    all.extend(key.iter().map(|(key, _)| SetupFile { path: key_path.clone(), text: key.spell() + "\n", mode: 0o600 }));
    // A key with other white space is the same key.
    all.retain(|file| file.path != key_path || read_key(&key_path).ok().as_ref() != key.as_ref().map(|(key, _)| key));
    let fault = |error: SetupFileError| CliError::path(&error.path, error.source);
    files::refuse_overwriting(&all, arguments.force).map_err(fault)?;
    let mut outcomes = Vec::new();
    // The key first: a configuration without it is none.
    for file in all.iter().rev() {
        outcomes.push((file, files::write(file).map_err(fault)?));
    }
    let keyless = match key {
        Some((_, true)) => &plan.peers[..],
        _ if request.before.is_some() => &plan.new_peers,
        // It has come from one of them.
        _ => &[],
    };
    let steps = steps(&plan, &place, (&key_path, keyless), config, arguments.static_pod);
    if output.json {
        let files =
            |(file, outcome): &(&SetupFile, SetupOutcome)| json!({ "path": file.path, "outcome": told(outcome) });
        let files: Vec<_> = outcomes.iter().map(files).collect();
        output.document(&json!({ "facts": plan.facts, "files": files, "steps": steps }))?;
    } else {
        output.text(&facts(&plan))?;
        for (file, outcome) in &outcomes {
            output.line(format!("{}: {}", file.path.display(), told(outcome)))?;
        }
        output.line("")?;
        if place.is_this_host() {
            check::run(config, &CheckArguments::of_host(), false);
            output.line("")?;
        }
        for step in &steps {
            output.line(format!("next: {step}"))?;
        }
    }
    Ok(match config::load(&place.of(config)) {
        Err(_) if place.is_this_host() => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// The unit has ProtectHome=yes: it would not find its file.
fn refuse_hidden(config: &Path) -> Result<(), CliError> {
    let Some(hidden) = HIDDEN.iter().find(|hidden| config.starts_with(hidden)) else { return Ok(()) };
    let why = format!("the unit cannot read below {hidden} (ProtectHome=yes): choose another path by -c, below /etc");
    Err(CliError::path(config, io::Error::new(io::ErrorKind::InvalidInput, why)))
}

/// Paths of the host below `--root`.
struct HostFiles<'a> {
    root: &'a Path,
}

impl HostFiles<'_> {
    fn is_this_host(&self) -> bool {
        self.root == Path::new("/")
    }

    /// What starts Baton on this host besides, and how to end it: a unit beside the static pod, or a static pod beside the unit.
    fn other_starter(&self, is_pod: bool) -> Option<String> {
        // A masked unit is a link to /dev/null.
        let is_file = |path: &str| self.of(Path::new(path)).is_file();
        match is_pod {
            true if self.has_enabled_unit() => Some("the unit is enabled: `systemctl disable --now baton`".to_owned()),
            true if is_file(UNIT) => {
                Some(format!("a unit is here as well: `systemctl disable --now baton`, and remove {UNIT}"))
            }
            false if is_file(STATIC_POD) => Some(format!("the kubelet starts Baton as well: remove {STATIC_POD}")),
            _ => None,
        }
    }

    /// Whether a target has a link to the unit, as `systemctl enable` makes it.
    fn has_enabled_unit(&self) -> bool {
        let entries = std::fs::read_dir(self.of(Path::new(ENABLED))).into_iter().flatten().flatten();
        let mut targets = entries.map(|entry| entry.path()).filter(|path| {
            path.extension().and_then(|it| it.to_str()).is_some_and(|it| ["wants", "requires"].contains(&it))
        });
        targets.any(|target| target.join("baton.service").symlink_metadata().is_ok())
    }

    /// What the host calls `path`.
    fn named(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.root).map_or_else(|_| path.to_owned(), |inside| Path::new("/").join(inside))
    }

    fn of(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Those in `directory`, by their names; none, if there is no such directory.
    fn yaml_files(&self, directory: &Path) -> Result<Vec<PathBuf>, CliError> {
        let fault = |source| CliError::path(directory, source);
        let entries = match std::fs::read_dir(self.of(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fault)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(directory.join(entry.map_err(fault)?.file_name()));
        }
        let is_yaml = |path: &PathBuf| {
            let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
            ["yaml", "yml"].iter().any(|yaml| extension.eq_ignore_ascii_case(yaml)) && self.of(path).is_file()
        };
        names.retain(is_yaml);
        names.sort_unstable();
        Ok(names)
    }

    /// `None`: there is none.
    fn read(&self, path: &Path) -> Result<Option<ForeignFile>, CliError> {
        let here = self.of(path);
        // Opening a pipe would wait for who writes to it.
        if here.metadata().is_ok_and(|it| !it.is_file()) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(CliError::path(path, error));
        }
        match read(&here) {
            Ok(text) => Ok(Some(ForeignFile { name: path.display().to_string(), text })),
            Err(CliError::Path { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn request(arguments: &InitArguments) -> Result<SetupRequest, CliError> {
    let inventory = |path: &PathBuf| {
        let name = path.display().to_string();
        read(path).map(|text| ForeignFile { name, text })
    };
    Ok(SetupRequest {
        vips: arguments.vip.clone(),
        peers: arguments.peers.clone(),
        hosts: arguments.hosts.clone(),
        backends: arguments.backends.clone(),
        interface: arguments.interface.clone(),
        port: arguments.port,
        ca_file: arguments.ca_file.as_ref().map(|path| path.display().to_string()),
        inventory: arguments.inventory.as_ref().map(inventory).transpose()?,
        is_node_local: arguments.node_local,
        slot: arguments.slot,
        before: None,
    })
}

fn host(place: &HostFiles) -> Result<SetupHost, CliError> {
    let mut found = Vec::new();
    for path in SetupHost::FILES {
        found.extend(place.read(Path::new(path))?);
    }
    for directory in SetupHost::DIRECTORIES {
        for path in place.yaml_files(Path::new(directory))? {
            found.extend(place.read(&path)?);
        }
    }
    for unit in unit_flags::units() {
        found.extend(place.read(Path::new(unit))?.as_ref().and_then(unit_flags::as_config));
    }
    let authorities = SetupHost::AUTHORITIES.iter().filter(|path| place.of(Path::new(path)).exists());
    let route = |to: IpAddr| {
        let route = netlink::route(to).ok()?;
        let interface = netdev::name(route.interface).ok()?;
        Some(HostRoute { interface, source: netdev::source_towards(to)? })
    };
    let fault = |error| CliError::path(Path::new("the addresses of this host"), error);
    let mut networks = netdev::networks().map_err(fault)?;
    let fixed = preflight::fixed(&networks);
    for (_, network) in networks.iter_mut().filter(|(_, network)| !fixed.contains(&network.addr())) {
        *network = network.addr().into();
    }
    Ok(SetupHost {
        networks,
        route: Box::new(route),
        files: found,
        authorities: authorities.map(|path| (*path).to_owned()).collect(),
    })
}

/// The unit, or the static pod.
fn starter(arguments: &InitArguments, place: &HostFiles, config: &Path, plan: &SetupPlan) -> SetupFile {
    let (path, text, mode) = match (&arguments.image, arguments.static_pod) {
        (Some(image), true) => {
            let text = service::static_pod(image, config, plan.ca_file.as_deref());
            (STATIC_POD, text, 0o600)
        }
        _ => {
            let binary = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/baton"));
            let text = service::unit(&place.named(&binary), config);
            // A package has its own, which another one would hide. It is for one path of the file and of the binary.
            let is_same = |path: &Path| std::fs::read_to_string(place.of(path)).is_ok_and(|own| own == text);
            let own = UNITS.iter().copied().find(|path| is_same(Path::new(path)));
            (own.unwrap_or(UNIT), text, 0o644)
        }
    };
    SetupFile { path: place.of(Path::new(path)), text, mode }
}

/// The key, and whether it is new. One that is there is kept, unless --key has another.
fn key(arguments: &InitArguments, path: &Path) -> Result<(PeerKey, bool), CliError> {
    match &arguments.key {
        Some(given) => Ok((read_key(given)?, false)),
        None => match read_key(path) {
            Err(CliError::Path { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok((PeerKey(random::secret().map_err(|error| CliError::path(path, error))?), true))
            }
            read => read.map(|key| (key, false)),
        },
    }
}

fn read_key(path: &Path) -> Result<PeerKey, CliError> {
    let text = match path == Path::new("-") {
        true => io::read_to_string(io::stdin().take(FILE_BYTES_MAX)).map_err(|error| CliError::path(path, error))?,
        false => read(path)?,
    };
    PeerKey::parse(text.trim()).ok_or_else(|| CliError::NoKey(path.to_owned()))
}

fn read(path: &Path) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let fault = |source| CliError::path(path, source);
    std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)).map_err(fault)?;
    if bytes.contains(&0) {
        return Err(fault(io::Error::new(io::ErrorKind::InvalidData, "it has a NUL byte, so it is no text")));
    }
    Ok(ForeignFile::new(String::new(), &bytes).text)
}

fn print(plan: &SetupPlan, all: &[SetupFile], output: &Output) -> Result<ExitCode, CliError> {
    if output.json {
        let files: Vec<_> = all.iter().map(|file| json!({ "path": file.path, "text": file.text })).collect();
        output.document(&json!({ "facts": plan.facts, "files": files }))?;
        return Ok(ExitCode::SUCCESS);
    }
    eprint!("{}", facts(plan));
    for file in all {
        output.line(format!("# {}", file.path.display()))?;
        output.text(&file.text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Each value with its source.
fn facts(plan: &SetupPlan) -> String {
    let width = plan.facts.iter().map(|fact| fact.key.len()).max().unwrap_or_default();
    let line =
        |key: &str, value: &str, place: &str| format!("{key:<width$}  {}  ({})\n", printable(value), printable(place));
    plan.facts.iter().map(|fact| line(fact.key, &fact.value, &fact.place)).collect()
}

fn told(outcome: &SetupOutcome) -> String {
    match outcome {
        SetupOutcome::New => "written".to_owned(),
        SetupOutcome::Same => "needs no change".to_owned(),
        SetupOutcome::Replaced(copy) => format!("replaced; {} has the text before", copy.display()),
    }
}

/// `keyless`: peers that may not have this key yet.
fn steps(
    plan: &SetupPlan,
    place: &HostFiles,
    (key, keyless): (&Path, &[IpAddr]),
    config: &Path,
    is_pod: bool,
) -> Vec<String> {
    let mut steps = plan.steps.clone();
    let there = place.named(key);
    let (here, there) = (key.display(), there.display());
    // Not over the key of a fleet that is there already: this host would have one of its own, and the others would lose theirs.
    let copy =
        |peer: &IpAddr| format!("ssh root@{peer} 'test ! -e {there} && install -D -m 600 /dev/stdin {there}' < {here}");
    steps.extend(keyless.iter().map(copy));
    if let Some(peer) = keyless.first() {
        steps.push(format!("if that fails because the fleet has a key already: ssh root@{peer} cat {there} > {here}"));
    }
    let check = match config == Path::new(socket::DEFAULT_CONFIG) {
        true => "baton check --host".to_owned(),
        false => format!("baton check -c {} --host", config.display()),
    };
    match place.is_this_host() {
        true if lacks_settings(config) => {
            steps.push(format!("{check} --fix; sysctl -q -p {}", sysctl_file::DEFAULT));
        }
        true => {}
        false => steps.push(format!("there, before it starts: {check}")),
    }
    let answers = || socket::find(Some(config)).is_ok_and(|path| socket::connect(&path).is_ok());
    let runs = place.is_this_host() && answers();
    steps.push(match (runs, is_pod) {
        (true, _) => format!(
            "an instance runs here, and applies what {} changes within seconds: `baton events` says what it applied, refused, or leaves to `baton upgrade`",
            config.display()
        ),
        (false, true) => "the kubelet starts the pod by itself, also before `kubeadm init`".to_owned(),
        (false, false) => "systemctl enable --now baton".to_owned(),
    });
    if let Some(other) = place.other_starter(is_pod) {
        steps.push(format!("{other}, or two instances want the same port"));
    }
    steps
}

/// Whether the kernel's settings of this host may leave clients waiting.
fn lacks_settings(config: &Path) -> bool {
    let Ok(loaded) = config::load(config) else { return false };
    let findings = preflight::look(&loaded.config, None).findings;
    findings.iter().any(|finding| finding.verdict == Verdict::Fault && finding.fix.contains("sysctl"))
}

/// systemd.exec(5), ProtectHome=.
const HIDDEN: [&str; 3] = ["/home", "/root", "/run/user"];
const UNIT: &str = "/etc/systemd/system/baton.service";
/// Where packages have theirs.
const UNITS: [&str; 2] = ["/usr/lib/systemd/system/baton.service", "/lib/systemd/system/baton.service"];
/// Where `systemctl enable` makes links.
const ENABLED: &str = "/etc/systemd/system";
const STATIC_POD: &str = "/etc/kubernetes/manifests/baton.yaml";
/// A file that is no configuration must not fill the memory.
const FILE_BYTES_MAX: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: `init --static-pod` was silent about a unit that `init` had written before, and two instances wanted one port.
    #[test]
    fn a_unit_beside_a_static_pod_is_told() {
        let root = tempfile::tempdir().unwrap();
        let place = HostFiles { root: root.path() };
        let units = place.of(Path::new(ENABLED));
        assert_eq!((place.other_starter(true), place.other_starter(false)), (None, None));
        std::fs::create_dir_all(units.join("kubelet.service.requires")).unwrap();
        std::os::unix::fs::symlink("/dev/null", place.of(Path::new(UNIT))).unwrap();
        assert_eq!(place.other_starter(true), None, "a masked unit");
        std::fs::remove_file(place.of(Path::new(UNIT))).unwrap();
        std::fs::write(place.of(Path::new(UNIT)), "[Unit]\n").unwrap();
        let told = place.other_starter(true).unwrap();
        assert_eq!(told, format!("a unit is here as well: `systemctl disable --now baton`, and remove {UNIT}"));
        std::os::unix::fs::symlink(UNIT, units.join("kubelet.service.requires/baton.service")).unwrap();
        assert_eq!(place.other_starter(true).unwrap(), "the unit is enabled: `systemctl disable --now baton`");
        assert_eq!(place.other_starter(false), None);
    }
}
