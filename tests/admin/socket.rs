//! The admin socket.

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton::admin::client::{Client, ClientError};
use baton::admin::protocol::*;
use baton::admin::session::{SessionLimits, SocketAccess, serve};
use baton::admin::status::{BackendStatus, Status};
use baton::admin::unix;
use baton::admin::what_if::{ExpectedGap, WhatIfCase, WhatIfReport, WhatIfRequest};
use baton::model::fleet::{InstanceSummary, Liveness, MemberView, PeerSummary};
use baton::model::health::Order;
use baton::model::ids::FlowId;
use baton::model::what_if::{FlowFates, Happening};
use baton::sys::clock::now_ns;
use baton::table::backend::HealthView;
use baton::table::flows::FlowState;
use baton::table::journal::{Event, What};

use crate::fake::{FakeInstance, a_peer};

/// Runs `talk` with a client, off the runtime.
async fn with_client<T: Send + 'static>(
    instance: &FakeInstance,
    talk: impl FnOnce(&mut Client) -> T + Send + 'static,
) -> T {
    let socket = instance.socket();
    tokio::task::spawn_blocking(move || talk(&mut Client::connect(&socket).unwrap())).await.unwrap()
}

async fn ask<T: serde::de::DeserializeOwned + Send + 'static>(
    instance: &FakeInstance,
    command: Command,
) -> Result<T, ClientError> {
    with_client(instance, move |client| client.ask(&command)).await
}

async fn list_flows(instance: &FakeInstance, filter: FlowFilter) -> (Vec<FlowRow>, Listed) {
    with_client(instance, move |client| {
        let mut rows = Vec::new();
        let end = client.list(&Command::Flows(filter), |row| {
            rows.push(row);
            ControlFlow::Continue(())
        });
        (rows, end.unwrap().unwrap())
    })
    .await
}

/// Sends raw bytes and returns the first line that comes back.
async fn raw(socket: PathBuf, bytes: Vec<u8>) -> String {
    tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may close before a refused client has sent everything; its answer has arrived by then.
        let said = stream.write_all(&bytes);
        let mut line = String::new();
        match (said, BufReader::new(stream).read_line(&mut line)) {
            (Ok(()), Err(error)) => panic!("no answer: {error}"),
            (Err(error), _) => assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe),
            (Ok(()), Ok(_)) => {}
        }
        line
    })
    .await
    .unwrap()
}

fn name(name: &str) -> BackendName {
    BackendName(name.to_owned())
}

#[tokio::test]
async fn version_status_and_backends() {
    let instance = FakeInstance::start();
    let about: About = ask(&instance, Command::Version {}).await.unwrap();
    assert_eq!((about.protocol, about.pid), (VERSION, std::process::id()));
    let status: Status = ask(&instance, Command::Status {}).await.unwrap();
    assert_eq!(status.totals.flows.sum(), 10);
    let all: Vec<BackendStatus> = ask(&instance, Command::Backends { backend: None }).await.unwrap();
    assert_eq!(all.len(), 3);
    let one: Vec<BackendStatus> =
        ask(&instance, Command::Backends { backend: Some(name("apiserver/cp2")) }).await.unwrap();
    assert_eq!(one.iter().map(|backend| &*backend.name).collect::<Vec<_>>(), ["cp2"]);
}

#[tokio::test]
async fn flows_are_filtered_and_limited_and_the_rest_is_counted() {
    let instance = FakeInstance::start();
    let (rows, end) = list_flows(&instance, FlowFilter::default()).await;
    assert_eq!((rows.len(), end), (10, Listed { listed: 10, more: 0 }));
    let filter = FlowFilter { backend: Some(name("cp1")), limit: Some(2), ..FlowFilter::default() };
    let (rows, end) = list_flows(&instance, filter).await;
    assert_eq!(end, Listed { listed: 2, more: 4 });
    assert!(rows.iter().all(|row| row.backend.as_deref() == Some("cp1") && row.bytes_to_backend == 1000), "{rows:?}");
    let filter = FlowFilter { client: Some("192.0.2.4/30".parse().unwrap()), ..FlowFilter::default() };
    assert_eq!(list_flows(&instance, filter).await.1.listed, 4);
    let filter = FlowFilter { state: Some(FlowState::Connecting), ..FlowFilter::default() };
    assert_eq!(list_flows(&instance, filter).await.1.listed, 0);
    let unknown = FlowFilter { frontend: Some("x".to_owned()), ..FlowFilter::default() };
    let refused = ask::<Listed>(&instance, Command::Flows(unknown)).await;
    assert!(matches!(refused, Err(ClientError::Refused(Refusal::UnknownFrontend { .. }))), "{refused:?}");
}

#[tokio::test]
async fn orders_reach_the_control_by_the_backends_id() {
    let instance = FakeInstance::start();
    let drained: Ordered = ask(&instance, Command::Drain { backend: name("cp1") }).await.unwrap();
    assert_eq!((drained.backend.flows, drained.drain_timeout_ms), (6, Some(150_000)));
    let _: Ordered = ask(&instance, Command::Undrain { backend: name("apiserver/cp1") }).await.unwrap();
    let cp1 = instance.backend("cp1").id;
    assert_eq!(*instance.control.orders.lock().unwrap(), [(cp1, Order::Drain), (cp1, Order::Undrain)]);
    let refused = ask::<Ordered>(&instance, Command::Eject { backend: name("cp1") }).await;
    assert_eq!(refused.unwrap_err().to_string(), "this instance is stopping");
    let refused = ask::<Ordered>(&instance, Command::Drain { backend: name("cp9") }).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "there is no backend \"cp9\"; there is apiserver/cp1, apiserver/cp2, apiserver/cp3"
    );
}

#[tokio::test]
async fn each_order_is_recorded_with_the_user_and_the_process_that_gave_it() {
    let instance = FakeInstance::start();
    let _: Ordered = ask(&instance, Command::Drain { backend: name("cp1") }).await.unwrap();
    let _: Status = ask(&instance, Command::Status {}).await.unwrap();
    let _ = ask::<KillReport>(&instance, Command::Kill { target: KillTarget::Flow(FlowId(99)) }).await.unwrap_err();
    let told = with_client(&instance, |client| {
        let mut told = Vec::new();
        let end = client.list::<Event, Listed>(&Command::Events(EventFilter::default()), |event| {
            if let What::OrderReceived { uid, pid, order } = event.what {
                told.push((uid, pid, order));
            }
            ControlFlow::Continue(())
        });
        end.unwrap();
        told
    })
    .await;
    let own = (rustix::process::geteuid().as_raw(), std::process::id());
    let order = |order: &str| (own.0, own.1, order.to_owned());
    assert_eq!(told, [order("drain cp1"), order("kill 99")], "also an order that is refused, and no look");
}

#[tokio::test]
async fn the_reach_of_a_kill_is_told_and_nothing_is_ended() {
    let instance = FakeInstance::start();
    let (rows, _) = list_flows(&instance, FlowFilter::default()).await;
    let check = async |target| ask::<KillCheck>(&instance, Command::CheckKill { target }).await;
    // The pace at the defaults spreads the resets of one order over 250 ms.
    for (target, expected) in [
        (KillTarget::Flow(rows[0].id), KillCheck { flows: 1, clients: 1, nodes: None, over_ms: 0 }),
        (KillTarget::Backend(name("cp1")), KillCheck { flows: 6, clients: 6, nodes: None, over_ms: 250 }),
        (
            KillTarget::Client("192.0.2.10/32".parse().unwrap()),
            KillCheck { flows: 1, clients: 1, nodes: None, over_ms: 250 },
        ),
        (KillTarget::Backend(name("cp3")), KillCheck { flows: 0, clients: 0, nodes: None, over_ms: 0 }),
        (KillTarget::All, KillCheck { flows: 10, clients: 10, nodes: None, over_ms: 250 }),
    ] {
        assert_eq!(check(target.clone()).await.unwrap(), expected, "{target:?}");
    }
    let unknown = check(KillTarget::Flow(FlowId(99))).await.unwrap_err();
    assert_eq!(unknown.to_string(), "there is no flow 99: it has ended, or never existed");
    assert_eq!(instance.table.flows.len(), 10);
}

#[tokio::test]
async fn the_effects_of_a_death_are_told_with_the_settings_that_decide_and_nothing_is_ended() {
    let instance = FakeInstance::start();
    let ask_of = async |subject: &str, happens| {
        let asked = WhatIfRequest { subject: subject.to_owned(), happens };
        ask::<WhatIfReport>(&instance, Command::WhatIf(asked)).await
    };
    let said = ask_of("cp2", Happening::Dies).await.unwrap();
    assert_eq!((&*said.subject, said.flows, said.of_subject, said.clients), ("apiserver/cp2", 10, 4, Some(4)));
    let faults: Vec<_> = said.cases.iter().map(|case| (&*case.fault, case.resets_over_ms)).collect();
    assert_eq!(faults, [("apiserver killed", 0), ("apiserver hung", 250), ("apiserver's host gone", 250)]);
    for case in &said.cases {
        assert_eq!(case.fates, Some(FlowFates { kept: 6, moved: 0, reset: 4, waiting: 0 }), "{}", case.fault);
    }
    let ExpectedGap::Decided(parts) = &said.cases[2].gap else { panic!("{said:?}") };
    let parts: Vec<_> = parts.iter().map(|part| (part.lasts_ms, &*part.setting)).collect();
    let probes = "[frontend.health] interval = 1s, timeout = 500ms, reset_fall = 2, fast_interval = 250ms, and process.reset_within = 250ms";
    assert_eq!(parts, [(10_000, "cluster.lease_renew = 10s"), (2250, probes)]);
    assert_eq!(said.notes, ["Clients that are reset connect again to cp1."]);

    // Regression: clients for which the other backends have no room were promised the gap of the others.
    instance.backend("cp1").configure(1, Some(7));
    let full = ask_of("cp2", Happening::Dies).await.unwrap();
    assert!(matches!(&full.cases[0].gap, ExpectedGap::Unknown(why) if why.contains("max_connections")), "{full:?}");
    assert!(full.notes[1].starts_with("These have room for 1 of them (max_connections): 3 flows would be"), "{full:?}");
    instance.backend("cp1").configure(1, Some(10));
    assert_eq!(ask_of("cp2", Happening::Dies).await.unwrap(), said);
    instance.backend("cp1").configure(1, None);

    let said = ask_of("cp1", Happening::Restarts).await.unwrap();
    assert_eq!(said.notes, ["Clients that are reset connect again to cp2, which only drains."]);
    instance.backend("cp2").set_health(HealthView::clone(&instance.backend("cp3").health()));
    let said = ask_of("cp1", Happening::Restarts).await.unwrap();
    assert!(matches!(&said.cases[0].gap, ExpectedGap::Unknown(why) if why.starts_with("no other backend serves")));

    // Regression: of a backend without a flow the longest gap was 12.25 s, which nobody could feel.
    instance.backend("cp2").set_health(HealthView::clone(&instance.backend("cp1").health()));
    let of_empty = async || {
        let said = ask_of("cp3", Happening::Dies).await.unwrap();
        assert_eq!((said.of_subject, said.cases.len()), (0, 3));
        let gap = |case: &WhatIfCase| match &case.gap {
            ExpectedGap::Unknown(why) => why.clone(),
            ExpectedGap::Decided(_) => panic!("nobody waits: {said:?}"),
        };
        assert!(said.cases.iter().all(|case| gap(case) == gap(&said.cases[0])), "{said:?}");
        gap(&said.cases[0])
    };
    let nobody = "no flow of this instance is on it, so none of its clients waits: new connections go to cp1, cp2";
    assert_eq!(of_empty().await, nobody);
    instance.backend("cp1").configure(1, Some(6));
    instance.backend("cp2").configure(1, Some(4));
    assert!(of_empty().await.ends_with("no room (max_connections): Baton resets new connections"));
    for name in ["cp1", "cp2"] {
        instance.backend(name).configure(1, None);
    }
    let ready = HealthView::clone(&instance.backend("cp1").health());
    for name in ["cp1", "cp2"] {
        instance.backend(name).set_health(HealthView::clone(&instance.backend("cp3").health()));
    }
    assert!(of_empty().await.starts_with("no other backend serves: Baton resets new connections"));
    instance.backend("cp1").set_health(ready);

    // Nobody knows the flows of an instance without peers, and its clients are told nothing.
    let said = ask_of("this", Happening::Dies).await.unwrap();
    let fates: Vec<_> = said.cases.iter().map(|case| (&*case.fault, case.fates.unwrap())).collect();
    let killed = ("Baton killed", FlowFates { reset: 10, ..FlowFates::default() });
    assert_eq!(fates, [killed, ("Baton's host gone", FlowFates { waiting: 10, ..FlowFates::default() })]);
    assert!(
        matches!(&said.cases[1].gap, ExpectedGap::Unknown(why) if why.starts_with("nobody would reset")),
        "{said:?}"
    );
    let ExpectedGap::Decided(parts) = &said.cases[0].gap else { panic!("{said:?}") };
    let keepalived = "keepalived: cluster.vrrp_advert_interval = 1s, cluster.vrrp_track_time = 3s";
    assert_eq!((parts[1].lasts_ms, &*parts[1].setting), (8200, keepalived));

    // Nobody waits for a peer without the VIP and without a flow.
    instance.table.fleet.show_members(vec![a_peer()], now_ns());
    let said = ask_of("lb-b", Happening::Dies).await.unwrap();
    for case in &said.cases {
        assert!(
            matches!(&case.gap, ExpectedGap::Unknown(why) if why.starts_with("it has no VIP and no flow")),
            "{case:?}"
        );
    }

    // Regression: of one that was dead its flows were told again, which this instance carried on.
    let vips = vec!["10.0.0.100".parse().unwrap()];
    let dead = MemberView { liveness: Liveness::Dead, vips, flows: 12, offloaded: 12, ..a_peer() };
    for (why_not, fates, begins) in [
        (Some("it refuses the connection"), [Some(FlowFates::default()); 2], "lb-b counts as dead already"),
        // Regression: of one that may live after all it was told as if it were dead.
        (None, [Some(FlowFates::default()), None], "lb-b is not heard: from this host it cannot be known"),
    ] {
        let dead = MemberView { why_not: why_not.map(str::to_owned), ..dead.clone() };
        instance.table.fleet.show_members(vec![dead], now_ns());
        let said = ask_of("lb-b", Happening::Dies).await.unwrap();
        assert_eq!(said.cases.iter().map(|case| case.fates).collect::<Vec<_>>(), fates, "{said:?}");
        assert!(said.of_subject == 0 && said.notes[0].starts_with(begins), "{said:?}");
    }
    instance.table.fleet.show_members(vec![a_peer()], now_ns());

    let said = ask_of("apiservers", Happening::Restarts).await.unwrap();
    let rows: Vec<_> = said.cases.iter().map(|case| (&*case.fault, case.fates.unwrap().reset)).collect();
    // Regression: one after another reset no more than all at once, though a client may go to the one that restarts next.
    assert_eq!(rows, [("one after another", 26), ("all at once", 10)]);
    assert!(
        said.notes[0].starts_with("One after another, at most 26 connections end, about 20 if clients spread evenly"),
        "{:?}",
        said.notes
    );

    instance.backend("cp2").set_health(HealthView::clone(&instance.backend("cp1").health()));
    instance.backend("cp1").configure(1, Some(7));
    let said = ask_of("apiservers", Happening::Restarts).await.unwrap();
    let gap = &said.cases[0].gap;
    assert!(
        matches!(gap, ExpectedGap::Unknown(why) if why.contains("max_connections")),
        "cp2's flows find no place: {gap:?}"
    );

    let unknown = ask_of("cp9", Happening::Dies).await.unwrap_err().to_string();
    assert!(unknown.contains("no backend and no instance \"cp9\"; allowed: "), "{unknown}");
    assert!(unknown.ends_with(", apiserver/cp1, apiserver/cp2, apiserver/cp3, apiservers"), "{unknown}");
    let restart = ask_of("this", Happening::Restarts).await.unwrap_err().to_string();
    assert!(restart.contains("baton upgrade"), "{restart}");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    instance.table.registry.backend(&instance.backend("cp1").frontend, &host.clone().into());
    let both = ask_of(&host, Happening::Dies).await.unwrap_err().to_string();
    assert!(both.ends_with(&format!("say one of instance:{host}, backend:{host}")), "{both}");
    assert_eq!(ask_of(&format!("backend:{host}"), Happening::Dies).await.unwrap().of_subject, 0);
    assert_eq!(instance.table.flows.len(), 10);
}

/// Regression: it was said that the only peer would carry the flows on, though its host was evacuated and takes no VIP.
#[tokio::test]
async fn a_death_leaves_the_clients_waiting_if_no_peer_would_take_the_vip() {
    let instance = FakeInstance::start();
    let dies = async |subject: &str| {
        let asked = WhatIfRequest { subject: subject.to_owned(), happens: Happening::Dies };
        ask::<WhatIfReport>(&instance, Command::WhatIf(asked)).await.unwrap()
    };
    let show = |not_ready: &[&str], liveness| {
        let not_ready = not_ready.iter().map(|&why| why.to_owned()).collect();
        let summary = Arc::new(InstanceSummary { not_ready, ..InstanceSummary::default() });
        let summary = Some(PeerSummary { age_ms: 0, is_present: true, summary });
        instance.table.fleet.show_members(vec![MemberView { summary, liveness, ..a_peer() }], now_ns());
    };
    // Whether a peer that is not heard lives is not known: this is about the case that it is dead.
    let certain = |said: &WhatIfReport| {
        said.cases.iter().filter(|it| !it.fault.ends_with(", lb-b alive")).cloned().collect::<Vec<_>>()
    };
    let host_gone =
        |said: &WhatIfReport| certain(said).into_iter().find(|it| it.fault.starts_with("Baton's host gone")).unwrap();

    show(&[], Liveness::Alive);
    let taken = host_gone(&dies("this").await);
    assert_eq!((taken.fates.unwrap().reset, taken.fates.unwrap().waiting), (10, 0));
    assert!(matches!(taken.gap, ExpectedGap::Decided(_)), "{taken:?}");

    let evacuated = "an evacuation has given its VIP to another instance";
    let stopping = "this instance is stopping: draining";
    for (not_ready, liveness, why) in [
        (&[evacuated][..], Liveness::Alive, "`baton evacuate --cancel` there lets it have the VIP again"),
        (&[stopping], Liveness::Alive, stopping),
        (&[], Liveness::Dead, "if it is dead, no instance takes it, and clients wait"),
    ] {
        show(not_ready, liveness);
        let said = dies("this").await;
        let case = host_gone(&said);
        assert_eq!(
            (case.fates.unwrap().moved, case.fates.unwrap().reset, case.fates.unwrap().waiting),
            (0, 0, 10),
            "{said:?}"
        );
        for case in certain(&said) {
            let ExpectedGap::Unknown(gap) = &case.gap else { panic!("{said:?}") };
            assert!(gap.starts_with("no instance would take the VIP: clients get nothing"), "{said:?}");
        }
        assert!(said.notes.iter().any(|note| note.contains("lb-b") && note.contains(why)), "{said:?}");
        assert!(!said.notes.iter().any(|note| note.contains("would carry")), "{said:?}");
    }

    // The same of a peer with the VIP, while this instance is the one that is evacuated.
    let vips = vec!["10.0.0.100".parse().unwrap()];
    instance.table.fleet.show_members(vec![MemberView { vips, flows: 7, offloaded: 5, ..a_peer() }], now_ns());
    let said = dies("lb-b").await;
    assert_eq!((host_gone(&said).fates.unwrap().moved, host_gone(&said).fates.unwrap().reset), (5, 2), "{said:?}");
    *instance.control.not_ready.lock().unwrap() = vec![evacuated.to_owned()];
    let said = dies("lb-b").await;
    assert_eq!((host_gone(&said).fates.unwrap().moved, host_gone(&said).fates.unwrap().waiting), (0, 7), "{said:?}");
    assert!(said.notes.iter().any(|note| note.contains("baton evacuate --cancel")), "{said:?}");
}

#[tokio::test]
async fn each_socket_says_whether_it_takes_orders() {
    let instance = FakeInstance::start();
    for (path, takes_orders) in [("admin.sock", true), ("admin-read.sock", false)] {
        let path = instance.directory.path().join(path);
        let about: About =
            tokio::task::spawn_blocking(move || Client::connect(&path).unwrap().ask(&Command::Version {}).unwrap())
                .await
                .unwrap();
        assert_eq!(about.takes_orders, takes_orders);
    }
}

#[tokio::test]
async fn kill_answers_when_the_flows_are_gone() {
    let instance = FakeInstance::start();
    let (rows, _) = list_flows(&instance, FlowFilter::default()).await;
    let kill = |target| Command::Kill { target };
    let one: KillReport = ask(&instance, kill(KillTarget::Flow(rows[0].id))).await.unwrap();
    assert_eq!(one, KillReport { flows: 1, gone: 1 });
    let again = ask::<KillReport>(&instance, kill(KillTarget::Flow(rows[0].id))).await;
    assert!(matches!(again, Err(ClientError::Refused(Refusal::UnknownFlow { .. }))), "{again:?}");
    let by_client: KillReport =
        ask(&instance, kill(KillTarget::Client("192.0.2.10/32".parse().unwrap()))).await.unwrap();
    assert_eq!(by_client, KillReport { flows: 1, gone: 1 });
    let by_backend: KillReport = ask(&instance, kill(KillTarget::Backend(name("cp1")))).await.unwrap();
    assert_eq!((by_backend.flows, by_backend.gone), (5, 5));
    let all: KillReport = ask(&instance, kill(KillTarget::All)).await.unwrap();
    assert_eq!((all, instance.table.flows.len()), (KillReport { flows: 3, gone: 3 }, 0));
    let none = ask::<KillReport>(&instance, kill(KillTarget::Flow(FlowId(99)))).await;
    assert_eq!(none.unwrap_err().to_string(), "there is no flow 99: it has ended, or never existed");
}

#[tokio::test]
async fn reload_and_rebalance_pass_on_what_the_control_says() {
    let instance = FakeInstance::start();
    let reloaded: Reloaded = ask(&instance, Command::Reload {}).await.unwrap();
    assert_eq!(reloaded.changes, ["frontend apiserver: backend cp4 added"]);
    let errors = vec!["baton.toml:3: a".to_owned(), "baton.toml:4: b".to_owned()];
    *instance.control.reload_errors.lock().unwrap() = errors;
    let refused = ask::<Reloaded>(&instance, Command::Reload {}).await.unwrap_err();
    let words = "the configuration has 2 errors and changed nothing:\nbaton.toml:3: a\nbaton.toml:4: b";
    assert_eq!(refused.to_string(), words);
    let plan: Rebalance = ask(&instance, Command::Rebalance { dry_run: true }).await.unwrap();
    assert_eq!((plan.plan.moves[0].moves, *instance.control.rebalanced.lock().unwrap()), (2, 0));
    let done: Rebalance = ask(&instance, Command::Rebalance { dry_run: false }).await.unwrap();
    assert_eq!((plan.done.len(), done.done[0].moved, done.done[0].left.len()), (0, 1, 1));
    assert_eq!(*instance.control.rebalanced.lock().unwrap(), 1);
}

#[tokio::test]
async fn events_are_listed_and_followed() {
    let instance = FakeInstance::start();
    instance.table.journal.record(What::WorkerStuck { worker: 0, for_ms: 1500 });
    instance.table.journal.record(What::WorkerMoves { worker: 0 });
    let (events, table) = (Command::Events(EventFilter { since: 1, ..EventFilter::default() }), &instance.table);
    let listed: Listed = ask(&instance, events).await.unwrap();
    assert_eq!(listed.listed, 1);
    let (seen, mut seen_by_us) = tokio::sync::mpsc::unbounded_channel();
    let follow = with_client(&instance, move |client| {
        let follow = Command::Events(EventFilter { follow: true, ..EventFilter::default() });
        client.list::<Event, Listed>(&follow, |event| {
            seen.send(event.number).unwrap();
            if event.number == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    let record = async {
        assert_eq!((seen_by_us.recv().await, seen_by_us.recv().await), (Some(0), Some(1)));
        table.journal.record(What::Started { version: "x".to_owned() });
    };
    let (followed, ()) = tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(follow, record) })
        .await
        .expect("the third event comes");
    assert!(followed.unwrap().is_none());
}

#[tokio::test]
async fn garbage_is_answered_and_the_next_request_is_served() {
    let instance = FakeInstance::start();
    let line = raw(instance.socket(), b"GET / HTTP/1.1\r\n\r\n".to_vec()).await;
    assert!(line.contains("\"kind\":\"bad_request\""), "{line}");
    let line = raw(instance.socket(), vec![0xff; 10].into_iter().chain(*b"\n").collect()).await;
    assert!(line.contains("\"kind\":\"bad_request\""), "{line}");
    let line = raw(instance.socket(), vec![b'a'; REQUEST_MAX + 1]).await;
    assert!(line.contains("\"kind\":\"too_large\""), "{line}");
    let line = raw(instance.socket(), b"{\"command\":\"version\",\"version\":7}\n".to_vec()).await;
    assert!(line.contains("\"kind\":\"version\"") && line.contains("\"message\":\"this instance speaks"), "{line}");
    let both = with_client(&instance, |client| {
        let bad = Command::Drain { backend: name("x") };
        (client.ask::<Ordered>(&bad).is_err(), client.ask::<About>(&Command::Version {}).is_ok())
    });
    assert_eq!(both.await, (true, true));
}

#[tokio::test]
async fn slow_requests_and_too_many_connections_are_turned_away() {
    let instance = FakeInstance::start();
    let path = instance.directory.path().join("small.sock");
    let (listener, _file) = unix::open(&path).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let limits = SessionLimits { connections: 1, request: Duration::from_millis(100), write: Duration::from_secs(5) };
    tokio::spawn(serve(instance.admin.clone(), listener, SocketAccess::All, limits));
    let line = raw(path.clone(), b"{\"command\":".to_vec()).await;
    assert!(line.contains("\"kind\":\"too_slow\""), "{line}");

    // One that follows holds the only place; the next is told so at once.
    let follower = tokio::task::spawn_blocking({
        let path = path.clone();
        move || {
            let mut stream = loop {
                let stream = UnixStream::connect(&path).unwrap();
                // It is shut at once while the one before still counts.
                let _ = (&stream).write_all(b"{\"command\":\"version\"}\n");
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                if line.contains("\"ok\"") {
                    break stream;
                }
            };
            stream.write_all(b"{\"command\":\"events\",\"follow\":true}\n").unwrap();
            stream
        }
    });
    let follower = follower.await.unwrap();
    let line = raw(path, b"{\"command\":\"version\"}\n".to_vec()).await;
    assert!(line.contains("\"kind\":\"busy\""), "{line}");
    drop(follower);
}

#[tokio::test]
async fn a_reload_moves_the_doors_and_refuses_a_place_that_is_taken() {
    let mut instance = FakeInstance::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = instance.admin.config.load().admin.clone();
    let old = instance.socket();
    config.http = Some(taken.local_addr().unwrap());
    config.socket = instance.directory.path().join("new.sock");
    assert!(instance.doors.prepare(&config).unwrap_err().to_string().starts_with("admin.http: cannot listen on"));
    assert!(old.exists() && instance.doors.http_address().is_some());
    config.http = None;
    let prepared = instance.doors.prepare(&config).unwrap();
    instance.doors.change(prepared).unwrap();
    assert!(!old.exists() && instance.doors.http_address().is_none());
    let _: About = ask(&instance, Command::Version {}).await.unwrap();
    drop(instance.doors);
    assert!(!config.socket.exists());
}
