//! `baton demo`, and the two commands it consists of besides Baton itself: an apiserver stand-in and a kubelet-like
//! client. Tests use both.

pub mod bind;
pub mod certs;
pub mod duration;
pub mod guard;
pub mod kubelet;
pub mod lease;
pub mod process;
pub mod stand_in;
pub mod tls;
