//! The flight recorder: what can be said after the process is gone.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::lab::baton::BINARY;
use crate::lab::*;

/// A lab whose Baton records.
struct Recorded {
    lab: Lab,
    baton: Baton,
    directory: PathBuf,
}

impl Recorded {
    fn start(lab: Lab, adjust: impl FnOnce(Config) -> Config) -> Self {
        let directory = lab.directory().join("recorder");
        let baton = lab.start(&adjust(lab.config()).recording(&directory));
        Self { lab, baton, directory }
    }

    /// What a command prints that reads the files, without an instance.
    #[track_caller]
    fn offline(&self, arguments: &[&str]) -> String {
        let config = self.baton.paths.config.to_str().expect("UTF-8");
        let Output { status, stdout, stderr } =
            std::process::Command::new(BINARY).args(arguments).args(["-c", config]).output().expect("the binary runs");
        let said = String::from_utf8(stdout).expect("UTF-8");
        assert!(status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&stderr));
        said
    }

    /// The events in the files, of one kind.
    #[track_caller]
    fn recorded(&self, kind: &str) -> Vec<Value> {
        let said = self.offline(&["--json", "events", "--flows", "--since", "1h"]);
        let events = said.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        events.filter(|event: &Value| event["event"] == kind).collect()
    }
}

#[test]
fn events_and_ended_flows_outlive_a_killed_process_an_upgrade_and_the_next_process() {
    let Some(lab) = Lab::new("recorder") else { return };
    let _servers = lab.echo_everywhere();
    let mut it = Recorded::start(lab, |config| config);
    it.lab.client.connect(it.lab.lb.v4(6443)).echo(1, 1000);
    it.baton.wait_ended("client_closed", 1);
    let mut kept = it.lab.client.connect(it.lab.lb.v4(6443));
    kept.echo(2, 1000);
    let old = it.baton.status()["instance"]["pid"].clone();
    it.baton.order(&["upgrade"]);
    let new_pid = it.baton.status()["instance"]["pid"].clone();
    assert_ne!(old, new_pid);
    let new = Stranger::new(new_pid.as_i64().expect("a number"));
    kept.echo(3, 1000);
    it.baton.order(&["drain", "b1"]);
    drop(kept);
    it.baton.wait_ended("client_closed", 2);
    eventually(LONG, "both ends are on disk", || it.recorded("flow_ended").len() == 2);
    new.kill();
    assert_eq!(it.recorded("started").len(), 2, "each process says it once");
    let first = it.offline(&["explain", "event:0"]);
    assert!(first.contains("1 earlier process has an event 0 of its own"), "{first}");
    assert_eq!(it.recorded("upgrade_finished").len(), 1);
    let drained = it.recorded("order_received");
    assert!(drained.iter().any(|order| order["order"] == "drain b1"), "{drained:?}");
    let ends = it.recorded("flow_ended");
    assert_eq!(ends.len(), 2, "{ends:?}");
    let said = it.offline(&["events", "--since", "1h"]);
    assert!(said.contains("uid 0 (process") && said.contains("Z  "), "{said}");
    let none = it.offline(&["events", "--at", "1970-01-01T00:00Z", "--for", "1h"]);
    assert_eq!(none, "");
    // Regression: of an instance that had been killed, the fault before that was told, and nothing of its end.
    let ended = "No instance answers, and the record ends at ";
    let said = it.offline(&["explain", "last"]);
    assert!(said.starts_with(ended) && said.contains("without a stop"), "{said}");
    let bundle = it.lab.directory().join("killed.tar");
    it.offline(&["bundle", "--output", bundle.to_str().unwrap()]);
    let said = it.offline(&["explain", "last", "--from", bundle.to_str().unwrap()]);
    assert!(said.starts_with(ended), "{said}");

    // The next process goes on, in files of its own.
    it.baton = Baton::start_with(&it.lab.lb, it.lab.directory());
    it.baton.wait_until_ready();
    eventually(LONG, "the third start is on disk", || it.recorded("started").len() == 3);
    eventually(LONG, "it says how the process before it ended", || !it.recorded("process_died").is_empty());
    let died = it.recorded("process_died");
    assert_eq!((died.len(), &died[0]["pid"]), (1, &new_pid), "not the one that was upgraded: {died:?}");
    let said = it.offline(&["explain", "last"]);
    assert!(said.contains("The process before it ended without a stop"), "{said}");
    let status = it.baton.status();
    assert_eq!(status["recorder"]["directory"], it.directory.to_str().expect("UTF-8"));
    assert_eq!((&status["recorder"]["dropped_total"], &status["recorder"]["fault"]), (&0.into(), &Value::Null));
}

/// Regression: a probe that was faster than the rest of a start was told before it, and counted as the former process's: of the loss after it
/// was said that the first probe had decided it.
#[test]
fn the_first_event_of_a_process_is_its_start() {
    let Some(lab) = Lab::new("first event") else { return };
    let _servers = lab.echo_everywhere();
    let mut it = Recorded::start(lab, |config| config);
    for starts in 1..=6 {
        eventually(LONG, "the start is on disk", || it.recorded("started").len() == starts);
        it.baton.process.kill();
        it.baton = Baton::start_with(&it.lab.lb, it.lab.directory());
        it.baton.wait_until_ready();
    }
    let numbers: Vec<_> = it.recorded("started").iter().map(|start| start["number"].clone()).collect();
    assert!(numbers.iter().all(|number| *number == 0), "{numbers:?}");
}

/// Regression: whoever recorded nothing could not ask for what lives either.
#[test]
fn a_flow_that_lives_is_explained_where_nothing_is_recorded() {
    let Some(lab) = Lab::new("not recorded") else { return };
    let _servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    let mut kept = lab.client.connect(lab.lb.v4(6443));
    kept.echo(1, 1000);
    let id = baton.flows()[0]["id"].as_str().expect("an id").to_owned();
    let said = baton.order(&["explain", &id]);
    assert!(said.starts_with(&format!("Flow {id} of ")), "{said}");
    // By its client and by its source; and regression: in a bundle nothing was known of it.
    eventually(LONG, "its source is known", || baton.flows()[0]["source"].is_string());
    let flow = baton.flows()[0].clone();
    let bundle = lab.directory().join("living.tar");
    let bundle = bundle.to_str().expect("UTF-8");
    baton.order(&["bundle", "--output", bundle]);
    for subject in [&*id, flow["client"].as_str().unwrap(), flow["source"].as_str().unwrap()] {
        let said = baton.order(&["explain", subject]);
        assert!(said.starts_with(&format!("Flow {id} of ")) && said.contains("ago."), "{said}");
        let said = baton.order(&["explain", "--from", bundle, subject]);
        assert!(said.starts_with(&format!("Flow {id} of ")) && said.contains("when the bundle was made"), "{said}");
    }
    let said = baton.order(&["explain", "--from", bundle, &lab.client.v4.to_string()]);
    assert!(said.contains("has 1 flow here now") && said.contains("when the bundle was made"), "{said}");
}

/// Regression: commands waited a minute, and `bundle` several, for an instance that hung: it takes connections, and never answers.
#[test]
fn an_instance_that_hangs_is_soon_given_up_and_its_record_explained() {
    let Some(lab) = Lab::new("hung instance") else { return };
    let _servers = lab.echo_everywhere();
    let it = Recorded::start(lab, |config| config);
    it.baton.order(&["drain", "b1"]);
    eventually(LONG, "the drain is on disk", || !it.recorded("backend_changed").iter().all(|it| it["to"] == "ready"));
    it.baton.process.stop();
    let bundle = it.lab.directory().join("ticket.tar");
    let bundle = ["bundle", "--output", bundle.to_str().expect("UTF-8")];
    let config = it.baton.paths.config.to_str().expect("UTF-8");
    let commands: [(&[&str], &str); 4] = [
        (&["explain", "b1"], "draining"),
        (&["events", "--since", "1h"], "draining"),
        (&bundle, "recorder with"),
        (&["status"], "it may be stuck, or stopped"),
    ];
    for (command, expected) in commands {
        let watch = Stopwatch::start();
        let output = std::process::Command::new(BINARY).args(command).args(["-c", config]).output();
        let Output { stdout, stderr, .. } = output.expect("the binary runs");
        let said = [stdout, stderr].map(|it| String::from_utf8(it).expect("UTF-8")).concat();
        assert!(said.contains(expected), "{command:?}: {said}");
        assert!(watch.elapsed() < secs(30), "{command:?} took {:?}", watch.elapsed());
    }
    it.baton.process.go_on();
}

/// Lets a backend die after an order, and asks for what came of both.
#[track_caller]
fn assert_it_remembers(lab: &Lab, servers: [Server; 3], baton: &Baton, why: &str) {
    let probed = || baton.events_of("backend_changed").iter().any(|event| event["backend"] == "b1");
    eventually(LONG, "b1 was probed", probed);
    for other in ["b2", "b3"] {
        baton.order(&["eject", other]);
    }
    let mut flow = lab.client.connect(lab.lb.v4(6443));
    flow.echo(1, 1000);
    let id = baton.flows()[0]["id"].as_str().expect("an id").to_owned();
    baton.order(&["kill", &id]);
    drop(servers);
    baton.wait_health("b1", "ejected", LONG);
    let said = |arguments: &[&str]| {
        let Output { status, stdout, stderr } = baton.cli(arguments);
        let [said, notes] = [stdout, stderr].map(|it| String::from_utf8(it).expect("UTF-8"));
        assert!(status.success(), "{arguments:?}: {said}{notes}");
        assert!(notes.contains("the running instance answers from its memory alone, which goes back to "), "{notes}");
        assert!(notes.contains(why) && notes.lines().count() == 1, "{notes}");
        said
    };
    let of_backend = said(&["explain", "b1"]);
    assert!(
        of_backend.contains("b1: ready → ejected: connection refused") && of_backend.contains("fall = "),
        "{of_backend}"
    );
    let of_flow = said(&["explain", &id]);
    assert!(of_flow.contains("for the reason killed:"), "{of_flow}");
    assert!(said(&["explain", "last"]).contains("ejected"));
    assert!(said(&["events", "--since", "1h"]).contains("orders: baton eject b2"));
    let ends = said(&["events", "--flows", "--since", "1h"]);
    assert!(ends.contains(&format!("flow {id} ")), "{ends}");
    let replay = baton.cli(&["replay", "--once"]);
    let refused = String::from_utf8_lossy(&replay.stderr).into_owned();
    assert!(!replay.status.success() && refused.contains(why), "{refused}");
    assert!(refused.contains("`baton explain` and `baton events --since TIME` answer from its memory"), "{refused}");
    // On another machine, too.
    let bundle = lab.directory().join("ticket.tar");
    let bundle = bundle.to_str().expect("UTF-8");
    baton.order(&["bundle", "--output", bundle]);
    assert_eq!(baton.order(&["explain", "--from", bundle, "b1"]), of_backend);
}

/// Regression: an instance whose recorder was off could not be asked why it had ended a flow a minute before, though it knew.
#[test]
fn what_an_instance_remembers_is_explained_where_the_recorder_is_off() {
    let Some(lab) = Lab::new("remembered") else { return };
    let servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config());
    assert_it_remembers(&lab, servers, &baton, "size_mb in [recorder] is 0");
}

/// Regression: `baton explain` failed where the recorder's directory could not be made.
#[test]
fn what_an_instance_remembers_is_explained_where_the_recorder_has_no_directory() {
    let Some(lab) = Lab::new("remembered, no directory") else { return };
    let servers = lab.echo_everywhere();
    let baton = lab.start(&lab.config().recording(&lab.directory().join("nowhere/recorder")));
    assert_it_remembers(&lab, servers, &baton, "No such file or directory");
}

/// Regression: on a disk that was full at the start `baton explain` told what an earlier process had recorded, as if it were the last.
#[test]
fn what_an_instance_remembers_is_told_with_the_records_of_before_the_disk_was_full() {
    let Some(lab) = Lab::new("remembered, full disk") else { return };
    let _servers = lab.echo_everywhere();
    let disk = SmallDisk::new(lab.directory().join("recorder"));
    let mut it = Recorded::start(lab, |config| config);
    it.baton.order(&["drain", "b3"]);
    eventually(LONG, "the order is on disk", || it.recorded("order_received").len() == 1);
    it.baton.process.kill();
    let mut full = std::fs::File::create(disk.0.join("filler")).expect("a file");
    while std::io::Write::write_all(&mut full, &[0; 256]).is_ok() {}
    it.baton = Baton::start_with(&it.lab.lb, it.lab.directory());
    it.baton.wait_until_ready();
    eventually(LONG, "it cannot record", || it.baton.status()["recorder"]["fault"].is_string());
    it.baton.order(&["eject", "b2"]);
    let said = it.baton.order(&["--json", "events", "--since", "1h"]);
    let events: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let orders = ["drain b3", "eject b2"].map(|order| events.iter().filter(|it| it["order"] == order).count());
    assert_eq!(orders, [1, 1], "{said}");
    let last = it.baton.order(&["explain", "b2"]);
    assert!(last.contains("→ ejected") && last.contains("orders: baton eject b2"), "{last}");
}

/// A file system of its own, which is soon full.
struct SmallDisk(PathBuf);

impl SmallDisk {
    #[track_caller]
    fn new(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).expect("a directory");
        let mount = ["-t", "tmpfs", "-o", "size=256k", "baton-test", path.to_str().expect("UTF-8")];
        assert!(std::process::Command::new("mount").args(mount).status().expect("mount runs").success());
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Regression: on a full disk the recorder left one empty file a second, tens of thousands in a night.
#[test]
fn a_full_disk_leaves_no_empty_files_and_is_written_to_again_once_it_has_room() {
    let Some(lab) = Lab::new("recorder full disk") else { return };
    let _servers = lab.echo_everywhere();
    let disk = SmallDisk::new(lab.directory().join("recorder"));
    let it = Recorded::start(lab, |config| config);
    let files = || {
        let files = std::fs::read_dir(&disk.0).expect("a directory").map(|file| file.expect("a file"));
        files.filter(|file| file.file_name() != "filler").collect::<Vec<_>>()
    };
    eventually(LONG, "it records", || !files().is_empty());
    let filler = disk.0.join("filler");
    let mut full = std::fs::File::create(&filler).expect("a file");
    let fill = |full: &mut std::fs::File| while std::io::Write::write_all(full, &[0; 256]).is_ok() {};
    fill(&mut full);
    let before = files().len();
    let dropped = || it.baton.status()["recorder"]["dropped_total"].as_u64().expect("a number");
    let had = dropped();
    let watch = Stopwatch::start();
    // The last page of a file takes some events more; then it tries once a second.
    eventually(LONG, "it has tried several times", || {
        fill(&mut full);
        it.baton.order(&["drain", "b2"]);
        it.baton.order(&["undrain", "b2"]);
        dropped() > had && watch.elapsed() > secs(4)
    });
    assert!(it.baton.status()["recorder"]["fault"].is_string());
    let after = files();
    assert!(after.len() <= before + 1, "{before} files have become {}", after.len());
    let empty = after.iter().filter(|file| file.metadata().expect("a file").len() == 0).count();
    assert_eq!(empty, 0);
    it.baton.order(&["eject", "b3"]);
    std::fs::remove_file(&filler).expect("a file");
    drop(full);
    eventually(LONG, "it records again", || !it.recorded("records_dropped").is_empty());
    // Regression: the files lacked the events of the gap, and the running instance, which knew them, was not asked.
    let last = it.baton.order(&["explain", "b3"]);
    assert!(last.contains("→ ejected") && last.contains("orders: baton eject b3"), "{last}");
}

/// Regression guard: events of the last moments before a kill are those that explain it.
#[test]
fn an_event_is_on_disk_at_once_so_that_a_kill_does_not_lose_it() {
    let Some(lab) = Lab::new("recorder at once") else { return };
    let _servers = lab.echo_everywhere();
    let it = Recorded::start(lab, |config| config);
    let records = || std::fs::read_dir(&it.directory).is_ok_and(|mut files| files.next().is_some());
    eventually(LONG, "it records", records);
    it.baton.order(&["drain", "b2"]);
    let is_drain = |order: &Value| order["order"] == "drain b2";
    let is_draining = |event: &Value| event["backend"] == "b2" && event["to"] == "draining";
    let are_there =
        || it.recorded("order_received").iter().any(is_drain) && it.recorded("backend_changed").iter().any(is_draining);
    // Longer than a read of the files takes on a busy machine, and no longer.
    eventually(secs(5), "the events are on disk", are_there);
    it.baton.process.kill();
    assert!(are_there());
}

/// What the night's on-call gets: nothing but the bundle.
#[test]
fn from_a_bundle_alone_a_hung_apiserver_is_explained_with_the_figures_of_the_status_and_of_a_drill() {
    const KUBELETS: u64 = 4;
    const EVERY_S: u64 = 1;
    let Some(lab) = Lab::new("bundle") else { return };
    let certificates = Certificates::make(&lab);
    let [b1, _b2, _b3] = lab.backends().map(|host| StandIn::start(&lab, &certificates, host));
    let it = Recorded::start(lab, |config| {
        // Nobody moves its flows before it hangs.
        let config = config.https(&certificates.ca()).cluster("lease_renew", format!("{EVERY_S}s"));
        config.process("reset_within", "200ms").rebalance("when", "ordered")
    });
    for other in ["b2", "b3"] {
        it.baton.order(&["drain", other]);
    }
    let server = it.lab.lb.v4(6443).to_string();
    let drill = Drill::start(&it.lab, &certificates, &server, KUBELETS, EVERY_S);
    eventually(LONG, "all kubelets are connected", || it.baton.flows_of("b1") == KUBELETS);
    drill.pass(secs(2 * EVERY_S));
    for other in ["b2", "b3"] {
        it.baton.order(&["undrain", other]);
        it.baton.wait_health(other, "ready", LONG);
    }
    let flows = it.baton.flows_of("b1");
    assert_eq!(flows, KUBELETS);
    let living = it.baton.flows()[0]["id"].as_str().expect("an id").to_owned();
    let said = it.baton.order(&["explain", &living]);
    assert!(said.contains(" goes on: it is proxied, began "), "{said}");

    b1.process.stop();
    it.baton.wait_health("b1", "ejected", LONG);
    it.baton.wait_ended("backend_ejected", flows);
    // Each has a heartbeat again, by another backend.
    drill.pass(secs(3 * EVERY_S));
    b1.process.go_on();
    it.baton.wait_health("b1", "ready", LONG);
    eventually(LONG, "a sample has the kubelets at other backends", || {
        let last: Value = serde_json::from_str(&it.offline(&["--json", "replay"])).expect("JSON");
        last["flows"] == flows
    });
    let status = it.baton.status();
    let changes: Vec<_> =
        it.baton.events_of("backend_changed").into_iter().filter(|event| event["backend"] == "b1").collect();
    let ejected = changes.iter().find(|event| event["to"] == "ejected").expect("it was");
    let after = changes.iter().find(|event| event["number"].as_u64() > ejected["number"].as_u64()).expect("it ended");
    let live = it.baton.order(&["explain", "b1"]);
    let living = it.baton.flows().into_iter().find(|flow| flow["source"].is_string()).expect("the drill's clients");
    let source = living["source"].as_str().expect("an address");
    let bundle = it.lab.directory().join("ticket.tar");
    let said = it.baton.order(&["bundle", "--output", bundle.to_str().expect("UTF-8")]);
    assert!(
        said.contains(
            "status.json, nodes.json, peers.json, vip.json, flows.json, baton.toml, check-host.txt, recorder with"
        ),
        "{said}"
    );
    assert!(
        !it.baton.cli(&["bundle", "--output", bundle.to_str().expect("UTF-8")]).status.success(),
        "it overwrites none"
    );

    let (verdict, longest) = drill.end();

    // Nothing is left but the bundle.
    let Recorded { lab, baton, directory } = it;
    baton.process.kill();
    std::fs::remove_dir_all(directory).expect("it is there");
    std::fs::remove_file(&baton.paths.config).expect("it is there");
    let read = |arguments: &[&str]| {
        let mut command = std::process::Command::new(BINARY);
        command.args(arguments).args(["--from", bundle.to_str().expect("UTF-8")]).env("BATON_SOCKET", "/nonexistent");
        let Output { status, stdout, stderr } = command.output().expect("the binary runs");
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).expect("UTF-8")
    };
    assert_eq!(read(&["explain", "b1"]), live);
    assert!(live.contains("b1: ready → ejected: no answer within"), "{live}");
    assert!(live.contains("fall = 2 decided it") && live.contains("reset_within = 200 ms"), "{live}");
    assert!(live.lines().count() <= 6, "{live}");
    let who = read(&["who", source]);
    assert!(who.starts_with(living["client"].as_str().expect("an address")), "{who}: {living}");
    println!("explain, from a bundle alone:\n{live}");
    let explained: Value = serde_json::from_str(&read(&["--json", "explain", "b1"])).expect("JSON");
    assert_eq!(explained["at_unix_ms"], ejected["at_unix_ms"]);
    assert_eq!(explained["flows_ended"]["backend_ejected"], status["totals"]["ended_total"]["backend_ejected"]);
    assert_eq!(explained["flows_ordered"], flows);
    println!("the drill: {verdict}");
    assert_eq!(
        (&verdict["disconnections"], &verdict["not_ready"]),
        (&explained["flows_ordered"], &0.into()),
        "{verdict}"
    );
    let computed = ms(explained["longest_gap_ms"].as_u64().expect("a number"));
    // From the last heartbeat before the silence to the reset is at least the time of `fall` probes. Reconnects come on top, on a busy machine too.
    assert!(longest > ms(500) + secs(EVERY_S) && longest < computed + secs(4), "{computed:?}: {verdict}");
    let number = |event: &Value| event["at_unix_ms"].as_u64().expect("a number");
    assert_eq!(explained["lasted_ms"], number(after) - number(ejected));
    let within = explained["ended_within_ms"].as_u64().expect("a number");
    assert!(within <= 2000, "{within} ms until the last of {flows} flows was reset");
    let ends = read(&["--json", "events", "--flows"]);
    let ends = ends.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let is_reset = |event: &Value| event["event"] == "flow_ended" && event["reason"] == "backend_ejected";
    let flow = ends.into_iter().find(is_reset).expect("it is there");
    let why = read(&["explain", flow["flow"].as_str().expect("an id")]);
    assert!(why.contains("for the reason backend_ejected") && why.contains("no answer within"), "{why}");
    let last = read(&["explain", "last"]);
    assert!(last.starts_with(&read(&["explain", &format!("event:{}", ejected["number"])])), "{last}");
    println!("the last fault:\n{last}");

    let at = live.strip_prefix("At ").and_then(|said| said.split_once("Z ")).expect("its time").0.to_owned() + "Z";
    let moment: Value = serde_json::from_str(&read(&["--json", "replay", "--at", &at])).expect("JSON");
    let then = moment["backends"].as_array().expect("a list").iter().find(|it| it["name"] == "b1").expect("b1");
    assert_eq!((&then["state"], &then["flows"]), (&"ejected".into(), &flows.into()), "{moment}");
    assert_eq!(then["since_unix_ms"], ejected["at_unix_ms"]);
    // The order to its flows may come in the same millisecond.
    assert!(moment["events"].as_array().expect("a list").iter().rev().take(2).any(|it| it == ejected), "{moment}");
    let shown = read(&["replay", "--at", &at, "--once"]);
    assert!(shown.contains(" ejected  b1 ") || shown.contains("ejected  b1 "), "{shown}");
    assert!(shown.contains("apiserver/b1: ready → ejected: no answer within") && shown.contains("● events"), "{shown}");
    // Regression: it drew the last second alone.
    let shown = read(&["replay", "--once", "--for", "5m"]);
    let scale = shown.lines().find(|line| line.contains("● events")).expect("the scale").to_owned();
    let second = |time: Option<&str>| {
        let time = time.and_then(|it| it.trim().strip_suffix('Z')).expect("a time").split(':');
        time.fold(0, |sum, part| sum * 60 + part.parse::<u64>().expect("a number"))
    };
    let [first, last] = [scale.split_whitespace().next(), scale.split_whitespace().last()].map(second);
    assert_eq!((last + 86_400 - first) % 86_400, 300, "{shown}");
    assert!(shown.contains(" ready  b1 ") || shown.contains("ready  b1 "), "it is the last moment: {shown}");
    // As a page: at the moment, and at the end, when the charts have all of it.
    let page = read(&["replay", "--at", &at, "--page", "-"]);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n") && !page.contains("<script"), "{page}");
    assert!(page.contains(&format!("as it was at {}", &at[..19])), "{at}: {page}");
    let rows: Vec<_> = page.split("<tr>").filter(|row| row.contains("<b>b1</b>")).collect();
    assert!(
        rows.len() == 1 && rows[0].contains("pill bad\">ejected") && rows[0].contains("no answer within"),
        "{rows:?}"
    );
    assert!(page.contains(&format!("{flows} of {flows} have ended since")), "{page}");
    assert_eq!(page.matches("pill notice\">backend_ejected").count() as u64, flows, "{page}");
    let file = lab.directory().join("night.html");
    let said = read(&["replay", "--page", file.to_str().expect("UTF-8")]);
    assert!(said.contains("night.html has the page as it was at "), "{said}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("it is there").permissions());
    assert_eq!(mode & 0o777, 0o600, "it has the addresses of clients");
    let mut again = std::process::Command::new(BINARY);
    let again =
        again.args(["replay", "--page", file.to_str().expect("UTF-8"), "--from", bundle.to_str().expect("UTF-8")]);
    assert!(!again.output().expect("the binary runs").status.success(), "it overwrites none");
    let page = std::fs::read_to_string(&file).expect("it is there");
    let chart =
        |id: &str| page.split(&format!("<figure class=\"chart\" id=\"{id}\">")).nth(1).expect("a chart").to_owned();
    for drawn in ["chart-flows", "chart-new", "chart-ends", "bands-0"] {
        let of_it = chart(drawn);
        let of_it = of_it.split("</figure>").next().expect("its end");
        assert!(of_it.contains("<path class=\"line") || of_it.contains("<path class=\"area"), "{drawn}: {of_it}");
    }
    assert!(chart("chart-ends").contains("<span>backend_ejected</span>"), "{page}");
    assert!(page.contains("class=\"when bad\""), "the ejection is on the scale: {page}");
    let last: Value = serde_json::from_str(&read(&["--json", "replay"])).expect("JSON");
    assert!(last["process"]["pid"].is_u64() && last["flows"] == flows, "the kubelets are connected anew: {last}");
    let mut command = std::process::Command::new(BINARY);
    command.args(["replay", "--once", "--at", "2001-01-01T00:00Z", "--from", bundle.to_str().expect("UTF-8")]);
    let refused = command.output().expect("the binary runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success()
            && said.contains("nothing from 2001-01-01 00:00:00Z")
            && said.contains(" covers from "),
        "{said}"
    );
    drop(lab);
}
