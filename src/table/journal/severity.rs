//! How bad an event is, finer than its weight: of all that happened to an instance in an hour, its fleet's pages show one event.

use super::What;
use crate::model::end_reason::{ClientSaw, EndReason};
use crate::model::weight::Weight;

/// How bad an event is for the clients, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventSeverity {
    /// It may be a fault, or become one: every event with the weight of a notice.
    Notice,
    /// An order, a reload, an upgrade or a program of the operator failed, and the instance goes on as before.
    Refused,
    /// A backend or a peer is lost, and the others serve its clients.
    Lost,
    /// The clients of this instance wait, are reset, or may be led to a host that does not serve them.
    ClientsSuffer,
}

/// How much a reader needs to know of an event now, the most last: what goes on comes before what is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventRank {
    Notice,
    Refused,
    /// A loss that is over, or that no event ends.
    Lost,
    /// Clients suffered until an event told the end.
    Suffered,
    LostStill,
    /// Clients suffered at that moment: no event ends it.
    Felt,
    SufferStill,
}

impl EventRank {
    pub(crate) const NUMBER: usize = Self::SufferStill as usize + 1;
}

impl EventSeverity {
    /// Of an event that begins something which goes on.
    pub(crate) fn rank_open(self) -> EventRank {
        match self {
            Self::ClientsSuffer => EventRank::SufferStill,
            Self::Lost => EventRank::LostStill,
            Self::Refused | Self::Notice => self.rank_over(),
        }
    }

    /// Of an event that begins nothing, or whose end has come. `is_point`: the former.
    fn rank_past(self, is_point: bool) -> EventRank {
        match self {
            Self::ClientsSuffer if is_point => EventRank::Felt,
            Self::ClientsSuffer => EventRank::Suffered,
            Self::Lost => EventRank::Lost,
            Self::Refused => EventRank::Refused,
            Self::Notice => EventRank::Notice,
        }
    }

    pub(crate) fn rank_over(self) -> EventRank {
        self.rank_past(false)
    }

    pub(crate) fn rank_of_point(self) -> EventRank {
        self.rank_past(true)
    }
}

impl What {
    /// `None`: nobody need look at it.
    pub(crate) fn severity(&self) -> Option<EventSeverity> {
        match (self.weight(), self) {
            (Weight::Plain | Weight::Good, _) => None,
            (Weight::Notice, Self::NodesSilent { .. }) => Some(EventSeverity::ClientsSuffer),
            (Weight::Notice, Self::RefusalsBegun { reason: EndReason::NoBackend, .. }) => {
                Some(EventSeverity::ClientsSuffer)
            }
            // Their clients connect again at once.
            (Weight::Notice, Self::FlowsOrdered { reason, .. }) if reason.client_saw() == ClientSaw::Rst => {
                Some(EventSeverity::Lost)
            }
            (Weight::Notice, _) => Some(EventSeverity::Notice),
            (Weight::Bad, Self::UpgradeFailed { moved: 0, .. })
            | (
                Weight::Bad,
                Self::ReloadRefused { .. } | Self::VipHookFailed { .. } | Self::EvacuationCancelled { .. },
            ) => Some(EventSeverity::Refused),
            (
                Weight::Bad,
                Self::BackendChanged { .. }
                | Self::PeerLiveness { .. }
                | Self::VipHostCutOff { .. }
                | Self::FailedOver { reset: 0, .. },
            ) => Some(EventSeverity::Lost),
            (Weight::Bad, _) => Some(EventSeverity::ClientsSuffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fleet::{InstanceName, Liveness};
    use crate::model::health::{Cause, HealthState};
    use crate::model::nodes::SilenceKind;

    #[test]
    fn what_clients_feel_is_worse_than_what_is_lost_and_that_than_what_was_refused() {
        let changed = |to| What::BackendChanged {
            frontend: "api".to_owned(),
            backend: "cp1".to_owned(),
            from: HealthState::Ready,
            to,
            cause: Cause::Refused,
        };
        let why = || "reason".to_owned();
        let in_order = [
            What::Started { version: why() }.severity(),
            changed(HealthState::Draining).severity(),
            What::ReloadRefused { errors: vec![why()] }.severity(),
            changed(HealthState::Ejected).severity(),
            What::UpgradeFailed { why: why(), moved: 3 }.severity(),
        ];
        assert!(in_order.is_sorted_by(|one, next| one < next), "{in_order:?}");
        // Regression: a dead peer whose flows all went on was the worst event of an hour in which 1,543 clients were reset.
        let failed_over =
            |reset| What::FailedOver { instance: InstanceName("b".into()), inherited: 30, reset }.severity();
        assert_eq!([0, 1].map(failed_over), [Some(EventSeverity::Lost), Some(EventSeverity::ClientsSuffer)]);
        let ordered = |reason| What::FlowsOrdered { frontend: why(), backend: why(), flows: 717, reason }.severity();
        assert_eq!(ordered(EndReason::BackendEjected), Some(EventSeverity::Lost));
        assert_eq!(ordered(EndReason::EjectedByOperator), None);
        let silent = What::NodesSilent {
            nodes: vec![why()],
            more: 29,
            why: SilenceKind::NoConnection,
            for_ms: 10_000,
            refused: None,
        };
        assert_eq!(silent.severity(), Some(EventSeverity::ClientsSuffer));
        let given_up = |late_ms| {
            What::VipGivenUp { vip: String::new(), why: why(), loss: None, late_ms, cut_off: false }.severity()
        };
        assert_eq!(given_up(Some(2_000)), Some(EventSeverity::ClientsSuffer), "they waited for a process that hung");
        assert_eq!(given_up(None), Some(EventSeverity::Notice));
        let dead = What::PeerLiveness { peer: why(), liveness: Liveness::Dead, stuck_ms: None };
        assert_eq!(dead.severity(), changed(HealthState::Ejected).severity());
        assert_eq!(What::UpgradeFailed { why: why(), moved: 0 }.severity(), Some(EventSeverity::Refused));
        assert_eq!(What::WorkerStuck { worker: 0, for_ms: 1 }.severity(), Some(EventSeverity::ClientsSuffer));
    }
}
