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

/// What else this host hears. Times are monotonic nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Others should be heard, and are not: peers, or the wire itself.
    pub are_dark: bool,
    /// When another backend or a client was last heard; 0: never.
    pub heard_ns: u64,
}

/// Before a probe began, somebody must have been heard within this, or it says nothing. Clients that are asked answer once in
/// 500 ms (tcp_invalid_ratelimit).
const FRESH_NS: u64 = 600_000_000;

/// See the module. One for each backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Trusted,
    Deaf {
        since_ns: u64,
    },
    Proven,
}

impl Doubt {
    /// A probe was answered, in whatever way.
    pub fn handle_answer(&mut self) {
        self.state = State::Trusted;
    }

    /// A probe that began at `began_ns` has heard nothing. True: it says nothing of the backend, nor do those before it, and
    /// counting begins anew.
    pub fn handle_silence(&mut self, began_ns: u64, around: Surroundings) -> bool {
        match self.state {
            State::Trusted if around.are_dark => self.state = State::Deaf { since_ns: began_ns },
            State::Proven if around.are_dark && around.heard_ns.saturating_add(FRESH_NS) <= began_ns => {
                self.state = State::Deaf { since_ns: began_ns }
            }
            _ => {}
        }
        self.look(around)
    }

    /// Looks again while nobody is heard. True: as for [`Doubt::handle_silence`].
    pub fn look(&mut self, around: Surroundings) -> bool {
        match self.state {
            State::Deaf { since_ns } if !around.are_dark || around.heard_ns > since_ns => {
                self.state = State::Proven;
                true
            }
            _ => false,
        }
    }

    /// Nobody is heard: the backend may be well.
    pub fn is_deaf(&self) -> bool {
        matches!(self.state, State::Deaf { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIGHT: Surroundings = Surroundings { are_dark: false, heard_ns: 0 };

    const MS: u64 = 1_000_000;

    /// Somebody was heard at that time, while peers are silent.
    fn dark(heard_ms: u64) -> Surroundings {
        Surroundings { are_dark: true, heard_ns: heard_ms * MS }
    }

    fn silence(doubt: &mut Doubt, began_ms: u64, around: Surroundings) -> bool {
        doubt.handle_silence(began_ms * MS, around)
    }

    #[test]
    fn a_silent_backend_is_dead_where_others_are_heard() {
        let mut doubt = Doubt::default();
        assert!(!silence(&mut doubt, 1000, LIGHT));
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn nothing_is_held_against_a_backend_while_nobody_is_heard() {
        let mut doubt = Doubt::default();
        assert!(!silence(&mut doubt, 1000, dark(999)));
        assert!(!silence(&mut doubt, 1500, dark(999)));
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
        assert!(!silence(&mut doubt, 1600, dark(1500)), "it counts");
        assert!(!silence(&mut doubt, 2100, dark(2050)), "so does this");
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn a_network_that_came_back_for_a_moment_only_proves_nothing() {
        let mut doubt = Doubt::default();
        silence(&mut doubt, 1000, dark(0));
        assert!(doubt.look(dark(1500)));
        assert!(!silence(&mut doubt, 1600, dark(1500)));
        assert!(!silence(&mut doubt, 2100, dark(1500)));
        assert!(doubt.is_deaf());
    }

    #[test]
    fn who_was_heard_while_the_first_probe_waited_is_heard() {
        let mut doubt = Doubt::default();
        assert!(silence(&mut doubt, 1000, dark(1200)), "counting begins anew, once");
        assert!(!doubt.is_deaf());
    }

    #[test]
    fn peers_that_are_back_end_the_doubt() {
        let mut doubt = Doubt::default();
        silence(&mut doubt, 1000, dark(0));
        assert!(doubt.look(LIGHT));
        assert!(!silence(&mut doubt, 1600, LIGHT));
        assert!(!doubt.is_deaf());
    }
}
