//! The broker: a second process that keeps the rights which the first one gives up ([`super::rights`]), and does a few things for it. The two
//! speak over a pair of sockets that has no name, one request at a time; descriptors go with the messages.
//!
//! `app::broker` answers the requests, and checks each against the configuration file, which it reads itself.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::clock::now_ns;
use super::{fd_passing, rights, trust};

/// What the broker is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BrokerRequest {
    /// Its rights, as [`rights::effective`].
    Rights,
    /// To open a file that the configuration file names, or that file itself.
    OpenFile { path: PathBuf },
    /// To open the directory of pins that the configuration file names, or that of shared ports.
    OpenPins { path: PathBuf },
    /// To load the BPF program of offload, or to find it, and to attach it.
    InstallProgram,
    /// To load the BPF program of shared ports, or to find it.
    InstallSharing,
    /// To bind the sockets that come along to an address that the configuration file has for Baton itself.
    Bind { address: SocketAddr },
    /// To start a Baton binary; its standard input, output and error come along.
    StartBinary { binary: PathBuf, config: PathBuf, task: BinaryTask },
}

/// What a binary is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BinaryTask {
    /// It takes the place of the process that has asked.
    Upgrade,
    /// It says which upgrades it can take part in.
    Version,
    /// It checks the configuration file.
    Check,
}

impl BinaryTask {
    pub(crate) fn arguments(self, command: &mut Command, config: &Path) {
        match self {
            Self::Upgrade => command.args(["run", "--upgrade", "-c"]).arg(config),
            Self::Version => command.arg("upgrade-version"),
            Self::Check => command.args(["check", "-c"]).arg(config),
        };
    }
}

/// Why the broker does not do it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BrokerFault {
    pub errno: Option<i32>,
    pub message: String,
}

/// Why the broker gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerSilence {
    #[error("baton-broker, the process that has the rights for it, has ended")]
    Ended,
    #[error("baton-broker, the process that has the rights for it, does not answer")]
    Hangs,
}

impl BrokerSilence {
    /// The one that this error tells of.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// What an operator can do about it.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Ended => "run `baton evacuate` and restart Baton",
            Self::Hangs => {
                "continue that process if it was stopped (kill -CONT); else run `baton evacuate` and restart Baton"
            }
        }
    }
}

/// Limit for a request and an answer. A path has at most 4096 bytes (PATH_MAX).
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// How long an answer may take: the tasks of probes wait meanwhile. After a missed one nobody waits until it has come.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same where the kernel loads a program: a map for a million flows takes it a second or two.
const INSTALL_PATIENCE: Duration = Duration::from_secs(20);

/// The argument of `baton` that makes it a broker.
pub(crate) const COMMAND: &str = "broker";

static BROKER: OnceLock<Broker> = OnceLock::new();
static ENDED: AtomicBool = AtomicBool::new(false);

/// This process's end.
#[derive(Debug)]
pub(crate) struct Broker(Mutex<Correspondence>);

/// One request follows another; each has the next number, and so has its answer.
#[derive(Debug)]
struct Correspondence {
    socket: OwnedFd,
    asked: u64,
    answered: u64,
}

/// A broker that was started, and still has to show that it has the rights.
#[derive(Debug)]
pub(crate) struct StartedBroker {
    broker: Broker,
    process: Child,
}

impl StartedBroker {
    /// Starts it: this very binary. `config`: the configuration file. Call it before there are other threads.
    pub(crate) fn start(config: &Path) -> io::Result<Self> {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rights::hand_on()?;
        let binary = std::env::current_exe()?;
        // If another file is at that path by now, this is still the binary that runs.
        let mut command = Command::new("/proc/self/exe");
        std::os::unix::process::CommandExt::arg0(&mut command, binary);
        let process = command.arg(COMMAND).arg("-c").arg(config).stdin(Stdio::from(far)).spawn()?;
        rustix::io::ioctl_fionbio(&near, true)?;
        let broker = Broker(Mutex::new(Correspondence { socket: near, asked: 0, answered: 0 }));
        Ok(Self { broker, process })
    }

    /// From now on [`broker`] returns it, and this process has its rights no more. The returned process ends when this one does, or by a fault.
    /// `patience`: for its first answer, before which it has to start.
    ///
    /// # Errors
    /// The broker does not answer, or has fewer rights than this process, which keeps them.
    pub(crate) fn rely_on(self, patience: Duration) -> io::Result<Child> {
        let (its, _): (u64, _) = self.broker.ask_within(patience, &BrokerRequest::Rights, &[])?;
        let missing = rights::effective()? & !its;
        if missing != 0 {
            return Err(io::Error::other(format!("it lacks the capabilities {missing:#x}")));
        }
        rights::give_up()?;
        BROKER.set(self.broker).expect("it is started once");
        Ok(self.process)
    }
}

/// The broker of this process; `None`: this process has its rights itself.
pub(crate) fn broker() -> Option<&'static Broker> {
    BROKER.get()
}

/// Notes that the broker's process has ended.
pub(crate) fn has_ended() {
    ENDED.store(true, Relaxed);
}

/// How the rights are kept, if it is not as it should be, for people.
pub(crate) fn fault() -> Option<&'static str> {
    match broker() {
        Some(_) if ENDED.load(Relaxed) => Some(
            "The process that keeps Baton's rights has ended: this one goes on, but can neither upgrade itself, nor read files of root's, nor \
             listen on new ports below 1024; run `baton evacuate`, and restart it",
        ),
        None if rights::are_worth_a_broker() => {
            Some("Baton keeps its rights in the process that reads strangers' bytes; its log says why")
        }
        _ => None,
    }
}

impl Broker {
    /// Asks, with `fds`, and waits for the answer and its descriptors.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        request: &BrokerRequest,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        self.ask_within(request.patience(), request, fds)
    }

    fn ask_within<T: DeserializeOwned>(
        &self,
        patience: Duration,
        request: &BrokerRequest,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut correspondence = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, came) = correspondence.exchange(patience, request, fds).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                io::Error::new(error.kind(), BrokerSilence::Ended)
            }
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, BrokerSilence::Hangs)
            }
            _ => error,
        })?;
        let answer: Result<T, BrokerFault> = postcard::from_bytes(&answer).map_err(io::Error::other)?;
        answer.map(|answer| (answer, came)).map_err(Into::into)
    }

    /// Opens a file that the configuration file names.
    pub(crate) fn open_file(&self, path: &Path) -> io::Result<std::fs::File> {
        self.opened(&BrokerRequest::OpenFile { path: path.to_owned() }).map(Into::into)
    }

    /// Opens a directory of pins: it is but a place for other calls (O_PATH of open(2)).
    pub(crate) fn open_pins(&self, path: &Path) -> io::Result<OwnedFd> {
        self.opened(&BrokerRequest::OpenPins { path: path.to_owned() })
    }

    fn opened(&self, request: &BrokerRequest) -> io::Result<OwnedFd> {
        let (_, fds): ((), _) = self.ask(request, &[])?;
        fds.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Correspondence {
    fn exchange(
        &mut self,
        patience: Duration,
        request: &BrokerRequest,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        while self.answered < self.asked {
            // The answer to a request that nobody waits for any more.
            self.next(Duration::ZERO)?;
        }
        let message = postcard::to_stdvec(&(self.asked + 1, request)).map_err(io::Error::other)?;
        fd_passing::send(&self.socket, &message, fds)?;
        self.asked += 1;
        self.next(patience)
    }

    /// The next answer without its number, and its descriptors.
    fn next(&mut self, patience: Duration) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let until_ns = now_ns() + patience.as_nanos() as u64;
        while !fd_passing::wait_readable(&self.socket, Duration::from_nanos(until_ns.saturating_sub(now_ns())))? {
            if now_ns() >= until_ns {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let (mut bytes, mut came) = (vec![0; MESSAGE_BYTES_MAX], Vec::new());
        // Without room for its descriptors an answer is lost, and it was one all the same.
        let length = fd_passing::receive(&self.socket, &mut bytes, &mut came).inspect_err(|_| self.answered += 1)?;
        if length == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let (number, rest) = postcard::take_from_bytes(&bytes[..length]).map_err(io::Error::other)?;
        self.answered = number;
        Ok((rest.to_vec(), came))
    }
}

impl BrokerRequest {
    fn patience(&self) -> Duration {
        match self {
            Self::InstallProgram | Self::InstallSharing => INSTALL_PATIENCE,
            _ => PATIENCE,
        }
    }
}

impl BrokerFault {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { errno: None, message: message.into() }
    }
}

impl From<io::Error> for BrokerFault {
    fn from(error: io::Error) -> Self {
        Self { errno: error.raw_os_error(), message: error.to_string() }
    }
}

impl From<BrokerFault> for io::Error {
    fn from(fault: BrokerFault) -> Self {
        fault.errno.map_or_else(|| Self::other(fault.message), Self::from_raw_os_error)
    }
}

/// Opens a file that an operator named; the broker does it if this process may not. O_NONBLOCK: opening a FIFO would otherwise wait for its
/// writer, for ever.
///
/// A process of another user than root's that has the right to read root's files uses it only where that user has no hand in the path.
pub(crate) fn open_named_file(path: &Path) -> io::Result<std::fs::File> {
    let open = || {
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), libc::O_NONBLOCK);
        options.open(path)
    };
    let reads_all = rights::read_every_file();
    let opened = if reads_all { rights::without_rights(open) } else { open() };
    match (opened, broker()) {
        (Err(error), Some(broker)) if error.kind() == io::ErrorKind::PermissionDenied => broker.open_file(path),
        (Err(error), None) if reads_all && error.kind() == io::ErrorKind::PermissionDenied => {
            trust::open_as_led_to(path)
        }
        (opened, _) => opened,
    }
}

/// Binds sockets to an address on which the configuration file has Baton listen; the broker does it if this process may not, as below port 1024.
pub(crate) fn bind(sockets: &[impl AsFd], address: SocketAddr) -> io::Result<()> {
    let bound = sockets.iter().try_for_each(|socket| net::bind(socket, &address));
    match (bound, broker()) {
        (Err(Errno::ACCESS), Some(broker)) => {
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            let request = BrokerRequest::Bind { address };
            sockets.chunks(fd_passing::FDS_MAX).try_for_each(|some| broker.ask(&request, some).map(|((), _)| ()))
        }
        (bound, _) => Ok(bound?),
    }
}
