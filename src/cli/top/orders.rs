//! The orders that keys give, the question before each, and the sentence after it.

use crate::admin::client::{Client, ClientError};
use crate::admin::protocol::{BackendName, Command, KillCheck, KillReport, KillTarget, Ordered};
use crate::cli::kill;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyOrder {
    /// Of backends: FRONTEND/NAME.
    Drain(String),
    Undrain(String),
    Eject(String),
    Kill {
        target: KillTarget,
        /// The target in words: `the flows of apiserver/cp1`.
        of: String,
    },
}

impl KeyOrder {
    pub(super) fn kill_backend(name: &str) -> Self {
        Self::Kill { target: KillTarget::Backend(BackendName(name.to_owned())), of: format!("the flows of {name}") }
    }

    /// The flows that it resets, or that it leaves to end by themselves.
    pub(super) fn resets(&self) -> Option<KillTarget> {
        match self {
            Self::Drain(name) | Self::Eject(name) => Some(KillTarget::Backend(BackendName(name.clone()))),
            Self::Undrain(_) => None,
            Self::Kill { target, .. } => Some(target.clone()),
        }
    }

    /// The question before it is given. `note`: what else the operator should know. `None`: it would do nothing.
    pub(super) fn question(&self, check: Option<&KillCheck>, note: &str) -> Option<String> {
        let reach = check.filter(|check| check.flows > 0).map(kill::reach);
        Some(match (self, reach) {
            (Self::Kill { .. }, None) => return None,
            (Self::Kill { of, .. }, Some(reach)) => format!("Kill {of}? {reach}."),
            (Self::Eject(name), None) => format!("Eject {name}? It has no flow.{note}"),
            (Self::Eject(name), Some(reach)) => format!("Eject {name}? {reach}.{note}"),
            (Self::Drain(name), None) => format!("Drain {name}? It has no flow.{note}"),
            (Self::Drain(name), Some(_)) => {
                let its = check.map_or(String::new(), kill::number);
                format!("Drain {name}? {its} go on, until drain_timeout at most.{note}")
            }
            (Self::Undrain(name), _) => format!("Undrain {name}? Its probes decide about it again."),
        })
    }

    /// Gives it, and says what it came to.
    pub(super) fn give(&self, client: &mut Client) -> Result<String, ClientError> {
        let backend = |name: &String| BackendName(name.clone());
        Ok(match self {
            Self::Drain(name) => {
                let _: Ordered = client.ask(&Command::Drain { backend: backend(name) })?;
                format!("{name} gets no new flows until you undrain it")
            }
            Self::Undrain(name) => {
                let _: Ordered = client.ask(&Command::Undrain { backend: backend(name) })?;
                format!("{name}: the probes decide again")
            }
            Self::Eject(name) => {
                let _: Ordered = client.ask(&Command::Eject { backend: backend(name) })?;
                format!("{name} is ejected until you undrain it")
            }
            Self::Kill { target, of } => {
                let report: KillReport = client.ask(&Command::Kill { target: target.clone() })?;
                format!("{of}: {}", kill::in_words(&report))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_tells_how_many_clients_an_order_reaches() {
        let check = KillCheck { flows: 212, clients: 41, nodes: None, over_ms: 250 };
        let none = KillCheck { flows: 0, clients: 0, nodes: None, over_ms: 0 };
        let asked = |order: &KeyOrder, check| order.question(Some(check), " It is the only ready backend.");
        let (kill, name) = (KeyOrder::kill_backend("a/cp1"), || "a/cp1".to_owned());
        assert_eq!(
            asked(&kill, &check).unwrap(),
            "Kill the flows of a/cp1? 212 flows, 41 clients, resets over 250 ms."
        );
        let of_nodes = KillCheck { nodes: Some(41), clients: 42, ..check };
        assert_eq!(
            asked(&kill, &of_nodes).unwrap(),
            "Kill the flows of a/cp1? 212 flows, 41 nodes, resets over 250 ms."
        );
        assert_eq!(asked(&kill, &none), None);
        assert_eq!(
            asked(&KeyOrder::Eject(name()), &check).unwrap(),
            "Eject a/cp1? 212 flows, 41 clients, resets over 250 ms. It is the only ready backend."
        );
        assert_eq!(
            asked(&KeyOrder::Drain(name()), &check).unwrap(),
            "Drain a/cp1? 212 flows, 41 clients go on, until drain_timeout at most. It is the only ready backend."
        );
        assert_eq!(
            asked(&KeyOrder::Drain(name()), &none).unwrap(),
            "Drain a/cp1? It has no flow. It is the only ready backend."
        );
        let undrain = KeyOrder::Undrain(name());
        assert_eq!(undrain.question(None, "").unwrap(), "Undrain a/cp1? Its probes decide about it again.");
    }
}
