//! The fault matrix where the configuration is bad or changes fast, rows 25 and 26; and the four ways to reload.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use rustix::process::Signal;

use crate::lab::*;

#[test]
fn row25_a_bad_file_changes_nothing_and_is_shown_everywhere() {
    let Some(lab) = Lab::new("row25") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 100_000);
    let good = std::fs::read_to_string(&baton.paths.config).unwrap();
    assert_eq!(baton.metric("baton_config_last_reload_successful", &[]), 1.0);

    let huge = "# nothing\n".repeat(10_000_000);
    let many = format!("{good}\n{}", "[[frontend.backend]]\nname = \"x\"\naddress = \"10.0.0.1:1\"\n".repeat(50_000));
    let bad: [(&str, Vec<u8>); 7] = [
        ("malformed", b"[[frontend".to_vec()),
        ("not text", vec![0xff, 0, 1, 2]),
        ("empty", Vec::new()),
        ("contradictory", good.replace("kind = \"tcp\"", "kind = \"tcp\"\nfall = 5\nreset_fall = 2").into()),
        ("unknown key", good.replace("kind = \"tcp\"", "kind = \"tcp\"\nintervall = \"1s\"").into()),
        ("huge", huge.into()),
        ("50,000 backends of one name", many.into()),
    ];
    let before_kib = baton.process.rss_kib();
    for (what, content) in bad {
        std::fs::write(&baton.paths.config, content).unwrap();
        refused(&baton, what);
        conn.echo(2, 10_000);
    }
    std::fs::remove_file(&baton.paths.config).unwrap();
    refused(&baton, "missing");
    std::fs::create_dir(&baton.paths.config).unwrap();
    refused(&baton, "a directory");
    std::fs::remove_dir(&baton.paths.config).unwrap();
    lab.lb.run(&format!("mkfifo {}", baton.paths.config.display()));
    refused(&baton, "a pipe that nobody writes to");
    std::fs::remove_file(&baton.paths.config).unwrap();
    assert!(baton.http("/livez").is_some_and(|(status, _)| status == 200));
    let grown = baton.process.rss_kib().saturating_sub(before_kib);
    println!("row 25: after all bad files Baton had grown by {grown} KiB");
    assert!(grown < 64 << 10, "{grown} KiB");
    assert!(baton.status()["instance"]["config"].to_string().contains("error"), "the status shows it");
    assert!(!baton.events_of("reload_refused").is_empty());

    conn.echo(3, 100_000);
    lab.client.connect(lab.lb.v4(6443)).echo(4, 100_000);
    std::fs::write(&baton.paths.config, good).unwrap();
    baton.order(&["reload"]);
    assert_eq!(baton.metric("baton_config_last_reload_successful", &[]), 1.0);
    conn.echo(5, 100_000);
    drop(conn);
    baton.rests();
}

/// The file as it is now is refused, and that can be seen.
#[track_caller]
fn refused(baton: &Baton, what: &str) {
    let watch = Stopwatch::start();
    let output = baton.cli(&["reload"]);
    assert!(!output.status.success(), "{what}: applied");
    assert!(!output.stderr.is_empty(), "{what}: refused without a word");
    let said = String::from_utf8_lossy(&output.stderr);
    println!("row 25: {what}: refused in {:?}: {:.100}", watch.elapsed(), said.lines().next().unwrap_or_default());
    assert!(watch.unstalled() < secs(5), "{what}: {:?}", watch.elapsed());
    assert_eq!(baton.metric("baton_config_last_reload_successful", &[]), 0.0, "{what}");
    for backend in ["b1", "b2", "b3"] {
        assert_eq!(baton.health_state(backend), "ready", "{what}");
    }
}

#[test]
fn row26_a_hundred_reloads_under_load_fail_no_connect_and_lose_no_flow() {
    let Some(lab) = Lab::new("row26") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut old: Vec<_> = (0..12).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    let (connects, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (lab, connects, done) = (&lab, &connects, &done);
            scope.spawn(move || {
                while !done.load(SeqCst) {
                    let to = if thread == 0 { lab.lb.v6(6443) } else { lab.lb.v4(6443) };
                    let mut conn = lab.client.connect(to);
                    conn.echo(connects.fetch_add(1, SeqCst), 20_000);
                }
            });
        }
        let steadily = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(SeqCst) {
                old.iter_mut().for_each(|conn| conn.echo(rounds, 5_000));
                rounds += 1;
            }
            rounds
        });
        // A panic here must still end the threads above.
        let ending = SetsAtEnd(&done);
        let watch = Stopwatch::start();
        for number in 0..100 {
            let config = lab.config().of_backend("b1", "weight", 1 + number % 5);
            let config = if number % 2 == 0 { config.frontend("listen", more_addresses(&lab)) } else { config };
            let config = config.frontend("balance", if number % 3 == 0 { "round_robin" } else { "least_conn" });
            baton.write_config(&config);
            baton.order(&["reload"]);
        }
        let took = watch.elapsed();
        drop(ending);
        let rounds = steadily.join().unwrap();
        let connects = connects.load(SeqCst);
        println!("row 26: 100 reloads in {took:?}; {connects} connects and {rounds} × 12 echoes without a failure");
        assert!(connects > 100, "{connects}");
    });
    let ended = baton.ended();
    assert_eq!(ended.keys().collect::<Vec<_>>(), ["client_closed"], "{ended:?}");
    let accepted = baton.status()["totals"]["accepted_total"].as_u64().unwrap();
    assert!(accepted >= connects.load(SeqCst) + 12, "statistics survive a reload: {accepted}");
    drop(old);
    baton.write_config(&lab.config());
    baton.order(&["reload"]);
    baton.rests();
}

fn more_addresses(lab: &Lab) -> Vec<String> {
    vec![lab.lb.v4(6443).to_string(), lab.lb.v6(6443).to_string(), lab.lb.v4(7443).to_string()]
}

#[test]
fn the_command_the_signal_a_new_file_and_a_swapped_symlink_all_reload() {
    let Some(lab) = Lab::new("reload") else { return };
    let _servers = lab.echo_everywhere();
    // As Kubernetes mounts a ConfigMap: the file is a link into ..data, which is a link to a directory.
    let place = |number: u32| lab.directory().join(format!("..{number}"));
    let write = |number: u32, config: &Config| {
        std::fs::create_dir_all(place(number)).unwrap();
        let socket = lab.directory().join("admin.sock");
        std::fs::write(place(number).join("baton.toml"), config.text(&socket)).unwrap();
    };
    let data = lab.directory().join("..data");
    write(1, &lab.config());
    symlink(place(1), &data).unwrap();
    symlink(data.join("baton.toml"), lab.directory().join("baton.toml")).unwrap();
    let mut baton = Baton::start_with(&lab.lb, lab.directory());
    baton.wait_until_ready();
    baton.wait_for_backends(&["b1", "b2", "b3"]);
    let mut conn = lab.client.connect(lab.lb.v4(6443));
    conn.echo(1, 10_000);
    let weight_is = |weight: u64, way: &str| {
        eventually(LONG, &format!("{way} is noticed"), || baton.backend("b1").is_some_and(|b1| b1["weight"] == weight))
    };

    let swap = |number: u32| {
        let new = lab.directory().join("..data_tmp");
        symlink(place(number), &new).unwrap();
        std::fs::rename(&new, &data).unwrap();
    };
    write(2, &lab.config().of_backend("b1", "weight", 2));
    swap(2);
    println!("a swapped symlink took {:?}", weight_is(2, "a swapped symlink"));

    write(3, &lab.config().of_backend("b1", "weight", 3));
    std::fs::copy(place(3).join("baton.toml"), place(2).join("baton.toml")).unwrap();
    println!("a file written in place took {:?}", weight_is(3, "a file written in place"));

    write(4, &lab.config().of_backend("b1", "weight", 4));
    std::fs::rename(place(4).join("baton.toml"), place(2).join("baton.toml")).unwrap();
    println!("a file renamed over it took {:?}", weight_is(4, "a file renamed over it"));

    let (before, _) = baton.reloads();
    baton.process.signal(Signal::HUP);
    eventually(LONG, "SIGHUP is obeyed", || baton.reloads().0 > before || baton.events_of("reloaded").len() >= 4);
    let said = baton.order(&["reload"]);
    println!("baton reload says: {said}");
    conn.echo(2, 10_000);
    drop(conn);
    baton.rests();
}

#[test]
fn a_new_file_is_noticed_also_while_its_neighbours_are_written_all_the_time() {
    let Some(lab) = Lab::new("reload") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                std::fs::write(lab.directory().join("neighbour"), "busy").unwrap();
                std::thread::sleep(ms(20));
            }
        });
        let _ending = SetsAtEnd(&done);
        baton.write_config(&lab.config().of_backend("b1", "weight", 7));
        let noticed = || baton.backend("b1").is_some_and(|b1| b1["weight"] == 7);
        println!("it took {:?}", eventually(secs(8), "the new file is noticed", noticed));
    });
    baton.rests();
}

#[test]
fn a_removed_backend_drains_and_an_added_one_serves() {
    let Some(lab) = Lab::new("reload") else { return };
    let _servers = lab.echo_everywhere();
    let config = lab.config().frontend("drain_timeout", "2s");
    let baton = lab.start(&config.clone().without_backend("b3"));
    let mut leaving = baton.connect_to(&lab.client, "b1");
    let mut staying = baton.connect_to(&lab.client, "b2");
    let watch = Stopwatch::start();
    baton.write_config(&config.without_backend("b1"));
    baton.order(&["reload"]);
    leaving.echo(1, 100_000);
    baton.wait_health("b3", "ready", LONG);
    let new: Vec<_> = (0..6).map(|_| lab.client.connect(lab.lb.v4(6443))).collect();
    assert!(new.iter().all(|conn| baton.serving(conn) != "b1"));
    assert_eq!(leaving.end(LONG), End::Rst);
    println!("the flow of a removed backend with a drain timer of 2 s was reset after {:?}", watch.elapsed());
    assert!(watch.elapsed() > secs(2), "{:?}", watch.elapsed());
    baton.wait_ended("drain_deadline", 1);
    eventually(LONG, "it is forgotten", || baton.health_state("b1") == "gone");
    staying.echo(2, 100_000);
    drop((leaving, staying, new));
    baton.rests();
}

#[test]
fn a_removed_frontend_accepts_no_more_and_an_added_one_listens() {
    let Some(lab) = Lab::new("reload") else { return };
    let _servers = lab.echo_everywhere();
    let config = lab.config().frontend("drain_timeout", "2s");
    let baton = lab.start(&config);
    let mut old = lab.client.connect(lab.lb.v4(6443));
    old.echo(1, 10_000);
    let listen = vec![lab.lb.v4(7443).to_string()];
    baton.write_config(&config.clone().frontend("name", "other").frontend("listen", listen));
    baton.order(&["reload"]);
    let refused = lab.client.try_connect(lab.lb.v4(6443), LONG).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    old.echo(2, 10_000);
    eventually(LONG, "the new one serves", || {
        let mut conn = lab.client.connect(lab.lb.v4(7443));
        conn.send(1, 1).is_ok() && conn.read_byte().is_ok()
    });
    assert_eq!(old.end(LONG), End::Rst, "its drain timer is over");
    baton.wait_ended("frontend_removed", 1);
    drop(old);
    eventually(LONG, "no flow is left", || baton.flow_count() == 0);
    baton.reasons_are_known();
}
