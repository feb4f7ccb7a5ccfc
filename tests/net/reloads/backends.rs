//! Which backend a flow goes to, from where, and how.

use super::*;

impl Running {
    /// The backends of so many new flows, each closed when all are there.
    fn places(&self, flows: u32) -> Vec<String> {
        let conns: Vec<_> = (0..flows).map(|_| self.connect()).collect();
        let places = conns.iter().map(|conn| self.baton.serving(conn)).collect();
        drop(conns);
        eventually(LONG, "no flow is left", || self.baton.flow_count() == 0);
        places
    }

    /// How long a new flow takes until its first answer.
    fn first_answer(&self) -> std::time::Duration {
        let watch = Stopwatch::start();
        self.connect().echo(1, 10);
        watch.elapsed()
    }
}

#[test]
fn the_choice_among_backends_follows_a_reload() {
    let Some(it) = Running::start("reloaded choice") else { return };
    let spread = |mut places: Vec<String>| {
        places.sort();
        places.dedup();
        places.len()
    };
    for (balance, backends) in [("round_robin", 3), ("source_hash", 1), ("least_conn", 3)] {
        it.reload(&it.config.clone().frontend("balance", balance));
        assert_eq!(spread(it.places(6)), backends, "{balance}");
    }
    it.reload(&it.config.clone().of_backend("b1", "weight", 0).of_backend("b2", "weight", 0));
    assert_eq!(it.places(3), ["b3"; 3]);

    // The same name at another address.
    let moved = it.lab.b1.serve_on(it.lab.b1.v4(7443), Behaviour::Echo);
    let only = it.config.clone().only(&["b1"]);
    it.reload(&only.clone().of_backend("b1", "address", it.lab.b1.v4(7443).to_string()));
    it.baton.wait_health("b1", "ready", LONG);
    let before = it.servers[0].accepted();
    it.connect().echo(1, 100);
    assert_eq!(moved.open().max(1), 1);
    assert!(moved.accepted() > 0 && it.servers[0].accepted() <= before + 1, "a probe may have been under way");

    // From another address of this host.
    it.lab.lb.add_address("10.77.0.99".parse().unwrap());
    it.reload(&it.config.clone().frontend("source", "10.77.0.99"));
    let mut conn = it.connect();
    conn.echo(1, 100);
    // 10.77.0.99 as /proc/net/tcp has it.
    assert!(
        it.lab.lb.tcp_sockets().iter().any(|socket| socket.starts_with("63004D0A:")),
        "{:?}",
        it.lab.lb.tcp_sockets()
    );
    drop(conn);

    // Probes moved than flows.
    it.reload(&it.config.clone().of_backend("b1", "health_address", it.lab.b1.v4(1).to_string()));
    it.baton.wait_health("b1", "ejected", LONG);
    it.reload(&it.config);
    it.baton.wait_health("b1", "ready", LONG);
    it.baton.rests();
}

#[test]
fn attempts_to_connect_follow_a_reload() {
    // Probes say that each is ready, whatever becomes of connects to it.
    let Some(it) = Running::with("reloaded attempts", |config| {
        ["b1", "b2", "b3"]
            .iter()
            .fold(config, |config, name| config.of_backend(name, "health_address", "10.77.0.22:6443"))
    }) else {
        return;
    };
    it.lab.b1.drop_packets("input", "tcp dport 6443");
    let config = it.config.clone().frontend("balance", "round_robin").of_backend("b1", "weight", 1000);
    let config = config.only(&["b1", "b2"]);
    it.reload(&config.clone().frontend("hedge_after", "0s").frontend("connect_timeout", "2500ms"));
    let patient = it.first_answer();
    assert!(patient >= ms(2400), "{patient:?}");
    it.reload(&config.clone().frontend("hedge_after", "0s").frontend("connect_timeout", "200ms"));
    let impatient = it.first_answer();
    assert!(impatient < ms(2000), "{impatient:?}");
    it.reload(&config.clone().frontend("hedge_after", "50ms").frontend("connect_timeout", "4s"));
    let hedged = it.first_answer();
    assert!(hedged < ms(3000), "{hedged:?}");
    it.lab.b1.nft_clear();

    // All refuse: as many are tried as the file says.
    let closed = |config: Config, name: &str, port: u16| {
        let host = it.lab.backends().into_iter().find(|host| host.name == name).unwrap();
        config.of_backend(name, "address", host.v4(port).to_string())
    };
    let refusing = ["b1", "b2", "b3"].iter().fold(it.config.clone(), |config, name| closed(config, name, 9));
    let refusals = || it.lab.backends().iter().map(|host| host.counter("snmp", "Tcp:", "OutRsts")).sum::<u64>();
    for (round, attempts) in [(1, 1), (2, 3)] {
        it.reload(&refusing.clone().frontend("connect_attempts", attempts));
        let before = refusals();
        assert_eq!(it.refused(&it.lab.client), End::Rst);
        it.baton.wait_ended("connect_failed", round);
        assert_eq!(refusals() - before, attempts as u64);
    }
    it.reload(&it.config);
    it.baton.rests();
}

#[test]
fn rebalancing_follows_a_reload() {
    let Some(it) =
        Running::with("reloaded rebalance", |config| config.only(&["b1", "b2"]).of_backend("b2", "weight", 0))
    else {
        return;
    };
    let mut conns: Vec<_> = (0..10).map(|_| it.connect()).collect();
    conns.iter_mut().for_each(|conn| conn.echo(1, 10));
    assert_eq!(it.baton.flows_of("b1"), 10);
    let on = it.config.clone().of_backend("b2", "weight", 1).rebalance("when", "always");
    let on = on.rebalance("min_idle", "100ms").rebalance("per_minute", 6000);
    let stays = |config: &Config, why: &str| {
        it.reload(config);
        wait::throughout(ms(1200), why, || it.ended("rebalanced") == 0);
    };
    stays(&on.clone().rebalance("when", "ordered"), "nobody wants it");
    stays(&on.clone().rebalance("tolerance_percent", 1000), "the excess is tolerated");
    stays(&on.clone().rebalance("min_idle", "1h"), "none is idle for long enough");
    it.reload(&on.clone().rebalance("per_minute", 1));
    wait::throughout(ms(1500), "one a minute", || it.ended("rebalanced") <= 1);
    it.reload(&on);
    eventually(LONG, "all that are too many go", || it.ended("rebalanced") >= 4);
    drop(conns);
    it.reload(&it.config);
    it.baton.rests();
}
