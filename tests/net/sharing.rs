//! Port sharing: a VIP's port is Baton's, while another process, such as an apiserver, has the port on all addresses of the host.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::lab::baton::BINARY;
use crate::lab::*;

const VIP: &str = "10.77.0.100";
const VIP6: &str = "fd77::100";

/// What an apiserver of these tests says to whoever connects, before it closes. Backends echo.
const APISERVER: Behaviour = Behaviour::Source { seed: 77, bytes: 10 };

/// A network with echo servers as backends, and VIPs on the load balancer's host, which leaves no program behind.
struct Shared {
    lab: Lab,
    _servers: [Server; 3],
    pinned: Pinned,
}

impl Shared {
    fn new(test: &str) -> Option<Self> {
        let lab = Lab::new(test)?;
        for vip in [VIP, VIP6] {
            lab.lb.add_address(vip.parse().unwrap());
        }
        let _servers = lab.echo_everywhere();
        Some(Self { lab, _servers, pinned: Pinned::unused(test)? })
    }

    fn config(&self) -> Config {
        self.lab.config().frontend("listen", vec![format!("{VIP}:6443"), format!("[{VIP6}]:6443")])
    }

    /// One that has the local apiserver among its backends, without a share of the connections.
    fn stacked(&self) -> Config {
        self.config().backend("local", self.lab.lb.v4(6443)).of_backend("local", "weight", 0)
    }

    /// As kube-apiserver and kubeadm's preflight do: net.Listen("tcp", ":6443") of Go, and 0.0.0.0:6443 of others.
    fn apiserver(&self, address: &str) -> Server {
        self.lab.lb.serve_on(address.parse().unwrap(), APISERVER)
    }

    #[track_caller]
    fn start(&self, config: &Config) -> Baton {
        let mut baton = self.lab.baton(config);
        baton.wait_for_backends(&["b1", "b2", "b3"]);
        baton
    }

    /// Sockets that listen on port 6443 here.
    fn listeners(&self) -> Vec<String> {
        self.lab.lb.run("ss -ltnpH 'sport = :6443'").lines().map(str::to_owned).collect()
    }

    /// A connection that Baton serves: a backend echoes.
    #[track_caller]
    fn served(&self, address: &str) -> Conn {
        let mut conn = self.lab.client.connect(vip(address));
        conn.echo(3, 1000);
        conn
    }

    /// Checks that the apiserver answers at `address`.
    #[track_caller]
    fn is_apiservers(&self, address: SocketAddr) {
        let (end, tally, _) = self.lab.client.connect(address).read_end(LONG);
        assert_eq!((end, tally.bytes), (End::Fin, 10), "{address} is the apiserver's");
    }

    /// How a connection to `address` is refused, and how long that took; panics if somebody answers.
    #[track_caller]
    fn refused(&self, address: &str) -> Duration {
        let watch = Stopwatch::start();
        match self.lab.client.try_connect(vip(address), LONG) {
            Err(error) => assert!(["refused", "reset"].iter().any(|word| error.to_string().contains(word)), "{error}"),
            // Accepted by the kernel a moment before the process died.
            Ok(mut conn) => assert_eq!(conn.read_end(LONG).0, End::Rst),
        }
        watch.elapsed()
    }

    #[track_caller]
    fn reload(&self, baton: &Baton, config: &Config) {
        baton.write_config(config);
        baton.order(&["reload"]);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A process that the test has killed may still have its sockets for a moment.
        for _ in 0..500 {
            match self.lab.lb.enter(::baton::proxy::remove_shared_ports) {
                Ok(_) => return,
                Err(_) => std::thread::sleep(ms(10)),
            }
        }
        eprintln!("shared ports: a process still serves one");
    }
}

/// What `baton check --host` says of the ports of `config`.
#[track_caller]
fn checked(it: &Shared, config: &Config, wrapper: &str) -> String {
    let file = it.lab.directory().join("checked.toml");
    std::fs::write(&file, config.text(&it.lab.directory().join("none.sock"))).unwrap();
    let said = it.lab.lb.run(&format!("{wrapper} {BINARY} check -c {} --host 2>&1 || true", file.display()));
    let mut of_port = said.lines().skip_while(|line| !line.contains("port of"));
    let mut told = Vec::new();
    while let Some(line) = of_port.next().filter(|line| line.contains("port of") || line.starts_with("     ")) {
        told.push(line.to_owned());
    }
    told.join("\n")
}

#[test]
fn the_check_of_the_host_names_who_has_the_port_and_whether_it_is_shared() {
    let Some(it) = Shared::new("check beside an apiserver") else { return };
    let config = it.config().frontend("listen", vec![format!("{VIP}:6443")]);
    let stacked = config.clone().backend("local", it.lab.lb.v4(6443));
    let off = config.clone().frontend("share_port", "off");
    let wildcard = config.clone().frontend("listen", vec!["0.0.0.0:6443"]);
    let without = "setpriv --bounding-set=-bpf,-net_admin";
    assert_eq!(checked(&it, &config, ""), "");
    assert!(checked(&it, &stacked, "").contains("Baton does not bind it"));
    let apiserver = it.apiserver("[::]:6443");
    let held = format!("process {} (", std::process::id());
    for (config, wrapper, verdict, part) in [
        (&config, "", "ok", "; Baton shares the port"),
        (&stacked, "", "ok", "; Baton shares the port"),
        (&config, without, "fault", "fix: start Baton by deploy/baton.service"),
        (&off, "", "fault", "fix: share_port = \"auto\""),
        (&wildcard, "", "fault", "fix: name the VIP in \"listen\""),
    ] {
        let said = checked(&it, config, wrapper);
        assert!(said.starts_with(verdict) && said.contains(&held) && said.contains(part), "{part}: {said}");
        assert!(verdict == "ok" || said.contains("--bind-address"), "{said}");
    }
    let baton = it.start(&config);
    assert!(checked(&it, &config, "").contains("; Baton shares the port"), "also while it does");
    drop((baton, apiserver));
    let _proxy = it.lab.lb.serve_on(vip(VIP), APISERVER);
    let said = checked(&it, &config, "");
    assert!(said.starts_with("fault") && said.contains(&held) && said.contains("fix: stop that process"), "{said}");
}

fn vip(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 6443)
}

/// How Baton ends that cannot start, and the last lines of its log.
#[track_caller]
fn not_started(baton: &Baton) -> String {
    let status = baton.process.wait(LONG);
    assert!(!status.success());
    baton.process.log_text().lines().filter(|line| line.contains("Baton does not start")).collect()
}

#[test]
fn a_vip_is_batons_and_every_other_address_is_the_apiservers() {
    for address in ["0.0.0.0:6443", "[::]:6443"] {
        let Some(it) = Shared::new("beside an apiserver") else { return };
        let apiserver = it.apiserver(address);
        let is_dual = address.starts_with('[');
        let config = match is_dual {
            true => it.config(),
            // Nobody has the port on IPv6.
            false => it.config().frontend("listen", vec![format!("{VIP}:6443")]),
        };
        let baton = it.start(&config);
        let vips = if is_dual { &[VIP, VIP6][..] } else { &[VIP] };
        for at in vips {
            let conns: Vec<_> = (0..20).map(|_| it.served(at)).collect();
            let flows = baton.flows();
            assert!(flows.len() == 20 && flows.iter().all(|flow| flow["vip"] == vip(at).to_string()), "{flows:?}");
            let workers: std::collections::BTreeSet<_> = flows.iter().map(|flow| flow["worker"].as_u64()).collect();
            assert_eq!(workers.len(), 2, "each worker gets its share: {flows:?}");
            drop(conns);
            eventually(LONG, "no flow is left", || baton.flow_count() == 0);
        }
        let accepted = apiserver.accepted();
        it.is_apiservers(it.lab.lb.v4(6443));
        if is_dual {
            it.is_apiservers(it.lab.lb.v6(6443));
        }
        assert_eq!(apiserver.accepted(), accepted + vips.len());
        let listeners = it.listeners();
        assert!(listeners.len() == 1 && !listeners[0].contains("baton"), "{listeners:?}");
        // The VIP's other ports are nobody's, and Baton's own sockets cannot be reached by the address that they are bound to.
        let other = SocketAddr::new(VIP.parse().unwrap(), 6444);
        assert_eq!(it.lab.client.try_connect(other, LONG).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        baton.rests();
    }
}

#[test]
fn flows_of_a_shared_port_are_offloaded_and_the_backends_see_the_vip() {
    let Some(it) = Shared::new("offload beside an apiserver") else { return };
    let _apiserver = it.apiserver("[::]:6443");
    let _servers = it.lab.backends().map(|host| host.serve_on(host.v6(6443), Behaviour::Echo));
    for (at, shown) in [(VIP, VIP.to_owned()), (VIP6, format!("[{VIP6}]"))] {
        let config = it.config().offloading(&it.pinned.directory);
        let config = it.lab.backends().iter().fold(config.only(&[]), |config, host| {
            config.backend(host.name, if at == VIP { host.v4(6443) } else { host.v6(6443) })
        });
        let baton = it.start(&config);
        let mut conns: Vec<_> = (0..3).map(|_| it.served(at)).collect();
        conns.iter_mut().for_each(|conn| (0..4).for_each(|seed| conn.echo(seed, 1000)));
        baton.wait_offloaded(3);
        conns.iter_mut().for_each(|conn| conn.echo(9, 100_000));
        let seen = it.lab.backends().map(|host| host.run("ss -tnH state established 'sport = :6443'")).concat();
        assert_eq!(seen.lines().filter(|line| line.contains(&format!("{shown}:"))).count(), 3, "{seen}");
        conns.into_iter().for_each(|mut conn| {
            conn.half_close();
            assert_eq!(conn.end(LONG), End::Fin);
        });
        eventually(LONG, "no flow is left", || baton.flow_count() == 0);
    }
}

#[test]
fn nobody_reaches_the_sockets_of_a_shared_port_by_their_own_address() {
    let Some(it) = Shared::new("by the dummy address") else { return };
    let _apiserver = it.apiserver("[::]:6443");
    let baton = it.start(&it.config());
    let listening = it.lab.lb.run("ss -ltnpH");
    let own = listening.lines().filter_map(|line| line.split_whitespace().nth(3));
    let own: SocketAddr = own
        .filter_map(|at| at.parse().ok())
        .find(|at: &SocketAddr| at.ip().to_string() == "192.0.0.8")
        .expect("a dummy address");
    // A host on which that address is its own, as by AnyIP.
    it.lab.lb.run("ip route add local 192.0.0.0/24 dev lo");
    let end = it.lab.lb.try_connect(own, LONG).map_or_else(|error| End::of_error(&error), |mut conn| conn.end(LONG));
    assert_eq!(end, End::Rst);
    assert_eq!((baton.flow_count(), baton.ended().len()), (0, 0));
    it.served(VIP);
}

#[test]
fn clients_of_the_vip_of_a_killed_baton_are_reset_and_the_next_one_serves_them() {
    let Some(it) = Shared::new("killed beside an apiserver") else { return };
    let apiserver = it.apiserver("[::]:6443");
    let (config, mut kills) = (it.config(), 0);
    let mut baton = it.start(&config);
    for _ in 0..2 {
        let mut conns: Vec<_> = [VIP, VIP6].map(|at| it.served(at)).into();
        baton.process.kill();
        kills += 1;
        for conn in &mut conns {
            // The kernel closes what a dead process had.
            assert!(matches!(conn.end(LONG), End::Fin | End::Rst));
        }
        for at in [VIP, VIP6] {
            for _ in 0..20 {
                let took = it.refused(at);
                assert!(took < secs(1), "{took:?}");
            }
        }
        assert_eq!(apiserver.accepted(), 0, "the apiserver never answers at a VIP");
        baton = it.start(&config);
        [VIP, VIP6].iter().for_each(|at| drop(it.served(at)));
    }
    assert_eq!(kills, 2);
    // One that no longer has the second VIP gives it to the kernel.
    baton.process.kill();
    let baton = it.start(&it.config().frontend("listen", vec![format!("{VIP}:6443")]));
    it.served(VIP);
    it.is_apiservers(vip(VIP6));
    // Killed, and bound by the next process: nothing of the place is left.
    baton.process.kill();
    drop(apiserver);
    let baton = it.start(&it.config().frontend("share_port", "off"));
    [VIP, VIP6].iter().for_each(|at| drop(it.served(at)));
    drop(baton);
}

#[test]
fn a_stop_gives_no_vip_to_the_apiserver_and_the_command_does() {
    let Some(it) = Shared::new("stopped beside an apiserver") else { return };
    let _apiserver = it.apiserver("[::]:6443");
    let remove = || it.lab.lb.run(&format!("{BINARY} offload --pins /sys/fs/bpf/baton-of-no-test remove"));
    let baton = it.start(&it.config().process("shutdown_delay", "0s"));
    it.served(VIP);
    assert!(remove().contains("not removed: the program that shares ports"), "a running instance keeps it");
    it.served(VIP);
    baton.process.signal(rustix::process::Signal::TERM);
    assert!(baton.process.wait(LONG).success());
    it.refused(VIP);
    it.is_apiservers(it.lab.lb.v4(6443));
    // As a unit that runs has its ReadWritePaths. Regression: the mount went with the directory, and could not be made again there.
    let pins = std::path::Path::new("/sys/fs/bpf/baton-ports");
    let mounted = format!("mount --bind {0} {0} && echo mounted && exec sleep 60", pins.display());
    let unit = it.lab.lb.spawn(&["unshare", "-m", "sh", "-c", &mounted], &it.lab.directory().join("unit.log"));
    eventually(LONG, "the unit has its mount", || unit.log_text().contains("mounted"));
    let said = remove();
    assert!(said.contains("removed: the program that shares ports, with 2 addresses"), "{said}");
    it.is_apiservers(vip(VIP));
    assert!(!remove().contains("shares ports"), "it is gone");
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", unit.pid().as_raw_nonzero())).unwrap();
    assert!(mounts.contains(&format!(" {} ", pins.display())), "the unit still has its mount");
    drop(unit);
    it.start(&it.config()).process.kill();
    eventually(LONG, "the places are removed", || {
        matches!(it.lab.lb.enter(::baton::proxy::remove_shared_ports), Ok(Some(2)))
    });
    // Other tests have places there at times.
    eventually(LONG, "the directory is not there, or has places of another namespace", || {
        std::fs::read_dir(pins).map_or(true, |mut names| names.next().is_some())
    });
}

/// The directory of all namespaces is removed with the last place, and another host may make it at that moment.
#[test]
fn two_hosts_that_begin_and_cease_to_share_a_port_at_once_do_not_hinder_each_other() {
    let labs = ["shares one", "shares two"].map(Shared::new);
    let [Some(one), Some(two)] = labs else { return };
    let shares = |it: &Shared| {
        let _apiserver = it.apiserver("[::]:6443");
        for _ in 0..8 {
            let baton = it.start(&it.config());
            it.served(VIP);
            baton.process.kill();
            drop(baton);
            eventually(LONG, "the places are removed", || {
                matches!(it.lab.lb.enter(::baton::proxy::remove_shared_ports), Ok(Some(2)))
            });
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| shares(&one));
        scope.spawn(|| shares(&two));
    });
}

#[test]
fn an_apiserver_starts_after_baton_and_kubeadm_finds_the_port_free() {
    let Some(it) = Shared::new("before an apiserver") else { return };
    let baton = it.start(&it.stacked());
    assert_eq!(it.listeners(), [""; 0]);
    let mut conns: Vec<_> = [VIP, VIP6].map(|at| it.served(at)).into();
    for address in ["0.0.0.0:6443", "[::]:6443"] {
        // Bound, closed, and bound again, beside connections to the same port.
        drop(it.apiserver(address));
        let apiserver = it.apiserver(address);
        it.is_apiservers(it.lab.lb.v4(6443));
        conns.iter_mut().for_each(|conn| conn.echo(5, 10_000));
        [VIP, VIP6].iter().for_each(|at| drop(it.served(at)));
        assert_eq!(it.listeners().len(), 1);
        drop(apiserver);
    }
    baton.wait_health("local", "ejected", LONG);
    let _apiserver = it.apiserver("[::]:6443");
    baton.wait_health("local", "ready", LONG);
}

#[test]
fn a_program_that_somebody_detaches_is_attached_again() {
    let Some(it) = Shared::new("detached beside an apiserver") else { return };
    let _apiserver = it.apiserver("[::]:6443");
    let baton = it.start(&it.config());
    let mut living = it.served(VIP);
    let namespace = it.lab.lb.run("stat -Lc %i /proc/self/ns/net");
    let pins = format!("/sys/fs/bpf/baton-ports/{}-1", namespace.trim());
    let serves =
        |at: &str| it.lab.client.try_connect(vip(at), LONG).is_ok_and(|mut conn| conn.try_echo(1, 1000).is_ok());
    for (by, how) in [("its link", format!("rm {pins}/link")), ("all its names", format!("rm -r {pins}"))] {
        it.lab.lb.run(&how);
        eventually(secs(30), &format!("the program is there again, which had lost {by}"), || {
            std::path::Path::new(&pins).join("link").exists()
        });
        eventually(LONG, "Baton answers", || serves(VIP) && serves(VIP6));
    }
    baton.wait_log(&["Baton has attached it again"]);
    living.echo(2, 10_000);
}

#[test]
fn an_upgrade_under_load_beside_an_apiserver_fails_no_connect() {
    let Some(it) = Shared::new("upgraded beside an apiserver") else { return };
    let apiserver = it.apiserver("[::]:6443");
    let baton = it.start(&it.config());
    let mut old: Vec<_> = [VIP, VIP6].map(|at| it.served(at)).into();
    let (connects, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut successors = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (it, connects, done) = (&it, &connects, &done);
            scope.spawn(move || {
                while !done.load(SeqCst) {
                    it.served([VIP, VIP6][thread]);
                    connects.fetch_add(1, SeqCst);
                }
            });
        }
        let _ending = SetsAtEnd(&done);
        // The second process has fewer workers than sockets, the third more; the last one no longer has the second VIP.
        for (workers, listen) in [(1, 2), (3, 2)] {
            let listen: Vec<_> =
                [VIP.to_owned(), format!("[{VIP6}]")][..listen].iter().map(|at| format!("{at}:6443")).collect();
            baton.write_config(&it.config().process("workers", workers).frontend("listen", listen));
            let before = connects.load(SeqCst);
            successors.push(upgrade(&baton));
            eventually(LONG, "connections go on", || connects.load(SeqCst) > before + 20);
            let sockets = || it.lab.lb.run("ss -ltnH").lines().filter(|line| line.contains(" 192.0.0.8:")).count();
            eventually(LONG, "each worker has a socket of its own", || sockets() >= workers as usize);
        }
    });
    old.iter_mut().for_each(|conn| conn.echo(8, 50_000));
    assert_eq!(apiserver.accepted(), 0, "{connects:?} connections, all of them Baton's");
    // An address that the next process does not have is the kernel's once the old process has exited.
    baton.write_config(&it.config().frontend("listen", vec![format!("{VIP}:6443")]));
    successors.push(upgrade(&baton));
    eventually(LONG, "the apiserver answers at the VIP that is given up", || {
        it.lab.client.try_connect(vip(VIP6), LONG).is_ok_and(|mut conn| conn.read_end(LONG).1.bytes == 10)
    });
    it.served(VIP);
    // What an upgrade cannot change is refused, and the process that runs serves on.
    baton.write_config(&it.config().frontend("listen", vec![format!("{VIP}:6443")]).frontend("share_port", "off"));
    let refused = baton.cli(&["upgrade"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned() + &String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success() && said.contains("share_port = \"off\"") && said.contains("restart"), "{said}");
    it.served(VIP);
}

/// Upgrades; the process that serves from then on.
#[track_caller]
fn upgrade(baton: &Baton) -> Stranger {
    let said = baton.order(&["upgrade", "--json"]);
    let documents = serde_json::Deserializer::from_str(&said).into_iter::<serde_json::Value>();
    let upgraded = documents.map(Result::unwrap).last().expect("what became of it");
    Stranger::new(upgraded["new_pid"].as_i64().expect("the new process's pid"))
}

#[test]
fn a_reload_adds_and_removes_a_shared_port_and_refuses_to_turn_it_into_a_bound_one() {
    let Some(it) = Shared::new("reloaded beside an apiserver") else { return };
    let _apiserver = it.apiserver("[::]:6443");
    let only = |address: &str| it.config().frontend("listen", vec![format!("{address}:6443")]);
    let baton = it.start(&only(VIP));
    let mut living = it.served(VIP);
    it.is_apiservers(vip(VIP6));
    for _ in 0..2 {
        it.reload(&baton, &it.config());
        [VIP, VIP6].iter().for_each(|at| drop(it.served(at)));
        it.reload(&baton, &only(VIP));
        it.served(VIP);
        it.is_apiservers(vip(VIP6));
    }
    living.echo(4, 10_000);
    for (word, config) in [("off", only(VIP)), ("on", only(VIP))] {
        baton.write_config(&config.frontend("share_port", word));
        let said = baton.cli(&["reload"]);
        let refusal = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.success(), word == "on", "{refusal}");
        if word == "off" {
            let expected = format!("a reload cannot change share_port of {VIP}:6443 to \"off\"");
            assert!(refusal.contains(&expected) && refusal.contains("systemctl restart baton"), "{refusal}");
        }
        it.served(VIP);
    }
    living.echo(4, 10_000);
    // A port that is free is bound, and not shared by a reload.
    it.reload(&baton, &it.config().frontend("listen", vec![format!("{VIP}:6443"), format!("{VIP}:7443")]));
    let shared = &baton.status()["frontends"][0]["shared_ports"];
    assert_eq!(*shared, serde_json::json!([format!("{VIP}:6443")]), "of two addresses");
    let said = baton.order(&["status"]);
    assert!(said.contains(&format!("{VIP}:6443 (shared port) {VIP}:7443 ")), "{said}");
    let (_, page) = baton.http("/").expect("a page");
    assert!(page.contains(&format!("{VIP}:6443 (shared port)  {VIP}:7443<")), "{page}");
    it.lab.client.connect(SocketAddr::new(VIP.parse().unwrap(), 7443)).echo(2, 1000);
    assert!(it.lab.lb.run("ss -ltnpH 'sport = :7443'").contains("baton"));
    baton.write_config(
        &it.config()
            .frontend("listen", vec![format!("{VIP}:6443"), format!("{VIP}:7443")])
            .frontend("share_port", "on"),
    );
    assert!(String::from_utf8_lossy(&baton.cli(&["reload"]).stderr).contains(":7443 to \"on\""));
}

#[test]
fn a_second_instance_shares_other_vips_and_is_refused_the_firsts() {
    let Some(it) = Shared::new("two beside an apiserver") else { return };
    let apiserver = it.apiserver("[::]:6443");
    let first = it.start(&it.config().frontend("listen", vec![format!("{VIP}:6443")]));
    let directory = it.lab.directory().join("second");
    std::fs::create_dir(&directory).unwrap();
    let second = |config: Config| Baton::start(&it.lab.lb, &directory, &config.admin("http", "127.0.0.1:9480"));
    for word in ["auto", "on"] {
        let said = not_started(&second(it.config().frontend("share_port", word)));
        let pid = first.process.pid().as_raw_nonzero();
        assert!(
            said.contains(&format!("cannot listen on {VIP}:6443: another instance of Baton shares its port")),
            "{said}"
        );
        assert!(said.contains(&format!("process {pid} (baton)")), "{said}");
        it.served(VIP);
        it.is_apiservers(vip(VIP6));
    }
    let config = it.config().frontend("listen", vec![format!("[{VIP6}]:6443")]);
    let other = second(config.clone());
    other.wait_log(&["Baton listens"]);
    eventually(LONG, "the second one serves", || {
        other.status()["frontends"][0]["backends"].as_array().unwrap().iter().all(|it| it["health_state"] == "ready")
    });
    [VIP, VIP6].iter().for_each(|at| drop(it.served(at)));
    first.process.kill();
    it.served(VIP6);
    it.refused(VIP);
    // A restart of either frees nothing of the other's.
    other.process.kill();
    let first = it.start(&it.config().frontend("listen", vec![format!("{VIP}:6443")]));
    it.served(VIP);
    it.refused(VIP6);
    assert_eq!(apiserver.accepted(), 2, "only while it was nobody's");
    drop(first);
}

#[test]
fn a_port_that_cannot_be_shared_is_an_error_with_the_process_that_has_it_and_the_ways_out() {
    let Some(it) = Shared::new("no program beside an apiserver") else { return };
    let apiserver = it.apiserver("[::]:6443");
    let without = ["setpriv", "--bounding-set=-bpf,-net_admin,-sys_admin"];
    let start = |wrapper: &[&str], config: &Config| {
        let paths = config::Paths::below(it.lab.directory());
        std::fs::write(&paths.config, config.text(&paths.socket)).unwrap();
        not_started(&Baton::start_by(wrapper, &it.lab.lb, it.lab.directory()))
    };
    let held = format!("process {} (", std::process::id());
    for config in [it.config(), it.stacked()] {
        let said = start(&without, &config);
        assert!(said.contains(&format!("cannot listen on {VIP}:6443: {held}")), "{said}");
        for part in ["port 6443 of all addresses", "CAP_BPF and CAP_NET_ADMIN", "another port", "--bind-address"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let said = start(&without, &it.config().frontend("share_port", "on"));
    assert!(said.contains("cannot share the port") && said.contains("CAP_BPF"), "{said}");
    let said = start(&[], &it.config().frontend("share_port", "off"));
    assert!(said.contains(&format!("cannot listen on {VIP}:6443: {held}")), "{said}");
    // A process that fails at another address leaves the VIP to the apiserver.
    let other = it.lab.lb.serve_on(SocketAddr::new(VIP.parse().unwrap(), 7443), APISERVER);
    let listen = |ports: [u16; 2]| ports.map(|port| format!("{VIP}:{port}")).to_vec();
    let said = start(&[], &it.config().frontend("listen", listen([6443, 7443])));
    assert!(said.contains(&format!("cannot listen on {VIP}:7443: {held}")), "{said}");
    it.is_apiservers(vip(VIP));
    drop(other);
    let pages = it.lab.lb.serve_on(SocketAddr::from(([127, 0, 0, 1], 9470)), APISERVER);
    let said = start(&[], &it.config());
    assert!(said.contains(&format!("admin.http: cannot listen on 127.0.0.1:9470: {held}")), "{said}");
    drop(pages);
    // Somebody who has the VIP itself is not pushed aside.
    drop(apiserver);
    let _proxy = it.lab.lb.serve_on(vip(VIP), APISERVER);
    for word in ["auto", "on", "off"] {
        let said = start(&[], &it.stacked().frontend("share_port", word));
        assert!(said.contains(&format!("cannot listen on {VIP}:6443: process")), "{word}: {said}");
        it.is_apiservers(vip(VIP));
    }
}

/// A proxy without capabilities beside an apiserver that has its own address alone: as before there was port sharing.
#[test]
fn without_the_program_a_free_port_is_bound() {
    let Some(it) = Shared::new("bound beside an apiserver") else { return };
    let _apiserver = it.lab.lb.serve_on(it.lab.lb.v4(6443), APISERVER);
    let config = it.stacked();
    let paths = config::Paths::below(it.lab.directory());
    std::fs::write(&paths.config, config.text(&paths.socket)).unwrap();
    let without = ["setpriv", "--bounding-set=-bpf,-net_admin,-sys_admin"];
    let baton = Baton::start_by(&without, &it.lab.lb, it.lab.directory());
    baton.wait_until_ready();
    baton.wait_log(&["Baton has bound the port"]);
    baton.wait_health("b1", "ready", LONG);
    it.served(VIP);
    it.is_apiservers(it.lab.lb.v4(6443));
    assert!(it.listeners().iter().any(|line| line.contains("baton")));
}
