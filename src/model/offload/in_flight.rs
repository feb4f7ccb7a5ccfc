//! Bytes of one direction that go through a flow's sockets while its entries are there already.
//!
//! ```text
//!   the sender's packets ──▶ socket of the sending leg ──▶ held ──▶ socket of the receiving leg ──▶ the receiver
//!                            until every CPU knows the entries       until the receiver has acknowledged all of it
//! ```
//! What each socket counts, and what it must be told so that it does not send again what has arrived. All positions are sequence numbers,
//! modulo 2^32 (RFC 9293 section 3.4).

#[cfg(test)]
mod tests;

/// Bytes that a socket is told of in one packet, far less than any window of its own.
const STAND_INS_MAX: u16 = 16 * 1024;

/// Where a direction stood when its entries were made.
#[derive(Clone, Copy, Debug)]
pub struct InFlightStart {
    /// What the receiver had acknowledged if all that the proxy had read is left out.
    pub base: u32,
    /// Behind the last byte that the sending leg's socket had.
    pub position: u32,
    /// Bytes that had been read from the sender, or lay in its socket, and that the receiver had not been sent.
    pub between: u32,
    /// Bytes of one segment to the receiver.
    pub segment_max: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct InFlight {
    base: u32,
    written: u32,
    fin: bool,
    position: u32,
    between: u32,
    /// The receiver's last acknowledgement that the receiving leg's socket was told of.
    told: u32,
    /// Bytes that the sending leg's socket was told have come, though they went by the entries.
    passed_by: u32,
    /// Segments that were sent, and bytes of one.
    segments: u32,
    segment_max: u32,
    /// Up to where the entry was told of what came into the sending leg's socket.
    shown: u32,
}

/// What an entry is to be told of the sending leg's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlippedIn {
    /// It has all up to here.
    Sent(u32),
    /// FIN too, which is counted.
    Fin(u32),
}

/// What the entry of the receiver's packets, and that of the sender's, have seen.
#[derive(Clone, Copy, Debug)]
pub struct SeenByEntries {
    /// The receiver's last acknowledgement.
    pub acked: u32,
    /// The same in the numbers of the sending leg.
    pub taken: u32,
    /// Behind the last byte of the sender's, in the numbers of its leg.
    pub sent: u32,
}

impl InFlight {
    pub fn new(start: InFlightStart) -> Self {
        let InFlightStart { base, position, between, segment_max } = start;
        Self { base, position, between, told: base, segment_max, shown: position, ..Self::default() }
    }

    /// The receiving leg's socket has taken so many.
    pub fn wrote(&mut self, bytes: u32) {
        self.written = self.written.wrapping_add(bytes);
        self.segments = self.segments.saturating_add(bytes.div_ceil(self.segment_max.max(1)));
    }

    /// FIN came out of the sending leg's socket, and was passed on.
    pub fn finish(&mut self) {
        self.fin = true;
        self.segments = self.segments.saturating_add(1);
    }

    pub fn is_finished(&self) -> bool {
        self.fin
    }

    /// What the receiver must acknowledge before the socket may go.
    pub fn end(&self) -> u32 {
        self.base.wrapping_add(self.written).wrapping_add(u32::from(self.fin))
    }

    pub fn is_empty(&self) -> bool {
        self.written == 0 && !self.fin
    }

    /// Whether what is read from the sending leg's socket are the flow's own bytes, and none that only stand for them.
    pub fn reads_own_bytes(&self) -> bool {
        self.passed_by == 0
    }

    /// What the sending leg's socket expects next, while `held` bytes of it wait to be written.
    pub fn expected(&self, held: usize) -> u32 {
        let slipped_in = self.written.wrapping_add(held as u32).wrapping_sub(self.between);
        self.position.wrapping_add(slipped_in).wrapping_add(u32::from(self.fin)).wrapping_add(self.passed_by)
    }

    /// What the entry is to be told, if more has come into the sending leg's socket since the last time: the program has not seen that,
    /// and would take its acknowledgement for a forged one.
    pub fn show(&mut self, held: usize) -> Option<SlippedIn> {
        let position = self.expected(held);
        let own = position.wrapping_sub(self.passed_by);
        if own == self.shown {
            return None;
        }
        self.shown = own;
        Some(if self.fin { SlippedIn::Fin(position) } else { SlippedIn::Sent(position) })
    }

    /// Whether the receiving leg's socket will soon send something again unless it is told that it has arrived.
    pub fn is_hasty(&self) -> bool {
        self.segments > 1 && self.told != self.end()
    }

    /// The receiver has acknowledged so far. Returns what the receiving leg's socket is to be told of that, if it is news to it: no more
    /// than what went through it.
    pub fn acknowledge(&mut self, acked: u32) -> Option<u32> {
        let whole = self.end().wrapping_sub(self.told);
        let news = acked.wrapping_sub(self.told);
        let is_news = news.wrapping_sub(1) < 1 << 31 && whole > 0;
        is_news.then(|| {
            self.told = self.told.wrapping_add(news.min(whole));
            self.told
        })
    }

    /// Whether the receiving leg's socket knows that all of it has arrived.
    pub fn is_told(&self) -> bool {
        self.told == self.end()
    }

    /// What the receiving leg's socket was last told.
    pub fn told(&self) -> u32 {
        self.told
    }

    /// So many bytes, of which `taken` says how far they go, have passed the sending leg's socket by; it is told of the next
    /// of them, as zeros that nobody reads. `None`: of none.
    pub fn stand_in(&mut self, taken: u32) -> Option<u16> {
        let behind = taken.wrapping_sub(self.expected(0));
        if behind == 0 || behind > 1 << 31 {
            return None;
        }
        let zeros = behind.min(STAND_INS_MAX.into()) as u16;
        self.passed_by = self.passed_by.wrapping_add(zeros.into());
        Some(zeros)
    }

    /// Whether the receiver has all of it. Who acknowledges more than was sent is not the receiver.
    pub fn has_arrived(&self, seen: SeenByEntries) -> bool {
        let beyond = seen.taken.wrapping_sub(seen.sent);
        let acked = seen.acked.wrapping_sub(self.end()) < 1 << 31;
        self.is_empty() || (acked && (beyond == 0 || beyond > 1 << 31))
    }
}
