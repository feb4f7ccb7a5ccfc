//! Plays a guide: its files and commands, one after the other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::Signal;

use crate::lab::baton::BINARY;
use crate::lab::process::Process;
use crate::lab::*;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
const SHIPPED_UNIT: &str = include_str!("../../../deploy/baton.service");
const K3S_CA: &str = "/var/lib/rancher/k3s/server/tls/server-ca.crt";

/// The hosts of a guide, and what runs on them.
pub struct Player<'a> {
    lab: &'a Lab,
    certificates: Certificates,
    hosts: BTreeMap<&'static str, BareHost<'a>>,
    /// What the guide calls it, and what it is here.
    words: Vec<(String, String)>,
    /// By host and service.
    services: RefCell<BTreeMap<(String, String), Process>>,
    apiservers: RefCell<Vec<StandIn>>,
}

enum Block<'g> {
    Commands(Vec<&'g str>, Vec<String>),
    File(Vec<&'g str>, &'g str, String),
    Printed(Vec<String>),
}

impl<'a> Player<'a> {
    /// The control-plane nodes cp1, cp2 and cp3, a client, and these hosts.
    pub fn new(lab: &'a Lab, more: &[(&'static str, &'a Host)]) -> Self {
        let fixed = [("client", &lab.client), ("cp1", &lab.b1), ("cp2", &lab.b2), ("cp3", &lab.b3)];
        let hosts = fixed.into_iter().chain(more.iter().copied()).map(|(name, host)| (name, BareHost::new(lab, host)));
        let nodes = [("10.0.0.11", &lab.b1), ("10.0.0.12", &lab.b2), ("10.0.0.13", &lab.b3)];
        let mut words: Vec<_> = nodes.into_iter().map(|(said, host)| (said.to_owned(), host.v4.to_string())).collect();
        words.push(("10.0.0.".to_owned(), "10.77.0.".to_owned()));
        let share = lab.directory().join("share");
        words.push(("/usr/share/baton".to_owned(), share.display().to_string()));
        let certificates = Certificates::make(lab);
        let (services, apiservers) = Default::default();
        let player = Self { lab, certificates, hosts: hosts.collect(), words, services, apiservers };
        player.share(&share);
        player
    }

    /// What the guides use of the package's files.
    fn share(&self, share: &Path) {
        for (from, to) in [("bird/bird.conf", "bird/bird.conf"), ("sysctl/90-baton.conf", "sysctl.d/90-baton.conf")] {
            let (from, to) = (Path::new(DEPLOY).join(from), share.join(to));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            let text = self.here(&std::fs::read_to_string(from).unwrap());
            // A namespace has no queue of its own, and sysctl(8) fails where systemd-sysctl(8) passes over the line.
            let lines = text.lines().filter(|line| !line.starts_with("-net.core."));
            std::fs::write(to, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        }
        // With its mode.
        std::fs::copy(Path::new(DEPLOY).join("bird/watch"), share.join("bird/watch")).unwrap();
    }

    /// An apiserver on each control-plane node.
    pub fn control_plane(&self) {
        ["cp1", "cp2", "cp3"].iter().for_each(|name| self.start_apiserver(name));
    }

    /// Hosts that have the VIP.
    pub fn owners(&self) -> usize {
        let mut hosts: Vec<_> = self.hosts.values().map(|it| it.host).collect();
        hosts.dedup_by_key(|host| host.name);
        hosts.sort_by_key(|host| host.name);
        hosts.dedup_by_key(|host| host.name);
        hosts.iter().filter(|host| host.has_address(super::VIP)).count()
    }

    /// Plays each block.
    pub fn play(&self, guide: &str) {
        let mut blocks = blocks(guide).into_iter().peekable();
        while let Some(block) = blocks.next() {
            let printed = blocks.next_if(|next| matches!(next, Block::Printed(_)));
            match (block, printed) {
                (Block::File(hosts, path, text), None) => hosts.iter().for_each(|host| self.write(host, path, &text)),
                (Block::Commands(hosts, mut commands), Some(Block::Printed(lines))) => {
                    let last = commands.pop().expect("a command prints it");
                    for host in hosts {
                        commands.iter().for_each(|command| drop(self.command(host, command)));
                        self.prints(host, &self.here(&last), &lines);
                    }
                }
                (Block::Commands(hosts, commands), None) => {
                    for host in hosts {
                        commands.iter().for_each(|command| drop(self.command(host, command)));
                    }
                }
                _ => panic!("no command prints this block"),
            }
        }
    }

    /// `path` is as in the guide.
    pub fn write(&self, host: &str, path: &str, text: &str) {
        self.host(host).write(path, &self.here(text));
    }

    /// Types one command of a guide and returns what it printed.
    pub fn command(&self, host: &str, command: &str) -> String {
        let command = self.here(command);
        let words: Vec<_> = command.split_whitespace().collect();
        match words.as_slice() {
            // packaging/test installs the packages.
            ["apt", "install", package] => {
                if *package == "bird2" {
                    self.host(host).write("/etc/bird/bird.conf", "");
                }
            }
            ["systemctl", order @ ("enable" | "start" | "disable" | "stop"), names @ ..] => {
                for service in names.iter().filter(|name| !name.starts_with('-')) {
                    if matches!(*order, "enable" | "start") {
                        self.start(host, service);
                    } else {
                        self.stop(host, service);
                    }
                }
            }
            ["systemctl", "reload", "baton"] => return self.host(host).type_and_read("baton reload"),
            ["ssh", target, order @ .., "<", file] => {
                let target = self.at(target.strip_prefix("root@").expect("as root"));
                let file = self.host(host).place_of(file);
                let order = order.join(" ");
                return target.type_and_read(&format!("{} < {}", order.trim_matches('\''), file.display()));
            }
            ["kubeadm", "init", "phase", "certs", "ca"] => self.give_ca(host, "/etc/kubernetes/pki/ca.crt"),
            ["kubeadm", order, rest @ ..] => self.kubeadm(host, order, rest),
            _ => return self.host(host).type_and_read(&command),
        }
        String::new()
    }

    fn host(&self, name: &str) -> &BareHost<'a> {
        self.hosts.get(name).unwrap_or_else(|| panic!("there is no host {name}"))
    }

    fn at(&self, address: &str) -> &BareHost<'a> {
        let found = self.hosts.values().find(|it| it.host.v4.to_string() == address);
        found.unwrap_or_else(|| panic!("no host has {address}"))
    }

    /// The text with the addresses and paths of this place.
    fn here(&self, text: &str) -> String {
        self.words.iter().fold(text.to_owned(), |text, (said, here)| text.replace(said, here))
    }

    /// The command succeeds and prints these lines. A reader who is quicker than the hosts types it again.
    fn prints(&self, host: &str, command: &str, lines: &[String]) {
        eventually(LONG, &format!("{command} on {host} prints what the guide says"), || {
            match self.host(host).try_to_type(command) {
                Ok(said) if self.lacking(&said, lines).is_none() => return true,
                Ok(said) => println!("{:?} is not in: {said}", self.lacking(&said, lines)),
                Err(said) => println!("it fails: {said}"),
            }
            false
        });
    }

    /// The first line that is not printed after those before it.
    fn lacking(&self, said: &str, lines: &[String]) -> Option<String> {
        let mut rest = said;
        for line in lines.iter().filter(|line| *line != "...") {
            let line = self.here(line);
            let Some(at) = rest.find(&line) else { return Some(line) };
            rest = &rest[at + line.len()..];
        }
        None
    }

    fn give_ca(&self, host: &str, path: &str) {
        self.host(host).write(path, &std::fs::read_to_string(self.certificates.ca()).unwrap());
    }

    fn start_apiserver(&self, host: &str) {
        self.give_ca(host, "/etc/kubernetes/pki/ca.crt");
        self.apiservers.borrow_mut().push(StandIn::start_everywhere(
            self.lab,
            &self.certificates,
            self.host(host).host,
        ));
    }

    /// kubeadm starts the apiserver, and goes on when the endpoint answers; a node that joins asks it first.
    fn kubeadm(&self, host: &str, order: &str, rest: &[&str]) {
        let endpoint = match (order, rest) {
            ("init", ["--control-plane-endpoint", endpoint, ..]) => endpoint,
            ("join", [endpoint, ..]) => {
                self.answers(host, endpoint);
                endpoint
            }
            _ => panic!("kubeadm {order} {rest:?}"),
        };
        let address = self.host(host).host.v4;
        let manifest = format!(
            "spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - --advertise-address={address}\n    - --secure-port=6443\n"
        );
        self.host(host).write("/etc/kubernetes/manifests/kube-apiserver.yaml", &manifest);
        self.start_apiserver(host);
        self.answers(host, endpoint);
    }

    fn answers(&self, host: &str, endpoint: &str) {
        let asks = format!("curl -sk --max-time 1 https://{endpoint}/readyz || true");
        eventually(secs(30), &format!("{endpoint} answers {host}"), || self.host(host).host.run(&asks) == "ok");
    }

    fn start(&self, host: &str, service: &str) {
        let place = self.host(host);
        let process = match service {
            "baton" => self.start_baton(place),
            "k3s" => {
                self.give_ca(host, K3S_CA);
                let stand_in = StandIn::start_everywhere(self.lab, &self.certificates, place.host);
                return self.apiservers.borrow_mut().push(stand_in);
            }
            "haproxy" => place.typed("exec haproxy -db -f /etc/haproxy/haproxy.cfg"),
            "keepalived" => place.typed("exec keepalived -n -l -P -p /run/keepalived.pid -r /run/vrrp.pid"),
            "bird" => {
                let bird = place.typed("mkdir -p /run/bird; exec bird -f -c /etc/bird/bird.conf -s /run/bird/bird.ctl");
                eventually(LONG, "BIRD answers", || place.place_of("/run/bird/bird.ctl").exists());
                bird
            }
            own => {
                let script = place.unit_of(own, "ExecStart");
                assert!(Path::new(&script).exists(), "{script}");
                place.typed(&format!("exec {script} {BINARY} ready --within 500ms"))
            }
        };
        let before = self.services.borrow_mut().insert((host.to_owned(), service.to_owned()), process);
        assert!(before.is_none(), "{service} runs on {host} already");
    }

    /// As systemd does by the unit of `baton init`, else by the package's: it waits until the service says that it has started.
    fn start_baton(&self, place: &BareHost<'_>) -> Process {
        let written = place.etc("systemd/system/baton.service");
        let unit = std::fs::read_to_string(written).unwrap_or_else(|_| SHIPPED_UNIT.replace("/usr/bin/baton", BINARY));
        let check = command_of(&unit, "ExecStartPre").unwrap_or_default();
        let process = place.typed(&format!("{check}\nexec {}", command_of(&unit, "ExecStart").expect("a command")));
        eventually(LONG, "Baton runs", || {
            assert!(process.exit_status().is_none(), "{}", process.log_text());
            place.typed("baton status").wait(LONG).success()
        });
        process
    }

    fn stop(&self, host: &str, service: &str) {
        let process = self.services.borrow_mut().remove(&(host.to_owned(), service.to_owned()));
        let process = process.unwrap_or_else(|| panic!("{service} does not run on {host}"));
        process.signal(Signal::TERM);
        process.wait(LONG);
    }
}

/// The blocks of a guide; each must be one of those that are played.
fn blocks(guide: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = guide.lines();
    while let Some(line) = lines.next() {
        let Some(head) = line.strip_prefix("```") else { continue };
        let body: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        let (language, rest) = head.split_once(' ').unwrap_or((head, ""));
        let (names, path) = rest.find(" /").map_or((rest, ""), |at| (&rest[..at], &rest[at + 1..]));
        let hosts: Vec<_> = names.split(", ").collect();
        blocks.push(match (language, path) {
            ("text", "") => Block::Printed(body.iter().map(|line| (*line).to_owned()).collect()),
            ("sh", "") => Block::Commands(hosts, body.iter().map(|line| (*line).to_owned()).collect()),
            (_, path) if !path.is_empty() => Block::File(hosts, path, body.join("\n") + "\n"),
            _ => panic!("a block of a guide without its host: {line}"),
        });
    }
    blocks
}
