//! Single rules, and their sentences.

use super::*;

const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1000 * MS;
const START_NS: u64 = 1_000_000 * MS;

struct Bench {
    machine: VipMachine,
    now_ns: u64,
    peers: Vec<PeerVip>,
    bar: Option<VipBar>,
    ready: bool,
    has_backend: bool,
    heard_ns: u64,
    socket_ns: u64,
    interface: InterfaceState,
    is_bare: bool,
    here: VipPresence,
    /// The instance hears no other host.
    deaf: bool,
    orders: Vec<VipOrder>,
}

fn named(name: &str) -> InstanceName {
    InstanceName(name.into())
}

fn peer(name: &str, part: VipPart) -> PeerVip {
    let standing = VipStanding { part, ready: true, synced: true, hears: true, addresses: 7, ..VipStanding::default() };
    PeerVip { name: named(name), silence_ns: Some(0), standing: Some(standing), has_address: false, flows_here: 0 }
}

impl Bench {
    fn new(peers: Vec<PeerVip>) -> Self {
        let settings = VipTerms {
            me: named("lb-b"),
            priority: 1,
            interface: "eth0".to_owned(),
            addresses: 7,
            has_peers: !peers.is_empty(),
            had_it: false,
        };
        Self {
            machine: VipMachine::new(settings),
            now_ns: START_NS,
            peers,
            bar: None,
            ready: true,
            has_backend: true,
            heard_ns: START_NS,
            socket_ns: 0,
            interface: InterfaceState::Running,
            is_bare: false,
            here: VipPresence::Absent,
            deaf: false,
            orders: Vec::new(),
        }
    }

    fn holding(peers: Vec<PeerVip>) -> Self {
        let mut bench = Self::new(peers);
        bench.run(500);
        assert!(bench.machine.holds(), "{:?}", bench.machine);
        bench.orders.clear();
        bench
    }

    fn look(&self) -> VipLook<'_> {
        VipLook {
            now_ns: self.now_ns,
            peers: Some(&self.peers),
            bar: self.bar.clone(),
            ready: self.ready,
            has_backend: self.has_backend,
            synced: true,
            heard_ns: self.heard_ns,
            socket_ns: self.socket_ns,
            interface: self.interface,
            is_bare: self.is_bare,
            here: self.here,
        }
    }

    /// Passes this many milliseconds; returns when the machine took the VIP, if it did.
    fn run(&mut self, ms: u64) -> Option<u64> {
        let begun_ns = self.now_ns;
        let mut took_ms = None;
        for _ in 0..ms / 10 {
            self.now_ns += 10 * MS;
            let spare = VipMachine::new(self.machine.settings.clone());
            let mut machine = std::mem::replace(&mut self.machine, spare);
            machine.handle_look(&self.look());
            while let Some(order) = machine.poll_order() {
                match &order {
                    VipOrder::Ask if !self.deaf => self.heard_ns = self.now_ns + MS,
                    VipOrder::Add => {
                        self.here = VipPresence::Whole;
                        took_ms.get_or_insert((self.now_ns - begun_ns) / MS);
                    }
                    VipOrder::Remove { .. } => self.here = VipPresence::Absent,
                    _ => {}
                }
                self.orders.push(order);
            }
            self.machine = machine;
        }
        took_ms
    }

    fn standing(&mut self, index: usize) -> &mut VipStanding {
        self.peers[index].standing.as_mut().expect("it says something")
    }

    fn lost(&self) -> Option<&VipLoss> {
        self.orders.iter().find_map(|it| if let VipOrder::Note(VipNote::Lost(loss)) = it { Some(loss) } else { None })
    }

    fn view(&self) -> VipView {
        self.machine.view(&self.look(), |mac| format!("node {}", mac[5]))
    }
}

#[test]
fn a_lone_instance_asks_three_times_before_it_takes_the_vip() {
    let mut bench = Bench::new(Vec::new());
    assert_eq!(bench.run(1000), Some(130));
    assert_eq!(bench.orders.iter().filter(|it| **it == VipOrder::Ask).count(), 3);
    assert!(bench.machine.holds());
}

#[test]
fn a_silent_holder_is_followed_after_its_fifth_missing_beat_and_the_questions() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    assert_eq!(bench.run(1000), None);
    assert_eq!(bench.view().why, "lb-a has it");
    // After 240 ms without a beat the peer is not silent yet.
    bench.peers[0].silence_ns = Some(240 * MS);
    assert_eq!(bench.run(1000), None);
    bench.peers[0].silence_ns = Some(SILENT_NS);
    assert_eq!(bench.run(1000), Some(130));
    assert_eq!(bench.view().why, "lb-a had it and was silent");
    assert!(u64::from(ASKS) * ASK_EVERY_NS + SILENT_NS + 50 * MS < 450 * MS);
}

#[test]
fn a_host_that_answers_keeps_the_vip_and_is_asked_again() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    bench.peers[0].silence_ns = Some(SILENT_NS);
    let told =
        |bench: &Bench| bench.orders.iter().filter(|it| matches!(it, VipOrder::Note(VipNote::Answered { .. }))).count();
    for turn in 0..10 {
        bench.run(50);
        let now_ns = bench.now_ns;
        bench.machine.handle_answer(([2, 0, 0, 0, 0, 9], [10, 0, 0, 100].into()), now_ns);
        bench.run(10);
        assert_eq!(bench.view().why, "another host (node 9) answers for 10.0.0.100");
        assert_eq!(bench.run(140), None);
        assert!(turn > 3 || told(&bench) == 0, "a peer that has just taken the VIP answers, too");
    }
    assert_eq!(told(&bench), 1, "it is told once");
    assert!(bench.run(400).is_some(), "it answers no more");
}

#[test]
fn a_host_that_hears_nobody_takes_nothing() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    (bench.peers[0].silence_ns, bench.deaf) = (Some(SILENT_NS), true);
    assert_eq!(bench.run(10_000), None);
    assert_eq!(bench.view().holder, None);
    bench.deaf = false;
    assert!(bench.run(1500).is_some());
}

#[test]
fn a_later_claim_wins_and_the_earlier_holder_yields_to_it() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.standing(0).part = VipPart::Holds;
    bench.run(20);
    assert!(bench.machine.holds(), "claim 1 stands above claim 0");
    bench.standing(0).claim = 2;
    bench.run(20);
    assert_eq!(bench.lost(), Some(&VipLoss::Yielded { to: named("lb-a") }));
    assert_eq!(bench.here, VipPresence::Absent);
}

#[test]
fn what_does_not_ask_baton_keeps_what_it_has_taken() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    (bench.peers[0].standing, bench.peers[0].has_address) = (None, true);
    bench.run(20);
    assert_eq!(bench.lost(), Some(&VipLoss::Yielded { to: named("lb-a") }));
    assert_eq!(bench.run(5000), None);
}

#[test]
fn an_instance_that_is_not_ready_gives_it_up_only_to_one_that_is() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.ready = false;
    bench.standing(0).ready = false;
    bench.run(1000);
    assert!(bench.machine.holds(), "clients find out sooner by a reset than by silence");
    bench.standing(0).ready = true;
    bench.run(20);
    assert_eq!(bench.lost(), Some(&VipLoss::NotReady { heir: named("lb-a") }));
}

/// Regression: Baton came to the host that had the VIP, linked with its peer, and gave it the VIP a moment before it was ready itself.
#[test]
fn a_vip_that_a_starting_instance_finds_stays_there_while_it_links_with_its_ready_peers() {
    let mut bench = Bench::new(Vec::new());
    bench.machine = VipMachine::new(VipTerms { has_peers: true, ..bench.machine.settings.clone() });
    (bench.here, bench.bar, bench.ready) = (VipPresence::Whole, Some(VipBar::Starting), false);
    bench.run(100);
    assert_eq!(bench.view().why, "its addresses were on this host already");
    bench.peers = vec![peer("lb-a", VipPart::Stands)];
    bench.run(1500);
    assert_eq!((bench.machine.holds(), bench.lost()), (true, None));
    (bench.bar, bench.ready) = (None, true);
    bench.run(100);
    assert!(bench.machine.holds(), "it has become ready");
    (bench.bar, bench.ready) = (Some(VipBar::Starting), false);
    bench.run(1000);
    assert_eq!(bench.lost(), Some(&VipLoss::NotReady { heir: named("lb-a") }), "it has started for too long");
}

/// Regression: a reload of `[vip]` and an upgrade ran `on_gain` and told of a gain, though the VIP had never left the host.
#[test]
fn a_reload_or_an_upgrade_with_the_vip_on_the_host_is_no_gain() {
    for has_peers in [false, true] {
        let notes_of = |had_it: bool, here: VipPresence| {
            let mut bench = Bench::new(Vec::new());
            bench.machine = VipMachine::new(VipTerms { has_peers, had_it, ..bench.machine.settings.clone() });
            bench.here = here;
            bench.run(100);
            let notes = bench.orders.iter().filter(|order| matches!(order, VipOrder::Note(_))).cloned();
            (bench.machine.holds(), notes.collect::<Vec<_>>())
        };
        let found = || vec![VipOrder::Note(VipNote::Gained(VipGain::Found))];
        assert_eq!(notes_of(true, VipPresence::Whole), (true, vec![VipOrder::Note(VipNote::Kept)]));
        assert_eq!(notes_of(false, VipPresence::Whole), (true, found()), "a process before it had crashed");
        assert_eq!(notes_of(true, VipPresence::Partial), (true, found()), "it has one address more");
    }
}

/// Regression: the VIP stayed, and new connections were reset there for as long as the host reached no backend.
#[test]
fn a_holder_without_a_backend_gives_it_up_to_a_peer_that_has_had_one_for_a_while() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.has_backend = false;
    bench.standing(0).ready = false;
    bench.run(10_000);
    assert!(bench.machine.holds(), "nobody has a backend");
    let says = bench.view().would_move[1].clone();
    assert_eq!(says, "no backend can be used here or at lb-a: it goes to lb-a when one can be used there");
    assert!(!bench.view().ready, "peers must know it");
    // The backends return, and the peer sees it first.
    bench.standing(0).ready = true;
    bench.run(1000);
    bench.has_backend = true;
    bench.run(1000);
    bench.has_backend = false;
    bench.run(1400);
    assert!(bench.machine.holds(), "{:?}", bench.lost());
    let says = bench.view().would_move[1].clone();
    let expected =
        "no backend can be used here: it goes to lb-a, which can use one, unless one can be used here within moments";
    assert_eq!(says, expected);
    bench.run(200);
    assert_eq!(bench.lost(), Some(&VipLoss::NoBackend { heir: named("lb-a") }));
    assert_eq!(bench.lost().unwrap().to_string(), "no backend can be used here, and lb-a can use one");
    // The peer does not take it: then better here than nowhere, and not to and fro.
    bench.standing(0).hears = false;
    bench.run(1500);
    assert!(bench.machine.holds());
    bench.standing(0).hears = true;
    bench.orders.clear();
    bench.run(3000);
    assert_eq!(bench.lost(), None, "it was given up a moment ago");
    bench.run(2000);
    assert!(bench.lost().is_some());
}

/// Regression: an instance without a backend took the VIP before a ready one that was held back, and gave it up to that one at once.
#[test]
fn an_instance_that_is_not_ready_leaves_the_vip_to_a_ready_one_that_is_held_back_or_not_synced() {
    for change in [|its: &mut VipStanding| its.damped = true, |its: &mut VipStanding| its.synced = false] {
        let mut bench = Bench::new(vec![peer("lb-c", VipPart::Stands)]);
        bench.has_backend = false;
        change(bench.standing(0));
        assert_eq!(bench.run(250), None);
    }
}

#[test]
fn a_stop_and_an_evacuation_give_it_up_at_once() {
    for bar in [VipBar::Stopping, VipBar::Evacuated { to: None }] {
        let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
        bench.bar = Some(bar.clone());
        bench.run(10);
        assert_eq!(bench.lost(), Some(&VipLoss::Barred(bar)));
        assert_eq!((bench.here, bench.run(10_000)), (VipPresence::Absent, None));
    }
}

#[test]
fn a_host_that_has_lost_its_own_addresses_gives_it_up_and_takes_nothing_unless_they_come_back_at_once() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.is_bare = true;
    bench.run(200);
    bench.is_bare = false;
    bench.run(1000);
    assert_eq!(bench.lost(), None);
    bench.is_bare = true;
    bench.run(300);
    assert_eq!(bench.lost(), Some(&VipLoss::NoAddress));
    assert_eq!(bench.run(5000), None);
    assert_eq!(bench.view().why, "the interface has lost all its other addresses, or those of IPv4");
    bench.is_bare = false;
    assert!(bench.run(5000).is_some());
}

/// Regression: a standby whose cable was pulled told the death of its peers, and nothing of its own state.
#[test]
fn a_host_without_the_vip_tells_once_that_it_is_cut_off_and_who_has_the_vip_when_it_is_back() {
    let notes = |bench: &mut Bench| {
        let told = std::mem::take(&mut bench.orders).into_iter();
        told.filter_map(|it| if let VipOrder::Note(note) = it { Some(note) } else { None }).collect::<Vec<_>>()
    };
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    bench.run(500);
    assert_eq!(notes(&mut bench), [VipNote::HeldBy(named("lb-a"))]);
    bench.interface = InterfaceState::NoCarrier;
    bench.run(200);
    bench.interface = InterfaceState::Running;
    bench.run(500);
    assert_eq!(notes(&mut bench), [], "a moment without a carrier is nothing");
    bench.interface = InterfaceState::NoCarrier;
    bench.run(5000);
    assert_eq!(notes(&mut bench), [VipNote::CutOff(VipWhy::NoCarrier)]);
    bench.interface = InterfaceState::Running;
    bench.run(500);
    assert_eq!(notes(&mut bench), [VipNote::HeldBy(named("lb-a"))]);
    // A holder says so as it gives the VIP up.
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.interface = InterfaceState::NoCarrier;
    bench.run(5000);
    assert_eq!(notes(&mut bench), [VipNote::Lost(VipLoss::NoCarrier)]);
}

/// Regression: an interface that was renamed was told as one without a carrier.
#[test]
fn a_host_without_the_interface_names_it_and_speaks_of_no_carrier() {
    let missing = "interface eth0 is not there";
    for peers in [vec![peer("lb-a", VipPart::Holds)], Vec::new()] {
        let mut bench = Bench::new(peers);
        bench.interface = InterfaceState::Absent;
        bench.run(5000);
        assert_eq!((bench.machine.holds(), &*bench.view().why), (false, missing));
    }
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.interface = InterfaceState::Absent;
    bench.run(5000);
    assert_eq!(bench.lost().map(|loss| loss.to_string()), Some(missing.to_owned()));
}

#[test]
fn a_holder_announces_the_vip_against_a_stranger_and_not_against_a_peer_that_holds_it_too() {
    let announced = |bench: &Bench| bench.orders.iter().filter(|order| **order == VipOrder::Announce).count();
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.run(5000);
    bench.orders.clear();
    bench.machine.handle_answer(([2, 0, 0, 0, 0, 9], [10, 0, 0, 100].into()), bench.now_ns);
    bench.run(10);
    assert_eq!(announced(&bench), 1);
    assert!(bench.orders.contains(&VipOrder::Note(VipNote::Defended([2, 0, 0, 0, 0, 9]))));
    *bench.standing(0) = VipStanding { part: VipPart::Holds, addresses: 7, ..VipStanding::default() };
    bench.run(20_000);
    bench.orders.clear();
    bench.machine.handle_answer(([2, 0, 0, 0, 0, 9], [10, 0, 0, 100].into()), bench.now_ns);
    bench.run(10);
    assert_eq!(announced(&bench), 0, "{:?}", bench.orders);
}

/// Regression: `baton vip --why` showed the Ethernet address of the host that answered, and neither for which address nor who that is.
#[test]
fn a_host_that_answers_is_told_by_its_name_with_the_address() {
    let mut bench = Bench::new(Vec::new());
    bench.run(60);
    bench.machine.handle_answer(([2, 0, 0, 0, 0, 9], [10, 0, 0, 100].into()), bench.now_ns);
    let view = bench.view();
    assert_eq!(view.why, "another host (node 9) answers for 10.0.0.100");
    assert_eq!(view.would_move, [format!("this instance does not take it: {}", view.why)]);
}

#[test]
fn what_something_else_removes_is_added_again_and_announced() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    for presence in [VipPresence::Absent, VipPresence::Partial] {
        bench.here = presence;
        bench.orders.clear();
        assert_eq!(bench.run(10), Some(10));
        assert!(bench.orders.contains(&VipOrder::Announce));
    }
}

#[test]
fn a_process_that_did_not_run_for_longer_than_its_lease_asks_before_it_has_the_vip_again() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.now_ns += LEASE_NS;
    bench.here = VipPresence::Absent;
    bench.run(10);
    assert_eq!(bench.lost(), Some(&VipLoss::Late { for_ms: 2_380 }));
    assert!(!bench.orders.contains(&VipOrder::Add));
}

#[test]
fn addresses_that_were_left_over_are_kept_if_nobody_has_the_vip_and_removed_if_a_peer_has_it() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Stands)]);
    (bench.here, bench.bar) = (VipPresence::Whole, Some(VipBar::Starting));
    bench.run(100);
    assert!(bench.machine.holds());
    assert_eq!(bench.view().why, "its addresses were on this host already");
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    bench.here = VipPresence::Whole;
    bench.run(10);
    assert_eq!((bench.machine.holds(), bench.here), (false, VipPresence::Absent));
    assert_eq!(bench.lost(), Some(&VipLoss::LeftOver { holder: named("lb-a") }));
}

#[test]
fn addresses_that_another_program_adds_again_and_again_are_removed_at_a_pace_and_noted_once() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    bench.run(10);
    bench.orders.clear();
    for _ in 0..300 {
        bench.here = VipPresence::Whole;
        bench.run(10);
    }
    let removals = bench.orders.iter().filter(|it| matches!(it, VipOrder::Remove { .. })).count();
    assert_eq!((removals, bench.here), (20, VipPresence::Whole), "one in 150 ms");
    let notes = |bench: &Bench| bench.orders.iter().filter(|it| matches!(it, VipOrder::Note(_))).count();
    assert_eq!(notes(&bench), 1);
    bench.here = VipPresence::Absent;
    bench.run(6000);
    bench.here = VipPresence::Whole;
    bench.run(10);
    assert_eq!((notes(&bench), bench.here), (2, VipPresence::Absent), "it is another time");
}

#[test]
fn addresses_that_another_program_adds_while_the_holder_is_silent_are_not_taken_for_the_vip() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    bench.run(10);
    (bench.peers[0].silence_ns, bench.here) = (Some(SILENT_NS), VipPresence::Whole);
    bench.run(10);
    assert_eq!((bench.machine.holds(), bench.here), (false, VipPresence::Absent));
    assert_eq!(bench.lost(), Some(&VipLoss::Strange));
}

#[test]
fn of_those_that_could_the_ready_then_the_synced_then_the_priority_then_the_name_decides() {
    let better = |change: fn(&mut VipStanding)| {
        let mut bench = Bench::new(vec![peer("lb-c", VipPart::Stands)]);
        bench.standing(0).priority = 1;
        change(bench.standing(0));
        bench.run(250).is_none()
    };
    assert!(!better(|_| {}), "lb-b stands before lb-c");
    assert!(better(|its| its.priority = 2));
    assert!(!better(|its| (its.priority, its.ready) = (2, false)));
    assert!(!better(|its| (its.priority, its.synced) = (2, false)));
    assert!(!better(|its| (its.priority, its.hears) = (2, false)), "it could not take it");
    assert!(!better(|its| (its.priority, its.damped) = (2, true)));
    assert!(!better(|its| (its.priority, its.part) = (2, VipPart::Out)));
    assert!(!better(|its| (its.priority, its.addresses) = (2, 8)), "that is another VIP");
}

/// The flows to a host's own backend are the hardest to carry on there.
#[test]
fn of_equal_instances_the_one_with_the_fewest_flows_of_the_gone_holder_decides() {
    let takes = |own: u32, its: u32, change: fn(&mut VipStanding)| {
        let mut bench = Bench::new(vec![peer("lb-a", VipPart::Stands), peer("lb-c", VipPart::Holds)]);
        bench.peers[1].flows_here = own;
        (bench.standing(0).priority, bench.standing(0).flows_here) = (1, its);
        change(bench.standing(0));
        bench.run(1000);
        bench.peers[1].silence_ns = None;
        // Without the holder this instance knows of none.
        bench.peers[1].flows_here = 0;
        bench.run(250).is_some()
    };
    assert!(!takes(0, 0, |_| {}), "lb-a stands before lb-b");
    assert!(takes(7, 8, |_| {}));
    assert!(!takes(8, 7, |_| {}));
    assert!(!takes(7, 8, |its| its.priority = 2), "an operator wants it so");
    assert!(takes(8, 7, |its| its.synced = false));
}

#[test]
fn the_holder_s_flows_are_counted_once_a_second_and_no_more_once_it_is_gone() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    let told = |bench: &Bench| {
        let mut counts =
            bench.orders.iter().filter_map(|it| if let VipOrder::Tell(it) = it { Some(it.flows_here) } else { None });
        counts.next_back().unwrap()
    };
    for count in 0..200 {
        bench.peers[0].flows_here = count;
        bench.run(10);
    }
    let tells = bench.orders.iter().filter(|it| matches!(it, VipOrder::Tell(_))).count();
    assert!((2..5).contains(&tells), "{tells}");
    assert_eq!(told(&bench), 100);
    bench.peers[0].silence_ns = Some(SILENT_NS);
    bench.peers[0].flows_here = 5;
    bench.run(100);
    assert_eq!(told(&bench), 100, "while it asks");
    assert!(bench.run(100).is_some());
    assert_eq!(told(&bench), 0, "the flows are its own now");
}

#[test]
fn an_evacuation_names_its_heir_and_the_heir_comes_first_if_it_is_synced_and_ready() {
    let takes = |change: fn(&mut VipStanding)| {
        let mut bench = Bench::new(vec![peer("lb-a", VipPart::Stands), peer("lb-c", VipPart::Out)]);
        bench.standing(0).priority = 9;
        bench.standing(1).heir = Some(named("lb-b").tag());
        change(bench.standing(1));
        bench.run(250).is_some()
    };
    assert!(takes(|_| {}), "lb-c names lb-b");
    assert!(!takes(|its| its.heir = None));
    assert!(!takes(|its| its.heir = Some(named("lb-a").tag())));
    let named_and = |change: fn(&mut VipStanding)| {
        let mut bench = Bench::new(vec![peer("lb-a", VipPart::Stands), peer("lb-c", VipPart::Out)]);
        bench.standing(1).heir = Some(named("lb-a").tag());
        change(bench.standing(0));
        bench.run(250).is_none()
    };
    assert!(named_and(|its| its.damped = true), "an operator wants it so");
    assert!(!named_and(|its| its.ready = false));
    assert!(!named_and(|its| its.part = VipPart::Out), "it cannot");
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.bar = Some(VipBar::Evacuated { to: Some(named("lb-a")) });
    bench.run(10);
    let mut told = bench.orders.iter().filter_map(|it| if let VipOrder::Tell(it) = it { it.heir } else { None });
    assert_eq!(told.next_back(), Some(named("lb-a").tag()));
    assert_eq!(bench.view().why, "this instance gave it up a moment ago");
    bench.run(1000);
    assert_eq!(bench.view().why, "`baton evacuate --to lb-a` empties this host");
}

/// Regression: the kernel did not kill a hung owner whose only peer had given it the VIP by an evacuation.
#[test]
fn an_evacuated_peer_counts_as_an_heir_and_one_that_is_out_for_another_reason_does_not() {
    let has_heir = |part, heir| {
        let mut bench = Bench::holding(vec![peer("lb-a", part)]);
        let standing = bench.standing(0);
        (standing.heir, standing.ready) = (heir, part != VipPart::Out);
        bench.machine.has_heir(&bench.look())
    };
    assert!(has_heir(VipPart::Stands, None) && has_heir(VipPart::Out, Some(named("lb-a").tag())));
    assert!(!has_heir(VipPart::Out, None));
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    bench.bar = Some(VipBar::Evacuated { to: None });
    bench.run(10);
    let mut told = bench.orders.iter().filter_map(|it| if let VipOrder::Tell(it) = it { it.heir } else { None });
    assert_eq!(told.next_back(), Some(named("lb-b").tag()), "itself, as no other is named");
}

#[test]
fn people_see_which_peers_have_how_many_of_the_flows() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands), peer("lb-c", VipPart::Stands)]);
    let last = |bench: &Bench| bench.view().would_move.pop().unwrap();
    assert!(!last(&bench).contains("fewest"), "{}", last(&bench));
    (bench.standing(0).flows_here, bench.standing(1).flows_here) = (12, 3);
    let expected = "of equal peers the one with the fewest of this instance's offloaded flows to its own host takes it: lb-a 12, lb-c 3";
    assert_eq!(last(&bench), expected);
    assert!(bench.view().would_move[0].starts_with("lb-c takes it"));
}

#[test]
fn the_next_holder_is_the_best_that_could_take_the_vip_and_may_be_this_instance() {
    let next = |bench: &Bench| bench.view().next.map(|name| name.to_string());
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands), peer("lb-c", VipPart::Stands)]);
    assert_eq!(next(&bench).as_deref(), Some("lb-a"));
    bench.standing(0).part = VipPart::Out;
    assert_eq!(next(&bench).as_deref(), Some("lb-c"));
    bench.standing(1).hears = false;
    assert_eq!(next(&bench), None, "the holder does not follow itself");

    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds), peer("lb-c", VipPart::Stands)]);
    bench.run(100);
    assert_eq!(next(&bench).as_deref(), Some("lb-b"), "this instance has the higher priority");
    bench.bar = Some(VipBar::Evacuated { to: None });
    bench.run(100);
    assert_eq!(next(&bench).as_deref(), Some("lb-c"));
    bench.peers[1].silence_ns = Some(SILENT_NS);
    assert_eq!(next(&bench), None);
}

#[test]
fn whoever_comes_first_and_does_nothing_is_waited_for_only_for_moments() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Stands)]);
    bench.standing(0).priority = 9;
    assert_eq!(bench.run(1000), Some(430));
}

#[test]
fn a_holder_that_only_another_peer_hears_keeps_the_vip() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds), peer("lb-c", VipPart::Stands)]);
    bench.peers[0].silence_ns = Some(5000 * MS);
    bench.standing(1).holder = Some(named("lb-a").tag());
    assert_eq!(bench.run(3000), None);
    assert_eq!(bench.view().why, "lb-c hears that lb-a has it");
    // The word of the named instance itself is newer.
    bench.peers[0].silence_ns = Some(0);
    bench.standing(0).part = VipPart::Out;
    assert!(bench.run(1000).is_some());
}

/// Regression: after a moment in which the holder was not heard, people read that it had the VIP since then.
#[test]
fn a_holder_that_was_not_heard_for_a_moment_has_held_the_vip_all_the_same() {
    let mut bench = Bench::new(vec![peer("lb-a", VipPart::Holds)]);
    bench.deaf = true;
    bench.run(5000);
    bench.peers[0].silence_ns = Some(SILENT_NS);
    bench.run(50);
    bench.peers[0].silence_ns = Some(0);
    bench.run(1000);
    let view = bench.view();
    assert_eq!(view.why, "lb-a has it");
    assert!(view.for_ms >= 6000, "{} ms", view.for_ms);
}

#[test]
fn a_vip_that_moves_to_and_fro_stays_where_it_is_for_a_while() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    for claim in [10, 20, 30, 40] {
        (bench.standing(0).part, bench.standing(0).claim) = (VipPart::Holds, claim);
        bench.run(1000);
        assert!(!bench.machine.holds());
        (bench.standing(0).part, bench.standing(0).hears) = (VipPart::Stands, false);
        bench.run(2000);
        assert!(bench.machine.holds(), "nobody else could have it");
        bench.standing(0).hears = true;
    }
    assert!(bench.view().damped);
    bench.now_ns += 1;
    (bench.standing(0).part, bench.standing(0).claim) = (VipPart::Holds, 90);
    bench.run(1000);
    bench.standing(0).part = VipPart::Stands;
    assert_eq!(bench.run(250), None, "lb-a comes first, although lb-b has the higher priority");
}

#[test]
fn addresses_that_cannot_be_added_are_given_up_for_a_while() {
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    let now_ns = bench.now_ns;
    bench.machine.handle_failed("not permitted".to_owned(), now_ns);
    // The caller carries out the orders before the next look.
    while let Some(order) = bench.machine.poll_order() {
        assert!(matches!(order, VipOrder::Remove { .. } | VipOrder::Note(_)), "{order:?}");
    }
    bench.here = VipPresence::Absent;
    bench.run(1000);
    assert_eq!(bench.view().why, "this host cannot have the addresses: not permitted");
    assert_eq!(bench.view().part, VipPart::Out);
    assert!(bench.run(6000).is_some());
}

/// Regression: events and hooks said that the host had the VIP, and peers heard so too.
#[test]
fn a_vip_that_the_kernel_refuses_is_neither_noted_nor_told_as_held() {
    let mut bench = Bench::new(Vec::new());
    let mut refused = 0;
    while refused < 3 {
        bench.now_ns += 10 * MS;
        bench.heard_ns = bench.now_ns;
        let mut machine = VipMachine::new(bench.machine.settings.clone());
        std::mem::swap(&mut machine, &mut bench.machine);
        let look = bench.look();
        machine.handle_look(&look);
        while let Some(order) = machine.poll_order() {
            match order {
                VipOrder::Add => {
                    machine.handle_failed("refused".to_owned(), bench.now_ns);
                    refused += 1;
                }
                VipOrder::Tell(standing) => assert_ne!(standing.part, VipPart::Holds),
                VipOrder::Ask | VipOrder::Remove { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(!machine.holds());
        bench.machine = machine;
    }
    // An address that cannot be added again is a loss, and no restored VIP.
    let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
    (bench.here, bench.now_ns) = (VipPresence::Partial, bench.now_ns + 10 * MS);
    let mut machine = VipMachine::new(bench.machine.settings.clone());
    std::mem::swap(&mut machine, &mut bench.machine);
    machine.handle_look(&bench.look());
    assert_eq!(machine.poll_order(), Some(VipOrder::Add));
    machine.handle_failed("refused".to_owned(), bench.now_ns);
    let loss = VipNote::Lost(VipLoss::Barred(VipBar::Failed { error: "refused".to_owned() }));
    let orders: Vec<_> = std::iter::from_fn(|| machine.poll_order()).collect();
    assert_eq!(orders, [VipOrder::Remove { serves: true }, VipOrder::Note(loss)]);
}

#[test]
fn a_question_that_was_not_sent_does_not_count() {
    let mut bench = Bench::new(Vec::new());
    for _ in 0..3 {
        while !bench.machine.takes() {
            bench.run(10);
        }
        assert_eq!(bench.run(90), None, "it has asked three times");
        let now_ns = bench.now_ns;
        bench.machine.handle_unasked("network is down".to_owned(), now_ns);
        assert_eq!(bench.run(100), None);
        assert_eq!(bench.view().why, "this host could not ask whether another host has the addresses: network is down");
    }
    bench.orders.clear();
    assert!(bench.run(1000).is_some());
    assert_eq!(bench.orders.iter().filter(|it| **it == VipOrder::Ask).count(), 3);
}

#[test]
fn the_same_addresses_have_the_same_number_in_any_order_and_others_another() {
    let [one, two] = ["10.0.0.100", "fd00::100"].map(|ip| ip.parse().unwrap());
    assert_eq!(address_set(&[one, two]), address_set(&[two, one]));
    assert_ne!(address_set(&[one, two]), address_set(&[one]));
}

#[test]
fn a_holder_that_is_asked_for_the_vip_and_hears_nobody_by_ip_gives_it_up_and_waits_for_the_asker() {
    let deaf = || {
        let mut bench = Bench::holding(vec![peer("lb-a", VipPart::Stands)]);
        bench.peers[0].silence_ns = Some(SECOND_NS);
        bench
    };
    let asked = |bench: &mut Bench, ms: u64| {
        for _ in 0..ms / 100 {
            bench.machine.handle_rival([2; 6], [3; 6], bench.now_ns);
            bench.run(100);
        }
    };
    let mut unasked = deaf();
    unasked.run(10_000);
    assert!(unasked.machine.holds(), "its peer is dead");
    let mut serving = deaf();
    for _ in 0..50 {
        serving.socket_ns = serving.now_ns;
        asked(&mut serving, 200);
    }
    assert!(serving.machine.holds(), "it serves clients, and its peer is the deaf one");
    let mut bench = deaf();
    asked(&mut bench, 1000);
    assert!(bench.machine.holds(), "a backend may answer yet");
    assert!(bench.orders.contains(&VipOrder::Rouse));
    asked(&mut bench, 1000);
    assert_eq!(bench.lost(), Some(&VipLoss::Deaf));
    let again_ms = bench.run(10_000);
    assert!(
        again_ms.is_some_and(|ms| ms > 2500),
        "{again_ms:?}: the asker comes first, and if it does not take it, this host does"
    );
}
