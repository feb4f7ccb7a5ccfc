//! Carries out what `model::fleet::failover` decides: watches the addresses of this host, tells neighbours, wakes the clients
//! of dead instances, and has the offload engine hold, forward and refuse.
//!
//! ```text
//!   peer link ──Remote──▶ │         │ ──Command──▶ peer link
//!   netlink ────────────▶ │ control │ ──requests──▶ path
//!   path ───answers─────▶ │         │ ──frames, segments──▶ wire
//! ```

mod addresses;
mod control;
mod firewall;
mod untold;
mod wire;

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tokio::runtime;
use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::essential;
use crate::model::fleet::failover::Settings;
use crate::model::fleet::{PeerCommand, Remote};
use crate::ports::fleet::Fleet;
use crate::ports::late_resets::LateResets;
use crate::ports::offload::{Offload, StandbyQueues};
use crate::sys::source;
use crate::table::Part;
use crate::table::beats::LoopBeats;
use crate::table::fleet::{FleetCensus, FleetView};
use crate::table::flows::FlowTable;
use crate::table::journal::Journal;

/// What the failover may touch.
#[derive(Debug)]
pub struct FailoverParts {
    pub fleet: Part<Fleet>,
    pub fleet_view: Part<FleetView>,
    pub fleet_census: Part<FleetCensus>,
    /// To ask for entries of flows of other instances.
    pub offload: Part<Offload>,
    /// For those that still need an address of this host.
    pub flows: Part<FlowTable>,
    pub late_resets: Part<LateResets>,
    pub journal: Part<Journal>,
    pub beats: Part<LoopBeats>,
}

/// What it needs of the others.
#[derive(Debug)]
pub struct Links {
    pub remotes: mpsc::Receiver<Remote>,
    pub commands: mpsc::Sender<PeerCommand>,
}

/// Starts the control, which follows reloads of `config`, on a thread of its own: it asks the kernel for addresses and walks through all
/// flows, and waits for nobody else's task while it does. Without peers `links` go. The offload engine must be open if there is to be one.
pub fn start(table: FailoverParts, mut config: watch::Receiver<Arc<Config>>, links: Links) -> io::Result<()> {
    let running = config.borrow_and_update().clone();
    let Some(settings) = settings(&running, &table.offload.held) else { return Ok(()) };
    let (opened, opens) = std::sync::mpsc::channel();
    essential::thread("failover", move || {
        let open = || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let entered = runtime.enter();
            let control = control::FailoverControl::new(table, settings, config, &running.failover, links)?;
            drop(entered);
            Ok::<_, io::Error>((runtime, control))
        };
        match open() {
            Ok((runtime, control)) => {
                let _ = opened.send(Ok(()));
                runtime.block_on(control.run());
            }
            Err(error) => drop(opened.send(Err(error))),
        }
    })?;
    opens.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))
}

/// Takes back what failover changes on this host and what would outlive the process: addresses that it keeps on `lo`, and its table of
/// nftables. Once no flow is left.
pub async fn lay_down() {
    give_up_addresses();
    if let Err(error) = firewall::lower().await {
        tracing::debug!(%error, "there was no table of nftables");
    }
}

/// Gives up the addresses that an earlier process kept on `lo`, where there is no failover that would.
pub fn give_up_addresses() {
    addresses::give_up_all();
}

fn settings(config: &Config, standby: &StandbyQueues) -> Option<Settings> {
    let peers = config.peers.as_ref()?;
    let listens = config.frontends.iter().flat_map(|frontend| &frontend.listen);
    Some(Settings {
        me: peers.name.clone(),
        slot: peers.slot,
        peers: peers.peers.iter().map(|peer| (peer.name.clone(), peer.address.ip())).collect(),
        vips: listens.copied().filter(|vip| !vip.ip().is_unspecified() && !vip.ip().is_loopback()).collect(),
        carries: standby.serves(),
        challenge: config.failover.challenge,
        guard_ns: config.failover.guard.as_nanos() as u64,
        priority: config.failover.priority.clone(),
        ports: ports(),
    })
}

/// From the first to the last port of this host's outgoing connections; those that an administrator keeps count too, so
/// that all instances cut the same range.
fn ports() -> RangeInclusive<u16> {
    source::local_port_range()
}

/// Whether an address may be another host's next hop, or a frontend's.
fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    }
}
