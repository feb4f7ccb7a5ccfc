use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::chronicle::ViewLine as Happened;
use super::*;

fn backend(name: &str, condition: Condition, health_state: HealthState, why: &str, flows: u32) -> BackendRow {
    BackendRow {
        name: name.to_owned(),
        condition,
        health_state: Some(health_state),
        why: why.to_owned(),
        since: Some(Duration::from_millis(2300)),
        drain_deadline: None,
        flows,
    }
}

fn view() -> View {
    let mut draining = backend("cp3", Condition::NotReady, HealthState::Draining, "probe answered 500", 1);
    draining.drain_deadline = Some(Duration::from_millis(7700));
    View {
        elapsed: Duration::from_secs(42),
        frontend: "127.0.0.1:40001".to_owned(),
        page: "http://127.0.0.1:9470/".to_owned(),
        command: "target/release/baton --socket /tmp/baton-demo-31309/admin.sock status".to_owned(),
        phase: "serving".to_owned(),
        backends: vec![
            backend("cp1", Condition::Running, HealthState::Ready, "probes pass", 4),
            backend("cp2", Condition::Hung { ready: true }, HealthState::Ejected, "no answer within 500 ms", 0),
            draining,
        ],
        kubelets: (1..=6)
            .map(|number| Summary {
                name: format!("node-{number}"),
                renewals: 40,
                failures: 1,
                longest_gap_ms: 2050,
                connections: 2,
                stand_in: (number < 6).then(|| "cp1".to_owned()),
                last_renewal_ms: if number < 6 { 300 } else { 11_000 },
                ..Summary::default()
            })
            .collect(),
        lines: (0..30)
            .map(|number| Happened {
                at: Duration::from_secs(number),
                who: "baton".to_owned(),
                text: format!("event {number}"),
            })
            .collect(),
    }
}

fn drawn(width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, &view(), 1)).unwrap();
    terminal
}

#[test]
fn a_roomy_terminal_shows_everything() {
    insta::assert_snapshot!(drawn(120, 36).backend());
}

#[test]
fn on_80_by_24_nothing_that_one_steers_by_is_cut_off() {
    assert!(KEYS.chars().count() <= 80);
    insta::assert_snapshot!(drawn(80, 24).backend());
}

#[test]
fn a_tiny_terminal_does_not_panic() {
    for (width, height) in [(1, 1), (10, 3), (200, 2)] {
        drawn(width, height);
    }
}

#[test]
fn colours_follow_health_and_gap() {
    let terminal = drawn(120, 36);
    let buffer = terminal.backend().buffer();
    let colour_of = |text: &str| {
        let area = buffer.area();
        for y in 0..area.height {
            let row: String = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
            if let Some(at) = row.find(text) {
                return buffer[(row[..at].chars().count() as u16, y)].fg;
            }
        }
        panic!("{text} is not on the screen");
    };
    assert_eq!(colour_of("ejected"), Color::Red);
    assert_eq!(colour_of("draining"), Color::Yellow);
    assert_eq!(colour_of("11.0 s"), Color::Red);
    assert_eq!(colour_of("2.0 s        40"), Color::Yellow);
    assert_eq!(colour_of("0.3 s"), Color::Green);
}
