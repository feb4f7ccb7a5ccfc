//! The data plane alone, on loopback: what one side does, the other side sees.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use baton::addr::{BackendAddr, SourceMask, VipAddr};
use baton::config::*;
use baton::model::balance::{Balance, Preference};
use baton::model::end_reason::EndReason;
use baton::proxy::Proxy;
use baton::table::Table;
use baton::table::worker::EndedFlow;

const DEADLINE: Duration = Duration::from_secs(10);

struct Bench {
    table: Arc<Table>,
    proxy: Proxy,
    vip: SocketAddr,
}

impl Bench {
    /// One frontend before `backends`, all of them ready.
    fn new(backends: &[SocketAddr]) -> Self {
        Self::with(backends, |_| {})
    }

    fn with(backends: &[SocketAddr], adjust: impl FnOnce(&mut Frontend)) -> Self {
        let vip = free_address(backends.first().is_some_and(SocketAddr::is_ipv6));
        let table = Table::new(2).unwrap();
        let mut frontend = frontend(vip, backends);
        adjust(&mut frontend);
        let config = config(frontend);
        let proxy = Proxy::start(table.clone(), &config).unwrap();
        for (entry, address) in table.registry.backends().iter().zip(backends) {
            entry.set_address(Some(BackendAddr::new(*address)));
            entry.set_preference(Preference::Ready);
        }
        Self { table, proxy, vip }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.vip).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    fn next_ended(&self) -> EndedFlow {
        let started = std::time::SystemTime::now();
        loop {
            if let Some(ended) = self.table.workers.iter().find_map(|worker| worker.next_ended()) {
                return ended;
            }
            assert!(started.elapsed().unwrap() < DEADLINE, "no flow ended in time");
            thread::yield_now();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.proxy.exit();
        if !thread::panicking() {
            assert!(
                self.table.registry.backends().iter().all(|b| b.active.load(std::sync::atomic::Ordering::Relaxed) == 0)
                    || !self.table.flows.is_empty()
            );
        }
    }
}

fn free_address(ipv6: bool) -> SocketAddr {
    TcpListener::bind(if ipv6 { "[::1]:0" } else { "127.0.0.1:0" }).unwrap().local_addr().unwrap()
}

fn config(frontend: Frontend) -> Config {
    Config {
        admin: Admin { http: None, socket: "/nonexistent".into() },
        process: Process {
            workers: None,
            max_connections: None,
            shutdown_delay: Duration::ZERO,
            stop_timeout: DEADLINE,
            reset_within: Duration::from_millis(250),
            reset_rate: 50_000,
        },
        log: Log { format: LogFormat::Human, level: LogLevel::Info, flows: FlowLog::All, flows_per_second: 100 },
        frontends: vec![Arc::new(frontend)],
    }
}

fn frontend(vip: SocketAddr, backends: &[SocketAddr]) -> Frontend {
    let backend = |(number, address): (usize, &SocketAddr)| Backend {
        name: format!("b{number}").into(),
        address: Target::Address(BackendAddr::new(*address)),
        weight: 1,
        max_connections: None,
        health_address: None,
    };
    Frontend {
        name: "test".into(),
        listen: vec![VipAddr::new(vip)],
        balance: Balance::RoundRobin,
        connect_timeout: Duration::from_secs(1),
        hedge_after: Some(Duration::from_millis(200)),
        connect_attempts: 3,
        drain_timeout: DEADLINE,
        idle_timeout: None,
        keepalive: Keepalive {
            idle: Duration::from_secs(10),
            interval: Duration::from_secs(3),
            count: 3,
            user_timeout: Duration::from_secs(10),
        },
        proxy_protocol: ProxyProtocol::default(),
        limits: Limits { source_mask: SourceMask::default(), ..Limits::default() },
        allow: vec![],
        deny: vec![],
        rebalance: Rebalance {
            balance_existing: false,
            per_minute: 60,
            min_idle: Duration::from_secs(5),
            tolerance_percent: 10,
        },
        health: Health {
            kind: ProbeKind::Tcp,
            path: "/".into(),
            host: None,
            tls: None,
            interval: Duration::from_secs(1),
            fast_interval: Duration::from_millis(250),
            timeout: Duration::from_millis(500),
            rise: 2,
            fall: 2,
            reset_fall: 2,
            jitter_percent: 0,
            slow_start: Duration::ZERO,
            damping: Damping { half_life: Duration::from_secs(60), suppress: 3.0, reuse: 1.5 },
            resolve_interval: Duration::from_secs(30),
        },
        backends: backends.iter().enumerate().map(backend).collect(),
    }
}

/// A server that gives each connection to `serve`.
fn server(ip: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            let stream = stream.unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn small_and_large_messages_come_back_whole() {
    for ip in ["127.0.0.1", "::1"] {
        let bench = Bench::new(&[server(ip, echo), server(ip, echo)]);
        let mut stream = bench.connect();
        for _ in 0..100 {
            stream.write_all(b"ping").unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"ping");
        }
        let sent = pattern(64 << 20);
        let mut writer = stream.try_clone().unwrap();
        let expected = sent.clone();
        let writing = thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == expected, "{} of {} bytes came back", received.len(), expected.len());
        let ended = bench.next_ended();
        assert_eq!(ended.reason, EndReason::ClientClosed);
        assert_eq!((ended.bytes_up, ended.bytes_down), ((64 << 20) + 400, (64 << 20) + 400));
    }
}

#[test]
fn a_client_that_only_half_closed_still_gets_its_answer() {
    let address = server("127.0.0.1", |mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&request).unwrap();
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"question").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "question");
    assert_eq!(bench.next_ended().reason, EndReason::ClientClosed);
}

#[test]
fn a_backend_that_only_half_closed_still_hears_the_client() {
    let (heard, hears) = mpsc::channel();
    let address = server("127.0.0.1", move |mut stream| {
        stream.write_all(b"greeting").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        heard.send(rest).unwrap();
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    let mut greeting = String::new();
    stream.read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "greeting");
    stream.write_all(b"late words").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(hears.recv_timeout(DEADLINE).unwrap(), "late words");
    assert_eq!(bench.next_ended().reason, EndReason::BackendClosed);
}

#[test]
fn a_reset_by_the_backend_is_a_reset_for_the_client() {
    let address = server("127.0.0.1", |mut stream| {
        stream.read_exact(&mut [0; 2]).unwrap();
        reset(stream);
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"go").unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::BackendReset);
}

#[test]
fn a_reset_by_the_client_is_a_reset_for_the_backend() {
    let (heard, hears) = mpsc::channel();
    let address = server("127.0.0.1", move |mut stream| {
        stream.read_exact(&mut [0; 2]).unwrap();
        heard.send(None).unwrap();
        heard.send(stream.read(&mut [0; 8]).err().map(|error| error.kind())).unwrap();
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"go").unwrap();
    assert_eq!(hears.recv_timeout(DEADLINE).unwrap(), None);
    reset(stream);
    assert_eq!(hears.recv_timeout(DEADLINE).unwrap(), Some(std::io::ErrorKind::ConnectionReset));
    assert_eq!(bench.next_ended().reason, EndReason::ClientReset);
}

#[test]
fn a_client_that_resets_after_its_fin_is_noticed() {
    let (heard, hears) = mpsc::channel();
    let address = server("127.0.0.1", move |mut stream| {
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
        heard.send(()).unwrap();
        // The FIN alone must not end the flow: writing works until the reset comes.
        while stream.write_all(b"still here").is_ok() {
            thread::yield_now();
        }
        heard.send(()).unwrap();
    });
    let bench = Bench::new(&[address]);
    let stream = bench.connect();
    stream.shutdown(Shutdown::Write).unwrap();
    hears.recv_timeout(DEADLINE).unwrap();
    reset(stream);
    hears.recv_timeout(DEADLINE).unwrap();
    assert_eq!(bench.next_ended().reason, EndReason::ClientReset);
}

/// All of a client's bytes may come in one segment with its PROXY header and its FIN: there is no second event for them.
#[test]
fn a_fin_that_came_with_the_proxy_header_is_not_missed() {
    let address = server("127.0.0.1", |mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&request).unwrap();
    });
    let bench = Bench::with(&[address], |frontend| {
        frontend.proxy_protocol.accept_from = vec!["127.0.0.0/8".parse().unwrap()];
        frontend.proxy_protocol.header_timeout = DEADLINE;
    });
    for _ in 0..50 {
        let mut stream = bench.connect();
        stream.write_all(b"PROXY TCP4 192.0.2.7 10.0.0.100 4711 6443\r\nquestion").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "question");
        let ended = bench.next_ended();
        assert_eq!(ended.origin.client.to_string(), "192.0.2.7:4711");
        assert_eq!(ended.origin.vip.to_string(), "10.0.0.100:6443");
    }
}

#[test]
fn an_idle_flow_is_reset_and_a_busy_one_is_not() {
    let bench = Bench::with(&[server("127.0.0.1", echo)], |frontend| {
        frontend.idle_timeout = Some(Duration::from_millis(400));
    });
    let (mut busy, mut idle) = (bench.connect(), bench.connect());
    idle.set_nonblocking(true).unwrap();
    let ended = loop {
        busy.write_all(b"ping").unwrap();
        busy.read_exact(&mut [0; 4]).unwrap();
        match idle.read(&mut [0; 4]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(10)),
            other => break other,
        }
    };
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::IdleTimeout);
    busy.write_all(b"ping").unwrap();
    busy.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn a_refused_connect_goes_to_another_backend() {
    let dead = free_address(false);
    let bench = Bench::new(&[dead, dead, server("127.0.0.1", echo)]);
    for _ in 0..10 {
        let mut stream = bench.connect();
        stream.write_all(b"early").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"early");
    }
}

#[test]
fn a_client_is_reset_at_once_when_no_backend_answers() {
    let bench = Bench::new(&[free_address(false)]);
    let mut stream = bench.connect();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::ConnectFailed);
    bench.table.registry.backends()[0].set_preference(Preference::Never);
    let mut stream = bench.connect();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bench.next_ended().reason, EndReason::NoBackend);
}

#[test]
fn a_stalled_reader_stops_the_sender() {
    let address = server("127.0.0.1", |mut stream| {
        stream.read_exact(&mut [0; 2]).unwrap();
        let piece = pattern(1 << 20);
        for _ in 0..256 {
            stream.write_all(&piece).unwrap();
        }
    });
    let bench = Bench::new(&[address]);
    let mut stream = bench.connect();
    stream.write_all(b"go").unwrap();
    // Until the counter stands still for a while, the kernel's buffers are filling.
    let moved = || bench.table.flows.iter().map(|flow| flow.bytes_down).sum::<u64>();
    let mut seen = u64::MAX;
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(100));
        let now = moved();
        if now == seen && now > 0 {
            break;
        }
        seen = now;
    }
    assert_eq!(moved(), seen);
    assert!(seen < 64 << 20, "{seen} bytes were taken for a reader that reads nothing");
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        received += count;
    }
    assert_eq!(received, 256 << 20);
}
