use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::*;
use crate::cli::panes::text;
use crate::model::health::{Cause, HealthState};
use crate::recorder::past::Past;
use crate::recorder::{BackendSample, FileOwner, FrontendSample, Recorded, RecordedSample, Recording, TimedRecord};
use crate::table::journal::Event;
use crate::table::journal::testing::ended;
use crate::table::standing::InstanceStanding;

const AT_MS: u64 = 1_760_000_000_000;

fn player() -> Player {
    player_of(FileOwner::default())
}

fn player_of(owner: FileOwner) -> Player {
    player_with(owner, None)
}

/// Ten backends, each of which has just changed its state, and twenty flows that end later. They accept nine flows a second at last.
fn player_with(owner: FileOwner, standing: Option<InstanceStanding>) -> Player {
    let name = |number: u64| format!("cp{number}");
    let backend = |number| BackendSample {
        frontend: "api".to_owned(),
        name: name(number),
        state: "ready".to_owned(),
        flows: 2,
        connected_total: 0,
        failed_total: 0,
        last_probe_us: 900,
    };
    let sample = |ago_s: u64, accepted_total| {
        let frontend = FrontendSample { name: "api".to_owned(), flows: 20, accepted_total, ended_total: 0 };
        RecordedSample {
            at_unix_ms: AT_MS - 1000 * ago_s,
            frontends: vec![frontend],
            backends: (1..=10).map(backend).collect(),
            standing: standing.clone(),
            ..RecordedSample::default()
        }
    };
    let changed = |number| What::BackendChanged {
        frontend: "api".to_owned(),
        backend: name(number),
        from: HealthState::Ready,
        to: HealthState::Ready,
        cause: Cause::Passed,
    };
    let event = |number, at_unix_ms, what| Recorded::Event(Event { number, at_unix_ms, what });
    let mut all = [sample(9, 0), sample(1, 0), sample(0, 9)].map(Recorded::Sample).to_vec();
    all.extend((1..=10).map(|number| event(number, AT_MS - 100 + number, changed(number))));
    // They have begun 5 ms before.
    all.extend((11..=30).map(|number| event(number, AT_MS + 4, ended(number))));
    let mut records: Vec<_> =
        all.into_iter().map(|what| TimedRecord { at_unix_ms: what.at_unix_ms().unwrap(), owner: 0, what }).collect();
    records.sort_by_key(|record| record.at_unix_ms);
    let recording = Recording { records, owners: vec![owner], ..Recording::default() };
    Player::new(Past::new(recording), AT_MS, AT_MS + 60_000)
}

/// Regression: backends, events and flows for which there was no room were missing without a word.
#[test]
fn rows_that_a_low_terminal_has_no_room_for_are_counted() {
    let mut player = player();
    for (width, height) in [(80, 24), (60, 15), (40, 30)] {
        let shown = text(width, height, |frame| draw_body(frame, frame.area(), &mut player));
        let backends = shown.lines().filter(|line| line.starts_with("ready")).count();
        assert!(backends == 10 || shown.contains(&format!("↓ {} more backends", 10 - backends)), "{shown}");
        let events = shown.lines().filter(|line| line.contains("Z api/cp")).count();
        assert!(
            events == 10 || shown.contains(&format!("Events up to this moment; {} more below", 10 - events)),
            "{shown}"
        );
    }
    player.press(KeyEvent::from(KeyCode::Tab));
    let shown = text(80, 24, |frame| draw_body(frame, frame.area(), &mut player));
    let flows = shown.lines().filter(|line| line.contains(" ms")).filter(|line| !line.starts_with("ready")).count();
    assert!(flows > 0 && shown.contains(&format!("ended since; {} more below", 20 - flows)), "{shown}");
    player.press(KeyEvent::from(KeyCode::Down));
    let shown = text(80, 24, |frame| draw_body(frame, frame.area(), &mut player));
    assert!(shown.contains(&format!("ended since; 1 more above, {} below", 19 - flows)), "{shown}");
}

/// Regression: on a host with another name, the page called the instance by that of its host.
#[test]
fn the_head_names_the_instance_and_its_host_beside_it_if_that_has_another_name() {
    let seen = |instance: Option<&str>| {
        let instance = instance.map(str::to_owned);
        let mut player = player_of(FileOwner { instance, host: "node-17".to_owned(), ..FileOwner::default() });
        let page = super::super::page::render(&player.past, AT_MS + 1, std::path::Path::new("/var/lib/baton"));
        (text(80, 24, |frame| draw_body(frame, frame.area(), &mut player)), page)
    };
    let (shown, page) = seen(Some("lb-a"));
    assert!(shown.contains(" on lb-a (host node-17), pid "), "{shown}");
    assert!(page.contains("<span class=\"host\">lb-a (host node-17)</span>"), "{page}");
    assert!(page.contains("Baton on lb-a (host node-17)</title>"), "{page}");
    let (shown, page) = seen(None);
    assert!(shown.contains(" on node-17, pid ") && page.contains("<span class=\"host\">node-17</span>"), "{shown}");
}

fn standing() -> InstanceStanding {
    InstanceStanding {
        headline: "ready for the VIP, every backend full for api".to_owned(),
        weight: "bad".to_owned(),
        reasons: vec!["a reason".to_owned()],
        silent_nodes: Some(2),
        silence: "worker-17 has had no connection for 38 s; 1 node more is silent: worker-18".to_owned(),
    }
}

fn seen_with(standing: Option<InstanceStanding>) -> (String, String) {
    let mut player = player_with(FileOwner { host: "node-17".to_owned(), ..FileOwner::default() }, standing);
    let page = super::super::page::render(&player.past, AT_MS + 1, std::path::Path::new("/var/lib/baton"));
    (text(80, 24, |frame| draw_body(frame, frame.area(), &mut player)), page)
}

/// Regression: a moment had neither the headline of `baton status` nor the nodes that were silent then.
#[test]
fn the_headline_and_the_silent_nodes_are_those_of_the_moment() {
    let (shown, page) = seen_with(Some(standing()));
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("ready for the VIP, every backend full") && words.contains("a reason"), "{shown}");
    assert!(words.contains("worker-17 has had no connection for 38 s"), "{shown}");
    for said in [
        "<span class=\"pill bad\">ready for the VIP, every",
        "pill notice\">worker-17 has",
        "<title>ready for the VIP, every",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    assert!(!shown.contains("not recorded") && !page.contains("not recorded:"), "{shown}");
    // One of a version that recorded neither.
    let (shown, page) = seen_with(None);
    for seen in [&shown, &page] {
        assert!(seen.contains("not recorded: the service state, and which nodes were silent"), "{seen}");
    }
}

/// Regression: the clock lay upon the end of the first line.
#[test]
fn the_clock_covers_no_word_of_the_headline() {
    for (width, height) in [(80, 24), (60, 24), (40, 30)] {
        let mut player =
            player_with(FileOwner { host: "node-17".to_owned(), ..FileOwner::default() }, Some(standing()));
        let shown = text(width, height, |frame| draw_body(frame, frame.area(), &mut player));
        let (_, time) = date_and_time(AT_MS);
        let without_clock = shown.replace(&format!("{time}Z"), "");
        let words =
            without_clock.split_whitespace().filter(|it| !it.starts_with("2025-")).collect::<Vec<_>>().join(" ");
        assert!(words.contains("on node-17: ready for the VIP, every backend full for api, pid "), "{width}: {shown}");
        assert!(shown.lines().next().is_some_and(|line| line.ends_with('Z')), "{shown}");
    }
}

/// Regression: the page said 1 new flow a second in its headline, and 4.5 in the legend of its chart.
#[test]
fn the_legends_of_the_past_page_have_the_figures_of_its_headline() {
    let (_, page) = seen_with(None);
    let headline = page.split_once("<dt>New flows</dt><dd>").unwrap().1.split_once(" /s").unwrap().0;
    let legend = page.split_once("New flows /s <b>").unwrap().1.split_once("</b>").unwrap().0;
    assert_eq!((headline, legend), ("1.0", "1.0"));
}
