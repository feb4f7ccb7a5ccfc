//! Orders that end flows: the selected flows, and the time of each.

use super::closing::close_both;
use crate::model::end_reason::ClientSaw;
use crate::ports::orders::{EndOrder, Selector};
use crate::proxy::context::WorkerContext;
use crate::proxy::context::slab::FlowSlab;
use crate::proxy::flow::{Flow, PendingEnd, Phase};
use crate::proxy::timers::Due;
use crate::proxy::token::FlowRef;
use crate::proxy::verdict::FlowVerdict;
use crate::proxy::watch::FlowWatch;
use crate::table::flows::FlowKey;

/// Schedules each selected flow within the order's pace. Returns connecting flows that must only give up a backend.
pub(in crate::proxy) fn give_turns(cx: &mut WorkerContext, flows: &mut FlowSlab, order: &EndOrder) -> Vec<FlowRef> {
    let mut chosen: Vec<_> = flows.iter().filter(|flow| selects(order, flow)).map(|flow| flow.at).collect();
    // In random order, so that clients that came together do not all come back together.
    fastrand::shuffle(&mut chosen);
    let step_ns = order.pace.step_ns(chosen.len(), cx.table.workers.len());
    let of_backend = matches!(order.selector, Selector::Backend(_) | Selector::SocketsOf(_));
    let mut connecting = Vec::new();
    for (turn, at) in chosen.into_iter().enumerate() {
        let Some(flow) = flows.get_mut(at) else { continue };
        if of_backend && matches!(flow.phase, Phase::Connecting(_)) {
            connecting.push(at);
            continue;
        }
        set_pending(cx, flow, order);
        let jitter_ns = fastrand::u64(0..=step_ns / 2);
        cx.timers.set(cx.now_ns() + turn as u64 * step_ns + jitter_ns, Due::End(at));
    }
    connecting
}

/// As [`give_turns`], for an order for one flow: it is due now.
pub(in crate::proxy) fn give_turn(
    cx: &WorkerContext,
    flows: &mut FlowSlab,
    key: FlowKey,
    order: &EndOrder,
) -> Option<FlowRef> {
    let at = flows.at_key(key).filter(|flow| selects(order, flow))?.at;
    set_pending(cx, flows.get_mut(at)?, order);
    Some(at)
}

/// A flow's time to end has come.
pub(in crate::proxy) fn end_due(cx: &WorkerContext, watch: &mut FlowWatch, flow: &mut Flow) -> FlowVerdict {
    let Some(pending) = flow.pending_end else { return FlowVerdict::Keep };
    if let Some(idle) = pending.only_idle_for {
        let quiet_ns = cx.now_ns().saturating_sub(cx.last_byte_ns(flow));
        if flow.holds_bytes() || !flow.is_acknowledged() || flow.is_closing() || quiet_ns < idle.as_nanos() as u64 {
            flow.pending_end = None;
            cx.show_state(flow);
            return FlowVerdict::Keep;
        }
    }
    match pending.reason.client_saw() {
        ClientSaw::Fin if flow.is_closing() => FlowVerdict::Keep,
        ClientSaw::Fin => close_both(cx, watch, flow, pending.reason),
        _ => FlowVerdict::End(pending.reason, 0),
    }
}

fn set_pending(cx: &WorkerContext, flow: &mut Flow, order: &EndOrder) {
    flow.pending_end = Some(PendingEnd { reason: order.reason, only_idle_for: order.only_idle_for });
    cx.show_state(flow);
}

fn selects(order: &EndOrder, flow: &Flow) -> bool {
    // An order that may spare an idle flow does not replace one that must end it.
    let must_end = flow.pending_end.is_some_and(|pending| pending.only_idle_for.is_none());
    if must_end && order.only_idle_for.is_some() {
        return false;
    }
    match order.selector {
        Selector::Flow { id, .. } => flow.id == id,
        Selector::Backend(id) => flow.uses_backend(id),
        Selector::SocketsOf(id) => flow.uses_backend(id) && !flow.is_with_engine(),
        Selector::Client(network) => network.contains(&flow.client_addr.ip()),
        Selector::WithSockets => !flow.is_with_engine(),
        Selector::EndingHere => !flow.is_with_engine() || flow.stays_here(),
        Selector::All => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::end_reason::EndReason;
    use crate::model::ids::FlowId;
    use crate::ports::orders::Pace;
    use crate::proxy::testing::{context, enter};
    use crate::table::flows::{Field, FlowPlace, FlowState};
    use crate::table::slot::Slot;

    #[test]
    fn a_flow_that_moves_a_byte_before_its_turn_is_spared_by_an_order_for_idle_flows() {
        let (mut cx, mut flows) = (context(None), FlowSlab::default());
        let (moves, idle) = (enter(&mut cx, &mut flows), enter(&mut cx, &mut flows));
        let order = EndOrder {
            selector: Selector::All,
            reason: EndReason::Rebalanced,
            pace: Pace::AT_ONCE,
            only_idle_for: Some(Duration::from_secs(5)),
        };
        cx.pass(Duration::from_secs(60));
        assert!(give_turns(&mut cx, &mut flows, &order).is_empty(), "none is connecting");
        let shown = |slot: &Slot| slot.word(Field::Place as usize);
        let accepted = FlowPlace::new(FlowState::Accepted, None);
        let ending = FlowPlace { ending: true, ..accepted };
        assert_eq!([moves, idle].map(|at| shown(cx.slot(at.key()))), [ending.pack(); 2]);
        cx.slot(moves.key()).set(Field::LastToBackendNs as usize, cx.now_ns());
        let mut turn = |at| {
            let flow = flows.get_mut(at).unwrap();
            (end_due(&cx, &mut FlowWatch::default(), flow), flow.pending_end.is_some())
        };
        assert!(matches!(turn(moves), (FlowVerdict::Keep, false)));
        assert!(matches!(turn(idle), (FlowVerdict::End(EndReason::Rebalanced, 0), true)));
        assert_eq!(shown(cx.slot(moves.key())), accepted.pack());
    }

    #[test]
    fn an_order_for_one_flow_leaves_another_in_its_place_alone() {
        let (mut cx, mut flows) = (context(None), FlowSlab::default());
        let at = enter(&mut cx, &mut flows);
        let id = flows.get_mut(at).unwrap().id;
        let order = |id| EndOrder {
            selector: Selector::Flow { key: at.key(), id },
            reason: EndReason::Killed,
            pace: Pace::AT_ONCE,
            only_idle_for: None,
        };
        assert_eq!(give_turn(&cx, &mut flows, at.key(), &order(FlowId(id.0 + 1))), None);
        assert_eq!(give_turn(&cx, &mut flows, at.key(), &order(id)), Some(at));
    }
}
