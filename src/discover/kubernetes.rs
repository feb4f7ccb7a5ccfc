//! The source "kubernetes": the EndpointSlices of default/kubernetes, by list and watch at one of the frontend's own backends.
//!
//! ```text
//!   a backend, the ready ones first ──▶ list ──▶ watch ──▶ ends in time: watch again from the last version
//!         ▲                              ▲         ├─────▶ 410 Gone: list again
//!         │                              │         ├─────▶ 403 Forbidden: say so, and list again after a while
//!         └──────────────────────────────┼─────────┴─────▶ fails, or the backend is no longer ready: the next backend
//!                                        └── no backend lists: all errors in one, and again after a while
//! ```

mod client;
mod nodes;
mod slices;

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use tokio::time::{sleep, timeout};

use super::LookSender;
use super::names::NameFollower;
use crate::addr::BackendAddr;
use crate::config::KubernetesSource;
use crate::part::Part;
use crate::table::backend::Registry;
use client::{Answered, ApiClient, RETRY, WatchFault};
use slices::Slices;

/// As [`super::read_any`].
#[cfg(fuzzing)]
pub(super) fn read_any(bytes: &[u8]) {
    let (list, events) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    nodes::read_any(list, events);
    client::read_any(list);
    let Ok(mut slices) = Slices::of_list(list) else { return };
    for line in events.split(|byte| *byte == b'\n') {
        let before = slices.addresses();
        if let Ok(has_changed) = slices.apply(line) {
            assert_eq!(has_changed, slices.addresses() != before);
        }
    }
    let _ = slices.version();
}

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";

/// Between two lists where the apiservers allow no watch.
const UNWATCHED_LIST: Duration = Duration::from_secs(10);
/// The right that is missing then (docs/discovery.md).
const ROLE: &str = "the Role in the namespace default needs the verb watch for endpointslices: verbs: [list, watch]";

/// Limits for a whole list.
const LIST_MAX: Duration = Duration::from_secs(10);
const LIST_BYTES_MAX: usize = 1 << 20;

/// Lists and watches until it is dropped.
pub(super) async fn follow(source: KubernetesSource, registry: Part<Registry>, looks: LookSender) {
    let mut client =
        SliceClient { unwatched: None, api: ApiClient { source, registry, frontend: looks.frontend.clone() }, looks };
    // The instances of a fleet begin at different backends.
    let mut turn = fastrand::usize(..1 << 16);
    loop {
        let mut errors = Vec::new();
        let mut has_listed = false;
        for server in client.api.servers(turn) {
            match client.list(server).await {
                Ok(slices) => {
                    has_listed = true;
                    client.follow_at(server, slices).await;
                    break;
                }
                Err(error) => errors.push(format!("{server}: {error}")),
            }
        }
        if !has_listed {
            // In an order of their own, so that the same errors are the same sentence.
            errors.sort();
            let all = if errors.is_empty() { "no backend has an address".to_owned() } else { errors.join("; ") };
            client.looks.send(Err(format!("no apiserver gives the list: {all}"))).await;
        }
        turn = turn.wrapping_add(1);
        sleep(RETRY).await;
    }
}

/// Follows the names of the nodes until it is dropped.
pub(super) async fn follow_nodes(
    source: KubernetesSource,
    registry: Part<Registry>,
    frontend: std::sync::Arc<str>,
    follower: NameFollower,
) {
    nodes::follow(ApiClient { source, registry, frontend }, follower).await;
}

struct SliceClient {
    api: ApiClient,
    looks: LookSender,
    /// Why no backend could be watched the last time.
    unwatched: Option<String>,
}

impl SliceClient {
    async fn list(&self, server: BackendAddr) -> Result<Slices, String> {
        let listed = async {
            let Answered { response, _connection } = self.api.get(server, SLICES).await?;
            let body = Limited::new(response.into_body(), LIST_BYTES_MAX).collect().await;
            Slices::of_list(&body.map_err(|error| error.to_string())?.to_bytes())
        };
        timeout(LIST_MAX, listed).await.unwrap_or_else(|_| Err("it did not list in time".to_owned()))
    }

    /// Follows `server`, which has just listed `slices`, for as long as it can be watched.
    async fn follow_at(&mut self, server: BackendAddr, mut slices: Slices) {
        while self.tell(&slices).await {
            match self.watch(server, &mut slices).await {
                Ok(()) => {}
                Err(fault @ (WatchFault::Expired | WatchFault::Forbidden(_))) => {
                    let mut pause = RETRY;
                    if let WatchFault::Forbidden(error) = fault {
                        self.unwatched = Some(format!("{error}; {ROLE}"));
                        self.tell(&slices).await;
                        pause = UNWATCHED_LIST;
                    }
                    sleep(pause).await;
                    match self.list(server).await {
                        Ok(listed) => slices = listed,
                        Err(_) => return,
                    }
                }
                Err(WatchFault::Broken(error)) => {
                    tracing::debug!(%server, error, "the watch of the apiservers' addresses has ended");
                    return;
                }
            }
        }
    }

    /// Reports the addresses. Returns whether there is one: a cluster without an apiserver does not answer, so Baton lists again.
    async fn tell(&self, slices: &Slices) -> bool {
        let addresses = slices.addresses();
        let is_some = !addresses.is_empty();
        self.looks.send_unwatched(Ok(addresses), self.unwatched.clone()).await;
        is_some
    }

    /// Returns when the apiserver ends the watch in the ordinary way.
    async fn watch(&mut self, server: BackendAddr, slices: &mut Slices) -> Result<(), WatchFault> {
        let api = self.api.clone();
        let mut watch = api.watch(server, SLICES, slices.version()).await?;
        if self.unwatched.take().is_some() {
            self.tell(slices).await;
        }
        while let Some(line) = watch.next_line().await? {
            if slices.apply(&line)? && !self.tell(slices).await {
                return Err(WatchFault::Broken("no address is left".to_owned()));
            }
        }
        Ok(())
    }
}
