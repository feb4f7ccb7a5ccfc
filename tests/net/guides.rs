//! The guides of docs/guides, typed word by word on hosts that have what a new machine has.
//!
//! A block of a guide begins with its language, its hosts and, for a file, its path: "sh cp1", "sh lb1, lb2", "toml lb1
//! /etc/baton/baton.toml". A block "text" is what the command before it prints. Only addresses are others than in the guide.

mod play;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::ecmp::{self, Router};
use crate::lab::*;
use play::Player;

const VIP: &str = "10.77.0.100";

#[test]
fn a_pair_before_a_kubeadm_cluster() {
    let Some(lab) = Lab::new("guide kubeadm-pair") else { return };
    let (lb1, lb2) = (lab.another("lb1", 5), lab.another("lb2", 6));
    let player = Player::new(&lab, &[("lb1", &lb1), ("lb2", &lb2)]);
    player.play(include_str!("../../docs/guides/kubeadm-pair.md"));
    assert_eq!(player.owners(), 1);
}

#[test]
fn on_kubeadm_s_control_plane_nodes() {
    let Some(lab) = Lab::new("guide kubeadm-stacked") else { return };
    let player = Player::new(&lab, &[]);
    player.play(include_str!("../../docs/guides/kubeadm-stacked.md"));
    assert_eq!(player.owners(), 1);
    assert!(!lab.b1.has_address(VIP), "it was evacuated");
}

#[test]
fn on_the_servers_of_k3s() {
    let Some(lab) = Lab::new("guide k3s") else { return };
    let player = Player::new(&lab, &[("s1", &lab.b1), ("s2", &lab.b2), ("s3", &lab.b3)]);
    player.play(include_str!("../../docs/guides/k3s.md"));
    assert_eq!(player.owners(), 1);
}

#[test]
fn on_every_node() {
    let Some(lab) = Lab::new("guide node-local") else { return };
    let (worker, other) = (lab.another("worker", 31), lab.another("other", 32));
    let player = Player::new(&lab, &[("worker", &worker), ("other", &other)]);
    player.control_plane();
    player.write("worker", "/etc/kubernetes/manifests/nginx-proxy.yml", "kind: Pod\n");
    player.play(include_str!("../../docs/guides/node-local.md"));
    assert_eq!(other.run("curl -sk --max-time 2 https://127.0.0.1:6443/readyz"), "ok");
}

#[test]
fn behind_routers_with_bird() {
    let Some(lab) = Lab::new("guide ecmp") else { return };
    if !ecmp::is_installed("guide ecmp") {
        return;
    }
    let (lb1, lb2) = (lab.another("lb1", 5), lab.another("lb2", 6));
    let router = Router::start(&lab, &lab.another("router", 1), "10.99.0.100", &[&lb1, &lb2]);
    [&lab.client, &lab.b1, &lab.b2, &lab.b3].iter().for_each(|host| router.lead(host));
    let player = Player::new(&lab, &[("lb1", &lb1), ("lb2", &lb2)]);
    player.control_plane();
    player.play(include_str!("../../docs/guides/ecmp.md"));
    eventually(secs(30), "the router spreads connections over both", || router.paths().len() == 2);
}

/// What HAProxy and keepalived run with, in the shape of kubeadm's guide.
fn old_pair(player: &Player<'_>, host: &str, priority: u8) {
    player.write(host, "/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
    player.write(host, "/etc/haproxy/haproxy.cfg", include_str!("../migration/kubeadm.cfg"));
    let keepalived = format!(
        "vrrp_instance VI_1 {{\nstate BACKUP\ninterface eth0\nvirtual_router_id 51\npriority {priority}\nadvert_int 1\n\
         virtual_ipaddress {{\n10.0.0.100\n}}\n}}\n"
    );
    player.write(host, "/etc/keepalived/keepalived.conf", &keepalived);
    player.command(host, "systemctl enable --now haproxy keepalived");
}

#[test]
fn from_haproxy_and_keepalived_without_a_connection_that_is_not_served() {
    let Some(lab) = Lab::new("guide from-haproxy") else { return };
    let (lb1, lb2) = (lab.another("lb1", 5), lab.another("lb2", 6));
    let player = Player::new(&lab, &[("lb1", &lb1), ("lb2", &lb2)]);
    player.control_plane();
    old_pair(&player, "lb1", 101);
    eventually(LONG, "lb1 has the VIP", || lb1.has_address(VIP));
    old_pair(&player, "lb2", 100);
    let served = "curl -sk --max-time 15 -w ' %{errormsg}' https://10.77.0.100:6443/readyz || true";
    eventually(LONG, "HAProxy serves", || lab.client2.run(served).starts_with("ok"));
    let guide = include_str!("../../docs/guides/from-haproxy.md");
    let (there, back) = guide.split_once("\n## Back\n").expect("a chapter");
    let (over, connects) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let watch = Stopwatch::start();
            while !over.load(Relaxed) {
                let said = lab.client2.run(served);
                let count = connects.fetch_add(1, Relaxed);
                assert!(said.starts_with("ok"), "after {count} connections and {:?}: {said}", watch.elapsed());
            }
        });
        let ends = SetsAtEnd(&over);
        player.play(there);
        drop(ends);
        storm.join().unwrap();
    });
    println!("{} connections, one after the other, were all served", connects.load(Relaxed));
    assert!(connects.load(Relaxed) > 20);
    let why = |host| player.command(host, "baton vip --why");
    assert!(lb1.has_address(VIP) && !lb2.has_address(VIP), "lb1: {}\nlb2: {}", why("lb1"), why("lb2"));
    // Regression: the program that shares the port stayed, and refused every connection to the VIP for good.
    player.play(back);
    eventually(LONG, "lb1 has the VIP", || lb1.has_address(VIP));
    eventually(LONG, "HAProxy serves again", || lab.client2.run(served).starts_with("ok"));
    assert!(!lb2.has_address(VIP));
}

/// The commands of README's chapter Install, as a reader types them on two control-plane nodes.
#[test]
fn readme_leads_from_nothing_to_a_served_vip() {
    let Some(lab) = Lab::new("readme") else { return };
    let player = Player::new(&lab, &[]);
    player.control_plane();
    let readme = include_str!("../../README.md");
    let install = readme.split("\n## Install\n").nth(1).expect("a chapter");
    let block = install.split("```").nth(1).expect("its commands");
    let commands: Vec<_> = block.lines().map(|line| line.split('#').next().unwrap().trim()).collect();
    let watch = Stopwatch::start();
    for host in ["cp1", "cp2"] {
        for command in commands.iter().filter(|command| !command.is_empty()) {
            let said = player.command(host, command);
            if command.starts_with("baton init") {
                let next: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("next: ")).collect();
                let copies: Vec<_> = next.iter().filter(|step| step.starts_with("ssh")).collect();
                assert_eq!(copies.is_empty(), host != "cp1", "{said}");
                let settings: Vec<_> = next.iter().filter(|step| step.contains("sysctl")).collect();
                assert!(!settings.is_empty(), "{said}");
                copies.into_iter().for_each(|step| drop(player.command(host, step)));
                // A reader's shell goes on after a command that has found faults.
                settings.into_iter().for_each(|step| drop(player.command(host, &format!("set +e; {step}"))));
                let checked = player.command(host, "baton check --host || true");
                assert!(
                    !checked.contains("fault    arp_") && checked.contains("ok       arp_"),
                    "its settings are those that Baton needs: {checked}"
                );
            }
        }
    }
    let served = format!("curl -sk --max-time 1 https://{VIP}:6443/readyz || true");
    eventually(secs(60), "the VIP is served", || lab.client.run(&served) == "ok");
    let took = watch.elapsed();
    println!("README: served {took:?} after the first keystroke");
    // What README promises.
    assert!(took < secs(60), "{took:?}");
    assert_eq!(player.owners(), 1);
}

#[test]
fn each_guide_is_played_here_and_named_in_their_list() {
    let list = include_str!("../../docs/guides/README.md");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides");
    let own = include_str!("guides.rs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "README.md" {
            assert!(list.contains(&format!("({name})")), "{name} is not in the list");
            assert!(own.contains(&format!("docs/guides/{name}\"")), "{name} is not played");
        }
    }
}
