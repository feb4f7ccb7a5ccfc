//! The answers of a stand-in.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::watch;

use super::watch_body::WatchBody;
use crate::lab::lease::{Lease, NAME_HEADER, NODES_NAMESPACE};

pub(crate) type ApiReply = Response<Either<Full<Bytes>, WatchBody>>;

/// The state of one stand-in.
#[derive(Debug)]
pub(crate) struct StandIn {
    name: String,
    name_header: HeaderValue,
    ready: AtomicBool,
    /// By namespace and name.
    leases: Mutex<HashMap<(String, String), HeldWatch>>,
    /// Zero: watches send nothing.
    watch_period: Duration,
    stopping: watch::Sender<bool>,
}

#[derive(Debug)]
struct HeldWatch {
    lease: Lease,
    renewals: u64,
}

impl StandIn {
    pub(crate) fn new(name: String, watch_period: Duration) -> Self {
        let name_header = HeaderValue::from_str(&name).unwrap_or(HeaderValue::from_static("unnamed"));
        Self {
            name,
            name_header,
            ready: AtomicBool::new(true),
            leases: Mutex::default(),
            watch_period,
            stopping: watch::Sender::new(false),
        }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }

    /// Ends watches and lets connections finish.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Answers one request. GET /readyz, /livez, /healthz, /ping and /whoami; GET, PUT, PATCH and DELETE of a lease, and POST of one to
    /// its namespace; GET of any path under /api/v1/ with watch=true; POST /standin/readyz?ready=false or true. All
    /// other requests get 404.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> ApiReply
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        let mut answer = match (&head.method, path.as_str()) {
            (&Method::GET, "/readyz") if !self.ready.load(Relaxed) => {
                text(StatusCode::INTERNAL_SERVER_ERROR, "[-]shutdown failed: reason withheld\nreadyz check failed\n")
            }
            (&Method::GET, "/readyz" | "/livez" | "/healthz") => text(StatusCode::OK, "ok"),
            // As k3s's servers answer anybody.
            (&Method::GET, "/ping") => text(StatusCode::OK, "pong"),
            (&Method::GET, "/whoami") => text(StatusCode::OK, format!("{}\n", self.name)),
            (&Method::POST, "/standin/readyz") => self.switch(&query),
            (&Method::GET, path) if path.starts_with("/api/v1/") && has(&query, "watch=true") => self.watch(),
            (method, path) => match lease_of(path) {
                Some((namespace, "")) if method == Method::POST => self.create(namespace, body).await,
                Some((namespace, name)) if !name.is_empty() => self.lease(method, namespace, name, body).await,
                _ => status(StatusCode::NOT_FOUND, "NotFound"),
            },
        };
        answer.headers_mut().insert(NAME_HEADER, self.name_header.clone());
        answer
    }

    fn switch(&self, query: &str) -> ApiReply {
        let ready = match (has(query, "ready=true"), has(query, "ready=false")) {
            (true, false) => true,
            (false, true) => false,
            _ => return status(StatusCode::BAD_REQUEST, "BadRequest"),
        };
        self.set_ready(ready);
        text(StatusCode::OK, if ready { "ready\n" } else { "not ready\n" })
    }

    fn watch(&self) -> ApiReply {
        let body = WatchBody::start(self.watch_period, self.stopping());
        let mut answer = Response::new(Either::Right(body));
        answer.headers_mut().insert(CONTENT_TYPE, JSON);
        answer
    }

    async fn lease<B>(&self, method: &Method, namespace: &str, name: &str, body: B) -> ApiReply
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        let key = (namespace.to_owned(), name.to_owned());
        if method == Method::GET || method == Method::DELETE {
            let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
            let held = leases.get(&key).map(|held| json(StatusCode::OK, &held.lease));
            if method == Method::DELETE {
                leases.remove(&key);
            }
            return held.unwrap_or_else(|| status(StatusCode::NOT_FOUND, "NotFound"));
        }
        if method != Method::PUT && method != Method::PATCH {
            return status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed");
        }
        let mut lease = match read(body).await {
            Ok(lease) => lease,
            Err(answer) => return answer,
        };
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let renewals = leases.get(&key).map_or(0, |held| held.renewals);
        // Apiservers share their store; stand-ins do not, so a node that comes from another stand-in has a version from
        // there.
        if method == Method::PUT && namespace != NODES_NAMESPACE && renewals > 0 {
            match lease.metadata.resource_version.as_str() {
                "" => return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
                version if version != renewals.to_string() => return status(StatusCode::CONFLICT, "Conflict"),
                _ => {}
            }
        }
        lease.metadata.resource_version = (renewals + 1).to_string();
        let answer = json(StatusCode::OK, &lease);
        leases.insert(key, HeldWatch { lease, renewals: renewals + 1 });
        answer
    }

    async fn create<B>(&self, namespace: &str, body: B) -> ApiReply
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        let mut lease = match read(body).await {
            Ok(lease) => lease,
            Err(answer) => return answer,
        };
        let key = (namespace.to_owned(), lease.metadata.name.clone());
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if leases.contains_key(&key) {
            return status(StatusCode::CONFLICT, "AlreadyExists");
        }
        lease.metadata.resource_version = "1".to_owned();
        let answer = json(StatusCode::CREATED, &lease);
        leases.insert(key, HeldWatch { lease, renewals: 1 });
        answer
    }
}

/// Namespace and name of the lease at `path`; the name is empty for the namespace's collection.
fn lease_of(path: &str) -> Option<(&str, &str)> {
    let (namespace, rest) = path.strip_prefix("/apis/coordination.k8s.io/v1/namespaces/")?.split_once('/')?;
    let name = rest.strip_prefix("leases")?;
    match name.strip_prefix('/') {
        Some(name) if !name.is_empty() => Some((namespace, name)),
        None if name.is_empty() => Some((namespace, "")),
        _ => None,
    }
}

async fn read<B>(body: B) -> Result<Lease, ApiReply>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|_| status(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|_| status(StatusCode::BAD_REQUEST, "BadRequest"))
}

/// Returns once the stand-in stops, or has gone.
pub(crate) async fn stop_ordered(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Whether the query has this key and value.
fn has(query: &str, pair: &str) -> bool {
    query.split('&').any(|part| part == pair)
}

fn text(code: StatusCode, body: impl Into<Bytes>) -> ApiReply {
    let mut answer = Response::new(Either::Left(Full::new(body.into())));
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

fn json(code: StatusCode, lease: &Lease) -> ApiReply {
    match serde_json::to_vec(lease) {
        Ok(body) => {
            let mut answer = text(code, body);
            answer.headers_mut().insert(CONTENT_TYPE, JSON);
            answer
        }
        Err(_) => status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
    }
}

/// A meta/v1 Status of a failure.
fn status(code: StatusCode, reason: &str) -> ApiReply {
    let body = serde_json::json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code.as_u16(),
    });
    let mut answer = text(code, body.to_string());
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const MAX_BODY_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::lease::LEASES_PATH;

    async fn ask(stand_in: &StandIn, method: Method, path: &str, body: &str) -> (u16, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .unwrap();
        let answer = stand_in.answer(request).await;
        assert_eq!(answer.headers()[NAME_HEADER], "cp1");
        let code = answer.status().as_u16();
        (code, String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_is_switched_while_liveness_stays() {
        let stand_in = StandIn::new("cp1".to_owned(), Duration::ZERO);
        assert_eq!(ask(&stand_in, Method::GET, "/readyz", "").await, (200, "ok".to_owned()));
        assert_eq!(ask(&stand_in, Method::POST, "/standin/readyz?ready=false", "").await.0, 200);
        assert_eq!(ask(&stand_in, Method::GET, "/readyz?verbose", "").await.0, 500);
        assert_eq!(ask(&stand_in, Method::GET, "/livez", "").await.0, 200);
        assert_eq!(ask(&stand_in, Method::POST, "/standin/readyz?ready=true", "").await.0, 200);
        assert_eq!(ask(&stand_in, Method::GET, "/readyz", "").await.0, 200);
        assert_eq!(ask(&stand_in, Method::POST, "/standin/readyz?ready=perhaps", "").await.0, 400);
    }

    #[tokio::test]
    async fn a_lease_exists_once_renewed_and_counts_its_renewals() {
        let stand_in = StandIn::new("cp1".to_owned(), Duration::ZERO);
        let path = format!("{LEASES_PATH}/node-1");
        assert_eq!(ask(&stand_in, Method::GET, &path, "").await.0, 404);
        let lease = Lease::renewed_now("node-1");
        let body = serde_json::to_string(&lease).unwrap();
        assert_eq!(ask(&stand_in, Method::PUT, &path, &body).await.0, 200);
        assert_eq!(ask(&stand_in, Method::PATCH, &path, &body).await.0, 200);
        let (code, body) = ask(&stand_in, Method::GET, &path, "").await;
        let held: Lease = serde_json::from_str(&body).unwrap();
        assert_eq!((code, held.metadata.resource_version.as_str()), (200, "2"));
        assert_eq!(held.spec, lease.spec);
        assert_eq!(ask(&stand_in, Method::PUT, &path, "{").await.0, 400);
        assert_eq!(ask(&stand_in, Method::HEAD, &path, "").await.0, 405);
        assert_eq!(ask(&stand_in, Method::PUT, LEASES_PATH, &body).await.0, 404);
        assert_eq!(ask(&stand_in, Method::DELETE, &path, "").await.0, 200);
        assert_eq!(ask(&stand_in, Method::GET, &path, "").await.0, 404);
    }

    #[tokio::test]
    async fn a_lease_of_no_node_is_made_once_and_changed_at_its_version_only() {
        let stand_in = StandIn::new("cp1".to_owned(), Duration::ZERO);
        let leases = LEASES_PATH.replace(NODES_NAMESPACE, "trial");
        let path = format!("{leases}/node-1");
        let lease = |version| serde_json::to_string(&Lease::of_drill("node-1", "trial", version)).unwrap();
        assert_eq!(ask(&stand_in, Method::POST, &leases, &lease("")).await.0, 201);
        assert_eq!(ask(&stand_in, Method::POST, &leases, &lease("")).await.0, 409);
        assert_eq!(ask(&stand_in, Method::PUT, &path, &lease("")).await.0, 422);
        assert_eq!(ask(&stand_in, Method::PUT, &path, &lease("7")).await.0, 409);
        assert_eq!(ask(&stand_in, Method::PUT, &path, &lease("1")).await.0, 200);
        assert_eq!(ask(&stand_in, Method::GET, &format!("{LEASES_PATH}/node-1"), "").await.0, 404);
    }
}
