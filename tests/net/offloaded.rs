//! Offloaded flows: what users and operators notice of them, which is nothing but their speed and their long life.

mod basics;
mod closes;
mod conntrack;
mod faults;
mod interfaces;
mod ipsec;
mod kills;
mod layouts;
mod leftovers;
mod matrix;
mod mixes;
mod nat;
mod process;
mod resets;
mod spoofed;
mod steps;
mod sums;
mod timestamps;

use crate::lab::*;

/// A lab whose flows are offloaded, and the folder of their program's pins. The lab's hosts are dropped first, the pins
/// last.
pub struct Scene {
    pub lab: Lab,
    pub pinned: Pinned,
}

impl Scene {
    /// `None` where this process may not load programs.
    pub fn new(test: &str) -> Option<Self> {
        let lab = Lab::new(test)?;
        let (pinned, _) = Pinned::load(test, &[])?;
        Some(Self { lab, pinned })
    }

    pub fn config(&self) -> Config {
        self.lab.config().offloading(&self.pinned.directory)
    }
}
