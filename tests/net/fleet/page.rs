//! The whole fleet on the page of each instance.

use super::*;
use crate::lab::config::Paths;

const PAGE: &str = "http://127.0.0.1:9470/";

/// The row of a backend in the matrix, a text for each instance.
fn seen(page: &mut Browser, backend: &str) -> Vec<String> {
    let rows = page.value(
        "[...document.querySelectorAll('#fleet .matrix tbody tr')].map((row) => [...row.cells].map((it) => it.innerText))",
    );
    let rows = rows.as_array().cloned().unwrap_or_default();
    let cells = |row: &Value| -> Vec<String> {
        row.as_array().into_iter().flatten().map(|it| it.as_str().unwrap_or_default().to_owned()).collect()
    };
    rows.iter().map(cells).find(|row| row[0].starts_with(backend)).unwrap_or_default()
}

/// Whether each instance sees the backend in this state.
fn states(page: &mut Browser, backend: &str, expected: [&str; 3]) -> bool {
    let row = seen(page, backend);
    row.len() == 4 && row[1..].iter().zip(expected).all(|(cell, state)| cell.starts_with(state))
}

fn title(page: &mut Browser) -> String {
    page.value("document.title").as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_backend_that_one_instance_alone_does_not_reach_stands_out_on_the_page_of_another() {
    let test = "a_backend_that_one_instance_alone_does_not_reach_stands_out_on_the_page_of_another";
    let Some(scene) = Scene::new(test, 3) else { return };
    let _servers = scene.serve();
    let mut all = scene.start();
    let (a, b) = (&all[0], &all[1]);
    let lost = scene.lab.b2.name;
    let mut page = Browser::open(&a.host, PAGE, 1280);
    eventually(LONG, "all see it", || states(&mut page, lost, ["ready"; 3]));
    eventually(LONG, "all is well", || page.sees("header .pill.good").contains(&"ready".to_owned()));
    // Peers tell of themselves each second, and of a backend a moment before they are ready.
    eventually(LONG, "all are ready", || page.sees("#fleet .instances tbody td:nth-child(1)") == ["ready"; 3]);

    b.host.drop_packets("output", &format!("ip daddr {}", scene.lab.b2.v4));
    eventually(LONG, "lb-b alone says so", || states(&mut page, lost, ["ready", "ejected", "ready"]));
    eventually(LONG, "it says why", || seen(&mut page, lost).get(2).is_some_and(|it| it.contains("no answer within")));
    let about = format!("instances disagree about apiserver/{lost}");
    eventually(LONG, "the headline says so", || {
        page.sees("header .pill.notice").iter().any(|it| it.starts_with(&about) && it.contains("ejected at lb-b ("))
    });
    eventually(LONG, "so does the tab", || title(&mut page).starts_with(&format!("{about}: Baton on ")));
    // One status for all: a peer without a beat for 0.25 s, on a busy machine, disagrees with nobody.
    let disagrees = |status: &Value| {
        let peer = &status["fleet"]["peers"][0]["summary"];
        status["fleet"]["disagreements"][0]["backend"] == lost && peer["is_present"] == true
    };
    let (status, _) = eventually_some(LONG, "so does the status", || Some(a.baton.status()).filter(disagrees));
    let disagreement = &status["fleet"]["disagreements"][0];
    assert_eq!(disagreement["opinions"][1]["instance"], "lb-b", "{disagreement}");
    // A moment's difference is none: each instance needs 2 probes a second apart.
    assert!(disagreement["for_ms"].as_u64() >= Some(6000), "{disagreement}");
    assert_eq!(status["fleet"]["peers"][0]["summary"]["phase"], "serving", "{status}");
    let told = format!("Disagreement: apiserver/{lost}: ejected at lb-b (");
    for command in ["peers", "status"] {
        eventually(LONG, command, || a.baton.order(&[command]).contains(&told));
    }

    for width in [1280, 390] {
        page.resize(width);
        assert_eq!(page.sees("#fleet .matrix tbody td").len(), 8, "no cell is beyond the edge at {width}");
        assert_eq!(page.sees("#fleet .instances tbody td:nth-child(2)").len(), 3);
        assert_eq!(page.sees("#fleet .matrix .pill.bad"), ["ejected"]);
        assert_eq!(page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"), 0);
        let wide = "[...document.querySelectorAll('#fleet td')].filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.innerText)";
        assert_eq!(page.value(wide), Value::from([""; 0]), "no text lies over the next cell at {width}");
    }

    b.host.nft_clear();
    eventually(LONG, "all see it again", || states(&mut page, lost, ["ready"; 3]));
    eventually(LONG, "nothing is left of it", || {
        title(&mut page).starts_with("Baton on ") && page.sees("header .pill.notice").is_empty()
    });

    all.pop().expect("lb-c").baton.process.kill();
    let cells = "#fleet .instances tbody tr.old td";
    eventually(LONG, "lb-c is shown as it was", || {
        let row = page.sees(cells);
        row.first().is_some_and(|state| state == "dead") && row[1].contains("as it was ") && row[1].contains(" ago")
    });
    assert!(seen(&mut page, lost)[3].ends_with(" ago"), "{:?}", seen(&mut page, lost));
}

/// `BATON_PREVIOUS=/path/to/baton cargo nextest run --test net -E 'test(one_version_of_the_link)' --run-ignored all`
#[test]
#[ignore = "needs the binary of a release with one version of the link, in BATON_PREVIOUS"]
fn a_release_with_one_version_of_the_link_stays_in_the_fleet_while_it_is_upgraded() {
    let previous = std::env::var("BATON_PREVIOUS").expect("BATON_PREVIOUS names the binary");
    let Some(scene) = Scene::new("a_release_with_one_version_of_the_link", 3) else { return };
    let _servers = scene.serve();
    let as_previous = ["sh", "-c", &*format!("shift; exec {previous} \"$@\""), "sh"];
    let start = |number: usize, wrapper: &[&str]| {
        let (name, host) = (NAMES[number], scene.host(number).clone());
        let directory = scene.lab.directory().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let config = scene.config(number);
        std::fs::write(&Paths::below(&directory).config, config.text(&Paths::below(&directory).socket)).unwrap();
        Instance { name, baton: Baton::start_by(wrapper, &host, &directory), host, directory }
    };
    let mut all = vec![start(0, &[]), start(1, &as_previous), start(2, &[])];
    let synced = |all: &[Instance]| {
        for instance in all {
            instance.baton.wait_until_ready();
            NAMES.iter().filter(|name| **name != instance.name).for_each(|name| instance.wait_synced(name));
        }
    };
    synced(&all);
    let mut conn = scene.lab.client.connect(all[1].listens_at());
    conn.echo(1, 100);
    all[0].wait_sees("lb-b", "flows", 1);
    let phase = |all: &[Instance], peer| all[0].sees(peer)["summary"]["phase"].clone();
    eventually(LONG, "lb-c says what it is", || phase(&all, "lb-c") == "serving");
    assert_eq!((phase(&all, "lb-b"), all[0].sees("lb-b")["liveness"].clone()), (Value::Null, "alive".into()));
    let (_, page) = all[0].baton.http("/").expect("the page");
    assert!(page.contains("its release says nothing of itself"), "{page}");
    for instance in &all {
        assert_eq!(instance.baton.events_of("peer_lost").len(), 0, "{}", instance.name);
    }

    drop(conn);
    drop(all.remove(1));
    all.insert(1, start(1, &[]));
    synced(&all);
    eventually(LONG, "lb-b says what it is", || phase(&all, "lb-b") == "serving");
}
