//! New connections that were reset.

use super::*;
use crate::model::nodes::{NodeRefusal, SilenceKind};

fn begun(reason: EndReason) -> What {
    What::RefusalsBegun { frontend: "apiserver".to_owned(), reason }
}

/// Regression: a limit that was reached left no event, so that nothing told it.
#[test]
fn a_limit_that_was_reached_is_told_with_its_value_and_how_many_it_cost() {
    let reason = EndReason::LimitFrontend;
    let over = What::RefusalsOver {
        frontend: "apiserver".to_owned(),
        reason,
        refused: 1204,
        lasted_ms: 32_000,
        last_unix_ms: None,
    };
    let whole = recording(vec![(0, begun(reason)), (43_000, over.clone()), (60_000, begun(EndReason::RateSource))]);
    for subject in [Subject::Last, Subject::Event(0), Subject::Event(1)] {
        let (said, figures) = Story::new(&whole).tell(&subject).unwrap();
        assert_eq!(
            said,
            [
                "At 2026-11-25 03:12:07.412Z apiserver: Baton began to reset new connections: max_connections of the frontend was reached.",
                "max_connections = 20 decided it.",
                "Baton reset 1,204 new connections within 32 s; at 2026-11-25 03:12:50.412Z none had come for a while.",
            ]
        );
        assert_eq!((figures.lasted_ms, figures.flows_ended["limit_frontend"]), (Some(32_000), 1204));
    }
    let mut dated = over.clone();
    if let What::RefusalsOver { last_unix_ms, .. } = &mut dated {
        *last_unix_ms = Some(whole.records[1].at_unix_ms + 33_000);
    }
    let said = told(&recording(vec![(0, begun(reason)), (43_000, dated)]), Subject::Event(0)).unwrap();
    assert!(said[2].ends_with("within 32 s; the last one came at 2026-11-25 03:12:40.412Z."), "{said:?}");
    let goes_on = recording(vec![(600, ended(1, reason)), (700, begun(reason)), (950, ended(2, reason)), (960, over)]);
    let goes_on = Recording { records: goes_on.records[..4].to_vec(), ..goes_on };
    let said = told(&goes_on, Subject::Last).unwrap();
    let end = "They were still going on at 2026-11-25 03:12:08.362Z, where the record ends; it has so many: limit_frontend 2.";
    assert_eq!(said.last().unwrap(), end, "the first came before the event");
}

#[test]
fn without_a_backend_the_refusals_are_told_with_the_last_loss() {
    let lost = changed(HealthState::Ready, HealthState::Ejected, Cause::Refused);
    let recording =
        recording(vec![(0, lost), (400, begun(EndReason::NoBackend)), (500, ended(1, EndReason::NoBackend))]);
    let said = told(&recording, Subject::Event(1)).unwrap();
    assert!(
        said[1].starts_with("400 ms earlier, at 2026-11-25 03:12:07.412Z, apiserver/cp2: ready → ejected"),
        "{said:?}"
    );
    assert_eq!(told(&recording, Subject::Last), Some(said), "nobody could connect: that is worse than the loss");
}

/// Regression: of refusals whose last one was 9 s ago, while backends were ready again since, "They were still going on" was said.
#[test]
fn refusals_of_which_none_has_come_for_a_while_are_told_by_their_last_one() {
    let reason = EndReason::NoBackend;
    let back = || changed(HealthState::Ejected, HealthState::Ready, Cause::Passed);
    let said = |events| told(&recording(events), Subject::Event(0)).unwrap();
    let all = vec![(0, begun(reason)), (2_000, ended(1, reason)), (3_000, back()), (11_000, back())];
    let last = "The last one known came at 2026-11-25 03:12:09.412Z, 9.0 s before the end of the record";
    let of_past = said(all);
    assert!(of_past.last().unwrap().starts_with(last), "{of_past:?}");
    let now = said(vec![(0, begun(reason)), (2_000, ended(1, reason)), (3_000, back())]);
    assert!(now.last().unwrap().starts_with("They were still going on"), "{now:?}");
}

/// Regression: a node that `deny` kept out was told as one that does not live, and the reload that denied it was not named.
#[test]
fn a_silent_node_that_baton_refuses_is_explained_by_its_settings() {
    let reloaded = What::Reloaded { changes: vec!["frontend apiserver: deny".to_owned()] };
    let refused = Some(NodeRefusal { reason: EndReason::Denied, times: 30 });
    let (nodes, why) = (vec!["worker-3".to_owned()], SilenceKind::NoConnection);
    let silent = What::NodesSilent { nodes, more: 0, why, for_ms: 10_000, refused };
    let said = told(&recording(vec![(0, reloaded), (12_000, silent)]), Subject::Event(1)).unwrap();
    assert!(
        said[0].ends_with("has had no connection for 10 s: Baton refuses it (denied: allow, deny), 30 times since."),
        "{said:?}"
    );
    assert!(said[1].contains("Baton reloaded the configuration: frontend apiserver: deny"), "{said:?}");
    assert!(
        said[2].starts_with("Baton itself refused 30 new connections of that time (denied: allow, deny)"),
        "{said:?}"
    );
    assert!(!said.join(" ").contains("a node that lives connects again"), "{said:?}");
}
