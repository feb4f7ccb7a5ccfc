//! Compares the terms with a relay of both streams, byte by byte.

use proptest::prelude::*;

use super::*;

/// A relay: the bytes that each end has sent, that were read of them, and that the other leg was given. In bytes from
/// the start of the stream; on the wire each leg has its own first number.
#[derive(Clone, Copy, Debug)]
struct Stream {
    received: u32,
    read: u32,
    written: u32,
}

#[derive(Clone, Copy, Debug)]
struct Relay {
    up: Stream,
    down: Stream,
    /// First numbers: of the client, of this host towards it, of this host towards the backend, of the backend.
    first: [u32; 4],
    clocks: [Timestamps; 2],
    scales: [u8; 4],
}

fn stream() -> impl Strategy<Value = Stream> {
    (0..1_000_000u32, 0..16_000u32, 0..16_000u32).prop_map(|(written, held, unread)| Stream {
        written,
        read: written + held,
        received: written + held + unread,
    })
}

/// Numbers near the wrap, more often than at random.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0..100_000u32).prop_map(|below| 0u32.wrapping_sub(below)), 0..100_000u32]
}

fn clock() -> impl Strategy<Value = Timestamps> {
    (number(), number(), prop_oneof![Just(1000), Just(1_000_000)]).prop_map(|(own, recent, per_second)| Timestamps {
        own,
        recent,
        per_second,
    })
}

fn relay() -> impl Strategy<Value = Relay> {
    (
        (stream(), stream()),
        [number(), number(), number(), number()],
        [clock(), clock()],
        [0u8..15, 0u8..15, 0u8..15, 0u8..15],
    )
        .prop_map(|((up, down), first, clocks, scales)| Relay { up, down, first, clocks, scales })
}

impl Relay {
    fn leg(&self, received: Stream, sent: Stream, peer_first: u32, own_first: u32, at: usize) -> LegState {
        let write_seq = own_first.wrapping_add(sent.written);
        LegState {
            state: SocketState::Established,
            ipv6: false,
            snd_una: write_seq,
            snd_nxt: write_seq,
            write_seq,
            rcv_nxt: peer_first.wrapping_add(received.received),
            copied_seq: peer_first.wrapping_add(received.read),
            snd_wnd: 1 << 20,
            cwnd: 100,
            in_flight: 0,
            mss: 1448,
            peer_mss: 1460,
            own_mss: 1460,
            path_mtu: 1500,
            peer_window_scale: self.scales[2 * at],
            own_window_scale: self.scales[2 * at + 1],
            sack: true,
            ecn: Ecn::Off,
            timestamps: Some(self.clocks[at]),
            out_of_order: false,
            urgent: false,
            interface: Some(1),
            receives_by: Some(1),
        }
    }

    fn legs(&self) -> (LegState, LegState) {
        let [client, to_client, to_backend, backend] = self.first;
        (self.leg(self.up, self.down, client, to_client, 0), self.leg(self.down, self.up, backend, to_backend, 1))
    }

    fn held(&self) -> Held {
        Held { up: self.up.read - self.up.written, down: self.down.read - self.down.written }
    }

    fn terms(&self) -> Result<Terms, Obstacle> {
        let (client, backend) = self.legs();
        terms(&client, &backend, self.held())
    }
}

proptest! {
    #[test]
    fn every_byte_and_every_acknowledgement_lands_where_a_relay_would_put_it(relay in relay(), further in 0..u32::MAX / 4) {
        let [client, to_client, to_backend, backend] = relay.first;
        let terms = relay.terms().unwrap();
        // A byte at a position of a stream has this position in both legs; so has its acknowledgement in the other
        // direction.
        for (place, rewrite, back, near, far) in [
            (relay.up.written.wrapping_add(further), terms.up, terms.down, client, to_backend),
            (relay.down.written.wrapping_add(further), terms.down, terms.up, backend, to_client),
        ] {
            prop_assert_eq!(near.wrapping_add(place).wrapping_add(rewrite.seq), far.wrapping_add(place));
            prop_assert_eq!(far.wrapping_add(place).wrapping_add(back.ack), near.wrapping_add(place));
        }
    }

    #[test]
    fn the_bytes_in_flight_is_what_the_sender_was_told_and_the_receiver_was_not_given(relay in relay()) {
        let terms = relay.terms().unwrap();
        prop_assert_eq!(terms.in_flight_to_backend, relay.up.received - relay.up.written);
        prop_assert_eq!(terms.in_flight_to_client, relay.down.received - relay.down.written);
        let [_, to_client, to_backend, _] = relay.first;
        prop_assert_eq!(terms.backend_must_ack, to_backend.wrapping_add(relay.up.received));
        prop_assert_eq!(terms.client_must_ack, to_client.wrapping_add(relay.down.received));
    }

    #[test]
    fn no_packet_that_passes_is_older_than_what_the_sockets_send_and_echoes_go_back(relay in relay(), later_ms in 0..100u32) {
        let terms = relay.terms().unwrap();
        let older = |this: u32, that: u32| (this.wrapping_sub(that) as i32) < 0;
        for (from, to, rewrite, back) in [
            (relay.clocks[0], relay.clocks[1], terms.up, terms.down),
            (relay.clocks[1], relay.clocks[0], terms.down, terms.up),
        ] {
            // The timestamp that this host sends on the other leg until its socket is closed, with the newest one
            // received so far.
            let own = to.own.wrapping_add(later_ms * (to.per_second / 1000));
            prop_assert!(!older(from.recent.wrapping_add(rewrite.tsval), own));
            let sent = from.recent.wrapping_add(rewrite.tsval);
            prop_assert_eq!(sent.wrapping_add(back.tsecr), from.recent, "the receiver's echo is the sender's own");
        }
    }

    #[test]
    fn no_window_is_announced_that_the_receiver_did_not(relay in relay(), window in any::<u16>()) {
        let terms = relay.terms().unwrap();
        let (client, backend) = relay.legs();
        for (rewrite, sender, receiver) in [(terms.up, client, backend), (terms.down, backend, client)] {
            let meant = u64::from(window) << sender.peer_window_scale;
            let shift = rewrite.window_shift;
            let field = if shift >= 0 { u64::from(window) << shift } else { u64::from(window) >> -shift };
            let understood = field.min(65_535) << receiver.own_window_scale;
            prop_assert!(understood <= meant, "{understood} for {meant}");
            let unit = 1 << receiver.own_window_scale;
            prop_assert!(understood + unit > meant || field > 65_535, "{understood} for {meant}");
        }
    }
}

/// A relay at rest without any obstacle.
fn at_rest() -> (LegState, LegState) {
    let quiet = Stream { received: 100, read: 100, written: 100 };
    let clocks = [Timestamps { own: 1, recent: 2, per_second: 1000 }; 2];
    Relay { up: quiet, down: quiet, first: [1, 2, 3, 4], clocks, scales: [7; 4] }.legs()
}

#[test]
fn each_obstacle_is_found_and_known_to_pass_or_to_stay() {
    type Spoil = fn(&mut LegState, &mut LegState);
    let cases: [(Spoil, &str, bool); 13] = [
        (|client, _| client.state = SocketState::Other(8), "half_closed", false),
        (|_, backend| backend.ipv6 = true, "families", false),
        (|client, _| client.timestamps = None, "timestamps", false),
        (|_, backend| backend.timestamps = None, "timestamps", false),
        (|client, _| client.sack = false, "sack", false),
        (|_, backend| backend.ecn = Ecn::Accurate, "ecn", false),
        (|_, backend| backend.peer_mss = 1400, "mss", false),
        (|client, _| client.path_mtu = 1400, "mss", false),
        (|_, backend| backend.snd_una = backend.snd_una.wrapping_sub(1), "unacknowledged", true),
        (|client, _| client.out_of_order = true, "out_of_order", true),
        (|_, backend| backend.urgent = true, "urgent", true),
        (|client, _| client.rcv_nxt = client.rcv_nxt.wrapping_add(65_537), "in_between", true),
        (|client, _| (client.own_window_scale, client.rcv_nxt) = (0, client.rcv_nxt + 32_769), "in_between", true),
    ];
    let (client, backend) = at_rest();
    terms(&client, &backend, Held::default()).unwrap();
    for (spoil, label, passes) in cases {
        let (mut client, mut backend) = at_rest();
        spoil(&mut client, &mut backend);
        let obstacle = terms(&client, &backend, Held::default()).unwrap_err();
        assert_eq!((obstacle.label(), obstacle.passes()), (label, passes), "{obstacle}");
    }
}

#[test]
fn what_came_since_a_leg_was_asked_counts_as_in_between() {
    let (mut client, backend) = at_rest();
    let held = Held { up: 1000, down: 0 };
    still_fits(&client, &backend, held, [64_536, 65_536]).unwrap();
    still_fits(&client, &backend, held, [64_537, 0]).unwrap_err();
    still_fits(&client, &backend, held, [0, 65_537]).unwrap_err();
    still_fits(&client, &backend, held, [u32::MAX, 0]).unwrap_err();
    client.own_window_scale = 0;
    still_fits(&client, &backend, held, [31_768, 65_536]).unwrap();
    still_fits(&client, &backend, held, [31_769, 0]).unwrap_err();
}

#[test]
fn ecn_on_one_leg_is_taken_out_of_what_leaves_by_the_other() {
    let (mut client, backend) = at_rest();
    client.ecn = Ecn::Classic;
    let terms = terms(&client, &backend, Held::default()).unwrap();
    assert!(terms.up.clear_ecn && !terms.down.clear_ecn);
}
