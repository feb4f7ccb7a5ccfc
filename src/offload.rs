//! Offloaded flows: a BPF program rewrites their packets between client and backend, with no socket on this host.
//!
//! ```text
//!   bpf/*.c -> object in the binary -> program: load or recover, attach, pin      /sys/fs/bpf/baton
//!                                        entries: one per direction of a flow   entry
//!                                        probe:   the kernel's state of a leg
//!                                        counters: every action, every drop with its reason
//! ```
//! The program, its maps and its links are pinned: they outlive the process, and the next one recovers them.

pub(crate) mod counters;
pub(crate) mod engine;
pub mod entry;
pub mod events;
pub mod moved;
pub(crate) mod pins_lock;
pub mod preflight;
pub mod probe;
pub mod program;
pub mod settings;
