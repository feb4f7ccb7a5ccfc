//! The running instance as the old process of an upgrade.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::binary::BinaryProcess;
use crate::admin::doors::SharedListener;
use crate::admin::upgrade::UpgradeProgress;
use crate::app::Core;
use crate::app::doors::OpenDoors;
use crate::model::end_reason::EndReason;
use crate::model::fleet::SavedFleet;
use crate::ports::orders::{EndOrder, Pace, Selector};
use crate::proxy::MovingFlow;
use crate::rebalance;
use crate::table::flow_transfer::FlowTransfer;
use crate::table::flows::IdShare;
use crate::table::totals::Totals;
use crate::upgrade::message::{Door, Hello, LastWord, State};
use crate::upgrade::source::{Load, OldProcess, SourceProgress, TakenFlows};

/// Flows of one batch: two sockets each, and few enough that none waits long for the others.
const BATCH_FLOWS: usize = 64;
/// No further flow is added to a batch with this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Ids that a lost process may have given out.
pub(super) const IDS_KEPT: u64 = 1 << 20;

/// How often, and how many times, the code checks whether a killed process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const LOOKS: usize = 1000;

pub(super) struct RunningInstance {
    pub core: Arc<Core>,
    pub doors: Arc<OpenDoors>,
    pub child: BinaryProcess,
    pub runtime: Handle,
    pub progress: watch::Sender<UpgradeProgress>,
    /// The worker whose flows are taken next.
    worker: usize,
}

/// A moving flow, in the form of the protocol.
pub(super) struct MovingFlowMessage(MovingFlow);

impl Load for MovingFlowMessage {
    fn transfer(&self) -> &FlowTransfer {
        &self.0.transfer
    }

    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.0.sockets().collect()
    }
}

impl RunningInstance {
    pub(super) fn new(
        core: Arc<Core>,
        doors: Arc<OpenDoors>,
        child: BinaryProcess,
        runtime: Handle,
        progress: watch::Sender<UpgradeProgress>,
    ) -> Self {
        Self { core, doors, child, runtime, progress, worker: 0 }
    }
}

impl OldProcess for RunningInstance {
    type MovingFlow = MovingFlowMessage;

    fn doors(&self) -> io::Result<Vec<(Door, OwnedFd)>> {
        // The new process would find flows that are offloaded from here on half-way.
        self.core.offload.pause();
        let listeners = self.core.proxy.share_listeners()?.into_iter();
        let admin = self.doors.share()?.into_iter().map(|shared| match shared {
            SharedListener::Http(address, fd) => (Door::AdminHttp(address), fd),
            SharedListener::Socket(path, fd) => (Door::AdminSocket(path), fd),
        });
        Ok(listeners.map(|(address, fd)| (Door::Frontend(address), fd)).chain(admin).collect())
    }

    fn obstacle(&self, hello: &Hello) -> Option<String> {
        self.core.offload.obstacle(hello.path.as_ref())
    }

    fn state(&self) -> Result<State, String> {
        let table = &self.core.table;
        table.flows.share_ids(IdShare::Even);
        Ok(State {
            next_flow_id: table.flows.next_id(),
            flows: table.flows_with_sockets() as u64,
            offloaded: self.core.offload.offloaded(),
            backends: self.runtime.block_on(self.core.checker.save()),
            totals: Totals::of_table(table),
            counters: self.core.proxy.save().map_err(|stuck| stuck.to_string())?,
            nodes: table.nodes.watch().save(),
            outages: rebalance::save_outages(&table.registry),
        })
    }

    fn take(&mut self) -> Result<TakenFlows<MovingFlowMessage>, String> {
        let taken = self.core.proxy.take(self.worker, BATCH_FLOWS, BATCH_BYTES).map_err(|stuck| stuck.to_string())?;
        if taken.whole_round {
            self.worker = (self.worker + 1) % self.core.proxy.workers();
        }
        let whole_round = taken.whole_round && self.worker == 0;
        Ok(TakenFlows { moving: taken.moving.into_iter().map(MovingFlowMessage).collect(), whole_round })
    }

    fn put_back(&mut self, moving: Vec<MovingFlowMessage>) {
        self.core.proxy.put_back(bare(moving));
    }

    fn forget_moved(&mut self, moving: Vec<MovingFlowMessage>) {
        self.core.proxy.forget_moved(bare(moving));
    }

    fn end(&mut self, moving: Vec<MovingFlowMessage>) {
        self.core.proxy.end(bare(moving), EndReason::NotUpgraded);
    }

    fn park(&mut self, parked: bool) -> Result<(), String> {
        self.core.proxy.park_listeners(parked).map_err(|stuck| stuck.to_string())
    }

    fn left(&self) -> usize {
        self.core.table.flows_with_sockets()
    }

    fn end_the_rest(&mut self) {
        let (selector, reason) = (Selector::WithSockets, EndReason::NotUpgraded);
        self.core.ports.orders.end(EndOrder { selector, reason, pace: Pace::AT_ONCE, only_idle_for: None });
    }

    fn leave_fleet(&mut self) -> SavedFleet {
        self.runtime.block_on(async {
            self.core.ports.vip.leave_to_next().await;
            self.core.peers.save_and_leave(&self.core.ports.fleet).await
        })
    }

    fn last_word(&self) -> LastWord {
        // When the new process receives this, it links up with the peers and recovers the offloaded flows.
        self.core.offload.freeze();
        let table = &self.core.table;
        let (sources, _) = self.core.proxy.save_sources();
        let totals = Totals::of_table(table);
        LastWord { totals, next_flow_id: table.flows.next_id(), sources, ..LastWord::default() }
    }

    fn shut_doors(&mut self, shut: bool) {
        let _runtime = self.runtime.enter();
        if let Err(error) = self.doors.set_shut(shut) {
            tracing::error!(%error, "cannot reopen the admin socket or the HTTP server after a failed upgrade");
        }
    }

    fn kill_other(&mut self) {
        kill(&mut self.child);
    }

    fn progress(&mut self, progress: &SourceProgress) {
        self.progress.send_replace(UpgradeProgress {
            step: progress.step.label().to_owned(),
            flows: progress.flows,
            moved: progress.moved,
            held_bytes: progress.held_bytes,
            longest_pause_us: progress.longest_pause.as_micros() as u64,
        });
    }
}

/// Kills `child` and waits for its end: its descriptors close only then.
pub(super) fn kill(child: &mut BinaryProcess) {
    let _ = child.kill();
    for _ in 0..LOOKS {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    tracing::error!(pid = child.id(), "the new process has not exited after SIGKILL");
}

fn bare(moving: Vec<MovingFlowMessage>) -> Vec<MovingFlow> {
    moving.into_iter().map(|MovingFlowMessage(moving_flow)| moving_flow).collect()
}
