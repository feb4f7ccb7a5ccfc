//! The last events, for `baton events` and the status page. Recording one writes its log line, in the same words.

mod sentences;
mod severity;
#[cfg(test)]
pub(crate) mod testing;
mod trouble;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::model::end_reason::EndReason;
use crate::model::fleet::InstanceName;
use crate::model::fleet::vip::{VipGain, VipLoss, VipWhy};
use crate::model::fleet::{Liveness, PortRange, Strangeness};
use crate::model::health::{Cause, HealthState};
use crate::model::ids::{FlowId, flow_as_text};
use crate::model::nodes::{NodeRefusal, SilenceKind};
use crate::ports::news::News;
use crate::ports::unrecorded::Unrecorded;
use crate::sys::clock::unix_ms;
pub(crate) use severity::{EventRank, EventSeverity};
pub(crate) use trouble::Trouble;

/// Limit for each kind of event: ended flows are too many to share a ring with the others.
const KEEP: usize = 1000;

/// Refusals of new connections are over once none has come for this long: clients come again within seconds.
pub(crate) const REFUSALS_QUIET_MS: u64 = 10_000;

/// Something that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one per event of either ring of its process.
    pub number: u64,
    /// Milliseconds since 1970, UTC.
    pub at_unix_ms: u64,
    #[serde(flatten)]
    pub what: What,
}

/// The kinds of events. A new kind appears in the log, the CLI, the page and the JSON; `sentences` has its words.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    BackendChanged {
        frontend: String,
        backend: String,
        from: HealthState,
        to: HealthState,
        cause: Cause,
    },
    /// Flows of a backend were ordered to end.
    FlowsOrdered {
        frontend: String,
        backend: String,
        flows: usize,
        reason: EndReason,
    },
    /// From now on new connections are reset for this reason.
    RefusalsBegun {
        frontend: String,
        reason: EndReason,
    },
    /// None has been for a while.
    RefusalsOver {
        frontend: String,
        reason: EndReason,
        refused: u64,
        /// From the first one to the last, at most.
        lasted_ms: u64,
        /// The time of the last one; the event comes [`REFUSALS_QUIET_MS`] later. `None`: a release recorded it that did not keep this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_unix_ms: Option<u64>,
    },
    BackendAdded {
        frontend: String,
        backend: String,
    },
    BackendRemoved {
        frontend: String,
        backend: String,
    },
    BackendResolved {
        frontend: String,
        backend: String,
        address: Option<SocketAddr>,
        error: Option<String>,
    },
    /// The source of a frontend's backends has another list than before.
    BackendsDiscovered {
        frontend: String,
        source: String,
        added: Vec<SocketAddr>,
        removed: Vec<SocketAddr>,
    },
    /// The source of a frontend's backends has no valid list: those of the last one stay.
    DiscoveryFailed {
        frontend: String,
        source: String,
        error: String,
        kept: usize,
    },
    /// The source has a valid list again.
    DiscoveryRecovered {
        frontend: String,
        source: String,
    },
    /// The source lists its backends, and cannot be watched: Baton lists it at intervals.
    DiscoveryUnwatched {
        frontend: String,
        source: String,
        error: String,
    },
    /// The source can be watched again.
    DiscoveryWatched {
        frontend: String,
        source: String,
    },
    Reloaded {
        changes: Vec<String>,
    },
    ReloadRefused {
        errors: Vec<String>,
    },
    AcceptPaused {
        worker: usize,
        error: String,
    },
    AcceptResumed {
        worker: usize,
        paused_ms: u64,
    },
    WorkerStuck {
        worker: usize,
        for_ms: u64,
    },
    WorkerMoves {
        worker: usize,
    },
    /// No thread of this process ran for this time, which is over.
    ProcessPaused {
        for_ms: u64,
        /// Flows that wait for this process: the others are offloaded.
        proxied: u64,
    },
    /// Another host, with this Ethernet address, has a frontend's address that is on this host.
    VipShared {
        address: IpAddr,
        by: String,
    },
    /// No other host claims the address any more, or it has left this host.
    VipAlone {
        address: IpAddr,
    },
    /// keepalived ended without removing the address.
    VipLeftBehind {
        address: IpAddr,
    },
    /// Baton has added the VIP to this host.
    VipGained {
        vip: String,
        why: String,
        /// What `why` says. `None`: a release recorded it that kept the words alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gain: Option<VipGain>,
        /// The peer that had it, if it was taken because that peer fell silent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        silent: Option<String>,
    },
    /// Baton has removed the VIP from this host.
    VipGivenUp {
        vip: String,
        why: String,
        /// As of a gain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss: Option<VipLoss>,
        /// For which this process had not run, if that is why: its clients waited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        late_ms: Option<u64>,
        /// This host reaches nobody any more by the VIP's interface.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cut_off: bool,
    },
    /// This host, which does not have the VIP, reaches nobody by the VIP's interface.
    VipHostCutOff {
        why: String,
        /// As of a gain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<VipWhy>,
    },
    /// This peer has the VIP, and before it another instance had it, or none.
    VipHeld {
        vip: String,
        by: String,
    },
    /// Another program had removed the addresses from this host, and Baton has added them again.
    VipRestored {
        vip: String,
    },
    /// This address of the VIP was on this host with another mask, and Baton has removed that entry.
    VipOtherMask {
        address: String,
    },
    /// Baton cannot remove this address of the VIP from this host.
    VipNotRemoved {
        address: String,
        error: String,
    },
    /// No instance says that it has the VIP, and yet the host `by` answers for it.
    VipAnswered {
        by: String,
        /// The address that it answers for. `None`: a release recorded it that did not keep this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
    },
    /// Another host claimed the VIP that this instance holds, and Baton has announced it again.
    VipDefended {
        by: String,
    },
    /// Baton cannot add the addresses.
    VipRefused {
        error: String,
    },
    /// A program that the configuration names for a gain or a loss has failed.
    VipHookFailed {
        command: String,
        error: String,
    },
    /// A process has sent an order to the admin socket. Whether Baton carries it out, other events and the answer say.
    OrderReceived {
        uid: u32,
        /// 0: the process is in another PID namespace.
        pid: u32,
        /// As it is typed after `baton`.
        order: String,
    },
    Started {
        version: String,
    },
    /// The process before this one has recorded no stop and no upgrade.
    ProcessDied {
        pid: u32,
        /// From its last record to the beginning of the process after it.
        silent_ms: u64,
        /// In its last sample, if it had one lately.
        flows: Option<u32>,
    },
    Stopping {
        flows: usize,
        timeout_ms: u64,
    },
    RebalancePlanned {
        frontend: String,
        moves: usize,
    },
    /// These have moved since, after an outage or by an operator's order.
    Rebalanced {
        frontend: String,
        flows: usize,
    },
    UpgradeBegun {
        binary: String,
        #[serde(default)]
        config: String,
    },
    /// The upgrade failed, and this process continues.
    UpgradeFailed {
        why: String,
        /// Flows that the new process had imported.
        moved: u64,
    },
    /// The upgrade is complete: this process has imported what the old one had.
    UpgradeFinished {
        from_version: String,
        from_pid: u32,
        flows: u64,
        not_moved: u64,
        held_bytes: u64,
        longest_pause_us: u64,
        took_us: u64,
    },
    /// The old process died during the upgrade, and with it the flows that had not moved.
    UpgradeImported {
        from_pid: u32,
        flows: u64,
    },
    /// Flows may be offloaded from now on.
    OffloadOpened {
        interfaces: Vec<String>,
    },
    /// Flows stay proxied.
    OffloadShut {
        why: String,
        /// No process looks after flows of an earlier one now.
        #[serde(default)]
        unwatched: bool,
    },
    /// This process has recovered an earlier process's flows; those that it was about to offload were reset.
    OffloadRecovered {
        flows: u64,
        reset: u64,
    },
    /// Offload has stopped: so many of so many recently offloaded flows were reset right after it.
    OffloadStopped {
        reset: u32,
        of: u32,
    },
    /// Offloaded flows are no longer reset, so offload continues.
    OffloadResumed {},
    /// Another program had detached the BPF program from these, or removed its pins, and Baton has attached and pinned it again.
    ProgramReattached {
        /// Empty: pins were removed, and the program ran on all the while.
        interfaces: Vec<String>,
        /// The directory from which pins were removed. `None`: all were there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unpinned: Option<String>,
    },
    /// The BPF program is attached to nothing and cannot be attached again: its flows were reset, and new ones stay proxied.
    ProgramLost {
        error: String,
        flows: usize,
    },
    PeerLinked {
        peer: String,
        version: String,
    },
    PeerLost {
        peer: String,
        why: String,
    },
    /// There is no link to it, for another reason than before.
    PeerUnreachable {
        peer: String,
        why: String,
    },
    /// This instance knows all its flows.
    PeerSynced {
        peer: String,
        flows: u64,
    },
    /// A change of its flows was lost; it sends all of them again.
    PeerGap {
        peer: String,
    },
    /// Its host has another range of ports for outgoing connections, so that both connect to backends from the same ones.
    PortsOverlap {
        peer: String,
        theirs: PortRange,
        own: PortRange,
    },
    /// It is not heard, or has said farewell.
    PeerLiveness {
        peer: String,
        liveness: Liveness,
        /// For which a worker of it had been stuck by then, as it had said a moment before; `None`: it had not said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stuck_ms: Option<u64>,
    },
    /// An instance is dead: its offloaded flows go on here, the others are reset.
    FailedOver {
        instance: InstanceName,
        inherited: usize,
        reset: usize,
    },
    /// So many of the reset clients have answered.
    ClientsTold {
        instance: InstanceName,
        answered: usize,
        silent: usize,
    },
    /// The peer tells of flows that no instance of this fleet can have, like this one; they are not taken.
    FlowsStrange {
        instance: InstanceName,
        client: SocketAddr,
        vip: SocketAddr,
        local: SocketAddr,
        #[serde(default)]
        why: Strangeness,
    },
    /// Flows of a live instance whose packets come here: their backend is on this host, and so is the source address of
    /// their backend leg; or no program forwards them to that instance. They are reset.
    FlowsStuck {
        instance: InstanceName,
        flows: usize,
        #[serde(default)]
        unforwarded: bool,
    },
    /// This instance has claimed flows of the peer, because their packets come here.
    FlowsClaimed {
        instance: InstanceName,
        flows: usize,
    },
    /// The peer has claimed flows of this instance, because their packets go there.
    FlowsReleased {
        instance: InstanceName,
        flows: usize,
    },
    /// A frontend's address has come to this host or left it.
    AddressCame {
        address: IpAddr,
    },
    AddressWent {
        address: IpAddr,
    },
    /// An operator gives this host's VIP to another instance.
    EvacuationBegun {
        to: Option<InstanceName>,
        flows: usize,
    },
    /// The evacuation is complete: an operator may switch this host off.
    Evacuated {
        flows_reset: u64,
        took_ms: u64,
    },
    /// This host may have the VIP again; `None`: because an operator cancelled the evacuation.
    EvacuationCancelled {
        why: Option<String>,
    },
    /// A source of clients' names has no valid ones, and the last ones stay; or some are not valid, and the others count.
    NamesFailed {
        source: String,
        error: String,
        kept: usize,
    },
    /// The source has valid ones again.
    NamesRecovered {
        source: String,
        names: usize,
    },
    /// The controller-manager will soon take these nodes for dead.
    NodesSilent {
        /// The first of them.
        nodes: Vec<String>,
        /// Number of further ones.
        more: usize,
        why: SilenceKind,
        /// The longest.
        for_ms: u64,
        /// If Baton itself refuses their connections.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<NodeRefusal>,
    },
    /// They have a connection and send again.
    NodesBack {
        nodes: Vec<String>,
        more: usize,
        for_ms: u64,
    },
    /// The recorder writes nothing until this is over.
    RecorderFailed {
        directory: String,
        error: String,
    },
    /// So many events are not in the recorder's files.
    RecordsDropped {
        records: u64,
    },
    /// Records of processes before this one cannot be read: their files are torn.
    RecordsTorn {
        /// That belong to no whole record.
        bytes: u64,
        /// Files of which nothing can be read.
        files: u64,
    },
    FlowEnded {
        #[serde(with = "flow_as_text")]
        flow: FlowId,
        frontend: String,
        backend: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        backend_address: Option<SocketAddr>,
        /// Baton's end of the connection to the backend.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<SocketAddr>,
        client: SocketAddr,
        /// The name of the client's address at that time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
        reason: EndReason,
        duration_ms: u64,
        connect_us: u64,
        bytes_to_backend: u64,
        bytes_to_client: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

impl What {
    /// Whether it is of the VIP that Baton itself moves, or of a VIP that another program left or another host has.
    pub(crate) fn is_of_vip(&self) -> bool {
        self.is_vip_move()
            || matches!(
                self,
                Self::VipHostCutOff { .. }
                    | Self::VipShared { .. }
                    | Self::VipAlone { .. }
                    | Self::VipLeftBehind { .. }
                    | Self::VipRestored { .. }
                    | Self::VipOtherMask { .. }
                    | Self::VipNotRemoved { .. }
                    | Self::VipAnswered { .. }
                    | Self::VipDefended { .. }
                    | Self::VipRefused { .. }
                    | Self::VipHookFailed { .. }
            )
    }

    /// Whether it tells that the VIP went from one host to another.
    pub(crate) fn is_vip_move(&self) -> bool {
        matches!(self, Self::VipGained { .. } | Self::VipGivenUp { .. } | Self::VipHeld { .. })
    }

    /// Whether it is the end of a flow, of which there are many.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::FlowEnded { .. })
    }
}

impl Event {
    /// Names this event among those of several processes: `event-1764311897000-17`.
    pub(crate) fn anchor(&self) -> String {
        format!("event-{}-{}", self.at_unix_ms, self.number)
    }
}

/// A bounded list of events. All writers and readers are control work, so a mutex is enough.
#[derive(Debug, Default)]
pub struct Journal {
    rings: Mutex<Rings>,
    /// For the recorder.
    pub(crate) unrecorded: Unrecorded<Event>,
    /// Changes with each event but the ends of flows.
    pub(crate) news: News,
}

#[derive(Debug, Default)]
struct Rings {
    next: u64,
    ended: VecDeque<Event>,
    other: VecDeque<Event>,
}

impl Journal {
    /// Stores and logs an event. For an ended flow it writes no line, because the configuration decides: the caller
    /// logs it first.
    pub fn record(&self, what: What) {
        self.record_past(what, 0);
    }

    /// Records what happened `ago_ms` before.
    pub(crate) fn record_past(&self, what: What, ago_ms: u64) {
        if !what.is_end() {
            what.log();
        }
        let now_ms = unix_ms();
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let at_unix_ms = now_ms.saturating_sub(ago_ms);
        let event = Event { number: rings.next, at_unix_ms, what };
        rings.next += 1;
        let is_urgent = !event.what.is_end();
        self.unrecorded.add(&event, is_urgent);
        let ring = if is_urgent { &mut rings.other } else { &mut rings.ended };
        if ring.len() == KEEP {
            ring.pop_front();
        }
        ring.push_back(event);
        drop(rings);
        if is_urgent {
            self.news.announce();
        }
    }

    /// The last events with a number of at least `since`, oldest first; ended flows only if requested.
    pub(crate) fn since(&self, since: u64, with_flows: bool) -> Vec<Event> {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = with_flows.then_some(&rings.ended).into_iter().flatten();
        let mut events: Vec<_> =
            rings.other.iter().chain(ended).filter(|event| event.number >= since).cloned().collect();
        events.sort_by_key(|event| event.number);
        events
    }
}
