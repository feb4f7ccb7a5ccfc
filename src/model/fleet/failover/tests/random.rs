//! Random events in random order.

use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;

use super::super::flows::KnownState;
use super::*;
use crate::model::fleet::Farewell;

/// One event.
#[derive(Clone, Debug)]
enum Step {
    Flow { owner: bool, number: u64, offloaded: bool },
    Ended { owner: bool, number: u64 },
    Moved { owner: bool, number: u64 },
    Liveness { owner: bool, liveness: Liveness },
    Snapshot { owner: bool, names: Vec<u64> },
    Vip(bool),
    Touched(u64),
    Claimed { by: bool, number: u64, was_told: bool },
    UnknownPacket(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 0..6u64;
    let liveness = prop_oneof![
        Just(Liveness::Alive),
        Just(Liveness::Unlinked),
        Just(Liveness::Silent),
        Just(Liveness::Dead),
        Just(Liveness::Left(Farewell::Stopped)),
        Just(Liveness::Left(Farewell::Succeeded)),
    ];
    prop_oneof![
        (any::<bool>(), number(), any::<bool>()).prop_map(|(owner, number, offloaded)| Step::Flow {
            owner,
            number,
            offloaded
        }),
        (any::<bool>(), number()).prop_map(|(owner, number)| Step::Ended { owner, number }),
        (any::<bool>(), number()).prop_map(|(owner, number)| Step::Moved { owner, number }),
        (any::<bool>(), liveness).prop_map(|(owner, liveness)| Step::Liveness { owner, liveness }),
        (any::<bool>(), prop::collection::vec(number(), 0..4))
            .prop_map(|(owner, names)| Step::Snapshot { owner, names }),
        any::<bool>().prop_map(Step::Vip),
        number().prop_map(Step::Touched),
        (any::<bool>(), number(), any::<bool>()).prop_map(|(by, number, was_told)| Step::Claimed {
            by,
            number,
            was_told
        }),
        number().prop_map(Step::UnknownPacket),
        (0..40_000u64).prop_map(Step::Pass),
    ]
}

/// The requests to the offload engine, and their effect.
#[derive(Default)]
struct Told {
    diverted: HashMap<Key, bool>,
    held: HashSet<FleetId>,
    own: HashSet<FleetId>,
}

impl Told {
    fn carry_out(&mut self, request: StandbyRequest) {
        match request {
            StandbyRequest::Hold(record) if !self.own.contains(&record.fleet_id()) => {
                self.diverted.retain(|key, _| !record.ends.keys().contains(key));
                self.held.insert(record.fleet_id());
            }
            // For a flow that is not listed it is unknown whether it is held.
            StandbyRequest::Drop(flows) => flows.iter().for_each(|id| {
                self.held.remove(id);
            }),
            StandbyRequest::Inherit(flows) => {
                for id in flows {
                    assert!(self.held.remove(&id) || self.own.contains(&id), "{id} is inherited and was not held");
                    self.own.insert(id);
                }
            }
            StandbyRequest::Release(flows) => {
                flows.into_iter().filter(|id| self.own.remove(id)).collect::<Vec<_>>().into_iter().for_each(|id| {
                    self.held.insert(id);
                });
            }
            StandbyRequest::Forward { flows, .. } => {
                self.diverted.extend(flows.iter().flat_map(|flow| flow.ends.keys()).map(|key| (key, true)));
            }
            StandbyRequest::ForwardKeys { keys, .. } => self.diverted.extend(keys.into_iter().map(|key| (key, true))),
            StandbyRequest::Refuse(keys) => self.diverted.extend(keys.into_iter().map(|key| (key, false))),
            StandbyRequest::Forget(keys) => self.diverted.retain(|key, _| !keys.contains(key)),
            _ => {}
        }
    }
}

proptest! {
    /// For any events in any order: packets are forwarded only to instances that may be alive, each unknown packet is
    /// answered, and ended flows leave nothing behind.
    #[test]
    fn no_packet_goes_to_the_dead_and_nothing_is_left_behind(steps in prop::collection::vec(step(), 1..60)) {
        let mut scene = Scene::with(settings("b"));
        let owner = |first: bool| name(if first { "a" } else { "c" });
        let flow = |number: u64, offloaded| record(number, "10.0.1.7", offloaded);
        let (told, mut packets) = (RefCell::new(Told::default()), 0i64);
        let absorb = |scene: &mut Scene, packets: &mut i64| {
            let mut told = told.borrow_mut();
            for action in scene.take() {
                match action {
                    Action::Standby(StandbyRequest::FindUnanswered(keys)) => {
                        scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Unanswered(keys));
                    }
                    Action::Standby(request) => told.carry_out(request),
                    Action::Challenge { round, .. } => scene.machine.handle_challenged(scene.now_ns, round),
                    Action::Answer(_) => *packets -= 1,
                    _ => {}
                }
            }
            for known in scene.machine.flows.all().filter(|known| known.state == KnownState::Forwarded) {
                assert!(!scene.machine.members.is_dead(&known.owner));
                assert!(known.ends.keys().iter().all(|key| told.diverted.get(key) == Some(&true)));
            }
            assert!(told.own.is_disjoint(&told.held));
            (told.diverted.len(), told.held.clone())
        };
        let mut held = HashSet::new();
        for step in steps {
            match step {
                Step::Flow { owner: by, number, offloaded } => {
                    let record = Box::new(flow(number, offloaded));
                    scene.remote(Remote::Flow { owner: owner(by), record });
                }
                Step::Ended { owner: by, number } => {
                    scene.remote(Remote::Ended { owner: owner(by), id: flow(number, false).fleet_id() });
                }
                Step::Liveness { owner: of, liveness } => scene.remote(Remote::Liveness { owner: owner(of), liveness }),
                Step::Snapshot { owner: by, names } => {
                    scene.remote(Remote::Begin { owner: owner(by), epoch: Epoch(9), slot: u8::from(by) });
                    for number in names {
                        scene.remote(Remote::Flow { owner: owner(by), record: Box::new(flow(number, false)) });
                    }
                    scene.remote(Remote::Synced { owner: owner(by) });
                }
                Step::Vip(here) => scene.addresses(if here { &["10.0.0.22", VIP] } else { &["10.0.0.22"] }),
                Step::Touched(number) => {
                    let id = flow(number, false).fleet_id();
                    if held.contains(&id) {
                        scene.machine.handle_standby(scene.now_ns, StandbyAnswer::Touched(vec![id]));
                    }
                }
                Step::Moved { owner: by, number } => {
                    scene.remote(Remote::Moved { owner: owner(by), id: flow(number, false).fleet_id(), to: owner(!by) });
                }
                Step::Claimed { by, number, was_told } => {
                    let id = flow(number, false).fleet_id();
                    // One that belonged to this instance from the beginning.
                    let machine = &scene.machine;
                    let own = was_told
                        && machine.flows.get(&id).is_none()
                        && !machine.claims.has(&id)
                        // It had sockets at another instance.
                        && !machine.untold.has(&id);
                    if own {
                        told.borrow_mut().own.insert(id);
                    }
                    let ends = own.then(|| flow(number, true).ends);
                    scene.remote(Remote::Claimed { by: owner(by), flows: vec![(id, ends)] });
                }
                Step::UnknownPacket(number) => {
                    scene.packet(&flow(100 + number, false));
                }
                Step::Pass(ms) => scene.pass(ms),
            }
            held = absorb(&mut scene, &mut packets).1;
        }
        for first in [true, false] {
            scene.remote(Remote::Liveness { owner: owner(first), liveness: Liveness::Alive });
            scene.remote(Remote::Begin { owner: owner(first), epoch: Epoch(99), slot: u8::from(first) });
            scene.remote(Remote::Synced { owner: owner(first) });
            absorb(&mut scene, &mut packets);
        }
        // Packets that got no answer while records were on their way come again.
        scene.pass(5000);
        absorb(&mut scene, &mut packets);
        for number in 0..6 {
            // While no peer answers, the packet is dropped for some seconds, and TCP repeats it.
            packets = 1;
            for _ in 0..4 {
                if packets > 0 {
                    scene.packet(&flow(100 + number, false));
                    absorb(&mut scene, &mut packets);
                    scene.pass(1600);
                    absorb(&mut scene, &mut packets);
                }
            }
            prop_assert_eq!(packets, 0, "a packet without an answer");
        }
        let mut diverted = 1;
        for _ in 0..60 {
            scene.pass(5000);
            diverted = absorb(&mut scene, &mut packets).0;
        }
        prop_assert_eq!(diverted, 0, "entries that nobody will take out");
        let held: Vec<_> = told.borrow().held.iter().copied().collect();
        prop_assert!(held.is_empty(), "held for nobody: {held:?}");
        prop_assert_eq!(scene.machine.known(), 0);
        prop_assert!(scene.machine.unknown.is_empty() && scene.machine.rounds.is_empty());
    }
}
