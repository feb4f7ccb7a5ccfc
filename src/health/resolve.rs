//! Resolves the names of backends, again and again.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::names::look_up;
use super::watcher::{Running, finished, ns};
use crate::addr::BackendAddr;
use crate::config::Target;
use crate::model::duration::display;
use crate::sys::clock::now_ns;

/// getaddrinfo(3) itself waits 5 s for each name server and each attempt.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("{0}")]
    Lookup(#[from] io::Error),
    #[error("no name server answered within {}", display(LIMIT))]
    TimedOut,
    #[error("the name has no address")]
    Empty,
}

/// When to look up a backend's name, and the lookup that runs.
#[derive(Default)]
pub(super) struct NameLookup {
    running: Option<Running<Result<BackendAddr, ResolveError>>>,
    /// `None` for a fixed address.
    due_ns: Option<u64>,
    fails: bool,
    /// The address that the running lookup shall choose if it is among the results.
    preferred: Option<BackendAddr>,
    /// The backend's address when the lookup began.
    knew: Option<BackendAddr>,
}

/// The result of a lookup.
pub(super) struct LookedUp {
    /// The address, or why there is none.
    pub(super) address: Result<BackendAddr, String>,
    /// Whether the address is new, or the lookup now fails or no longer fails.
    pub(super) is_news: bool,
}

impl NameLookup {
    /// Schedules a lookup for now; or none, if the backend has a fixed address or no longer gets flows.
    pub(super) fn aim(&mut self, has_name: bool) {
        self.running = None;
        self.due_ns = has_name.then(now_ns);
    }

    /// Schedules a lookup for now, if there are any, which takes `address` if that is among the results.
    pub(super) fn prefer(&mut self, address: BackendAddr) {
        (self.preferred, self.running) = (Some(address), None);
        self.due_ns = self.due_ns.map(|_| now_ns());
    }

    /// The name was looked up a moment ago.
    pub(super) fn postpone(&mut self, interval: Duration) {
        let next_ns = now_ns().saturating_add(ns(interval));
        self.due_ns = self.due_ns.map(|_| next_ns);
    }

    /// Applies a shorter interval: with the old one the next lookup could be a day away.
    pub(super) fn shorten(&mut self, interval: Duration) {
        let latest_ns = now_ns().saturating_add(ns(interval));
        self.due_ns = self.due_ns.map(|due_ns| due_ns.min(latest_ns));
    }

    /// Begins a lookup if it is due or `is_wanted`. `known`: the backend's address. Returns whether one has begun.
    pub(super) fn begin(
        &mut self,
        now: u64,
        is_wanted: bool,
        known: Option<BackendAddr>,
        target: &Target,
        interval: Duration,
    ) -> bool {
        let is_due = is_wanted || self.due_ns.is_some_and(|due| due <= now);
        let (true, None, Target::Name { host, port }) = (is_due, &self.running, target) else { return false };
        let (host, port, preferred) = (host.clone(), *port, [self.preferred, known]);
        self.running = Some(Box::pin(async move { resolve(&host, port, preferred).await }));
        self.knew = known;
        self.due_ns = Some(now.saturating_add(ns(interval)));
        true
    }

    /// When the next lookup is due, unless one runs.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due_ns.filter(|_| self.running.is_none())
    }

    /// Returns once the running lookup is done; never if none runs.
    pub(super) async fn finished(&mut self) -> Result<BackendAddr, ResolveError> {
        finished(&mut self.running).await
    }

    /// The meaning of `resolved` for a backend at `before`. `None`: none, and the name is looked up again.
    pub(super) fn settle(
        &mut self,
        resolved: Result<BackendAddr, ResolveError>,
        before: Option<BackendAddr>,
    ) -> Option<LookedUp> {
        if self.knew != before {
            // Flows have shown the backend's address meanwhile, which may be one of its name's addresses, too.
            self.due_ns = Some(now_ns());
            return None;
        }
        self.preferred = None;
        let address = resolved.map_err(|error| error.to_string());
        let failed = std::mem::replace(&mut self.fails, address.is_err());
        let is_news = match &address {
            Ok(address) => before != Some(*address) || failed,
            Err(_) => !failed,
        };
        Some(LookedUp { address, is_news })
    }
}

/// The address of `host`: the first of `preferred` that is among the results, so that a rotating answer moves no flow;
/// otherwise the first in the order of RFC 6724.
async fn resolve(host: &str, port: u16, preferred: [Option<BackendAddr>; 2]) -> Result<BackendAddr, ResolveError> {
    let found = timeout(LIMIT, look_up((host, port))).await.map_err(|_| ResolveError::TimedOut)??;
    choose(found, preferred).ok_or(ResolveError::Empty)
}

fn choose(found: impl Iterator<Item = SocketAddr>, preferred: [Option<BackendAddr>; 2]) -> Option<BackendAddr> {
    let found: Vec<_> = found.map(BackendAddr::new).collect();
    preferred.into_iter().flatten().find(|address| found.contains(address)).or(found.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotating_answer_does_not_move_the_backend() {
        let found = || ["10.0.0.1:6443", "10.0.0.2:6443"].into_iter().map(|addr| addr.parse().unwrap());
        let addr = |text: &str| BackendAddr::new(text.parse().unwrap());
        assert_eq!(choose(found(), [None; 2]), Some(addr("10.0.0.1:6443")));
        assert_eq!(choose(found(), [None, Some(addr("10.0.0.2:6443"))]), Some(addr("10.0.0.2:6443")));
        assert_eq!(choose(found(), [None, Some(addr("10.0.0.2:443"))]), Some(addr("10.0.0.1:6443")));
        let both = [Some(addr("10.0.0.2:6443")), Some(addr("10.0.0.1:6443"))];
        assert_eq!(choose(found(), both), both[0]);
        assert_eq!(choose(found(), [Some(addr("10.0.0.9:6443")), both[0]]), both[0]);
        assert_eq!(choose(std::iter::empty(), [None, Some(addr("10.0.0.2:6443"))]), None);
    }

    #[test]
    fn a_lookup_is_news_if_the_address_is_another_or_it_fails_no_longer_as_before() {
        let addr = |text: &str| BackendAddr::new(text.parse().unwrap());
        let (one, other) = (addr("10.0.0.1:6443"), addr("10.0.0.2:6443"));
        let name = Target::Name { host: "backend".into(), port: 6443 };
        let mut lookup = NameLookup::default();
        let is_news = |lookup: &mut NameLookup, resolved: Result<_, _>, before| {
            lookup.settle(resolved, before).map(|it| it.is_news)
        };
        for (resolved, expected) in
            [(Err(ResolveError::Empty), true), (Err(ResolveError::Empty), false), (Ok(one), true)]
        {
            assert_eq!(is_news(&mut lookup, resolved, None), Some(expected));
        }
        assert!(!lookup.begin(1, true, Some(one), &Target::Address(one), LIMIT), "nothing to look up");
        assert!(lookup.begin(1, true, Some(one), &name, LIMIT) && lookup.next_ns().is_none());
        assert!(!lookup.begin(2, true, Some(one), &name, LIMIT), "one runs");
        for (resolved, expected) in
            [(Ok(one), false), (Err(ResolveError::Empty), true), (Ok(one), true), (Ok(other), true)]
        {
            assert_eq!(is_news(&mut lookup, resolved, Some(one)), Some(expected));
        }
        assert_eq!(is_news(&mut lookup, Ok(one), Some(other)), None, "it moved while the lookup ran");
    }

    #[tokio::test]
    async fn localhost_resolves_and_an_invalid_name_says_why() {
        assert!(resolve("localhost", 6443, [None; 2]).await.unwrap().ip().is_loopback());
        let error = resolve("no-such-host.invalid", 6443, [None; 2]).await.unwrap_err();
        assert!(matches!(error, ResolveError::Lookup(_)) && !error.to_string().is_empty());
    }
}
