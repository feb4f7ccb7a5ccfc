//! Plays a plan.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep};

use super::ends;
use super::guard::NodeGuard;
use super::order::{self, GOOD};
use super::plan::{GamedayPlan, PlanStep};
use super::report::{GamedayReport, Halt, SilenceSample, StepReport};
use super::{GamedayArgs, GamedayError};
use crate::lab::drill::KubeletFleet;
use crate::lab::kubelet::{KubeletEvent, Observed};
use crate::model::humane::{date_and_time, plural, printable};
use crate::sys::clock::unix_ms;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Limit for the first heartbeats, beyond two intervals.
const GATHER_MAX: Duration = Duration::from_secs(20);
/// Limit for the question whether an instance is ready.
const READY_LIMIT: Duration = Duration::from_secs(10);

struct Day<'p> {
    plan: &'p GamedayPlan,
    fleet: KubeletFleet,
    observed: mpsc::UnboundedReceiver<Observed>,
    births: Interval,
    ticks: Interval,
    signals: [Signal; 2],
    guard: NodeGuard,
    began: Instant,
    samples: Vec<SilenceSample>,
    /// Of this step.
    window: Window,
    every: Duration,
    quiet: bool,
    /// The kubelets' own addresses so far.
    locals: HashSet<SocketAddr>,
}

/// What the kubelets have reported since a step began.
#[derive(Clone, Debug, Default)]
struct Window {
    gap_ms: u64,
    lost: u64,
    failures: u64,
    last_error: Option<String>,
}

/// Plays all steps, or those up to a halt.
pub(super) async fn play(args: &GamedayArgs, plan: &GamedayPlan, quiet: bool) -> Result<GamedayReport, GamedayError> {
    let (fleet, observed) = KubeletFleet::new(&args.drill).await?;
    let signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
    for instance in &plan.instances {
        let command: Vec<_> = instance.command.iter().cloned().chain(["ready".to_owned()]).collect();
        let ran = order::run(&command, GOOD, READY_LIMIT).await;
        if let Some(failed) = ran.failed {
            let name = printable(&instance.name);
            return Err(GamedayError::NotBegun(format!(
                "{name} is not ready: `{}`: {failed} {}",
                ran.command, ran.said
            )));
        }
    }
    let births = fleet.births();
    let mut ticks = interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let guard = NodeGuard::start(&plan.instances).await;
    let (window, every, began) = (Window::default(), args.drill.every, Instant::now());
    let (samples, locals) = (Vec::new(), HashSet::new());
    let mut day =
        Day { plan, fleet, observed, births, ticks, signals, guard, began, samples, window, every, quiet, locals };
    day.gather().await?;
    let mut report = GamedayReport {
        began_unix_ms: unix_ms(),
        server: day.fleet.server().to_owned(),
        kubelets: args.drill.kubelets.into(),
        every_ms: args.drill.every.as_millis() as u64,
        grace_ms: args.drill.grace.as_millis() as u64,
        silent_max_ms: plan.silent_max.as_millis() as u64,
        guards: day.guards(),
        steps: Vec::new(),
        left_out: Vec::new(),
        halt: None,
        samples: Vec::new(),
        leases_left: 0,
    };
    day.began = Instant::now();
    day.samples.clear();
    for (number, step) in plan.steps.iter().enumerate() {
        if report.halt.is_some() {
            report.left_out.push(step.title.clone());
            continue;
        }
        day.say(&format!("step {} of {}: {}", number + 1, plan.steps.len(), printable(&step.title)));
        let (played, halt) = day.step(step).await;
        day.say(&format!("  {}", played.in_words()));
        report.steps.push(played);
        report.halt = halt;
    }
    report.samples = std::mem::take(&mut day.samples);
    report.leases_left = day.fleet.dismiss().await;
    Ok(report)
}

impl Day<'_> {
    /// Waits until each kubelet has had a heartbeat, and nobody is silent.
    async fn gather(&mut self) -> Result<(), GamedayError> {
        self.say(&format!("waiting for the kubelets' first heartbeats at {}", self.fleet.server()));
        let limit = self.every * 2 + GATHER_MAX;
        match self.calm(limit).await {
            Ok(None) => Ok(()),
            Ok(Some(restless)) => Err(GamedayError::NotBegun(restless)),
            Err(halt) => Err(GamedayError::NotBegun(halt.in_words())),
        }
    }

    /// Runs the step, watches, and undoes it, whatever happened.
    async fn step(&mut self, step: &PlanStep) -> (StepReport, Option<Halt>) {
        self.window = Window::default();
        let (began, began_unix_ms) = (self.now_ms(), unix_ms());
        let at = date_and_time(began_unix_ms).1;
        let plan = self.plan;
        let command = plan.command(step, &step.run);
        let mut halt = None;
        let mut run = None;
        match self.beside(true, order::run(&command, &step.exit_codes, step.limit)).await {
            Err(stopped) => halt = Some(stopped),
            Ok(ran) => {
                if let Some(failed) = &ran.failed {
                    halt = Some(Halt::CommandFailed { command: ran.command.clone(), failed: failed.clone() });
                }
                run = Some(ran);
            }
        }
        if halt.is_none() {
            halt = self.beside(true, sleep(step.watch)).await.err();
        }
        if let Some(halt) = &halt {
            self.say(&format!("  stopped: {}", halt.in_words()));
        }
        let mut undo = None;
        if let Some(order) = &step.undo {
            let command = plan.command(step, order);
            let undone_at = self.now_ms();
            let ran = self.beside(false, order::run(&command, GOOD, step.limit)).await;
            undo = ran.ok().map(|ran| (undone_at, ran));
        }
        let undo_failed = undo.as_ref().and_then(|(_, ran)| Some((ran.command.clone(), ran.failed.clone()?)));
        if let Some((command, failed)) = undo_failed {
            halt.get_or_insert(Halt::CommandFailed { command, failed });
        }
        if halt.is_none() {
            halt = match self.calm(plan.settle).await {
                Ok(None) => None,
                Ok(Some(restless)) => Some(Halt::NotSettled(restless)),
                Err(halt) => Some(halt),
            };
        }
        let open = self.fleet.summaries().iter().map(|it| it.last_renewal_ms).max().unwrap_or(0);
        let Window { gap_ms, lost, failures, .. } = self.window;
        let lost_for = if lost == 0 { BTreeMap::new() } else { self.lost_for(began_unix_ms, began).await };
        let (undone_ms, undo) = undo.map_or((None, None), |(at, ran)| (Some(at), Some(ran)));
        let report = StepReport {
            title: step.title.clone(),
            at,
            began_ms: began,
            undone_ms,
            ended_ms: self.now_ms(),
            gap_ms: gap_ms.max(open),
            lost,
            lost_for,
            failures,
            run,
            undo,
        };
        (report, halt)
    }

    /// Why connections ended in the step that began then, as far as instances tell.
    async fn lost_for(&mut self, began_unix_ms: u64, began_ms: u64) -> BTreeMap<String, u64> {
        let lasted = Duration::from_millis(self.now_ms().saturating_sub(began_ms));
        let (plan, locals) = (self.plan, std::mem::take(&mut self.locals));
        let ends = self.beside(false, ends::ask(&plan.instances, began_unix_ms, lasted, &locals)).await;
        self.locals.extend(locals);
        ends.unwrap_or_default()
    }

    /// Waits until the last heartbeat of each kubelet is young, and no node is silent. Returns who is not calm after `limit`.
    async fn calm(&mut self, limit: Duration) -> Result<Option<String>, Halt> {
        let end = Instant::now() + limit;
        loop {
            let restless = self.restless();
            if restless.is_none() || Instant::now() >= end {
                return Ok(restless);
            }
            self.beside(true, sleep(SAMPLE_EVERY / 2)).await?;
        }
    }

    fn restless(&self) -> Option<String> {
        if !self.fleet.is_whole() {
            return Some("not all kubelets have begun".to_owned());
        }
        let young = self.every + self.every / 2;
        let all = self.fleet.summaries();
        if let Some(late) = all.iter().find(|it| it.renewals == 0 || it.last_renewal_ms > young.as_millis() as u64) {
            let why =
                self.window.last_error.as_ref().map_or_else(String::new, |error| format!(": {}", printable(error)));
            return Some(format!("kubelet {} has no heartbeat{why}", late.name));
        }
        let (node, instance, _) = self.guard.worst()?;
        Some(format!("{instance} says that node {} is silent", printable(&node)))
    }

    /// Does `work` while the kubelets go on; if `guarded`, until somebody is silent for too long or a signal comes.
    async fn beside<T>(&mut self, guarded: bool, work: impl Future<Output = T>) -> Result<T, Halt> {
        let mut work = pin!(work);
        loop {
            let [interrupt, terminate] = &mut self.signals;
            tokio::select! {
                biased;
                _ = interrupt.recv(), if guarded => return Err(Halt::Signal),
                _ = terminate.recv(), if guarded => return Err(Halt::Signal),
                _ = self.ticks.tick() => {
                    self.sample();
                    if let Some(halt) = self.too_silent().filter(|_| guarded) {
                        return Err(halt);
                    }
                }
                done = &mut work => return Ok(done),
                Some(seen) = self.observed.recv() => {
                    if let KubeletEvent::Connected { local, .. } = &seen.event {
                        self.locals.insert(*local);
                    }
                    self.window.note(&seen.event);
                }
                _ = self.births.tick(), if !self.fleet.is_whole() => self.fleet.grow(),
            }
        }
    }

    fn sample(&mut self) {
        let all = self.fleet.summaries();
        self.samples.push(SilenceSample {
            at_ms: self.now_ms(),
            silent_ms: all.iter().map(|it| it.last_renewal_ms).max().unwrap_or(0),
            lost: all.iter().map(|it| it.disconnections).sum(),
        });
    }

    fn too_silent(&self) -> Option<Halt> {
        let limit_ms = self.plan.silent_max.as_millis() as u64;
        let all = self.fleet.summaries();
        let kubelet = all.iter().max_by_key(|it| it.last_renewal_ms).filter(|it| it.last_renewal_ms > limit_ms);
        if let Some(it) = kubelet {
            let why = self.window.last_error.clone();
            return Some(Halt::KubeletSilent { name: it.name.clone(), for_ms: it.last_renewal_ms, limit_ms, why });
        }
        let (node, by, for_ms) = self.guard.worst().filter(|(.., for_ms)| *for_ms > limit_ms)?;
        Some(Halt::NodeSilent { node, by, for_ms, limit_ms })
    }

    /// A sentence about each guard.
    fn guards(&self) -> Vec<String> {
        let of_nodes = self.guard.looks().into_iter().map(|(name, look)| match (look.error, look.nodes) {
            (Some(error), _) => format!("{name} does not say which nodes are silent: {error}"),
            (None, None) => format!("{name} knows no nodes, so it cannot say which are silent"),
            (None, Some(nodes)) => format!("{name} watches {}", plural(nodes as u64, "node")),
        });
        of_nodes.collect()
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            println!("{}Z  {text}", date_and_time(unix_ms()).1);
        }
    }
}

impl Window {
    fn note(&mut self, event: &KubeletEvent) {
        match event {
            KubeletEvent::Renewed { gap_ms, .. } => self.gap_ms = self.gap_ms.max(*gap_ms),
            KubeletEvent::Disconnected { .. } => self.lost += 1,
            KubeletEvent::Failed { error } => {
                self.failures += 1;
                self.last_error = Some(error.clone());
            }
            _ => {}
        }
    }
}
