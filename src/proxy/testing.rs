//! A worker's surroundings without a worker, for the tests of its parts.

use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::SegQueue;

use super::accept::admission::FrontendHold;
use super::accept::sources::Sources;
use super::context::WorkerContext;
use super::context::slab::FlowSlab;
use super::flow::{Arrival, Flow, Phase};
use super::parts::ProxyParts;
use super::plane::{FrontendPlane, Plane};
use super::shared::Shared;
use super::token::FlowRef;
use crate::addr::{ClientAddr, VipAddr};
use crate::config::Frontend;
use crate::ports::AllPorts;
use crate::table::Table;
use crate::table::flows::FlowOrigin;

/// The parts of a new instance with one worker.
fn parts() -> ProxyParts {
    let (table, ports) = (Table::new(1), AllPorts::new(1).unwrap());
    ProxyParts {
        flows: table.part(),
        registry: table.part(),
        workers: table.part(),
        journal: table.part(),
        census: table.part(),
        orders: ports.part(),
        offload: ports.part(),
        fleet: ports.part(),
        late_resets: ports.part(),
        ended: ports.part(),
    }
}

/// The context of a configuration with one frontend.
pub(super) fn context(idle_timeout: Option<Duration>) -> WorkerContext {
    let table = parts();
    let gone = FrontendPlane::gone(table.registry.frontend(&"apiserver".into()));
    let settings = Arc::new(Frontend { idle_timeout, ..(*gone.settings).clone() });
    let frontends = vec![Arc::new(FrontendPlane { settings, ..gone })];
    let plane = Plane { frontends, version: 1, max_connections: None, max_proxied: 100, leave: None };
    let shared = Shared { sources: Sources::default(), inboxes: [SegQueue::new()].into() };
    WorkerContext::new(0, table, Arc::new(shared), Arc::new(plane)).unwrap()
}

/// A flow that was accepted now and waits for its PROXY header.
pub(super) fn enter(cx: &mut WorkerContext, flows: &mut FlowSlab) -> FlowRef {
    let frontend = cx.plane().frontends[0].clone();
    let client_addr = ClientAddr::new((Ipv4Addr::LOCALHOST, 40_000).into());
    let vip = VipAddr::new((Ipv4Addr::LOCALHOST, 6443).into());
    let now_ns = cx.now_ns();
    let origin = FlowOrigin { accepted_at_ns: now_ns, client: client_addr, vip, frontend: frontend.entry.id };
    let (id, at) = flows.enter(cx, &origin).unwrap();
    // Any descriptor will do: these tests look at no socket.
    let phase = Phase::Header(File::open("/dev/null").unwrap().into());
    let frontend_hold = FrontendHold::count_again(&frontend);
    flows.put(Flow::new(Arrival {
        id,
        at,
        phase,
        client_addr,
        vip,
        now_ns,
        frontend,
        frontend_hold,
        source_hold: None,
    }));
    at
}
