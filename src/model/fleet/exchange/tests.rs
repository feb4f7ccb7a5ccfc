//! Two or three exchanges that send their messages to each other at once.

mod saved;
mod summaries;

use super::*;
use crate::model::fleet::testing::{passage, record};
use crate::model::fleet::{Abandoned, Change, FlowRecord, Keeping, port_range};
use crate::model::fleet::{Beat, BeatTo};
use crate::model::ids::FlowId;

const MS: u64 = 1_000_000;

fn name(text: &str) -> InstanceName {
    InstanceName(text.into())
}

/// Instances that all know each other, and the events of each one's failover.
struct Fleet {
    instances: Vec<Exchange>,
    told: Vec<Vec<Remote>>,
    now_ns: u64,
}

impl Fleet {
    fn of(names: &[&str]) -> Self {
        let member = |text: &&str| Member { name: name(text), address: "10.0.0.1:9471".parse().unwrap() };
        let members: Vec<_> = names.iter().map(member).collect();
        let exchange = |(slot, text): (usize, &&str)| {
            let own = Own {
                name: name(text),
                epoch: Epoch(1),
                slot: slot as u8,
                ports: port_range(32768..=60999, slot as u8),
                version: "1.2.3".to_owned(),
                sync_deadline_ns: 10_000 * MS,
                vips: vec!["10.0.0.100".parse().unwrap()],
                beat_secret: BeatSecret([slot as u8; 32]),
            };
            let mut exchange = Exchange::new(own, &members, MS);
            exchange.set_whole();
            exchange
        };
        let instances: Vec<_> = names.iter().enumerate().map(exchange).collect();
        let told = instances.iter().map(|_| Vec::new()).collect();
        Self { instances, told, now_ns: MS }
    }

    fn link(&mut self, one: usize, other: usize) {
        let (first, second) = (self.instances[one].hello(), self.instances[other].hello());
        self.instances[other].handle_link(&first, self.now_ns).unwrap();
        self.instances[one].handle_link(&second, self.now_ns).unwrap();
    }

    fn linked(names: &[&str]) -> Self {
        let mut fleet = Self::of(names);
        for one in 0..names.len() {
            (one + 1..names.len()).for_each(|other| fleet.link(one, other));
        }
        fleet.talk();
        fleet
    }

    /// Delivers messages until none is left.
    fn talk(&mut self) {
        let names: Vec<_> = self.instances.iter().map(|exchange| exchange.hello().name).collect();
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for from in 0..names.len() {
                for to in 0..names.len() {
                    while let Some(message) = self.instances[from].poll_message(&names[to], self.now_ns) {
                        self.instances[to].handle_message(&names[from], message, self.now_ns);
                        moved = true;
                    }
                }
                let exchange = &mut self.instances[from];
                self.told[from].extend(std::iter::from_fn(|| exchange.poll_remote()));
            }
        }
    }

    /// As [`Fleet::wait`], in the small steps of an instance that is never stopped.
    fn pass(&mut self, ms: u64) {
        (0..ms / 10).for_each(|_| self.wait(10));
        self.wait(ms % 10);
    }

    fn wait(&mut self, ms: u64) {
        self.now_ns += ms * MS;
        for (exchange, told) in self.instances.iter_mut().zip(&mut self.told) {
            exchange.handle_time(self.now_ns);
            told.extend(std::iter::from_fn(|| exchange.poll_remote()));
        }
    }

    fn establish(&mut self, at: usize, ids: impl IntoIterator<Item = u64>) {
        let locals = ids.into_iter().map(|id| Local::Begun(Box::new(record(id))));
        self.instances[at].handle_local(locals, self.now_ns);
    }

    fn view(&self, at: usize, of: &str) -> MemberView {
        self.instances[at].members(self.now_ns).into_iter().find(|view| *view.name.0 == *of).unwrap()
    }

    /// The flows of `owner` according to the events in `told`.
    fn flows(&self, at: usize, owner: &str) -> BTreeMap<FlowId, FlowRecord> {
        let mut flows = BTreeMap::new();
        for remote in &self.told[at] {
            match remote {
                Remote::Begin { owner: it, .. } if *it.0 == *owner => flows.clear(),
                Remote::Flow { owner: it, record } if *it.0 == *owner => {
                    drop(flows.insert(record.id, (**record).clone()))
                }
                Remote::Ended { owner: it, id } if *it.0 == *owner => drop(flows.remove(&id.flow)),
                _ => {}
            }
        }
        flows
    }
}

#[test]
fn a_joining_instance_is_told_every_flow_and_then_each_change() {
    let mut fleet = Fleet::of(&["a", "b"]);
    fleet.establish(0, 1..=1000);
    assert!(!fleet.instances[0].is_ready());
    fleet.link(0, 1);
    fleet.talk();
    assert!(fleet.instances.iter().all(Exchange::is_ready));
    assert_eq!(fleet.flows(1, "a").len(), 1000);
    fleet.establish(0, [2000]);
    fleet.instances[0].handle_local([Local::Ended(FlowId(7))], fleet.now_ns);
    fleet.instances[0].handle_local([Local::Offloaded { id: FlowId(9), passage: Box::new(passage(1)) }], fleet.now_ns);
    assert_eq!(fleet.view(0, "b").behind, 3);
    assert!(!fleet.instances[0].all_is_told());
    fleet.talk();
    assert!(fleet.instances[0].all_is_told());
    let known = fleet.flows(1, "a");
    assert_eq!((known.len(), known.contains_key(&FlowId(7))), (1000, false));
    assert_eq!(known[&FlowId(9)].keeping, Keeping::Passage(Box::new(passage(1))));
    let view = fleet.view(1, "a");
    assert_eq!((view.flows, view.offloaded, view.synced, view.behind), (1000, 1, true, 0));
}

#[test]
fn what_changes_while_a_snapshot_is_told_is_not_lost() {
    let mut fleet = Fleet::of(&["a", "b"]);
    fleet.establish(0, 1..=500);
    fleet.link(0, 1);
    let mut round = 0;
    while let Some(message) = fleet.instances[0].poll_message(&name("b"), fleet.now_ns) {
        fleet.instances[1].handle_message(&name("a"), message, fleet.now_ns);
        // Both after and before the position of the snapshot.
        if round < 5 {
            let ids = [Local::Ended(FlowId(round + 1)), Local::Ended(FlowId(500 - round))];
            fleet.instances[0].handle_local(ids, fleet.now_ns);
            fleet.establish(0, [1000 + round]);
        }
        round += 1;
    }
    fleet.talk();
    let mut expected: Vec<_> = (6..=495).chain(1000..1005).map(FlowId).collect();
    expected.sort();
    assert_eq!(fleet.flows(1, "a").into_keys().collect::<Vec<_>>(), expected);
    assert_eq!(fleet.view(1, "a").flows, 495);
}

#[test]
fn a_missing_change_has_everything_told_anew() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.establish(0, [1]);
    let lost = fleet.instances[0].poll_message(&name("b"), fleet.now_ns);
    assert!(matches!(lost, Some(Message::Changes { .. })), "{lost:?}");
    fleet.establish(0, [2]);
    fleet.talk();
    assert_eq!(fleet.flows(1, "a").len(), 2);
    assert_eq!((fleet.view(0, "b").resyncs, fleet.view(1, "a").synced), (1, true));
}

#[test]
fn a_peer_that_is_asked_to_names_all_its_flows_again() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.establish(0, [1, 2]);
    fleet.talk();
    fleet.told[1].clear();
    fleet.instances[1].handle_command(PeerCommand::AskAgain(name("a")), fleet.now_ns);
    assert!(!fleet.view(1, "a").synced);
    fleet.talk();
    assert_eq!((fleet.view(0, "b").resyncs, fleet.view(1, "a").synced), (1, true));
    assert_eq!(fleet.told[1].iter().filter(|remote| matches!(remote, Remote::Flow { .. })).count(), 2);
}

#[test]
fn a_peer_that_reads_too_slowly_is_told_anew_rather_than_waited_for() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.instances[0].mirror.log_max = 1000;
    for round in 0..6 {
        let ids = round * 600 + 1..=(round + 1) * 600;
        fleet.establish(0, ids.clone());
        fleet.instances[0].handle_local(ids.skip(10).map(|id| Local::Ended(FlowId(id))), fleet.now_ns);
    }
    fleet.talk();
    assert_eq!(fleet.flows(1, "a").len(), 60);
    assert_eq!(fleet.view(0, "b").resyncs, 1);
}

#[test]
fn liveness_goes_from_alive_over_silent_to_dead_and_back() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    for _ in 0..20 {
        fleet.wait(50);
        fleet.talk();
    }
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Alive);
    fleet.pass(249);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Alive);
    fleet.wait(1);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Silent);
    fleet.pass(750);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Dead);
    let dropped = fleet.instances[1].poll_drop();
    assert_eq!(dropped.map(|(peer, _)| peer), Some(name("a")));
    fleet.instances[1].handle_loss(&name("a"), "dead", fleet.now_ns);
    fleet.pass(5000);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Dead);
    fleet.link(0, 1);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Alive);
    let states: Vec<_> = fleet.told[1].iter().filter(|it| matches!(it, Remote::Liveness { .. })).collect();
    assert_eq!(states.len(), 3, "{states:?}");
}

#[test]
fn an_instance_that_was_stopped_does_not_take_the_others_for_dead() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    for _ in 0..20 {
        fleet.wait(10);
    }
    fleet.talk();
    // It is stopped for a minute; the others' messages meanwhile wait in its sockets.
    fleet.wait(60_000);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Alive);
    // A peer that is silent from then on counts as silent.
    for _ in 0..110 {
        fleet.wait(10);
    }
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Dead);
    let mut fleet = Fleet::linked(&["a", "b"]);
    for _ in 0..200 {
        fleet.instances[1].is_deaf(fleet.now_ns);
        fleet.now_ns += 10 * MS;
    }
    fleet.wait(10);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Alive);
}

#[test]
fn a_link_that_breaks_says_more_than_missing_beats() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.wait(10);
    fleet.instances[1].handle_loss(&name("a"), "it closed the connection", fleet.now_ns);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Silent);
    fleet.pass(989);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Silent);
    fleet.wait(1);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Dead);
}

/// Regression: on a busy host each instance told every few seconds that a link was down which was 20 ms late.
#[test]
fn a_link_that_is_late_while_beats_come_is_told_once_it_has_ended() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let told = |fleet: &mut Fleet| {
        let notices = std::iter::from_fn(|| fleet.instances[0].poll_notice());
        notices.filter(|it| matches!(it, Notice::Liveness { liveness: Liveness::Unlinked, .. })).count()
    };
    told(&mut fleet);
    fleet.beat(400, &[(0, 1), (1, 0)]);
    assert_eq!((fleet.view(0, "b").liveness, told(&mut fleet)), (Liveness::Unlinked, 0));
    fleet.instances[0].handle_loss(&name("b"), "nothing came", fleet.now_ns);
    assert_eq!((fleet.view(0, "b").liveness, told(&mut fleet)), (Liveness::Unlinked, 1));
}

/// Regression: a host that was cut off told two reasons by turns, an event a second, until nothing else was left in the list.
#[test]
fn each_reason_for_a_missing_link_is_told_once_until_there_is_one_again() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let told = |fleet: &mut Fleet| {
        let notices = std::iter::from_fn(|| fleet.instances[0].poll_notice());
        notices.filter(|it| matches!(it, Notice::Unreachable { .. })).count()
    };
    told(&mut fleet);
    fleet.instances[0].handle_loss(&name("b"), "nothing came", fleet.now_ns);
    for why in ["no route to host", "it is silent"].repeat(10) {
        fleet.instances[0].handle_failure(&name("b"), why);
        assert_eq!(fleet.view(0, "b").why_not.as_deref(), Some(why), "the status has the latest");
    }
    assert_eq!(told(&mut fleet), 2);
    (0..100).for_each(|number| fleet.instances[0].handle_failure(&name("b"), &format!("error {number}")));
    assert!(told(&mut fleet) < 10);
    fleet.link(0, 1);
    fleet.instances[0].handle_loss(&name("b"), "nothing came", fleet.now_ns);
    fleet.instances[0].handle_failure(&name("b"), "no route to host");
    assert_eq!(told(&mut fleet), 1, "after a link it is news again");
}

#[test]
fn whoever_says_goodbye_is_neither_silent_nor_dead() {
    for farewell in [Farewell::Stopped, Farewell::Succeeded] {
        let mut fleet = Fleet::linked(&["a", "b"]);
        fleet.instances[0].farewell(farewell);
        fleet.wait(50);
        fleet.talk();
        fleet.instances[1].handle_loss(&name("a"), "closed", fleet.now_ns);
        fleet.pass(4900);
        assert_eq!(fleet.view(1, "a").liveness, Liveness::Left(farewell));
        fleet.pass(200);
        let successor_is_late = farewell == Farewell::Succeeded;
        assert_eq!(fleet.view(1, "a").liveness == Liveness::Dead, successor_is_late);
    }
}

#[test]
fn readiness_waits_for_peers_that_can_be_reached_and_gives_up_others() {
    let mut fleet = Fleet::of(&["a", "b", "c"]);
    fleet.link(0, 1);
    fleet.talk();
    assert!(!fleet.instances[0].is_ready());
    fleet.pass(9_999);
    assert!(!fleet.instances[0].is_ready());
    fleet.wait(1);
    assert!(fleet.instances[0].is_ready());
    // The peer that was given up comes after all: no instance here has a VIP, so the others wait for it.
    fleet.link(0, 2);
    assert!(!fleet.instances[0].is_ready());
    fleet.talk();
    assert!(fleet.instances[0].is_ready());
}

/// Regression: after an outage the link stayed silent until TCP repeated something, or for a second, and neither instance heard of the other's
/// new flows: when one died just then, its clients that only read waited.
#[test]
fn a_link_that_stays_silent_when_beats_come_again_is_made_anew() {
    let beat = |number| Beat { number, heard: Vec::new(), vip: None };
    for (silent_ms, tcp_goes_on, is_dropped) in [(400, false, true), (400, true, false), (200, false, false)] {
        let mut fleet = Fleet::linked(&["a", "b"]);
        fleet.instances[0].handle_beat(&name("b"), beat(1), fleet.now_ns);
        fleet.pass(silent_ms);
        fleet.instances[0].handle_beat(&name("b"), beat(2), fleet.now_ns);
        fleet.pass(50);
        assert!(fleet.instances[0].poll_drop().is_none(), "what the kernel has is on its way");
        if tcp_goes_on {
            fleet.instances[0].handle_message(&name("b"), Message::Beat { number: 9, echo: false }, fleet.now_ns);
        }
        fleet.instances[0].handle_beat(&name("b"), beat(3), fleet.now_ns);
        fleet.pass(60);
        assert_eq!(fleet.instances[0].poll_drop().is_some(), is_dropped, "{silent_ms} ms, {tcp_goes_on}");
    }
}

/// Regression: a VIP's owner died before an instance that had just begun had heard it, and nobody had the VIP for ten seconds.
#[test]
fn who_moves_the_vip_itself_waits_a_second_for_a_peer_that_nobody_hears() {
    let standing = VipStanding { addresses: 7, ..VipStanding::default() };
    for moves_vip in [false, true] {
        let mut fleet = Fleet::of(&["a", "b"]);
        if moves_vip {
            fleet.instances[0].set_vip(standing, fleet.now_ns);
        }
        fleet.pass(900);
        assert!(!fleet.instances[0].is_ready(), "its link may be on its way");
        fleet.pass(200);
        assert_eq!(fleet.instances[0].is_ready(), moves_vip);
    }
    // One that has a link tells its flows.
    let mut fleet = Fleet::of(&["a", "b"]);
    fleet.instances[0].set_vip(standing, fleet.now_ns);
    fleet.link(0, 1);
    for _ in 0..30 {
        fleet.pass(100);
        assert!(!fleet.instances[0].is_ready());
        fleet.instances[0].handle_message(&name("b"), Message::Beat { number: 1, echo: false }, fleet.now_ns);
    }
    // It dies meanwhile.
    fleet.instances[0].handle_loss(&name("b"), "reset", fleet.now_ns);
    fleet.pass(900);
    assert!(!fleet.instances[0].is_ready(), "it may come back");
    fleet.pass(200);
    assert!(fleet.instances[0].is_ready());
}

#[test]
fn an_instance_stays_ready_when_a_reload_adds_a_member_that_is_not_there_yet() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let member = |text| Member { name: name(text), address: "10.0.0.1:9471".parse().unwrap() };
    fleet.instances[0].set_members(&[member("b"), member("c")], fleet.now_ns);
    assert!(fleet.instances[0].is_ready() && fleet.view(0, "c").liveness == Liveness::Unheard);
    // A new instance is not ready before it knows the flows of all, whichever file names them.
    let mut begins = Fleet::of(&["a", "b"]);
    begins.instances[0].set_members(&[member("c")], begins.now_ns);
    assert!(!begins.instances[0].is_ready());
}

#[test]
fn an_instance_with_the_vip_stays_ready_when_a_dead_one_returns() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.instances[0].handle_command(
        PeerCommand::Addresses(vec!["10.0.0.21".parse().unwrap(), "10.0.0.100".parse().unwrap()]),
        fleet.now_ns,
    );
    fleet.pass(2000);
    for (at, peer) in [(0, "b"), (1, "a")] {
        fleet.instances[at].handle_loss(&name(peer), "dead", fleet.now_ns);
    }
    fleet.pass(2000);
    fleet.link(0, 1);
    assert_eq!(fleet.instances.iter().map(Exchange::is_ready).collect::<Vec<_>>(), [true, false]);
    fleet.talk();
    assert!(fleet.instances[1].is_ready());
    assert_eq!(fleet.view(1, "a").vips, ["10.0.0.100".parse::<IpAddr>().unwrap()]);
}

#[test]
fn a_link_is_refused_for_what_would_mix_flows_up() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let now_ns = fleet.now_ns;
    let b = fleet.instances[1].hello();
    let refused = |exchange: &mut Exchange, hello: Hello| exchange.handle_link(&hello, now_ns).unwrap_err();
    let a = &mut fleet.instances[0];
    assert!(refused(a, Hello { name: name("a"), ..b.clone() }).contains("instance.name must differ"));
    assert!(refused(a, Hello { name: name("x"), ..b.clone() }).contains("does not know the peer x"));
    assert!(refused(a, Hello { slot: 0, ..b.clone() }).contains("slot 0"));
    assert!(refused(a, Hello { epoch: Epoch(0), ..b.clone() }).contains("a later process"));
    // The clock of its host was set back; the process with the later epoch is gone.
    a.handle_loss(&name("b"), "gone", now_ns);
    a.handle_link(&Hello { epoch: Epoch(0), ..b }, now_ns).unwrap();
}

#[test]
fn a_question_is_answered_by_the_owner_by_the_kernel_or_by_the_deadline() {
    let mut fleet = Fleet::linked(&["a", "b", "c"]);
    fleet.establish(2, [5]);
    let asked = Asked::up(&record(5).ends);
    fleet.instances[0].handle_command(PeerCommand::Ask(asked), fleet.now_ns);
    fleet.talk();
    assert!(
        fleet.told[0].contains(&Remote::Answer { ends: asked, said: Said::Known(name("c")) }),
        "{:?}",
        fleet.told[0]
    );
    assert_eq!(fleet.instances[1].poll_query().map(|query| query.packet), Some(asked));
    // The kernel may know a packet that no record names.
    let unknown = Asked::up(&record(6).ends);
    fleet.told[0].clear();
    fleet.instances[0].handle_command(PeerCommand::Ask(unknown), fleet.now_ns);
    fleet.talk();
    let query = fleet.instances[1].poll_query().unwrap();
    assert_eq!(query.packet, unknown);
    fleet.instances[1].handle_known(&query, false);
    fleet.talk();
    assert!(fleet.told[0].is_empty(), "{:?}", fleet.told[0]);
    fleet.pass(300);
    // The other has not answered, and is silent by now: it may know the packet.
    let nothing = Remote::Answer { ends: unknown, said: Said::Nothing };
    assert!(fleet.told[0].contains(&nothing), "{:?}", fleet.told[0]);
    fleet.told[0].clear();
    fleet.instances[0].handle_command(PeerCommand::Ask(unknown), fleet.now_ns);
    fleet.wait(0);
    assert!(fleet.told[0].contains(&nothing), "{:?}", fleet.told[0]);
    fleet.pass(ASK_WITHIN_NS / MS + 10);
    fleet.instances[0].handle_command(PeerCommand::Ask(unknown), fleet.now_ns);
    fleet.wait(0);
    let last = fleet.told[0].last();
    assert_eq!(last, Some(&Remote::Answer { ends: unknown, said: Said::Unknown }), "both are dead");
    // There is no peer to ask.
    let mut alone = Fleet::of(&["a", "b"]);
    alone.instances[0].handle_command(PeerCommand::Ask(unknown), alone.now_ns);
    alone.wait(0);
    assert_eq!(alone.told[0].last(), Some(&Remote::Answer { ends: unknown, said: Said::Unknown }));
}

#[test]
fn whoever_answers_a_ping_is_told_of() {
    let mut fleet = Fleet::linked(&["a", "b", "c"]);
    fleet.told[0].clear();
    fleet.instances[0].handle_command(PeerCommand::Ping, fleet.now_ns);
    fleet.talk();
    let alive = |peer: &str| Remote::Liveness { owner: name(peer), liveness: Liveness::Alive };
    assert_eq!(fleet.told[0], [alive("b"), alive("c")]);
}

#[test]
fn a_claim_comes_to_the_former_owner() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let flows: Vec<_> = (1..=3000).map(|id| record(id).fleet_id()).collect();
    fleet.instances[0].handle_command(PeerCommand::Claim { owner: name("b"), flows: flows.clone() }, fleet.now_ns);
    fleet.talk();
    let mut claimed = Vec::new();
    for remote in &fleet.told[1] {
        if let Remote::Claimed { by, flows } = remote {
            assert_eq!(*by, name("a"));
            claimed.extend(flows.iter().copied());
        }
    }
    // It has not told of these flows, and cannot say where their packets go.
    assert_eq!(claimed, flows.iter().map(|id| (*id, None)).collect::<Vec<_>>());
}

/// Regression: two instances gave a flow to each other again and again, because the one that had claimed an ended flow
/// did not report its end.
#[test]
fn the_former_owner_hears_of_the_end_of_a_claimed_flow_after_the_claim_though_it_was_told_of_nothing_else() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let flow = record(1).fleet_id();
    fleet.instances[0].handle_command(PeerCommand::Claim { owner: name("b"), flows: vec![flow] }, fleet.now_ns);
    fleet.instances[0].handle_local([Local::Begun(Box::new(record(1))), Local::Ended(FlowId(1))], fleet.now_ns);
    fleet.talk();
    let place = |what: &dyn Fn(&Remote) -> bool| fleet.told[1].iter().position(what);
    let claimed = place(&|remote| matches!(remote, Remote::Claimed { .. }));
    let ended = place(&|remote| matches!(remote, Remote::Ended { id, .. } if *id == flow));
    assert!(claimed.is_some() && claimed < ended, "{claimed:?}, {ended:?}");
}

#[test]
fn a_peer_that_tells_nonsense_is_dropped() {
    let nonsense = [
        Message::Ack { next: 1 },
        Message::Records(vec![record(1); 65]),
        Message::Changes { first: 0, changes: vec![Change::Ended(record(1).fleet_id()); 65] },
        Message::Claim(vec![record(1).fleet_id(); 1025]),
        Message::Refuse("no".to_owned()),
    ];
    for message in nonsense {
        let mut fleet = Fleet::linked(&["a", "b"]);
        fleet.instances[0].handle_message(&name("b"), message.clone(), fleet.now_ns);
        assert!(fleet.instances[0].poll_drop().is_some(), "{message:?}");
    }
}

#[test]
fn a_peer_that_leaves_the_configuration_takes_its_flows_along() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.establish(1, [1, 2]);
    fleet.talk();
    assert_eq!(fleet.flows(0, "b").len(), 2);
    fleet.instances[0].set_members(&[], fleet.now_ns);
    fleet.talk();
    assert!(fleet.flows(0, "b").is_empty() && fleet.instances[0].is_ready());
    assert!(fleet.instances[0].poll_drop().is_some());
}

impl Fleet {
    /// Time in which nothing comes on any link, and beats come by these ways: sender, receiver.
    fn beat(&mut self, ms: u64, ways: &[(usize, usize)]) {
        for _ in 0..ms / 10 {
            self.wait(10);
            for from in 0..self.instances.len() {
                let own = self.instances[from].hello().name;
                let Some(BeatTo { beat, .. }) = self.instances[from].poll_beat(self.now_ns) else { continue };
                for (_, to) in ways.iter().filter(|(it, _)| *it == from) {
                    assert!(self.instances[*to].beat_keys().any(|(name, _)| *name == own), "it could be opened");
                    self.instances[*to].handle_beat(&own, beat.clone(), self.now_ns);
                }
            }
        }
    }
}

#[test]
fn a_peer_whose_link_is_cut_lives_as_long_as_its_beats_come_and_dies_as_soon_as_ever_without() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    fleet.beat(100, &[(0, 1), (1, 0)]);
    for at in [0, 1] {
        let other = name(["b", "a"][at]);
        fleet.instances[at].handle_loss(&other, "cut", fleet.now_ns);
    }
    // One hears the other, but not the reverse.
    fleet.beat(5000, &[(1, 0)]);
    assert_eq!((fleet.view(0, "b").liveness, fleet.view(1, "a").liveness), (Liveness::Unlinked, Liveness::Dead));
    fleet.beat(300, &[]);
    assert_eq!(fleet.view(0, "b").liveness, Liveness::Silent);
    fleet.beat(700, &[]);
    assert_eq!(fleet.view(0, "b").liveness, Liveness::Dead);
    fleet.link(0, 1);
    fleet.talk();
    assert_eq!((fleet.view(0, "b").liveness, fleet.view(1, "a").liveness), (Liveness::Alive, Liveness::Alive));
}

#[test]
fn a_peer_that_only_a_third_hears_lives_until_that_does_not_hear_it_either() {
    let mut fleet = Fleet::linked(&["a", "b", "c"]);
    let ways = [(1, 2), (2, 1), (0, 2), (2, 0)];
    fleet.beat(2000, &ways);
    assert_eq!(fleet.view(0, "b").liveness, Liveness::Unlinked);
    assert_eq!(fleet.view(1, "a").liveness, Liveness::Unlinked);
    // A third peer's word does not keep it alive for ever: that peer reports only what it has heard itself.
    fleet.beat(1100, &[(0, 2), (2, 0)]);
    assert_eq!((fleet.view(0, "b").liveness, fleet.view(0, "c").liveness), (Liveness::Dead, Liveness::Unlinked));
}

#[test]
fn beats_that_come_again_and_those_of_an_earlier_process_keep_nobody_alive() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let BeatTo { beat, .. } = fleet.instances[1].poll_beat(fleet.now_ns).unwrap();
    for _ in 0..30 {
        fleet.instances[0].handle_beat(&name("b"), beat.clone(), fleet.now_ns);
        fleet.wait(50);
    }
    assert_eq!(fleet.view(0, "b").liveness, Liveness::Dead);
    let hello = Hello { epoch: Epoch(2), ..fleet.instances[1].hello() };
    fleet.instances[0].handle_link(&hello, fleet.now_ns).unwrap();
    assert_eq!(fleet.instances[0].beat_keys().count(), 0, "the next process has a secret of its own");
}

#[test]
fn who_may_not_have_heard_of_its_end_is_told_of_to_a_peer_that_was_not_linked_then() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let one = |port| Abandoned {
        from: "10.0.0.100:6443".parse().unwrap(),
        to: ([10, 0, 0, 9], port).into(),
        seqs: [1, 2],
        ack: 3,
    };
    let heard = |fleet: &mut Fleet| {
        fleet.talk();
        let told = std::mem::take(&mut fleet.told[1]).into_iter();
        told.filter_map(|remote| if let Remote::Untold(all) = remote { Some(all) } else { None })
            .flatten()
            .collect::<Vec<_>>()
    };
    fleet.instances[0].handle_command(PeerCommand::Untold(vec![one(1)]), fleet.now_ns);
    assert_eq!(heard(&mut fleet), [one(1)]);
    for (at, of) in [(0, "b"), (1, "a")] {
        fleet.instances[at].handle_loss(&name(of), "it was cut", fleet.now_ns);
    }
    fleet.instances[0].handle_command(PeerCommand::Untold(vec![one(2)]), fleet.now_ns);
    assert_eq!(heard(&mut fleet), []);
    fleet.link(0, 1);
    assert_eq!(heard(&mut fleet), [one(1), one(2)]);
}

/// Found as a holder that gave the VIP up to a peer that had just been restarted and had lost it long ago.
#[test]
fn a_new_process_of_a_peer_has_no_vip_before_it_says_so() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let vip: [IpAddr; 1] = ["10.0.0.100".parse().unwrap()];
    let seen = |fleet: &Fleet| fleet.instances[0].vip_peers(&vip, fleet.now_ns).remove(0);
    fleet.instances[1].handle_command(PeerCommand::Addresses(vip.to_vec()), fleet.now_ns);
    fleet.talk();
    assert_eq!((seen(&fleet).has_address, seen(&fleet).standing), (true, None));
    let standing = VipStanding { claim: 7, ..VipStanding::default() };
    fleet.instances[1].set_vip(standing, fleet.now_ns);
    fleet.talk();
    assert_eq!(seen(&fleet).standing, Some(standing));
    fleet.instances[0].handle_loss(&name("b"), "it was killed", fleet.now_ns);
    assert_eq!((seen(&fleet).has_address, seen(&fleet).standing), (true, Some(standing)), "only the link is gone");
    let hello = Hello { epoch: Epoch(2), ..fleet.instances[1].hello() };
    fleet.instances[0].handle_link(&hello, fleet.now_ns).unwrap();
    assert_eq!((seen(&fleet).has_address, seen(&fleet).standing), (false, None));
}

#[test]
fn a_peer_s_offloaded_flows_to_this_host_are_counted() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let here = |fleet: &Fleet| fleet.instances[0].vip_peers(&[], fleet.now_ns).remove(0).flows_here;
    let [first, second, third] = [1, 2, 3].map(record);
    let backend = first.ends.backend.socket_addr().ip();
    fleet.instances[0].handle_command(PeerCommand::Addresses(vec![backend]), fleet.now_ns);
    let locals = [&first, &second, &third].map(|it| Local::Begun(Box::new(it.clone())));
    fleet.instances[1].handle_local(locals, fleet.now_ns);
    fleet.talk();
    assert_eq!(here(&fleet), 0, "proxied flows end with their instance");
    let locals = [&first, &second].map(|it| Local::Offloaded { id: it.id, passage: Box::default() });
    fleet.instances[1].handle_local(locals, fleet.now_ns);
    fleet.talk();
    assert_eq!(here(&fleet), 2);
    fleet.instances[1].handle_local([Local::Ended(first.id)], fleet.now_ns);
    fleet.talk();
    assert_eq!(here(&fleet), 1);
    fleet.instances[0].handle_command(PeerCommand::Addresses(vec![]), fleet.now_ns);
    assert_eq!(here(&fleet), 0, "the backend is on another host");
}

#[test]
fn a_standing_comes_by_the_link_by_the_beat_and_with_a_new_link() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let seen = |fleet: &Fleet| fleet.instances[0].vip_peers(&[], fleet.now_ns).remove(0);
    let standing = |claim| VipStanding { claim, ..VipStanding::default() };
    fleet.instances[1].set_vip(standing(1), fleet.now_ns);
    let BeatTo { beat, .. } = fleet.instances[1].poll_beat(fleet.now_ns).expect("a beat at once");
    fleet.instances[0].handle_beat(&name("b"), beat, fleet.now_ns);
    assert_eq!(seen(&fleet).standing, Some(standing(1)));
    fleet.instances[1].set_vip(standing(2), fleet.now_ns);
    fleet.talk();
    assert_eq!(seen(&fleet).standing, Some(standing(2)));
    for (at, of) in [(0, "b"), (1, "a")] {
        fleet.instances[at].handle_loss(&name(of), "it was cut", fleet.now_ns);
    }
    fleet.instances[1].set_vip(standing(3), fleet.now_ns);
    fleet.link(0, 1);
    fleet.talk();
    assert_eq!(seen(&fleet).standing, Some(standing(3)));
}

#[test]
fn what_a_host_keeps_is_told_when_it_changes_and_with_a_new_link() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let vip: IpAddr = "10.0.0.100".parse().expect("an address");
    let told = |fleet: &mut Fleet| {
        let kept = std::mem::take(&mut fleet.told[0]).into_iter().filter_map(|remote| match remote {
            Remote::Kept { owner, vips } => Some((owner, vips)),
            _ => None,
        });
        kept.collect::<Vec<_>>()
    };
    told(&mut fleet);
    fleet.instances[1].handle_command(PeerCommand::Kept(vec![vip]), fleet.now_ns);
    fleet.talk();
    assert_eq!(told(&mut fleet), [(name("b"), vec![vip])]);
    for (at, of) in [(0, "b"), (1, "a")] {
        fleet.instances[at].handle_loss(&name(of), "it was cut", fleet.now_ns);
    }
    fleet.link(0, 1);
    fleet.talk();
    assert_eq!(told(&mut fleet), [(name("b"), vec![vip])]);
    fleet.instances[1].handle_command(PeerCommand::Kept(Vec::new()), fleet.now_ns);
    fleet.talk();
    assert_eq!(told(&mut fleet), [(name("b"), Vec::new())]);
}

/// Regression: after a reload that gave a peer another key, beats of whoever had the old one counted as before, so that nobody took
/// the VIP that he claimed.
#[test]
fn what_came_by_a_key_that_is_no_longer_the_peers_counts_no_more() {
    let mut fleet = Fleet::linked(&["a", "b", "c"]);
    assert_eq!(fleet.instances[0].beat_keys().count(), 2);
    let now_ns = fleet.now_ns;
    fleet.instances[0].forget(&name("b"), now_ns);
    assert_eq!(fleet.instances[0].beat_keys().map(|(name, _)| name.to_string()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(fleet.view(0, "b").liveness, Liveness::Unheard);
    fleet.talk();
    let told: Vec<_> = fleet.told[0].iter().rev().take(2).rev().collect();
    assert!(matches!(told[..], [Remote::Gone { .. }, Remote::Joined { .. }]), "{told:?}");
    // With its new key it is one of the fleet again.
    fleet.link(0, 1);
    fleet.talk();
    assert_eq!((fleet.view(0, "b").liveness, fleet.view(0, "b").synced), (Liveness::Alive, true));
}

#[test]
fn a_slot_that_no_instance_has_is_refused() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let hello = Hello { epoch: Epoch(2), slot: SLOTS, ..fleet.instances[1].hello() };
    let refused = fleet.instances[0].handle_link(&hello, fleet.now_ns).unwrap_err();
    assert_eq!(refused, "b uses slot 8 of the source ports; there are 0 to 7");
}
