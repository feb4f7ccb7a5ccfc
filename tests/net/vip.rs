//! A VIP that moves between two hosts with Baton: the keepalived configuration of deploy/, with real keepalived.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::lab::baton::{BINARY, Baton};
use crate::lab::process::Process;
use crate::lab::*;

const VIP: &str = "10.77.0.100";
const SHIPPED: &str = include_str!("../../deploy/keepalived/keepalived.conf");

/// One of the two hosts.
struct Node<'a> {
    host: &'a Host,
    directory: PathBuf,
    baton: Baton,
    _keepalived: Process,
}

impl<'a> Node<'a> {
    fn start(lab: &Lab, host: &'a Host, peer: &Host, priority: u8) -> Self {
        let directory = lab.directory().join(host.name);
        std::fs::create_dir(&directory).unwrap();
        let vip: SocketAddr = format!("{VIP}:6443").parse().unwrap();
        let config = lab.config().frontend("listen", vec![vip.to_string()]);
        let baton = Baton::start(host, &directory, &config);
        baton.wait_until_ready();
        let _keepalived = keepalived(host, peer, &directory, &baton, priority);
        Self { host, directory, baton, _keepalived }
    }

    fn has_vip(&self) -> bool {
        self.host.run("ip -4 -o address show dev eth0").contains(VIP)
    }

    fn restart_baton(&mut self) {
        self.baton = Baton::start_with(self.host, &self.directory);
        self.baton.wait_until_ready();
    }
}

/// keepalived with the shipped configuration.
pub fn keepalived(host: &Host, peer: &Host, directory: &Path, baton: &Baton, priority: u8) -> Process {
    let ip = |host: &Host| host.v4(0).ip().to_string();
    let replaced = [
        ("/usr/bin/baton ready", format!("{BINARY} ready --socket {}", baton.paths.socket.display())),
        ("10.0.0.21", ip(host)),
        ("10.0.0.22", ip(peer)),
        ("10.0.0.100", VIP.to_owned()),
        ("priority  100", format!("priority  {priority}")),
    ];
    let text = replaced.iter().fold(SHIPPED.to_owned(), |text, (shipped, here)| {
        assert!(text.contains(shipped), "{shipped} is not in the shipped file any more");
        text.replace(shipped, here)
    });
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
