//! The state of an instance besides its flows also passes to the new process.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::backend::{self, ECHO, request};
use super::instance::{DEADLINE, Instance, wait_for};

/// Workers beyond the sockets that were there shared one until the next restart.
#[test]
fn every_worker_of_a_wider_process_gets_a_listening_socket() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backends = [runtime.block_on(backend::serve())];
    let mut instance = Instance::start(&backends, 1);
    for workers in [4, 2, 3] {
        instance.configure(&backends, workers, "");
        instance.upgrade();
        // Those of the process before are kept, also by fewer workers.
        let wanted = if workers == 2 { 4 } else { workers.max(4) };
        wait_for("the sockets", || instance.listening_sockets() == wanted);
        for _ in 0..20 {
            let mut stream = TcpStream::connect(instance.frontend).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream.write_all(&request(ECHO, 0, 0)).unwrap();
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
        }
    }
}

#[test]
fn orders_deadlines_numbers_and_counters_survive_an_upgrade() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backends: Vec<_> = (0..3).map(|_| runtime.block_on(backend::serve())).collect();
    let instance = Instance::start(&backends, 2);
    let mut flow = TcpStream::connect(instance.frontend).unwrap();
    flow.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut echo = |first: &[u8]| {
        flow.write_all(first).unwrap();
        flow.write_all(b"word").unwrap();
        let mut back = [0; 4];
        flow.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"word");
    };
    echo(&request(ECHO, 0, 0));
    let the_flow = || instance.ask(&["flows"]).expect("one flow is listed");
    let before = the_flow();
    let its = before["backend"].as_str().unwrap().to_owned();
    let other = if its == "b0" { "b1" } else { "b0" };
    assert!(instance.run(&["drain", &its]).status.success());
    assert!(instance.run(&["eject", other]).status.success());
    let health_state = |name: &str| instance.ask(&["backends", name]).unwrap()[0].clone();
    let drained = health_state(&its);
    let accepted = |status: &Value| status["frontends"][0]["accepted_total"].as_u64().unwrap();
    let counted = accepted(&instance.ask(&["status"]).unwrap());

    assert!(instance.run(&["upgrade"]).status.success(), "{}", instance.log());

    let after = the_flow();
    for same in ["id", "frontend", "backend", "client", "vip", "state", "connect_us"] {
        assert_eq!(before[same], after[same], "{same}");
    }
    assert!(after["age_ms"].as_u64() >= before["age_ms"].as_u64());
    assert_eq!(health_state(other)["health_state"], "ejected");
    let still = health_state(&its);
    assert_eq!(still["health_state"], "draining");
    let left = |backend: &Value| backend["drain_deadline_in_ms"].as_u64().unwrap_or_else(|| panic!("{backend}"));
    assert!(left(&still) <= left(&drained), "the drain deadline begins anew");
    assert_eq!(accepted(&instance.ask(&["status"]).unwrap()), counted);
    echo(b"");
    // The next flow's number is higher than all before.
    let mut next = TcpStream::connect(instance.frontend).unwrap();
    next.write_all(&request(ECHO, 0, 0)).unwrap();
    next.write_all(b"x").unwrap();
    next.read_exact(&mut [0]).unwrap();
    let listed = String::from_utf8(instance.run(&["--json", "flows"]).stdout).unwrap();
    let ids: Vec<_> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().parse::<u64>().unwrap())
        .collect();
    assert_eq!((ids.len(), ids.iter().min()), (2, before["id"].as_str().unwrap().parse().ok().as_ref()), "{listed}");
    let events = String::from_utf8(instance.run(&["events"]).stdout).unwrap();
    assert!(events.contains("imported 1 flow from process"), "{events}");
}
