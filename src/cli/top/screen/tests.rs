use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::super::feed::{FeedReport, Look};
use super::super::keys::BoardWish;
use super::super::node_rows;
use super::super::orders::KeyOrder;
use super::super::rows::tests::flow;
use super::*;
use crate::admin::nodes::NodesReport;
use crate::admin::protocol::{KillCheck, KillTarget};
use crate::admin::status::PeersReport;
use crate::cli::panes::text;
use crate::model::fleet::{BackendSummary, InstanceName, InstanceSummary, PeerSummary, disagreements};
use crate::model::health::HealthState;
use crate::model::ids::FlowId;

const SECOND_NS: u64 = 1_000_000_000;

fn backend(name: &str, host: u8, health_state: &str, why: &str, flows: u32) -> serde_json::Value {
    json!({
        "frontend": "apiserver", "name": name, "address": format!("10.0.0.{host}:6443"), "health_state": health_state,
        "cause": { "kind": "passed" }, "why": why, "since_ms": 7_260_000, "order": null, "drain_deadline_in_ms": null,
        "weight": 1, "share_percent": 100, "flows": flows, "max_connections": null, "connected_total": flows,
        "hedged_total": 0, "connect_failures_total": {}, "connect_mean_us": 420, "bytes_to_backend_total": 1,
        "bytes_to_client_total": 1, "last_probe": "200", "last_probe_us": 3100,
        "rates": { "flows_per_s": 1.5, "bytes_to_backend_per_s": 20_000.0, "bytes_to_client_per_s": 310_000.0 },
    })
}

fn status() -> Status {
    let states = json!({ "accepted": 0, "connecting": 2, "proxied": 40, "offloaded": 170, "ending": 0 });
    let rates = json!({ "flows_per_s": 4.1, "bytes_to_backend_per_s": 61_000.0, "bytes_to_client_per_s": 940_000.0 });
    let peer = json!({
        "name": "lb-b", "address": "10.0.0.22:9471", "liveness": "alive", "epoch": 1, "slot": 1, "version": "0.1.0",
        "synced": true, "flows": 198, "offloaded": 190, "told": true, "behind": 0, "lag_ms": 0, "resyncs": 0,
        "round_trip_us": 180, "vips": [], "why_not": null,
    });
    serde_json::from_value(json!({
        "at_unix_ms": 1_760_000_000_000_u64,
        "instance": {
            "version": "0.1.0", "host": "lb-a", "pid": 7, "uptime_ms": 90_000_000, "phase": "serving",
            "vips": ["10.0.0.100"], "not_ready": [], "not_live": [], "workers": [],
            "config": { "path": "/etc/baton/baton.toml", "last_reload": { "outcome": "none" } },
        },
        "totals": {
            "flows": states, "accepted_total": 9000, "bytes_to_backend_total": 1, "bytes_to_client_total": 1,
            "ended_total": {}, "rates": rates,
        },
        "fleet": { "name": "lb-a", "slot": 0, "ready": true, "vips": ["10.0.0.100"], "peers": [peer] },
        "frontends": [{
            "name": "apiserver", "removed": false, "listen": ["10.0.0.100:6443"], "balance": "p2c", "flows": 212,
            "states": states, "max_connections": null, "accepted_total": 9000, "ended_total": {}, "rates": rates,
            "backends": [
                backend("cp1", 11, "ready", "probes pass", 120),
                backend("cp2", 12, "draining", "the probe answered 500", 92),
                backend("cp3", 13, "ejected", "no answer to the probe within 500 ms, 2 in a row", 0),
            ],
        }],
        "events": [{
            "number": 5, "at_unix_ms": 1_759_999_990_000_u64, "event": "backend_changed", "frontend": "apiserver",
            "backend": "cp3", "from": "ready", "to": "ejected", "cause": { "kind": "timed_out", "after_ms": 500 },
        }],
    }))
    .unwrap()
}

fn look(flows: u64, takes_orders: bool, at_ns: u64) -> Look {
    let flows = (1..=flows).map(|number| {
        let backend = if number % 9 < 5 { "cp1" } else { "cp2" };
        flow(number, backend, number * at_ns / SECOND_NS * 4096)
    });
    Look { status: status(), flows: flows.collect(), more: 0, nodes: None, takes_orders, at_ns }
}

fn board(takes_orders: bool) -> Board {
    let mut board = Board::new(look(212, takes_orders, SECOND_NS));
    board.take(FeedReport::Looked(Box::new(look(212, takes_orders, 2 * SECOND_NS))));
    board
}

fn drawn(board: &mut Board, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, board, 3 * SECOND_NS)).unwrap();
    terminal
}

fn press(board: &mut Board, keys: &str) -> Option<BoardWish> {
    let mut wish = None;
    for key in keys.chars() {
        let code = match key {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            '↓' => KeyCode::Down,
            '→' => KeyCode::Right,
            '⌫' => KeyCode::Backspace,
            '⎋' => KeyCode::Esc,
            letter => KeyCode::Char(letter),
        };
        wish = board.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    wish
}

#[test]
fn a_small_terminal_shows_the_service_the_backends_the_peers_and_flows() {
    insta::assert_snapshot!(drawn(&mut board(true), 80, 24).backend());
}

#[test]
fn a_wide_terminal_shows_each_column() {
    insta::assert_snapshot!(drawn(&mut board(true), 140, 30).backend());
}

#[test]
fn a_kill_is_asked_with_its_reach_before_it_is_given() {
    let mut board = board(true);
    let order = KeyOrder::kill_backend("apiserver/cp2");
    assert_eq!(press(&mut board, "↓k"), Some(BoardWish::Ask(order.clone())));
    // Keys that are typed ahead give no order that nobody has read.
    assert_eq!(press(&mut board, "y"), None);
    let check = KillCheck { flows: 92, clients: 41, nodes: None, over_ms: 250 };
    board.take(FeedReport::Asked(order.clone(), Ok(Some(check))));
    insta::assert_snapshot!(drawn(&mut board, 80, 24).backend());
    assert_eq!(press(&mut board, "n"), None);
    assert_eq!(board.mode, Mode::Browse);
    // The answer to a question that was left is none.
    board.take(FeedReport::Asked(order.clone(), Ok(Some(check))));
    assert_eq!(board.mode, Mode::Browse);
    press(&mut board, "k");
    board.take(FeedReport::Asked(order.clone(), Ok(Some(check))));
    assert_eq!(press(&mut board, "y"), Some(BoardWish::Give(order)));
    board.take(FeedReport::Given(Ok("the flows of apiserver/cp2: 92 flows gone".to_owned())));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("the flows of apiserver/cp2: 92 flows gone"), "{shown}");
}

#[test]
fn keys_on_a_flow_end_it_or_its_client_and_never_a_backend() {
    let mut board = board(true);
    press(&mut board, "\t");
    let target = |wish| match wish {
        Some(BoardWish::Ask(KeyOrder::Kill { target, .. })) => target,
        other => panic!("{other:?}"),
    };
    // The flow with the highest rate is the first.
    assert_eq!(target(press(&mut board, "k")), KillTarget::Flow(FlowId(212)));
    assert_eq!(target(press(&mut board, "⎋K")), KillTarget::Client("10.0.1.13/32".parse().unwrap()));
    assert_eq!(press(&mut board, "⎋d"), None);
    assert_eq!((&board.mode, board.told.is_some()), (&Mode::Browse, true));
}

#[test]
fn a_drain_of_the_last_ready_backend_says_so() {
    let mut board = board(true);
    let order = KeyOrder::Drain("apiserver/cp1".to_owned());
    assert_eq!(press(&mut board, "d"), Some(BoardWish::Ask(order.clone())));
    board.take(FeedReport::Asked(order, Ok(Some(KillCheck { flows: 120, clients: 60, nodes: None, over_ms: 250 }))));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("No other backend of apiserver is ready."), "{shown}");
    let eject = KeyOrder::Eject("apiserver/cp2".to_owned());
    assert_eq!(press(&mut board, "n↓e"), Some(BoardWish::Ask(eject.clone())));
    board.take(FeedReport::Asked(eject, Ok(Some(KillCheck { flows: 92, clients: 60, nodes: None, over_ms: 250 }))));
    assert!(matches!(&board.mode, Mode::Confirm(_, question) if !question.contains("No other")), "{:?}", board.mode);
}

#[test]
fn a_socket_that_only_looks_offers_no_orders_and_gives_none() {
    let mut board = board(false);
    for key in ["d", "u", "e", "k", "\tk", "K"] {
        assert_eq!(press(&mut board, key), None, "{key}");
    }
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("read-only") && shown.contains("this socket only looks"), "{shown}");
    press(&mut board, "⎋");
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(!shown.contains("drain "), "{shown}");
}

#[test]
fn the_filter_and_the_order_of_flows_follow_keys() {
    let mut board = board(true);
    press(&mut board, "/10.0.1.11x⌫");
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("1 flow with: 10.0.1.11█") && shown.contains("10.0.1.11:40000"), "{shown}");
    press(&mut board, "\n");
    // A letter is a key again.
    assert_eq!(press(&mut board, "q"), Some(BoardWish::Quit));
    press(&mut board, "/zzz⎋");
    assert_eq!(board.rows.filter(), "10.0.1.11");
    press(&mut board, "⎋");
    assert_eq!(board.rows.len(), 212);
    press(&mut board, "→→→→→→");
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("CLIENT▲") && !shown.contains("BYTES/S▼"), "{shown}");
    press(&mut board, "\t↓\n");
    assert_eq!(board.rows.of_backend().unwrap(), "apiserver/cp2");
    assert!(board.rows.len() > 0 && board.rows.len() < 212);
}

#[test]
fn an_instance_that_does_not_answer_is_told_with_the_age_of_the_screen() {
    let mut board = board(true);
    board.take(FeedReport::Lost("the instance has not answered for 5 s".to_owned()));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("This is 1.0 s old: the instance has not answered for 5 s"), "{shown}");
    board.take(FeedReport::Looked(Box::new(look(1, true, 3 * SECOND_NS))));
    assert!(!drawn(&mut board, 80, 24).backend().to_string().contains("old:"));
}

#[test]
fn the_nodes_take_the_place_of_the_flows_silent_ones_first_and_enter_shows_a_node_s_flows() {
    let mut board = board(true);
    assert_eq!(press(&mut board, "n"), Some(BoardWish::LookAtNodes(true)));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("asks the instance for its nodes"), "{shown}");
    let with_nodes = |nodes| {
        let mut look = look(212, true, 3 * SECOND_NS);
        look.status.nodes = serde_json::from_value(json!({
            "silent_total": 1, "silent": [{ "node": "worker-17", "why": "no_connection", "for_ms": 38_000 }],
        }))
        .unwrap();
        look.flows[3].node = Some("worker-16".to_owned());
        FeedReport::Looked(Box::new(Look { nodes, ..look }))
    };
    let names = ["worker-17", "worker-16", "worker-18", "worker-19"];
    board.take(with_nodes(Some(node_rows::tests::report(&names))));
    insta::assert_snapshot!(drawn(&mut board, 80, 24).backend());
    for keys in ["d", "k", "K"] {
        assert_eq!(press(&mut board, keys), None, "{keys}");
    }
    press(&mut board, "⎋/worker-16\n");
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("1 node by the cluster's list, 1 silent with: worker-16"), "{shown}");
    assert_eq!(press(&mut board, "\n"), Some(BoardWish::LookAtNodes(false)));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("1 flow, 1 node with: worker-16") && shown.contains("worker-16:40000"), "{shown}");

    // An instance that does not know all connections, and one without a list.
    press(&mut board, "⎋n");
    let blind = node_rows::tests::report(&names);
    board.take(with_nodes(Some(NodesReport { sees_not_all: Some("lb-b is silent".to_owned()), ..blind.clone() })));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("counts as silent: lb-b is silent") && shown.contains("worker-19"), "{shown}");
    board.take(with_nodes(Some(NodesReport { source: None, nodes: Vec::new(), ..blind })));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("this instance knows no nodes; `baton nodes` says what it needs"), "{shown}");
}

fn with_fleet(mut look: Look) -> FeedReport {
    let backend = |name: &str, health_state, why: &str| BackendSummary {
        frontend: "apiserver".to_owned(),
        name: name.to_owned(),
        health_state: Some(health_state),
        for_ms: 12_000,
        why: why.to_owned(),
    };
    let summary = |cp_2, why: &str| InstanceSummary {
        phase: "serving".to_owned(),
        flows_offloaded: 198,
        backends: vec![backend("cp1", HealthState::Ready, ""), backend("cp2", cp_2, why)],
        ..InstanceSummary::default()
    };
    let fleet = &mut look.status.fleet;
    fleet.own = Some(summary(HealthState::Ready, "").into());
    let of_b = summary(HealthState::Ejected, "no answer within 500 ms");
    fleet.peers[0].summary = Some(PeerSummary { age_ms: 300, is_present: true, summary: of_b.into() });
    fleet.disagreements = disagreements(&[
        (&InstanceName("lb-a".into()), fleet.own.as_deref().unwrap(), 0),
        (&InstanceName("lb-b".into()), &fleet.peers[0].summary.as_ref().unwrap().summary, 300),
    ]);
    FeedReport::Looked(Box::new(look))
}

#[test]
fn the_fleet_takes_the_place_of_the_flows_with_each_backend_as_each_instance_sees_it() {
    let mut board = board(true);
    assert_eq!(press(&mut board, "f"), Some(BoardWish::LookAtNodes(false)));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("the instances have not spoken of themselves yet"), "{shown}");
    board.take(with_fleet(look(212, true, 3 * SECOND_NS)));
    insta::assert_snapshot!(drawn(&mut board, 80, 30).backend());
    for keys in ["d", "k", "K", "\n", "/"] {
        assert_eq!(press(&mut board, keys), None, "{keys}");
        assert_eq!(board.mode, Mode::Browse, "{keys}");
    }

    // What a low screen has no room for comes by keys, and no further.
    press(&mut board, "⎋");
    let shown = drawn(&mut board, 80, 16).backend().to_string();
    assert!(shown.contains("INSTANCE") && !shown.contains("Disagreement:"), "{shown}");
    press(&mut board, "↓↓↓↓↓↓↓↓↓↓↓↓");
    let shown = drawn(&mut board, 80, 16).backend().to_string();
    assert!(!shown.contains("INSTANCE") && shown.contains("Disagreement: apiserver/cp2: ejected at lb-b"), "{shown}");

    // From the fleet to the nodes, and to the flows.
    assert_eq!(press(&mut board, "n"), Some(BoardWish::LookAtNodes(true)));
    assert_eq!(press(&mut board, "f"), Some(BoardWish::LookAtNodes(false)));
    press(&mut board, "f");
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("212 flows"), "{shown}");
    board.status.fleet = PeersReport::default();
    press(&mut board, "f");
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("this instance has no peers"), "{shown}");
}

/// A terminal has any size while its window is dragged.
#[test]
fn no_size_of_a_terminal_panics() {
    let mut board = board(true);
    board.take(with_fleet(look(212, true, 3 * SECOND_NS)));
    for keys in ["", "?", "⎋\tk", "⎋/abc", "⎋n", "f"] {
        press(&mut board, keys);
        for (width, height) in [(1, 1), (1, 40), (2, 2), (10, 5), (40, 8), (80, 10), (300, 100)] {
            drawn(&mut board, width, height);
            text(width, height, |frame| draw_all(frame, &mut board, 0));
        }
    }
}

#[test]
fn one_frame_is_text_without_its_keys() {
    let shown = text(80, 24, |frame| draw_all(frame, &mut board(true), 2 * SECOND_NS));
    assert!(shown.starts_with("Baton 0.1.0 on lb-a: ready") && !shown.contains("q quit"), "{shown}");
    assert_eq!(shown.lines().count(), 24);
    assert!(shown.lines().all(|line| line == line.trim_end()));
}

/// Regression: of the last event, which says why, a terminal of 80 columns showed the beginning alone.
#[test]
fn a_long_event_is_broken_and_not_cut() {
    let mut board = board(true);
    let why = "no interface is left to which packets of the frontends' addresses come and on which a program can be";
    let what = crate::table::journal::What::OffloadShut { why: format!("{why} attached"), unwatched: false };
    board.status.events.last_mut().unwrap().what = what;
    for (width, height) in [(80, 24), (40, 30)] {
        let shown = drawn(&mut board, width, height).backend().to_string();
        assert!(shown.contains("attached"), "{shown}");
        assert!(shown.contains("cp3") && shown.contains("CLIENT"), "the tables have room: {shown}");
    }
}

/// Regression: at 60 columns and 15 rows, two of three backends and most flows were missing without a word.
#[test]
fn rows_that_a_low_terminal_has_no_room_for_are_counted() {
    let mut board = board(true);
    for height in [10, 12, 15, 18] {
        let shown = drawn(&mut board, 60, height).backend().to_string();
        let hidden = 3 - shown.lines().filter(|line| line.contains("2 h 01 m")).count();
        let told = format!("↓ {} more backend", hidden);
        assert!(hidden == 0 || shown.contains(&told), "{height}: {told}: {shown}");
        let flows = shown.lines().filter(|line| line.contains(":40000")).count();
        assert!(shown.contains(&format!("212 flows; {} more below", 212 - flows)), "{height}: {shown}");
    }
    insta::assert_snapshot!(drawn(&mut board, 60, 15).backend());
    // The last backend is in sight, and those above it are not.
    press(&mut board, "↓↓\t↓");
    let shown = drawn(&mut board, 60, 15).backend().to_string();
    assert!(shown.contains("ejected  cp3") && shown.contains("↑ 2 more backends"), "{shown}");
    for _ in 0..30 {
        press(&mut board, "↓");
    }
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("212 flows; 21 more above, 180 below"), "{shown}");
    press(&mut board, "n");
    let names: Vec<_> = (1..=40).map(|number| format!("worker-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let nodes = Some(node_rows::tests::report(&names));
    board.take(FeedReport::Looked(Box::new(Look { nodes, ..look(212, true, 3 * SECOND_NS) })));
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("40 nodes by the cluster's list, 1 silent; 29 more below"), "{shown}");
}

/// Regression: on a host with another name, an instance was never called by its own.
#[test]
fn the_head_names_the_instance_and_its_host_beside_it_if_that_has_another_name() {
    let mut board = board(true);
    board.status.instance.host = "node-17".to_owned();
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("Baton 0.1.0 on lb-a (host node-17): ready"), "{shown}");
    board.status.fleet.name = None;
    let shown = drawn(&mut board, 80, 24).backend().to_string();
    assert!(shown.contains("Baton 0.1.0 on node-17: ready"), "{shown}");
}

/// Regression: at 80 columns a long headline ran into the clock, which covered its end.
#[test]
fn the_clock_covers_no_word_of_the_headline() {
    let mut board = board(false);
    board.status.instance.host = "control-plane-17".to_owned();
    board.status.frontends[0].service.state = Service::Full;
    board.status.frontends[0].service.in_words = words::service(Service::Full, 0, 9000);
    for (width, height) in [(80, 24), (60, 24)] {
        let screen = drawn(&mut board, width, height);
        let shown = screen.backend().to_string();
        let rows: Vec<_> = shown.lines().map(|line| line.trim_matches('"')).collect();
        let said = rows[..3].join(" ").replace("read-only  08:53:20Z", "");
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            said.contains("on lb-a (host control-plane-17): ready for the VIP, every backend full, up 1 d 01 h"),
            "{shown}"
        );
        assert!(rows[0].ends_with("  read-only  08:53:20Z"), "{shown}");
        insta::assert_snapshot!(format!("a_long_headline_at_{width}_columns"), screen.backend());
    }
}

/// Regression: of a recorder whose disk was full `baton status` told, and the screen that one looks at did not.
#[test]
fn a_recorder_that_keeps_nothing_is_told() {
    let mut board = board(true);
    let says = |board: &mut Board| {
        drawn(board, 100, 40).backend().to_string().contains("The recorder keeps nothing: No space left")
    };
    assert!(!says(&mut board));
    let mut look = look(12, true, 1);
    look.status.recorder.fault = Some("No space left on device (os error 28)".to_owned());
    board.take(FeedReport::Looked(Box::new(look)));
    assert!(says(&mut board));
}
