//! The terminal: taken, and given back as it was, whatever ends this process but SIGKILL.

use std::io::{self, IsTerminal};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::mpsc;

use super::output::{CliError, Output};

/// Whether there is a terminal to draw on, and one may be drawn on.
pub(super) fn check(command: &'static str) -> Result<(), CliError> {
    let cannot = |why| Err(CliError::NoTerminal { command, why });
    if !io::stdout().is_terminal() {
        return cannot("standard output is not one");
    }
    if !io::stdin().is_terminal() {
        return cannot("standard input, which brings the keys, is not one");
    }
    if std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb") {
        return cannot("$TERM names none whose cursor can be moved");
    }
    Ok(())
}

/// Columns and rows of a frame that is printed: those of the terminal, or those that every terminal has.
pub(super) fn size(output: &Output) -> (u16, u16) {
    let said = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_row > 0);
    let columns = output.width.and_then(|width| width.try_into().ok()).unwrap_or(80);
    (columns, said.map_or(24, |size| size.ws_row))
}

/// The terminal in raw mode, on its alternate screen. Dropped, it is as it was before; a panic's message comes after that.
pub(super) struct Terminal(DefaultTerminal);

impl Terminal {
    pub(super) fn take() -> io::Result<Self> {
        // Also sets a panic hook that gives the terminal back. What was taken of it before an error is given back, too.
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl Deref for Terminal {
    type Target = DefaultTerminal;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Terminal {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

pub(super) enum TerminalInput {
    Key(KeyEvent),
    Resized,
}

/// Keys and changes of size, read by a thread that ends soon after the receiver is dropped.
pub(super) fn read_inputs() -> mpsc::UnboundedReceiver<TerminalInput> {
    let (sender, inputs) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(POLL).and_then(|some| if some { event::read().map(Some) } else { Ok(None) }) {
                Ok(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    let _ = sender.send(TerminalInput::Key(key));
                }
                Ok(Some(Event::Resize(..))) => {
                    let _ = sender.send(TerminalInput::Resized);
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    });
    inputs
}

const POLL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::Command;

    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    /// The test below starts this in a process of its own, with a terminal.
    #[test]
    #[ignore = "needs the terminal that the test below gives it"]
    fn panics_on_a_terminal() {
        let terminal = Terminal::take().unwrap();
        let taken = tcgetattr(io::stdin()).unwrap();
        assert!(!taken.local_modes.contains(LocalModes::ECHO), "it was not taken");
        let _terminal = terminal;
        panic!("in the middle of a frame");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_and_its_message_can_be_read() {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let path = ptsname(&near, Vec::new()).unwrap().into_string().unwrap();
        let far = || open(&path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let kept = far();
        let said = std::thread::spawn(move || {
            let mut said = Vec::new();
            // EIO: nobody has the other end any more.
            let _ = File::from(near).read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        });
        let before = tcgetattr(&kept).unwrap();
        let mut command = Command::new("setsid");
        // Not a controlling terminal: its end would hang it up.
        command.arg("--wait").arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--nocapture", "--exact", "cli::terminal::tests::panics_on_a_terminal"]);
        let ended = command.stdin(far()).stdout(far()).stderr(far()).env("RUST_BACKTRACE", "0").status().unwrap();
        assert!(!ended.success());
        let after = tcgetattr(&kept).unwrap();
        assert_eq!((before.local_modes, before.input_modes), (after.local_modes, after.input_modes));
        // The command has three more of that end.
        drop((kept, command));
        let said = said.join().unwrap();
        let (screen, rest) = said.split_once("\x1b[?1049l").expect("it leaves its alternate screen");
        assert!(screen.contains("\x1b[?1049h") && !screen.contains("in the middle of a frame"), "{said}");
        assert!(rest.contains("in the middle of a frame"), "{said}");
    }
}
