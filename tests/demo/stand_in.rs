//! The apiserver stand-in as a process, and the kubelet-like client against it: what tests of faults stand on must
//! itself be sound.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton::addr::{BackendAddr, VipAddr};
use baton::lab::certs::{Authority, CertFiles, Flaw};
use baton::lab::demo::process::{Condition, Recipe, StandInProcess};
use baton::lab::kubelet::{Heartbeat, Kubelet, KubeletEvent, KubeletSettings, Observed};
use baton::lab::tls;
use tokio::sync::mpsc::UnboundedReceiver;

struct Scene {
    dir: tempfile::TempDir,
    authority: Authority,
    ca: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new().unwrap();
        let ca = authority.write(dir.path()).unwrap();
        Self { dir, authority, ca }
    }

    fn certs(&self, flaw: Flaw) -> CertFiles {
        self.authority.issue(self.dir.path(), "server", &[], flaw).unwrap()
    }

    async fn stand_in(&self, name: &str, flaw: Flaw, watch_period: Duration) -> StandInProcess {
        let recipe = Recipe {
            program: Path::new(env!("CARGO_BIN_EXE_baton")).to_owned(),
            name: name.to_owned(),
            certs: self.certs(flaw),
            watch_period,
            shutdown_delay: Duration::from_millis(300),
            space: None,
        };
        StandInProcess::start(recipe, "127.0.0.1:0".parse().unwrap(), None).await.unwrap()
    }

    fn settings(&self, server: BackendAddr) -> KubeletSettings {
        let tls = tls::client_config(&self.ca).unwrap();
        let mut settings = KubeletSettings::new(VipAddr::new(server.socket_addr()), tls, "node-1");
        settings.renew_every = Duration::from_millis(50);
        settings
    }
}

/// The first event that `wanted` accepts, which must come within ten seconds.
async fn next(events: &mut UnboundedReceiver<Observed>, wanted: impl Fn(&KubeletEvent) -> bool) -> KubeletEvent {
    let search = async {
        loop {
            let event = events.recv().await.expect("the client lives").event;
            if wanted(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), search).await.expect("the event comes in time")
}

fn connected(event: &KubeletEvent) -> bool {
    matches!(event, KubeletEvent::Connected { .. })
}

fn renewed(event: &KubeletEvent) -> bool {
    matches!(event, KubeletEvent::Renewed { .. })
}

fn error_text(event: &KubeletEvent) -> &str {
    match event {
        KubeletEvent::Failed { error } | KubeletEvent::Disconnected { error } => error,
        other => panic!("not an error: {other:?}"),
    }
}

#[tokio::test]
async fn renewals_and_watch_events_share_one_connection() {
    let scene = Scene::new();
    let stand_in = scene.stand_in("cp7", Flaw::None, Duration::from_millis(40)).await;
    let (kubelet, mut events) = Kubelet::start(scene.settings(stand_in.address()));

    let first = next(&mut events, connected).await;
    assert!(matches!(&first, KubeletEvent::Connected { stand_in: Some(name), .. } if name == "cp7"), "{first:?}");
    for _ in 0..5 {
        next(&mut events, |event| matches!(event, KubeletEvent::Watched { bytes, .. } if *bytes > 0)).await;
        next(&mut events, renewed).await;
    }
    let summary = kubelet.stop();
    assert_eq!((summary.connections, summary.failures, summary.disconnections), (1, 0, 0));
    assert!(summary.renewals >= 5 && summary.watch_events >= 5, "{summary:?}");
}

#[tokio::test]
async fn a_killed_stand_in_disconnects_and_is_found_again_on_its_address() {
    let scene = Scene::new();
    let mut stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    let (kubelet, mut events) = Kubelet::start(scene.settings(stand_in.address()));
    next(&mut events, renewed).await;

    stand_in.kill();
    assert_eq!(stand_in.condition(), Condition::Killed);
    next(&mut events, |event| matches!(event, KubeletEvent::Disconnected { .. })).await;
    let failed = next(&mut events, |event| matches!(event, KubeletEvent::Failed { .. })).await;
    assert!(error_text(&failed).contains("Connection refused"), "{failed:?}");

    stand_in.restart(None).await.unwrap();
    next(&mut events, connected).await;
    next(&mut events, renewed).await;
    let summary = kubelet.stop();
    assert_eq!((summary.connections, summary.disconnections), (2, 1));
}

#[tokio::test]
async fn a_hung_stand_in_is_left_by_an_unanswered_ping_and_the_gap_is_measured() {
    let scene = Scene::new();
    let mut stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    let mut settings = scene.settings(stand_in.address());
    settings.request_timeout = Duration::from_millis(200);
    settings.ping_after = Some(Duration::from_millis(300));
    settings.ping_timeout = Duration::from_millis(300);
    let (kubelet, mut events) = Kubelet::start(settings);
    next(&mut events, renewed).await;

    stand_in.hang().unwrap();
    kubelet.begin_window();
    let failed = next(&mut events, |event| matches!(event, KubeletEvent::Failed { .. })).await;
    assert_eq!(error_text(&failed), "renewing the lease: no answer within 200 ms");
    assert_eq!(kubelet.summary().disconnections, 0, "a timeout alone does not end a connection");
    next(&mut events, |event| matches!(event, KubeletEvent::Disconnected { .. })).await;
    // The kernel still accepts; nobody speaks TLS.
    let failed =
        next(&mut events, |event| matches!(event, KubeletEvent::Failed { error } if error.contains("connecting")))
            .await;
    assert!(error_text(&failed).ends_with("not done within 200 ms"), "{failed:?}");

    stand_in.resume().unwrap();
    next(&mut events, connected).await;
    next(&mut events, renewed).await;
    assert!(kubelet.window_gap() >= Duration::from_millis(600), "{:?}", kubelet.window_gap());
    kubelet.begin_window();
    next(&mut events, renewed).await;
    assert!(kubelet.window_gap() < Duration::from_millis(600), "{:?}", kubelet.window_gap());
    assert!(kubelet.stop().longest_gap_ms >= 600);
}

#[tokio::test]
async fn not_ready_is_said_by_readyz_while_clients_are_served() {
    let scene = Scene::new();
    let mut stand_in = scene.stand_in("cp1", Flaw::None, Duration::from_millis(40)).await;
    let (kubelet, mut events) = Kubelet::start(scene.settings(stand_in.address()));
    next(&mut events, renewed).await;
    let url = format!("https://{}/readyz", stand_in.address());
    let readyz = async |wanted: &str| {
        for _ in 0..100 {
            let curl = tokio::process::Command::new("curl")
                .args(["--silent", "--http1.1", "--output", "/dev/null", "--write-out", "%{http_code}", "--cacert"])
                .args([scene.ca.as_os_str(), OsStr::new(&url)])
                .output();
            let code = String::from_utf8(curl.await.unwrap().stdout).unwrap();
            if code == wanted {
                return;
            }
        }
        panic!("/readyz never answered {wanted}");
    };
    readyz("200").await;
    stand_in.set_ready(false).unwrap();
    readyz("500").await;
    assert_eq!(stand_in.condition(), Condition::NotReady);
    next(&mut events, renewed).await;
    stand_in.set_ready(true).unwrap();
    readyz("200").await;
    assert_eq!(kubelet.stop().disconnections, 0);
}

#[tokio::test]
async fn a_stand_in_that_is_told_to_end_serves_on_and_then_lets_clients_go_without_an_error() {
    let scene = Scene::new();
    let mut stand_in = scene.stand_in("cp1", Flaw::None, Duration::from_millis(40)).await;
    let (kubelet, mut events) = Kubelet::start(scene.settings(stand_in.address()));
    next(&mut events, renewed).await;
    stand_in.terminate().unwrap();
    let begin = kubelet.summary();
    let ended = next(&mut events, |event| matches!(event, KubeletEvent::WatchEnded { .. })).await;
    assert_eq!(ended, KubeletEvent::WatchEnded { error: None });
    let end = kubelet.summary();
    assert!(end.renewals >= begin.renewals + 2, "it served on for a while: {begin:?} {end:?}");
    next(&mut events, |event| matches!(event, KubeletEvent::Disconnected { .. })).await;
}

#[tokio::test]
async fn the_command_ends_in_a_summary_and_its_exit_code_judges_the_gap() {
    let scene = Scene::new();
    let stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    for (max_gap, code) in [("5s", 0), ("1ms", 1)] {
        let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_baton"))
            .args(["kubelet", "--server", &stand_in.address().to_string(), "--ca"])
            .arg(&scene.ca)
            .args(["--name", "node-9", "--renew-every", "50ms", "--for", "2s", "--max-gap", max_gap, "--json"])
            .output();
        let output = run.await.unwrap();
        assert_eq!(output.status.code(), Some(code));
        let text = String::from_utf8(output.stdout).unwrap();
        let (first, last) = (text.lines().next().unwrap(), text.lines().last().unwrap());
        let first: Observed = serde_json::from_str(first).unwrap();
        assert!(connected(&first.event), "{first:?}");
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!((last["event"].as_str(), last["name"].as_str()), (Some("summary"), Some("node-9")));
        assert!(last["renewals"].as_u64() >= Some(4), "{last}");
    }
}

#[tokio::test]
async fn a_bad_certificate_is_refused_by_name() {
    for (flaw, words) in [(Flaw::Expired, "certificate expired"), (Flaw::WrongName, "not valid for name")] {
        let scene = Scene::new();
        let stand_in = scene.stand_in("cp1", flaw, Duration::ZERO).await;
        let (kubelet, mut events) = Kubelet::start(scene.settings(stand_in.address()));
        let failed = next(&mut events, |_| true).await;
        assert!(error_text(&failed).contains(words), "{failed:?}");
        let summary = kubelet.stop();
        assert_eq!((summary.connections, summary.renewals), (0, 0));
    }
}

/// Runs `baton drill` beside `meanwhile`, which is told its process; its verdict and exit code.
async fn drill_with(
    scene: &Scene,
    server: BackendAddr,
    arguments: &str,
    meanwhile: impl AsyncFnOnce(u32),
) -> (serde_json::Value, i32) {
    let child = tokio::process::Command::new(env!("CARGO_BIN_EXE_baton"))
        .arg("drill")
        .args(arguments.split_whitespace())
        .args(["--json", "--ca"])
        .arg(&scene.ca)
        .arg(server.to_string())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    meanwhile(child.id().unwrap()).await;
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.unwrap().unwrap();
    (serde_json::from_slice(&output.stdout).expect("a verdict"), output.status.code().unwrap())
}

/// As [`drill_with`], with fifty kubelets whose timers are short, and a watch each.
async fn drill(
    scene: &Scene,
    server: BackendAddr,
    seconds: &str,
    meanwhile: impl AsyncFnOnce(),
) -> (serde_json::Value, i32) {
    let arguments = format!(
        "--kubelets 50 --every 200ms --timeout 500ms --grace 1500ms --for {seconds} --watch /api/v1/nodes?watch=true"
    );
    drill_with(scene, server, &arguments, async |_| meanwhile().await).await
}

#[tokio::test]
async fn a_drill_without_a_fault_passes() {
    let scene = Scene::new();
    let stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    // Far beyond the grace period even for a machine that is late with everything.
    let (verdict, code) = drill(&scene, stand_in.address(), "3s", async || {}).await;
    assert_eq!((verdict["kubelets"].as_u64(), verdict["never"].as_u64()), (Some(50), Some(0)), "{verdict}");
    assert!(verdict["heartbeats"].as_u64() > Some(100), "{verdict}");
    assert_eq!(code == 0, verdict["not_ready"] == 0, "{verdict}");
}

#[tokio::test]
async fn a_drill_counts_the_nodes_that_a_hung_server_would_have_cost() {
    let scene = Scene::new();
    let mut stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    let address = stand_in.address();
    let hang = async || {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        stand_in.hang().unwrap();
    };
    let (verdict, code) = drill(&scene, address, "6s", hang).await;
    assert_eq!((verdict["not_ready"].as_u64(), code), (Some(50), 1), "{verdict}");
    assert!(verdict["gap_ms_max"].as_u64() > Some(1500), "{verdict}");
}

#[tokio::test]
async fn a_drill_against_nobody_has_no_heartbeat_and_says_why_it_cannot_begin() {
    let scene = Scene::new();
    let (verdict, code) = drill(&scene, BackendAddr::new("127.0.0.1:9".parse().unwrap()), "2s", async || {}).await;
    assert_eq!((verdict["never"].as_u64(), code), (Some(50), 1), "{verdict}");
    let refused = |arguments: &[&str]| {
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_baton")).arg("drill").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let ca = scene.ca.to_str().unwrap();
    assert!(refused(&["--ca", "/nowhere/ca.crt", "127.0.0.1:9"]).contains("reading /nowhere/ca.crt"));
    assert!(refused(&["--ca", ca, "127.0.0.1"]).contains("127.0.0.1 is not HOST:PORT"));
    assert!(refused(&["--ca", ca, "--path", "readyz", "127.0.0.1:9"]).contains("must begin with a slash"));
}

/// A client whose heartbeat is a GET of the lease called `name`, so that it succeeds while that is there.
fn reader(scene: &Scene, server: BackendAddr, namespace: &str, name: &str) -> (Kubelet, UnboundedReceiver<Observed>) {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}");
    let settings = scene.settings(server);
    Kubelet::start(KubeletSettings { heartbeat: Heartbeat::Get(path), watch: None, ..settings })
}

#[tokio::test]
async fn a_drill_keeps_leases_as_kubelets_do_and_leaves_none_behind() {
    let scene = Scene::new();
    let stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    let server = stand_in.address();
    let (_reader, mut seen) = reader(&scene, server, "trial", "lb-a-50");
    // No renewal may fail, on a machine that is late with everything.
    let arguments = "--kubelets 50 --every 200ms --timeout 10s --grace 30s --lease trial/lb-a --for 4s";
    let (verdict, code) = drill_with(&scene, server, arguments, async |_| {
        next(&mut seen, renewed).await;
    })
    .await;
    assert_eq!((verdict["never"].as_u64(), code), (Some(0), 0), "{verdict}");
    assert!(verdict["heartbeats"].as_u64() > Some(200), "{verdict}");
    assert_eq!((verdict["failures"].as_u64(), verdict["leases_left"].as_u64()), (Some(0), Some(0)), "{verdict}");
    let gone = |event: &KubeletEvent| matches!(event, KubeletEvent::Failed { error } if error.contains("404"));
    next(&mut seen, gone).await;
    for name in ["lb-a-1", "lb-a-49"] {
        let (_reader, mut seen) = reader(&scene, server, "trial", name);
        let first = next(&mut seen, |event| renewed(event) || gone(event)).await;
        assert!(gone(&first), "{name} was left: {first:?}");
    }
}

#[tokio::test]
async fn a_drill_does_not_touch_the_lease_of_a_node() {
    let scene = Scene::new();
    let stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    let server = stand_in.address();
    let (node, mut events) = Kubelet::start(scene.settings(server));
    next(&mut events, renewed).await;
    drop(node);
    let arguments = "--kubelets 2 --every 200ms --grace 30s --lease kube-node-lease/node --for 2s";
    let (verdict, _) = drill_with(&scene, server, arguments, async |_| {}).await;
    assert_eq!((verdict["never"].as_u64(), verdict["leases_left"].as_u64()), (Some(1), Some(0)), "{verdict}");
    assert!(verdict["last_error"].as_str().unwrap().contains("and no drill's"), "{verdict}");
    // It is there still, and another drill's are not.
    let (_reader, mut seen) = reader(&scene, server, "kube-node-lease", "node-1");
    next(&mut seen, renewed).await;
    let (_reader, mut seen) = reader(&scene, server, "kube-node-lease", "node-2");
    next(&mut seen, |event| matches!(event, KubeletEvent::Failed { error } if error.contains("404"))).await;
}

#[tokio::test]
async fn several_watches_live_on_each_connection_and_are_opened_anew_with_it() {
    let scene = Scene::new();
    let mut stand_in = scene.stand_in("cp1", Flaw::None, Duration::from_millis(100)).await;
    let server = stand_in.address();
    let arguments = "--kubelets 20 --every 200ms --grace 30s --watches 5 --for 6s";
    let (verdict, code) = drill_with(&scene, server, arguments, async |pid| {
        let sockets = || {
            let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
        };
        // A socket for each kubelet and, if any, the runtime's own pair for signals: not one for each watch.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while sockets() < 20 {
            assert!(tokio::time::Instant::now() < deadline, "{} sockets", sockets());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(sockets() <= 23, "{} sockets", sockets());
        stand_in.kill();
        stand_in.restart(None).await.unwrap();
    })
    .await;
    assert_eq!((verdict["watches_open"].as_u64(), code), (Some(100), 0), "{verdict}");
    assert!(verdict["watches_ended"].as_u64() >= Some(1) && verdict["watch_events"].as_u64() > Some(1000), "{verdict}");
    assert!(verdict["watch_gap_ms_max"].as_u64() >= Some(100), "{verdict}");
}

#[tokio::test]
async fn a_thousand_kubelets_fit_on_one_core() {
    let scene = Scene::new();
    let stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    let cpu = std::sync::Mutex::new(Vec::new());
    let arguments = "--kubelets 1000 --lease trial --watches 1 --for 24s";
    let (verdict, code) = drill_with(&scene, stand_in.address(), arguments, async |pid| {
        // Every connection is made in the first ten seconds; what follows is a kubelet's everyday life.
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(11)).await;
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
            let stats = tasks.map(|task| std::fs::read_to_string(task.path().join("schedstat")).unwrap());
            let ns: u64 = stats.map(|stat| stat.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
            cpu.lock().unwrap().push(Duration::from_nanos(ns));
        }
    })
    .await;
    let cpu = cpu.into_inner().unwrap();
    println!(
        "a thousand kubelets: {:?} of CPU in the first 11 s with 1000 handshakes, {:?} in the next 11 s",
        cpu[0],
        cpu[1] - cpu[0]
    );
    println!("a thousand kubelets: {verdict}");
    assert_eq!((verdict["kubelets"].as_u64(), verdict["never"].as_u64()), (Some(1000), Some(0)), "{verdict}");
    assert_eq!(
        (verdict["not_ready"].as_u64(), verdict["leases_left"].as_u64(), code),
        (Some(0), Some(0), 0),
        "{verdict}"
    );
    // How late they are says how busy the machine is: beside them runs the server, with as many handshakes.
    assert!(verdict["heartbeats"].as_u64() >= Some(1000), "{verdict}");
    assert!(cpu[1] - cpu[0] < Duration::from_secs(11) / 2, "more than half a core for what a tenth should do: {cpu:?}");
}

/// Runs `baton drill` with a kubeconfig of `text` for a second; its verdict, or its error.
async fn drill_by_kubeconfig(scene: &Scene, text: &str, more: &str) -> Result<serde_json::Value, String> {
    let path = scene.dir.path().join("kubeconfig");
    std::fs::write(&path, text).unwrap();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(["drill", "--json", "--kubelets", "5", "--every", "100ms", "--for", "1s", "--kubeconfig"]).arg(&path);
    command.args(more.split_whitespace()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.unwrap().unwrap();
    serde_json::from_slice(&output.stdout).map_err(|_| String::from_utf8(output.stderr).unwrap())
}

/// Regression: away from a control-plane host a drill ended with "reading /etc/kubernetes/pki/ca.crt" and nothing else.
#[tokio::test]
async fn a_drill_takes_server_trust_and_user_from_a_kubeconfig_or_says_what_can_name_them() {
    let scene = Scene::new();
    let stand_in = scene.stand_in("cp1", Flaw::None, Duration::ZERO).await;
    let text = |cluster: &str, user: &str| {
        format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{}', {cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n",
            stand_in.address()
        )
    };
    let own = scene.authority.issue(scene.dir.path(), "own", &[], Flaw::None).unwrap();
    let own = format!("client-certificate: {}, client-key: {}", own.cert.display(), own.key.display());
    // A relative name counts from the kubeconfig.
    let ca = scene.ca.file_name().unwrap().to_str().unwrap();
    let trusting = format!("certificate-authority: {ca}");
    let exec = "exec: {command: aws}";
    for (text, more) in [
        (text(&trusting, &own), ""),
        (text("insecure-skip-tls-verify: true", "token: secret"), ""),
        (text("certificate-authority-data: eA==", ""), "--insecure"),
        // The heartbeat of /readyz needs no credentials.
        (text(&trusting, exec), ""),
    ] {
        let verdict = drill_by_kubeconfig(&scene, &text, more).await.unwrap();
        assert_eq!(verdict["never"], 0, "{text}: {verdict}");
        assert!(verdict["heartbeats"].as_u64() > Some(5), "{text}: {verdict}");
    }
    let refused = drill_by_kubeconfig(&scene, &text("", ""), "").await.unwrap_err();
    assert_eq!(
        refused,
        "baton drill: there is no /etc/kubernetes/pki/ca.crt here: name the cluster's CA with --ca, or take it from --kubeconfig, or \
         verify nothing with --insecure\n"
    );
    let another = text(&format!("{trusting}, tls-server-name: other.example"), "");
    let verdict = drill_by_kubeconfig(&scene, &another, "").await.unwrap();
    assert_eq!(verdict["never"], 5, "the certificate names another server: {verdict}");
    let refused = drill_by_kubeconfig(&scene, &text(&trusting, exec), "--lease drill").await.unwrap_err();
    assert!(
        refused.contains(
            "kubeconfig: user \"u\" gets its credentials from exec, which a drill does not run; name --token-file"
        ),
        "{refused}"
    );
}
