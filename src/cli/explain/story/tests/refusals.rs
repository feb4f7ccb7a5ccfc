//! New connections that were reset.

use super::*;

fn begun(reason: EndReason) -> What {
    What::RefusalsBegun { frontend: "apiserver".to_owned(), reason }
}

/// Regression: a limit that was reached left no event, so that nothing told it.
#[test]
fn a_limit_that_was_reached_is_told_with_its_value_and_how_many_it_cost() {
    let reason = EndReason::LimitFrontend;
    let over = What::RefusalsOver { frontend: "apiserver".to_owned(), reason, refused: 1204, lasted_ms: 32_000 };
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
    let goes_on = recording(vec![(600, ended(1, reason)), (700, begun(reason)), (950, ended(2, reason)), (960, over)]);
    let goes_on = Recording { records: goes_on.records[..4].to_vec(), ..goes_on };
    let said = told(&goes_on, Subject::Last).unwrap();
    let end = "They were still going on at 2026-11-25 03:12:08.362Z, where the record ends; it has so many: limit_frontend 2.";
    assert_eq!(said.last().unwrap(), end, "the first came before the event");
}

#[test]
fn without_a_backend_the_last_loss_is_told_and_stays_the_last_fault() {
    let lost = changed(HealthState::Ready, HealthState::Ejected, Cause::Refused);
    let recording =
        recording(vec![(0, lost), (400, begun(EndReason::NoBackend)), (500, ended(1, EndReason::NoBackend))]);
    let said = told(&recording, Subject::Event(1)).unwrap();
    assert!(
        said[1].starts_with("400 ms earlier, at 2026-11-25 03:12:07.412Z, apiserver/cp2: ready → ejected"),
        "{said:?}"
    );
    let last = told(&recording, Subject::Last).unwrap();
    assert!(last[0].contains("cp2: ready → ejected"), "{last:?}");
}
