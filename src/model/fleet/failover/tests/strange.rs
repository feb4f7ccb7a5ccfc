//! A peer that tells of flows that no instance of this fleet can have.

use super::*;

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
