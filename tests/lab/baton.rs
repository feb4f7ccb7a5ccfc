//! The real binary on a host of the lab, operated and watched as an operator would.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};

use super::baseline::Baseline;
use super::client::Conn;
use super::config::{Config, Paths};
use super::host::Host;
use super::process::Process;
use super::wait::{eventually, eventually_some, patient};
use super::{LONG, secs};

pub const BINARY: &str = env!("CARGO_BIN_EXE_baton");

/// A running instance. Dropped, it is killed; after a panic the end of its log is printed.
#[derive(Debug)]
pub struct Baton {
    pub process: Process,
    pub paths: Paths,
    host: Host,
    baseline: Option<Baseline>,
}

impl Baton {
    /// Starts it; see [`super::Lab::baton`].
    #[track_caller]
    pub fn start(host: &Host, directory: &Path, config: &Config) -> Self {
        let paths = Paths::below(directory);
        std::fs::write(&paths.config, config.text(&paths.socket)).expect("a temporary file");
        Self::start_with(host, directory)
    }

    /// Starts it with the configuration file that is there already.
    #[track_caller]
    pub fn start_with(host: &Host, directory: &Path) -> Self {
        Self::start_by(&[], host, directory)
    }

    /// As [`Baton::start_with`], by a command line that turns into it.
    #[track_caller]
    pub fn start_by(wrapper: &[&str], host: &Host, directory: &Path) -> Self {
        let paths = Paths::below(directory);
        let command = [wrapper, &[BINARY, "run", "-c", paths.config.to_str().expect("UTF-8")]].concat();
        Self { process: host.spawn(&command, &paths.log), host: host.clone(), paths, baseline: None }
    }

    /// Waits for `/readyz`; records the descriptors and sockets that it holds without flows.
    #[track_caller]
    pub fn wait_until_ready(&self) {
        eventually(LONG, "Baton is ready", || {
            let ended = self.process.exit_status();
            assert!(ended.is_none(), "Baton ended: {ended:?}\n{}", self.process.log_tail(5));
            self.http("/readyz").is_some_and(|(status, _)| status == 200)
        });
    }

    /// Waits until the backends called `names` are ready, then takes the baseline of [`Baton::rests`].
    #[track_caller]
    pub fn wait_for_backends(&mut self, names: &[&str]) {
        for name in names {
            self.wait_health(name, "ready", LONG);
        }
        self.baseline = Some(Baseline::of(&self.process, &self.host));
    }

    /// Checks that it comes back to rest: no flow is left, it holds no more descriptors and sockets than before the
    /// first flow, and every flow that ended has a reason out of the closed set, none of them `internal`.
    #[track_caller]
    pub fn rests(&self) {
        eventually(LONG, "no flow is left", || self.flow_count() == 0);
        let baseline = self.baseline.as_ref().expect("taken by wait_for_backends");
        baseline.check(&self.process, &self.host);
        eventually(LONG, "no pipe is in use", || self.metric("baton_pipes_in_use", &[]) == 0.0);
        self.reasons_are_known();
    }

    /// The second half of [`Baton::rests`].
    #[track_caller]
    pub fn reasons_are_known(&self) {
        let known: Vec<_> = baton::model::end_reason::EndReason::ALL.iter().map(|reason| reason.label()).collect();
        for (reason, count) in self.ended() {
            assert!(known.contains(&reason.as_str()), "{count} flows ended for an unknown reason: {reason}");
            assert_ne!(reason, "internal", "{count} flows ended for a reason that the log must explain");
        }
    }

    /// Runs a command of the CLI against this instance.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        let (command, rest) = arguments.split_first().expect("a command");
        let mut cli = Command::new(BINARY);
        cli.arg(command).args(["--socket", self.paths.socket.to_str().expect("UTF-8")]).args(rest);
        cli.output().expect("the binary runs")
    }

    /// As [`Baton::cli`], for a command that must succeed; returns what it printed.
    #[track_caller]
    pub fn order(&self, arguments: &[&str]) -> String {
        let output = self.cli(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Asks over the admin socket: the items of a listing and the result, or the refusal.
    #[track_caller]
    pub fn ask(&self, command: Value) -> Result<(Vec<Value>, Value), Value> {
        let mut stream = UnixStream::connect(&self.paths.socket).expect("the admin socket");
        stream.set_read_timeout(Some(patient(LONG))).expect("a socket");
        stream.write_all(format!("{command}\n").as_bytes()).expect("the admin socket");
        let mut items = Vec::new();
        for line in BufReader::new(stream).lines() {
            let mut line: Value = serde_json::from_str(&line.expect("an answer in time")).expect("JSON");
            match line {
                _ if line.get("item").is_some() => items.push(line["item"].take()),
                _ if line.get("ok").is_some() => return Ok((items, line["ok"].take())),
                _ => return Err(line["error"].take()),
            }
        }
        panic!("{command}: closed without an answer");
    }

    #[track_caller]
    fn ask_ok(&self, command: Value) -> (Vec<Value>, Value) {
        self.ask(command.clone()).unwrap_or_else(|refusal| panic!("{command}: {refusal}"))
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.ask_ok(json!({"command": "status"})).1
    }

    #[track_caller]
    pub fn flows(&self) -> Vec<Value> {
        self.ask_ok(json!({"command": "flows"})).0
    }

    /// Flows now, in any state.
    #[track_caller]
    pub fn flow_count(&self) -> u64 {
        self.status()["totals"]["flows"].as_object().expect("flows by state").values().filter_map(Value::as_u64).sum()
    }

    /// All events that are still remembered, those of ended flows included.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        self.ask_ok(json!({"command": "events", "flows": true})).0
    }

    /// Events of this kind.
    #[track_caller]
    pub fn events_of(&self, kind: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event"] == kind).collect()
    }

    /// Ended flows by reason.
    #[track_caller]
    pub fn ended(&self) -> BTreeMap<String, u64> {
        serde_json::from_value(self.status()["totals"]["ended_total"].take()).expect("a map of counts")
    }

    /// Waits until so many flows ended for `reason`.
    #[track_caller]
    pub fn wait_ended(&self, reason: &str, count: u64) {
        let ended = || self.ended().get(reason).copied().unwrap_or(0);
        let watch = super::Stopwatch::start();
        while ended() < count {
            assert!(watch.elapsed() < patient(LONG), "{count} flows ended as {reason}: {:?}", self.ended());
            std::thread::sleep(super::ms(5));
        }
        assert_eq!(ended(), count, "{:?}", self.ended());
    }

    /// The status of one backend.
    #[track_caller]
    pub fn backend(&self, name: &str) -> Option<Value> {
        let mut status = self.status();
        let backends = status["frontends"].as_array_mut()?.iter_mut().flat_map(|f| f["backends"].as_array_mut());
        backends.flatten().find(|backend| backend["name"] == name).map(Value::take)
    }

    /// Flows of one backend; 0 if it is not known.
    #[track_caller]
    pub fn flows_of(&self, backend: &str) -> u64 {
        self.backend(backend).and_then(|backend| backend["flows"].as_u64()).unwrap_or(0)
    }

    /// The backend that serves the flow of `conn`; waits until one does.
    #[track_caller]
    pub fn serving(&self, conn: &Conn) -> String {
        let client = conn.local().to_string();
        let look = || {
            let flow = self.flows().into_iter().find(|flow| flow["client"] == *client)?;
            let served = flow["state"] == "proxied" || flow["state"] == "offloaded";
            served.then(|| flow["backend"].as_str().map(str::to_owned))?
        };
        eventually_some(LONG, &format!("the flow of {client} has a backend"), look).0
    }

    /// Waits until so many flows are offloaded, and none is about to be.
    #[track_caller]
    pub fn wait_offloaded(&self, count: u64) {
        eventually(LONG, &format!("{count} flows are offloaded"), || {
            self.status()["totals"]["flows"]["offloaded"] == count
        });
    }

    /// Connects from `client` until the flow is one of `backend`'s; the connections to others are closed, and over.
    #[track_caller]
    pub fn connect_to(&self, client: &Host, backend: &str) -> Conn {
        // Kept until one is found: a closed flow would make its backend the emptier one.
        let mut others = Vec::new();
        for _ in 0..100 {
            let conn = client.connect(self.host.v4(6443));
            if self.serving(&conn) == backend {
                let closed: Vec<_> = others.iter().map(|conn: &Conn| conn.local().to_string()).collect();
                drop(others);
                eventually(LONG, "those to others are over", || {
                    !self.flows().iter().any(|flow| closed.iter().any(|client| flow["client"] == **client))
                });
                return conn;
            }
            others.push(conn);
        }
        panic!("100 flows, and none went to {backend}");
    }

    #[track_caller]
    pub fn health_state(&self, backend: &str) -> String {
        let backend = self.backend(backend);
        backend
            .and_then(|backend| Some(backend["health_state"].as_str()?.to_owned()))
            .unwrap_or_else(|| "gone".to_owned())
    }

    /// Waits until `backend` has this health state; returns how long that took.
    #[track_caller]
    pub fn wait_health(&self, backend: &str, health_state: &str, deadline: Duration) -> Duration {
        eventually(deadline, &format!("{backend} is {health_state}"), || self.health_state(backend) == health_state)
    }

    /// Every health state that `backend` has gone to, oldest first.
    #[track_caller]
    pub fn states(&self, backend: &str) -> Vec<String> {
        let of_backend = self.events_of("backend_changed").into_iter().filter(|event| event["backend"] == backend);
        of_backend.filter_map(|event| Some(event["to"].as_str()?.to_owned())).collect()
    }

    /// GET of the read-only HTTP: status and body; `None` if it cannot be reached.
    pub fn http(&self, path: &str) -> Option<(u16, String)> {
        let address: SocketAddr = ([127, 0, 0, 1], 9470).into();
        let mut stream = self.host.enter(|| TcpStream::connect_timeout(&address, secs(1))).ok()?;
        stream.set_read_timeout(Some(patient(LONG))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// The text of /metrics.
    #[track_caller]
    pub fn metrics(&self) -> String {
        let (status, body) = self.http("/metrics").expect("the admin HTTP answers");
        assert_eq!(status, 200, "{body}");
        body
    }

    /// The sum of all samples of one metric whose labels contain all of `labels`.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let metrics = self.metrics();
        let samples = metrics.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, set) = series.split_once('{').unwrap_or((series, ""));
            (found == name && labels.iter().all(|label| set.contains(label))).then(|| value.parse::<f64>().ok())?
        });
        samples.sum()
    }

    /// Writes `config` over the file, in place.
    pub fn write_config(&self, config: &Config) {
        std::fs::write(&self.paths.config, config.text(&self.paths.socket)).expect("a temporary file");
    }

    /// How often a configuration was applied since the start, and how often it was refused.
    #[track_caller]
    pub fn reloads(&self) -> (f64, f64) {
        let metrics = |outcome| self.metric("baton_config_reloads_total", &[outcome]);
        (metrics("outcome=\"success\""), metrics("outcome=\"failure\""))
    }

    /// A line of the log that holds all of `parts`, waited for.
    #[track_caller]
    pub fn wait_log(&self, parts: &[&str]) -> String {
        let find = || {
            let text = self.process.log_text();
            text.lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned)
        };
        eventually_some(LONG, &format!("a line of the log with {parts:?}"), find).0
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of Baton's log ---\n{}\n---", self.process.log_tail(60));
        }
    }
}
