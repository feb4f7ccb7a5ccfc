//! The rights are in a process of their own, which ends with the one that has the listeners: `src/app/broker.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use super::{FULL, held, start};
use ::baton::offload::program;

use crate::lab::*;

/// CAP_DAC_READ_SEARCH, CAP_NET_BIND_SERVICE, CAP_PERFMON, CAP_BPF.
const APART: u64 = 1 << 2 | 1 << 10 | 1 << 38 | 1 << 39;

/// As systemd runs it by the unit, with a list of backends that root alone may read.
struct Apart {
    list: PathBuf,
    config: Config,
    baton: Baton,
    _servers: [Server; 3],
    pinned: Pinned,
    lab: Lab,
}

impl Apart {
    fn new(test: &str) -> Option<Self> {
        Self::with(test, "backends", |_, config| config)
    }

    /// `list`: the name of the list of backends, below the folder of the laboratory.
    fn with(test: &str, list: &str, change: impl Fn(&Lab, Config) -> Config) -> Option<Self> {
        let lab = Lab::new(test)?;
        let pinned = Pinned::unused(test)?;
        fs::create_dir_all(&pinned.directory).unwrap();
        let servers = lab.echo_everywhere();
        let list = lab.directory().join(list);
        fs::create_dir_all(list.parent().unwrap()).unwrap();
        write_list(&list, &lab, 1);
        let config = lab.config().only(&[]).discover("kind", "file").discover("path", list.display().to_string());
        let config = config.discover("cache_file", lab.directory().join("own/found").display().to_string());
        let config = config.offloading(&pinned.directory).frontend("listen", vec![lab.lb.v4(443).to_string()]);
        let config = change(&lab, config);
        let baton = start(&lab, FULL, &config, Some(&pinned.directory));
        Some(Self { list, config, baton, _servers: servers, pinned, lab })
    }

    fn pid(&self) -> i32 {
        self.baton.status()["instance"]["pid"].as_i64().unwrap() as i32
    }

    fn talk(&self, count: usize) -> Vec<Conn> {
        let mut conns: Vec<_> = (0..count).map(|_| self.lab.client.connect(self.lab.lb.v4(443))).collect();
        for seed in 0..4 {
            conns.iter_mut().for_each(|conn| conn.echo(seed, 1000));
        }
        conns
    }

    /// Has Baton read the list again, whose content it finds by itself.
    fn widen(&self, backends: usize) {
        write_list(&self.list, &self.lab, backends);
        eventually(LONG, "the backends of the new list", || self.backends().len() == backends);
    }

    fn backends(&self) -> BTreeSet<String> {
        let frontends = self.baton.status()["frontends"].as_array().cloned().unwrap_or_default();
        let backends = frontends.iter().flat_map(|it| it["backends"].as_array().cloned().unwrap_or_default());
        backends.map(|backend| backend["address"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn write_list(list: &Path, lab: &Lab, backends: usize) {
    let text: String = lab.backends().into_iter().take(backends).map(|host| format!("{}\n", host.v4(6443))).collect();
    let new = list.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(&new, list).unwrap();
}

fn children(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// The broker of the process `pid`.
fn broker_of(pid: i32) -> Option<i32> {
    let is_broker =
        |child: &i32| fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "baton-broker");
    children(pid).into_iter().find(is_broker)
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn has_ended(pid: i32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

#[test]
fn who_takes_the_process_with_the_listeners_can_neither_load_programs_nor_read_root_s_files() {
    let Some(apart) = Apart::new("who_takes_the_process") else { return };
    let pid = apart.pid();
    let broker = broker_of(pid).expect("a broker");
    assert_eq!((held(pid) & APART, held(broker) & APART), (0, APART));
    assert!(apart.baton.status()["instance"]["rights"].is_null());
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().map(|task| task.path().join("status"));
    for task in tasks {
        let status = fs::read_to_string(&task).unwrap_or_default();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap_or("0");
            assert_eq!(u64::from_str_radix(line.trim(), 16).unwrap() & APART, 0, "{set} of {}", task.display());
        }
    }
    // Everything works as before.
    let mut conns = apart.talk(4);
    apart.baton.wait_offloaded(4);
    apart.lab.lb.make_link_anew();
    conns.iter_mut().for_each(|conn| conn.echo(7, 50_000));
    eventually(LONG, "the program on the new interface", || {
        conns.iter_mut().for_each(|conn| conn.echo(8, 1000));
        program::status(&apart.pinned.directory).unwrap().is_some_and(|status| !status.links.is_empty())
    });
    apart.widen(2);
    // The new process of an upgrade has all rights, and gives them up itself.
    let check = apart.baton.cli(&["upgrade", "--check"]);
    assert!(check.status.success(), "{check:?}");
    let upgraded = apart.baton.cli(&["upgrade"]);
    assert!(upgraded.status.success(), "{upgraded:?}");
    eventually(LONG, "the old process and its broker to end", || has_ended(pid) && has_ended(broker));
    let successor = apart.pid();
    let its_broker = broker_of(successor).expect("a broker of its own");
    assert_eq!((held(successor) & APART, held(its_broker) & APART), (0, APART));
    conns.iter_mut().for_each(|conn| conn.echo(9, 50_000));
    apart.widen(3);
    send(successor, Signal::KILL);
    eventually(LONG, "the broker to end with its process", || has_ended(its_broker));
    conns.iter_mut().for_each(|conn| conn.echo(10, 50_000));
}

#[test]
fn a_reload_adds_ports_below_1024_that_the_process_with_the_listeners_may_not_bind() {
    let test = "a_reload_adds_ports_below_1024";
    let with_peer = |lab: &Lab, config: Config| {
        let key = lab.directory().join("key");
        fs::write(&key, format!("{:064x}", 0x5eed)).unwrap();
        let config = config.instance("name", "lb-a").peers("listen", lab.lb.v4(471).to_string());
        let config = config.peers("key_file", key.to_str().unwrap()).peers("sync_deadline", "1s");
        config.peer("lb-b", lab.client.v4(471))
    };
    let Some(apart) = Apart::with(test, "backends", with_peer) else { return };
    let lb = &apart.lab.lb;
    let change = |ports: &[u16], metrics: u16| {
        let listen: Vec<_> = ports.iter().map(|port| lb.v4(*port).to_string()).collect();
        let config = apart.config.clone().frontend("listen", listen);
        apart.baton.write_config(&config.admin("metrics", format!("127.0.0.1:{metrics}")));
        apart.baton.cli(&["reload"])
    };
    let wait_bound = |places: &[&str]| {
        eventually(LONG, "sockets at these places", || {
            let bound = lb.run("ss -Hltun");
            places.iter().all(|place| bound.contains(place))
        });
    };
    let mut conns = apart.talk(2);
    assert_eq!(held(apart.pid()) & APART, 0);
    let link = format!("{} ", lb.v4(471));
    wait_bound(&[&link, "0.0.0.0:471 "]);
    let reloaded = change(&[443, 80], 81);
    assert!(reloaded.status.success(), "{reloaded:?}");
    wait_bound(&["127.0.0.1:81 "]);
    conns.push(apart.lab.client.connect(lb.v4(80)));
    // The next process has a broker of its own.
    let upgraded = apart.baton.cli(&["upgrade"]);
    assert!(upgraded.status.success(), "{upgraded:?}");
    assert_eq!(held(apart.pid()) & APART, 0);
    let reloaded = change(&[443, 80, 82], 83);
    assert!(reloaded.status.success(), "{reloaded:?}");
    wait_bound(&[&link, "0.0.0.0:471 ", "127.0.0.1:83 "]);
    conns.push(apart.lab.client.connect(lb.v4(82)));
    conns.iter_mut().for_each(|conn| conn.echo(1, 1000));
    // Without a broker a reload changes nothing.
    send(broker_of(apart.pid()).expect("a broker"), Signal::KILL);
    apart.baton.wait_log(&["the process that keeps Baton's rights has ended", "ports below 1024"]);
    let refused = change(&[443, 80, 82, 84], 83);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(&lb.v4(84).to_string()), "{said}");
    assert!(said.contains("baton-broker, the process that has the rights for it, has ended"), "{said}");
    conns.push(apart.lab.client.connect(lb.v4(82)));
    conns.iter_mut().for_each(|conn| conn.echo(2, 1000));
    let unprivileged = change(&[443, 80, 82, 8443], 83);
    assert!(unprivileged.status.success(), "{unprivileged:?}");
    apart.lab.client.connect(lb.v4(8443)).echo(3, 1000);
}

/// `iconv check -c FILE` would have told what is in the file.
#[test]
fn the_broker_starts_no_other_program() {
    let Some(apart) = Apart::new("the_broker_starts_no_other_program") else { return };
    for (binary, why) in [
        ("/usr/bin/env", "its name is not \"baton\""),
        (apart.lab.directory().join("own/baton").to_str().unwrap(), "has mode 777"),
    ] {
        fs::hard_link(apart.lab.directory().join("baton"), apart.lab.directory().join("own/baton")).ok();
        fs::set_permissions(apart.lab.directory().join("own"), PermissionsExt::from_mode(0o777)).unwrap();
        let check = apart.baton.cli(&["upgrade", "--check", "--binary", binary]);
        let said = format!("{}{}", String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&check.stderr));
        assert!(!check.status.success() && said.contains("would get rights, and") && said.contains(why), "{said}");
    }
}

/// Regression: the new process went on with all rights, and started any binary with them.
#[test]
fn a_successor_without_its_broker_ends_and_the_old_process_goes_on() {
    let Some(apart) = Apart::new("a_successor_without_its_broker") else { return };
    let mut conns = apart.talk(4);
    let pid = apart.pid();
    let broker = broker_of(pid).expect("a broker");
    for (signal, tries) in [(Signal::KILL, 20), (Signal::STOP, 4)] {
        // It has to be hit before it has answered for the first time. If it is stopped before it is a program, the process that starts it waits.
        let refused = (0..tries).find_map(|_| {
            let upgrade = std::thread::scope(|scope| {
                let upgrade = scope.spawn(|| apart.baton.cli(&["upgrade"]));
                while !upgrade.is_finished() {
                    if let Some(its) = children(broker).into_iter().find_map(broker_of) {
                        send(its, signal);
                        break;
                    }
                }
                upgrade.join().unwrap()
            });
            let said = String::from_utf8_lossy(&upgrade.stderr).into_owned();
            said.contains("cannot start the process that keeps its rights").then_some(said)
        });
        assert!(refused.is_some(), "{signal:?} came too late each time");
        assert_eq!((apart.pid(), broker_of(pid)), (pid, Some(broker)));
        eventually(LONG, "nothing is left of the new process", || children(broker).is_empty());
        conns.iter_mut().for_each(|conn| conn.echo(7, 1000));
    }
    assert!(apart.baton.cli(&["upgrade"]).status.success());
}

/// Regression: what is checked with rights quotes the lines that have errors.
#[test]
fn the_check_of_an_upgrade_follows_no_link_of_baton_s_user_and_takes_no_other_configuration() {
    let Some(apart) = Apart::with("the_check_of_an_upgrade_follows_no_link", "theirs/backends", |_, config| config)
    else {
        return;
    };
    let [folder, other] = ["theirs", "own/other.toml"].map(|name| apart.lab.directory().join(name));
    chown(&folder, Some(super::NOBODY), None).unwrap();
    let secret = apart.lab.directory().join("secret");
    fs::write(&secret, "the words of root\n").unwrap();
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    fs::remove_file(&apart.list).unwrap();
    symlink(&secret, &apart.list).unwrap();
    fs::write(&other, "the words of another\n").unwrap();
    let other = other.display().to_string();
    let check = |more: &[&str]| {
        let check = apart.baton.cli(&[&["upgrade", "--check"], more].concat());
        format!("{}{}", String::from_utf8_lossy(&check.stdout), String::from_utf8_lossy(&check.stderr))
    };
    assert!(!check(&[]).contains("the words"), "{}", check(&[]));
    let said = check(&["--config", &other]);
    assert!(said.contains("and no other configuration file") && !said.contains("the words"), "{said}");
}

#[test]
fn the_end_of_the_broker_costs_no_flow_and_is_said() {
    let Some(apart) = Apart::new("the_end_of_the_broker") else { return };
    let mut conns = apart.talk(4);
    apart.baton.wait_offloaded(4);
    send(broker_of(apart.pid()).expect("a broker"), Signal::KILL);
    apart.baton.wait_log(&["the process that keeps Baton's rights has ended", "baton evacuate"]);
    let said = apart.baton.order(&["status"]);
    assert!(said.contains("The process that keeps Baton's rights has ended"), "{said}");
    conns.iter_mut().for_each(|conn| conn.echo(7, 50_000));
    let mut born = apart.lab.client.connect(apart.lab.lb.v4(443));
    born.echo(1, 1000);
    let refused = apart.baton.cli(&["upgrade"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("the process that has the rights for it, has ended"), "{said}");
    conns.iter_mut().for_each(|conn| conn.echo(8, 50_000));
    born.echo(2, 1000);
    // The list that only root may read is what it was.
    write_list(&apart.list, &apart.lab, 2);
    eventually(LONG, "the failure to be told", || !apart.baton.events_of("discovery_failed").is_empty());
    assert_eq!(apart.backends().len(), 1);
}

/// Regression: it said that the configuration has an error, and that it should be a readable file, which it was.
#[test]
fn a_reload_without_a_broker_does_not_blame_the_file() {
    let Some(apart) = Apart::new("a_reload_without_a_broker") else { return };
    let file = config::Paths::below(&apart.lab.directory().join("own")).config;
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let broker = broker_of(apart.pid()).expect("a broker");
    for (signal, why, advice) in
        [(Signal::STOP, "does not answer", "kill -CONT"), (Signal::KILL, "has ended", "run `baton evacuate`")]
    {
        send(broker, signal);
        for command in [vec!["reload"], vec!["diff", file.to_str().unwrap()]] {
            let refused = apart.baton.cli(&command);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && !said.contains("has 1 error") && !said.contains("expected"), "{said}");
            let wanted = ["the running configuration stays", "baton-broker", why, advice];
            assert!(wanted.iter().all(|wanted| said.contains(wanted)), "{said}");
        }
    }
    let refused = apart.baton.events_of("reload_refused");
    assert!(refused.iter().all(|it| it.to_string().contains("baton-broker")), "{refused:?}");
    apart.lab.client.connect(apart.lab.lb.v4(443)).echo(1, 1000);
}

#[test]
fn a_broker_that_hangs_delays_what_it_is_asked_for_and_nothing_else() {
    let Some(apart) = Apart::new("a_broker_that_hangs") else { return };
    let mut conns = apart.talk(4);
    let broker = broker_of(apart.pid()).expect("a broker");
    send(broker, Signal::STOP);
    write_list(&apart.list, &apart.lab, 2);
    let watch = Stopwatch::start();
    // Long enough for Baton to ask more than once.
    while watch.elapsed() < std::time::Duration::from_secs(12) {
        apart.lab.client.connect(apart.lab.lb.v4(443)).echo(1, 1000);
        conns.iter_mut().for_each(|conn| conn.echo(2, 1000));
        let (status, why) = apart.baton.http("/livez").unwrap();
        assert_eq!(status, 200, "{why}");
    }
    assert_eq!(apart.backends().len(), 1);
    assert!(!apart.baton.events_of("discovery_failed").is_empty());
    send(broker, Signal::CONT);
    eventually(LONG, "the new list", || apart.backends().len() == 2);
}
