//! `baton init`: from bare hosts to a served VIP, by the commands that an operator types.

use std::path::Path;

use crate::lab::process::Process;
use crate::lab::stand_in::{Certificates, StandIn};
use crate::lab::*;

const VIP: &str = "10.77.0.100";

fn is_served(lab: &Lab) -> bool {
    let asked = lab.client.run(&format!("curl -sk --max-time 1 https://{VIP}:6443/readyz || true"));
    asked == "ok"
}

#[test]
fn two_bare_hosts_serve_the_vip_within_a_minute_of_the_first_keystroke() {
    let Some(lab) = Lab::new("init") else { return };
    let certificates = Certificates::make(&lab);
    let _apiservers = [&lab.lb, &lab.b1].map(|host| StandIn::start(&lab, &certificates, host));
    let hosts = [&lab.lb, &lab.b1].map(|host| BareHost::new(&lab, host));
    let (mut watch, mut running) = (None, Vec::new());
    for (own, peer) in [(0, 1), (1, 0)] {
        let (host, peer) = (&hosts[own], &hosts[peer]);
        watch.get_or_insert_with(Stopwatch::start);
        let typed = host.typed(&format!("baton init --vip {VIP} --peers {}", peer.host.v4));
        assert!(typed.wait(LONG).success(), "{}", typed.log_text());
        let said = typed.log_text();
        assert!(said.contains("\nnext: systemctl enable --now baton\n"), "{said}");
        assert!(said.contains("Baton can offload flows on this host"), "{said}");
        // The line that the first host printed.
        let key = "/etc/baton/peers.key";
        let copy = format!("'test ! -e {key} && install -D -m 600 /dev/stdin {key}' < {key}");
        if own == 0 {
            assert!(said.contains(&format!("next: ssh root@{} {copy}\n", peer.host.v4)), "{said}");
            copy_key(&host.etc("baton"), &peer.etc("baton"));
        } else {
            let said = said.rsplit("baton.service: written").next().unwrap();
            assert!(!said.contains("ssh root@"), "the second host has the key: {said}");
        }
        // systemd runs it with a shell's environment for `baton`: what the unit says.
        let check = host.unit("ExecStartPre");
        running.push(host.typed(&format!("{check}\nexec {}", host.unit("ExecStart"))));
    }
    eventually(secs(60), "the VIP is served", || is_served(&lab));
    let took = watch.unwrap().elapsed();
    println!("served {} ms after the first keystroke", took.as_millis());
    assert!(took < secs(60), "{took:?}");
    let have = hosts.iter().filter(|it| it.host.has_address(VIP)).count();
    assert_eq!(have, 1, "{}", running.iter().map(Process::log_text).collect::<String>());
    // The same command again changes nothing.
    let again = hosts[0].typed(&format!("baton init --vip {VIP} --peers {}", hosts[1].host.v4));
    assert!(again.wait(LONG).success(), "{}", again.log_text());
    assert!(again.log_text().contains("baton.toml: needs no change"), "{}", again.log_text());
    // Regression: to enable the unit changes nothing where an instance runs, and it was told to reload what it applies by itself.
    let said = again.log_text();
    let last = said.rsplit("next: ").next().unwrap();
    assert!(
        last.starts_with("an instance runs here, and applies what /etc/baton/baton.toml changes within seconds"),
        "{said}"
    );
}

/// Regression: `init` refused the VIP on the host that has it as keepalived adds `10.77.0.100/24`.
#[test]
fn a_vip_that_keepalived_has_added_with_its_network_s_mask_is_no_address_of_the_host() {
    let Some(lab) = Lab::new("init where the VIP is") else { return };
    let host = BareHost::new(&lab, &lab.lb);
    lab.lb.run(&format!("ip address add {VIP}/24 dev eth0"));
    let typed = host.typed(&format!("baton init --vip {VIP} --peers {} --print", lab.b1.v4));
    assert!(typed.wait(LONG).success(), "{}", typed.log_text());
    // Its own address, which has the same mask, stays.
    let typed = host.typed(&format!("baton init --vip {} --peers {} --print", lab.lb.v4, lab.b1.v4));
    assert!(!typed.wait(LONG).success());
    assert!(typed.log_text().contains("is this host's own address"), "{}", typed.log_text());
}

fn copy_key(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    // With its mode.
    std::fs::copy(from.join("peers.key"), to.join("peers.key")).unwrap();
}

#[test]
fn a_static_pod_is_written_before_there_is_a_cluster_and_no_other_text_is_overwritten() {
    let Some(lab) = Lab::new("init of a static pod") else { return };
    let host = BareHost::new(&lab, &lab.lb);
    let command = format!("baton init --vip {VIP} --peers {} --static-pod --image example.com/baton:1", lab.b1.v4);
    let typed = host.typed(&command);
    assert!(typed.wait(LONG).success(), "{}", typed.log_text());
    let manifest = std::fs::read_to_string(host.etc("kubernetes/manifests/baton.yaml")).unwrap();
    assert!(manifest.contains("\"image\": \"example.com/baton:1\""), "{manifest}");
    assert!(!host.etc("systemd").exists());
    let other = host.typed(&command.replace("baton:1", "baton:2"));
    assert!(!other.wait(LONG).success());
    let said = other.log_text();
    assert!(said.contains("baton.yaml: it exists and differs; --force"), "{said}");
    assert_eq!(std::fs::read_to_string(host.etc("kubernetes/manifests/baton.yaml")).unwrap(), manifest);
}

#[test]
fn a_node_local_instance_serves_the_clients_of_its_own_host() {
    let Some(lab) = Lab::new("init of a node-local instance") else { return };
    let certificates = Certificates::make(&lab);
    let _apiservers = [&lab.b1, &lab.b2].map(|host| StandIn::start(&lab, &certificates, host));
    let host = BareHost::new(&lab, &lab.lb);
    let command = format!("baton init --node-local --backends {},{}", lab.b1.v4, lab.b2.v4);
    let typed = host.typed(&command);
    assert!(typed.wait(LONG).success(), "{}", typed.log_text());
    let running = host.typed(&format!("exec {}", host.unit("ExecStart")));
    eventually(LONG, "127.0.0.1:6443 is served", || {
        lab.lb.run("curl -sk --max-time 1 https://127.0.0.1:6443/readyz || true") == "ok"
    });
    let listening = lab.lb.run("ss -ltnH");
    let own: Vec<_> = listening.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
    let is_local = own.iter().all(|address| address.starts_with("127.0.0.1:"));
    assert!(is_local && !own.is_empty(), "{listening}\n{}", running.log_text());
}
