//! A time for which this process did not run: what peers did meanwhile, and how long clients waited.

use super::failovers::soon_after;
use super::{AFTER_MS, Explained, Figures, SENTENCES_MAX, Story, moment};
use crate::model::humane::{limit_ms, plural};
use crate::table::journal::What;

/// All threads of a process go on at the same time, and tell within this.
const BESIDE_MS: u64 = AFTER_MS / 10;

/// The pause at `at`.
pub(super) fn pause(story: &Story<'_>, at: usize, for_ms: u64, proxied: u64) -> Explained {
    let (event, owner) = story.events[at];
    let mut figures = Figures { at_unix_ms: event.at_unix_ms, lasted_ms: Some(for_ms), ..Figures::default() };
    let begun = moment(event.at_unix_ms.saturating_sub(for_ms));
    let mut sentences = vec![
        format!("At {} {}.", moment(event.at_unix_ms), event.what.sentence()),
        format!(
            "It began at about {begun}. No setting of Baton decides it: the host's kernel log, load and hypervisor tell more."
        ),
    ];
    // A thread of this process may have told of the loss of the VIP a moment before.
    let before = story.shortly_before(at, BESIDE_MS).map(|before| story.events[before].0);
    let moved = before.chain(soon_after(story, at)).find(|it| it.what.is_vip_move());
    sentences.extend(moved.map(|it| format!("About then, at {}, {}.", moment(it.at_unix_ms), it.what.sentence())));
    let released: usize =
        soon_after(story, at).map(|it| if let What::FlowsReleased { flows, .. } = it.what { flows } else { 0 }).sum();
    if released > 0 {
        sentences.push(format!("Packets of {} of it went to a peer since.", plural(released as u64, "flow")));
    }
    match moved.map(|it| &it.what) {
        Some(What::VipGivenUp { .. } | What::VipHeld { .. }) => sentences.push(
            "A peer served its clients from the time at which it took the VIP: that peer's record tells how long they waited (baton explain last, \
             there)."
                .to_owned(),
        ),
        _ if story.lacks_vip(at).is_some() && proxied == 0 => {
            sentences.push("This host had neither the VIP nor a proxied flow: no client waited.".to_owned());
        }
        _ => {
            let lease_renew_ms = story.recording.owners[owner].lease_renew_ms;
            let gap_ms = for_ms + lease_renew_ms;
            figures.longest_gap_ms = Some(gap_ms);
            let [gap, paused, renewal] = [gap_ms, for_ms, lease_renew_ms].map(limit_ms);
            sentences.push(format!(
                "The longest gap that a node can have seen is {gap}: {paused} of this, and a renewal's {renewal}. Offloaded flows went on."
            ));
        }
    }
    sentences.extend(story.aftermath(at, &mut figures));
    sentences.truncate(SENTENCES_MAX);
    (sentences, figures)
}
