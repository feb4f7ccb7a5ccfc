//! What instances say of themselves to each other.

use super::*;
use crate::model::fleet::summary::tests::{backend, largest};
use crate::model::fleet::{PortRange, port_range};
use crate::model::health::HealthState;

/// What instance `at` says of itself.
fn sets_summary(fleet: &mut Fleet, at: usize, flows_proxied: u64) {
    let backends = vec![backend("cp-1", HealthState::Ready, 5_000)];
    let summary =
        InstanceSummary { phase: "serving".to_owned(), flows_proxied, backends, ..InstanceSummary::default() };
    let now_ns = fleet.now_ns;
    fleet.instances[at].set_summary(summary.into(), now_ns);
}

#[test]
fn peers_know_each_others_summaries_where_both_releases_have_them() {
    let mut fleet = Fleet::linked(&["a", "b", "c"]);
    sets_summary(&mut fleet, 0, 7);
    // The link to c has version 1.
    for (at, peer) in [(0, "b"), (1, "a")] {
        let now_ns = fleet.now_ns;
        fleet.instances[at].tell_summaries(&name(peer), now_ns);
    }
    sets_summary(&mut fleet, 1, 8);
    sets_summary(&mut fleet, 2, 9);
    fleet.talk();
    assert_eq!(fleet.view(1, "a").summary.unwrap().summary.flows_proxied, 7, "told as soon as the link is up");
    assert_eq!(fleet.view(0, "b").summary.unwrap().summary.flows_proxied, 8);
    for (at, of) in [(0, "c"), (1, "c"), (2, "a"), (2, "b")] {
        let view = fleet.view(at, of);
        assert_eq!((view.summary, view.liveness, view.synced), (None, Liveness::Alive, true));
    }
}

/// Regression: a host with another range of source ports had a part of another instance's, and nothing said so.
#[test]
fn instances_with_the_same_source_ports_are_told_where_both_releases_say_them() {
    let overlaps = |says: bool, ports| {
        let mut fleet = Fleet::linked(&["a", "b"]);
        fleet.instances[1].own.ports = Some(ports);
        if says {
            fleet.instances[1].tell_ports(&name("a"));
        }
        fleet.talk();
        let notices = std::iter::from_fn(|| fleet.instances[0].poll_notice());
        notices.filter(|notice| matches!(notice, Notice::PortsOverlap { .. })).count()
    };
    let range = |first, last| PortRange { first, last };
    assert_eq!(fleet_part(0), range(32768, 36296));
    assert_eq!(
        [range(36296, 36297), range(1024, 32768), range(33000, 33001)].map(|ports| overlaps(true, ports)),
        [1; 3]
    );
    assert_eq!([range(36297, 40000), range(1024, 32767)].map(|ports| overlaps(true, ports)), [0; 2]);
    assert_eq!(overlaps(false, range(33000, 33001)), 0);
}

/// Regression: with the check of ports, flows that began while their host had another range would be no instance's.
#[test]
fn flows_from_ports_that_are_none_of_their_host_any_more_are_told_with_their_ports() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let begin = |fleet: &mut Fleet, port| {
        fleet.establish(1, [port]);
        fleet.talk();
        let told = std::mem::take(&mut fleet.told[0]).into_iter().filter_map(|remote| match remote {
            Remote::Ports { ports, .. } => Some(ports),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(begin(&mut fleet, 20_000), [], "the link has no such message");
    fleet.instances[1].tell_ports(&name("a"));
    let told = begin(&mut fleet, 40_000);
    assert_eq!(told[0], PortRange { first: 32_768, last: 61_006 }, "all of its host, whatever its part");
    assert!(told.len() == 2 && told[1].contains(20_000), "{told:?}");
    assert_eq!([begin(&mut fleet, 60_000), begin(&mut fleet, 20_000)], [[], []], "nothing new");
    let told = begin(&mut fleet, 19_000);
    assert!(told.len() == 1 && told[0].contains(19_000) && told[0].contains(20_000), "{told:?}");
}

fn fleet_part(slot: u8) -> PortRange {
    port_range(32768..=60999, slot).unwrap()
}

#[test]
fn the_last_summary_of_a_lost_peer_stays_with_its_age_and_goes_with_its_next_process() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let now_ns = fleet.now_ns;
    fleet.instances[1].tell_summaries(&name("a"), now_ns);
    sets_summary(&mut fleet, 1, 8);
    fleet.talk();
    let said = fleet.view(0, "b").summary.unwrap();
    assert_eq!((said.age_ms, said.is_present), (0, true));
    fleet.instances[0].handle_loss(&name("b"), "it is gone", now_ns);
    fleet.pass(2_000);
    let said = fleet.view(0, "b").summary.unwrap();
    assert_eq!((said.age_ms, said.is_present, said.summary.flows_proxied), (2_000, false, 8));
    // Its host begins anew, and this process has said nothing yet.
    fleet.instances[1].begin_again(Epoch(2), now_ns);
    fleet.link(0, 1);
    fleet.talk();
    assert_eq!((fleet.view(0, "b").summary, fleet.view(0, "b").liveness), (None, Liveness::Alive));
}

#[test]
fn a_peer_that_lives_and_has_said_nothing_for_long_is_not_of_the_present() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let now_ns = fleet.now_ns;
    fleet.instances[1].tell_summaries(&name("a"), now_ns);
    sets_summary(&mut fleet, 1, 8);
    fleet.talk();
    let mut wait = |ms: u64| {
        for _ in 0..ms / 50 {
            fleet.pass(50);
            fleet.talk();
        }
        let view = fleet.view(0, "b");
        (view.liveness, view.summary.unwrap().is_present)
    };
    assert_eq!(wait(14_900), (Liveness::Alive, true));
    assert_eq!(wait(100), (Liveness::Alive, false));
}

#[test]
fn a_summary_beyond_the_limits_ends_the_link_and_is_not_kept() {
    let mut fleet = Fleet::linked(&["a", "b"]);
    let now_ns = fleet.now_ns;
    let mut hostile = largest();
    hostile.backends.push(backend("one more", HealthState::Ready, 0));
    fleet.instances[0].handle_message(&name("b"), Message::Summary(Box::new(largest())), now_ns);
    assert_eq!(fleet.instances[0].poll_drop(), None);
    fleet.instances[0].handle_message(&name("b"), Message::Summary(Box::new(hostile)), now_ns);
    let (peer, why) = fleet.instances[0].poll_drop().expect("a violation");
    assert_eq!((&*peer.0, &*why), ("b", "one of its messages is longer than allowed"));
    assert_eq!(*fleet.view(0, "b").summary.unwrap().summary, largest());
}
