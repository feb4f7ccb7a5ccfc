//! A TCP server in a process of its own, so that it can be killed and stopped: the test binary runs itself again.

use std::net::SocketAddr;

use super::host::Host;
use super::process::Process;
use super::server::{Behaviour, Server};
use super::wait::eventually;
use super::{LONG, Lab};

/// Set for the process that is to serve: what and where.
const ROLE: &str = "BATON_LAB_SERVES";

/// The test that serves when [`ROLE`] is set.
const TEST: &str = "laboratory::a_server_process_serves_until_it_is_killed";

/// A server process. Dropped, it is killed.
#[derive(Debug)]
pub struct ServerProcess {
    pub process: Process,
}

impl ServerProcess {
    /// Echoes on port 6443 of `host`.
    #[track_caller]
    pub fn echo(lab: &Lab, host: &Host) -> Self {
        Self::start(lab, host, "echo")
    }

    /// Sends an endless pattern (seed 1) on port 6443 of `host`.
    #[track_caller]
    pub fn source(lab: &Lab, host: &Host) -> Self {
        Self::start(lab, host, "source")
    }

    #[track_caller]
    fn start(lab: &Lab, host: &Host, behaviour: &str) -> Self {
        let role = format!("{ROLE}={behaviour} {}", host.v4(6443));
        let test_binary = std::env::current_exe().expect("the test binary");
        let command = ["env", &role, test_binary.to_str().expect("UTF-8"), "--exact", TEST, "--nocapture"];
        let log = lab.directory().join(format!("{}-server.log", host.name));
        let said_before = std::fs::read_to_string(&log).unwrap_or_default().matches(SERVING).count();
        let process = host.spawn(&command, &log);
        eventually(LONG, "the server process serves", || {
            assert!(process.exit_status().is_none(), "the server process ended:\n{}", process.log_text());
            process.log_text().matches(SERVING).count() > said_before
        });
        Self { process }
    }
}

/// Serves for ever if this process was started to do so.
pub fn serve_if_asked() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (behaviour, address) = role.split_once(' ').expect("behaviour and address");
    let address: SocketAddr = address.parse().expect("an address");
    let behaviour = match behaviour {
        "echo" => Behaviour::Echo,
        "source" => Behaviour::Source { seed: 1, bytes: u64::MAX },
        other => panic!("{other}"),
    };
    let _server = Server::start(None, address, behaviour);
    println!("{SERVING}");
    loop {
        std::thread::park();
    }
}

const SERVING: &str = "this process serves";
