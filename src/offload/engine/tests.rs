//! The offload engine over a map that temporarily cannot be read, attached to no interface. Without root there is no
//! map.

use std::path::PathBuf;

use super::*;
use crate::model::end_reason::EndReason;
use crate::model::ends::Key;
use crate::model::fleet::failover::Wake;
use crate::model::fleet::testing::{passage, record};
use crate::model::fleet::{FlowRecord, Keeping, PortRange, StandbyAnswer, StandbyRequest};
use crate::model::splice::FlowDirection;
use crate::offload::entry::{Action, Entry, Seen};
use crate::offload::probe::EntryChange;
use crate::offload::program;
use crate::offload::settings::OffloadSettings;
use crate::ports::AllPorts;
use crate::ports::late_resets::{ToldBefore, Word};
use crate::ports::offload::Answer;
use crate::ports::offload::{Found, Ticket};
use crate::table::Table;
use crate::table::flows::FlowKey;
use crate::table::journal::{Event, What};
use offloaded::Step;
use recover::claim;
use reset::{do_what_is_due, end, fade, give_up, reset};
use unread::{read_again, say_unread};

/// The parts of a new instance with one worker.
fn parts() -> EngineParts {
    let (table, ports) = (Table::new(1), AllPorts::new(1).expect("descriptors"));
    EngineParts {
        flows: table.part(),
        registry: table.part(),
        journal: table.part(),
        beats: table.part(),
        census: table.part(),
        fleet_census: table.part(),
        fleet: ports.part(),
        offload: ports.part(),
        orders: ports.part(),
        reachability: ports.part(),
        late_resets: ports.part(),
    }
}

struct Scene {
    engine: Engine,
    directory: PathBuf,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = program::remove(&self.directory);
    }
}

impl Scene {
    /// `None`: this process may not load a program.
    fn open(name: &str) -> Option<Self> {
        if rustix::process::geteuid().as_raw() != 0 {
            return None;
        }
        let directory = PathBuf::from(format!("/sys/fs/bpf/baton-{name}-{}", std::process::id()));
        let settings = OffloadSettings { directory: directory.clone(), interfaces: Vec::new(), flows_max: 64 };
        let program = Program::open(&settings).expect("the program");
        let engine = Engine::open(program, parts(), false).expect("an engine");
        let mut scene = Self { engine, directory };
        scene.recover();
        Some(scene)
    }

    fn recover(&mut self) {
        let Engine { outside, flows, keep, witnesses, .. } = &mut self.engine;
        recover(outside, flows, keep, witnesses);
    }

    fn take_requests(&mut self) {
        let Engine { outside, flows, keep, witnesses, .. } = &mut self.engine;
        take_standby_requests(keep, outside, flows, witnesses);
    }

    fn serve(&mut self, request: StandbyRequest) {
        self.engine.outside.table.offload.ask_standby(request);
        self.take_requests();
    }

    fn set_unreadable(&mut self, unreadable: bool) {
        self.engine.outside.program.set_unreadable(unreadable);
    }

    fn entry(&self, key: Key) -> Option<Entry> {
        self.engine.outside.program.entry(&key).expect("it can be read")
    }

    fn answer(&self) -> Option<Answer> {
        self.engine.outside.table.offload.next_answer(0)
    }

    fn standby_answer(&self) -> Option<StandbyAnswer> {
        self.engine.outside.table.offload.standby.next_answer()
    }

    /// An offloaded flow of this instance, which its worker knows.
    fn own(&mut self, record: &FlowRecord) -> Ticket {
        self.serve(StandbyRequest::Hold(Box::new(record.clone())));
        self.serve(StandbyRequest::Inherit(vec![record.fleet_id()]));
        let Some(Answer::Found(found)) = self.answer() else { panic!("it is offered to its worker") };
        let Found { id, .. } = *found;
        let ticket = Ticket { worker: 0, key: FlowKey::new(0), id };
        claim(&mut self.engine.outside, &mut self.engine.flows, ticket, 30_000_000_000);
        ticket
    }
}

fn offloaded(id: u64) -> FlowRecord {
    FlowRecord { keeping: Keeping::Passage(Box::new(passage(9))), ..record(id) }
}

fn up(record: &FlowRecord) -> Key {
    record.ends.key(FlowDirection::ToBackend)
}

#[test]
fn a_dead_peers_flow_is_inherited_though_its_entries_cannot_be_read_for_a_while() {
    let Some(mut scene) = Scene::open("inherit") else { return };
    let flow = offloaded(1);
    let id = flow.fleet_id();
    scene.serve(StandbyRequest::Hold(Box::new(flow.clone())));
    assert!(scene.entry(up(&flow)).is_some_and(|entry| entry.held));

    scene.set_unreadable(true);
    scene.serve(StandbyRequest::Inherit(vec![id]));
    scene.serve(StandbyRequest::Report(7));
    assert!(scene.engine.flows.is_empty() && scene.engine.keep.held().get(id).is_some(), "it stays as it was");
    assert_eq!(scene.standby_answer(), None, "what comes behind it waits");

    let taken_ns = now_ns();
    scene.set_unreadable(false);
    scene.take_requests();
    assert!(matches!(scene.engine.flows.get(&flow.id).map(|flow| &flow.step), Some(Step::Alone)), "not reset");
    let Some(Answer::Found(found)) = scene.answer() else { panic!("it is offered to its worker") };
    // Regression: a node was called silent since the time at which its flow had left this host.
    assert!(found.last_to_backend_ns >= taken_ns, "{found:?}");
    assert_eq!(scene.standby_answer(), Some(StandbyAnswer::Reached(7)));
    assert!(scene.entry(up(&flow)).is_some_and(|entry| !entry.held && entry.action == Action::Splice));
}

#[test]
fn the_failover_is_answered_nothing_and_no_key_is_forgotten_while_entries_cannot_be_read() {
    let Some(mut scene) = Scene::open("answer") else { return };
    let (key, other) = (up(&record(1)), offloaded(2));
    scene.serve(StandbyRequest::Refuse(vec![key]));
    scene.serve(StandbyRequest::Hold(Box::new(other.clone())));

    scene.set_unreadable(true);
    scene.serve(StandbyRequest::FindUnanswered(vec![key, up(&other)]));
    scene.serve(StandbyRequest::Forget(vec![key]));
    scene.serve(StandbyRequest::Drop(vec![other.fleet_id()]));
    assert_eq!(scene.standby_answer(), None);

    scene.set_unreadable(false);
    assert!(scene.entry(key).is_some() && scene.entry(up(&other)).is_some());
    scene.take_requests();
    assert_eq!(scene.standby_answer(), Some(StandbyAnswer::Unanswered(vec![key, up(&other)])));
    assert!(scene.entry(key).is_none() && scene.entry(up(&other)).is_none());
    assert!(scene.engine.keep.held().is_empty());
}

#[test]
fn a_flow_that_cannot_be_read_does_not_end_as_idle_and_is_looked_at_again() {
    let Some(mut scene) = Scene::open("idle") else { return };
    let flow = offloaded(1);
    let ticket = scene.own(&flow);
    let moved = Entry { held: false, ..scene.entry(up(&flow)).expect("an entry") };
    let moved = Entry { seen: Seen { packets: 5, last_ns: now_ns(), ..moved.seen }, ..moved };
    scene.engine.outside.program.hold(&up(&flow), &moved).expect("room");

    scene.set_unreadable(true);
    end(&mut scene.engine.outside, &mut scene.engine.flows, ticket, Some(now_ns()));
    assert!(matches!(scene.answer(), Some(Answer::Moves(_))), "nobody knows whether it is idle");
    assert!(scene.engine.flows.get(&flow.id).is_some_and(|flow| matches!(flow.step, Step::Alone)));
    read_again(&mut scene.engine.outside, &mut scene.engine.flows, now_ns());
    say_unread(&scene.engine.outside, &mut scene.engine.flows, now_ns());
    assert!(scene.engine.outside.table.census.unread.value() >= 2);

    scene.set_unreadable(false);
    read_again(&mut scene.engine.outside, &mut scene.engine.flows, now_ns());
    assert_eq!(scene.engine.flows.get(&flow.id).map(|flow| flow.up.packets), Some(5));
    assert_eq!(scene.engine.outside.answers.waiting_for(0), 2, "once claimed, once read");
}

#[test]
fn a_flow_that_is_over_keeps_its_entries_and_its_port_until_they_can_be_read() {
    let Some(mut scene) = Scene::open("over") else { return };
    let flow = offloaded(1);
    let id = scene.own(&flow).id;
    fade(&mut scene.engine.outside, &mut scene.engine.flows, id, EndReason::ClientClosed);
    let reserved = |scene: &Scene| scene.engine.outside.table.offload.is_reserved(flow.ends.local, flow.ends.backend);

    scene.set_unreadable(true);
    do_what_is_due(&scene.engine.outside, &mut scene.engine.flows);
    assert!(scene.engine.flows.contains_key(&id) && reserved(&scene));

    scene.set_unreadable(false);
    scene.engine.flows.later.insert(0, id);
    do_what_is_due(&scene.engine.outside, &mut scene.engine.flows);
    assert!(scene.engine.flows.is_empty() && !reserved(&scene));
    assert_eq!(scene.entry(up(&flow)), None);
    assert_eq!(scene.standby_answer(), Some(StandbyAnswer::Over(vec![flow.fleet_id()])), "it was another instance's");
}

#[test]
fn what_an_earlier_process_left_is_recovered_though_it_cannot_be_read_for_a_while() {
    let Some(mut scene) = Scene::open("recover") else { return };
    let flow = offloaded(1);
    scene.own(&flow);
    // The state in which another process finds it.
    scene.engine.flows = Flows::default();

    scene.set_unreadable(true);
    scene.recover();
    scene.serve(StandbyRequest::Report(7));
    assert!(
        !scene.engine.flows.are_known() && scene.standby_answer().is_none(),
        "before that nothing is looked at, nor taken for nobody's"
    );
    read_again(&mut scene.engine.outside, &mut scene.engine.flows, now_ns() + 2_000_000_000);
    assert!(scene.engine.outside.orders.recover.load(Acquire), "it is tried again");

    scene.set_unreadable(false);
    scene.recover();
    assert!(matches!(scene.answer(), Some(Answer::Found(_))));
    scene.take_requests();
    assert_eq!(scene.standby_answer(), Some(StandbyAnswer::Reached(7)));
}

/// Regression: an upgrade told that it had reset a flow, when nobody had lost one.
#[test]
fn a_flow_that_had_ended_before_is_not_told_to_be_reset_by_the_next_process() {
    let Some(mut scene) = Scene::open("ended") else { return };
    let (ended, living) = (offloaded(1), offloaded(2));
    let id = scene.own(&ended).id;
    scene.own(&living);
    reset(&scene.engine.outside, &mut scene.engine.flows, id);
    assert!(scene.entry(up(&ended)).is_some_and(|entry| entry.action == Action::Reset));
    scene.engine.flows = Flows::default();
    scene.recover();
    let told = scene.engine.outside.table.journal.since(0, false);
    let told: Vec<_> = told.iter().filter(|it| matches!(it.what, What::OffloadRecovered { .. })).collect();
    assert!(matches!(told[..], [Event { what: What::OffloadRecovered { flows: 1, reset: 0 }, .. }]), "{told:?}");
}

/// Peers were told of no flow for ever: the instance waited for a worker to claim what it had no longer. And the worker took a flow that goes on
/// at the peer for one that Baton itself had lost.
#[test]
fn a_flow_that_a_peer_takes_before_a_worker_claims_it_has_moved_and_peers_are_told_of_the_rest() {
    let Some(mut scene) = Scene::open("early") else { return };
    let flow = offloaded(1);
    let ticket = scene.own(&flow);
    scene.engine.flows = Flows::default();
    while scene.answer().is_some() {}
    scene.recover();
    assert!(matches!(scene.answer(), Some(Answer::Found(_))));
    assert!(!scene.engine.flows.count_claimed(0), "peers have to wait for it");

    scene.serve(StandbyRequest::Release(vec![flow.fleet_id()]));
    assert!(scene.engine.flows.is_empty());
    claim(&mut scene.engine.outside, &mut scene.engine.flows, ticket, 30_000_000_000);
    assert!(matches!(scene.answer(), Some(Answer::Ended { reason: Some(EndReason::Moved), .. })));
    assert!(scene.engine.flows.count_claimed(0));
}

/// Regression: flows that had ended while no process ran were counted as `internal`, which is an alert, when their end was seen before a worker
/// had claimed them.
#[test]
fn a_flow_that_ends_before_a_worker_claims_it_has_ended_for_its_own_reason() {
    for why in [EndReason::ClientClosed, EndReason::BackendTimedOut] {
        let Some(mut scene) = Scene::open("before") else { return };
        let ticket = scene.own(&offloaded(1));
        scene.engine.flows = Flows::default();
        while scene.answer().is_some() {}
        scene.recover();
        assert!(matches!(scene.answer(), Some(Answer::Found(_))));

        let Engine { outside, flows, .. } = &mut scene.engine;
        match why {
            EndReason::ClientClosed => fade(outside, flows, ticket.id, why),
            _ => give_up(outside, flows, ticket.id, why),
        }
        do_what_is_due(&scene.engine.outside, &mut scene.engine.flows);
        assert_eq!(scene.engine.flows.is_empty(), why == EndReason::ClientClosed, "a closed one is gone at once");
        claim(&mut scene.engine.outside, &mut scene.engine.flows, ticket, 30_000_000_000);
        let told = scene.answer();
        assert!(matches!(told, Some(Answer::Ended { reason, .. }) if reason == Some(why)), "{told:?}");
        assert!(scene.engine.flows.count_claimed(0));
    }
}

/// An end that counts as told is not told again, and in FIN_WAIT2 it sends nothing by itself.
#[test]
fn only_a_client_to_which_an_rst_was_sent_or_that_has_begun_anew_has_answered() {
    let Some(mut scene) = Scene::open("unanswered") else { return };
    let (own, held) = (offloaded(1), offloaded(2));
    let ticket = scene.own(&own);
    scene.serve(StandbyRequest::Hold(Box::new(held.clone())));
    let [silent, spoken, anew, gone] = [3, 4, 5, 6].map(|id| up(&record(id)));
    scene.serve(StandbyRequest::Refuse(vec![up(&own), up(&held), silent, spoken, anew]));
    let see = |key, seen: fn(Seen) -> Seen| {
        let entry = scene.entry(key).expect("an entry");
        scene.engine.outside.program.hold(&key, &Entry { seen: seen(entry.seen), ..entry }).expect("room");
    };
    see(up(&own), |seen| Seen { last_ns: now_ns(), ..seen });
    see(spoken, |seen| Seen { last_ns: now_ns(), ..seen });
    see(anew, |seen| Seen { reused: true, ..seen });
    // Its packets came before that.
    scene.engine.outside.program.change(ticket.id, &[up(&own)], EntryChange::Reset).expect("an entry");
    assert!(scene.entry(up(&own)).is_some_and(|entry| entry.action == Action::Reset && entry.seen.last_ns != 0));

    scene.serve(StandbyRequest::FindUnanswered(vec![up(&own), up(&held), silent, spoken, anew, gone]));
    let unanswered = vec![up(&own), up(&held), silent, gone];
    assert_eq!(scene.standby_answer(), Some(StandbyAnswer::Unanswered(unanswered)));
}

/// Both numbers of its RSTs may lie below the one that the client expects, and it ignores such RSTs.
#[test]
fn a_silent_client_is_woken_if_its_numbers_may_be_old_and_no_other() {
    for is_old in [true, false] {
        let Some(mut scene) = Scene::open("old") else { return };
        let flow = offloaded(1);
        let id = scene.own(&flow).id;
        if !is_old {
            let entry = scene.entry(up(&flow)).expect("an entry");
            let heard = Entry { seen: Seen { packets: 5, last_ns: now_ns(), ..entry.seen }, ..entry };
            scene.engine.outside.program.hold(&up(&flow), &heard).expect("room");
        }
        let Engine { outside, flows, .. } = &mut scene.engine;
        flows.get_mut(&id).expect("a flow").step = Step::Resetting { rounds: u8::MAX, since_ns: now_ns() };
        flows.later.insert(0, id);
        do_what_is_due(outside, flows);
        assert!(flows.is_empty());
        let client = flow.ends.client.socket_addr();
        let words: Vec<_> = std::iter::from_fn(|| outside.table.late_resets.take()).map(|(word, _)| word).collect();
        let to_client: Vec<_> = words.iter().filter(|word| word.ends().1 == client).collect();
        assert!(matches!(to_client[0], Word::Reset(_)), "{words:?}");
        let wakes: Vec<_> = words.iter().filter(|word| matches!(word, Word::Wake(_))).collect();
        assert_eq!(wakes, to_client[1..], "{words:?}");
        assert_eq!(wakes.len(), usize::from(is_old), "{words:?}");
    }
}

/// No number is known, and an end without an entry is not challenged.
#[test]
fn a_client_whose_inherited_flow_has_lost_its_entry_is_woken() {
    let Some(mut scene) = Scene::open("lost") else { return };
    let flow = offloaded(1);
    scene.serve(StandbyRequest::Hold(Box::new(flow.clone())));
    scene.engine.outside.program.remove(&flow.ends).expect("it can be read");
    scene.serve(StandbyRequest::Inherit(vec![flow.fleet_id()]));
    assert!(matches!(scene.engine.flows.get(&flow.id).map(|flow| &flow.step), Some(Step::Resetting { .. })));
    let wake = Wake { from: flow.ends.vip.socket_addr(), to: flow.ends.client.socket_addr() };
    assert_eq!(scene.engine.outside.table.late_resets.take(), Some((Word::Wake(wake), ToldBefore::Once)));
}

/// Regression: connections had no answer for up to half a minute. Their backends' packets matched the entry of a flow
/// that another instance had inherited together with its source port.
#[test]
fn a_port_is_not_used_again_for_as_long_as_something_is_kept_for_a_flow_that_has_gone_with_it() {
    let Some(mut scene) = Scene::open("ports") else { return };
    let flow = offloaded(1);
    scene.engine.outside.table.fleet.set_ports(PortRange { first: 1, last: u16::MAX });
    let reserved = |scene: &Scene| scene.engine.outside.table.offload.is_reserved(flow.ends.local, flow.ends.backend);
    scene.own(&flow);
    assert!(reserved(&scene));
    scene.serve(StandbyRequest::Release(vec![flow.fleet_id()]));
    assert!(scene.engine.flows.is_empty() && reserved(&scene), "another instance has it");
    let down = flow.ends.key(FlowDirection::ToClient);
    scene.serve(StandbyRequest::Drop(vec![flow.fleet_id()]));
    assert!(!reserved(&scene));
    scene.serve(StandbyRequest::Refuse(vec![down]));
    assert!(reserved(&scene), "its last packets are another's");
    scene.serve(StandbyRequest::Forget(vec![down]));
    assert!(!reserved(&scene) && !scene.engine.outside.table.offload.keeps_ports());
}
