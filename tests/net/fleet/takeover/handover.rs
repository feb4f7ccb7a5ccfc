//! A host that is emptied before it is switched off: no client notices.

use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};

use super::*;

/// What clients do while something happens, and what became of it.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    /// Only the bulk is to end.
    bulk_over: AtomicBool,
    connects: AtomicU64,
    round_trips: AtomicU64,
    bulk_bytes: AtomicU64,
}

impl Load {
    /// Ping-pongs with a pause of a millisecond on these connections, which come back.
    fn ping_pongs<'s>(&'s self, scope: &'s Scope<'s, '_>, conns: Vec<Conn>) -> Vec<ScopedJoinHandle<'s, Conn>> {
        let talk = |(number, mut conn): (usize, Conn)| {
            scope.spawn(move || {
                for turn in 0.. {
                    if self.over.load(Relaxed) {
                        break;
                    }
                    conn.echo((number as u64) << 32 | turn, 64);
                    self.round_trips.fetch_add(1, Relaxed);
                    // The pause is what makes it ping-pong and not a stream.
                    std::thread::sleep(ms(1));
                }
                conn
            })
        };
        conns.into_iter().enumerate().map(talk).collect()
    }

    /// Streams of which each byte is compared, until the bulk is to end.
    fn bulk<'s>(&'s self, scope: &'s Scope<'s, '_>, conns: Vec<Conn>) -> Vec<ScopedJoinHandle<'s, ()>> {
        let stream = |(number, mut conn): (usize, Conn)| {
            scope.spawn(move || {
                for turn in 0.. {
                    if self.bulk_over.load(Relaxed) {
                        break;
                    }
                    conn.echo((number as u64) << 32 | turn, 2_000_000);
                    self.bulk_bytes.fetch_add(4_000_000, Relaxed);
                }
                conn.half_close();
                assert_eq!(conn.end(LONG), End::Fin);
            })
        };
        conns.into_iter().enumerate().map(stream).collect()
    }

    /// Clients that connect, ask once and go, one after the other.
    fn storm<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        client: &'s Host,
        to: SocketAddr,
        threads: u64,
    ) -> Vec<ScopedJoinHandle<'s, ()>> {
        let connect = |number: u64| {
            scope.spawn(move || {
                while !self.over.load(Relaxed) {
                    let mut conn = client.connect(to);
                    conn.echo(number, 100);
                    conn.half_close();
                    assert_eq!(conn.end(LONG), End::Fin);
                    self.connects.fetch_add(1, Relaxed);
                }
            })
        };
        (0..threads).map(connect).collect()
    }

    /// So many more of each have gone well.
    fn goes_on(&self, connects: u64, round_trips: u64) {
        let before = (self.connects.load(Relaxed), self.round_trips.load(Relaxed));
        eventually(LONG, "clients go on", || {
            self.connects.load(Relaxed) >= before.0 + connects
                && self.round_trips.load(Relaxed) >= before.1 + round_trips
        });
    }
}

impl Fleet {
    /// The first instance's VIP is let go by this file, too.
    fn with_track_file(self) -> Self {
        for instance in &self.all {
            instance.add_setting("takeover", "track_file", instance.away().to_str().unwrap());
        }
        self
    }

    /// Segments that anybody here has sent more than once.
    fn retransmitted(&self) -> u64 {
        let lab = &self.scene.lab;
        let hosts = [&lab.client, &lab.b1, &lab.b2].into_iter().chain(self.all.iter().map(|it| &it.host));
        hosts.map(|host| retransmitted(host)).sum()
    }
}

impl Instance {
    fn away(&self) -> PathBuf {
        self.directory.join("away")
    }

    fn add_setting(&self, table: &str, key: &str, value: &str) {
        let text = std::fs::read_to_string(&self.baton.paths.config).unwrap();
        let mut file: toml::Table = text.parse().unwrap();
        let table = file.entry(table).or_insert_with(|| toml::Table::new().into());
        table.as_table_mut().unwrap().insert(key.to_owned(), value.into());
        std::fs::write(&self.baton.paths.config, toml::to_string(&file).unwrap()).unwrap();
        self.baton.order(&["reload"]);
    }

    /// What `baton handover` reported at its end.
    fn report(output: &Output) -> Value {
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn retransmitted(host: &Host) -> u64 {
    let text = host.run("cat /proc/net/snmp");
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let found = names.split_whitespace().zip(values.split_whitespace()).find(|(name, _)| *name == "RetransSegs");
    found.unwrap().1.parse().unwrap()
}

/// 100 that may graduate and 100 that cannot, for only one of their ends has timestamps; all idle.
fn idle_clients(fleet: &Fleet) -> (Vec<Conn>, Vec<Conn>) {
    let graduable = fleet.clients(100);
    (graduable, clients_that_stay(fleet, 100))
}

/// Their flows cannot graduate.
fn clients_that_stay(fleet: &Fleet, count: u64) -> Vec<Conn> {
    fleet.scene.lab.client.sysctl("net/ipv4/tcp_timestamps", "0");
    let conns = fleet.clients(count);
    fleet.scene.lab.client.sysctl("net/ipv4/tcp_timestamps", "1");
    conns
}

#[test]
fn a_host_is_emptied_by_real_keepalived_and_no_client_notices() {
    let test = "a_host_is_emptied_by_real_keepalived_and_no_client_notices";
    let Some(fleet) = Fleet::new(test, 2, Flows::Kept, |config| config) else { return };
    let fleet = fleet.with_track_file();
    let _keepalived = fleet.kept_alive();
    let (mut idle, mut staying) = idle_clients(&fleet);
    let (talking, streaming) = (fleet.clients(20), fleet.clients(2));
    let talking_on = clients_that_stay(&fleet, 5);
    let load = Load::default();
    let (owner, heir) = (fleet.owner(), fleet.heir());
    let talked = std::thread::scope(|scope| {
        let mut talks = load.ping_pongs(scope, talking);
        let stayed = load.ping_pongs(scope, talking_on);
        let streams = load.bulk(scope, streaming);
        let storm = load.storm(scope, &fleet.scene.lab.client, fleet.vip, 2);
        load.goes_on(100, 2000);
        // As long as the handover below, without one.
        let before = fleet.retransmitted();
        load.goes_on(1000, 20_000);
        let control = fleet.retransmitted() - before;
        let before = fleet.retransmitted();
        let handover = scope.spawn(|| owner.baton.cli(&["handover", "--to", "lb-b", "--deadline", "50s", "--json"]));
        eventually(LONG, "the VIP has come", || !heir.baton.events_of("address_came").is_empty());
        load.goes_on(1000, 20_000);
        let resent = fleet.retransmitted() - before;
        println!("{control} segments sent again without a handover, {resent} with one");
        assert!(!handover.is_finished(), "flows are left that cannot graduate");
        staying.iter_mut().for_each(|conn| conn.echo(3, 5000));
        idle.iter_mut().for_each(|conn| conn.echo(3, 5000));
        drop(staying);
        load.bulk_over.store(true, Relaxed);
        streams.into_iter().for_each(|stream| stream.join().unwrap());
        load.over.store(true, Relaxed);
        storm.into_iter().for_each(|thread| thread.join().unwrap());
        drop(stayed.into_iter().map(|talk| talk.join().unwrap()).collect::<Vec<_>>());
        let output = handover.join().unwrap();
        let report = Instance::report(&output);
        println!("{report}");
        assert!(output.status.success(), "{report}");
        assert_eq!(report["vips"][0]["at"], serde_json::json!(["lb-b"]));
        assert_eq!(fleet.resets(), 0.0);
        assert!(resent <= control, "{resent} segments were sent again, {control} without a handover");
        talks.drain(..).map(|talk| talk.join().unwrap()).collect::<Vec<_>>()
    });
    let Load { connects, round_trips, bulk_bytes, .. } = &load;
    println!("{connects:?} connects, {round_trips:?} round trips, {bulk_bytes:?} bytes of bulk, 0 resets");
    // The host may be switched off.
    owner.host.link_down();
    let (mut talked, mut fresh) = (talked, fleet.clients(20));
    for conn in talked.iter_mut().chain(&mut idle).chain(&mut fresh) {
        conn.echo(9, 3000);
    }
    assert_eq!(fleet.heir().baton.metric("baton_untracked_packets_total", &["reset"]), 0.0);
}
