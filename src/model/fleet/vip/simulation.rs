//! Two to four hosts with the machine on each, the network between them, their kernels' addresses with their leases, and a gateway, through
//! random schedules: hosts die, processes are killed, hang, stop and start in any order, with what the one before left over; hosts are cut
//! off, parted, deaf one way, or only their peer links are cut; packets are lost; readiness comes and goes, hosts are evacuated; something
//! else removes the address, or adds it.
//!
//! What must hold:
//! - no instance takes the VIP while a host that it could exchange packets with has it;
//! - two hosts that hear each other do not both have it for longer than a moment;
//! - a host's death leaves nobody without the VIP for more than half a second, whatever else leaves nobody for more than a stated time;
//! - at rest it does not move.

mod world;

use super::*;
use world::{HostVip, VipWorld};

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1000 * MS;
const STEP_NS: u64 = 10 * MS;
/// How often a process probes its backends.
const PROBE_NS: u64 = SECOND_NS;
const BEAT_NS: u64 = 50 * MS;
/// A host that is gone, while all others see the same: until another one has the VIP.
const DEATH_MAX_NS: u64 = 500 * MS;
/// The lease of a process that does not run any more, what the kernel's clock adds, and two rounds of questions.
const UNSERVED_MAX_NS: u64 = 3200 * MS;
/// A stop, an evacuation, an address that something else has removed.
const AT_ONCE_NS: u64 = 50 * MS;
/// Two that can hear each other again: a beat, and a look.
const BOTH_MAX_NS: u64 = 200 * MS;
/// What a host must have been able to exchange with another before it may be held against it: the time of the questions and of beats.
const STEADY_NS: u64 = 700 * MS;
const GRACE_NS: u64 = 250 * MS;

/// How the machine is put to use, wrongly: each must be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wrongs {
    /// Nobody hears an answer to a question.
    unanswered: bool,
    /// The kernel keeps addresses for ever.
    no_lease: bool,
    /// Everybody seems to be heard all the time.
    never_deaf: bool,
    /// Peers do not say that they take it.
    silent_takers: bool,
    /// No claim is later than another.
    claims_alike: bool,
    /// A stop and an evacuation are not told to the machine.
    bars_unheard: bool,
    /// Questions of others are not heard.
    rivals_unheard: bool,
    /// A silence counts although the process did not run.
    sleeps_count: bool,
    /// Nobody looks at the addresses again once they were added.
    removal_unseen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    Die,
    Kill,
    Hang,
    Stop,
    Isolate,
    Unplug,
    Part,
    OneWay,
    CutLink,
    Unready,
    Evacuate,
    Remove,
    Lose,
}

const ALL: [Mishap; 13] = [
    Mishap::Die,
    Mishap::Kill,
    Mishap::Hang,
    Mishap::Stop,
    Mishap::Isolate,
    Mishap::Unplug,
    Mishap::Part,
    Mishap::OneWay,
    Mishap::CutLink,
    Mishap::Unready,
    Mishap::Evacuate,
    Mishap::Remove,
    Mishap::Lose,
];

/// splitmix64.
struct Chance(u64);

impl Chance {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % sides.max(1)
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// What went wrong in the world of a seed, with all that happened before; else how often the VIP moved.
fn play(seed: u64, kinds: &[Mishap], wrongs: Wrongs) -> Result<usize, (String, Vec<String>)> {
    play_and_count(seed, kinds, wrongs).0
}

/// And how many questions were asked.
fn play_and_count(seed: u64, kinds: &[Mishap], wrongs: Wrongs) -> (Result<usize, (String, Vec<String>)>, usize) {
    let mut world = VipWorld::new(seed, wrongs);
    // Some of what is allowed, so that simple worlds are among them.
    let mut some: Vec<_> = kinds.iter().copied().filter(|_| world.chance.one_in(3)).collect();
    if some.is_empty() {
        some = kinds.to_vec();
    }
    world.steps(4000);
    for _ in 0..2 + world.chance.roll(3) {
        for _ in 0..1 + world.chance.roll(3) {
            world.mishap(&some);
            let pause_ms = [20, 200, 1000][world.chance.roll(3) as usize];
            let ms = 5 + world.chance.roll(pause_ms);
            world.steps(ms);
        }
        let ms = 200 + world.chance.roll(4000);
        world.steps(ms);
        let all = world.chance.one_in(2);
        world.repair(all);
        let ms = [500, 5000][world.chance.roll(2) as usize];
        world.steps(ms);
    }
    world.repair(true);
    world.steps(9000);
    let holds = |it: &HostVip| it.process.as_ref().is_some_and(|process| process.machine.holds());
    let holders = world.hosts.iter().filter(|it| holds(it)).count();
    let have = world.hosts.iter().filter(|it| it.lease_ns.is_some()).count();
    if (holders, have) != (1, 1) {
        world.fail(format!("at rest {holders} hold it and {have} have it"));
    }
    let played = match world.fault {
        Some(fault) => Err((fault, world.log)),
        None => Ok(world.moves),
    };
    (played, world.asks)
}

#[track_caller]
fn all_go_well(seeds: std::ops::Range<u64>, kinds: &[Mishap]) {
    let mut moves = 0;
    for seed in seeds {
        match play(seed, kinds, Wrongs::default()) {
            Ok(its) => moves += its,
            Err((fault, log)) => panic!("{fault}\n{}", log.join("\n")),
        }
    }
    assert!(moves > 0, "nothing ever moved");
}

#[test]
fn no_two_have_the_vip_unless_parted_and_nobody_is_without_it_for_long() {
    all_go_well(0..1500, &ALL);
}

#[test]
fn a_dead_host_is_followed_within_half_a_second() {
    all_go_well(0..300, &[Mishap::Die]);
}

/// `cargo nextest run --run-ignored all -E 'test(thousands_of_schedules)'`
#[test]
#[ignore = "takes minutes"]
fn tens_of_thousands_of_schedules() {
    all_go_well(10_000..60_000, &ALL);
}

/// A simulation that cannot go red is a defect.
#[track_caller]
fn is_found(wrongs: Wrongs, kinds: &[Mishap], symptom: &str) {
    let seeds = 0..600;
    let shows = |seed: &u64| play(*seed, kinds, wrongs).is_err_and(|(what, _)| what.contains(symptom));
    assert!(kinds.iter().all(|kind| ALL.contains(kind)));
    let found = seeds.clone().find(shows);
    assert!(found.is_some(), "none of the seeds {seeds:?} shows {wrongs:?}");
}

#[test]
fn questions_that_nobody_answers_are_found() {
    is_found(Wrongs { unanswered: true, ..Wrongs::default() }, &[Mishap::Hang], "which has it and answers");
}

#[test]
fn addresses_that_outlive_their_process_are_found() {
    is_found(Wrongs { no_lease: true, ..Wrongs::default() }, &[Mishap::Hang, Mishap::Kill], "nobody has it for");
}

/// Cut off, it takes the VIP for nobody, by the later claim: whoever serves clients has to leave it to that one.
#[test]
fn an_instance_that_believes_that_it_hears_somebody_is_found() {
    let wrongs = Wrongs { never_deaf: true, ..Wrongs::default() };
    let moves = |wrongs| (0..100).filter_map(|seed| play(seed, &[Mishap::Isolate], wrongs).ok()).sum::<usize>();
    let (wrong, right) = (moves(wrongs), moves(Wrongs::default()));
    assert!(wrong > right + right / 4, "{wrong} moves, and {right} otherwise");
}

#[test]
fn instances_that_do_not_say_that_they_take_it_are_found() {
    let wrongs = Wrongs { silent_takers: true, rivals_unheard: true, ..Wrongs::default() };
    is_found(wrongs, &ALL, "which has it and answers");
}

#[test]
fn two_that_ask_at_once_and_hear_each_other_only_by_arp_are_found() {
    let wrongs = Wrongs { rivals_unheard: true, ..Wrongs::default() };
    is_found(wrongs, &[Mishap::CutLink, Mishap::Die, Mishap::Evacuate], "which has it and answers");
}

#[test]
fn claims_of_one_number_are_found() {
    is_found(Wrongs { claims_alike: true, ..Wrongs::default() }, &[Mishap::Part, Mishap::Isolate], "");
}

#[test]
fn a_stop_that_is_not_heard_of_is_found() {
    is_found(Wrongs { bars_unheard: true, ..Wrongs::default() }, &[Mishap::Stop, Mishap::Evacuate], "must give up");
}

#[test]
fn a_removal_that_is_not_seen_is_found() {
    is_found(Wrongs { removal_unseen: true, ..Wrongs::default() }, &[Mishap::Remove], "does not add it again");
}

#[test]
fn an_instance_that_takes_its_own_sleep_for_the_silence_of_others_is_found() {
    let asks = |wrongs| {
        let all = (0..200).map(|seed| play_and_count(seed, &[Mishap::Hang], wrongs).1);
        all.sum::<usize>()
    };
    let wrongs = Wrongs { sleeps_count: true, ..Wrongs::default() };
    assert!(asks(wrongs) > asks(Wrongs::default()), "it asks no more often");
}
