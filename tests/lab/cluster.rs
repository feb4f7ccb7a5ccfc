//! A stand-in for the apiservers of one cluster: HTTPS, and the EndpointSlices of default/kubernetes by list and watch, with resource
//! versions, bookmarks, 410 Gone, credentials and the errors of the real API.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use baton::lab::certs::{Authority, CertFiles, Flaw};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::Lab;
use super::host::Host;

/// What all apiservers of the cluster know.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub directory: PathBuf,
    shared: Arc<Mutex<ClusterState>>,
    /// The version, and how often all watches were ended.
    changed: Arc<watch::Sender<(u64, u64)>>,
}

#[derive(Debug, Default)]
struct ClusterState {
    version: u64,
    /// A watch from before this version is 410 Gone.
    oldest: u64,
    ips: Vec<Ipv4Addr>,
    /// Events by their version.
    log: Vec<(u64, Value)>,
    /// A list says nothing, whatever there is.
    lists_nothing: bool,
    /// The text of a list in place of the true one.
    garbage: Option<String>,
    token: Option<String>,
    wants_certificate: bool,
    /// Slices and nodes can be listed, and not watched.
    forbids_watch: bool,
    /// Name and address. `None`: nobody may list them.
    nodes: Option<Vec<(String, Ipv4Addr)>>,
    node_log: Vec<(u64, Value)>,
    node_lists: usize,
    lists: HashMap<Ipv4Addr, usize>,
    watches: HashMap<Ipv4Addr, usize>,
}

/// One apiserver. Dropped, it closes all of its sockets.
#[derive(Debug)]
pub struct ApiServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// A cluster whose apiservers are on `hosts`, with certificates in the lab's directory: ca.crt, server and other (.crt, .key); other
    /// has none of the names.
    pub fn new(lab: &Lab, hosts: &[&Host]) -> Self {
        let directory = lab.directory().join("cluster");
        std::fs::create_dir(&directory).expect("a temporary directory");
        let authority = Authority::new().expect("a CA");
        authority.write(&directory).expect("a file");
        let names = ["kubernetes".to_owned(), "kubernetes.default.svc".to_owned()];
        authority.issue(&directory, "server", &names, Flaw::None).expect("a certificate");
        let shared = ClusterState { version: 100, oldest: 100, ..ClusterState::default() };
        let it =
            Self { directory, shared: Arc::new(Mutex::new(shared)), changed: Arc::new(watch::Sender::new((100, 0))) };
        it.set(hosts);
        it
    }

    pub fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// The slice has these endpoints from now on; whoever watches gets MODIFIED.
    pub fn set(&self, hosts: &[&Host]) {
        self.change("MODIFIED", hosts);
    }

    /// From now on these nodes can be listed and watched.
    pub fn set_nodes(&self, nodes: &[(&str, Ipv4Addr)]) {
        let mut state = self.state();
        let all: Vec<_> = nodes.iter().map(|(name, ip)| ((*name).to_owned(), *ip)).collect();
        for (name, ip) in &all {
            state.version += 1;
            let event = json!({"type": "MODIFIED", "object": node(state.version, name, *ip)});
            let version = state.version;
            state.node_log.push((version, event));
        }
        state.nodes = Some(all);
        let version = state.version;
        self.changed.send_modify(|it| it.0 = version);
    }

    /// Lists of nodes that were asked for, page by page, refused ones included.
    pub fn node_lists(&self) -> usize {
        self.state().node_lists
    }

    /// The slice is gone, as after a mistake of an operator.
    pub fn delete(&self) {
        self.change("DELETED", &[]);
    }

    fn change(&self, kind: &str, hosts: &[&Host]) {
        let mut state = self.state();
        state.version += 1;
        state.ips = hosts.iter().map(|host| host.v4).collect();
        let event = json!({"type": kind, "object": slice(state.version, &state.ips)});
        let version = state.version;
        state.log.push((version, event));
        self.changed.send_modify(|it| it.0 = version);
    }

    /// A bookmark for all who watch.
    pub fn bookmark(&self) {
        let mut state = self.state();
        state.version += 1;
        let version = state.version;
        let object = json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "", "endpoints": null, "ports": null,
            "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null}
        });
        state.log.push((version, json!({"type": "BOOKMARK", "object": object})));
        self.changed.send_modify(|it| it.0 = version);
    }

    /// Forgets all events: a watch from an earlier version is 410 Gone.
    pub fn compact(&self) {
        let mut state = self.state();
        state.version += 1;
        state.oldest = state.version;
        state.log.clear();
    }

    /// Whether the rights lack the verb watch.
    pub fn forbid_watch(&self, forbids: bool) {
        self.state().forbids_watch = forbids;
    }

    /// Ends all watches in the ordinary way.
    pub fn end_watches(&self) {
        self.changed.send_modify(|it| it.1 += 1);
    }

    pub fn list_nothing(&self, nothing: bool) {
        self.state().lists_nothing = nothing;
    }

    pub fn list_garbage(&self, garbage: Option<&str>) {
        self.state().garbage = garbage.map(str::to_owned);
    }

    /// Requests without this token, or without a certificate of the CA, are refused.
    pub fn want(&self, token: Option<&str>, certificate: bool) {
        let mut state = self.state();
        (state.token, state.wants_certificate) = (token.map(str::to_owned), certificate);
    }

    pub fn lists(&self) -> usize {
        self.state().lists.values().sum()
    }

    /// Watches that are open at `host` now.
    pub fn watches_at(&self, host: &Host) -> usize {
        self.state().watches.get(&host.v4).copied().unwrap_or(0)
    }

    /// Starts the apiserver on port 6443 of `host`.
    #[track_caller]
    pub fn serve(&self, host: &Host) -> ApiServer {
        let (address, ip, cluster) = (host.v4(6443), host.v4, self.clone());
        let tls = TlsAcceptor::from(Arc::new(self.tls("server")));
        let (bound, binds) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let listener = host.enter(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&address.into())?;
            socket.listen(128)?;
            io::Result::Ok(std::net::TcpListener::from(socket))
        });
        let listener = listener.unwrap_or_else(|error| panic!("{address}: {error}"));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                let _ = bound.send(());
                let serve = async {
                    loop {
                        let Ok((stream, _)) = listener.accept().await else { continue };
                        let (tls, cluster) = (tls.clone(), cluster.clone());
                        tokio::spawn(async move { cluster.answer_all(ip, tls, stream).await });
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        binds.recv().expect("the thread answers");
        ApiServer { stop: Some(stop), thread: Some(thread) }
    }

    fn tls(&self, stem: &str) -> ServerConfig {
        let files =
            CertFiles { cert: self.file(&format!("{stem}.crt")).into(), key: self.file(&format!("{stem}.key")).into() };
        let chain = CertificateDer::pem_file_iter(files.cert).expect("a file").map(|it| it.expect("PEM")).collect();
        let key = PrivateKeyDer::from_pem_file(files.key).expect("PEM");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca.crt")).expect("PEM")).expect("a CA");
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let clients = clients.allow_unauthenticated().build().expect("a verifier");
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
        let mut config = config.with_client_cert_verifier(clients).with_single_cert(chain, key).expect("they match");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }

    fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.shared.lock().unwrap()
    }

    async fn answer_all(&self, ip: Ipv4Addr, tls: TlsAcceptor, stream: TcpStream) {
        // A probe or a flow of another test ends before it has said anything.
        let Ok(mut stream) = tls.accept(stream).await else { return };
        let _ = self.answer(ip, &mut stream).await;
        let _ = stream.shutdown().await;
    }

    async fn answer(&self, ip: Ipv4Addr, stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query: HashMap<_, _> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let has_certificate = stream.get_ref().1.peer_certificates().is_some();
        let (token, wants_certificate) = {
            let state = self.state();
            (state.token.clone(), state.wants_certificate)
        };
        let has_token =
            token.is_none_or(|token| head.to_lowercase().contains(&format!("authorization: bearer {token}\r\n")));
        if !has_token || wants_certificate && !has_certificate {
            return refuse(stream, 401, "Unauthorized", "Unauthorized").await;
        }
        if path == "/api/v1/nodes" {
            return self.answer_nodes(stream, &query).await;
        }
        if path != "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
            || query.get("labelSelector") != Some(&"kubernetes.io%2Fservice-name%3Dkubernetes")
        {
            return refuse(stream, 403, "Forbidden", "endpointslices.discovery.k8s.io is forbidden").await;
        }
        match query.get("watch") {
            Some(_) if self.state().forbids_watch => {
                refuse(stream, 403, "Forbidden", "cannot watch resource endpointslices").await
            }
            Some(_) => {
                *self.state().watches.entry(ip).or_default() += 1;
                let done = self.watch(stream, &query, |state| &state.log).await;
                *self.state().watches.entry(ip).or_default() -= 1;
                done
            }
            None => {
                let text = {
                    let mut state = self.state();
                    *state.lists.entry(ip).or_default() += 1;
                    let items = match state.lists_nothing || state.ips.is_empty() {
                        true => Vec::new(),
                        false => vec![slice(state.version, &state.ips)],
                    };
                    let list = json!({
                        "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
                        "metadata": {"resourceVersion": state.version.to_string()}, "items": items
                    });
                    state.garbage.clone().unwrap_or_else(|| list.to_string())
                };
                write(stream, "200 OK", &text).await
            }
        }
    }

    /// A node a page.
    async fn answer_nodes(&self, stream: &mut TlsStream<TcpStream>, query: &HashMap<&str, &str>) -> io::Result<()> {
        let nodes = {
            let mut state = self.state();
            state.node_lists += usize::from(!query.contains_key("watch"));
            state.nodes.clone().map(|nodes| (state.version, nodes))
        };
        let Some((version, nodes)) = nodes else { return refuse(stream, 403, "Forbidden", "nodes is forbidden").await };
        if query.contains_key("watch") {
            if self.state().forbids_watch {
                return refuse(stream, 403, "Forbidden", "cannot watch resource nodes").await;
            }
            return self.watch(stream, query, |state| &state.node_log).await;
        }
        let page: usize = query.get("continue").and_then(|text| text.parse().ok()).unwrap_or(0);
        let rest = if page + 1 < nodes.len() { (page + 1).to_string() } else { String::new() };
        let items: Vec<_> = nodes.iter().skip(page).take(1).map(|(name, ip)| node(version, name, *ip)).collect();
        let list = json!({
            "kind": "NodeList", "apiVersion": "v1",
            "metadata": {"resourceVersion": version.to_string(), "continue": rest}, "items": items
        });
        write(stream, "200 OK", &list.to_string()).await
    }

    async fn watch(
        &self,
        stream: &mut TlsStream<TcpStream>,
        query: &HashMap<&str, &str>,
        log: impl Fn(&ClusterState) -> &Vec<(u64, Value)>,
    ) -> io::Result<()> {
        let number = |key: &str| query.get(key).and_then(|text| text.parse::<u64>().ok());
        let (Some(mut version), Some(limit_s)) = (number("resourceVersion"), number("timeoutSeconds")) else {
            return refuse(stream, 400, "BadRequest", "a watch from no version, or without a limit").await;
        };
        let until = tokio::time::Instant::now() + Duration::from_secs(limit_s);
        let mut changed = self.changed.subscribe();
        let rounds = changed.borrow().1;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        loop {
            changed.borrow_and_update();
            let (oldest, events) = {
                let state = self.state();
                let later = log(&state).iter().filter(|(at, _)| *at > version).cloned();
                (state.oldest, later.collect::<Vec<_>>())
            };
            if version < oldest {
                let message = format!("too old resource version: {version} ({oldest})");
                let object = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "Expired", "code": 410
                });
                chunk(stream, &json!({"type": "ERROR", "object": object})).await?;
                break;
            }
            for (at, event) in events {
                chunk(stream, &event).await?;
                version = at;
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = tokio::time::sleep_until(until) => break,
                // Whoever watches sends nothing: its end.
                _ = stream.read_u8() => return Ok(()),
            }
            if changed.borrow().1 > rounds {
                break;
            }
        }
        stream.write_all(b"0\r\n\r\n").await?;
        stream.flush().await
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn node(version: u64, name: &str, ip: Ipv4Addr) -> Value {
    let addresses = [json!({"type": "InternalIP", "address": ip}), json!({"type": "Hostname", "address": name})];
    json!({
        "kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": version.to_string()},
        "status": {"addresses": addresses, "capacity": {"cpu": "4"}}
    })
}

fn slice(version: u64, ips: &[Ipv4Addr]) -> Value {
    let endpoints: Vec<_> = ips.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {
            "name": "kubernetes", "namespace": "default", "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/service-name": "kubernetes"}
        },
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]
    })
}

/// An error as the API has it.
async fn refuse(stream: &mut TlsStream<TcpStream>, code: u16, reason: &str, message: &str) -> io::Result<()> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code
    });
    write(stream, &format!("{code} {reason}"), &status.to_string()).await
}

async fn write(stream: &mut TlsStream<TcpStream>, status: &str, text: &str) -> io::Result<()> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await
}

async fn chunk(stream: &mut TlsStream<TcpStream>, event: &Value) -> io::Result<()> {
    let line = format!("{event}\n");
    // In two pieces: an event is not a segment.
    let (first, rest) = line.split_at(line.len() / 2);
    for part in [first, rest] {
        stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await?;
        stream.flush().await?;
    }
    Ok(())
}
