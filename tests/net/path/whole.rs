//! Whole connections through the program: client, load balancer and backend on hosts of their own.

use ::baton::model::splice::Direction;
use ::baton::path::events::What;

use super::by_hand::Proxied;
use crate::lab::*;

#[test]
fn a_graduated_flow_carries_every_byte_both_ways_without_a_socket() {
    let Some(lab) = Lab::new("path") else { return };
    let Some((_pinned, program)) = lab.lb.enter(|| Pinned::load("path", &["eth0"])) else { return };
    let mut events = program.events().unwrap();
    for address in [lab.b1.v4(6443), lab.b2.v6(6443)] {
        let host = if address.is_ipv6() { &lab.b2 } else { &lab.b1 };
        let server = host.serve_on(address, Behaviour::Echo);
        let (proxied, mut client) = Proxied::new(&lab, address);
        client.send(1, 5000).unwrap();
        proxied.relay(5000);
        client.read_tally(5000).unwrap();
        // The limbo: sent and acknowledged to the client, and not yet with the backend.
        client.send(2, 10_000).unwrap();
        eventually(LONG, "the limbo is here", || ::baton::sys::silence::unread(&proxied.client_leg).unwrap() == 10_000);
        let flow = proxied.graduate(&lab, &program);
        baseline::no_sockets_left(&lab.lb);
        client.read_tally(10_000).unwrap();
        for (seed, bytes) in [(3, 1), (4, 1448), (5, 1449), (6, 100_000), (7, 40_000_000), (8, 2)] {
            client.echo(seed, bytes);
        }
        let (up, down) = (flow.entry(&program, Direction::Up), flow.entry(&program, Direction::Down));
        let total = 1 + 1448 + 1449 + 100_000 + 40_000_000 + 2;
        assert_eq!(up.bytes(), total, "{up:?}");
        assert_eq!(down.bytes(), 10_000 + total, "{down:?}");
        assert!(up.seen.packets > 100 && up.seen.last_ns > 0 && up.seen.last_data_ns > 0);
        assert!(up.committed && down.committed);
        let evidence = program.evidence(1).unwrap();
        assert!(evidence.answered_ns >= evidence.asked_ns && evidence.answered_ns > 0, "{evidence:?}");

        client.half_close();
        assert_eq!(client.end(LONG), End::Fin);
        let served = server.ended_one(0, LONG);
        assert_eq!((served.end, served.received.bytes), (End::Fin, 15_000 + total));
        let (up, down) = (flow.entry(&program, Direction::Up), flow.entry(&program, Direction::Down));
        assert!(up.seen.fin_ns > 0 && up.seen.fin_ns <= down.seen.fin_ns, "{up:?} {down:?}");
        assert_eq!((up.bytes(), down.bytes()), (total, 10_000 + total), "FIN is no byte");
        let told: Vec<_> = events.by_ref().map(|event| (event.id, event.direction, event.what)).collect();
        assert_eq!(told, [(up.id, Direction::Up, What::Fin), (up.id, Direction::Down, What::Fin)]);
        let removed = program.remove(&flow.ends).unwrap();
        assert_eq!((removed.up.unwrap().bytes(), removed.down.unwrap().bytes()), (total, 10_000 + total));
    }
    let counters = program.counters().unwrap();
    assert!(counters.spliced > 1000, "{counters:?}");
    let dropped = [counters.drop_error, counters.drop_short, counters.drop_ttl, counters.oversized, counters.reset];
    assert_eq!(dropped, [0; 5], "{counters:?}");
}
