//! A simulation that cannot fail is a defect: each old fault of the program, wired in again, must be found.

use super::run::play;
use super::{Faults, Kind};

/// One of the worlds with faults of `kinds` must fail with `symptom`, and none without the old fault.
fn is_found(faults: Faults, kinds: &[Kind], seeds: std::ops::Range<u64>, symptom: &str) {
    let shows = |seed: &u64| {
        play(*seed, kinds, faults).is_err_and(|(what, _)| what.contains(symptom))
            && play(*seed, kinds, Faults::default()).is_ok()
    };
    let found = seeds.clone().find(shows);
    assert!(found.is_some(), "none of the seeds {seeds:?} shows {faults:?}");
}

#[test]
fn ids_that_are_given_again_after_a_reboot_are_found() {
    is_found(Faults { ids_from_one: true, ..Faults::default() }, &[Kind::Die, Kind::Move], 0..300, "");
}

#[test]
fn a_failover_that_does_not_hear_of_new_frontends_is_found() {
    let faults = Faults { reloads_unheard: true, ..Faults::default() };
    is_found(faults, &[Kind::Frontends, Kind::Move], 0..300, "could not connect");
}

#[test]
fn a_failover_that_does_not_hear_of_new_peers_is_found() {
    let faults = Faults { reloads_unheard: true, ..Faults::default() };
    is_found(faults, &[Kind::Members, Kind::Move], 70..300, "which lives, is reset by");
}

#[test]
fn the_peer_link_as_only_judge_of_life_is_found() {
    is_found(Faults { link_alone: true, ..Faults::default() }, &[Kind::Cut], 0..300, "which lives");
}

#[test]
fn a_built_in_vip_that_is_taken_although_its_host_answers_is_found() {
    let faults = Faults { vip_unanswered: true, ..Faults::default() };
    is_found(faults, &[Kind::BuiltIn, Kind::Kill], 0..300, "which has it and answers");
}

#[test]
fn a_built_in_vip_that_nobody_takes_is_found() {
    let faults = Faults { gateway_unheard: true, ..Faults::default() };
    is_found(faults, &[Kind::BuiltIn, Kind::Die], 0..300, "nobody has the VIP");
}

#[test]
fn a_holder_of_the_built_in_vip_that_peers_do_not_hear_of_is_found() {
    let faults = Faults { holder_untold: true, ..Faults::default() };
    is_found(faults, &[Kind::BuiltIn, Kind::Isolate], 0..300, "have the VIP");
}

#[test]
fn flows_that_a_full_map_counts_as_held_are_found() {
    let faults = Faults { full_is_standby: true, ..Faults::default() };
    is_found(faults, &[Kind::Die, Kind::Move, Kind::Full], 150..300, "was not told that its flow is gone");
}

#[test]
fn a_built_in_vip_that_nobody_takes_when_a_stacked_host_dies_is_found() {
    let faults = Faults { gateway_unheard: true, ..Faults::default() };
    is_found(faults, &[Kind::Stacked, Kind::BuiltIn, Kind::Die], 0..300, "nobody has the VIP");
}

#[test]
fn a_new_process_that_does_not_get_what_the_old_one_knew_of_the_peers_is_found() {
    let faults = Faults { peers_unsaved: true, ..Faults::default() };
    is_found(faults, &[Kind::Die, Kind::Move, Kind::Upgrade], 0..300, "was not told that its flow is gone");
}
