//! Carries out the machine's decisions.

use std::sync::atomic::Ordering::Relaxed;

use super::Watcher;
use crate::essential;
use crate::model::end_reason::EndReason;
use crate::model::health::machine::HealthAction;
use crate::model::health::{Cause, HealthState};
use crate::ports::orders::{EndOrder, Selector};
use crate::sys::clock::now_ns;
use crate::table::backend::HealthView;
use crate::table::flows::FlowState;
use crate::table::journal::What;

impl Watcher {
    /// Publishes the state and carries out the actions.
    pub(super) fn publish(&mut self) {
        let mut actions: Vec<_> = std::iter::from_fn(|| self.machine.poll_action()).collect();
        // The ramp first, or a burst would get a whole share; the preference next, or flows would come right after a
        // reset.
        actions.sort_by_key(|action| !matches!(action, HealthAction::SlowStart { .. }));
        for action in &actions {
            if let HealthAction::SlowStart { start_ns, ramp_ns } = action {
                self.entry.set_ramp(*start_ns, *ramp_ns);
            }
        }
        self.entry.set_preference(self.machine.preference());
        self.entry.set_health(self.view());
        // Recorded now, so that later callers learn since when.
        self.shared.table.registry.service(&self.entry.frontend, now_ns());
        self.vote.set(self.machine.is_proven_ready() && self.entry.weight() > 0);
        for action in actions {
            match action {
                HealthAction::SlowStart { .. } => {}
                HealthAction::Changed { from, to, cause } => self.tell(from, to, cause),
                HealthAction::ResetFlows { reason, again } => self.reset_flows(reason, again),
            }
        }
    }

    fn view(&self) -> HealthView {
        HealthView {
            health_state: self.machine.health_state(),
            cause: self.machine.cause(),
            since_ns: self.machine.since_ns(),
            served_until_ns: self.machine.served_until_ns(),
            last_probe: self.last_probe.clone(),
            last_probe_us: self.last_probe_us,
            order: self.machine.order(),
            drain_deadline_ns: self.machine.drain_deadline_ns(),
        }
    }

    fn tell(&self, from: HealthState, to: HealthState, cause: Cause) {
        let (frontend, backend) = self.entry.full_name();
        self.shared.table.journal.record(What::BackendChanged { frontend, backend, from, to, cause });
    }

    fn reset_flows(&mut self, reason: EndReason, again: bool) {
        let active = self.entry.active.load(Relaxed) as usize;
        if active == 0 {
            return;
        }
        let selector = match (reason, self.surroundings.is_deaf()) {
            // Another instance may carry on offloaded flows; proxied flows are lost to it anyway.
            (EndReason::BackendEjected, true) if self.shared.table.fleet.is_enabled() => {
                Selector::SocketsOf(self.entry.id)
            }
            // Without other instances nobody would be told.
            (EndReason::BackendEjected, true) => return,
            _ => Selector::Backend(self.entry.id),
        };
        let only_new = again || matches!(selector, Selector::SocketsOf(_));
        self.uncounted.push(UncountedReset { selector, reason, only_new });
    }

    fn order_end(&self, selector: Selector, reason: EndReason, flows: usize) {
        self.shared.table.orders.end(EndOrder { selector, reason, pace: self.spec.reset_pace, only_idle_for: None });
        if flows > 0 {
            let (frontend, backend) = self.entry.full_name();
            self.shared.table.journal.record(What::FlowsOrdered { frontend, backend, flows, reason });
        }
    }

    /// Carries out resets, once the table has been walked for the flows that they end: not those that another order ends already, nor those
    /// that are being connected, which go to another backend. What counts the backend's flows for the balance counts these, too.
    pub(super) async fn reset_uncounted(&mut self) {
        for UncountedReset { selector, reason, only_new } in std::mem::take(&mut self.uncounted) {
            let (flows, id) = (self.shared.table.flows.clone(), self.entry.id);
            let with_sockets = matches!(selector, Selector::SocketsOf(_));
            let count = move || {
                let mine = flows.iter().filter(|flow| flow.backend == Some(id) && !flow.ending);
                let mut mine = mine.filter(|flow| !(with_sockets && flow.state == FlowState::Offloaded)).peekable();
                (mine.peek().is_some(), mine.filter(|flow| flow.state.is_served()).count())
            };
            match essential::aside(count).await {
                Some((is_needed, ordered)) if is_needed || !only_new => self.order_end(selector, reason, ordered),
                _ => {}
            }
        }
    }
}

/// A reset that has been decided, and not been ordered yet.
#[derive(Debug)]
pub(super) struct UncountedReset {
    selector: Selector,
    reason: EndReason,
    /// Nothing is ordered unless a flow has come since the order before.
    only_new: bool,
}
