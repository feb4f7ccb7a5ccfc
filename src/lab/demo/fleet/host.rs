//! One host of the fleet: its namespace, its link to the others, and its processes.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use super::layout::HostPlan;
use crate::lab::demo::baton::status::DemoStatus;
use crate::lab::demo::guard::Guard;
use crate::lab::demo::process::{Condition, ProcessError, Reaper, StandInProcess};
use crate::lab::demo::space::{NetSpace, SpaceError};
use crate::sys::clock::now_ns;

/// A host and all that runs on it. Dropping it ends its processes.
#[derive(Debug)]
pub(super) struct FleetHost {
    pub plan: HostPlan,
    pub space: NetSpace,
    /// `None`: the host does not balance.
    pub baton: Option<FleetBaton>,
    pub apiserver: Option<StandInProcess>,
    pub link: FleetLink,
    /// Whether its firewall drops packets of connections that it has not tracked.
    pub strict: bool,
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

/// What the user did to Baton on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatonDuty {
    Serves,
    /// Killed; it starts again at this moment, as systemd would start it.
    Killed {
        starts_ns: u64,
    },
    Upgrading,
    Evacuating,
    Evacuated,
}

/// Baton on a host.
#[derive(Debug)]
pub(super) struct FleetBaton {
    program: PathBuf,
    config: PathBuf,
    pub socket: PathBuf,
    pub log: PathBuf,
    pub duty: BatonDuty,
    pub status: watch::Receiver<DemoStatus>,
    child: Option<Reaper>,
    /// The process that replaced the child in an upgrade.
    successor: Option<OwnedFd>,
}

impl FleetHost {
    pub(super) fn new(plan: HostPlan, space: NetSpace) -> Self {
        Self { plan, space, baton: None, apiserver: None, link: FleetLink::Up, strict: false, away: None }
    }

    pub(super) fn has_vip(&self) -> bool {
        let listed = |baton: &FleetBaton| baton.status.borrow().instance.vips.contains(&super::layout::VIP.into());
        self.link == FleetLink::Up && self.baton.as_ref().is_some_and(listed)
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

    pub(super) fn set_duty(&mut self, duty: BatonDuty) {
        if let Some(baton) = &mut self.baton {
            baton.duty = duty;
        }
        self.note_absence(now_ns());
    }

    pub(super) fn duty(&self) -> Option<BatonDuty> {
        self.baton.as_ref().map(|baton| baton.duty)
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
        let leaves = matches!(self.duty(), Some(BatonDuty::Evacuating | BatonDuty::Evacuated));
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

impl FleetBaton {
    /// Baton that does not run yet. Its files are `stem`.toml, `stem`.sock and `stem`.log.
    pub(super) fn new(program: PathBuf, stem: &std::path::Path, status: watch::Receiver<DemoStatus>) -> Self {
        Self {
            program,
            config: stem.with_extension("toml"),
            socket: stem.with_extension("sock"),
            log: stem.with_extension("log"),
            duty: BatonDuty::Serves,
            status,
            child: None,
            successor: None,
        }
    }

    /// Starts `baton run` in the host's namespace.
    pub(super) fn start(&mut self, space: &NetSpace, guard: &mut Guard) -> io::Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(["run", "-c"]).arg(&self.config);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = space.inside(|| command.spawn())?;
        let _ = guard.take(&child);
        self.child = Some(Reaper(child));
        self.duty = BatonDuty::Serves;
        Ok(())
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) {
        if let Some(successor) = self.successor.take() {
            let _ = pidfd_send_signal(successor, Signal::KILL);
        }
        self.child = None;
    }

    /// An upgrade has replaced the process by this one.
    pub(super) fn replaced_by(&mut self, pid: u32) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        self.successor = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    }

    /// Whether its process has ended, although nobody killed it.
    pub(super) fn has_failed(&mut self) -> bool {
        let ended = self.child.as_mut().is_some_and(|child| matches!(child.0.try_wait(), Ok(Some(_))));
        ended && self.successor.is_none() && !matches!(self.duty, BatonDuty::Killed { .. } | BatonDuty::Upgrading)
    }

    pub(super) fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for FleetBaton {
    fn drop(&mut self) {
        self.kill();
    }
}

const HEARD_WITHIN: Duration = Duration::from_secs(5);
