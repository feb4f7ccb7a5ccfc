//! Whether the silence of a backend says anything of it: a host that has lost its own network hears nobody.
//!
//! ```text
//!            silent, and so is whoever else should be heard          somebody is heard
//!   Trusted ───────────────────────────────────────────────▶ Deaf ─────────────────────▶ Proven
//!      ▲                                                      ▲ │                          │
//!      │                      the backend answers             │ └──────────────────────────┤
//!      └──────────────────────────────────────────────────────┼────────────────────────────┘
//!                                                             └── silent, and nobody was heard lately
//! ```
//! In **Deaf** the backend's flows are left alone. In **Proven** what was counted against it so far does not count: it may
//! have been this host's fault. What is counted from then on does, as long as somebody goes on being heard.
//!
//! In any state a network must have settled before a probe that stays silent counts: whoever is heard again proves that packets
//! come in, not that those went out which were sent before, nor that the backend's hardware address is found again.

/// What else this host hears. Times are monotonic nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Others should be heard, and are not: peers, or the wire itself.
    pub are_dark: bool,
    /// When another backend or a client was last heard; 0: never.
    pub heard_ns: u64,
    /// When this host's network was last found to be back; 0: it never was away.
    pub back_ns: u64,
}

/// What the silence of a backend says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// That it may be dead, if flows are left alone while nobody is heard.
    Counts,
    /// Nothing, nor do those before it: the network has not settled.
    Nothing,
    /// As that; and as somebody is heard by now, it is to be asked at once.
    Anew,
}

/// Before a probe began, somebody must have been heard within this, or it says nothing. Clients that are asked answer once in
/// 500 ms (tcp_invalid_ratelimit).
const FRESH_NS: u64 = 600_000_000;

/// A neighbour that was asked for while the wire was away is asked for again only after this (`retrans_time_ms`, arp(7)); until
/// then what is sent to it waits.
const SETTLE_NS: u64 = 1_000_000_000;

/// A network that comes and goes hides a dead backend for no longer.
const SETTLE_MAX_NS: u64 = 3 * SETTLE_NS;

/// See the module. One for each backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    state: DoubtState,
    /// When the first probe began that the network had not settled for, since there was an answer, or nobody was heard.
    unsettled_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DoubtState {
    #[default]
    Trusted,
    Deaf {
        since_ns: u64,
    },
    Proven {
        since_ns: u64,
    },
}

impl Doubt {
    /// A probe was answered, in whatever way.
    pub fn handle_answer(&mut self) {
        *self = Self::default();
    }

    /// A probe that began at `began_ns` has heard nothing.
    pub fn handle_silence(&mut self, began_ns: u64, around: Surroundings) -> Silence {
        match self.state {
            DoubtState::Trusted if around.are_dark => self.state = DoubtState::Deaf { since_ns: began_ns },
            DoubtState::Proven { .. } if around.are_dark && around.heard_ns.saturating_add(FRESH_NS) <= began_ns => {
                self.state = DoubtState::Deaf { since_ns: began_ns }
            }
            _ => {}
        }
        if self.look(around) {
            return Silence::Anew;
        }
        match self.state {
            DoubtState::Deaf { .. } => Silence::Counts,
            DoubtState::Proven { since_ns } => self.settle(began_ns, since_ns.max(around.back_ns)),
            DoubtState::Trusted => self.settle(began_ns, around.back_ns),
        }
    }

    /// Looks again while nobody is heard. True: somebody is by now, as for [`Silence::Anew`].
    pub fn look(&mut self, around: Surroundings) -> bool {
        match self.state {
            DoubtState::Deaf { since_ns } if !around.are_dark || around.heard_ns > since_ns => {
                let since_ns = if around.are_dark { around.heard_ns } else { around.back_ns };
                *self = Self { state: DoubtState::Proven { since_ns }, unsettled_ns: None };
                true
            }
            _ => false,
        }
    }

    /// Of a probe that began at `began_ns`, in a network that is there since `since_ns`.
    fn settle(&mut self, began_ns: u64, since_ns: u64) -> Silence {
        let is_settled = since_ns == 0 || began_ns >= since_ns.saturating_add(SETTLE_NS);
        if is_settled || began_ns >= self.unsettled_ns.get_or_insert(began_ns).saturating_add(SETTLE_MAX_NS) {
            return Silence::Counts;
        }
        Silence::Nothing
    }

    /// Nobody is heard: the backend may be well.
    pub fn is_deaf(&self) -> bool {
        matches!(self.state, DoubtState::Deaf { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIGHT: Surroundings = Surroundings { are_dark: false, heard_ns: 0, back_ns: 0 };

    const MS: u64 = 1_000_000;

    /// Somebody was heard at that time, while peers are silent.
    fn dark(heard_ms: u64) -> Surroundings {
        Surroundings { are_dark: true, heard_ns: heard_ms * MS, back_ns: 0 }
    }

    /// The network is there since that time.
    fn back(back_ms: u64) -> Surroundings {
        Surroundings { back_ns: back_ms * MS, ..LIGHT }
    }

    fn silence(doubt: &mut Doubt, began_ms: u64, around: Surroundings) -> Silence {
        doubt.handle_silence(began_ms * MS, around)
    }

    #[test]
    fn a_silent_backend_is_dead_where_others_are_heard() {
        let mut doubt = Doubt::default();
        assert_eq!(silence(&mut doubt, 1000, LIGHT), Silence::Counts);
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn nothing_is_held_against_a_backend_while_nobody_is_heard() {
        let mut doubt = Doubt::default();
        assert_eq!(silence(&mut doubt, 1000, dark(999)), Silence::Counts);
        assert_eq!(silence(&mut doubt, 1500, dark(999)), Silence::Counts);
        assert!(doubt.is_deaf());
        // The network is back: what was counted does not count, what follows does.
        assert!(doubt.look(dark(2100)));
        assert!(!doubt.is_deaf());
        doubt.handle_answer();
        assert_eq!(doubt, Doubt::default());
    }

    #[test]
    fn a_backend_that_stays_silent_after_somebody_was_heard_is_dead() {
        let mut doubt = Doubt::default();
        silence(&mut doubt, 1000, dark(0));
        assert!(doubt.look(dark(1500)));
        assert_eq!(silence(&mut doubt, 1600, dark(1500)), Silence::Nothing, "too soon");
        assert_eq!(silence(&mut doubt, 2100, dark(2050)), Silence::Nothing);
        assert_eq!(silence(&mut doubt, 2600, dark(2550)), Silence::Counts);
        assert_eq!(silence(&mut doubt, 3100, dark(3050)), Silence::Counts);
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn a_network_that_came_back_for_a_moment_only_proves_nothing() {
        let mut doubt = Doubt::default();
        silence(&mut doubt, 1000, dark(0));
        assert!(doubt.look(dark(1500)));
        assert_eq!(silence(&mut doubt, 1600, dark(1500)), Silence::Nothing);
        assert_eq!(silence(&mut doubt, 2100, dark(1500)), Silence::Counts);
        assert!(doubt.is_deaf());
    }

    #[test]
    fn who_was_heard_while_the_first_probe_waited_is_heard() {
        let mut doubt = Doubt::default();
        assert_eq!(silence(&mut doubt, 1000, dark(1200)), Silence::Anew, "once");
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn peers_that_are_back_end_the_doubt() {
        let mut doubt = Doubt::default();
        silence(&mut doubt, 1000, dark(0));
        assert!(doubt.look(LIGHT));
        assert_eq!(silence(&mut doubt, 1600, LIGHT), Silence::Counts);
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn what_was_asked_before_the_network_was_back_or_a_moment_after_says_nothing() {
        let mut doubt = Doubt::default();
        assert_eq!(silence(&mut doubt, 1000, back(1400)), Silence::Nothing);
        assert_eq!(silence(&mut doubt, 1500, back(1400)), Silence::Nothing);
        assert_eq!(silence(&mut doubt, 2400, back(1400)), Silence::Counts);
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn a_network_that_comes_and_goes_does_not_hide_a_dead_backend() {
        let mut doubt = Doubt::default();
        let mut ends = (0..10).map(|at| 1000 + 500 * at).map(|began_ms| silence(&mut doubt, began_ms, back(began_ms)));
        assert!(ends.by_ref().take(6).all(|silence| silence == Silence::Nothing));
        assert!(ends.all(|silence| silence == Silence::Counts));
        doubt.handle_answer();
        assert_eq!(silence(&mut doubt, 9000, back(9000)), Silence::Nothing, "as at first");
    }
}
