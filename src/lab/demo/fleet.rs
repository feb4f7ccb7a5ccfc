//! `baton demo --fleet`: hosts in network namespaces, each with Baton, an apiserver stand-in or both, and a VIP that
//! Baton moves between them.
//!
//! ```text
//! kubelets ─┬─ bridge ─┬─ cp1    stacked: three hosts, each with an apiserver and Baton
//!           │          ├─ cp2    dedicated: lb-a and lb-b with Baton, cp1 to cp3 with an apiserver
//!           │          └─ cp3
//!
//! layout   the hosts                    host     one of them, with its processes and its link
//! baton    Baton on a host              haproxy  what stands in its place with `--compare haproxy`
//! stage    all that runs, and the keys  files    the configuration of Baton    orders  what Baton was told to do
//! view     the content of the display, and whose connections were lost
//! live     the terminal                 screen   its drawing          tour   each fault once, and a table
//! ```

mod baton;
mod files;
mod haproxy;
mod host;
pub(super) mod layout;
mod live;
mod orders;
mod screen;
mod stage;
mod tour;
mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use super::chronicle::JointLog;
use super::log;
use layout::{BalancerKind, FleetLayout, Rival};
pub(super) use stage::FleetError;
use stage::FleetStage;
use view::FleetWatcher;

/// The part of the command line that concerns the fleet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FleetPlan {
    pub layout: FleetLayout,
    /// Beside Baton.
    pub compare: Option<Rival>,
    pub kubelets: usize,
    pub tour: bool,
    pub no_tui: bool,
}

/// Runs the fleet until `over`; false if a client of the tour waited too long, or lost a connection to an apiserver that
/// lived. An end before that of the tour is an error.
pub(super) async fn play(plan: FleetPlan, over: impl Future<Output = ()>) -> Result<bool, FleetError> {
    if let Some(obstacle) = obstacle() {
        return Err(FleetError::Impossible(obstacle));
    }
    if plan.compare.is_some() {
        let missing: Vec<_> = COMPARED.into_iter().filter(|program| !is_installed(program)).collect();
        if !missing.is_empty() {
            return Err(FleetError::NothingToCompare { missing: missing.join(" ") });
        }
    }
    let mut over = std::pin::pin!(over);
    let early = || if plan.tour { Err(FleetError::CutShort) } else { Ok(true) };
    let beside =
        plan.compare.map_or(String::new(), |Rival::Haproxy| ", twice: with Baton, and with haproxy".to_owned());
    log::print(&format!("laying out {}{beside}; this takes a few seconds", plan.layout.in_words()));
    let mut stages = tokio::select! {
        stages = start(plan) => stages?,
        () = &mut over => return early(),
    };
    let drawn = !plan.tour && !plan.no_tui && io::stdout().is_terminal() && io::stdin().is_terminal();
    let played = tokio::select! {
        played = async {
            match (plan.tour, drawn) {
                (true, _) => tour::run(&mut stages).await,
                (false, true) => live::run(&mut stages).await.map(|()| true),
                (false, false) => print_events(&mut stages).await,
            }
        } => played,
        () = over => early(),
    };
    stages.into_iter().for_each(FleetStage::stop);
    played
}

/// The fleet of Baton, and the one beside it.
async fn start(plan: FleetPlan) -> Result<Vec<FleetStage>, FleetError> {
    let baton = FleetStage::start(BalancerKind::Baton, plan.layout, plan.kubelets);
    match plan.compare {
        None => Ok(vec![baton.await?]),
        Some(Rival::Haproxy) => {
            let haproxy = FleetStage::start(BalancerKind::Haproxy, plan.layout, plan.kubelets);
            let (baton, haproxy) = tokio::try_join!(baton, haproxy)?;
            Ok(vec![baton, haproxy])
        }
    }
}

/// Prints events until this is dropped.
async fn print_events(stages: &mut [FleetStage]) -> Result<bool, FleetError> {
    let mut watchers = FleetWatcher::for_each_of(stages);
    for (stage, watcher) in stages.iter().zip(&watchers) {
        watcher.view(stage).head().iter().for_each(|line| log::print(line));
    }
    let mut joint = JointLog::of(stages.len());
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        for (place, (stage, watcher)) in stages.iter_mut().zip(&mut watchers).enumerate() {
            watcher.gather(stage)?;
            log::print_lines(&joint.due(place, watcher.chronicle()));
        }
    }
}

/// What the plain demo says of the fleet, if this process can run one.
pub(super) fn offer() -> Option<&'static str> {
    obstacle().is_none().then_some("`demo --fleet` works here, too: pull the plug of a host")
}

/// Why this process cannot run a fleet, and what to type instead; `None`: probably it can.
pub(super) fn obstacle() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    // In a user namespace root may make networks, but load no BPF program.
    let all_users =
        std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.trim_end().ends_with("4294967295"));
    let why = match () {
        () if !is_root => "it needs root, for network namespaces and BPF programs: sudo baton demo --fleet",
        () if !all_users => "it needs the machine's root, and this is the root of a user namespace",
        () if !is_installed("ip") => "it needs ip(8): apt-get install iproute2",
        () if !Path::new("/proc/self/ns/net").exists() => "this kernel has no network namespaces",
        () => return None,
    };
    Some(why.to_owned())
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The programs of the other fleet, which are the names of their Debian packages, too. keepalived's script runs curl.
const COMPARED: [&str; 3] = ["haproxy", "keepalived", "curl"];
