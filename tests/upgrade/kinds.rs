//! Flows in states of their own, and backends in theirs, through upgrades.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use baton::sys::clock::now_ns;
use serde_json::Value;

use super::backend::{self, DOWN, piece, request};
use super::crowd::Crowd;
use super::instance::{DEADLINE, Instance, config_text, free_address, wait_for};
use super::part;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn echo(stream: &mut TcpStream, word: &[u8]) {
    stream.write_all(word).unwrap();
    let mut back = vec![0; word.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, word);
}

/// Clients come over IPv6 to a frontend that passes them on, each with a PROXY header, to one that expects it.
#[test]
fn flows_over_ipv6_with_proxy_headers_notice_none_of_three_upgrades() {
    const FLOWS: usize = 200;
    let (mut backends_part, backends) = part::backends(2);
    let mut instance = Instance::start(&backends, 2);
    let outer = TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap();
    let text = |workers| {
        let inner = config_text(&instance, &backends, workers, "accept_proxy_from = [\"127.0.0.0/8\"]");
        format!(
            "{inner}[[frontend]]\nname = \"outer\"\nlisten = [\"{outer}\"]\nsend_proxy_v2 = true\n\
             [frontend.health]\nkind = \"tcp\"\n[[frontend.backend]]\nname = \"inner\"\naddress = \"{}\"\n",
            instance.frontend
        )
    };
    let texts = [2, 1, 3, 2].map(text);
    std::fs::write(instance.config(), &texts[0]).unwrap();
    let reloaded = instance.run(&["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    wait_for("the outer frontend to serve", || TcpStream::connect(outer).is_ok());
    let mut crowd = Crowd::open(outer, FLOWS);
    crowd.storm();
    for text in &texts[1..] {
        std::fs::write(instance.config(), text).unwrap();
        let result = instance.upgrade().result;
        // Each twice: through both frontends.
        assert!(result["moved"].as_u64().unwrap() >= 2 * FLOWS as u64, "{result}");
        assert_eq!(result["not_moved"], serde_json::json!([]));
    }
    let listed = String::from_utf8(instance.run(&["--json", "flows", "--limit", "0"]).stdout).unwrap();
    let inner: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |flow: &&Value| flow["frontend"] == "api" && flow["client"].as_str().unwrap().starts_with("[::1]");
    assert!(inner.iter().filter(told).count() >= FLOWS, "the clients of the headers are forgotten: {listed}");
    backends_part.ask::<()>("finish_drips");
    let report = crowd.finish();
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
    assert!(report.served > 0 && report.compared_up > 0 && report.compared_down > 0);
}

/// Their backend answers no SYN yet.
#[test]
fn flows_that_still_connect_are_served_by_the_next_process() {
    let waiting = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    waiting.bind(&free_address().into()).unwrap();
    waiting.listen(0).unwrap();
    let waiting = TcpListener::from(waiting);
    let address = waiting.local_addr().unwrap();
    let runtime = runtime();
    let health = runtime.block_on(backend::serve());
    let mut instance = Instance::start(&[health], 2);
    let text = config_text(&instance, &[address], 2, "connect_timeout = \"100s\"\nhedge_after = \"0s\"");
    let text = text.replace("name = \"b0\"\n", &format!("name = \"slow\"\nhealth_address = \"{health}\"\n"));
    std::fs::write(instance.config(), &text).unwrap();
    assert!(instance.run(&["reload"]).status.success(), "{}", instance.log());
    // Further clients wait: the backlog is full.
    let filling: Vec<_> =
        (0..4).filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()).collect();
    let mut clients: Vec<_> = (0..10)
        .map(|_| {
            let mut client = TcpStream::connect(instance.frontend).unwrap();
            client.set_read_timeout(Some(2 * DEADLINE)).unwrap();
            client.write_all(b"said early").unwrap();
            client
        })
        .collect();
    let connecting = || instance.ask(&["status"]).unwrap()["totals"]["flows"]["connecting"].as_u64();
    wait_for("all of them to wait", || connecting() == Some(10));
    let moved = instance.upgrade().result;
    assert_eq!((&moved["moved"], &moved["not_moved"]), (&10.into(), &serde_json::json!([])), "{moved}");
    let connecting = || instance.ask(&["status"]).unwrap()["totals"]["flows"]["connecting"].as_u64();
    assert_eq!(connecting(), Some(10));
    drop(filling);
    // Room for all at once: a SYN that is dropped again waits for longer each time.
    socket2::SockRef::from(&waiting).listen(128).unwrap();
    std::thread::spawn(move || {
        for stream in waiting.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    for client in &mut clients {
        let mut back = [0; 10];
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"said early");
        echo(client, b"and more");
    }
}

/// A backend that takes connections while it is told to, and counts them.
struct Counted {
    address: SocketAddr,
    accepted: Arc<AtomicU64>,
}

impl Counted {
    fn serve(listener: TcpListener) -> Self {
        let (address, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let count = accepted.clone();
        std::thread::spawn(move || {
            for _ in listener.incoming() {
                count.fetch_add(1, Relaxed);
            }
        });
        Self { address, accepted }
    }
}

#[test]
fn an_upgrade_begins_no_storm_of_probes_and_trusts_no_ejected_backend() {
    const INTERVAL: Duration = Duration::from_secs(2);
    let good = Counted::serve(TcpListener::bind(free_address()).unwrap());
    let dead = free_address();
    let mut instance = Instance::start(&[good.address], 2);
    let text = config_text(&instance, &[good.address, dead], 2, "");
    let health = "[frontend.health]\nkind = \"tcp\"\ninterval = \"2s\"\nfast_interval = \"2s\"\nrise = 4\nfall = 2\n";
    std::fs::write(instance.config(), text.replace("[frontend.health]\nkind = \"tcp\"\n", health)).unwrap();
    assert!(instance.run(&["reload"]).status.success(), "{}", instance.log());
    let health_state =
        |instance: &Instance, name: &str| instance.ask(&["backends", name]).unwrap()[0]["health_state"].clone();
    wait_for("the dead one to be ejected", || health_state(&instance, "b1") == "ejected");
    let came_back = Counted::serve(TcpListener::bind(dead).unwrap());
    let (began_ns, probes) = (now_ns(), good.accepted.load(Relaxed));
    for _ in 0..3 {
        instance.upgrade();
        assert_eq!((health_state(&instance, "b0"), health_state(&instance, "b1")), ("ready".into(), "ejected".into()));
    }
    let (took_ns, probed) = (now_ns() - began_ns, good.accepted.load(Relaxed) - probes);
    let due = took_ns / INTERVAL.as_nanos() as u64 + 2;
    println!("{probed} probes in {} ms of three upgrades, {due} were due at most", took_ns / 1_000_000);
    assert!(probed <= due, "{probed} probes, {due} were due");
    wait_for("it to be trusted again", || health_state(&instance, "b1") == "ready");
    let risen = came_back.accepted.load(Relaxed);
    assert!(risen >= 4, "it was trusted again after {risen} good probes of 4");
}

#[test]
fn a_reader_that_pauses_through_upgrades_for_longer_than_user_timeout_goes_on() {
    const BYTES: u64 = 30 << 20;
    const PAUSE: Duration = Duration::from_secs(14);
    let runtime = runtime();
    let backends = [runtime.block_on(backend::serve())];
    let mut instance =
        Instance::start_as(&backends, 2, "user_timeout = \"4s\"\nkeepalive_idle = \"1s\"\nkeepalive_interval = \"1s\"");
    let mut stream = TcpStream::connect(instance.frontend).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(&request(DOWN, 3, BYTES)).unwrap();
    let began_ns = now_ns();
    let paused = || Duration::from_nanos(now_ns() - began_ns);
    for upgrade in 1..=3u32 {
        wait_for("some time to pass", || paused() > upgrade * PAUSE / 4);
        let result = instance.upgrade().result;
        assert_eq!(result["moved"], 1, "{result}");
    }
    wait_for("the rest of the pause", || paused() > PAUSE);
    let mut buffer = vec![0; backend::PIECE_MAX];
    let mut at = 0;
    while at < BYTES {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0 && buffer[..count] == *piece(3, at, count), "after {at} bytes");
        at += count as u64;
    }
}
