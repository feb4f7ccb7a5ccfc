//! The data plane alone, on loopback, between servers and clients that are threads of the test.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use baton::addr::{BackendAddr, SourceMask, VipAddr};
use baton::config::*;
use baton::model::balance::{Balance, Preference};
use baton::proxy::Proxy;
use baton::table::Table;
use baton::table::worker::EndedFlow;

pub const DEADLINE: Duration = Duration::from_secs(10);

pub struct Bench {
    pub table: Arc<Table>,
    pub proxy: Proxy,
    pub vip: SocketAddr,
    pub config: Config,
}

impl Bench {
    /// One frontend before `backends`, all of them ready.
    pub fn new(backends: &[SocketAddr]) -> Self {
        Self::with(backends, |_| {})
    }

    pub fn with(backends: &[SocketAddr], adjust: impl FnOnce(&mut Frontend)) -> Self {
        Self::of_workers(2, backends, adjust)
    }

    pub fn of_workers(workers: usize, backends: &[SocketAddr], adjust: impl FnOnce(&mut Frontend)) -> Self {
        let vip = free_address(backends.first().is_some_and(SocketAddr::is_ipv6));
        let table = Table::new(workers).unwrap();
        let mut frontend = frontend(vip, backends);
        adjust(&mut frontend);
        let config = config(frontend);
        let proxy = Proxy::start(table.clone(), &config).unwrap();
        for (entry, address) in table.registry.backends().iter().zip(backends) {
            entry.set_address(Some(BackendAddr::new(*address)));
            entry.set_preference(Preference::Ready);
        }
        Self { table, proxy, vip, config }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.vip).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Goes over to `config` and waits until every worker has.
    pub fn reconfigure(&self, config: &Config) {
        let bindings = self.proxy.bind(config).unwrap();
        let version = self.proxy.reconfigure(config, bindings);
        wait_until("all workers follow", || self.proxy.follows(version));
    }

    pub fn next_ended(&self) -> EndedFlow {
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

/// Waits for `what` to come true.
pub fn wait_until(what: &str, is: impl Fn() -> bool) {
    let started = std::time::SystemTime::now();
    while !is() {
        assert!(started.elapsed().unwrap() < 3 * DEADLINE, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// One that nobody listens at. Its port is below those that connections get (ip_local_port_range), or a client of another test
/// could have it before it is used; and each test process looks elsewhere first.
pub fn free_address(ipv6: bool) -> SocketAddr {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let ip: IpAddr = if ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let mut all = (0..1000).map(|_| {
        let turn = std::process::id().wrapping_mul(64).wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
        SocketAddr::new(ip, 10_000 + (turn % 22_000) as u16)
    });
    all.find(|address| TcpListener::bind(address).is_ok()).expect("a free port")
}

pub fn config(frontend: Frontend) -> Config {
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
        offload: OffloadSettings::default(),
        cluster: Cluster::default(),
        instance: Default::default(),
        peers: None,
        failover: baton::config::FailoverSettings::default(),
        frontends: vec![Arc::new(frontend)],
    }
}

pub fn frontend(vip: SocketAddr, backends: &[SocketAddr]) -> Frontend {
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
        source: Source::Route,
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
pub fn server(ip: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
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

pub fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

pub fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}
