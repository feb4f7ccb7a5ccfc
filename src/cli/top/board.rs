//! What the screen shows, and what keys and reports change in it. It knows no terminal and no socket.
//!
//! ```text
//!            d e u k K                answer                y
//! Browse ───────────────▶ Asking ───────────────▶ Confirm ─────▶ Browse, and the order is given
//!   │  ▲                     │ Esc, refused          │ any other key
//!   │  └─────────────────────┴───────────────────────┘
//!   ├── n, f: nodes or the fleet in place of flows, or flows again
//!   ├── / ──▶ Filter ── Enter: kept, Esc: as before ──▶ Browse
//!   └── ? ──▶ Help ── any key ──▶ Browse
//! ```

use ipnet::IpNet;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::feed::{FeedReport, Look};
use super::fleet_pane::FleetPane;
use super::keys::{self, Action, BoardWish};
use super::node_rows::NodeRows;
use super::orders::KeyOrder;
use super::rows::Rows;
use crate::admin::protocol::KillTarget;
use crate::admin::status::{BackendStatus, Status};
use crate::model::health::HealthState;
use crate::model::weight::Weight;

pub(super) struct Board {
    pub status: Status,
    pub rows: Rows,
    pub nodes: NodeRows,
    pub fleet: FleetPane,
    /// Flows that match the command's filter beyond the listed ones.
    pub more: u64,
    pub takes_orders: bool,
    /// When the shown state was asked for.
    pub at_ns: u64,
    /// Why no newer state could be learnt.
    pub lost: Option<String>,
    pub table: Selectable,
    pub lower: LowerTable,
    pub mode: Mode,
    /// What the last order came to, or why a key does nothing.
    pub told: Option<(Weight, String)>,
    /// FRONTEND/NAME of the backend that keys act on, and its place in the list.
    backend: Option<String>,
    place: usize,
}

/// The table that keys act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selectable {
    Backends,
    Lower,
}

/// What stands below the backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LowerTable {
    Flows,
    Nodes,
    Fleet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Browse,
    /// The filter is typed. The one before.
    Filter(String),
    /// The instance is asked what this would do.
    Asking(KeyOrder),
    /// The operator is asked this.
    Confirm(KeyOrder, String),
    Help,
}

impl Board {
    pub(super) fn new(first: Look) -> Self {
        let Look { status, flows, more, nodes: _, takes_orders, at_ns } = first;
        let mut board = Self {
            status,
            rows: Rows::new(flows, at_ns),
            nodes: NodeRows::default(),
            fleet: FleetPane::default(),
            more,
            takes_orders,
            at_ns,
            lost: None,
            table: Selectable::Backends,
            lower: LowerTable::Flows,
            mode: Mode::Browse,
            told: None,
            backend: None,
            place: 0,
        };
        board.go_backends(0);
        board
    }

    pub(super) fn take(&mut self, report: FeedReport) {
        match report {
            FeedReport::Looked(look) => {
                let Look { status, flows, more, nodes, takes_orders, at_ns } = *look;
                self.rows.renew(flows, at_ns);
                self.nodes.renew(nodes);
                (self.status, self.more, self.takes_orders, self.at_ns) = (status, more, takes_orders, at_ns);
                self.lost = None;
                let selected = self.backend.as_ref();
                let found = self.status.backends().position(|it| selected.is_some_and(|name| full(it) == *name));
                self.place = found.unwrap_or(self.place);
                self.go_backends(0);
            }
            FeedReport::Lost(why) => self.lost = Some(why),
            // The operator may have gone back, or asked another question since.
            FeedReport::Asked(order, answer) if self.mode == Mode::Asking(order.clone()) => {
                let note = self.note(&order);
                let question = answer.map(|check| order.question(check.as_ref(), &note));
                self.mode = match question {
                    Ok(Some(question)) => Mode::Confirm(order, question),
                    Ok(None) => self.tells(Weight::Notice, "no flow matches any more".to_owned()),
                    Err(why) => self.tells(Weight::Bad, why),
                };
            }
            FeedReport::Asked(..) => {}
            FeedReport::Given(Ok(done)) => self.told = Some((Weight::Good, done)),
            FeedReport::Given(Err(why)) => self.told = Some((Weight::Bad, why)),
        }
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Option<BoardWish> {
        let action = keys::action(key);
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && action == Some(Action::Quit);
        match &self.mode {
            _ if is_interrupt => return Some(BoardWish::Quit),
            Mode::Browse => return action.and_then(|action| self.act(action)),
            Mode::Help => self.mode = Mode::Browse,
            Mode::Asking(_) if key.code == KeyCode::Esc => self.mode = Mode::Browse,
            Mode::Asking(_) => {}
            Mode::Confirm(order, _) => {
                let order = order.clone();
                self.mode = Mode::Browse;
                if key.code == KeyCode::Char('y') {
                    self.told = Some((Weight::Plain, "the instance carries out the order ...".to_owned()));
                    return Some(BoardWish::Give(order));
                }
                self.told = Some((Weight::Plain, "nothing was ordered".to_owned()));
            }
            Mode::Filter(before) => {
                let mut filter = self.filter().to_owned();
                match key.code {
                    KeyCode::Enter => self.mode = Mode::Browse,
                    KeyCode::Esc => {
                        filter.clone_from(before);
                        self.mode = Mode::Browse;
                    }
                    KeyCode::Backspace => drop(filter.pop()),
                    KeyCode::Char(letter) => filter.push(letter),
                    _ => {}
                }
                self.set_filter(filter);
            }
        }
        None
    }

    /// The backend that keys act on, and its place in the list.
    pub(super) fn backend(&self) -> Option<(usize, &BackendStatus)> {
        self.status.backends().nth(self.place).map(|it| (self.place, it))
    }

    /// Of the lower table.
    pub(super) fn filter(&self) -> &str {
        match self.lower {
            LowerTable::Flows => self.rows.filter(),
            LowerTable::Nodes => self.nodes.filter(),
            LowerTable::Fleet => "",
        }
    }

    fn set_filter(&mut self, filter: String) {
        match self.lower {
            LowerTable::Flows => self.rows.set_filter(filter),
            LowerTable::Nodes => self.nodes.set_filter(filter),
            LowerTable::Fleet => {}
        }
    }

    fn act(&mut self, action: Action) -> Option<BoardWish> {
        match action {
            Action::Quit => return Some(BoardWish::Quit),
            Action::Help => self.mode = Mode::Help,
            Action::OtherTable => {
                self.table = match self.table {
                    Selectable::Backends => Selectable::Lower,
                    Selectable::Lower => Selectable::Backends,
                }
            }
            Action::Nodes => return Some(self.show(LowerTable::Nodes)),
            Action::Fleet => return Some(self.show(LowerTable::Fleet)),
            Action::Go(places) => match (self.table, self.lower) {
                (Selectable::Backends, _) => self.go_backends(places),
                (Selectable::Lower, LowerTable::Flows) => self.rows.go(places),
                (Selectable::Lower, LowerTable::Nodes) => self.nodes.go(places),
                (Selectable::Lower, LowerTable::Fleet) => self.fleet.go(places),
            },
            Action::GoPages(pages) => match (self.table, self.lower) {
                (Selectable::Backends, _) => self.go_backends(pages.saturating_mul(BACKENDS_PAGE)),
                (Selectable::Lower, LowerTable::Flows) => self.rows.go_pages(pages),
                (Selectable::Lower, LowerTable::Nodes) => self.nodes.go_pages(pages),
                (Selectable::Lower, LowerTable::Fleet) => self.fleet.go_pages(pages),
            },
            Action::TurnOrder { forward } => self.rows.turn_order(forward),
            Action::Reverse => self.rows.reverse(),
            Action::Filter if self.lower == LowerTable::Fleet => {
                self.told = Some((Weight::Notice, "the fleet has no filter: f shows the flows again".to_owned()));
            }
            Action::Filter => {
                self.table = Selectable::Lower;
                self.mode = Mode::Filter(self.filter().to_owned());
            }
            Action::OfBackend if (self.table, self.lower) == (Selectable::Lower, LowerTable::Nodes) => {
                let node = self.nodes.selected()?;
                self.rows.set_of_backend(None);
                self.rows.set_filter(node.node.clone());
                self.lower = LowerTable::Flows;
                return Some(BoardWish::LookAtNodes(false));
            }
            Action::OfBackend if (self.table, self.lower) == (Selectable::Lower, LowerTable::Fleet) => {}
            Action::OfBackend => {
                let selected = self.backend().map(|(_, it)| (it.frontend.clone(), it.name.clone()));
                let is_on = self.rows.of_backend().is_some();
                self.rows.set_of_backend(selected.filter(|_| !is_on));
            }
            Action::Clear => {
                self.told = None;
                self.nodes.set_filter(String::new());
                self.rows.set_filter(String::new());
                self.rows.set_of_backend(None);
            }
            order => return self.order(order),
        }
        None
    }

    /// Shows a table in place of the flows, or the flows again.
    fn show(&mut self, lower: LowerTable) -> BoardWish {
        (self.lower, self.table) = match self.lower == lower {
            true => (LowerTable::Flows, self.table),
            false => (lower, Selectable::Lower),
        };
        BoardWish::LookAtNodes(self.lower == LowerTable::Nodes)
    }

    /// Begins an order, with a question to the instance.
    fn order(&mut self, action: Action) -> Option<BoardWish> {
        let order = match self.ordered(action) {
            _ if !self.takes_orders => Err(READ_ONLY),
            ordered => ordered,
        };
        match order {
            Ok(order) => {
                self.told = None;
                self.mode = Mode::Asking(order.clone());
                Some(BoardWish::Ask(order))
            }
            Err(why) => {
                self.told = Some((Weight::Notice, why.to_owned()));
                None
            }
        }
    }

    fn ordered(&self, action: Action) -> Result<KeyOrder, &'static str> {
        if self.table == Selectable::Lower && self.lower == LowerTable::Nodes {
            return Err("orders act on backends and flows: Tab, or Enter for this node's flows");
        }
        if self.table == Selectable::Lower && self.lower == LowerTable::Fleet {
            return Err("orders act on this instance's backends and flows: Tab, or f");
        }
        if self.table == Selectable::Lower {
            let Some(row) = self.rows.selected() else { return Err("no flow is selected") };
            let client = row.flow.client.ip();
            return match action {
                Action::Kill => {
                    let of = format!("flow {} of {}", row.flow.id, row.flow.client);
                    Ok(KeyOrder::Kill { target: KillTarget::Flow(row.flow.id), of })
                }
                Action::KillClient => {
                    let of = format!("the flows of client {client}");
                    Ok(KeyOrder::Kill { target: KillTarget::Client(IpNet::from(client)), of })
                }
                _ => Err("d, e and u order something for a backend: Tab, and select it"),
            };
        }
        let Some((_, backend)) = self.backend() else { return Err("there is no backend") };
        let name = full(backend);
        match action {
            Action::Drain => Ok(KeyOrder::Drain(name)),
            Action::Undrain => Ok(KeyOrder::Undrain(name)),
            Action::Eject => Ok(KeyOrder::Eject(name)),
            Action::Kill => Ok(KeyOrder::kill_backend(&name)),
            _ => Err("K resets the flows of a client: Tab, and select one of them"),
        }
    }

    /// What the operator should know of a drain or an eject, with a space before it.
    fn note(&self, order: &KeyOrder) -> String {
        let (KeyOrder::Drain(name) | KeyOrder::Eject(name)) = order else { return String::new() };
        let Some(backend) = self.status.backends().find(|it| full(it) == *name) else { return String::new() };
        let is_other = |it: &&BackendStatus| it.frontend == backend.frontend && it.name != backend.name;
        let others_ready = self.status.backends().filter(is_other).any(|it| it.health_state == HealthState::Ready);
        if others_ready { String::new() } else { format!(" No other backend of {} is ready.", backend.frontend) }
    }

    fn tells(&mut self, weight: Weight, text: String) -> Mode {
        self.told = Some((weight, text));
        Mode::Browse
    }

    fn go_backends(&mut self, places: isize) {
        let last = self.status.backends().count().saturating_sub(1);
        self.place = self.place.saturating_add_signed(places).min(last);
        self.backend = self.backend().map(|(_, it)| full(it));
    }
}

pub(super) fn full(backend: &BackendStatus) -> String {
    format!("{}/{}", backend.frontend, backend.name)
}

const READ_ONLY: &str =
    "this socket only looks: root and the user that Baton runs as give orders over the admin socket";
const BACKENDS_PAGE: isize = 5;
