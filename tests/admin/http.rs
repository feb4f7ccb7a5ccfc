//! The HTTP server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use baton::admin::status::Status;
use baton::drain::LifePhase;
use baton::model::health::{Cause, HealthState};
use baton::table::backend::HealthView;
use baton::table::journal::What;

use crate::fake::FakeInstance;

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

async fn ask(instance: &FakeInstance, request: &str) -> Answer {
    let address = instance.doors.http_address().unwrap();
    let request = request.to_owned();
    tokio::task::spawn_blocking(move || ask_at(address, &request)).await.unwrap()
}

fn ask_at(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

pub async fn get(instance: &FakeInstance, path: &str) -> Answer {
    ask(instance, &format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")).await
}

#[tokio::test]
async fn status_json_tells_the_whole_state() {
    let instance = FakeInstance::start();
    let answer = get(&instance, "/status.json").await;
    assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
    let status: Status = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((status.totals.flows.proxied, status.totals.accepted_total), (10, 13));
    assert_eq!(
        status.totals.ended_total.iter().map(|(reason, n)| (reason.as_str(), *n)).collect::<Vec<_>>(),
        [("backend_ejected", 1), ("client_closed", 2)]
    );
    let states: Vec<_> = status.backends().map(|backend| (&*backend.name, backend.health_state)).collect();
    assert_eq!(states, [("cp1", HealthState::Ready), ("cp2", HealthState::Draining), ("cp3", HealthState::Ejected)]);
    let cp2 = status.backends().nth(1).unwrap();
    assert_eq!(cp2.why, "probe answered 500");
    assert!(cp2.drain_deadline_in_ms.is_some_and(|ms| ms > 100_000 && ms <= 150_000), "{cp2:?}");
    assert_eq!((cp2.bytes_to_backend_total, cp2.bytes_to_client_total, cp2.connect_mean_us), (4000, 36_000, Some(420)));
}

#[tokio::test]
async fn only_get_and_head_and_only_known_paths() {
    let instance = FakeInstance::start();
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer =
            ask(&instance, &format!("{method} /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")).await;
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.head.contains("allow: get, head"), "{}", answer.head);
    }
    let head = ask(&instance, "HEAD / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(get(&instance, "/etc/passwd").await.status, 404);
    assert_eq!(get(&instance, "/metrics?x=1").await.status, 200);
    assert_eq!(ask(&instance, "nonsense\r\n\r\n").await.status, 400);
    let long = format!("GET /{} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", "a".repeat(100_000));
    assert!(matches!(ask(&instance, &long).await.status, 414 | 431));
}

/// A page of a stranger whose name he lets resolve to this host's address would read the addresses of all clients.
#[tokio::test]
async fn a_strangers_name_for_this_host_gets_no_page_with_addresses() {
    let instance = FakeInstance::start();
    let named = |path: &'static str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let instance = &instance;
        async move { ask(instance, &request).await }
    };
    for path in ["/", "/status.json"] {
        let refused = named(path, "attacker.example:9470").await;
        assert_eq!(refused.status, 421, "{path}");
        assert!(refused.body.contains("admin.allowed_hosts") && !refused.body.contains("192.0.2."), "{}", refused.body);
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for host in ["localhost:9470", "[::1]:9470", &own] {
            assert_eq!(named(path, host).await.status, 200, "{path} of {host}");
        }
    }
    assert_eq!(named("/live", "attacker.example:9470").await.status, 421);
    // No client's address is on these, and Prometheus may use any name.
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(named(path, "lb-a.monitoring.svc:9470").await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn readyz_and_livez_say_why_not() {
    let instance = FakeInstance::start();
    assert_eq!(get(&instance, "/readyz").await.status, 200);
    instance.control.not_ready.lock().unwrap().push("not yet synced".to_owned());
    instance.drain.advance(LifePhase::Leaving);
    let answer = get(&instance, "/readyz").await;
    assert_eq!((answer.status, &*answer.body), (503, "this instance is stopping: leaving\nnot yet synced\n"));
    assert_eq!(get(&instance, "/livez").await.status, 200);
    instance.table.workers[1].mark_busy(1);
    let answer = get(&instance, "/livez").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.starts_with("worker 1 has been stuck for "), "{}", answer.body);
}

#[tokio::test]
async fn the_page_escapes_what_comes_from_outside() {
    let instance = FakeInstance::start();
    let error = "<script>alert('1')</script>\" onload=x".to_owned();
    instance.backend("cp3").set_health(HealthView {
        health_state: HealthState::Ejected,
        cause: Cause::Tls { error: error.clone() },
        since_ns: 1,
        served_until_ns: 1,
        last_probe: Some(error.clone()),
        last_probe_us: 1,
        order: None,
        drain_deadline_ns: None,
    });
    instance.table.journal.record(What::ReloadRefused { errors: vec![error] });
    let page = get(&instance, "/").await;
    assert_eq!(page.body.matches("<script>").count(), 1, "only the page's own script");
    assert!(!page.body.contains("\" onload"));
    assert_eq!(page.body.matches("&lt;script&gt;alert(&#39;1&#39;)").count(), 5, "the mark has it twice");
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
}

#[tokio::test]
async fn promtool_finds_nothing_to_complain_about() {
    let instance = FakeInstance::start();
    instance.admin.metrics.reloads.get_or_create(&baton::metrics::ReloadLabels { outcome: "success" }).inc();
    instance.table.probes.record("a", "b", "passed", Duration::from_millis(3));
    let answer = get(&instance, "/metrics").await;
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    for line in [
        "baton_flows{frontend=\"apiserver\",state=\"proxied\"} 10",
        "baton_flows_ended_total{frontend=\"apiserver\",reason=\"backend_ejected\"} 1",
        "baton_flow_bytes_total{frontend=\"apiserver\",backend=\"cp1\",direction=\"to_client\"} 54000",
        "baton_backend_state{frontend=\"apiserver\",backend=\"cp2\",state=\"draining\"} 1",
        "baton_connect_duration_seconds_bucket{le=\"+Inf\",frontend=\"apiserver\",backend=\"cp1\"} 1",
        "baton_worker_stuck{worker=\"1\"} 0",
        "baton_config_reloads_total{outcome=\"success\"} 1",
    ] {
        assert!(answer.body.lines().any(|found| found == line), "{line} is not in\n{}", answer.body);
    }
    assert!(answer.body.contains("process_resident_memory_bytes "));
    assert!(!answer.body.contains("192.0.2."), "a client's address is in the metrics");

    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (Debian package prometheus) is needed");
    promtool.stdin.take().unwrap().write_all(answer.body.as_bytes()).unwrap();
    let verdict = promtool.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&verdict.stdout) + String::from_utf8_lossy(&verdict.stderr);
    assert!(verdict.status.success() && words.is_empty(), "{words}");
}

#[tokio::test]
async fn prometheus_itself_gets_openmetrics() {
    let instance = FakeInstance::start();
    let request = "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/openmetrics-text;version=1.0.0\r\n\
        connection: close\r\n\r\n";
    let answer = ask(&instance, request).await;
    assert!(answer.head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", answer.head);
    assert!(answer.body.ends_with("# EOF\n"));
    assert_eq!(answer.body.matches("# EOF").count(), 1);
}

/// A client that sends half a head must not hold its place for long.
#[tokio::test]
async fn a_slow_head_is_cut_off() {
    use baton::admin::http::{HttpLimits, HttpPages, open, serve};
    let instance = FakeInstance::start();
    let listener = open("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let limits = HttpLimits { head: Duration::from_millis(100), ..HttpLimits::default() };
    tokio::spawn(serve(instance.admin.clone(), listener, HttpPages::All, limits));
    let answered = tokio::task::spawn_blocking(move || {
        let mut slow = TcpStream::connect(address).unwrap();
        slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        slow.write_all(b"GET /livez HT").unwrap();
        let mut rest = Vec::new();
        slow.read_to_end(&mut rest)
    });
    answered.await.unwrap().unwrap();
}

/// More silent connections than there is room for, of the prober's own address and of others.
#[tokio::test]
async fn a_probe_is_answered_at_once_however_many_connections_keep_silent() {
    let instance = FakeInstance::start();
    let address = instance.doors.http_address().unwrap();
    let answered = tokio::task::spawn_blocking(move || {
        let silent: Vec<_> = (0..400)
            .map(|number| {
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                let from = SocketAddr::from(([127, 0, 0, 1 + (number % 8) as u8], 0));
                socket.bind(&from.into()).unwrap();
                socket.connect(&address.into()).unwrap();
                socket
            })
            .collect();
        let began_ns = baton::sys::clock::now_ns();
        let answer = ask_at(address, "GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
        let took = Duration::from_nanos(baton::sys::clock::now_ns() - began_ns);
        drop(silent);
        (answer.status, took)
    });
    let (status, took) = answered.await.unwrap();
    assert_eq!(status, 200);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Each sends a byte of its head now and then, and comes again when it is cut off.
#[tokio::test]
async fn a_probe_is_answered_beside_ten_thousand_slow_clients() {
    const CLIENTS: usize = 10_000;
    let limit = baton::sys::process::raise_file_limit();
    assert!(limit > 3 * CLIENTS as u64 / 2, "{limit} files are too few for the clients and the server in one process");
    let instance = FakeInstance::start();
    let address = instance.doors.http_address().unwrap();
    let answered = tokio::task::spawn_blocking(move || {
        let come = |number: usize| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            let from = SocketAddr::from(([127, 0, 1 + (number % 50) as u8, 1 + (number / 50) as u8], 0));
            socket.bind(&from.into()).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&address.into());
            socket
        };
        let mut clients: Vec<_> = (0..CLIENTS).map(come).collect();
        let mut waits = Vec::new();
        for some in 0..20 {
            for number in (0..CLIENTS).skip(some).step_by(20) {
                let sent = clients[number].send(b"G");
                if sent.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock) {
                    clients[number] = come(number);
                }
            }
            let began_ns = baton::sys::clock::now_ns();
            let answer = ask_at(address, "GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
            assert_eq!(answer.status, 200);
            waits.push(Duration::from_nanos(baton::sys::clock::now_ns() - began_ns));
        }
        waits.sort();
        waits
    });
    // Half of them: one may wait for a core, with so many others.
    let waits = answered.await.unwrap();
    assert!(waits[waits.len() / 2] < Duration::from_millis(100), "{waits:?}");
}

/// A phone shows no column heads, so each cell of a wide table names its own.
#[tokio::test]
async fn each_cell_of_the_page_s_tables_names_its_column() {
    let page = get(&FakeInstance::start(), "/").await.body;
    let tables: Vec<_> =
        page.split("<div class=\"scroll\">").skip(1).map(|it| it.split("</table>").next().unwrap()).collect();
    assert!(!tables.is_empty(), "{page}");
    for table in tables {
        let (heads, rows) = table.split_once("<tbody>").unwrap();
        let heads: Vec<_> = heads.split("</th>").filter_map(|it| it.rsplit_once('>')).map(|(_, head)| head).collect();
        for row in rows.split("<tr>").skip(1) {
            let cells: Vec<_> = row.split("<td").skip(1).collect();
            // Its state, its name and the sentence about it need no head.
            for (cell, head) in cells.iter().zip(&heads).skip(2).filter(|(_, head)| **head != "Why") {
                assert!(cell.contains(&format!("data-of=\"{head}\"")), "{head}: {cell}");
            }
        }
    }
    let css = include_str!("../../src/admin/page/page.css");
    assert!(css.contains("td[data-of]::before { content: attr(data-of)"), "{css}");
}

/// Two facts: whether this host may have the VIP, and whether clients are served.
#[tokio::test]
async fn with_no_backend_left_nothing_says_ready_in_green() {
    let instance = FakeInstance::start();
    let now = baton::sys::clock::now_ns();
    let stands = |name: &str, health_state: HealthState| {
        let entry = instance.backend(name);
        let before = HealthView::clone(&entry.health());
        entry.set_health(HealthView { health_state, since_ns: now - 6_000_000_000, ..before });
    };
    for name in ["cp1", "cp2", "cp3"] {
        let health_state = instance.backend(name).health().health_state;
        stands(name, health_state);
    }
    let page = get(&instance, "/").await.body;
    assert!(page.contains("<title>Baton on ") && page.contains("<span class=\"pill good\">ready</span>"), "{page}");
    stands("cp1", HealthState::Ejected);
    let page = get(&instance, "/").await.body;
    let of_draining = "clients are served by a draining backend: none has been ready for 6";
    assert!(page.contains("<title>draining backends only: Baton on ") && page.contains(of_draining), "{page}");
    assert!(page.contains("<span class=\"pill notice\">draining backends only</span>"), "{page}");
    stands("cp2", HealthState::Ejected);
    let page = get(&instance, "/").await.body;
    let of_none = "no backend: Baton resets new connections, since 6";
    assert!(page.contains("<title>no backend: Baton on ") && page.contains(of_none), "{page}");
    assert!(page.contains("<span class=\"pill bad\">no backend</span>"), "{page}");
    assert!(!page.contains("<span class=\"pill good\">ready</span>") && page.contains("fill='%23d1261b'"), "{page}");
    // The other fact has not changed.
    assert_eq!(get(&instance, "/readyz").await.status, 200);
    let status: serde_json::Value = serde_json::from_str(&get(&instance, "/status.json").await.body).unwrap();
    let service = &status["frontends"][0]["service"];
    assert_eq!(service["state"], "no_backend");
    assert!(service["since_ms"].as_u64().is_some_and(|ms| (6_000..60_000).contains(&ms)), "{service}");
    assert!(service["in_words"].as_str().is_some_and(|words| words.starts_with(of_none)), "{service}");
    let metrics = get(&instance, "/metrics").await.body;
    for line in [
        "baton_frontend_state{frontend=\"apiserver\",state=\"no_backend\"} 1",
        "baton_frontend_state{frontend=\"apiserver\",state=\"ready\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
}

#[tokio::test]
async fn with_every_backend_at_its_cap_nothing_says_ready_in_green() {
    let instance = FakeInstance::start();
    let ready = ["cp1", "cp2", "cp3"].map(|name| instance.backend(name));
    for entry in ready.iter().filter(|it| it.health().health_state == HealthState::Ready) {
        assert!(entry.reserve());
        entry.configure(entry.weight(), Some(1));
    }
    let page = get(&instance, "/").await.body;
    let words = "every backend has as many flows as it may: Baton resets new connections, since ";
    assert!(page.contains("<title>every backend full: Baton on ") && page.contains(words), "{page}");
    assert!(page.contains("<span class=\"pill bad\">every backend full</span>"), "{page}");
    let metrics = get(&instance, "/metrics").await.body;
    for line in [
        "baton_frontend_state{frontend=\"apiserver\",state=\"full\"} 1",
        "baton_frontend_state{frontend=\"apiserver\",state=\"ready\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
    ready.iter().for_each(|entry| entry.configure(entry.weight(), None));
    let page = get(&instance, "/").await.body;
    assert!(page.contains("<title>Baton on ") && !page.contains("every backend"), "{page}");
}
