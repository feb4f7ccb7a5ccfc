//! The page, as a browser shows it.

use serde_json::Value;

use crate::lab::*;
use crate::nodes::naming;

const PAGE: &str = "http://127.0.0.1:9470/";

#[test]
fn the_page_names_the_nodes_of_flows_finds_them_and_says_which_is_silent() {
    let Some(lab) = Lab::new("nodes on the page") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut all = [&lab.client, &lab.client, &lab.client2].map(|host| host.connect(lab.lb.v4(6443)));
    all.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let mut page = Browser::open(&lab.lb, PAGE, 1280);
    eventually(LONG, "the page shows the flows", || page.sees("#flows tbody tr").len() == 3);
    assert!(page.sees("#nodes").is_empty(), "no source lists nodes");

    // The page that is open gets to know them.
    let names = [("worker-17", &lab.client), ("worker-18", &lab.client2)];
    baton.write_config(&naming(&lab, lab.config(), &names));
    baton.order(&["reload"]);
    let of_17 = format!("worker-17 {}", all[0].local());
    let of_18 = format!("worker-18 {}", all[2].local());
    eventually(LONG, "each flow has its node's name", || {
        let clients = page.sees("#flows tbody td:nth-child(2)");
        clients.contains(&of_17) && clients.contains(&of_18) && clients.len() == 3
    });
    eventually(LONG, "the nodes are listed", || {
        let mut nodes = page.sees("#nodes tbody td:nth-child(2)");
        nodes.sort();
        nodes == ["worker-17", "worker-18"]
    });
    assert_eq!(page.sees("#nodes tbody td:nth-child(1)"), ["connected", "connected"]);
    // Of thirty seconds from the last byte; a busy machine has used up some of them.
    let left = page.sees("#nodes .left");
    let seconds = |left: &String| left.strip_suffix(" s").and_then(|number| number.parse::<f64>().ok());
    assert!(
        left.iter().all(|it| seconds(it).is_some_and(|left| left > 0.0 && left <= 30.0)) && left.len() == 2,
        "{left:?}"
    );

    page.type_into("#flows input", "WORKER-18");
    eventually(LONG, "one flow is found", || page.sees("#flows tbody td:nth-child(2)") == [&*of_18]);
    assert_eq!(page.sees("#flows-facts"), ["1 of 3 flows"]);
    // The page replaces what it shows each second, and not what somebody types.
    page.value("document.getElementById('flows-rows').dataset.old = 1");
    eventually(LONG, "it is shown anew", || page.value("document.getElementById('flows-rows').dataset.old").is_null());
    let typed = page.value("[document.activeElement.name, document.activeElement.value, location.search].join()");
    assert_eq!(typed, "flows,WORKER-18,?flows=WORKER-18");

    let [one, two, _other] = all;
    drop((one, two));
    eventually(LONG, "the headline says so", || {
        page.sees("header .pill").iter().any(|it| is_silence(it, "worker-17 has had no connection for "))
    });
    eventually(LONG, "so does the tab", || {
        page.value("document.title").as_str().is_some_and(|it| it.starts_with("worker-17 is silent: Baton on "))
    });
    assert!(!page.sees("header .pill.good").contains(&"ready".to_owned()), "not everything is well");
    eventually(LONG, "so does the list, which is looked up less often", || {
        let first = page.sees("#nodes tbody tr:first-child td");
        first.len() > 1 && is_silence(&first[0], "no connection for ") && first[1] == "worker-17"
    });
    page.type_into("#nodes input", "connected");
    eventually(LONG, "the other node is found", || page.sees("#nodes tbody td:nth-child(2)") == ["worker-18"]);

    // A phone, which opens the same address.
    page.resize(390);
    page.go(&format!("{PAGE}?nodes=silent+worker&flows=worker-18&by=oldest"));
    eventually(LONG, "the search has found nothing", || page.sees("#nodes .none") == ["No node is found."]);
    page.type_into("#nodes input", "");
    eventually(LONG, "all nodes are shown", || page.sees("#nodes tbody tr").len() == 2);
    assert_eq!(page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"), 0);
    let cells = [page.sees("#nodes tbody td").len(), page.sees("#flows tbody td").len()];
    assert_eq!(cells, [14, 9], "no cell is beyond the edge");
    let wide = "[...document.querySelectorAll('td')].filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.innerText)";
    assert_eq!(page.value(wide), Value::from([""; 0]), "no text lies over the next cell");
    assert!(page.sees("header .pill").iter().any(|it| is_silence(it, "worker-17 has had no connection for ")));
    let order = page.value("document.querySelector('select').value");
    assert_eq!((page.sees("#flows tbody td:nth-child(2)"), order), (vec![of_18], Value::from("oldest")));

    let _again = lab.client.connect(lab.lb.v4(6443));
    eventually(LONG, "all is well again", || page.sees("header .pill.good") == ["ready"]);
    assert!(page.value("document.title").as_str().is_some_and(|it| it.starts_with("Baton on ")));
}

/// The drawn lines and areas that are not where a reader sees them.
const UNSEEN: &str = r#"[...document.querySelectorAll(".plot .line, .plot .area")].filter((it) => {
    it.scrollIntoView({ block: "center" });
    const [drawn, plot] = [it, it.closest(".plot")].map((it) => it.getBoundingClientRect());
    const style = getComputedStyle(it);
    const isPainted = (style.fill !== "none" || style.stroke !== "none") && style.visibility === "visible";
    const isWithin = drawn.left >= plot.left - 1 && drawn.right <= plot.right + 1 && drawn.top >= plot.top - 1 && drawn.bottom <= plot.bottom + 1;
    const isOnScreen = plot.left >= 0 && plot.right <= document.documentElement.clientWidth && plot.top >= 0 && plot.bottom <= innerHeight;
    return !(drawn.width > 0 && plot.height > 60 && plot.width > 250 && isPainted && isWithin && isOnScreen);
}).map((it) => it.outerHTML)"#;

/// The colours from the top to the bottom of the bands, so many samples before the last one.
const COLOURS: &str = r#"(() => {
    const plot = document.getElementById("bands-0")?.querySelector(".plot");
    if (!plot) return "";
    plot.scrollIntoView({ block: "center" });
    const { left, top, width, height } = plot.getBoundingClientRect();
    const x = left + width - 1 - AGO * width / 299;
    const seen = Array.from({ length: Math.floor(height) - 1 }, (_, down) => document.elementFromPoint(x, top + 1 + down));
    return [...new Set(seen.filter((it) => it?.matches(".area")).map((it) => it.classList[1]))].sort().join(" ");
})()"#;

#[test]
fn the_charts_are_on_a_wide_screen_and_on_a_phone() {
    let Some(lab) = Lab::new("charts on the page") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut all: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    all.iter_mut().for_each(|conn| conn.echo(1, 1000));
    baton.wait_health("b1", "ready", LONG);
    let mut page = Browser::open(&lab.lb, PAGE, 1280);
    let charts = ["chart-flows", "chart-new", "chart-ends", "chart-latency", "bands-0"];
    for width in [1280, 390] {
        page.resize(width);
        eventually(LONG, "two samples are drawn", || {
            page.value("[...document.querySelectorAll('#bands-0 .area')].filter((it) => it.getBoundingClientRect().width > 0).length") == 3
        });
        for chart in charts {
            assert_eq!(page.sees(&format!("#{chart} .plot")).len(), 1, "{chart} at {width}");
            assert_eq!(page.sees(&format!("#{chart} .y")).len(), 2, "{chart} at {width}");
        }
        assert_eq!(page.value(UNSEEN), Value::from([""; 0]), "at {width}");
        assert!(page.sees("#charts .times i").len() >= 8, "the times of both ends at {width}");
        assert_eq!(page.sees("#bands-0 .legend > span").len(), 3, "at {width}");
        assert!(page.sees("#timeline .mark").len() >= 2, "at {width}");
        assert_eq!(page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"), 0);
    }
    let now = page.value("document.querySelector('#chart-flows desc').textContent");
    assert!(now.as_str().is_some_and(|it| it.starts_with("6 now, ")), "{now}");
}

#[test]
fn an_ejected_backend_s_band_ends_and_the_time_line_says_why() {
    let Some(lab) = Lab::new("bands on the page") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut all: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    all.iter_mut().for_each(|conn| conn.echo(1, 1000));
    let mut page = Browser::open(&lab.lb, PAGE, 1280);
    let colours = |page: &mut Browser, ago: u32| page.value(&COLOURS.replace("AGO", &ago.to_string()));
    eventually(LONG, "three bands are drawn", || colours(&mut page, 0) == "c0 c1 c2");
    assert!(page.sees("#timeline .mark.bad").is_empty());

    baton.order(&["eject", "b3"]);
    eventually(LONG, "the third band has ended", || colours(&mut page, 0) == "c0 c1");
    assert!((1..5).any(|ago| colours(&mut page, ago) == "c0 c1 c2"), "its past stays");
    assert_eq!(page.sees("#timeline .mark.bad").len(), 1);
    let words = page.value("document.querySelector('#timeline .mark.bad').title");
    assert!(
        words.as_str().is_some_and(|it| it.contains("apiserver/b3: ready → ejected: ejected by an operator")),
        "{words}"
    );
    assert_eq!(page.sees("#chart-ends .legend > span").len(), 1, "the reason of the ends");
    // A finger has no mouse to rest on the mark.
    page.value("document.querySelector('#timeline .mark.bad').click()");
    let found = page.sees("#events li:target");
    assert!(
        found.len() == 1 && found[0].ends_with("apiserver/b3: ready → ejected: ejected by an operator"),
        "{found:?}"
    );
}

#[test]
fn an_event_is_on_an_open_page_within_a_second_without_a_question() {
    let Some(lab) = Lab::new("events on the page") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut page = Browser::open(&lab.lb, PAGE, 1280);
    eventually(LONG, "the page is there", || page.sees("header .pill.good") == ["ready"]);
    page.value("window.polls = 0; window.fetch = () => (polls++, Promise.reject()); null");
    page.value(
        "new MutationObserver(() => { if (window.wanted && !window.seenAt && document.getElementById('events')?.innerText.includes(wanted)) \
         window.seenAt = Date.now() }).observe(document.body, { childList: true, subtree: true })",
    );
    // It gets every part by now, the clock in its foot each second.
    page.value("document.getElementById('foot').dataset.old = 1");
    eventually(LONG, "it is shown anew", || page.value("document.getElementById('foot').dataset.old").is_null());

    let mut names = ["b2", "b3", "b1"].into_iter();
    wait::meets(secs(1), "an event was shown after", || {
        let name = names.next().expect("one for each try");
        page.value(&format!(
            "window.seenAt = null; window.wanted = 'apiserver/{name}: ready → draining: drained by an operator'; null"
        ));
        let watch = Stopwatch::start();
        baton.order(&["drain", name]);
        let (seen_ms, _) = eventually_some(LONG, "the page shows the event", || page.value("window.seenAt").as_u64());
        let stalled = watch.elapsed().saturating_sub(watch.unstalled());
        let all = baton.events_of("backend_changed");
        let drained = all.iter().rfind(|it| it["backend"] == name && it["to"] == "draining").expect("an event");
        ms(seen_ms.saturating_sub(drained["at_unix_ms"].as_u64().unwrap())).saturating_sub(stalled)
    });
    assert_eq!(page.value("polls"), 0);
    let paint = page.value("Math.round(performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1)");
    println!("first paint after {paint} ms");

    // The next process has the same page.
    let old = baton.status()["instance"]["pid"].clone();
    baton.order(&["upgrade"]);
    eventually(LONG, "the page shows the new process", || {
        let shown = page.sees("header .facts").pop().unwrap_or_default();
        shown.contains(" · pid ") && !shown.contains(&format!(" · pid {old} "))
    });
    assert_eq!(page.value("lost.hidden"), true);
}

/// A chart of the page, as HTML.
fn chart(baton: &Baton, id: &str) -> String {
    // There is none for a moment of an upgrade.
    let Some((_, page)) = baton.http("/") else { return String::new() };
    let chart = page.split(&format!("<figure class=\"chart\" id=\"{id}\">")).nth(1).unwrap_or_default();
    chart.split("</figure>").next().unwrap_or_default().to_owned()
}

/// Waits until the recorder has written so often: a sample each second, and events between them.
#[track_caller]
fn wait_recorded(baton: &Baton, times: u32) {
    let written = || baton.status()["recorder"]["written_bytes_total"].as_u64().expect("bytes");
    for _ in 0..times {
        let before = written();
        eventually(LONG, "the recorder writes", || written() > before);
    }
}

/// Regression: whoever upgraded Baton because of what the page showed saw it no more.
#[test]
fn charts_and_events_go_on_across_an_upgrade_and_across_a_kill_and_a_restart() {
    let Some(lab) = Lab::new("charts go on") else { return };
    let _servers = lab.echo_everywhere();
    let mut baton = lab.start(&lab.config().recording(&lab.directory().join("recorder")));
    let mut all: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    all.iter_mut().for_each(|conn| conn.echo(1, 1000));
    eventually(LONG, "the flows are drawn", || chart(&baton, "chart-flows").contains("6 now, "));
    // After a sample, of the page and of the recorder, so that its connect is in the next.
    wait_recorded(&baton, 2);
    all.push(lab.client.connect(lab.lb.v4(6443)));
    all[6].echo(1, 1000);
    eventually(LONG, "it is drawn, too", || chart(&baton, "chart-flows").contains("7 now, "));
    // It samples each second, at other moments than the page: both have a whole slot of two seconds with all seven.
    wait_recorded(&baton, 5);
    drop(all);
    baton.wait_ended("client_closed", 7);
    let seen = |baton: &Baton| {
        let [flows, ends, latency] = ["chart-flows", "chart-ends", "chart-latency"].map(|id| chart(baton, id));
        let bands = chart(baton, "bands-0");
        flows.contains("0 now, 0 to 7 in the last ten minutes")
            && ends.contains("<span>client_closed</span>")
            && latency.contains("<span>connect, mean</span>")
            && (latency.contains("class=\"dot c0\"") || latency.contains("class=\"line c0\""))
            && bands.contains("0 now, 0 to 7 in the last ten minutes")
    };
    eventually(LONG, "their end is drawn", || seen(&baton));
    baton.order(&["drain", "b1"]);
    // In a mark of the time line, and once in the list.
    let told = |baton: &Baton| {
        let page = baton.http("/").map(|(_, page)| page).unwrap_or_default();
        let within = |from: &str, to: &str| {
            let part = page.split(from).nth(1).and_then(|rest| rest.split(to).next()).unwrap_or_default();
            part.matches("apiserver/b1: ready → draining").count()
        };
        (within("id=\"timeline\"", "<figure") > 0, within("<ol class=\"events\">", "</ol>"))
    };
    eventually(LONG, "the drain is told", || told(&baton) == (true, 1));
    // What was counted after the last sample of a process is in no other's. The ends themselves are recorded, too.
    wait_recorded(&baton, 5);

    let pid = || baton.status()["instance"]["pid"].as_i64().expect("a number");
    let old = pid();
    baton.order(&["upgrade"]);
    eventually(LONG, "the old process ends", || baton.process.exit_status().is_some());
    assert_ne!(pid(), old);
    eventually(LONG, "the new process draws what was before it", || seen(&baton));
    eventually(LONG, "it tells what was before it", || told(&baton) == (true, 1));
    let new = Stranger::new(pid());
    new.kill();
    baton = Baton::start_with(&lab.lb, lab.directory());
    baton.wait_until_ready();
    eventually(LONG, "the next process draws what was before it", || seen(&baton));
    eventually(LONG, "it tells what was before it", || told(&baton) == (true, 1));
}

/// `text` is `words` with a time, which goes on.
fn is_silence(text: &str, words: &str) -> bool {
    text.strip_prefix(words).is_some_and(|time| time.ends_with('s'))
}
