//! The longest time without a heartbeat that a node can have seen.

use crate::model::humane::limit_ms;

/// Whether clients that lose their backend had another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherBackend {
    Ready,
    /// After so many ms.
    After(u64),
    Never,
}

/// The longest time that a client of `frontend` can have waited, as `baton check` computes it. `silence_ms`: from the backend's silence to the
/// last reset, 0 if its kernel ended its connections at once. `without`: how long no backend was ready.
pub(super) fn longest_gap(
    frontend: &str,
    silence_ms: u64,
    lease_renew_ms: u64,
    without: OtherBackend,
) -> (String, Option<u64>) {
    let away_ms = match without {
        OtherBackend::Ready => 0,
        OtherBackend::After(ms) => ms,
        OtherBackend::Never => {
            let sentence =
                format!("Then no backend of {frontend} was ready until the record ends, so that its clients had none.");
            return (sentence, None);
        }
    };
    let gap_ms = silence_ms + away_ms + lease_renew_ms;
    let [gap, silence, away, renewal] = [gap_ms, silence_ms, away_ms, lease_renew_ms].map(limit_ms);
    let seen = format!("longest gap that a node can have seen is {gap}");
    let sentence = match (without, silence_ms) {
        (OtherBackend::Ready, 0) => format!("Its kernel ended its flows at once, so the {seen}: a renewal's."),
        (OtherBackend::Ready, _) => {
            format!("The {seen}: {silence} from the silence to the last reset, and a renewal's {renewal}.")
        }
        (_, 0) => format!(
            "Then no backend of {frontend} was ready until {away} after this, so the {seen}: that time, and a renewal's {renewal}."
        ),
        (_, _) => format!(
            "Then no backend of {frontend} was ready until {away} after this, so the {seen}: {silence} from the silence to this, that time, \
             and a renewal's {renewal}."
        ),
    };
    (sentence, Some(gap_ms))
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
