//! Keys of the file that a reload changes, each then used. Which test shows it of which key: tests/file/keys.rs.

mod backends;
mod diff;
mod doors;
mod health;
mod process;

use crate::lab::*;

/// An instance before three echo servers, and the file that it runs.
struct Running {
    lab: Lab,
    baton: Baton,
    config: Config,
    servers: [Server; 3],
}

impl Running {
    fn start(test: &str) -> Option<Self> {
        Self::with(test, |config| config)
    }

    fn with(test: &str, adjust: impl FnOnce(Config) -> Config) -> Option<Self> {
        let lab = Lab::new(test)?;
        let servers = lab.echo_everywhere();
        let config = adjust(lab.config());
        let baton = lab.start(&config);
        Some(Self { lab, baton, config, servers })
    }

    #[track_caller]
    fn reload(&self, config: &Config) {
        self.baton.write_config(config);
        self.baton.order(&["reload"]);
    }

    fn connect(&self) -> Conn {
        self.lab.client.connect(self.lab.lb.v4(6443))
    }

    /// How a connection ends that is refused, maybe before the client has looked.
    fn refused(&self, from: &Host) -> End {
        match from.try_connect(self.lab.lb.v4(6443), LONG) {
            Ok(mut conn) => conn.end(LONG),
            Err(error) => End::of_error(&error),
        }
    }

    fn ended(&self, reason: &str) -> u64 {
        self.baton.ended().get(reason).copied().unwrap_or(0)
    }
}

/// A cap, or a list, that lets `fit` connections in and refuses the next one.
#[test]
fn caps_and_lists_of_a_reload_count_for_the_next_connection() {
    let Some(it) = Running::start("reloaded caps") else { return };
    let (client, v6) = (it.lab.client.v4, it.lab.lb.v6(6443));
    let base = || it.config.clone();
    let backends = ["b1", "b2", "b3"];
    let full = backends.iter().fold(base(), |config, name| config.of_backend(name, "max_connections", 1));
    let per_source = base().frontend("max_connections_per_source", 1);
    let cases = [
        ("denied", base().frontend("deny", vec![client.to_string()]), 0, false),
        ("denied", base().frontend("allow", vec!["10.99.0.0/16".to_owned(), "fd77::/64".to_owned()]), 0, false),
        ("limit_total", base().process("max_connections", 1), 1, false),
        ("limit_frontend", base().frontend("max_connections", 2), 2, false),
        ("limit_source", per_source.clone(), 1, false),
        ("limit_source", per_source.clone().frontend("source_mask_ipv4", 24), 1, true),
        ("rate_source", base().frontend("accept_rate_per_source", 1), 1, false),
        ("backends_full", full, 3, false),
    ];
    for (reason, config, fit, from_another) in cases {
        let open = |number: usize| match number == fit && from_another {
            true => it.lab.client2.connect(it.lab.lb.v4(6443)),
            false => it.connect(),
        };
        let mut before: Vec<_> = (0..=fit).map(open).collect();
        before.iter_mut().for_each(|conn| conn.echo(1, 100));
        drop(before);
        eventually(LONG, "no flow is left", || it.baton.flow_count() == 0);

        let count = it.ended(reason);
        it.reload(&config);
        let mut conns: Vec<_> = (0..fit).map(open).collect();
        conns.iter_mut().for_each(|conn| conn.echo(1, 100));
        let last = if from_another { &it.lab.client2 } else { &it.lab.client };
        assert_eq!(it.refused(last), End::Rst, "{reason}, {fit}");
        it.baton.wait_ended(reason, count + 1);
        let state = if reason == "backends_full" { "full" } else { "ready" };
        assert_eq!(it.baton.status()["frontends"][0]["service"]["state"], state, "{reason}");
        conns.iter_mut().for_each(|conn| conn.echo(2, 100));
        drop(conns);
        it.reload(&it.config);
        eventually(LONG, "no flow is left", || it.baton.flow_count() == 0);
    }
    // Flows from before count, though the old file did not limit sources.
    let mut living = it.connect();
    living.echo(1, 100);
    it.reload(&per_source);
    assert_eq!(it.refused(&it.lab.client), End::Rst, "the source has a flow already");
    it.lab.client2.connect(it.lab.lb.v4(6443)).echo(2, 100);
    it.reload(&per_source.clone().frontend("source_mask_ipv4", 24));
    assert_eq!(it.refused(&it.lab.client2), End::Rst, "its network has a flow already");
    living.echo(3, 100);
    drop(living);
    eventually(LONG, "no flow is left", || it.baton.flow_count() == 0);
    it.connect().echo(4, 100);
    it.reload(&it.config);
    eventually(LONG, "no flow is left", || it.baton.flow_count() == 0);
    // One source in IPv6 is a network of 64 bits, unless the file says another.
    it.lab.client.add_address("fd77::10:1".parse().unwrap());
    let from = |ip: &str| it.lab.client.connect_from(ip.parse().unwrap(), v6);
    it.reload(&per_source);
    let mut first = from("fd77::a").unwrap();
    first.echo(1, 100);
    assert_eq!(from("fd77::10:1").map_or_else(|error| End::of_error(&error), |mut conn| conn.end(LONG)), End::Rst);
    it.reload(&per_source.frontend("source_mask_ipv6", 128));
    let mut second = from("fd77::10:1").unwrap();
    second.echo(1, 100);
    drop((first, second));
    it.baton.rests();
}

#[test]
fn headers_of_the_proxy_protocol_are_read_and_sent_after_a_reload() {
    let Some(it) = Running::start("reloaded PROXY protocol") else { return };
    // The echo shows the bytes that the backend got.
    it.reload(&it.config.clone().frontend("send_proxy_v2", true));
    let mut conn = it.connect();
    assert_eq!([(); 12].map(|()| conn.read_byte().unwrap()), *b"\r\n\r\n\0\r\nQUIT\n");
    drop(conn);
    let accepting = it.config.clone().frontend("accept_proxy_from", vec![format!("{}/32", it.lab.client.v4)]);
    it.reload(&accepting);
    let mut conn = it.connect();
    conn.send_bytes(b"PROXY TCP4 192.0.2.7 10.0.0.1 5 6\r\n").unwrap();
    conn.echo(1, 100);
    assert!(it.baton.flows()[0]["client"].to_string().contains("192.0.2.7"), "{:?}", it.baton.flows());
    it.reload(&accepting.frontend("proxy_header_timeout", "400ms"));
    let watch = Stopwatch::start();
    assert_eq!(it.connect().end(LONG), End::Rst);
    assert!(watch.unstalled() < secs(2), "by default it would be 3 s");
    it.baton.wait_ended("bad_proxy_header", 1);
    drop(conn);
    it.baton.rests();
}

/// Keepalive's idle time, interval and count, and the user timeout (tcp(7)), of each socket that is connected with `far`: some may be
/// those of probes.
fn liveness_of(baton: &Baton, far: std::net::SocketAddr) -> Vec<[u64; 4]> {
    use rustix::net::sockopt::*;
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let process = pidfd_open(baton.process.pid(), PidfdFlags::empty()).unwrap();
    let files = std::fs::read_dir(format!("/proc/{}/fd", baton.process.pid().as_raw_nonzero())).unwrap();
    let numbers = files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok());
    let mut found = Vec::new();
    for number in numbers {
        let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        let peer = socket2::SockRef::from(&socket).peer_addr().ok().and_then(|peer| peer.as_socket());
        if peer == Some(far) {
            found.push([
                tcp_keepidle(&socket).unwrap().as_secs(),
                tcp_keepintvl(&socket).unwrap().as_secs(),
                tcp_keepcnt(&socket).unwrap().into(),
                tcp_user_timeout(&socket).unwrap().into(),
            ]);
        }
    }
    found
}

#[test]
fn timers_of_a_reload_count_for_the_next_connection_and_for_those_that_live() {
    let Some(it) = Running::start("reloaded timers") else { return };
    let mut before = it.connect();
    before.echo(1, 100);
    let config = it.config.clone().frontend("keepalive_idle", "21s").frontend("keepalive_interval", "7s");
    it.reload(&config.frontend("keepalive_count", 5).frontend("user_timeout", "41s"));
    let mut conn = it.connect();
    conn.echo(1, 100);
    before.echo(2, 100);
    assert_ne!(it.baton.serving(&before), it.baton.serving(&conn), "the fewest flows");
    for one in [&before, &conn] {
        let backend = it.baton.serving(one);
        let backend = it.lab.backends().into_iter().find(|host| host.name == backend).unwrap();
        for far in [one.local(), backend.v4(6443)] {
            // A leg's options are set once it has settled. After three unanswered probes it was silent for 41 s.
            let is_set = || liveness_of(&it.baton, far).contains(&[21, 7, 3, 0]);
            eventually(LONG, &format!("the leg of {far} has the file's timers"), is_set);
        }
    }
    drop((before, conn));

    it.reload(&it.config.clone().frontend("idle_timeout", "1s"));
    let mut idle = it.connect();
    assert_eq!(idle.end(LONG), End::Rst);
    it.baton.wait_ended("idle_timeout", 1);

    it.reload(&it.config.clone().frontend("drain_timeout", "300ms"));
    let mut conn = it.connect();
    it.baton.order(&["drain", &it.baton.serving(&conn)]);
    assert_eq!(conn.end(LONG), End::Rst);
    it.baton.wait_ended("drain_deadline", 1);
    it.baton.rests();
}
