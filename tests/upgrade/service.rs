//! The service manager's side of things, played by the test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use baton::sys::fd_passing;

use super::backend::{self, ECHO, request};
use super::instance::{BINARY, DEADLINE, Instance, lives, wait_for};

/// What `sd_notify` brings, with its descriptors.
struct Manager {
    socket: UnixDatagram,
    texts: Vec<String>,
    store: Vec<OwnedFd>,
}

impl Manager {
    fn new(path: &std::path::Path) -> Self {
        Self { socket: UnixDatagram::bind(path).unwrap(), texts: Vec::new(), store: Vec::new() }
    }

    fn hear(&mut self, wanted: &str) {
        wait_for(wanted, || {
            let mut text = [0; 4096];
            let mut fds = Vec::new();
            if fd_passing::wait_readable(&self.socket, Duration::from_millis(10)).unwrap() {
                let count = fd_passing::receive(&self.socket, &mut text, &mut fds).unwrap();
                let text = String::from_utf8_lossy(&text[..count]).into_owned();
                if text.contains("FDSTORE=1") {
                    self.store.extend(fds);
                }
                self.texts.push(text);
            }
            self.texts.iter().any(|text| text.contains(wanted))
        });
    }
}

#[test]
fn the_service_manager_learns_of_the_new_process_and_keeps_the_listeners_through_a_crash() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backends = [runtime.block_on(backend::serve())];
    let place = tempfile::tempdir().unwrap();
    let mut manager = Manager::new(&place.path().join("notify"));
    let mut instance = Instance::start_with(&backends, 2, "", &[("NOTIFY_SOCKET", place.path().join("notify"))]);
    manager.hear("READY=1");
    manager.hear("FDSTORE=1");
    assert_eq!(manager.store.len(), 2, "one for each worker: {:?}", manager.texts);

    let old = instance.first_pid();
    let upgraded = instance.ask(&["upgrade"]).unwrap();
    let new = upgraded["new_pid"].as_u64().unwrap() as u32;
    manager.hear(&format!("MAINPID={new}"));
    manager.hear("BARRIER=1");
    wait_for("the old process to exit", || {
        instance.reap();
        !lives(old)
    });
    assert!(!manager.texts.iter().any(|text| text.contains("STOPPING")), "{:?}", manager.texts);

    // It crashes; a client connects while no process serves; the next process gets the sockets and serves it.
    super::instance::signal(new, rustix::process::Signal::KILL);
    wait_for("its end", || !lives(new));
    let mut waiting = TcpStream::connect(instance.frontend).unwrap();
    waiting.set_read_timeout(Some(DEADLINE)).unwrap();
    waiting.write_all(&request(ECHO, 0, 0)).unwrap();
    waiting.write_all(b"patience").unwrap();
    let mut next = restart(&instance, &manager.store);
    let mut back = [0; 8];
    waiting.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"patience");
    next.kill().unwrap();
    next.wait().unwrap();
}

/// Starts `baton run` with `store` as descriptors 3 and on, as systemd does after a crash.
fn restart(instance: &Instance, store: &[OwnedFd]) -> std::process::Child {
    // A shell moves them into place: which numbers are free in this process is not ours to say.
    let copies: Vec<_> = store.iter().map(|fd| TcpListener::from(fd.try_clone().unwrap())).collect();
    let mut moves = String::new();
    for (number, copy) in copies.iter().enumerate() {
        moves += &format!(" {}<&{}", 3 + number, copy.as_raw_fd());
        rustix::io::fcntl_setfd(copy, rustix::io::FdFlags::empty()).unwrap();
    }
    let config = instance.config();
    let script = format!(
        "export LISTEN_PID=$$ LISTEN_FDS={}; exec '{BINARY}' run -c '{}' {moves}",
        copies.len(),
        config.display()
    );
    Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap()
}
