use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// An event of a flow or its surroundings.
#[derive(Clone, Copy, Debug)]
enum Spell {
    /// The client asks, and the backend answers, so often.
    Requests(u8),
    /// The next tries have this result.
    Meets(Option<OffloadRefusal>),
    /// Something may have changed for all flows.
    TryAll,
    /// No event for so many ms.
    Pause(u16),
    /// The worker's timer tries it while no bytes are in flight.
    Timer,
}

fn refusal() -> impl Strategy<Value = OffloadRefusal> {
    use OffloadRefusal::*;
    prop_oneof![8 => Just(Busy), 4 => Just(Unseen), 2 => Just(Trial), 2 => Just(ForNow), 1 => Just(ForGood)]
}

fn spell() -> impl Strategy<Value = Spell> {
    prop_oneof![
        4 => (1..4_u8).prop_map(Spell::Requests),
        4 => proptest::option::weighted(0.8, refusal()).prop_map(Spell::Meets),
        1 => Just(Spell::TryAll),
        3 => prop_oneof![0..5_u16, 0..2000_u16, 0..40_000_u16].prop_map(Spell::Pause),
        3 => Just(Spell::Timer),
    ]
}

/// One flow, with the worker's part simulated.
#[derive(Debug)]
struct Scene {
    policy: OffloadPolicy,
    flow: Eligibility,
    now_ns: u64,
    /// The timer that was set last.
    timer_ns: Option<u64>,
    meets: Option<OffloadRefusal>,
    announced: u32,
    offered: bool,
    round_trips: u32,
    for_good: bool,
    offloaded: bool,
    /// The refusals with their times, since the flow was last tried at once.
    refusals: Vec<(u64, OffloadRefusal)>,
}

impl Scene {
    fn new(policy: OffloadPolicy) -> Self {
        Self {
            policy,
            flow: Eligibility::default(),
            now_ns: 0,
            // A worker sets it when the flow begins, for its age.
            timer_ns: Some(policy.after_ns),
            meets: None,
            announced: 0,
            offered: false,
            round_trips: 0,
            for_good: false,
            offloaded: false,
            refusals: Vec::new(),
        }
    }

    fn offer(&mut self) {
        assert!(!self.for_good, "it was refused for good");
        if let Some((at_ns, why)) = self.refusals.last() {
            let least_ns = match why {
                OffloadRefusal::Busy | OffloadRefusal::Unseen => 2 * MS,
                OffloadRefusal::Trial => 2000 * MS,
                _ => 30_000 * MS,
            };
            assert!(self.now_ns - at_ns >= least_ns, "tried {} ns after it was {why:?}", self.now_ns - at_ns);
        }
        self.flow.offered();
        self.offered = true;
        let Some(why) = self.meets else {
            self.offloaded = true;
            return;
        };
        let again_ns = self.flow.refused(why, self.now_ns);
        self.for_good = why == OffloadRefusal::ForGood;
        assert_eq!(again_ns.is_none(), self.for_good);
        if let Some(again_ns) = again_ns {
            let wait_ns = again_ns - self.now_ns;
            let most_ns = match why {
                OffloadRefusal::Busy => 1000 * MS,
                OffloadRefusal::Trial => 2000 * MS,
                _ => 30_000 * MS,
            };
            assert!((2 * MS..=most_ns).contains(&wait_ns), "{why:?}: again after {wait_ns} ns");
        }
        self.timer_ns = again_ns;
        self.refusals.push((self.now_ns, why));
    }

    fn request(&mut self) {
        let age_ns = self.now_ns;
        let tried = self.flow.may_be_tried(self.policy, age_ns, self.now_ns);
        if tried {
            assert!(self.announced > 0 || self.offered, "nobody has looked at its packets");
            assert!(self.round_trips >= self.policy.round_trips || age_ns >= self.policy.after_ns, "too young");
            return self.offer();
        }
        self.announced += u32::from(self.flow.announce(self.policy, age_ns));
        assert!(self.announced <= 1, "announced again");
        self.flow.count_round_trip();
        self.round_trips += 1;
    }

    fn timer(&mut self) {
        if self.flow.is_due(self.now_ns) {
            self.timer_ns = None;
            self.offer();
        }
    }

    fn pass(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while let Some(at_ns) = self.timer_ns.filter(|at_ns| *at_ns <= until_ns && !self.offloaded) {
            self.now_ns = self.now_ns.max(at_ns);
            assert!(self.flow.is_due(self.now_ns), "its timer comes before it may be tried");
            self.timer();
        }
        self.now_ns = until_ns;
    }

    fn play(&mut self, spell: Spell) {
        match spell {
            Spell::Requests(count) => {
                for _ in 0..count {
                    if !self.offloaded {
                        self.request();
                        self.pass(MS);
                    }
                }
            }
            Spell::Meets(what) => self.meets = what,
            Spell::TryAll => {
                let again = self.flow.try_again();
                assert_eq!(again, !self.for_good);
                if again {
                    self.refusals.clear();
                    self.timer_ns = Some(self.now_ns);
                }
            }
            Spell::Pause(ms) => self.pass(u64::from(ms) * MS),
            Spell::Timer => self.timer(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_flow_is_tried_in_time_and_not_too_often_until_it_is_offloaded(
        round_trips in 0..5_u32,
        after_ms in 0..200_u64,
        spells in proptest::collection::vec(spell(), 1..40),
    ) {
        let mut scene = Scene::new(OffloadPolicy { round_trips, after_ns: after_ms * MS });
        for spell in spells {
            if !scene.offloaded {
                scene.play(spell);
            }
        }
        // The obstacle is gone: the flow must be tried again.
        scene.meets = None;
        scene.pass(30_200 * MS);
        prop_assert!(scene.offloaded || scene.for_good, "{scene:?}");
    }

    #[test]
    fn a_flow_that_is_always_busy_is_tried_about_once_a_second(seconds in 5..60_u64) {
        let mut scene = Scene::new(OffloadPolicy::AT_ONCE);
        scene.meets = Some(OffloadRefusal::Busy);
        scene.pass(seconds * 1000 * MS);
        let tries = scene.refusals.len() as u64;
        prop_assert!((seconds..seconds + 11).contains(&tries), "{tries} in {seconds} s");
        let waits: Vec<_> = scene.refusals.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        prop_assert!(waits.is_sorted(), "{waits:?}");
    }
}

#[test]
fn a_silent_end_is_waited_for_two_seconds_and_then_looked_at_now_and_then() {
    let mut scene = Scene::new(OffloadPolicy::AT_ONCE);
    scene.meets = Some(OffloadRefusal::Unseen);
    scene.pass(100_000 * MS);
    let at_ms: Vec<_> = scene.refusals.iter().map(|(at_ns, _)| at_ns / MS).collect();
    assert_eq!(at_ms, [0, 2, 6, 14, 30, 62, 126, 254, 510, 1022, 2022, 3022, 33_022, 63_022, 93_022]);
    // The end has sent a packet.
    scene.meets = Some(OffloadRefusal::Busy);
    scene.pass(31_000 * MS);
    scene.meets = Some(OffloadRefusal::Unseen);
    let before = scene.refusals.len();
    scene.pass(2500 * MS);
    assert!(scene.refusals.len() > before + 5, "it counts anew: {:?}", &scene.refusals[before..]);
}
