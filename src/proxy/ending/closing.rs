//! The end of a flow by FIN: it is over when both ends have acknowledged everything that was sent to them, not when it
//! was written.
//!
//! ```text
//!             FIN was passed on both ways         acknowledged by both, or reset by them
//!   Relaying ────────────────────────────▶ Closing ────────────────────────────▶ closed, by who sent FIN first
//!                                             │ user_timeout of silence
//!                                             └────────────────────────────────▶ client_timed_out, backend_timed_out
//! ```
//! Until then the flow keeps its sockets and its place in the table. The kernel gives up a socket without a descriptor
//! in silence, gives it no more time when its reader pauses ([`crate::proxy::watch::deliveries`]), and cannot send from
//! it once its address moves.
//!
//! Mostly one acknowledgement is missing, that of the end that closed last, and it takes a round trip. Meanwhile the
//! flow counts towards no limit: a client that has read the end may connect again at once.

use std::io;
use std::os::fd::OwnedFd;

use crate::model::end_reason::EndReason;
use crate::proxy::accept::admission::{FrontendHold, count_source_again};
use crate::proxy::context::WorkerContext;
use crate::proxy::flow::{Closing, Flow, Phase, Relaying, Side};
use crate::proxy::verdict::{FlowVerdict, ended_by, errno, is_silence};
use crate::proxy::watch::FlowWatch;
use crate::sys::{silence, socket, tcp_info};

/// The state of one end.
enum ClosingLeg {
    Open,
    /// It has acknowledged everything, or has reset the connection.
    Over,
    /// The kernel has given it up.
    Silent(io::Error),
}

/// Ends a flow whose both directions are done, now or when its last bytes have arrived.
pub(in crate::proxy) fn close_if_done(cx: &WorkerContext, flow: &mut Flow) -> FlowVerdict {
    match &flow.phase {
        Phase::Relaying(relaying) if relaying.closing.is_some() => closing_ready(cx, flow),
        Phase::Relaying(relaying) if relaying.up.is_done() && relaying.down.is_done() => {
            let reason = match relaying.first_fin {
                Some(Side::Backend) => EndReason::BackendClosed,
                _ => EndReason::ClientClosed,
            };
            close(cx, flow, reason)
        }
        _ => FlowVerdict::Keep,
    }
}

/// Ends a flow by FIN both ways, for `reason`. The flow must hold no bytes.
pub(in crate::proxy) fn close_both(
    cx: &WorkerContext,
    watch: &mut FlowWatch,
    flow: &mut Flow,
    reason: EndReason,
) -> FlowVerdict {
    let Phase::Relaying(relaying) = &mut flow.phase else { return FlowVerdict::End(reason, 0) };
    flow.holds.release();
    relaying.up.pass_fin(&relaying.backend);
    relaying.down.pass_fin(&relaying.client);
    watch.look_after(cx, flow);
    close(cx, flow, reason)
}

fn close(cx: &WorkerContext, flow: &mut Flow, reason: EndReason) -> FlowVerdict {
    let Phase::Relaying(relaying) = &mut flow.phase else { return FlowVerdict::Keep };
    let all_arrived = |leg| silence::unacknowledged(leg).is_ok_and(|bytes| bytes == 0);
    let (client_is_over, backend_is_over) = (all_arrived(&relaying.client), all_arrived(&relaying.backend));
    if client_is_over && backend_is_over {
        return FlowVerdict::End(reason, 0);
    }
    let closing = Closing { reason, client_is_over, backend_is_over, left: usize::MAX, left_since_ns: 0 };
    relaying.closing = Some(Box::new(closing));
    backend_may_be_over(cx, flow);
    FlowVerdict::Keep
}

/// An event of one of its sockets: most likely it is over.
pub(in crate::proxy) fn closing_ready(cx: &WorkerContext, flow: &mut Flow) -> FlowVerdict {
    let Phase::Relaying(relaying) = &mut flow.phase else { return FlowVerdict::Keep };
    let Some(closing) = &mut relaying.closing else { return FlowVerdict::Keep };
    let legs = [
        (Side::Client, &relaying.client, &mut closing.client_is_over),
        (Side::Backend, &relaying.backend, &mut closing.backend_is_over),
    ];
    for (side, leg, is_over) in legs {
        if *is_over {
            continue;
        }
        match ClosingLeg::look(leg) {
            ClosingLeg::Open => {}
            ClosingLeg::Over => *is_over = true,
            ClosingLeg::Silent(error) => return ended_by(side, errno(Some(&error))),
        }
    }
    if closing.client_is_over && closing.backend_is_over {
        return FlowVerdict::End(closing.reason, 0);
    }
    backend_may_be_over(cx, flow);
    FlowVerdict::Keep
}

/// A flow that is closing takes longer than a round trip.
pub(in crate::proxy) fn closing_is_late(cx: &WorkerContext, flow: &mut Flow) -> FlowVerdict {
    count_again(cx, flow);
    closing_ready(cx, flow)
}

/// The flow counts towards limits again, as another process would count it.
pub(in crate::proxy) fn count_again(cx: &WorkerContext, flow: &mut Flow) {
    if flow.holds.frontend.is_none() {
        flow.holds.frontend = Some(FrontendHold::count_again(&flow.frontend));
        let sources = &cx.shared.sources;
        flow.holds.source = count_source_again(&flow.frontend, sources, flow.client_addr, cx.now_ns());
    }
}

/// Ends a flow that has been idle for too long. A closing flow is not idle while its end still accepts bytes.
pub(in crate::proxy) fn idle_due(cx: &WorkerContext, flow: &mut Flow) -> FlowVerdict {
    let (limit, now_ns) = (flow.frontend.settings.idle_timeout, cx.now_ns());
    if let Phase::Relaying(Relaying { client, backend, closing: Some(closing), .. }) = &mut flow.phase {
        let under_way = |leg: &OwnedFd| silence::unacknowledged(leg).unwrap_or(0);
        let left = under_way(client) + under_way(backend);
        if left != closing.left {
            (closing.left, closing.left_since_ns) = (left, now_ns);
        }
        if limit.is_none_or(|limit| now_ns - closing.left_since_ns < limit.as_nanos() as u64) {
            return FlowVerdict::Keep;
        }
    }
    FlowVerdict::End(EndReason::IdleTimeout, 0)
}

/// A backend that has received everything no longer counts the flow, though its client may need long to read the end.
fn backend_may_be_over(cx: &WorkerContext, flow: &mut Flow) {
    if let Phase::Relaying(relaying) = &mut flow.phase
        && relaying.backend_used().is_none()
        && relaying.place.count_out()
    {
        cx.show_state(flow);
    }
}

impl ClosingLeg {
    fn look(leg: &OwnedFd) -> Self {
        if silence::unacknowledged(leg).is_ok_and(|bytes| bytes == 0) {
            return Self::Over;
        }
        match tcp_info::is_closed(leg) {
            Ok(false) => Self::Open,
            _ => match socket::take_error(leg) {
                Some(error) if is_silence(errno(Some(&error))) => Self::Silent(error),
                _ => Self::Over,
            },
        }
    }
}
