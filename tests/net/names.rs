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
    let id = baton.flows()[0]["id"].as_str().expect("an id").to_owned();
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

    // A wrong line costs no other line its name.
    write(&format!("worker-8\n{} worker-10\n", lab.client.v4));
    eventually(LONG, "an event names the line", || baton.events_of("names_failed").len() == 2);
    assert_eq!((node_of(&baton), baton.events_of("names_failed")[1]["kept"].clone()), ("worker-10".into(), 1.into()));
    write(&format!("{} worker-9\n", lab.client.v4));
    eventually(LONG, "it is whole again", || baton.events_of("names_recovered").len() == 2);

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

/// Remote ends of connections to `host`'s port 6443 (proc(5): /proc/net/tcp has IPv4 in the machine's order of bytes).
fn clients_at(host: &Host) -> Vec<String> {
    let listed = host.run("ss -tnH state established sport = :6443");
    listed.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

/// Regression: nobody knew the client of a flow that was offloaded within its first second.
#[test]
fn the_client_of_a_flow_that_was_offloaded_at_once_is_found_by_its_source() {
    let test = "the client of an offloaded flow";
    let Some(lab) = Lab::new(test) else { return };
    let Some(pinned) = Pinned::unused(test) else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().only(&["b1"]).offloading(&pinned.directory));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    (0..4).for_each(|seed| conn.echo(seed, 1000));
    baton.wait_offloaded(1);
    let client = conn.local().to_string();
    let is_its = |source: &String| String::from_utf8_lossy(&baton.cli(&["who", source]).stdout).starts_with(&client);
    assert!(clients_at(&lab.b1).iter().any(is_its), "{:?}", clients_at(&lab.b1));
}

#[test]
fn the_client_behind_a_source_that_an_apiserver_saw_is_found_while_it_lives_and_after() {
    let Some(lab) = Lab::new("who was it") else { return };
    let _servers = lab.echo_everywhere();
    let file = lab.directory().join("names");
    std::fs::write(&file, format!("{} worker-7\n", lab.client.v4)).expect("a file");
    let recorder = lab.directory().join("recorder");
    let baton = lab.start(&lab.config().only(&["b1"]).recording(&recorder).names(&file));
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    let mut other = lab.client2.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);
    other.echo(1, 1000);
    let who = |source: &str| baton.order(&["--json", "who", source]);
    let find = || clients_at(&lab.b1).into_iter().find(|source| baton.cli(&["who", source]).status.success());
    eventually(LONG, "both sources are known", || {
        let sources = clients_at(&lab.b1);
        sources.iter().filter(|source| baton.cli(&["who", source]).status.success()).count() >= 2
    });
    assert!(find().is_some());
    let of = |client: String| {
        let sources = clients_at(&lab.b1);
        let found = sources.into_iter().filter(|it| baton.cli(&["who", it]).status.success());
        found.into_iter().find(|source| who(source).contains(&client)).expect("one of them is this client's")
    };
    let (source, its) = (of(conn.local().to_string()), of(other.local().to_string()));
    assert_ne!(source, its);
    let said = baton.order(&["who", &source]);
    assert!(said.starts_with(&format!("{} (worker-7), flow ", conn.local())), "{said}");
    assert!(said.contains(" to apiserver/b1, from ") && said.trim_end().ends_with("it goes on"), "{said}");

    let client = conn.local();
    drop(conn);
    baton.wait_ended("client_closed", 1);
    eventually(LONG, "its end is recorded", || {
        let output = baton.cli(&["--json", "who", &source]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        found[0]["client"] == client.to_string() && found[0]["node"] == "worker-7" && found[0]["until_unix_ms"].is_u64()
    });
    let before = baton.cli(&["who", &source, "--at", "10m"]);
    let why = String::from_utf8_lossy(&before.stderr).into_owned();
    assert!(!before.status.success() && why.contains("no client is known that was behind"), "{why}");
    other.echo(2, 1000);
}

#[test]
fn reverse_dns_names_clients_that_nothing_else_names_if_the_name_has_their_address() {
    let Some(lab) = Lab::new("names by reverse DNS") else { return };
    let _servers = lab.echo_everywhere();
    let server = NameServer::start(&lab.client2);
    let [a, b, c, d] = lab.client.v4.octets();
    let reverse = format!("{d}.{c}.{b}.{a}.in-addr.arpa");
    let called = |host: &str| {
        server.set(&reverse, name_server::PTR, name_server::Answer::Name { host: host.to_owned(), ttl_s: 1 });
    };
    called("worker-7.cluster.test");
    server.set_addresses("worker-7.cluster.test", 60, &[lab.client.v4.into()]);
    let baton = lab.start(&lab.config());
    let reload_to = |config: &Config| {
        baton.write_config(config);
        baton.order(&["reload"]);
    };
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);
    wait::throughout(secs(3), "nobody asked for it", || node_of(&baton).is_null());
    assert_eq!(server.asked(&reverse, name_server::PTR), 0);

    let servers = vec![server.address.to_string()];
    let asking = lab.config().of_names("reverse_dns", true).of_names("reverse_dns_servers", servers);
    reload_to(&asking);
    eventually(LONG, "the client has its name", || node_of(&baton) == "worker-7.cluster.test");

    // A name that has other addresses is a claim of whoever has the reverse zone.
    reload_to(&lab.config());
    eventually(LONG, "the name goes", || node_of(&baton).is_null());
    called("worker-8.cluster.test");
    server.set_addresses("worker-8.cluster.test", 60, &[lab.client2.v4.into()]);
    let asked = server.asked("worker-8.cluster.test", name_server::A);
    reload_to(&asking);
    eventually(LONG, "it looks at the name's addresses", || {
        server.asked("worker-8.cluster.test", name_server::A) > asked
    });
    wait::throughout(secs(3), "it takes no name", || node_of(&baton).is_null());

    // The file counts more.
    let file = lab.directory().join("names");
    std::fs::write(&file, format!("{} worker-9\n", lab.client.v4)).expect("a file");
    reload_to(&asking.names(&file));
    eventually(LONG, "the file's name", || node_of(&baton) == "worker-9");
    conn.echo(2, 1000);
}
