//! Judges whether the silence of a backend proves anything: a host that has lost its own network hears nobody.
//!
//! ```text
//!            silent, and so is whoever else should be heard          somebody is heard
//!   Trusted ───────────────────────────────────────────────▶ Deaf ─────────────────────▶ Proven
//!      ▲                                                      ▲ │                          │
//!      │                      the backend answers             │ └──────────────────────────┤
//!      └──────────────────────────────────────────────────────┼────────────────────────────┘
//!                                                             └── silent, and nobody was heard lately
//! ```
//! In **Deaf** the machine leaves the backend's flows alone. In **Proven** earlier evidence against the backend is
//! discarded: this host may have been the cause. Later evidence counts, as long as this host goes on hearing somebody.
//!
//! In any state, a silent probe counts only if it began after the network had settled. That somebody is heard again
//! proves that packets come in, not that earlier packets went out, nor that the kernel has found the backend's hardware
//! address again.

/// Who else this host hears. Times are monotonic nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// Whether peers, or the carrier itself, should be heard and are not.
    pub are_dark: bool,
    /// When another backend or a client was last heard; 0: never.
    pub heard_ns: u64,
    /// When this host's network last came back; 0: it was never away.
    pub back_ns: u64,
}

/// The judgement on a silent probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It counts: the backend may be dead. Its flows are left alone while nobody is heard.
    Counts,
    /// Neither it nor earlier ones count: the network has not settled.
    Nothing,
    /// As `Nothing`; and because somebody is heard by now, the backend must be probed at once.
    Anew,
}

/// A silent probe proves nothing unless somebody was heard within this time before it began. Challenged clients answer
/// once in 500 ms (tcp_invalid_ratelimit).
const FRESH_NS: u64 = 600_000_000;

/// After the link was down, the kernel repeats an unanswered neighbour request only after this time (`retrans_time_ms`,
/// arp(7)); until then packets to that neighbour wait.
const SETTLE_NS: u64 = 1_000_000_000;

/// Limit for this wait: a network that flaps must not hide a dead backend for longer.
const SETTLE_MAX_NS: u64 = 3 * SETTLE_NS;

/// See the module. One for each backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubt {
    state: DoubtState,
    /// When the first probe began before the network had settled, since the last answer, or since nobody was heard.
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
    /// A probe was answered, by any answer.
    pub(crate) fn handle_answer(&mut self) {
        *self = Self::default();
    }

    /// A probe that began at `began_ns` got no answer.
    pub(crate) fn handle_silence(&mut self, began_ns: u64, around: Surroundings) -> Silence {
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

    /// Checks again while nobody is heard. True: somebody is by now, as for [`Silence::Anew`].
    pub(crate) fn look(&mut self, around: Surroundings) -> bool {
        match self.state {
            DoubtState::Deaf { since_ns } if !around.are_dark || around.heard_ns > since_ns => {
                let since_ns = if around.are_dark { around.heard_ns } else { around.back_ns };
                *self = Self { state: DoubtState::Proven { since_ns }, unsettled_ns: None };
                true
            }
            _ => false,
        }
    }

    /// Judges a probe that began at `began_ns`, in a network that has been back since `since_ns`.
    fn settle(&mut self, began_ns: u64, since_ns: u64) -> Silence {
        let is_settled = since_ns == 0 || began_ns >= since_ns.saturating_add(SETTLE_NS);
        if is_settled || began_ns >= self.unsettled_ns.get_or_insert(began_ns).saturating_add(SETTLE_MAX_NS) {
            return Silence::Counts;
        }
        Silence::Nothing
    }

    /// Whether nobody is heard, so that the backend may be well.
    pub(crate) fn is_deaf(&self) -> bool {
        matches!(self.state, DoubtState::Deaf { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIGHT: Surroundings = Surroundings { are_dark: false, heard_ns: 0, back_ns: 0 };

    const MS: u64 = 1_000_000;

    /// Somebody was last heard at that time, and peers are silent.
    fn dark(heard_ms: u64) -> Surroundings {
        Surroundings { are_dark: true, heard_ns: heard_ms * MS, back_ns: 0 }
    }

    /// The network has been back since that time.
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
        // The network is back: earlier evidence is discarded, later evidence counts.
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
