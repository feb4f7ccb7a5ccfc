//! A flow is offloaded by hand, step by step, without Baton: the test sees the program's own effects.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ::baton::addr::{BackendAddr, ClientAddr, LocalAddr, VipAddr};
use ::baton::model::ids::FlowId;
use ::baton::model::splice::{self, FlowDirection, Held, Terms};
use ::baton::offload::entry::{Egress, Ends, Entry, Identity, Splice, Start};
use ::baton::offload::probe::EntryChange;
use ::baton::offload::program::{LegAddresses, Program};
use ::baton::sys::silence;

use crate::lab::*;

/// Both sockets of a proxied flow, without a proxy yet.
#[derive(Debug)]
pub struct Proxied {
    pub client_leg: TcpStream,
    pub backend_leg: TcpStream,
}

impl Proxied {
    /// A client's connection to the load balancer, and one from there to `backend`.
    pub fn new(lab: &Lab, backend: SocketAddr) -> (Self, Conn) {
        let ip: IpAddr = if backend.is_ipv6() { lab.lb.v6.into() } else { lab.lb.v4.into() };
        let listener = lab.lb.enter(|| TcpListener::bind((ip, 0)).unwrap());
        let client = lab.client.connect(listener.local_addr().unwrap());
        let client_leg = listener.accept().unwrap().0;
        let backend_leg = lab.lb.enter(|| TcpStream::connect(backend).unwrap());
        for leg in [&client_leg, &backend_leg] {
            leg.set_nodelay(true).unwrap();
        }
        (Self { client_leg, backend_leg }, client)
    }

    /// As [`Proxied::new`], and ten bytes went there and back.
    pub fn after_an_exchange(lab: &Lab, backend: SocketAddr) -> (Self, Conn) {
        let (proxied, mut client) = Self::new(lab, backend);
        client.send(1, 10).unwrap();
        proxied.relay(10);
        client.read_tally(10).unwrap();
        (proxied, client)
    }

    pub fn ends(&self) -> Ends {
        Ends {
            client: ClientAddr::new(self.client_leg.peer_addr().unwrap()),
            vip: VipAddr::new(self.client_leg.local_addr().unwrap()),
            local: LocalAddr::new(self.backend_leg.local_addr().unwrap()),
            backend: BackendAddr::new(self.backend_leg.peer_addr().unwrap()),
        }
    }

    /// Relays `bytes` from the client and as many back.
    pub fn relay(&self, bytes: usize) {
        let mut buffer = vec![0; bytes];
        for (mut from, mut to) in [(&self.client_leg, &self.backend_leg), (&self.backend_leg, &self.client_leg)] {
            from.read_exact(&mut buffer).unwrap();
            to.write_all(&buffer).unwrap();
        }
    }

    /// The terms of this moment, once everything that was written is acknowledged.
    pub fn terms(&self, lab: &Lab, program: &Program) -> (Terms, [Option<u32>; 2], [u32; 2]) {
        let ends = self.ends();
        let legs = [LegAddresses::client(ends.client, ends.vip), LegAddresses::backend(ends.local, ends.backend)];
        eventually_some(LONG, "a moment to be offloaded", || {
            let states = lab.lb.enter(|| program_on_thread(program, &legs));
            let [client, backend] = [states[0].unwrap(), states[1].unwrap()];
            match splice::terms(&client, &backend, Held::default()) {
                Ok(terms) => Some((terms, [client.interface, backend.interface], [client.rcv_nxt, backend.rcv_nxt])),
                Err(obstacle) if obstacle.passes() => None,
                Err(obstacle) => panic!("{obstacle}"),
            }
        })
        .0
    }

    /// All the steps; only the entries are left.
    pub fn offload(self, lab: &Lab, program: &Program) -> Offloaded {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let ends = self.ends();
        let (terms, interfaces, positions) = self.terms(lab, program);
        let egress = interfaces.map(|index| Egress::Interface(index.expect("a cached route")));
        let id = FlowId(IDS.fetch_add(1, Relaxed));
        program
            .install(&Splice {
                ends,
                terms,
                identity: Identity { id, accepted_at_ns: 1, connect_us: 2, backend_key: 3 },
                up: Start { egress: egress[1], bytes_before: 0, position: positions[0] },
                down: Start { egress: egress[0], bytes_before: 0, position: positions[1] },
                backend_slot: 1,
            })
            .unwrap();
        let mut filled = [0; 2];
        for _ in 0..2 {
            filled[0] += move_on(&self.client_leg, &self.backend_leg);
            filled[1] += move_on(&self.backend_leg, &self.client_leg);
            silence::wait_for_all_cpus().unwrap();
        }
        assert!(filled[0] >= terms.in_flight_to_backend && filled[1] >= terms.in_flight_to_client);
        let offloaded = Offloaded { id, ends };
        let must = [
            (FlowDirection::ToClient, terms.backend_must_ack.wrapping_add(filled[0] - terms.in_flight_to_backend)),
            (FlowDirection::ToBackend, terms.client_must_ack.wrapping_add(filled[1] - terms.in_flight_to_client)),
        ];
        for (direction, position) in must {
            eventually(LONG, "the in_flight is acknowledged", || {
                (offloaded.entry(program, direction).seen.acked as u32).wrapping_sub(position) < 1 << 31
            });
        }
        silence::close_silently(self.client_leg.into()).unwrap();
        silence::close_silently(self.backend_leg.into()).unwrap();
        assert_eq!(program.change(id, &ends.keys(), EntryChange::Commit).unwrap(), 2);
        offloaded
    }
}

/// A flow without sockets.
#[derive(Clone, Copy, Debug)]
pub struct Offloaded {
    pub id: FlowId,
    pub ends: Ends,
}

impl Offloaded {
    #[track_caller]
    pub fn entry(&self, program: &Program, direction: FlowDirection) -> Entry {
        program.entry(&self.ends.key(direction)).unwrap().expect("it is installed")
    }
}

/// Probing happens in the namespace of the thread; the program itself may be used from any.
fn program_on_thread(program: &Program, legs: &[LegAddresses]) -> Vec<Option<splice::LegState>> {
    program.probe(legs).unwrap()
}

/// Moves what waits in one socket to the other; how many bytes that were.
fn move_on(mut from: &TcpStream, mut to: &TcpStream) -> u32 {
    from.set_nonblocking(true).unwrap();
    let (mut buffer, mut moved) = ([0; 65536], 0);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => panic!("an end that was to come later"),
            Ok(read) => {
                to.write_all(&buffer[..read]).unwrap();
                moved += read as u32;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return moved,
            Err(error) => panic!("{error}"),
        }
    }
}
