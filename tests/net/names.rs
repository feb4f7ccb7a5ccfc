//! Names of clients beside their addresses.

use serde_json::Value;

use crate::lab::*;

#[track_caller]
fn node_of(baton: &Baton) -> Value {
    baton.flows()[0]["node"].clone()
}

#[test]
fn a_file_names_clients_in_lists_and_events_and_is_followed() {
    let Some(lab) = Lab::new("names of clients") else { return };
    let _servers = lab.echo_everywhere();
    let file = lab.directory().join("names");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    write(&format!("{} worker-7\n", lab.client.v4));
    let recorder = lab.directory().join("recorder");
    let baton = lab.start(&lab.config().recording(&recorder).names(&file));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);
    eventually(LONG, "the client has its name", || node_of(&baton) == "worker-7");
    let id = baton.flows()[0]["id"].to_string();
    let client = conn.local();
    for (command, said) in [
        (&["flows"][..], "worker-7".to_owned()),
        (&["explain", &id], format!("Flow {id} of {client} (worker-7) to apiserver/")),
        (&["kill", &id, "--check"], "1 flow, 1 node, reset at once".to_owned()),
        (&["top", "--once"], "1 flow, 1 node".to_owned()),
        (&["top", "--once"], format!("worker-7:{}", client.port())),
    ] {
        let text = baton.order(command);
        assert!(text.contains(&said), "{command:?}: {text}");
    }

    // It is followed, without a reload; while it is wrong, the last names stay, and one event says so.
    write(&format!("{} worker-8\n", lab.client.v4));
    eventually(LONG, "the client has its new name", || node_of(&baton) == "worker-8");
    write("worker-9\n");
    eventually(LONG, "an event says what is wrong", || !baton.events_of("names_failed").is_empty());
    let failed = baton.events_of("names_failed");
    assert!(
        failed[0]["error"].as_str().is_some_and(|error| error.contains("names:1: expected an address and its name"))
    );
    assert_eq!(node_of(&baton), "worker-8");
    write(&format!("{} worker-9\n", lab.client.v4));
    eventually(LONG, "it works again", || baton.events_of("names_recovered").len() == 1);
    assert_eq!((node_of(&baton), baton.events_of("names_failed").len()), ("worker-9".into(), 1));

    drop(conn);
    baton.wait_ended("client_closed", 1);
    let told = || baton.order(&["events", "--flows", "--since", "1h"]);
    let sentence = format!("flow {id} {client} (worker-9) → apiserver/");
    eventually(LONG, "the record has the name", || told().contains(&sentence));
    assert!(baton.order(&["explain", &format!("flow:{id}")]).contains("(worker-9)"));

    // A reload takes them away.
    baton.write_config(&lab.config().recording(&recorder));
    baton.order(&["reload"]);
    let _conn = lab.client.connect(lab.lb.v4(6443));
    eventually(LONG, "there are no names any more", || baton.flow_count() == 1 && node_of(&baton) == Value::Null);
}
