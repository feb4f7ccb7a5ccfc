//! The source "dns".

use std::net::IpAddr;

use super::*;

const NAME: &str = "api.cluster.test";

fn ips(hosts: &[&Host]) -> Vec<IpAddr> {
    hosts.iter().map(|host| host.v4.into()).collect()
}

fn start(test: &str, record: &str, name: &str) -> Option<(Discovering, NameServer)> {
    let it = Discovering::new(test, "dns")?;
    let server = NameServer::start(&it.lab.client2);
    let config = it.config.clone().discover("name", name).discover("record", record);
    let config = config.discover("servers", vec![server.address.to_string()]);
    Some((Discovering { config, ..it }, server))
}

#[test]
fn a_name_is_looked_up_when_its_time_to_live_is_over_and_not_before() {
    let Some((it, server)) = start("a name's addresses", "address", NAME) else { return };
    let lab = &it.lab;
    server.set_addresses(NAME, 3, &ips(&[&lab.b1, &lab.b2]));
    let baton = lab.baton(&it.config.clone().discover("port", 6443));
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    let mut conn = baton.connect_to(&lab.client, &name_of(&lab.b1));
    conn.echo(1, 1000);
    // 3 s each: at least two looks, and not one a second.
    let (before, watch) = (server.asked(NAME, name_server::A), Stopwatch::start());
    eventually(LONG, "it asks twice", || server.asked(NAME, name_server::A) >= before + 2);
    assert!(watch.elapsed() > secs(3), "{:?}", watch.elapsed());

    server.set_addresses(NAME, 1, &ips(&[&lab.b2, &lab.b3]));
    baton.wait_health(&name_of(&lab.b1), "draining", LONG);
    baton.wait_health(&name_of(&lab.b3), "ready", LONG);
    conn.echo(2, 1000);
    drop(conn);
    wait_for(&baton, &[&lab.b2, &lab.b3]);

    // Both families are one set.
    let v6 = lab.b1.serve_on(lab.b1.v6(6443), Behaviour::Echo);
    server.set_addresses(NAME, 1, &[lab.b2.v4.into(), lab.b1.v6.into()]);
    let name = format!("{}-6443", lab.b1.v6.to_string().replace(':', "-"));
    baton.wait_health(&name, "ready", LONG);
    eventually(LONG, "b3 is gone", || baton.health_state(&name_of(&lab.b3)) == "gone");
    drop(v6);
}

#[test]
fn an_error_and_an_empty_answer_leave_the_addresses() {
    let Some((it, server)) = start("a name server's errors", "address", NAME) else { return };
    let lab = &it.lab;
    let good = || server.set_addresses(NAME, 1, &ips(&[&lab.b1, &lab.b2]));
    good();
    let config = it.config.clone().discover("port", 6443);
    let baton = lab.baton(&config);
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);
    let faults: [(&str, &dyn Fn()); 6] = [
        ("the name does not exist", &|| server.forget(NAME)),
        ("the name exists, and has no record A or AAAA", &|| {
            server.forget(NAME);
            server.set(NAME, name_server::SRV, Answer::Services { hosts: vec![("x.test", 1)], ttl_s: 1 });
        }),
        ("Server Failure", &|| server.set(NAME, name_server::A, Answer::Code(2))),
        // One family fails: the other's addresses are not all there are.
        ("AAAA", &|| {
            server.set_addresses(NAME, 1, &ips(&[&lab.b1]));
            server.set(NAME, name_server::AAAA, Answer::Code(2));
        }),
        ("api.cluster.test", &|| server.set(NAME, name_server::A, Answer::Nothing)),
        ("no address but this load balancer's own", &|| server.set_addresses(NAME, 1, &[lab.lb.v4.into()])),
    ];
    for (number, (error, fault)) in faults.iter().enumerate() {
        fault();
        eventually(secs(30), &format!("{number}: an event says {error}"), || {
            let (_, last) = failures(&baton);
            last.contains(error) && baton.metric("baton_discovery_failing", &[]) == 1.0
        });
        wait_for(&baton, &[&lab.b1, &lab.b2]);
        conn.echo(2, 1000);
        good();
        eventually(LONG, "it recovers", || baton.metric("baton_discovery_failing", &[]) == 0.0);
    }
    assert!(baton.events_of("backend_removed").is_empty());

    // A start while no name server answers.
    drop((conn, baton));
    server.set(NAME, name_server::A, Answer::Nothing);
    let baton = lab.baton(&config);
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    lab.client.connect(lab.lb.v4(6443)).echo(3, 1000);
}

#[test]
fn the_hosts_of_a_service_record_are_backends_with_its_ports() {
    let name = "_https._tcp.cluster.test";
    let Some((it, server)) = start("a service's hosts", "srv", name) else { return };
    let lab = &it.lab;
    for (host, at) in [("cp1.cluster.test", &lab.b1), ("cp2.cluster.test", &lab.b2), ("cp3.cluster.test", &lab.b3)] {
        server.set_addresses(host, 60, &ips(&[at]));
    }
    let other = lab.b2.serve_on(lab.b2.v4(7443), Behaviour::Echo);
    let services = |hosts: &[(&'static str, u16)]| {
        server.set(name, name_server::SRV, Answer::Services { hosts: hosts.to_vec(), ttl_s: 1 });
    };
    services(&[("cp1.cluster.test", 6443), ("cp2.cluster.test", 7443)]);
    let baton = lab.baton(&it.config);
    baton.wait_health(&format!("{}-7443", lab.b2.v4), "ready", LONG);
    baton.wait_health(&name_of(&lab.b1), "ready", LONG);
    // A host that does not exist is none; one whose name server fails may be there.
    services(&[("cp1.cluster.test", 6443), ("cp3.cluster.test", 6443), ("cp9.cluster.test", 6443)]);
    wait_for(&baton, &[&lab.b1, &lab.b3]);
    server.set("cp1.cluster.test", name_server::A, Answer::Code(2));
    eventually(LONG, "the failure is said", || failures(&baton).1.contains("cp1.cluster.test"));
    wait_for(&baton, &[&lab.b1, &lab.b3]);
    drop(other);
}

#[test]
fn a_reload_asks_for_another_name_of_another_server() {
    let Some((it, server)) = start("a reloaded name", "address", NAME) else { return };
    let lab = &it.lab;
    server.set_addresses(NAME, 1, &ips(&[&lab.b1]));
    let config = it.config.clone().discover("port", 6443);
    let baton = lab.baton(&config);
    wait_for(&baton, &[&lab.b1]);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 1000);
    // A name that fails: the backends stay.
    let reload = |config: &Config| {
        baton.write_config(config);
        baton.order(&["reload"]);
    };
    reload(&config.clone().discover("name", "other.cluster.test"));
    eventually(LONG, "the failure is said", || failures(&baton).0 == 1);
    wait_for(&baton, &[&lab.b1]);
    let other = NameServer::start(&lab.client);
    other.set_addresses("other.cluster.test", 1, &ips(&[&lab.b1, &lab.b2]));
    let config = config.discover("name", "other.cluster.test").discover("servers", vec![other.address.to_string()]);
    reload(&config);
    wait_for(&baton, &[&lab.b1, &lab.b2]);
    let servers = lab.b3.serve_on(lab.b3.v4(7443), Behaviour::Echo);
    other.set_addresses("other.cluster.test", 1, &ips(&[&lab.b3]));
    reload(&config.clone().discover("port", 7443));
    baton.wait_health(&format!("{}-7443", lab.b3.v4), "ready", LONG);
    let service = "_https._tcp.cluster.test";
    other.set_addresses("cp3.cluster.test", 1, &ips(&[&lab.b3]));
    other.set(service, name_server::SRV, Answer::Services { hosts: vec![("cp3.cluster.test", 6443)], ttl_s: 1 });
    reload(
        &it.config
            .clone()
            .discover("name", service)
            .discover("record", "srv")
            .discover("servers", vec![other.address.to_string()]),
    );
    baton.wait_health(&name_of(&lab.b3), "ready", LONG);
    conn.echo(2, 1000);
    drop(servers);
}
