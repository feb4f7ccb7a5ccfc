//! Parts of the sentences.

use crate::model::end_reason::EndReason;
use crate::model::fleet::{Farewell, Liveness, PortRange, Strangeness};
use crate::model::humane::{duration_ms, plural};
use crate::model::weight::Weight;

/// Why Baton ends flows of a backend.
pub(super) fn ordered_because(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Killed => "an operator gave the order",
        EndReason::EjectedByOperator => "an operator ejected this backend",
        EndReason::BackendEjected => "Baton found this backend dead",
        EndReason::DrainDeadline => "this backend was draining and drain_timeout has passed",
        EndReason::FrontendRemoved => "a reload removed this frontend and drain_timeout has passed",
        EndReason::PeerHasVip => "the VIP is on the host of a peer, to which this backend sends its answers",
        other => other.label(),
    }
}

/// A backend that is lost has an event of its own, and the limit of a source is there to be reached.
pub(super) fn weight_of_refusals(reason: EndReason) -> Weight {
    match reason {
        EndReason::NoBackend | EndReason::LimitSource | EndReason::RateSource => Weight::Notice,
        _ => Weight::Bad,
    }
}

/// `worker-17`, `3 nodes (worker-17, worker-18, worker-19)`.
pub(super) fn named_nodes(nodes: &[String], more: usize) -> String {
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    match nodes {
        [node] if more == 0 => node.clone(),
        nodes => format!("{} ({}{rest})", plural((nodes.len() + more) as u64, "node"), nodes.join(", ")),
    }
}

pub(super) fn in_words(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Unheard => "not heard of yet",
        Liveness::Alive => "alive",
        Liveness::Unlinked => "alive, but the link to it is down: this instance does not learn of its new flows",
        Liveness::Silent => "silent",
        Liveness::Dead => "considered dead: this instance has not heard of it for a second",
        Liveness::Left(Farewell::Succeeded) => "being replaced by another process",
        Liveness::Left(Farewell::Stopped) => "stopped",
    }
}

/// What a peer had said of itself before it was silent.
pub(super) fn stuck_before(stuck_ms: u64) -> String {
    format!("; by then one of its workers had been stuck for {}, as it had said", duration_ms(stuck_ms))
}

/// Why flows of a peer are not taken.
pub(super) fn strange(why: Strangeness) -> &'static str {
    match why {
        Strangeness::Frontend => "are of no frontend of this instance",
        Strangeness::Port => "come from ports from which no instance connects to backends",
        Strangeness::Crowd => "are more than an instance can have",
    }
}

/// Two instances whose source ports are partly the same.
pub(super) fn ports_overlap(peer: &str, theirs: PortRange, own: PortRange) -> String {
    format!(
        "{peer} connects to backends from ports {theirs}, and this instance from {own}: a connection of one can be taken for one of the other; \
         net.ipv4.ip_local_port_range must be the same on all hosts of a fleet"
    )
}
