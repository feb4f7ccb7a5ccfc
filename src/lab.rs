//! What Baton is tried with: apiserver stand-ins and kubelet-like clients, and the two commands made of them. Tests use both.
//!
//! ```text
//! demo      Baton between stand-ins and kubelets, with faults at the press of a key
//! drill     many kubelets against any address: how many nodes would have gone NotReady?
//! stand_in  an apiserver, as far as heartbeats and watches need one       certs, bind   certificates and free ports for it
//! kubelet   a client that behaves as a kubelet does                       lease, tls    what it says, and how it is encrypted
//! ```

pub mod bind;
pub mod certs;
pub mod demo;
pub mod drill;
pub mod kubelet;
pub mod lease;
pub mod stand_in;
pub mod tls;
