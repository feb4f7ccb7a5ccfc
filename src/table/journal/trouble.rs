//! What begins with one event and is over with another: so that a fault which goes on is told apart from one that was.

use std::net::IpAddr;

use super::What;
use crate::model::end_reason::EndReason;
use crate::model::fleet::Liveness;
use crate::model::health::HealthState;

/// What goes on, from the event that began it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    BackendEjected {
        frontend: String,
        backend: String,
    },
    PeerSilent(String),
    /// This host is cut off.
    CutOff,
    Refusals {
        frontend: String,
        reason: EndReason,
    },
    WorkerStuck(usize),
    AcceptPaused(usize),
    VipShared(IpAddr),
    VipUnheld,
    OffloadShut,
    OffloadStopped,
    ProgramLost,
    /// These nodes are silent, and so many that the event did not name.
    Nodes {
        named: Vec<String>,
        more: usize,
    },
}

impl Trouble {
    /// `None`: `what` begins nothing of which an event tells the end.
    pub(crate) fn begun_by(what: &What) -> Option<Self> {
        Some(match what {
            What::BackendChanged { frontend, backend, to: HealthState::Ejected, .. } => {
                Self::BackendEjected { frontend: frontend.clone(), backend: backend.clone() }
            }
            What::PeerLiveness { peer, liveness: Liveness::Unheard | Liveness::Silent | Liveness::Dead, .. } => {
                Self::PeerSilent(peer.clone())
            }
            What::VipHostCutOff { .. } | What::VipGivenUp { cut_off: true, .. } => Self::CutOff,
            What::RefusalsBegun { frontend, reason } => Self::Refusals { frontend: frontend.clone(), reason: *reason },
            What::WorkerStuck { worker, .. } => Self::WorkerStuck(*worker),
            What::AcceptPaused { worker, .. } => Self::AcceptPaused(*worker),
            What::VipShared { address, .. } | What::VipLeftBehind { address } => Self::VipShared(*address),
            What::VipRefused { .. } => Self::VipUnheld,
            What::OffloadShut { unwatched: true, .. } => Self::OffloadShut,
            What::OffloadStopped { .. } => Self::OffloadStopped,
            What::ProgramLost { .. } => Self::ProgramLost,
            What::NodesSilent { nodes, more, .. } => Self::Nodes { named: nodes.clone(), more: *more },
            _ => return None,
        })
    }

    /// Whether `what` tells that it is over, or began anew.
    pub(crate) fn is_over_by(&mut self, what: &What) -> bool {
        match (&mut *self, what) {
            (Self::Nodes { named, more }, What::NodesBack { nodes, more: unnamed, .. }) => {
                let before = named.len();
                named.retain(|node| !nodes.contains(node));
                // Whoever is not named here may be one that was not named there.
                *more = more.saturating_sub(nodes.len() - (before - named.len()) + unnamed);
                named.is_empty() && *more == 0
            }
            (Self::Nodes { .. }, _) => matches!(what, What::Started { .. }),
            (Self::BackendEjected { frontend, backend }, What::BackendChanged { frontend: f, backend: b, .. })
            | (Self::BackendEjected { frontend, backend }, What::BackendRemoved { frontend: f, backend: b }) => {
                (f, b) == (frontend, backend)
            }
            (Self::PeerSilent(peer), What::PeerLiveness { peer: its, .. } | What::PeerLinked { peer: its, .. }) => {
                peer == its
            }
            // An upgrade keeps them, and the next process does not tell of them again.
            (Self::BackendEjected { .. } | Self::PeerSilent(_), _) => false,
            (Self::CutOff | Self::VipUnheld, What::VipHeld { .. } | What::VipGained { .. }) => true,
            (Self::Refusals { frontend, reason }, What::RefusalsOver { frontend: f, reason: r, .. }) => {
                (&*frontend, *reason) == (f, *r)
            }
            (Self::WorkerStuck(worker), What::WorkerMoves { worker: its })
            | (Self::AcceptPaused(worker), What::AcceptResumed { worker: its, .. }) => worker == its,
            (Self::VipShared(address), What::VipAlone { address: its } | What::AddressWent { address: its }) => {
                address == its
            }
            (Self::OffloadShut, What::OffloadOpened { .. })
            | (Self::OffloadStopped, What::OffloadResumed {})
            | (Self::ProgramLost, What::ProgramReattached { .. }) => true,
            // The next process tells anew of what goes on.
            (_, What::Started { .. }) => true,
            (_, _) => Self::begun_by(what).is_some_and(|begun| begun == *self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nodes::SilenceKind;

    #[test]
    fn a_silence_is_over_once_each_of_its_nodes_is_back() {
        let nodes = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let silent = What::NodesSilent {
            nodes: nodes(&["a", "b"]),
            more: 2,
            why: SilenceKind::NoConnection,
            for_ms: 1,
            refused: None,
        };
        let mut it = Trouble::begun_by(&silent).unwrap();
        let mut after = |names, more| it.is_over_by(&What::NodesBack { nodes: nodes(names), more, for_ms: 1 });
        assert!(!after(&["a"], 0) && !after(&["c"], 1), "b is silent still");
        assert!(after(&["b"], 0));
    }

    #[test]
    fn a_backend_stays_lost_over_an_upgrade_and_a_stuck_worker_does_not() {
        let started = What::Started { version: "1".to_owned() };
        let peer = |liveness| What::PeerLiveness { peer: "lb-b".to_owned(), liveness, stuck_ms: None };
        let mut dead = Trouble::begun_by(&peer(Liveness::Dead)).unwrap();
        assert!(!dead.is_over_by(&started) && dead.is_over_by(&peer(Liveness::Alive)));
        let mut stuck = Trouble::begun_by(&What::WorkerStuck { worker: 1, for_ms: 9 }).unwrap();
        assert!(!stuck.is_over_by(&What::WorkerMoves { worker: 2 }) && stuck.is_over_by(&started));
        assert_eq!(Trouble::begun_by(&peer(Liveness::Alive)), None);
    }
}
