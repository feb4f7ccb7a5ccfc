//! A switch and the hosts on it.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tempfile::TempDir;

use super::baton::Baton;
use super::config::Config;
use super::host::Host;
use super::namespace::{self, Namespace, NoNamespace};
use super::server::{Behaviour, Server};

/// Hosts of one test.
#[derive(Debug)]
pub struct Lab {
    pub client: Host,
    pub client2: Host,
    pub lb: Host,
    pub b1: Host,
    pub b2: Host,
    pub b3: Host,
    number: u32,
    switch: Arc<Namespace>,
    directory: TempDir,
}

impl Lab {
    /// Builds the network. `None` where this process may not make namespaces: the test is then skipped, and counted
    /// as such by `tests/run`.
    pub fn new(test: &str) -> Option<Self> {
        match Self::build() {
            Ok(lab) => Some(lab),
            Err(NoNamespace(reason)) => {
                skip(test, &reason);
                None
            }
        }
    }

    fn build() -> Result<Self, NoNamespace> {
        static LABS: AtomicU32 = AtomicU32::new(0);
        let lab = LABS.fetch_add(1, Relaxed);
        let switch = Arc::new(Namespace::new(lab, "switch")?);
        switch.ip("link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0\nlink set br0 up\n");
        let host = |name, number| Host::new(lab, &switch, name, number);
        Ok(Self {
            client: host("client", 10)?,
            client2: host("client2", 11)?,
            lb: host("lb", 2)?,
            b1: host("b1", 21)?,
            b2: host("b2", 22)?,
            b3: host("b3", 23)?,
            number: lab,
            switch: switch.clone(),
            directory: tempfile::Builder::new()
                .prefix(&format!("{}-", namespace::name_of_process()))
                .tempdir()
                .expect("a temporary directory"),
        })
    }

    /// One more host on the switch; `number` becomes the last part of its addresses.
    pub fn another(&self, name: &'static str, number: u8) -> Host {
        Host::new(self.number, &self.switch, name, number).expect("there are namespaces already")
    }

    /// The three backend hosts.
    pub fn backends(&self) -> [&Host; 3] {
        [&self.b1, &self.b2, &self.b3]
    }

    /// Where this test keeps its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A configuration with one frontend on port 6443 of both of the load balancer's addresses, the three backends
    /// on their IPv4 addresses, and TCP probes.
    pub fn config(&self) -> Config {
        Config::new(&self.lb, &self.backends())
    }

    /// Starts Baton on `lb`, waits until it and every backend are ready, and takes the baseline.
    #[track_caller]
    pub fn start(&self, config: &Config) -> Baton {
        let mut baton = self.baton(config);
        let names = config.backend_names();
        baton.wait_for_backends(&names.iter().map(String::as_str).collect::<Vec<_>>());
        baton
    }

    /// An echo server on each backend host.
    pub fn echo_everywhere(&self) -> [Server; 3] {
        self.backends().map(|host| host.serve(Behaviour::Echo))
    }

    /// Starts Baton on `lb` and waits until it is ready itself.
    #[track_caller]
    pub fn baton(&self, config: &Config) -> Baton {
        let baton = Baton::start(&self.lb, self.directory(), config);
        baton.wait_until_ready();
        baton
    }
}

/// Says that a test did not run, to people and to `tests/run`.
pub fn skip(test: &str, reason: &str) {
    eprintln!("skipped: {test}: {reason}");
    if let Some(file) = std::env::var_os("BATON_TESTS_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).expect("the list of skipped");
        writeln!(file, "{test}: {reason}").expect("the list of skipped");
    }
}
