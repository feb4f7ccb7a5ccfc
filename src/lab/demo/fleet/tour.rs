//! Each fault of the fleet once, without user input: whose connections it costs, and for how long heartbeats stop.

mod table;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::host::Duty;
use super::layout::BalancerKind;
use super::stage::{FleetError, FleetKey, FleetStage};
use super::view::{FleetWatcher, Losses};
use crate::lab::demo::BUDGET;
use crate::lab::demo::chronicle::JointLog;
use crate::lab::demo::log;
use crate::sys::clock::now_ns;

/// A fault of the tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FleetFault {
    Upgrade,
    KillBalancer,
    EvacuateThenPull,
    PullWithFirewall,
    KillApiserver,
}

/// The result of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FaultOutcome {
    title: &'static str,
    /// The hosts that had the VIP before and after.
    from: &'static str,
    to: &'static str,
    lost: Losses,
    /// The longest time that any kubelet went without a heartbeat.
    longest_gap: Duration,
    /// Number of kubelets whose nodes would have become NotReady.
    not_ready: usize,
    /// Some kubelets still hung when it was repaired.
    is_cut_short: bool,
}

impl FleetFault {
    const ALL: [Self; 5] =
        [Self::Upgrade, Self::KillBalancer, Self::EvacuateThenPull, Self::PullWithFirewall, Self::KillApiserver];

    /// Also of haproxy, `beside` Baton.
    fn title(self, beside: bool) -> &'static str {
        match self {
            Self::Upgrade if beside => "balancer upgraded",
            Self::Upgrade => "Baton upgraded",
            Self::KillBalancer if beside => "balancer killed, back in 0.5 s",
            Self::KillBalancer => "Baton killed, back in 0.5 s",
            Self::EvacuateThenPull => "evacuated, then plug pulled",
            Self::PullWithFirewall => "plug pulled, firewalls drop",
            Self::KillApiserver => "apiserver killed",
        }
    }
}

/// Runs the tour and prints it, with two fleets at the same time. True if no kubelet of Baton waited for longer than the
/// budget, nor lost a connection to an apiserver that lived.
pub(super) async fn run(stages: &mut [FleetStage]) -> Result<bool, FleetError> {
    let begin = Instant::now();
    let watchers = FleetWatcher::for_each_of(stages);
    let log = RefCell::new(JointLog::of(stages.len()));
    let guide = |(place, (stage, watcher))| FleetGuide { stage, watcher, log: &log, place };
    let mut guides: Vec<_> = stages.iter_mut().zip(watchers).enumerate().map(guide).collect();
    for guide in &guides {
        guide.watcher.view(guide.stage).head().iter().for_each(|line| log::print(line));
    }
    let is_beside = guides.len() > 1;
    let mut outcomes: [Vec<FaultOutcome>; 2] = Default::default();
    for fault in FleetFault::ALL {
        let title = fault.title(is_beside);
        match guides.as_mut_slice() {
            [one, other] => {
                let (calm, struck) = (Cell::new(0), Cell::new(0));
                tokio::try_join!(one.beside(&calm, FleetGuide::calm_down), other.beside(&calm, FleetGuide::calm_down))?;
                tokio::try_join!(one.begin(), other.begin())?;
                say_begin(&log, &mut [one, other], title);
                let strike = async |guide: &mut FleetGuide<'_>| guide.strike(fault, title).await;
                let found = tokio::try_join!(one.beside(&struck, strike), other.beside(&struck, strike))?;
                outcomes[0].push(found.0);
                outcomes[1].push(found.1);
                tokio::try_join!(one.press(FleetKey::Repair), other.press(FleetKey::Repair))?;
            }
            alone => {
                for guide in alone {
                    guide.calm_down().await?;
                    guide.begin().await?;
                    say_begin(&log, &mut [guide], title);
                    outcomes[0].push(guide.strike(fault, title).await?);
                    guide.press(FleetKey::Repair).await?;
                }
            }
        }
    }
    print_rest(&log, &mut guides.iter_mut().collect::<Vec<_>>());
    let longest = guides[0].watcher.view(guides[0].stage).longest_gap();
    let all = guides[0].watcher.lost();
    let kubelets = guides[0].stage.clients.len();
    let lines = match &outcomes {
        [baton, haproxy] if is_beside => table::lines_beside(baton, haproxy, guides[1].watcher.lost(), begin.elapsed()),
        [baton, _] => table::lines(baton, all, kubelets, longest),
    };
    lines.iter().for_each(|line| log::print(line));
    Ok(longest <= BUDGET && all.without_cause == 0)
}

/// Prints the title of a fault that begins now.
fn say_begin(log: &RefCell<JointLog>, guides: &mut [&mut FleetGuide<'_>], title: &str) {
    print_rest(log, guides);
    let holder = |guide: &FleetGuide<'_>| guide.stage.holder().map_or("none", |it| guide.stage.hosts[it].plan.name);
    let holders = guides.iter().map(|guide| holder(guide)).collect::<Vec<_>>();
    log::print(&format!("\n== {title}: the VIP is on {}", holders.join(" and ")));
}

fn print_rest(log: &RefCell<JointLog>, guides: &mut [&mut FleetGuide<'_>]) {
    let chronicles = guides.iter_mut().map(|guide| guide.watcher.chronicle());
    log::print_lines(&log.borrow_mut().rest(chronicles));
}

struct FleetGuide<'a> {
    stage: &'a mut FleetStage,
    watcher: FleetWatcher,
    log: &'a RefCell<JointLog>,
    /// In the log.
    place: usize,
}

impl FleetGuide<'_> {
    /// Waits until nothing is left of the fault before.
    async fn calm_down(&mut self) -> Result<(), FleetError> {
        self.until("the fleet is whole, and each kubelet is served", FleetStage::is_calm).await
    }

    /// Does `work`, and tells events until the other fleet's guide has done the same. `done` counts both.
    async fn beside<T>(
        &mut self,
        done: &Cell<usize>,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, FleetError>,
    ) -> Result<T, FleetError> {
        let result = work(self).await?;
        done.set(done.get() + 1);
        while done.get() < 2 {
            self.tell()?;
            sleep(PERIOD).await;
        }
        Ok(result)
    }

    async fn begin(&mut self) -> Result<(), FleetError> {
        self.stage.clients.iter().for_each(|client| client.kubelet.begin_window());
        self.watch_for(CALM).await
    }

    async fn strike(&mut self, fault: FleetFault, title: &'static str) -> Result<FaultOutcome, FleetError> {
        let Some(holder) = self.stage.holder() else { return Err(self.stage.late("a host has the VIP", CALM)) };
        let from = self.stage.hosts[holder].plan.name;
        let before = self.watcher.lost();
        let mut is_cut_short = false;
        match fault {
            FleetFault::Upgrade => {
                self.press(FleetKey::Upgrade).await?;
                self.serves(holder).await?;
            }
            FleetFault::KillBalancer => {
                self.press(FleetKey::KillBalancer).await?;
                self.serves(holder).await?;
            }
            FleetFault::EvacuateThenPull => {
                self.press(FleetKey::Evacuate).await?;
                let is_over = move |stage: &FleetStage| stage.hosts[holder].duty() == Some(Duty::Evacuated);
                self.until("the host is evacuated", is_over).await?;
                match self.stage.kind {
                    BalancerKind::Baton => self.pull(holder).await?,
                    BalancerKind::Haproxy => is_cut_short = self.pull_for_a_moment(holder, before.hung).await?,
                }
            }
            FleetFault::PullWithFirewall => {
                self.press(FleetKey::Firewall).await?;
                self.pull(holder).await?;
            }
            FleetFault::KillApiserver => {
                self.press(FleetKey::KillApiserver).await?;
                self.until("all kubelets are served by apiservers that live", is_served_by_the_living).await?;
            }
        }
        self.watch_for(SETTLE).await?;
        let gaps: Vec<_> = self.stage.clients.iter().map(|client| client.kubelet.window_gap()).collect();
        let longest_gap = gaps.iter().copied().max().unwrap_or_default();
        let not_ready = gaps.iter().filter(|gap| **gap > GRACE).count();
        let lost = self.watcher.lost().since(before);
        let to = self.stage.holder().map_or("none", |holder| self.stage.hosts[holder].plan.name);
        Ok(FaultOutcome { title, from, to, lost, longest_gap, not_ready, is_cut_short })
    }

    async fn press(&mut self, key: FleetKey) -> Result<(), FleetError> {
        let at_ns = now_ns();
        let done = self.stage.press(key).await?;
        self.watcher.say_at(at_ns, "you", done);
        Ok(())
    }

    /// Cuts the host off, and waits until another one has the VIP and serves all kubelets.
    async fn pull(&mut self, host: usize) -> Result<(), FleetError> {
        let at_ns = now_ns();
        let done = self.stage.pull_plug(host)?;
        self.watcher.say_at(at_ns, "you", done);
        let is_over = |stage: &FleetStage| stage.holder().is_some() && is_served_by_the_living(stage);
        self.until("another host serves all kubelets", is_over).await
    }

    /// The same, but where kubelets hang for longer than is allowed, it waits no longer than until that is counted: only
    /// one fault of a tour under two minutes can be watched until a kubelet notices by itself.
    /// True if some still hang. `hung` is the number of those that have hung before.
    async fn pull_for_a_moment(&mut self, host: usize, hung: u64) -> Result<bool, FleetError> {
        let waited = tokio::time::timeout(BUDGET + SETTLE, self.pull(host)).await;
        match waited {
            Err(_) if self.watcher.lost().hung > hung => Ok(true),
            Err(_) => Err(self.stage.late("another host serves all kubelets", BUDGET + SETTLE)),
            Ok(pulled) => pulled.map(|()| false),
        }
    }

    /// Waits until a new process serves on this host.
    async fn serves(&mut self, host: usize) -> Result<(), FleetError> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        while !self.stage.hosts[host].is_serving() {
            self.tell()?;
            if Instant::now() > deadline {
                return Err(self.stage.late("a new process serves", STEP_TIMEOUT));
            }
            sleep(PERIOD).await;
        }
        let serves = |stage: &FleetStage| stage.holder().is_some() && is_served_by_the_living(stage);
        self.until("all kubelets are served again", serves).await
    }

    /// Waits until `holds`, and prints events meanwhile.
    async fn until(&mut self, awaited: &str, holds: impl Fn(&FleetStage) -> bool) -> Result<(), FleetError> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            self.tell()?;
            if holds(self.stage) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.stage.late(awaited, STEP_TIMEOUT));
            }
            sleep(PERIOD).await;
        }
    }

    async fn watch_for(&mut self, time: Duration) -> Result<(), FleetError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(PERIOD).await;
            self.tell()?;
        }
        Ok(())
    }

    fn tell(&mut self) -> Result<(), FleetError> {
        self.watcher.gather(self.stage)?;
        log::print_lines(&self.log.borrow_mut().due(self.place, self.watcher.chronicle()));
        Ok(())
    }
}

/// No kubelet waits for an apiserver that is gone.
fn is_served_by_the_living(stage: &FleetStage) -> bool {
    let has_gone = |host: &&super::host::FleetHost| host.apiserver_was_away(now_ns());
    stage.all_served() && stage.hosts.iter().filter(has_gone).all(|host| stage.kubelets_of(host) == 0)
}

/// Pause before each fault, so that each begins with heartbeats at their usual interval.
const CALM: Duration = Duration::from_millis(1200);
/// Pause after it, so that each kubelet has renewed.
const SETTLE: Duration = Duration::from_millis(1500);
/// Longer than a kubelet needs to notice by itself that no one answers (45 s).
const STEP_TIMEOUT: Duration = Duration::from_secs(75);
/// A node without a heartbeat for longer becomes NotReady (--node-monitor-grace-period).
const GRACE: Duration = Duration::from_secs(40);
const PERIOD: Duration = Duration::from_millis(20);
