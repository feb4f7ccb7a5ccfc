//! This process as the new one of an upgrade.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::old::IDS_KEPT;
use crate::addr::VipAddr;
use crate::admin::Admin;
use crate::admin::doors::{Doors, SharedListener, WaitingDoors};
use crate::app::Core;
use crate::app::doors::OpenDoors;
use crate::config::{Config, OffloadMode};
use crate::drain::LifePhase;
use crate::metrics::{Metrics, UpgradeLabels};
use crate::model::fleet::{SavedFleet, SavedPeer, SavedPeerFlows};
use crate::proxy::{Arriving, Bindings};
use crate::sys::process::ProcessHandle;
use crate::table::flows::IdShare;
use crate::table::journal::What;
use crate::upgrade::channel::Channel;
use crate::upgrade::destination::{self, Arrived, NewProcess, Outcome};
use crate::upgrade::message::{Door, LastWord, Refused, Welcome};

/// How long the old process may be silent. Unless it hangs, it gives up sooner itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Time after its last word within which the end of the old process must be noticed.
const END_SEEN_MAX: Duration = Duration::from_secs(2);

/// The new process of an upgrade, until it serves.
pub(crate) struct StartingInstance {
    pub core: Arc<Core>,
    pub config: Arc<Config>,
    pub doors: Arc<OpenDoors>,
    pub admin: Arc<Admin>,
    pub metrics: Arc<Metrics>,
    pub bindings: Option<Bindings>,
    pub waiting: Option<WaitingDoors>,
    pub runtime: Handle,
    pub welcome: Welcome,
    pub imported: u64,
    /// What the old process has told of the peers.
    pub saved: Option<SavedFleet>,
    /// `None`: it had already ended.
    pub old: Option<ProcessHandle>,
}

impl StartingInstance {
    /// Imports everything from the old process, on a thread of its own; the returned channel gets the result.
    pub(crate) fn take(mut self, channel: Channel) -> watch::Receiver<Option<Outcome>> {
        let (sender, outcome) = watch::channel(None);
        tokio::task::spawn_blocking(move || {
            let outcome = destination::take(&channel, &mut self, PATIENCE);
            match &outcome {
                Outcome::Complete | Outcome::Imported => self.widen(),
                Outcome::SteppedBack { why, flows } => tracing::warn!(flows, "the old process goes on: {why}"),
            }
            sender.send_replace(Some(outcome));
        });
        outcome
    }

    /// Gives workers that share a listening socket one of their own, once the old process cannot take the sockets back.
    fn widen(&mut self) {
        if !self.other_has_ended() {
            return tracing::warn!(
                "the old process has not exited; several workers of this process share its listening sockets"
            );
        }
        self.core.proxy.forget_dead_ports();
        match self.core.proxy.widen_listeners(&self.config) {
            Ok(0) => {}
            Ok(sockets) => {
                tracing::info!(sockets, "each worker has its own listening sockets again");
                // The keeper of the listening sockets looks at them again.
                self.core.latest.send_modify(|_| {});
            }
            Err(error) => tracing::warn!(%error, "cannot open more listening sockets; several workers share one"),
        }
    }

    fn tell(&self, last: Option<&LastWord>) {
        let (from_pid, upgrades) = (self.welcome.pid, &self.metrics.upgrades);
        upgrades.flows_imported.inc_by(self.imported);
        let outcome = if last.is_some() { "finished" } else { "imported" };
        upgrades.outcomes.get_or_create(&UpgradeLabels { outcome }).inc();
        let Some(last) = last else {
            return self.core.table.journal.record(What::UpgradeImported { from_pid, flows: self.imported });
        };
        upgrades.flows_not_moved.inc_by(last.refused);
        upgrades.held_bytes.inc_by(last.held_bytes);
        upgrades.longest_pause_seconds.set(last.longest_pause_us as f64 / 1e6);
        upgrades.duration_seconds.set(last.took_us as f64 / 1e6);
        self.core.table.journal.record(What::UpgradeFinished {
            from_version: self.welcome.version.clone(),
            from_pid,
            flows: last.flows,
            not_moved: last.refused,
            held_bytes: last.held_bytes,
            longest_pause_us: last.longest_pause_us,
            took_us: last.took_us,
        });
    }
}

impl NewProcess for StartingInstance {
    fn begin(&mut self) {
        if let Some(bindings) = self.bindings.take() {
            self.core.proxy.reconfigure(&self.config, bindings);
        }
    }

    fn import(&mut self, flows: Vec<Arrived>) -> Vec<Refused> {
        let count = flows.len() as u64;
        let flows = flows.into_iter().map(|flow| Arriving { transfer: flow.transfer, sockets: flow.sockets });
        let refused = self.core.proxy.import(flows.collect()).into_iter();
        let refused: Vec<_> = refused.map(|(flow, error)| Refused { flow, why: error.to_string() }).collect();
        self.imported += count - refused.len() as u64;
        refused
    }

    fn see_peers(&mut self, peers: Vec<SavedPeer>) {
        self.saved.get_or_insert_default().peers = peers;
    }

    fn see_peer_flows(&mut self, flows: SavedPeerFlows) {
        self.saved.get_or_insert_default().flows.push(flows);
    }

    fn finish(&mut self, last: Option<&LastWord>) {
        let _runtime = self.runtime.enter();
        let flows = &self.core.table.flows;
        match last {
            Some(last) => {
                last.totals.carry_into_table(&self.core.table);
                self.core.proxy.restore_sources(&self.config, &last.sources, false);
                flows.begin_ids_at(last.next_flow_id);
            }
            None => flows.begin_ids_at(flows.next_id() + IDS_KEPT),
        }
        flows.share_ids(IdShare::All);
        self.core.proxy.forget_other_process();
        if let Some(waiting) = self.waiting.take() {
            match Doors::serve(self.admin.clone(), waiting) {
                Ok(doors) => self.doors.set(doors),
                Err(error) => {
                    tracing::error!(%error, "cannot open the admin socket and the HTTP server after the upgrade")
                }
            }
        }
        self.tell(last);
        self.core.offload.recover();
        let saved = self.saved.take();
        self.core.link_up(saved);
        self.core.hold_vip(&self.metrics, true);
        if self.config.offload.mode != OffloadMode::Off {
            self.core.offload.serve();
        }
        self.core.drain.advance(LifePhase::Serving);
    }

    fn step_back(&mut self) -> u64 {
        let _runtime = self.runtime.enter();
        self.core.proxy.give_up_new_ports();
        self.core.proxy.stop_accepting();
        self.core.proxy.forget_other_process();
        self.bindings = None;
        self.waiting = None;
        if let Some(doors) = self.doors.take() {
            doors.leave();
        }
        self.core.table.flows_with_sockets() as u64
    }

    fn other_has_ended(&mut self) -> bool {
        self.old.as_ref().is_none_or(|old| old.ends_within(END_SEEN_MAX))
    }
}

/// Separates the frontends' sockets from those of the admin servers.
pub(crate) fn sort(doors: Vec<(Door, OwnedFd)>) -> (Vec<(VipAddr, OwnedFd)>, Vec<SharedListener>) {
    let (mut listeners, mut shared) = (Vec::new(), Vec::new());
    for (door, fd) in doors {
        match door {
            Door::Frontend(address) => listeners.push((address, fd)),
            Door::AdminHttp(address) => shared.push(SharedListener::Http(address, fd)),
            Door::AdminSocket(path) => shared.push(SharedListener::Socket(path, fd)),
        }
    }
    (listeners, shared)
}
