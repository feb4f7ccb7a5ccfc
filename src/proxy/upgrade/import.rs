//! Flows that come from another process.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::message::{Arriving, ImportError};
use crate::model::connect::ClientSeen;
use crate::model::offload::Eligibility;
use crate::proxy::accept::admission::{FrontendHold, count_source};
use crate::proxy::accept::asked_for;
use crate::proxy::context::WorkerContext;
use crate::proxy::context::slab::FlowSlab;
use crate::proxy::flow::{Arrival, BackendHold, Connecting, Flow, Phase, Relaying, Side};
use crate::proxy::plane::FrontendPlane;
use crate::proxy::relay::Direction;
use crate::proxy::resume::watch_again;
use crate::proxy::tell::tell_established;
use crate::proxy::token::FlowRef;
use crate::sys::liveness::forget_user_timeout;
use crate::sys::socket;
use crate::table::backend::BackendEntry;
use crate::table::flow_transfer::{FirstFin, FlowTransfer, Relayed, Stage};
use crate::table::flows::{Field, FlowOrigin, FlowPlace, FlowState};

/// Frontends of imported flows that the configuration no longer has.
#[derive(Debug, Default)]
pub(in crate::proxy) struct GoneFrontends(Vec<Arc<FrontendPlane>>);

impl GoneFrontends {
    /// A new configuration applies: look for frontends in that first.
    pub(in crate::proxy) fn clear(&mut self) {
        self.0.clear();
    }

    /// Also finds a frontend that the configuration no longer has, while flows of it still end.
    fn find(&mut self, cx: &WorkerContext, name: &str) -> Option<Arc<FrontendPlane>> {
        let called = |frontend: &&Arc<FrontendPlane>| &*frontend.entry.name == name;
        let known = cx.plane().frontends.iter().chain(&self.0).find(called).cloned();
        known.or_else(|| {
            let entry = cx.table.registry.frontends().into_iter().find(|entry| &*entry.name == name)?;
            let gone = Arc::new(FrontendPlane::gone(entry));
            self.0.push(gone.clone());
            Some(gone)
        })
    }
}

/// Gives a flow its place and serves it from here on. On an error the flow is unchanged, and its sockets are closed
/// here.
pub(in crate::proxy) fn import(
    cx: &mut WorkerContext,
    flows: &mut FlowSlab,
    gone: &mut GoneFrontends,
    arriving: Arriving,
) -> Result<FlowRef, ImportError> {
    let Arriving { transfer, sockets } = arriving;
    let (expected, got) = (transfer.sockets(), sockets.len());
    let wrong = ImportError::Sockets { got, expected };
    let FlowTransfer { id, frontend, client: client_addr, vip, accepted_at_ns, stage } = transfer;
    let frontend = gone.find(cx, &frontend).ok_or(ImportError::UnknownFrontend(frontend))?;
    // A process of an earlier release has set it.
    sockets.iter().for_each(forget_user_timeout);
    let mut sockets = sockets.into_iter();
    let (Some(client), backend, None) = (sockets.next(), sockets.next(), sockets.next()) else { return Err(wrong) };
    // A process of an earlier release did not ask the kernel.
    let vip = asked_for(vip, &client);
    let origin = FlowOrigin { accepted_at_ns, client: client_addr, vip, frontend: frontend.entry.id };
    let (phase, words) = match (stage, backend) {
        (Stage::Header, None) => {
            (Phase::Header(client), vec![(Field::Place, FlowPlace::new(FlowState::Accepted, None).pack())])
        }
        (Stage::Connecting, None) => {
            (Phase::Connecting(Connecting::new(client, cx.now_ns(), ClientSeen::default())), Vec::new())
        }
        (Stage::Relaying(relayed), Some(socket)) => {
            let place = backend_at(cx, &frontend, &relayed).ok_or_else(|| {
                let frontend = frontend.entry.name.to_string();
                ImportError::UnknownBackend { frontend, backend: relayed.backend.clone() }
            })?;
            let words = words_of(&relayed, &place.0);
            (Phase::Relaying(relaying(*relayed, client, socket, place)), words)
        }
        _ => return Err(wrong),
    };
    let at = flows.enter_known(cx, id, &origin).ok_or(ImportError::TableFull)?;
    let key = at.key();
    words.into_iter().for_each(|(field, word)| cx.slot(key).set(field as usize, word));
    let frontend_hold = FrontendHold::count_in(&frontend);
    let source_hold = match phase {
        Phase::Header(_) => None,
        _ => count_source(&frontend, &cx.shared.sources, client_addr, cx.now_ns()),
    };
    let now_ns = accepted_at_ns;
    let arrival = Arrival { id, at, phase, client_addr, vip, now_ns, frontend, frontend_hold, source_hold };
    let mut flow = Flow::new(arrival);
    flow.shared = true;
    // A closed socket has no address.
    if let Some(Ok(own)) = flow.client().map(socket::local_addr)
        && own.port() != 0
    {
        flow.own_port = own.port();
    }
    if let Err(error) = watch_again(cx, &flow) {
        // The other process's descriptor would keep the registration alive.
        let _ = flow.client().map(|client| cx.epoll.forget(client));
        flows.vacate(cx, key);
        return Err(ImportError::Watch(error));
    }
    tell_established(cx, &flow);
    flows.put(flow);
    Ok(at)
}

/// Also finds a backend that the configuration no longer has, while flows of it still end, or that has another address
/// by now.
fn backend_at(cx: &WorkerContext, frontend: &FrontendPlane, relayed: &Relayed) -> Option<BackendHold> {
    let registry = &cx.table.registry;
    let called = |it: &Arc<BackendEntry>| it.frontend.id == frontend.entry.id && *it.name == *relayed.backend;
    let known = registry.backends().into_iter().find(called)?;
    let (name, address) = (&known.name, relayed.backend_addr);
    Some(BackendHold::new(registry.hold_at(&frontend.entry, name, known.hash_key, address)))
}

fn relaying(relayed: Relayed, client: OwnedFd, backend: OwnedFd, place: BackendHold) -> Relaying {
    Relaying {
        client,
        backend,
        backend_addr: relayed.backend_addr,
        place,
        source_port: 0,
        attempt: 0,
        up: Direction::unpack(relayed.up),
        down: Direction::unpack(relayed.down),
        first_fin: relayed.first_fin.map(|side| match side {
            FirstFin::Client => Side::Client,
            FirstFin::Backend => Side::Backend,
        }),
        closing: None,
        unanswered_since_ns: relayed.unanswered_since_ns,
        watched: false,
        delivering: false,
        waits_for_turn: false,
        eligibility: Eligibility::default(),
    }
}

fn words_of(relayed: &Relayed, entry: &BackendEntry) -> Vec<(Field, u64)> {
    vec![
        (Field::Place, FlowPlace::new(FlowState::Proxied, Some(entry.id)).pack()),
        (Field::BytesToBackend, relayed.bytes_to_backend),
        (Field::BytesToClient, relayed.bytes_to_client),
        (Field::LastToBackendNs, relayed.last_to_backend_ns),
        (Field::LastToClientNs, relayed.last_to_client_ns),
        (Field::ConnectUs, relayed.connect_us),
    ]
}
