//! A peer that this instance does not hear, or not by its link: what is known of it, and both outcomes where that is not enough.

use crate::admin::what_if::{ExpectedGap, WhatIfCase};
use crate::model::fleet::{InstanceName, MemberView};
use crate::model::what_if::FlowFates;

/// Of a peer that counts as dead, and of which nothing says that it does not run.
pub(super) fn outcomes(peer: &MemberView) -> Vec<String> {
    let name = &peer.name;
    vec![
        format!(
            "{name} is not heard{}: from this host it cannot be known whether it is dead or only cut off from it.",
            last_heard(peer)
        ),
        format!(
            "If {name} is dead, other instances carry its flows on or have reset them; if it lives, it may have the VIP and flows that this instance does not \
             know: ask there (baton what-if this dies)."
        ),
    ]
}

/// The two ways in which such a peer may be.
pub(super) fn cases(name: &InstanceName) -> Vec<WhatIfCase> {
    let case = |state: &str, fates, why: &str| WhatIfCase {
        fault: format!("{name} {state}"),
        fates,
        resets_over_ms: 0,
        gap: ExpectedGap::Unknown(why.to_owned()),
    };
    vec![
        case("dead already", Some(FlowFates::default()), "its death is over: nothing more happens"),
        case("alive", None, "its flows, and whether it has the VIP, are not known here"),
    ]
}

/// Of a peer that is not quite heard.
pub(super) fn in_doubt(peer: &MemberView) -> String {
    let state = if peer.synced { peer.liveness.label() } else { "not synced" };
    format!("{} is {state}{}, and not all its flows may be known here.", peer.name, last_heard(peer))
}

/// Of a peer that lives, and is told of no flow.
pub(super) fn without_link(peer: &MemberView) -> String {
    format!(
        "There is no link to {}{}: of the flows counted as waiting it carries on the offloaded ones that it was told of before.",
        peer.name,
        last_heard(peer)
    )
}

fn last_heard(peer: &MemberView) -> String {
    match peer.last_heard.in_words() {
        heard if heard.is_empty() => String::new(),
        heard => format!(" (last {heard})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::status::PeersReport;
    use crate::model::fleet::{LastHeard, Liveness};

    #[test]
    fn a_peer_that_is_not_heard_has_both_outcomes_and_the_time_of_its_last_sign() {
        let text = r#"{"peers":[{"name":"lb-b","address":"10.0.0.22:9471","liveness":"dead","epoch":1,"slot":1,"version":"1","synced":true,"flows":0,
            "offloaded":0,"told":false,"behind":0,"lag_ms":0,"resyncs":0,"round_trip_us":1,"vips":[],"why_not":null}],"name":"lb-a","slot":0,"ready":true}"#;
        let report: PeersReport = serde_json::from_str(text).expect("a report of an earlier release");
        let silent = report.peers[0].clone();
        assert!(outcomes(&silent)[0].starts_with("lb-b is not heard: from this host"), "{:?}", outcomes(&silent));
        let last_heard = LastHeard { link_ms: Some(12_300), beat_ms: Some(1_200), others_ms: None };
        let silent = MemberView { last_heard, ..silent };
        let said = outcomes(&silent);
        assert!(
            said[0].starts_with("lb-b is not heard (last 12 s ago by its link, 1.2 s ago by a beat): from"),
            "{said:?}"
        );
        let cases = cases(&silent.name);
        let fates: Vec<_> = cases.iter().map(|it| (&*it.fault, it.fates)).collect();
        assert_eq!(fates, [("lb-b dead already", Some(FlowFates::default())), ("lb-b alive", None)]);
        let unlinked = MemberView { liveness: Liveness::Unlinked, ..silent };
        assert!(without_link(&unlinked).starts_with("There is no link to lb-b (last 12 s ago by its link"));
    }
}
