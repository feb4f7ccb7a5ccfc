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
    // It may take up to a second from the page's answer to this look.
    let left = page.sees("#nodes .left");
    assert!(left.iter().all(|left| left.starts_with('2') && left.ends_with(" s")) && left.len() == 2, "{left:?}");

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
    let first = page.sees("#nodes tbody tr:first-child td");
    assert!(is_silence(&first[0], "no connection for ") && first[1] == "worker-17", "{first:?}");
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

/// `text` is `words` with a time, which goes on.
fn is_silence(text: &str, words: &str) -> bool {
    text.strip_prefix(words).is_some_and(|time| time.ends_with(" s"))
}
