//! The descriptors and sockets that Baton holds without flows, and whether it has returned to that.

use super::host::Host;
use super::process::Process;
use super::wait::{Stopwatch, eventually};
use super::{LONG, ms};

/// Descriptors of the process without its pipes, and TCP sockets of its host. Baton keeps idle pipes for the next bulk
/// transfer, up to a limit; `baton_pipes_in_use` shows that none is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    fds: usize,
    sockets: usize,
}

impl Baseline {
    /// The lowest number within a moment: probes come and go. Baton opens the watch of its file last, three descriptors
    /// within microseconds; without permission for it Baton goes on without.
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

    /// Waits until it holds no more than then.
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

/// Both ends of the 32 pipes that each worker may keep; test machines have at most 64 cores.
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
