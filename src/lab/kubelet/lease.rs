//! The lease that a drill keeps for each of its nodes, renewed as a kubelet renews its own: read once, created if
//! missing, then written with the version of the server's last answer (k8s.io/component-helpers, apimachinery/lease).

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;

use super::session::{self, RequestError, Requests, name_of, send};
use super::{KubeletProgress, KubeletSettings};
use crate::lab::lease::{Lease, leases_path};

/// Renews it once; returns the name of the answering stand-in.
pub(super) async fn renew(
    requests: &mut Requests,
    settings: &KubeletSettings,
    namespace: &str,
    progress: &KubeletProgress,
) -> Result<Option<String>, RequestError> {
    let (collection, path) = (leases_path(namespace), path(namespace, &settings.name));
    let version = match progress.lease_version() {
        Some(version) => Some(version),
        None => {
            let answer = send(requests, settings, Method::GET, &path, Bytes::new()).await?;
            match answer.status() {
                StatusCode::NOT_FOUND => {
                    answer.into_body().collect().await?;
                    None
                }
                _ => Some(own(answer).await?.metadata.resource_version),
            }
        }
    };
    let lease = Lease::of_drill(&settings.name, namespace, version.as_deref().unwrap_or_default());
    let body = Bytes::from(serde_json::to_vec(&lease)?);
    let answer = match version {
        Some(_) => send(requests, settings, Method::PUT, &path, body).await?,
        None => send(requests, settings, Method::POST, &collection, body).await?,
    };
    let stand_in = name_of(&answer);
    match own(answer).await {
        Ok(lease) => {
            progress.set_lease_version(Some(lease.metadata.resource_version));
            Ok(stand_in)
        }
        Err(error) => {
            // Another client may have changed or removed it: read it again before the next try.
            progress.set_lease_version(None);
            Err(error)
        }
    }
}

/// Removes the leases of these nodes over one connection, within `limit`; returns how many are gone, including those
/// that never belonged to a drill.
pub(super) async fn remove(settings: &KubeletSettings, namespace: &str, nodes: &[String], limit: Duration) -> usize {
    let mut gone = 0;
    let removal = async {
        let Ok(session) = session::connect(settings).await else { return };
        let session::KubeletSession { mut requests, driver, .. } = session;
        let all = async {
            for node in nodes {
                let path = path(namespace, node);
                let read = send(&mut requests, settings, Method::GET, &path, Bytes::new()).await;
                let Ok(read) = read else { return };
                let absent = read.status() == StatusCode::NOT_FOUND;
                match own(read).await {
                    Ok(_) => {}
                    // It belongs to somebody else: leave it.
                    Err(RequestError::Foreign) => {
                        gone += 1;
                        continue;
                    }
                    Err(_) => {
                        gone += usize::from(absent);
                        continue;
                    }
                }
                let removed = send(&mut requests, settings, Method::DELETE, &path, Bytes::new()).await;
                let Ok(removed) = removed else { return };
                gone += usize::from(removed.status().is_success());
                let _ = removed.into_body().collect().await;
            }
        };
        tokio::select! {
            () = all => {}
            _ = driver => {}
        }
    };
    let _ = timeout(limit, removal).await;
    gone
}

fn path(namespace: &str, node: &str) -> String {
    format!("{}/{node}", leases_path(namespace))
}

/// The lease in an answer, if it is one of a drill.
async fn own(answer: Response<Incoming>) -> Result<Lease, RequestError> {
    let code = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    if !code.is_success() {
        return Err(RequestError::Status(code));
    }
    let lease: Lease = serde_json::from_slice(&body)?;
    if lease.is_a_drill_s() { Ok(lease) } else { Err(RequestError::Foreign) }
}
