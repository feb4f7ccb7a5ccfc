//! The longest gap, and times that cannot be.

use super::*;

/// Regression: after a clock was set back, a difference of two times was 584 million years, or ended the command.
#[test]
fn a_clock_that_was_set_back_changes_no_more_than_the_times() {
    let mut reversed = hung().records;
    let all: Vec<_> = reversed.iter().map(|record| record.at_unix_ms).rev().collect();
    for (record, at_ms) in reversed.iter_mut().zip(all) {
        record.at_unix_ms = at_ms;
        match &mut record.what {
            Recorded::Event(event) => event.at_unix_ms = at_ms,
            Recorded::Sample(sample) => sample.at_unix_ms = at_ms,
            Recorded::Owner(_) => {}
        }
    }
    let recording = Recording { records: reversed, ..hung() };
    let subjects = (0..40).flat_map(|number| [Subject::Event(number), Subject::Number(number)]);
    for subject in subjects.chain([Subject::Last, Subject::Backend("cp2".to_owned())]) {
        let said = told(&recording, subject).unwrap_or_default().join(" ");
        assert!(!said.contains(" d "), "{said}");
    }
}

#[test]
fn an_outage_of_all_backends_is_part_of_the_longest_gap_whichever_was_lost_first() {
    use HealthState::{Ejected, Ready};
    let lost = || (1000, changed(Ready, Ejected, Cause::Refused));
    let order = (1001, ended(1, EndReason::BackendEjected));
    let gap = |events: Vec<(u64, What)>| {
        let sentences = told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap();
        let found: Vec<_> =
            sentences.iter().filter(|it| it.contains("longest gap") || it.contains("its clients had none")).collect();
        assert_eq!(found.len(), 1, "{sentences:?}");
        found[0].clone()
    };
    let with = "The longest gap that a node can have seen is 12.3 s: ";
    assert!(gap(vec![lost(), order.clone()]).starts_with(with));
    // cp1 was lost before, or a moment later; it is back 14 s after cp2's loss. Each counts from the loss of the last one.
    let back = || (15_000, other(Ejected, Ready));
    for (at, outage, longest) in [(500, "14 s", "33.3 s"), (1400, "13.6 s", "32.9 s")] {
        let mut events = vec![lost(), order.clone(), (at, other(Ready, Ejected)), back()];
        events.sort_by_key(|(at, _)| *at);
        let said = gap(events);
        let expected = format!(
            "Then no backend of apiserver served for {outage}, so the longest gap that a node can have seen is {longest}: 2.3 s from"
        );
        assert!(said.starts_with(&expected), "{said}");
    }
    // Regression: an outage of 20 s, after which kubelets pause between their tries, was told as 6 s less than one of them had waited.
    let pause = |for_ms: u64| gap(vec![(500, other(Ready, Ejected)), lost(), (1000 + for_ms, other(Ejected, Ready))]);
    assert!(pause(20_000).contains("7.0 s for which a kubelet then pauses"), "{}", pause(20_000));
    assert!(pause(1_000).contains("1.2 s for which a kubelet then pauses"), "{}", pause(1_000));
    let said = gap(vec![(0, other(Ready, Ejected)), lost(), order.clone()]);
    assert!(said.contains("served until the record ends"), "{said}");
    // One that is lost after half a minute is another matter.
    assert!(gap(vec![lost(), order, (31_000, other(Ready, Ejected))]).starts_with(with));
    let unused = told(&recording(vec![lost()]), Subject::Backend("cp2".to_owned())).unwrap();
    assert!(!unused.iter().any(|it| it.contains("gap")), "nobody waited: {unused:?}");
}

/// Regression: an outage was told, and a gap next to NotReady, while a backend that drained served all clients.
#[test]
fn a_backend_that_drains_serves_and_an_outage_begins_with_the_loss_of_the_last_one() {
    use HealthState::{Draining, Ejected, Ready};
    let slow = || (1300, other(Ready, Draining));
    let lost =
        || vec![slow(), (1000, changed(Ready, Ejected, Cause::Refused)), (1001, ended(1, EndReason::BackendEjected))];
    let said = |mut events: Vec<(u64, What)>| {
        events.sort_by_key(|(at, _)| *at);
        told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap().join("\n")
    };
    let served = said(lost());
    assert!(served.contains("gap that a node can have seen is 12.3 s: ") && !served.contains("no backend"), "{served}");
    let outage = [lost(), vec![(5000, other(Draining, Ejected)), (25_000, other(Ejected, Ready))]].concat();
    assert!(
        said(outage.clone()).contains("no backend of apiserver served for 20 s, so the longest gap"),
        "{}",
        said(outage)
    );
}

/// Regression: what is only there for its last flows counted as a backend that serves, and an outage of 15 s as one of 356 ms; and one that ended
/// with the VIP's move as one that lasts.
#[test]
fn an_outage_goes_on_though_a_former_backend_has_flows_and_ends_as_the_vip_goes_to_a_host_that_serves() {
    use HealthState::{Draining, Ejected, Ready};
    let former = |from, to| What::BackendChanged {
        frontend: "apiserver".to_owned(),
        backend: "cp2 (10.0.0.12:6443)".to_owned(),
        from,
        to,
        cause: Cause::Readdressed,
    };
    let lost = || {
        vec![
            (0, other(Ready, Ejected)),
            (1000, changed(Ready, Ejected, Cause::Refused)),
            (1001, ended(1, EndReason::BackendEjected)),
            (1300, former(Ready, Draining)),
        ]
    };
    let said = |more: Vec<(u64, What)>| {
        told(&recording([lost(), more].concat()), Subject::Backend("cp2".to_owned())).unwrap().join("\n")
    };
    let outage = said(vec![(16_000, other(Ejected, Ready))]);
    assert!(outage.contains("no backend of apiserver served for 15 s, so the longest gap"), "{outage}");
    let left = What::VipGivenUp {
        vip: "10.0.0.100".to_owned(),
        why: "no backend can be used here".to_owned(),
        loss: None,
        late_ms: None,
        cut_off: false,
    };
    let moved = said(vec![(3000, left), (16_000, other(Ejected, Ready))]);
    assert!(moved.contains("served for 2.0 s, until this host gave the VIP up, so the longest gap"), "{moved}");
    // Regression: it was told as if nobody waited after that.
    assert!(
        moved.contains("is at least 14.3 s") && moved.contains("the host that has the VIP since can tell"),
        "{moved}"
    );
}

/// Regression: of a backend whose process was killed, the gap was that of one that hangs, or none was told.
#[test]
fn a_backend_whose_kernel_ended_its_flows_costs_a_renewal_and_no_more() {
    use HealthState::{Ejected, Ready};
    let by_kernel = || (-200, ended(1, EndReason::BackendClosed));
    let said = |cause, events: Vec<(i64, What)>| {
        let all = [vec![by_kernel(), (0, changed(Ready, Ejected, cause))], events].concat();
        let later = all.into_iter().map(|(at, what)| (u64::try_from(at + 1000).unwrap(), what));
        let (sentences, figures) = Story::new(&recording(later.collect())).tell(&Subject::Last).unwrap();
        (sentences.join("\n"), figures.longest_gap_ms)
    };
    let (killed, gap_ms) = said(Cause::Refused, vec![]);
    assert!(
        killed.contains(
            "Its kernel ended its flows at once, so the longest gap that a node can have seen is 10 s: a renewal's."
        ),
        "{killed}"
    );
    assert_eq!(gap_ms, Some(10_000));
    let (one_was_reset, gap_ms) = said(Cause::Refused, vec![(50, ended(2, EndReason::BackendEjected))]);
    assert!(
        one_was_reset.contains("The longest gap that a node can have seen is 12.3 s: 2.3 s from"),
        "{one_was_reset}"
    );
    assert_eq!(gap_ms, Some(12_250));
    let (silent, gap_ms) = said(Cause::TimedOut { after_ms: 500 }, vec![]);
    assert!(!silent.contains("Its kernel") && gap_ms.is_none(), "{silent}");
}

/// Regression: the killed holder of a VIP told a gap of 24 s, though its own record shows that its peer had the VIP by then.
#[test]
fn a_host_whose_vip_a_peer_took_while_it_had_no_process_tells_no_gap_of_its_own() {
    let started = || What::Started { version: "1".to_owned() };
    let held = What::VipHeld { vip: "10.0.0.100".to_owned(), by: "lb-b".to_owned() };
    let kept =
        What::VipGained { vip: "10.0.0.100".to_owned(), why: "it was here".to_owned(), gain: None, silent: None };
    let of = |found: What| {
        let recording = recording(vec![(0, started()), (14_600, started()), (15_000, found)]);
        Story::new(&recording).tell(&Subject::Event(1)).unwrap()
    };
    let (said, figures) = of(held);
    assert!(
        said[2].starts_with("No process ran for at most 14.6 s, and within that time lb-b took the VIP"),
        "{said:?}"
    );
    assert!(!said.iter().any(|it| it.contains("longest gap")) && figures.longest_gap_ms.is_none(), "{said:?}");
    let (said, figures) = of(kept);
    assert!(said[2].contains("longest gap") && figures.longest_gap_ms == Some(24_600), "{said:?}");
}

/// Regression: "Baton reset none of its flows" of a loss whose ends a full disk had not taken.
#[test]
fn ends_that_the_disk_did_not_take_are_not_told_as_none() {
    use HealthState::{Ejected, Ready};
    let lost = changed(Ready, Ejected, Cause::TimedOut { after_ms: 500 });
    let dropped = (4_000, What::RecordsDropped { records: 31 });
    let said = |events| told(&recording(events), Subject::Backend("cp2".to_owned())).unwrap().join(" ");
    let none = "Baton reset none of its flows.";
    assert!(said(vec![(0, lost.clone())]).contains(none));
    let hedged = said(vec![(0, lost.clone()), dropped.clone()]);
    assert!(!hedged.contains(none), "{hedged}");
    assert!(hedged.contains("The record has no end of its flows. The record lacks 31 events of that time"), "{hedged}");
    // It was over before.
    let before = said(vec![(0, dropped.1), (5_000, lost)]);
    assert!(before.contains(none), "{before}");
}

/// Regression: a process whose workers hung, and which had given the VIP up before it ended itself, was told as killed while it had the VIP.
#[test]
fn a_process_that_hung_and_had_given_the_vip_up_is_told_so() {
    let started = || What::Started { version: "1".to_owned() };
    let vip = || "10.0.0.100".to_owned();
    let gained = What::VipGained { vip: vip(), why: "it was free".to_owned(), gain: None, silent: None };
    let given_up = What::VipGivenUp {
        vip: vip(),
        why: "this instance is not ready".to_owned(),
        loss: None,
        late_ms: None,
        cut_off: false,
    };
    let stuck = What::WorkerStuck { worker: 0, for_ms: 1_200 };
    let events = vec![(0, started()), (10, gained), (9_000, given_up), (9_200, stuck), (40_000, started())];
    let recording = recording(events);
    let (said, figures) = Story::new(&recording).tell(&Subject::Last).unwrap();
    assert!(said[0].contains("starts") && said[2].contains("worker 0 was stuck: a process"), "{said:?}");
    assert!(said[3].starts_with("It had given the VIP up") && figures.longest_gap_ms.is_none(), "{said:?}");
}
