//! Three instances that serve one VIP at a time, announced by the BIRD of deploy/, and a router that spreads flows over them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::baton::{BINARY, Baton};
use crate::lab::process::Process;
use crate::lab::*;

const SHIPPED: &str = include_str!("../../deploy/bird/bird.conf");
const WATCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/bird/watch");
const VIP: &str = "10.99.0.100";
/// How soon a router tries a session again.
const RETRY: &str = "connect delay time 1; connect retry time 2; error wait time 1, 10;";

/// What announces the VIP of one instance while it is ready.
pub struct Announcer {
    _bird: Process,
    _watch: Process,
}

impl Announcer {
    /// The shipped file and the shipped script, for `baton`, which runs on `host` and keeps its files in `directory`.
    pub fn start(host: &Host, router: &Host, vip: &str, baton: &Baton, directory: &Path) -> Self {
        let replaced = [
            ("10.0.0.21", host.v4.to_string()),
            ("neighbor 10.0.0.1 ", format!("neighbor {} ", router.v4)),
            ("10.0.0.100", vip.to_owned()),
            // A BIRD that a busy machine keeps waiting for 0.3 s would lose its session, and its flows their way.
            ("multiplier 3;", "multiplier 20;".to_owned()),
        ];
        let text = replaced.iter().fold(SHIPPED.to_owned(), |text, (shipped, here)| {
            assert!(text.contains(shipped), "{shipped} is not in the shipped file any more");
            text.replace(shipped, here)
        });
        let (bird, socket) = start_bird(directory, host, &text);
        let ready = format!("{BINARY} ready --socket {}", baton.paths.socket.display());
        let socket = format!("BIRD_SOCKET={}", socket.display());
        let mut watch = vec!["env", &socket, WATCH];
        watch.extend(ready.split(' '));
        let _watch = host.spawn(&watch, &directory.join("watch.log"));
        Self { _bird: bird, _watch }
    }
}

/// A router that spreads flows over those of `instances` that announce the VIP.
pub struct Router {
    pub host: Host,
    vip: &'static str,
    _bird: Process,
}

impl Router {
    pub fn start(lab: &Lab, host: &Host, vip: &'static str, instances: &[&Host]) -> Self {
        host.sysctl("net/ipv4/ip_forward", "1");
        host.sysctl("net/ipv4/conf/all/send_redirects", "0");
        host.sysctl("net/ipv4/conf/eth0/send_redirects", "0");
        host.sysctl("net/ipv4/fib_multipath_hash_policy", "1");
        let (bird, _) = start_bird(lab.directory(), host, &router_config(host, instances));
        Self { host: host.clone(), vip, _bird: bird }
    }

    /// What `host` sends to the VIP goes through it.
    pub fn lead(&self, host: &Host) {
        host.run(&format!("ip route add {}/32 via {}", self.vip, self.host.v4));
    }

    /// Instances that it sends the VIP's flows to.
    pub fn paths(&self) -> BTreeSet<String> {
        let route = self.host.run(&format!("ip route show {}", self.vip));
        let words: Vec<_> = route.split_whitespace().collect();
        words.windows(2).filter(|pair| pair[0] == "via").map(|pair| pair[1].to_owned()).collect()
    }
}

pub fn is_installed(test: &str) -> bool {
    let installed = Command::new("bird").arg("--version").output().is_ok();
    if !installed {
        network::skip(test, "bird is not installed");
    }
    installed
}

struct Instance<'a> {
    host: &'a Host,
    baton: Baton,
    _announcer: Announcer,
}

impl<'a> Instance<'a> {
    fn start(lab: &Lab, host: &'a Host, router: &Host) -> Self {
        let directory = lab.directory().join(host.name);
        std::fs::create_dir(&directory).unwrap();
        host.run(&format!("ip address add {VIP}/32 dev lo"));
        let listen = vec![format!("{VIP}:6443")];
        let config = lab.config().only(&["b1"]).frontend("listen", listen).frontend("source", "route");
        let baton = Baton::start(host, &directory, &config);
        baton.wait_until_ready();
        let _announcer = Announcer::start(host, router, VIP, &baton, &directory);
        Self { host, baton, _announcer }
    }
}

fn start_bird(directory: &Path, host: &Host, text: &str) -> (Process, PathBuf) {
    let file = |what: &str| directory.join(format!("bird-{}.{what}", host.name));
    std::fs::write(file("conf"), text).unwrap();
    let (config, socket) = (file("conf").display().to_string(), file("ctl"));
    let command = ["bird", "-f", "-c", &config, "-s", socket.to_str().unwrap()];
    (host.spawn(&command, &file("log")), socket)
}

/// The router's own configuration besides the shipped file's counterpart: a session with each instance, and equal-cost
/// paths.
fn router_config(router: &Host, instances: &[&Host]) -> String {
    let sessions: String = instances
        .iter()
        .map(|host| {
            format!(
                "protocol bgp {} {{ local as 65000; neighbor {} as 65010; hold time 9; bfd on; {RETRY} ipv4 {{ import all; export none; }}; }}\n",
                host.name, host.v4
            )
        })
        .collect();
    format!(
        "router id {};\nprotocol device {{ scan time 1; }}\n\
         protocol bfd {{ interface \"*\" {{ min rx interval 100 ms; min tx interval 100 ms; multiplier 20; }}; }}\n\
         protocol kernel {{ merge paths on; ipv4 {{ export all; import none; }}; }}\n{sessions}",
        router.v4
    )
}

#[test]
fn a_router_spreads_flows_over_three_instances_and_forgets_one_that_dies_or_is_not_ready() {
    let Some(lab) = Lab::new("ecmp") else { return };
    if !is_installed("ecmp") {
        return;
    }
    let _server = lab.b1.serve(Behaviour::Echo);
    let hosts = [&lab.lb, &lab.b2, &lab.b3];
    let router = Router::start(&lab, &lab.client2, VIP, &hosts);
    router.lead(&lab.client);
    let instances = hosts.map(|host| Instance::start(&lab, host, &router.host));
    let leads_to = |numbers: &[usize]| {
        router.paths() == numbers.iter().map(|number| hosts[*number].v4.to_string()).collect::<BTreeSet<_>>()
    };
    eventually(secs(30), "the router knows three ways", || leads_to(&[0, 1, 2]));
    let vip: SocketAddr = format!("{VIP}:6443").parse().unwrap();
    let mut conns: Vec<_> = (0..60).map(|_| lab.client.connect(vip)).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let counts: BTreeMap<_, _> =
        instances.iter().map(|instance| (instance.host.name, instance.baton.flow_count())).collect();
    println!("ecmp: 60 flows over three instances: {counts:?}");
    assert!(counts.values().all(|flows| *flows > 5) && counts.values().sum::<u64>() == 60, "{counts:?}");

    let watch = Stopwatch::start();
    instances[1].host.link_down();
    eventually(secs(30), "its way is withdrawn", || leads_to(&[0, 2]));
    println!("ecmp: a host dies: its way is withdrawn after {:?}", watch.elapsed());
    (0..20).for_each(|_| lab.client.connect(vip).echo(2, 1000));

    let watch = Stopwatch::start();
    instances[2].baton.process.stop();
    eventually(secs(30), "the way to the one that hangs is withdrawn", || leads_to(&[0]));
    println!("ecmp: an instance hangs: its way is withdrawn after {:?}", watch.elapsed());
    (0..20).for_each(|_| lab.client.connect(vip).echo(3, 1000));
    instances[2].baton.process.go_on();
    eventually(secs(30), "it is announced again", || leads_to(&[0, 2]));
}
