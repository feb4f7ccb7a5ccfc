//! The fleet on a terminal: a picture several times a second, and keys.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tokio::time::{MissedTickBehavior, interval};

use super::screen;
use super::stage::{FleetError, FleetKey, FleetStage};
use super::view::{FleetPicture, FleetWatcher};
use crate::lab::demo::live::{REDRAW, Restore, read_keys};
use crate::sys::clock::now_ns;

/// The request of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FleetWish {
    Press(FleetKey),
    Quit,
}

/// Shows the fleet, or both, until `q` or Ctrl-C. Restores the terminal at the end, also after a panic.
pub(super) async fn run(stages: &mut [FleetStage]) -> Result<(), FleetError> {
    // Also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init().map_err(FleetError::Terminal)?;
    let _restore = Restore;
    let mut watchers = FleetWatcher::for_each_of(stages);
    let mut keys = read_keys();
    let mut ticks = interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    watchers[0].say_at(now_ns(), "you", "started: try p, which takes the host with the VIP from the network, then r");
    loop {
        let mut views = Vec::new();
        for (stage, watcher) in stages.iter_mut().zip(&mut watchers) {
            watcher.gather(stage)?;
            views.push(watcher.view(stage));
        }
        terminal.draw(|frame| draw(frame, &views)).map_err(FleetError::Terminal)?;
        let key = tokio::select! {
            _ = ticks.tick() => continue,
            key = keys.recv() => key,
        };
        match key.map(wish) {
            // The terminal is gone, so no more keys can come.
            None | Some(Some(FleetWish::Quit)) => return Ok(()),
            Some(Some(FleetWish::Press(key))) => {
                for (stage, watcher) in stages.iter_mut().zip(&mut watchers) {
                    let at_ns = now_ns();
                    let done = stage.press(key).await.unwrap_or_else(|error| error.to_string());
                    watcher.say_at(at_ns, "you", done);
                }
            }
            Some(None) => {}
        }
    }
}

fn draw(frame: &mut Frame<'_>, views: &[FleetPicture]) {
    match views {
        [baton, haproxy] => screen::beside::draw(frame, baton, haproxy),
        views => views.iter().for_each(|view| screen::draw(frame, view)),
    }
}

fn wish(key: KeyEvent) -> Option<FleetWish> {
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => FleetWish::Quit,
        KeyCode::Char('q') | KeyCode::Esc => FleetWish::Quit,
        KeyCode::Char('k') => FleetWish::Press(FleetKey::KillApiserver),
        KeyCode::Char('b') => FleetWish::Press(FleetKey::KillBalancer),
        KeyCode::Char('p') => FleetWish::Press(FleetKey::PullPlug),
        KeyCode::Char('e') => FleetWish::Press(FleetKey::Evacuate),
        KeyCode::Char('u') => FleetWish::Press(FleetKey::Upgrade),
        KeyCode::Char('f') => FleetWish::Press(FleetKey::Firewall),
        KeyCode::Char('r') => FleetWish::Press(FleetKey::Repair),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_of_the_last_line_acts() {
        let keys = screen::KEYS.split('│').map(|entry| entry.chars().next().unwrap());
        let unknown: Vec<_> =
            keys.filter(|key| wish(KeyEvent::new(KeyCode::Char(*key), KeyModifiers::NONE)).is_none()).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert_eq!(wish(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(FleetWish::Quit));
    }
}
