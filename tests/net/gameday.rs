//! `baton gameday`: what it plays, what stops it, and what it leaves behind.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::fleet::Scene;
use crate::lab::baton::BINARY;
use crate::lab::process::Process;
use crate::lab::*;
use crate::vip::built_in;

/// A game day in the clients' network, with twenty kubelets that have a heartbeat each second.
struct Game {
    process: Process,
    page: PathBuf,
}

impl Game {
    fn start(lab: &Lab, certificates: &Certificates, server: &str, plan: &str) -> Self {
        let (file, page) = (lab.directory().join("plan.toml"), lab.directory().join("report.md"));
        std::fs::write(&file, plan).unwrap();
        let (ca, name) = (certificates.ca().display().to_string(), lab.lb.v4.to_string());
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let (file, shown) = (path(&file), path(&page));
        let command = [BINARY, "gameday", &file, server, "--report", &shown, "--ca", &ca, "--server-name", &name];
        let more = ["-n", "20", "--every", "1s", "--timeout", "1s", "--grace", "20s"];
        let log = lab.directory().join("gameday.log");
        Self { process: lab.client.spawn(&[&command[..], &more[..]].concat(), &log), page }
    }

    /// Its exit code and its page.
    #[track_caller]
    fn end(&self) -> (Option<i32>, String) {
        let status = self.process.wait(secs(90));
        let page = std::fs::read_to_string(&self.page).unwrap_or_default();
        println!("{}\n{page}", self.process.log_text());
        (status.code(), page)
    }
}

/// One instance before two apiserver stand-ins, which knows two nodes.
struct Single {
    lab: Lab,
    certificates: Certificates,
    baton: Baton,
    _stand_ins: [StandIn; 2],
}

impl Single {
    fn new(test: &str) -> Option<Self> {
        let lab = Lab::new(test)?;
        let certificates = Certificates::make(&lab);
        let stand_ins = [&lab.b1, &lab.b2].map(|host| StandIn::start(&lab, &certificates, host));
        let names = lab.directory().join("nodes");
        std::fs::write(&names, format!("{} worker-1\n{} worker-2\n", lab.client.v4, lab.client2.v4)).unwrap();
        let config = lab.config().only(&["b1", "b2"]).https(&certificates.ca()).names(&names);
        let config = config.cluster("lease_renew", "1s").cluster("node_monitor_grace_period", "20s");
        let baton = lab.start(&config);
        for name in ["b1", "b2"] {
            baton.wait_health(name, "ready", LONG);
        }
        Some(Self { lab, certificates, baton, _stand_ins: stand_ins })
    }

    fn server(&self) -> String {
        self.lab.lb.v4(6443).to_string()
    }

    /// The plan's head, and its instance `lb`.
    fn head(&self) -> String {
        format!("silent_max = \"4s\"\nsettle = \"20s\"\n{}", instance("lb", &self.baton))
    }

    fn play(&self, steps: &str) -> Game {
        Game::start(&self.lab, &self.certificates, &self.server(), &(self.head() + steps))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.lab.directory().join(name)
    }
}

fn instance(name: &str, baton: &Baton) -> String {
    format!("[[instance]]\nname = {name:?}\ncommand = [{BINARY:?}, \"--socket\", {:?}]\n", baton.paths.socket)
}

#[test]
fn a_fleet_s_vip_is_evacuated_and_a_backend_ejected_and_the_report_shows_each_gap() {
    let test = "gameday fleet";
    let Some(scene) = Scene::new(test, 2) else { return };
    let certificates = Certificates::make(&scene.lab);
    let _stand_ins = [&scene.lab.b1, &scene.lab.b2].map(|host| StandIn::start(&scene.lab, &certificates, host));
    let config = |number| built_in::config(&scene, number).https(&certificates.ca());
    let all: Vec<_> = (0..2).map(|number| scene.launch(number, &config(number))).collect();
    for (own, other) in [(0, 1), (1, 0)] {
        all[own].baton.wait_health("b1", "ready", LONG);
        all[own].wait_synced(all[other].name);
    }
    let had = built_in::owner(&all);
    let instances: String = all.iter().map(|it| instance(it.name, &it.baton)).collect();
    let plan = format!(
        "silent_max = \"15s\"\n{instances}\
         [[step]]\ntitle = \"the holder is evacuated\"\nat = {:?}\nrun = [\"evacuate\", \"--deadline\", \"5s\"]\n\
         exit_codes = [0, 1]\nundo = [\"evacuate\", \"--cancel\"]\nwatch = \"3s\"\n\
         [[step]]\ntitle = \"b1 is ejected\"\nat = {:?}\nrun = [\"eject\", \"b1\"]\nundo = [\"undrain\", \"b1\"]\nwatch = \"3s\"\n",
        all[had].name,
        all[1 - had].name
    );
    let server = format!("{}:6443", crate::vip::VIP);
    let game = Game::start(&scene.lab, &certificates, &server, &plan);
    eventually(secs(60), "the VIP moves", || built_in::has_vip(&all[1 - had]));
    let (code, page) = game.end();
    assert_eq!(code, Some(0), "{page}");
    assert!(page.contains("**Passed: 2 steps played, the longest time without a heartbeat was "), "{page}");
    assert!(page.contains("| 1 | the holder is evacuated | ") && page.contains("| 2 | b1 is ejected | "), "{page}");
    assert!(
        page.contains("evacuate --cancel` in ") && page.contains(": exit code 1\n") && page.contains("undrain b1` in "),
        "{page}"
    );
    assert!(page.contains(" knows no nodes, so it cannot say which are silent"), "{page}");
    // The eject ends the connections of one backend.
    let lost =
        page.lines().find(|line| line.starts_with("| 2 | ")).unwrap().split('|').nth(5).unwrap().trim().to_owned();
    let (number, reasons) = lost.split_once(' ').expect("a reason");
    assert!(number.parse::<u64>().unwrap() >= 1 && reasons.contains("ejected_by_operator "), "{lost}");
    let picture = std::fs::read_to_string(game.page.with_extension("svg")).unwrap();
    assert!(picture.contains("<polyline") && picture.matches("<rect").count() == 3, "{picture}");
    // Both are as before.
    all[1 - had].baton.wait_health("b1", "ready", LONG);
}

#[test]
fn kubelets_without_a_heartbeat_stop_the_game_day_and_the_fault_is_undone() {
    let Some(it) = Single::new("gameday stopped") else { return };
    let marker = it.file("second");
    let game = it.play(&format!(
        "[[step]]\ntitle = \"a cable | is cut\"\nwatch = \"60s\"\n\
         run = [\"nft\", \"table inet cut {{ chain out {{ type filter hook output priority 0; ip daddr {} drop; }}; }}\"]\n\
         undo = [\"nft\", \"delete table inet cut\"]\n\
         [[step]]\ntitle = \"never\"\nrun = [\"touch\", {marker:?}]\n",
        it.lab.lb.v4
    ));
    let (code, page) = game.end();
    assert_eq!(code, Some(1), "{page}");
    assert!(page.contains("**Stopped in step 1: kubelet node-") && page.contains(", more than 4.0 s"), "{page}");
    assert!(page.contains("| 1 | a cable \\| is cut | ") && page.contains("| **stopped** |"), "{page}");
    assert!(page.contains("| 2 | never | – | – | – | – | left out |"), "{page}");
    assert!(
        !marker.exists() && !it.lab.client.run("nft list tables").contains("cut"),
        "undone, and nothing more is run"
    );
}

#[test]
fn a_node_of_the_cluster_that_falls_silent_stops_the_game_day_although_its_own_kubelets_are_well() {
    let Some(it) = Single::new("gameday nodes") else { return };
    let conn = it.lab.client2.connect(it.lab.lb.v4(6443));
    let began = it.file("began");
    let game = it.play(&format!("[[step]]\ntitle = \"nothing\"\nrun = [\"touch\", {began:?}]\nwatch = \"60s\"\n"));
    eventually(secs(60), "the step has begun", || began.exists());
    drop(conn);
    let (code, page) = game.end();
    assert_eq!(code, Some(1), "{page}");
    assert!(page.contains("**Stopped in step 1: lb said that node worker-2 was silent for "), "{page}");
    assert!(page.contains("- lb watches 2 nodes\n"), "{page}");
}

#[test]
fn a_signal_and_a_command_that_fails_stop_the_game_day_and_the_fault_is_undone() {
    let Some(it) = Single::new("gameday signals") else { return };
    let [began, undone] = ["began", "undone"].map(|name| it.file(name));
    let undo = format!("undo = [\"touch\", {undone:?}]\n");
    let game = it.play(&format!("[[step]]\ntitle = \"long\"\nrun = [\"touch\", {began:?}]\nwatch = \"1h\"\n{undo}"));
    eventually(secs(60), "the step has begun", || began.exists());
    game.process.signal(Signal::INT);
    let (code, page) = game.end();
    assert!(code == Some(1) && page.contains("**Stopped in step 1: somebody stopped it by a signal"), "{page}");
    assert!(undone.exists());

    for (run, said) in [
        ("[\"sh\", \"-c\", \"echo no such host; exit 3\"]", "exit status: 3\n\n    no such host"),
        ("[\"/no/such/program\"]", "it could not be run: No such file or directory"),
        ("[\"sleep\", \"60\"]\nlimit = \"1s\"", "it had not ended after 1.0 s"),
    ] {
        for path in [&undone, &game.page, &game.page.with_extension("svg")] {
            std::fs::remove_file(path).unwrap();
        }
        let (code, page) = it.play(&format!("[[step]]\ntitle = \"fails\"\nrun = {run}\n{undo}")).end();
        assert!(
            code == Some(1) && page.contains("**Stopped in step 1: the command `") && page.contains(said),
            "{page}"
        );
        assert!(undone.exists());
    }
}

#[test]
fn a_game_day_that_cannot_begin_does_nothing_and_leaves_no_report() {
    let Some(it) = Single::new("gameday not begun") else { return };
    let marker = it.file("ran");
    let step = format!("[[step]]\ntitle = \"one\"\nrun = [\"touch\", {marker:?}]\n");
    let not_begun = |server: &str, plan: &str, said: &str| {
        let game = Game::start(&it.lab, &it.certificates, server, plan);
        let (code, page) = game.end();
        let log = game.process.log_text();
        assert!(code == Some(2) && page.is_empty() && log.contains(said), "{log}");
        assert!(!game.page.exists() && !game.page.with_extension("svg").exists() && !marker.exists());
    };
    let nobody = it.lab.b3.v4(1).to_string();
    not_begun(&nobody, &(it.head() + &step), "the game day has not begun: kubelet node-");
    let gone = it.head().replace(it.baton.paths.socket.to_str().unwrap(), "/no/such.sock");
    not_begun(&it.server(), &(gone + &step), "the game day has not begun: lb is not ready: ");
    not_begun(&it.server(), &it.head(), "step: expected at least one [[step]]");

    // A report that is there stays, and only --plan runs without one.
    let file = it.file("plan.toml");
    std::fs::write(&file, it.head() + &step).unwrap();
    let page = it.file("report.md");
    std::fs::write(&page, "mine").unwrap();
    let gameday = format!("{BINARY} gameday {} {} --report {} --every 1s", file.display(), it.server(), page.display());
    let said = it.lab.client.run(&format!("{gameday} 2>&1 || test $? = 2"));
    assert!(said.contains("report.md: File exists") && std::fs::read_to_string(&page).unwrap() == "mine", "{said}");
    let said = it.lab.client.run(&format!("{gameday} --plan"));
    assert!(said.contains("1. one\n   runs      touch ") && !marker.exists(), "{said}");
}
