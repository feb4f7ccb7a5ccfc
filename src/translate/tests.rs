use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::config::{self, Config};

mod haproxy;

fn file(name: &str, text: &str) -> ForeignFile {
    ForeignFile { name: name.to_owned(), text: text.to_owned() }
}

fn read(text: &str) -> ForeignTranslation {
    translate(&file("haproxy.cfg", text), None)
}

fn config(translation: &ForeignTranslation) -> Config {
    let loaded = config::parse(&translation.toml, Path::new("baton.toml"));
    loaded.unwrap_or_else(|rejected| panic!("{rejected}\n{}", translation.toml)).config
}

/// The notes of one line that has no equal, and whether connections are treated in another way without it.
fn missing(translation: &ForeignTranslation, line: usize) -> Vec<(&str, bool)> {
    let notes = translation.ledgers[0].lines()[line - 1].notes.iter();
    notes
        .filter(|note| note.outcome == LineOutcome::NoEqual)
        .map(|note| (&*note.words, note.changes_behaviour))
        .collect()
}

const SERVERS: &str = "server a 10.0.0.1:6443 check\nserver b 10.0.0.2:6443 check\n";

fn listen(lines: &str) -> String {
    format!("listen api\nbind 10.0.0.100:6443\n{lines}{SERVERS}")
}

#[test]
fn times_balance_limits_and_sources_become_keys() {
    let text = format!(
        "global\nmaxconn 500\nnbthread 2\nhard-stop-after 5s\ndefaults\ntimeout connect 4000\ntimeout client 1m\ntimeout server 2m\n\
         retries 2\nmaxconn 100\n{}",
        listen("balance source\nsource 10.0.0.9\nsrvtcpka-idle 30s\n")
    );
    let translation = read(&text);
    assert!(!translation.changes_behaviour(), "{:#?}", translation.ledgers);
    let config = config(&translation);
    let frontend = &config.frontends[0];
    let ms = |duration: std::time::Duration| duration.as_millis();
    assert_eq!((config.process.max_connections, config.process.workers), (Some(500), Some(2)));
    assert_eq!(ms(config.process.stop_timeout), 5000);
    assert_eq!((&*frontend.name, frontend.listen[0].to_string()), ("api", "10.0.0.100:6443".to_owned()));
    assert_eq!((ms(frontend.connect_timeout), frontend.connect_attempts), (4000, 3));
    assert_eq!(frontend.idle_timeout.map(ms), Some(60_000));
    assert_eq!(frontend.balance, crate::model::balance::Balance::SourceHash);
    assert_eq!(frontend.source, config::Source::Address("10.0.0.9".parse().unwrap()));
    assert_eq!((ms(frontend.keepalive.idle), frontend.limits.max_connections), (30_000, Some(100)));
    assert!(translation.toml.contains("connect_timeout = \"4s\"  # haproxy.cfg:6\n"), "{}", translation.toml);
}

#[test]
fn a_tunnel_timeout_decides_over_the_two_others() {
    let idle = |lines: &str| config(&read(&listen(lines))).frontends[0].idle_timeout.map(|it| it.as_secs());
    assert_eq!(idle("timeout client 1m\ntimeout server 2m\ntimeout tunnel 1h\n"), Some(3600));
    assert_eq!(idle("timeout client 86400s\n"), Some(86_400));
    assert_eq!(idle("timeout tunnel 365d\n"), None);
    assert_eq!(idle("timeout client 0\ntimeout server 2m\n"), Some(120));
    assert_eq!(idle("timeout client 5s\ntimeout server 1m\ntimeout tunnel 0\n"), Some(5));
    assert_eq!(idle(""), None);
}

#[test]
fn what_haproxy_takes_as_not_set_is_baton_s_default() {
    let text = format!(
        "global\nmaxconn 0\nhard-stop-after 0\nmaxsessrate 0\n{}",
        listen(
            "timeout connect 0\nclitcpka-idle 0\nsrvtcpka-intvl 0s\nclitcpka-cnt 0\nmaxconn 0\nrate-limit sessions 0\nfullconn 0\n\
             bind 10.0.0.100:7443 tcp-ut 0 maxconn 0\nsource 0.0.0.0\ndefault-server maxconn 0 maxqueue 0 minconn 0 tcp-ut 0\n"
        )
    );
    let translation = read(&text);
    assert!(!translation.changes_behaviour(), "{:#?}", translation.ledgers);
    let (mut config, default) = (config(&translation), config(&read(&listen(""))));
    std::sync::Arc::make_mut(&mut config.frontends[0]).listen.pop();
    assert_eq!((&config.process, &config.frontends), (&default.process, &default.frontends), "{}", translation.toml);
    let words = |number: usize| &translation.ledgers[0].lines()[number - 1].notes[0].words;
    assert_eq!(words(7), "timeout connect 0 is not set to HAProxy: Baton's default is used");
    // Files that HAProxy itself refuses.
    for option in ["inter 0", "fastinter 0", "rise 0", "fall 0"] {
        let translation = read(&format!("listen api\nbind :6443\nserver a 10.0.0.1:6443 check {option}\n"));
        assert!(missing(&translation, 3)[0].0.starts_with(option), "{option}");
        assert!(!translation.toml.contains("[frontend.health]"), "{}", translation.toml);
    }
}

#[test]
fn each_kind_of_check_becomes_a_probe() {
    use config::ProbeKind::*;
    let health = |lines: &str, options: &str| {
        let text = format!(
            "listen api\nbind :6443\n{lines}server a 10.0.0.1:6443 {options}\nserver b 10.0.0.2:6443 {options}\n"
        );
        config(&read(&text)).frontends[0].health.clone()
    };
    let https =
        health("option httpchk GET /readyz\n", "check check-ssl verify none inter 3s fastinter 500ms fall 4 rise 5");
    assert_eq!((https.kind, &*https.path, https.fall, https.rise), (Https, "/readyz", 4, 5));
    assert_eq!((https.interval.as_millis(), https.fast_interval.as_millis()), (3000, 500));
    assert_eq!(
        health("option httpchk\nhttp-check send meth GET uri /x ver HTTP/1.1 hdr Host kube\n", "check").path,
        "/x"
    );
    assert_eq!(
        health("option httpchk\nhttp-check send meth GET uri /x hdr Host kube\n", "check").host.unwrap(),
        "kube"
    );
    assert_eq!(health("option httpchk GET / HTTP/1.1\\r\\nHost:\\ kube\n", "check").host.unwrap(), "kube");
    assert_eq!(health("option httpchk\nhttp-check connect ssl\n", "check verify none").kind, Https);
    assert_eq!(health("option ssl-hello-chk\n", "check").kind, Tls);
    assert_eq!(health("", "check check-ssl verify none").kind, Tls);
    assert_eq!(health("option tcp-check\n", "check").kind, Tcp);
    // Without check HAProxy asks nothing, and the backends speak TLS.
    assert_eq!(health("option httpchk GET /readyz\n", "").kind, Tcp);
    // An answer that takes no time is none that HAProxy waits for: 0 is not set.
    assert_eq!(health("timeout check 0\n", "check").timeout.as_millis(), 500);
    assert_eq!(health("", "check slowstart 0").slow_start.as_millis(), 0);
    let quick = health("timeout check 2s\n", "check inter 100ms");
    assert_eq!(
        (quick.interval.as_millis(), quick.timeout.as_millis(), quick.fast_interval.as_millis()),
        (100, 100, 100)
    );
}

#[test]
fn a_check_at_another_place_than_the_server_s_is_not_lost_in_silence() {
    let text = |connect: &str| {
        format!(
            "listen api\nbind :6443\noption httpchk GET /healthz\nhttp-check connect {connect}\nserver a 10.0.0.1:6443 check verify none\n"
        )
    };
    for (connect, is_lost) in [("port 10256", true), ("ssl sni kube", true), ("ssl", false)] {
        assert_eq!(read(&text(connect)).ledgers[0].lines()[3].changes_behaviour(), is_lost, "{connect}");
    }
}

/// The table `[frontend.health]` of two servers with these options, and the lines that treat connections in another way.
fn health_of(check: &str, one: &str, two: &str) -> (String, Vec<(usize, String)>) {
    let text = format!("listen api\nbind :6443\n{check}server a 10.0.0.1:6443 {one}\nserver b 10.0.0.2:6443 {two}\n");
    let translation = read(&text);
    let health = translation.toml.split("[frontend.health]").nth(1).unwrap().split("\n[").next().unwrap().to_owned();
    let lost = (1..=text.lines().count())
        .flat_map(|line| missing(&translation, line).into_iter().map(move |(why, _)| (line, why.to_owned())))
        .collect();
    (health, lost)
}

#[test]
fn a_server_that_demands_a_certificate_is_not_probed_without_one() {
    const READYZ: &str = "option httpchk GET /readyz\n";
    let verified = "check check-ssl verify required ca-file /etc/ssl/ca1.pem";
    for (one, two, plain) in
        [("check", verified, 4), (verified, "check", 5), ("check check-ssl verify none", verified, 4)]
    {
        let (health, lost) = health_of(READYZ, one, two);
        assert!(health.contains("ca_file = \"/etc/ssl/ca1.pem\"") && !health.contains("insecure"), "{one}: {health}");
        let [(line, why)] = &lost[..] else { panic!("{one}: {lost:?}") };
        assert!(*line == plain && why.starts_with("verify") && why.contains("the same"), "{line}: {why}");
    }
    let (health, lost) = health_of(READYZ, verified, "check check-ssl ca-file /etc/ssl/ca2.pem");
    assert!(health.contains("/etc/ssl/ca1.pem") && !health.contains("insecure"), "{health}");
    assert!(lost.iter().any(|(line, why)| *line == 5 && why.contains("b has /etc/ssl/ca2.pem")), "{lost:?}");
}

#[test]
fn the_authorities_of_the_system_are_not_everyone() {
    let system = "check ssl verify required ca-file @system-ca crt /x";
    let (health, lost) = health_of("option ssl-hello-chk\n", "check", system);
    assert!(health.contains("ca_file = \"/etc/ssl/certs/ca-certificates.crt\""), "{health}");
    assert!(health.contains("client_cert_file = \"/x\"") && !health.contains("insecure"), "{health}");
    assert!(!lost.iter().any(|(_, why)| why.contains("no ca-file")), "{lost:?}");
    let (health, lost) = health_of("", "check check-ssl", "check check-ssl");
    assert!(!health.contains("insecure") && lost[0].1.contains("does not start"), "{health}: {lost:?}");
}

#[test]
fn a_servers_options_become_keys_of_its_backend() {
    let text = "listen api\nbind :6443\ndefault-server check weight 50 send-proxy-v2\nserver a 10.0.0.1:6443 weight 10 maxconn 7\n\
                server b [fd00::2]:6443 port 8080\nserver c cp3.example.com disabled no-check\n";
    let translation = read(text);
    let frontend = &config(&translation).frontends[0];
    let told: Vec<_> = frontend.backends.iter().map(|it| (&*it.name, it.weight, it.max_connections)).collect();
    assert_eq!(told, [("a", 10, Some(7)), ("b", 50, None), ("c", 0, None)]);
    assert!(frontend.proxy_protocol.send_v2);
    assert_eq!(frontend.backends[1].health_address.unwrap().to_string(), "[fd00::2]:8080");
    // The port of the only bind.
    assert_eq!(frontend.backends[2].address, config::Target::Name { host: "cp3.example.com".to_owned(), port: 6443 });
}

#[test]
fn what_treats_connections_in_another_way_is_named() {
    for (line, why) in [
        ("use_backend x if { src 10.0.0.0/8 }", "all connections of the frontend"),
        ("tcp-request connection reject if !ours", "\"allow\" and \"deny\""),
        ("tcp-request content reject if !{ req.ssl_hello_type 1 }", "\"allow\" and \"deny\""),
        ("stick on src", "source_hash"),
        ("balance hdr(host)", "least_conn"),
        ("frobnicate 1", "does not know \"frobnicate\""),
        ("bind :7443 ssl crt /x.pem", "ends no TLS"),
        ("bind /run/x.sock", "Unix sockets"),
        ("bind :${PORT}", "variable"),
        ("server c 10.0.0.3:6443 check backup", "no backup servers"),
        ("server c 10.0.0.3:6443 check frob", "frob: `baton import` does not know"),
        ("server c 10.0.0.3:6443 check inter 9s", "alike, as c"),
        ("timeout connect soon", "\"soon\" is no time"),
        ("option mysql-check", "tcp, tls, http or https"),
        ("a \"b", "a quote is open"),
    ] {
        let translation = read(&listen(&format!("{line}\n")));
        let all: Vec<_> = (1..=5).flat_map(|number| missing(&translation, number)).collect();
        assert!(all.iter().any(|(said, changes)| said.contains(why) && *changes), "{line}: {all:?}");
        assert_eq!(config(&translation).frontends.len(), 1, "{line}");
    }
}

#[test]
fn a_frontend_that_cannot_be_is_left_out_with_its_lines() {
    let text = format!(
        "frontend web\nbind :80\nmode http\ndefault_backend x\nbackend x\nmode http\nserver x 10.0.0.9:80\n{}",
        listen("")
    );
    let translation = read(&text);
    assert_eq!(missing(&translation, 1).len(), 1);
    assert!(missing(&translation, 1)[0].0.contains("its mode is http") && translation.changes_behaviour());
    assert_eq!(missing(&translation, 2), [("it is a line of the frontend web, which is not written", false)]);
    assert!(!translation.toml.contains("10.0.0.9"));
    // Its bind is not in use, and no note says that it was translated.
    let translation = read(&format!("listen empty\nbind 10.0.0.100:6443\n{}", listen("")));
    assert_eq!(config(&translation).frontends.len(), 1);
    assert_eq!(translation.ledgers[0].lines()[1].outcome(), LineOutcome::NoEqual);
}

#[test]
fn a_backend_that_two_frontends_lead_to_is_written_twice() {
    let text = format!(
        "frontend a\nbind :6443\nuse_backend cps\nfrontend b\nbind :7443\ndefault_backend cps\nbackend cps\n{SERVERS}"
    );
    let config = config(&read(&text));
    let told: Vec<_> = config.frontends.iter().map(|it| (&*it.name, it.backends.len())).collect();
    assert_eq!(told, [("a", 2), ("b", 2)]);
}

#[test]
fn a_keepalived_without_peers_stays() {
    let text = include_str!("../../tests/migration/kubeadm-keepalived.conf");
    let translation = translate(&file("haproxy.cfg", &listen("")), Some(&file("keepalived.conf", text)));
    // All but the script: keepalived goes on with it.
    let lost: Vec<_> = translation.ledgers[1].lines().iter().filter(|it| it.changes_behaviour()).collect();
    assert_eq!(lost.iter().map(|it| it.number).collect::<Vec<_>>(), [6], "{:#?}", translation.ledgers[1]);
    assert_eq!(config(&translation).vip, None);
    assert!(
        translation.toml.contains("# addresses = [\"10.0.0.100/32\"]  # keepalived.conf:23\n"),
        "{}",
        translation.toml
    );
    assert!(!format!("{:?}", translation.ledgers).contains("42"), "the password is shown");
}

#[test]
fn a_keepalived_with_peers_becomes_a_fleet() {
    let text = include_str!("../../tests/migration/unicast-keepalived.conf");
    let mut translation = translate(&file("haproxy.cfg", &listen("")), Some(&file("keepalived.conf", text)));
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&key, config::PeerKey([7; 32]).spell()).unwrap();
    translation.toml = translation.toml.replace("/etc/baton/peers.key", key.path().to_str().unwrap());
    let config = config(&translation);
    let (peers, vip) = (config.peers.unwrap(), config.vip.unwrap());
    assert_eq!(
        (peers.name.to_string(), peers.peers[0].name.to_string()),
        ("lb-10-0-0-21".to_owned(), "lb-10-0-0-22".to_owned())
    );
    let addresses: Vec<_> = vip.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(
        (addresses, &*vip.interface, vip.priority),
        (vec!["10.0.0.100".to_owned(), "fd00::100".to_owned()], "eth0", 150)
    );
    assert_eq!(vip.on_gain, ["/usr/local/sbin/move-route"]);
    assert_eq!(translation.steps.len(), 2);
}

#[test]
fn the_user_of_a_hook_is_no_argument_of_it() {
    let text = include_str!("../../tests/migration/unicast-keepalived.conf");
    let with = |hook: &str| {
        let text = text.replace("notify_master /usr/local/sbin/move-route", &format!("notify_master {hook}"));
        let translation = translate(&file("haproxy.cfg", &listen("")), Some(&file("keepalived.conf", &text)));
        let line = translation.toml.lines().find(|line| line.starts_with("on_gain")).unwrap_or_default().to_owned();
        let lost = translation.ledgers[1].lines().iter().any(|it| it.text.contains(hook) && it.changes_behaviour());
        (line.split("  #").next().unwrap_or_default().to_owned(), lost)
    };
    assert_eq!(with("\"/sbin/move a\""), ("on_gain = [\"/sbin/move\", \"a\"]".to_owned(), false));
    assert_eq!(with("\"/sbin/move a\" root"), ("on_gain = [\"/sbin/move\", \"a\"]".to_owned(), true));
    assert_eq!(with("\"/sbin/move 'a b'\""), (String::new(), true));
}

const RESOLVERS: &str =
    "resolvers dns\nnameserver one 10.0.0.53:53\nnameserver two udp@[fd00::53]:5353\nhold valid 5s\n";

#[test]
fn names_that_haproxy_asks_its_own_name_servers_for_are_not_asked_of_the_host_s_in_silence() {
    let text = format!(
        "{RESOLVERS}listen api\nbind :6443\nserver a cp1.example.com:6443 check resolvers dns\n\
         server b cp2.example.com:6443 check resolvers dns\n"
    );
    let translation = read(&text);
    for line in [7, 8] {
        let [(why, true)] = missing(&translation, line)[..] else { panic!("{:#?}", translation.ledgers) };
        assert!(why.contains("10.0.0.53:53, [fd00::53]:5353"), "{why}");
    }
    assert_eq!(config(&translation).frontends[0].backends.len(), 2);
    let by_tcp = read(&text.replace("udp@[", "tcp@["));
    assert!(missing(&by_tcp, 3).iter().any(|(why, _)| why.contains("by UDP")), "{:#?}", by_tcp.ledgers);
    // Addresses are not asked for.
    let text = format!("{RESOLVERS}listen api\nbind :6443\nserver a 10.0.0.1:6443 check resolvers dns\n");
    assert!(!read(&text).changes_behaviour(), "{:#?}", read(&text).ledgers);
}

#[test]
fn a_template_of_servers_is_discovered() {
    use config::{DiscoverSource, DnsRecord, DnsSource};
    let with = |servers: &str| {
        let text = format!("{RESOLVERS}listen api\nbind 10.0.0.100:6443\noption httpchk\n{servers}\n");
        let translation = read(&text);
        let frontend = config(&translation).frontends.remove(0);
        let DiscoverSource::Dns(source) = frontend.discover.clone().unwrap().source else { panic!("{text}") };
        let lost: Vec<_> = missing(&translation, 8).iter().map(|(why, _)| (*why).to_owned()).collect();
        (source, frontend.backends.len(), frontend.health.clone(), lost)
    };
    let servers: Vec<std::net::SocketAddr> = vec!["10.0.0.53:53".parse().unwrap(), "[fd00::53]:5353".parse().unwrap()];
    let (source, backends, health, lost) =
        with("server-template cp 3 api.example.com:6443 check check-ssl verify none resolvers dns");
    let record = DnsRecord::Address { port: 6443 };
    assert_eq!(source, DnsSource { name: "api.example.com".to_owned(), record, servers: servers.clone() });
    assert_eq!((backends, health.kind), (0, config::ProbeKind::Https));
    assert!(lost[0].contains("at most 3 servers"), "{lost:?}");
    // The port of the only bind, and the host's name servers.
    let (source, backends, _, _) = with("server-template cp 1-5 api.example.com check\nserver own 10.0.0.9:6443 check");
    assert_eq!((source.record, source.servers, backends), (DnsRecord::Address { port: 6443 }, Vec::new(), 1));
    let (source, ..) = with("server-template cp 300 _https._tcp.example.com check resolvers dns");
    assert_eq!((&*source.name, source.record, source.servers), ("_https._tcp.example.com", DnsRecord::Srv, servers));
    // One server with a name is a template of one.
    let (source, backends, ..) = with("server cp api.example.com:6443 check resolvers dns");
    assert_eq!((source.record, backends), (DnsRecord::Address { port: 6443 }, 0));
    let (.., lost) = with("server-template cp 3 api.example.com:6443 weight 7 maxconn 9 backup resolvers dns");
    assert!(["weight", "maxconn", "backup"].iter().all(|it| lost.iter().any(|why| why.starts_with(it))), "{lost:?}");
}

#[test]
fn a_template_that_no_source_can_have_is_named() {
    let text = format!(
        "{RESOLVERS}listen api\nbind :6443\nserver-template a 2 api.example.com:6443 resolvers dns\n\
         server-template b 2 other.example.com:6443 resolvers dns\nserver-template c 2 10.0.0.1:6443\n\
         server-template d 2 x.example.com:6443 resolvers nowhere\n"
    );
    let translation = read(&text);
    for (line, why) in [(8, "one source"), (9, "one source"), (10, "one source")] {
        let all = missing(&translation, line);
        assert!(all.iter().any(|(said, changes)| said.contains(why) && *changes), "{line}: {all:?}");
    }
    config(&translation);
    let translation = read(&listen("server-template c 2 10.0.0.1:6443\n"));
    assert!(missing(&translation, 3)[0].0.contains("is an address"), "{:?}", missing(&translation, 3));
    assert_eq!(config(&translation).frontends[0].discover, None);
}

/// Who is admitted by a frontend with these lines, and which of them are lost.
fn admission(lines: &str) -> (Vec<String>, Vec<String>, Vec<usize>) {
    let text = listen(lines);
    let translation = read(&text);
    let frontend = config(&translation).frontends.remove(0);
    let words = |all: Vec<ipnet::IpNet>| all.iter().map(ToString::to_string).collect();
    let lost = (1..=text.lines().count())
        .filter(|line| missing(&translation, *line).iter().any(|(_, changes)| *changes))
        .collect();
    (words(frontend.allow.clone()), words(frontend.deny.clone()), lost)
}

/// `allow` and `deny` of lines of which none is lost.
#[track_caller]
fn admits(lines: &str) -> (String, String) {
    let (allow, deny, lost) = admission(lines);
    assert_eq!(lost, [0; 0], "{lines}");
    (allow.join(" "), deny.join(" "))
}

fn told(allow: &str, deny: &str) -> (String, String) {
    (allow.to_owned(), deny.to_owned())
}

#[test]
fn clients_that_haproxy_rejects_by_address_are_not_admitted() {
    let reject = "tcp-request connection reject";
    let accept = "tcp-request connection accept";
    assert_eq!(admits(&format!("{reject} if {{ src 10.66.0.0/16 fd00::1 }}\n")), told("", "10.66.0.0/16 fd00::1/128"));
    let all = format!("{reject} if {{ src 10.66.0.0/16 }}\n{accept} if {{ src 10.0.0.0/8 }}\n{reject}\n");
    assert_eq!(admits(&all), told("10.0.0.0/8", "10.66.0.0/16"));
    // A rule after one that decides everything decides nothing.
    let all = format!("{all}acl n src 192.168.0.0/16\n{reject} unless n\n");
    assert_eq!(admits(&all), told("10.0.0.0/8", "10.66.0.0/16"));
    let office = "acl office src 10.20.0.0/16\nacl office src 10.30.1.1/16\n";
    assert_eq!(admits(&format!("{office}{reject} if !office\n")), told("10.20.0.0/16 10.30.0.0/16", ""));
    assert_eq!(admits(&format!("{office}{reject} unless office\n")), told("10.20.0.0/16 10.30.0.0/16", ""));
    assert_eq!(admits(&format!("{office}{reject} if ! {{ src 10.1.1.1 }}\n")), told("10.1.1.1/32", ""));
    // The first rule that matches decides: order counts.
    let inner = format!("{accept} if {{ src 10.0.0.0/9 }}\n{reject} if {{ src 10.0.0.0/8 }}\n");
    assert_eq!(admits(&inner), told("", "10.128.0.0/9"));
    let or = format!("{reject} if {{ src 10.1.0.0/16 }} or {{ src 10.3.0.0/16 }}\n");
    assert_eq!(admits(&or), told("", "10.1.0.0/16 10.3.0.0/16"));
    let and = format!("{office}{reject} if office {{ src 10.30.7.0/24 }}\n");
    assert_eq!(admits(&and), told("", "10.30.7.0/24"));
}

#[test]
fn a_rejection_that_cannot_be_kept_is_a_step_before_the_file_serves() {
    for (lines, lost, deny) in [
        ("acl bad src -f /etc/bad\ntcp-request connection reject if bad\n", &[4][..], ""),
        (
            "tcp-request connection reject if { src_conn_rate gt 9 }\ntcp-request connection reject if { src 10.1.0.0/16 }\n",
            &[3],
            "10.1.0.0/16",
        ),
        // Nobody knows whom it lets pass the rules after it.
        (
            "tcp-request connection reject if { src 10.1.0.0/16 }\ntcp-request connection accept if { dst 10.0.0.1 }\n\
             tcp-request connection reject\n",
            &[4, 5],
            "10.1.0.0/16",
        ),
        ("bind :7443 accept-proxy\ntcp-request connection reject if { src 10.1.0.0/16 }\n", &[3, 4], ""),
    ] {
        let (allow, denied, named) = admission(lines);
        assert_eq!((allow.join(" "), denied.join(" "), &named[..]), (String::new(), deny.to_owned(), lost), "{lines}");
        let translation = read(&listen(lines));
        let [step, _] = &translation.steps[..] else { panic!("{:?}", translation.steps) };
        assert!(step.contains("admits clients that HAProxy rejects"), "{step}");
        assert!(translation.toml.contains("# It admits clients that HAProxy rejects"), "{}", translation.toml);
    }
}

/// The lines of `text`, a keepalived.conf, that are lost, and the steps.
fn beside(text: &str) -> (Vec<usize>, Vec<String>) {
    let translation = translate(&file("haproxy.cfg", &listen("")), Some(&file("keepalived.conf", text)));
    let lost = translation.ledgers[1].lines().iter().filter(|it| it.changes_behaviour()).map(|it| it.number);
    (lost.collect(), translation.steps)
}

/// It was "kept", and `baton ready` was said to answer it: once haproxy had stopped, no host had the VIP.
#[test]
fn a_script_that_does_not_ask_baton_is_a_step_before_haproxy_stops() {
    let with = |script: &str| {
        format!(
            "vrrp_script chk {{\n  {script}\n  interval 2\n}}\nvrrp_instance VI_1 {{\n  interface eth0\n  \
             virtual_ipaddress {{ 10.0.0.100/24 }}\n  track_script {{ chk }}\n}}\n"
        )
    };
    for script in [
        "script \"killall -0 haproxy\"",
        "script 'killall -0 haproxy'  # faster than pidof",
        "script /etc/keepalived/check_apiserver.sh",
        "script \"/usr/bin/curl -sfk https://localhost:6443/healthz\"",
    ] {
        let (lost, steps) = beside(&with(script));
        assert_eq!(lost, [2], "{script}");
        let [step] = &steps[..] else { panic!("{script}: {steps:?}") };
        assert!(step.contains("keepalived.conf:2") && step.contains("/usr/bin/baton ready --within 500ms"), "{step}");
    }
    let process = with("process haproxy").replace("vrrp_script", "vrrp_track_process");
    let (lost, steps) = beside(&process);
    assert!(lost == [2] && steps.len() == 1 && steps[0].contains("keepalived.conf:2"), "{lost:?} {steps:?}");
    for script in ["script \"/usr/bin/baton ready --within 500ms\"", "script '/usr/bin/baton ready'"] {
        assert_eq!(beside(&with(script)), (Vec::new(), Vec::new()), "{script}");
    }
    assert_eq!(beside(include_str!("../../tests/migration/kubeadm-keepalived.conf")).0, [6]);
    // Where Baton moves the VIP, nothing asks the script.
    assert_eq!(beside(include_str!("../../tests/migration/unicast-keepalived.conf")).0, [0; 0]);
}

#[test]
fn a_variable_of_a_template_is_named() {
    let text = include_str!("../../tests/migration/kubeadm-keepalived.conf");
    let text = text.replace("state MASTER", "state ${STATE}").replace("        10.0.0.100", "        ${APISERVER_VIP}");
    assert_eq!(beside(&text).0, [6, 14, 23]);
    let unicast = include_str!("../../tests/migration/unicast-keepalived.conf");
    assert_eq!(beside(&unicast.replace("state BACKUP", "state ${STATE}")).0, [5]);
    let translation = read("listen api\nbind :6443\nserver \"${X}\" 10.0.0.4:6443\nserver b 10.0.0.5:6443\n");
    let named = missing(&translation, 3);
    assert!(named.iter().any(|(why, _)| why.contains("${X}") && why.contains("environment")), "{named:?}");
    assert_eq!(missing(&translation, 4), []);
    let more = missing(&read(&listen("server \"${X}\" 10.0.0.4:6443 backup\n")), 3).len();
    assert_eq!((more, missing(&read(&listen("log \"${SINK}\"\n")), 3).len()), (2, 1));
    // No variable, but the end of a line to a regular expression.
    let checked = listen("option httpchk\nhttp-check expect rstatus ^2..$\n");
    assert!(!missing(&read(&checked), 4).iter().any(|(why, _)| why.contains("environment")));
}

#[test]
fn an_address_that_two_parts_of_a_bind_have_is_written_once() {
    for bind in ["*:6443,:::6443", ":::6443,*:6443", "*:6443,*:6443"] {
        let translation = read(&format!("listen api\nbind {bind}\n{SERVERS}"));
        let all: Vec<_> = config(&translation).frontends[0].listen.iter().map(ToString::to_string).collect();
        assert!(all.contains(&"0.0.0.0:6443".to_owned()), "{bind}: {all:?}");
    }
}

#[test]
fn rules_for_sessions_and_contents_by_address_are_kept_as_those_for_connections() {
    for kind in ["session", "content"] {
        let reject = format!("tcp-request {kind} reject if");
        assert_eq!(admits(&format!("{reject} {{ src 1.2.3.4 }}\n")), told("", "1.2.3.4/32"));
        let office = "acl office src 10.20.0.0/16\n";
        assert_eq!(admits(&format!("{office}{reject} !office\n")), told("10.20.0.0/16", ""));
        // Each of the three lists decides by itself: who is accepted by one may be rejected by the next.
        let both = format!("tcp-request connection accept if {{ src 10.0.0.0/8 }}\n{reject} {{ src 10.0.0.0/9 }}\n");
        assert_eq!(admits(&both), told("", "10.0.0.0/9"));
        let both = format!("tcp-request connection reject if {{ src 10.3.0.0/16 }}\n{reject} {{ src 10.1.0.0/16 }}\n");
        assert_eq!(admits(&both), told("", "10.1.0.0/16 10.3.0.0/16"));
        // They look at the address of the PROXY header, as Baton's lists do.
        let (_, deny, _) = admission(&format!("bind :7443 accept-proxy\n{reject} {{ src 10.1.0.0/16 }}\n"));
        assert_eq!(deny, ["10.1.0.0/16"]);
        let translation = read(&listen(&format!("tcp-request {kind} reject if {{ src -f /etc/bad }}\n")));
        assert!(missing(&translation, 3)[0].1, "{kind}");
        let [step, _] = &translation.steps[..] else { panic!("{kind}: {:?}", translation.steps) };
        assert!(step.contains("frontend api"), "{step}");
    }
    assert_eq!(admits("tcp-request content accept if { req.ssl_hello_type 1 }\n"), told("", ""));
}

#[test]
fn a_rejection_of_a_backend_is_kept_for_each_frontend_that_leads_there() {
    let text = format!(
        "frontend a\nbind :6443\ndefault_backend cps\nfrontend b\nbind :7443\ntcp-request session reject if {{ src 10.1.0.0/16 }}\n\
         default_backend cps\nbackend cps\ntcp-request content reject if {{ src 10.3.0.0/16 }}\n{SERVERS}"
    );
    let translation = read(&text);
    assert!(!translation.changes_behaviour(), "{:#?}", translation.ledgers);
    let denied =
        |at: usize| config(&translation).frontends[at].deny.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        (denied(0), denied(1)),
        (vec!["10.3.0.0/16".to_owned()], vec!["10.1.0.0/16".to_owned(), "10.3.0.0/16".to_owned()])
    );
}

#[test]
fn a_value_beyond_a_limit_is_not_changed_in_silence() {
    for line in [
        "timeout connect 10m",
        "timeout client 100ms",
        "retries 50",
        "clitcpka-idle 5h",
        "srvtcpka-cnt 500",
        "bind :7443 tcp-ut 1ms",
    ] {
        let translation = read(&listen(&format!("{line}\n")));
        let all = missing(&translation, 3);
        assert!(all.iter().any(|(why, changes)| why.ends_with("Baton's limit is used") && *changes), "{line}: {all:?}");
        config(&translation);
    }
    for line in ["hard-stop-after 48h", "spread-checks 80"] {
        let translation = read(&format!("global\n{line}\n{}", listen("")));
        let all = missing(&translation, 2);
        assert!(all.iter().any(|(why, _)| why.contains("Baton's limit is used")), "{line}: {all:?}");
    }
    let idle = read(&listen("timeout client 100ms\n"));
    assert_eq!(missing(&idle, 3), [("timeout client 100ms: Baton's limit is used", true)]);
    for (given, taken) in [("7", 7), ("500ms", 1), ("1500ms", 2), ("1m", 60)] {
        let keepalive = config(&read(&listen(&format!("clitcpka-intvl {given}\n")))).frontends[0].keepalive;
        assert_eq!(keepalive.interval.as_secs(), taken, "{given}");
    }
    let within = listen("timeout connect 4s\ntimeout client 1m\nretries 2\nclitcpka-idle 30s\nsrvtcpka-cnt 5\n");
    assert!(!read(&within).changes_behaviour(), "{:#?}", read(&within).ledgers);
}

#[test]
fn a_section_that_haproxy_does_not_have_is_no_part_of_the_one_before() {
    for before in
        ["resolvers dns\nnameserver a 10.0.0.53:53", "peers p\npeer a 10.0.0.5:1", "mailers m", "userlist u", "cache c"]
    {
        let text = format!("{}{before}\nbogus section\nfoo bar\n", listen(""));
        let translation = read(&text);
        let last = text.lines().count();
        for (line, word) in [(last - 1, "bogus"), (last, "foo")] {
            let all = missing(&translation, line);
            let [(why, true)] = all[..] else { panic!("{before}: {all:?}") };
            assert!(why.contains(&format!("does not know {word:?}")), "{why}");
        }
    }
    let known = "resolvers dns\nnameserver a 10.0.0.53:53\nhold valid 5s\ntimeout retry 1s\nresolve_retries 3\n\
                 accepted_payload_size 8192\npeers p\npeer a 10.0.0.5:1\nbind :1\nuserlist u\nuser a password b\ngroup g\n\
                 mailers m\nmailer a 10.0.0.5:25\ntimeout mail 5s\ncache c\ntotal-max-size 4\n";
    assert!(!read(&format!("{}{known}", listen(""))).changes_behaviour());
}

/// Words that mean something, in any order, and others that do not.
fn line() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "global",
            "defaults",
            "frontend",
            "backend",
            "listen",
            "resolvers",
            "nameserver",
            "server-template",
            "_a._tcp.b",
            "b.c:1",
            "tcp-request",
            "connection",
            "reject",
            "acl",
            "src",
            "unless",
            "10.0.0.0/8",
            "from",
            "a",
            "b",
            "bind",
            "server",
            "default-server",
            "default_backend",
            "use_backend",
            "mode",
            "tcp",
            "http",
            "option",
            "httpchk",
            "tcp-check",
            "http-check",
            "send",
            "expect",
            "status",
            "timeout",
            "connect",
            "client",
            "check",
            "5s",
            "0",
            "10.0.0.1:6443",
            ":6443",
            "*:1-9",
            "[::1]:1",
            "balance",
            "source",
            "inter",
            "fall",
            "weight",
            "backup",
            "ssl",
            "verify",
            "none",
            "no",
            "maxconn",
            "if",
            "{",
            "}",
            "vrrp_instance",
            "virtual_ipaddress",
            "unicast_peer",
            "unicast_src_ip",
            "10.0.0.1",
            "interface",
            "priority",
            "$X=1",
            "#",
            "!",
            "\"",
            "'",
            "\\",
            "${X}",
            "@h",
            "retries",
            "send-proxy",
            "accept-proxy",
            "slowstart",
            "disabled",
            "port",
        ])
        .prop_map(str::to_owned),
        "[ -~é\\t\u{1b}]{0,8}",
    ];
    prop::collection::vec(word, 0..6).prop_map(|words| words.join(" "))
}

proptest! {
    /// No file makes it panic, no word is dropped in silence, and what it writes is TOML.
    #[test]
    fn every_line_of_any_file_has_its_fate(one in prop::collection::vec(line(), 0..20), two in prop::collection::vec(line(), 0..12)) {
        let (one, two) = (file("h", &one.join("\n")), file("k", &two.join("\n")));
        let translation = translate(&one, Some(&two));
        prop_assert!(translation.toml.parse::<::toml::Table>().is_ok(), "{}", translation.toml);
        for (ledger, file) in translation.ledgers.iter().zip([&one, &two]) {
            prop_assert_eq!(ledger.lines().len(), file.text.lines().count());
            for (fate, text) in ledger.lines().iter().zip(file.text.lines()) {
                let is_comment = text.trim().is_empty() || text.trim_start().starts_with(['#', '!']);
                let says_nothing = crate::model::keepalived::words(text).is_empty();
                prop_assert!(is_comment || says_nothing || !fate.is_silent(), "{}: {:?}", text, fate);
            }
        }
    }
}

#[test]
fn a_byte_order_mark_before_the_first_section_hides_nothing() {
    let file =
        ForeignFile::new("h".to_owned(), "\u{feff}listen a\nmode tcp\nbind :1\nserver b 10.0.0.2:1\n".as_bytes());
    assert!(translate(&file, None).toml.contains("[[frontend.backend]]"), "{}", translate(&file, None).toml);
}

#[test]
fn an_own_address_with_the_length_of_its_prefix_is_one() {
    let text = |own: &str| {
        format!(
            "vrrp_instance a {{\ninterface eth0\nunicast_src_ip {own}\nunicast_peer {{\n10.0.0.2\n}}\nvirtual_ipaddress {{\n10.0.0.100/32\n}}\n}}\n"
        )
    };
    let haproxy = ForeignFile { name: "h".to_owned(), text: String::new() };
    let peers = |own: &str| {
        let keepalived = ForeignFile { name: "k".to_owned(), text: text(own) };
        translate(&haproxy, Some(&keepalived)).toml
    };
    assert!(peers("10.0.0.1").contains("[peers]"), "{}", peers("10.0.0.1"));
    assert_eq!(peers("10.0.0.1/24"), peers("10.0.0.1"));
}

/// Regression: the line that names a backend without a server was translated, and a line had the key "ca_file" twice, once without its table.
#[test]
fn a_line_is_told_with_what_became_of_it_alone() {
    let file = "frontend f\nbind :6443\ndefault_backend b\nfrontend g\nbind :7443\ndefault_backend none\n\
                backend b\nserver a 10.0.0.1:6443 check check-ssl verify required ca-file /ca.pem\nbackend none\n";
    let translation = read(file);
    let words = |line: usize| {
        let notes = &translation.ledgers[0].lines()[line].notes;
        notes.iter().map(|note| &*note.words).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(words(5), "backend none has no server");
    assert!(words(7).ends_with("[frontend.health] ca_file = \"/ca.pem\""), "{}", words(7));
}
