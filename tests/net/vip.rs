//! A VIP that moves between two hosts with Baton: the keepalived configuration of deploy/, with real keepalived.

mod alone;
pub mod built_in;
mod faults;
mod host;
mod ipv6;
mod moved;
mod own_clients;
mod readiness;
mod stranger;
mod worker;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::lab::baton::{BINARY, Baton};
use crate::lab::process::Process;
use crate::lab::*;

pub const VIP: &str = "10.77.0.100";
const SHIPPED: &str = include_str!("../../deploy/keepalived/keepalived.conf");

/// One of the two hosts.
struct Node<'a> {
    host: &'a Host,
    directory: PathBuf,
    baton: Baton,
    keepalived: Process,
}

impl<'a> Node<'a> {
    fn start(lab: &Lab, host: &'a Host, peer: &Host, priority: u8) -> Self {
        Self::start_without(lab, host, peer, priority, &[])
    }

    /// As [`Node::start`], without the lines of keepalived's configuration that begin with one of `left_out`.
    fn start_without(lab: &Lab, host: &'a Host, peer: &Host, priority: u8, left_out: &[&str]) -> Self {
        let directory = lab.directory().join(host.name);
        std::fs::create_dir(&directory).unwrap();
        let vip: SocketAddr = format!("{VIP}:6443").parse().unwrap();
        let config = lab.config().frontend("listen", vec![vip.to_string()]);
        let baton = Baton::start(host, &directory, &config);
        baton.wait_until_ready();
        let keepalived = keepalived(host, peer, &directory, &baton, (priority, left_out));
        Self { host, directory, baton, keepalived }
    }

    /// The two processes of keepalived: the one that starts, and the one that speaks VRRP.
    fn movers(&self) -> [Pid; 2] {
        let text = std::fs::read_to_string(self.directory.join("vrrp.pid")).expect("it runs");
        [self.keepalived.pid(), Pid::from_raw(text.trim().parse().expect("a number")).expect("a process")]
    }

    /// SIGKILL to both: neither can clean up after itself or the other.
    fn kill_keepalived(&self) {
        // Stopped first: it would start another child, and the child gives the VIP up when it sees that its parent is gone.
        let [parent, child] = self.movers();
        kill_process(parent, Signal::STOP).expect("it runs");
        kill_process(child, Signal::KILL).expect("it runs");
        self.keepalived.kill();
    }

    fn signal_keepalived(&self, signal: Signal) {
        self.movers().into_iter().for_each(|pid| kill_process(pid, signal).expect("it runs"));
    }

    /// Waits for an event of this kind about the VIP.
    #[track_caller]
    fn wait_event(&self, kind: &str) {
        eventually(secs(30), &format!("{kind} on {}", self.host.name), || {
            self.baton.events_of(kind).iter().any(|event| event["address"] == VIP)
        });
    }

    fn has_vip(&self) -> bool {
        self.host.has_address(VIP)
    }

    fn restart_baton(&mut self) {
        self.baton = Baton::start_with(self.host, &self.directory);
        self.baton.wait_until_ready();
    }
}

/// keepalived with the shipped configuration, but for lines that begin with a word of `left_out`.
pub fn keepalived(host: &Host, peer: &Host, directory: &Path, baton: &Baton, priority: (u8, &[&str])) -> Process {
    keepalived_every("0.1", [host, peer], directory, baton, priority)
}

/// As [`keepalived`], with so many seconds between two advertisements. `hosts`: its own, and the other one.
pub fn keepalived_every(
    interval: &str,
    [host, peer]: [&Host; 2],
    directory: &Path,
    baton: &Baton,
    (priority, left_out): (u8, &[&str]),
) -> Process {
    let ip = |host: &Host| host.v4(0).ip().to_string();
    let replaced = [
        ("/usr/bin/baton ready", format!("{BINARY} ready --socket {}", baton.paths.socket.display())),
        ("/run/baton-vip-away", directory.join("away").display().to_string()),
        ("10.0.0.21", ip(host)),
        ("10.0.0.22", ip(peer)),
        ("10.0.0.100", VIP.to_owned()),
        ("priority  100", format!("priority  {priority}")),
        ("advert_int 0.1", format!("advert_int {interval}")),
    ];
    let text = replaced.iter().fold(SHIPPED.to_owned(), |text, (shipped, here)| {
        assert!(text.contains(shipped), "{shipped} is not in the shipped file any more");
        text.replace(shipped, here)
    });
    // Its timers are shorter than what a busy machine may keep it waiting.
    let text =
        text.replace("script_user root", "script_user root\n    vrrp_rt_priority 50\n    vrrp_rlimit_rttime 1000000");
    assert!(text.contains("vrrp_rt_priority"), "the shipped file has no script_user any more");
    let stays = |line: &&str| !left_out.iter().any(|word| line.trim_start().starts_with(word));
    let text = text.lines().filter(stays).map(|line| format!("{line}\n")).collect::<String>();
    run_keepalived(host, directory, &text)
}

/// keepalived with this configuration; its files are in `directory`.
pub fn run_keepalived(host: &Host, directory: &Path, text: &str) -> Process {
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    std::fs::write(file("keepalived.conf"), text).unwrap();
    let (config, pid, vrrp_pid) = (file("keepalived.conf"), file("keepalived.pid"), file("vrrp.pid"));
    let command = ["keepalived", "-n", "-l", "-P", "-f", &config, "-p", &pid, "-r", &vrrp_pid];
    host.spawn(&command, &directory.join("keepalived.log"))
}

/// Waits until a new connection to the VIP is served.
fn await_service(lab: &Lab) {
    let vip: SocketAddr = (VIP.parse::<IpAddr>().unwrap(), 6443).into();
    eventually(LONG, "the VIP is served", || {
        let conn = lab.client.try_connect(vip, std::time::Duration::from_millis(300));
        conn.is_ok_and(|mut conn| conn.try_echo(1, 1000).is_ok())
    });
}

#[test]
fn the_vip_leaves_a_host_whose_baton_is_killed_or_hung_or_that_is_cut_off_and_does_not_come_back() {
    let Some(lab) = Lab::new("vip") else { return };
    let _servers = lab.echo_everywhere();
    let (mut a, mut b) = (Node::start(&lab, &lab.lb, &lab.client2, 100), Node::start(&lab, &lab.client2, &lab.lb, 90));
    await_service(&lab);
    let mut moves = Vec::new();
    for fault in ["killed", "hung", "cut off"] {
        eventually(LONG, "one has the VIP", || a.has_vip() != b.has_vip());
        let (owner, other) = if a.has_vip() { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let watch = Stopwatch::start();
        match fault {
            "killed" => owner.baton.process.kill(),
            "hung" => owner.baton.process.stop(),
            _ => owner.host.link_down(),
        }
        eventually(LONG, "the other has the VIP", || other.has_vip());
        await_service(&lab);
        moves.push(format!("{fault} {} ms", watch.elapsed().as_millis()));
        match fault {
            "killed" => owner.restart_baton(),
            "hung" => owner.baton.process.go_on(),
            _ => owner.host.link_up(),
        }
        // The host that is well again must not take it back: clients would be reset for nothing.
        eventually(LONG, "one has the VIP", || !owner.has_vip() && other.has_vip());
        wait::throughout(secs(2), "the VIP stays", || other.has_vip() && !owner.has_vip());
    }
    println!("from the fault until the VIP is served again: {}", moves.join(", "));
}
