//! Several instances that tell each other of their flows.

mod crossed;
mod cut_off;
pub mod failover;
mod faults;
mod flood;
mod identities;
mod kubeadm;
mod link;
mod newborn;
mod others;
mod page;
mod parted;
mod path_mtu;
mod ports_again;
mod reboot;
mod returns;
mod rotation;
mod split;
mod stopped;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::lab::*;

const PORT: u16 = 9471;

/// Names in alphabetical order: the first connects to the others.
const NAMES: [&str; 3] = ["lb-a", "lb-b", "lb-c"];

/// A lab with a load balancer on up to three hosts, and two backends.
pub struct Scene {
    pub lab: Lab,
    count: usize,
}

/// One load balancer.
pub struct Instance {
    pub name: &'static str,
    pub host: Host,
    pub directory: PathBuf,
    pub baton: Baton,
}

impl Scene {
    pub fn new(test: &str, count: usize) -> Option<Self> {
        let scene = Self { lab: Lab::new(test)?, count };
        scene.write_key("peers.key", 7);
        Some(scene)
    }

    pub fn host(&self, number: usize) -> &Host {
        [&self.lab.lb, &self.lab.client2, &self.lab.b3][number]
    }

    pub fn write_key(&self, name: &str, byte: u8) -> PathBuf {
        let path = self.lab.directory().join(name);
        std::fs::write(&path, format!("{byte:02x}").repeat(32) + "\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// What instance `number` is to run with.
    pub fn config(&self, number: usize) -> Config {
        let host = self.host(number);
        let config = Config::new(host, &[&self.lab.b1, &self.lab.b2]);
        let key = self.lab.directory().join("peers.key");
        let config = config
            .instance("name", NAMES[number])
            .peers("listen", host.v4(PORT).to_string())
            .peers("key_file", key.to_str().unwrap())
            .peers("sync_deadline", "30s");
        let others = (0..self.count).filter(|other| *other != number);
        others.fold(config, |config, other| config.peer(NAMES[other], self.host(other).v4(PORT)))
    }

    /// An echo server on each backend host.
    pub fn serve(&self) -> [Server; 2] {
        [&self.lab.b1, &self.lab.b2].map(|host| host.serve(Behaviour::Echo))
    }

    /// Starts instance `number`; it need not be ready.
    pub fn launch(&self, number: usize, config: &Config) -> Instance {
        let (name, host) = (NAMES[number], self.host(number).clone());
        let directory = self.lab.directory().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let baton = Baton::start(&host, &directory, config);
        eventually(secs(30), "the admin socket answers", || report(&baton).is_some());
        Instance { name, host, directory, baton }
    }

    /// Starts all, and waits until each knows the others.
    pub fn start(&self) -> Vec<Instance> {
        let all: Vec<_> = (0..self.count).map(|number| self.launch(number, &self.config(number))).collect();
        for instance in &all {
            instance.baton.wait_until_ready();
            let others = NAMES[..self.count].iter().filter(|name| **name != instance.name);
            others.for_each(|name| instance.wait_synced(name));
        }
        all
    }
}

/// The output of `baton peers`; `None` while no instance answers, as for a moment in an upgrade.
fn report(baton: &Baton) -> Option<Value> {
    let socket = baton.paths.socket.to_str().expect("UTF-8");
    let output =
        Command::new(baton::BINARY).args(["--socket", socket, "--json", "peers"]).output().expect("the binary");
    serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
}

impl Instance {
    /// Its entry for `peer`.
    pub fn sees(&self, peer: &str) -> Value {
        let (report, _) = eventually_some(LONG, "it answers", || report(&self.baton));
        let peers = report["peers"].as_array().expect("a list").clone();
        peers.into_iter().find(|it| it["name"] == peer).unwrap_or_default()
    }

    #[track_caller]
    pub fn wait_sees(&self, peer: &str, key: &str, value: impl Into<Value>) {
        let value = value.into();
        eventually(LONG, &format!("{} sees {key} of {peer} as {value}", self.name), || self.sees(peer)[key] == value);
    }

    #[track_caller]
    pub fn wait_synced(&self, peer: &str) {
        self.wait_sees(peer, "liveness", "alive");
        self.wait_sees(peer, "synced", true);
    }

    /// What `baton check` says of its file.
    #[track_caller]
    pub fn check(&self) -> String {
        let config = self.baton.paths.config.to_str().unwrap();
        let checked = Command::new(baton::BINARY).args(["check", "-c", config]).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
        String::from_utf8(checked.stdout).unwrap() + &String::from_utf8(checked.stderr).unwrap()
    }

    #[track_caller]
    pub fn reload(&self) {
        let reloaded = self.baton.cli(&["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
    }

    /// Has it reload its file with `from` replaced by `to`.
    #[track_caller]
    pub fn reload_with(&self, from: &str, to: &str) {
        let file = &self.baton.paths.config;
        let before = std::fs::read_to_string(file).unwrap();
        let changed = before.replace(from, to);
        assert_ne!(before, changed);
        std::fs::write(file, changed).unwrap();
        self.reload();
    }

    pub fn listens_at(&self) -> SocketAddr {
        self.host.v4(6443)
    }
}
