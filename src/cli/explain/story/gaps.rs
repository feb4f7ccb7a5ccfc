//! The longest time without a heartbeat that a node can have seen.

use crate::model::humane::limit_ms;
use crate::recorder::FrontendSettings;

/// Whether clients that lose their backend had another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherBackend {
    Ready,
    /// After so many ms.
    After(u64),
    Never,
}

/// The longest time that a client can have waited, as `baton check` computes it. `without`: how long no backend was ready.
pub(super) fn longest_gap(
    settings: &FrontendSettings,
    lease_renew_ms: u64,
    without: OtherBackend,
) -> (String, Option<u64>) {
    let (name, silence_ms) = (&settings.name, settings.reset_after_silence_ms);
    let (silence, renewal) = (limit_ms(silence_ms), limit_ms(lease_renew_ms));
    match without {
        OtherBackend::Ready => {
            let gap_ms = silence_ms + lease_renew_ms;
            let sentence = format!(
                "The longest gap that a node can have seen is {}: {silence} from the silence to the last reset, and a renewal's {renewal}.",
                limit_ms(gap_ms)
            );
            (sentence, Some(gap_ms))
        }
        OtherBackend::After(ms) => {
            let gap_ms = silence_ms + ms + lease_renew_ms;
            let sentence = format!(
                "Then no backend of {name} was ready until {} after this, so the longest gap that a node can have seen is {}: {silence} from the \
                 silence to this, that time, and a renewal's {renewal}.",
                limit_ms(ms),
                limit_ms(gap_ms)
            );
            (sentence, Some(gap_ms))
        }
        OtherBackend::Never => {
            (format!("Then no backend of {name} was ready until the record ends, so that its clients had none."), None)
        }
    }
}

/// The longest time that a client can have waited for a process that had died: on the host with the VIP, without an offloaded flow.
pub(super) fn gap_of_absence(away_ms: u64, lease_renew_ms: u64) -> (String, u64) {
    let gap_ms = away_ms + lease_renew_ms;
    let [gap, away, renewal] = [gap_ms, away_ms, lease_renew_ms].map(limit_ms);
    let sentence = format!(
        "The longest gap that a node can have seen by this is {gap}: {away} without a process, unless another host had the VIP, and a renewal's {renewal}."
    );
    (sentence, gap_ms)
}
