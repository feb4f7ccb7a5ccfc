//! The link between the instances of a fleet: what each has in flows, the others are told.
//!
//! ```text
//!   wire        what is on the wire before and inside of the encryption
//!   secure      the handshake and the encryption
//!   connection  one link: made or accepted, read and written
//!   beats       datagrams beside it, which only say that a process lives
//!   hub         the one task that decides: own flows, links and time in, model::fleet::Exchange inside, messages out
//! ```
//! Of two instances the one with the lower name connects. Nothing here is ever waited for by the data plane: workers leave word in
//! a queue without bounds of time, and what a slow or silent peer has not taken is dropped and told anew as a whole.

mod beats;
mod connection;
mod hub;
pub mod secure;
pub mod wire;

pub use hub::{PeerHub, PeerLinkParts, start};
