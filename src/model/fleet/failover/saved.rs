//! Other instances' flows, as one process leaves them to the next in an upgrade. The new process resets or inherits them when their
//! owner dies, also if it was never linked with that one.

use super::flows::KnownState;
use super::members::Members;
use super::peer::PeerState;
use super::{Earlier, Failover};
use crate::addr::ClientAddr;
use crate::model::fleet::{
    FlowRecord, InstanceName, Keeping, KnownPeers, SavedFlowState, SavedPeerFlow, SavedTraits, StandbyRequest,
};

/// All that `failover` knows of the other instances and of their flows.
pub(crate) fn save(failover: &Failover) -> KnownPeers {
    let ports = failover.members.told_ports();
    let peers = failover.members.peers().map(|(name, peer)| {
        let ports = if peer.has_told_ports() { ports.to_vec() } else { Vec::new() };
        (name.clone(), SavedTraits { kept: peer.kept().to_vec(), shared: peer.shared().collect(), ports })
    });
    KnownPeers { peers: peers.collect(), flows: failover.flows.save(&failover.members) }
}

/// What the process before this one knew is about to come. Until then this instance does not decide on what that process left in the map.
pub(crate) fn expect_restore(failover: &mut Failover) {
    failover.earlier = Earlier::Restoring { is_ready: false };
}

/// All of it has come.
pub(super) fn restored(failover: &mut Failover) {
    if let Earlier::Restoring { is_ready } = failover.earlier {
        failover.earlier = if is_ready { Earlier::Ready } else { Earlier::Awaited };
    }
    failover.see_members();
    failover.settle();
}

pub(super) fn restore_peer(failover: &mut Failover, owner: &InstanceName, known: SavedTraits) {
    for ports in known.ports {
        failover.members.tell_ports(owner, ports, &mut failover.agenda);
    }
    if let Some(peer) = failover.members.peer_mut(owner) {
        peer.keep(&known.kept);
        peer.restore_shared(known.shared);
    }
}

pub(super) fn restore_flows(failover: &mut Failover, now_ns: u64, owner: &InstanceName, flows: Vec<SavedPeerFlow>) {
    let (mut held, mut refused) = (Vec::new(), Vec::new());
    for flow in flows {
        if flow.state == SavedFlowState::Proxied {
            failover.flow(now_ns, owner.clone(), as_record(&flow));
            continue;
        }
        let Failover { flows, members, claims, agenda, .. } = &mut *failover;
        let (id, ends) = (flow.fleet_id(), flow.ends);
        match flow.state {
            SavedFlowState::Refused => refused.push((id, ends)),
            // This process may have other frontends.
            _ if members.strangeness(owner, &ends).is_some() => {
                members.peer_mut(owner).into_iter().for_each(PeerState::lacks_one_of_before);
            }
            _ if members.is_lost(&ends, true) => flows.refuse(owner.clone(), id, ends, agenda),
            SavedFlowState::NoRoom => {
                flows.hold_for(owner, id, ends, flow.client);
                drop(flows.crowd(id));
            }
            _ => {
                match flow.told {
                    true => flows.hold_for(owner, id, ends, flow.client),
                    false => claims.promised_to(now_ns, (owner, id, ends), flows, agenda),
                }
                held.push(id);
            }
        }
    }
    if !held.is_empty() {
        failover.agenda.carry(StandbyRequest::Confirm(held));
    }
    let (here, away): (Vec<_>, Vec<_>) =
        refused.into_iter().partition(|(_, ends)| failover.members.is_here(ends.vip.ip()));
    failover.tell_of_end(owner, here);
    failover.untold.wait(now_ns, owner, away, &mut failover.agenda);
}

/// Its owner has, or had, the sockets; no more is known, nor needed.
fn as_record(flow: &SavedPeerFlow) -> FlowRecord {
    let SavedPeerFlow { id, ends, client, accepted_unix_ms, .. } = *flow;
    let client = ClientAddr::new((client, ends.client.port()).into());
    FlowRecord { id, ends, client, backend_key: 0, accepted_unix_ms, connect_us: 0, keeping: Keeping::Sockets }
}

/// As the next process gets it.
pub(super) fn saved_state(state: KnownState, owner: &InstanceName, members: &Members) -> SavedFlowState {
    match state {
        KnownState::Held => SavedFlowState::Held,
        KnownState::NoRoom => SavedFlowState::NoRoom,
        KnownState::Forwarded | KnownState::Noted => SavedFlowState::Proxied,
        // The next process takes the owner for dead as well, and refuses them anew.
        KnownState::Refused if members.is_dead(owner) => SavedFlowState::Proxied,
        KnownState::Refused => SavedFlowState::Refused,
    }
}
