//! A frontend without a usable backend, and a host that is cut off.

use super::*;
use crate::model::fleet::vip::{VipLoss, VipWhy};
use crate::model::nodes::SilenceKind;

fn of(backend: &str, from: HealthState, to: HealthState, cause: Cause) -> What {
    What::BackendChanged { frontend: "apiserver".to_owned(), backend: backend.to_owned(), from, to, cause }
}

fn begun() -> What {
    What::RefusalsBegun { frontend: "apiserver".to_owned(), reason: EndReason::NoBackend }
}

fn all_lost() -> Vec<(u64, What)> {
    use HealthState::{Draining, Ejected, Ready};
    vec![
        (0, of("cp1", Ready, Ejected, Cause::TimedOut { after_ms: 500 })),
        (5_000, of("cp2", Ready, Draining, Cause::NoConnection)),
        (5_010, ended(1, EndReason::BackendReset)),
        (6_000, begun()),
        (6_100, ended(2, EndReason::NoBackend)),
    ]
}

/// Regression: of an outage the last loss alone was told.
#[test]
fn without_a_usable_backend_is_told_since_when_why_each_is_out_what_clients_felt_and_what_ends_it() {
    let recorded = recording(all_lost());
    let no_connection = Cause::NoConnection;
    for subject in [Subject::Last, Subject::Event(3)] {
        let said = told(&recorded, subject).unwrap();
        assert!(said[0].contains("apiserver: Baton began to reset new connections"), "{said:?}");
        assert_eq!(
            said[1],
            format!(
                "No backend of apiserver can be used since 2026-11-25 03:12:12.412Z: cp1 is ejected since 2026-11-25 03:12:07.412Z \
                 (no answer within 500 ms), cp2 is draining since 2026-11-25 03:12:12.412Z ({no_connection})."
            )
        );
        assert!(said[2].contains("1 new connection (no_backend 1)"), "{said:?}");
        assert!(said[3].contains("1 flow ended (backend_reset 1)"), "{said:?}");
        assert!(
            said[4].starts_with("It goes on at 2026-11-25 03:12:13.512Z, where the record ends: rise = 2"),
            "{said:?}"
        );
    }
}

#[test]
fn an_outage_that_is_over_is_told_with_what_ended_it() {
    use HealthState::{Draining, Ejected, Ready};
    let mut events = all_lost();
    events.push((65_000, of("cp2", Draining, Ready, Cause::Passed)));
    let reason = EndReason::NoBackend;
    let over = What::RefusalsOver {
        frontend: "apiserver".to_owned(),
        reason,
        refused: 40,
        lasted_ms: 58_000,
        last_unix_ms: None,
    };
    events.push((70_000, over));
    let (said, figures) = Story::new(&recording(events)).tell(&Subject::Last).unwrap();
    let all = said.join("\n");
    assert!(
        said[1].starts_with("No backend of apiserver could be used since 2026-11-25 03:12:12.412Z: cp1 was"),
        "{all}"
    );
    assert!(all.contains("40 new connections"), "{all}");
    assert!(
        said.last().unwrap().starts_with("That lasted 1 m 00 s: at 2026-11-25 03:13:12.412Z apiserver/cp2"),
        "{all}"
    );
    assert_eq!(figures.lasted_ms, Some(60_000));
    // Without a client that was refused, the loss of the last one begins it.
    let idle = vec![(0, of("cp1", Ready, Ejected, Cause::Refused)), (5_000, of("cp2", Ready, Ejected, Cause::Refused))];
    let said = told(&recording(idle), Subject::Last).unwrap();
    assert!(said[0].contains("cp2: ready → ejected") && said[1].contains("cp1 is ejected since"), "{said:?}");
}

/// Regression: refusals that had lasted 16.6 s were told as "over after 26 s" beside another fault, by the time at which their end was noticed.
#[test]
fn refusals_last_as_long_beside_another_fault_as_their_end_says() {
    let reason = EndReason::BackendsFull;
    let begun = What::RefusalsBegun { frontend: "apiserver".to_owned(), reason };
    let over = What::RefusalsOver {
        frontend: "apiserver".to_owned(),
        reason,
        refused: 40,
        lasted_ms: 16_600,
        last_unix_ms: None,
    };
    let why = "lb-b had it and was silent".to_owned();
    let gained = What::VipGained { vip: "10.0.0.100".to_owned(), why, gain: None, silent: Some("lb-b".to_owned()) };
    let (_, figures) =
        Story::new(&recording(vec![(0, begun), (26_000, over), (30_000, gained)])).tell(&Subject::Last).unwrap();
    assert!(figures.beside.iter().any(|it| it.contains("; over after 16 s")), "{:?}", figures.beside);
}

#[test]
fn an_outage_after_which_the_vip_went_to_a_peer_says_so() {
    let mut events = all_lost();
    let why = "no backend can be used here, and lb-b can use one".to_owned();
    events.push((
        7_000,
        What::VipGivenUp { vip: "10.0.0.100".to_owned(), why, loss: None, late_ms: None, cut_off: false },
    ));
    let said = told(&recording(events), Subject::Event(3)).unwrap().join("\n");
    assert!(said.contains("At 2026-11-25 03:12:14.412Z this host has given up the VIP 10.0.0.100"), "{said}");
    assert!(said.contains("lb-b"), "{said}");
}

/// Regression: a host whose cable was out told the nodes that it did not hear, or a source of names that it did not reach.
#[test]
fn a_host_that_is_still_cut_off_tells_that_and_what_ends_it() {
    let vip = || "10.0.0.100".to_owned();
    let carrier = || "the interface has no carrier".to_owned();
    let silent = What::NodesSilent {
        nodes: vec!["worker-5".to_owned()],
        more: 9,
        why: SilenceKind::NoByte,
        for_ms: 20_000,
        refused: None,
    };
    let names = What::NamesFailed { source: "the cluster".to_owned(), error: "timed out".to_owned(), kept: 3 };
    let given_up =
        What::VipGivenUp { vip: vip(), why: carrier(), loss: Some(VipLoss::NoCarrier), late_ms: None, cut_off: true };
    for cut in [given_up, What::VipHostCutOff { why: carrier(), cause: Some(VipWhy::NoCarrier) }] {
        let sentence = cut.sentence();
        let mut events = vec![(0, cut), (25_000, silent.clone()), (900_000, names.clone())];
        let said = told(&recording(events.clone()), Subject::Last).unwrap();
        assert!(said[0].contains(&sentence), "{said:?}");
        let still = "That is still so at 2026-11-25 03:27:07.412Z, where the record ends, after 15 m 00 s: it ends once the \
                     interface has a carrier again (cable, switch port).";
        assert!(said.iter().any(|it| it.starts_with(still)), "{said:?}");
        events.push((960_000, What::VipHeld { vip: vip(), by: "lb-b".to_owned() }));
        let said = told(&recording(events), Subject::Event(0)).unwrap();
        assert!(!said.join("\n").contains("still so") && said.join("\n").contains("16 m"), "{said:?}");
    }
}
