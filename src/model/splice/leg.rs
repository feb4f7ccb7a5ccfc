//! The kernel's state of one leg.

/// One leg's socket, as its kernel structure is at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegState {
    pub state: SocketState,
    pub ipv6: bool,
    /// The oldest byte that was sent and not acknowledged.
    pub snd_una: u32,
    /// The position behind the last byte that was sent.
    pub snd_nxt: u32,
    /// The position behind the last byte that was written to the socket.
    pub write_seq: u32,
    /// The position behind the last byte that arrived in order.
    pub rcv_nxt: u32,
    /// The position behind the last byte that was read from the socket.
    pub copied_seq: u32,
    /// The window that the peer announced last, in bytes.
    pub snd_wnd: u32,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Segments in flight.
    pub in_flight: u32,
    /// Bytes of payload in a segment that this host sends.
    pub mss: u32,
    /// The MSS that the peer announced.
    pub peer_mss: u16,
    /// The MSS that this host announced.
    pub own_mss: u16,
    /// The MTU of the route to the peer, in bytes of the IP packet.
    pub path_mtu: u32,
    /// The shift for windows that the peer announces.
    pub peer_window_scale: u8,
    /// The shift for windows that this host announces.
    pub own_window_scale: u8,
    pub sack: bool,
    pub ecn: Ecn,
    /// `None`: not negotiated.
    pub timestamps: Option<Timestamps>,
    /// Segments wait behind a gap.
    pub out_of_order: bool,
    /// Urgent data is pending.
    pub urgent: bool,
    /// The interface of the cached route to the peer; `None`: no route is cached.
    pub interface: Option<u32>,
    /// The interface on which the peer's segments arrive; `None`: the kernel has not kept it.
    pub receives_by: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// The value that this host would send now.
    pub own: u32,
    /// The peer's last value.
    pub recent: u32,
    /// Ticks of this host's clock.
    pub per_second: u32,
}

/// Explicit congestion notification as negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    Off,
    /// RFC 3168.
    Classic,
    /// AccECN, whose counters belong to one connection.
    Accurate,
}

/// As in include/net/tcp_states.h; only states that matter for an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    Established,
    /// Any other.
    Other(u8),
}

impl LegState {
    /// Bytes that have arrived and were not read.
    pub fn unread(&self) -> u32 {
        self.rcv_nxt.wrapping_sub(self.copied_seq)
    }

    /// The same leg with this number of unread bytes.
    pub(crate) fn with_unread(&self, bytes: u32) -> Self {
        Self { rcv_nxt: self.copied_seq.wrapping_add(bytes), ..*self }
    }

    /// Bytes that were written and are not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.write_seq.wrapping_sub(self.snd_una)
    }

    /// Bytes of an IP and a TCP header without options on this leg.
    pub(crate) fn headers(&self) -> u32 {
        if self.ipv6 { 60 } else { 40 }
    }

    /// Bytes that can be sent at once, by the peer's window and the congestion window.
    pub fn room(&self) -> u32 {
        let window = self.snd_wnd.saturating_sub(self.snd_nxt.wrapping_sub(self.snd_una));
        let congestion = u64::from(self.cwnd.saturating_sub(self.in_flight)) * u64::from(self.mss);
        window.min(congestion.min(u64::from(u32::MAX)) as u32)
    }
}
