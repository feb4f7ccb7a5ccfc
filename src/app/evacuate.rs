//! Carries out the decisions of `model::fleet::evacuate`: empties this host, so that an operator can switch it off.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Core;
use crate::addr::BackendAddr;
use crate::admin::evacuate::{
    Evacuating, EvacuationCheck, EvacuationFailed, EvacuationFlows, EvacuationOutcome, EvacuationProgress,
    EvacuationReport, EvacuationRequest, VipPlace,
};
use crate::config::Config;
use crate::drain::LifePhase;
use crate::essential;
use crate::model::end_reason::EndReason;
use crate::model::fleet::Liveness;
use crate::model::fleet::evacuate::{EvacuateOrder, EvacuateStep, Evacuation, Failure, Situation, VIP_GIVEN, Wish};
use crate::model::ids::BackendId;
use crate::ports::orders::{EndOrder, Pace, Selector};
use crate::preflight::mover;
use crate::sys::clock::now_ns;
use crate::sys::netdev;
use crate::table::flows::FlowState;
use crate::table::journal::What;
use crate::table::totals::Totals;

/// Interval of the looks, during an evacuation and after it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// Interval of the progress reports to the operator.
const SHOW_EVERY_NS: u64 = 100_000_000;

/// Whether this host has evacuated or is about to.
#[derive(Debug, Default)]
pub(super) struct EvacuationState {
    /// `None`: this host may have the VIP, and no evacuation runs.
    running: Mutex<Option<RunningEvacuation>>,
    /// Whether this host should not have the VIP.
    vip_given: AtomicBool,
}

#[derive(Clone, Debug)]
struct RunningEvacuation {
    handing: Evacuating,
    /// An operator cancels it. No child of the instance's tokens: an instance that stops must take nothing back.
    cancel: CancellationToken,
}

impl EvacuationState {
    /// Whether an evacuation is under way or done.
    pub(super) fn is_busy(&self) -> bool {
        self.running().is_some()
    }

    /// Why this host should not have the VIP.
    pub(super) fn not_ready(&self) -> Option<String> {
        self.vip_given.load(Relaxed).then(|| VIP_GIVEN.to_owned())
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningEvacuation>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new process may have the VIP, even if the one before it had given it up.
pub(super) fn begin_anew(config: &Config) {
    let Some(path) = config.failover.track_file.as_ref().filter(|_| config.peers.is_some()) else { return };
    let left = std::fs::read_to_string(path).is_ok_and(|text| !matches!(text.trim(), "" | "0"));
    if left {
        match write(path, false) {
            Ok(()) => {
                tracing::info!(path = %path.display(), "an earlier process gave up the VIP; this process wrote 0 to track_file, so this host may have it again")
            }
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "an earlier process gave up the VIP, and this process cannot write 0 to track_file: this host does not get the VIP");
            }
        }
    }
}

/// Begins an evacuation, or joins the one that is under way or done.
pub(super) fn begin(core: &Arc<Core>, asked: &EvacuationRequest) -> Result<Evacuating, EvacuationFailed> {
    let refused = |why: String| EvacuationFailed { why };
    let mut running = core.evacuation.running();
    if let Some(running) = running.as_ref() {
        return Ok(running.handing.clone());
    }
    obstacle(core).map_or(Ok(()), |why| Err(refused(why)))?;
    let track_file = core.config.load().failover.track_file.clone();
    if let Some(path) = &track_file {
        // Check now that the file can be written, not half-way.
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| refused(unwritable(path, &error).to_string()))?;
    }
    let machine =
        with_look(core, |look| Evacuation::begin(wish(asked), look)).map_err(|failure| refused(failure.to_string()))?;
    let (progress_sender, progress) = watch::channel(EvacuationProgress::default());
    let (report_sender, report) = watch::channel(None);
    let handing = Evacuating { progress, report };
    let cancel = CancellationToken::new();
    *running = Some(RunningEvacuation { handing: handing.clone(), cancel: cancel.clone() });
    let flows = core.table.flows.len();
    core.table.journal.record(What::EvacuationBegun { to: asked.to.clone(), flows });
    let run = Run {
        core: core.clone(),
        machine,
        track_file,
        before: OwnFlowCounts::default(),
        began_ns: now_ns(),
        shown_at_ns: 0,
        progress: progress_sender,
        report: report_sender,
    };
    tokio::spawn(essential::task("evacuate", run.run(cancel)));
    Ok(handing)
}

/// Lets this host have the VIP again.
pub(super) fn take_back(core: &Core) -> Result<Evacuating, EvacuationFailed> {
    let running = core.evacuation.running();
    let Some(running) = running.as_ref() else {
        return Err(EvacuationFailed { why: "no evacuation is under way, so this host may have the VIP".to_owned() });
    };
    running.cancel.cancel();
    Ok(running.handing.clone())
}

pub(super) fn check(core: &Core, asked: &EvacuationRequest) -> EvacuationCheck {
    let mut obstacles: Vec<_> = obstacle(core).into_iter().collect();
    if obstacles.is_empty() {
        let begun = with_look(core, |look| Evacuation::begin(wish(asked), look).map(|_| ()));
        obstacles.extend(begun.err().map(|failure| failure.to_string()));
    }
    let here = core.table.fleet.places().here.clone();
    let track_file = core.config.load().failover.track_file.clone();
    // The holder moves Baton's own VIP away.
    let own = core.config.load().vip.as_ref().map(|vip| vip.addresses.clone()).unwrap_or_default();
    let others: Vec<_> = here.iter().copied().filter(|ip| !own.contains(ip)).collect();
    let stays = if obstacles.is_empty() { mover::missing(&others, track_file.as_deref()) } else { Vec::new() };
    let mut check = EvacuationCheck {
        obstacles,
        unmoved: stays,
        vips: places(core, core.table.fleet.places().here.iter().copied()),
        offloaded: 0,
        proxied: 0,
        to_own_backend: flows_to_own_backends(core),
        stays: Default::default(),
    };
    for flow in core.table.flows.iter() {
        if flow.state == FlowState::Offloaded {
            check.offloaded += u64::from(!flow.stays_here);
        } else {
            check.proxied += 1;
            *check.stays.entry(flow.stays.map_or("", |why| why.label()).to_owned()).or_default() += 1;
        }
    }
    check
}

/// Why an evacuation is impossible.
fn obstacle(core: &Core) -> Option<String> {
    let config = core.config.load();
    let listens = config.frontends.iter().flat_map(|frontend| &frontend.listen);
    if core.drain.watch().phase() != LifePhase::Serving {
        Some("this instance is starting or stopping".to_owned())
    } else if core.is_upgrading() {
        Some("an upgrade is under way".to_owned())
    } else if config.peers.is_none() || !core.ports.fleet.is_enabled() {
        Some("this instance has no peers: there is no [peers] in its configuration".to_owned())
    } else if listens.clone().all(|vip| vip.ip().is_unspecified() || vip.ip().is_loopback()) {
        Some("no frontend listens on a VIP, an address that another host could have".to_owned())
    } else {
        None
    }
}

fn wish(asked: &EvacuationRequest) -> Wish {
    Wish { to: asked.to.clone(), deadline_ns: asked.deadline_ms.saturating_mul(1_000_000) }
}

fn with_look<T>(core: &Core, act: impl FnOnce(&Situation<'_>) -> T) -> T {
    let fleet = &core.table.fleet;
    let (peers, places) = (fleet.members(), fleet.places());
    act(&Situation {
        now_ns: now_ns(),
        peers: &peers,
        places: &places,
        ending_here: core.table.flows_ending_here(),
        accepted: Totals::of(&core.table.registry).frontends.iter().map(|frontend| frontend.accepted).sum(),
    })
}

fn places(core: &Core, vips: impl Iterator<Item = std::net::IpAddr>) -> Vec<VipPlace> {
    let (members, here) = (core.table.fleet.members(), core.table.fleet.places());
    let place = |address| {
        let has = members.iter().filter(|it| it.liveness == Liveness::Alive && it.vips.contains(&address));
        VipPlace { address, here: here.here.contains(&address), at: has.map(|it| it.name.clone()).collect() }
    };
    vips.map(place).collect()
}

fn write(path: &Path, away: bool) -> io::Result<()> {
    // In place, because keepalived watches this very file.
    std::fs::write(path, if away { "1\n" } else { "0\n" })
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::TrackFile { path: path.display().to_string(), error: error.to_string() }
}

/// The number of flows whose backend is on this host: no other instance can carry them when this host is gone.
fn flows_to_own_backends(core: &Core) -> u64 {
    let Ok(own) = netdev::addresses() else { return 0 };
    let is_own = |address: BackendAddr| own.iter().any(|(_, ip)| *ip == address.ip());
    let backends = core.table.registry.backends();
    let own: HashSet<_> = backends.iter().filter(|it| it.address().is_some_and(is_own)).map(|it| it.id).collect();
    let is_served = |backend: Option<BackendId>| backend.is_some_and(|id| own.contains(&id));
    match own.is_empty() {
        true => 0,
        false => {
            core.table.flows.iter().filter(|flow| flow.state.is_served() && is_served(flow.backend)).count() as u64
        }
    }
}

/// The two counters of offloaded flows and of all are not read together: a flow that has just moved would be one with sockets, and the
/// host not empty.
fn flows_with_sockets(core: &Core) -> u64 {
    match core.table.flows_with_sockets() {
        0 => 0,
        _ => core.table.flows.iter().filter(|flow| flow.state != FlowState::Offloaded).count() as u64,
    }
}

/// Counters of this instance's flows.
#[derive(Clone, Copy, Debug, Default)]
struct OwnFlowCounts {
    proxied: u64,
    /// Offloaded flows that end with this host.
    staying: u64,
    to_own_backend: u64,
    all: u64,
    accepted: u64,
    offloaded: u64,
    moved: u64,
    reset: u64,
    ended: u64,
}

impl OwnFlowCounts {
    fn of(core: &Core) -> Self {
        let table = &core.table;
        let mut counts = Self {
            proxied: flows_with_sockets(core),
            staying: table.offload.staying() as u64,
            to_own_backend: flows_to_own_backends(core),
            all: table.flows.len() as u64,
            offloaded: table.offload.offloaded.value(),
            ..Self::default()
        };
        for frontend in Totals::of(&table.registry).frontends {
            counts.accepted += frontend.accepted;
            for (reason, count) in frontend.ended {
                let into = match reason {
                    reason if reason == EndReason::Moved.label() => &mut counts.moved,
                    reason if reason == EndReason::EvacuationDeadline.label() => &mut counts.reset,
                    _ => &mut counts.ended,
                };
                *into += count;
            }
        }
        counts
    }

    fn since(&self, before: &Self) -> EvacuationFlows {
        EvacuationFlows {
            proxied_before: before.proxied,
            offloaded_before: before.all.saturating_sub(before.proxied),
            accepted: self.accepted.saturating_sub(before.accepted),
            offloaded: self.offloaded.saturating_sub(before.offloaded),
            moved: self.moved.saturating_sub(before.moved),
            ended: self.ended.saturating_sub(before.ended),
            reset: self.reset.saturating_sub(before.reset),
            proxied_left: self.proxied,
            offloaded_left: self.all.saturating_sub(self.proxied + self.staying),
            to_own_backend: self.to_own_backend,
        }
    }
}

/// One evacuation.
struct Run {
    core: Arc<Core>,
    machine: Evacuation,
    track_file: Option<PathBuf>,
    before: OwnFlowCounts,
    began_ns: u64,
    shown_at_ns: u64,
    progress: watch::Sender<EvacuationProgress>,
    report: watch::Sender<Option<EvacuationReport>>,
}

impl Run {
    async fn run(mut self, cancel: CancellationToken) {
        let mut is_cancelled = false;
        self.before = self.counts().await;
        let mut was = self.machine.step();
        loop {
            // An instance that stops must take nothing back.
            if self.core.drain.watch().phase() == LifePhase::Serving {
                let core = self.core.clone();
                with_look(&core, |look| self.machine.handle_look(look));
            }
            self.act();
            let step = self.machine.step();
            self.show(step != was).await;
            match step {
                EvacuateStep::Here => return self.end().await,
                EvacuateStep::Away if was != EvacuateStep::Away => self.away().await,
                _ => {}
            }
            was = step;
            let wait = if step == EvacuateStep::Away { WATCH_EVERY } else { LOOK_EVERY };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = cancel.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    self.machine.cancel();
                }
            }
        }
    }

    fn act(&mut self) {
        while let Some(order) = self.machine.poll_order() {
            tracing::debug!(?order, "Baton carries out an order of the evacuation");
            let Core { proxy, table, ports, evacuation, config, .. } = &*self.core;
            match order {
                EvacuateOrder::Keep => ports.fleet.set_keeping(true),
                EvacuateOrder::GiveVip => {
                    evacuation.vip_given.store(true, Relaxed);
                    ports.vip.evacuate(self.machine.to().cloned());
                    if let Some(path) = &self.track_file
                        && let Err(error) = write(path, true)
                    {
                        self.machine.fail(unwritable(path, &error));
                    }
                }
                EvacuateOrder::Offload => proxy.offload_at_once(true),
                EvacuateOrder::Refuse => proxy.refuse(Some(EndReason::EvacuationDeadline)),
                EvacuateOrder::Reset => {
                    let process = &config.load().process;
                    let pace = Pace { within: process.reset_within, per_second: process.reset_rate };
                    let (selector, reason) = (Selector::EndingHere, EndReason::EvacuationDeadline);
                    tracing::warn!(
                        flows = table.flows_ending_here(),
                        "the deadline of the evacuation has passed, or the VIP's new owner forwards no packets: Baton resets the flows that would end with this host"
                    );
                    ports.orders.end(EndOrder { selector, reason, pace, only_idle_for: None });
                }
                EvacuateOrder::TakeBack => {
                    evacuation.vip_given.store(false, Relaxed);
                    ports.vip.take_back();
                    if let Some(path) = &self.track_file
                        && let Err(error) = write(path, false)
                    {
                        tracing::error!(path = %path.display(), %error, "cannot write 0 to track_file, so this host does not get the VIP back: write 0 to that file");
                    }
                    proxy.offload_at_once(false);
                    proxy.refuse(None);
                    ports.fleet.set_keeping(false);
                }
                EvacuateOrder::Release => {
                    proxy.offload_at_once(false);
                    ports.fleet.set_keeping(false);
                }
            }
        }
    }

    /// Counts on a thread for blocking work: it walks through the table, and asks the kernel for addresses.
    async fn counts(&self) -> OwnFlowCounts {
        let core = self.core.clone();
        match essential::aside(move || OwnFlowCounts::of(&core)).await {
            Some(counts) => counts,
            // The runtime is shutting down, and with it this task.
            None => std::future::pending().await,
        }
    }

    async fn show(&mut self, at_once: bool) {
        let now_ns = now_ns();
        if !at_once && now_ns < self.shown_at_ns + SHOW_EVERY_NS {
            return;
        }
        self.shown_at_ns = now_ns;
        let step = self.machine.step();
        // The report has the result.
        if matches!(step, EvacuateStep::Away | EvacuateStep::Here) {
            return;
        }
        let flows = self.counts().await.since(&self.before);
        self.progress.send_replace(EvacuationProgress {
            step,
            vips: self.machine.vips().collect(),
            flows,
            deadline_in_ms: self.machine.deadline_ns().saturating_sub(now_ns) / 1_000_000,
        });
    }

    async fn report(&self, outcome: EvacuationOutcome) -> EvacuationReport {
        EvacuationReport {
            outcome,
            vips: places(&self.core, self.machine.watched()),
            flows: self.counts().await.since(&self.before),
            took_ms: now_ns().saturating_sub(self.began_ns) / 1_000_000,
            unconfirmed: self.machine.unconfirmed().to_vec(),
        }
    }

    async fn away(&self) {
        let report = self.report(EvacuationOutcome::Away).await;
        let EvacuationReport { flows, took_ms, .. } = &report;
        self.core.table.journal.record(What::Evacuated { flows_reset: flows.reset, took_ms: *took_ms });
        self.report.send_replace(Some(report));
    }

    /// This host may have the VIP.
    async fn end(self) {
        let why = self.machine.failure().map(ToString::to_string);
        self.core.table.journal.record(What::EvacuationCancelled { why: why.clone() });
        let report = self.report(why.map_or(EvacuationOutcome::Cancelled, EvacuationOutcome::Failed)).await;
        *self.core.evacuation.running() = None;
        self.report.send_replace(Some(report));
    }
}
