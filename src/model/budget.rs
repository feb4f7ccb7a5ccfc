//! The heartbeat budget: for each fault, the longest time that a kubelet may go without renewing its lease, against
//! the time after which its node is NotReady.
//!
//! A fault that comes just before a renewal is due costs the renewal's interval, what it takes to tell the client that
//! its connection is dead, and nothing else: a kubelet that was reset tries again at once.

use std::time::Duration;

/// A kubelet leaves a connection whose pings stay unanswered after this (k8s.io/apimachinery, net/http.go:
/// ReadIdleTimeout 30 s, PingTimeout 15 s).
const PING_GIVES_UP: Duration = Duration::from_secs(45);

/// A backup takes over after three advertisements and a skew below one (RFC 9568 section 6.1).
const ADVERTS_UNTIL_TAKEOVER: u32 = 4;

/// The retransmission timeout's minimum on Linux (TCP_RTO_MIN).
const RETRANSMISSION_MIN: Duration = Duration::from_millis(200);

/// What the computation rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Between two renewals of a node's lease.
    pub lease_renew: Duration,
    /// From a backend's silence to the last RST to its clients.
    pub reset_after_silence: Duration,
    /// Whether probes ask the process for an answer, not only its kernel.
    pub probes_ask_the_process: bool,
    /// VRRP's, where a VIP moves with it.
    pub vrrp_advert_interval: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its process ends; its kernel resets what it had.
    ApiserverKilled,
    /// Its process stops answering; its kernel still accepts and acknowledges.
    ApiserverHung,
    /// Its host is gone, and nothing comes back.
    ApiserverSilent,
    /// Another binary takes over.
    Upgrade,
    /// Baton's host is gone; a VIP moves.
    HostDies,
}

impl Fault {
    pub const ALL: [Fault; 5] =
        [Self::ApiserverKilled, Self::ApiserverHung, Self::ApiserverSilent, Self::Upgrade, Self::HostDies];

    pub fn label(self) -> &'static str {
        match self {
            Self::ApiserverKilled => "apiserver killed",
            Self::ApiserverHung => "apiserver hung",
            Self::ApiserverSilent => "apiserver's host gone",
            Self::Upgrade => "baton upgrade",
            Self::HostDies => "Baton's host gone",
        }
    }
}

/// The longest time between two renewals if `fault` happens once. `None`: the timers do not tell.
pub fn longest_gap(fault: Fault, timers: &Timers) -> Option<Duration> {
    let until_told = match fault {
        Fault::ApiserverKilled | Fault::Upgrade => Duration::ZERO,
        Fault::ApiserverSilent => timers.reset_after_silence,
        Fault::ApiserverHung if timers.probes_ask_the_process => timers.reset_after_silence,
        Fault::ApiserverHung => PING_GIVES_UP,
        Fault::HostDies => {
            let outage = timers.vrrp_advert_interval? * ADVERTS_UNTIL_TAKEOVER;
            // What the client sent meanwhile is sent again after pauses that double: the one that meets the new owner comes
            // at most as long after the takeover as the outage was.
            outage * 2 + RETRANSMISSION_MIN
        }
    };
    Some(timers.lease_renew + until_told)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMERS: Timers = Timers {
        lease_renew: Duration::from_secs(10),
        reset_after_silence: Duration::from_millis(2250),
        probes_ask_the_process: true,
        vrrp_advert_interval: Some(SECOND),
    };

    fn gap_s(fault: Fault, timers: &Timers) -> f64 {
        longest_gap(fault, timers).unwrap().as_secs_f64()
    }

    #[test]
    fn each_fault_costs_a_renewal_and_the_time_until_the_client_is_told() {
        let gaps = Fault::ALL.map(|fault| gap_s(fault, &TIMERS));
        assert_eq!(gaps, [10.0, 12.25, 12.25, 10.0, 18.2]);
    }

    #[test]
    fn a_probe_of_the_kernel_alone_leaves_a_hung_process_to_the_clients_pings() {
        assert_eq!(gap_s(Fault::ApiserverHung, &Timers { probes_ask_the_process: false, ..TIMERS }), 55.0);
    }

    #[test]
    fn how_long_a_vip_takes_is_not_guessed() {
        assert_eq!(longest_gap(Fault::HostDies, &Timers { vrrp_advert_interval: None, ..TIMERS }), None);
    }
}
