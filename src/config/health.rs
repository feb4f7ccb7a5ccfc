//! `[frontend.health]`.

use std::time::Duration;

use super::kind::{Decimal, Host, OneOf, Time, UrlPath, time, whole};
use super::section::{Field, Section};
use super::{Damping, Health, ProbeKind, tls};
use crate::model::duration::display;

/// Reads the table. After an error the value is meaningless.
pub(super) fn read(section: &Section, reset_within: Duration) -> Health {
    let kind = section.read_or("kind", &KIND, ProbeKind::Tcp);
    let path = section.read_or("path", &UrlPath, "/readyz".into());
    let host = section.read("host", &Host);
    let interval = section.read_or("interval", &INTERVAL, Duration::from_secs(1));
    let fast_interval = section.read_or("fast_interval", &INTERVAL, Duration::from_millis(250));
    let timeout = section.read_or("timeout", &INTERVAL, Duration::from_millis(500));
    let rise = section.read_or("rise", &whole(1, 100), 2);
    let fall = section.read_or("fall", &whole(1, 100), 2);
    let reset_fall = section.read_or("reset_fall", &whole(1, 1000), fall.value);

    at_most_interval(section, "timeout", &timeout, &interval);
    at_most_interval(section, "fast_interval", &fast_interval, &interval);
    if reset_fall.value < fall.value && !fall.is_refused() {
        let message =
            format!("reset_fall ({}) is below fall ({}) in {}", reset_fall.value, fall.value, section.title());
        section.refuse(
            "reset_fall",
            message,
            "set at least fall: Baton resets no flow before it has ejected the backend",
        );
    }
    warn_of_unused(section, &kind, path.is_given(), host.is_given());

    let health = Health {
        kind: kind.value,
        path: path.value,
        host: host.value.map(|(text, _)| text),
        tls: tls::read(section, &kind),
        interval: interval.value,
        fast_interval: fast_interval.value,
        timeout: timeout.value,
        rise: rise.value,
        fall: fall.value,
        reset_fall: reset_fall.value,
        jitter_percent: section.read_or("jitter_percent", &whole(0, 50), 10).value,
        slow_start: section.read_or("slow_start", &SLOW_START, Duration::from_secs(30)).value,
        damping: damping(&section.table("damping")),
        resolve_interval: section.read_or("resolve_interval", &RESOLVE_INTERVAL, Duration::from_secs(30)).value,
    };
    let compared = [interval.is_refused(), fast_interval.is_refused(), timeout.is_refused(), reset_fall.is_refused()];
    if !compared.contains(&true) {
        warn_if_slow(section, &health, reset_within);
    }
    health
}

/// The longest time from a backend's silent death to the last RST to its clients: it died just after a probe, and every
/// later probe runs into its timeout.
pub(crate) fn reset_after_silence(health: &Health, reset_within: Duration) -> Duration {
    // Intervals count from start to start, and a probe that still waits delays the next.
    let between = health.timeout.max(health.fast_interval);
    health.interval + between * health.reset_fall.saturating_sub(1) + health.timeout + reset_within
}

fn damping(section: &Section) -> Damping {
    let half_life = section.read_or("half_life", &HALF_LIFE, Duration::from_secs(60));
    let suppress = section.read_or("suppress", &PENALTY, 3.0);
    let reuse = section.read_or("reuse", &PENALTY, 1.5);
    if reuse.value >= suppress.value && !reuse.is_refused() && !suppress.is_refused() {
        let key = if reuse.is_given() { "reuse" } else { "suppress" };
        let message =
            format!("reuse ({}) is not below suppress ({}) in {}", reuse.value, suppress.value, section.title());
        section.refuse(key, message, "set reuse below suppress");
    }
    Damping { half_life: half_life.value, suppress: suppress.value, reuse: reuse.value }
}

fn at_most_interval(section: &Section, key: &str, field: &Field<Duration>, interval: &Field<Duration>) {
    if field.value > interval.value && !field.is_refused() && !interval.is_refused() {
        let at = if field.is_given() { key } else { "interval" };
        let (longer, shorter) = (display(field.value), display(interval.value));
        let message = format!("{key} ({longer}) is longer than interval ({shorter}) in {}", section.title());
        section.refuse(at, message, format!("set {key} to at most interval"));
    }
}

fn warn_of_unused(section: &Section, kind: &Field<ProbeKind>, path: bool, host: bool) {
    let http = matches!(kind.value, ProbeKind::Http | ProbeKind::Https);
    if path && !http && !kind.is_refused() {
        let message = format!("{} has no effect with {}", section.name("path"), spelled(kind));
        section.warn("path", message, "remove it, or set kind to \"http\" or \"https\"");
    }
    if host && kind.value == ProbeKind::Tcp && !kind.is_refused() {
        let message = format!("{} has no effect with {}", section.name("host"), spelled(kind));
        section.warn("host", message, "remove it, or set kind to \"tls\", \"http\" or \"https\"");
    }
}

/// The key `kind` in the file's spelling.
pub(super) fn spelled(kind: &Field<ProbeKind>) -> String {
    let word = KIND.0.iter().find(|(_, meaning)| *meaning == kind.value).map_or("", |(word, _)| word);
    format!("kind = {word:?}{}", if kind.is_given() { "" } else { " (the default)" })
}

fn warn_if_slow(section: &Section, health: &Health, reset_within: Duration) {
    let longest = reset_after_silence(health, reset_within);
    if longest <= LEASE_RENEWAL {
        return;
    }
    let keys = ["interval", "timeout", "reset_fall", "fall", "fast_interval"];
    let key = keys.into_iter().find(|key| section.has(key)).unwrap_or("interval");
    let (title, longest, budget) = (section.title(), display(longest), display(LEASE_RENEWAL));
    let message =
        format!("{title} lets the clients of a silent backend wait for up to {longest} until Baton resets them");
    let help = format!(
        "set interval + timeout + (reset_fall - 1) * the longer of timeout and fast_interval within {budget}, a kubelet's lease renewal"
    );
    section.warn(key, message, help);
}

const KIND: OneOf<ProbeKind> =
    OneOf(&[("tcp", ProbeKind::Tcp), ("tls", ProbeKind::Tls), ("http", ProbeKind::Http), ("https", ProbeKind::Https)]);
const INTERVAL: Time = time(Duration::from_millis(10), Duration::from_secs(3600));
const SLOW_START: Time =
    Time { zero: Some("its whole share at once"), ..time(Duration::from_millis(100), Duration::from_secs(3600)) };
const RESOLVE_INTERVAL: Time = time(Duration::from_secs(1), Duration::from_secs(24 * 3600));
const HALF_LIFE: Time = time(Duration::from_secs(1), Duration::from_secs(24 * 3600));
const PENALTY: Decimal = Decimal { min: 0.1, max: 1000.0 };
/// Kubelets renew their node's lease this often (nodeLeaseDurationSeconds 40, a quarter of it).
const LEASE_RENEWAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// The promised time for a backend that dies silently, with the defaults.
    #[test]
    fn at_the_defaults_the_last_client_is_reset_within_two_and_a_half_seconds() {
        let health = crate::config::tests::minimal().frontends[0].health.clone();
        assert_eq!(reset_after_silence(&health, Duration::from_millis(250)), Duration::from_millis(2250));
    }
}
