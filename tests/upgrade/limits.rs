//! The state of limits and balancing passes to the new process, and removed backends drain.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use baton::sys::clock::now_ns;
use serde_json::Value;

use super::backend::{self, ECHO, request};
use super::instance::{DEADLINE, Instance, config_text, free_address, wait_for};

fn backends(count: usize) -> (tokio::runtime::Runtime, Vec<SocketAddr>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let addresses = (0..count).map(|_| runtime.block_on(backend::serve())).collect();
    (runtime, addresses)
}

fn open(instance: &Instance) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(instance.frontend)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(&request(ECHO, 0, 0))?;
    echo(&mut stream)?;
    Ok(stream)
}

fn echo(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"word")?;
    let mut back = [0; 4];
    stream.read_exact(&mut back)?;
    assert_eq!(&back, b"word");
    Ok(())
}

fn flows(instance: &Instance) -> Vec<Value> {
    let listed = String::from_utf8(instance.run(&["--json", "flows", "--limit", "0"]).stdout).unwrap();
    listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The backend of the flow that has `stream` as its client.
fn backend_of(instance: &Instance, stream: &TcpStream) -> String {
    let client = stream.local_addr().unwrap().to_string();
    let own = flows(instance).into_iter().find(|flow| flow["client"] == *client).expect("the flow is listed");
    own["backend"].as_str().unwrap().to_owned()
}

/// Upgrades to a file of its own: the running process would reload a changed one before.
fn upgrade_to(instance: &mut Instance, text: &str) -> Value {
    let path = instance.directory.path().join("next.toml");
    std::fs::write(&path, text).unwrap();
    let path: PathBuf = path;
    instance.upgrade_with(&["-c", path.to_str().unwrap()]).result
}

#[test]
fn flows_of_a_backend_that_the_new_file_no_longer_has_drain() {
    let (_runtime, backends) = backends(2);
    let mut instance = Instance::start_as(&backends, 2, "drain_timeout = \"3s\"");
    let mut streams: Vec<_> = (0..8).map(|_| open(&instance).unwrap()).collect();
    let of: Vec<_> = streams.iter().map(|stream| backend_of(&instance, stream)).collect();
    assert!(of.iter().any(|backend| backend == "b1"), "{of:?}");
    let text = config_text(&instance, &backends[..1], 1, "");
    let began_ns = now_ns();
    let upgraded = upgrade_to(&mut instance, &text);
    assert_eq!(upgraded["not_moved"], serde_json::json!([]), "{upgraded}");
    let gone = instance.ask(&["backends", "b1"]).expect("it is still known")[0].clone();
    assert_eq!((&gone["health_state"], &gone["cause"]["kind"]), (&"draining".into(), &"removed".into()), "{gone}");
    if now_ns() - began_ns < Duration::from_millis(2500).as_nanos() as u64 {
        streams.iter_mut().for_each(|stream| echo(stream).unwrap());
    }
    // New flows go to the other backend.
    let another = open(&instance).unwrap();
    assert_eq!(backend_of(&instance, &another), "b0");
    wait_for("its flows to be reset", || instance.ask(&["backends", "b1"]).is_none());
    for (stream, backend) in streams.iter_mut().zip(&of) {
        match echo(stream) {
            Ok(()) => assert_eq!(backend, "b0"),
            Err(error) => assert_eq!((error.kind(), &**backend), (ErrorKind::ConnectionReset, "b1")),
        }
    }
    let status = instance.ask(&["status"]).unwrap().to_string();
    assert!(status.contains("drain_deadline"), "{status}");
}

#[test]
fn flows_of_a_frontend_that_the_new_file_no_longer_has_drain() {
    let (_runtime, backends) = backends(1);
    let mut instance = Instance::start_as(&backends, 2, "drain_timeout = \"3s\"");
    let mut stream = open(&instance).unwrap();
    let text = config_text(&instance, &backends, 2, "").replace("name = \"api\"", "name = \"other\"");
    let text = text.replace(&instance.frontend.to_string(), &free_address().to_string());
    let began_ns = now_ns();
    let upgraded = upgrade_to(&mut instance, &text);
    assert_eq!(upgraded["not_moved"], serde_json::json!([]), "{upgraded}");
    assert_eq!(flows(&instance)[0]["frontend"], "api");
    if now_ns() - began_ns < Duration::from_millis(2500).as_nanos() as u64 {
        echo(&mut stream).unwrap();
    }
    // No process listens for it any more.
    assert_eq!(TcpStream::connect(instance.frontend).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let events = || String::from_utf8(instance.run(&["events", "--flows"]).stdout).unwrap();
    wait_for("the flow to be reset", || flows(&instance).is_empty());
    assert_eq!(echo(&mut stream).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(events().contains("frontend_removed"), "{}", events());
    wait_for("the frontend to be forgotten", || {
        !instance.ask(&["status"]).unwrap()["frontends"].to_string().contains("\"api\"")
    });
}

#[test]
fn a_source_that_used_up_its_accepts_gets_no_new_ones_from_an_upgrade() {
    const RATE: u64 = 50;
    let (_runtime, backends) = backends(1);
    let mut instance = Instance::start_as(&backends, 2, &format!("accept_rate_per_source = {RATE}"));
    let mut began_ns = now_ns();
    wait_for("its accepts to be used up", || {
        began_ns = now_ns();
        open(&instance).is_err()
    });
    instance.upgrade_with(&[]);
    let served = (0..4 * RATE).filter(|_| open(&instance).is_ok()).count() as u64;
    let due = (now_ns() - began_ns) * RATE / 1_000_000_000 + 2;
    assert!(served <= due, "{served} were served, {due} were due");
}

#[test]
fn sources_and_frontends_at_their_limits_stay_there() {
    let (_runtime, backends) = backends(1);
    let mut instance = Instance::start_as(&backends, 2, "max_connections_per_source = 5");
    let mut held: Vec<_> = (0..5).map(|_| open(&instance).unwrap()).collect();
    let full = |instance: &Instance| open(instance).is_err();
    assert!(full(&instance));
    instance.upgrade_with(&[]);
    assert!(full(&instance), "the flows that came do not count");
    held.pop();
    wait_for("room for another", || !full(&instance));
    held.iter_mut().for_each(|stream| echo(stream).unwrap());
}

#[test]
fn turns_go_on_where_they_were() {
    let (_runtime, backends) = backends(3);
    let mut instance = Instance::start_as(&backends, 1, "balance = \"round_robin\"");
    let mut streams = Vec::new();
    let mut order = Vec::new();
    for number in 0..9 {
        if number % 4 == 3 {
            instance.upgrade_with(&[]);
        }
        streams.push(open(&instance).unwrap());
        order.push(backend_of(&instance, &streams[number]));
    }
    assert!(order.windows(4).all(|four| four[0] == four[3] && four[0] != four[1] && four[1] != four[2]), "{order:?}");
}

#[test]
fn flow_ids_go_on_almost_where_they_were() {
    let (_runtime, backends) = backends(1);
    let mut instance = Instance::start(&backends, 2);
    let mut last = 0;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(open(&instance).unwrap());
        let ids: Vec<_> =
            flows(&instance).iter().map(|flow| flow["id"].as_str().unwrap().parse::<u64>().unwrap()).collect();
        let newest = *ids.iter().max().unwrap();
        assert_eq!(ids.len(), streams.len());
        // Two workers of the old process and two of the new one have a block of 1024 each, and every other is left out.
        assert!(newest > last && newest - last <= 8 * 1024, "{last} is followed by {ids:?}");
        last = newest;
        instance.upgrade_with(&[]);
    }
}
