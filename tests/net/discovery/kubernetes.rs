//! The source "kubernetes".

use super::*;

struct Clustered {
    lab: Lab,
    cluster: Cluster,
    servers: Vec<ApiServer>,
    config: Config,
}

/// A cluster with apiservers on b1 and b2; the file has the one on b1 alone. One runs on b3, too, and is not listed.
fn start(test: &str) -> Option<Clustered> {
    let lab = Lab::new(test)?;
    let cluster = Cluster::new(&lab, &[&lab.b1, &lab.b2]);
    let servers = lab.backends().map(|host| cluster.serve(host)).into();
    let config = lab.config().only(&["b1"]).discover("kind", "kubernetes").discover("ca_file", cluster.file("ca.crt"));
    let config = config.discover("cache_file", lab.directory().join("state/cache").display().to_string());
    Some(Clustered { lab, cluster, servers, config })
}

/// Waits until these are ready, and no others are there. The file's backend is b1.
#[track_caller]
fn wait_for_also(baton: &Baton, hosts: &[&Host]) {
    let names: Vec<_> = std::iter::once("b1".to_owned()).chain(hosts.iter().map(|host| name_of(host))).collect();
    eventually(LONG, &format!("the backends are {names:?}"), || {
        let status = baton.status();
        let backends = status["frontends"][0]["backends"].as_array().cloned().unwrap_or_default();
        backends.len() == names.len() && names.iter().all(|name| baton.health_state(name) == "ready")
    });
}

#[test]
fn apiservers_come_and_go_by_a_watch() {
    let Some(it) = start("a cluster's apiservers") else { return };
    let (lab, cluster) = (&it.lab, &it.cluster);
    let baton = lab.baton(&it.config);
    wait_for_also(&baton, &[&lab.b2]);
    eventually(LONG, "it watches", || cluster.watches_at(&lab.b1) + cluster.watches_at(&lab.b2) == 1);
    let lists = cluster.lists();
    let watch = Stopwatch::start();
    cluster.set(&[&lab.b1, &lab.b2, &lab.b3]);
    wait_for_also(&baton, &[&lab.b2, &lab.b3]);
    assert!(watch.unstalled() < secs(3), "{:?}", watch.elapsed());
    cluster.bookmark();

    // One that goes drains.
    let conn = baton.connect_to(&lab.client, &name_of(&lab.b3));
    cluster.set(&[&lab.b1, &lab.b2]);
    baton.wait_health(&name_of(&lab.b3), "draining", LONG);
    assert_eq!(baton.flows_of(&name_of(&lab.b3)), 1);
    drop(conn);
    wait_for_also(&baton, &[&lab.b2]);

    // Watches that end go on, and from the version of the bookmark: nothing is listed again.
    cluster.end_watches();
    cluster.set(&[&lab.b1, &lab.b2, &lab.b3]);
    wait_for_also(&baton, &[&lab.b2, &lab.b3]);
    assert_eq!(cluster.lists(), lists);

    // A version that is too old: it lists again.
    cluster.set(&[&lab.b1, &lab.b2]);
    wait_for_also(&baton, &[&lab.b2]);
    cluster.compact();
    cluster.end_watches();
    eventually(LONG, "it lists again", || cluster.lists() > lists);
    cluster.set(&[&lab.b1, &lab.b3]);
    wait_for_also(&baton, &[&lab.b3]);
    assert!(baton.events_of("discovery_failed").is_empty());
}

/// Changes came late, and nothing said why.
#[test]
fn a_role_without_the_verb_watch_is_named_and_lists_go_on() {
    let Some(it) = start("a watch that is forbidden") else { return };
    let (lab, cluster) = (&it.lab, &it.cluster);
    cluster.forbid_watch(true);
    let baton = lab.baton(&it.config);
    eventually(LONG, "an event says so", || !baton.events_of("discovery_unwatched").is_empty());
    let error = baton.events_of("discovery_unwatched")[0]["error"].to_string();
    assert!(error.contains("403 Forbidden: cannot watch resource endpointslices"), "{error}");
    assert!(error.contains("needs the verb watch for endpointslices: verbs: [list, watch]"), "{error}");
    let failing = |baton: &Baton| baton.metrics().contains("baton_discovery_failing{frontend=\"apiserver\"} 1\n");
    assert!(failing(&baton), "{}", baton.metrics());
    // Lists go on, and the event is said once.
    cluster.set(&[&lab.b1, &lab.b2, &lab.b3]);
    wait_for_also(&baton, &[&lab.b2, &lab.b3]);
    assert_eq!(baton.events_of("discovery_unwatched").len(), 1);
    cluster.forbid_watch(false);
    eventually(LONG, "it watches again", || baton.events_of("discovery_watched").len() == 1);
    assert!(!failing(&baton) && baton.events_of("discovery_failed").is_empty());
}

#[test]
fn an_empty_or_senseless_list_changes_nothing() {
    let Some(it) = start("a cluster's bogus list") else { return };
    let (lab, cluster) = (&it.lab, &it.cluster);
    let baton = lab.baton(&it.config);
    wait_for_also(&baton, &[&lab.b2]);
    let failing = |wanted: f64| {
        eventually(LONG, &format!("failing is {wanted}"), || baton.metric("baton_discovery_failing", &[]) == wanted);
        wait_for_also(&baton, &[&lab.b2]);
    };
    eventually(LONG, "it watches", || cluster.watches_at(&lab.b1) + cluster.watches_at(&lab.b2) == 1);
    // By the watch: no endpoint, and no slice.
    cluster.set(&[]);
    failing(1.0);
    cluster.set(&[&lab.b1, &lab.b2]);
    failing(0.0);
    cluster.delete();
    failing(1.0);
    cluster.set(&[&lab.b1, &lab.b2]);
    failing(0.0);
    // By lists.
    let faults: [(&dyn Fn(), &str); 3] = [
        (&|| cluster.list_nothing(true), "it has no address"),
        (&|| cluster.list_garbage(Some("<html>maintenance</html>")), "no list of slices"),
        (&|| cluster.list_garbage(Some("{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{}}")), "another kind"),
    ];
    for (fault, error) in faults {
        fault();
        cluster.compact();
        cluster.end_watches();
        eventually(LONG, &format!("an event says {error}"), || failures(&baton).1.contains(error));
        failing(1.0);
        cluster.list_nothing(false);
        cluster.list_garbage(None);
        failing(0.0);
    }
    assert!(baton.events_of("backend_removed").is_empty());
}

#[test]
fn a_dead_apiserver_is_left_for_another_and_a_start_without_any_uses_the_last_list() {
    let Some(mut it) = start("a cluster's dead apiservers") else { return };
    let lab = &it.lab;
    it.cluster.set(&[&lab.b1, &lab.b2, &lab.b3]);
    let baton = lab.baton(&it.config);
    wait_for_also(&baton, &[&lab.b2, &lab.b3]);
    eventually(LONG, "it watches", || {
        lab.backends().iter().map(|host| it.cluster.watches_at(host)).sum::<usize>() == 1
    });
    // The one that is watched dies silently: no segment says so.
    let hosts = lab.backends();
    let watched = hosts.iter().position(|host| it.cluster.watches_at(host) == 1).expect("one is watched");
    hosts[watched].drop_packets("input", "tcp dport 6443");
    let others: Vec<_> = hosts.into_iter().filter(|host| host.name != hosts[watched].name).collect();
    eventually(LONG, "another is watched", || others.iter().any(|host| it.cluster.watches_at(host) == 1));
    it.cluster.set(&others);
    let gone = if watched == 0 { None } else { Some(name_of(hosts[watched])) };
    eventually(LONG, "the dead one is no longer listed", || gone.iter().all(|name| baton.health_state(name) == "gone"));
    hosts[watched].nft_clear();
    it.cluster.set(&[&lab.b1, &lab.b2, &lab.b3]);
    wait_for_also(&baton, &[&lab.b2, &lab.b3]);

    // All of them are dead, and Baton starts.
    drop(baton);
    it.servers.clear();
    let lab = &it.lab;
    let baton = lab.baton(&it.config);
    for name in ["b1".to_owned(), name_of(&lab.b2), name_of(&lab.b3)] {
        baton.wait_health(&name, "ejected", LONG);
    }
    eventually(LONG, "the failure is said", || failures(&baton).1.contains("no apiserver gives the list"));
    assert_eq!(failures(&baton).0, 1);
    // The only one that returns is none of the file.
    it.servers.push(it.cluster.serve(&lab.b3));
    baton.wait_health(&name_of(&lab.b3), "ready", LONG);
    eventually(LONG, "it watches b3", || it.cluster.watches_at(&lab.b3) == 1);
    eventually(LONG, "it recovers", || baton.events_of("discovery_recovered").len() == 1);
    lab.client.connect(lab.lb.v4(6443));
}

#[test]
fn credentials_of_a_reload_count_for_the_next_request() {
    let Some(it) = start("a cluster's credentials") else { return };
    let (lab, cluster) = (&it.lab, &it.cluster);
    let baton = lab.baton(&it.config);
    wait_for_also(&baton, &[&lab.b2]);
    let all = [&lab.b1, &lab.b2];
    let reload = |config: &Config| {
        baton.write_config(config);
        baton.order(&["reload"]);
    };
    let fails = |error: &str| {
        eventually(LONG, &format!("an event says {error}"), || failures(&baton).1.contains(error));
        wait_for_also(&baton, &[&lab.b2]);
    };
    let works = |what: &str| {
        eventually(LONG, what, || baton.metric("baton_discovery_failing", &[]) == 0.0);
        cluster.set(&[&lab.b1, &lab.b2, &lab.b3]);
        wait_for_also(&baton, &[&lab.b2, &lab.b3]);
        cluster.set(&all);
        wait_for_also(&baton, &[&lab.b2]);
    };
    // A new task asks anew.
    let token = lab.directory().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    cluster.want(Some("secret"), false);
    reload(&it.config.clone().discover("server_name", "kubernetes.default.svc"));
    fails("401 Unauthorized: Unauthorized");
    let with_token = it.config.clone().discover("token_file", token.display().to_string());
    reload(&with_token);
    works("the token counts");
    std::fs::write(&token, "stale\n").unwrap();
    cluster.compact();
    cluster.end_watches();
    fails("401 Unauthorized");
    std::fs::write(&token, "secret\n").unwrap();
    works("a new token needs no reload");

    cluster.want(None, true);
    reload(&it.config.clone().discover("server_name", "kubernetes.default.svc"));
    fails("401 Unauthorized");
    let with_certificate = it.config.clone().discover("client_cert_file", cluster.file("server.crt"));
    reload(&with_certificate.clone().discover("client_key_file", cluster.file("server.key")));
    works("the certificate counts");

    cluster.want(None, false);
    reload(&it.config.clone().discover("server_name", "other.example"));
    fails("certificate");
    reload(&it.config);
    works("the name counts");
    let other = Certificates::make(lab);
    reload(&it.config.clone().discover("ca_file", other.ca().display().to_string()));
    fails("certificate");
    let insecure = lab.config().only(&["b1"]).discover("kind", "kubernetes").discover("insecure_skip_verify", true);
    reload(&insecure.discover("cache_file", lab.directory().join("state/cache").display().to_string()));
    works("any certificate is accepted");
}

#[test]
fn the_cluster_s_nodes_name_clients_and_without_the_right_one_event_says_so() {
    let Some(it) = start("a cluster's nodes") else { return };
    let (lab, cluster) = (&it.lab, &it.cluster);
    let baton = lab.baton(&it.config);
    wait_for_also(&baton, &[&lab.b2]);
    eventually(LONG, "an event says that it may not", || !baton.events_of("names_failed").is_empty());
    let error = baton.events_of("names_failed")[0]["error"].to_string();
    assert!(error.contains("403 Forbidden: nodes is forbidden"), "{error}");
    // Nothing more is asked while the apiservers' own watch goes on.
    let asked = cluster.node_lists();
    cluster.set(&[&lab.b1, &lab.b2, &lab.b3]);
    wait_for_also(&baton, &[&lab.b2, &lab.b3]);
    assert_eq!((cluster.node_lists(), baton.events_of("names_failed").len()), (asked, 1));

    // Another process may, and lists at once.
    cluster.set_nodes(&[("worker-7", lab.client.v4), ("worker-8", lab.client2.v4)]);
    baton.order(&["upgrade"]);
    let _conns = [&lab.client, &lab.client2].map(|client| client.connect(lab.lb.v4(6443)));
    let names = || {
        let mut names: Vec<_> = baton.flows().iter().map(|flow| flow["node"].to_string()).collect();
        names.sort();
        names
    };
    eventually(LONG, "both clients have names", || names() == ["\"worker-7\"", "\"worker-8\""]);
    let asked = cluster.node_lists();
    cluster.set_nodes(&[("worker-7", lab.client2.v4), ("worker-8", lab.client.v4)]);
    cluster.set_nodes(&[("worker-9", lab.client.v4), ("worker-7", lab.client2.v4), ("worker-8", lab.lb.v4)]);
    eventually(LONG, "the watch tells of the change", || names() == ["\"worker-7\"", "\"worker-9\""]);
    assert_eq!(cluster.node_lists(), asked, "nothing is listed again");
}

/// The nodes of a cluster that may not be watched were listed again every two seconds, and nothing said why their names were old.
#[test]
fn nodes_that_may_be_listed_and_not_watched_are_named_and_not_listed_again_and_again() {
    let Some(it) = start("nodes without watch") else { return };
    let (lab, cluster) = (&it.lab, &it.cluster);
    cluster.set_nodes(&[("worker-7", lab.client.v4)]);
    cluster.forbid_watch(true);
    let baton = lab.baton(&it.config);
    eventually(LONG, "an event says so", || !baton.events_of("names_failed").is_empty());
    let error = baton.events_of("names_failed")[0]["error"].to_string();
    assert!(error.contains("403 Forbidden: cannot watch resource nodes"), "{error}");
    assert!(error.contains("needs the verb watch for nodes: verbs: [list, watch]"), "{error}");
    let _conn = lab.client.connect(lab.lb.v4(6443));
    eventually(LONG, "the client has its name", || baton.flows().iter().any(|flow| flow["node"] == "worker-7"));
    // The apiservers' own slices are listed every ten seconds meanwhile.
    let (nodes, lists) = (cluster.node_lists(), cluster.lists());
    eventually(secs(40), "the slices are listed again", || cluster.lists() > lists);
    assert_eq!((cluster.node_lists(), baton.events_of("names_failed").len()), (nodes, 1));
    assert!(baton.events_of("names_recovered").is_empty());
}
