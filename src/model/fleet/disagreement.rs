//! What the instances of a fleet say differently of the same backend.

use serde::{Deserialize, Serialize};

use super::InstanceName;
use super::summary::{BackendSummary, InstanceSummary};
use crate::model::health::HealthState;

/// Instances that see the same backend in different states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disagreement {
    pub frontend: String,
    pub backend: String,
    /// How long two of them have said so, ms.
    pub for_ms: u64,
    /// Each instance that knows the backend, in the order of the fleet.
    pub opinions: Vec<Opinion>,
}

/// What one instance says of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opinion {
    pub instance: InstanceName,
    pub health_state: HealthState,
    /// The cause in words; empty for a backend that is ready.
    pub why: String,
}

/// The disagreements of instances, each with its summary and the summary's age in ms. Two of them disagree since the
/// later of the two changes that led to it: clocks play no part.
pub(crate) fn disagreements(of: &[(&InstanceName, &InstanceSummary, u64)]) -> Vec<Disagreement> {
    let mut all: Vec<(Disagreement, Vec<u64>)> = Vec::new();
    for (instance, summary, age_ms) in of {
        for backend in &summary.backends {
            let Some(health_state) = backend.health_state else { continue };
            let is_same = |it: &Disagreement| (&it.frontend, &it.backend) == (&backend.frontend, &backend.name);
            let place = all.iter().position(|(it, _)| is_same(it)).unwrap_or_else(|| {
                all.push((Disagreement::none(backend), Vec::new()));
                all.len() - 1
            });
            let (disagreement, lasting_ms) = &mut all[place];
            let for_ms = backend.for_ms.saturating_add(*age_ms);
            for (opinion, other_ms) in disagreement.opinions.iter().zip(&*lasting_ms) {
                if opinion.health_state != health_state {
                    disagreement.for_ms = disagreement.for_ms.max(for_ms.min(*other_ms));
                }
            }
            lasting_ms.push(for_ms);
            let (instance, why) = (InstanceName::clone(instance), backend.why.clone());
            disagreement.opinions.push(Opinion { instance, health_state, why });
        }
    }
    all.into_iter().map(|(it, _)| it).filter(Disagreement::is_one).collect()
}

impl Disagreement {
    fn none(about: &BackendSummary) -> Self {
        let (frontend, backend) = (about.frontend.clone(), about.name.clone());
        Self { frontend, backend, for_ms: 0, opinions: Vec::new() }
    }

    fn is_one(&self) -> bool {
        self.opinions.windows(2).any(|pair| pair[0].health_state != pair[1].health_state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::backend;
    use super::*;

    fn summary(backends: Vec<BackendSummary>) -> InstanceSummary {
        InstanceSummary { backends, ..InstanceSummary::default() }
    }

    #[test]
    fn a_backend_that_one_instance_alone_cannot_reach_is_found_with_its_time() {
        use HealthState::{Ejected, Ready};
        let names = ["lb-a", "lb-b", "lb-c"].map(|name| InstanceName(name.into()));
        let all = [
            summary(vec![backend("cp-1", Ready, 90_000), backend("cp-2", Ready, 90_000)]),
            summary(vec![backend("cp-1", Ready, 80_000), backend("cp-2", Ejected, 7_000)]),
            // It came back here a moment ago, which does not begin the disagreement of the others anew.
            summary(vec![backend("cp-2", Ready, 1_000), backend("cp-1", Ready, 5)]),
        ];
        let of: Vec<_> = names.iter().zip(&all).map(|(name, it)| (name, it, 500)).collect();
        let found = disagreements(&of);
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].frontend, &*found[0].backend, found[0].for_ms), ("apiserver", "cp-2", 7_500));
        let said: Vec<_> = found[0].opinions.iter().map(|it| (&*it.instance.0, it.health_state)).collect();
        assert_eq!(said, [("lb-a", Ready), ("lb-b", Ejected), ("lb-c", Ready)]);
    }

    #[test]
    fn an_instance_that_has_not_probed_a_backend_or_lacks_it_disagrees_with_nobody() {
        let name = InstanceName("lb-a".into());
        let unprobed = BackendSummary { health_state: None, ..backend("cp-1", HealthState::Ready, 1) };
        let all = [
            summary(vec![backend("cp-1", HealthState::Ejected, 90_000)]),
            summary(vec![unprobed]),
            summary(vec![backend("cp-9", HealthState::Ready, 90_000)]),
        ];
        let of: Vec<_> = all.iter().map(|it| (&name, it, 0)).collect();
        assert_eq!(disagreements(&of), []);
    }
}
