//! Backends and frontends at run time: their state survives a reload, and has their names as its keys.

mod named;
mod outage;
mod service;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::count::Count;
use super::other_process::OtherProcess;
use crate::addr::{BackendAddr, VipAddr};
use crate::model::balance::{self, Preference};
use crate::model::connect::ConnectFailure;
use crate::model::end_reason::EndReason;
use crate::model::health::{Cause, HealthState};
use crate::model::histogram::{LatencyHistogram, LatencySnapshot};
use crate::model::ids::{BackendId, FrontendId};
use crate::ports::strangers::Strangers;
pub(crate) use crate::ports::suspicion::Suspicion;
pub(crate) use named::NamedBackend;
use outage::OutageMemory;
pub(crate) use service::Service;
use service::ServiceMemory;

/// One worker's counters for one backend, in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct BackendLane {
    pub bytes_to_backend: Count,
    pub bytes_to_client: Count,
    /// Flows that were connected.
    pub connected: Count,
    /// Second attempts because the first was slow.
    pub hedged: Count,
    pub failures: [Count; ConnectFailure::ALL.len()],
    pub connect: LatencyHistogram,
}

/// One worker's counters for one frontend.
#[derive(Debug)]
#[repr(align(128))]
pub struct FrontendLane {
    pub accepted: Count,
    /// By `EndReason as usize`.
    pub ended: [Count; EndReason::ALL.len()],
}

impl Default for FrontendLane {
    fn default() -> Self {
        Self { accepted: Count::default(), ended: std::array::from_fn(|_| Count::default()) }
    }
}

/// A frontend while its name is in use.
#[derive(Debug)]
pub struct FrontendEntry {
    pub id: FrontendId,
    pub name: Arc<str>,
    /// Present number of flows.
    pub active: AtomicU32,
    pub other_process: OtherProcess,
    /// Its addresses with a port that other processes of this host may have, too (`share_port`).
    pub shared_ports: ArcSwap<Vec<VipAddr>>,
    service: ServiceMemory,
    pub outage: OutageMemory,
    /// One lane per worker, and a last one for an earlier process's counts.
    pub lanes: Box<[FrontendLane]>,
}

/// A backend at one address, as long as flows go there or may go there. Another address is another entry.
#[derive(Debug)]
pub struct BackendEntry {
    pub id: BackendId,
    pub frontend: Arc<FrontendEntry>,
    pub name: Arc<str>,
    /// For rendezvous hashing: depends on the names only, so that all instances agree.
    pub hash_key: u64,
    /// `None`: its name has not been resolved.
    address: ArcSwapOption<BackendAddr>,
    /// See [`BackendEntry::is_former`].
    former: AtomicBool,
    weight: AtomicU32,
    /// 0: no cap.
    max_connections: AtomicU32,
    preference: AtomicU8,
    /// A packet from a VIP of this host does not reach it at the moment, because its host keeps that VIP on `lo`. Probes have another source.
    pub beyond_reach: AtomicBool,
    /// Monotonic ns at which its share began to grow, and how long that takes; 0: full share.
    ramp_start_ns: AtomicU64,
    ramp_ns: AtomicU64,
    health: ArcSwap<HealthView>,
    /// Present number of flows, connecting ones included.
    pub active: AtomicU32,
    pub other_process: OtherProcess,
    /// Monotonic ns of the last packet from it for an offloaded flow, or of the last connection of a probe; 0: none.
    pub heard_ns: AtomicU64,
    /// Monotonic ns of its last packet with bytes for any flow, which its process sent, not only its kernel; 0: none.
    pub spoke_ns: AtomicU64,
    /// It has acknowledged bytes that were sent to it at this monotonic time, in ns, or later; 0: none yet.
    pub taken_ns: AtomicU64,
    /// Monotonic ns at which Baton last found that bytes to it are sent again and again; 0: never.
    pub untaken_ns: AtomicU64,
    /// Monotonic ns of the last answer to a probe, of any kind; 0: never.
    pub answered_ns: AtomicU64,
    /// The longest segment that it accepts, according to a probe's connection; 0: not known.
    pub segment_max: AtomicU32,
    /// Evidence for the health checker: workers raise it, the health checker takes it and probes.
    pub suspicion: Suspicion,
    /// One lane per worker, and a last one for an earlier process's counts. All entries of one name share them.
    pub lanes: Arc<[BackendLane]>,
}

/// The health state for status and metrics.
#[derive(Clone, Debug)]
pub struct HealthView {
    pub health_state: HealthState,
    pub cause: Cause,
    /// Monotonic ns of the last change.
    pub since_ns: u64,
    /// Until when it is known to have served, if it is not ready: monotonic ns, before `since_ns` if probes decided.
    pub served_until_ns: u64,
    /// The last probe's result in words, and how long it took.
    pub last_probe: Option<String>,
    pub last_probe_us: u64,
    /// An operator's order or the configuration's, if one is in force.
    pub order: Option<&'static str>,
    /// Monotonic ns at which its remaining flows are reset.
    pub drain_deadline_ns: Option<u64>,
}

impl BackendEntry {
    /// The names of its frontend and of itself, as status shows them.
    pub(crate) fn full_name(&self) -> (String, String) {
        (self.frontend.name.to_string(), self.label().into_owned())
    }

    pub fn address(&self) -> Option<BackendAddr> {
        self.address.load().as_deref().copied()
    }

    /// Whether its process has sent bytes since `since_ns`, and has acknowledged bytes since then, unless none had to be
    /// repeated to it.
    pub(crate) fn is_lively(&self, since_ns: u64) -> bool {
        let is_since = |at_ns: &AtomicU64| at_ns.load(Relaxed) >= since_ns;
        is_since(&self.spoke_ns) && (is_since(&self.taken_ns) || !is_since(&self.untaken_ns))
    }

    /// Whether a new connection to it may succeed, as far as the probes can tell.
    pub(crate) fn gets_connections(&self) -> bool {
        self.health().cause != Cause::NoConnection
    }

    /// Only for an entry without an address: with another address, its flows would belong to another entry.
    pub fn set_address(&self, address: Option<BackendAddr>) {
        self.address.store(address.map(Arc::new));
    }

    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed)
    }

    pub(crate) fn max_connections(&self) -> Option<u32> {
        Some(self.max_connections.load(Relaxed)).filter(|max| *max != 0)
    }

    /// Applies its configuration.
    pub fn configure(&self, weight: u32, max_connections: Option<u32>) {
        self.weight.store(weight, Relaxed);
        self.max_connections.store(max_connections.unwrap_or(0), Relaxed);
    }

    pub(crate) fn preference(&self) -> Preference {
        Preference::from_u8(self.preference.load(Relaxed))
    }

    /// As [`BackendEntry::preference`], for a flow that has a backend to choose.
    pub(crate) fn preference_now(&self) -> Preference {
        // It is not excluded: without another one, connecting is worth a try.
        let least = if self.beyond_reach.load(Relaxed) { Preference::Draining } else { Preference::Ready };
        self.preference().max(least)
    }

    /// Sets the preference of new flows; only the health checker does so.
    pub fn set_preference(&self, preference: Preference) {
        self.preference.store(preference as u8, Relaxed);
    }

    /// Lets its share grow from `start_ns` on for `ramp_ns`.
    pub(crate) fn set_ramp(&self, start_ns: u64, ramp_ns: u64) {
        self.ramp_ns.store(ramp_ns, Relaxed);
        self.ramp_start_ns.store(start_ns, Relaxed);
    }

    /// The values of the last [`BackendEntry::set_ramp`].
    pub(crate) fn ramp(&self) -> (u64, u64) {
        (self.ramp_start_ns.load(Relaxed), self.ramp_ns.load(Relaxed))
    }

    /// Its share now, in 1/1024 of its weight.
    pub(crate) fn share(&self, now_ns: u64) -> u32 {
        balance::ramp(self.ramp_start_ns.load(Relaxed), self.ramp_ns.load(Relaxed), now_ns)
    }

    /// Time until its slow start is over; `None`: it is.
    pub(crate) fn whole_in_ns(&self, now_ns: u64) -> Option<u64> {
        let (start_ns, ramp_ns) = self.ramp();
        (self.share(now_ns) < balance::WHOLE_SHARE).then(|| (start_ns + ramp_ns).saturating_sub(now_ns))
    }

    pub fn health(&self) -> Arc<HealthView> {
        self.health.load_full()
    }

    pub fn set_health(&self, view: HealthView) {
        self.health.store(Arc::new(view));
    }

    /// Number of its flows, those of another process included.
    pub fn load(&self) -> u32 {
        self.active.load(Relaxed) + self.other_process.count()
    }

    /// Whether its cap is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.max_connections().is_some_and(|max| self.load() >= max)
    }

    /// Whether it has as many flows as the first backend that returns may have now.
    pub(crate) fn is_full_as_first(&self, now_ns: u64) -> bool {
        let (start_ns, ramp_ns) = self.ramp();
        balance::first_back_max(start_ns, ramp_ns, now_ns).is_some_and(|max| self.load() >= max)
    }

    /// Counts a flow in, unless the cap is reached.
    pub fn reserve(&self) -> bool {
        let before = self.active.fetch_add(1, Relaxed) + self.other_process.count();
        let room = self.max_connections().is_none_or(|max| before < max);
        if !room {
            self.release();
        }
        room
    }

    /// Counts a flow of another process in, whatever the cap.
    pub(crate) fn count_in(&self) {
        self.active.fetch_add(1, Relaxed);
        self.other_process.arrive();
    }

    /// Counts a flow in again that was counted out before its end, whatever the cap.
    pub(crate) fn count_again(&self) {
        self.active.fetch_add(1, Relaxed);
    }

    /// Counts a flow out.
    pub fn release(&self) {
        self.active.fetch_sub(1, Relaxed);
    }

    /// Connect latencies of all workers.
    pub(crate) fn connect_latency(&self) -> LatencySnapshot {
        let mut sum = LatencySnapshot::default();
        self.lanes.iter().for_each(|lane| sum.add(&lane.connect.snapshot()));
        // In whole microseconds, however many lanes are added: a counter must not fall in its last digit.
        sum.sum_s = (sum.sum_s * 1e6).round() / 1e6;
        sum
    }
}

/// All frontends and backends of the instance, also those that a reload removed while flows remain.
#[derive(Debug)]
pub struct Registry {
    workers: usize,
    lists: ArcSwap<Lists>,
    next_id: Mutex<u32>,
    /// Entries of [`Registry::hold_at`] that the health checker does not watch yet.
    pub strangers: Strangers<Arc<BackendEntry>>,
}

#[derive(Clone, Debug, Default)]
struct Lists {
    frontends: Vec<Arc<FrontendEntry>>,
    backends: Vec<Arc<BackendEntry>>,
    named: Vec<Arc<NamedBackend>>,
}

impl Registry {
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers, lists: ArcSwap::default(), next_id: Mutex::new(0), strangers: Strangers::default() }
    }

    /// The frontend called `name`; makes it if needed.
    pub fn frontend(&self, name: &Arc<str>) -> Arc<FrontendEntry> {
        let mut next_id = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.frontends().into_iter().find(|entry| entry.name == *name) {
            return known;
        }
        let entry = Arc::new(FrontendEntry {
            id: FrontendId(*next_id),
            name: name.clone(),
            active: AtomicU32::new(0),
            other_process: OtherProcess::default(),
            shared_ports: ArcSwap::default(),
            service: ServiceMemory::default(),
            outage: OutageMemory::default(),
            lanes: (0..=self.workers).map(|_| FrontendLane::default()).collect(),
        });
        *next_id += 1;
        self.update(|lists| lists.frontends.push(entry.clone()));
        entry
    }

    /// The caller must hold `next_id`.
    fn make(&self, next_id: &mut u32, frontend: &Arc<FrontendEntry>, name: &Arc<str>, key: u64) -> Arc<BackendEntry> {
        let of_name = |it: &&Arc<BackendEntry>| it.frontend.id == frontend.id && it.name == *name;
        let lanes = self.lists.load().backends.iter().find(of_name).map(|it| it.lanes.clone());
        let entry = Arc::new(BackendEntry {
            id: BackendId(*next_id),
            frontend: frontend.clone(),
            name: name.clone(),
            hash_key: key,
            address: ArcSwapOption::empty(),
            former: AtomicBool::new(false),
            weight: AtomicU32::new(1),
            max_connections: AtomicU32::new(0),
            preference: AtomicU8::new(Preference::Never as u8),
            beyond_reach: AtomicBool::new(false),
            ramp_start_ns: AtomicU64::new(0),
            ramp_ns: AtomicU64::new(0),
            health: ArcSwap::from_pointee(HealthView {
                health_state: HealthState::Ejected,
                cause: Cause::NotProbed,
                since_ns: 0,
                served_until_ns: 0,
                last_probe: None,
                last_probe_us: 0,
                order: None,
                drain_deadline_ns: None,
            }),
            active: AtomicU32::new(0),
            other_process: OtherProcess::default(),
            heard_ns: AtomicU64::new(0),
            spoke_ns: AtomicU64::new(0),
            taken_ns: AtomicU64::new(0),
            untaken_ns: AtomicU64::new(0),
            answered_ns: AtomicU64::new(0),
            segment_max: AtomicU32::new(0),
            suspicion: Suspicion::default(),
            lanes: lanes.unwrap_or_else(|| (0..=self.workers).map(|_| BackendLane::default()).collect()),
        });
        *next_id += 1;
        self.update(|lists| lists.backends.push(entry.clone()));
        entry
    }

    /// Forgets a backend, unless a flow uses it again.
    pub(crate) fn forget_backend(&self, id: BackendId) -> bool {
        let _guard = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        if self.find_backend(id).is_some_and(|entry| entry.load() > 0) {
            return false;
        }
        self.update(|lists| {
            lists.backends.retain(|entry| entry.id != id);
            lists.named.retain(|named| named.current().id != id);
        });
        true
    }

    /// Forgets a frontend without flows.
    pub(crate) fn forget_frontend(&self, id: FrontendId) {
        let _guard = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        self.update(|lists| lists.frontends.retain(|entry| entry.id != id));
    }

    pub fn frontends(&self) -> Vec<Arc<FrontendEntry>> {
        self.lists.load().frontends.clone()
    }

    pub fn backends(&self) -> Vec<Arc<BackendEntry>> {
        self.lists.load().backends.clone()
    }

    pub fn find_backend(&self, id: BackendId) -> Option<Arc<BackendEntry>> {
        self.lists.load().backends.iter().find(|entry| entry.id == id).cloned()
    }

    pub(crate) fn find_frontend(&self, id: FrontendId) -> Option<Arc<FrontendEntry>> {
        self.lists.load().frontends.iter().find(|entry| entry.id == id).cloned()
    }

    /// No flow of another process counts here any more.
    pub(crate) fn forget_other_process(&self) {
        let lists = self.lists.load();
        lists.frontends.iter().for_each(|entry| entry.other_process.forget());
        lists.backends.iter().for_each(|entry| entry.other_process.forget());
    }

    /// The caller must hold `next_id`, so that two changes cannot overlap.
    fn update(&self, change: impl FnOnce(&mut Lists)) {
        let mut lists = Lists::clone(&self.lists.load());
        change(&mut lists);
        self.lists.store(Arc::new(lists));
    }
}
