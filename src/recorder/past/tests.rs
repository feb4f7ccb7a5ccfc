//! Moments of the past.

use super::*;
use crate::model::health::Cause;
use crate::recorder::entry::FrontendSample;
use crate::recorder::{BackendSample, TimedRecord};
use crate::table::journal::testing::ended;

fn sample(at_s: u64, state: &str, flows: u32, connected: u64) -> Recorded {
    let backend = |name: &str, state: &str, flows, connected_total| BackendSample {
        frontend: "api".to_owned(),
        name: name.to_owned(),
        state: state.to_owned(),
        flows,
        connected_total,
        failed_total: 0,
        last_probe_us: 900,
    };
    Recorded::Sample(RecordedSample {
        at_unix_ms: at_s * 1000,
        frontends: vec![FrontendSample {
            name: "api".to_owned(),
            flows: flows + 10,
            accepted_total: connected * 2,
            ended_total: 0,
        }],
        backends: vec![backend("cp1", "ready", 10, connected), backend("cp2", state, flows, connected)],
        ..RecordedSample::default()
    })
}

fn lost(at_s: u64) -> Recorded {
    let what = What::BackendChanged {
        frontend: "api".to_owned(),
        backend: "cp2".to_owned(),
        from: HealthState::Ready,
        to: HealthState::Ejected,
        cause: Cause::Refused,
    };
    Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what })
}

fn past(of: impl IntoIterator<Item = (usize, Recorded)>) -> Past {
    let process = |pid| FileOwner { pid, ..FileOwner::default() };
    let records =
        of.into_iter().map(|(owner, what)| TimedRecord { at_unix_ms: what.at_unix_ms().unwrap(), owner, what });
    Past::new(Recording { records: records.collect(), owners: vec![process(1), process(2)], ..Recording::default() })
}

/// Regression: the header said "ready" of a moment at which all backends were ejected.
#[test]
fn a_moment_without_a_backend_is_not_called_ready_by_what_was_said_before() {
    let Recorded::Sample(mut before) = sample(100, "ready", 30, 1000) else { unreachable!() };
    before.backends.remove(0);
    let standing = InstanceStanding { headline: "ready".to_owned(), weight: "good".to_owned(), ..Default::default() };
    before.standing = Some(standing);
    let Recorded::Event(mut event) = lost(100) else { unreachable!() };
    event.at_unix_ms += 300;
    let past = past([(0, Recorded::Sample(before)), (0, Recorded::Event(event))]);
    let said = |at_ms| past.at(at_ms).standing.map(|it| (it.weight(), it.headline)).unwrap();
    assert_eq!(said(100_200), (Weight::Good, "ready".to_owned()));
    assert_eq!(said(100_300), (Weight::Bad, "ready for the VIP, no backend".to_owned()));
}

#[test]
fn a_moment_has_the_last_sample_the_rates_before_it_and_the_cause_of_each_state() {
    let past = past([
        (0, sample(100, "ready", 30, 1000)),
        (0, sample(105, "ready", 30, 1050)),
        (0, lost(106)),
        (0, sample(107, "ejected", 0, 1050)),
        (0, sample(108, "ejected", 0, 1050)),
    ]);
    let before = past.at(105_900);
    assert_eq!((before.flows, before.new_per_s), (40, Some(20.0)));
    assert_eq!((&*before.backends[1].state, before.backends[1].share_percent), ("ready", 75));
    assert_eq!(before.backends[1].why, None, "its beginning was not recorded");
    let at_once = &past.at(106_000).backends[1];
    assert_eq!((&*at_once.state, at_once.flows), ("ejected", 30), "the sample is older than the event");
    let after = past.at(108_500);
    let cp2 = &after.backends[1];
    assert_eq!((after.flows, &*cp2.state, cp2.since_unix_ms), (10, "ejected", Some(106_000)));
    assert_eq!(cp2.why.as_deref(), Some(&*Cause::Refused.to_string()));
    assert_eq!(cp2.health_state(), Some(HealthState::Ejected));
    assert_eq!(past.events(0, 105_999).count(), 0);
    assert_eq!(past.events(106_000, 106_000).count(), 1);
}

#[test]
fn a_time_in_which_no_process_recorded_has_no_figures() {
    let past = past([(0, sample(100, "ready", 30, 1000)), (0, sample(200, "ready", 30, 1000))]);
    assert_eq!(past.at(99_999).process, None);
    assert!(past.at(102_000).process.is_some());
    assert_eq!(past.at(102_001).process, None);
    let words = |at_ms| past.at(at_ms).gap.map(|gap| gap.in_words());
    let why = "nothing is recorded: no process ran, or its disk took nothing";
    assert_eq!(words(150_000), Some(format!("from 00:01:40Z to 00:03:20Z {why}")));
    assert_eq!(words(99_000), Some(format!("until 00:01:40Z {why}")));
    assert_eq!((words(200_000), past.at(200_000).new_per_s), (None, None), "one sample has no rate");
    assert_eq!(past.flows_over(95_000, 205_000, 11)[..2], [Some(40), None]);
    assert_eq!(past.flows_over(95_000, 205_000, 11)[9..], [None, Some(40)]);
}

/// Regression: of the second in which a process began `baton replay` said that none recorded, though it lists its start.
#[test]
fn the_second_in_which_a_process_began_has_its_first_sample() {
    let started = |at_unix_ms| {
        let what = What::Started { version: "1".to_owned() };
        (1, Recorded::Event(Event { number: 0, at_unix_ms, what }))
    };
    let past = past([(0, sample(100, "ready", 30, 9)), started(200_000), (1, sample(201, "ready", 30, 0))]);
    let begun = past.at(200_300);
    assert_eq!((begun.process.map(|it| it.pid), begun.flows, begun.new_per_s), (Some(2), 40, None));
    assert_eq!(past.at(199_999).process, None, "it had not begun");
    let Recorded::Sample(of_second) = sample(201, "ready", 30, 0) else { unreachable!() };
    assert!(tells_of(&Recorded::Sample(of_second), 200_000, 200_300), "it is read, too");
}

/// Regression: an upgrade would have shown millions of new flows a second, or none for ten seconds.
#[test]
fn rates_never_span_two_processes() {
    let past = past([
        (0, sample(100, "ready", 30, 1_000_000)),
        (1, sample(101, "ready", 30, 0)),
        (1, sample(103, "ready", 30, 20)),
    ]);
    assert_eq!(past.at(101_000).new_per_s, None);
    let after = past.at(103_000);
    assert_eq!((after.new_per_s, after.process.unwrap().pid), (Some(20.0), 2));
}

#[test]
fn flows_that_lived_then_and_have_ended_since_are_known() {
    // It lasted 5 ms.
    let end = |at_unix_ms| (0, Recorded::Event(Event { number: 1, at_unix_ms, what: ended(9) }));
    let past = past([end(100_000)]);
    assert_eq!(past.ended_since(99_998).count(), 1);
    assert_eq!(past.ended_since(99_990).count(), 0, "it had not begun");
    assert_eq!(past.ended_since(100_000).count(), 0, "it had ended");
    assert_eq!(past.at(100_000).ended.values().sum::<u64>(), 1);
    assert!(tells_of(&end(100_000).1, 99_998, 99_999) && !tells_of(&end(100_000).1, 99_000, 99_990));
}

/// Regression: at 2,000 ends a second the record of ends covers minutes, and the moments before were told without any.
#[test]
fn ends_that_the_record_no_longer_has_are_counted_from_the_samples() {
    let counted = |at_s, ends| {
        let Recorded::Sample(mut of_second) = sample(at_s, "ready", 30, 0) else { unreachable!() };
        of_second.increase.ended = vec![("client_closed".to_owned(), ends)];
        (0, Recorded::Sample(of_second))
    };
    let kept = (0, Recorded::Event(Event { number: 1, at_unix_ms: 120_000, what: ended(9) }));
    let mut past = past([counted(100, 50), counted(105, 70), counted(118, 3), kept, counted(121, 9)]);
    past.lost_until_ms = 90_000;
    assert!(past.at(105_000).ended.is_empty() && !past.lacks_ends(104_000), "all are in the record");
    past.lost_until_ms = 119_000;
    assert_eq!(past.at(105_500).ended, BTreeMap::from([("client_closed", 120)]));
    assert_eq!(past.ended(118_000, 122_000).values().sum::<u64>(), 4, "none twice");
    assert!(past.lacks_ends(104_000) && !past.lacks_ends(118_000));
}

/// Regression: of a second in which the disk was full, 29 of 500 ends were told as all, the rarest reasons first.
#[test]
fn ends_of_a_time_in_which_the_disk_was_full_are_a_lower_limit() {
    let dropped = |at_s: u64| {
        let what = What::RecordsDropped { records: 494 };
        (0, Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what }))
    };
    let end = |at_s: u64| (0, Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what: ended(9) }));
    let at = |at_s| (0, sample(at_s, "ready", 30, 0));
    let past = past([at(100), end(102), at(103), dropped(120), at(121), end(124), at(131), end(131)]);
    let words = |at_s: u64| past.at(at_s * 1000).ended_in_words();
    let reason = words(131).split_once(' ').unwrap().1.to_owned();
    let gap = past.at(110_000).gap.expect("a gap");
    assert_eq!(gap.in_words(), "from 00:01:43Z to 00:02:01Z nothing is recorded: the disk took no records");
    assert_eq!(words(102), format!("1 {reason}"), "before the disk was full");
    assert_eq!(words(124), format!("at least 1 {reason}"));
    assert_eq!(words(132), format!("2 {reason}"), "ten seconds later");
    let many = BTreeMap::from([("backend_reset", 3), ("no_backend", 19_042)]);
    let moment = ReplayMoment { ended: many, ..ReplayMoment::default() };
    assert_eq!(moment.ended_in_words(), "19,042 no_backend, 3 backend_reset");
}

/// Regression: a flow that another instance had until its host died was listed among the flows of this one of an hour before.
#[test]
fn a_flow_that_came_from_another_instance_was_not_here_before_it_came() {
    let name = |name: &str| InstanceName(name.into());
    let came = |at_s: u64, from: &str| {
        let what = What::FailedOver { instance: name(from), inherited: 1, reset: 0 };
        (0, Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what }))
    };
    let end = |flow: FlowId| {
        let mut what = ended(9);
        let What::FlowEnded { flow: its, duration_ms, .. } = &mut what else { unreachable!() };
        (*its, *duration_ms) = (flow, 100_000);
        (0, Recorded::Event(Event { number: 900, at_unix_ms: 200_000, what }))
    };
    let of = |from: &str| FlowId::of(name(from).tag(), 7);
    let mut past = past([came(130, "lb-b"), came(150, "lb-c"), end(of("lb-b")), end(of("lb-a")), end(FlowId(7))]);
    past.owners[0].instance = Some("lb-a".to_owned());
    assert_eq!(past.ended_since(120_000).count(), 2, "its own, and one of before there was a fleet");
    assert_eq!(past.ended_since(130_000).count(), 3);
}

/// Regression: at a standby, 16 of 0 flows of a moment had ended since: it had taken them from a peer after the time that was read.
#[test]
fn flows_that_came_from_another_instance_after_the_time_that_was_read_were_not_here_before() {
    let (own, peer) = (InstanceName("lb-b".into()), InstanceName("lb-a".into()));
    let event = |at_s: u64, what| Recorded::Event(Event { number: at_s, at_unix_ms: at_s * 1000, what });
    let end = |from: &InstanceName| {
        let mut what = ended(9);
        let What::FlowEnded { flow, duration_ms, .. } = &mut what else { unreachable!() };
        (*flow, *duration_ms) = (FlowId::of(from.tag(), 7), 900_000);
        what
    };
    let all = [
        event(900, What::FailedOver { instance: peer.clone(), inherited: 1, reset: 0 }),
        event(950, What::OffloadResumed {}),
        event(1000, end(&own)),
        event(1000, end(&peer)),
    ];
    let read = all.into_iter().filter(|what| tells_of(what, 120_000, 180_000)).map(|what| (0, what));
    let mut past = past(read);
    past.owners[0].instance = Some("lb-b".to_owned());
    assert_eq!(past.ended_since(150_000).count(), 1, "its own");
    assert_eq!(past.ended_since(900_000).count(), 2);
    assert!(past.events(0, u64::MAX).all(|event| matches!(event.what, What::FailedOver { .. })), "no more is read");
}
