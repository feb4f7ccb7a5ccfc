//! Asks the instance: once a second for what is shown, and whenever a key orders something.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

use super::orders::KeyOrder;
use crate::admin::client::{Client, ClientError};
use crate::admin::nodes::NodesReport;
use crate::admin::protocol::{About, Command, FlowFilter, FlowRow, KillCheck, Listed};
use crate::admin::status::Status;
use crate::cli::socket;
use crate::model::humane::duration_ms;
use crate::sys::clock::now_ns;

/// The state of the instance at one moment.
pub(super) struct Look {
    pub status: Status,
    pub flows: Vec<FlowRow>,
    /// Flows that match the command's filter beyond the listed ones.
    pub more: u64,
    /// `None`: nobody looks at them, or the instance is of a version without nodes.
    pub nodes: Option<NodesReport>,
    /// Whether the socket takes orders.
    pub takes_orders: bool,
    pub at_ns: u64,
}

pub(super) enum FeedReport {
    Looked(Box<Look>),
    /// Nothing could be learnt, and why.
    Lost(String),
    /// The effects of an order, if it resets flows; or why it is refused.
    Asked(KeyOrder, Result<Option<KillCheck>, String>),
    /// What an order came to.
    Given(Result<String, String>),
}

/// The threads that ask. They end when the receiver of their reports is dropped.
pub(super) struct Feed {
    socket: PathBuf,
    /// Weak: the channel closes when the thread that looks has ended, and nobody waits for its looks any more.
    reports: WeakUnboundedSender<FeedReport>,
    at_once: Sender<()>,
    looks_at_nodes: Arc<AtomicBool>,
}

impl Feed {
    /// Connects, takes the first look, and begins.
    pub(super) fn start(
        path: &Path,
        filter: FlowFilter,
        reports: UnboundedSender<FeedReport>,
    ) -> Result<(Self, Look), ClientError> {
        let filter = Command::Flows(filter);
        let mut connection = FeedConnection::to(path)?;
        let first = connection.look(&filter, false)?;
        let (at_once, wakes) = channel();
        let looks_at_nodes = Arc::<AtomicBool>::default();
        let feed = Self {
            socket: path.to_owned(),
            reports: reports.downgrade(),
            at_once,
            looks_at_nodes: looks_at_nodes.clone(),
        };
        let question = FeedQuestion { path: path.to_owned(), flows: filter, nodes: looks_at_nodes };
        std::thread::spawn(move || watch(&question, Some(connection), &reports, &wakes));
        Ok((feed, first))
    }

    /// Whether the next looks ask for nodes, too. The first of them comes at once.
    pub(super) fn look_at_nodes(&self, looks: bool) {
        self.looks_at_nodes.store(looks, Relaxed);
        let _ = self.at_once.send(());
    }

    /// Asks what `order` would do.
    pub(super) fn ask(&self, order: KeyOrder) {
        self.aside(move |client| {
            let check = match order.resets() {
                Some(target) => client.and_then(|mut it| it.ask(&Command::CheckKill { target })).map(Some),
                None => Ok(None),
            };
            FeedReport::Asked(order, check.map_err(|error| in_words(&error)))
        });
    }

    pub(super) fn give(&self, order: KeyOrder) {
        self.aside(move |client| {
            FeedReport::Given(client.and_then(|mut it| order.give(&mut it)).map_err(|error| in_words(&error)))
        });
    }

    /// An order may take as long as the resets that it paces; the looks go on meanwhile.
    fn aside(&self, ask: impl FnOnce(Result<Client, ClientError>) -> FeedReport + Send + 'static) {
        let Some(reports) = self.reports.upgrade() else { return };
        let (socket, at_once) = (self.socket.clone(), self.at_once.clone());
        std::thread::spawn(move || {
            let _ = reports.send(ask(socket::connect(&socket)));
            let _ = at_once.send(());
        });
    }
}

/// What a look asks for, and of which instance.
struct FeedQuestion {
    path: PathBuf,
    flows: Command,
    nodes: Arc<AtomicBool>,
}

fn watch(
    question: &FeedQuestion,
    mut connection: Option<FeedConnection>,
    reports: &UnboundedSender<FeedReport>,
    at_once: &Receiver<()>,
) {
    let mut pause = LOOK_EVERY;
    loop {
        match at_once.recv_timeout(pause) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let begun_ns = now_ns();
        let current = connection.take().map_or_else(|| FeedConnection::to(&question.path), Ok);
        let nodes = question.nodes.load(Relaxed);
        let looked = current.and_then(|mut current| Ok((current.look(&question.flows, nodes)?, current)));
        let report = match looked {
            Ok((look, current)) => {
                connection = Some(current);
                FeedReport::Looked(Box::new(look))
            }
            // Also what the instance refuses is asked anew on another connection: it may be another process.
            Err(error) => FeedReport::Lost(in_words(&error)),
        };
        pause = LOOK_EVERY.max(Duration::from_nanos(now_ns() - begun_ns) * PAUSE);
        if reports.send(report).is_err() {
            return;
        }
    }
}

struct FeedConnection {
    client: Client,
    takes_orders: bool,
}

impl FeedConnection {
    fn to(path: &Path) -> Result<Self, ClientError> {
        let mut client = socket::connect(path)?.with_limit(ANSWER_MAX)?;
        let about: About = client.ask(&Command::Version {})?;
        Ok(Self { client, takes_orders: about.takes_orders })
    }

    fn look(&mut self, filter: &Command, looks_at_nodes: bool) -> Result<Look, ClientError> {
        let status = self.client.ask(&Command::Status {})?;
        let mut flows = Vec::new();
        let listed: Option<Listed> = self.client.list(filter, |row: FlowRow| {
            flows.push(row);
            ControlFlow::Continue(())
        })?;
        let more = listed.ok_or(ClientError::Cut)?.more;
        let asked = looks_at_nodes.then(|| self.client.ask(&Command::Nodes {}));
        let nodes = match asked {
            None | Some(Err(ClientError::Refused(_))) => None,
            Some(asked) => Some(asked?),
        };
        Ok(Look { status, flows, more, nodes, takes_orders: self.takes_orders, at_ns: now_ns() })
    }
}

fn in_words(error: &ClientError) -> String {
    match error {
        ClientError::Broken(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            format!("the instance has not answered for {}", duration_ms(ANSWER_MAX.as_millis() as u64))
        }
        error => error.to_string(),
    }
}

pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause between two looks, as a multiple of the duration of the last one: however many flows there are, looking must not use
/// a noticeable part of a core.
const PAUSE: u32 = 10;
/// Longer than a busy instance takes.
const ANSWER_MAX: Duration = Duration::from_secs(5);
