//! What each key means while nothing is asked, and the lines that say so.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::orders::KeyOrder;

/// What the loop has to do for a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BoardWish {
    Quit,
    /// Ask the instance what the order would do.
    Ask(KeyOrder),
    Give(KeyOrder),
    /// Ask for nodes from now on, or no longer.
    LookAtNodes(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Help,
    OtherTable,
    /// Nodes in place of flows, or flows again.
    Nodes,
    /// The fleet in place of flows, or flows again.
    Fleet,
    /// Rows down; up, if negative.
    Go(isize),
    GoPages(isize),
    /// Order by the next column, or by the one before.
    TurnOrder {
        forward: bool,
    },
    Reverse,
    Filter,
    /// Only the selected backend's flows, or all again.
    OfBackend,
    Drain,
    Undrain,
    Eject,
    /// The selected flow, or the flows of the selected backend.
    Kill,
    /// All flows of the selected flow's client.
    KillClient,
    /// Forget what was told, and the filter.
    Clear,
}

/// The meaning of `key`, if it has any.
pub(super) fn action(key: KeyEvent) -> Option<Action> {
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Action::Quit,
        _ if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => return None,
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?' | 'h') => Action::Help,
        KeyCode::Tab | KeyCode::BackTab => Action::OtherTable,
        KeyCode::Char('n') => Action::Nodes,
        KeyCode::Char('f') => Action::Fleet,
        KeyCode::Up => Action::Go(-1),
        KeyCode::Down => Action::Go(1),
        KeyCode::PageUp => Action::GoPages(-1),
        KeyCode::PageDown => Action::GoPages(1),
        KeyCode::Home => Action::Go(isize::MIN),
        KeyCode::End => Action::Go(isize::MAX),
        KeyCode::Left | KeyCode::Char('<') => Action::TurnOrder { forward: false },
        KeyCode::Right | KeyCode::Char('>') => Action::TurnOrder { forward: true },
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Enter => Action::OfBackend,
        KeyCode::Char('d') => Action::Drain,
        KeyCode::Char('u') => Action::Undrain,
        KeyCode::Char('e') => Action::Eject,
        KeyCode::Char('k') => Action::Kill,
        KeyCode::Char('K') => Action::KillClient,
        KeyCode::Esc => Action::Clear,
        _ => return None,
    })
}

/// The last line, most needed first: a narrow screen shows those that it has room for.
pub(super) const LINE: [&str; 9] =
    ["q quit", "? keys", "Tab flows/backends", "n nodes", "d drain", "e eject", "k kill", "f fleet", "/ filter"];

/// Of a socket that only looks.
pub(super) const READ_ONLY_LINE: [&str; 7] =
    ["q quit", "? keys", "Tab flows/backends", "n nodes", "f fleet", "/ filter", "< > order"];

pub(super) const HELP: [&str; 15] = [
    "Tab          the backends, or the flows, the nodes or the fleet",
    "n            the nodes, silent ones first; Enter shows a node's flows",
    "f            the fleet: each backend as each instance sees it",
    "↑ ↓ PgUp PgDn Home End   selects",
    "< > (← →)    orders the flows by another column; r reverses",
    "/            filters flows or nodes by words; Esc shows all again",
    "Enter        shows only the selected backend's flows, or all again",
    "",
    "On a backend:",
    "d  drain     no new flows; its flows go on until drain_timeout",
    "e  eject     no new flows, and its flows are reset",
    "u  undrain   ends a drain or an eject",
    "k  kill      resets its flows",
    "On a flow:   k resets it, K resets all flows of its client",
    "Each order is asked first, with the flows and clients that it reaches.",
];
