//! Each fault of the fleet once, without user input: whose connections it costs, and for how long heartbeats stop.

mod table;

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::host::BatonDuty;
use super::stage::{FleetError, FleetKey, FleetStage};
use super::view::{FleetWatcher, Losses};
use crate::lab::demo::BUDGET;
use crate::lab::demo::log;
use crate::sys::clock::now_ns;

/// A fault of the tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FleetFault {
    Upgrade,
    KillBaton,
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
}

impl FleetFault {
    const ALL: [Self; 5] =
        [Self::Upgrade, Self::KillBaton, Self::EvacuateThenPull, Self::PullWithFirewall, Self::KillApiserver];

    fn title(self) -> &'static str {
        match self {
            Self::Upgrade => "Baton upgraded",
            Self::KillBaton => "Baton killed, back in 0.5 s",
            Self::EvacuateThenPull => "evacuated, then plug pulled",
            Self::PullWithFirewall => "plug pulled, firewalls drop",
            Self::KillApiserver => "apiserver killed",
        }
    }
}

/// Runs the tour and prints it. True if no kubelet waited for longer than the budget, nor lost a connection to an
/// apiserver that lived.
pub(super) async fn run(stage: &mut FleetStage) -> Result<bool, FleetError> {
    let mut guide = FleetGuide { stage, watcher: FleetWatcher::default() };
    guide.watcher.view(guide.stage).head().iter().for_each(|line| log::print(line));
    let mut outcomes = Vec::new();
    for fault in FleetFault::ALL {
        outcomes.push(guide.play(fault).await?);
    }
    log::print_lines(&guide.watcher.rest());
    let longest = guide.watcher.view(guide.stage).longest_gap();
    let all = guide.watcher.lost();
    table::lines(&outcomes, all, guide.stage.clients.len(), longest).iter().for_each(|line| log::print(line));
    Ok(longest <= BUDGET && all.without_cause == 0)
}

struct FleetGuide<'a> {
    stage: &'a mut FleetStage,
    watcher: FleetWatcher,
}

impl FleetGuide<'_> {
    async fn play(&mut self, fault: FleetFault) -> Result<FaultOutcome, FleetError> {
        self.until("the fleet is whole, and each kubelet is served by an offloaded flow", FleetStage::is_calm).await?;
        self.stage.clients.iter().for_each(|client| client.kubelet.begin_window());
        self.watch_for(CALM).await?;
        let Some(holder) = self.stage.holder() else { return Err(self.stage.late("a host has the VIP", CALM)) };
        let from = self.stage.hosts[holder].plan.name;
        log::print_lines(&self.watcher.rest());
        log::print(&format!("\n== {}: the VIP is on {from}", fault.title()));
        let before = self.watcher.lost();
        match fault {
            FleetFault::Upgrade => {
                self.press(FleetKey::Upgrade).await?;
                self.serves(holder).await?;
            }
            FleetFault::KillBaton => {
                self.press(FleetKey::KillBaton).await?;
                self.serves(holder).await?;
            }
            FleetFault::EvacuateThenPull => {
                self.press(FleetKey::Evacuate).await?;
                let is_over = move |stage: &FleetStage| stage.hosts[holder].duty() == Some(BatonDuty::Evacuated);
                self.until("the host is evacuated", is_over).await?;
                self.pull(holder).await?;
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
        let longest_gap = self.stage.clients.iter().map(|client| client.kubelet.window_gap()).max().unwrap_or_default();
        let lost = self.watcher.lost().since(before);
        let to = self.stage.holder().map_or("none", |holder| self.stage.hosts[holder].plan.name);
        self.press(FleetKey::Repair).await?;
        Ok(FaultOutcome { title: fault.title(), from, to, lost, longest_gap })
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

    /// Waits until a new process serves on this host.
    async fn serves(&mut self, host: usize) -> Result<(), FleetError> {
        let serves = move |stage: &FleetStage| {
            let Some(baton) = &stage.hosts[host].baton else { return true };
            let status = baton.status.borrow();
            baton.duty == BatonDuty::Serves && status.all_ready() && stage.holder().is_some() && stage.all_served()
        };
        self.until("a new process serves", serves).await
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
        log::print_lines(&self.watcher.due());
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
const STEP_TIMEOUT: Duration = Duration::from_secs(45);
const PERIOD: Duration = Duration::from_millis(20);
