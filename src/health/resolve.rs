//! Names of backends, resolved again and again.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::addr::BackendAddr;

/// getaddrinfo(3) itself waits 5 s for each name server and each attempt.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("{0}")]
    Lookup(#[from] io::Error),
    #[error("no name server answered within {} s", LIMIT.as_secs())]
    TimedOut,
    #[error("the name has no address")]
    Empty,
}

/// The address of `host`: the first of `preferred` that is one of them, so that a rotating answer moves nothing, else the
/// first in the order of RFC 6724.
pub(super) async fn resolve(
    host: &str,
    port: u16,
    preferred: [Option<BackendAddr>; 2],
) -> Result<BackendAddr, ResolveError> {
    let found = timeout(LIMIT, lookup_host((host, port))).await.map_err(|_| ResolveError::TimedOut)??;
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

    #[tokio::test]
    async fn localhost_resolves_and_an_invalid_name_says_why() {
        assert!(resolve("localhost", 6443, [None; 2]).await.unwrap().ip().is_loopback());
        let error = resolve("no-such-host.invalid", 6443, [None; 2]).await.unwrap_err();
        assert!(matches!(error, ResolveError::Lookup(_)) && !error.to_string().is_empty());
    }
}
