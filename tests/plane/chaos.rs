//! Everything at once, at random, against a data plane on loopback: whatever happens, bytes arrive whole or a reset does,
//! each flow ends with a reason that fits what its client saw, and nothing is left behind.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use baton::model::balance::Preference;
use baton::model::end_reason::{ClientSaw, EndReason};
use baton::model::ids::FlowId;
use baton::ports::ended::EndedFlow;
use baton::ports::orders::{EndOrder, Pace, Selector};
use fastrand::Rng;
use socket2::{Domain, Socket, Type};

use crate::bench::*;

const RUN_FOR: Duration = Duration::from_secs(15);
const CLIENTS: usize = 24;
const SIZE_MAX: usize = 2 << 20;
/// Pipes that a worker keeps for later have two descriptors each.
const POOLED_FILES_MAX: usize = 2 * 2 * 32;

/// Length and hash of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Digest {
    length: usize,
    hash: u64,
}

#[derive(Default)]
struct Digester(DefaultHasher, usize);

/// A backend's actions on a flow that began with an id.
#[derive(Clone, Copy, Debug)]
struct Served {
    /// `None` until the client's FIN came.
    read: Option<Digest>,
    /// `None` unless it sent FIN after this.
    sent: Option<Digest>,
    echoes: bool,
}

/// The fate of a client's connection, as the client saw it.
#[derive(Clone, Debug)]
struct Seen {
    from: SocketAddr,
    id: u64,
    end: End,
    /// `None` unless it sent FIN after this.
    sent: Option<Digest>,
    received: Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Fin,
    /// A FIN, and a reset while it still sent.
    FinThenRst,
    Rst,
    /// It reset the connection itself.
    Left,
}

type Ledger = Arc<Mutex<HashMap<u64, Served>>>;

#[test]
fn chaos_loses_no_byte_and_leaves_nothing_behind() {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let ledger = Ledger::default();
    let backends = backends(&ledger);
    let files_before = open_files();

    let bench = Bench::with(&backends, |frontend| frontend.idle_timeout = Some(Duration::from_secs(3)));
    let files_idle = open_files();
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (vip, over, rng) = (bench.vip, over.clone(), rng.fork());
            thread::spawn(move || run_client(vip, &over, rng))
        })
        .collect();
    let (mut ended, mut asked_to_move) = (Vec::new(), HashSet::new());
    let started = SystemTime::now();
    while started.elapsed().unwrap() < RUN_FOR {
        disturb(&bench, &mut rng, &mut asked_to_move);
        thread::sleep(Duration::from_millis(rng.u64(5..80)));
        collect(&bench, &mut ended);
    }
    over.store(true, Relaxed);
    let seen: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();

    wait_until("no flow is left", || bench.table.flows.is_empty());
    collect(&bench, &mut ended);
    let registry = &bench.table.registry;
    wait_until("no backend counts a flow", || registry.backends().iter().all(|b| b.active.load(Relaxed) == 0));
    wait_until("no frontend counts a flow", || registry.frontends().iter().all(|f| f.active.load(Relaxed) == 0));
    wait_until("no pipe is in use", || bench.table.workers.iter().all(|w| w.pipes_in_use.load(Relaxed) == 0));
    wait_until("all sockets are closed", || open_files().len() <= files_idle.len() + POOLED_FILES_MAX);
    let accepted: u64 = bench.table.workers.iter().map(|worker| worker.accepted.value()).sum();
    assert_eq!(ended.len() as u64, accepted, "each flow is reported once");
    assert_eq!(seen.len() as u64, accepted);
    let ledger = ledger.lock().unwrap();
    let mut tally = HashMap::new();
    for (seen, ended) in pair(&seen, &ended) {
        *tally.entry((seen.end, ended.reason.label())).or_insert(0) += 1;
        check(&seen, &ended, ledger.get(&seen.id), asked_to_move.contains(&ended.id));
    }
    // A backend may still have to write down what it did.
    drop(ledger);
    println!("{} flows, {tally:#?}", ended.len());
    assert!(ended.len() > 200, "too few flows to mean anything");
    drop(bench);
    wait_until_or(
        "all descriptors are closed",
        || open_files().len() == files_before.len(),
        || format!("{files_before:#?} were open before, and now {:#?}", open_files()),
    );
}

/// Does something to the data plane that an operator, a health checker or a reload may do. Notes the flows that it asks to move.
fn disturb(bench: &Bench, rng: &mut Rng, asked_to_move: &mut HashSet<FlowId>) {
    const LIKINGS: [Preference; 4] = [Preference::Ready, Preference::Ready, Preference::Draining, Preference::Never];
    let backends = bench.table.registry.backends();
    let backend = &backends[rng.usize(..backends.len())];
    let pace = Pace { within: Duration::from_millis(rng.u64(0..200)), per_second: 5000 };
    let end = |selector, reason| bench.ports.orders.end(EndOrder { selector, reason, pace, only_idle_for: None });
    match rng.u32(..20) {
        0..8 => backend.set_preference(LIKINGS[rng.usize(..LIKINGS.len())]),
        8 => {
            backend.set_preference(Preference::Never);
            end(Selector::Backend(backend.id), EndReason::BackendEjected);
        }
        9 => end(Selector::Backend(backend.id), EndReason::Killed),
        10 if rng.u32(..4) == 0 => end(Selector::Client("127.0.0.0/8".parse().unwrap()), EndReason::Killed),
        11 if rng.u32(..4) == 0 => end(Selector::All, EndReason::Killed),
        12..15 => {
            if let Some(flow) = bench.table.flows.iter().nth(rng.usize(..CLIENTS)) {
                bench.ports.orders.end_flow(flow.ticket(), EndReason::Killed, None);
            }
        }
        15 => {
            for flow in bench.table.flows.iter() {
                asked_to_move.insert(flow.id);
                bench.ports.orders.end_flow(flow.ticket(), EndReason::Rebalanced, Some(Duration::from_millis(200)));
            }
        }
        16..18 => {
            let mut config = bench.config.clone();
            let mut frontend = (*config.frontends[0]).clone();
            frontend.hedge_after = rng.bool().then_some(Duration::from_millis(rng.u64(1..50)));
            frontend.connect_attempts = rng.u32(1..5);
            frontend.limits.max_connections_per_source = rng.bool().then_some(rng.u32(10..30));
            for backend in &mut frontend.backends {
                backend.max_connections = rng.bool().then_some(rng.u32(1..10));
            }
            config.frontends = vec![Arc::new(frontend)];
            bench.reconfigure(&config);
        }
        _ => {}
    }
}

fn collect(bench: &Bench, ended: &mut Vec<EndedFlow>) {
    for (number, worker) in bench.table.workers.iter().enumerate() {
        ended.extend(std::iter::from_fn(|| bench.ports.ended.next(number)));
        assert_eq!(worker.ended_unlogged.value(), 0);
    }
}

/// Each client's view with the record of its flow. A port may serve several connections, one after the other.
fn pair(seen: &[Seen], ended: &[EndedFlow]) -> Vec<(Seen, EndedFlow)> {
    let mut records: HashMap<SocketAddr, Vec<EndedFlow>> = HashMap::new();
    for flow in ended {
        records.entry(flow.origin.client.socket_addr()).or_default().push(*flow);
    }
    records.values_mut().for_each(|flows| flows.sort_by_key(|flow| std::cmp::Reverse(flow.origin.accepted_at_ns)));
    let mut seen = seen.to_vec();
    seen.sort_by_key(|seen| seen.id);
    let record = |seen: Seen| {
        let flow = records.get_mut(&seen.from).and_then(Vec::pop).expect("a record for each connection");
        (seen, flow)
    };
    seen.into_iter().map(record).collect()
}

fn check(seen: &Seen, ended: &EndedFlow, served: Option<&Served>, asked_to_move: bool) {
    let about = || format!("{seen:?}\n{ended:?}\n{served:?}");
    // Both ends are told by FIN to move, and while one has not acknowledged that, an order may still end the flow by RST.
    let ordered = matches!(ended.reason, EndReason::Killed | EndReason::BackendEjected);
    let was_moved = ended.reason == EndReason::Rebalanced || asked_to_move && ordered;
    assert_ne!(ended.reason, EndReason::Internal, "{}", about());
    // Bytes that a client sends into a connection that was closed while idle are answered with a reset.
    if seen.end == End::Rst && !was_moved {
        assert_eq!(ended.reason.client_saw(), ClientSaw::Rst, "{}", about());
    }
    if matches!(seen.end, End::Fin | End::FinThenRst) && !was_moved {
        let served = served.unwrap_or_else(|| panic!("no backend sent FIN: {}", about()));
        assert_eq!(Some(seen.received), served.sent, "a FIN before all bytes: {}", about());
        if served.echoes {
            // All was delivered; but an order ends a flow by RST as long as the last FIN is not acknowledged.
            assert!(ended.reason == EndReason::ClientClosed || ordered, "{}", about());
            assert_eq!(seen.sent, served.read, "{}", about());
        }
    }
    if let Some(Served { read: Some(read), .. }) = served
        && !was_moved
    {
        assert_eq!(Some(*read), seen.sent, "the backend saw a FIN before all bytes: {}", about());
    }
    if matches!(ended.reason, EndReason::ClientClosed | EndReason::BackendClosed) && seen.end != End::Left {
        assert_eq!(seen.end, End::Fin, "{}", about());
        assert_eq!(ended.bytes_to_backend, seen.sent.unwrap().length as u64, "{}", about());
        assert_eq!(ended.bytes_to_client, seen.received.length as u64, "{}", about());
    }
}

/// Connects again and again until it is over; every connection is brought to an end.
fn run_client(vip: SocketAddr, over: &AtomicBool, mut rng: Rng) -> Vec<Seen> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let mut seen = Vec::new();
    while !over.load(Relaxed) {
        let id = NEXT.fetch_add(1, Relaxed);
        let socket = Socket::new(Domain::for_address(vip), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(vip.ip(), 0).into()).unwrap();
        let from = socket.local_addr().unwrap().as_socket().unwrap();
        if let Err(error) = socket.connect(&vip.into()) {
            // Baton refused it before connect(2) returned.
            assert!(is_reset(&error), "{error}");
            seen.push(Seen { from, id, end: End::Rst, sent: None, received: Digest::default() });
            continue;
        }
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let (end, sent, received) = converse(&stream, id, &mut rng);
        if end == End::Left {
            reset(stream);
        }
        seen.push(Seen { from, id, end, sent, received });
    }
    seen
}

fn converse(stream: &TcpStream, id: u64, rng: &mut Rng) -> (End, Option<Digest>, Digest) {
    let mut message = id.to_le_bytes().to_vec();
    // As many small ones as large ones.
    let size = (SIZE_MAX as f64).powf(rng.f64()) as usize;
    message.extend(std::iter::repeat_with(|| rng.u8(..)).take(size));
    let leaves_after = (rng.u32(..5) == 0).then(|| rng.usize(..=message.len()));
    let silent_for = (rng.u32(..6) == 0).then(|| Duration::from_millis(rng.u64(..1200)));
    let stalls_for = (rng.u32(..6) == 0).then(|| Duration::from_millis(rng.u64(..700)));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            if let Some(time) = silent_for {
                thread::sleep(time);
            }
            let mut to = stream;
            to.write_all(&message[..leaves_after.unwrap_or(message.len())])?;
            if leaves_after.is_none() {
                stream.shutdown(Shutdown::Write)?;
            }
            Ok(())
        });
        if let Some(time) = stalls_for {
            thread::sleep(time);
        }
        if leaves_after.is_some() {
            // It may write into a reset connection, or into buffers that no process reads: both end with its own reset.
            let _: io::Result<()> = writer.join().unwrap();
            return (End::Left, None, Digest::default());
        }
        let (received, read) = read_all(stream);
        if let Err(error) = &read {
            assert!(is_reset(error), "a client waited in vain: {error}");
            let _ = stream.shutdown(Shutdown::Both);
        }
        let written: io::Result<()> = writer.join().unwrap();
        if let Err(error) = &written {
            assert!(is_reset(error) || read.is_err(), "a client could not send: {error}");
        }
        let end = match (&read, &written) {
            (Ok(()), Ok(())) => End::Fin,
            // The error is told once, and this time to the writer: EPIPE if a FIN had come before the reset.
            (Ok(()), Err(error)) if error.kind() == ErrorKind::BrokenPipe => End::FinThenRst,
            _ => End::Rst,
        };
        (end, written.is_ok().then(|| digest(&message)), received)
    })
}

/// Two that echo, one that does so late, one that resets, one that closes its half first, one that refuses.
fn backends(ledger: &Ledger) -> [SocketAddr; 6] {
    let echo = |delay_ms: u64| {
        let ledger = ledger.clone();
        server("127.0.0.1", move |stream| {
            thread::sleep(Duration::from_millis(fastrand::u64(0..=delay_ms)));
            serve_echo(&stream, &ledger, usize::MAX);
        })
    };
    let resetting = ledger.clone();
    let resetter = server("127.0.0.1", move |stream| {
        if serve_echo(&stream, &resetting, fastrand::usize(..200_000)) {
            reset(stream);
        }
    });
    let closing = ledger.clone();
    let closer = server("127.0.0.1", move |stream| serve_close(&stream, &closing));
    [echo(0), echo(0), echo(300), resetter, closer, free_address(false)]
}

/// Echoes until the client's FIN, or returns true after `most` bytes.
fn serve_echo(mut stream: &TcpStream, ledger: &Ledger, most: usize) -> bool {
    let mut id = [0; 8];
    if stream.read_exact(&mut id).is_err() || stream.write_all(&id).is_err() {
        return true;
    }
    let mut digester = Digester::default();
    digester.add(&id);
    let mut buffer = vec![0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) if digester.1 + count < most => {
                digester.add(&buffer[..count]);
                if stream.write_all(&buffer[..count]).is_err() {
                    return false;
                }
            }
            _ => return true,
        }
    }
    let whole = Some(digester.digest());
    ledger.lock().unwrap().insert(u64::from_le_bytes(id), Served { read: whole, sent: whole, echoes: true });
    false
}

/// Sends something and FIN, then reads to the client's.
fn serve_close(mut stream: &TcpStream, ledger: &Ledger) {
    let mut id = [0; 8];
    let answer: Vec<_> = std::iter::repeat_with(|| fastrand::u8(..)).take(fastrand::usize(..300_000)).collect();
    if stream.read_exact(&mut id).is_err() || stream.write_all(&answer).is_err() {
        return;
    }
    let number = u64::from_le_bytes(id);
    let served = Served { read: None, sent: Some(digest(&answer)), echoes: false };
    ledger.lock().unwrap().insert(number, served);
    let _ = stream.shutdown(Shutdown::Write);
    let mut digester = Digester::default();
    digester.add(&id);
    let mut buffer = vec![0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => digester.add(&buffer[..count]),
            Err(_) => return,
        }
    }
    ledger.lock().unwrap().insert(number, Served { read: Some(digester.digest()), ..served });
}

fn read_all(mut stream: &TcpStream) -> (Digest, io::Result<()>) {
    let mut digester = Digester::default();
    let mut buffer = vec![0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (digester.digest(), Ok(())),
            Ok(count) => digester.add(&buffer[..count]),
            Err(error) => return (digester.digest(), Err(error)),
        }
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected)
}

fn digest(bytes: &[u8]) -> Digest {
    let mut digester = Digester::default();
    digester.add(bytes);
    digester.digest()
}

/// What each descriptor of this process is.
fn open_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap_or_default()).collect()
}

impl Digester {
    fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
        self.1 += bytes.len();
    }

    fn digest(&self) -> Digest {
        Digest { length: self.1, hash: self.0.finish() }
    }
}
