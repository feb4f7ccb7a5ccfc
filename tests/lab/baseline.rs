//! What Baton holds while it has no flows, and whether it came back to that.

use super::host::Host;
use super::process::Process;
use super::wait::{Stopwatch, eventually};
use super::{LONG, ms};

/// Descriptors of the process and TCP sockets of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    fds: usize,
    sockets: usize,
}

impl Baseline {
    /// The least that is held within a moment: probes come and go.
    pub fn of(process: &Process, host: &Host) -> Self {
        let watch = Stopwatch::start();
        let mut least = Self::now(process, host);
        while watch.elapsed() < MOMENT {
            let now = Self::now(process, host);
            least = Self { fds: least.fds.min(now.fds), sockets: least.sockets.min(now.sockets) };
            std::thread::sleep(ms(5));
        }
        least
    }

    /// Waits until no more is held than then.
    #[track_caller]
    pub fn check(&self, process: &Process, host: &Host) {
        let rested = || {
            let now = Self::now(process, host);
            now.fds <= self.fds && now.sockets <= self.sockets
        };
        let watch = Stopwatch::start();
        while !rested() {
            assert!(
                watch.elapsed() < LONG,
                "{self:?} became {:?}\n{:#?}\n{:#?}",
                Self::now(process, host),
                process.fd_list(),
                host.tcp_sockets()
            );
            std::thread::sleep(ms(5));
        }
    }

    fn now(process: &Process, host: &Host) -> Self {
        Self { fds: process.fds(), sockets: host.tcp_sockets().len() }
    }
}

/// Long enough to fall between two probes.
const MOMENT: std::time::Duration = ms(150);

/// Waits until `host` has no TCP connection left but those past their end.
#[track_caller]
pub fn no_sockets_left(host: &Host) {
    eventually(LONG, &format!("{} has no connection left", host.name), || host.tcp_sockets().is_empty());
}
