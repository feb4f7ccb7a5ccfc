//! Stand-ins for apiservers and kubelets: processes of the real binary, so that they can be killed and stopped.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::baton::BINARY;
use super::host::Host;
use super::process::Process;
use super::wait::{eventually, eventually_some};
use super::{LONG, Lab};

/// Certificates for the stand-ins of one lab.
#[derive(Debug)]
pub struct Certificates {
    directory: PathBuf,
}

/// An HTTPS and HTTP/2 server with /readyz, leases and a watch.
#[derive(Debug)]
pub struct StandIn {
    pub process: Process,
}

/// A client that renews a lease and holds a watch on one HTTP/2 connection.
#[derive(Debug)]
pub struct Kubelet {
    pub process: Process,
}

impl Certificates {
    /// Makes a CA and certificates that name every host of the lab.
    pub fn make(lab: &Lab) -> Self {
        let directory = lab.directory().join("certs");
        std::fs::create_dir(&directory).expect("a temporary directory");
        let mut command = vec![BINARY.to_owned(), "stand-in".to_owned(), "--make-certs".to_owned()];
        command.push(directory.display().to_string());
        // As kubeadm's certificates.
        command.extend(["--san".to_owned(), "kubernetes".to_owned()]);
        for host in [&lab.lb, &lab.b1, &lab.b2, &lab.b3] {
            command.extend(["--san".to_owned(), host.v4.to_string(), "--san".to_owned(), host.v6.to_string()]);
        }
        lab.lb.run(&command.join(" "));
        Self { directory }
    }

    /// The CA, PEM.
    pub fn ca(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

impl StandIn {
    /// Starts one on port 6443 of `host`, with the right certificate.
    #[track_caller]
    pub fn start(lab: &Lab, certificates: &Certificates, host: &Host) -> Self {
        Self::start_as(lab, certificates, host, "server")
    }

    /// Starts one with the certificate called `certificate`: `server`, `expired` or `wrong-name`.
    #[track_caller]
    pub fn start_as(lab: &Lab, certificates: &Certificates, host: &Host, certificate: &str) -> Self {
        Self::start_at(lab, certificates, host, certificate, &host.v4(6443).to_string())
    }

    /// Starts one on port 6443 of all addresses of `host`, as a real apiserver.
    #[track_caller]
    pub fn start_everywhere(lab: &Lab, certificates: &Certificates, host: &Host) -> Self {
        Self::start_at(lab, certificates, host, "server", "[::]:6443")
    }

    fn start_at(lab: &Lab, certificates: &Certificates, host: &Host, certificate: &str, listen: &str) -> Self {
        let (cert, key) = (format!("{certificate}.crt"), format!("{certificate}.key"));
        let (cert, key) = (certificates.file(&cert), certificates.file(&key));
        let command = [BINARY, "stand-in", "--listen", listen, "--name", host.name, "--cert", &cert, "--key", &key];
        let log = lab.directory().join(format!("{}.log", host.name));
        let said_before = std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        let process = host.spawn(&command, &log);
        eventually(LONG, &format!("the stand-in on {} listens", host.name), || {
            assert!(process.exit_status().is_none(), "the stand-in ended:\n{}", process.log_text());
            process.log_text().lines().count() > said_before
        });
        Self { process }
    }

    /// Makes /readyz answer 500, or 200 again.
    pub fn set_ready(&self, ready: bool) {
        self.process.signal(if ready { Signal::USR2 } else { Signal::USR1 });
    }
}

/// A moment of a kubelet's life, on its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Kubelet {
    /// Starts one on `host` that connects to port 6443 of `server` and renews every second.
    #[track_caller]
    pub fn start(lab: &Lab, certificates: &Certificates, host: &Host, server: &Host, name: &str) -> Self {
        Self::start_with(lab, certificates, host, server, name, &[])
    }

    /// As [`Kubelet::start`], with more arguments.
    #[track_caller]
    pub fn start_with(
        lab: &Lab,
        certificates: &Certificates,
        host: &Host,
        server: &Host,
        name: &str,
        more: &[&str],
    ) -> Self {
        let (server, ca) = (server.v4(6443).to_string(), certificates.ca().display().to_string());
        let mut command =
            vec![BINARY, "kubelet", "--server", &server, "--ca", &ca, "--name", name, "--watch", "--json"];
        command.extend(more);
        Self { process: host.spawn(&command, &lab.directory().join(format!("{name}.log"))) }
    }

    /// Everything it noticed so far.
    pub fn events(&self) -> Vec<Value> {
        let text = self.process.log_text();
        // The last line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The moment of its last event.
    pub fn now(&self) -> Moment {
        Moment(self.events().iter().filter_map(|event| event["at_ms"].as_u64()).max().unwrap_or(0))
    }

    /// Events of this kind after `since`.
    pub fn events_since(&self, kind: &str, since: Moment) -> Vec<Value> {
        let later = |event: &Value| event["event"] == kind && event["at_ms"].as_u64().is_some_and(|at| at > since.0);
        self.events().into_iter().filter(later).collect()
    }

    /// Waits for so many more renewals after `since`.
    #[track_caller]
    pub fn wait_renewals(&self, since: Moment, count: usize, deadline: Duration) {
        let what = format!("{count} renewals by {}", self.process.log.display());
        let renewals = || self.events_since("renewed", since);
        eventually_some(deadline, &what, || (renewals().len() >= count).then_some(()));
    }

    /// The longest gap between two renewals of which the later came after `since`.
    pub fn longest_gap(&self, since: Moment) -> Duration {
        let gaps = self.events_since("renewed", since).into_iter().filter_map(|event| event["gap_ms"].as_u64());
        Duration::from_millis(gaps.max().unwrap_or(0))
    }

    /// Who answered it last, if it said so.
    pub fn served_by(&self) -> Option<String> {
        let connected = self.events_since("connected", Moment(0)).pop()?;
        Some(connected["stand_in"].as_str()?.to_owned())
    }
}
