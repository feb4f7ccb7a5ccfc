//! The instances that would have the VIP after the death of one, and why the others would not.

use crate::model::fleet::evacuate::VIP_GIVEN;
use crate::model::fleet::vip::{VipPart, VipPeerView, VipView};
use crate::model::fleet::{Farewell, InstanceName, LastHeard, Liveness, MemberView, NOT_LISTENING};

/// An instance that lives on, as far as it matters for the VIP.
#[derive(Clone, Debug)]
pub(super) struct Survivor {
    pub name: InstanceName,
    /// `None`: it is heard.
    pub unheard: Option<Liveness>,
    /// It is not heard, and nothing says that it does not run: it may be this host that is cut off from it.
    pub may_live: bool,
    pub last_heard: LastHeard,
    /// Why it should not have the VIP, as it says itself; empty: it should.
    pub not_ready: Vec<String>,
    /// `None`: it says nothing about a VIP that Baton moves.
    pub standing: Option<VipPeerView>,
    pub has_vip: bool,
    /// It has all flows of the instance that dies, as far as this one knows.
    pub knows: bool,
}

/// The program that moves the VIP.
#[derive(Clone, Copy, Debug)]
pub(super) enum VipMover<'a> {
    /// Baton itself; `None`: it has not looked at the VIP yet.
    BuiltIn(Option<&'a VipView>),
    /// keepalived or another one, which asks `baton ready`.
    AsksBaton,
    /// Another one, which does not ask.
    Ignorant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VipSuccession {
    /// One of these would have the VIP; empty: no instance would.
    pub takers: Vec<VipTaker>,
    /// Why not the others, a sentence each.
    pub refusals: Vec<String>,
    /// The VIP leaves the host for one of them, also if that lives on without its process.
    pub moves: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VipTaker {
    pub name: InstanceName,
    pub knows: bool,
    /// Why it would serve no client all the same.
    pub unready: Option<String>,
}

impl Survivor {
    /// `knows`: it has all flows of the instance that dies.
    pub(super) fn of_peer(peer: &MemberView, mover: VipMover<'_>, knows: bool) -> Self {
        let said = peer.summary.as_ref().filter(|it| it.is_present).map(|it| &it.summary);
        let reasons = said.map(|it| it.not_ready.iter().chain(&it.not_live).cloned().collect());
        let unheard = match peer.liveness {
            Liveness::Alive | Liveness::Unlinked | Liveness::Left(Farewell::Succeeded) => None,
            other => Some(other),
        };
        let standing = mover.view().and_then(|view| view.peers.iter().find(|it| it.name == peer.name)).cloned();
        let is_silent = matches!(peer.liveness, Liveness::Dead | Liveness::Silent | Liveness::Unheard);
        Self {
            name: peer.name.clone(),
            unheard,
            may_live: is_silent && peer.why_not.as_deref() != Some(NOT_LISTENING),
            last_heard: peer.last_heard,
            not_ready: reasons.unwrap_or_default(),
            standing,
            has_vip: !peer.vips.is_empty(),
            knows,
        }
    }

    /// This instance, while a peer dies.
    pub(super) fn this(name: InstanceName, not_ready: Vec<String>, mover: VipMover<'_>, has_vip: bool) -> Self {
        let standing = mover.view().map(|view| VipPeerView {
            name: name.clone(),
            part: Some(view.part),
            ready: view.ready,
            synced: view.synced,
            hears: view.hears,
            damped: view.damped,
            priority: view.priority,
            flows_here: 0,
            heard: true,
            has_address: has_vip,
            other_vip: false,
        });
        let out = mover.view().filter(|view| view.part == VipPart::Out).map(|view| view.why.clone());
        let not_ready = not_ready.into_iter().chain(out).collect();
        let last_heard = LastHeard::default();
        Self { name, unheard: None, may_live: false, last_heard, not_ready, standing, has_vip, knows: true }
    }

    /// As it would be if it lived, and could take the VIP: what it said last is old.
    pub(super) fn alive(self) -> Self {
        let standing = self.standing.map(|its| VipPeerView {
            part: its.part.filter(|part| *part != VipPart::Out).or(Some(VipPart::Stands)),
            ready: true,
            hears: true,
            heard: true,
            ..its
        });
        Self { unheard: None, may_live: false, not_ready: Vec::new(), standing, knows: true, ..self }
    }

    fn is_evacuated(&self) -> bool {
        self.not_ready.iter().any(|why| why == VIP_GIVEN)
    }

    /// Why it could not take the VIP. Where Baton moves the VIP, an instance that is not ready takes it if no other can.
    fn obstacle(&self, mover: VipMover<'_>) -> Option<String> {
        let its = self.standing.as_ref();
        if let Some(liveness) = self.unheard {
            let until =
                if matches!(liveness, Liveness::Dead | Liveness::Left(_)) { " until Baton runs there" } else { "" };
            return Some(format!("it is {}{until}", liveness.label()));
        }
        let is_barred = match mover {
            VipMover::BuiltIn(Some(_)) => its.is_some_and(|its| its.heard && its.part == Some(VipPart::Out)),
            VipMover::AsksBaton => !self.not_ready.is_empty(),
            VipMover::BuiltIn(None) | VipMover::Ignorant => self.is_evacuated(),
        };
        if is_barred {
            return Some(match self.not_ready.first() {
                _ if self.is_evacuated() => EVACUATED.to_owned(),
                Some(why) => format!("it says: {why}"),
                None => "it must not or cannot have it now (see baton vip --why there)".to_owned(),
            });
        }
        if !matches!(mover, VipMover::BuiltIn(Some(_))) {
            return None;
        }
        match its {
            Some(its) if its.heard && its.other_vip => Some("its [vip] has other addresses".to_owned()),
            Some(its) if !its.heard => Some("it is silent".to_owned()),
            None | Some(VipPeerView { part: None, .. }) => Some("it says nothing about the VIP".to_owned()),
            Some(its) => (!its.hears).then(|| "it hears neither its gateway nor a backend nor a client".to_owned()),
        }
    }

    fn taker(&self) -> VipTaker {
        let unready = match &self.standing {
            Some(its) if its.heard && !its.ready => {
                self.not_ready.first().cloned().or_else(|| Some(NO_BACKEND.to_owned()))
            }
            Some(_) => None,
            None => self.not_ready.first().cloned(),
        };
        VipTaker { name: self.name.clone(), knows: self.knows, unready }
    }
}

impl<'a> VipMover<'a> {
    fn view(self) -> Option<&'a VipView> {
        match self {
            Self::BuiltIn(view) => view,
            Self::AsksBaton | Self::Ignorant => None,
        }
    }
}

impl VipSuccession {
    /// `has_vip`: the VIP is on the host of the instance that dies. The order of the survivors is kept.
    pub(super) fn of(survivors: &[Survivor], has_vip: bool, mover: VipMover<'_>) -> Self {
        let named = |name: &InstanceName| survivors.iter().filter(move |it| it.name == *name).collect::<Vec<_>>();
        let view = mover.view();
        let holder = view.and_then(|view| view.holder.as_ref()).map(named).filter(|it| !it.is_empty());
        let holders = || survivors.iter().filter(|it| it.has_vip && it.unheard.is_none()).collect::<Vec<_>>();
        let able = || survivors.iter().filter(|it| it.obstacle(mover).is_none()).collect::<Vec<_>>();
        let next = || view.and_then(|view| view.next.as_ref()).map(named).filter(|it| !it.is_empty());
        let takers = match (holder, holders()) {
            (Some(holder), _) => holder,
            (None, holders) if !has_vip && !holders.is_empty() => holders,
            (None, _) => next().unwrap_or_else(able),
        };
        let refusal = |it: &Survivor| Some(format!("{} would not take the VIP: {}.", it.name, it.obstacle(mover)?));
        let refusals = if takers.is_empty() { survivors.iter().filter_map(refusal).collect() } else { Vec::new() };
        let moves = has_vip && !takers.is_empty() && !matches!(mover, VipMover::Ignorant);
        Self { takers: takers.into_iter().map(Survivor::taker).collect(), refusals, moves }
    }

    pub(super) fn names(&self) -> String {
        self.takers.iter().map(|it| it.name.to_string()).collect::<Vec<_>>().join(" or ")
    }

    /// Why none of them would serve, if that is so.
    pub(super) fn unready(&self) -> Option<&str> {
        let all = || self.takers.iter();
        all().all(|it| it.unready.is_some()).then(|| all().next()?.unready.as_deref()).flatten()
    }
}

/// That it is not known whether `silent` live, and what follows from it: one sentence each. `offloaded`: flows of the instance that dies.
pub(super) fn doubt(silent: &[Survivor], is_cut_off: bool, offloaded: u64, longest_gap: Option<String>) -> Vec<String> {
    let names = silent.iter().map(|it| it.name.to_string()).collect::<Vec<_>>().join(" and ");
    let (is, it, lives, its) =
        if silent.len() == 1 { ("is", "it", "lives", "is dead") } else { ("are", "they", "live", "are dead") };
    let of_one = |it: &Survivor| match it.last_heard.in_words() {
        heard if heard.is_empty() => None,
        heard if silent.len() == 1 => Some(heard),
        heard => Some(format!("{}: {heard}", it.name)),
    };
    let last: Vec<_> = silent.iter().filter_map(of_one).collect();
    let last = if last.is_empty() { String::new() } else { format!(" (last {})", last.join("; ")) };
    let heard = format!(
        "{names} {is} not heard{last}: from this host it cannot be known whether {it} {is} dead or only cut off from it."
    );
    let own =
        "This host itself is cut off: the others decide without it, and may have the VIP and these flows already.";
    let carries = match offloaded {
        0 => String::new(),
        _ => format!(", and carries on the offloaded flows that it was told of (of {offloaded})"),
    };
    let gap = longest_gap.map_or_else(String::new, |gap| format!(" (longest gap {gap})"));
    let one = if silent.len() == 1 { "it" } else { "one of them" };
    let outcomes = format!(
        "If {names} {lives}, {one} takes the VIP{gap}{carries}; if {it} {its}, no instance takes it, and clients wait until one does."
    );
    is_cut_off.then(|| own.to_owned()).into_iter().chain([heard, outcomes]).collect()
}

const EVACUATED: &str = "its host is evacuated, and `baton evacuate --cancel` there lets it have the VIP again";
const NO_BACKEND: &str = "it can use no backend";

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> InstanceName {
        InstanceName(name.into())
    }

    fn standing(name: &str, part: VipPart) -> VipPeerView {
        VipPeerView {
            name: named(name),
            part: Some(part),
            ready: part != VipPart::Out,
            synced: true,
            hears: true,
            damped: false,
            priority: 100,
            flows_here: 0,
            heard: true,
            has_address: false,
            other_vip: false,
        }
    }

    fn survivor(name: &str, part: VipPart) -> Survivor {
        Survivor {
            name: named(name),
            unheard: None,
            may_live: false,
            last_heard: LastHeard::default(),
            not_ready: Vec::new(),
            standing: Some(standing(name, part)),
            has_vip: false,
            knows: true,
        }
    }

    fn outside(name: &str, not_ready: &[&str]) -> Survivor {
        let not_ready = not_ready.iter().map(|&why| why.to_owned()).collect();
        Survivor { standing: None, not_ready, ..survivor(name, VipPart::Stands) }
    }

    fn names(succession: &VipSuccession) -> String {
        succession.names()
    }

    /// Regression: an evacuated instance, which takes no VIP, was said to carry the flows on.
    #[test]
    fn an_evacuated_instance_takes_no_vip_and_the_order_that_lets_it_is_named() {
        let evacuated = |part| Survivor { not_ready: vec![VIP_GIVEN.to_owned()], ..survivor("lb-b", part) };
        let view = VipView { holder: Some(named("lb-a")), ..VipView::default() };
        let built_in = VipMover::BuiltIn(Some(&view));
        for (of, mover) in [
            (evacuated(VipPart::Out), built_in),
            (outside("lb-b", &[VIP_GIVEN]), VipMover::AsksBaton),
            (outside("lb-b", &[VIP_GIVEN]), VipMover::Ignorant),
        ] {
            let none = VipSuccession::of(&[of], true, mover);
            assert_eq!(names(&none), "", "{mover:?}");
            assert_eq!(none.refusals.len(), 1);
            assert!(none.refusals[0].contains("baton evacuate --cancel"), "{none:?}");
        }
        // What it says of itself comes once a second, its standing at once.
        assert_eq!(names(&VipSuccession::of(&[evacuated(VipPart::Stands)], true, built_in)), "lb-b");
    }

    #[test]
    fn each_obstacle_to_the_built_in_vip_counts() {
        let view = VipView { holder: Some(named("lb-a")), ..VipView::default() };
        let of = |it: Survivor| VipSuccession::of(&[it], true, VipMover::BuiltIn(Some(&view)));
        let with = |change: fn(&mut VipPeerView)| {
            let mut it = survivor("lb-b", VipPart::Stands);
            change(it.standing.as_mut().expect("it stands"));
            it
        };
        assert_eq!(names(&of(with(|_| {}))), "lb-b");
        assert_eq!(names(&of(with(|it| it.damped = true))), "lb-b", "nobody else can");
        let cases = [
            (with(|it| it.part = Some(VipPart::Out)), "see baton vip --why"),
            (with(|it| it.hears = false), "hears neither"),
            (with(|it| it.heard = false), "it is silent"),
            (with(|it| it.other_vip = true), "other addresses"),
            (with(|it| it.part = None), "says nothing"),
            (outside("lb-b", &[]), "says nothing"),
            (Survivor { unheard: Some(Liveness::Dead), ..survivor("lb-b", VipPart::Stands) }, "dead until Baton runs"),
            (
                Survivor {
                    not_ready: vec!["this instance is stopping: draining".to_owned()],
                    ..survivor("lb-b", VipPart::Out)
                },
                "it says: this instance is stopping: draining",
            ),
        ];
        for (it, why) in cases {
            let none = of(it);
            assert_eq!(names(&none), "", "{why}");
            assert!(none.refusals[0].contains(why), "{none:?}");
        }
        let unready = of(with(|it| it.ready = false));
        assert_eq!((&*names(&unready), unready.unready()), ("lb-b", Some("it can use no backend")));
    }

    #[test]
    fn the_fleets_own_rule_says_which_of_several_takes_the_vip_and_a_holder_keeps_it() {
        let view = VipView { holder: Some(named("lb-a")), next: Some(named("lb-c")), ..VipView::default() };
        let both = [survivor("lb-b", VipPart::Stands), survivor("lb-c", VipPart::Stands)];
        assert_eq!(names(&VipSuccession::of(&both, true, VipMover::BuiltIn(Some(&view)))), "lb-c");
        // lb-c dies, and the VIP stays where it is.
        let holder = Survivor { has_vip: true, ..survivor("lb-a", VipPart::Holds) };
        let others = [holder, survivor("lb-b", VipPart::Out)];
        assert_eq!(names(&VipSuccession::of(&others, false, VipMover::BuiltIn(Some(&view)))), "lb-a");
    }

    /// Regression: "no instance would take the VIP: lb-b is dead until Baton runs there" was said of a peer from which the network was cut, and
    /// which took it.
    #[test]
    fn of_a_peer_that_is_only_not_heard_both_outcomes_are_told() {
        let view = VipView { holder: Some(named("lb-a")), ..VipView::default() };
        let built_in = VipMover::BuiltIn(Some(&view));
        let silent = |name: &str| {
            let standing = VipPeerView { heard: false, hears: false, part: None, ..standing(name, VipPart::Out) };
            let unheard = Some(Liveness::Dead);
            Survivor { unheard, may_live: true, standing: Some(standing), ..survivor(name, VipPart::Out) }
        };
        assert_eq!(names(&VipSuccession::of(&[silent("lb-b")], true, built_in)), "");
        let lives = VipSuccession::of(&[silent("lb-b").alive()], true, built_in);
        assert_eq!((&*names(&lives), lives.moves, lives.takers[0].knows), ("lb-b", true, true));
        assert_eq!(
            doubt(&[silent("lb-b")], false, 12, Some("12.5s".to_owned())),
            [
                "lb-b is not heard: from this host it cannot be known whether it is dead or only cut off from it.",
                "If lb-b lives, it takes the VIP (longest gap 12.5s), and carries on the offloaded flows that it was told of (of 12); if it is dead, no instance takes it, and clients wait until one does.",
            ]
        );
        let last_heard = LastHeard { link_ms: Some(12_300), beat_ms: Some(12_100), others_ms: None };
        let told = doubt(&[Survivor { last_heard, ..silent("lb-b") }], false, 12, None);
        assert!(
            told[0].starts_with("lb-b is not heard (last 12 s ago by its link, 12 s ago by a beat): from"),
            "{told:?}"
        );
        let both = doubt(&[silent("lb-b"), silent("lb-c")], true, 0, None);
        assert!(both[0].starts_with("This host itself is cut off: the others decide without it"), "{both:?}");
        assert!(both[2].starts_with("If lb-b and lb-c live, one of them takes the VIP; if they are dead"), "{both:?}");
    }

    #[test]
    fn another_program_gives_the_vip_to_any_that_is_ready_if_it_asks() {
        let starting = "this instance is starting";
        let all = [outside("lb-b", &[starting]), outside("lb-c", &[]), outside("lb-d", &[])];
        assert_eq!(names(&VipSuccession::of(&all, true, VipMover::AsksBaton)), "lb-c or lb-d");
        let ignorant = VipSuccession::of(&all[..1], true, VipMover::Ignorant);
        assert_eq!((&*names(&ignorant), ignorant.unready()), ("lb-b", Some(starting)));
        let none = VipSuccession::of(&all[..1], true, VipMover::AsksBaton);
        assert_eq!(none.refusals, ["lb-b would not take the VIP: it says: this instance is starting."]);
        // The VIP is at lb-b and stays there.
        let holder = Survivor { has_vip: true, ..outside("lb-b", &[starting]) };
        assert_eq!(names(&VipSuccession::of(&[holder, outside("lb-c", &[])], false, VipMover::AsksBaton)), "lb-b");
    }
}
