//! The service that new connections of a frontend get. This is not the same as whether this host should have the VIP.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::{BackendEntry, FrontendEntry, Registry};
use crate::model::health::{Cause, HealthState};

/// The best choice of a frontend for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// A backend that is ready.
    #[default]
    Ready,
    /// All backends that it would use are at `max_connections`: the connection is reset.
    Full,
    /// None is ready; a draining one is used instead.
    Draining,
    /// None at all, or none that gets a connection from here: the connection is reset.
    NoBackend,
}

impl Service {
    pub(crate) const ALL: [Self; 4] = [Self::Ready, Self::Full, Self::Draining, Self::NoBackend];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Full => "full",
            Self::Draining => "draining",
            Self::NoBackend => "no_backend",
        }
    }
}

/// The last result, and since when it holds (monotonic ns).
#[derive(Debug, Default)]
pub(super) struct ServiceMemory(Mutex<Option<(Service, u64)>>);

impl Registry {
    /// The service of `frontend` at `now_ns`, and the monotonic ns since when it holds: as precise as the times of the
    /// calls; the health checker calls it after each probe.
    pub(crate) fn service(&self, frontend: &FrontendEntry, now_ns: u64) -> (Service, u64) {
        let backends = self.backends();
        let own: Vec<_> = backends.iter().filter(|it| it.frontend.id == frontend.id).collect();
        let service = best(&own, now_ns);
        let mut last = frontend.service.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *last {
            Some((before, since_ns)) if before == service => (service, since_ns),
            _ => {
                let of_flows = service == Service::Full || matches!(*last, Some((Service::Full, _)));
                // The last change of a backend has caused it; after an upgrade the new process knows these changes.
                let changed_ns = own.iter().map(|it| it.health().since_ns).max().filter(|at_ns| *at_ns != 0);
                let since_ns = changed_ns.filter(|_| !of_flows).unwrap_or(now_ns);
                *last = Some((service, since_ns));
                (service, since_ns)
            }
        }
    }
}

fn best(backends: &[&Arc<BackendEntry>], now_ns: u64) -> Service {
    let is_dismissed = |it: &BackendEntry| it.is_former() || it.health().cause == Cause::Removed;
    let usable = |it: &&&Arc<BackendEntry>| it.weight() > 0 && it.address().is_some() && !is_dismissed(it);
    let with = |health_state: HealthState| {
        let stands = move |it: &&&Arc<BackendEntry>| it.health().health_state == health_state && it.gets_connections();
        backends.iter().filter(usable).filter(stands).collect::<Vec<_>>()
    };
    let (ready, draining) = (with(HealthState::Ready), with(HealthState::Draining));
    let (used, service) = match (&ready[..], &draining[..]) {
        ([], []) => return Service::NoBackend,
        ([], _) => (&draining, Service::Draining),
        _ => (&ready, Service::Ready),
    };
    // As for the pick: a less preferred backend is not used because the others are full.
    let welcome = used.iter().map(|it| it.preference()).min();
    let mut chosen = used.iter().filter(|it| Some(it.preference()) == welcome);
    // As for the pick, too: the first of several that returns.
    let is_first = ready.len() + draining.len() == 1 && backends.iter().filter(usable).count() > 1;
    let is_full = |it: &BackendEntry| it.is_full() || (is_first && it.is_full_as_first(now_ns));
    if chosen.all(|it| is_full(it)) { Service::Full } else { service }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::addr::BackendAddr;
    use crate::table::backend::HealthView;

    fn stands(it: &BackendEntry, health_state: HealthState, since_ns: u64) {
        let before = HealthView::clone(&it.health());
        it.set_health(HealthView { health_state, cause: Cause::Passed, since_ns, ..before });
    }

    #[test]
    fn the_best_backend_decides_and_a_change_says_since_when() {
        let registry = Registry::new(0);
        let frontend = registry.frontend(&"apiserver".into());
        assert_eq!(registry.service(&frontend, 5), (Service::NoBackend, 5), "none at all");
        let (one, other) = (registry.backend(&frontend, &"cp1".into()), registry.backend(&frontend, &"cp2".into()));
        let address = Some(BackendAddr::new("192.0.2.1:6443".parse().unwrap()));
        [&one, &other].into_iter().for_each(|it| it.set_address(address));
        stands(&one, HealthState::Ready, 10);
        assert_eq!(registry.service(&frontend, 11), (Service::Ready, 10));
        stands(&other, HealthState::Draining, 20);
        assert_eq!(registry.service(&frontend, 21), (Service::Ready, 10));
        stands(&one, HealthState::Ejected, 30);
        assert_eq!(registry.service(&frontend, 35), (Service::Draining, 30));
        stands(&other, HealthState::Ejected, 40);
        assert_eq!(registry.service(&frontend, 99), (Service::NoBackend, 40));
        stands(&one, HealthState::Ready, 120);
        assert_eq!(registry.service(&frontend, 121), (Service::Ready, 120));
        one.configure(1, Some(1));
        assert!(one.reserve());
        assert_eq!(registry.service(&frontend, 125), (Service::Full, 125), "no change of a backend's made it so");
        one.release();
        assert_eq!(registry.service(&frontend, 127), (Service::Ready, 127));
        one.configure(1, None);
        one.set_ramp(127, 30_000_000_000);
        one.active.store(1_000, Relaxed);
        assert_eq!(registry.service(&frontend, 128).0, Service::Full, "the first of several that returns has enough");
        assert_eq!(registry.service(&frontend, 5_000_000_127).0, Service::Ready, "for five seconds");
        other.configure(0, None);
        assert_eq!(
            registry.service(&frontend, 128).0,
            Service::Ready,
            "the only one of weight has no other to wait for"
        );
        one.active.store(0, Relaxed);
        other.configure(1, None);
        one.configure(0, None);
        assert_eq!(registry.service(&frontend, 130).0, Service::NoBackend, "one of weight 0 gets no flow");
        one.configure(1, None);
        one.set_address(None);
        assert_eq!(registry.service(&frontend, 130).0, Service::NoBackend, "one without an address gets none");
    }
}
