//! The lists of nodes and flows on the page, and the headline of silent nodes, as a client without scripts gets them.

use std::time::Duration;

use baton::config::{Config, KeyFile, PeerKey, Peers};
use baton::model::fleet::{BackendSummary, InstanceName, InstanceSummary, MemberView, PeerSummary, WorstEvent};
use baton::model::health::HealthState;
use baton::model::nodes::SilenceKind;
use baton::sys::clock::now_ns;
use baton::table::nodes::SilentNode;

use crate::fake::{FakeInstance, a_peer};
use crate::http::get;

/// The cells of the flows on the page, without their tags.
async fn flows(instance: &FakeInstance, query: &str) -> Vec<Vec<String>> {
    let page = get(instance, &format!("/?{query}")).await.body;
    let (_, list) = page.split_once("id=\"flows-rows\"").expect("a list of flows");
    let list = list.split("</section>").next().unwrap_or_default();
    let cells = |row: &str| row.split("</td>").map(text).filter(|cell| !cell.is_empty()).collect();
    list.split("<tr>").skip(2).map(cells).collect()
}

fn text(html: &str) -> String {
    let parts = html.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    parts.collect::<String>().trim().to_owned()
}

#[tokio::test]
async fn ten_thousand_flows_are_searched_and_ordered_and_the_first_are_listed() {
    let instance = FakeInstance::start_with(9_990);
    let page = get(&instance, "/").await.body;
    assert!(page.contains("10,000 flows, the first 25<") && page.len() < 100_000, "{} bytes", page.len());
    let all = flows(&instance, "").await;
    assert_eq!(all.len(), 25);

    let found = flows(&instance, "flows=PROXIED+10.1.4.210").await;
    assert_eq!((found.len(), &*found[0][1]), (1, "10.1.4.210:40000"));
    assert_eq!(found[0][2], "apiserver/cp1");
    assert_eq!(flows(&instance, "flows=apiserver%2Fcp2").await.len(), 4);
    assert_eq!(flows(&instance, "flows=192.0.2.&by=youngest").await.len(), 10);
    assert!(flows(&instance, "flows=cp2+cp1").await.is_empty(), "each word has to be found");

    let clients = |rows: Vec<Vec<String>>| rows.into_iter().map(|row| row[1].clone()).collect::<Vec<_>>();
    let most = clients(flows(&instance, "by=to_backend&flows=10.1.").await);
    assert_eq!(most[..2], ["10.1.39.11:40000", "10.1.39.10:40000"]);
    let oldest = clients(flows(&instance, "by=oldest").await);
    assert_eq!(oldest[..2], ["192.0.2.1:40000", "192.0.2.3:40000"], "by their numbers");
}

/// A link to the page may have anything in its query.
#[tokio::test]
async fn the_page_escapes_what_is_searched_and_keeps_it_in_the_fields() {
    let instance = FakeInstance::start();
    let page = get(&instance, "/?flows=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&nodes=a%27b&by=idle").await;
    assert_eq!((page.status, page.body.matches("<script>").count()), (200, 1), "only the page's own script");
    assert!(page.body.contains("value=\"&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;\""), "{}", page.body);
    assert!(page.body.contains("value=\"a&#39;b\"") && page.body.contains("<option value=\"idle\" selected>"));
    assert!(page.head.contains("form-action 'self'") && page.head.contains("default-src 'none'"), "{}", page.head);
}

#[tokio::test]
async fn silent_nodes_are_in_the_headline_the_title_and_the_status() {
    let instance = FakeInstance::start();
    let node = |name: &str, seconds: u64, kind| SilentNode {
        name: name.into(),
        since_ns: now_ns() - seconds * 1_000_000_000,
        kind,
        refused: None,
    };
    let silent = [node("worker-17", 61, SilenceKind::NoConnection), node("<b>", 20, SilenceKind::NoByte)];
    instance.table.nodes.show(Some(silent[..1].to_vec()));
    let page = get(&instance, "/").await.body;
    let sentence = "<span class=\"pill notice\">worker-17 has had no connection for 1 m 01 s</span>";
    assert!(page.contains(sentence) && page.contains("<title>worker-17 is silent: Baton on "), "{page}");
    assert!(!page.contains("<span class=\"pill good\">ready</span>\n"), "{page}");
    instance.table.nodes.show(Some(silent.to_vec()));
    let page = get(&instance, "/").await.body;
    assert!(page.contains("for 1 m 01 s; 1 node more is silent: &lt;b&gt;</span>"), "{page}");
    let status: serde_json::Value = serde_json::from_str(&get(&instance, "/status.json").await.body).unwrap();
    let nodes = &status["nodes"];
    assert_eq!((&nodes["silent_total"], &nodes["silent"][0]["node"]), (&2.into(), &"worker-17".into()));
    assert_eq!(nodes["silent"][1]["why"], "no_byte");
    instance.table.nodes.show(None);
    assert!(!get(&instance, "/").await.body.contains("worker-17"));
}

fn lb_b(summary: Option<PeerSummary>) -> MemberView {
    MemberView { version: "<i>2".to_owned(), summary, ..a_peer() }
}

/// A peer may be of another release, or another program that has the key.
#[tokio::test]
async fn the_page_escapes_every_word_of_a_peer() {
    let instance = FakeInstance::start();
    let hostile = |text: &str| format!("<script>\"'{text}");
    let backend = BackendSummary {
        frontend: hostile("frontend"),
        name: hostile("name"),
        health_state: Some(HealthState::Ejected),
        for_ms: 90_000,
        why: hostile("why"),
    };
    let event = WorstEvent { at_unix_ms: 0, is_bad: true, sentence: hostile("event") };
    let summary = InstanceSummary {
        phase: hostile("phase"),
        not_live: vec![],
        not_ready: vec![hostile("reason")],
        worst_event: Some(event),
        backends: vec![backend],
        ..InstanceSummary::default()
    };
    let settings = Peers {
        name: InstanceName("lb-a".into()),
        slot: 0,
        listen: "10.0.0.21:9471".parse().unwrap(),
        beat_port: None,
        shared: Some(KeyFile { key: PeerKey([7; 32]), path: "/etc/baton/peers.key".into() }),
        shared_previous: None,
        own_key: None,
        sync_deadline: Duration::from_secs(1),
        peers: Vec::new(),
    };
    let config = Config { peers: Some(settings), ..Config::clone(&instance.admin.config.load()) };
    instance.admin.config.store(config.into());
    instance.ports.fleet.set_enabled(true);
    instance.ports.fleet.show_summary(InstanceSummary::default());
    for is_present in [true, false] {
        let said = PeerSummary { age_ms: 61_000, is_present, summary: summary.clone().into() };
        instance.table.fleet.show_members(vec![lb_b(Some(said))], now_ns());
        let page = get(&instance, "/").await.body;
        let (_, fleet) = page.split_once("<section id=\"fleet\">").expect("a section of the fleet");
        let (fleet, _) = fleet.split_once("</section>").expect("its end");
        assert!(!fleet.contains("<script>") && !fleet.contains("<i>2") && !fleet.contains("\"'"), "{fleet}");
        let words: &[&str] =
            if is_present { &["phase", "reason", "event", "frontend", "name", "why"] } else { &["event", "name"] };
        for word in words {
            assert!(fleet.contains(&format!("&lt;script&gt;&quot;&#39;{word}")), "{word}: {fleet}");
        }
        assert_eq!(fleet.contains("<tr class=\"old\">") && fleet.contains("as it was 1 m 01 s ago"), !is_present);
    }
    instance.table.fleet.show_members(vec![lb_b(None)], now_ns());
    assert!(get(&instance, "/").await.body.contains("its release says nothing of itself"));
}
