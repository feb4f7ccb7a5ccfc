//! The data plane alone, on loopback, between servers and clients that are threads of the test.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use baton::addr::{BackendAddr, VipAddr};
use baton::config::*;
use baton::model::balance::{Balance, Preference};
use baton::ports::AllPorts;
use baton::ports::ended::EndedFlow;
use baton::proxy::{Proxy, ProxyParts};
use baton::table::Table;

pub const DEADLINE: Duration = Duration::from_secs(10);

pub struct Bench {
    pub table: Arc<Table>,
    pub ports: Arc<AllPorts>,
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
        let (table, ports) = (Table::new(workers), AllPorts::new(workers).unwrap());
        let mut frontend = frontend(vip, backends);
        adjust(&mut frontend);
        let config = config(frontend);
        let parts = ProxyParts {
            flows: table.part(),
            registry: table.part(),
            workers: table.part(),
            journal: table.part(),
            census: table.part(),
            orders: ports.part(),
            offload: ports.part(),
            fleet: ports.part(),
            late_resets: ports.part(),
            ended: ports.part(),
        };
        let proxy = Proxy::start(parts, &config).unwrap();
        for (entry, address) in table.registry.backends().iter().zip(backends) {
            entry.set_address(Some(BackendAddr::new(*address)));
            entry.set_preference(Preference::Ready);
        }
        Self { table, ports, proxy, vip, config }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.vip).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// How a connection ends that is to be refused. The reset may come before connect(2) returns.
    pub fn refusal(&self) -> std::io::ErrorKind {
        // It says nothing: a write would take the error, and the read find only an end.
        let refused = TcpStream::connect(self.vip).and_then(|mut stream| {
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.read_exact(&mut [0; 4])
        });
        refused.expect_err("it is refused").kind()
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
            if let Some(ended) = (0..self.ports.ended.workers()).find_map(|worker| self.ports.ended.next(worker)) {
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
    wait_until_or(what, is, String::new);
}

/// As [`wait_until`]; if it does not come true, says `instead` too.
pub fn wait_until_or(what: &str, is: impl Fn() -> bool, instead: impl Fn() -> String) {
    let started = std::time::SystemTime::now();
    while !is() {
        assert!(started.elapsed().unwrap() < 3 * DEADLINE, "not in time: {what}; {}", instead());
        thread::sleep(Duration::from_millis(1));
    }
}

/// An address without a listener. Its port is below those of outgoing connections (ip_local_port_range), or another
/// test's client could get it before its use; and each test process begins its search at another port.
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
    let base = by_default(vec![Arc::new(frontend)]);
    let process = Process { shutdown_delay: Duration::ZERO, stop_timeout: DEADLINE, ..base.process };
    Config {
        admin: Admin {
            http: None,
            socket: "/nonexistent".into(),
            metrics: None,
            allowed_hosts: Vec::new(),
            group: None,
        },
        process,
        ..base
    }
}

pub fn frontend(vip: SocketAddr, backends: &[SocketAddr]) -> Frontend {
    let backend = |(number, address): (usize, &SocketAddr)| Backend {
        name: format!("b{number}").into(),
        address: Target::Address(BackendAddr::new(*address)),
        weight: 1,
        max_connections: None,
        health_address: None,
        is_discovered: false,
    };
    let base = frontend_by_default("test");
    Frontend {
        listen: vec![VipAddr::new(vip)],
        balance: Balance::RoundRobin,
        source: Source::Route,
        drain_timeout: DEADLINE,
        keepalive: Keepalive {
            interval: Duration::from_secs(3),
            user_timeout: Duration::from_secs(10),
            ..base.keepalive
        },
        health: Health { jitter_percent: 0, slow_start: Duration::ZERO, ..base.health },
        backends: backends.iter().enumerate().map(backend).collect(),
        ..base
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
