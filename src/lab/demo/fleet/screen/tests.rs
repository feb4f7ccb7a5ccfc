use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::lab::demo::chronicle::ViewLine;

fn kubelet(number: usize) -> Summary {
    Summary {
        name: format!("node-{number}"),
        renewals: 40,
        longest_gap_ms: 2100,
        connections: 1,
        stand_in: (number != 3).then(|| format!("cp{}", number % 3 + 1)),
        last_renewal_ms: if number == 3 { 12_300 } else { 300 },
        ..Summary::default()
    }
}

fn host(name: &'static str, balancer: Option<BalancerState>, apiserver: Option<Condition>) -> HostRow {
    HostRow {
        name,
        has_vip: false,
        balancer,
        offloaded: 0,
        proxied: 0,
        apiserver,
        kubelets: 4,
        link: FleetLink::Up,
        strict: false,
    }
}

fn line(at_ms: u64, who: &str, text: &str) -> ViewLine {
    ViewLine { at: Duration::from_millis(at_ms), who: who.to_owned(), text: text.to_owned() }
}

fn picture(hosts: Vec<HostRow>, lost: Losses) -> FleetPicture {
    FleetPicture {
        elapsed: Duration::from_secs(42),
        layout: "3 stacked hosts",
        port: 6443,
        hosts,
        kubelets: (1..=12).map(kubelet).collect(),
        lost,
        command: "baton --socket /tmp/baton-demo-31309/cp1.sock status".to_owned(),
        lines: VecDeque::from([
            line(39_100, "you", "pulled the plug of cp1: no packet reaches or leaves it"),
            line(39_600, "cp2", "this host has the VIP 10.0.0.100 now: cp1 had it and was silent"),
            line(
                39_700,
                "cp2",
                "cp1 is dead: this instance carries on 8 flows of it and resets 4 others, a sentence that needs a second line",
            ),
            line(39_900, "node-3", "lost its connection: cp1 is gone"),
        ]),
    }
}

fn drawn(width: u16, height: u16, picture: &FleetPicture) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, picture)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn on_80_by_24_a_stacked_fleet_and_its_last_events_are_whole() {
    let mut gone = host("cp1", Some(BalancerState::Does("cut off")), Some(Condition::Running));
    (gone.link, gone.kubelets) = (FleetLink::Pulled, 0);
    let mut owner = host("cp2", Some(BalancerState::Serves), Some(Condition::Running));
    (owner.has_vip, owner.offloaded, owner.proxied, owner.strict) = (true, 10, 2, true);
    let hosts = vec![gone, owner, host("cp3", Some(BalancerState::Does("evacuated")), Some(Condition::Killed))];
    insta::assert_snapshot!(drawn(80, 24, &picture(hosts, Losses { with_apiserver: 4, without_cause: 0, hung: 0 })));
}

#[test]
fn on_80_by_24_five_dedicated_hosts_leave_room_for_events() {
    let mut hosts =
        vec![host("lb-a", Some(BalancerState::Silent), None), host("lb-b", Some(BalancerState::Serves), None)];
    hosts.extend(["cp1", "cp2", "cp3"].map(|name| host(name, None, Some(Condition::Running))));
    insta::assert_snapshot!(drawn(80, 24, &picture(hosts, Losses { with_apiserver: 0, without_cause: 12, hung: 0 })));
}

#[test]
fn on_80_by_24_two_fleets_stand_side_by_side_and_leave_room_for_events() {
    let hosts = |state: BalancerState| {
        let mut gone = host("cp1", Some(state), Some(Condition::Running));
        (gone.link, gone.kubelets) = (FleetLink::Pulled, 0);
        let mut owner = host("cp2", Some(BalancerState::Serves), Some(Condition::Running));
        (owner.has_vip, owner.strict) = (true, true);
        vec![gone, owner, host("cp3", Some(BalancerState::Does("evacuates")), Some(Condition::Killed))]
    };
    let baton = picture(hosts(BalancerState::Does("cut off")), Losses { with_apiserver: 4, without_cause: 0, hung: 0 });
    let lost = Losses { with_apiserver: 2, without_cause: 10, hung: 12 };
    let mut haproxy = picture(hosts(BalancerState::Silent), lost);
    haproxy.lines = VecDeque::from([line(39_500, "haproxy", "pulled the plug of cp1: no packet reaches or leaves it")]);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| beside::draw(frame, &baton, &haproxy)).unwrap();
    insta::assert_snapshot!(terminal.backend().to_string());
}

#[test]
fn the_keys_fit_80_columns() {
    assert!(KEYS.chars().count() <= 80, "{}", KEYS.chars().count());
}
