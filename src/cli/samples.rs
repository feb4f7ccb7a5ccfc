//! The commands' output in docs/, and a peer as it stands there.

use std::path::Path;

use crate::model::fleet::{Epoch, InstanceName, LastHeard, Liveness, MemberView};

/// The text below `$ command` in a block of `page`, up to the block's end.
pub(super) fn shown(page: &str, command: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let (_, rest) = text.split_once(&format!("$ {command}\n")).unwrap_or_else(|| panic!("{page}: no `$ {command}`"));
    rest.split("```").next().unwrap().to_owned()
}

/// A peer that lives, has the VIP and knows all, without a summary of itself.
pub(super) fn peer() -> MemberView {
    MemberView {
        name: InstanceName("lb-b".into()),
        address: "10.0.0.22:9471".parse().unwrap(),
        liveness: Liveness::Alive,
        epoch: Epoch::default(),
        slot: Some(1),
        version: "0.1.0".to_owned(),
        synced: true,
        flows: 1204,
        offloaded: 1092,
        told: true,
        behind: 0,
        lag_ms: 0,
        resyncs: 0,
        round_trip_us: 180,
        vips: vec!["10.0.0.100".parse().unwrap()],
        why_not: None,
        summary: None,
        last_heard: LastHeard::default(),
    }
}
