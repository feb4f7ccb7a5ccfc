use std::sync::Arc;

use super::*;
use crate::model::fleet::{Epoch, InstanceSummary, LastHeard, PeerSummary};

const MS: u64 = 1_000_000;
const VIP: &str = "10.0.0.100";

fn name(text: &str) -> InstanceName {
    InstanceName(Arc::from(text))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn peer(text: &str) -> MemberView {
    MemberView {
        name: name(text),
        address: "10.0.0.22:9471".parse().unwrap(),
        liveness: Liveness::Alive,
        epoch: Epoch(1),
        slot: Some(1),
        version: "1".to_owned(),
        synced: true,
        told: true,
        flows: 0,
        offloaded: 0,
        behind: 0,
        lag_ms: 0,
        resyncs: 0,
        round_trip_us: 1,
        vips: vec![ip("10.0.0.22")],
        why_not: None,
        summary: None,
        last_heard: LastHeard::default(),
    }
}

/// An instance with a VIP, and its surroundings.
struct Scene {
    now_ns: u64,
    peers: Vec<MemberView>,
    places: Places,
    ending_here: usize,
    accepted: u64,
    machine: Option<Evacuation>,
}

impl Scene {
    fn new() -> Self {
        let places = Places { frontends: vec![ip(VIP)], here: vec![ip(VIP)], kept: Vec::new() };
        Self { now_ns: 1000 * MS, peers: vec![peer("b")], places, ending_here: 10, accepted: 10, machine: None }
    }

    fn begin(&mut self, to: Option<&str>) -> Result<(), Failure> {
        let wish = Wish { to: to.map(name), deadline_ns: 30_000 * MS };
        let machine = Evacuation::begin(wish, &self.look())?;
        self.machine = Some(machine);
        Ok(())
    }

    fn look(&self) -> Situation<'_> {
        Situation {
            now_ns: self.now_ns,
            peers: &self.peers,
            places: &self.places,
            ending_here: self.ending_here,
            accepted: self.accepted,
        }
    }

    /// Passes time in small steps; returns the orders, and the step at the end.
    fn pass(&mut self, ms: u64) -> (Vec<EvacuateOrder>, EvacuateStep) {
        let mut machine = self.machine.take().unwrap();
        let mut orders = Vec::new();
        for _ in 0..=ms / 10 {
            machine.handle_look(&self.look());
            orders.extend(std::iter::from_fn(|| machine.poll_order()));
            self.now_ns += 10 * MS;
        }
        let step = machine.step();
        self.machine = Some(machine);
        (orders, step)
    }

    fn failure(&self) -> Option<Failure> {
        self.machine.as_ref().unwrap().failure().cloned()
    }

    /// The address has moved from this host to the peer.
    fn moves(&mut self) {
        self.places.here.clear();
        self.peers[0].vips.push(ip(VIP));
    }

    /// The address must leave, and has not left yet.
    fn moving_vip() -> Self {
        let mut scene = Self::new();
        scene.begin(None).unwrap();
        scene.places.kept = vec![ip(VIP)];
        assert_eq!(scene.pass(200), (vec![EvacuateOrder::Keep, EvacuateOrder::GiveVip], EvacuateStep::MovingVip));
        scene
    }

    /// The address has left.
    fn emptying() -> Self {
        let mut scene = Self::moving_vip();
        scene.moves();
        assert_eq!(scene.pass(10), (vec![EvacuateOrder::Offload], EvacuateStep::Emptying));
        scene
    }
}

#[test]
fn a_host_is_empty_when_all_is_known_to_others_the_vip_has_moved_and_no_flow_is_left() {
    let mut scene = Scene::emptying();
    assert_eq!(scene.pass(5000), (vec![], EvacuateStep::Emptying));
    scene.ending_here = 0;
    assert_eq!(scene.pass(10).1, EvacuateStep::Confirming);
    assert_eq!(scene.pass(200), (vec![EvacuateOrder::Release], EvacuateStep::Away));
    assert_eq!((scene.failure(), scene.machine.as_ref().unwrap().unconfirmed().len()), (None, 0));
    assert_eq!(scene.pass(60_000), (vec![], EvacuateStep::Away));
}

#[test]
fn the_vip_is_not_given_before_the_peer_has_acknowledged_all_and_the_address_is_kept() {
    let mut scene = Scene::new();
    scene.begin(Some("b")).unwrap();
    scene.peers[0].lag_ms = 400;
    assert_eq!(
        scene.pass(400),
        (vec![EvacuateOrder::Keep], EvacuateStep::Telling),
        "what it has not acknowledged is older"
    );
    assert_eq!(scene.pass(300), (vec![], EvacuateStep::Telling), "the address would be missing for moments");
    scene.places.kept = vec![ip(VIP)];
    assert_eq!(scene.pass(10), (vec![EvacuateOrder::GiveVip], EvacuateStep::MovingVip));
}

#[test]
fn what_cannot_come_to_anything_does_not_begin() {
    let mut scene = Scene::new();
    assert_eq!(scene.begin(Some("c")), Err(Failure::Unknown { asked: name("c"), known: vec!["b".to_owned()] }));
    for liveness in [Liveness::Dead, Liveness::Unheard] {
        scene.peers[0].liveness = liveness;
        assert_eq!(scene.begin(Some("b")), Err(Failure::NotAlive { peer: name("b"), liveness }));
        assert!(matches!(scene.begin(None), Err(Failure::NobodyAlive(_))));
    }
}

#[test]
fn a_peer_that_does_not_acknowledge_leaves_all_as_it_was() {
    let mut scene = Scene::new();
    scene.begin(None).unwrap();
    scene.places.kept = vec![ip(VIP)];
    (scene.peers[0].told, scene.peers[0].behind) = (false, 7);
    let (orders, step) = scene.pass(6000);
    assert_eq!((orders, step), (vec![EvacuateOrder::Keep, EvacuateOrder::TakeBack], EvacuateStep::Here));
    assert!(matches!(scene.failure(), Some(Failure::NotTold { behind: 7, .. })));
}

#[test]
fn an_address_that_nobody_takes_is_taken_back() {
    let mut scene = Scene::moving_vip();
    assert_eq!(scene.pass(6000), (vec![EvacuateOrder::TakeBack], EvacuateStep::Here));
    assert!(matches!(scene.failure(), Some(Failure::NotLeft { .. })));
    let mut scene = Scene::moving_vip();
    scene.places.here.clear();
    assert_eq!(scene.pass(6000), (vec![EvacuateOrder::TakeBack], EvacuateStep::Here));
    assert!(matches!(scene.failure(), Some(Failure::NotTaken { .. })));
}

#[test]
fn what_is_left_at_the_deadline_is_reset_and_nothing_before() {
    let mut scene = Scene::emptying();
    assert_eq!(scene.pass(29_000), (vec![], EvacuateStep::Emptying));
    let orders = vec![EvacuateOrder::Refuse, EvacuateOrder::Reset];
    assert_eq!(scene.pass(1000), (orders, EvacuateStep::Resetting));
    scene.ending_here = 0;
    assert_eq!(scene.pass(500), (vec![EvacuateOrder::Release], EvacuateStep::Away));
}

#[test]
fn what_a_reset_has_missed_is_reset_again_a_few_times() {
    let mut scene = Scene::emptying();
    scene.pass(29_800);
    assert_eq!(scene.machine.as_ref().unwrap().step(), EvacuateStep::Resetting);
    assert_eq!(scene.pass(600), (vec![EvacuateOrder::Reset], EvacuateStep::Resetting));
    assert_eq!(scene.pass(9000).0, [EvacuateOrder::Reset; 4]);
    // A worker hangs: the evacuation does not wait for ever.
    assert_eq!(scene.pass(22_000).1, EvacuateStep::Away);
}

/// Regression: a host said that it may be switched off although a client of its own had come again.
#[test]
fn a_client_that_comes_again_at_the_end_is_waited_for_until_the_deadline() {
    let mut scene = Scene::emptying();
    scene.ending_here = 0;
    assert_eq!(scene.pass(10).1, EvacuateStep::Confirming);
    scene.ending_here = 1;
    assert_eq!(scene.pass(5000), (vec![], EvacuateStep::Emptying));
    assert_eq!(scene.pass(25_000).0, [EvacuateOrder::Refuse, EvacuateOrder::Reset]);
    scene.ending_here = 0;
    assert_eq!(scene.pass(500), (vec![EvacuateOrder::Release], EvacuateStep::Away));
}

#[test]
fn a_peer_that_does_not_acknowledge_the_last_changes_is_named() {
    let mut scene = Scene::emptying();
    scene.ending_here = 0;
    scene.peers[0].told = false;
    assert_eq!(scene.pass(6000), (vec![EvacuateOrder::Release], EvacuateStep::Away));
    assert_eq!(scene.machine.as_ref().unwrap().unconfirmed(), [name("b")]);
}

/// Regression: a host said that it may be switched off while its only peer was starting again.
#[test]
fn a_host_is_not_empty_while_it_hears_no_peer() {
    let mut scene = Scene::emptying();
    scene.ending_here = 0;
    scene.pass(10);
    scene.peers[0].liveness = Liveness::Unlinked;
    assert_eq!(scene.pass(1900), (vec![], EvacuateStep::Confirming));
    scene.peers[0].liveness = Liveness::Alive;
    assert_eq!(scene.pass(300), (vec![EvacuateOrder::Release], EvacuateStep::Away));
}

/// Regression: the instance with the VIP started again just then, and the one that knew all died.
#[test]
fn a_host_is_not_empty_while_one_of_its_peers_is_starting_again() {
    let mut scene = Scene::emptying();
    let other = MemberView { name: name("c"), ..scene.peers[0].clone() };
    scene.peers.push(other);
    scene.ending_here = 0;
    scene.peers[0].liveness = Liveness::Unlinked;
    assert_eq!(scene.pass(1900), (vec![], EvacuateStep::Confirming));
    scene.peers[0].liveness = Liveness::Alive;
    assert_eq!(scene.pass(300), (vec![EvacuateOrder::Release], EvacuateStep::Away));
}

/// Regression: the instance with the VIP was killed and not linked again yet, another one knew all, and the host died.
#[test]
fn a_host_is_not_empty_while_the_instance_with_the_vip_counts_as_dead() {
    let mut scene = Scene::emptying();
    let other = MemberView { name: name("c"), vips: Vec::new(), ..scene.peers[0].clone() };
    scene.peers.push(other);
    scene.ending_here = 0;
    scene.peers[0].liveness = Liveness::Dead;
    assert_eq!(scene.pass(1500), (vec![], EvacuateStep::Confirming));
    scene.peers[0].liveness = Liveness::Alive;
    assert_eq!(scene.pass(300), (vec![EvacuateOrder::Release], EvacuateStep::Away));
}

#[test]
fn an_address_that_nobody_has_any_more_comes_back() {
    for done in [false, true] {
        let mut scene = Scene::emptying();
        if done {
            scene.ending_here = 0;
            assert_eq!(scene.pass(500).1, EvacuateStep::Away);
        }
        // Another one lives, and may take it.
        scene.peers.push(peer("c"));
        scene.peers[0].liveness = Liveness::Dead;
        assert_eq!(scene.pass(1900).0, []);
        assert_eq!(scene.pass(300), (vec![EvacuateOrder::TakeBack], EvacuateStep::Here));
        assert_eq!(scene.failure(), Some(Failure::HeirLost(ip(VIP))));
    }
}

/// Regression: the VIP came back three seconds after the death of the last instance that could have had it.
#[test]
fn an_address_comes_back_at_once_when_the_last_instance_that_could_have_it_is_dead() {
    for step in [EvacuateStep::MovingVip, EvacuateStep::Emptying, EvacuateStep::Away] {
        let mut scene = if step == EvacuateStep::MovingVip { Scene::moving_vip() } else { Scene::emptying() };
        if step == EvacuateStep::Away {
            scene.ending_here = 0;
            scene.pass(500);
        }
        scene.peers[0].liveness = Liveness::Silent;
        assert_eq!(scene.pass(700), (vec![], step), "it may only be slow");
        scene.peers[0].liveness = Liveness::Dead;
        assert_eq!(scene.pass(20), (vec![EvacuateOrder::TakeBack], EvacuateStep::Here), "{step:?}");
    }
}

/// Regression: clients that only read waited for a keepalive, since nothing forwarded their packets.
#[test]
fn flows_that_nobody_forwards_are_reset_as_soon_as_the_address_has_moved() {
    for (offload, expected) in [
        (OffloadBrief::Off, vec![EvacuateOrder::Refuse, EvacuateOrder::Reset]),
        (OffloadBrief::On, vec![EvacuateOrder::Offload]),
        (OffloadBrief::Stopped, vec![EvacuateOrder::Offload]),
    ] {
        let mut scene = Scene::moving_vip();
        let summary = Arc::new(InstanceSummary { offload, ..InstanceSummary::default() });
        scene.peers[0].summary = Some(PeerSummary { age_ms: 1, is_present: true, summary });
        scene.moves();
        assert_eq!(scene.pass(10).0, expected, "{offload:?}");
    }
}

#[test]
fn an_address_that_was_never_here_comes_when_nobody_has_it_any_more() {
    let mut scene = Scene::new();
    scene.moves();
    scene.begin(None).unwrap();
    scene.ending_here = 0;
    assert_eq!(
        scene.pass(1000),
        (vec![EvacuateOrder::GiveVip, EvacuateOrder::Offload, EvacuateOrder::Release], EvacuateStep::Away)
    );
    scene.peers[0].vips.clear();
    assert_eq!(scene.pass(2200), (vec![EvacuateOrder::TakeBack], EvacuateStep::Here));
}

#[test]
fn an_address_that_others_have_too_is_away_when_no_connection_has_come_for_a_while() {
    let shared = || {
        let mut scene = Scene::new();
        scene.peers[0].vips.push(ip(VIP));
        scene.begin(None).unwrap();
        assert_eq!(scene.pass(150), (vec![EvacuateOrder::GiveVip], EvacuateStep::MovingVip), "nothing is to be kept");
        scene
    };
    let mut scene = shared();
    for _ in 0..10 {
        scene.accepted += 1;
        assert_eq!(scene.pass(500), (vec![], EvacuateStep::MovingVip));
    }
    assert_eq!(scene.pass(3000), (vec![EvacuateOrder::Offload], EvacuateStep::Emptying));
    let mut scene = shared();
    for _ in 0..32 {
        scene.accepted += 1;
        scene.pass(500);
    }
    assert!(matches!(scene.failure(), Some(Failure::NotWithdrawn { .. })));
}

#[test]
fn an_operator_can_have_it_back_at_any_time() {
    for mut scene in [Scene::moving_vip(), Scene::emptying()] {
        scene.machine.as_mut().unwrap().cancel();
        assert_eq!(scene.pass(100), (vec![EvacuateOrder::TakeBack], EvacuateStep::Here));
        assert_eq!(scene.failure(), None);
        scene.machine.as_mut().unwrap().cancel();
        assert_eq!(scene.pass(100), (vec![], EvacuateStep::Here));
    }
}
