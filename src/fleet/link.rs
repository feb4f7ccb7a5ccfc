//! The link between the instances of a fleet: each instance tells the others of its flows.
//!
//! ```text
//!   wire        the bytes on the wire before and inside of the encryption
//!   credentials by what an instance proves itself, and by what it knows the others
//!   secure      the handshake and the encryption
//!   connection  one link: made or accepted, read and written
//!   beats       datagrams beside the link, which only say that a process lives
//!   hub         the one task that decides: own flows, links and time in, model::fleet::Exchange inside, messages out
//! ```
//! Of two instances, the one with the lower name connects. The data plane never waits for the link: workers put their
//! events into an unbounded queue, and if a slow or silent peer falls behind, the link drops its events and sends a new
//! snapshot.

mod beats;
mod connection;
mod credentials;
mod hub;
pub(crate) mod secure;
pub mod wire;

pub(crate) use hub::{PeerHub, PeerLinkParts, start};
