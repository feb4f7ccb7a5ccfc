//! A process that did not run for some seconds.

use super::*;

fn paused(proxied: u64) -> What {
    What::ProcessPaused { for_ms: 3_100, proxied }
}

fn vip() -> String {
    "10.0.0.100".to_owned()
}

/// Regression: a process that was stopped for three seconds told nothing of it.
#[test]
fn a_process_that_did_not_run_is_told_with_its_beginning_and_the_longest_gap() {
    let gained = What::VipGained { vip: vip(), why: "no instance had it".to_owned(), gain: None, silent: None };
    let events = vec![(0, gained), (60_000, paused(12)), (60_100, ended(1, EndReason::ClientReset))];
    let (said, figures) = Story::new(&recording(events)).tell(&Subject::Last).unwrap();
    assert!(said[0].contains("did not run for 3.1 s") && said[0].contains("12 proxied flows"), "{said:?}");
    assert!(said[1].starts_with("It began at about 2026-11-25 03:13:04.312Z"), "{said:?}");
    assert!(said[2].contains("is 13.1 s: 3.1 s of this, and a renewal's 10 s"), "{said:?}");
    assert!(said[3].contains("client_reset 1"), "{said:?}");
    assert_eq!((figures.longest_gap_ms, figures.lasted_ms), (Some(13_100), Some(3_100)));
    let standby = vec![(0, What::VipHeld { vip: vip(), by: "lb-b".to_owned() }), (60_000, paused(0))];
    let said = told(&recording(standby), Subject::Event(1)).unwrap();
    assert!(said.iter().any(|it| it.contains("neither the VIP nor a proxied flow")), "{said:?}");
}

#[test]
fn a_peer_that_took_the_vip_of_a_process_that_did_not_run_is_named() {
    let why = "this process did not run for up to 3.1 s, so that the kernel removed the addresses".to_owned();
    let given_up = What::VipGivenUp { vip: vip(), why, loss: None, late_ms: Some(3_100), cut_off: false };
    for (first, second, number) in [(0, 5, 0), (5, 0, 1)] {
        let mut events = vec![
            (first, paused(12)),
            (second, given_up.clone()),
            (30, What::FlowsReleased { instance: InstanceName("lb-b".into()), flows: 7 }),
        ];
        events.sort_by_key(|(at_ms, _)| *at_ms);
        let recording = recording(events);
        let (said, figures) = Story::new(&recording).tell(&Subject::Event(number)).unwrap();
        let said = said.join("\n");
        assert!(said.contains("this host has given up the VIP") && said.contains("7 flows"), "{said}");
        assert!(said.contains("that peer's record tells how long they waited"), "{said}");
        assert_eq!(figures.longest_gap_ms, None);
    }
}
