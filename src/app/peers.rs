//! Starts the link to the peers, and takes it through upgrade and stop.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::fleet::failover;
use crate::fleet::link::{self, PeerLinkParts};
use crate::model::fleet::{Farewell, SavedFleet, port_range};
use crate::ports::fleet::Fleet;
use crate::sys::source;
use crate::table::flows::FlowTable;

/// Events for the failover on their way, and its commands.
const REMOTES_MAX: usize = 16_384;
const COMMANDS_MAX: usize = 1024;

/// Limit for the failover to tell what it knows, when another process follows: a fifth of the time that the peers wait for that process.
const KNOWN_MAX: Duration = Duration::from_secs(1);

/// Flows of one message to that process.
const PART_MAX: usize = 4096;

/// The link of this instance, if it has peers.
#[derive(Debug, Default)]
pub(super) struct PeerLinks {
    running: OnceLock<link::PeerHub>,
}

impl PeerLinks {
    /// Records own flows from now on, if there are peers. Call it before the first flow.
    pub(super) fn expect(config: &Config, fleet: &Fleet, flows: &FlowTable) {
        let Some(peers) = &config.peers else { return };
        fleet.set_enabled(true);
        flows.set_tag(peers.name.tag());
        match port_range(source::local_port_range(), peers.slot) {
            Some(ports) => fleet.set_ports(ports),
            None => tracing::warn!(
                "net.ipv4.ip_local_port_range is too small to give each instance its own eighth; connections of two instances to a \
                 backend may use the same source port"
            ),
        }
    }

    /// Listens and connects. `saved`: what the process before this one knew of the peers. `None`: there are no peers. Needs a tokio
    /// runtime.
    pub(super) fn start(
        &self,
        table: PeerLinkParts,
        config: watch::Receiver<Arc<Config>>,
        saved: Option<SavedFleet>,
    ) -> Option<failover::Links> {
        let restores = saved.is_some();
        let (remotes_sender, remotes) = mpsc::channel(REMOTES_MAX);
        let (commands, commands_receiver) = mpsc::channel(COMMANDS_MAX);
        let running = link::start(table, config, remotes_sender, commands_receiver, saved)?;
        let _ = self.running.set(running);
        Some(failover::Links { remotes, commands, restores })
    }

    /// Says farewell; returns when all peers have it, or soon after.
    pub(super) async fn leave(&self, farewell: Farewell) {
        if let Some(running) = self.running.get() {
            running.leave(farewell).await;
        }
    }

    /// Says farewell to all peers, since another process of this host follows, and returns what this one knows of them for that process.
    pub(super) async fn save_and_leave(&self, fleet: &Fleet) -> SavedFleet {
        let Some(running) = self.running.get() else { return SavedFleet::default() };
        let known = fleet.await_known();
        let peers = running.leave(Farewell::Succeeded).await;
        match tokio::time::timeout(KNOWN_MAX, known).await {
            Ok(Ok(known)) => SavedFleet::join(peers, known, PART_MAX),
            _ => {
                tracing::error!(
                    "the failover does not tell what it knows of the peers' flows; a peer that dies before the new process is linked \
                     with it leaves clients that are not reset"
                );
                SavedFleet::default()
            }
        }
    }

    /// Links up again after [`PeerLinks::leave`].
    pub(super) async fn come_back(&self) {
        if let Some(running) = self.running.get() {
            running.come_back().await;
        }
    }
}
