//! What Baton holds while it has no flows, and whether it came back to that.

use super::host::Host;
use super::process::Process;
use super::wait::{Stopwatch, eventually};
use super::{LONG, ms};

/// Descriptors of the process but its pipes, and TCP sockets of its host. Idle pipes are kept for the next bulk
/// transfer, up to a bound; that none is in use is what `baton_pipes_in_use` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    fds: usize,
    sockets: usize,
}

impl Baseline {
    /// The least that is held within a moment: probes come and go. What Baton opens last is what watches over its file, three
    /// descriptors within microseconds; where it may not have them, it goes on without.
    pub fn of(process: &Process, host: &Host) -> Self {
        let watch = Stopwatch::start();
        let watches_file = || process.fd_list().iter().any(|fd| fd == "anon_inode:inotify");
        while !watches_file() && watch.elapsed() < WATCH_MAX {
            std::thread::sleep(ms(5));
        }
        std::thread::sleep(ms(20));
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
        let pipes = process.fd_list().iter().filter(|fd| fd.starts_with("pipe:")).count();
        assert!(pipes <= PIPES_MAX, "{pipes} descriptors of pipes");
        let rested = || {
            let now = Self::now(process, host);
            now.fds <= self.fds && now.sockets <= self.sockets
        };
        let watch = Stopwatch::start();
        while !rested() {
            if watch.elapsed() > LONG {
                let mut sockets = host.tcp_sockets();
                sockets.truncate(20);
                panic!("{self:?} became {:?}\n{:?}\n{sockets:?}", Self::now(process, host), process.fd_list(),);
            }
            std::thread::sleep(ms(5));
        }
    }

    fn now(process: &Process, host: &Host) -> Self {
        let fds = process.fd_list().iter().filter(|fd| !fd.starts_with("pipe:")).count();
        Self { fds, sockets: host.tcp_sockets().len() }
    }
}

/// Both ends of the 32 pipes that each worker may keep; no machine for tests is meant to have more than 64 cores.
const PIPES_MAX: usize = 2 * 32 * 64;

/// A busy machine may take its time until Baton watches its file.
const WATCH_MAX: std::time::Duration = ms(2000);

/// Long enough to fall between two probes.
const MOMENT: std::time::Duration = ms(150);

/// Waits until `host` has no TCP connection left but those past their end.
#[track_caller]
pub fn no_sockets_left(host: &Host) {
    eventually(LONG, &format!("{} has no connection left", host.name), || host.tcp_sockets().is_empty());
}
