//! A simulation that cannot go red is a defect: each old fault of the program, played again, must be found.

use super::run::play;
use super::{Faults, Kind};

/// The first seeds with which worlds of these kinds show the fault, and which do not without it.
fn is_found(faults: Faults, kinds: &[Kind], seeds: std::ops::Range<u64>) {
    let shows = |seed: &u64| play(*seed, kinds, faults).is_err() && play(*seed, kinds, Faults::default()).is_ok();
    let found = seeds.clone().find(shows);
    assert!(found.is_some(), "none of the seeds {seeds:?} shows {faults:?}");
}

#[test]
fn ids_that_are_given_again_after_a_reboot_are_found() {
    is_found(Faults { ids_from_one: true }, &[Kind::Die, Kind::Move], 0..300);
}
