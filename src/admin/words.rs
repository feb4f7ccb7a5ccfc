//! The status in words, for the page and the command line alike.

use std::net::IpAddr;

use super::nodes::{NodeRow, NodeRowState};
use super::status::{FrontendStatus, Instance, NodesStatus, PeersReport, Status, VipStatus};
use crate::model::fleet::{Disagreement, InstanceSummary};
use crate::model::health::HealthState;
use crate::model::humane::{count, duration_ms, list, plural};
use crate::model::weight::Weight;
use crate::table::backend::Service;
use crate::table::fleet::MemberView;

/// Of offload.
pub(crate) const STOPPED: &str = "flows were reset right after Baton had offloaded them, so the others stay proxied; Baton \
                           tries one again at intervals of 5 minutes to an hour, and after each `baton reload`";

/// Whether clients are served, with the number of draining backends if that matters.
pub(crate) fn service(service: Service, draining: usize, since_ms: u64) -> String {
    let since = duration_ms(since_ms);
    match (service, draining) {
        (Service::Ready, _) => "clients are served".to_owned(),
        (Service::Full, _) => {
            format!("every backend has as many flows as it may: Baton resets new connections, since {since} ago")
        }
        (Service::Draining, 0 | 1) => {
            format!("clients are served by a draining backend: none has been ready for {since}")
        }
        (Service::Draining, many) => {
            format!("clients are served by {many} draining backends: none has been ready for {since}")
        }
        (Service::NoBackend, _) if since_ms == 0 => "no backend: Baton resets new connections".to_owned(),
        (Service::NoBackend, _) => format!("no backend: Baton resets new connections, since {since} ago"),
    }
}

pub(crate) fn of_service(service: Service) -> Weight {
    match service {
        Service::Ready => Weight::Good,
        Service::Draining => Weight::Notice,
        Service::Full | Service::NoBackend => Weight::Bad,
    }
}

/// The state of an instance in one word, and its severity.
pub(crate) fn instance(instance: &Instance) -> (Weight, &str) {
    condition(&instance.not_live, &instance.not_ready, &instance.phase)
}

/// The same of a peer.
pub(crate) fn peer(peer: &MemberView) -> (Weight, &str) {
    match &peer.summary {
        Some(said) if said.is_present => summary(&said.summary),
        _ => (Weight::of_liveness(peer.liveness), peer.liveness.label()),
    }
}

/// Of an instance that says this of itself, and of its backends.
pub(crate) fn summary(said: &InstanceSummary) -> (Weight, &str) {
    match condition(&said.not_live, &said.not_ready, &said.phase) {
        (Weight::Good, _) if !said.unserved().is_empty() => (Weight::Bad, "no backend"),
        other => other,
    }
}

/// Why it is not as it should be.
pub(crate) fn reasons(said: &InstanceSummary) -> Vec<String> {
    let unserved = said.unserved().into_iter().map(|frontend| format!("no backend of {frontend} serves"));
    said.not_live.iter().chain(&said.not_ready).cloned().chain(unserved).collect()
}

pub(crate) fn condition<'a>(not_live: &[String], not_ready: &[String], phase: &'a str) -> (Weight, &'a str) {
    match (not_live, not_ready, phase) {
        ([_, ..], _, _) => (Weight::Bad, "not live"),
        (_, [], _) => (Weight::Good, "ready"),
        (_, _, "serving") => (Weight::Bad, "not ready"),
        (_, _, phase) => (Weight::Notice, phase),
    }
}

/// The worst service of any frontend, if it is not good, in a few words.
pub(crate) fn shortfall(status: &Status) -> Option<(Weight, String)> {
    let present = status.frontends.iter().filter(|it| !it.removed);
    shortfall_of(&present.map(|it| (it.name.as_str(), it.service.state)).collect::<Vec<_>>())
}

/// The same of the configured frontends' services.
pub(crate) fn shortfall_of(services: &[(&str, Service)]) -> Option<(Weight, String)> {
    let of = |service: Service| {
        let met = services.iter().filter(|(_, state)| *state == service);
        met.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    let what = match (of(Service::NoBackend), of(Service::Full), of(Service::Draining)) {
        (none, ..) if !none.is_empty() => (Weight::Bad, "no backend", none),
        (_, full, _) if !full.is_empty() => (Weight::Bad, "every backend full", full),
        (.., draining) if !draining.is_empty() => (Weight::Notice, "draining backends only", draining),
        _ => return None,
    };
    let (weight, what, names) = what;
    let all = names.len() == services.len();
    Some((weight, if all { what.to_owned() } else { format!("{what} for {}", names.join(", ")) }))
}

/// Two facts: whether this host should have the VIP, and whether clients are served.
pub(crate) fn headline(status: &Status) -> (Weight, String) {
    let shortfall = shortfall(status);
    match (instance(&status.instance), barred(status)) {
        ((Weight::Good, _), Some(why)) => {
            let unserved = shortfall.map_or_else(String::new, |(_, what)| format!(", {what}"));
            (Weight::Bad, format!("{BARRED}: {why}{unserved}"))
        }
        (instance, _) => headline_of(instance, shortfall),
    }
}

/// Why this host cannot have the VIP, though the instance is ready.
pub(crate) fn barred(status: &Status) -> Option<&str> {
    status.vip.as_ref()?.barred.as_deref()
}

pub(crate) fn headline_of(instance: (Weight, &str), shortfall: Option<(Weight, String)>) -> (Weight, String) {
    match (instance, shortfall) {
        ((Weight::Good, _), Some((weight, what))) => (weight, format!("ready for the VIP, {what}")),
        ((weight, word), _) => (weight, word.to_owned()),
    }
}

/// That nothing is recorded at present, if it should be.
pub(crate) fn recorder_fault(status: &Status) -> Option<String> {
    status.recorder.fault.as_ref().map(|why| format!("The recorder keeps nothing: {why}"))
}

/// The silent nodes in a few words that stay the same while they are silent, and in a sentence. `None`: there are none.
pub(crate) fn silence(nodes: &NodesStatus) -> Option<(String, String)> {
    let first = nodes.silent.first()?;
    let refused = first.refused.map_or_else(String::new, |it| format!(": {}", it.in_words(true)));
    let sentence = format!("{} has {} for {}{refused}", first.node, first.why.in_words(), duration_ms(first.for_ms));
    let others: Vec<_> = nodes.silent.iter().skip(1).take(NAMED_MAX).map(|it| it.node.as_str()).collect();
    let more = nodes.silent_total.unwrap_or_default().saturating_sub(1);
    if others.is_empty() || more == 0 {
        return Some((format!("{} is silent", first.node), sentence));
    }
    let unnamed = match more.saturating_sub(others.len() as u64) {
        0 => String::new(),
        unnamed => format!(" and {} more", count(unnamed)),
    };
    let are = if more == 1 { "is" } else { "are" };
    let sentence = format!("{sentence}; {} more {are} silent: {}{unnamed}", plural(more, "node"), list(&others));
    Some((format!("{} are silent", plural(more + 1, "node")), sentence))
}

/// Backends that instances of the fleet see in different states, in a few words that stay the same meanwhile, and in a
/// sentence. `None`: there are none.
pub(crate) fn dispute(fleet: &PeersReport) -> Option<(String, String)> {
    let [first, more @ ..] = &fleet.disagreements[..] else { return None };
    let sentence = disagreement(first);
    if more.is_empty() {
        let about = format!("instances disagree about {}/{}", first.frontend, first.backend);
        return Some((about, format!("instances disagree about {sentence}")));
    }
    let about = format!("instances disagree about {}", plural(fleet.disagreements.len() as u64, "backend"));
    Some((about, format!("instances disagree about {sentence}; and about {} more", count(more.len() as u64))))
}

/// `apiserver/cp-2: ejected at lb-b (no answer within 500 ms), ready at lb-a and lb-c, for 42 s`.
pub(crate) fn disagreement(it: &Disagreement) -> String {
    let of = |health_state: HealthState| {
        let of_it: Vec<_> = it.opinions.iter().filter(|opinion| opinion.health_state == health_state).collect();
        let why = of_it.iter().map(|opinion| &*opinion.why).find(|why| !why.is_empty());
        let why = why.map_or(String::new(), |why| format!(" ({why})"));
        let names: Vec<_> = of_it.iter().map(|opinion| opinion.instance.to_string()).collect();
        let names = match &names[..] {
            [] => return None,
            [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            names => names.concat(),
        };
        Some(format!("{} at {names}{why}", health_state.label()))
    };
    let each: Vec<_> = HealthState::ALL.into_iter().rev().filter_map(of).collect();
    format!("{}/{}: {}, for {}", it.frontend, it.backend, each.join(", "), duration_ms(it.for_ms))
}

/// Whether a node is connected, and where.
pub(crate) fn of_node(node: &NodeRow) -> (Weight, String) {
    if let Some(refusal) = node.refused {
        let why = refusal.reason.label();
        return match node.state {
            NodeRowState::Silent { for_ms, .. } | NodeRowState::Lost { for_ms } => {
                (Weight::Bad, format!("refused for {}: {why}", duration_ms(for_ms)))
            }
            _ => (Weight::Notice, format!("refused: {why}")),
        };
    }
    match node.state {
        NodeRowState::Connected if node.peers.is_empty() => (Weight::Plain, "connected".to_owned()),
        NodeRowState::Connected => (Weight::Plain, format!("at {}", list(&node.peers))),
        NodeRowState::Lost { for_ms } => (Weight::Notice, format!("no connection for {}", duration_ms(for_ms))),
        NodeRowState::Silent { why, for_ms } => {
            (Weight::Bad, format!("{} for {}", why.label().replace('_', " "), duration_ms(for_ms)))
        }
        NodeRowState::Unknown => (Weight::Notice, "unknown".to_owned()),
        NodeRowState::NeverSeen => (Weight::Plain, "never seen".to_owned()),
    }
}

/// Why silent nodes may be missing from a list.
pub(crate) fn sees_not_all(why: &str) -> String {
    format!("no node without a connection counts as silent: {why}")
}

/// The heartbeat budget that a node has left: the next renewal would be too late, or nearly.
pub(crate) fn of_budget(left_ms: u64, lease_renew_ms: u64) -> Weight {
    if left_ms < lease_renew_ms { Weight::Bad } else { Weight::Plain }
}

/// Where something is so: `lb-a`, as the instance is called among its peers, with the host beside it if that has another name.
pub(crate) fn place(instance: Option<&str>, host: &str) -> String {
    match instance {
        Some(name) if name != host => format!("{name} (host {host})"),
        _ => host.to_owned(),
    }
}

/// [`place`] of the instance that tells its status.
pub(crate) fn place_of(status: &Status) -> String {
    place(status.fleet.name.as_ref().map(|name| &*name.0), &status.instance.host)
}

/// The frontends' addresses on this host.
pub(crate) fn vips(vips: &[IpAddr]) -> String {
    match vips {
        [] => "has no VIP".to_owned(),
        vips => format!("has {}", list(vips)),
    }
}

/// The place of the VIP that Baton itself moves.
pub(crate) fn vip(vip: &VipStatus) -> (Weight, String) {
    let addresses = list(&vip.addresses);
    match &vip.holder {
        Some(holder) => (Weight::Plain, format!("VIP {addresses} at {holder}")),
        None => (Weight::Bad, format!("VIP {addresses} at no instance that this one hears: {}", vip.why)),
    }
}

/// `12,345 of 50,000`, or without the cap if there is none.
pub(crate) fn of_cap(flows: u32, cap: Option<u32>) -> String {
    match cap {
        Some(cap) => format!("{} of {}", count(flows.into()), count(cap.into())),
        None => count(flows.into()),
    }
}

/// `10.0.0.100:6443`, `10.0.0.100:6443 (shared port)`, with `between` two addresses.
pub(crate) fn listen(frontend: &FrontendStatus, between: &str) -> String {
    let addresses = frontend.listen.iter().map(|address| match frontend.shared_ports.contains(address) {
        true => format!("{address} (shared port)"),
        false => address.to_string(),
    });
    addresses.collect::<Vec<_>>().join(between)
}

/// `1 flow`, `12,345 of 50,000 flows`.
pub(crate) fn flows_of_cap(flows: u32, cap: Option<u32>) -> String {
    match cap {
        Some(_) => format!("{} flows", of_cap(flows, cap)),
        None => plural(flows.into(), "flow"),
    }
}

/// Why a backend has its state, with its order and its deadline.
pub(crate) fn why(backend: &super::status::BackendStatus) -> String {
    let mut text = backend.why.clone();
    if let Some(ms) = backend.drain_deadline_in_ms {
        text += &format!("; its flows have {} left", duration_ms(ms));
    }
    if backend.share_percent < 100 && backend.health_state == HealthState::Ready {
        text += &format!("; returning slowly, at {} % of its share", backend.share_percent);
        if let Some(ms) = backend.whole_in_ms {
            text += &format!(", whole in {}", duration_ms(ms));
        }
    }
    text
}

/// Nodes in one sentence, besides the first.
const NAMED_MAX: usize = 3;

/// Of an instance that is ready, on a host that is not.
pub(crate) const BARRED: &str = "cannot have the VIP";

#[cfg(test)]
mod tests {
    use super::super::status::SilentNodeStatus;
    use super::*;
    use crate::model::end_reason::EndReason;
    use crate::model::fleet::{InstanceName, Opinion};
    use crate::table::nodes::{NodeRefusal, SilenceKind};

    #[test]
    fn a_disagreement_names_the_instances_of_each_opinion() {
        let opinion = |instance: &str, health_state, why: &str| Opinion {
            instance: InstanceName(instance.into()),
            health_state,
            why: why.to_owned(),
        };
        let opinions = vec![
            opinion("lb-a", HealthState::Ready, ""),
            opinion("lb-b", HealthState::Ejected, "connection refused"),
            opinion("lb-c", HealthState::Ready, ""),
        ];
        let it =
            Disagreement { frontend: "apiserver".to_owned(), backend: "cp-2".to_owned(), for_ms: 42_000, opinions };
        let said = "apiserver/cp-2: ejected at lb-b (connection refused), ready at lb-a and lb-c, for 42 s";
        let report = |disagreements| PeersReport { disagreements, ..PeersReport::default() };
        assert_eq!(dispute(&report(vec![])), None);
        let one = ("instances disagree about apiserver/cp-2".to_owned(), format!("instances disagree about {said}"));
        assert_eq!(dispute(&report(vec![it.clone()])), Some(one));
        let three = dispute(&report(vec![it.clone(), it.clone(), it])).unwrap();
        assert_eq!(three.0, "instances disagree about 3 backends");
        assert_eq!(three.1, format!("instances disagree about {said}; and about 2 more"));
    }

    #[test]
    fn silent_nodes_are_one_sentence_however_many_they_are() {
        let silent = |names: &[&str], silent_total| {
            let node = |(place, name): (usize, &&str)| SilentNodeStatus {
                node: (*name).to_owned(),
                why: if place == 0 { SilenceKind::NoConnection } else { SilenceKind::NoByte },
                for_ms: 38_000 - place as u64,
                refused: None,
            };
            silence(&NodesStatus { silent_total, silent: names.iter().enumerate().map(node).collect() })
        };
        let said = |names: &[&str], total| silent(names, Some(total)).unwrap();
        assert_eq!(silent(&[], None), None);
        assert_eq!(silent(&[], Some(0)), None);
        let one = "worker-17 has had no connection for 38 s";
        assert_eq!(said(&["worker-17"], 1), ("worker-17 is silent".to_owned(), one.to_owned()));
        let refused = Some(NodeRefusal { reason: EndReason::LimitSource, times: 1 });
        let mut status = NodesStatus {
            silent_total: Some(1),
            silent: vec![SilentNodeStatus {
                node: "worker-3".to_owned(),
                why: SilenceKind::NoConnection,
                for_ms: 13_000,
                refused,
            }],
        };
        let by_baton = "Baton refuses it (limit_source: max_connections_per_source), 1 time since";
        let sentence = format!("worker-3 has had no connection for 13 s: {by_baton}");
        assert_eq!(silence(&status).unwrap().1, sentence);
        status.silent[0].refused = None;
        assert_eq!(silence(&status).unwrap().1, "worker-3 has had no connection for 13 s");
        let two = said(&["worker-17", "worker-18"], 2);
        assert_eq!(two, ("2 nodes are silent".to_owned(), format!("{one}; 1 node more is silent: worker-18")));
        let many = said(&["worker-17", "a", "b", "c", "d"], 42);
        assert_eq!(many.1, format!("{one}; 41 nodes more are silent: a, b, c and 38 more"));
    }
}
