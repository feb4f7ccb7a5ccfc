mod random;
mod saved;
mod strange;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::*;
use crate::addr::{BackendAddr, ClientAddr, LocalAddr};
use crate::model::ends::{Ends, Key};
use crate::model::fleet::{
    AcceptedFlow, Asked, Epoch, Farewell, FleetId, FlowRecord, Keeping, Liveness, Said, Then, Unknown,
};
use crate::model::ids::FlowId;
use crate::model::segment::Flags;
use crate::model::splice::FlowDirection;

const VIP: &str = "10.0.0.100";
const MS: u64 = 1_000_000;

fn name(text: &str) -> InstanceName {
    InstanceName(Arc::from(text))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn settings(me: &str) -> Settings {
    let all = [("a", "10.0.0.21"), ("b", "10.0.0.22"), ("c", "10.0.0.23")];
    Settings {
        me: name(me),
        slot: all.iter().position(|(name, _)| *name == me).unwrap_or(0) as u8,
        peers: all.iter().filter(|(peer, _)| *peer != me).map(|(peer, link)| (name(peer), ip(link))).collect(),
        vips: vec![VipAddr::new((ip(VIP), 6443).into())],
        listens: vec![VipAddr::new((ip(VIP), 6443).into())],
        backend_keys: HashSet::from([1]),
        sources: Vec::new(),
        carries: true,
        challenge: true,
        guard_ns: 2000 * MS,
        priority: vec!["10.0.0.0/28".parse().unwrap()],
        ports: 32768..=60999,
        peer_flows_max: 200,
    }
}

fn forwarded(record: &FlowRecord) -> AcceptedFlow {
    AcceptedFlow { ends: record.ends, accepted_unix_ms: record.accepted_unix_ms }
}

fn record(number: u64, client: &str, offloaded: bool) -> FlowRecord {
    let client = ClientAddr::new((ip(client), 40_000 + number as u16).into());
    FlowRecord {
        id: FlowId::of(7, number),
        ends: Ends {
            client,
            vip: VipAddr::new((ip(VIP), 6443).into()),
            local: LocalAddr::new((ip(VIP), 33_000 + number as u16).into()),
            backend: BackendAddr::new("10.0.0.11:6443".parse().unwrap()),
        },
        client,
        backend_key: 1,
        accepted_unix_ms: 1,
        connect_us: 1,
        keeping: if offloaded { Keeping::Passage(Box::default()) } else { Keeping::Sockets },
    }
}

struct Scene {
    machine: Failover,
    now_ns: u64,
}

impl Scene {
    /// `b`, which knows that `a` lives and is synced with it.
    fn new() -> Self {
        Self::with(settings("b"))
    }

    fn with(settings: Settings) -> Self {
        let mut scene = Self { machine: Failover::new(settings), now_ns: 1_000_000 * MS };
        scene.addresses(&["10.0.0.22"]);
        scene.remote(Remote::Liveness { owner: name("a"), liveness: Liveness::Alive });
        scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(1), slot: 0 });
        scene.remote(Remote::Synced { owner: name("a") });
        scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21"), ip(VIP)] });
        scene.take();
        scene
    }

    fn remote(&mut self, remote: Remote) {
        self.machine.handle_remote(self.now_ns, remote);
    }

    fn told(&mut self, record: &FlowRecord) {
        self.remote(Remote::Flow { owner: name("a"), record: Box::new(record.clone()) });
    }

    fn liveness(&mut self, liveness: Liveness) {
        self.remote(Remote::Liveness { owner: name("a"), liveness });
    }

    fn addresses(&mut self, all: &[&str]) {
        let all: Vec<_> = all.iter().map(|text| ip(text)).collect();
        self.machine.handle_addresses(self.now_ns, &all);
    }

    fn pass(&mut self, ms: u64) {
        self.now_ns += ms * MS;
        self.machine.handle_timeout(self.now_ns);
    }

    fn take(&mut self) -> Vec<Action> {
        let mut all = Vec::new();
        while let Some(action) = self.machine.poll_action() {
            match action {
                // The offload engine answers at once.
                Action::Standby(StandbyRequest::Report(number)) => {
                    self.machine.handle_standby(self.now_ns, StandbyAnswer::Reached(number));
                }
                action => all.push(action),
            }
        }
        all
    }

    fn packet(&mut self, record: &FlowRecord) -> UnknownPacket {
        let packet =
            UnknownPacket { key: record.ends.key(FlowDirection::ToBackend), seq: 1, ack: 2, length: 3, flags: 16 };
        self.machine.handle_standby(self.now_ns, StandbyAnswer::UnknownPackets(vec![packet]));
        packet
    }
}

/// As [`record`], with a backend on this host.
fn own_backend(number: u64, offloaded: bool) -> FlowRecord {
    let mut record = record(number, "10.0.0.7", offloaded);
    record.ends.backend = BackendAddr::new("10.0.0.22:6444".parse().unwrap());
    record
}

fn is_reset(actions: &[Action], record: &FlowRecord) -> bool {
    let key = record.ends.key(FlowDirection::ToBackend);
    let refused =
        actions.iter().any(|it| matches!(it, Action::Standby(StandbyRequest::Refuse(keys)) if keys.contains(&key)));
    let told = actions.iter().any(|it| match it {
        Action::Challenge { ends, .. } => ends.iter().any(|it| it.to == record.ends.client.socket_addr()),
        _ => false,
    });
    refused && told
}

#[test]
fn flows_to_this_hosts_own_backend_go_on_when_the_address_comes_here_and_proxied_ones_are_reset() {
    for dead in [false, true] {
        let mut scene = Scene::new();
        let (own, other) = (own_backend(1, true), record(2, "10.0.0.7", true));
        let proxied = own_backend(3, false);
        [&own, &other, &proxied].into_iter().for_each(|record| scene.told(record));
        let inherits = |actions: &[Action]| {
            actions
                .iter()
                .any(|it| matches!(it, Action::Standby(StandbyRequest::Inherit(ids)) if ids.contains(&own.fleet_id())))
        };
        if dead {
            scene.liveness(Liveness::Dead);
            assert!(!inherits(&scene.take()), "another instance may get the address");
        }
        scene.take();
        scene.addresses(&["10.0.0.22", VIP]);
        let actions = scene.take();
        // It was refused before, as a dead owner's flow.
        assert!(dead || is_reset(&actions, &proxied), "{actions:?}");
        assert!(![&own, &other].iter().any(|record| is_reset(&actions, record)), "{actions:?}");
        assert_eq!(inherits(&actions), dead, "{actions:?}");
        if !dead {
            // Packets of its client come, and its owner tells of it once more.
            scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Touched(vec![own.fleet_id()]));
            assert!(inherits(&scene.take()));
            scene.told(&own);
            assert!(!is_reset(&scene.take(), &own));
        }
    }
}

#[test]
fn a_vip_is_at_peer_alone_only_while_a_living_peer_has_it_and_this_host_does_not() {
    let mut scene = Scene::new();
    let is_at_peer_alone = |scene: &Scene| scene.machine.members().is_at_peer_alone(ip(VIP));
    assert!(is_at_peer_alone(&scene) && scene.machine.members().lacks_vip());
    assert!(!scene.machine.members().is_at_peer_alone(ip("10.0.0.22")));
    scene.addresses(&["10.0.0.22", VIP]);
    assert!(!is_at_peer_alone(&scene) && !scene.machine.members().lacks_vip(), "both have it");
    scene.addresses(&["10.0.0.22"]);
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21")] });
    assert!(!is_at_peer_alone(&scene) && scene.machine.members().lacks_vip(), "no host has it");
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21"), ip(VIP)] });
    assert!(is_at_peer_alone(&scene));
    scene.liveness(Liveness::Dead);
    assert!(!is_at_peer_alone(&scene), "it may come back here");
}

#[test]
fn without_offload_flows_to_this_hosts_own_backend_are_reset_when_the_address_comes_here() {
    for dead in [false, true] {
        let mut scene = Scene::with(Settings { carries: false, ..settings("b") });
        let (own, proxied) = (own_backend(1, true), own_backend(3, false));
        [&own, &proxied].into_iter().for_each(|record| scene.told(record));
        if dead {
            scene.liveness(Liveness::Dead);
        }
        scene.take();
        scene.addresses(&["10.0.0.22", VIP]);
        let actions = scene.take();
        // Without offload nothing is asked of the engine; both ends are challenged.
        let challenged = |record: &FlowRecord| {
            let to = record.ends.client.socket_addr();
            actions.iter().any(|it| matches!(it, Action::Challenge { ends, .. } if ends.iter().any(|it| it.to == to)))
        };
        assert!(dead || [&own, &proxied].iter().all(|record| challenged(record)), "{actions:?}");
        assert!(!actions.iter().any(|it| matches!(it, Action::Standby(StandbyRequest::Inherit(_)))), "{actions:?}");
    }
}

fn place(actions: &[Action], which: impl Fn(&Action) -> bool) -> usize {
    actions.iter().position(which).unwrap_or_else(|| panic!("not among {actions:?}"))
}

fn refused(actions: &[Action]) -> Vec<Key> {
    let keys = actions.iter().filter_map(|action| match action {
        Action::Standby(StandbyRequest::Refuse(keys)) => Some(keys.clone()),
        _ => None,
    });
    keys.flatten().collect()
}

fn challenged(actions: &[Action]) -> Option<(u64, Vec<Challenge>)> {
    actions.iter().find_map(|action| match action {
        Action::Challenge { round, ends } => Some((*round, ends.clone())),
        _ => None,
    })
}

#[test]
fn a_proxied_flow_is_forwarded_to_its_owner_and_an_offloaded_one_is_held() {
    let mut scene = Scene::new();
    let (proxied, mut later) = (record(1, "10.0.1.7", false), record(2, "10.0.1.8", false));
    scene.told(&proxied);
    let to = ip("10.0.0.21");
    assert_eq!(scene.take(), [Action::Standby(StandbyRequest::Forward { flows: vec![forwarded(&proxied)], to })]);
    scene.told(&proxied);
    assert_eq!(scene.take(), [], "it is known");
    scene.told(&later);
    scene.take();
    later.keeping = Keeping::Passage(Box::default());
    scene.told(&later);
    assert_eq!(scene.take(), [Action::Standby(StandbyRequest::Hold(Box::new(later.clone())))]);
    scene.remote(Remote::Ended { owner: name("a"), id: later.fleet_id() });
    assert_eq!(scene.take(), [Action::Standby(StandbyRequest::Drop(vec![later.fleet_id()]))]);
    scene.remote(Remote::Ended { owner: name("a"), id: proxied.fleet_id() });
    let last = Action::Standby(StandbyRequest::ForwardKeys { keys: proxied.ends.keys().to_vec(), to });
    assert_eq!(scene.take(), [last], "its last packets are on their way, and its port is free");
    scene.pass(5001);
    let forget = Action::Standby(StandbyRequest::Forget(proxied.ends.keys().to_vec()));
    place(&scene.take(), |action| *action == forget);
}

/// Regressions: clients waited for ever, because each instance runs beside a backend, and the VIP came to the host of
/// the flow's backend; and entries for backends' packets stayed for ever.
#[test]
fn what_a_backend_sends_to_a_flow_that_is_over_is_forgotten_though_its_client_uses_the_port_again() {
    let mut scene = Scene::new();
    let first = record(1, "10.1.0.1", false);
    let mut next = record(2, "10.1.0.1", false);
    next.ends.client = first.ends.client;
    scene.told(&first);
    scene.remote(Remote::Ended { owner: name("a"), id: first.fleet_id() });
    scene.told(&next);
    scene.take();
    scene.pass(6000);
    let down = first.ends.key(FlowDirection::ToClient);
    let forget = Action::Standby(StandbyRequest::Forget(vec![down]));
    place(&scene.take(), |action| *action == forget);
}

#[test]
fn where_another_flow_has_the_port_already_nothing_of_one_that_is_over_is_forwarded() {
    let mut scene = Scene::new();
    let first = record(1, "10.1.0.1", false);
    let mut next = record(2, "10.1.0.1", false);
    next.ends.client = first.ends.client;
    scene.told(&first);
    scene.told(&next);
    scene.take();
    scene.remote(Remote::Ended { owner: name("a"), id: first.fleet_id() });
    let last = StandbyRequest::ForwardKeys { keys: vec![first.ends.key(FlowDirection::ToClient)], to: ip("10.0.0.21") };
    assert_eq!(scene.take(), [Action::Standby(last)]);
}

#[test]
fn an_offloaded_flow_whose_backend_or_client_is_on_this_host_goes_on_without_its_owner() {
    let mut scene = Scene::new();
    let mut backend_here = record(1, "10.0.1.7", true);
    backend_here.ends.backend = BackendAddr::new("10.0.0.22:7443".parse().unwrap());
    let client_here = record(2, "10.0.0.22", true);
    let other = record(3, "10.0.1.8", true);
    let all = [&backend_here, &client_here, &other];
    all.into_iter().for_each(|record| scene.told(record));
    scene.liveness(Liveness::Silent);
    scene.take();
    scene.addresses(&["10.0.0.22", VIP]);
    let actions = scene.take();
    assert_eq!(refused(&actions), []);
    let inherited: HashSet<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Standby(StandbyRequest::Inherit(ids)) => Some(ids.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(inherited, all.iter().map(|record| record.fleet_id()).collect());
}

#[test]
fn the_vip_of_a_silent_owner_comes_first_arp_then_resets_by_priority() {
    let mut scene = Scene::new();
    let (kubelet, master) = (record(1, "10.0.1.7", false), record(2, "10.0.0.5", false));
    let offloaded = record(3, "10.0.1.9", true);
    [&kubelet, &master, &offloaded].into_iter().for_each(|record| scene.told(record));
    scene.liveness(Liveness::Silent);
    scene.take();
    scene.addresses(&["10.0.0.22", VIP]);
    let actions = scene.take();
    let announce = place(&actions, |action| *action == Action::Announce(ip(VIP)));
    let refuse =
        place(&actions, |action| matches!(action, Action::Standby(StandbyRequest::Refuse(keys)) if keys.len() == 4));
    let challenge = place(&actions, |action| matches!(action, Action::Challenge { .. }));
    assert!(announce < refuse && refuse < challenge, "{actions:?}");
    place(&actions, |action| *action == Action::Standby(StandbyRequest::Inherit(vec![offloaded.fleet_id()])));
    let (round, ends) = challenged(&actions).unwrap();
    let to: Vec<_> = ends.iter().map(|challenge| challenge.to.ip().to_string()).collect();
    assert_eq!(to, ["10.0.0.5", "10.0.1.7", "10.0.0.11", "10.0.0.11"], "masters, others, then backends");
    let with: Vec<_> = ends.iter().map(|challenge| challenge.with).collect();
    assert_eq!(with, [Flags::SynAck, Flags::SynAck, Flags::Ack, Flags::Ack], "what passes a client's firewall");
    // Those that have not answered are challenged once more, and then the round is over.
    scene.machine.handle_challenged(scene.now_ns, round);
    scene.pass(701);
    place(
        &scene.take(),
        |action| matches!(action, Action::Standby(StandbyRequest::FindUnanswered(keys)) if keys.len() == 4),
    );
    let silent = kubelet.ends.key(FlowDirection::ToBackend);
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Unanswered(vec![silent]));
    let (round, ends) = challenged(&scene.take()).unwrap();
    assert_eq!((ends[0].to, ends[0].with), (kubelet.ends.client.socket_addr(), Flags::Ack));
    scene.machine.handle_challenged(scene.now_ns, round);
    scene.pass(701);
    scene.take();
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Unanswered(vec![]));
    let told = Action::Note(Note::Told { from: name("a"), answered: 2, silent: 0 });
    place(&scene.take(), |action| *action == told);
    assert_eq!(scene.machine.known(), 0);
    scene.pass(30_001);
    let forgotten =
        scene.take().into_iter().filter(|action| matches!(action, Action::Standby(StandbyRequest::Forget(_))));
    assert_eq!(forgotten.count(), 2);
}

#[test]
fn clients_that_answer_neither_round_are_woken_on_and_no_others() {
    for (carries, challenge) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut scene = Scene::with(Settings { carries, challenge, ..settings("b") });
        let (silent, other) = (record(1, "10.0.1.7", false), record(2, "10.0.1.8", false));
        [&silent, &other].into_iter().for_each(|record| scene.told(record));
        scene.liveness(Liveness::Silent);
        scene.addresses(&["10.0.0.22", VIP]);
        let mut woken = Vec::new();
        for _ in 0..40 {
            for action in scene.take() {
                match action {
                    Action::Standby(StandbyRequest::FindUnanswered(_)) => {
                        let keys = vec![silent.ends.key(FlowDirection::ToBackend)];
                        scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Unanswered(keys));
                    }
                    Action::Standby(StandbyRequest::Report(round)) => {
                        scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Reached(round));
                    }
                    Action::Challenge { round, .. } => scene.machine.handle_challenged(scene.now_ns, round),
                    Action::WakeOn(all) => woken.extend(all),
                    _ => {}
                }
            }
            scene.pass(100);
        }
        let wake = |it: &FlowRecord| Wake { from: it.ends.vip.socket_addr(), to: it.ends.client.socket_addr() };
        // Without offload this instance does not see which ends have answered.
        let expected = match (carries, challenge) {
            (_, false) => vec![],
            (true, true) => vec![wake(&silent)],
            (false, true) => vec![wake(&silent), wake(&other)],
        };
        assert_eq!(woken, expected, "carries {carries}, challenge {challenge}");
        assert_eq!(scene.machine.known(), 0, "they are nobody's flows");
    }
}

#[test]
fn an_owner_that_answers_the_ping_keeps_its_flows() {
    for answers in [true, false] {
        let mut scene = Scene::new();
        let flow = record(1, "10.0.1.7", false);
        scene.told(&flow);
        scene.take();
        scene.addresses(&["10.0.0.22", VIP]);
        let actions = scene.take();
        place(&actions, |action| *action == Action::Send(PeerCommand::Ping));
        assert_eq!(refused(&actions), [], "it may live");
        if answers {
            scene.liveness(Liveness::Alive);
        }
        scene.pass(251);
        assert_eq!(refused(&scene.take()).is_empty(), answers);
        // While the VIP stays, a short silence is no death; but right after the VIP has come it is.
        scene.pass(6000);
        scene.take();
        scene.liveness(Liveness::Silent);
        assert_eq!(refused(&scene.take()), []);
        scene.liveness(Liveness::Dead);
        assert_eq!(refused(&scene.take()).len(), if answers { 2 } else { 0 });
    }
}

#[test]
fn an_owner_that_lives_after_all_has_its_packets_forwarded_again() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", false);
    scene.told(&flow);
    scene.liveness(Liveness::Dead);
    scene.take();
    scene.liveness(Liveness::Alive);
    let to = ip("10.0.0.21");
    let again = Action::Standby(StandbyRequest::Forward { flows: vec![forwarded(&flow)], to });
    place(&scene.take(), |action| *action == again);
}

#[test]
fn clients_of_peers_flows_are_counted_by_the_address_that_a_proxy_header_gave() {
    let mut scene = Scene::new();
    let told = |offloaded| FlowRecord {
        client: ClientAddr::new("192.0.2.7:1234".parse().unwrap()),
        ..record(1, "10.0.1.7", offloaded)
    };
    let one = HashMap::from([(ip("192.0.2.7"), BTreeMap::from([(name("a"), 1)]))]);
    let counts = |scene: &mut Scene| scene.machine.take_clients().map(|counts| (*counts).clone());
    scene.told(&told(false));
    assert_eq!(counts(&mut scene), Some(one.clone()));
    assert_eq!(counts(&mut scene), None, "nothing has changed");
    scene.told(&told(true));
    assert_eq!(counts(&mut scene), Some(one));
    scene.remote(Remote::Ended { owner: name("a"), id: told(true).fleet_id() });
    assert_eq!(counts(&mut scene), Some(HashMap::new()));
}

#[test]
fn a_held_flow_belongs_to_whom_its_packets_come() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    scene.told(&flow);
    // As behind a router: both have it.
    scene.addresses(&["10.0.0.22", "10.0.0.100"]);
    scene.take();
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Touched(vec![flow.fleet_id()]));
    let actions = scene.take();
    let claim = Action::Send(PeerCommand::Claim { owner: name("a"), flows: vec![flow.fleet_id()] });
    assert!(
        place(&actions, |action| matches!(action, Action::Standby(StandbyRequest::Inherit(_))))
            > place(&actions, |a| *a == claim)
    );
    scene.remote(Remote::Ended { owner: name("a"), id: flow.fleet_id() });
    assert_eq!(scene.take(), [], "its end there is not its end");
    scene.told(&flow);
    assert_eq!(scene.take(), [claim], "a snapshot that began before");
    scene.remote(Remote::Claimed { by: name("a"), flows: vec![(flow.fleet_id(), None)] });
    place(&scene.take(), |action| *action == Action::Standby(StandbyRequest::Release(vec![flow.fleet_id()])));
    scene.told(&flow);
    place(&scene.take(), |action| matches!(action, Action::Standby(StandbyRequest::Hold(_))));
}

/// Regression: clients got RST while instances joined behind a router. An instance that heard the old owner's farewell
/// to a flow before the new owner's claim took the flow for ended, and a packet came in between.
#[test]
fn a_flow_that_goes_from_one_to_another_is_held_all_the_time() {
    for first in [true, false] {
        let mut scene = Scene::new();
        let flow = record(1, "10.0.1.7", true);
        scene.told(&flow);
        scene.remote(Remote::Liveness { owner: name("c"), liveness: Liveness::Alive });
        scene.remote(Remote::Begin { owner: name("c"), epoch: Epoch(1), slot: 2 });
        scene.remote(Remote::Synced { owner: name("c") });
        scene.take();
        let moved = Remote::Moved { owner: name("a"), id: flow.fleet_id(), to: name("c") };
        let told = Remote::Flow { owner: name("c"), record: Box::new(flow.clone()) };
        let both = if first { [moved, told] } else { [told, moved] };
        both.into_iter().for_each(|remote| scene.remote(remote));
        scene.pass(20_000);
        let dropped = |action: &Action| matches!(action, Action::Standby(StandbyRequest::Drop(_)));
        assert!(!scene.take().iter().any(dropped));
        scene.remote(Remote::Ended { owner: name("c"), id: flow.fleet_id() });
        assert_eq!(scene.take(), [Action::Standby(StandbyRequest::Drop(vec![flow.fleet_id()]))]);
    }
}

#[test]
fn nothing_is_left_of_a_flow_that_went_from_one_to_another_and_back_before_the_other_told_of_it() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.0.7", true);
    let (id, a, c) = (flow.fleet_id(), name("a"), name("c"));
    scene.remote(Remote::Liveness { owner: c.clone(), liveness: Liveness::Alive });
    scene.remote(Remote::Begin { owner: c.clone(), epoch: Epoch(1), slot: 2 });
    scene.remote(Remote::Synced { owner: c.clone() });
    scene.told(&flow);
    scene.remote(Remote::Moved { owner: a, id, to: c });
    scene.told(&flow);
    scene.take();
    scene.remote(Remote::Ended { owner: name("a"), id });
    let actions = scene.take();
    assert!(actions.contains(&Action::Standby(StandbyRequest::Drop(vec![id]))), "{actions:?}");
    assert_eq!(scene.machine.known(), 0);
}

#[test]
fn of_three_that_say_a_flow_is_theirs_none_is_forgotten() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.0.7", true);
    let (id, c) = (flow.fleet_id(), name("c"));
    scene.addresses(&["10.0.0.22", VIP]);
    scene.liveness(Liveness::Alive);
    scene.remote(Remote::Liveness { owner: c.clone(), liveness: Liveness::Alive });
    scene.remote(Remote::Begin { owner: c.clone(), epoch: Epoch(1), slot: 2 });
    scene.remote(Remote::Synced { owner: c.clone() });
    scene.take();
    // Both have the address: that is settled later. The third one does not have it.
    scene.told(&flow);
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Ours(vec![id]));
    scene.remote(Remote::Flow { owner: c, record: Box::new(flow) });
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Ours(vec![id]));
    scene.pass(1000);
    assert!(scene.take().contains(&Action::Standby(StandbyRequest::Release(vec![id]))), "a goes before b");
}

/// Regression: clients waited for ever, because after a cut each of several instances had left a flow to another one,
/// and all took that for its end.
#[test]
fn who_leaves_a_flow_to_another_says_so_before_it_ends_here() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    let id = flow.fleet_id();
    let leaves = |actions: &[Action]| {
        let said = place(actions, |action| *action == Action::Send(PeerCommand::Leave { to: name("a"), flow: id }));
        assert!(said < place(actions, |action| *action == Action::Standby(StandbyRequest::Release(vec![id]))));
    };
    // Both own it, and the other has the address.
    scene.told(&flow);
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Ours(vec![id]));
    leaves(&scene.take());
    // This instance claimed it before the other got the address.
    let mut scene = Scene::new();
    scene.told(&flow);
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Touched(vec![id]));
    scene.take();
    scene.told(&flow);
    leaves(&scene.take());
}

#[test]
fn a_flow_that_is_given_away_stays_with_whoever_has_told_of_it_besides() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    let (id, c) = (flow.fleet_id(), name("c"));
    scene.remote(Remote::Liveness { owner: c.clone(), liveness: Liveness::Alive });
    scene.told(&flow);
    scene.remote(Remote::Flow { owner: c.clone(), record: Box::new(flow) });
    scene.remote(Remote::Moved { owner: c.clone(), id, to: name("b") });
    scene.take();
    scene.remote(Remote::Ended { owner: c, id });
    assert!(!scene.take().contains(&Action::Standby(StandbyRequest::Drop(vec![id]))), "a has it");
    scene.remote(Remote::Ended { owner: name("a"), id });
    assert!(scene.take().contains(&Action::Standby(StandbyRequest::Drop(vec![id]))));
}

#[test]
fn a_flow_that_nobody_tells_of_is_in_the_end_claimed_by_who_has_the_address() {
    for own in [false, true] {
        let mut scene = Scene::new();
        let flow = record(1, "10.0.1.7", true);
        match own {
            true => scene.remote(Remote::Claimed { by: name("a"), flows: vec![(flow.fleet_id(), Some(flow.ends))] }),
            false => {
                scene.remote(Remote::Flow { owner: name("c"), record: Box::new(flow.clone()) });
                scene.remote(Remote::Moved { owner: name("c"), id: flow.fleet_id(), to: name("a") });
            }
        }
        scene.pass(4000);
        let claim = Action::Send(PeerCommand::Claim { owner: name("a"), flows: vec![flow.fleet_id()] });
        let actions = scene.take();
        assert!(!actions.contains(&claim), "the other has the address");
        assert!(!actions.iter().any(|action| matches!(action, Action::Standby(StandbyRequest::Drop(_)))));
        scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21")] });
        scene.addresses(&["10.0.0.22", VIP]);
        scene.liveness(Liveness::Alive);
        scene.take();
        scene.pass(4000);
        let actions = scene.take();
        assert!(
            actions.contains(&claim)
                && actions.contains(&Action::Standby(StandbyRequest::Inherit(vec![flow.fleet_id()])))
        );
    }
}

/// Regression: behind a router no instance owned a flow, because each of three claims took it from another instance.
#[test]
fn who_hears_of_a_third_ones_claim_before_its_own_loss_waits_for_that() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    scene.addresses(&["10.0.0.22", VIP]);
    scene.remote(Remote::Addresses { owner: name("c"), vips: vec![ip("10.0.0.23"), ip(VIP)] });
    scene.take();
    scene.remote(Remote::Flow { owner: name("c"), record: Box::new(flow.clone()) });
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Ours(vec![flow.fleet_id()]));
    let taken = |action: &Action| matches!(action, Action::Send(PeerCommand::Claim { .. }));
    assert!(!scene.take().iter().any(taken));
    // `a` took it.
    scene.remote(Remote::Claimed { by: name("a"), flows: vec![(flow.fleet_id(), Some(flow.ends))] });
    scene.pass(1500);
    assert!(!scene.take().iter().any(taken));
    // Without such a claim one of them gives way.
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Ours(vec![flow.fleet_id()]));
    scene.pass(1500);
    assert!(scene.take().iter().any(taken));
}

/// Regression: no instance owned a flow once a VIP had moved to another host and back within moments.
#[test]
fn who_has_lost_the_address_does_not_claim_back_what_it_claimed_before() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    scene.told(&flow);
    scene.addresses(&["10.0.0.22", "10.0.0.100"]);
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Touched(vec![flow.fleet_id()]));
    scene.addresses(&["10.0.0.22"]);
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21"), ip("10.0.0.100")] });
    scene.take();
    scene.told(&flow);
    let actions = scene.take();
    place(&actions, |action| *action == Action::Standby(StandbyRequest::Release(vec![flow.fleet_id()])));
    assert!(!actions.iter().any(|action| matches!(action, Action::Send(PeerCommand::Claim { .. }))), "{actions:?}");
}

#[test]
fn one_of_the_living_takes_what_a_dead_owner_offloaded() {
    for (me, here, others, takes) in [
        ("b", vec![VIP], vec![], true),
        ("b", vec![], vec![ip(VIP)], false),
        ("b", vec![VIP], vec![ip(VIP)], true),
        ("b", vec![], vec![], true),
    ] {
        let mut scene = Scene::with(settings(me));
        scene.remote(Remote::Liveness { owner: name("c"), liveness: Liveness::Alive });
        scene.remote(Remote::Addresses { owner: name("c"), vips: others });
        scene.addresses(&here);
        let flow = record(1, "10.0.1.7", true);
        scene.told(&flow);
        scene.take();
        scene.liveness(Liveness::Dead);
        let inherits = scene.take().iter().any(|action| matches!(action, Action::Standby(StandbyRequest::Inherit(_))));
        assert_eq!(inherits, takes, "{me} {here:?}");
    }
}

#[test]
fn what_a_new_snapshot_does_not_name_is_gone() {
    let mut scene = Scene::new();
    let (kept, gone) = (record(1, "10.0.1.7", false), record(2, "10.0.1.8", true));
    scene.told(&kept);
    scene.told(&gone);
    scene.take();
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(2), slot: 0 });
    scene.told(&kept);
    let rules_only = |action: &Action| matches!(action, Action::Standby(StandbyRequest::Unknown { .. }));
    let actions = scene.take();
    assert!(actions.iter().all(rules_only), "{actions:?}");
    assert_eq!(rule(&actions).map(|rule| rule.then), Some(Then::Ask { all_told: false }), "others may be told yet");
    scene.remote(Remote::Synced { owner: name("a") });
    let actions = scene.take();
    assert_eq!(actions[0], Action::Standby(StandbyRequest::Drop(vec![gone.fleet_id()])));
    assert!(actions[1..].iter().all(rules_only), "{actions:?}");
    assert_eq!(rule(&actions).map(|rule| rule.then), Some(Then::Ask { all_told: true }));
}

/// Regression: clients waited for ever, because two instances had left a flow to each other, and the snapshot of one
/// did not name it.
#[test]
fn a_snapshot_does_not_end_a_flow_that_its_sender_is_only_said_to_have() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    let id = flow.fleet_id();
    scene.remote(Remote::Flow { owner: name("c"), record: Box::new(flow) });
    scene.remote(Remote::Moved { owner: name("c"), id, to: name("a") });
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(2), slot: 0 });
    scene.remote(Remote::Synced { owner: name("a") });
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21")] });
    scene.addresses(&["10.0.0.22", VIP]);
    scene.liveness(Liveness::Alive);
    scene.pass(4000);
    let actions = scene.take();
    assert!(!actions.contains(&Action::Standby(StandbyRequest::Drop(vec![id]))), "{actions:?}");
    assert!(actions.contains(&Action::Standby(StandbyRequest::Inherit(vec![id]))), "{actions:?}");
}

/// Regression: an instance did not know a flow of another one, and would not have told its client if that one had died.
/// Two instances had told of the flow, and the next process of the one that did so last did not name it.
#[test]
fn a_snapshot_does_not_end_a_flow_that_another_has_told_of_besides() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    let (id, c) = (flow.fleet_id(), name("c"));
    scene.remote(Remote::Liveness { owner: c.clone(), liveness: Liveness::Alive });
    scene.remote(Remote::Flow { owner: c.clone(), record: Box::new(flow.clone()) });
    scene.told(&flow);
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(2), slot: 0 });
    scene.remote(Remote::Synced { owner: name("a") });
    let dropped = Action::Standby(StandbyRequest::Drop(vec![id]));
    assert!(!scene.take().contains(&dropped), "c has it");
    scene.remote(Remote::Ended { owner: c, id });
    assert!(scene.take().contains(&dropped));
}

#[test]
fn a_snapshot_ends_what_it_does_not_name_though_another_tells_of_it_meanwhile() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    let (id, c) = (flow.fleet_id(), name("c"));
    let dropped = Action::Standby(StandbyRequest::Drop(vec![id]));
    let told_by_c = || Remote::Flow { owner: name("c"), record: Box::new(flow.clone()) };
    scene.remote(Remote::Liveness { owner: c.clone(), liveness: Liveness::Alive });
    // Another instance tells of it.
    scene.told(&flow);
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(2), slot: 0 });
    scene.remote(told_by_c());
    scene.remote(Remote::Synced { owner: name("a") });
    scene.remote(Remote::Ended { owner: c.clone(), id });
    assert!(scene.take().contains(&dropped), "nobody has it");
    // Another instance leaves it to the one with the snapshot.
    scene.remote(told_by_c());
    scene.told(&flow);
    scene.remote(Remote::Begin { owner: c.clone(), epoch: Epoch(2), slot: 2 });
    scene.remote(Remote::Ended { owner: name("a"), id });
    scene.remote(Remote::Synced { owner: c });
    assert!(scene.take().contains(&dropped), "nobody has it");
}

#[test]
fn an_unknown_packet_is_asked_for_once_and_never_left_without_an_answer() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", false);
    let ends = Asked::up(&flow.ends);
    scene.packet(&flow);
    scene.packet(&flow);
    assert_eq!(scene.take(), [Action::Send(PeerCommand::Ask(ends))]);
    scene.remote(Remote::Answer { ends, said: Said::Known(name("a")) });
    let forward =
        StandbyRequest::ForwardKeys { keys: vec![flow.ends.key(FlowDirection::ToBackend)], to: ip("10.0.0.21") };
    place(&scene.take(), |action| *action == Action::Standby(forward.clone()));
    scene.pass(10_001);
    place(&scene.take(), |action| matches!(action, Action::Standby(StandbyRequest::Forget(_))));
    let packet = scene.packet(&flow);
    scene.take();
    scene.remote(Remote::Answer { ends, said: Said::Unknown });
    assert_eq!(scene.take(), [Action::Answer(packet)]);
    for nothing_was_said in 0..3 {
        scene.packet(&flow);
        assert_eq!(scene.take(), [Action::Send(PeerCommand::Ask(ends))], "{nothing_was_said}");
        scene.pass(1600);
        let answered: &[_] = if nothing_was_said == 2 { &[Action::Answer(packet)] } else { &[] };
        assert_eq!(scene.take(), answered, "it may be known all the same, but not for ever: {nothing_was_said}");
    }
    scene.liveness(Liveness::Dead);
    scene.take();
    scene.packet(&flow);
    assert_eq!(scene.take(), [Action::Answer(packet)], "nobody is there to be asked");
}

#[test]
fn what_nobody_knows_is_sent_to_a_peer_that_lives_and_cannot_be_asked_and_reset_if_it_comes_back() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", false);
    let ends = Asked::up(&flow.ends);
    scene.liveness(Liveness::Unlinked);
    scene.pass(3000);
    scene.take();
    let packet = scene.packet(&flow);
    assert_eq!(scene.take(), [Action::Send(PeerCommand::Ask(ends))]);
    scene.remote(Remote::Answer { ends, said: Said::Unknown });
    let forward =
        StandbyRequest::ForwardKeys { keys: vec![flow.ends.key(FlowDirection::ToBackend)], to: ip("10.0.0.21") };
    place(&scene.take(), |action| *action == Action::Standby(forward.clone()));
    scene.packet(&flow);
    assert_eq!(scene.take(), [], "it was on its way before");
    scene.pass(1100);
    scene.packet(&flow);
    assert_eq!(scene.take(), [Action::Answer(packet)]);
}

/// Regression: a client waited 69 s for a connect. Its port had been another connection's while the peer could not be
/// asked, and for a minute all packets from that port went there.
#[test]
fn what_was_sent_to_a_peer_that_could_not_be_asked_stays_here_once_all_of_its_flows_are_known() {
    let mut scene = Scene::new();
    let (its, nobodys) = (record(1, "10.0.1.7", false), record(2, "10.0.1.8", false));
    scene.liveness(Liveness::Unlinked);
    scene.pass(3000);
    for flow in [&its, &nobodys] {
        scene.packet(flow);
        scene.remote(Remote::Answer { ends: Asked::up(&flow.ends), said: Said::Unknown });
    }
    scene.liveness(Liveness::Alive);
    scene.told(&its);
    scene.take();
    scene.remote(Remote::Synced { owner: name("a") });
    let forget =
        |flow: &FlowRecord| Action::Standby(StandbyRequest::Forget(vec![flow.ends.key(FlowDirection::ToBackend)]));
    let done = scene.take();
    place(&done, |action| *action == forget(&nobodys));
    assert!(!done.contains(&forget(&its)), "{done:?}");
    // The peers are asked again, as if it had never been sent there.
    scene.packet(&nobodys);
    assert_eq!(scene.take(), [Action::Send(PeerCommand::Ask(Asked::up(&nobodys.ends)))]);
}

/// Regression, seen on a busy machine: routers spread flows over two instances that had had the address for seconds,
/// and one got no CPU for a moment.
#[test]
fn a_moment_of_silence_is_no_death_for_a_peer_that_has_answered_since_the_address_came() {
    for answers in [true, false] {
        let mut scene = Scene::new();
        scene.told(&record(1, "10.0.1.7", false));
        scene.addresses(&["10.0.0.22", VIP]);
        if answers {
            scene.liveness(Liveness::Alive);
        }
        scene.pass(200);
        scene.take();
        scene.liveness(Liveness::Unlinked);
        scene.liveness(Liveness::Silent);
        assert_eq!(refused(&scene.take()).is_empty(), answers);
        scene.liveness(Liveness::Dead);
        assert_eq!(refused(&scene.take()).is_empty(), !answers);
    }
}

#[test]
fn flows_of_a_peer_that_is_only_not_linked_are_forwarded_and_its_ports_stay_its_own() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", false);
    scene.addresses(&["10.0.0.22", VIP]);
    scene.told(&flow);
    scene.liveness(Liveness::Alive);
    scene.take();
    scene.liveness(Liveness::Unlinked);
    scene.pass(60_000);
    assert_eq!(refused(&scene.take()), []);
    assert!(scene.machine.members.peer(&name("a")).is_some_and(|a| a.can_be_asked() && !a.is_dead()));
}

#[test]
fn the_address_is_announced_again_when_the_other_has_let_it_go() {
    let mut scene = Scene::new();
    scene.addresses(&["10.0.0.22", VIP]);
    scene.take();
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21")] });
    assert_eq!(scene.take(), [Action::Announce(ip(VIP)), Action::Shared(false)]);
}

#[test]
fn what_an_earlier_process_held_is_dropped_or_claimed_when_the_peers_have_spoken() {
    let mut scene = Scene::new();
    scene.machine.handle_ready();
    assert_eq!(scene.take(), [], "c has not spoken, and another host has the VIP");
    scene.addresses(&["10.0.0.22", VIP]);
    place(&scene.take(), |action| *action == Action::Standby(StandbyRequest::Settle { claim: true }));
    let mut scene = Scene::new();
    scene.remote(Remote::Synced { owner: name("c") });
    scene.machine.handle_ready();
    place(&scene.take(), |action| *action == Action::Standby(StandbyRequest::Settle { claim: false }));
}

/// The rule for the frontend's port that was set last.
fn rule(actions: &[Action]) -> Option<Unknown> {
    let mut rules = actions.iter().filter_map(|action| match action {
        Action::Standby(StandbyRequest::Unknown { vip, unknown }) if vip.port() == 6443 => *unknown,
        _ => None,
    });
    rules.next_back()
}

#[test]
fn unknown_packets_wait_while_a_vip_comes_and_are_asked_for_while_somebody_lives() {
    let mut scene = Scene::new();
    scene.pass(2001);
    scene.take();
    scene.addresses(&["10.0.0.22", VIP]);
    let guard_until_ns = scene.now_ns + 2000 * MS;
    assert_eq!(rule(&scene.take()), Some(Unknown { guard_until_ns, then: Then::Ask { all_told: true } }));
    scene.liveness(Liveness::Dead);
    assert_eq!(rule(&scene.take()).map(|rule| rule.then), Some(Then::Reset));
    scene.pass(2001);
    assert_eq!(rule(&scene.take()), Some(Unknown { guard_until_ns: 0, then: Then::Reset }));
}

#[test]
fn unknown_packets_are_shown_while_a_vip_comes_for_as_long_as_the_map_has_no_room_and_no_longer() {
    let came_while_alone = |scene: &mut Scene| {
        scene.addresses(&["10.0.0.22"]);
        scene.liveness(Liveness::Dead);
        scene.pass(60_000);
        scene.take();
        scene.addresses(&["10.0.0.22", VIP]);
        rule(&scene.take()).map(|rule| rule.then)
    };
    for room in [true, false] {
        let mut scene = Scene::new();
        let flow = record(1, "10.0.1.7", true);
        scene.told(&flow);
        scene.machine.handle_standby(scene.now_ns, StandbyAnswer::NoStandby(vec![flow.fleet_id()]));
        if room {
            scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Held(vec![flow.fleet_id()]));
        }
        let then = if room { Then::Reset } else { Then::Ask { all_told: true } };
        assert_eq!(came_while_alone(&mut scene), Some(then), "its packets are refused from here, and have no entry");
    }
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", true);
    scene.told(&flow);
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::NoStandby(vec![flow.fleet_id()]));
    scene.remote(Remote::Ended { owner: name("a"), id: flow.fleet_id() });
    assert_eq!(came_while_alone(&mut scene), Some(Then::Reset), "it has ended");
}

#[test]
fn settings_of_a_reload_count_from_the_next_move_on() {
    let mut scene = Scene::new();
    let (first, last) = (record(1, "10.0.0.7", false), record(2, "192.168.0.7", false));
    let changed = Settings { guard_ns: 7000 * MS, priority: vec!["192.168.0.0/16".parse().unwrap()], ..settings("b") };
    scene.machine.handle_settings(scene.now_ns, changed.clone());
    [&first, &last].into_iter().for_each(|record| scene.told(record));
    scene.take();
    scene.addresses(&["10.0.0.22", VIP]);
    let guard_until_ns = scene.now_ns + 7000 * MS;
    assert_eq!(rule(&scene.take()).map(|rule| rule.guard_until_ns), Some(guard_until_ns));
    scene.liveness(Liveness::Dead);
    let (_, ends) = challenged(&scene.take()).expect("they are told");
    assert_eq!(ends.first().map(|challenge| challenge.to), Some(last.client.socket_addr()), "by the new priority");

    let mut scene = Scene::new();
    scene.machine.handle_settings(scene.now_ns, Settings { challenge: false, ..changed });
    scene.told(&first);
    scene.addresses(&["10.0.0.22", VIP]);
    scene.liveness(Liveness::Dead);
    assert_eq!(challenged(&scene.take()), None);
}

/// Regression: "carries on 24 flows" was told of flows that the workers refused, because a reload had removed their frontend.
#[test]
fn flows_of_a_dead_peer_whose_frontend_a_reload_removed_are_told_as_reset() {
    let outcome = |backend_key: u64| {
        let mut scene = Scene::new();
        scene.told(&record(1, "10.0.1.7", true));
        let other = vec![VipAddr::new((ip(VIP), 7443).into())];
        let backend_keys = HashSet::from([backend_key]);
        let changed = Settings { vips: other.clone(), listens: other, backend_keys, ..settings("b") };
        scene.machine.handle_settings(scene.now_ns, changed);
        let unserved = unserved(&scene.machine).get(&name("a")).copied();
        scene.addresses(&["10.0.0.22", VIP]);
        scene.take();
        scene.liveness(Liveness::Dead);
        let notes = scene.take().into_iter().filter_map(|it| match it {
            Action::Note(Note::FailedOver { inherited, reset, .. }) => Some((inherited, reset)),
            _ => None,
        });
        (unserved, notes.collect::<Vec<_>>())
    };
    assert_eq!(outcome(2), (Some(1), vec![(0, 1)]));
    assert_eq!(outcome(1), (None, vec![(1, 0)]), "its backend is still there, at another frontend's address");
}

/// Regression: packets of a connect storm were dropped while the guard ran for a VIP that had just come. A handshake of
/// which its owner has not told yet still belongs to its owner.
#[test]
fn unknown_packets_of_an_address_go_to_its_last_owner_for_moments_after_it_has_come() {
    let mut scene = Scene::new();
    let forwarded_to = |machine: &Failover| {
        let mut port_ranges = machine.port_ranges.shown().iter().filter(|port_range| port_range.ports.contains(6443));
        port_ranges.next().map(|port_range| port_range.at.clone())
    };
    assert_eq!(forwarded_to(&scene.machine), Some(vec![ip("10.0.0.21")]), "the address is there");
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21")] });
    assert_eq!(forwarded_to(&scene.machine), Some(vec![ip("10.0.0.21")]), "it is on its way");
    scene.addresses(&["10.0.0.22", VIP]);
    assert_eq!(forwarded_to(&scene.machine), Some(vec![ip("10.0.0.21")]), "it has just come");
    scene.pass(5001);
    assert_eq!(forwarded_to(&scene.machine), None, "it is here");
    // A dead peer gets no packets.
    let mut scene = Scene::new();
    scene.addresses(&["10.0.0.22", VIP]);
    scene.liveness(Liveness::Dead);
    assert_eq!(forwarded_to(&scene.machine), None);
    // If two instances have the address, the owner is unknown.
    let mut scene = Scene::new();
    scene.remote(Remote::Liveness { owner: name("c"), liveness: Liveness::Alive });
    scene.remote(Remote::Addresses { owner: name("c"), vips: vec![ip(VIP)] });
    assert_eq!(forwarded_to(&scene.machine), None);
}

#[test]
fn clients_of_an_owner_that_came_back_before_their_address_are_told() {
    let mut scene = Scene::new();
    let (dead, again) = (record(1, "10.0.1.7", false), record(2, "10.0.1.8", false));
    scene.told(&dead);
    scene.told(&again);
    scene.remote(Remote::Addresses { owner: name("a"), vips: Vec::new() });
    scene.liveness(Liveness::Dead);
    scene.liveness(Liveness::Alive);
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(2), slot: 0 });
    scene.told(&again);
    scene.remote(Remote::Synced { owner: name("a") });
    scene.take();
    scene.addresses(&["10.0.0.22", VIP]);
    let all = scene.take();
    place(&all, |action| *action == Action::Standby(StandbyRequest::Refuse(dead.ends.keys().to_vec())));
    place(
        &all,
        |action| matches!(action, Action::Challenge { ends, .. } if ends[0].to == dead.ends.client.socket_addr()),
    );
    assert!(!all.contains(&Action::Standby(StandbyRequest::Refuse(again.ends.keys().to_vec()))));
}

/// The peer that should have inherited these flows may have been evacuated, and have had no reason to.
#[test]
fn clients_of_offloaded_flows_that_nobody_inherited_before_their_owner_came_back_are_told() {
    let mut scene = Scene::new();
    let heir = name("aa");
    scene.remote(Remote::Joined { owner: heir.clone(), link: ip("10.0.0.23") });
    scene.remote(Remote::Liveness { owner: heir.clone(), liveness: Liveness::Alive });
    let (dead, inherited) = (record(1, "10.0.1.7", true), record(2, "10.0.1.8", true));
    scene.told(&dead);
    scene.told(&inherited);
    scene.remote(Remote::Addresses { owner: name("a"), vips: Vec::new() });
    scene.liveness(Liveness::Dead);
    assert!(refused(&scene.take()).is_empty(), "the heir may carry them on");
    scene.liveness(Liveness::Alive);
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(2), slot: 0 });
    scene.remote(Remote::Synced { owner: name("a") });
    scene.remote(Remote::Flow { owner: heir, record: Box::new(inherited.clone()) });
    scene.take();
    scene.addresses(&["10.0.0.22", VIP]);
    let all = scene.take();
    assert!(is_reset(&all, &dead), "{all:?}");
    assert!(!refused(&all).contains(&inherited.ends.key(FlowDirection::ToBackend)), "it goes on: {all:?}");
}

/// A client whose answer went to the dead host was not told, and in FIN_WAIT2 it sends nothing by itself.
#[test]
fn clients_of_an_owner_that_came_back_while_they_were_told_are_told() {
    let mut scene = Scene::new();
    scene.addresses(&["10.0.0.22", VIP]);
    let (dead, again) = (record(1, "10.0.1.7", false), record(2, "10.0.1.8", false));
    [&dead, &again].into_iter().for_each(|record| scene.told(record));
    scene.liveness(Liveness::Dead);
    assert!(challenged(&scene.take()).is_some());
    scene.liveness(Liveness::Alive);
    scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(2), slot: 0 });
    scene.told(&again);
    scene.take();
    scene.remote(Remote::Synced { owner: name("a") });
    let all = scene.take();
    place(&all, |action| *action == Action::Standby(StandbyRequest::Refuse(dead.ends.keys().to_vec())));
    let to: Vec<_> = challenged(&all).into_iter().flat_map(|(_, ends)| ends).map(|end| end.to).collect();
    assert!(to.contains(&dead.ends.client.socket_addr()) && !to.contains(&again.ends.client.socket_addr()), "{to:?}");
}

/// Their records were on their way when this instance took their owner for dead.
#[test]
fn clients_of_flows_that_are_told_of_after_their_owner_counts_as_dead_are_told() {
    let mut scene = Scene::new();
    let [away, here, beside] = [1, 2, 3].map(|number| record(number, "10.0.1.7", false));
    let offloaded = record(4, "10.0.1.8", true);
    scene.liveness(Liveness::Dead);
    scene.told(&away);
    scene.pass(0);
    let all = scene.take();
    assert!(refused(&all).contains(&away.ends.key(FlowDirection::ToBackend)) && challenged(&all).is_none());
    scene.addresses(&["10.0.0.22", VIP]);
    assert!(challenged(&scene.take()).is_some_and(|(_, ends)| ends[0].to == away.ends.client.socket_addr()));
    [&here, &beside].into_iter().for_each(|record| scene.told(record));
    scene.pass(0);
    let all = scene.take();
    assert!(is_reset(&all, &here) && is_reset(&all, &beside));
    assert_eq!(all.iter().filter(|action| matches!(action, Action::Challenge { .. })).count(), 1, "in one round");
    scene.told(&offloaded);
    scene.pass(0);
    let all = scene.take();
    let hold = place(&all, |action| *action == Action::Standby(StandbyRequest::Hold(Box::new(offloaded.clone()))));
    let inherit = place(&all, |action| *action == Action::Standby(StandbyRequest::Inherit(vec![offloaded.fleet_id()])));
    assert!(hold < inherit, "as all others of that owner: {all:?}");
}

#[test]
fn ports_of_a_peer_that_was_never_heard_are_not_the_kernels() {
    let scene = Scene::new();
    let ports = [0, 1, 2, 7].map(|slot| crate::model::fleet::port_range(32768..=60999, slot).unwrap().first);
    for port in ports {
        assert!(scene.machine.port_ranges.shown().iter().any(|port_range| port_range.ports.contains(port)), "{port}");
    }
}

#[test]
fn packets_that_were_sent_on_to_a_peer_are_not_sent_there_once_it_is_dead() {
    let mut scene = Scene::new();
    scene.liveness(Liveness::Unlinked);
    let flow = record(1, "10.0.1.7", false);
    scene.packet(&flow);
    scene.remote(Remote::Answer { ends: Asked::up(&flow.ends), said: Said::Unknown });
    let keys = vec![flow.ends.key(FlowDirection::ToBackend)];
    let forward = StandbyRequest::ForwardKeys { keys: keys.clone(), to: ip("10.0.0.21") };
    place(&scene.take(), |action| *action == Action::Standby(forward.clone()));
    scene.liveness(Liveness::Dead);
    place(&scene.take(), |action| *action == Action::Standby(StandbyRequest::Forget(keys.clone())));
}

#[test]
fn what_a_full_map_still_forwards_of_a_flow_it_could_not_hold_ends_with_the_flow() {
    let mut scene = Scene::new();
    let (flow, offloaded) = (record(1, "10.0.1.7", false), record(1, "10.0.1.7", true));
    scene.told(&flow);
    scene.told(&offloaded);
    scene.machine.handle_standby(scene.now_ns, StandbyAnswer::NoStandby(vec![flow.fleet_id()]));
    scene.take();
    scene.remote(Remote::Ended { owner: name("a"), id: flow.fleet_id() });
    place(&scene.take(), |action| *action == Action::Standby(StandbyRequest::Forget(flow.ends.keys().to_vec())));
}

#[test]
fn packets_that_come_back_from_one_unlinked_peer_are_tried_at_the_next() {
    let mut scene = Scene::new();
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21")] });
    scene.liveness(Liveness::Unlinked);
    scene.remote(Remote::Liveness { owner: name("c"), liveness: Liveness::Unlinked });
    let flow = record(1, "10.0.1.7", false);
    scene.packet(&flow);
    scene.remote(Remote::Answer { ends: Asked::up(&flow.ends), said: Said::Unknown });
    let forward = |to| {
        Action::Standby(StandbyRequest::ForwardKeys { keys: vec![flow.ends.key(FlowDirection::ToBackend)], to: ip(to) })
    };
    place(&scene.take(), |action| *action == forward("10.0.0.21"));
    scene.pass(1001);
    scene.packet(&flow);
    place(&scene.take(), |action| *action == forward("10.0.0.23"));
    scene.pass(1001);
    scene.packet(&flow);
    place(&scene.take(), |action| matches!(action, Action::Answer(_)));
}

#[test]
fn who_answers_while_a_vip_comes_and_the_map_is_full_is_told_at_once() {
    let mut scene = Scene::new();
    let flow = record(1, "10.0.1.7", false);
    scene.told(&flow);
    scene.liveness(Liveness::Dead);
    scene.take();
    scene.addresses(&["10.0.0.22", VIP]);
    let asks = |action: &Action| {
        matches!(action, Action::Standby(StandbyRequest::Unknown { vip, unknown: Some(it) })
            if vip.port() == 6443 && matches!(it.then, Then::Ask { .. }) && it.guard_until_ns > 0)
    };
    place(&scene.take(), asks);
}

/// Regression: a watch got one beat and then none. It had begun at an instance that this one took for dead, and this
/// one answered its backend with RST.
#[test]
fn ports_of_an_instance_that_has_only_fallen_silent_stay_its_own_behind_a_router() {
    let owner = |scene: &Scene| {
        let mut port_ranges =
            scene.machine.port_ranges.shown().iter().filter(|port_range| port_range.ports.contains(33_000));
        port_ranges.next().map(|port_range| port_range.at.clone())
    };
    let mut scene = Scene::new();
    scene.addresses(&["10.0.0.22", VIP]);
    // It answers, so the address has not come because of its death.
    scene.liveness(Liveness::Alive);
    for liveness in [Liveness::Silent, Liveness::Dead, Liveness::Unlinked, Liveness::Left(Farewell::Succeeded)] {
        scene.liveness(liveness);
        assert_eq!(owner(&scene), Some(vec![ip("10.0.0.21")]), "{liveness:?}");
    }
    scene.liveness(Liveness::Left(Farewell::Stopped));
    assert_eq!(owner(&scene), Some(Vec::new()), "it has said that it stops");
    // Another address that comes here because of the silence proves nothing about the address that both have.
    const OTHER: &str = "10.0.0.101";
    let vips = [VIP, OTHER].map(|vip| VipAddr::new((ip(vip), 6443).into()));
    let mut scene = Scene::with(Settings { vips: vips.to_vec(), ..settings("b") });
    scene.remote(Remote::Addresses { owner: name("a"), vips: ["10.0.0.21", VIP, OTHER].map(ip).to_vec() });
    scene.addresses(&["10.0.0.22", VIP]);
    scene.liveness(Liveness::Alive);
    scene.liveness(Liveness::Silent);
    scene.addresses(&["10.0.0.22", VIP, OTHER]);
    assert_eq!(owner(&scene), Some(vec![ip("10.0.0.21")]), "two addresses");
    // An address that only one host has at a time has left a dead one.
    let mut scene = Scene::new();
    scene.liveness(Liveness::Silent);
    scene.addresses(&["10.0.0.22", VIP]);
    assert_eq!(owner(&scene), Some(Vec::new()));
    scene.liveness(Liveness::Dead);
    assert_eq!(owner(&scene), Some(Vec::new()));
}

/// Regression: clients that only read waited for a keepalive of an owner to which nothing forwarded their packets.
#[test]
fn without_the_program_flows_of_a_living_owner_are_reset_once_their_address_is_here_alone() {
    for carries in [false, true] {
        let mut scene = Scene::with(Settings { carries, ..settings("b") });
        let all = [record(1, "10.0.1.7", true), record(2, "10.0.1.8", false)];
        all.iter().for_each(|record| scene.told(record));
        scene.addresses(&["10.0.0.22", VIP]);
        let stuck = |scene: &mut Scene| {
            let its = |action| {
                if let Action::Note(Note::Stuck { flows, unforwarded, .. }) = action {
                    Some((flows, unforwarded))
                } else {
                    None
                }
            };
            scene.take().into_iter().filter_map(its).collect::<Vec<_>>()
        };
        scene.liveness(Liveness::Alive);
        assert_eq!(stuck(&mut scene), [], "both have it: neighbours may still send to the owner");
        let owner_has = |scene: &mut Scene, all: &[&str]| {
            let vips = all.iter().map(|text| ip(text)).collect();
            scene.remote(Remote::Addresses { owner: name("a"), vips });
        };
        owner_has(&mut scene, &["10.0.0.21"]);
        scene.pass(1900);
        assert_eq!(stuck(&mut scene), [], "it may go back");
        scene.pass(200);
        assert_eq!(stuck(&mut scene), if carries { vec![] } else { vec![(2, true)] });
        owner_has(&mut scene, &["10.0.0.21", "10.0.0.31"]);
        scene.pass(2100);
        assert_eq!(stuck(&mut scene), [], "once");
        // What it tells of after its link was away for a while.
        scene.remote(Remote::Begin { owner: name("a"), epoch: Epoch(1), slot: 0 });
        all.iter().chain([&record(3, "10.0.1.9", false)]).for_each(|record| scene.told(record));
        scene.remote(Remote::Synced { owner: name("a") });
        scene.pass(2100);
        let again = stuck(&mut scene);
        assert_eq!(again.is_empty(), carries, "{again:?}");
    }
    // It has gone back meanwhile.
    let mut scene = Scene::with(Settings { carries: false, ..settings("b") });
    scene.told(&record(1, "10.0.1.7", false));
    scene.addresses(&["10.0.0.22", VIP]);
    scene.liveness(Liveness::Alive);
    scene.remote(Remote::Addresses { owner: name("a"), vips: vec![ip("10.0.0.21")] });
    scene.pass(1500);
    scene.addresses(&["10.0.0.22"]);
    scene.take();
    scene.pass(1000);
    assert_eq!(scene.take(), []);
}

#[test]
fn ends_of_quiet_flows_are_asked_when_one_behind_the_same_router_is_cut_off_and_when_it_is_heard_again() {
    let asks = |scene: &mut Scene| scene.take().contains(&Action::Standby(StandbyRequest::AskEnds));
    let mut scene = Scene::new();
    scene.addresses(&["10.0.0.22", VIP]);
    scene.liveness(Liveness::Alive);
    scene.liveness(Liveness::Silent);
    assert!(!asks(&mut scene), "it may only be slow");
    for (liveness, asked) in [
        (Liveness::Dead, true),
        (Liveness::Alive, true),
        (Liveness::Unlinked, true),
        (Liveness::Alive, true),
        (Liveness::Alive, false),
    ] {
        scene.liveness(liveness);
        assert_eq!(asks(&mut scene), asked, "{liveness:?}");
    }
    // If only one instance has the address, no flow's packets reach two.
    let mut scene = Scene::new();
    scene.liveness(Liveness::Dead);
    assert!(!asks(&mut scene));
}

/// One cause of two entries that stayed in the map of an idle host.
#[test]
fn a_flow_that_was_released_before_anybody_could_say_its_ends_is_not_held_for_ever() {
    let mut scene = Scene::new();
    let id = record(1, "10.0.1.7", true).fleet_id();
    let drop = Action::Standby(StandbyRequest::Drop(vec![id]));
    scene.remote(Remote::Claimed { by: name("a"), flows: vec![(id, None)] });
    assert!(scene.take().contains(&Action::Standby(StandbyRequest::Release(vec![id]))));
    // It ended there before any record named it.
    scene.remote(Remote::Ended { owner: name("a"), id });
    assert_eq!(scene.take(), [drop]);
}

#[test]
fn what_is_kept_though_nobody_lists_it_goes_and_nothing_else_does() {
    let mut scene = Scene::new();
    scene.remote(Remote::Begin { owner: name("c"), epoch: Epoch(1), slot: 2 });
    scene.remote(Remote::Synced { owner: name("c") });
    let [held, forwarded, ended] = [(1, true), (2, false), (3, false)].map(|(n, is)| record(n, "10.0.1.7", is));
    [&held, &forwarded, &ended].into_iter().for_each(|flow| scene.told(flow));
    let lost = record(4, "10.0.1.7", true);
    let keeps = StandbyAnswer::Keeps {
        flows: vec![held.fleet_id(), lost.fleet_id()],
        keys: [&forwarded, &ended, &lost].into_iter().flat_map(|flow| flow.ends.keys()).collect(),
    };
    scene.machine.handle_standby(scene.now_ns, keeps.clone());
    scene.pass(70_000);
    scene.machine.handle_standby(scene.now_ns, keeps.clone());
    let gone = |actions: Vec<Action>| {
        let its =
            |action: &Action| matches!(action, Action::Standby(StandbyRequest::Drop(_) | StandbyRequest::Forget(_)));
        actions.into_iter().filter(its).collect::<Vec<_>>()
    };
    assert_eq!(gone(scene.take()), [], "what an earlier process left is not listed yet");
    scene.machine.handle_ready();
    scene.take();
    // Those of a flow that has just ended stay for a while.
    scene.machine.handle_standby(scene.now_ns, keeps.clone());
    scene.remote(Remote::Ended { owner: name("a"), id: ended.fleet_id() });
    scene.pass(4000);
    scene.machine.handle_standby(scene.now_ns, keeps.clone());
    assert_eq!(gone(scene.take()), []);
    scene.pass(57_000);
    assert_eq!(gone(scene.take()), [Action::Standby(StandbyRequest::Forget(ended.ends.keys().to_vec()))]);
    scene.machine.handle_standby(scene.now_ns, keeps);
    let all = [StandbyRequest::Drop(vec![lost.fleet_id()]), StandbyRequest::Forget(lost.ends.keys().to_vec())];
    assert_eq!(gone(scene.take()), all.map(Action::Standby));
}
