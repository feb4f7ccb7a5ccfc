//! One failover has one gap, whichever of its events is asked for.

use super::*;

fn gained(why: &str, silent: Option<&str>) -> What {
    What::VipGained { vip: "10.0.0.100".to_owned(), why: why.to_owned(), gain: None, silent: silent.map(str::to_owned) }
}

/// Regression: the threads that take the VIP and that count a peer's silence record in either order: the gap of one event was that of the
/// flows, and of another that of the VIP.
#[test]
fn each_event_of_a_failover_after_a_cut_link_tells_the_same_gap() {
    let lost = What::PeerLost { peer: "lb-b".to_owned(), why: "it is silent".to_owned() };
    let cut = |silent_ms, vip_ms| {
        let mut events = vec![
            (silent_ms, liveness("lb-b", Liveness::Silent)),
            (vip_ms, gained("lb-b had it and was silent", Some("lb-b"))),
            (600, lost.clone()),
            (1_000, What::FailedOver { instance: InstanceName("lb-b".into()), inherited: 40, reset: 0 }),
            (1_010, liveness("lb-b", Liveness::Dead)),
        ];
        events.sort_by_key(|(at_ms, _)| *at_ms);
        recording(events)
    };
    for (silent_ms, vip_ms, gap_ms) in [(310, 300, 10_240), (300, 310, 10_260)] {
        let recording = cut(silent_ms, vip_ms);
        let subjects = [0, 1, 3, 4].map(Subject::Event).into_iter();
        for subject in subjects.chain([Subject::Last, Subject::Instance("lb-b".to_owned())]) {
            let (said, figures) = Story::new(&recording).tell(&subject).unwrap();
            assert_eq!(figures.longest_gap_ms, Some(gap_ms), "{subject:?}: {said:?}");
        }
    }
}

/// Regression: a host that was cut off told its own absence as the gap, though a peer had the VIP meanwhile, which tells 0.5 s.
#[test]
fn a_host_that_takes_the_vip_again_after_a_cut_link_tells_no_gap_of_what_it_could_not_hear() {
    let why = "the interface has no carrier".to_owned();
    let given_up = What::VipGivenUp { vip: "10.0.0.100".to_owned(), why, loss: None, late_ms: None, cut_off: true };
    let recording = recording(vec![(0, given_up), (60_000, gained("no instance had it", None))]);
    let (said, figures) = Story::new(&recording).tell(&Subject::Event(1)).unwrap();
    assert_eq!(figures.longest_gap_ms, None, "{said:?}");
    assert!(!said.join("\n").contains("longest gap"), "{said:?}");
    assert!(said.iter().any(|it| it.contains("could not hear whether a peer had it meanwhile")), "{said:?}");
}
