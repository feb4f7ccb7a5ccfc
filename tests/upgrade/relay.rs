//! A man in the middle: Baton starts it as its successor, it starts the real one, and passes on what they say. At one
//! message of their conversation it kills or stops one of the two.
//!
//! It is this very test program, started through a script. So the processes under test need to know nothing of tests.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use baton::handoff::channel::{Channel, ChannelError};
use baton::handoff::message::Message;
use baton::sys::inherited;
use rustix::process::Signal;

use super::instance::{BINARY, signal};

const FOREVER: Duration = Duration::from_secs(120);

/// What shall happen, and when.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The message's name; of a kind that comes more than once, the second.
    pub at: &'static str,
    pub victim: Victim,
    pub stop: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Old,
    New,
}

/// Messages in the order of the conversation, those that come more than once at their second time.
pub const MESSAGES: [&str; 13] = [
    "hello", "welcome", "doors", "state", "ready", "begin", "serving", "batch", "received", "commit", "adopted", "done",
    "finished",
];

/// A program that Baton can start as its successor.
pub fn script(directory: &Path, plan: Plan) -> PathBuf {
    let path = directory.join("successor");
    let this = std::env::current_exe().unwrap();
    let text = format!(
        "#!/bin/sh\nexport RELAY_DIRECTORY='{}' RELAY_AT={} RELAY_VICTIM={:?} RELAY_STOP={}\n\
         exec '{}' relay::between_the_two --exact --ignored --nocapture\n",
        directory.display(),
        plan.at,
        plan.victim,
        plan.stop,
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

/// Whether the plan was carried out.
pub fn has_struck(directory: &Path) -> bool {
    directory.join("struck").exists()
}

#[test]
#[ignore = "a part of the tests of faults, which start it"]
fn between_the_two() {
    let Ok(directory) = std::env::var("RELAY_DIRECTORY").map(PathBuf::from) else { return };
    let old_pid = rustix::process::getppid().unwrap().as_raw_nonzero().get() as u32;
    let old = Channel::new(inherited::take_stdin().unwrap()).unwrap();
    let (near, far) = Channel::pair().unwrap();
    // Whoever kills us, meaning the successor, kills the successor.
    let new = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", BINARY, "run", "--take-over", "-c"])
        .arg(directory.join("baton.toml"))
        .stdin(Stdio::from(far))
        .spawn()
        .unwrap();
    let new_pid = new.id();
    std::fs::write(directory.join("new_pid"), new_pid.to_string()).unwrap();
    let new = Channel::new(near).unwrap();
    let strike = move || {
        let victim = if std::env::var("RELAY_VICTIM").unwrap() == "Old" { old_pid } else { new_pid };
        let stop = std::env::var("RELAY_STOP").unwrap() == "true";
        signal(victim, if stop { Signal::STOP } else { Signal::KILL });
        std::fs::write(directory.join("struck"), "").unwrap();
    };
    pass_on(old, new, strike);
}

/// Both directions, a thread each; the end of one is the end of the other.
fn pass_on(old: Channel, new: Channel, strike: impl Fn()) {
    let (old, new) = (std::sync::Arc::new(old), std::sync::Arc::new(new));
    let (came, coming) = mpsc::channel();
    for (is_old, from) in [(true, old.clone()), (false, new.clone())] {
        let came = came.clone();
        std::thread::spawn(move || {
            loop {
                let message = from.receive(FOREVER);
                let ended = message.is_err();
                if came.send((is_old, message)).is_err() || ended {
                    return;
                }
            }
        });
    }
    let at = std::env::var("RELAY_AT").unwrap();
    let wanted = if ["batch", "received", "commit", "adopted"].contains(&at.as_str()) { 2 } else { 1 };
    let mut seen = 0;
    for (from_old, message) in coming {
        let (message, fds): (Message, Vec<OwnedFd>) = match message {
            Ok(came) => came,
            Err(ChannelError::Closed | ChannelError::Cut) => break,
            Err(error) => panic!("{error}"),
        };
        if message.name() == at {
            seen += 1;
            if seen == wanted {
                strike();
            }
        }
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let to = if from_old { &new } else { &old };
        if to.send(&message, &fds, FOREVER).is_err() {
            break;
        }
    }
    // The threads' halves end with the process.
    std::process::exit(0);
}
