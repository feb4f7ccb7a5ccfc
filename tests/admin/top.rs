//! `baton top` on a real terminal: keys that are typed, and what stands on the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use baton::model::health::Order;
use baton::sys::clock::now_ns;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::fake::FakeInstance;

const ROWS: u16 = 24;
const COLUMNS: u16 = 80;
const WITHIN: Duration = Duration::from_secs(20);

/// A terminal with `baton top` on it.
struct OnTerminal {
    child: Child,
    keys: File,
    parts: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    /// The end that the child has.
    far: OwnedFd,
}

impl OnTerminal {
    fn start(socket: &Path) -> Self {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let path = ptsname(&near, Vec::new()).unwrap();
        let far = || open(&path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let kept = far();
        tcsetwinsize(&kept, Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // In a session of its own, so that it does not find the terminal of whoever runs the tests.
        let mut command = Command::new("setsid");
        command.args(["--wait", env!("CARGO_BIN_EXE_baton"), "--socket"]).arg(socket).arg("top");
        command.env("TERM", "xterm-256color").env_remove("BATON_SOCKET").env_remove("COLUMNS");
        let child = command.stdin(far()).stdout(far()).stderr(far()).spawn().unwrap();
        drop(command);
        let mut output = File::from(near);
        let keys = output.try_clone().unwrap();
        let (sender, parts) = channel();
        std::thread::spawn(move || {
            let mut part = [0; 65536];
            // EIO: nobody has the other end any more.
            while let Ok(length) = output.read(&mut part)
                && length > 0
                && sender.send(part[..length].to_vec()).is_ok()
            {}
        });
        let screen = vt100::Parser::new(nonzero(ROWS), nonzero(COLUMNS), 0);
        Self { child, keys, parts, screen, far: kept }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads until the screen fulfils `wanted`.
    fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = now_ns() + WITHIN.as_nanos() as u64;
        loop {
            let shown = self.screen.screen().contents();
            if wanted(&shown) {
                return shown;
            }
            let left = Duration::from_nanos(deadline.saturating_sub(now_ns()));
            match self.parts.recv_timeout(left) {
                Ok(part) => self.screen.process(&part),
                Err(error) => panic!("{what}: {error}\n{shown}"),
            }
        }
    }

    fn until_has(&mut self, text: &str) -> String {
        self.until(text, |shown| shown.contains(text))
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.far).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    /// Waits for its end, after which the terminal is as it was.
    fn ends(mut self) {
        self.until("it leaves its screen", |_| true);
        let ended = self.child.wait().unwrap();
        while let Ok(part) = self.parts.recv_timeout(Duration::from_millis(100)) {
            self.screen.process(&part);
        }
        assert!(ended.success(), "{ended}: {}", self.screen.screen().contents());
        assert!(!self.screen.screen().alternate_screen() && !self.screen.screen().hide_cursor());
        assert!(self.echoes());
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn nonzero(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

/// Runs `act`, which waits, beside the instance.
async fn beside(act: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(act).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_drain_a_backend_and_kill_its_flows_after_a_question() {
    let instance = FakeInstance::start();
    let (socket, control) = (instance.socket(), instance.control.clone());
    let id = instance.backend("cp1").id;
    beside(move || {
        let mut top = OnTerminal::start(&socket);
        let shown = top.until_has("q quit");
        assert!(shown.contains("cp1") && shown.contains("192.0.2.1:40000") && shown.contains("10 flows"), "{shown}");
        assert!(!top.echoes() && top.screen.screen().alternate_screen());
        top.press("d");
        top.until_has("Drain apiserver/cp1? 6 flows, 6 clients go on");
        assert_eq!(*control.orders.lock().unwrap(), [], "before the answer");
        top.press("n");
        top.until_has("nothing was ordered");
        assert_eq!(*control.orders.lock().unwrap(), []);
        top.press("d");
        top.until_has("Drain apiserver/cp1?");
        top.press("y");
        top.until_has("gets no new flows until you undrain it");
        assert_eq!(*control.orders.lock().unwrap(), [(id, Order::Drain)]);
        // The second backend, by the arrow key.
        top.press("\x1b[Bk");
        top.until_has("Kill the flows of apiserver/cp2? 4 flows, 4 clients, resets over 250 ms.");
        top.press("y");
        top.until_has("the flows of apiserver/cp2: 4 flows gone");
        top.until("the flows of cp1 are left", |shown| shown.lines().any(|line| line.starts_with("6 flows")));
        top.press("q");
        top.ends();
    })
    .await;
    assert_eq!(instance.table.flows.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_order_is_told() {
    let instance = FakeInstance::start();
    let socket = instance.socket();
    beside(move || {
        let mut top = OnTerminal::start(&socket);
        top.until_has("q quit");
        top.press("e");
        top.until_has("Eject apiserver/cp1? 6 flows, 6 clients, resets over 250 ms.");
        top.press("y");
        top.until_has("this instance is stopping");
        // Ctrl-C.
        top.press("\x03");
        top.ends();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_read_only_socket_shows_all_and_orders_nothing() {
    let instance = FakeInstance::start();
    let socket = instance.directory.path().join("admin-read.sock");
    assert!(socket.exists(), "the socket beside admin.sock");
    let control = instance.control.clone();
    beside(move || {
        let mut top = OnTerminal::start(&socket);
        let shown = top.until_has("q quit");
        assert!(shown.contains("read-only") && shown.contains("192.0.2.1:40000"), "{shown}");
        top.press("d");
        top.until_has("this socket only looks");
        top.press("q");
        top.ends();
        assert_eq!(*control.orders.lock().unwrap(), []);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_gives_the_terminal_back() {
    let instance = FakeInstance::start();
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let socket = instance.socket();
        beside(move || {
            let mut top = OnTerminal::start(&socket);
            top.until_has("q quit");
            assert!(!top.echoes());
            kill_process(Pid::from_child(&top.child), signal).unwrap();
            top.ends();
        })
        .await;
    }
}

#[tokio::test]
async fn without_a_terminal_it_says_so_and_prints_one_frame_if_asked() {
    let instance = FakeInstance::start();
    let run = |arguments: &'static [&'static str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_baton"));
        command.arg("--socket").arg(instance.socket()).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        async move { tokio::time::timeout(WITHIN, command.output()).await.expect("it ends").unwrap() }
    };
    let refused = run(&["top"]).await;
    let why = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    assert_eq!(
        why,
        "baton: `baton top` needs a terminal, and standard output is not one; `baton top --once` prints one frame as text\n"
    );
    let once = run(&["top", "--once", "--backend", "cp1"]).await;
    let shown = String::from_utf8(once.stdout).unwrap();
    assert!(once.status.success() && !shown.contains('\x1b'), "{shown}");
    assert_eq!(shown.matches(":40000").count(), 6, "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("6 flows")) && shown.contains("ejected"), "{shown}");
    let unknown = run(&["top", "--once", "--backend", "cp9"]).await;
    assert!(!unknown.status.success() && unknown.stdout.is_empty());
}
