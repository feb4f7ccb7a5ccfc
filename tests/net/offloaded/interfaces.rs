//! Interfaces of other kinds than the wire itself. A kind that the kernel was built without is skipped, with a word.

use std::net::{IpAddr, SocketAddr};

use super::Scene;
use crate::lab::*;

/// Whether the kernel makes such interfaces; else it is said that `test` was skipped.
pub(super) fn knows(test: &str, host: &Host, kind: &str) -> bool {
    let tried = host.run(&format!("ip link add name probe type {kind} 2>&1 && ip link del probe || true"));
    let unknown = tried.contains("Unknown device type");
    if unknown {
        network::skip(
            test,
            &format!("this kernel has no interfaces of type {}", kind.split(' ').next().unwrap_or(kind)),
        );
    }
    !unknown
}

fn talk(conns: &mut [Conn], bytes: u64) {
    conns.iter_mut().enumerate().for_each(|(seed, conn)| conn.echo(seed as u64, bytes));
}

/// The balancer's only interface is `over`, which `make` makes of eth0.
fn in_place_of_eth0(test: &str, kind: &str, over: &str, make: &str) {
    let Some(scene) = Scene::new(test) else { return };
    let lab = &scene.lab;
    if !knows(test, &lab.lb, kind) {
        return;
    }
    lab.lb.run(&format!(
        "ip address flush dev eth0\n{make}\nip link set {over} up\nip address add 10.77.0.2/24 dev {over}"
    ));
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("listen", vec![lab.lb.v4(6443).to_string()]));
    let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns, 50_000);
    baton.wait_offloaded(5);
    talk(&mut conns, 500_000);
    assert!(baton.status()["offload"]["interfaces"].as_array().unwrap().iter().any(|name| name == over));
    drop(conns);
    baton.wait_ended("client_closed", 5);
}

/// Everybody has one more interface, `over`, and an address on it; all goes by these.
fn beside_eth0(test: &str, kind: &str, over: &str, make: impl Fn(&Host, u8) -> String) {
    let Some(scene) = Scene::new(test) else { return };
    let lab = &scene.lab;
    if !knows(test, &lab.lb, kind) {
        return;
    }
    for (host, last) in [(&lab.lb, 2), (&lab.client, 10), (&lab.b1, 21)] {
        host.run(&format!(
            "{}\nip link set {over} up\nip address add 10.55.0.{last}/24 dev {over}\n\
             ip address add 2001:db8:55::{last}/64 dev {over} nodad",
            make(host, last)
        ));
    }
    for [vip, backend] in [["10.55.0.2", "10.55.0.21"], ["2001:db8:55::2", "2001:db8:55::21"]] {
        let [vip, backend] = [vip, backend].map(|ip| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 6443));
        let _server = lab.b1.serve_on(backend, Behaviour::Echo);
        let config = scene.config().only(&[]).backend("over", backend).frontend("listen", vec![vip.to_string()]);
        let baton = lab.start(&config);
        let mut conns: Vec<_> = (0..5).map(|_| lab.client.connect(vip)).collect();
        talk(&mut conns, 50_000);
        baton.wait_offloaded(5);
        talk(&mut conns, 500_000);
        drop(conns);
        // Those of the Baton before may be among them.
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
        assert_eq!(baton.ended().keys().collect::<Vec<_>>(), ["client_closed"]);
        baton.rests();
    }
}

#[test]
fn a_macvlan_has_its_flows_offloaded() {
    in_place_of_eth0("macvlan", "macvlan", "own", "ip link add own link eth0 type macvlan mode bridge");
}

#[test]
fn a_bond_has_its_flows_offloaded() {
    let make = "ip link add bonded type bond mode active-backup\nip link set eth0 down\n\
                ip link set eth0 master bonded\nip link set eth0 up";
    in_place_of_eth0("bond", "bond", "bonded", make);
}

#[test]
fn a_vlan_has_its_flows_offloaded() {
    beside_eth0("vlan", "vlan id 9", "eth0.5", |_, _| "ip link add eth0.5 link eth0 type vlan id 5".to_owned());
}

/// `before`: of each host's wire.
fn vxlan(test: &str, before: &str) {
    beside_eth0(test, "vxlan id 9 dstport 4790", "tunnel", |host, _| {
        let others = ["10.77.0.2", "10.77.0.10", "10.77.0.21"];
        let own = host.v4.to_string();
        let entries = others.iter().filter(|other| **other != own);
        let entries: Vec<_> =
            entries.map(|other| format!("bridge fdb append 00:00:00:00:00:00 dev tunnel dst {other}")).collect();
        format!(
            "{before}\nip link add tunnel mtu 1450 type vxlan id 7 dstport 4789 local {own} udpcsum udp6zerocsumrx\n{}",
            entries.join("\n")
        )
    });
}

#[test]
fn a_vxlan_tunnel_has_its_flows_offloaded() {
    vxlan("vxlan", "true");
}

/// Each host computes the checksums of received packets itself, those of the outer packets too: packets from the tunnel
/// were summed in another way than packets from a wire.
#[test]
fn a_vxlan_tunnel_without_offloads_has_its_flows_offloaded() {
    vxlan("vxlan without offloads", "ethtool -K eth0 tso off gso off gro off tx off rx off sg off");
}

/// As `networkctl reconfigure`, a driver that is loaded anew or a hot-plugged card does.
#[test]
fn offloaded_flows_go_on_when_their_interface_is_made_anew() {
    let Some(scene) = Scene::new("interface made anew") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("listen", vec![lab.lb.v4(6443).to_string()]));
    let mut conns: Vec<_> = (0..20).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns, 50_000);
    baton.wait_offloaded(20);
    for round in 0..3 {
        lab.lb.make_link_anew();
        let watch = Stopwatch::start();
        talk(&mut conns, 50_000);
        println!("round {round}: all have answered {:?} after the interface came", watch.elapsed());
    }
    let mut born = lab.client.connect(lab.lb.v4(6443));
    born.echo(1, 1000);
    drop((conns, born));
    baton.wait_ended("client_closed", 21);
}

/// Offloaded flows, none of which has anything on its way.
fn still(scene: &Scene, count: usize) -> (Baton, Vec<Conn>) {
    let baton = scene.lab.start(&scene.config().frontend("listen", vec![scene.lab.lb.v4(6443).to_string()]));
    let mut conns: Vec<_> = (0..count).map(|_| scene.lab.client.connect(scene.lab.lb.v4(6443))).collect();
    talk(&mut conns, 50_000);
    baton.wait_offloaded(count as u64);
    let is_still = || baton.flows().iter().all(|flow| flow["idle_ms"].as_u64() > Some(500));
    eventually(LONG, "nothing is on its way", is_still);
    (baton, conns)
}

/// As `bpftool link detach` does. Returns once Baton has attached the program again.
fn detach(scene: &Scene, baton: &Baton, meanwhile: impl FnOnce()) {
    let before = baton.events_of("program_reattached").len();
    std::fs::remove_file(scene.pinned.directory.join("link-eth0")).unwrap();
    meanwhile();
    eventually(LONG, "it is attached again", || baton.events_of("program_reattached").len() > before);
}

/// The client of a watch sends nothing: the kernel's RST to the backend whose packets pass the program by tells it nothing. It waited for
/// a minute, and without peers for ever.
#[test]
fn a_reader_whose_packets_passed_a_detached_program_by_is_told_at_once() {
    let Some(scene) = Scene::new("reader of a detached program") else { return };
    let servers = scene.lab.echo_everywhere();
    let (baton, mut conns) = still(&scene, 6);
    // Baton looks each second: from the second time on there is time until it does.
    detach(&scene, &baton, || {});
    for _ in 0..10 {
        if conns.is_empty() {
            break;
        }
        detach(&scene, &baton, || servers.iter().for_each(|server| server.say(1, 100)));
        let watch = Stopwatch::start();
        conns.retain_mut(|conn| {
            // A server may be late on a busy machine; then its bytes pass.
            let lost = conn.read_tally(100).err();
            if let Some(error) = &lost {
                assert_eq!(End::of_error(error), End::Rst, "after {:?}", watch.elapsed());
            }
            lost.is_none()
        });
    }
    assert!(conns.is_empty(), "the program was there each time");
    eventually(LONG, "none is left", || baton.flows().is_empty());
    baton.rests();
}

/// Baton itself detached the program before it attached it by the new name.
#[test]
fn offloaded_flows_go_on_when_their_interface_gets_another_name() {
    let Some(scene) = Scene::new("another name") else { return };
    let _servers = scene.lab.echo_everywhere();
    let (baton, mut conns) = still(&scene, 6);
    let pins = |name: &str| scene.pinned.directory.join(format!("link-{name}")).exists();
    for name in ["lan0", "eth0"] {
        let other = if name == "lan0" { "eth0" } else { "lan0" };
        scene.lab.lb.run(&format!("ip link set {other} name {name}"));
        talk(&mut conns, 50_000);
        eventually(LONG, "the pin follows", || pins(name) && !pins(other));
        talk(&mut conns, 50_000);
    }
    assert!(baton.events_of("program_reattached").is_empty(), "it was never away");
    drop(conns);
    baton.wait_ended("client_closed", 6);
}

/// The program was never attached again, and each client waited.
#[test]
fn offloaded_flows_go_on_when_somebody_removes_the_pins() {
    let Some(scene) = Scene::new("removed pins") else { return };
    let _servers = scene.lab.echo_everywhere();
    let (mut baton, mut conns) = still(&scene, 6);
    std::fs::remove_dir_all(&scene.pinned.directory).unwrap();
    eventually(LONG, "it is attached again", || !baton.events_of("program_reattached").is_empty());
    // Regression: the event told of another process that had detached the program, and of a removed map no event told at all.
    let told = |words: &str| baton.order(&["events"]).contains(words);
    let shown = scene.pinned.directory.display().to_string();
    assert!(told(&format!("somebody has removed pins of the BPF program from {shown}, which detached it from eth0")));
    std::fs::remove_file(scene.pinned.directory.join("flows")).unwrap();
    eventually(LONG, "it is pinned again", || {
        told(&format!("from {shown}; Baton pinned it again, and no flow was interrupted"))
    });
    talk(&mut conns, 50_000);
    // The next process finds them.
    baton.process.kill();
    talk(&mut conns, 50_000);
    baton = Baton::start_with(&scene.lab.lb, scene.lab.directory());
    baton.wait_until_ready();
    baton.wait_offloaded(6);
    talk(&mut conns, 50_000);
    drop(conns);
    baton.wait_ended("client_closed", 6);
}

/// Where the pins cannot be made again, nothing would carry the flows.
#[test]
fn offloaded_flows_are_reset_when_their_program_cannot_be_attached_again() {
    let Some(scene) = Scene::new("a program that is lost") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    // A BPF file system of this process's own.
    let place = lab.directory().join("bpf");
    std::fs::create_dir(&place).unwrap();
    let shown = place.display();
    let config = scene.config().offload("pins", format!("{shown}/pins"));
    let paths = config::Paths::below(lab.directory());
    std::fs::write(&paths.config, config.text(&paths.socket)).unwrap();
    let script = format!("mount -t bpf bpf {shown} && exec \"$@\"");
    let baton = Baton::start_by(&["unshare", "--mount", "sh", "-euc", &script, "sh"], &lab.lb, lab.directory());
    baton.wait_until_ready();
    let mut conns: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns, 50_000);
    baton.wait_offloaded(6);
    let pid = baton.process.pid().as_raw_nonzero();
    let spoil = format!("rm -r {shown}/pins/* && mount -o remount,ro {shown}");
    let done =
        std::process::Command::new("nsenter").args(["-m", "-t", &pid.to_string(), "sh", "-euc", &spoil]).status();
    assert!(done.unwrap().success());
    conns.iter_mut().for_each(|conn| assert_eq!(conn.end(LONG), End::Rst));
    baton.wait_log(&["nothing carries the offloaded flows any more"]);
    // Regression: no event told of it, and the status said "0 flows offloaded; by no interface yet".
    let lost = baton.events_of("program_lost");
    assert!(lost.len() == 1 && lost[0]["flows"] == 6, "{lost:?}");
    let status = baton.order(&["status"]);
    assert!(status.contains("Baton offloads no flow: somebody has removed the pins"), "{status}");
    // New ones stay proxied.
    let mut born = lab.client.connect(lab.lb.v4(6443));
    wait::throughout(std::time::Duration::from_secs(3), "it is proxied", || {
        born.echo(1, 1000);
        baton.flows().iter().all(|flow| flow["state"] == "proxied")
    });
}

/// Regression: these flows ended as `backend_reset` or `client_reset`, though neither had sent an RST.
#[test]
fn flows_whose_packets_no_longer_fit_an_interface_say_so_as_they_end() {
    let Some(scene) = Scene::new("flows_whose_packets_no_longer_fit") else { return };
    let lab = &scene.lab;
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&scene.config().frontend("listen", vec![lab.lb.v4(6443).to_string()]));
    let mut conns: Vec<_> = (0..4).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    talk(&mut conns, 50_000);
    baton.wait_offloaded(4);
    lab.lb.run("ip link set eth0 mtu 1300");
    for (seed, conn) in (0..).zip(&mut conns) {
        let end = conn.send(seed, 60_000).map_or_else(|error| End::of_error(&error), |()| conn.end(LONG));
        assert_eq!(end, End::Rst);
    }
    baton.wait_ended("oversized", 4);
}
