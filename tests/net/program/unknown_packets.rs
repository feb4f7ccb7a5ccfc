//! Unknown packets: those that the program may ask about, and the fate of the others.

use ::baton::addr::VipAddr;
use ::baton::model::fleet::{Then, Unknown};
use ::baton::offload::entry::Key;
use ::baton::offload::program::Owner;

use super::packets::{Bench, DROP, REDIRECT};
use super::reference::*;
use crate::lab::*;

const ASK: Unknown = Unknown { guard_until_ns: 0, then: Then::Ask { all_told: false } };

/// A segment of the connection with this number, from an address of this network.
fn unknown_packet(vip: VipAddr, network: u32, host: u8, number: u16) -> Packet {
    let [_, a, b, c] = network.to_be_bytes();
    let from = match vip.ip().is_ipv4() {
        true => std::net::IpAddr::from([10 + a, b, c, host]),
        false => {
            std::net::IpAddr::from([0x2001, 0xdb8, u16::from(a), u16::from_be_bytes([b, c]), 0, 0, 0, host.into()])
        }
    };
    Packet::new(Key { from: (from, number).into(), to: vip.socket_addr() })
}

fn vips() -> [VipAddr; 2] {
    ["192.0.2.5:6443", "[2001:db8::5]:6443"].map(|vip| VipAddr::new(vip.parse().unwrap()))
}

/// So many of these are asked of, and all others dropped.
#[track_caller]
fn asked(bench: &Bench, packets: impl Iterator<Item = Packet>) -> usize {
    let mut events = bench.program.events().unwrap();
    events.by_ref().for_each(drop);
    packets.for_each(|packet| assert_eq!(bench.run(&packet.frame()).0, DROP));
    events.count()
}

#[test]
fn a_flood_of_unknown_packets_is_dropped_and_what_comes_again_can_still_be_asked_of() {
    let Some(bench) = Bench::load() else { return };
    for (family, vip) in (0..).zip(vips()) {
        bench.program.set_unknown(vip, Some(ASK)).unwrap();
        let unique = |first: u32, count: u32| {
            (first..first + count).map(move |at| unknown_packet(vip, at + family * 10_000, 1, 7))
        };
        assert_eq!(asked(&bench, unique(0, 2000)), 100, "from as many networks, each once");
        assert_eq!(asked(&bench, unique(5000, 500)), 0, "no more is asked of what comes once");
        let again = asked(&bench, unique(1900, 30));
        assert!(again >= 28, "{again} of 30 that come again");
        bench.program.refill_asks(vip, &ASK).unwrap();
        assert_eq!(asked(&bench, unique(7000, 1000)), 100);
    }
    let counters = bench.program.counters().unwrap();
    assert_eq!(counters.reset, 0);
}

#[test]
fn no_source_of_unknown_packets_gets_the_questions_of_all_others() {
    let Some(bench) = Bench::load() else { return };
    for (family, vip) in (0..).zip(vips()) {
        let fill = || bench.program.set_unknown(vip, Some(ASK)).unwrap();
        let first = family * 10_000;
        // A round may be over in the middle of one try, and then the next one's share counts as well.
        let of_address = (0..10).map(|attempt| {
            fill();
            let asked_of = asked(&bench, (1..=60).map(|port| unknown_packet(vip, first + attempt, 1, port)));
            let others = asked(&bench, (0..30).map(|at| unknown_packet(vip, first + 1000 + attempt * 100 + at, 1, 7)));
            // Two may have one hash.
            assert!(others >= 28, "{others} of 30 after {asked_of} of one address");
            asked_of
        });
        // Another may have the same hash.
        let least = of_address.min();
        assert!(least.is_some_and(|least| (45..=50).contains(&least)), "{least:?}");
        let of_network = (0..10).map(|attempt| {
            let hosts = |first_host: u8| {
                (0..100).map(move |host| unknown_packet(vip, first + 5000 + attempt, first_host + host, 7))
            };
            fill();
            let some = asked(&bench, hosts(1));
            fill();
            some + asked(&bench, hosts(101))
        });
        let least = of_network.min();
        assert!(least.is_some_and(|least| (90..=100).contains(&least)), "{least:?}");
    }
}

#[test]
fn unknown_packets_are_reset_once_nobody_fills_up_the_questions() {
    let Some(bench) = Bench::load() else { return };
    let vip = vips()[0];
    bench.program.set_unknown(vip, Some(ASK)).unwrap();
    let ((), after) = eventually_some(LONG, "it is not waited for user space any more", || {
        // As many as it takes to use up all questions.
        let verdicts = (1..400).map(|at| bench.run(&unknown_packet(vip, at, 1, 7).frame()).0);
        verdicts.collect::<Vec<_>>().contains(&REDIRECT).then_some(())
    });
    assert!(after > secs(1), "{after:?}");
}

/// A live instance would have told of its flow in that time.
#[test]
fn an_unknown_packet_that_has_come_for_seconds_is_reset_unasked_if_all_have_told() {
    let Some(bench) = Bench::load() else { return };
    let [told, untold] = [("192.0.2.5:6443", true), ("192.0.2.6:6443", false)].map(|(vip, all_told)| {
        let vip = VipAddr::new(vip.parse().unwrap());
        let unknown = Unknown { guard_until_ns: 0, then: Then::Ask { all_told } };
        bench.program.set_unknown(vip, Some(unknown)).unwrap();
        (vip, unknown)
    });
    let round = |(vip, unknown): (VipAddr, Unknown)| {
        bench.program.refill_asks(vip, &unknown).unwrap();
        let others = (1000..1200).map(|port| unknown_packet(vip, 1, 1, port));
        others.for_each(|packet| drop(bench.run(&packet.frame())));
        bench.run(&unknown_packet(vip, 1, 1, 7).frame()).0
    };
    let ((), after) = eventually_some(LONG, "it is reset", || {
        assert_eq!(round(untold), DROP);
        (round(told) == REDIRECT).then_some(())
    });
    assert!((ms(2900)..secs(8)).contains(&after), "{after:?}");
}

/// A packet that had one slot to itself, as one of the flood's, was never seen to come again.
#[test]
fn no_flood_that_repeats_itself_hides_how_long_another_packet_has_come() {
    let Some(bench) = Bench::load() else { return };
    let vip = vips()[0];
    let unknown = Unknown { guard_until_ns: 0, then: Then::Ask { all_told: true } };
    bench.program.set_unknown(vip, Some(unknown)).unwrap();
    let watch = Stopwatch::start();
    let mut dead: Vec<u16> = (1..=200).collect();
    // TCP's times since its first packet: after the sixth one all must have been reset.
    for due in [0, 200, 600, 1400, 3000, 6200].map(ms) {
        while watch.elapsed() < due {
            bench.program.refill_asks(vip, &unknown).unwrap();
            (1000..6000).for_each(|port| drop(bench.run(&unknown_packet(vip, 1, 1, port).frame())));
        }
        dead.retain(|number| bench.run(&unknown_packet(vip, 2, 1, *number).frame()).0 == DROP);
    }
    assert!(dead.is_empty(), "{dead:?} were not reset after {:?}", watch.elapsed());
}

#[test]
fn an_unknown_packet_whose_retransmission_was_lost_is_not_forgotten() {
    let Some(bench) = Bench::load() else { return };
    let vip = vips()[0];
    let verdict = |told, port| {
        let unknown = Unknown { guard_until_ns: 0, then: Then::Ask { all_told: told } };
        bench.program.set_unknown(vip, Some(unknown)).unwrap();
        bench.run(&unknown_packet(vip, 1, 1, port).frame()).0
    };
    // As if the packets between were lost. The peers have told only by the last one.
    let watch = Stopwatch::start();
    let mut came = Vec::new();
    for due in [0, 4, 16].map(secs) {
        eventually(LONG, "it is time for the next one", || watch.elapsed() >= due);
        came.push(verdict(due == secs(16), 7));
    }
    assert_eq!(came, [DROP, DROP, REDIRECT]);
    assert_eq!(verdict(true, 8), DROP, "another one");
}

#[test]
fn an_rst_for_a_flow_that_is_refused_goes_on_to_its_owner() {
    let Some(bench) = Bench::load() else { return };
    let owners = [("192.0.2.9", vips()[0]), ("2001:db8::99", vips()[1])];
    for (ip, vip) in owners {
        let mac = [6, 5, 4, 3, 2, 1];
        let owner = Owner { ip: ip.parse().unwrap(), mac: Some(mac), interface: 1 };
        let mut packet = unknown_packet(vip, 1, 1, 7);
        bench.program.refuse(&packet.ends).unwrap();
        packet.flags = RST;
        assert_eq!(bench.run(&packet.frame()).0, DROP, "its owner was never known");
        bench.program.forward(&packet.ends, &owner, false).unwrap();
        for _ in 0..2 {
            bench.program.refuse(&packet.ends).unwrap();
            for flags in [RST, RST | ACK] {
                packet.flags = flags;
                let mut expected = packet.clone();
                expected.hops -= 1;
                assert_eq!(bench.run(&packet.frame()), (REDIRECT, expected.frame()));
            }
            let mut back = packet.frame();
            back[6..12].copy_from_slice(&mac);
            assert_eq!(bench.run(&back).0, DROP, "it comes from there");
        }
        packet.flags = ACK;
        let (verdict, answer) = bench.run(&packet.frame());
        assert_eq!((verdict, answer.len() < packet.frame().len()), (REDIRECT, !packet.payload.is_empty()));
    }
    let counters = bench.program.counters().unwrap();
    assert_eq!((counters.forwarded, counters.reset, counters.drop_rst), (8, 2, 6));
}
