//! Recovers offloaded flows of an earlier process, which the BPF program still carries.

use std::sync::Arc;

use super::accept::admission::{FrontendHold, count_source};
use super::context::WorkerContext;
use super::context::slab::FlowSlab;
use super::flow::{Arrival, BackendHold, Flow, OffloadState, Phase, patience_ns};
use super::plane::{FrontendPlane, Plane};
use super::tell::tell_found;
use crate::model::leg::LegKey;
use crate::model::offload::Eligibility;
use crate::ports::offload::{Found, Request};
use crate::table::flows::{Field, FlowOrigin, FlowPlace, FlowState};
use crate::table::offload::SocketlessHold;

/// Gives the flow a place, and counts it towards the limits, which it may exceed: it exists already.
pub(super) fn recover_found(cx: &mut WorkerContext, flows: &mut FlowSlab, found: Found) {
    let id = found.id;
    let refuse = |why: &str| Request::Refuse { id, why: why.to_owned() };
    let Some((frontend, name)) = known_by_key(cx.plane(), &found) else {
        let unknown = refuse("neither its backend nor its frontend is in the configuration any more");
        return cx.table.offload.ask(unknown);
    };
    let key = found.record.backend_key;
    let backend = BackendHold::new(cx.table.registry.hold_at(&frontend.entry, &name, key, found.backend));
    let Found { record, vip, .. } = found;
    let origin =
        FlowOrigin { accepted_at_ns: record.accepted_at_ns, client: record.client, vip, frontend: frontend.entry.id };
    let Some(at) = flows.enter_known(cx, id, &origin) else {
        return cx.table.offload.ask(refuse("the flow table is full"));
    };
    let slot = cx.slot(at.key());
    let place = FlowPlace { stays_here: found.stays_here, ..FlowPlace::new(FlowState::Offloaded, Some(backend.0.id)) };
    let words = [
        (Field::Place, place.pack()),
        (Field::BytesToBackend, found.bytes_to_backend),
        (Field::BytesToClient, found.bytes_to_client),
        (Field::LastToBackendNs, found.last_to_backend_ns),
        (Field::LastToClientNs, found.last_to_client_ns),
        (Field::ConnectUs, record.connect_us),
        (Field::LocalEnd, LegKey::of(found.local.socket_addr()).0),
    ];
    words.into_iter().for_each(|(field, word)| slot.set(field as usize, word));
    let state = OffloadState {
        backend_addr: found.backend,
        place: backend,
        source_port: 0,
        attempt: 0,
        eligibility: Eligibility::default(),
        ending: None,
    };
    let flow = Flow::new(Arrival {
        id,
        at,
        phase: Phase::Offloaded {
            state,
            stays_here: found.stays_here,
            _hold: SocketlessHold::count_in(cx.table.census.clone(), found.stays_here),
        },
        client_addr: record.client,
        vip,
        now_ns: record.accepted_at_ns,
        frontend_hold: FrontendHold::count_in(&frontend),
        source_hold: count_source(&frontend, &cx.shared.sources, record.client, cx.now_ns()),
        frontend,
    });
    tell_found(cx, &found);
    let (ticket, patience_ns) = (cx.ticket(&flow), patience_ns(&flow));
    flows.put(flow);
    cx.table.offload.ask(Request::Assign { ticket, patience_ns });
}

/// The flow's frontend and backend: by the hash of their names, wherever the backend is by now; else by the address
/// that its client connected to.
fn known_by_key(plane: &Plane, found: &Found) -> Option<(Arc<FrontendPlane>, Arc<str>)> {
    let key = found.record.backend_key;
    let all = plane.frontends.iter();
    let mut pairs = all.flat_map(|frontend| frontend.backends.iter().map(move |named| (frontend, named)));
    let configured = pairs.find(|(_, named)| named.current().hash_key == key);
    let configured = configured.map(|(frontend, named)| (frontend.clone(), named.name.clone()));
    // Its name is not known: entries hold only the name's hash.
    let removed = || Some((plane.serving(found.vip)?.clone(), Arc::from("removed")));
    configured.or_else(removed)
}
