//! A peer that tells of flows that no instance of this fleet can have.

use super::*;
use crate::model::fleet::{PortRange, SLOTS, port_range};

fn listen(address: &str) -> VipAddr {
    VipAddr::new(address.parse().unwrap())
}

/// A flow of `a` as the peer tells it: to this address, with a backend leg from that one.
fn claimed(number: u64, vip: &str, from: &str, offloaded: bool) -> FlowRecord {
    let mut record = record(number, "10.0.1.7", offloaded);
    record.ends.vip = listen(vip);
    record.ends.local = LocalAddr::new(from.parse().unwrap());
    record
}

fn strange(actions: &[Action]) -> Vec<Ends> {
    let its = |action: &Action| match action {
        Action::Note(Note::Strange { ends, .. }) => Some(*ends),
        _ => None,
    };
    actions.iter().filter_map(its).collect()
}

#[test]
fn a_peer_gets_no_entry_for_connections_of_this_host_that_are_no_frontends() {
    let own = "10.0.0.22";
    for offloaded in [false, true] {
        let mut scene = Scene::new();
        let all = [
            // To its shell, to another port of the VIP, and what others answer to its own programs.
            (format!("{own}:22"), format!("{VIP}:40000")),
            (format!("{VIP}:22"), format!("{VIP}:40000")),
            (format!("{VIP}:6443"), format!("{own}:40000")),
        ];
        let all = all.iter().zip(1..).map(|((vip, from), number)| claimed(number, vip, from, offloaded));
        let all: Vec<_> = all.collect();
        all.iter().for_each(|record| scene.told(record));
        let actions = scene.take();
        assert_eq!(strange(&actions), [all[0].ends], "once for all");
        assert!(!actions.iter().any(|it| matches!(it, Action::Standby(_))), "{actions:?}");
        assert_eq!(scene.machine.known(), 0);
        // Nor when it says that one has ended, or dies.
        scene.remote(Remote::Ended { owner: name("a"), id: all[0].fleet_id() });
        scene.addresses(&[own, VIP]);
        scene.liveness(Liveness::Dead);
        let actions = scene.take();
        let is_of = |keys: &[Key]| all.iter().any(|it| it.ends.keys().iter().any(|key| keys.contains(key)));
        let refuses = |it: &Action| matches!(it, Action::Standby(StandbyRequest::Refuse(keys)) if is_of(keys));
        assert!(!actions.iter().any(|it| refuses(it) || matches!(it, Action::Challenge { .. })), "{actions:?}");
    }
}

#[test]
fn flows_of_a_frontend_that_is_added_here_later_are_asked_for_again() {
    let mut scene = Scene::new();
    let early = claimed(1, "10.0.0.101:6443", "10.0.0.101:40000", true);
    scene.told(&early);
    assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![early.ends], 0));
    let mut settings = settings("b");
    settings.vips.push(early.ends.vip);
    settings.listens.push(early.ends.vip);
    let again = Action::Send(PeerCommand::AskAgain(name("a")));
    scene.machine.handle_settings(scene.now_ns, settings.clone());
    assert!(scene.take().contains(&again));
    scene.told(&early);
    assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![], 1));
    // Without the frontend its flows drain.
    settings.listens.pop();
    settings.vips.pop();
    scene.machine.handle_settings(scene.now_ns, settings);
    assert!(!scene.take().contains(&again), "nothing is missing");
    scene.told(&claimed(2, "10.0.0.101:6443", "10.0.0.101:40001", true));
    assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![], 2));
}

/// Instances without a VIP listen each on its own address, and tell of each other's clients.
#[test]
fn flows_to_the_peer_s_own_address_are_taken_and_those_of_a_port_that_it_alone_has_are_nothing_to_tell_of() {
    let mut scene = Scene::new();
    scene.told(&claimed(1, "10.0.0.21:6443", "10.0.0.21:40000", true));
    assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![], 1));
    scene.told(&claimed(2, "10.0.0.21:7443", "10.0.0.21:40000", true));
    assert_eq!((scene.take(), scene.machine.known()), (vec![], 1));
    let later = claimed(3, "10.0.0.30:6443", "10.0.0.30:40000", true);
    scene.told(&later);
    assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![later.ends], 1));
    // It says that it has this host's address as well.
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21"), ip("10.0.0.22")] });
    scene.told(&claimed(4, "10.0.0.22:6443", "10.0.0.21:40000", true));
    assert_eq!(scene.machine.known(), 1);
}

#[test]
fn flows_by_an_address_that_several_hosts_have_are_taken() {
    let shared = "10.0.0.22";
    let mut named = settings("b");
    named.sources = vec![ip(shared)];
    let mut scene = Scene::with(named);
    scene.told(&claimed(1, "10.0.0.100:6443", &format!("{shared}:40001"), true));
    assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![], 1), "as the source of backend legs");
    // A frontend that listens on each address of a host: which of them are VIPs is not known.
    let mut any = settings("b");
    (any.vips, any.listens) = (Vec::new(), vec![listen("0.0.0.0:6443")]);
    let mut scene = Scene::with(any);
    let of = |port| claimed(port, &format!("{shared}:{port}"), &format!("{shared}:40000"), true);
    scene.told(&of(6443));
    assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![], 1), "as a VIP");
    scene.told(&of(22));
    assert_eq!((strange(&scene.take()).len(), scene.machine.known()), (1, 1), "another port");
}

fn tells_ports(scene: &mut Scene, owner: &str, first: u16, last: u16) {
    scene.remote(Remote::Ports { owner: name(owner), ports: PortRange { first, last } });
}

/// With the port of a shell, the entry for what "the backend" sends would take the packets of an administrator.
#[test]
fn a_peer_gets_no_entry_for_a_port_from_which_no_instance_connects() {
    for offloaded in [false, true] {
        let mut scene = Scene::new();
        ["a", "c"].into_iter().for_each(|peer| tells_ports(&mut scene, peer, 32768, 60999));
        scene.take();
        let mut shell = claimed(1, &format!("{VIP}:6443"), &format!("{VIP}:22"), offloaded);
        shell.ends.backend = BackendAddr::new("10.0.1.9:51000".parse().unwrap());
        let below = claimed(2, &format!("{VIP}:6443"), &format!("{VIP}:32767"), offloaded);
        scene.told(&shell);
        scene.told(&below);
        let actions = scene.take();
        assert_eq!((strange(&actions), scene.machine.known()), (vec![shell.ends], 0), "once for both");
        assert_eq!(actions.iter().filter(|it| **it == Action::Refused(Strangeness::Port)).count(), 2);
        assert!(!actions.iter().any(|it| matches!(it, Action::Standby(_))), "{actions:?}");
        // Ports of each instance, this one too: flows go from one to another.
        for slot in 0..SLOTS {
            let port = port_range(32768..=60999, slot).unwrap().last;
            scene.told(&claimed(10 + u64::from(slot), &format!("{VIP}:6443"), &format!("{VIP}:{port}"), offloaded));
        }
        assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![], usize::from(SLOTS)));
    }
}

#[test]
fn a_flow_from_a_port_that_some_instance_has_told_is_taken_whoever_has_it_and_whatever_became_of_that_instance() {
    let mut scene = Scene::new();
    tells_ports(&mut scene, "a", 32768, 60999);
    tells_ports(&mut scene, "c", 20000, 27999);
    let mut number = 0;
    let mut takes = |scene: &mut Scene, port: u16| {
        let before = scene.machine.known();
        number += 1;
        scene.told(&claimed(number, &format!("{VIP}:6443"), &format!("{VIP}:{port}"), true));
        scene.machine.known() > before
    };
    assert!(takes(&mut scene, 20001) && !takes(&mut scene, 19999));
    // A reload removes `c`, and `a` has another range after its upgrade.
    scene.remote(Remote::Gone { owner: name("c") });
    scene.take();
    tells_ports(&mut scene, "a", 10000, 10999);
    assert!(
        scene.take().contains(&Action::Send(PeerCommand::AskAgain(name("a")))),
        "what was refused may be told of now"
    );
    assert!(
        takes(&mut scene, 20002) && takes(&mut scene, 10500) && takes(&mut scene, 40000) && !takes(&mut scene, 19999)
    );
    // Nobody connects from the ports of services, whatever he says.
    tells_ports(&mut scene, "a", 0, 65535);
    assert!(takes(&mut scene, 1024) && !takes(&mut scene, 1023));
}

/// A release that tells no ports, or an instance that was not heard yet and whose flows another one may have.
#[test]
fn while_one_instance_has_told_no_ports_no_flow_is_refused_for_its_port() {
    for told in ["a", "c"] {
        let mut scene = Scene::new();
        tells_ports(&mut scene, told, 32768, 60999);
        scene.take();
        let [mut early, late] =
            [1, 2].map(|number| claimed(number, &format!("{VIP}:6443"), &format!("{VIP}:20000"), false));
        scene.told(&early);
        assert_eq!((strange(&scene.take()), scene.machine.known()), (vec![], 1));
        scene.told(&claimed(3, &format!("{VIP}:6443"), &format!("{VIP}:22"), true));
        assert_eq!((strange(&scene.take()).len(), scene.machine.known()), (1, 1));
        // Once all have told, it stays and is offloaded, and no further one is taken.
        ["a", "c"].into_iter().for_each(|peer| tells_ports(&mut scene, peer, 32768, 60999));
        early.keeping = Keeping::Passage(Box::default());
        scene.take();
        scene.told(&early);
        assert!(scene.take().contains(&Action::Standby(StandbyRequest::Hold(Box::new(early)))));
        scene.told(&late);
        assert_eq!(scene.machine.known(), 1);
    }
}

/// Regression: each snapshot that a peer began and never ended was kept beside the one before, until the host had no memory left.
#[test]
fn a_peer_that_begins_snapshots_without_end_fills_no_memory() {
    let mut scene = Scene::new();
    let of = |number: u64| claimed(number, &format!("{VIP}:6443"), &format!("{VIP}:{}", 33000 + number), true);
    for number in 0..1000 {
        if number % 100 == 0 {
            scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(1), slot: 0 });
        }
        scene.told(&of(number));
    }
    assert_eq!(scene.machine.known(), 200);
    let refused = scene.take().into_iter().filter(|it| *it == Action::Refused(Strangeness::Crowd)).count();
    assert_eq!(refused, 800);
    // What is known may change, and a snapshot that ends makes room.
    scene.told(&of(7));
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(1), slot: 0 });
    scene.remote(Remote::Synced { owner: name("a") });
    scene.told(&of(500));
    assert_eq!(scene.machine.known(), 1);
}
