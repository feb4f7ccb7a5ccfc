//! Probes against real sockets.

use std::future::Future;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::health::testing::{self, Certificate};

const TIMEOUT: Duration = Duration::from_millis(500);

/// Serves each connection with `serve`, until the server is dropped.
struct Server {
    addr: BackendAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = BackendAddr::new(listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Self { addr, task }
    }

    /// Answers each request with `answer`, then closes.
    async fn http(answer: &'static str) -> Self {
        Self::start(move |mut stream| async move {
            read_request(&mut stream).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        })
        .await
    }

    async fn https(certificate: Certificate, answer: &'static str) -> Self {
        let acceptor = TlsAcceptor::from(certificate.server);
        Self::start(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                read_request(&mut stream).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        })
        .await
    }
}

async fn read_request(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") && stream.read_buf(&mut seen).await.is_ok_and(|read| read > 0) {}
}

async fn hold<S>(stream: S) {
    let _kept = stream;
    std::future::pending::<()>().await;
}

fn health(kind: ProbeKind) -> Health {
    Health { kind, timeout: TIMEOUT, ..testing::health() }
}

/// Trusts the authority of `certificate`, and asks for `name`.
fn tls_health(kind: ProbeKind, certificate: &Certificate, name: &str) -> Health {
    Health { tls: Some(certificate.trusted()), host: Some(name.into()), ..health(kind) }
}

async fn probe(health: &Health, to: BackendAddr) -> ProbeOutcome {
    Arc::new(Manner::new(health, &testing::backend("cp1", to))).probe(to, || ()).await
}

fn tls_fault(outcome: ProbeOutcome) -> String {
    match outcome {
        ProbeOutcome::Failed(Cause::Tls { error }) => error,
        other => panic!("no TLS fault: {other:?}"),
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const BAD: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_status_of_200_passes_and_500_is_not_ready() {
    let (ok, bad) = (Server::http(OK).await, Server::http(BAD).await);
    assert_eq!(probe(&health(ProbeKind::Http), ok.addr).await, ProbeOutcome::Passed);
    assert_eq!(probe(&health(ProbeKind::Http), bad.addr).await, ProbeOutcome::NotReady { status: 500 });
}

#[tokio::test]
async fn the_request_names_the_path_and_the_host_and_asks_to_close() {
    let (sender, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut request = vec![0; 1000];
            let length = stream.read(&mut request).await.unwrap();
            sender.send(String::from_utf8_lossy(&request[..length]).to_lowercase()).unwrap();
            let _ = stream.write_all(OK.as_bytes()).await;
        }
    })
    .await;
    assert_eq!(probe(&health(ProbeKind::Http), server.addr).await, ProbeOutcome::Passed);
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("get /readyz http/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("\r\nhost: {}\r\n", server.addr)), "{request}");
    assert!(request.contains("\r\nconnection: close\r\n"), "{request}");
}

#[tokio::test]
async fn a_closed_port_refuses() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for kind in [ProbeKind::Tcp, ProbeKind::Http] {
        assert_eq!(probe(&health(kind), BackendAddr::new(port)).await, ProbeOutcome::Failed(Cause::Refused));
    }
}

#[tokio::test]
async fn a_server_that_accepts_but_never_answers_is_silent() {
    let server = Server::start(hold).await;
    let certificate = Certificate::new("cp1");
    let before = tokio::time::Instant::now();
    for health in [health(ProbeKind::Http), tls_health(ProbeKind::Tls, &certificate, "cp1")] {
        let outcome = probe(&health, server.addr).await;
        assert_eq!(outcome, ProbeOutcome::Failed(Cause::TimedOut { after_ms: 500 }));
    }
    assert!((TIMEOUT * 2..TIMEOUT * 8).contains(&before.elapsed()), "{:?}", before.elapsed());
    assert_eq!(probe(&health(ProbeKind::Tcp), server.addr).await, ProbeOutcome::Passed);
}

#[tokio::test]
async fn a_connection_that_hangs_does_not_make_a_healthy_backend_silent() {
    let connections = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let server = Server::start(move |mut stream| {
        let place = connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async move {
            if place % 3 < 2 {
                return hold(stream).await;
            }
            read_request(&mut stream).await;
            let _ = stream.write_all(OK.as_bytes()).await;
        }
    })
    .await;
    let patient = Health { timeout: TIMEOUT * 8, ..health(ProbeKind::Http) };
    assert_eq!(probe(&patient, server.addr).await, ProbeOutcome::Passed);
}

#[tokio::test]
async fn a_body_that_never_ends_is_not_waited_for() {
    let server = Server::start(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nok").await;
        hold(stream).await;
    })
    .await;
    assert_eq!(probe(&health(ProbeKind::Http), server.addr).await, ProbeOutcome::Passed);
}

#[tokio::test]
async fn headers_without_end_are_not_read_for_ever() {
    let server = Server::start(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while stream.write_all(b"x-filler: 0123456789012345678901234567890123456789\r\n").await.is_ok() {}
    })
    .await;
    let outcome = probe(&health(ProbeKind::Http), server.addr).await;
    assert!(matches!(outcome, ProbeOutcome::Failed(Cause::Protocol { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_reset_after_accept_is_a_reset() {
    let server = Server::start(|mut stream| async move {
        read_request(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    assert_eq!(probe(&health(ProbeKind::Http), server.addr).await, ProbeOutcome::Failed(Cause::Reset));
}

#[tokio::test]
async fn a_close_without_an_answer_and_a_banner_are_no_http() {
    let closes = Server::start(|mut stream| async move { read_request(&mut stream).await }).await;
    let greets = Server::start(|mut stream| async move {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await;
        hold(stream).await;
    })
    .await;
    for server in [closes, greets] {
        let outcome = probe(&health(ProbeKind::Http), server.addr).await;
        assert!(matches!(outcome, ProbeOutcome::Failed(Cause::Protocol { .. })), "{outcome:?}");
    }
}

#[tokio::test]
async fn https_passes_with_the_right_certificate() {
    let certificate = Certificate::new("cp1.example");
    let health = tls_health(ProbeKind::Https, &certificate, "cp1.example:6443");
    let server = Server::https(certificate.clone(), OK).await;
    for _ in 0..3 {
        assert_eq!(probe(&health, server.addr).await, ProbeOutcome::Passed);
    }
    let bad = Server::https(certificate, BAD).await;
    assert_eq!(probe(&health, bad.addr).await, ProbeOutcome::NotReady { status: 500 });
}

#[tokio::test]
async fn a_certificate_for_the_address_needs_no_host() {
    let certificate = Certificate::new("127.0.0.1");
    let health = Health { host: None, ..tls_health(ProbeKind::Tls, &certificate, "") };
    let server = Server::https(certificate, OK).await;
    assert_eq!(probe(&health, server.addr).await, ProbeOutcome::Passed);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_named() {
    let certificate = Certificate::new("cp1.example");
    let health = tls_health(ProbeKind::Https, &certificate, "cp2.example");
    let server = Server::https(certificate, OK).await;
    let fault = tls_fault(probe(&health, server.addr).await);
    assert_eq!(fault, "certificate is for cp1.example, not cp2.example");
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_named() {
    let health = tls_health(ProbeKind::Https, &Certificate::new("cp1"), "cp1");
    let server = Server::https(Certificate::signed("another", "cp1", 2001, 2900), OK).await;
    assert_eq!(tls_fault(probe(&health, server.addr).await), "certificate is signed by an unknown authority");
    let server = Server::https(Certificate::new("cp1"), OK).await;
    let fault = tls_fault(probe(&health, server.addr).await);
    assert_eq!(fault, "certificate is signed by an unknown authority that has a known one's name");
}

#[tokio::test]
async fn an_expired_certificate_is_named_with_its_date() {
    let certificate = Certificate::valid("cp1", 2001, 2002);
    let health = tls_health(ProbeKind::Https, &certificate, "cp1");
    let server = Server::https(certificate, OK).await;
    let fault = tls_fault(probe(&health, server.addr).await);
    assert!(fault.starts_with("certificate expired ") && fault.ends_with(" days ago (notAfter 2002-01-01T00:00:00Z)"));
}

#[tokio::test]
async fn a_certificate_of_the_future_is_named_with_its_date() {
    let certificate = Certificate::valid("cp1", 2900, 2901);
    let health = tls_health(ProbeKind::Https, &certificate, "cp1");
    let server = Server::https(certificate, OK).await;
    let fault = tls_fault(probe(&health, server.addr).await);
    assert!(fault.contains("not valid for another") && fault.contains("2900-01-01"), "{fault}");
}

#[tokio::test]
async fn a_missing_client_certificate_is_named() {
    let certificate = Certificate::new("cp1");
    let server = Server::https(certificate.clone().wanting_clients(), OK).await;
    for kind in [ProbeKind::Tls, ProbeKind::Https] {
        let fault = tls_fault(probe(&tls_health(kind, &certificate, "cp1"), server.addr).await);
        assert_eq!(fault, "it wants a client certificate");
    }
}

#[tokio::test]
async fn plain_text_on_the_tls_port_is_the_wrong_protocol() {
    let server = Server::start(|mut stream| async move {
        let mut hello = [0; 100];
        let _ = stream.read(&mut hello).await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        hold(stream).await;
    })
    .await;
    let health = tls_health(ProbeKind::Https, &Certificate::new("cp1"), "cp1");
    let error = "it does not speak TLS".into();
    assert_eq!(probe(&health, server.addr).await, ProbeOutcome::Failed(Cause::Protocol { error }));
}

#[tokio::test]
async fn an_expired_certificate_is_seen_in_spite_of_an_earlier_session() {
    let good = Certificate::new("cp1");
    let expired = good.clone().reissued("cp1", 2001, 2002);
    let health = tls_health(ProbeKind::Https, &good, "cp1");
    let current = Arc::new(std::sync::Mutex::new(TlsAcceptor::from(good.server.clone())));
    let serving = current.clone();
    let server = Server::start(move |stream| {
        let acceptor = serving.lock().unwrap().clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            read_request(&mut stream).await;
            let _ = stream.write_all(OK.as_bytes()).await;
        }
    })
    .await;
    let manner = Arc::new(Manner::new(&health, &testing::backend("cp1", server.addr)));
    for _ in 0..3 {
        assert_eq!(manner.clone().probe(server.addr, || ()).await, ProbeOutcome::Passed);
    }
    *current.lock().unwrap() = TlsAcceptor::from(expired.server_sharing_tickets_of(&good));
    assert!(tls_fault(manner.clone().probe(server.addr, || ()).await).starts_with("certificate expired"));
}

#[tokio::test]
async fn probes_leave_no_time_wait() {
    let server = Server::http(OK).await;
    for _ in 0..20 {
        assert_eq!(probe(&health(ProbeKind::Tcp), server.addr).await, ProbeOutcome::Passed);
    }
    // /proc/net/tcp: local and remote address, state. A closed socket is listed as long as it waits for a segment.
    let remote = format!("0100007F:{:04X}", server.addr.port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let left = sockets.lines().filter(|line| line.split_whitespace().nth(2) == Some(&remote));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// Answers each request from a thread of its own, a moment later.
fn answering_apart() -> BackendAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = BackendAddr::new(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Read::read(&mut stream, &mut [0; 1000]);
            std::thread::sleep(TIMEOUT / 10);
            let _ = std::io::Write::write_all(&mut stream, OK.as_bytes());
        }
    });
    addr
}

/// As after SIGSTOP, a pause of the virtual machine, or other processes that use the CPU.
#[tokio::test]
async fn a_backend_is_not_silent_while_this_process_does_not_run() {
    let to = answering_apart();
    let probe = tokio::spawn(async move { probe(&health(ProbeKind::Http), to).await });
    tokio::task::yield_now().await;
    std::thread::sleep(2 * TIMEOUT);
    assert_eq!(probe.await.unwrap(), ProbeOutcome::Passed);
}

#[tokio::test]
async fn a_process_that_hardly_runs_gives_up_in_the_end() {
    let silent = Server::start(hold).await;
    let probe = tokio::spawn(async move { probe(&health(ProbeKind::Http), silent.addr).await });
    for _ in 0..40 {
        tokio::task::yield_now().await;
        std::thread::sleep(TIMEOUT / 4);
    }
    assert!(probe.is_finished());
    assert_eq!(probe.await.unwrap(), ProbeOutcome::Failed(Cause::TimedOut { after_ms: 500 }));
}
