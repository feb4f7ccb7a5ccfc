mod beside;
mod gaps;
mod headline;
mod inherited;
mod killed;
mod named;
mod one_gap;
mod ongoing;
mod orders;
mod paused;
mod refusals;
mod second;
mod stopped;
mod unusable;
mod vips;
mod without_vip;

use super::testing::{AT_MS, recording};
use super::*;
use crate::model::end_reason::EndReason;
use crate::model::fleet::{Farewell, InstanceName, Liveness};
use crate::model::health::Cause;
use crate::model::nodes::SilenceKind;

fn changed(from: HealthState, to: HealthState, cause: Cause) -> What {
    What::BackendChanged { frontend: "apiserver".to_owned(), backend: "cp2".to_owned(), from, to, cause }
}

fn ended(flow: u64, reason: EndReason) -> What {
    What::FlowEnded {
        flow: FlowId(flow),
        frontend: "apiserver".to_owned(),
        backend: Some("cp2".to_owned()),
        backend_address: None,
        source: None,
        client: "10.0.0.31:51234".parse().unwrap(),
        node: None,
        reason,
        duration_ms: 60_000,
        connect_us: 300,
        bytes_to_backend: 1000,
        bytes_to_client: 2000,
        error: None,
    }
}

fn silent(nodes: &[&str], why: SilenceKind, for_ms: u64) -> What {
    let nodes = nodes.iter().map(|it| (*it).to_owned()).collect();
    What::NodesSilent { nodes, more: 0, why, for_ms, refused: None }
}

fn hung() -> Recording {
    let ordered = |flows| What::FlowsOrdered {
        frontend: "apiserver".to_owned(),
        backend: "cp2".to_owned(),
        flows,
        reason: EndReason::BackendEjected,
    };
    let mut events = vec![
        (0, changed(HealthState::Ready, HealthState::Ejected, Cause::TimedOut { after_ms: 500 })),
        (0, ordered(30)),
        // Another flow, which ended by itself.
        (100, ended(99, EndReason::ClientClosed)),
    ];
    events.extend((0..30).map(|flow| (8 * (flow + 1), ended(flow, EndReason::BackendEjected))));
    events.push((192_000, changed(HealthState::Ejected, HealthState::Ready, Cause::Passed)));
    recording(events)
}

fn told(recording: &Recording, subject: Subject) -> Option<Vec<String>> {
    Story::new(recording).tell(&subject).map(|(sentences, _)| sentences)
}

/// What is told of the last fault, and what is named beside it.
fn last(recording: &Recording) -> (Vec<String>, Vec<String>) {
    let (sentences, figures) = Story::new(recording).tell(&Subject::Last).unwrap();
    (sentences, figures.beside)
}

#[test]
fn a_backend_that_hung_is_explained_with_times_figures_and_the_setting_that_decided() {
    let recording = hung();
    let (sentences, figures) = Story::new(&recording).tell(&Subject::Backend("cp2".to_owned())).unwrap();
    assert_eq!(
        sentences,
        [
            "At 2026-11-25 03:12:07.412Z apiserver/cp2: ready → ejected: no answer within 500 ms.",
            "fall = 2 decided it: so many probes in a row failed; Baton probes by https each 1.0 s, and each 250 ms once one has failed, and \
             waits 500 ms for an answer.",
            "400 ms before, it had 30 flows of the frontend's 90.",
            "Of its flows 30 flows ended (backend_ejected 30), the last of them 240 ms after this; reset_within = 250 ms spreads such resets.",
            "The longest gap that a node can have seen is 12.3 s: 2.3 s from the silence to the last reset, and a renewal's 10 s.",
            "This lasted 3 m 12 s: at 2026-11-25 03:15:19.412Z apiserver/cp2: ejected → ready: probes pass.",
        ]
    );
    let flows = BTreeMap::from([("backend_ejected", 30)]);
    let expected = Figures {
        at_unix_ms: AT_MS,
        flows_ordered: 30,
        flows_ended: flows,
        ended_within_ms: 240,
        lasted_ms: Some(192_000),
        longest_gap_ms: Some(12_250),
        ..Figures::default()
    };
    assert_eq!(figures, expected);
    for same in [Subject::Backend("apiserver/cp2".to_owned()), Subject::Event(0), Subject::Event(1), Subject::Last] {
        assert_eq!(told(&recording, same.clone()), Some(sentences.clone()), "{same:?}");
    }
}

/// As [`changed`], of another backend.
fn other(from: HealthState, to: HealthState) -> What {
    let What::BackendChanged { frontend, cause, .. } = changed(from, to, Cause::Refused) else { unreachable!() };
    What::BackendChanged { frontend, backend: "cp1".to_owned(), from, to, cause }
}

#[test]
fn the_first_probe_of_a_process_decides_alone() {
    use HealthState::{Ejected, Ready};
    let lost = |at| (at, changed(Ready, Ejected, Cause::Refused));
    let started = (0, What::Started { version: "1".to_owned() });
    let said = |events| told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap().join(" ");
    assert!(said(vec![started.clone(), lost(7)]).contains("This was its first probe, which decides alone."));
    // Its start, or an earlier state, was not recorded by this process.
    assert!(said(vec![lost(7)]).contains("fall = 2 decided it"));
    let passed = (5, changed(Ready, Ready, Cause::Passed));
    assert!(said(vec![started, passed, lost(7000)]).contains("fall = 2 decided it"));
}

/// Regression: a backend whose `/readyz` had failed for a minute, and whose clients were reset, was no fault beside an older one.
#[test]
fn a_backend_that_is_not_ready_and_a_reset_of_its_clients_are_faults() {
    use HealthState::{Draining, Ejected, Ready};
    let lost = (0, other(Ready, Ejected));
    let not_ready = (90_000, changed(Ready, Draining, Cause::NotReady { status: 500 }));
    let by_order = (90_000, changed(Ready, Draining, Cause::OrderedDrain));
    let at = |events| Story::new(&recording(events)).tell(&Subject::Last).unwrap().1.at_unix_ms - AT_MS;
    assert_eq!(at(vec![lost.clone(), not_ready]), 90_000);
    assert_eq!(at(vec![lost.clone(), by_order.clone()]), 0);
    let (frontend, backend) = ("apiserver".to_owned(), "cp2".to_owned());
    let reset = What::FlowsOrdered { frontend, backend, flows: 10, reason: EndReason::DrainDeadline };
    assert_eq!(at(vec![lost, by_order, (95_000, reset)]), 90_000, "by the drain that reset them");
}

#[test]
fn the_last_fault_is_the_last_bad_event_unless_that_was_long_ago() {
    use HealthState::{Draining, Ejected, Ready};
    let lost = (0, changed(Ready, Ejected, Cause::Refused));
    let trifle = |at| (at, changed(Ready, Draining, Cause::OrderedDrain));
    let at = |events| Story::new(&recording(events)).tell(&Subject::Last).unwrap().1.at_unix_ms - AT_MS;
    assert_eq!(at(vec![lost.clone(), trifle(300_000)]), 0);
    assert_eq!(at(vec![lost, trifle(700_000)]), 700_000);
    assert_eq!(at(vec![trifle(5)]), 5);
}

#[test]
fn a_number_that_processes_share_is_said_to_be_shared() {
    let mut shared = recording(vec![(0, What::Started { version: "1".to_owned() })]);
    let again = shared.records[1].clone();
    shared.records.push(again);
    let sentences = told(&shared, Subject::Event(0)).unwrap();
    assert!(sentences.last().unwrap().starts_with("1 earlier process has an event 0 of its own"), "{sentences:?}");
}

#[test]
fn a_flow_is_explained_by_its_end_and_by_what_happened_to_its_backend() {
    let sentences = told(&hung(), Subject::Number(7)).unwrap();
    assert_eq!(
        sentences[..2],
        [
            "Flow 7 of 10.0.0.31:51234 to apiserver/cp2 ended at 2026-11-25 03:12:07.476Z for the reason backend_ejected: Baton found its backend dead.",
            "It had lasted 1 m 00 s, with 1.0 kB to the backend and 2.0 kB to the client; its client saw RST, and could connect again at once.",
        ]
    );
    assert!(sentences[2].contains("ready → ejected") && sentences[3].contains("fall = 2"), "{sentences:?}");
    assert!(sentences.len() <= 6);
    let idle = recording(vec![(0, ended(1, EndReason::IdleTimeout))]);
    let sentences = told(&idle, Subject::Flow(FlowId(1))).unwrap();
    assert_eq!(sentences[2..], ["idle_timeout = 2 h 00 m decided it."]);
}

/// Of 15 flows that an order had reset, it told of those alone that ended before the next order.
#[test]
fn flows_that_end_after_the_backend_is_back_count_as_its_loss_s_and_later_ones_do_not() {
    let ejected = || changed(HealthState::Ready, HealthState::Ejected, Cause::OrderedEject);
    let back = || changed(HealthState::Ejected, HealthState::Ready, Cause::Passed);
    let end = |number| ended(number, EndReason::EjectedByOperator);
    let recording = recording(vec![
        (0, ejected()),
        (5, end(1)),
        (10, back()),
        (200, end(2)),
        (300, end(3)),
        (5000, ejected()),
        (5001, end(4)),
    ]);
    let counted =
        |subject| told(&recording, subject).unwrap().into_iter().find(|it| it.contains("Of its flows")).unwrap();
    assert!(counted(Subject::Event(0)).starts_with("Of its flows 3 flows ended"), "{}", counted(Subject::Event(0)));
    let last = counted(Subject::Backend("cp2".to_owned()));
    assert!(last.starts_with("Of its flows 1 flow ended"), "{last}");
}

#[test]
fn any_other_event_is_told_with_what_followed() {
    let recording = recording(vec![
        (0, What::WorkerStuck { worker: 1, for_ms: 2000 }),
        (1500, What::WorkerMoves { worker: 1 }),
        (1600, ended(1, EndReason::ClientReset)),
    ]);
    let sentences = told(&recording, Subject::Last).unwrap();
    assert_eq!(sentences.len(), 3, "{sentences:?}");
    assert!(sentences[1].contains("1 flow ended by a fault or an order (client_reset 1)"), "{sentences:?}");
    assert!(sentences[2].starts_with("The next event came 1.5 s later: worker 1 moves again"), "{sentences:?}");
}

#[test]
fn what_was_not_recorded_is_not_made_up() {
    let recording = hung();
    for subject in [Subject::Number(1000), Subject::Event(1000), Subject::Backend("cp9".to_owned())] {
        assert_eq!(told(&recording, subject.clone()), None, "{subject:?}");
    }
    assert_eq!(told(&Recording::default(), Subject::Last), None);
    let quiet = self::recording(vec![(0, changed(HealthState::Ready, HealthState::Ready, Cause::Passed))]);
    assert_eq!(told(&quiet, Subject::Last), None);
}

/// Regression: the last fault was a refused reload of long ago, and the start was put down to an order that came before.
#[test]
fn a_process_that_ended_without_a_stop_is_the_last_fault_and_one_that_stopped_or_was_upgraded_is_none() {
    let start = |at| (at, What::Started { version: "1".to_owned() });
    let order = || (900, What::OrderReceived { uid: 0, pid: 42, order: "drain nope".to_owned() });
    let refused = (100, What::ReloadRefused { errors: vec!["x".to_owned()] });
    let last = |events| told(&recording(events), Subject::Last);
    let died = last(vec![start(0), refused.clone(), order(), start(3100)]).unwrap();
    assert!(died[0].ends_with("Baton 1 starts."), "{died:?}");
    assert_eq!(
        died[1],
        "The process before it ended without a stop, as by a crash or a kill: its last record is 2.2 s older, when it had 90 flows."
    );
    assert!(died[2].contains("is 12.2 s: at most 2.2 s without a running process"), "{died:?}");
    assert!(!died.iter().any(|it| it.contains("drain nope")), "{died:?}");
    let stopped = (2000, What::Stopping { flows: 0, timeout_ms: 1 });
    let said = last(vec![start(0), refused.clone(), stopped, start(3100)]).unwrap();
    assert!(said[0].contains("refused the new configuration"), "{said:?}");
    let upgraded = (3200, What::UpgradeImported { from_pid: 1, flows: 2 });
    let said = last(vec![start(0), refused, start(3100), upgraded]).unwrap();
    assert!(!said[0].contains("starts"), "{said:?}");
}

#[test]
fn a_reload_that_was_refused_is_no_fault_once_another_is_applied_and_silent_nodes_are_one() {
    let refused = (0, What::ReloadRefused { errors: vec!["x".to_owned()] });
    let applied = (10, What::Reloaded { changes: Vec::new() });
    assert_eq!(told(&recording(vec![refused.clone(), applied]), Subject::Last), None);
    let lost = (20_000, changed(HealthState::Ready, HealthState::Ejected, Cause::Refused));
    let silent = (45_000, silent(&["worker-1"], SilenceKind::NoConnection, 22_000));
    let said = told(&recording(vec![refused, lost, silent]), Subject::Last).unwrap();
    assert!(said[0].contains("worker-1") && said[1].starts_with("25 s earlier, at "), "{said:?}");
    assert!(said[1].contains("cp2: ready → ejected"), "{said:?}");
}

/// Regression: "Baton reset none of its flows" was all that was said of an outage of 27 s.
#[test]
fn an_outage_is_told_with_the_flows_that_the_backend_ended_and_the_connections_that_nobody_took() {
    use HealthState::{Ejected, Ready};
    let refusal = |at| {
        let mut what = ended(at, EndReason::NoBackend);
        if let What::FlowEnded { backend, .. } = &mut what {
            *backend = None;
        }
        (at, what)
    };
    let events = vec![
        (500, other(Ready, Ejected)),
        (800, ended(1, EndReason::BackendClosed)),
        (1000, changed(Ready, Ejected, Cause::Refused)),
        refusal(1500),
        refusal(14_000),
        (15_000, other(Ejected, Ready)),
        refusal(16_000),
    ];
    let said = told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap();
    assert!(said.len() <= 6, "{said:?}");
    let said = said.join("\n");
    assert!(
        said.contains("Baton reset none of its flows. The backend itself ended 1 flow (backend_closed 1), the first 200 ms before this."),
        "{said}"
    );
    assert!(said.contains("served for 14.2 s, so the longest gap"), "{said}");
    assert!(said.contains("Meanwhile Baton reset 2 new connections (no_backend 2)."), "{said}");
}

fn liveness(peer: &str, liveness: Liveness) -> What {
    What::PeerLiveness { peer: peer.to_owned(), liveness, stuck_ms: None }
}

#[test]
fn the_death_of_a_peer_is_explained_with_what_this_instance_did_and_the_longest_gap() {
    let events = vec![
        (0, liveness("lb-b", Liveness::Silent)),
        (810, liveness("lb-b", Liveness::Dead)),
        (815, What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 40, reset: 1 }),
        (
            830,
            What::VipGained { vip: "10.0.0.100".to_owned(), why: "lb-b is dead".to_owned(), gain: None, silent: None },
        ),
        // A blip of another one is not why.
        (2000, liveness("lb-c", Liveness::Silent)),
        (2400, liveness("lb-c", Liveness::Alive)),
        (60_000, What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() }),
    ];
    let recording = recording(events);
    let explained = |subject: Subject| Story::new(&recording).tell(&subject).unwrap();
    let (sentences, figures) = explained(Subject::Event(2));
    assert_eq!(
        sentences,
        [
            "At 2026-11-25 03:12:07.412Z lb-b is silent.",
            "At 2026-11-25 03:12:08.222Z lb-b is considered dead: this instance has not heard of it for a second.",
            "At 2026-11-25 03:12:08.227Z lb-b is dead: this instance carries on 40 flows of it and resets 1 others.",
            "At 2026-11-25 03:12:08.242Z this host has the VIP 10.0.0.100 now: lb-b is dead.",
            "The longest gap that a node can have seen is 11.1 s: 1.1 s from lb-b's last beat to this, which no setting decides, and a renewal's 10 s.",
            "1 m 00 s later this instance is linked with lb-b (Baton 1).",
        ]
    );
    assert_eq!((figures.flows_ordered, figures.longest_gap_ms, figures.lasted_ms), (1, Some(11_080), Some(60_000)));
    for same in [0, 1, 3] {
        let (sentences, _) = explained(Subject::Event(same));
        assert!(sentences.iter().any(|it| it.contains("carries on 40 flows")), "{same}: {sentences:?}");
    }
    assert!(explained(Subject::Last).0[2].contains("lb-b is dead"), "{:?}", explained(Subject::Last));
    let (blip, _) = explained(Subject::Event(4));
    assert_eq!(blip[1..], ["It was a moment's silence, which changes nothing: 400 ms later lb-c is alive."]);
}

/// Regression: a host that hung for two seconds lost the VIP to this one, which told nothing of it.
#[test]
fn a_vip_that_came_from_a_peer_that_was_silent_and_lived_on_is_told_with_the_longest_gap() {
    let why = "lb-b had it and is silent".to_owned();
    let gained = |silent| What::VipGained { vip: "10.0.0.100".to_owned(), why: why.clone(), gain: None, silent };
    let events = |silent| {
        vec![(0, liveness("lb-b", Liveness::Silent)), (300, gained(silent)), (2_000, liveness("lb-b", Liveness::Alive))]
    };
    let taken = recording(events(Some("lb-b".to_owned())));
    for subject in [Subject::Last, Subject::Event(0)] {
        let (said, figures) = Story::new(&taken).tell(&subject).unwrap();
        let said = said.join("\n");
        assert!(said.contains("has the VIP 10.0.0.100 now: lb-b had it and is silent."), "{said}");
        assert!(
            said.contains("The longest gap that a node can have seen is 10.6 s: 550 ms from lb-b's last beat"),
            "{said}"
        );
        assert!(said.ends_with("\n2.0 s later lb-b is alive."), "{said}");
        assert_eq!(figures.lasted_ms, Some(2_000));
    }
    assert!(told(&recording(events(None)), Subject::Event(1)).unwrap()[0].contains("this host has the VIP"));
}

/// Regression: the host that had hung told neither for how long nor what its clients can have seen of it.
#[test]
fn a_vip_that_was_lost_by_a_process_that_hung_is_told_with_the_longest_gap() {
    let why = "this process did not run for up to 3 s, so that the kernel removed the addresses".to_owned();
    let recording = recording(vec![(
        0,
        What::VipGivenUp { vip: "10.0.0.100".to_owned(), why, loss: None, late_ms: Some(3_000), cut_off: false },
    )]);
    let (said, figures) = Story::new(&recording).tell(&Subject::Last).unwrap();
    assert!(said[0].contains("given up the VIP 10.0.0.100: this process did not run for up to 3 s"), "{said:?}");
    assert!(
        said[1].contains("is 13 s: at most 3.0 s without a running process, unless another host had the VIP"),
        "{said:?}"
    );
    assert_eq!(figures.longest_gap_ms, Some(13_000));
}

/// Regression: of a peer whose link had been down for eleven seconds, all flows were said to go on, and 19 of 30 were reset.
#[test]
fn the_death_of_a_peer_without_a_link_is_told_with_what_was_not_known() {
    let events = |lost_ms| {
        vec![
            (lost_ms, What::PeerLost { peer: "lb-b".to_owned(), why: "it is silent".to_owned() }),
            (20_000, liveness("lb-b", Liveness::Silent)),
            (20_800, liveness("lb-b", Liveness::Dead)),
            (20_810, What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 30, reset: 0 }),
        ]
    };
    let told = |lost_ms| Story::new(&recording(events(lost_ms))).tell(&Subject::Last).unwrap();
    let (sentences, figures) = told(9000);
    let said = sentences.join("\n");
    assert!(said.contains("There had been no link to lb-b for 11 s: flows that it began in that time"), "{said}");
    assert!(said.contains("Of flows that were known, the longest gap that a node can have seen is 11.1 s"), "{said}");
    assert_eq!(figures.longest_gap_ms, None);
    let (sentences, figures) = told(19_500);
    assert!(!sentences.join("\n").contains("no link"), "it ended with the peer: {sentences:?}");
    assert_eq!(figures.longest_gap_ms, Some(11_060));
}

/// Regression: 9.4 s were counted from a silence that was over, and the peer's return of before its death was told as the one after it.
#[test]
fn the_death_of_a_peer_is_told_without_a_silence_that_was_over() {
    let recording = recording(vec![
        (0, liveness("lb-b", Liveness::Silent)),
        (1000, liveness("lb-b", Liveness::Alive)),
        (9000, liveness("lb-b", Liveness::Silent)),
        (9800, liveness("lb-b", Liveness::Dead)),
        (9810, What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 30, reset: 0 }),
        (20_000, What::PeerLinked { peer: "lb-b".to_owned(), version: "1".to_owned() }),
    ]);
    for event in [2, 3, 4] {
        let (sentences, figures) = Story::new(&recording).tell(&Subject::Event(event)).unwrap();
        let said = sentences.join("\n");
        assert_eq!((figures.longest_gap_ms, figures.lasted_ms), (Some(11_060), Some(11_000)), "{said}");
        assert!(!said.contains("alive"), "{said}");
    }
}

#[test]
fn a_backend_that_died_while_it_drained_is_explained_by_its_death() {
    use HealthState::{Draining, Ejected, Ready};
    let events =
        vec![(0, changed(Ready, Draining, Cause::OrderedDrain)), (9000, changed(Draining, Ejected, Cause::Refused))];
    let said = told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap();
    assert!(said[0].contains("apiserver/cp2: draining → ejected"), "{said:?}");
}

/// Regression: of two backends with one name, one was explained and the other was not named.
#[test]
fn a_name_of_backends_in_two_frontends_is_explained_with_how_to_ask_for_the_other() {
    use HealthState::{Ejected, Ready};
    let What::BackendChanged { backend, from, to, cause, .. } = changed(Ready, Ejected, Cause::Refused) else {
        unreachable!()
    };
    let in_other = What::BackendChanged { frontend: "konnectivity".to_owned(), backend, from, to, cause };
    let recording = recording(vec![(0, in_other), (9000, changed(Ready, Ejected, Cause::Refused))]);
    let story = Story::new(&recording);
    let said = |name: &str| story.tell(&Subject::Backend(name.to_owned())).unwrap();
    let (sentences, figures) = said("cp2");
    assert!(sentences[0].contains("apiserver/cp2"), "{sentences:?}");
    assert_eq!(figures.see_also, ["baton explain konnectivity/cp2"]);
    assert!(said("konnectivity/cp2").1.see_also.is_empty(), "one of them was asked for");
}

#[test]
fn what_decided_is_named_where_it_was_not_fall() {
    use HealthState::{Draining, Ready};
    let order = (0, What::OrderReceived { uid: 0, pid: 42, order: "undrain apiserver/cp2".to_owned() });
    let back = (1, changed(Draining, Ready, Cause::Passed));
    let said = told(&recording(vec![order, back]), Subject::Event(1)).unwrap().join("\n");
    assert!(
        said.contains("1 ms earlier") && said.contains("undrain apiserver/cp2") && !said.contains("rise"),
        "{said}"
    );
    let drained = vec![(0, changed(Ready, Draining, Cause::OrderedDrain)), (3000, ended(1, EndReason::DrainDeadline))];
    let said = told(&recording(drained), Subject::Event(0)).unwrap().join("\n");
    assert!(said.contains("; drain_timeout = 2 m 30 s decided when"), "{said}");
    let mut patient = hung();
    patient.owners[0].frontends[0].reset_fall = 6;
    let said = told(&patient, Subject::Last).unwrap().join("\n");
    assert!(said.contains("; reset_fall = 6 decided when; reset_within"), "{said}");
}

/// Regression: once the record had only the youngest ends, their number was told as that of all.
#[test]
fn ends_that_the_record_no_longer_has_are_named_and_make_its_figures_lower_limits() {
    let mut recording = hung();
    let whole = Story::new(&recording).tell(&Subject::Last).unwrap();
    let counted = |at_unix_ms, label: &str, ends| {
        let ended = vec![(label.to_owned(), ends)];
        let increase = crate::recorder::SampleIncrease { ended, ..Default::default() };
        let what = Recorded::Sample(RecordedSample { at_unix_ms, increase, ..RecordedSample::default() });
        TimedRecord { at_unix_ms, owner: 0, what }
    };
    // The second sample counts ends that are also in the record.
    recording.records.insert(3, counted(AT_MS + 50, "backend_ejected", 4000));
    recording.records.push(counted(AT_MS + 1050, "backend_ejected", 30));
    recording.records.push(counted(AT_MS + 1050, "client_closed", 70));
    recording.ends_from_ms = Some(AT_MS + 8);
    assert_eq!(told(&recording, Subject::Last).as_ref(), Some(&whole.0), "a sample may be ahead of the events");

    recording.ends_from_ms = Some(AT_MS + 1100);
    let (sentences, figures) = Story::new(&recording).tell(&Subject::Last).unwrap();
    assert_eq!(figures.ends_not_recorded, 4000);
    let expected = "Of its flows at least 30 flows ended (backend_ejected 30), the last of them 240 ms after this; reset_within = 250 ms \
                    spreads such resets. The record has no ends of before 2026-11-25 03:12:08.512Z: 4,000 flows of such reasons, of this \
                    backend or others.";
    assert_eq!(sentences[3], expected);

    recording.records.retain(|record| !record.what.is_end());
    recording.ends_from_ms = None;
    let said = told(&recording, Subject::Last).unwrap().join("\n");
    assert!(said.contains("none of these ends. The record has no ends: 4,030 flows of such reasons"), "{said}");
}

/// Regression: the first event of a process, before that of its start, was taken for the last record of the process before it: the
/// first start of all was told as a crash, and after six seconds of outage the last record was 6 ms older.
#[test]
fn what_a_process_records_before_its_start_is_no_record_of_the_one_before_it() {
    let start = |at| (at, What::Started { version: "1".to_owned() });
    let shut = |at| (at, What::OffloadShut { why: "x".to_owned(), unwatched: false });
    let mut first = recording(vec![shut(1), start(7)]);
    first.records.remove(0);
    first.records.iter_mut().for_each(|record| record.owner = 0);
    let said = told(&first, Subject::Event(1)).unwrap();
    assert!(!said.iter().any(|it| it.contains("The process before it")), "{said:?}");

    let mut again = recording(vec![start(0), (1000, What::WorkerMoves { worker: 1 }), shut(7000), start(7006)]);
    let at_shut = again.records.len() - 2;
    again.records[at_shut].owner = 1;
    let said = told(&again, Subject::Event(3)).unwrap();
    assert!(said[1].contains("its last record is 6.0 s older, when it had 90 flows"), "{said:?}");
}

/// Regression: of 17 flows that a killed apiserver had, the 7 that its kernel ended after the first failed probe were not told.
#[test]
fn what_a_backend_ended_after_it_was_ejected_is_told_beside_what_baton_reset() {
    use HealthState::{Ejected, Ready};
    let events = vec![
        (0, changed(Ready, Ejected, Cause::Refused)),
        (3, ended(1, EndReason::BackendClosed)),
        (4, ended(2, EndReason::BackendReset)),
        (100, ended(3, EndReason::BackendEjected)),
    ];
    let said = told(&recording(events), Subject::Last).unwrap().join("\n");
    assert!(
        said.contains("Of its flows 1 flow ended (backend_ejected 1), the last of them 100 ms after this"),
        "{said}"
    );
    assert!(
        said.contains(
            "The backend itself ended 2 flows (backend_closed 1, backend_reset 1), the first 3 ms after this."
        ),
        "{said}"
    );
}

/// Regression: a backend whose address a reload changed was said to have had no flow.
#[test]
fn a_backend_at_its_former_address_had_the_flows_of_its_name() {
    let readdressed = What::BackendChanged {
        frontend: "apiserver".to_owned(),
        backend: "cp2 (10.0.0.12:6443)".to_owned(),
        from: HealthState::Ready,
        to: HealthState::Draining,
        cause: Cause::Readdressed,
    };
    let mut end = ended(1, EndReason::DrainDeadline);
    let What::FlowEnded { backend_address, .. } = &mut end else { unreachable!() };
    *backend_address = Some("10.0.0.12:6443".parse().unwrap());
    let events = vec![(0, readdressed), (5000, end), (5001, ended(2, EndReason::DrainDeadline))];
    let said = told(&recording(events), Subject::Event(0)).unwrap().join("\n");
    assert!(said.contains("400 ms before, it had 30 flows of the frontend's 90."), "{said}");
    assert!(said.contains("Of its flows 1 flow ended (drain_deadline 1)"), "{said}");
}

/// Regression: of the first of two deaths, the flows of the second were told as well.
#[test]
fn what_a_backend_ends_after_it_was_ready_again_is_not_told_of_the_loss_before() {
    use HealthState::{Ejected, Ready};
    let events = vec![
        (800, ended(1, EndReason::BackendClosed)),
        (1000, changed(Ready, Ejected, Cause::Refused)),
        (5300, changed(Ejected, Ready, Cause::Passed)),
        (6900, ended(2, EndReason::BackendClosed)),
        (6950, ended(3, EndReason::BackendClosed)),
        (7200, changed(Ready, Ejected, Cause::Refused)),
    ];
    let recording = recording(events);
    let said = |event| told(&recording, Subject::Event(event)).unwrap().join("\n");
    assert!(said(1).contains("The backend itself ended 1 flow (backend_closed 1)"), "{}", said(1));
    assert!(said(5).contains("The backend itself ended 2 flows (backend_closed 2)"), "{}", said(5));
}

/// Regression: the end of a flow in an earlier process was told as that of a later flow with the same number.
#[test]
fn the_end_of_a_flow_is_told_of_its_own_process_and_that_its_number_came_again() {
    let start = |at| (at, What::Started { version: "1".to_owned() });
    let recording = recording(vec![
        start(0),
        (1000, ended(1, EndReason::Killed)),
        start(60_000),
        (61_000, ended(1, EndReason::ClientReset)),
    ]);
    let said = |subject| told(&recording, subject).unwrap();
    assert!(said(Subject::Event(1))[0].contains("for the reason killed"), "{:?}", said(Subject::Event(1)));
    let last = said(Subject::Flow(FlowId(1)));
    assert!(last[0].contains("for the reason client_reset"), "{last:?}");
    assert!(last.last().unwrap().starts_with("Earlier processes had 1 flow with this number"), "{last:?}");
}

/// Regression: nodes whose silence had begun eight seconds before a backend was lost were told as its effect, and that no backend was
/// ready was not told.
#[test]
fn silent_nodes_are_told_with_what_came_before_their_silence_and_with_an_outage_that_lasts() {
    use HealthState::{Ejected, Ready};
    let mut end = ended(1, EndReason::ClientClosed);
    let What::FlowEnded { node, .. } = &mut end else { unreachable!() };
    *node = Some("worker-1".to_owned());
    let silent = silent(&["worker-1"], SilenceKind::NoConnection, 10_000);
    let lost = || (9000, changed(Ready, Ejected, Cause::Refused));
    let said = told(&recording(vec![(0, end.clone()), lost(), (10_000, silent.clone())]), Subject::Last).unwrap();
    assert!(!said.iter().any(|it| it.contains("cp2: ready → ejected")), "{said:?}");
    assert!(
        said[1].starts_with(
            "The last flow of worker-1 ended 10 s before, with apiserver/cp2, for the reason client_closed"
        ),
        "{said:?}"
    );
    assert!(said[2].starts_with("10 s (cluster.lease_renew) decided it"), "{said:?}");

    let all_lost =
        vec![(0, end), (100, other(Ready, Ejected)), (1000, changed(Ready, Ejected, Cause::Refused)), (10_000, silent)];
    let said = told(&recording(all_lost), Subject::Event(3)).unwrap();
    assert!(said[1].contains("cp2: ready → ejected"), "{said:?}");
    assert!(said[3].starts_with("No backend of apiserver served then, since 2026-11-25 03:12:08.412Z."), "{said:?}");
}

/// Regression: after a full disk the record was told as whole.
#[test]
fn a_record_that_lacks_events_since_says_so_of_a_state_that_lasts() {
    use HealthState::{Ejected, Ready};
    let dropped = (6000, What::RecordsDropped { records: 1138 });
    let said =
        told(&recording(vec![(0, changed(Ready, Ejected, Cause::Refused)), dropped]), Subject::Event(0)).unwrap();
    assert!(said.last().unwrap().ends_with(", as far as is known: the record lacks 1,138 events since."), "{said:?}");
}

/// Regression: a backend that a reload removed was "still ejected" for ever.
#[test]
fn the_loss_of_a_backend_that_is_removed_ends_with_its_removal() {
    use HealthState::{Ejected, Ready};
    let (frontend, backend) = ("apiserver".to_owned(), "cp2".to_owned());
    let removed = (6000, What::BackendRemoved { frontend, backend });
    let said =
        told(&recording(vec![(0, changed(Ready, Ejected, Cause::Refused)), removed]), Subject::Event(0)).unwrap();
    assert!(
        said.last().unwrap().starts_with("This lasted 6.0 s: at ") && said.last().unwrap().contains("removed"),
        "{said:?}"
    );
}

/// Regression: clients that found no place, since the other backends were full, were promised the longest gap of those that did.
#[test]
fn full_backends_are_told_beside_the_longest_gap_which_is_not_known_then() {
    use HealthState::{Ejected, Ready};
    let full = |at| (at, ended(at, EndReason::BackendsFull));
    let lost = (0, changed(Ready, Ejected, Cause::Refused));
    let recording = recording(vec![lost, (50, ended(1, EndReason::BackendEjected)), full(100), full(3000)]);
    let (sentences, figures) = Story::new(&recording).tell(&Subject::Event(0)).unwrap();
    let said = sentences.join("\n");
    assert!(said.contains("had max_connections, and Baton reset 2 new connections (backends_full 2)"), "{said}");
    assert_eq!(figures.longest_gap_ms, None);
    let limited = self::recording(vec![(0, ended(1, EndReason::LimitFrontend))]);
    let said = told(&limited, Subject::Flow(FlowId(1))).unwrap();
    assert!(said[1].ends_with("its client saw RST.") && said[2] == "max_connections = 20 decided it.", "{said:?}");
    let by_source = self::recording(vec![(0, ended(1, EndReason::LimitSource))]);
    let said = told(&by_source, Subject::Flow(FlowId(1))).unwrap();
    assert_eq!(said[2], "max_connections_per_source = 3 decided it.");
    for (error, decided) in [(None, None), (Some("timed out"), Some("proxy_header_timeout = 3.0 s decided it."))] {
        let mut header = ended(1, EndReason::BadProxyHeader);
        if let What::FlowEnded { error: its, .. } = &mut header {
            *its = error.map(str::to_owned);
        }
        let said = told(&self::recording(vec![(0, header)]), Subject::Flow(FlowId(1))).unwrap();
        assert_eq!(said.get(2).map(String::as_str), decided, "a wrong header was not late");
    }
}

/// Regression: after a crash while a backend hung, the flows of the process before were told as this one's, and that the backend had
/// been lost long before was not.
#[test]
fn the_first_probe_of_a_process_is_told_with_what_the_process_before_had_found() {
    use HealthState::{Ejected, Ready};
    let start = |at| (at, What::Started { version: "1".to_owned() });
    let lost = |at| (at, changed(Ready, Ejected, Cause::TimedOut { after_ms: 500 }));
    let said = told(&recording(vec![start(0), lost(1000), start(9000), lost(9600)]), Subject::Event(3)).unwrap();
    let found = "For the process before, it was ejected since 2026-11-25 03:12:08.412Z: no answer within 500 ms.";
    assert!(said[1].starts_with("This was its first probe") && said[1].ends_with(found), "{said:?}");
    assert!(!said.iter().any(|it| it.contains("of the frontend's")), "no sample of this process: {said:?}");
    let again = vec![start(0), lost(1000), start(9000), lost(9600), (16_000, changed(Ejected, Ready, Cause::Passed))];
    let said = told(&recording(again), Subject::Event(3)).unwrap();
    assert!(said.last().unwrap().starts_with("This lasted 15 s: at "), "since the process before found it: {said:?}");
    let back = vec![start(0), lost(1000), (2000, changed(Ejected, Ready, Cause::Passed)), start(9000), lost(9600)];
    let said = told(&recording(back), Subject::Event(4)).unwrap();
    assert_eq!(said[1], "This was its first probe, which decides alone.");
}
