//! Events in words, for the page and the command line alike.

use std::net::IpAddr;

use super::status::{Instance, Status};
use crate::model::fleet::{Farewell, Liveness};
use crate::model::health::HealthState;
use crate::model::humane::{bytes, count, duration_ms, duration_us, plural};
use crate::model::weight::Weight;
use crate::table::backend::Service;
use crate::table::journal::What;

/// One sentence without a full stop.
pub fn event(what: &What) -> String {
    match what {
        What::BackendChanged { frontend, backend, from, to, cause } if from == to => {
            format!("{frontend}/{backend}: {}: {cause}", to.label())
        }
        What::BackendChanged { frontend, backend, from, to, cause } => {
            format!("{frontend}/{backend}: {} → {}: {cause}", from.label(), to.label())
        }
        What::FlowsOrdered { frontend, backend, flows, reason } => {
            format!("{frontend}/{backend}: {} to end: {}", plural(*flows as u64, "flow"), reason.label())
        }
        What::BackendAdded { frontend, backend } => format!("{frontend}/{backend}: added"),
        What::BackendRemoved { frontend, backend } => format!("{frontend}/{backend}: removed"),
        What::BackendResolved { frontend, backend, address, error } => match (address, error) {
            (_, Some(error)) => format!("{frontend}/{backend}: does not resolve: {error}"),
            (Some(address), None) => format!("{frontend}/{backend}: resolves to {address}"),
            (None, None) => format!("{frontend}/{backend}: resolves to nothing"),
        },
        What::Reloaded { changes } if changes.is_empty() => "configuration reloaded: nothing changed".to_owned(),
        What::Reloaded { changes } => format!("configuration reloaded: {}", changes.join("; ")),
        What::ReloadRefused { errors } => {
            // There is a semicolon within each.
            format!("configuration refused, the old one stays: {}", errors.join(" | "))
        }
        What::AcceptPaused { worker, error } => format!("worker {worker} pauses accepting: {error}"),
        What::AcceptResumed { worker, paused_ms } => {
            format!("worker {worker} accepts again after {}", duration_ms(*paused_ms))
        }
        What::WorkerStuck { worker, for_ms } => format!("worker {worker} is stuck for {}", duration_ms(*for_ms)),
        What::WorkerMoves { worker } => format!("worker {worker} moves again"),
        What::VipShared { address, by } => {
            format!("another host ({by}) has {address} too: clients reach either by chance")
        }
        What::VipAlone { address } => format!("no other host has {address} any more"),
        What::VipLeftBehind { address } => {
            format!("keepalived is gone and has left {address} behind: start it, or take the address away")
        }
        What::Started { version } => format!("Baton {version} started"),
        What::Stopping { flows, timeout_ms } => {
            format!("stopping: {} may go on for {}", plural(*flows as u64, "flow"), duration_ms(*timeout_ms))
        }
        What::RebalancePlanned { frontend, moves } => {
            format!("{frontend}: {} to be moved for balance", plural(*moves as u64, "flow"))
        }
        What::UpgradeBegun { binary } => format!("upgrade to {binary} begun"),
        What::UpgradeFailed { why, moved: 0 } => format!("upgrade failed, this process goes on: {why}"),
        What::UpgradeFailed { why, moved } => {
            format!("upgrade failed, this process goes on; {} stay with the new one: {why}", plural(*moved, "flow"))
        }
        What::UpgradeFinished { from_version, from_pid, flows, not_moved, held_bytes, longest_pause_us, took_us } => {
            let mut text = format!(
                "took over {} from process {from_pid} (Baton {from_version}) in {}, {} on the way, longest pause {}",
                plural(*flows, "flow"),
                duration_us(*took_us),
                bytes(*held_bytes as f64),
                duration_us(*longest_pause_us),
            );
            if *not_moved > 0 {
                text += &format!("; {} could not be moved", plural(*not_moved, "flow"));
            }
            text
        }
        What::Inherited { from_pid, flows } => {
            format!("process {from_pid} died while it handed over; {} had come", plural(*flows, "flow"))
        }
        What::OffloadOpened { interfaces } if interfaces.is_empty() => "flows may be offloaded".to_owned(),
        What::OffloadOpened { interfaces } => format!("flows may be offloaded, by {}", interfaces.join(", ")),
        What::OffloadShut { why } => format!("flows stay proxied: {why}"),
        What::OffloadRecovered { flows, reset: 0 } => {
            format!("recovered {} that an earlier process had been offloaded", plural(*flows, "flow"))
        }
        What::OffloadRecovered { flows, reset } => {
            let flows = plural(*flows, "flow");
            format!("recovered {flows} that an earlier process had been offloaded; reset {reset} that it was about to")
        }
        What::OffloadStopped { reset, of } => {
            format!(
                "no flow is offloaded any more: {reset} of the last {of} were reset right after they had been, others were not"
            )
        }
        What::OffloadResumed {} => "flows that are offloaded live: all may be again".to_owned(),
        What::ProgramReattached { interfaces } => {
            format!("another process detached the BPF program from {}; Baton attached it again", interfaces.join(", "))
        }
        What::PeerLinked { peer, version } => format!("linked with {peer} (Baton {version})"),
        What::PeerLost { peer, why } => format!("the link to {peer} is lost: {why}"),
        What::PeerUnreachable { peer, why } => format!("no link to {peer}: {why}"),
        What::PeerSynced { peer, flows } => format!("all of {peer} is known: {}", plural(*flows, "flow")),
        What::PeerGap { peer } => format!("a change of {peer}'s flows is missing; it tells all of them again"),
        What::PeerLiveness { peer, liveness } => format!("{peer} is {}", liveness_in_words(*liveness)),
        What::FailedOver { instance, inherited, reset } => {
            let inherited = plural(*inherited as u64, "flow");
            format!("{instance} is dead: {inherited} of it without sockets go on here, {reset} others are reset")
        }
        What::ClientsTold { instance, answered, silent } => {
            let answered = plural(*answered as u64, "client");
            format!("{answered} of {instance} answered to their reset, {silent} did not show themselves")
        }
        What::FlowsClaimed { instance, flows } => {
            format!("packets of {} of {instance} come here", plural(*flows as u64, "flow"))
        }
        What::FlowsReleased { instance, flows } => {
            format!("packets of {} come to {instance} now", plural(*flows as u64, "flow"))
        }
        What::AddressCame { address } => format!("{address} has come to this host"),
        What::AddressWent { address } => format!("{address} has left this host"),
        What::EvacuationBegun { to, flows } => {
            let to = to.as_ref().map_or("another instance".to_owned(), ToString::to_string);
            format!("emptying this host: its VIP goes to {to}, and {} live here", plural(*flows as u64, "flow"))
        }
        What::Evacuated { flows_reset: 0, took_ms } => {
            format!("emptied in {}; no flow was reset: this host may be switched off", duration_ms(*took_ms))
        }
        What::Evacuated { flows_reset, took_ms } => {
            let (flows, took) = (plural(*flows_reset, "flow"), duration_ms(*took_ms));
            format!("emptied in {took}; {flows} had to be reset: this host may be switched off")
        }
        What::EvacuationTakenBack { why: None } => "this host may have the VIP again, as an operator wanted".to_owned(),
        What::EvacuationTakenBack { why: Some(why) } => format!("this host may have the VIP again: {why}"),
        What::FlowEnded {
            flow,
            frontend,
            backend,
            client,
            reason,
            duration_ms: lasted,
            connect_us,
            bytes_to_backend,
            bytes_to_client,
            error,
        } => {
            let mut text = format!(
                "flow {flow} {client} → {frontend}/{}: {} after {}, {} up, {} down",
                backend.as_deref().unwrap_or("-"),
                reason.label(),
                duration_ms(*lasted),
                bytes(*bytes_to_backend as f64),
                bytes(*bytes_to_client as f64),
            );
            if *connect_us > 0 {
                text += &format!(", connected in {}", duration_us(*connect_us));
            }
            if let Some(error) = error {
                text += &format!(" ({error})");
            }
            text
        }
    }
}

/// Of offload.
pub const STOPPED: &str = "flows were reset right after they had been offloaded, so the others stay proxied; one is tried again now and then, and \
                           after each `baton reload`";

pub fn weight(what: &What) -> Weight {
    match what {
        What::BackendChanged { to, .. } => Weight::of_health(*to),
        What::BackendResolved { error: Some(_), .. } | What::Stopping { .. } | What::FlowsOrdered { .. } => {
            Weight::Notice
        }
        What::UpgradeFailed { .. } | What::Inherited { .. } => Weight::Bad,
        What::VipShared { .. } | What::VipLeftBehind { .. } => Weight::Bad,
        What::VipAlone { .. } => Weight::Good,
        What::UpgradeFinished { not_moved, .. } if *not_moved > 0 => Weight::Notice,
        What::UpgradeFinished { .. } => Weight::Good,
        What::ProgramReattached { .. } | What::OffloadStopped { .. } => Weight::Bad,
        What::OffloadShut { .. } => Weight::Notice,
        What::OffloadOpened { .. } | What::OffloadResumed {} => Weight::Good,
        What::OffloadRecovered { reset, .. } if *reset > 0 => Weight::Notice,
        What::OffloadRecovered { .. } => Weight::Good,
        What::FailedOver { .. } => Weight::Bad,
        What::ClientsTold { .. }
        | What::FlowsClaimed { .. }
        | What::FlowsReleased { .. }
        | What::AddressCame { .. }
        | What::AddressWent { .. }
        | What::EvacuationBegun { .. }
        | What::EvacuationTakenBack { why: None } => Weight::Notice,
        What::EvacuationTakenBack { why: Some(_) } => Weight::Bad,
        What::Evacuated { flows_reset: 0, .. } => Weight::Good,
        What::Evacuated { .. } => Weight::Notice,
        What::PeerLinked { .. } | What::PeerSynced { .. } => Weight::Good,
        What::PeerLost { .. } | What::PeerGap { .. } => Weight::Notice,
        What::PeerUnreachable { .. } => Weight::Bad,
        What::PeerLiveness { liveness, .. } => Weight::of_liveness(*liveness),
        What::ReloadRefused { .. } | What::AcceptPaused { .. } | What::WorkerStuck { .. } => Weight::Bad,
        What::AcceptResumed { .. } | What::WorkerMoves { .. } => Weight::Good,
        What::BackendAdded { .. }
        | What::BackendRemoved { .. }
        | What::BackendResolved { .. }
        | What::Reloaded { .. }
        | What::Started { .. }
        | What::UpgradeBegun { .. }
        | What::RebalancePlanned { .. }
        | What::FlowEnded { .. } => Weight::Plain,
    }
}

/// Whether clients are served, with how many draining backends if that matters.
pub fn service(service: Service, draining: usize, since_ms: u64) -> String {
    let since = duration_ms(since_ms);
    match (service, draining) {
        (Service::Ready, _) => "clients are served".to_owned(),
        (Service::Full, _) => {
            format!("every backend is at max_connections: new connections are reset since {since}")
        }
        (Service::Draining, 0 | 1) => format!("serving from a draining backend: none is ready since {since}"),
        (Service::Draining, many) => format!("serving from {many} draining backends: none is ready since {since}"),
        (Service::NoBackend, _) => format!("no backend: new connections are reset since {since}"),
    }
}

pub fn of_service(service: Service) -> Weight {
    match service {
        Service::Ready => Weight::Good,
        Service::Draining => Weight::Notice,
        Service::Full | Service::NoBackend => Weight::Bad,
    }
}

/// What an instance is in one word, and how bad that is.
pub fn instance(instance: &Instance) -> (Weight, &str) {
    match (&instance.not_live[..], &instance.not_ready[..], &*instance.phase) {
        ([_, ..], _, _) => (Weight::Bad, "not live"),
        (_, [], _) => (Weight::Good, "ready"),
        (_, _, "serving") => (Weight::Bad, "not ready"),
        (_, _, phase) => (Weight::Notice, phase),
    }
}

/// What clients of all frontends together meet, if that is not what they should: the worst, in a few words.
pub fn shortfall(status: &Status) -> Option<(Weight, String)> {
    let of = |service: Service| {
        let met = status.frontends.iter().filter(|it| !it.removed && it.service.state == service);
        met.map(|it| it.name.as_str()).collect::<Vec<_>>()
    };
    let what = match (of(Service::NoBackend), of(Service::Full), of(Service::Draining)) {
        (none, ..) if !none.is_empty() => (Weight::Bad, "no backend", none),
        (_, full, _) if !full.is_empty() => (Weight::Bad, "every backend full", full),
        (.., draining) if !draining.is_empty() => (Weight::Notice, "draining backends only", draining),
        _ => return None,
    };
    let (weight, what, names) = what;
    let all = names.len() == status.frontends.iter().filter(|it| !it.removed).count();
    Some((weight, if all { what.to_owned() } else { format!("{what} for {}", names.join(", ")) }))
}

/// Which of the frontends' addresses this host has.
pub fn vips(vips: &[IpAddr]) -> String {
    match vips {
        [] => "has no VIP".to_owned(),
        vips => format!("has {}", vips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

pub fn liveness_in_words(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Unheard => "not heard of yet",
        Liveness::Alive => "alive",
        Liveness::Unlinked => "alive, but not on the link: what it does with its flows is not known here",
        Liveness::Silent => "silent",
        Liveness::Dead => "taken for dead: nothing was heard of it for a second",
        Liveness::Left(Farewell::Succeeded) => "being replaced by another process",
        Liveness::Left(Farewell::Stopped) => "stopped",
    }
}

/// `12,345 of 50,000`, or without the cap if there is none.
pub fn of_cap(flows: u32, cap: Option<u32>) -> String {
    match cap {
        Some(cap) => format!("{} of {}", count(flows.into()), count(cap.into())),
        None => count(flows.into()),
    }
}

/// `1 flow`, `12,345 of 50,000 flows`.
pub fn flows_of_cap(flows: u32, cap: Option<u32>) -> String {
    match cap {
        Some(_) => format!("{} flows", of_cap(flows, cap)),
        None => plural(flows.into(), "flow"),
    }
}

/// Why a backend stands as it does, its order and its deadline included.
pub fn why(backend: &super::status::BackendStatus) -> String {
    let mut text = backend.why.clone();
    if let Some(ms) = backend.drain_deadline_in_ms {
        text += &format!("; its flows have {} left", duration_ms(ms));
    }
    if backend.share_percent < 100 && backend.health_state == HealthState::Ready {
        text += &format!("; returning slowly, at {} %", backend.share_percent);
    }
    text
}
