//! The heartbeat budget of a frontend, by the timers of its file.

use std::net::IpAddr;
use std::time::Duration;

use super::{Backend, Config, Frontend, ProbeKind, Target, reset_after_silence};
use crate::model::budget::{BudgetFault, BudgetMover, BudgetTimers, GapPart, Vrrp, gap_parts};
use crate::model::duration::display;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FrontendBudget<'a> {
    config: &'a Config,
    frontend: &'a Frontend,
    timers: BudgetTimers,
    /// Whether each of its addresses stays on this host.
    stays: bool,
    /// Whether each of its addresses is one that routers send here.
    is_routed: bool,
    /// Whether keepalived leaves the VIP on a host on which Baton is dead or hangs.
    outlives_baton: bool,
}

/// What the host adds to the file.
#[derive(Clone, Debug, Default)]
pub struct BudgetHost {
    /// Of keepalived's file, for a file of Baton's without an interval.
    pub adverts: Option<Duration>,
    /// Of keepalived's file; the time, too, is for a file of Baton's without an interval of adverts.
    pub track: VipTrack,
    /// Its own addresses: those that no other host takes.
    pub own: Vec<IpAddr>,
    /// Addresses on its loopback interface that Baton has not added: routers send their packets here.
    pub routed: Vec<IpAddr>,
}

/// How long a host on which Baton is dead or hangs keeps keepalived's VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VipTrack {
    /// There is no file, or none that moves a VIP.
    #[default]
    Unread,
    /// No script that it tracks runs `baton ready`.
    Stays,
    /// Until that script has failed often enough.
    After(Duration),
}

/// The longest time between two renewals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LongestGap {
    /// The fault moves a VIP, and the clients are on this host.
    NoVip,
    /// The fault moves a VIP, and the clients connect to an address of this host that stays here.
    OwnAddress,
    /// The fault leaves the VIP where it is: keepalived does not ask Baton.
    VipStays,
    /// The fault lasts until routers send the VIP's packets to another host.
    Routers,
    /// Baton does not know how the VIP moves.
    Unknown,
    Parts(Vec<GapPart>),
}

impl<'a> FrontendBudget<'a> {
    pub(crate) fn new(config: &'a Config, frontend: &'a Frontend, host: &BudgetHost) -> Self {
        let of_file = config.cluster.vrrp_advert_interval;
        let track_time = match host.track {
            VipTrack::After(time) if of_file.is_none() => time,
            _ => config.cluster.vrrp_track_time,
        };
        let vrrp = of_file.or(host.adverts).map(|advert_interval| Vrrp { advert_interval, track_time });
        let built_in = config.vip.as_ref().map(|_| BudgetMover::BuiltIn);
        let timers = BudgetTimers {
            lease_renew: config.cluster.lease_renew,
            reset_after_silence: reset_after_silence(&frontend.health, config.process.reset_within),
            probes_ask_the_process: frontend.health.kind != ProbeKind::Tcp,
            mover: built_in.or(vrrp.map(BudgetMover::Keepalived)),
        };
        let vips = config.vip.as_ref().map_or(&[][..], |vip| &vip.addresses);
        // keepalived may add its VIP with the prefix of the network, as a host has its own addresses.
        let may_move = |ip: IpAddr| vrrp.is_some() || vips.contains(&ip);
        let ips = || frontend.listen.iter().map(|at| at.ip());
        let stays = ips().all(|ip| ip.is_loopback() || host.own.contains(&ip) && !may_move(ip));
        let outlives_baton = built_in.is_none() && vrrp.is_some() && host.track == VipTrack::Stays;
        let is_routed = ips().all(|ip| host.routed.contains(&ip));
        Self { config, frontend, timers, stays, is_routed, outlives_baton }
    }

    pub(crate) fn longest(&self, fault: BudgetFault) -> LongestGap {
        let has_no_vip = self.frontend.listen.iter().all(|at| at.socket_addr().ip().is_loopback());
        match gap_parts(fault, &self.timers) {
            _ if has_no_vip && fault.needs_the_vip() => LongestGap::NoVip,
            _ if self.stays && fault.needs_the_vip() => LongestGap::OwnAddress,
            Some(_) if self.outlives_baton && self.must_ask_baton(fault) => LongestGap::VipStays,
            None if self.stays => LongestGap::OwnAddress,
            None if self.is_routed => LongestGap::Routers,
            None => LongestGap::Unknown,
            Some(parts) => LongestGap::Parts(parts),
        }
    }

    /// Whether keepalived would have to ask Baton in order to move the VIP after `fault`.
    fn must_ask_baton(&self, fault: BudgetFault) -> bool {
        match fault {
            BudgetFault::InstanceKilled | BudgetFault::InstanceHung => true,
            BudgetFault::Evacuated => self.config.failover.track_file.is_none(),
            _ => false,
        }
    }

    /// Whether a backend is on the host of an instance, as far as their addresses tell.
    pub(crate) fn is_stacked(&self) -> bool {
        let Some(fleet) = &self.config.peers else { return false };
        let hosts: Vec<_> = fleet.peers.iter().map(|peer| peer.address.ip()).chain([fleet.listen.ip()]).collect();
        let is_on_one = |backend: &Backend| matches!(&backend.address, Target::Address(at) if hosts.contains(&at.ip()));
        self.frontend.backends.iter().any(is_on_one)
    }

    pub(crate) fn probes_ask_the_process(&self) -> bool {
        self.timers.probes_ask_the_process
    }

    /// The setting that decides `part`, as it is written in the file.
    pub(crate) fn setting(&self, part: GapPart) -> String {
        let health = &self.frontend.health;
        match part {
            GapPart::LeaseRenew(every) => format!("cluster.lease_renew = {}", display(every)),
            GapPart::ResetAfterSilence(_) => format!(
                "[frontend.health] interval = {}, timeout = {}, reset_fall = {}, fast_interval = {}, and process.reset_within = {}",
                display(health.interval),
                display(health.timeout),
                health.reset_fall,
                display(health.fast_interval),
                display(self.config.process.reset_within)
            ),
            GapPart::ClientPings(_) => {
                "the client's own pings, as [frontend.health] kind = \"tcp\" tests only the kernel".to_owned()
            }
            GapPart::VipMoves(BudgetMover::BuiltIn, _) => "[vip], whose timers are fixed".to_owned(),
            GapPart::VipMoves(BudgetMover::Keepalived(Vrrp { advert_interval, track_time }), _) => format!(
                "keepalived: cluster.vrrp_advert_interval = {}, cluster.vrrp_track_time = {}",
                display(advert_interval),
                display(track_time)
            ),
        }
    }
}
