//! Carries out the decisions of `model::fleet::failover`: watches the addresses of this host, announces them to
//! neighbours, challenges the clients of dead instances, and has the offload engine hold, forward and refuse packets.
//!
//! ```text
//!   peer link ──Remote──▶ │         │ ──Command──▶ peer link
//!   netlink ────────────▶ │ control │ ──requests──▶ offload
//!   offload ──answers───▶ │         │ ──frames, segments──▶ wire
//! ```

mod addresses;
mod beyond;
mod control;
mod firewall;
mod handed;
mod intake;
mod kept;
mod untold;
mod wire;

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tokio::runtime;
use tokio::sync::{mpsc, watch};

use crate::config::{Config, Source};
use crate::essential;
use crate::model::balance;
use crate::model::fleet::failover::Settings;
use crate::model::fleet::{PEER_FLOWS_MAX, PeerCommand, Remote};
use crate::ports::fleet::Fleet;
use crate::ports::late_resets::LateResets;
use crate::ports::offload::{Offload, StandbyQueues};
use crate::ports::orders::Orders;
use crate::ports::vip::VipPort;
use crate::sys::source;
use crate::table::Part;
use crate::table::backend::Registry;
use crate::table::beats::LoopBeats;
use crate::table::fleet::{FleetCensus, FleetView};
use crate::table::flows::FlowTable;
use crate::table::journal::Journal;

/// The parts of the table that the failover may touch.
#[derive(Debug)]
pub(crate) struct FailoverParts {
    pub fleet: Part<Fleet>,
    pub fleet_view: Part<FleetView>,
    pub fleet_census: Part<FleetCensus>,
    /// To ask the offload engine for entries of other instances' flows.
    pub offload: Part<Offload>,
    /// To find the flows that still need an address of this host.
    pub flows: Part<FlowTable>,
    pub late_resets: Part<LateResets>,
    /// For flows whose backend is beyond reach.
    pub orders: Part<Orders>,
    pub registry: Part<Registry>,
    pub journal: Part<Journal>,
    pub beats: Part<LoopBeats>,
    /// For addresses that are about to leave.
    pub vip: Part<VipPort>,
}

/// The channels and handles that the failover gets from other parts.
#[derive(Debug)]
pub(crate) struct Links {
    pub remotes: mpsc::Receiver<Remote>,
    pub commands: mpsc::Sender<PeerCommand>,
    /// Whether the link first tells what the process before this one knew.
    pub restores: bool,
}

/// Starts the control thread, which follows reloads of `config`. It has a thread of its own because it asks the kernel
/// for addresses and walks through all flows, and no other task may wait for that. Without peers, `start` drops
/// `links`. If offload is on, the offload engine must be open before.
pub(crate) fn start(table: FailoverParts, mut config: watch::Receiver<Arc<Config>>, links: Links) -> io::Result<()> {
    let running = config.borrow_and_update().clone();
    let Some(settings) = settings(&running, &table.offload.standby) else { return Ok(()) };
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

/// Undoes the changes of the failover that would outlive the process: the addresses that it keeps on `lo`, and its
/// nftables table. Call it once no flow is left.
pub(crate) async fn lay_down() {
    give_up_addresses();
    if let Err(error) = firewall::lower().await {
        tracing::debug!(%error, "there was no table of nftables");
    }
}

/// Removes the addresses that an earlier process kept on `lo`, for a process that runs no failover of its own.
pub(crate) fn give_up_addresses() {
    addresses::give_up_all();
}

fn settings(config: &Config, standby: &StandbyQueues) -> Option<Settings> {
    let peers = config.peers.as_ref()?;
    let sources = config.frontends.iter().filter_map(|frontend| match frontend.source {
        Source::Address(ip) => Some(ip),
        Source::Auto | Source::Route => None,
    });
    let backends = config.frontends.iter().flat_map(|frontend| frontend.backends.iter().map(move |it| (frontend, it)));
    let backend_keys = backends.map(|(frontend, backend)| balance::hash_name(&frontend.name, &backend.name));
    let listens: Vec<_> = config.frontends.iter().flat_map(|frontend| &frontend.listen).copied().collect();
    Some(Settings {
        me: peers.name.clone(),
        slot: peers.slot,
        peers: peers.peers.iter().map(|peer| (peer.name.clone(), peer.address.ip())).collect(),
        vips: listens.iter().copied().filter(|vip| !vip.ip().is_unspecified() && !vip.ip().is_loopback()).collect(),
        listens,
        backend_keys: backend_keys.collect(),
        sources: sources.collect(),
        carries: standby.serves(),
        challenge: config.failover.challenge,
        guard_ns: config.failover.guard.as_nanos() as u64,
        priority: config.failover.priority.clone(),
        ports: ports(),
        peer_flows_max: 2 * PEER_FLOWS_MAX,
    })
}

/// The first to the last port of this host's outgoing connections, including those that an administrator has reserved,
/// so that all instances cut the same range.
fn ports() -> RangeInclusive<u16> {
    source::local_port_range()
}

/// Whether an address can be another host's next hop or a frontend's address.
fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    }
}
