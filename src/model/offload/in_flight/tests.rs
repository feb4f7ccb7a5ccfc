use proptest::prelude::*;

use super::*;

/// Events of one direction while its flow is offloaded.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The sender's segment comes into the socket: one CPU does not see the entries yet.
    SlipsIn(u16),
    /// All bytes in the socket are read, and as many as there is room for are written.
    Drain { room: u16 },
    /// The sender closes, and its FIN comes into the socket.
    Closes,
    /// Every CPU sees the entries.
    BarrierOver,
    /// The sender's segment goes by the entries.
    PassesBy(u16),
    /// The receiver acknowledges this part of what it has, in 255ths.
    Acknowledges(u8),
    /// A forged segment acknowledges bytes that were never sent.
    Claims(u16),
    /// The receiving leg's socket gets the receiver's acknowledgement.
    Tell,
    /// The sending leg's socket gets zeros for bytes that went by the entries.
    StandIn,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1..9000_u16).prop_map(Event::SlipsIn),
        4 => prop_oneof![Just(u16::MAX), 0..4000_u16].prop_map(|room| Event::Drain { room }),
        1 => Just(Event::Closes),
        1 => Just(Event::BarrierOver),
        2 => (1..40_000_u16).prop_map(Event::PassesBy),
        4 => any::<u8>().prop_map(Event::Acknowledges),
        1 => (1..60_000_u16).prop_map(Event::Claims),
        4 => Just(Event::Tell),
        2 => Just(Event::StandIn),
    ]
}

/// The true state of the direction, in bytes since its first one; FIN counts as one.
#[derive(Debug)]
struct Truth {
    flight: InFlight,
    start: InFlightStart,
    /// In the sending leg's socket, unread; and read, not written.
    unread: u64,
    held: u64,
    closed: bool,
    fin_read: bool,
    written: u64,
    barrier_over: bool,
    /// Bytes that went by the entries, and zeros in the sending leg's socket in their place.
    passed_by: u64,
    stood_in: u64,
    /// Of all bytes sent to the receiver: those that it has acknowledged, and those whose acknowledgement was seen.
    acked: u64,
    seen_acked: u64,
    /// The last acknowledgements that the receiving leg's socket, and the entry, got.
    told: u64,
    shown: u64,
}

impl Truth {
    fn new(start: InFlightStart) -> Self {
        // All bytes in between were read before.
        let flight = InFlight::new(start);
        Self {
            flight,
            start,
            unread: 0,
            held: start.between.into(),
            closed: false,
            fin_read: false,
            written: 0,
            barrier_over: false,
            passed_by: 0,
            stood_in: 0,
            acked: 0,
            seen_acked: 0,
            told: 0,
            shown: start.between.into(),
        }
    }

    /// Bytes that the socket has sent to the receiver, with FIN.
    fn through(&self) -> u64 {
        self.written + u64::from(self.fin_read)
    }

    /// Bytes read from the sending leg's socket, with FIN: the others are unread.
    fn read(&self) -> u64 {
        self.written + self.held + u64::from(self.fin_read)
    }

    fn in_receivers_numbers(&self, at: u64) -> u32 {
        self.start.base.wrapping_add(at as u32)
    }

    fn in_senders_numbers(&self, at: u64) -> u32 {
        self.start.position.wrapping_add(at as u32).wrapping_sub(self.start.between)
    }

    fn seen(&self, acked: u64) -> SeenByEntries {
        SeenByEntries {
            acked: self.in_receivers_numbers(acked),
            taken: self.in_senders_numbers(acked),
            sent: self.in_senders_numbers(self.read() + self.unread + self.passed_by),
        }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::SlipsIn(bytes) => {
                if !self.closed && !self.barrier_over && self.passed_by == 0 {
                    self.unread += u64::from(bytes);
                }
            }
            Event::Closes => self.closed |= !self.barrier_over && self.passed_by == 0,
            Event::BarrierOver => {
                // Late bytes are read then.
                self.play(Event::Drain { room: 0 });
                self.barrier_over = true;
            }
            Event::Drain { room } => self.drain(u64::from(room)),
            Event::PassesBy(bytes) => {
                if self.barrier_over && !self.closed {
                    self.passed_by += u64::from(bytes);
                }
            }
            Event::Acknowledges(part) => {
                // Bytes that went by the entries are behind a gap until all bytes of the socket have arrived.
                let sent = self.through() + if self.held == 0 { self.passed_by } else { 0 };
                let more = (sent - self.acked) * u64::from(part) / 255;
                self.acked += more;
                self.seen_acked = self.acked;
            }
            Event::Claims(beyond) => {
                let claimed = self.read() + self.unread + self.passed_by + u64::from(beyond);
                let done = self.acked >= self.through();
                assert!(
                    !self.flight.has_arrived(self.seen(claimed)) || self.flight.is_empty() || done,
                    "believed who acknowledges what was never sent"
                );
            }
            Event::Tell => self.tell(),
            Event::StandIn => self.stand_in(),
        }
    }

    fn drain(&mut self, room: u64) {
        if self.stood_in == 0 {
            self.held += std::mem::take(&mut self.unread);
        }
        let written = self.held.min(room);
        if written > 0 {
            self.flight.wrote(written as u32);
            (self.held, self.written) = (self.held - written, self.written + written);
        }
        if self.held == 0 && self.closed && !self.fin_read {
            self.flight.finish();
            self.fin_read = true;
        }
        let news = self.flight.show(self.held as usize);
        let position = self.read();
        assert_eq!(news.is_some(), position != self.shown, "told what it knows, or not what it does not");
        if let Some(news) = news {
            let at = self.in_senders_numbers(position + self.stood_in);
            assert_eq!(news, if self.fin_read { SlippedIn::Fin(at) } else { SlippedIn::Sent(at) });
            self.shown = position;
        }
    }

    fn tell(&mut self) {
        let acked = self.in_receivers_numbers(self.seen_acked);
        let told = self.flight.acknowledge(acked);
        let most = self.seen_acked.min(self.through());
        assert_eq!(told.is_some(), most > self.told, "{} of {most} were told", self.told);
        if let Some(told) = told {
            assert_eq!(told, self.in_receivers_numbers(most));
            self.told = most;
        }
    }

    fn stand_in(&mut self) {
        // As the engine asks: the socket has no byte of the flow left.
        if self.held > 0 || self.unread > 0 || self.fin_read || self.closed {
            return;
        }
        let taken = self.in_senders_numbers(self.seen_acked);
        let lacks = self.seen_acked.saturating_sub(self.read() + self.stood_in);
        let zeros = self.flight.stand_in(taken);
        assert_eq!(u64::from(zeros.unwrap_or(0)), lacks.min(16 * 1024), "{lacks} are lacking");
        self.stood_in += u64::from(zeros.unwrap_or(0));
        assert_eq!(self.flight.reads_own_bytes(), self.stood_in == 0);
    }

    fn check(&self) {
        let expected = self.in_senders_numbers(self.read() + self.stood_in);
        assert_eq!(self.flight.expected(self.held as usize), expected, "what the sending leg's socket expects");
        assert_eq!(self.flight.end(), self.in_receivers_numbers(self.through()));
        assert_eq!(self.flight.is_empty(), self.through() == 0);
        assert_eq!(self.flight.told(), self.in_receivers_numbers(self.told));
        let arrived = self.seen_acked >= self.through();
        assert_eq!(self.flight.has_arrived(self.seen(self.seen_acked)), arrived, "whether all has arrived");
        assert_eq!(self.flight.is_told(), self.told == self.through());
        assert!(!self.flight.is_urgent() || !self.flight.is_told());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn both_sockets_are_told_what_is_true_and_nothing_else(
        base in prop_oneof![Just(u32::MAX - 3000), any::<u32>()],
        position in prop_oneof![Just(u32::MAX - 3000), any::<u32>()],
        between in 0..20_000_u32,
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let mut truth = Truth::new(InFlightStart { base, position, between, segment_max: 1448 });
        truth.check();
        for event in events {
            truth.play(event);
            truth.check();
        }
        // Without interference it completes: all bytes are written, acknowledged and reported.
        truth.play(Event::BarrierOver);
        for event in [Event::Drain { room: u16::MAX }; 16].into_iter().chain([Event::Acknowledges(255), Event::Tell]) {
            truth.play(event);
            truth.check();
        }
        prop_assert!(truth.held == 0 && truth.flight.is_told() && !truth.flight.is_urgent(), "{truth:?}");
    }
}

#[test]
fn several_segments_are_sent_again_soon_and_one_is_not() {
    let start = InFlightStart { base: 100, position: 7, between: 0, segment_max: 1000 };
    let mut flight = InFlight::new(start);
    flight.wrote(1000);
    assert!(!flight.is_urgent());
    flight.wrote(1);
    assert!(flight.is_urgent());
    assert_eq!(flight.acknowledge(1100), Some(1100));
    assert!(flight.is_urgent() && flight.acknowledge(1100).is_none() && flight.acknowledge(600).is_none());
    assert_eq!(flight.acknowledge(5000), Some(1101));
    assert!(!flight.is_urgent());
}
