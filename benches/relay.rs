//! The data plane alone, on loopback, from a client's write to the answer in its hands: what is measured is two
//! crossings of the relay and four of the kernel's TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use baton::addr::BackendAddr;
use baton::config;
use baton::model::balance::Preference;
use baton::ports::AllPorts;
use baton::proxy::{Proxy, ProxyParts};
use baton::table::Table;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SIZES: [usize; 3] = [64, 16 * 1024, 1024 * 1024];

/// A data plane of one worker before a server that echoes.
struct Loop {
    proxy: Proxy,
    vip: SocketAddr,
}

impl Loop {
    fn new() -> Self {
        let server = echo_server();
        let vip = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("loopback has a free port");
        let text = format!(
            "[[frontend]]\nname = \"f\"\nlisten = [\"{vip}\"]\n[[frontend.backend]]\nname = \"b\"\naddress = \"{server}\"\n"
        );
        let config = config::parse(&text, Path::new("bench")).expect("the configuration is valid").config;
        let (table, ports) = (Table::new(1), AllPorts::new(1).expect("an eventfd can be made"));
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
        let proxy = Proxy::start(parts, &config).expect("the port is still free");
        for backend in table.registry.backends() {
            backend.set_address(Some(BackendAddr::new(server)));
            backend.set_preference(Preference::Ready);
        }
        Self { proxy, vip }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.proxy.exit();
    }
}

fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("a listener has an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream));
        }
    });
    address
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

/// One message there and back.
fn exchange(stream: &mut TcpStream, message: &[u8], answer: &mut [u8]) {
    // Both sockets' buffers hold a message, so the write need not wait for the answer to be read; pieces make sure.
    for (piece, room) in message.chunks(128 * 1024).zip(answer.chunks_mut(128 * 1024)) {
        stream.write_all(piece).expect("the proxy takes bytes");
        stream.read_exact(room).expect("the server answers");
    }
}

fn round_trip(c: &mut Criterion) {
    let mut group = c.benchmark_group("relay_round_trip");
    let run = Loop::new();
    for size in SIZES {
        let mut stream = TcpStream::connect(run.vip).expect("the proxy listens");
        stream.set_nodelay(true).expect("TCP has the option");
        let (message, mut answer) = (vec![b'.'; size], vec![0; size]);
        group.throughput(Throughput::Bytes(2 * size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| exchange(&mut stream, &message, &mut answer));
        });
    }
}

fn connection(c: &mut Criterion) {
    let run = Loop::new();
    c.bench_function("connect_exchange_close", |b| {
        b.iter(|| {
            let mut stream = TcpStream::connect(run.vip).expect("the proxy listens");
            exchange(&mut stream, &[b'.'; 64], &mut [0; 64]);
        });
    });
}

criterion_group!(benches, round_trip, connection);
criterion_main!(benches);
