//! The heartbeat budget: for each fault, the longest time that a kubelet may go without renewing its lease, against
//! the time after which its node is NotReady.
//!
//! A fault just before a renewal is due costs the renewal's interval and the time until the client learns that its
//! connection is dead, and nothing else: a kubelet whose connection was reset tries again at once.

use std::time::Duration;

/// A kubelet leaves a connection if its pings stay unanswered for so long (k8s.io/apimachinery, net/http.go:
/// ReadIdleTimeout 30 s, PingTimeout 15 s).
const PING_GIVES_UP: Duration = Duration::from_secs(45);

/// A backup takes the VIP after three advertisements and a skew below one (RFC 9568 section 6.1).
const ADVERTS_UNTIL_FAILOVER: u32 = 4;

/// A host that gives the VIP up announces it (priority 0), and the backup waits only for the skew.
const ADVERTS_WHEN_TOLD: u32 = 1;

/// Baton's own VIP: a host has it again this long after the owner's host died, and after the owner's process was killed or hung
/// (docs/vip.md).
const BUILT_IN_AFTER_HOST: Duration = Duration::from_millis(500);
const BUILT_IN_AFTER_PROCESS: Duration = Duration::from_secs(3);
/// The old owner serves until the new one announces the VIP.
const BUILT_IN_WHEN_TOLD: Duration = Duration::from_millis(200);

/// The retransmission timeout's minimum on Linux (TCP_RTO_MIN), and the first pause of a kubelet's renewals.
const RETRY_MIN: Duration = Duration::from_millis(200);

/// The timers that the computation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetTimers {
    /// Time between two renewals of a node's lease.
    pub lease_renew: Duration,
    /// Time from a backend's silence to the last RST to its clients.
    pub reset_after_silence: Duration,
    /// Whether probes need an answer from the process, not only from its kernel.
    pub probes_ask_the_process: bool,
    /// The program that moves the VIP, if Baton knows it.
    pub mover: Option<BudgetMover>,
}

/// The program that moves the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetMover {
    Keepalived(Vrrp),
    /// Baton itself.
    BuiltIn,
}

/// keepalived's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vrrp {
    pub advert_interval: Duration,
    /// Time from an instance's silence to the failure of the script that checks it.
    pub track_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetFault {
    /// Its process ends; its kernel resets its connections.
    ApiserverKilled,
    /// Its process stops answering; its kernel still accepts and acknowledges.
    ApiserverHung,
    /// Its host is gone, and nothing comes back.
    ApiserverSilent,
    /// Baton's process ends; its kernel resets the proxied flows, and refuses connections until the VIP has moved.
    InstanceKilled,
    /// Baton's process stops answering; its kernel still accepts and acknowledges.
    InstanceHung,
    /// Baton's host is gone; the VIP moves.
    HostDies,
    /// The host of an instance and of an apiserver is gone: the connections of that apiserver end, and the VIP moves if it was there.
    StackedHostDies,
    /// A host is evacuated.
    Evacuated,
    /// A new process gets everything from the old one.
    Upgrade,
}

impl BudgetFault {
    pub(crate) const ALL: [BudgetFault; 9] = [
        Self::ApiserverKilled,
        Self::ApiserverHung,
        Self::ApiserverSilent,
        Self::InstanceKilled,
        Self::InstanceHung,
        Self::HostDies,
        Self::StackedHostDies,
        Self::Evacuated,
        Self::Upgrade,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::ApiserverKilled => "apiserver killed",
            Self::ApiserverHung => "apiserver hung",
            Self::ApiserverSilent => "apiserver's host gone",
            Self::InstanceKilled => "Baton killed",
            Self::InstanceHung => "Baton hung",
            Self::HostDies => "Baton's host gone",
            Self::StackedHostDies => "stacked host gone",
            Self::Evacuated => "host evacuated",
            Self::Upgrade => "Baton upgraded",
        }
    }

    /// Whether the fault lasts until another host has the VIP.
    pub(crate) fn needs_the_vip(self) -> bool {
        matches!(self, Self::InstanceKilled | Self::InstanceHung | Self::HostDies | Self::Evacuated)
    }
}

impl BudgetMover {
    /// How long no host serves the VIP after a fault of its owner.
    fn outage(self, fault: BudgetFault) -> Duration {
        match (self, fault) {
            (Self::Keepalived(Vrrp { advert_interval, .. }), BudgetFault::HostDies) => {
                advert_interval * ADVERTS_UNTIL_FAILOVER
            }
            (Self::Keepalived(Vrrp { advert_interval, .. }), BudgetFault::Evacuated) => {
                advert_interval * ADVERTS_WHEN_TOLD
            }
            (Self::Keepalived(Vrrp { advert_interval, track_time }), _) => {
                track_time + advert_interval * ADVERTS_WHEN_TOLD
            }
            (Self::BuiltIn, BudgetFault::HostDies) => BUILT_IN_AFTER_HOST,
            (Self::BuiltIn, BudgetFault::Evacuated) => BUILT_IN_WHEN_TOLD,
            (Self::BuiltIn, _) => BUILT_IN_AFTER_PROCESS,
        }
    }
}

/// A part of the longest time between two renewals, by what decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GapPart {
    /// Until the next renewal.
    LeaseRenew(Duration),
    /// Until probes have found a silent backend and its last client was reset.
    ResetAfterSilence(Duration),
    /// Until the client's own pings give the connection up.
    ClientPings(Duration),
    /// Twice the time in which no host serves the VIP, and a retransmission.
    VipMoves(BudgetMover, Duration),
}

impl GapPart {
    pub(crate) fn lasts(self) -> Duration {
        match self {
            Self::LeaseRenew(lasts)
            | Self::ResetAfterSilence(lasts)
            | Self::ClientPings(lasts)
            | Self::VipMoves(_, lasts) => lasts,
        }
    }
}

/// The longest time between two renewals if `fault` happens once, in its parts. `None`: the timers do not determine it.
///
/// In all faults of an instance, flows that another instance also holds do better: the result is for a flow that must
/// be made anew.
pub(crate) fn gap_parts(fault: BudgetFault, timers: &BudgetTimers) -> Option<Vec<GapPart>> {
    let until_told = match fault {
        BudgetFault::ApiserverKilled | BudgetFault::Upgrade => None,
        BudgetFault::ApiserverSilent => Some(GapPart::ResetAfterSilence(timers.reset_after_silence)),
        BudgetFault::ApiserverHung if timers.probes_ask_the_process => {
            Some(GapPart::ResetAfterSilence(timers.reset_after_silence))
        }
        BudgetFault::ApiserverHung => Some(GapPart::ClientPings(PING_GIVES_UP)),
        // Both times run from the same moment.
        BudgetFault::StackedHostDies => {
            let [apiserver, host] =
                [BudgetFault::ApiserverSilent, BudgetFault::HostDies].map(|it| gap_parts(it, timers));
            let (apiserver, host) = (apiserver?, host?);
            return Some(if lasts(&apiserver) > lasts(&host) { apiserver } else { host });
        }
        BudgetFault::InstanceKilled | BudgetFault::InstanceHung | BudgetFault::HostDies | BudgetFault::Evacuated => {
            let mover = timers.mover?;
            // Both a repeated segment and a repeated renewal come after pauses that double: the first one that reaches
            // the new owner comes at most as long after the failover as the outage lasted.
            Some(GapPart::VipMoves(mover, mover.outage(fault) * 2 + RETRY_MIN))
        }
    };
    Some([GapPart::LeaseRenew(timers.lease_renew)].into_iter().chain(until_told).collect())
}

/// The sum of the parts.
pub(crate) fn lasts(parts: &[GapPart]) -> Duration {
    parts.iter().map(|part| part.lasts()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TIMERS: BudgetTimers = BudgetTimers {
        lease_renew: Duration::from_secs(10),
        reset_after_silence: Duration::from_millis(2250),
        probes_ask_the_process: true,
        mover: Some(BudgetMover::Keepalived(Vrrp { advert_interval: SECOND, track_time: Duration::from_secs(3) })),
    };

    fn gap_s(fault: BudgetFault, timers: &BudgetTimers) -> f64 {
        lasts(&gap_parts(fault, timers).unwrap()).as_secs_f64()
    }

    #[test]
    fn each_fault_costs_a_renewal_and_the_time_until_the_client_is_told() {
        let gaps = BudgetFault::ALL.map(|fault| gap_s(fault, &TIMERS));
        assert_eq!(gaps, [10.0, 12.25, 12.25, 18.2, 18.2, 18.2, 18.2, 12.2, 10.0]);
    }

    #[test]
    fn a_stacked_host_costs_the_longer_of_its_two_deaths() {
        let slow = BudgetTimers { reset_after_silence: 20 * SECOND, ..TIMERS };
        assert_eq!(gap_s(BudgetFault::StackedHostDies, &slow), 30.0);
    }

    #[test]
    fn a_probe_of_the_kernel_alone_leaves_a_hung_process_to_the_clients_pings() {
        assert_eq!(gap_s(BudgetFault::ApiserverHung, &BudgetTimers { probes_ask_the_process: false, ..TIMERS }), 55.0);
    }

    #[test]
    fn the_vip_that_baton_moves_costs_what_is_stated_of_it() {
        let built_in = BudgetTimers { mover: Some(BudgetMover::BuiltIn), ..TIMERS };
        let gaps = BudgetFault::ALL.map(|fault| gap_s(fault, &built_in));
        assert_eq!(gaps, [10.0, 12.25, 12.25, 16.2, 16.2, 11.2, 12.25, 10.6, 10.0]);
    }

    #[test]
    fn how_long_a_vip_takes_is_not_guessed() {
        let alone = BudgetTimers { mover: None, ..TIMERS };
        let unknown: Vec<_> =
            BudgetFault::ALL.into_iter().filter(|fault| gap_parts(*fault, &alone).is_none()).collect();
        use BudgetFault::*;
        assert_eq!(unknown, [InstanceKilled, InstanceHung, HostDies, StackedHostDies, Evacuated]);
    }
}
