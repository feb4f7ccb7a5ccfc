//! Resumes flows that come back: from the offload engine, from an upgrade that failed, or from another process.

use std::io;

use super::accept::expect_header;
use super::backlog::Backlog;
use super::context::WorkerContext;
use super::ending::closing::close_if_done;
use super::flow::{Flow, Phase};
use super::token::Token;
use super::verdict::FlowVerdict;
use super::watch::FlowWatch;
use crate::model::end_reason::EndReason;

/// Resumes a flow whose sockets have just been added to epoll, which reports their readiness.
pub(super) fn go_on(
    cx: &mut WorkerContext,
    watch: &mut FlowWatch,
    backlog: &mut Backlog,
    flow: &mut Flow,
) -> FlowVerdict {
    match &mut flow.phase {
        Phase::Header(_) => {
            expect_header(cx, flow, flow.accepted_at_ns);
            FlowVerdict::Keep
        }
        Phase::Connecting(_) => FlowVerdict::Connect { readable: false, ends: false },
        Phase::Relaying(relaying) => {
            relaying.waits_for_turn = relaying.up.wants_pump() || relaying.down.wants_pump();
            if relaying.waits_for_turn {
                backlog.wants_more(flow.at);
            }
            if relaying.unanswered_since_ns != 0 {
                relaying.watched = true;
                watch.watch_unanswered(cx, flow.at);
            }
            watch.look_after(cx, flow);
            watch.settle_later(cx, flow.at);
            watch.offload_later(cx, flow);
            close_if_done(cx, flow)
        }
        Phase::Offloading(_) | Phase::Offloaded { .. } | Phase::Between => FlowVerdict::Keep,
    }
}

/// Serves a flow whose sockets were in no epoll set meanwhile.
pub(super) fn serve_again(
    cx: &mut WorkerContext,
    watch: &mut FlowWatch,
    backlog: &mut Backlog,
    flow: &mut Flow,
) -> FlowVerdict {
    match watch_again(cx, flow) {
        Ok(()) => go_on(cx, watch, backlog, flow),
        Err(error) => FlowVerdict::End(EndReason::Internal, error.raw_os_error().unwrap_or(0)),
    }
}

/// Adds a flow's sockets to epoll, edge-triggered: epoll first reports their present readiness (epoll(7)).
pub(super) fn watch_again(cx: &WorkerContext, flow: &Flow) -> io::Result<()> {
    if let Some(client) = flow.client() {
        cx.epoll.watch_flow(client, Token::Client(flow.at).pack())?;
    }
    if let Phase::Relaying(relaying) = &flow.phase {
        let token = Token::Backend { flow: flow.at, attempt: relaying.attempt };
        cx.epoll.watch_flow(&relaying.backend, token.pack())?;
    }
    Ok(())
}

/// Has epoll report the readiness of a flow's sockets, though they were in its set all the time.
pub(super) fn watch_anew(cx: &WorkerContext, flow: &Flow) -> io::Result<()> {
    if let Phase::Relaying(relaying) = &flow.phase {
        cx.epoll.watch_flow_again(&relaying.client, Token::Client(flow.at).pack())?;
        let token = Token::Backend { flow: flow.at, attempt: relaying.attempt };
        cx.epoll.watch_flow_again(&relaying.backend, token.pack())?;
    }
    Ok(())
}
