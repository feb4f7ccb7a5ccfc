//! The bytes of one direction that go through a flow's sockets although its entries exist already.
//!
//! ```text
//!   the sender's packets ──▶ socket of the sending leg ──▶ held ──▶ socket of the receiving leg ──▶ the receiver
//!                            until every CPU knows the entries       until the receiver has acknowledged all of it
//! ```
//! Keeps the numbers of each socket, and the acknowledgements that it needs so that it does not repeat bytes that have
//! arrived. All positions are sequence numbers, modulo 2^32 (RFC 9293 section 3.4).

#[cfg(test)]
mod tests;

/// Bytes that one packet acknowledges to a socket, far fewer than any window of its own.
const STAND_INS_MAX: u16 = 16 * 1024;

/// The state of a direction when its entries were made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightStart {
    /// The receiver's acknowledgement, without the bytes that the proxy had read.
    pub base: u32,
    /// The position behind the last byte in the sending leg's socket.
    pub position: u32,
    /// Bytes that had been read from the sender, or were in its socket, and that were not sent to the receiver.
    pub between: u32,
    /// Bytes of one segment to the receiver.
    pub segment_max: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlight {
    base: u32,
    written: u32,
    fin: bool,
    position: u32,
    between: u32,
    /// The last acknowledgement of the receiver that the receiving leg's socket got.
    told: u32,
    /// Bytes that went by the entries, but that were reported to the sending leg's socket as received.
    passed_by: u32,
    /// Number of segments sent, and bytes of each.
    segments: u32,
    segment_max: u32,
    /// The position up to which the entry knows the bytes in the sending leg's socket.
    shown: u32,
}

/// The news for an entry about the sending leg's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlippedIn {
    /// The socket has all bytes up to this position.
    Sent(u32),
    /// As `Sent`, with FIN, which counts as one.
    Fin(u32),
}

/// The counters of the entry for the receiver's packets, and of the entry for the sender's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenByEntries {
    /// The receiver's last acknowledgement.
    pub acked: u32,
    /// The same in the numbers of the sending leg.
    pub taken: u32,
    /// The position behind the sender's last byte, in the numbers of its leg.
    pub sent: u32,
}

impl InFlight {
    pub(crate) fn new(start: InFlightStart) -> Self {
        let InFlightStart { base, position, between, segment_max } = start;
        Self { base, position, between, told: base, segment_max, shown: position, ..Self::default() }
    }

    /// The receiving leg's socket has accepted so many bytes.
    pub(crate) fn wrote(&mut self, bytes: u32) {
        self.written = self.written.wrapping_add(bytes);
        self.segments = self.segments.saturating_add(bytes.div_ceil(self.segment_max.max(1)));
    }

    /// The sending leg's socket returned FIN, which was passed on.
    pub(crate) fn finish(&mut self) {
        self.fin = true;
        self.segments = self.segments.saturating_add(1);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.fin
    }

    /// The position that the receiver must acknowledge before the socket may be closed.
    pub(crate) fn end(&self) -> u32 {
        self.base.wrapping_add(self.written).wrapping_add(u32::from(self.fin))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.written == 0 && !self.fin
    }

    /// Whether the sending leg's socket holds only bytes of the flow, and no zeros in their place.
    pub(crate) fn reads_own_bytes(&self) -> bool {
        self.passed_by == 0
    }

    /// The position that the sending leg's socket expects next, while `held` bytes wait to be written.
    pub(crate) fn expected(&self, held: usize) -> u32 {
        let slipped_in = self.written.wrapping_add(held as u32).wrapping_sub(self.between);
        self.position.wrapping_add(slipped_in).wrapping_add(u32::from(self.fin)).wrapping_add(self.passed_by)
    }

    /// The news for the entry, if more bytes have come into the sending leg's socket since the last call: the program
    /// has not seen these, and would take their acknowledgement for a forged one.
    pub(crate) fn show(&mut self, held: usize) -> Option<SlippedIn> {
        let position = self.expected(held);
        let own = position.wrapping_sub(self.passed_by);
        if own == self.shown {
            return None;
        }
        self.shown = own;
        Some(if self.fin { SlippedIn::Fin(position) } else { SlippedIn::Sent(position) })
    }

    /// Whether the receiving leg's socket will soon repeat a segment unless it gets an acknowledgement.
    pub(crate) fn is_urgent(&self) -> bool {
        self.segments > 1 && self.told != self.end()
    }

    /// The receiver has acknowledged up to `acked`. Returns the acknowledgement for the receiving leg's socket, if it
    /// is news: no more than went through that socket.
    pub(crate) fn acknowledge(&mut self, acked: u32) -> Option<u32> {
        let whole = self.end().wrapping_sub(self.told);
        let news = acked.wrapping_sub(self.told);
        let is_news = news.wrapping_sub(1) < 1 << 31 && whole > 0;
        is_news.then(|| {
            self.told = self.told.wrapping_add(news.min(whole));
            self.told
        })
    }

    /// Whether the receiving leg's socket knows that all its bytes have arrived.
    pub(crate) fn is_told(&self) -> bool {
        self.told == self.end()
    }

    /// The last acknowledgement that the receiving leg's socket got.
    pub(crate) fn told(&self) -> u32 {
        self.told
    }

    /// Bytes up to `taken` have passed the sending leg's socket; it gets a part of them as zeros that nobody reads.
    /// Returns how many; `None`: none.
    pub(crate) fn stand_in(&mut self, taken: u32) -> Option<u16> {
        let behind = taken.wrapping_sub(self.expected(0));
        if behind == 0 || behind > 1 << 31 {
            return None;
        }
        let zeros = behind.min(STAND_INS_MAX.into()) as u16;
        self.passed_by = self.passed_by.wrapping_add(zeros.into());
        Some(zeros)
    }

    /// Whether the receiver has all bytes. An end that acknowledges more than was sent is not the receiver.
    pub(crate) fn has_arrived(&self, seen: SeenByEntries) -> bool {
        let beyond = seen.taken.wrapping_sub(seen.sent);
        let acked = seen.acked.wrapping_sub(self.end()) < 1 << 31;
        self.is_empty() || (acked && (beyond == 0 || beyond > 1 << 31))
    }
}
