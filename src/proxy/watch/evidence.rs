//! Flows as evidence: a backend whose kernel acknowledges nothing is reported long before its next probe.
//!
//! Only flows that sent bytes and got no answer are checked, so an idle flow costs nothing.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::FlowWatch;
use crate::ports::suspicion::Suspicion;
use crate::proxy::context::WorkerContext;
use crate::proxy::context::slab::FlowSlab;
use crate::proxy::flow::Phase;
use crate::proxy::timers::Due;
use crate::proxy::token::FlowRef;
use crate::sys::tcp_info::peer_signs;
use crate::table::flows::Field;

/// How often waiting flows are checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long an answer may take before Baton asks the kernel.
const PATIENCE: Duration = Duration::from_millis(300);

/// Retransmission timeouts in a row that make a backend suspect; one alone is ordinary loss.
const SUSPECT_BACKOFF: u8 = 2;

/// Bytes that were sent so long ago and are not acknowledged were repeated by now: first as a tail loss probe, then
/// after the first timeout.
const SENT_AGAIN: Duration = Duration::from_secs(1);

/// Flows checked at a time.
const LOOKS: usize = 256;

impl FlowWatch {
    /// Adds a flow that waits for an answer.
    pub(in crate::proxy) fn watch_unanswered(&mut self, cx: &mut WorkerContext, at: FlowRef) {
        if self.unanswered.is_empty() {
            cx.timers.set(cx.now_ns() + LOOK_EVERY.as_nanos() as u64, Due::Evidence);
        }
        self.unanswered.push(at);
    }

    /// Drops flows that were answered or acknowledged; reports backends that acknowledge nothing.
    pub(in crate::proxy) fn look_at_unanswered(&mut self, cx: &mut WorkerContext, flows: &mut FlowSlab) {
        let waiting = std::mem::take(&mut self.unanswered);
        let mut looks = 0;
        for at in waiting {
            if still_waits(cx, flows, at, &mut looks) {
                self.unanswered.push(at);
            }
        }
        if !self.unanswered.is_empty() {
            // The flows at the front were checked; next time the others have their turn.
            let turn = looks.min(self.unanswered.len());
            self.unanswered.rotate_left(turn);
            cx.timers.set(cx.now_ns() + LOOK_EVERY.as_nanos() as u64, Due::Evidence);
        }
    }
}

fn still_waits(cx: &WorkerContext, flows: &mut FlowSlab, at: FlowRef, looks: &mut usize) -> bool {
    let Some(Phase::Relaying(relaying)) = flows.get_mut(at).map(|flow| &mut flow.phase) else {
        return false;
    };
    let (since_ns, entry) = (relaying.unanswered_since_ns, &relaying.place.0);
    let given_ns = cx.slot(at.key()).word(Field::LastToBackendNs as usize);
    let is_to_look = match since_ns {
        // The answer may belong to an earlier request, unless the backend has acknowledged bytes that were sent later.
        0 => *looks < LOOKS && entry.taken_ns.load(Relaxed) < given_ns,
        _ if *looks == LOOKS || cx.now_ns().saturating_sub(since_ns) < PATIENCE.as_nanos() as u64 => {
            return true;
        }
        _ => true,
    };
    if !is_to_look {
        relaying.watched = false;
        return false;
    }
    *looks += 1;
    match peer_signs(&relaying.backend) {
        Ok(signs) if signs.unacked > 0 => {
            if signs.backoff >= SUSPECT_BACKOFF {
                entry.suspicion.raise(Suspicion::SEGMENTS_UNACKED);
                entry.untaken_ns.fetch_max(cx.now_ns(), Relaxed);
            } else if signs.backoff == 0 {
                entry.taken_ns.fetch_max(cx.now_ns().saturating_sub(SENT_AGAIN.as_nanos() as u64), Relaxed);
            }
            true
        }
        // Everything was acknowledged: the host is alive, and its process may take its time.
        signs => {
            if signs.is_ok() {
                entry.taken_ns.fetch_max(given_ns, Relaxed);
            }
            relaying.unanswered_since_ns = 0;
            relaying.watched = false;
            false
        }
    }
}
