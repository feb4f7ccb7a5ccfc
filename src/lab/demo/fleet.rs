//! `baton demo --fleet`: hosts in network namespaces, each with Baton, an apiserver stand-in or both, and a VIP that
//! Baton moves between them.
//!
//! ```text
//! kubelets ─┬─ bridge ─┬─ cp1    stacked: three hosts, each with an apiserver and Baton
//!           │          ├─ cp2    dedicated: lb-a and lb-b with Baton, cp1 to cp3 with an apiserver
//!           │          └─ cp3
//!
//! layout   the hosts                    host     one of them, with its processes and its link
//! stage    all that runs, and the keys  view     the content of the display, and whose connections were lost
//! live     the terminal                 screen   its drawing          tour   each fault once, and a table
//! ```

mod host;
pub(super) mod layout;
mod live;
mod screen;
mod stage;
mod tour;
mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use super::log;
use layout::FleetLayout;
pub(super) use stage::FleetError;
use stage::FleetStage;
use view::FleetWatcher;

/// The part of the command line that concerns the fleet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FleetPlan {
    pub layout: FleetLayout,
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
    let mut over = std::pin::pin!(over);
    let early = || if plan.tour { Err(FleetError::CutShort) } else { Ok(true) };
    log::print(&format!("laying out {}; this takes a few seconds", plan.layout.in_words()));
    let mut stage = tokio::select! {
        stage = FleetStage::start(plan.layout, plan.kubelets) => stage?,
        () = &mut over => return early(),
    };
    let drawn = !plan.tour && !plan.no_tui && io::stdout().is_terminal() && io::stdin().is_terminal();
    let played = tokio::select! {
        played = async {
            match (plan.tour, drawn) {
                (true, _) => tour::run(&mut stage).await,
                (false, true) => live::run(&mut stage).await.map(|()| true),
                (false, false) => print_events(&mut stage).await,
            }
        } => played,
        () = over => early(),
    };
    stage.stop();
    played
}

/// Prints events until this is dropped.
async fn print_events(stage: &mut FleetStage) -> Result<bool, FleetError> {
    let mut watcher = FleetWatcher::default();
    watcher.view(stage).head().iter().for_each(|line| log::print(line));
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        watcher.gather(stage)?;
        log::print_lines(&watcher.due());
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
    let installed = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
    };
    let why = match () {
        () if !is_root => "it needs root, for network namespaces and BPF programs: sudo baton demo --fleet",
        () if !all_users => "it needs the machine's root, and this is the root of a user namespace",
        () if !installed("ip") => "it needs ip(8): apt-get install iproute2",
        () if !Path::new("/proc/self/ns/net").exists() => "this kernel has no network namespaces",
        () => return None,
    };
    Some(why.to_owned())
}
