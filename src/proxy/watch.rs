//! Watches flows that wait for one of their ends or for their age: as evidence against a backend, to find the end whose host
//! is gone, and to end or offload idle flows.

pub(super) mod deliveries;
pub(super) mod evidence;
pub(super) mod retime;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::context::WorkerContext;
use super::context::slab::FlowSlab;
use super::flow::{Flow, Phase, Side, patience_ns};
use super::timers::Due;
use super::token::FlowRef;
use super::verdict::FlowVerdict;
use crate::model::leg::LegKey;
use crate::sys::{liveness, socket};
use crate::table::flows::Field;
use deliveries::{Deliveries, Delivering, DeliveryState, LOOKS, look};

/// Flows looked at in one turn of the loop.
pub(super) const LOOKS_PER_TURN: usize = 256;

/// A backend leg gets its keepalive options when it is this old: most short flows never need them, and five calls per
/// connection are a tenth of its cost. Until then the health probes watch the backend.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// Walks for idle flows within the shortest idle_timeout, within these bounds.
const IDLE_WALKS: u32 = 8;
const IDLE_WALK_MIN: Duration = Duration::from_millis(20);
const IDLE_WALK_MAX: Duration = Duration::from_secs(5);

/// The flows that one worker watches.
#[derive(Debug, Default)]
pub(super) struct FlowWatch {
    /// Backend legs too young for their socket options, oldest first, with the time when they get them.
    settling: VecDeque<(u64, FlowRef)>,
    /// Flows too young to be offloaded, oldest first, with the time of their next try.
    to_offload: VecDeque<(u64, FlowRef)>,
    /// Flows whose bytes to the backend have no answer yet.
    unanswered: Vec<FlowRef>,
    deliveries: Deliveries,
    /// Flows whose sockets must get other timers.
    retiming: VecDeque<FlowRef>,
    /// Until then, in monotonic ns, far ends are challenged often, to learn whether they still know their flows.
    asking_until_ns: u64,
    /// Whether a walk for idle flows is among the deadlines.
    idle_walk_set: bool,
}

/// A flow whose deliveries were checked.
pub(super) struct LookedAt {
    pub at: FlowRef,
    pub is_closing: bool,
    /// The end whose host is gone.
    pub gone: Option<Side>,
}

/// Publishes the source address and port of a flow's backend leg.
pub(super) fn show_source(cx: &WorkerContext, at: FlowRef, backend: &OwnedFd) {
    if let Ok(local) = socket::local_addr(backend) {
        cx.slot(at.key()).set(Field::LocalEnd as usize, LegKey::of(local.socket_addr()).0);
    }
}

impl FlowWatch {
    /// When the next flow is due, in monotonic ns; without the deadlines of [`Due`].
    pub(super) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        if !self.retiming.is_empty() {
            return Some(now_ns);
        }
        let first = |queue: &VecDeque<(u64, FlowRef)>| queue.front().map(|(at_ns, _)| *at_ns);
        [self.deliveries.next_ns(), first(&self.settling), first(&self.to_offload)].into_iter().flatten().min()
    }

    /// Forgets the first of each queue, as long as they are flows that `has_ended`.
    pub(super) fn forget_first_while(&mut self, has_ended: impl Fn(FlowRef) -> bool) {
        for queue in [&mut self.settling, &mut self.to_offload] {
            while queue.pop_front_if(|(_, at)| has_ended(*at)).is_some() {}
        }
        self.deliveries.forget_first_while(has_ended);
    }

    /// Has [`FlowWatch::settle`] called when the flow's backend leg is old enough.
    pub(super) fn settle_later(&mut self, cx: &WorkerContext, at: FlowRef) {
        self.settling.push_back((cx.now_ns() + SETTLE_AFTER.as_nanos() as u64, at));
    }

    pub(super) fn next_settling(&mut self, now_ns: u64) -> Option<FlowRef> {
        self.settling.pop_front_if(|(at_ns, _)| *at_ns <= now_ns).map(|(_, at)| at)
    }

    /// Sets the options that only an older flow needs, and publishes its source address and port.
    pub(super) fn settle(&self, cx: &WorkerContext, flow: &Flow) -> FlowVerdict {
        if let Phase::Relaying(relaying) = &flow.phase {
            let _ = liveness::set_timeouts(&relaying.backend, &self.timeouts(cx, flow));
            show_source(cx, flow.at, &relaying.backend);
        }
        FlowVerdict::Keep
    }

    /// Schedules the flow's first try to be offloaded.
    pub(super) fn offload_later(&mut self, cx: &WorkerContext, flow: &Flow) {
        if let Some(policy) = cx.offload_policy() {
            let at_ns = flow.accepted_at_ns.max(cx.now_ns().saturating_sub(policy.after_ns)) + policy.after_ns;
            self.to_offload.push_back((at_ns, flow.at));
        }
    }

    /// Schedules the flow's try before all others.
    pub(super) fn offload_now(&mut self, now_ns: u64, at: FlowRef) {
        self.to_offload.push_front((now_ns, at));
    }

    /// Lets no flow wait longer than until `latest_ns`. Flows are sorted by their times, so one that waits for a
    /// greater age would delay all flows behind it.
    pub(super) fn offload_by(&mut self, latest_ns: u64) {
        self.to_offload.iter_mut().for_each(|(at_ns, _)| *at_ns = latest_ns.min(*at_ns));
    }

    pub(super) fn next_to_offload(&mut self, now_ns: u64) -> Option<FlowRef> {
        self.to_offload.pop_front_if(|(at_ns, _)| *at_ns <= now_ns).map(|(_, at)| at)
    }

    /// Schedules a check of a flow that has bytes to deliver.
    pub(super) fn look_after(&mut self, cx: &WorkerContext, flow: &mut Flow) {
        let every_ns = patience_ns(flow) / LOOKS;
        if let Phase::Relaying(relaying) = &mut flow.phase
            && !std::mem::replace(&mut relaying.delivering, true)
        {
            self.deliveries.push(every_ns, Delivering { due_ns: cx.now_ns() + every_ns, at: flow.at, seen: None });
        }
    }

    /// Checks the next flow that is due. `None`: none is due.
    pub(super) fn look_at_next(&mut self, now_ns: u64, flows: &mut FlowSlab) -> Option<LookedAt> {
        let mut looked = self.deliveries.pop(now_ns)?;
        let at = looked.at;
        let Some(flow) = flows.get_mut(at) else { return Some(LookedAt { at, is_closing: false, gone: None }) };
        let every_ns = patience_ns(flow) / LOOKS;
        let is_closing = flow.is_closing();
        let mut gone = None;
        match look(flow, &mut looked, now_ns) {
            DeliveryState::UnderWay => {
                looked.due_ns = now_ns + every_ns;
                self.deliveries.push(every_ns, looked);
            }
            DeliveryState::Gone(side) => gone = Some(side),
            DeliveryState::Delivered => {}
        }
        Some(LookedAt { at, is_closing, gone })
    }

    /// Returns flows that have been idle for too long, and schedules the next walk.
    ///
    /// Walks replace a deadline per flow: deadlines of flows that ended long before would pile up, an hour's worth
    /// with an idle_timeout of an hour.
    pub(super) fn walk_for_idle(&mut self, cx: &mut WorkerContext, flows: &FlowSlab) -> Vec<FlowRef> {
        let is_idle = |flow: &&Flow| {
            let limit = flow.frontend.settings.idle_timeout;
            limit.is_some_and(|limit| cx.now_ns().saturating_sub(cx.last_byte_ns(flow)) >= limit.as_nanos() as u64)
        };
        let idle = flows.iter().filter(is_idle).map(|flow| flow.at).collect();
        self.idle_walk_set = false;
        self.set_idle_walk(cx);
        idle
    }

    /// Schedules the next walk for idle flows, if a frontend has an idle_timeout.
    pub(super) fn set_idle_walk(&mut self, cx: &mut WorkerContext) {
        let limits = cx.plane().frontends.iter().filter_map(|frontend| frontend.settings.idle_timeout);
        if let Some(shortest) = limits.min()
            && !self.idle_walk_set
        {
            self.idle_walk_set = true;
            let pause = idle_walk_pause(shortest);
            cx.timers.set(cx.now_ns() + pause.as_nanos() as u64, Due::Idle);
        }
    }
}

/// Time between two walks for idle flows, if `shortest` is the shortest idle_timeout of all frontends.
pub(crate) fn idle_walk_pause(shortest: Duration) -> Duration {
    (shortest / IDLE_WALKS).clamp(IDLE_WALK_MIN, IDLE_WALK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::testing::{context, enter};

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_walk_finds_the_flows_that_have_been_idle_and_sets_the_next_one_once() {
        let (mut cx, mut flows) = (context(Some(LIMIT)), FlowSlab::default());
        let mut watch = FlowWatch::default();
        let (idle, busy) = (enter(&mut cx, &mut flows), enter(&mut cx, &mut flows));
        watch.set_idle_walk(&mut cx);
        watch.set_idle_walk(&mut cx);
        cx.pass(LIMIT);
        cx.slot(busy.key()).set(Field::LastToClientNs as usize, cx.now_ns() - 1);
        assert_eq!(cx.timers.pop(cx.now_ns()), Some(Due::Idle));
        assert_eq!(cx.timers.pop(cx.now_ns()), None, "one walk is enough");
        assert_eq!(watch.walk_for_idle(&mut cx, &flows), [idle]);
        assert!(cx.timers.next_ns().is_some(), "the next walk");
    }

    #[test]
    fn nothing_walks_where_no_frontend_has_a_limit() {
        let (mut cx, mut watch) = (context(None), FlowWatch::default());
        watch.set_idle_walk(&mut cx);
        assert_eq!((cx.timers.next_ns(), watch.next_ns(cx.now_ns())), (None, None));
    }

    #[test]
    fn flows_that_have_ended_wake_nobody_and_those_behind_them_still_do() {
        let (mut cx, mut flows) = (context(None), FlowSlab::default());
        let mut watch = FlowWatch::default();
        let (ended, lives) = (enter(&mut cx, &mut flows), enter(&mut cx, &mut flows));
        watch.settle_later(&cx, ended);
        let due_ns = watch.next_ns(cx.now_ns());
        cx.pass(Duration::from_millis(1));
        watch.settle_later(&cx, lives);
        watch.forget_first_while(|at| !flows.keeps_place_of(at));
        assert_eq!(watch.next_ns(cx.now_ns()), due_ns, "both live");
        drop(flows.take(ended));
        flows.vacate(&mut cx, ended.key());
        watch.forget_first_while(|at| !flows.keeps_place_of(at));
        assert_eq!(watch.next_ns(cx.now_ns()), due_ns.map(|due_ns| due_ns + 1_000_000));
        assert_eq!([watch.next_settling(u64::MAX), watch.next_settling(u64::MAX)], [Some(lives), None]);
    }

    #[test]
    fn each_queue_gives_what_is_due_and_says_when_the_next_is() {
        let (mut cx, mut flows) = (context(None), FlowSlab::default());
        let mut watch = FlowWatch::default();
        let at = enter(&mut cx, &mut flows);
        watch.settle_later(&cx, at);
        let due_ns = cx.now_ns() + SETTLE_AFTER.as_nanos() as u64;
        assert_eq!(watch.next_ns(cx.now_ns()), Some(due_ns));
        assert_eq!((watch.next_settling(due_ns - 1), watch.next_settling(due_ns)), (None, Some(at)));
        watch.offload_now(cx.now_ns(), at);
        watch.retime_later(at);
        assert_eq!(watch.next_ns(cx.now_ns()), Some(cx.now_ns()), "other timers are given at once");
        assert_eq!((watch.next_retiming(), watch.next_to_offload(cx.now_ns())), (Some(at), Some(at)));
        assert_eq!(watch.next_ns(cx.now_ns()), None);
    }
}
