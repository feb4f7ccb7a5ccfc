//! The path: the BPF program's life in the kernel, its packets against a reference, and whole connections through it.

mod by_hand;
mod life;
mod whole;
