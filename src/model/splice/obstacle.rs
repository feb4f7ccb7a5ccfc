//! The obstacles to an offload, temporary or permanent.

use std::fmt;

use thiserror::Error;

use super::Held;
use super::leg::{Ecn, LegState, SocketState};

/// A direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowDirection {
    /// Client to backend.
    ToBackend,
    /// Backend to client.
    ToClient,
}

/// A leg of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    Client,
    Backend,
}

/// Why a flow cannot be offloaded, at present ([`Obstacle::passes`]) or ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Obstacle {
    #[error("the {0} leg is not established")]
    NotEstablished(Side),
    #[error("one leg is IPv4 and the other IPv6")]
    Families,
    #[error("{bytes} bytes to the {side} are not acknowledged yet")]
    Unacknowledged { side: Side, bytes: u32 },
    #[error("segments of the {0} came out of order")]
    OutOfOrder(Side),
    #[error("urgent data of the {0} is pending")]
    Urgent(Side),
    #[error("{bytes} bytes {direction} are in between and only {room} can be sent at once")]
    InFlight { direction: FlowDirection, bytes: u32, room: u32 },
    #[error("only the {0} uses timestamps")]
    Timestamps(Side),
    #[error("only the {0} uses SACK")]
    Sack(Side),
    #[error("segments {direction} may be {sent} bytes long and only {taken} are taken")]
    Mss { direction: FlowDirection, sent: u32, taken: u32 },
    #[error("the {0} uses accurate ECN")]
    AccurateEcn(Side),
}

/// Limit for one direction's bytes in flight: the size of a burst through a socket.
pub(super) const IN_FLIGHT_MAX: u32 = 64 * 1024;

/// The same for a sender that was never given a window beyond 64 KiB. It has an acknowledgement for the bytes in
/// flight, but until these have arrived, the other leg's packets acknowledge less. It drops segments that are further
/// behind than the largest window that it was ever given (RFC 5961 section 5.2; net/ipv4/tcp_input.c, tcp_ack). Half of
/// that window, because more bytes may arrive before the entries exist.
pub(super) const IN_FLIGHT_MAX_UNSCALED: u32 = 32 * 1024;

impl Obstacle {
    /// Whether it may be gone at the next try; otherwise the flow stays proxied.
    #[allow(dead_code, reason = "for tests of the program")]
    pub fn passes(&self) -> bool {
        match self {
            Self::Unacknowledged { .. } | Self::OutOfOrder(_) | Self::Urgent(_) | Self::InFlight { .. } => true,
            Self::NotEstablished(_)
            | Self::Families
            | Self::Timestamps(_)
            | Self::Sack(_)
            | Self::Mss { .. }
            | Self::AccurateEcn(_) => false,
        }
    }

    /// One word, for lists and metrics.
    #[allow(dead_code, reason = "for tests of the program")]
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::NotEstablished(_) => "half_closed",
            Self::Families => "families",
            Self::Unacknowledged { .. } => "unacknowledged",
            Self::OutOfOrder(_) => "out_of_order",
            Self::Urgent(_) => "urgent",
            Self::InFlight { .. } => "in_between",
            Self::Timestamps(_) => "timestamps",
            Self::Sack(_) => "sack",
            Self::Mss { .. } => "mss",
            Self::AccurateEcn(_) => "ecn",
        }
    }
}

/// The first obstacle: permanent ones before temporary ones.
pub(super) fn find(client: &LegState, backend: &LegState, held: Held) -> Result<(), Obstacle> {
    let legs = [(Side::Client, client), (Side::Backend, backend)];
    for (side, leg) in legs {
        if leg.state != SocketState::Established {
            return Err(Obstacle::NotEstablished(side));
        }
        if leg.ecn == Ecn::Accurate {
            return Err(Obstacle::AccurateEcn(side));
        }
    }
    if client.ipv6 != backend.ipv6 {
        return Err(Obstacle::Families);
    }
    // A receiver may drop segments that lack a negotiated option (RFC 7323 section 3.2), so timestamps are neither
    // removed nor left out.
    if let Some(side) = only_one(client.timestamps.is_some(), backend.timestamps.is_some()) {
        return Err(Obstacle::Timestamps(side));
    }
    if let Some(side) = only_one(client.sack, backend.sack) {
        return Err(Obstacle::Sack(side));
    }
    fits(FlowDirection::ToBackend, client, backend)?;
    fits(FlowDirection::ToClient, backend, client)?;
    for (side, leg) in legs {
        if leg.unacknowledged() > 0 {
            return Err(Obstacle::Unacknowledged { side, bytes: leg.unacknowledged() });
        }
        if leg.out_of_order {
            return Err(Obstacle::OutOfOrder(side));
        }
        if leg.urgent {
            return Err(Obstacle::Urgent(side));
        }
    }
    in_flight(FlowDirection::ToBackend, client, held.up, backend)?;
    in_flight(FlowDirection::ToClient, backend, held.down, client)
}

fn only_one(client: bool, backend: bool) -> Option<Side> {
    match (client, backend) {
        (true, false) => Some(Side::Client),
        (false, true) => Some(Side::Backend),
        _ => None,
    }
}

/// Whether `to` accepts every segment that `from` may send, and its path carries it.
fn fits(direction: FlowDirection, from: &LegState, to: &LegState) -> Result<(), Obstacle> {
    let payload = to.path_mtu.saturating_sub(to.headers());
    let (sent, taken) = (u32::from(from.own_mss), u32::from(to.peer_mss).min(payload));
    if sent > taken { Err(Obstacle::Mss { direction, sent, taken }) } else { Ok(()) }
}

/// Whether the bytes in between can be passed on at once.
pub(super) fn in_flight(direction: FlowDirection, from: &LegState, held: u32, to: &LegState) -> Result<(), Obstacle> {
    let bytes = from.unread().saturating_add(held);
    let most = if from.own_window_scale == 0 { IN_FLIGHT_MAX_UNSCALED } else { IN_FLIGHT_MAX };
    let room = to.room().min(most);
    if bytes > room { Err(Obstacle::InFlight { direction, bytes, room }) } else { Ok(()) }
}

impl fmt::Display for FlowDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToBackend => "to the backend",
            Self::ToClient => "to the client",
        })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Backend => "backend",
        })
    }
}
