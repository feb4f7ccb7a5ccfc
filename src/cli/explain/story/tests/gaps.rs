//! The longest gap.

use super::*;

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
    // cp1 was lost before, or a moment later; it is back 14 s after cp2's loss.
    let back = || (15_000, other(Ejected, Ready));
    for at in [500, 1400] {
        let mut events = vec![lost(), order.clone(), (at, other(Ready, Ejected)), back()];
        events.sort_by_key(|(at, _)| *at);
        let said = gap(events);
        assert!(said.starts_with("Then no backend of apiserver was ready until 14 s after this, so the longest gap that a node can have seen is 26.3 s"), "{said}");
    }
    let said = gap(vec![(0, other(Ready, Ejected)), lost(), order.clone()]);
    assert!(said.contains("was ready until the record ends"), "{said}");
    // One that is lost after half a minute is another matter.
    assert!(gap(vec![lost(), order, (31_000, other(Ready, Ejected))]).starts_with(with));
    let unused = told(&recording(vec![lost()]), Subject::Backend("cp2".to_owned())).unwrap();
    assert!(!unused.iter().any(|it| it.contains("gap")), "nobody waited: {unused:?}");
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
