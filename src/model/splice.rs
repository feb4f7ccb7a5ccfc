//! The arithmetic of an offloaded flow: how a packet of one leg becomes a packet of the other.
//!
//! A relay never changes a byte, so a byte's position in one leg's stream differs from its position in the other's by a
//! constant, from the moment on in which both legs are at rest. The same holds for acknowledgements, for SACK blocks,
//! and for timestamps, whose clocks both go on.
//!
//! ```text
//!  client's stream   ... copied by the relay | held | unread in the socket | further bytes
//!  backend's stream  ... written to the backend     | <- the bytes in flight goes here |   seq + terms.up.seq
//! ```

mod leg;
mod obstacle;

use serde::{Deserialize, Serialize};

pub use leg::{Ecn, LegState, SocketState, Timestamps};
pub use obstacle::{FlowDirection, Obstacle, Side};

/// The numbers added to the header fields of every packet of one direction, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewrite {
    /// To the sequence number.
    pub seq: u32,
    /// To the acknowledgement number and to both edges of each SACK block.
    pub ack: u32,
    /// To the timestamp value; 0 without timestamps.
    pub tsval: u32,
    /// To the timestamp echo; 0 without timestamps.
    pub tsecr: u32,
    /// The window is shifted left by this many bits, right if negative; it saturates at 65,535.
    pub window_shift: i8,
    /// Only the sender's leg negotiated ECN (RFC 3168), so its marks mean nothing to the receiver.
    pub clear_ecn: bool,
}

/// Both directions of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Client to backend.
    pub up: Rewrite,
    /// Backend to client.
    pub down: Rewrite,
    /// Bytes of the client that its socket has acknowledged, but that the backend was not sent yet.
    pub in_flight_to_backend: u32,
    /// The same, from the backend to the client.
    pub in_flight_to_client: u32,
    /// When the backend acknowledges this position of its leg, the bytes in flight have arrived; in the numbers of its
    /// own packets.
    pub backend_must_ack: u32,
    /// The same for the client.
    pub client_must_ack: u32,
    /// No window of the client, nor of this host in its place, is larger: a power of two of bytes, up to 30.
    pub client_window: u8,
    /// The same for the backend.
    pub backend_window: u8,
}

/// Bytes that were read from one leg and not yet written to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub up: u32,
    pub down: u32,
}

/// Computes the terms of a flow whose legs were probed, or returns the present obstacle.
pub fn terms(client: &LegState, backend: &LegState, held: Held) -> Result<Terms, Obstacle> {
    obstacle::find(client, backend, held)?;
    let seq_up = backend.write_seq.wrapping_sub(client.copied_seq.wrapping_sub(held.up));
    let seq_down = client.write_seq.wrapping_sub(backend.copied_seq.wrapping_sub(held.down));
    let (tsval_up, tsval_down) = match (&client.timestamps, &backend.timestamps) {
        (Some(client), Some(backend)) => (clock_delta(client, backend), clock_delta(backend, client)),
        _ => (0, 0),
    };
    let in_flight_to_backend = client.unread() + held.up;
    let in_flight_to_client = backend.unread() + held.down;
    Ok(Terms {
        up: Rewrite {
            seq: seq_up,
            ack: seq_down.wrapping_neg(),
            tsval: tsval_up,
            tsecr: tsval_down.wrapping_neg(),
            window_shift: window_shift(client, backend),
            clear_ecn: client.ecn != Ecn::Off && backend.ecn == Ecn::Off,
        },
        down: Rewrite {
            seq: seq_down,
            ack: seq_up.wrapping_neg(),
            tsval: tsval_down,
            tsecr: tsval_up.wrapping_neg(),
            window_shift: window_shift(backend, client),
            clear_ecn: backend.ecn != Ecn::Off && client.ecn == Ecn::Off,
        },
        in_flight_to_backend,
        in_flight_to_client,
        backend_must_ack: backend.write_seq.wrapping_add(in_flight_to_backend),
        client_must_ack: client.write_seq.wrapping_add(in_flight_to_client),
        client_window: window_max(client, backend),
        backend_window: window_max(backend, client),
    })
}

/// Whether the bytes in between can still be passed on at once, now that more of the client's and of the backend's
/// bytes may be `unread`.
pub(crate) fn still_fits(client: &LegState, backend: &LegState, held: Held, unread: [u32; 2]) -> Result<(), Obstacle> {
    obstacle::in_flight(FlowDirection::ToBackend, &client.with_unread(unread[0]), held.up, backend)?;
    obstacle::in_flight(FlowDirection::ToClient, &backend.with_unread(unread[1]), held.down, client)
}

/// How far the received timestamps on `from` are behind those that this host sent on `to`.
///
/// Plus [`TIMESTAMP_SLACK_MS`], so that for the receiver (PAWS, RFC 7323 section 5) no forwarded packet is older than
/// those that the socket itself sends until it is closed, with the bytes in flight and the late ones.
fn clock_delta(from: &Timestamps, to: &Timestamps) -> u32 {
    let slack = u64::from(to.per_second) * TIMESTAMP_SLACK_MS / 1000;
    to.own.wrapping_add(slack as u32).wrapping_sub(from.recent)
}

/// From the scale that the sender announced to the scale that this host announced to the receiver.
fn window_shift(sender: &LegState, receiver: &LegState) -> i8 {
    sender.peer_window_scale as i8 - receiver.own_window_scale as i8
}

/// The largest window that `of` gives, or that this host, in its place, has given to the other side.
fn window_max(of: &LegState, other: &LegState) -> u8 {
    (16 + of.peer_window_scale.max(other.own_window_scale)).min(30)
}

/// Longer than the time between the installation of an entry and the closing of its sockets.
const TIMESTAMP_SLACK_MS: u64 = 100;

#[cfg(test)]
mod tests;
