//! The events of the VIP.

use super::*;
use crate::model::fleet::vip::{VipGain, VipLoss};

fn vip() -> String {
    "10.0.0.100".to_owned()
}

fn lb_b() -> InstanceName {
    InstanceName("lb-b".into())
}

fn gained(gain: VipGain) -> What {
    What::VipGained { vip: vip(), why: gain.to_string(), gain: Some(gain), silent: None }
}

fn given_up(loss: VipLoss) -> What {
    What::VipGivenUp { vip: vip(), why: loss.to_string(), loss: Some(loss), late_ms: None, cut_off: false }
}

fn held(by: &str) -> What {
    What::VipHeld { vip: vip(), by: by.to_owned() }
}

fn moved(flow: u64) -> What {
    ended(flow, EndReason::Moved)
}

/// Regression: an event of the VIP was explained by its own sentence alone.
#[test]
fn a_move_of_the_vip_is_told_with_what_decided_it_the_flows_and_who_had_it_before_and_after() {
    let recording = recording(vec![
        (0, held("lb-b")),
        (60_000, gained(VipGain::GivenUp(lb_b()))),
        (60_050, What::FlowsClaimed { instance: InstanceName("lb-b".into()), flows: 12 }),
        (3_660_000, given_up(VipLoss::NoBackend { heir: lb_b() })),
        (3_660_100, moved(1)),
        (3_660_200, ended(2, EndReason::BackendReset)),
        (3_660_300, held("lb-b")),
        (9_000_000, held("lb-c")),
    ]);
    let explained = |event| Story::new(&recording).tell(&Subject::Event(event)).unwrap();
    let (said, figures) = explained(1);
    assert!(said[1].contains("the highest priority in [vip]"), "{said:?}");
    assert_eq!(said[2], "lb-b had had it since 2026-11-25 03:12:07.412Z, for 1 m 00 s.");
    assert_eq!(said[3], "12 flows of other instances came with it and went on here; this host had 90 flows before.");
    assert!(
        said[4].starts_with("It had it for 1 h 00 m: at 2026-11-25 04:13:07.412Z this host has given up"),
        "{said:?}"
    );
    assert_eq!(figures.lasted_ms, Some(3_600_000));
    let (said, figures) = explained(3);
    assert!(said[1].starts_with("For 1.5 s no backend could be used here, and one could at lb-b"), "{said:?}");
    assert_eq!(said[2], "This host had had it since 2026-11-25 03:13:07.412Z, for 1 h 00 m.");
    assert!(
        said[3].contains("within 10 s 1 moved on to another instance, and 1 ended with RST (backend_reset 1)"),
        "{said:?}"
    );
    assert_eq!(said[4], "300 ms later lb-b has the VIP 10.0.0.100 now.");
    assert_eq!(figures.flows_ended, BTreeMap::from([("backend_reset", 1)]));
    let (said, _) = explained(6);
    assert!(said[1].starts_with("About then, at ") && said[1].contains("this host has given up the VIP"), "{said:?}");
    assert!(said.last().unwrap().starts_with("lb-b had it for 1 h 28 m: at "), "{said:?}");
    let (said, _) = explained(7);
    assert_eq!(said[1], "Why, this record does not say: that of lb-c does (`baton vip --why`, there).");
    assert!(said.last().unwrap().starts_with("lb-c still had it at "), "{said:?}");
    assert!((0..8).all(|event| explained(event).0.len() <= SENTENCES_MAX));
}

/// Regression: nobody was told that no instance had the VIP for two seconds.
#[test]
fn a_vip_that_nobody_had_for_a_while_is_told_with_the_longest_gap() {
    let recording =
        recording(vec![(0, given_up(VipLoss::NotReady { heir: lb_b() })), (2_000, gained(VipGain::Vacant))]);
    let (said, figures) = Story::new(&recording).tell(&Subject::Event(1)).unwrap();
    let gap = "so the longest gap that a node can have seen is 12 s: these 2.0 s, and a renewal's 10 s.";
    assert!(said.iter().any(|it| it.contains("this instance is not ready") && it.ends_with(gap)), "{said:?}");
    assert_eq!(figures.longest_gap_ms, Some(12_000));
    let (said, _) = Story::new(&recording).tell(&Subject::Event(0)).unwrap();
    assert_eq!(said[1], "An instance that is not ready does not keep it while another is: lb-b was.");
}

#[test]
fn a_contested_vip_is_told_with_how_long_it_lasted_and_how_often() {
    let address = "10.0.0.100".parse().unwrap();
    let by = || "02:00:00:00:00:09".to_owned();
    let defended = || What::VipDefended { by: by() };
    let recording = recording(vec![
        (0, gained(VipGain::Vacant)),
        (10_000, defended()),
        (20_000, defended()),
        (25_000, What::VipShared { address, by: by() }),
        (55_000, What::VipAlone { address }),
    ]);
    let said = |event| told(&recording, Subject::Event(event)).unwrap();
    assert!(said(2).contains(&"Another host has claimed it 2 times within 10 m 00 s.".to_owned()), "{:?}", said(2));
    assert!(said(3).last().unwrap().starts_with("That lasted 30 s: at "), "{:?}", said(3));
    assert!(said(4).last().unwrap().starts_with("That ended what had lasted 30 s: at "), "{:?}", said(4));
    assert!(said(3).iter().any(|it| it.starts_with("This host had had it since ")), "{:?}", said(3));
}

/// Regression: the address of the VIP was no event and no peer.
#[test]
fn the_address_of_the_vip_is_explained_by_its_last_move() {
    let recording = recording(vec![(0, held("lb-b")), (60_000, gained(VipGain::GivenUp(lb_b())))]);
    let (said, figures) = Story::new(&recording).named("10.0.0.100").unwrap();
    assert!(said[0].contains("this host has the VIP 10.0.0.100 now: lb-b gave it up."), "{said:?}");
    assert_eq!(
        said.last().unwrap(),
        "The record has 2 moves of it, as this host saw them, since 2026-11-25 03:12:07.412Z."
    );
    assert_eq!(figures.see_also, ["baton explain event:0"]);
    assert_eq!(Story::new(&recording).named("10.0.0.101").map(|it| it.0), None);
}
