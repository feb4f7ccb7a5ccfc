//! The severity of a message.

use super::fleet::Liveness;
use super::health::HealthState;

/// Its colour on the page and in the terminal; for an event also the level of its log line. The heaviest comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    Plain,
    /// Something is well again.
    Good,
    /// Look at it when there is time.
    Notice,
    /// Look at it now.
    Bad,
}

impl Weight {
    const ALL: [Weight; 4] = [Self::Plain, Self::Good, Self::Notice, Self::Bad];

    /// As the page's styles and records have it.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Good => "good",
            Self::Notice => "notice",
            Self::Bad => "bad",
        }
    }

    pub(crate) fn of_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|weight| weight.label() == label)
    }

    pub(crate) fn of_health(health_state: HealthState) -> Self {
        match health_state {
            HealthState::Ready => Self::Good,
            HealthState::Draining => Self::Notice,
            HealthState::Ejected => Self::Bad,
        }
    }

    pub(crate) fn of_liveness(liveness: Liveness) -> Self {
        match liveness {
            Liveness::Alive => Self::Good,
            Liveness::Left(_) | Liveness::Unlinked => Self::Notice,
            Liveness::Unheard | Liveness::Silent | Liveness::Dead => Self::Bad,
        }
    }
}
