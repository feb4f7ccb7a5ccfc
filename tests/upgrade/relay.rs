//! A process in the middle: Baton starts it as its successor, it starts the real one, and relays their messages. At one
//! message of their conversation it kills or stops one of the two.
//!
//! It is this very test program, started through a script. So the processes under test need to know nothing of tests.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use baton::sys::{fd_passing, inherited};
use baton::upgrade::channel::{Channel, ChannelError};
use baton::upgrade::message::{Kind, Message};
use rustix::process::Signal;

use super::instance::{BINARY, is_stopped, lives, signal, wait_for};

const FOREVER: Duration = Duration::from_secs(120);

/// What shall happen, and when.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The message at which it happens; of a kind that comes more than once, the second. A message's sender has said it
    /// by then, and its receiver has not heard it.
    pub at: Kind,
    pub victim: Victim,
    pub stop: bool,
    /// Zero, or the conversation goes on for this long after the message.
    pub later: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Old,
    New,
}

impl Plan {
    /// Either process at every message that a whole conversation has.
    pub fn all(stop: bool) -> Vec<Self> {
        // An instance without peers has none to tell of.
        let is_of_peers = |kind: &Kind| matches!(kind, Kind::Peers | Kind::PeerFlows);
        let messages = Kind::ALL.iter().filter(|kind| !kind.breaks_off() && !is_of_peers(kind));
        messages
            .flat_map(|at| {
                [Victim::Old, Victim::New].map(|victim| Self { at: *at, victim, stop, later: Duration::ZERO })
            })
            .collect()
    }
}

/// A program that Baton can start as its successor.
pub fn script(directory: &Path, plan: Plan) -> PathBuf {
    let path = directory.join("successor");
    let this = std::env::current_exe().unwrap();
    // The kernel sends SIGHUP to a group with a stopped process when the last one goes that a shell could speak to.
    let text = format!(
        "#!/bin/sh\ntrap '' HUP\nexport RELAY_DIRECTORY='{}' RELAY_AT={} RELAY_VICTIM={:?} RELAY_STOP={} \
         RELAY_LATER_US={}\n\
         exec '{}' relay::between_the_two --exact --ignored --nocapture\n",
        directory.display(),
        plan.at.name(),
        plan.victim,
        plan.stop,
        plan.later.as_micros(),
        this.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The real successor's process, once it was started.
pub fn new_pid(directory: &Path) -> Option<u32> {
    std::fs::read_to_string(directory.join("new_pid")).ok()?.parse().ok()
}

/// Whether one of the two has said that it gives up, or has ended the conversation.
pub fn is_over(directory: &Path) -> bool {
    directory.join("over").exists()
}

/// Whether the plan was carried out.
pub fn has_struck(directory: &Path) -> bool {
    directory.join("struck").exists()
}

#[test]
#[ignore = "a part of the tests of faults, which start it"]
fn between_the_two() {
    let Ok(directory) = std::env::var("RELAY_DIRECTORY").map(PathBuf::from) else { return };
    // The broker of the old process has started this one.
    let broker = rustix::process::getppid().unwrap().as_raw_nonzero().get();
    let stat = std::fs::read_to_string(format!("/proc/{broker}/stat")).unwrap();
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
    let old_pid: u32 = parent.and_then(|pid| pid.parse().ok()).expect("the fourth field of proc(5) stat");
    let old = End::new(inherited::take_stdin().unwrap());
    let (near, far) = Channel::pair().unwrap();
    // A process that kills us means the successor, so kill the successor.
    let mut successor = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", BINARY, "run", "--upgrade", "-c"])
        .arg(directory.join("baton.toml"))
        .stdin(Stdio::from(far))
        .spawn()
        .unwrap();
    let new_pid = successor.id();
    std::fs::write(directory.join("new_pid"), new_pid.to_string()).unwrap();
    let new = End::new(near);
    let later = Duration::from_micros(std::env::var("RELAY_LATER_US").unwrap().parse().unwrap());
    let at_end = directory.clone();
    let strike = move || {
        let victim = if std::env::var("RELAY_VICTIM").unwrap() == "Old" { old_pid } else { new_pid };
        let stop = std::env::var("RELAY_STOP").unwrap() == "true";
        // Set before it is true, because the surviving process may kill this one next.
        std::fs::write(directory.join("struck"), "").unwrap();
        signal(victim, if stop { Signal::STOP } else { Signal::KILL });
        // A stop reaches one thread after the other, and the message goes on only then.
        wait_for("the strike to be felt", || if stop { is_stopped(victim) } else { !lives(victim) });
    };
    let striking = Cell::new(None);
    let strike = || match later.is_zero() {
        true => strike(),
        false => {
            let strike = strike.clone();
            striking.set(Some(std::thread::spawn(move || {
                std::thread::sleep(later);
                strike();
            })));
        }
    };
    // The test may have ended by now, and the directory with it.
    let over = || drop(std::fs::write(at_end.join("over"), ""));
    pass_on(old, new, strike, over);
    over();
    if let Some(striking) = striking.take() {
        striking.join().unwrap();
    }
    // It ends with its last flow, or is killed with the whole group.
    successor.wait().unwrap();
}

/// One end of one conversation, and its socket again to wait for.
struct End {
    channel: Channel,
    socket: OwnedFd,
}

impl End {
    fn new(socket: OwnedFd) -> Self {
        Self { socket: socket.try_clone().unwrap(), channel: Channel::new(socket).unwrap() }
    }

    fn speaks(&self) -> bool {
        fd_passing::wait_readable(&self.socket, Duration::from_millis(1)).unwrap()
    }
}

/// Passes on what either says, until one has ended; then the other's conversation ends too. `over`: one gives up.
fn pass_on(old: End, new: End, strike: impl Fn(), over: impl Fn()) {
    let at = std::env::var("RELAY_AT").unwrap();
    let wanted = if ["batch", "received", "commit", "imported"].contains(&at.as_str()) { 2 } else { 1 };
    let mut seen = 0;
    loop {
        for (from, to) in [(&old, &new), (&new, &old)] {
            if !from.speaks() {
                continue;
            }
            let (message, fds): (Message, Vec<OwnedFd>) = match from.channel.receive(FOREVER) {
                Ok(came) => came,
                Err(ChannelError::Closed | ChannelError::Cut) => return,
                Err(error) => panic!("{error}"),
            };
            if message.name() == at {
                seen += 1;
                if seen == wanted {
                    strike();
                }
            }
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            // If it has ended, its last message must still be read.
            let _ = to.channel.send(&message, &fds, FOREVER);
            if Kind::ALL.iter().any(|kind| kind.breaks_off() && kind.name() == message.name()) {
                over();
            }
        }
    }
}
