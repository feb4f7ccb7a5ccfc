//! Offload: the BPF program's life in the kernel, its packets against a reference, and whole connections through it.

mod actions;
mod by_hand;
mod clsact;
mod command;
mod hostile;
mod life;
mod packets;
mod preflight;
pub mod reference;
mod unknown_packets;
mod whole;
