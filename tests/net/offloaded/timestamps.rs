//! Flows whose timestamps wrap. What TCP takes for old (PAWS, RFC 7323 section 5) it drops, so that a flow with a wrong clock hangs.

use std::net::{TcpListener, TcpStream};

use super::Scene;
use crate::lab::bytes::Tally;
use crate::lab::*;

/// From the new beginning of a clock to its wrap.
const BEFORE_WRAP_MS: u32 = 20_000;

const STEP_MAX_MS: u32 = 1 << 30;

/// A client and its backend, both in hands of the test.
struct Ends {
    client: TcpStream,
    backend: TcpStream,
}

impl Ends {
    fn open(lab: &Lab, listener: &TcpListener) -> Self {
        let client = lab.client.enter(|| TcpStream::connect(lab.lb.v4(6443))).expect("Baton listens");
        Self { client, backend: listener.accept().expect("a connection").0 }
    }

    /// Bytes there and back.
    #[track_caller]
    fn talk(&self, seed: u64, bytes: u64) {
        let conn = |stream: &TcpStream| Conn::new(stream.try_clone().expect("a second handle"));
        for (from, to) in [(&self.client, &self.backend), (&self.backend, &self.client)] {
            conn(from).send(seed, bytes).expect("it takes them");
            let came = conn(to).read_tally(bytes).unwrap_or_else(|error| panic!("{bytes} bytes of {seed}: {error}"));
            assert_eq!(came, Tally::of_pattern(seed, bytes));
        }
    }

    /// Puts the clocks of both forward, to shortly before their wrap. In steps: one of half their range is a step back for the peer.
    #[track_caller]
    fn near_wrap(&self) {
        for socket in [&self.client, &self.backend] {
            loop {
                let next = timestamps::next(socket).expect("timestamps are on");
                let left = next.wrapping_neg();
                if left <= BEFORE_WRAP_MS {
                    break;
                }
                let step = (left - BEFORE_WRAP_MS).min(STEP_MAX_MS);
                timestamps::count_from(socket, next + step).expect("CAP_NET_ADMIN");
                self.talk(1, 100);
            }
        }
    }

    fn have_wrapped(&self) -> bool {
        [&self.client, &self.backend].iter().all(|socket| timestamps::next(socket).is_ok_and(|next| next < 1 << 31))
    }
}

#[test]
fn timestamps_that_wrap_stop_no_offloaded_flow_and_none_that_was_recovered() {
    let Some(scene) = Scene::new("timestamps") else { return };
    let lab = &scene.lab;
    let _probed = lab.b1.serve_on(lab.b1.v4(7443), Behaviour::Echo);
    let listener = lab.b1.enter(|| TcpListener::bind(lab.b1.v4(6443))).expect("a free port");
    let health = lab.b1.v4(7443).to_string();
    let config = scene.config().only(&["b1"]).of_backend("b1", "health_address", health);
    let mut baton = lab.start(&config);
    let old = |host: &Host| host.counter("netstat", "TcpExt:", "PAWSEstab");
    let before = [&lab.client, &lab.b1, &lab.lb].map(old);

    let [talking, resting] = [(); 2].map(|()| Ends::open(lab, &listener));
    for ends in [&talking, &resting] {
        ends.near_wrap();
        (0..4).for_each(|round| ends.talk(round, 100));
    }
    baton.wait_offloaded(2);
    assert!(!talking.have_wrapped() && !resting.have_wrapped(), "the machine is too slow for this test");
    let mut round = 10;
    while !(talking.have_wrapped() && resting.have_wrapped()) {
        talking.talk(round, 3_000);
        round += 1;
    }
    println!("timestamps: {} exchanges until they had wrapped", round - 10);
    [&talking, &resting].iter().for_each(|ends| ends.talk(2, 100_000));
    baton.process.kill();
    talking.talk(3, 10_000);
    baton = lab.start(&config);
    baton.wait_offloaded(2);
    [&talking, &resting].iter().for_each(|ends| ends.talk(4, 100_000));
    assert_eq!([&lab.client, &lab.b1, &lab.lb].map(old), before, "segments were dropped as old");
    drop((talking, resting));
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
}
