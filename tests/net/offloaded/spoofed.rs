//! Row 39: segments that another host sends in a flow's name. It knows addresses and ports, and neither numbers nor sums.

use std::net::SocketAddr;

use ::baton::offload::entry::{Entry, Key};
use ::baton::sys::bpf::Map;
use ::baton::sys::raw::RawSender;

use super::Scene;
use crate::lab::*;
use crate::program::reference::{ACK, FIN, Packet, RST};

const PSH: u8 = 8;

/// Sends `packets` from `attacker`, with sums that are wrong.
fn forge(attacker: &Host, packets: &[Packet]) {
    attacker.enter(|| {
        let raw = RawSender::open().unwrap();
        for packet in packets {
            let mut frame = packet.frame();
            frame[packet.tcp_at() + 16] ^= 0x55;
            raw.send(&frame[14..], packet.ends.to.ip()).unwrap();
        }
    });
}

fn segment(ends: Key, seq: u32, ack: u32, flags: u8, bytes: usize) -> Packet {
    Packet { seq, ack, flags, payload: vec![7; bytes], ..Packet::new(ends) }
}

/// Keys of both directions of the only flow.
fn keys(scene: &Scene) -> [Key; 2] {
    entries(scene).map(|(key, _)| key)
}

fn entries(scene: &Scene) -> [(Key, Entry); 2] {
    let flows = Map::open(&scene.pinned.directory.join("flows")).unwrap();
    let (mut keys, mut values) = (vec![0; 256 * flows.key_size()], vec![0; 256 * flows.value_size()]);
    let (count, _) = flows.look_up_batch(None, &mut keys, &mut values).unwrap();
    assert_eq!(count, 2, "one flow");
    [0, 1].map(|at| (Key::decode(&keys.as_chunks().0[at]), Entry::decode(&values.as_chunks().0[at])))
}

/// One idle flow to b1.
fn idle(scene: &Scene, address: fn(&Host) -> SocketAddr) -> (Server, Baton, Conn) {
    let lab = &scene.lab;
    let server = lab.b1.serve_on(address(&lab.b1), Behaviour::Echo);
    let baton = lab.start(&scene.config().only(&[]).backend("b1", address(&lab.b1)));
    let mut conn = lab.client.connect(address(&lab.lb));
    (0..4).for_each(|round| conn.echo(round, 100));
    baton.wait_offloaded(1);
    (server, baton, conn)
}

/// Regression: four packets with wrong checksums reset idle clients. The second moved the positions by which the fourth
/// was judged.
#[test]
fn row39_spoofed_segments_reset_no_flow_and_a_real_rst_does() {
    for address in [|host: &Host| host.v4(6443), |host: &Host| host.v6(6443)] {
        let Some(scene) = Scene::new("row39") else { return };
        let (server, baton, mut conn) = idle(&scene, address);
        let keys = keys(&scene);
        for guess in [0u32, 0x1234_5678, 0x9abc_def0, 0xffff_0000] {
            for key in keys {
                let far = guess.wrapping_add(1 << 31);
                forge(
                    &scene.lab.client2,
                    &[
                        segment(key, guess, guess, ACK | PSH, 1),
                        segment(key, guess.wrapping_add(1), guess, ACK | RST, 0),
                        segment(key, far, far, ACK | PSH, 1),
                        segment(key, far.wrapping_add(1), far, ACK | RST, 0),
                    ],
                );
            }
        }
        conn.stays_open(ms(1500));
        conn.echo(9, 5000);
        assert!(baton.ended().is_empty(), "{:?}", baton.ended());
        eventually(LONG, "its bytes are counted, and no others", || {
            let flow = &baton.flows()[0];
            flow["bytes_to_backend"] == 5400 && flow["bytes_to_client"] == 5400
        });
        conn.reset();
        eventually(LONG, "the backend saw RST", || server.ended().iter().any(|served| served.end == End::Rst));
        baton.wait_ended("client_reset", 1);
        baton.rests();
    }
}

/// Regression: two FINs with arbitrary numbers made flows vanish, one for each direction; their clients were not told.
#[test]
fn row39_spoofed_fins_end_no_flow_and_real_ones_do() {
    let Some(scene) = Scene::new("row39") else { return };
    let (_server, baton, mut conn) = idle(&scene, |host| host.v4(6443));
    for guess in [0u32, 0x1234_5678, 0x9abc_def0] {
        let fins = keys(&scene).map(|key| segment(key, guess, guess, ACK | FIN, 0));
        forge(&scene.lab.client2, &fins);
    }
    // Entries of a flow that is over stay for two seconds.
    wait::throughout(secs(3), "the flow lives", || baton.flow_count() == 1 && baton.ended().is_empty());
    conn.echo(9, 5000);
    conn.half_close();
    assert_eq!(conn.end(LONG), End::Fin);
    baton.wait_ended("client_closed", 1);
    drop(conn);
    baton.rests();
}

/// Regression: a bit that flipped on the way made RST of a packet, and both ends of a flow were reset, though every kernel would have
/// dropped that packet for its sum, and its sender would have sent it again.
#[test]
fn row39_an_rst_with_the_right_number_and_a_wrong_sum_resets_no_flow() {
    for address in [|host: &Host| host.v4(6443), |host: &Host| host.v6(6443)] {
        let Some(scene) = Scene::new("row39") else { return };
        let (server, baton, mut conn) = idle(&scene, address);
        for round in 0..3 {
            for (key, entry) in entries(&scene) {
                let (seq, ack) = (entry.seen.sent as u32, entry.seen.acked as u32);
                forge(
                    &scene.lab.client2,
                    &[segment(key, seq, ack, ACK | RST, 0), segment(key, seq, ack, ACK | RST | PSH, 9)],
                );
            }
            wait::throughout(ms(500), "the flow lives", || baton.flow_count() == 1 && baton.ended().is_empty());
            conn.echo(10 + round, 500);
        }
        // With a right sum it is a real one.
        let (key, entry) = entries(&scene).into_iter().find(|(key, _)| key.from == conn.local()).unwrap();
        let rst = segment(key, entry.seen.sent as u32, entry.seen.acked as u32, ACK | RST, 0);
        scene.lab.client2.enter(|| RawSender::open().unwrap().send(&rst.frame()[14..], key.to.ip()).unwrap());
        baton.wait_ended("client_reset", 1);
        eventually(LONG, "the backend saw RST", || server.ended().iter().any(|served| served.end == End::Rst));
        drop(conn);
        baton.rests();
    }
}

/// A backend or client that has died without a word, as a doubtful RST might say, is asked, and its kernel's answer counts.
#[test]
fn row39_an_rst_with_a_number_that_nobody_expects_is_asked_about() {
    let Some(scene) = Scene::new("row39") else { return };
    let (server, baton, conn) = idle(&scene, |host| host.v4(6443));
    let [first, second] = keys(&scene);
    let up = if first.to.port() == 6443 && first.from == conn.local() { first } else { second };
    // Its kernel forgets the connection, and its RST is lost.
    scene.lab.client.drop_packets("output", "tcp flags & rst == rst");
    conn.reset();
    scene.lab.client.nft_clear();
    forge(&scene.lab.client, &[segment(up, 77, 77, ACK | RST, 0)]);
    eventually(LONG, "the backend saw RST", || server.ended().iter().any(|served| served.end == End::Rst));
    baton.wait_ended("client_reset", 1);
    baton.rests();
}
