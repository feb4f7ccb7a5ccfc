//! The demo on a terminal: a picture several times a second, and keys.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::fleet;
use super::screen;
use super::stage::{DemoStage, StageError, StandInAction};
use super::view::ViewWatcher;
use crate::sys::clock::now_ns;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
    #[error(transparent)]
    DemoStage(#[from] StageError),
}

/// The request of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyWish {
    Select(usize),
    Act(StandInAction),
    Quit,
}

/// Shows the stage until `q` or Ctrl-C. Restores the terminal at the end, also after a panic.
pub(super) async fn run(stage: &mut DemoStage) -> Result<(), LiveError> {
    // Also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init()?;
    let _restore = Restore;
    show(&mut terminal, stage).await
}

/// Restores the terminal even if [`run`] is not polled to its end.
pub(super) struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn show(terminal: &mut ratatui::DefaultTerminal, stage: &mut DemoStage) -> Result<(), LiveError> {
    let mut watcher = ViewWatcher::default();
    let mut keys = read_keys();
    let mut selected = 0;
    let mut ticks = interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    watcher.say("you", "started the demo: try k, then r");
    let mut offer = fleet::offer();
    loop {
        watcher.gather(stage);
        let view = watcher.view(stage);
        // After the lines of the clients that connect.
        if view.elapsed > OFFER_AFTER
            && let Some(offer) = offer.take()
        {
            watcher.say("demo", offer);
        }
        terminal.draw(|frame| screen::draw(frame, &view, selected))?;
        if let Some(ended) = stage.baton_ended() {
            return Err(ended.into());
        }
        let key = tokio::select! {
            _ = ticks.tick() => continue,
            key = keys.recv() => key,
        };
        match key.map(wish) {
            // The terminal is gone, so no more keys can come.
            None | Some(Some(KeyWish::Quit)) => return Ok(()),
            Some(Some(KeyWish::Select(place))) => selected = place.min(stage.stand_ins.len() - 1),
            Some(Some(KeyWish::Act(action))) => {
                let at_ns = now_ns();
                let done = stage.act(selected, action).await.unwrap_or_else(|error| error.to_string());
                watcher.say_at(at_ns, "you", done);
            }
            Some(None) => {}
        }
    }
}

fn wish(key: KeyEvent) -> Option<KeyWish> {
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => KeyWish::Quit,
        KeyCode::Char('q') | KeyCode::Esc => KeyWish::Quit,
        KeyCode::Char(digit @ '1'..='3') => KeyWish::Select(digit as usize - '1' as usize),
        KeyCode::Char('k') => KeyWish::Act(StandInAction::Kill),
        KeyCode::Char('t') => KeyWish::Act(StandInAction::Terminate),
        KeyCode::Char('h') => KeyWish::Act(StandInAction::Hang),
        KeyCode::Char('c') => KeyWish::Act(StandInAction::Resume),
        KeyCode::Char('u') => KeyWish::Act(StandInAction::ToggleReady),
        KeyCode::Char('d') => KeyWish::Act(StandInAction::Drain),
        KeyCode::Char('n') => KeyWish::Act(StandInAction::Undrain),
        KeyCode::Char('r') => KeyWish::Act(StandInAction::BringBack),
        _ => return None,
    })
}

/// Keys, read by a thread that ends soon after the receiver is dropped.
pub(super) fn read_keys() -> mpsc::UnboundedReceiver<KeyEvent> {
    let (sender, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEY_POLL).and_then(|some| if some { event::read().map(Some) } else { Ok(None) }) {
                Ok(Some(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    let _ = sender.send(key);
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    });
    keys
}

pub(super) const REDRAW: Duration = Duration::from_millis(200);
const OFFER_AFTER: Duration = Duration::from_secs(2);
const KEY_POLL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_c_quits_and_c_continues() {
        let c = KeyCode::Char('c');
        assert_eq!(wish(KeyEvent::new(c, KeyModifiers::CONTROL)), Some(KeyWish::Quit));
        assert_eq!(wish(KeyEvent::new(c, KeyModifiers::NONE)), Some(KeyWish::Act(StandInAction::Resume)));
        assert_eq!(wish(KeyEvent::new(KeyCode::Char('3'), KeyModifiers::NONE)), Some(KeyWish::Select(2)));
        assert_eq!(wish(KeyEvent::new(KeyCode::Char('4'), KeyModifiers::NONE)), None);
    }
}
