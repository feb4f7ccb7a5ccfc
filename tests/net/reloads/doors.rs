//! The further servers of an instance: the metrics for another network.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use super::*;

/// What curl on `host` gets from `path` of `address`: the status and the body. `None`: nobody listens there.
fn curl(host: &Host, address: &str, path: &str) -> Option<(u16, String)> {
    let url = format!("http://{address}{path}");
    let ask = || std::process::Command::new("curl").args(["-sgS", "-m", "10", "-w", "\n%{http_code}", &url]).output();
    let Output { status, stdout, stderr } = host.enter(ask).expect("curl");
    // 7: it cannot connect.
    if status.code() == Some(7) {
        return None;
    }
    assert!(status.success(), "{url}: {}", String::from_utf8_lossy(&stderr));
    let text = String::from_utf8(stdout).expect("UTF-8");
    let (body, code) = text.rsplit_once('\n').expect("the status");
    Some((code.parse().expect("a number"), body.to_owned()))
}

#[test]
fn the_metrics_listener_follows_a_reload_and_shows_no_client() {
    let Some(it) = Running::start("reloaded metrics") else { return };
    let mut conn = it.connect();
    conn.echo(1, 100);
    let client = it.lab.client.v4.to_string();
    let [v4, v6] = [it.lab.lb.v4(9472).to_string(), it.lab.lb.v6(9472).to_string()];
    assert_eq!(curl(&it.lab.client, &v4, "/metrics"), None);

    it.reload(&it.config.clone().admin("metrics", "[::]:9472"));
    for address in [&v4, &v6] {
        let (code, metrics) = curl(&it.lab.client, address, "/metrics").expect("the listener");
        assert_eq!(code, 200);
        assert!(metrics.contains("\nbaton_flows_accepted_total{"), "{metrics}");
        assert!(!metrics.contains(&client), "{metrics}");
        assert_eq!(curl(&it.lab.client, address, "/livez"), Some((200, "ok\n".to_owned())));
        assert_eq!(curl(&it.lab.client, address, "/readyz"), Some((200, "ok\n".to_owned())));
        for hidden in ["/", "/status.json", "/metrics/"] {
            let there_is = "this server has no such page; it has /metrics, /livez, /readyz\n";
            assert_eq!(curl(&it.lab.client, address, hidden), Some((404, there_is.to_owned())), "{hidden}");
        }
    }
    assert!(it.baton.http("/status.json").is_some_and(|(code, status)| code == 200 && status.contains("frontends")));

    // The one server gets the other's address, which is never free in between.
    let swapped = it.config.clone().admin("http", "127.0.0.1:9473").admin("metrics", "127.0.0.1:9470");
    it.reload(&swapped);
    let on_lb = |address: &str, path: &str| curl(&it.lab.lb, address, path).map(|(code, _)| code);
    eventually(LONG, "the old listener is closed", || curl(&it.lab.client, &v4, "/metrics").is_none());
    eventually(LONG, "only metrics", || on_lb("127.0.0.1:9470", "/status.json") == Some(404));
    assert_eq!(on_lb("127.0.0.1:9470", "/metrics"), Some(200));
    assert_eq!(on_lb("127.0.0.1:9473", "/status.json"), Some(200));

    // An address that another program has: the reload changes nothing.
    let taken = it.lab.lb.enter(|| std::net::TcpListener::bind("127.0.0.1:9474").expect("a free port"));
    it.baton.write_config(&swapped.clone().admin("metrics", "127.0.0.1:9474"));
    let refused = it.baton.cli(&["reload"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let held = format!("admin.metrics: cannot listen on 127.0.0.1:9474: process {} (", std::process::id());
    assert!(said.contains(&held), "{said}");
    assert_eq!(on_lb("127.0.0.1:9470", "/metrics"), Some(200));
    drop(taken);

    it.reload(&it.config);
    eventually(LONG, "only the page", || on_lb("127.0.0.1:9470", "/status.json") == Some(200));
    assert_eq!(on_lb("127.0.0.1:9473", "/livez"), None);
    conn.echo(2, 100);
    drop(conn);
    it.baton.rests();
}

#[test]
fn names_of_this_host_in_urls_follow_a_reload() {
    let Some(it) = Running::start("reloaded host names") else { return };
    let status_of = |name: &str, path: &str| {
        let to = format!("{name}:9470:127.0.0.1");
        let url = format!("http://{name}:9470{path}");
        let ask = ["-s", "-o", "/dev/null", "-m", "10", "-w", "%{http_code}", "--resolve", &to, &url];
        let got = it.lab.lb.enter(|| std::process::Command::new("curl").args(ask).output()).expect("curl");
        String::from_utf8(got.stdout).expect("UTF-8")
    };
    assert_eq!(status_of("lb-a.example.com", "/status.json"), "421");
    assert_eq!(status_of("lb-a.example.com", "/metrics"), "200");
    it.reload(&it.config.clone().admin("allowed_hosts", vec!["LB-A.example.com"]));
    assert_eq!(status_of("lb-a.example.com", "/status.json"), "200");
    assert_eq!(status_of("attacker.example", "/"), "421");
    it.baton.write_config(&it.config.clone().admin("allowed_hosts", vec!["no name"]));
    let refused = it.baton.cli(&["reload"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("allowed_hosts") && said.contains("a whole DNS name"), "{said}");
    assert_eq!(status_of("lb-a.example.com", "/status.json"), "200", "the running configuration stays");
    it.reload(&it.config);
    assert_eq!(status_of("lb-a.example.com", "/status.json"), "421");
}

/// A core dump had the fleet's key. The kernel writes none of a process whose memory only root may read.
#[test]
fn a_process_that_is_aborted_leaves_no_core_dump_whatever_its_limit_allows() {
    let Some(mut it) = Running::start("no core dump") else { return };
    it.baton.process.kill();
    it.baton = Baton::start_by(&["prlimit", "--core=unlimited"], &it.lab.lb, it.lab.directory());
    it.baton.wait_until_ready();
    it.baton.process.signal(rustix::process::Signal::ABORT);
    let status = it.baton.process.wait(LONG);
    assert_eq!(status.signal(), Some(rustix::process::Signal::ABORT.as_raw()));
    assert!(!status.core_dumped(), "{status}");
}
