//! One host of the fleet: its namespace, its link to the others, and its processes.

use std::io;
use std::time::Duration;

use super::baton::FleetBaton;
use super::haproxy::{FleetHaproxy, HaproxyStep};
use super::layout::HostPlan;
use crate::lab::demo::guard::Guard;
use crate::lab::demo::process::{Condition, ProcessError, StandInProcess};
use crate::lab::demo::space::{NetSpace, SpaceError};
use crate::sys::clock::now_ns;

/// A host and all that runs on it. Dropping it ends its processes.
#[derive(Debug)]
pub(super) struct FleetHost {
    pub plan: HostPlan,
    pub space: NetSpace,
    /// `None`: the host does not balance.
    pub balancer: Option<Balancer>,
    pub apiserver: Option<StandInProcess>,
    pub link: FleetLink,
    /// Whether its firewall drops packets of connections that it has not tracked.
    pub strict: bool,
    /// What the user did to its balancer.
    duty: Duty,
    /// The time in which connections to its apiserver end with the apiserver; the end is the future while it is away.
    away: Option<(u64, u64)>,
}

/// The link of a host to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FleetLink {
    Up,
    /// The plug is pulled: frames are lost both ways.
    Pulled,
}

/// The balancer of a host.
#[derive(Debug)]
pub(super) enum Balancer {
    Baton(FleetBaton),
    Haproxy(FleetHaproxy),
}

impl Balancer {
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Baton(_) => "Baton",
            Self::Haproxy(_) => "haproxy",
        }
    }
}

/// What the user did to the balancer of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    Serves,
    /// Killed; it starts again at this moment, as systemd would start it.
    Killed {
        starts_ns: u64,
    },
    Upgrading,
    Evacuating,
    Evacuated,
}

impl FleetHost {
    pub(super) fn new(plan: HostPlan, space: NetSpace) -> Self {
        Self {
            plan,
            space,
            balancer: None,
            apiserver: None,
            link: FleetLink::Up,
            strict: false,
            duty: Duty::Serves,
            away: None,
        }
    }

    pub(super) fn baton(&self) -> Option<&FleetBaton> {
        match &self.balancer {
            Some(Balancer::Baton(baton)) => Some(baton),
            _ => None,
        }
    }

    pub(super) fn has_vip(&self) -> bool {
        let has_it = match &self.balancer {
            Some(Balancer::Baton(baton)) => baton.has_vip(),
            Some(Balancer::Haproxy(haproxy)) => haproxy.has_vip(),
            None => false,
        };
        self.link == FleetLink::Up && has_it
    }

    /// Starts its balancer, as it does at the host's start and after an end.
    pub(super) fn start_balancer(&mut self, guard: &mut Guard) -> io::Result<()> {
        match &mut self.balancer {
            Some(Balancer::Baton(baton)) => baton.start(&self.space, guard)?,
            Some(Balancer::Haproxy(haproxy)) => haproxy.start(&self.space, guard)?,
            None => {}
        }
        self.set_duty(Duty::Serves);
        Ok(())
    }

    /// SIGKILL.
    pub(super) fn kill_balancer(&mut self) {
        match &mut self.balancer {
            Some(Balancer::Baton(baton)) => baton.kill(),
            Some(Balancer::Haproxy(haproxy)) => haproxy.kill(),
            None => {}
        }
    }

    /// Carries out the next step of an order to haproxy, if it is due; a sentence about it.
    pub(super) fn carry_out(&mut self, guard: &mut Guard) -> io::Result<Option<String>> {
        let Some(Balancer::Haproxy(haproxy)) = &mut self.balancer else { return Ok(None) };
        let (duty, said) = match haproxy.carry_out(&self.space, guard)? {
            Some(HaproxyStep::Replace) => (Duty::Serves, "upgraded: a new haproxy has replaced the old one".to_owned()),
            Some(HaproxyStep::End) => (Duty::Evacuated, format!("evacuated: {} may be switched off", self.plan.name)),
            Some(HaproxyStep::StopInOrder) | None => return Ok(None),
        };
        self.set_duty(duty);
        Ok(Some(said))
    }

    /// Whether its balancer serves, as far as that can be seen without a client.
    pub(super) fn is_serving(&mut self) -> bool {
        let serves = match &mut self.balancer {
            Some(Balancer::Baton(baton)) => baton.status.borrow().all_ready(),
            Some(Balancer::Haproxy(haproxy)) => !haproxy.has_ended(),
            None => true,
        };
        self.duty == Duty::Serves && serves
    }

    /// Whether its balancer has ended, although nobody ended it.
    pub(super) fn has_failed(&mut self, guard: &mut Guard) -> bool {
        let ended = match &mut self.balancer {
            Some(Balancer::Baton(baton)) => baton.has_ended(guard),
            Some(Balancer::Haproxy(haproxy)) => self.duty == Duty::Serves && haproxy.has_ended(),
            None => false,
        };
        ended && !matches!(self.duty, Duty::Killed { .. } | Duty::Upgrading)
    }

    pub(super) fn last_words(&self) -> String {
        match &self.balancer {
            Some(Balancer::Baton(baton)) => baton.last_words(),
            Some(Balancer::Haproxy(haproxy)) => haproxy.last_words(),
            None => String::new(),
        }
    }

    /// Pulls the plug at the other end of the cable, or puts it in again.
    pub(super) fn plug(&mut self, switch: &NetSpace, link: FleetLink) -> Result<(), SpaceError> {
        let begin_ns = now_ns();
        let word = if link == FleetLink::Up { "up" } else { "down" };
        switch.ip(&format!("link set {} {word}\n", self.plan.name))?;
        self.link = link;
        self.note_absence(begin_ns);
        Ok(())
    }

    /// Lets the firewall drop packets of connections that it has not tracked, or accept them. It tracks connections in
    /// both cases: otherwise it would not know those of its own apiserver when it begins to drop.
    pub(super) fn set_strict(&mut self, strict: bool) -> Result<(), SpaceError> {
        let (verdict, loose) = if strict { ("drop", "0") } else { ("accept", "1") };
        let chains = ["input", "forward", "output"].map(|hook| {
            format!("chain {hook} {{ type filter hook {hook} priority 0; ct state invalid {verdict}; }}\n")
        });
        // Named twice: only a table that is there can be deleted.
        let rules =
            format!("table inet strict {{}}\ndelete table inet strict\ntable inet strict {{\n{}}}\n", chains.concat());
        self.space.nft(&rules)?;
        self.space.set("net.netfilter.nf_conntrack_tcp_loose", loose)?;
        self.strict = strict;
        Ok(())
    }

    pub(super) fn kill_apiserver(&mut self) {
        let begin_ns = now_ns();
        if let Some(apiserver) = &mut self.apiserver {
            apiserver.kill();
        }
        self.note_absence(begin_ns);
    }

    pub(super) async fn start_apiserver(&mut self, guard: &mut Guard) -> Result<(), ProcessError> {
        if let Some(apiserver) = &mut self.apiserver {
            apiserver.restart(Some(guard)).await?;
        }
        self.note_absence(now_ns());
        Ok(())
    }

    pub(super) fn set_duty(&mut self, duty: Duty) {
        self.duty = duty;
        self.note_absence(now_ns());
    }

    pub(super) fn duty(&self) -> Option<Duty> {
        self.balancer.as_ref().map(|_| self.duty)
    }

    /// Whether a connection to its apiserver that ended at `at_ns` ended with the apiserver or its host.
    pub(super) fn apiserver_was_away(&self, at_ns: u64) -> bool {
        self.away.is_some_and(|(since_ns, until_ns)| (since_ns..=until_ns).contains(&at_ns))
    }

    /// Notes whether its apiserver is away after a change that began at `begin_ns`.
    fn note_absence(&mut self, begin_ns: u64) {
        // Times of clients are in milliseconds, rounded down.
        let begin_ns = begin_ns - 1_000_000;
        let killed = self.apiserver.as_ref().is_some_and(|it| it.condition() == Condition::Killed);
        let leaves = matches!(self.duty(), Some(Duty::Evacuating | Duty::Evacuated));
        let is_away = killed || leaves || self.link == FleetLink::Pulled;
        self.away = match self.away {
            _ if is_away && self.away.is_none_or(|(_, until_ns)| until_ns < begin_ns) => Some((begin_ns, u64::MAX)),
            Some((since_ns, _)) if is_away => Some((since_ns, u64::MAX)),
            // A client may hear of it later.
            Some((since_ns, u64::MAX)) => Some((since_ns, now_ns() + HEARD_WITHIN.as_nanos() as u64)),
            past => past,
        };
    }
}

const HEARD_WITHIN: Duration = Duration::from_secs(5);
