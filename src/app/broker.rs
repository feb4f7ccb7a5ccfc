//! The broker: answers what the process with the listeners asks of it (`sys::broker`). It reads nothing that a stranger on the network has
//! written, and takes no path on trust: a file must be one that the configuration file names, a binary one that only root can have written.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::net::{self, SocketType, sockopt};
use serde::Serialize;

use super::offload;
use crate::addr::VipAddr;
use crate::config::{self, Config, Frontend, OffloadSettings, SharePort, can_share_port};
use crate::essential;
use crate::proxy::{self, SHARED_PORTS};
use crate::sys::broker::{BinaryTask, BrokerFault, BrokerRequest, MESSAGE_BYTES_MAX};
use crate::sys::process::ProcessHandle;
use crate::sys::{bpffs, fd_passing, inherited, process, rights, trust};

/// Standard input, output and error.
const STDIO: usize = 3;

/// How long it looks for the next request before it looks again.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// Answers until the other process ends. Its standard input is the socket.
pub(crate) fn serve(config: &Path) -> ExitCode {
    process::keep_memory_private();
    let _ = rustix::thread::set_name(c"baton-broker");
    // The signals of a service manager or of a terminal go to both processes; the other one decides.
    process::ignore_stops();
    let Ok(socket) = inherited::take_stdin() else { return ExitCode::FAILURE };
    let parent = match process::parent() {
        Ok(Some(parent)) => parent,
        Ok(None) => return ExitCode::SUCCESS,
        Err(_) => return ExitCode::FAILURE,
    };
    // Descriptors on their way between processes count as their user's, and a flow of an upgrade is some (unix(7), ETOOMANYREFS).
    process::raise_file_limit();
    serve_until_end(&BrokerHost::new(config), &socket, &parent)
}

/// Answers until `parent` ends, or closes its end: a child that it has started may keep that end for as long as it likes.
fn serve_until_end(broker: &BrokerHost, socket: &OwnedFd, parent: &ProcessHandle) -> ExitCode {
    loop {
        let (mut bytes, mut fds) = (vec![0; MESSAGE_BYTES_MAX], Vec::new());
        if fd_passing::wait_readable_any(&[socket.as_fd(), parent.as_fd()], LOOK_EVERY).is_err() {
            return ExitCode::FAILURE;
        }
        if parent.ends_within(Duration::ZERO) {
            return ExitCode::SUCCESS;
        }
        match fd_passing::wait_readable(socket, Duration::ZERO) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(_) => return ExitCode::FAILURE,
        }
        let (number, answer) = match fd_passing::receive(socket, &mut bytes, &mut fds) {
            Ok(0) => return ExitCode::SUCCESS,
            Ok(length) => match postcard::from_bytes::<(u64, _)>(&bytes[..length]) {
                Ok((number, request)) => (number, broker.answer(request, fds)),
                Err(_) => return ExitCode::FAILURE,
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return ExitCode::FAILURE,
        };
        let sent = answer.send(socket, number).or_else(|error| match answer.fds.is_empty() {
            true => Err(error),
            // It cannot have them.
            false => BrokerAnswer::fault(error.into()).send(socket, number),
        });
        if sent.is_err() {
            return ExitCode::FAILURE;
        }
    }
}

struct BrokerHost {
    /// The configuration file.
    config: PathBuf,
    /// Its own binary.
    binary: Option<PathBuf>,
    /// What the file said of offload at the start, all that still counts of a file that Baton's user can write; `None`: it had errors.
    offload_at_start: Option<OffloadSettings>,
    /// Why the file counts for nothing more than that, if Baton's user could write it at any time: it may still be open to him.
    distrust: OnceCell<String>,
}

/// The bytes of a `Result<T, BrokerFault>`, and the descriptors with it.
struct BrokerAnswer {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl BrokerAnswer {
    fn of(value: impl Serialize, fds: Vec<OwnedFd>) -> Self {
        Self::encoded(Ok::<_, BrokerFault>(value), fds)
    }

    fn fault(fault: BrokerFault) -> Self {
        Self::encoded(Err::<(), _>(fault), Vec::new())
    }

    fn encoded(answer: Result<impl Serialize, BrokerFault>, fds: Vec<OwnedFd>) -> Self {
        Self { bytes: postcard::to_stdvec(&answer).expect("plain data"), fds }
    }

    fn send(&self, socket: &OwnedFd, number: u64) -> io::Result<usize> {
        let mut bytes = postcard::to_stdvec(&number).expect("a number");
        bytes.extend_from_slice(&self.bytes);
        let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
        fd_passing::send(socket, &bytes, &fds)
    }
}

impl BrokerHost {
    /// Call it before the other process reads what a stranger has written: it may then have written the file.
    fn new(config: &Path) -> Self {
        let offload_at_start = config::load(config).ok().map(|loaded| loaded.config.offload);
        let binary = std::env::current_exe().ok();
        let broker = Self { config: config.to_owned(), binary, offload_at_start, distrust: OnceCell::new() };
        let _ = broker.is_of_others();
        broker
    }

    fn answer(&self, request: BrokerRequest, fds: Vec<OwnedFd>) -> BrokerAnswer {
        let answered = match request {
            BrokerRequest::Rights => {
                rights::effective().map(|rights| BrokerAnswer::of(rights, Vec::new())).map_err(Into::into)
            }
            BrokerRequest::OpenFile { path } => self.open(&path),
            BrokerRequest::OpenPins { path } => self.open_pins(&path),
            BrokerRequest::InstallProgram => self.install_program(),
            BrokerRequest::InstallSharing => self.install_sharing(),
            BrokerRequest::Bind { address } => self.bind(address, &fds),
            BrokerRequest::StartBinary { binary, config, task } => self.start(&binary, &config, task, fds),
        };
        answered.unwrap_or_else(BrokerAnswer::fault)
    }

    fn open(&self, path: &Path) -> Result<BrokerAnswer, BrokerFault> {
        if path != self.config {
            if !config::names_file(&self.config, path) {
                return Err(io::Error::from_raw_os_error(libc::EACCES).into());
            }
            self.is_of_others()?;
        }
        Ok(BrokerAnswer::of((), vec![trust::open_as_led_to(path)?.into()]))
    }

    fn open_pins(&self, path: &Path) -> Result<BrokerAnswer, BrokerFault> {
        if path != Path::new(SHARED_PORTS) && self.offload_settings()?.pins != path {
            return Err(io::Error::from_raw_os_error(libc::EACCES).into());
        }
        // Baton's user may have another directory of his at this path, but no link to one of others.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = trust::open_without_links(path, flags)?;
        match bpffs::is_one(&directory)? {
            true => Ok(BrokerAnswer::of((), vec![directory])),
            false => Err(BrokerFault::new(format!("{} is not on a BPF file system", path.display()))),
        }
    }

    fn install_program(&self) -> Result<BrokerAnswer, BrokerFault> {
        let settings = self.offload_settings()?;
        let installed = offload::install(&settings).map_err(|error| BrokerFault::new(error.to_string()))?;
        Ok(match installed {
            None => BrokerAnswer::of(None::<()>, Vec::new()),
            Some(installed) => BrokerAnswer::of(Some(installed.facts), installed.tools.into()),
        })
    }

    fn install_sharing(&self) -> Result<BrokerAnswer, BrokerFault> {
        let may_share = |frontend: &Frontend| {
            frontend.share_port != SharePort::Off && frontend.listen.iter().any(|address| can_share_port(*address))
        };
        if !self.settings()?.frontends.iter().any(|frontend| may_share(frontend)) {
            return Err(io::Error::from_raw_os_error(libc::EACCES).into());
        }
        proxy::install_sharing().map_err(|error| BrokerFault::new(error.to_string()))?;
        Ok(BrokerAnswer::of((), Vec::new()))
    }

    fn bind(&self, address: SocketAddr, sockets: &[OwnedFd]) -> Result<BrokerAnswer, BrokerFault> {
        let settings = self.settings()?;
        for socket in sockets {
            if !listens(&settings, address, sockopt::socket_type(socket).map_err(io::Error::from)?) {
                return Err(io::Error::from_raw_os_error(libc::EACCES).into());
            }
            net::bind(socket, &address).map_err(io::Error::from)?;
        }
        Ok(BrokerAnswer::of((), Vec::new()))
    }

    /// The binary without links, if it may be started with these rights. Only root can write it, and it is called as this one: another program of
    /// root's could be made to read any file, or to run others.
    fn trusted(&self, binary: &Path) -> Result<PathBuf, BrokerFault> {
        if rustix::process::geteuid().is_root() {
            return Ok(binary.to_owned());
        }
        let shown = binary.display();
        let led_to = trust::only_root_writes(binary).map_err(|why| {
            BrokerFault::new(format!("{shown} would get rights, and {why}; only root may be able to write it"))
        })?;
        let running = self.binary.as_deref().and_then(Path::file_name).unwrap_or_default();
        match is_called_as(binary.file_name().unwrap_or_default(), running) {
            true => Ok(led_to),
            false => Err(BrokerFault::new(format!(
                "{shown} would get rights, and its name is not {:?}, as that of the running binary, with or without a version",
                String::from_utf8_lossy(stem(running))
            ))),
        }
    }

    /// Whether a binary with rights may have this file as its own, and tell its errors, with the lines that have them. Another one than the running
    /// one could be any file of root's that is TOML, also one of which somebody else writes a line (/sys).
    fn may_configure(&self, config: &Path) -> Result<(), BrokerFault> {
        if config != self.config && !rustix::process::geteuid().is_root() {
            return Err(BrokerFault::new(format!(
                "a process with rights reads {} and no other configuration file; restart Baton to have it read {}",
                self.config.display(),
                config.display()
            )));
        }
        self.is_of_others()
    }

    /// Whether the other process's user could never have written the configuration file: it would name files of root's there.
    fn is_of_others(&self) -> Result<(), BrokerFault> {
        if let Err(why) = trust::only_others_write(&self.config) {
            let _ = self.distrust.set(format!(
                "{why}, so that Baton's own user could write it; put a new file of root's in its place, and restart Baton"
            ));
        }
        self.distrust.get().map_or(Ok(()), |why| Err(BrokerFault::new(why.as_str())))
    }

    /// What the file says now, if Baton's user could never have written it.
    fn settings(&self) -> Result<Config, BrokerFault> {
        self.is_of_others()?;
        self.as_it_is()
    }

    /// As [`Self::settings`]. Of a file that Baton's user may have written, what it said at the start counts.
    fn offload_settings(&self) -> Result<OffloadSettings, BrokerFault> {
        if self.is_of_others().is_ok() {
            return Ok(self.as_it_is()?.offload);
        }
        let fault = || BrokerFault::new("the configuration had an error at the start");
        let at_start = self.offload_at_start.clone().ok_or_else(fault)?;
        // Whoever has written it may have ended the process since, so that it was started anew.
        Ok(OffloadSettings { pins: OffloadSettings::default().pins, ..at_start })
    }

    fn as_it_is(&self) -> Result<Config, BrokerFault> {
        let loaded = config::load(&self.config).map_err(|rejected| {
            let first = rejected.errors.first().map(ToString::to_string).unwrap_or_default();
            BrokerFault::new(format!("the configuration has an error by now: {first}"))
        })?;
        Ok(loaded.config)
    }

    fn start(
        &self,
        binary: &Path,
        config: &Path,
        task: BinaryTask,
        fds: Vec<OwnedFd>,
    ) -> Result<BrokerAnswer, BrokerFault> {
        let led_to = self.trusted(binary)?;
        if task != BinaryTask::Version {
            self.may_configure(config)?;
        }
        let Ok([stdin, stdout, stderr]) = <[OwnedFd; STDIO]>::try_from(fds) else {
            return Err(BrokerFault::new("no standard input, output and error"));
        };
        // Whatever is missing for this, no process has started yet that nobody would wait for.
        let (near, far) = fd_passing::pair()?;
        let (started, child) = mpsc::channel();
        essential::thread("child", move || child.recv().map(|child| tell_end(child, near.as_fd())))?;
        let mut command = Command::new(led_to);
        task.arguments(&mut command, config);
        let mut child =
            command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr)).spawn()?;
        let pid = child.id();
        let handle = ProcessHandle::open(pid).inspect_err(|_| _ = child.kill());
        started.send(child).expect("the thread waits for it");
        Ok(BrokerAnswer::of(pid, vec![handle?.into(), far]))
    }
}

/// Whether a binary has the name of the running one: the same, or `baton`, `baton-0.2` or `baton_0.2` for one that is called `baton` or so. Other
/// programs of root's may be called `baton-import`.
fn is_called_as(name: &OsStr, running: &OsStr) -> bool {
    let stem = stem(running);
    let Some(added) = name.as_encoded_bytes().strip_prefix(stem).filter(|_| !stem.is_empty()) else { return false };
    name == running || matches!(added, [] | [b'-' | b'_', b'0'..=b'9', ..])
}

/// A binary's name without a version or another addition: `baton` of `baton-0.2`.
fn stem(name: &OsStr) -> &[u8] {
    let is_part = |byte: &u8| !byte.is_ascii_alphabetic();
    name.as_encoded_bytes().split(is_part).next().unwrap_or_default()
}

/// Whether Baton listens on `address` with such a socket.
fn listens(settings: &Config, address: SocketAddr, kind: SocketType) -> bool {
    let Config { admin, frontends, peers, .. } = settings;
    match kind {
        SocketType::STREAM => {
            let clients = frontends.iter().flat_map(|frontend| &frontend.listen).copied().map(VipAddr::socket_addr);
            let others = [admin.http, admin.metrics, peers.as_ref().map(|peers| peers.listen)];
            clients.chain(others.into_iter().flatten()).any(|place| place == address)
        }
        SocketType::DGRAM => peers.as_ref().is_some_and(|peers| peers.beat_place() == address),
        _ => false,
    }
}

/// Waits for the child's end and tells its status to whoever has the other end.
fn tell_end(mut child: Child, near: BorrowedFd<'_>) {
    if let Ok(status) = child.wait() {
        let _ = fd_passing::send(near, &status.into_raw().to_ne_bytes(), &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, chown};

    use rustix::io::Errno;
    use rustix::net::AddressFamily;
    use rustix::process::{Resource, Rlimit, WaitOptions, getrlimit, setrlimit, wait};

    #[test]
    fn it_opens_what_the_configuration_names_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let [config, list, secret] = ["baton.toml", "backends", "secret"].map(|name| folder.path().join(name));
        let text = "[[frontend]]\nname = \"a\"\nlisten = [\"127.0.0.1:6443\"]\ndiscover = { kind = \"file\", path = \"backends\" }\n";
        fs::write(&config, text).unwrap();
        fs::write(&list, "10.0.0.1:6443\n").unwrap();
        fs::write(&secret, "of somebody else's\n").unwrap();
        let broker = BrokerHost::new(&config);
        let errno = |request| {
            let answer = broker.answer(request, Vec::new());
            let result: Result<(), BrokerFault> = postcard::from_bytes(&answer.bytes).unwrap();
            (result.err(), answer.fds.len())
        };
        for path in [&config, &list] {
            assert!(matches!(errno(BrokerRequest::OpenFile { path: path.clone() }), (None, 1)), "{path:?}");
        }
        for path in [&secret, &folder.path().join("../secret"), Path::new("/etc/shadow"), Path::new("backends")] {
            let (fault, fds) = errno(BrokerRequest::OpenFile { path: path.to_owned() });
            assert_eq!((fault.and_then(|it| it.errno), fds), (Some(libc::EACCES), 0), "{path:?}");
        }
        let (fault, _) = errno(BrokerRequest::OpenPins { path: "/sys/fs/bpf".into() });
        assert_eq!(fault.and_then(|it| it.errno), Some(libc::EACCES));
    }

    /// What it lets a process of user 7 have, which may hold descriptors of its own and write where it may.
    fn to_another_user<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        // Rights belong to threads.
        let tried = std::thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(7)).unwrap();
            act()
        });
        tried.join().unwrap()
    }

    fn said<T>(result: Result<T, BrokerFault>) -> String {
        result.err().map(|fault| fault.message).unwrap_or_default()
    }

    #[test]
    fn it_binds_what_the_configuration_has_baton_listen_on_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("baton.toml");
        let text = "[admin]\nhttp = \"127.98.0.1:81\"\nmetrics = \"127.98.0.1:82\"\n[instance]\nname = \"a\"\n[peers]\n\
                    listen = \"127.98.0.1:83\"\nkey_file = \"key\"\n[[peers.peer]]\nname = \"b\"\naddress = \"127.98.0.2:83\"\n\
                    [[frontend]]\nname = \"a\"\nlisten = [\"127.98.0.1:80\"]\n[[frontend.backend]]\nname = \"b1\"\naddress = \"127.98.0.3:84\"\n";
        fs::write(&config, text).unwrap();
        fs::write(folder.path().join("key"), "0123456789abcdef".repeat(4)).unwrap();
        let broker = BrokerHost::new(&config);
        let bind = |kind, address: &str| {
            let sockets = [0; 2].map(|_| net::socket(AddressFamily::INET, kind, None).unwrap());
            sockets.iter().for_each(|socket| sockopt::set_socket_reuseport(socket, true).unwrap());
            let answer = broker.bind(address.parse().unwrap(), &sockets);
            let bound = sockets
                .iter()
                .all(|it| SocketAddr::try_from(net::getsockname(it).unwrap()).unwrap() == address.parse().unwrap());
            answer.map(|_| bound).map_err(|fault| (fault.errno, fault.message))
        };
        for address in ["127.98.0.1:80", "127.98.0.1:81", "127.98.0.1:82", "127.98.0.1:83"] {
            assert_eq!(bind(SocketType::STREAM, address), Ok(true), "{address}");
        }
        assert_eq!(bind(SocketType::DGRAM, "0.0.0.0:83"), Ok(true));
        for address in ["127.98.0.1:22", "127.98.0.4:80", "0.0.0.0:80", "0.0.0.0:83", "127.98.0.2:83", "127.98.0.3:84"]
        {
            assert_eq!(bind(SocketType::STREAM, address).unwrap_err().0, Some(libc::EACCES), "{address}");
        }
        for address in ["127.98.0.1:80", "127.98.0.1:83", "0.0.0.0:53"] {
            assert_eq!(bind(SocketType::DGRAM, address).unwrap_err().0, Some(libc::EACCES), "{address}");
        }
    }

    #[test]
    fn it_starts_a_binary_of_root_s_and_of_its_name_with_the_configuration_that_it_has() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let [config, other, next, link] =
            ["baton.toml", "other.toml", "baton-0.2", "baton"].map(|name| folder.path().join(name));
        [&config, &other, &next].iter().for_each(|path| fs::write(path, "of root's\n").unwrap());
        std::os::unix::fs::symlink("baton-0.2", &link).unwrap();
        let host = |binary: &str| BrokerHost { binary: Some(binary.into()), ..BrokerHost::new(&config) };
        let [plain, newer] = ["/usr/bin/baton", "/usr/bin/baton-0.1"].map(host);
        to_another_user(move || {
            for broker in [&plain, &newer] {
                // It is the one that was looked at which starts.
                assert_eq!(broker.trusted(&link).unwrap(), next);
                assert!(said(broker.trusted(Path::new("/usr/bin/env"))).contains("its name is not \"baton\""));
            }
            assert!(said(plain.trusted(next.strip_prefix("/").unwrap())).contains("does not begin with /"));
            assert_eq!(said(plain.may_configure(&config)), "");
            assert!(said(plain.may_configure(&other)).contains("and no other configuration file"));
        });
    }

    #[test]
    fn a_binary_s_name_is_that_of_the_running_one_with_or_without_a_version() {
        let is_one = |name: &str, running: &str| is_called_as(name.as_ref(), running.as_ref());
        for (name, running) in [
            ("baton", "baton"),
            ("baton-0.2", "baton"),
            ("baton_0.2", "baton-0.1"),
            ("baton", "baton-0.1"),
            ("baton-next", "baton-next"),
            ("baton", "baton (deleted)"),
        ] {
            assert!(is_one(name, running), "{name} for {running}");
        }
        for (name, running) in [
            ("baton-import", "baton"),
            ("batond", "baton"),
            ("baton-", "baton"),
            ("baton.sh", "baton"),
            ("env", "baton"),
            ("env", ""),
            ("", ""),
            ("-1", ""),
        ] {
            assert!(!is_one(name, running), "{name} for {running}");
        }
    }

    /// Regression: it answered a child of its parent for as long as that kept the socket, also after an upgrade.
    #[test]
    fn it_ends_with_its_parent_though_another_process_has_the_socket() {
        let mut parent = Command::new("sleep").arg("1000").spawn().unwrap();
        let handle = ProcessHandle::open(parent.id()).unwrap();
        let (near, far) = fd_passing::pair().unwrap();
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            let broker = BrokerHost::new(Path::new("/nowhere/baton.toml"));
            ended.send(serve_until_end(&broker, &far, &handle)).unwrap();
        });
        let request = postcard::to_stdvec(&(1u64, BrokerRequest::Rights)).unwrap();
        fd_passing::send(&near, &request, &[]).unwrap();
        assert!(
            fd_passing::wait_readable(&near, Duration::from_secs(10)).unwrap(),
            "it answers while its parent lives"
        );
        parent.kill().unwrap();
        let has_ended = end.recv_timeout(Duration::from_secs(10)).is_ok();
        let _ = parent.wait();
        assert!(has_ended, "it outlives its parent");
    }

    #[test]
    fn it_has_no_ports_shared_that_the_configuration_does_not_share() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("baton.toml");
        let frontend = "[[frontend]]\nname = \"a\"\nlisten = [\"10.0.0.1:6443\"]\nbackend = [{ name = \"b\", address = \"127.0.0.1:1\" }]\n";
        fs::write(&config, format!("{frontend}share_port = \"off\"\n")).unwrap();
        let refused = BrokerHost::new(&config).install_sharing().err().expect("it has none shared");
        assert_eq!(refused.errno, Some(libc::EACCES), "{}", refused.message);
    }

    /// Regression: whoever had taken the other process over could name each file of root's in it, and pins of others.
    #[test]
    fn a_configuration_file_that_the_other_process_may_write_opens_nothing_of_root_s() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let [config, secret] = ["baton.toml", "secret"].map(|name| folder.path().join(name));
        let text = |more: &str| {
            format!(
                "{more}[[frontend]]\nname = \"a\"\nlisten = [\"127.0.0.1:6443\"]\ndiscover = {{ kind = \"file\", path = \"secret\" }}\n"
            )
        };
        fs::write(&secret, "10.0.0.1:6443\n").unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        fs::write(&config, text("")).unwrap();
        let broker = BrokerHost::new(&config);
        let before = broker.offload_settings().unwrap();
        for (uid, mode, why) in [(7, 0o644, "belongs to user 7"), (0, 0o664, "has mode 664")] {
            fs::write(&config, text("offload = { pins = \"/sys/fs/bpf/other\" }\n")).unwrap();
            chown(&config, Some(uid), None).unwrap();
            fs::set_permissions(&config, PermissionsExt::from_mode(mode)).unwrap();
            let (broker, config, secret) = (
                BrokerHost {
                    config: config.clone(),
                    binary: None,
                    offload_at_start: broker.offload_at_start.clone(),
                    distrust: OnceCell::new(),
                },
                config.clone(),
                secret.clone(),
            );
            let (settings, after) = to_another_user(move || {
                assert!(said(broker.open(&secret)).contains(why), "{}", said(broker.open(&secret)));
                assert!(said(broker.may_configure(&config)).contains(why));
                assert!(said(broker.bind(([127, 0, 0, 1], 6443).into(), &[])).contains(why));
                (broker.offload_settings().unwrap(), broker)
            });
            // Whoever has opened it for writing before still may write it.
            chown(&after.config, Some(0), None).unwrap();
            fs::set_permissions(&after.config, PermissionsExt::from_mode(0o644)).unwrap();
            assert!(said(to_another_user(move || after.open(&after.config.with_file_name("secret")))).contains(why));
            assert_eq!(settings, before);
        }
    }

    #[test]
    fn a_directory_that_is_not_of_bpf_or_that_a_link_leads_to_is_no_place_of_pins() {
        let folder = tempfile::tempdir().unwrap();
        let [config, moved] = [folder.path().join("baton.toml"), folder.path().with_extension("moved")];
        fs::write(&config, format!("offload = {{ pins = {:?} }}\n[[frontend]]\nname = \"a\"\nlisten = [\"127.0.0.1:6443\"]\nbackend = [{{ name = \"b\", address = \"127.0.0.1:1\" }}]\n", folder.path())).unwrap();
        let broker = BrokerHost::new(&config);
        assert!(said(broker.open_pins(folder.path())).ends_with(" is not on a BPF file system"));
        fs::rename(folder.path(), &moved).unwrap();
        std::os::unix::fs::symlink(&moved, folder.path()).unwrap();
        let broker = BrokerHost { config: moved.join("baton.toml"), ..broker };
        assert_eq!(broker.open_pins(folder.path()).err().and_then(|fault| fault.errno), Some(libc::ENOTDIR));
        fs::remove_file(folder.path()).unwrap();
        fs::rename(&moved, folder.path()).unwrap();
    }

    /// Regression: the process had started by then, and became a zombie for as long as the broker lived.
    #[test]
    fn without_a_free_descriptor_it_starts_no_process_that_it_would_not_wait_for() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let broker = BrokerHost {
            config: "/etc/baton.toml".into(),
            binary: None,
            offload_at_start: None,
            distrust: OnceCell::new(),
        };
        let stdio = [0; STDIO].map(|_| OwnedFd::from(fs::File::open("/dev/null").unwrap()));
        let first_free = fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(first_free), ..limit }).unwrap();
        let answer = broker.start(Path::new("/bin/cat"), Path::new(""), BinaryTask::Version, stdio.into());
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(answer.err().and_then(|fault| fault.errno), Some(libc::EMFILE));
        assert_eq!(wait(WaitOptions::empty()).unwrap_err(), Errno::CHILD, "it has a child");
    }
}
