//! The `baton` command against an instance: what it prints, and its exit codes.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use baton::admin::diff::{AffectedFlows, ConfigChange, FlowEffect, ReloadDiff};
use baton::model::health::Order;
use baton::table::journal::What;
use tokio::process::Command;

use crate::fake::FakeInstance;

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn command(socket: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.arg("--socket").arg(socket).args(arguments.split(' ')).env_remove("BATON_SOCKET");
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn baton(socket: &Path, arguments: &str) -> Ran {
    let ended = tokio::time::timeout(Duration::from_secs(30), command(socket, arguments).output());
    let ended = ended.await.expect("it ends").unwrap();
    Ran {
        code: ended.status.code().unwrap(),
        stdout: String::from_utf8(ended.stdout).unwrap(),
        stderr: String::from_utf8(ended.stderr).unwrap(),
    }
}

#[tokio::test]
async fn exit_codes_tell_usage_from_refusal_from_absence() {
    let instance = FakeInstance::start();
    let socket = instance.socket();
    for (arguments, code) in [
        ("--version", 0),
        ("completion bash", 0),
        ("man", 0),
        ("completion tcsh", 64),
        ("--help", 0),
        ("version", 0),
        ("drain cp2", 0),
        ("drain cp9", 1),
        ("kill 99", 1),
        ("eject cp1", 1),
        ("fly", 64),
        ("drain", 64),
        ("kill --all", 64),
        ("flows --state asleep", 64),
    ] {
        let ran = baton(&socket, arguments).await;
        assert_eq!(ran.code, code, "{arguments}: {}", ran.stderr);
        assert_eq!(ran.stderr.is_empty(), code == 0, "{arguments}: {}", ran.stderr);
    }
    let ran = baton(Path::new("/nonexistent/admin.sock"), "status").await;
    assert_eq!(ran.code, 69);
    assert!(ran.stderr.contains("/nonexistent/admin.sock") && ran.stderr.contains("--socket"), "{}", ran.stderr);
}

/// What the completion script of bash asks: the words so far, and which of them the cursor is in.
#[tokio::test]
async fn the_shell_completes_backends_by_the_names_that_the_instance_has() {
    let instance = FakeInstance::start();
    let candidates = async |words: &[&str]| {
        let mut asked = Command::new(env!("CARGO_BIN_EXE_baton"));
        asked.env("BATON_COMPLETE", "bash").env("BATON_SOCKET", instance.socket()).env("_CLAP_IFS", "\n");
        asked.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string()).env("_CLAP_COMPLETE_COMP_TYPE", "9");
        let output = asked.arg("--").args(words).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(candidates(&["baton", "drain", "cp"]).await, ["cp1", "cp2", "cp3"]);
    assert_eq!(candidates(&["baton", "flows", "--backend", "cp3"]).await, ["cp3"]);
    assert_eq!(candidates(&["baton", "ej"]).await, ["eject"]);
    // The line's own file comes before the environment.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("baton.toml");
    let backend = "[[frontend]]\nname = \"a\"\n[[frontend.backend]]\nname = \"of-the-file\"\n";
    std::fs::write(&file, format!("[admin]\nsocket = \"/none\"\n{backend}")).unwrap();
    let file = file.to_str().unwrap();
    for option in [&["-c", file][..], &[&format!("-c{file}")], &["--config", file], &[&format!("--config={file}")]] {
        let line = [&["baton"], option, &["drain", "of"]].concat();
        assert_eq!(candidates(&line).await, ["of-the-file"], "{line:?}");
    }
    let socket = instance.socket();
    let named = candidates(&["baton", "-c", file, "--socket", socket.to_str().unwrap(), "drain", "cp"]).await;
    assert_eq!(named, ["cp1", "cp2", "cp3"]);
    assert_eq!(candidates(&["baton", "s"]).await, ["status"], "no hidden command");
    let script = baton(&instance.socket(), "completion bash").await.stdout;
    assert!(script.contains("BATON_COMPLETE") && script.contains("_CLAP_COMPLETE_INDEX"), "{script}");
}

#[tokio::test]
async fn each_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let ran = baton(Path::new("/none"), &format!("man --directory {}", directory.path().display())).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{}", ran.stderr);
    let page = |name: &str| std::fs::read_to_string(directory.path().join(name));
    assert!(page("baton-drain.1").unwrap().contains("baton\\-drain \\- Sends a backend no new flows"));
    assert!(page("baton-offload-remove.1").is_ok() && page("baton-stand-in.1").is_err());
    // Each page that the first one names is there.
    let first = page("baton.1").unwrap();
    let named: Vec<_> = first.lines().filter_map(|line| line.strip_suffix("(1)")).collect();
    assert!(named.len() > 20, "{first}");
    for name in named {
        assert!(page(&format!("{}.1", name.replace('\\', ""))).is_ok(), "{name}");
    }
}

#[tokio::test]
async fn baton_ready_fails_while_readyz_fails() {
    let instance = FakeInstance::start();
    let ran = baton(&instance.socket(), "ready").await;
    assert_eq!((ran.code, ran.stdout.trim()), (0, "ready"), "{}", ran.stderr);
    instance.control.not_ready.lock().unwrap().push("not yet synced".to_owned());
    let ran = baton(&instance.socket(), "ready").await;
    assert_eq!((ran.code, ran.stdout.trim()), (1, "not ready: not yet synced"), "{}", ran.stderr);
    let ran = baton(&instance.socket(), "ready --json").await;
    let said: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, said), (1, serde_json::json!({ "ready": false, "not_ready": ["not yet synced"] })));
}

#[tokio::test]
async fn people_get_tables_and_programs_get_json() {
    let instance = FakeInstance::start();
    let socket = instance.socket();
    let status = baton(&socket, "status").await.stdout;
    assert!(!status.contains('\x1b'), "colour in a pipe: {status}");
    let states: Vec<_> = status.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert_eq!(states, ["STATE", "ready", "draining", "ejected"], "{status}");
    let json: serde_json::Value = serde_json::from_str(&baton(&socket, "status --json").await.stdout).unwrap();
    assert_eq!(json["frontends"][0]["backends"][1]["health_state"], "draining");

    let flows = baton(&socket, "flows --limit 3").await.stdout;
    assert!(flows.ends_with("… and 7 more; --limit 0 lists all\n"), "{flows}");
    assert_eq!(flows.lines().count(), 5);
    let lines = baton(&socket, "flows --backend cp1 --json").await.stdout;
    let backend = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["backend"].clone();
    assert_eq!(lines.lines().map(backend).collect::<Vec<_>>(), ["cp1"; 6]);
}

#[tokio::test]
async fn kill_with_check_tells_the_reach_and_resets_nothing() {
    let instance = FakeInstance::start();
    for (arguments, expected) in [
        ("kill --backend cp1 --check", "6 flows, 6 clients, resets over 250 ms; Baton has reset none\n"),
        ("kill --client 192.0.2.1 --check", "1 flow, 1 client, resets over 250 ms; Baton has reset none\n"),
        ("kill --all --check", "10 flows, 10 clients, resets over 250 ms; Baton has reset none\n"),
        ("kill --backend cp3 --check", "no flow matches; Baton has reset none\n"),
        ("kill --all --check --json", "{\n  \"flows\": 10,\n  \"clients\": 10,\n  \"over_ms\": 250\n}\n"),
    ] {
        let ran = baton(&instance.socket(), arguments).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (0, expected), "{arguments}: {}", ran.stderr);
    }
    assert_eq!(instance.table.flows.len(), 10);
}

#[tokio::test]
async fn drain_with_wait_ends_when_the_last_flow_has_gone() {
    let instance = FakeInstance::start();
    let draining = command(&instance.socket(), "drain cp1 --wait").stdout(Stdio::piped()).spawn().unwrap();
    let killing = async {
        while *instance.control.orders.lock().unwrap() != [(instance.backend("cp1").id, Order::Drain)] {
            tokio::task::yield_now().await;
        }
        baton(&instance.socket(), "kill --backend cp1").await
    };
    let both = async { tokio::join!(draining.wait_with_output(), killing) };
    let (drained, killed) = tokio::time::timeout(Duration::from_secs(30), both).await.expect("it ends");
    assert_eq!(killed.stdout, "6 flows gone\n");
    let drained = drained.unwrap();
    assert!(drained.status.success());
    let words = String::from_utf8(drained.stdout).unwrap();
    assert!(words.starts_with("apiserver/cp1 takes no new flows; it has 6 flows, which Baton resets after 2 m 30 s"));
    assert!(words.contains("apiserver/cp1: no flow is left"), "{words}");
}

#[tokio::test]
async fn a_refused_configuration_is_told_in_full() {
    let instance = FakeInstance::start();
    *instance.control.reload_errors.lock().unwrap() = vec!["baton.toml:3: a".to_owned(), "baton.toml:9: b".to_owned()];
    let ran = baton(&instance.socket(), "reload").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(
        ran.stderr,
        "baton: the configuration has 2 errors and changed nothing:\nbaton.toml:3: a\nbaton.toml:9: b\n"
    );
}

#[tokio::test]
async fn the_exit_code_of_diff_is_that_of_diff() {
    let instance = FakeInstance::start();
    let socket = instance.socket();
    let same = baton(&socket, "diff new.toml").await;
    let path = std::env::current_dir().unwrap().join("new.toml");
    assert_eq!(
        (same.code, same.stdout),
        (0, format!("no difference: {} has the running configuration\n", path.display()))
    );
    let change = |words: &str| ConfigChange { words: words.to_owned(), ..ConfigChange::default() };
    let affected = |backend: &str, flows, effect, within_ms| AffectedFlows {
        frontend: "apiserver".to_owned(),
        backend: backend.to_owned(),
        flows,
        effect,
        within_ms,
        reason: "drain_deadline".to_owned(),
        why: "the file has no such backend".to_owned(),
    };
    *instance.control.diff.lock().unwrap() = ReloadDiff {
        changes: vec![change("backend apiserver/cp1 removed: its flows drain")],
        affected: vec![affected("cp1", 1200, FlowEffect::Drain, 150_000), affected("cp2", 4, FlowEffect::Reset, 0)],
        ..ReloadDiff::default()
    };
    let differs = baton(&socket, "diff new.toml").await;
    assert_eq!(
        (differs.code, &*differs.stdout),
        (
            1,
            "backend apiserver/cp1 removed: its flows drain\n\n\
             FLOWS  BACKEND        EFFECT OF A RELOAD                            WHY\n\
             1,200  apiserver/cp1  go on; reset after 2 m 30 s (drain_deadline)  the file has no such backend\n    \
             4  apiserver/cp2  reset at once (drain_deadline)                the file has no such backend\n"
        )
    );
    let json: ReloadDiff = serde_json::from_str(&baton(&socket, "diff --json new.toml").await.stdout).unwrap();
    assert_eq!((json.path, json.affected.len()), (path, 2));
    instance.control.diff.lock().unwrap().refused = vec!["a reload cannot change process.workers".to_owned()];
    let refused = baton(&socket, "diff new.toml").await;
    assert_eq!(
        (refused.code, &*refused.stdout),
        (
            1,
            "backend apiserver/cp1 removed: its flows drain\n\n\
             refused: a reload would be refused as a whole:\n  a reload cannot change process.workers\n\n\
             so nothing changes, and no flow would be reset\n"
        )
    );
    *instance.control.reload_errors.lock().unwrap() = vec!["new.toml:3: a".to_owned()];
    let bad = baton(&socket, "diff new.toml").await;
    assert_eq!((bad.code, bad.stderr.ends_with("new.toml:3: a\n")), (2, true), "{}", bad.stderr);
    assert_eq!(baton(Path::new("/nonexistent/admin.sock"), "diff new.toml").await.code, 2);
}

/// Runs `baton` in a terminal of `columns` columns, and returns what it shows, without its colours.
async fn in_terminal(socket: &Path, arguments: &str, columns: u16) -> String {
    const SCRIPT: &str = "import fcntl, os, struct, subprocess, sys, termios\n\
        near, far = os.openpty()\n\
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack('HHHH', 24, int(sys.argv[1]), 0, 0))\n\
        process = subprocess.Popen(sys.argv[2:], stdout=far)\n\
        os.close(far)\n\
        try:\n    while part := os.read(near, 65536): os.write(1, part)\n\
        except OSError: pass  # EIO: nobody has the other end any more\n\
        sys.exit(process.wait())\n";
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, &columns.to_string(), env!("CARGO_BIN_EXE_baton"), "--socket"]).arg(socket);
    command.args(arguments.split(' ')).env_remove("BATON_SOCKET").env_remove("COLUMNS").kill_on_drop(true);
    let ended = tokio::time::timeout(Duration::from_secs(30), command.output()).await.expect("it ends").unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let text = String::from_utf8(ended.stdout).unwrap().replace('\r', "");
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    first + &parts.map(|part| part.split_once('m').map_or("", |(_, rest)| rest)).collect::<String>()
}

/// Regression: `baton backends` had 160 columns, and each line was wrapped to two or three.
#[tokio::test]
async fn tables_fit_the_terminal_and_pipes_get_all_of_them() {
    let instance = FakeInstance::start();
    let socket = instance.socket();
    for columns in [60, 80, 120] {
        let shown = in_terminal(&socket, "backends", columns).await;
        assert!(shown.lines().all(|line| line.chars().count() <= columns.into()), "{columns}:\n{shown}");
        assert!(shown.contains("apiserver/cp1") && shown.contains("too narrow for HEDGED"), "{shown}");
        let frontends = in_terminal(&socket, "status", columns).await;
        let mut table = frontends.lines().skip_while(|line| !line.starts_with("  STATE")).take(4);
        assert!(table.clone().count() == 4 && table.all(|line| line.chars().count() <= columns.into()), "{frontends}");
        for command in ["events", "nodes"] {
            let shown = in_terminal(&socket, command, columns).await;
            assert!(shown.lines().all(|line| line.chars().count() <= columns.into()), "{columns}:\n{shown}");
        }
    }
    let whole = in_terminal(&socket, "backends", 250).await;
    // The ages of the two differ.
    let heads = [&whole, &baton(&socket, "backends").await.stdout]
        .map(|text| text.split_whitespace().take(15).collect::<Vec<_>>().join(" "));
    assert_eq!(heads[0], heads[1]);
    assert!(whole.contains("HEDGED") && !whole.contains("too narrow"), "{whole}");
}

/// The times that people read are UTC, whatever the zone of the terminal, and their label says so. date(1) is the judge.
#[tokio::test]
async fn times_are_utc_and_say_so_in_any_zone() {
    let instance = FakeInstance::start();
    instance.table.journal.record(What::WorkerStuck { worker: 0, for_ms: 1500 });
    let socket = instance.socket();
    let events = baton(&socket, "events --json").await.stdout;
    let event: serde_json::Value = serde_json::from_str(events.lines().last().expect("an event")).unwrap();
    let at_s = event["at_unix_ms"].as_u64().unwrap() / 1000;
    let utc = Command::new("date").args(["-u", "-d", &format!("@{at_s}"), "+%F %T"]).output().await.unwrap();
    let utc = String::from_utf8(utc.stdout).unwrap();
    let (date, time) = utc.trim().split_once(' ').unwrap();
    for zone in ["UTC", "Asia/Seoul", "JST-9", "EST5"] {
        let said = async |arguments| {
            let said = command(&socket, arguments).env("TZ", zone).output().await.unwrap();
            String::from_utf8(said.stdout).unwrap()
        };
        let events = said("events").await;
        assert!(events.contains(&format!("  {date} {time}Z  ")), "{zone}: {utc}{events}");
        let status = said("status").await;
        assert!(status.contains(&format!("  {time}Z  ")), "{zone}: {utc}{status}");
    }
}

/// As a person at a prompt: names of commands, of the instance's backends, and the list after two tabs.
#[tokio::test]
async fn bash_completes_commands_and_backends_at_its_prompt() {
    let instance = FakeInstance::start();
    let home = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_baton"));
    let typed = format!(
        "PATH={}:$PATH; bind 'set bell-style none'; PS1='> '; source <(baton completion bash)\nbaton undr\tcp2\tBYE\x15baton drain c\t\t\t\x15exit\n",
        binary.parent().unwrap().display()
    );
    const SCRIPT: &str = "import os, pty, select, sys, time\n\
        pid, terminal = pty.fork()\n\
        if pid == 0: os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])\n\
        typed, until, quiet = sys.argv[1].encode().decode('unicode_escape').encode(), time.time() + 25, 0\n\
        while time.time() < until:\n\
        \x20   if select.select([terminal], [], [], 0.5)[0]:\n\
        \x20       try: part = os.read(terminal, 65536)\n\
        \x20       except OSError: break  # EIO: the shell has ended\n\
        \x20       os.write(1, part)\n\
        \x20   elif typed: \n\
        \x20       at = min(i for i in (typed.find(b'\\t'), typed.find(b'\\n'), len(typed) - 1) if i >= 0) + 1\n\
        \x20       os.write(terminal, typed[:at]); typed = typed[at:]\n\
        os.waitpid(pid, 0)\n";
    let typed = typed.replace('\t', "\\t").replace('\n', "\\n").replace('\x15', "\\x15");
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, &typed]).env("BATON_SOCKET", instance.socket()).env("HOME", home.path());
    command.env("TERM", "dumb").env("INPUTRC", "/dev/null").kill_on_drop(true);
    let ended = tokio::time::timeout(Duration::from_secs(40), command.output()).await.expect("it ends").unwrap();
    let shown = String::from_utf8_lossy(&ended.stdout).replace(['\r', '\x07'], "");
    assert!(shown.contains("baton undrain cp2 BYE"), "{shown}{}", String::from_utf8_lossy(&ended.stderr));
    let (_, listed) = shown.rsplit_once("baton drain cp\ncp").unwrap_or_else(|| panic!("no list: {shown:?}"));
    assert_eq!(
        format!("cp{}", listed.lines().next().unwrap()).split_whitespace().collect::<Vec<_>>(),
        ["cp1", "cp2", "cp3"]
    );
}

/// What a file says may reach the terminal by the answers of the instance.
#[tokio::test]
async fn a_difference_and_a_refusal_steer_no_terminal() {
    let instance = FakeInstance::start();
    let words = "drain_timeout \u{1b}[31m150s becomes 1m\u{9b}2J".to_owned();
    let change = ConfigChange { words, ..ConfigChange::default() };
    *instance.control.diff.lock().unwrap() = ReloadDiff { changes: vec![change], ..ReloadDiff::default() };
    let changed = baton(&instance.socket(), "diff new.toml").await;
    assert!(changed.stdout.contains(r"\u{1b}[31m150s becomes 1m\u{9b}2J"), "{:?}", changed.stdout);
    *instance.control.reload_errors.lock().unwrap() = vec!["new\u{1b}[2J.toml:3: a".to_owned()];
    for command in ["diff new.toml", "reload"] {
        let refused = baton(&instance.socket(), command).await;
        assert!(
            refused.code > 0 && refused.stderr.contains(r"new\u{1b}[2J.toml:3: a"),
            "{command}: {:?}",
            refused.stderr
        );
    }
}
