//! The moment that is shown, and how keys and time move it. It knows no terminal.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::recorder::past::Past;

pub(super) struct Player {
    pub past: Past,
    /// The time that can be shown, milliseconds since 1970.
    pub from_ms: u64,
    pub until_ms: u64,
    pub at_ms: u64,
    pub lower: LowerList,
    /// Rows of the lower list above the first that is shown.
    pub top: usize,
    pub helps: bool,
    playing: bool,
    /// An index into `SPEEDS`.
    speed: usize,
}

/// What stands below the backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LowerList {
    Events,
    /// Those that lived then and have ended since.
    Flows,
}

impl Player {
    pub(super) fn new(past: Past, from_ms: u64, until_ms: u64) -> Self {
        let lower = LowerList::Events;
        Self { past, from_ms, until_ms, at_ms: from_ms, lower, top: 0, helps: false, playing: false, speed: 0 }
    }

    pub(super) fn is_playing(&self) -> bool {
        self.playing
    }

    /// How many seconds pass in one.
    pub(super) fn speed(&self) -> u64 {
        SPEEDS[self.speed]
    }

    /// Lets so much time pass.
    pub(super) fn advance(&mut self, time: Duration) {
        if self.playing {
            self.go(time.as_millis() as i64 * self.speed() as i64);
            self.playing = self.at_ms < self.until_ms;
        }
    }

    /// True: the operator has seen enough.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if matches!(key.code, KeyCode::Char('q')) || control && key.code == KeyCode::Char('c') {
            return true;
        }
        if std::mem::take(&mut self.helps) || key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            return false;
        }
        match key.code {
            KeyCode::Char(' ') => {
                self.playing = !self.playing;
                if self.playing && self.at_ms == self.until_ms {
                    self.at_ms = self.from_ms;
                }
            }
            KeyCode::Left => self.go(-1000),
            KeyCode::Right => self.go(1000),
            KeyCode::PageUp => self.go(-60_000),
            KeyCode::PageDown => self.go(60_000),
            KeyCode::Home => self.go(i64::MIN),
            KeyCode::End => self.go(i64::MAX),
            KeyCode::Char('e') => self.go_to_event(true),
            KeyCode::Char('E') => self.go_to_event(false),
            KeyCode::Char('+') => self.speed = (self.speed + 1).min(SPEEDS.len() - 1),
            KeyCode::Char('-') => self.speed = self.speed.saturating_sub(1),
            KeyCode::Tab | KeyCode::BackTab => {
                self.top = 0;
                self.lower = match self.lower {
                    LowerList::Events => LowerList::Flows,
                    LowerList::Flows => LowerList::Events,
                };
            }
            KeyCode::Up => self.top = self.top.saturating_sub(1),
            KeyCode::Down => self.top += 1,
            KeyCode::Char('?' | 'h') => self.helps = true,
            _ => {}
        }
        false
    }

    fn go(&mut self, ms: i64) {
        self.at_ms = self.at_ms.saturating_add_signed(ms).clamp(self.from_ms, self.until_ms);
        self.top = 0;
    }

    /// To the next event, or to the one before. Without one, the moment stays.
    fn go_to_event(&mut self, forward: bool) {
        let found = match forward {
            true => self.past.events(self.at_ms + 1, self.until_ms).next(),
            false => self.past.events(self.from_ms, self.at_ms.saturating_sub(1)).next_back(),
        };
        if let Some(event) = found {
            self.at_ms = event.at_unix_ms;
            self.top = 0;
        }
    }
}

const SPEEDS: [u64; 5] = [1, 2, 5, 10, 60];

/// The line of keys, most needed first: a narrow screen shows those that it has room for.
pub(super) const LINE: [&str; 7] = ["q quit", "? keys", "Space play", "← → 1 s", "e E event", "Tab flows", "+ - speed"];

pub(super) const HELP: [&str; 8] = [
    "Space        lets the time run, or stops it",
    "+ -          how fast: 1, 2, 5, 10 or 60 seconds in one",
    "← →          one second back or on; PgUp PgDn: a minute",
    "Home End     the first moment, the last one",
    "e E          the next event, the one before",
    "Tab          events, or the flows of this moment that have ended since",
    "↑ ↓          moves the list",
    "q            ends",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Recorded, Recording, TimedRecord};
    use crate::table::journal::{Event, What};

    fn player() -> Player {
        let event = |at_unix_ms| TimedRecord {
            at_unix_ms,
            owner: 0,
            what: Recorded::Event(Event { number: 1, at_unix_ms, what: What::OffloadResumed {} }),
        };
        let records = vec![event(105_000), event(130_000)];
        Player::new(Past::new(Recording { records, ..Recording::default() }), 100_000, 160_000)
    }

    fn press(player: &mut Player, code: KeyCode) -> u64 {
        assert!(!player.press(KeyEvent::from(code)));
        player.at_ms
    }

    #[test]
    fn keys_move_the_moment_within_its_time() {
        let mut it = player();
        assert_eq!(press(&mut it, KeyCode::Left), 100_000, "it is the first");
        assert_eq!(press(&mut it, KeyCode::Right), 101_000);
        assert_eq!(press(&mut it, KeyCode::PageDown), 160_000, "there is no more than that");
        assert_eq!(press(&mut it, KeyCode::Char('E')), 130_000);
        assert_eq!(press(&mut it, KeyCode::Char('E')), 105_000);
        assert_eq!(press(&mut it, KeyCode::Char('E')), 105_000, "there is no earlier one");
        assert_eq!(press(&mut it, KeyCode::Char('e')), 130_000);
        assert_eq!(press(&mut it, KeyCode::Home), 100_000);
        assert_eq!(press(&mut it, KeyCode::End), 160_000);
        assert!(it.press(KeyEvent::from(KeyCode::Char('q'))));
    }

    #[test]
    fn time_runs_as_fast_as_it_is_told_and_stops_at_the_end() {
        let mut it = player();
        it.advance(Duration::from_secs(9));
        assert_eq!(it.at_ms, 100_000, "it has not begun");
        press(&mut it, KeyCode::Char(' '));
        it.advance(Duration::from_secs(1));
        assert_eq!(it.at_ms, 101_000);
        for _ in 0..9 {
            press(&mut it, KeyCode::Char('+'));
        }
        it.advance(Duration::from_millis(500));
        assert_eq!((it.at_ms, it.speed()), (131_000, 60));
        it.advance(Duration::from_secs(1));
        assert_eq!((it.at_ms, it.is_playing()), (160_000, false));
        assert_eq!(press(&mut it, KeyCode::Char(' ')), 100_000, "it begins anew");
    }
}
