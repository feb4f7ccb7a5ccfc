//! The machine's requests, carried out on sockets of this host.

use std::net::{Ipv4Addr, TcpListener};

use super::*;
use crate::addr::BackendAddr;
use crate::model::balance::Preference;
use crate::model::end_reason::EndReason;
use crate::proxy::context::slab::FlowSlab;
use crate::proxy::plane::{FrontendPlane, Plane};
use crate::proxy::testing::{context, enter};
use crate::sys::epoll::Events;

/// A worker's parts, a flow of it that has no backend, and two backends: the first is tried before the second.
struct Bench {
    cx: WorkerContext,
    connector: Connector,
    acceptor: Acceptor,
    flow: Box<Flow>,
    backends: [Arc<BackendEntry>; 2],
    listeners: Vec<TcpListener>,
}

impl Bench {
    /// `listen`: whether something listens at each backend.
    fn new(listen: [bool; 2]) -> Self {
        let mut cx = context(None);
        let gone = FrontendPlane::gone(cx.plane().frontends[0].entry.clone());
        let mut listeners = Vec::new();
        let named = [("cp1", Preference::Ready, listen[0]), ("cp2", Preference::Draining, listen[1])].map(
            |(name, preference, listens)| {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let address = BackendAddr::new(listener.local_addr().unwrap());
                listeners.extend(Some(listener).filter(|_| listens));
                let entry = cx.table.registry.backend_at(&gone.entry, &name.into(), address);
                entry.configure(1, None);
                entry.set_preference(preference);
                cx.table.registry.named(&gone.entry, &name.into())
            },
        );
        let backends = [0, 1].map(|index| Arc::clone(&named[index].current()));
        let frontends = vec![Arc::new(FrontendPlane { backends: named.to_vec(), ..gone })];
        cx.set_plane(Arc::new(Plane { frontends, version: 2, max_connections: None, max_proxied: 100, leave: None }));
        let mut flows = FlowSlab::default();
        let at = enter(&mut cx, &mut flows);
        let flow = flows.take(at).unwrap();
        let (connector, acceptor) = (Connector::new(&cx), Acceptor::new().unwrap());
        Self { cx, connector, acceptor, flow, backends, listeners }
    }

    fn begin(&mut self) -> FlowVerdict {
        self.connector.begin(&mut self.cx, &mut self.acceptor, &mut self.flow, ClientSeen::default())
    }

    /// Waits for the result of the attempts.
    fn serve(&mut self) -> FlowVerdict {
        let mut events = Events::default();
        loop {
            let count = self.cx.epoll.wait(&mut events, Some(Duration::from_secs(10))).unwrap();
            assert!(count > 0, "no attempt was answered");
            for ready in (0..count).map(|index| events.event(index)) {
                let Token::Backend { attempt, .. } = Token::unpack(ready.token) else { continue };
                let Self { cx, connector, acceptor, flow, .. } = self;
                match connector.attempt_ready(cx, acceptor, flow, attempt, ready) {
                    FlowVerdict::Keep => {}
                    verdict => return verdict,
                }
            }
        }
    }

    fn attempts(&self) -> Vec<u8> {
        match &self.flow.phase {
            Phase::Connecting(connecting) => connecting.attempts.iter().map(|attempt| attempt.number).collect(),
            _ => Vec::new(),
        }
    }

    fn active(&self) -> [u32; 2] {
        [0, 1].map(|index| self.backends[index].load())
    }
}

#[test]
fn a_backend_that_refuses_is_charged_and_the_next_gets_the_flow() {
    let mut bench = Bench::new([false, true]);
    assert!(matches!(bench.begin(), FlowVerdict::Keep));
    assert!(matches!(bench.serve(), FlowVerdict::Serve));
    let refused = |index: usize| bench.backends[index].lanes[0].failures[ConnectFailure::Refused as usize].value();
    assert_eq!(([refused(0), refused(1)], bench.active()), ([1, 0], [0, 1]));
    let Phase::Relaying(relaying) = &bench.flow.phase else { panic!("{:?}", bench.flow.phase) };
    assert_eq!((relaying.attempt, relaying.place.0.id), (1, bench.backends[1].id));
    let (_, seen_from) = bench.listeners[0].accept().unwrap();
    assert_eq!(socket::local_addr(&relaying.backend).unwrap().socket_addr(), seen_from);
    assert_eq!(bench.backends[1].lanes[0].connected.value(), 1);
}

#[test]
fn with_every_backend_refusing_the_flow_ends_with_the_errno_of_the_last() {
    let mut bench = Bench::new([false, false]);
    let verdict = match bench.begin() {
        FlowVerdict::Keep => bench.serve(),
        at_once => at_once,
    };
    assert!(matches!(verdict, FlowVerdict::End(EndReason::ConnectFailed, libc::ECONNREFUSED)), "{verdict:?}");
    assert_eq!((bench.attempts(), bench.active()), (vec![], [0, 0]));
}

#[test]
fn a_backend_that_is_ejected_loses_its_attempt_and_its_place() {
    let mut bench = Bench::new([true, true]);
    bench.begin();
    assert_eq!((bench.attempts(), bench.active()), (vec![0], [1, 0]));
    bench.backends[0].set_preference(Preference::Never);
    let ejected = bench.backends[0].id;
    let Bench { cx, connector, acceptor, flow, .. } = &mut bench;
    let verdict = connector.abandon_attempts(cx, acceptor, flow, ejected);
    assert!(matches!(verdict, FlowVerdict::Keep));
    assert_eq!((bench.attempts(), bench.active()), (vec![1], [0, 1]));
    assert!(matches!(bench.serve(), FlowVerdict::Serve));
}

#[test]
fn a_slow_attempt_gets_another_beside_it_and_one_that_is_late_is_given_up() {
    let mut bench = Bench::new([true, true]);
    bench.begin();
    let settings = bench.flow.frontend.settings.clone();
    let mut deadline = |time| {
        bench.cx.pass(time);
        assert!(bench.cx.timers.pop(bench.cx.now_ns()).is_some(), "no deadline was set");
        let Bench { cx, connector, acceptor, flow, .. } = &mut bench;
        let verdict = connector.deadline_due(cx, acceptor, flow);
        (bench.attempts(), verdict)
    };
    let hedge_after = settings.hedge_after.unwrap();
    assert!(matches!(deadline(hedge_after), (attempts, FlowVerdict::Keep) if attempts == [0, 1]));
    let rest = settings.connect_timeout - hedge_after;
    assert!(matches!(deadline(rest), (attempts, FlowVerdict::Keep) if attempts == [1]));
    assert!(matches!(deadline(hedge_after), (_, FlowVerdict::End(EndReason::ConnectTimedOut, libc::ETIMEDOUT))));
    let lanes = [0, 1].map(|index| &bench.backends[index].lanes[0]);
    assert_eq!(lanes.map(|lane| lane.hedged.value()), [0, 1]);
    assert_eq!(lanes.map(|lane| lane.failures[ConnectFailure::TimedOut as usize].value()), [1, 1]);
    assert_eq!(bench.active(), [0, 0]);
}

#[test]
fn a_client_that_leaves_ends_the_flow() {
    let mut bench = Bench::new([true, true]);
    bench.begin();
    let Phase::Connecting(connecting) = &mut bench.flow.phase else { panic!("it is connecting") };
    connecting.machine.handle_client_left(libc::ECONNRESET);
    let Bench { cx, connector, acceptor, flow, .. } = &mut bench;
    let verdict = connector.carry_out(cx, acceptor, flow, None);
    assert!(matches!(verdict, FlowVerdict::End(EndReason::ClientLeft, libc::ECONNRESET)));
}
